/* sequence.h — one request while the engine works on it: its tokens, its K/V cache, its pipeline and how far approximation
 * has spread in it.
 *
 *   tokens   [ prompt ........ | published ............. ]  n_tokens
 *   rows     [ committed ............ ]                     cache.n_rows < n_tokens between steps
 *   frontier              ^ first row computed from approximate support; KV_UNTAINTED when there is none
 *
 * A step computes rows from n_rows on; the row of the last token yields the next one. Prefill, decode and recompute differ only
 * in how many rows are missing. Created by the submitting thread, owned by the decode thread from admission on. */
#ifndef KV_SEQUENCE_H
#define KV_SEQUENCE_H

#include "runtime/execution/placement.h"
#include "runtime/identity/receipt.h"
#include "runtime/model/constraint.h"
#include "runtime/model/sampler.h"
#include "runtime/selection/selector.h"
#include "runtime/service/credits.h"
#include "runtime/service/stream.h"
#include "runtime/service/stream_text.h"

#define KV_UNTAINTED INT32_MAX

/* A selector's instances for one sequence, and what its queries answered in this step. */
struct kv_selection {
    const struct kv_selector_method *method;
    const struct kv_fault_marks *faults; /* injected ones that serving meets; NULL: none */
    struct kv_params params;
    int32_t n_layers, n_kv_heads, group, d_head, max_blocks, max_rows;
    struct kv_selector **selector; /* [n_layers][n_kv_heads]; NULL where dense, or not yet made (shadow) */
    bool *built;                   /* [n_layers][n_kv_heads] */
    struct kv_index_snapshot *index; /* [n_layers][n_kv_heads] whose rows, under which parameters, and how far it goes */
    struct kv_source_digest source;  /* of the rows that are asked about; the frontier is compared by itself */
    struct kv_selector_generation generation; /* the candidate, whose parameters the proxies are made by */
    int32_t pending;               /* in shadow: the unit whose index every step builds a part of, or -1 */
    double build_share;            /* products a step spends on an unfinished index, per product of its dense attention; 0: all of them */
    double byte_cost;              /* what a byte that selecting reads counts beside one of all rows in order; the method's */
    uint64_t *support;             /* [n_kv_heads][group][max_blocks] of the layer in work */
    float *estimate;               /* [n_kv_heads][group][d_head] */
    double *mass;                  /* [n_kv_heads][group] */
    struct kv_ledger *ledger;      /* [n_kv_heads] of the last query */
    int32_t *dense_until;          /* [n_layers][n_kv_heads] rows below which selecting reads no less than all rows; asked again from there on */
    _Atomic uint64_t ahead_bytes, queries, query_ns, ranked_bytes, rows, visible, build_ns, waits, whole; /* since the decode thread last took them; waits: heads that read all rows because their index was being built; whole: because that costs no more than selecting */
    _Atomic uint32_t missed, stale, over_budget; /* heads whose selection was not used, and why; likewise */
    bool rehearses;                /* ranked by foretold queries */
    bool estimates;                /* the method's estimator replaces plain attention */
    float *prefill_q;              /* [n_layers][n_kv_heads][n_prefill_q][group][d_head] of the last prompt tokens; NULL where the method makes nothing of them */
    int32_t n_prefill_q, kept_q;   /* kept_q: the first so many of them are there; only all of them are built from */
    int32_t build_rows;            /* the index is built over the prompt's rows, whenever that begins; later ones are appended. 0: over all before the query's */
};

enum kv_step_verdict { /* what the gate decided about the step as a whole; bits */
    KV_STEP_OMITTED = 1,   /* some support left a visible row out */
    KV_STEP_RECOMPUTE = 2, /* discard, go back to the baseline from the frontier */
    KV_STEP_POSTPONE = 4,  /* discard, run again dense */
    KV_STEP_REJECT = 8
};

struct kv_step_result { /* step-local; nothing of it is visible before publication */
    enum kv_status status;
    struct kv_sampled sampled;
};

struct kv_sequence {
    /* The request. */
    uint64_t id;
    int32_t n_prompt, max_tokens, n_logprobs, n_force;
    int32_t first_prompt, n_spoken;    /* of a continuation: length of the original prompt, outputs before */
    uint64_t resume;                   /* the paused request whose rows it takes over */
    uint64_t credits_tried;            /* kv_credits_returns + 1 when it was refused credits to read them; 0: never */
    bool pause_at_stop;
    struct kv_credit_ticket credit;
    double h2d_bytes_per_s, d2h_bytes_per_s; /* that it needs while it holds the ticket */
    int32_t priority;
    enum kv_status kept_back;
    bool no_index;                     /* there was no memory for the candidate's */
    int64_t arrival_us;                /* the original one: what its age is counted from */
    struct kv_sampling sampling;
    bool ignore_eos, observe_prompt, probe;
    enum kv_contract contract;
    char tenant[64], klass[64], session[64];
    uint8_t trace_id[24];
    int64_t deadline_us, submitted_us, admitted_us, first_us;
    int32_t *force;
    void (*observe)(void *ctx, int32_t position, const float *logits, int32_t n_vocab);
    void (*trace)(void *ctx, int32_t position, int32_t layer, int operation, float *x, int32_t n);
    void *observe_ctx;
    /* Progress. */
    int32_t *tokens, n_tokens;         /* [n_prompt + max_tokens] */
    struct kv_cache cache;
    int32_t frontier;
    struct kv_prefix_digest prefix;    /* of the tokens of the first prefix_blocks blocks, whose rows are exact */
    struct kv_chunk_digest prefix_key; /* of the last of them */
    struct kv_prefix_digest next_prefix; /* the same with block next_block, the one after them, once its tokens are known */
    struct kv_chunk_digest next_key;
    int32_t prefix_blocks, next_block, n_reused; /* next_block: -1 before next_key was made */
    struct kv_turn *turn;              /* rows of the history that are being looked for or read */
    bool dropped;                /* its session was while it waited or ran: its rows are kept nowhere */
    bool turn_over, turn_runs, arriving; /* there is nothing to look for any more; the session is said to run; a step may run while rows arrive */
    bool ahead, ahead_short;           /* while it waited its history was looked for ahead of its turn; the remote tier failed at it, or has no more */
    uint64_t ahead_bytes;              /* of it that host memory was given, or is expected to need */
    bool recomputing, counted;         /* counted: in the engine's number of live candidate sequences */
    int32_t recompute_to, n_recomputed;
    int64_t recompute_began_us;
    bool approximate;                  /* some published token was */
    int32_t segment;                   /* first published token without a publication receipt */
    struct {                           /* of the segment's selected heads: rows attended of those there were; omitted mass of sampled units */
        uint64_t rows, visible, ahead; /* ahead: bytes of rows that were known a layer before they were needed */
        double mass;
        int32_t units;
    } selected;
    struct kv_text text;
    struct kv_constraint *constraint;  /* as far as published; NULL: any text */
    struct kv_stream *stream;
    /* The pipeline: candidate 0 is the baseline. */
    uint64_t candidate;
    const struct kv_placement *placement;
    struct kv_selection *selection;    /* serving; NULL: dense */
    struct kv_selection *shadow;       /* beside the baseline; made when its first unit is sampled */
    uint64_t shadow_candidate;
    int32_t deferred;                  /* steps in a row that it was left out of */
    bool dense_once;                   /* a postponed step runs dense */
    uint64_t reserved_bytes;           /* of the host arena, until the end */
    /* The step in work. */
    _Atomic uint32_t verdict;          /* enum kv_step_verdict */
    _Atomic int32_t actions[KV_FALLBACK_ACTIONS], illegal;
    _Atomic int32_t gate_status;       /* a selector's typed error, KV_OK without one */
    struct kv_step_result result;
};

/* What a sequence's size follows from. */
struct kv_sequence_shape {
    int32_t n_layers, n_q_heads, n_kv_heads, d_head;
};

enum kv_status kv_sequence_create(const struct kv_request *r, const struct kv_sequence_shape *shape, struct kv_backlog *backlog,
                                  struct kv_sequence **out, struct kv_error *err);
/* The cache holds no slab any more. The stream lives on with its reader. */
void kv_sequence_destroy(struct kv_sequence *s);

/* all: every instance is made now; else, in shadow, kv_selection_instance makes them one by one. n_prompt > 0: its last queries are kept for methods
 * that build from them. */
enum kv_status kv_selection_create(const struct kv_selector_method *m, const struct kv_params *p, const struct kv_sequence_shape *shape,
                                   int32_t max_rows, int32_t n_prompt, bool all, struct kv_selection **out, struct kv_error *err);
void kv_selection_destroy(struct kv_selection *s);
enum kv_status kv_selection_instance(struct kv_selection *s, int32_t layer, int32_t kv_head, struct kv_selector **out);
/* Worker thread. Brings the index of one head up to the rows of `a` (position + 1 visible) and queries it. *omitted: rows left out,
 * summed over the group. Where ranking and selected rows, times byte_cost, are no fewer bytes than all rows, all rows are the answer: the method is below its
 * break-even depth there, and is asked again when an eighth more rows have come. So they are while the index is being built. An index of other rows or
 * parameters than the selection's, or that does not go as far as they do, is refused: IDENTITY_MISMATCH, STALE_SELECTOR_GENERATION, STALE_INDEX. */
enum kv_status kv_selection_query(struct kv_selection *s, int32_t layer, int32_t kv_head, const struct kv_attention *a,
                                  int32_t n_visible, int32_t widen, double *estimated_mass, int64_t *omitted);
/* Decode thread. Keeps those of the queries [n_kv_heads][n][group][d_head] at `position` that are among the last of the prompt. */
void kv_selection_keep_queries(struct kv_selection *s, int32_t layer, int32_t n_prompt, int32_t position, int32_t n, const float *queries);
struct kv_rows kv_selection_rows(const struct kv_selection *s, const struct kv_attention *a, int32_t n_visible);

#endif
