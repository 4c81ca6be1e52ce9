/* trace_record.c — see trace_record.h. */
#include "controller/http/trace_record.h"

#include "controller/http/events.h"
#include "runtime/identity/identity.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_TOKENS = 64 };

struct kv_trace_record {
    pthread_mutex_t lock;
    FILE *file;
    uint64_t lost; /* arrivals that could not be written */
    int64_t began_us; /* of the first arrival */
};

enum kv_status kv_trace_record_open(const char *path, struct kv_trace_record **out, struct kv_error *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out) return kv_fail(err, KV_OUT_OF_MEMORY, "trace.path", "no memory for the trace");
    (*out)->file = fopen(path, "ae");
    if (!(*out)->file) {
        free(*out);
        *out = NULL;
        return kv_fail(err, KV_FILE_UNREADABLE, "trace.path", "%s: %s", path, strerror(errno));
    }
    pthread_mutex_init(&(*out)->lock, NULL);
    return KV_OK;
}

void kv_trace_record_close(struct kv_trace_record *t)
{
    if (!t) return;
    fclose(t->file);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* 48 bits: a whole number that JSON keeps, and that two of a million blocks share once in five hundred traces. */
static uint64_t block_id(const char *tenant, const struct kv_prefix_digest *prefix)
{
    uint8_t bytes[96] = {0}, digest[32];
    uint64_t id = 0;
    snprintf((char *)bytes, 64, "%s", tenant);
    memcpy(bytes + 64, prefix->b, 32);
    kv_sha256(bytes, sizeof bytes, digest);
    memcpy(&id, digest, 6);
    return id;
}

void kv_trace_record_add(struct kv_trace_record *t, int64_t at_us, const char *tenant, const int32_t *prompt, int32_t n_prompt, int32_t n_output, int64_t deadline_ms, enum kv_contract contract)
{
    struct kv_prefix_digest prefix;
    if (!t || n_output < 1) return;
    pthread_mutex_lock(&t->lock);
    if (!t->began_us || at_us < t->began_us) t->began_us = at_us;
    fprintf(t->file, "{\"timestamp\":%lld,\"input_length\":%d,\"output_length\":%d,", (long long)((at_us - t->began_us) / 1000), (int)n_prompt, (int)n_output);
    if (deadline_ms > 0) fprintf(t->file, "\"deadline_ms\":%lld,", (long long)deadline_ms);
    if (contract == KV_APPROXIMATE) fputs("\"contract\":\"approximate\",", t->file);
    fputs("\"hash_ids\":[", t->file);
    for (int32_t b = 0; (b + 1) * BLOCK_TOKENS <= n_prompt; b++) {
        prefix = kv_prefix_extend(b ? &prefix : NULL, prompt + (size_t)b * BLOCK_TOKENS, BLOCK_TOKENS);
        fprintf(t->file, "%s%llu", b ? "," : "", (unsigned long long)block_id(tenant, &prefix));
    }
    fputs("]}\n", t->file);
    bool lost = fflush(t->file) || ferror(t->file);
    clearerr(t->file);
    if (lost && t->lost++ % 1000 == 0) kv_events_log(KV_LOG_WARN, "trace.path: an arrival could not be written: %s; %llu were lost", strerror(errno), (unsigned long long)t->lost);
    pthread_mutex_unlock(&t->lock);
}
