/* engine.h — the inside of struct kv_engine, shared by the files of the service: engine.c (public functions), scheduler.c (who
 * runs), engine_step.c (run, gate, sample, publish), sequence_gate.c and sequence_shadow.c (per head), engine_report.c (facts out).
 *
 * Ownership: fields under `lock` are shared with submitting and control threads; atomics are for anybody; all else belongs to the
 * decode thread once it runs. */
#ifndef KV_ENGINE_H
#define KV_ENGINE_H

#include "runtime/model/transformer.h"
#include "runtime/service/pauses.h"
#include "runtime/service/batch.h"
#include "runtime/service/credits.h"
#include "runtime/service/flight.h"
#include "runtime/service/prefix.h"
#include "runtime/service/publication.h"
#include "runtime/service/sequence.h"
#include "runtime/service/tournament.h"
#include "runtime/service/turns.h"

#include <pthread.h>
#include <time.h>

enum { KV_SAMPLE_RING = 8192, KV_WORK_SEEN = 32,
       /* Receipts that an iteration may make of one sequence, and of requests that end in the queue: half the waiting room is for them. */
       KV_RECEIPTS_A_SEQUENCE = 32, KV_RECEIPTS_OF_QUEUE = 256 };

struct kv_assignment { /* what the control thread installed; epoch as in the release word */
    uint64_t epoch;
    struct kv_candidate candidate; /* id 0: none */
    const struct kv_placement *placement;
    const struct kv_selector_method *method; /* NULL: dense */
    bool shadow;
};

struct kv_gate {
    struct kv_fallback_table table;
    double max_omitted_mass;
};

struct kv_ahead { /* the history that is being brought to host memory for a waiting request */
    struct kv_turn *turn; /* NULL: none */
    uint64_t request, bytes; /* bytes: set aside while it is read */
    uint64_t forgotten;      /* as the engine's when it began: what was dropped meanwhile is not kept */
    struct kv_cache cache;
};

struct kv_dropped { /* of whoever waits for it */
    const char *tenant, *session;
    bool stays; /* it could not be dropped after all */
    struct kv_dropped *next;
};

struct kv_shadow_job { /* one sampled unit of the layer in work */
    struct kv_step_item *item;
    int32_t kv_head;
    bool served; /* of a candidate that serves; else beside the baseline */
    bool unsampled, unbuilt; /* not sampled: a part of its index is due; its index was not done */
    enum kv_status status;
    struct kv_sample sample;
};

struct kv_engine {
    struct kv_engine_config config;
    struct kv_model *model;
    const struct kv_model_info *info;
    const struct kv_weights *weights;
    struct kv_sequence_shape shape;
    int32_t context_length;
    struct kv_workers *workers;
    struct kv_placement_ctx *placements;
    const struct kv_placement *resident;
    struct kv_arena *arena;
    struct kv_transformer *transformer;
    struct kv_prefix_index *prefix;
    struct kv_chunk_identity prefix_base; /* but for the tenant */
    _Atomic uint64_t forget_asked;   /* how often all prefixes were to be forgotten */
    struct kv_dropped *dropped;      /* sessions that are being dropped; under the lock */
    uint64_t forgotten;              /* up to which of them it is done: the decode thread's, under the lock for others */
    struct kv_turns *turns;          /* NULL without a disk tier */
    struct kv_ahead ahead;
    struct kv_backlog *backlog;
    struct kv_pauses *pauses;
    struct kv_credits *credits;
    pthread_t thread;
    bool started;
    _Atomic int32_t stop_ms;         /* saves may take that long when it ends; 0: as long as they take */

    struct kv_publication publication;
    _Atomic int32_t candidate_live;  /* live sequences that a rollback sends back */
    _Atomic int32_t recomputing;     /* raised before candidate_live falls, so that their sum never misses one */
    _Atomic bool draining, stopping, cancel_all, hold; /* hold: receipts are backed up, admissions wait */
    _Atomic uint64_t next_id;

    pthread_mutex_t lock;
    pthread_cond_t wake;             /* decode thread: work arrived; others: it went idle */
    struct kv_sequence **queue;      /* ring of max_queue */
    int32_t queue_head, queue_n;
    int32_t live_seen;               /* live sequences as of the last iteration, for drain */
    struct kv_assignment assignment;
    struct kv_gate gate_next;
    bool gate_changed;
    bool turn_event;                 /* a look, read or save ended */
    struct kv_engine_stats stats_out;
    struct kv_layer_timing *timings_out; /* [n_layers] */
    int32_t n_timings;
    struct kv_work work_out[KV_WORK_SEEN];
    int32_t n_work;

    /* Decode thread. */
    uint64_t word;                   /* release word of the iteration */
    struct kv_assignment now;        /* assignment of the iteration */
    struct kv_gate gate;
    struct kv_sequence **live;       /* [max_sequences], by arrival */
    int32_t n_live;
    uint64_t prefix_hits, prefix_misses; /* blocks of prompts that the index of prefixes held, and those that it did not */
    uint64_t reserved_bytes, saving_bytes; /* saving: of them, what saves of finished turns and of pauses hold */
    struct kv_step_item *items;      /* [max_sequences] */
    int32_t n_items;
    struct kv_batch_key *batch;      /* [max_sequences] of those that decode */
    int32_t *decoding, *order;       /* [max_sequences] their places in `live`; who of them goes */
    int32_t *share;                  /* [max_sequences] rows of an iteration's prefill, by place in `live` */
    enum kv_finish *finish;          /* [max_sequences] of the step, by item */
    bool *committed;                 /* [max_sequences] */
    struct kv_step_hooks hooks;
    struct kv_sampler **samplers;    /* [workers] */
    double us_per_row;               /* of a prefill, moving average; 0 before the first */
    double decode_step_us, decode_items; /* of steps that only decode, moving averages */
    double h2d_us_per_byte;          /* of what layers waited for or not, moving average */
    uint64_t h2d_bytes;              /* of all steps before */
    double h2d_promised, d2h_promised; /* bytes a second, of live requests under exact offload */
    int64_t queued_tokens;           /* prompt tokens in the queue; under the lock */
    int64_t iteration_began_us;
    double last_iteration_us;
    struct kv_engine_stats stats;
    uint64_t window_tokens;
    int64_t window_began_us;

    /* Shadow. */
    struct kv_shadow_job *jobs;      /* [shadow_queue] */
    int32_t n_jobs, step_jobs, job_layer;
    double **shadow_scratch;         /* [workers][shadow_doubles] */
    size_t shadow_doubles;
    float **shadow_output;           /* [workers][group × d_head] */

    struct kv_tournament *tournament;
    struct kv_flight_recorder *flight;

    /* Facts out. */
    struct kv_sample *ring;          /* [KV_SAMPLE_RING], one writer and one reader */
    _Atomic uint64_t ring_head, ring_tail;
    struct kv_receipt *pending;      /* [pending_cap] that the sink refused so far */
    int32_t pending_n, pending_head, pending_cap;
};

int64_t kv_engine_now_us(void); /* CLOCK_MONOTONIC */
struct timespec kv_engine_time_in(int64_t us); /* for waits on `wake` */

/* scheduler.c */
void kv_scheduler_begin(struct kv_engine *e);        /* word, assignment, queue, cancellations, deadlines, admissions */
int32_t kv_scheduler_choose(struct kv_engine *e);    /* fills items; 0: nothing to run */
void kv_scheduler_finish(struct kv_engine *e, struct kv_sequence *s, enum kv_finish finish, enum kv_status status);
void kv_scheduler_to_baseline(struct kv_engine *e, struct kv_sequence *s);
void kv_scheduler_sweep(struct kv_engine *e);        /* removes finished sequences from `live` */

/* engine_credits.c: what a request that moves its rows to compute may use at once */
enum kv_status kv_engine_credits_create(struct kv_engine *e, struct kv_error *err);
bool kv_engine_take_credits(struct kv_engine *e, struct kv_sequence *s, const struct kv_placement *p); /* false: receipted, stays on the baseline */
void kv_engine_give_credits(struct kv_engine *e, struct kv_sequence *s);
/* Of rows that leave for a swap or come back from it. CREDIT_PRESSURE: the request is seen to wait for them; CAPACITY: it never gets them. */
enum kv_status kv_engine_take_move_credits(struct kv_engine *e, uint64_t request, const char *what, uint64_t bytes, struct kv_credit_ticket *out);
void kv_engine_give_move_credits(struct kv_engine *e, uint64_t request, struct kv_credit_ticket *t); /* of what it holds, and its waiting */

/* engine_rates.c: what admission estimates from */
void kv_engine_rates_step(struct kv_engine *e, double step_us); /* after a step */
void kv_engine_rates(struct kv_engine *e, struct kv_rates *out); /* the engine's lock is held, timings and tiers are those of the last step */

/* engine_prefix.c: rows that were computed before */
void kv_engine_adopt_prefix(struct kv_engine *e, struct kv_sequence *s); /* a prefilling sequence, between steps */
int32_t kv_engine_prefix_limit(const struct kv_sequence *s); /* rows that need not be computed, were they all there */
void kv_engine_offer_prefix(struct kv_engine *e, struct kv_sequence *s); /* after a commit */
/* Which blocks were a session's is not known once it has ended, so a deletion forgets all. Any thread; returns when no new request finds one of them, and what of the session
 * was submitted so far leaves none, neither in memory nor on disk; `stays`: does so again. */
void kv_engine_forget_session(struct kv_engine *e, const char *tenant, const char *session, bool stays);
void kv_engine_forget_now(struct kv_engine *e); /* decode thread, between steps: what was asked */
enum kv_status kv_engine_reserve(struct kv_engine *e, struct kv_sequence *s, int32_t n); /* gives up kept blocks for the room */
enum kv_status kv_engine_reserve_raw(struct kv_engine *e, struct kv_sequence *s, int32_t n); /* with bytes of before in them */

/* engine_turns.c: rows that outlive their turn */
enum kv_status kv_engine_turns_create(struct kv_engine *e, struct kv_error *err);
bool kv_engine_turns_destroy(struct kv_engine *e);  /* after the decode thread ended; false: the disk hangs, and its thread uses the engine still */
/* A look, or a read that has not begun, was waited for long enough: receipted, and t is gone. s may be NULL. */
bool kv_engine_turn_given_up(struct kv_engine *e, struct kv_sequence *s, struct kv_turn *t);
bool kv_engine_turn_waits(struct kv_engine *e, struct kv_sequence *s); /* a prefilling sequence whose rows are being looked for or read */
void kv_engine_turn_runs(struct kv_engine *e, struct kv_sequence *s);  /* after a commit */
void kv_engine_turn_ends(struct kv_engine *e, struct kv_sequence *s, enum kv_finish finish); /* takes the cache's exact blocks along */
void kv_engine_turn_stepped(struct kv_step_item *it);                  /* after a step: void when its rows did not come */
void kv_engine_turns_collect(struct kv_engine *e);

/* engine_prefetch.c: histories of waiting requests */
#define KV_NOT_FETCHED "the remote tier did not give all rows it was asked for; they are computed"
const char *kv_turn_source(const struct kv_turn *t); /* of what was read: "disk" */
void kv_engine_prefetch(struct kv_engine *e);       /* after admissions */
void kv_engine_prefetch_stop(struct kv_engine *e);
bool kv_engine_prefetches(const struct kv_engine *e, const struct kv_sequence *s); /* its history is on its way and will be found as a prefix */

/* engine_step.c */
void kv_engine_step(struct kv_engine *e);

/* sequence_gate.c: the plan hook, worker threads */
/* Decode thread. The index of a selection of this sequence is built over these rows and no others. */
void kv_sequence_bind(const struct kv_engine *e, const struct kv_sequence *s, struct kv_selection *sel, uint64_t candidate);
/* Decode thread, after attention of a layer: what is no number is found before it spreads, and the step is run again over every row. */
void kv_sequence_attended(struct kv_engine *e, struct kv_step_item *it, int32_t layer);
void kv_sequence_plan(void *ctx, int32_t worker, struct kv_step_item *item, int32_t layer, int32_t kv_head,
                      const struct kv_attention *a, struct kv_head_plan *out);

/* sequence_shadow.c: after attention of a layer */
/* Those of the prompt's last tokens, for indexes that are built from them: the one that serves, or the one in shadow. */
void kv_sequence_keep_queries(struct kv_engine *e, struct kv_step_item *it, int32_t layer, const float *queries);
void kv_sequence_shadow(struct kv_engine *e, struct kv_step_item *const *items, int32_t n_items, int32_t layer);

/* engine_report.c */
void kv_report_sample(struct kv_engine *e, const struct kv_sample *s);
void kv_report_receipt(struct kv_engine *e, struct kv_sequence *s, enum kv_receipt_kind kind, enum kv_status reason, struct kv_receipt r);
void kv_report_flight(struct kv_engine *e, const struct kv_sequence *s, struct kv_receipt *r); /* keeps what was selected lately and has the receipt name it */
void kv_report_failure(struct kv_engine *e, struct kv_sequence *s, enum kv_status status, const char *detail);
bool kv_report_flush(struct kv_engine *e);           /* retries refused receipts; false: some are left */
bool kv_report_full(const struct kv_engine *e);      /* nothing may run that would make more receipts */
void kv_report_stats(struct kv_engine *e);           /* publishes stats and timings */
void kv_report_publication(struct kv_engine *e, struct kv_sequence *s); /* receipt of the tokens published since the last one */

#endif
