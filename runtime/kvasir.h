/* kvasir.h — the public header of libkvasir.a: models, tokens, pipelines and the serving engine.
 *
 * Results come through the last parameters; functions return enum kv_status and fill a kv_error where one is taken.
 * Thread rules stand at each group. The library includes no Lua, SQLite, HTTP or JSON: decisions are asked through
 * kv_policy, facts are reported through kv_receipt_sink, and the controller supplies both. */
#ifndef KVASIR_H
#define KVASIR_H

#include "runtime/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVASIR_VERSION "0.1.0"

/* ---------------------------------------------------------------- models (immutable after open; any thread) */

struct kv_model;

struct kv_model_info {
    char name[96], architecture[32], tokenizer[32], pre_tokenizer[32];
    int32_t n_layers, d_model, n_q_heads, n_kv_heads, d_head, d_ff, n_vocab, context_length;
    float rope_base;
    int32_t bos, eos;          /* -1 when the file names none */
    bool add_bos;
    uint64_t weight_bytes;     /* bytes one decode step reads */
    uint64_t parameters;
    uint8_t artifact[32];      /* SHA-256 of the file */
    char file[512];
};

struct kv_model_options {
    uint64_t max_file_bytes;   /* 0: no cap */
    void (*progress)(void *ctx, const char *what, double fraction); /* may be NULL */
    void *progress_ctx;
};

enum kv_status kv_model_open(const char *path, const struct kv_model_options *opt, struct kv_model **out, struct kv_error *err);
void kv_model_close(struct kv_model *m);
const struct kv_model_info *kv_model_info(const struct kv_model *m);

/* ids: capacity cap; *n is set to the count needed even when it exceeds cap (then CAPACITY). No BOS is added.
 * special: parse control tokens such as <|im_start|> in the text. */
enum kv_status kv_tokenize(const struct kv_model *m, const char *text, size_t len, bool special,
                           int32_t *ids, size_t cap, size_t *n, struct kv_error *err);
/* Bytes of one token as it continues a text; may be part of a UTF-8 sequence. Returns the length; 0 for control tokens
 * unless special is set. The first token of a text written by a SentencePiece model loses its leading space by the caller. */
size_t kv_token_bytes(const struct kv_model *m, int32_t id, bool special, char *out, size_t cap);
/* Whole ids to text, as the tokenizer's decoder gives it. *len is set to the bytes needed. */
enum kv_status kv_detokenize(const struct kv_model *m, const int32_t *ids, size_t n, bool special, char *out, size_t cap, size_t *len);
bool kv_token_ends_turn(const struct kv_model *m, int32_t id); /* EOS, end of turn */

struct kv_chat_message {
    const char *role, *content;
};
/* The model's chat template applied, with the assistant's opening appended. *len is set to the bytes needed. UNSUPPORTED when
 * the file has no template and no fallback applies. */
enum kv_status kv_chat_format(const struct kv_model *m, const struct kv_chat_message *msgs, size_t n,
                              char *out, size_t cap, size_t *len, struct kv_error *err);
/* The same as tokens: control tokens come from the template alone, what a message holds is text whatever it looks like. *n_ids is set to
 * the count needed even when it exceeds cap (then CAPACITY). */
enum kv_status kv_chat_tokenize(const struct kv_model *m, const struct kv_chat_message *msgs, size_t n,
                                int32_t *ids, size_t cap, size_t *n_ids, struct kv_error *err);

/* ---------------------------------------------------------------- pipelines (static data; any thread) */

enum kv_contract { KV_EXACT = 0, KV_APPROXIMATE = 1 };

#define KV_MAX_PARAMS 16
struct kv_param_spec {
    const char *name, *type; /* type: "int", "float", "bool" */
    double def, min, max;
    const char *unit, *source; /* source: paper, code, reconstruction or house, with the place */
    const char *help;
};

/* The ten contract fields of a published system, its selector and placement. */
struct kv_pipeline {
    const char *name, *title, *section; /* "quest", "Quest", "0x05J–M" */
    const char *support, *representation, *tier, *unit, *index, *update_phase, *compute_site, *fallback, *workload;
    enum kv_contract exactness;
    const char *placement; /* "resident", "layerwise", …: name in the placement table */
    const char *selector;  /* name in the selector table, or NULL */
    const char *provenance; /* "paper", "code", "reconstruction", "house" */
    bool built;            /* false: registered, refused with NOT_BUILT */
    const struct kv_param_spec *params;
    int32_t n_params;
};
size_t kv_pipeline_count(void);
const struct kv_pipeline *kv_pipeline_at(size_t i);
const struct kv_pipeline *kv_pipeline_find(const char *name);

struct kv_params {
    double value[KV_MAX_PARAMS]; /* in the order of the pipeline's specs */
};
void kv_params_default(const struct kv_pipeline *p, struct kv_params *out);
/* UNKNOWN_KEY with the nearest name, BAD_ARGUMENT with the range. */
enum kv_status kv_params_set(const struct kv_pipeline *p, struct kv_params *params, const char *name, double value, struct kv_error *err);
double kv_params_get(const struct kv_pipeline *p, const struct kv_params *params, const char *name);

/* What a rollout stages. id 0 is the baseline. */
struct kv_candidate {
    uint64_t id;
    const struct kv_pipeline *pipeline;
    struct kv_params params;
    double byte_cost; /* what a byte that selecting reads counts beside one of all rows in order; 0: the method's times the engine's break_even */
    bool own_share;   /* index_share is this candidate's; else the engine's */
    double index_share;
};
#define KV_BYTE_COST_MOST 10000
#define KV_INDEX_SHARE_MOST 1000000

/* ---------------------------------------------------------------- decisions and facts supplied by the controller */

/* The finite state a fallback decision is indexed by; the order is the layout of the table. */
enum kv_fallback_action {
    KV_ACCEPT_APPROXIMATE, KV_WIDEN_SEARCH, KV_FULL_EXACT_FETCH, KV_RECOMPUTE_EXACT,
    KV_POSTPONE_FOR_EXACT_RETRY, KV_ACCEPT_DECLARED_DEGRADED, KV_REJECT_NO_LEGAL_PATH, KV_FALLBACK_ACTIONS
};
const char *kv_fallback_action_name(enum kv_fallback_action a);
struct kv_fallback_state { /* every field small and finite */
    uint8_t force_exact;           /* 0, 1: every exact request has 1 */
    uint8_t uncertain;             /* 0, 1: estimated omitted mass over the gate, or confidence under it */
    uint8_t post_widen;            /* 0 initial, 1 after widening */
    uint8_t can_widen;             /* 0, 1 */
    uint8_t fetch_fits;            /* 0, 1: exact fetch within the deadline's slack */
    uint8_t recompute_fits;        /* 0, 1 */
    uint8_t retryable;             /* 0, 1: and the retry window fits */
    uint8_t approximation_allowed; /* 0, 1 */
};
#define KV_FALLBACK_CELLS 256
struct kv_fallback_table {
    uint8_t action[KV_FALLBACK_CELLS]; /* enum kv_fallback_action, by kv_fallback_index */
};
unsigned kv_fallback_index(const struct kv_fallback_state *s);
void kv_fallback_state_of(unsigned index, struct kv_fallback_state *out);
/* The source's order of predicates (0x09K). */
enum kv_fallback_action kv_fallback_source(const struct kv_fallback_state *s);
/* What C allows whatever a policy says; the baseline answer (kv_fallback_source) is always allowed. */
bool kv_fallback_legal(const struct kv_fallback_state *s, enum kv_fallback_action a);

/* Receipts leave the engine through this; emit is called from the decode thread, must not block or allocate, and answers
 * false when its bounded queue is full (the engine then holds new admissions until it drains). */
enum kv_receipt_kind {
    KV_RECEIPT_REQUEST, KV_RECEIPT_PUBLICATION, KV_RECEIPT_FALLBACK, KV_RECEIPT_TRANSFER, KV_RECEIPT_FAILURE,
    KV_RECEIPT_ROLLBACK, KV_RECEIPT_RECOMPUTE, KV_RECEIPT_PAUSE, KV_RECEIPT_RESUME, KV_RECEIPT_KINDS
};
const char *kv_receipt_kind_name(enum kv_receipt_kind k);
struct kv_receipt {
    enum kv_receipt_kind kind;
    int64_t at_us;              /* CLOCK_REALTIME */
    uint64_t request, candidate, epoch;
    enum kv_contract contract;  /* as requested */
    enum kv_contract published; /* as published */
    enum kv_status reason;
    int32_t layer, kv_head, q_head; /* -1: not about one */
    int64_t position;
    uint64_t bytes, rows, rows_total, tokens;
    double value;               /* microseconds, mass or error, by kind */
    uint8_t digest[32];         /* PUBLICATION: SHA-256 over the published token ids; REQUEST: trace id, parent span, zeros; else zero or kind-specific */
    char tenant[64], session[64], detail[96];
};
struct kv_receipt_sink {
    void *ctx;
    bool (*emit)(void *ctx, const struct kv_receipt *r);
};

/* ---------------------------------------------------------------- engine */

struct kv_engine;
struct kv_disk_io; /* runtime/residency/disk.h */
struct kv_tier_capability;
struct kv_remote_io; /* runtime/residency/remote.h */
struct kv_faults;  /* runtime/residency/faults.h */

struct kv_engine_config {
    int32_t n_threads;              /* kernel workers, decode thread included; 0: all cores */
    int32_t max_sequences;          /* live at once; default 32 */
    int32_t max_queue;              /* waiting requests; beyond: QUEUE_FULL; default 256 */
    int64_t max_pause_us;           /* a pause that lasts longer is given up, PAUSE_EXPIRED; 0: never */
    int64_t starvation_us;          /* whoever has waited so long goes first, whatever its priority; default 10 s */
    int32_t context_length;         /* 0: the model's */
    uint64_t host_bytes;            /* tiers.host.capacity_bytes: K/V slabs; 0: 1 GiB */
    uint64_t device_bytes;          /* tiers.device.capacity_bytes: in-memory device arena, staging slots included */
    const char *disk_path;          /* tiers.disk.*: folder where completed turns of sessions are kept; NULL or "": no disk tier. Used during create only */
    uint64_t disk_bytes, disk_reserve_bytes; /* cap of its files, and what stays free on the file system */
    uint8_t disk_key[32];           /* master key of its encryption */
    const struct kv_remote_io *remote; /* carries blocks that leave the disk; outlives the engine; NULL: no remote tier */
    uint64_t remote_bytes;          /* of blocks on their way, each way; default 256 MiB */
    int32_t remote_timeout_ms;      /* of one fetch, unless computing its rows takes longer; default 2000 */
    int32_t remote_pause_ms;        /* nothing is asked for so long after failures in a row; default 10000 */
    uint64_t prefetch_bytes;        /* window of waiting requests' histories that come from disk to host memory ahead of their turn; 0: none; default 256 MiB */
    const char *eviction;           /* "fifo", "lru", "lfu", "value"; NULL: lru */
    const struct kv_disk_io *disk_io; /* NULL: the system's calls */
    /* Credits of transfers (runtime/service/credits.h). 0: pinned and link window as host_bytes, staging as device_bytes, read queue twice max_sequences. */
    uint64_t pinned_bytes, staging_bytes, link_window_bytes;
    int32_t read_queue;
    uint64_t swap_bytes;            /* memory beside the arena for rows of paused requests; 0: they are kept or recomputed; default 256 MiB */
    double link_bytes_per_second;   /* > 0: emulated link model of the device tier */
    double link_latency_us;
    bool serial_transfers;          /* evaluation: no transfer overlaps with computing */
    int32_t window_rows;            /* evaluation: the newest rows of a staged sequence stay on the device */
    int32_t iteration_us;           /* bound of one iteration's prefill share; default 50000 */
    int32_t prefill_chunk;          /* tokens; default 256 */
    bool prefix_reuse;              /* rows of a prefix computed before, in the same tenant's namespace, are not computed again; default true */
    double index_share;             /* an index longer in the making than a step may take is built in parts, of so many products per product of dense attention,
                                     * and all rows are read until it is done; 0: in one, at the first token after the prompt; default 3 */
    double break_even;              /* all rows are read where selecting would read no fewer bytes than they are, each counted the candidate's byte_cost times;
                                     * this multiplies the one that a method declares; default 1 */
#define KV_BREAK_EVEN_LEAST 0.01    /* select wherever rows are left out, whatever it costs */
#define KV_BREAK_EVEN_MOST 100
    double shadow_fraction;         /* share of (layer, K/V head, step) units shadowed; default 0.02 */
    int32_t shadow_queue;           /* bounded; drops are counted */
    struct kv_receipt_sink sink;
    uint64_t last_request;          /* ids of requests follow it; default 0 */
    struct kv_faults *faults;       /* outlives the engine; NULL: none can be injected, and disk_io is as given */
};
void kv_engine_config_default(struct kv_engine_config *c);

enum kv_status kv_engine_create(struct kv_model *m, const struct kv_engine_config *c, struct kv_engine **out, struct kv_error *err);
/* Refuses new work with DRAINING and lets live requests finish within timeout_ms, then cancels the rest. */
void kv_engine_drain(struct kv_engine *e, int32_t timeout_ms);
void kv_engine_destroy(struct kv_engine *e);

struct kv_sampling {
    float temperature; /* 0: greedy */
    float top_p;       /* 1: off */
    int32_t top_k;     /* 0: off */
    float repetition_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: off */
    uint64_t seed;     /* draws are a function of (seed, output index) */
};

/* The shape of a JSON answer (runtime/model/constraint.h). Node 0 is the answer. */
enum kv_schema_kind { KV_SCHEMA_ANY, KV_SCHEMA_OBJECT, KV_SCHEMA_ARRAY, KV_SCHEMA_STRING, KV_SCHEMA_NUMBER, KV_SCHEMA_INTEGER, KV_SCHEMA_LITERALS, KV_SCHEMA_ANY_OF };
#define KV_SCHEMA_MAX_NODES 512
#define KV_SCHEMA_MAX_ITEMS 256 /* of one node */
struct kv_schema_item {
    const char *text; /* OBJECT: the key as JSON, quotes included. LITERALS: the value as JSON */
    int32_t node;     /* OBJECT: of the value. ANY_OF: the alternative */
    bool required;    /* OBJECT */
};
struct kv_schema_node {
    enum kv_schema_kind kind;
    int32_t first, n;  /* items: properties in order, literals, alternatives */
    int32_t value;     /* ARRAY: of the items. OBJECT without properties: of every value; -1: it stays empty */
    int32_t min, max;  /* ARRAY items, STRING characters; max -1: any number */
};
struct kv_schema {
    const struct kv_schema_node *node;
    const struct kv_schema_item *item;
    int32_t n_nodes, n_items;
};

#define KV_MAX_STOPS 8
#define KV_MAX_LOGPROBS 20
struct kv_request {
    const int32_t *prompt; /* copied */
    int32_t n_prompt, max_tokens;
    struct kv_sampling sampling;
    int32_t n_logprobs;    /* 0: none, and a chunk's logprob is 0; else the best n beside the chosen one */
    const char *stop[KV_MAX_STOPS]; /* copied; NULL after the last */
    bool ignore_eos;
    const struct kv_schema *schema; /* copied; NULL: any text */
    enum kv_contract contract;
    const char *tenant, *class, *session; /* copied; may be NULL */
    int64_t deadline_us;   /* CLOCK_MONOTONIC; 0: none */
    int32_t priority;      /* 0 … 100 among those who wait: higher first, then by arrival; who has waited for starvation_us passes all */
    /* Assignment: 0 is the baseline. A candidate that is not the installed one, an epoch that is not the current one, a
     * latched release word, or an approximate pipeline under an exact contract mean the baseline. */
    uint64_t candidate, epoch;
    enum kv_status kept_back; /* why admission keeps it from the candidate it was assigned to: DEADLINE, CREDIT_PRESSURE; OK: it does not. A FALLBACK receipt says so */
    /* Continuation of a paused request: prompt holds all tokens so far. first_prompt: length of the original prompt (0: n_prompt); n_spoken: outputs
     * published before, so that draws go on where they were; spoken: [n_heard] the last of them, whose text goes on, read during submit; arrival_us:
     * the original one, CLOCK_MONOTONIC (0: now); resume: id of the paused request whose rows are taken over (0: none). */
    int32_t first_prompt, n_spoken, n_heard;
    const int32_t *spoken;
    int64_t arrival_us;
    uint64_t resume;
    bool pause_at_stop;    /* a stop string pauses the request instead of finishing it */
    uint8_t trace_id[24];  /* trace id and parent span of the caller's trace, for the REQUEST receipt's digest; zero: none */
    bool probe;            /* held-out prompt: a candidate in shadow computes it too, and no sample tells of it */
    /* Offline evaluation. force: [n_force] ids published in place of what sampling chose (copied). observe: called on the decode
     * thread with the logits after token `position` before they are sampled, for positions from the last prompt token on, or
     * with observe_prompt for all, recomputed ones again; it must not call the engine, but for kv_engine_rollback. */
    const int32_t *force;
    int32_t n_force;
    bool observe_prompt;
    void (*observe)(void *ctx, int32_t position, const float *logits, int32_t n_vocab);
    /* Under observe_ctx and observe's rules: x [n] is what an operation (enum kv_operation, runtime/model/transformer.h) of a layer gave for one position. */
    void (*trace)(void *ctx, int32_t position, int32_t layer, int operation, float *x, int32_t n);
    void *observe_ctx;
};

enum kv_finish { KV_RUNNING = 0, KV_FINISH_STOP, KV_FINISH_LENGTH, KV_FINISH_CANCELLED, KV_FINISH_ERROR, KV_FINISH_PAUSED };

struct kv_chunk { /* one published token */
    int32_t token;
    float logprob;
    int32_t n_top;
    int32_t top_id[KV_MAX_LOGPROBS];
    float top_logprob[KV_MAX_LOGPROBS];
    uint64_t epoch, candidate;
    enum kv_contract published; /* contract this token was computed under */
    int32_t n_text;
    char text[64]; /* whole UTF-8 sequences only; text held back for a stop string arrives with a later chunk */
};

struct kv_stream; /* one request's token log as its reader sees it */

struct kv_request_stats {
    enum kv_finish finish;
    enum kv_status status; /* of KV_FINISH_ERROR */
    uint64_t id, candidate;
    enum kv_contract published; /* APPROXIMATE when any published token was */
    int32_t n_prompt, n_published, n_recomputed, n_reused; /* reused: rows that were there already */
    int64_t queued_us, ttft_us, total_us;
};

/* Any thread. Rejects at once with a typed reason. */
enum kv_status kv_engine_submit(struct kv_engine *e, const struct kv_request *r, struct kv_stream **out, struct kv_error *err);
/* Up to n chunks, waiting at most timeout_ms for the first; *got = 0 with *finish = KV_RUNNING is a time-out. One reader a
 * stream. tail: text released at the end by a finished stop-string check (≤ 128 bytes), empty otherwise. */
enum kv_status kv_stream_read(struct kv_stream *s, struct kv_chunk *chunks, int32_t n, int32_t timeout_ms,
                              int32_t *got, enum kv_finish *finish);
void kv_stream_tail(struct kv_stream *s, char *out, size_t cap);
void kv_stream_stats(struct kv_stream *s, struct kv_request_stats *out);
void kv_stream_cancel(struct kv_stream *s);
void kv_stream_close(struct kv_stream *s); /* cancels if running; frees */

/* --- release. The release word is one atomic: latch bit | epoch. */

/* Any thread. Whether this model's heads can take these parameters: NOT_BUILT, BAD_ARGUMENT with the parameter's name. install asks it too. */
enum kv_status kv_engine_check(const struct kv_engine *e, const struct kv_pipeline *p, const struct kv_params *params, struct kv_error *err);

/* Control thread. Installs a candidate (or NULL: none) to which requests may be assigned; shadow: compute it beside the baseline on
 * sampled units without serving it. Takes effect between iterations. epoch becomes current if the word still equals `expected` and is not latched;
 * otherwise SUPERSEDED and nothing changes. */
enum kv_status kv_engine_install(struct kv_engine *e, const struct kv_candidate *c, bool shadow, uint64_t expected_epoch,
                                 uint64_t epoch, struct kv_error *err);
/* Control thread, after a rollback is durable and its recomputes are done: clears the latch; a new candidate may start at OFF. */
enum kv_status kv_engine_rearm(struct kv_engine *e, uint64_t epoch, struct kv_error *err);
struct kv_release_word {
    bool latched;
    uint64_t epoch;
};
struct kv_release_word kv_engine_release(const struct kv_engine *e); /* any thread */

struct kv_rollback {
    uint64_t epoch;           /* epoch that was fenced */
    int64_t fence_us;         /* time from call to fence */
    int32_t sequences;        /* sequences that go back to the baseline */
    int32_t unsent_tokens;    /* published before the fence and still on their way to readers */
    bool already;             /* it was latched before */
};
/* Any thread, also a signal's. Latches, waits until no publication is in progress, answers. Needs no lock, Lua, SQLite or network. */
void kv_engine_rollback(struct kv_engine *e, struct kv_rollback *out);
/* Sequences still to be recomputed after a rollback; 0 means resumed. */
int32_t kv_engine_recomputing(const struct kv_engine *e);

/* Control thread. The table the decode thread indexes; copied. */
void kv_engine_set_fallback(struct kv_engine *e, const struct kv_fallback_table *t, double max_omitted_mass);

/* --- measurements. A bounded ring from the decode thread to the control thread. */
enum kv_sample_kind {
    KV_SAMPLE_UNIT,   /* one shadowed (layer, K/V head, step) unit */
    KV_SAMPLE_TOKEN,  /* one published token */
    KV_SAMPLE_REQUEST, /* one finished request */
    KV_SAMPLE_STALL,  /* transfer wait exposed to compute in one step */
    KV_SAMPLE_FAILURE,
    KV_SAMPLE_KINDS
};
struct kv_sample {
    enum kv_sample_kind kind;
    int64_t at_us;
    uint64_t request, candidate, epoch; /* candidate: of the arm; 0 baseline. UNIT in shadow: the shadowed candidate */
    int32_t layer, kv_head;
    int64_t position;
    bool shadow;          /* UNIT: computed beside the baseline, not served */
    bool exact_equal;     /* UNIT of an exact candidate: output bits equal the baseline's */
    bool bound_holds;     /* UNIT: error ≤ 2 δ V_max */
    double omitted_mass, output_error, output_error_relative; /* UNIT: against the dense reference; maximum over the group's q heads */
    int32_t rows_selected, rows_total;
    uint64_t bytes;       /* UNIT of a selector: read to rank, and moved */
    double token_us;      /* TOKEN: work attributed to this sequence's step. STALL: microseconds. */
    double ttft_us, tpot_us; int32_t tokens; /* REQUEST */
    enum kv_status status; /* FAILURE, REQUEST */
};
size_t kv_engine_samples(struct kv_engine *e, struct kv_sample *out, size_t cap); /* control thread */

struct kv_turn_stats { /* of all sessions since the start */
    uint64_t saves, restores, overlapped, recomputes, failures; /* overlapped: a step ran under the read; recomputes: blocks were there and computing them was
                                                                  expected to be faster */
    uint64_t saved_bytes, restored_bytes, restored_tokens, sessions;
    uint64_t illegal_moves;                /* changes of a session's state that may not follow, and were not made: two requests of one session at once */
    uint64_t prefetches, prefetched_bytes; /* of the restores, those made while the request still waited for its turn */
    double restore_bytes_per_second, save_bytes_per_second, restore_wait_us;
    int32_t waiting;                     /* reads and saves that are not over */
};
struct kv_tier_stats {
    const char *name; /* "device", "host", … */
    bool emulated;
    /* used: of the cap. persistent: rows that stay; staging: rows on their way in or out; scratch: buffers in host memory beside the cap; pinned: for the device. */
    uint64_t capacity_bytes, used_bytes, persistent_bytes, staging_bytes, pinned_bytes, scratch_bytes;
    uint64_t hits, misses, bytes_in, bytes_out, transfers_in_flight, failures;
    uint64_t objects, skipped, refused; /* remote: objects of the store; blocks it was not asked for or given; bodies that were not what was sealed */
    const struct kv_tier_capability *capability; /* runtime/residency/tier.h; NULL: memory that only this process uses */
    const char *breaker;                /* remote: "closed", "open", "trial"; NULL: the tier has none */
    bool huge_pages;
    enum kv_status last_failure; /* and when, CLOCK_REALTIME; 0: never */
    int64_t last_failure_us;
};
struct kv_rates { /* what admission estimates from: moving averages of this run; 0 is not measured yet */
    double prefill_tokens_per_s, decode_tokens_per_s, decode_step_us; /* decode: of all sequences together, in steps that only decode */
    double h2d_bytes_per_s, d2h_bytes_per_s, disk_read_bytes_per_s, disk_write_bytes_per_s;
    double h2d_promised, d2h_promised;                                /* bytes a second that requests under exact offload need */
    int64_t waiting_prompt_tokens, live_tokens_left;                  /* of those in the queue; that live ones may still publish */
    uint64_t swap_bytes_per_iteration;                                /* of paused rows that may leave the arena and come back, together, while others run */
};
struct kv_engine_stats { /* a consistent copy made by the decode thread after each iteration; disk, remote tier and turns as they are when asked */
    int32_t active, queued, recomputing;
    uint64_t requests, finished, cancelled, rejected, published_tokens, prompt_tokens, iterations;
    uint64_t reserved_bytes; /* of host memory, set aside for requests that run or are paused and for turns that are being saved: no fault leaves any behind */
    uint64_t reused_tokens, receipts_held; /* rows found by their prefix; receipts that had to wait for their sink */
    uint64_t approximate_tokens, exact_tokens, units_sampled, units_dropped, samples_dropped;
    uint64_t exact_mismatches, illegal_fallbacks, tenant_failures, allocation_failures, full_fallbacks, widened;
    /* Heads whose selection was not used: no index; one of other rows, parameters or an older frontier; more candidates than the budget; and
     * steps that were discarded because attention over selected rows gave no numbers. Each ends in a typed fallback. */
    uint64_t index_missed, index_stale, budget_exceeded, not_finite;
    uint64_t flights_kept; /* copies of the flight recorder made at a fault */
    /* Selection of those that were served: heads queried, their time, bytes read to rank, rows attended of those there were (unions over
     * the group), and the time in which indexes were built; index_waits: heads that read all rows meanwhile; below_break_even: because
     * that was no more than selecting would have read. */
    uint64_t selections, selection_ns, selection_bytes, selected_rows, visible_rows, index_build_ns, index_waits, below_break_even;
    double tokens_per_s, last_iteration_us;
    uint64_t schedule_ns, step_ns; /* of iterations that ran: deciding who runs and telling about it; the step itself */
    struct kv_rates rates;
    struct kv_turn_stats turns;
    struct kv_tier_stats tier[4];
    int32_t n_tiers;
};
void kv_engine_stats(const struct kv_engine *e, struct kv_engine_stats *out); /* any thread */
double kv_engine_index_share(const struct kv_engine *e); /* of candidates that bring none */
const char *kv_engine_isa(const struct kv_engine *e);

/* What a sequence is busy with before it yields tokens: rows of its prompt, rows read back, rows computed anew after a rollback. */
enum kv_work_kind { KV_WORK_PREFILL, KV_WORK_RESTORE, KV_WORK_RECOMPUTE };
struct kv_work {
    enum kv_work_kind kind;
    uint64_t request;
    char tenant[64], session[64];
    int32_t done, total; /* tokens */
    int64_t since_us;    /* CLOCK_MONOTONIC */
};
int32_t kv_engine_work(const struct kv_engine *e, struct kv_work *out, int32_t cap); /* any thread; as of the last iteration, the oldest 32 at most */
void kv_numerics_id(uint8_t out[32]); /* SHA-256 of the start-up self-test */

struct kv_layer_timing { /* of the last layerwise step: measured, and predicted by the two-slot recurrence fed with measured F and C */
    double ready_us, start_us, end_us, stall_us, predicted_start_us, predicted_stall_us, fetch_us, compute_us;
};
int32_t kv_engine_layer_timings(const struct kv_engine *e, struct kv_layer_timing *out, int32_t cap);

/* --- flight recorder: what was selected for each head of the last steps, or, of an exact placement that moves rows, how each layer went. Any thread. */
struct kv_flight {
    uint64_t order;              /* of the record, since the start */
    uint64_t request, candidate; /* with position, layer and kv_head: the operation */
    uint64_t support;            /* XXH3 of the row masks that were attended under; 0: every row was */
    int32_t position;
    int32_t frontier;            /* F_c: rows of the source that the operation may see */
    int32_t covered;             /* of them, those that the index knew when it was asked; 0: no index was */
    uint32_t index;              /* generation of the index: what it was built with and every append since */
    int32_t rows;                /* attended, union over the group */
    float mass;                  /* the method's estimate of what was left out; -1: none */
    uint16_t status;             /* enum kv_status: OK, or why the selection was not used */
    uint8_t action;              /* enum kv_fallback_action that the gate took; KV_FALLBACK_ACTIONS: it was not asked */
    uint8_t widened;
    int16_t layer, kv_head;      /* kv_head -1: the layer of an exact placement */
};
#define KV_FLIGHT_COPY 1024
struct kv_flight_copy { /* made when a step was refused or a failure is receipted; that receipt's digest is this one */
    uint8_t digest[32]; /* SHA-256 of the records as they lie in memory */
    int32_t n;
    struct kv_flight record[KV_FLIGHT_COPY];
};
int32_t kv_engine_flight(const struct kv_engine *e, uint64_t request, struct kv_flight *out, int32_t cap); /* the newest of a request, 0: of all; oldest first */
bool kv_engine_flight_copy(struct kv_engine *e, struct kv_flight_copy *out);                               /* the next that nobody has taken yet */

/* --- tournament: several selecting pipelines on the same sampled queries of baseline traffic, ranked by bytes read at equal measured mass. Nothing of it is served;
 * units are copied and measured by a thread of the lowest priority, so that what it cannot follow is dropped and counted. Any thread. runtime/evaluate/contest.h. */
#define KV_TOURNAMENT_MAX 7
enum kv_tournament_verdict { KV_TOURNAMENT_NO_DATA, KV_TOURNAMENT_SHORT, KV_TOURNAMENT_TIE, KV_TOURNAMENT_RANKED }; /* SHORT: never holds the mass */
const char *kv_tournament_verdict_name(enum kv_tournament_verdict v);
struct kv_tournament_config {
    const struct kv_pipeline *pipeline[KV_TOURNAMENT_MAX];
    struct kv_params params[KV_TOURNAMENT_MAX]; /* but for the budget, which is what is looked for */
    int32_t n;
    double mass;      /* reference: retained share of the softmax, 0.5 to 0.999 */
    double fraction;  /* of (layer, K/V head, step) units that are taken, up to 0.05 */
    uint64_t units;   /* after which it is done */
};
struct kv_tournament_entry { /* numbers are NAN where there are none yet */
    const struct kv_pipeline *pipeline;
    struct kv_params params; /* with the budget that holds the mass on average, */
    const char *budget;      /* which is this parameter */
    enum kv_tournament_verdict verdict;
    int32_t rank;            /* 0: none; entries that nobody can tell apart have none */
    double mass, mass_low, mass_high, bytes, bytes_low, bytes_high, share, rows; /* of a unit: ranked and read; share: of what dense attention reads */
};
struct kv_tournament_view {
    bool running;
    double mass, fraction, dense_bytes;
    uint64_t units, limit, dropped;
    int32_t n;
    struct kv_tournament_entry entry[KV_TOURNAMENT_MAX];
};
/* Starts one in place of the last. CONFLICT while one runs. */
enum kv_status kv_engine_tournament_start(struct kv_engine *e, const struct kv_tournament_config *c, struct kv_error *err);
enum kv_status kv_engine_tournament_stop(struct kv_engine *e); /* what it found stays; NOT_FOUND when there was none */
bool kv_engine_tournament(struct kv_engine *e, struct kv_tournament_view *out); /* false: there was none since the start */

/* --- sessions: completed turns whose sealed exact K/V blocks are kept for the next one. Any thread. */
#define KV_SESSION_STATES(X)                                                                                           \
    X(RUNNING) X(QUIESCING) X(SAVING) X(PAUSED_HOST) X(RESTORING) X(RESUME_READY) X(PREFILL_NEW_TURN) X(PAUSED_GPU)    \
    X(PREFILL_EXTERNAL_RESULT) X(SWAPPING_OUT) X(SWAPPING_IN) X(TOKEN_ONLY) X(RECOMPUTING)
enum kv_session_state { /* contract §5 */
#define KV_SESSION_STATE(name) KV_SESSION_##name,
    KV_SESSION_STATES(KV_SESSION_STATE)
#undef KV_SESSION_STATE
    KV_SESSION_STATE_COUNT
};
const char *kv_session_state_name(enum kv_session_state s);
#define KV_SESSIONS_MAX 1024 /* the longest unused, unpinned one gives way; its blocks stay */
struct kv_session_info {
    char tenant[64], session[64];
    enum kv_session_state state;
    bool pinned;
    int32_t tokens, blocks, held_blocks; /* of the last turn that ended; whole blocks of it that were saved; that are still there (as of show) */
    uint64_t bytes;                      /* of the saved blocks */
    uint64_t turns, saves, restores, recomputes, failures;
    int64_t used_us;                     /* CLOCK_REALTIME of the last change */
    int32_t restored_tokens;             /* by the last restore, and its time */
    double restore_us, recompute_us;     /* recompute: what was expected for the same tokens; 0: not known */
    double restore_wait_us;              /* of restore_us, what a step waited for; the rest was hidden under computing */
    enum kv_status reason;               /* of the last save or restore that fell short */
};
int32_t kv_engine_sessions(const struct kv_engine *e, struct kv_session_info *out, int32_t cap); /* last used first; none without a disk tier */
/* SHOW looks how much is still there. PIN keeps the blocks from eviction; DROP deletes durably what no other session shares, CONFLICT while pinned.
 * out may be NULL. */
enum kv_session_command { KV_SESSION_SHOW, KV_SESSION_PIN, KV_SESSION_UNPIN, KV_SESSION_DROP };
enum kv_status kv_engine_session(struct kv_engine *e, enum kv_session_command what, const char *tenant, const char *session, struct kv_session_info *out, struct kv_error *err);

/* --- interruptions: a running request waits for somebody outside. Its stream ends with KV_FINISH_PAUSED; kv_engine_submit with `resume` goes on. Any thread. */
enum kv_pause_action { KV_PAUSE_AUTO, KV_PAUSE_PRESERVE, KV_PAUSE_SWAP, KV_PAUSE_DISCARD, KV_PAUSE_ACTIONS };
const char *kv_pause_action_name(enum kv_pause_action a); /* "preserve" */
struct kv_pause_view {
    uint64_t request;              /* id of the paused request */
    char tenant[64], session[64];
    enum kv_session_state state;
    enum kv_pause_action asked, action; /* asked: AUTO is decided by waste and revised as the pause ages */
    int32_t n_tokens, first_prompt, n_spoken, rows; /* tokens so far; rows that need not be computed again */
    uint64_t held_bytes, swapped_bytes; /* in the arena; moved out */
    int64_t arrival_us, paused_us;      /* CLOCK_MONOTONIC */
    double preserve_byte_ms, swap_byte_ms, discard_byte_ms, crossing_us; /* waste as of the last decision */
    uint32_t revisions;                 /* decisions that changed */
};
/* Pauses the tenant's running request of that session. Answers when no further token can come of it: NOT_FOUND when none runs, PAUSE_IN_PREFILL before its first
 * token, QUEUE_FULL when too many are paused. tokens: [cap], all of them. */
enum kv_status kv_engine_pause(struct kv_engine *e, const char *tenant, const char *session, enum kv_pause_action action, struct kv_pause_view *out, struct kv_error *err);
enum kv_status kv_engine_paused(struct kv_engine *e, uint64_t request, struct kv_pause_view *out); /* NOT_FOUND */
enum kv_status kv_engine_paused_tokens(struct kv_engine *e, uint64_t request, int32_t *tokens, int32_t cap, int32_t *n);
int32_t kv_engine_paused_list(struct kv_engine *e, struct kv_pause_view *out, int32_t cap); /* returns how many there are */
/* Gives its rows back; it can only be recomputed from its tokens then. */
enum kv_status kv_engine_forget_paused(struct kv_engine *e, uint64_t request);

/* Hashing for everyone above: SHA-256 by GnuTLS. */
void kv_sha256(const void *data, size_t n, uint8_t out[32]);
void kv_hex(const uint8_t *bytes, size_t n, char *out); /* 2n+1 chars */

#endif
