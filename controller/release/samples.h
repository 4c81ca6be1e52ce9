/* samples.h — the measurements a rollout's gates were judged by, kept in one bounded file a rollout: DIR/samples/r_000003.
 *
 * A ring of records of 64 bytes after a header of the same size; the oldest give way, and so do the files of rollouts before the last 16. Evidence to look
 * at, not a record that anything rests on: a write that fails is counted, and who adds never waits for the disk. Any thread may add, flush and ask. */
#ifndef KV_SAMPLES_H
#define KV_SAMPLES_H

#include "controller/release/cohort.h"
#include "controller/release/stage.h"
#include "runtime/kvasir.h"

#define KV_SAMPLES_KEPT 65536  /* of one rollout */
#define KV_SAMPLES_FILES 16
#define KV_SAMPLE_QUALITY KV_SAMPLE_KINDS /* beside enum kv_sample_kind: one held-out prompt */

struct kv_sample_record {
    int64_t at_us;             /* CLOCK_REALTIME */
    uint64_t request, epoch;   /* epoch: of the step; 0 request: none */
    double a, b;               /* UNIT: omitted mass, relative output error. TOKEN, STALL: us. QUALITY: score of the baseline, of the candidate */
    int32_t position;
    int32_t rows, rows_total;
    int16_t layer, kv_head;    /* -1: none */
    uint8_t kind, arm, stage;  /* enum kv_sample_kind or KV_SAMPLE_QUALITY, enum kv_arm, enum kv_stage */
    uint8_t exact_equal : 1, bound_holds : 1, shadow : 1;
    uint8_t reserved[4];
};
_Static_assert(sizeof(struct kv_sample_record) == 64, "records are found by their index");

struct kv_samples;
/* Goes on where the rollout's file ended, or begins it and drops the oldest files. */
enum kv_status kv_samples_open(const char *dir, uint64_t rollout, struct kv_samples **out, struct kv_error *err);
#define KV_SAMPLES_WAITING 16384 /* between two flushes; what comes beyond is lost */
void kv_samples_add(struct kv_samples *s, const struct kv_sample_record *r); /* NULL: nothing happens */
void kv_samples_flush(struct kv_samples *s);
uint64_t kv_samples_lost(const struct kv_samples *s); /* since it was opened: could not be written */
void kv_samples_close(struct kv_samples *s);
/* Oldest first; *written: ever, so *written > *n when some gave way. free(*out). NOT_FOUND, STORE_CORRUPT, OUT_OF_MEMORY. */
enum kv_status kv_samples_read(const char *dir, uint64_t rollout, struct kv_sample_record **out, size_t *n, uint64_t *written, struct kv_error *err);

#endif
