/* verify.h — one case of kvasir verify: an engine set up some way, a run whose logits are digested by position, and where it first parts from another. */
#ifndef KV_CONSOLE_VERIFY_H
#define KV_CONSOLE_VERIFY_H

#include "console/commands/offline.h"

enum { KV_VERIFY_COMPANY = 32 /* sequences at once */, KV_VERIFY_NAME = 64 };

/* Where the rows of the prompt come from. */
enum kv_verify_source { KV_VERIFY_COMPUTED, KV_VERIFY_SAME_ENGINE, KV_VERIFY_DISK };

struct kv_verify_case {
    char name[KV_VERIFY_NAME];
    int32_t batch, chunk, threads; /* chunk 0: the whole prompt */
    const char *pipeline;          /* NULL: resident */
    bool rollback;                 /* in the middle of the continuation, from the step itself */
    enum kv_verify_source source;
    bool faulty;                   /* the fault on purpose strikes here */
};

struct kv_trace_table;
struct kv_verification {
    struct kv_model *model;
    int32_t *ids, n_prompt, n_forced; /* ids: prompt, then forced tokens */
    json_t *cases, *rollbacks; /* rollbacks: each against a run over its own tokens */
    uint8_t (*first)[32]; /* digests of the first case, by position */
    struct kv_verify_case reference;
    bool equal;
    const char *disk;     /* folder of the restore cases */
    int fault_layer, fault_operation; /* -1: none */
};

/* One sequence's digests by position; a position computed again overwrites the earlier one. */
struct kv_watch {
    struct kv_engine *engine;
    uint8_t (*digest)[32];
    int32_t roll_back_at;         /* -1: never */
    _Atomic int32_t reached;      /* last position whose logits were seen */
    _Atomic int32_t wait_at;      /* the step that reaches it waits until this is -1 */
    struct kv_trace_table *table; /* NULL: nothing is traced */
    const struct kv_verification *v;
    bool faulty;
};
void kv_verify_observe(void *ctx, int32_t position, const float *logits, int32_t n_vocab);

enum kv_status kv_verify_create(struct kv_verification *v, const struct kv_verify_case *s, struct kv_engine **out, struct kv_error *err);
/* Adds a row, compared from position `from` on; the digests before it are not looked at. Takes no ownership. s: what differs is looked for by running it again, NULL: it is not. */
enum kv_status kv_verify_add(struct kv_verification *v, const char *name, uint8_t (*digest)[32], int32_t from, const struct kv_verify_case *s, struct kv_error *err);
enum kv_status kv_verify_check(struct kv_verification *v, const struct kv_verify_case *s, struct kv_error *err);
/* Sets the fault from KVASIR_VERIFY_FAULT=LAYER:OPERATION, on purpose, so that a test sees a difference found. */
enum kv_status kv_verify_fault(struct kv_verification *v, const char *text, struct kv_error *err);
/* Reads to the end; the finish of LENGTH, or of PAUSED where that is expected, is OK. tokens: [cap] or NULL. */
enum kv_status kv_verify_finish(struct kv_stream *s, int32_t *tokens, int32_t cap, struct kv_request_stats *st, struct kv_error *err);

/* verify_restore.c: rows that went away and came back, and rollbacks whose tokens nobody forces */
enum kv_status kv_verify_restores(struct kv_verification *v, struct kv_error *err);

#endif
