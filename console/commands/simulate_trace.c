/* simulate_trace.c — see simulate_trace.h. */
#include "console/commands/simulate_trace.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BLOCKS_A_REQUEST = 1 << 20, MAX_LINE = 64 << 20 };
static const int64_t most_us = INT64_C(1) << 50; /* 35 years: times may be added up without care */
static const size_t most_requests = 50000000, most_blocks = 2000000000;

void kv_trace_free(struct kv_sim_trace *t)
{
    free(t->request);
    free(t->block);
    *t = (struct kv_sim_trace){0};
}

static bool room(void **at, size_t n, size_t *cap, size_t size)
{
    if (n <= *cap) return true;
    size_t more = *cap ? *cap : 1024;
    while (more < n) more *= 2;
    void *grown = realloc(*at, more * size);
    if (!grown) return false;
    *at = grown;
    *cap = more;
    return true;
}

/* A whole number of at least `least`, or -1. */
static int64_t whole(const json_t *o, const char *name, int64_t least, int64_t most)
{
    const json_t *v = json_object_get(o, name);
    double x = json_is_number(v) ? json_number_value(v) : -1;
    return x >= (double)least && x <= (double)most ? (int64_t)x : -1;
}

struct reader {
    struct kv_sim_trace *t;
    size_t cap_requests, cap_blocks, line;
    const char *file;
    struct kv_error *err;
};

#define REFUSE(...) return kv_fail(r->err, KV_BAD_JSON, r->file, __VA_ARGS__)

static enum kv_status take(struct reader *r, const json_t *o, double speed)
{
    struct kv_sim_trace *t = r->t;
    const json_t *ids = json_object_get(o, "hash_ids"), *contract = json_object_get(o, "contract");
    int64_t at_ms = whole(o, "timestamp", 0, INT64_C(1) << 50), in = whole(o, "input_length", 1, INT32_MAX), out = whole(o, "output_length", 1, INT32_MAX);
    size_t n = json_array_size(ids);
    if (at_ms < 0 || in < 0 || out < 0 || !json_is_array(ids))
        REFUSE("line %zu has no timestamp ≥ 0, input_length ≥ 1, output_length ≥ 1 and hash_ids", r->line);
    if (n > MAX_BLOCKS_A_REQUEST || t->n_blocks + n > most_blocks || t->n_requests >= most_requests) REFUSE("line %zu: the trace is too long", r->line);
    if (!room((void **)&t->request, t->n_requests + 1, &r->cap_requests, sizeof *t->request) || !room((void **)&t->block, t->n_blocks + n, &r->cap_blocks, sizeof *t->block))
        return kv_fail(r->err, KV_OUT_OF_MEMORY, r->file, "no memory for the trace at line %zu", r->line);
    if ((double)at_ms * 1e3 / speed > (double)most_us) REFUSE("line %zu arrives 35 years after the first moment or later, at --speed %g", r->line, speed);
    int64_t deadline = whole(o, "deadline_ms", 1, INT32_MAX);
    struct kv_sim_request q = {.at_us = (int64_t)((double)at_ms * 1e3 / speed), .input_tokens = (int32_t)in, .output_tokens = (int32_t)out,
                               .deadline_ms = deadline > 0 ? (int32_t)deadline : 0, .first_block = (uint32_t)t->n_blocks, .n_blocks = (uint32_t)n,
                               .approximate = json_is_string(contract) && !strcmp(json_string_value(contract), "approximate")};
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id)) REFUSE("line %zu: hash_ids[%zu] is not a whole number", r->line, i);
        t->block[t->n_blocks + i] = (uint64_t)json_integer_value(id);
    }
    t->n_blocks += n;
    t->request[t->n_requests++] = q;
    return KV_OK;
}

/* Copies shift in time, and their ids by a number larger than any of the original's. */
static enum kv_status repeat(struct reader *r, int32_t times)
{
    struct kv_sim_trace *t = r->t;
    size_t n = t->n_requests, blocks = t->n_blocks;
    if (times < 2 || !n) return KV_OK;
    if (n > most_requests / (size_t)times || blocks > most_blocks / (size_t)times) return kv_fail(r->err, KV_BAD_ARGUMENT, "--repeat", "%d copies are too many", times);
    if (!room((void **)&t->request, n * (size_t)times, &r->cap_requests, sizeof *t->request) || !room((void **)&t->block, blocks * (size_t)times, &r->cap_blocks, sizeof *t->block))
        return kv_fail(r->err, KV_OUT_OF_MEMORY, "--repeat", "no memory for %d copies of the trace", times);
    int64_t span_us = t->request[n - 1].at_us + 1;
    if (span_us > most_us / times) return kv_fail(r->err, KV_BAD_ARGUMENT, "--repeat", "%d copies of this trace last longer than 35 years", times);
    for (int32_t k = 1; k < times; k++) {
        for (size_t i = 0; i < n; i++) {
            struct kv_sim_request q = t->request[i];
            q.at_us += span_us * k;
            q.first_block += (uint32_t)(blocks * (size_t)k);
            t->request[t->n_requests++] = q;
        }
        for (size_t i = 0; i < blocks; i++) t->block[t->n_blocks++] = t->block[i] + ((uint64_t)k << 40);
    }
    return KV_OK;
}

/* A recorded trace is in order of ends. Lines of one moment keep their order. */
static int by_arrival(const void *a, const void *b)
{
    const struct kv_sim_request *x = a, *y = b;
    return x->at_us != y->at_us ? (x->at_us > y->at_us) - (x->at_us < y->at_us) : (x->first_block > y->first_block) - (x->first_block < y->first_block);
}

/* Its bytes without the end of the line, at most MAX_LINE + 1 of them: what is longer is not read to its end. -1: no more. */
static ssize_t read_line(FILE *f, char **line, size_t *cap)
{
    size_t n = 0;
    int c = EOF;
    while (n <= MAX_LINE && (c = getc_unlocked(f)) != EOF && c != '\n') {
        if (!room((void **)line, n + 1, cap, 1)) return -1;
        (*line)[n++] = (char)c;
    }
    return n || c == '\n' ? (ssize_t)n : -1;
}

enum kv_status kv_trace_read(const char *file, const struct kv_trace_options *o, struct kv_sim_trace *out, struct kv_error *err)
{
    *out = (struct kv_sim_trace){.block_tokens = o->block_tokens};
    struct reader r = {.t = out, .file = file, .err = err};
    char *line = NULL;
    size_t cap = 0;
    FILE *f = fopen(file, "r");
    if (!f) return kv_fail(err, KV_FILE_UNREADABLE, file, "%s: %s", file, strerror(errno));
    enum kv_status s = KV_OK;
    ssize_t n = 0;
    while (s == KV_OK && (!o->limit || out->n_requests < o->limit) && (n = read_line(f, &line, &cap)) >= 0) {
        r.line++;
        if (n > MAX_LINE) s = kv_fail(err, KV_BODY_TOO_LARGE, file, "line %zu is longer than %d bytes", r.line, MAX_LINE);
        ssize_t blank = 0;
        while (blank < n && strchr(" \t\r", line[blank]) && line[blank]) blank++;
        if (s != KV_OK || blank == n) continue;
        json_error_t je;
        json_t *v = json_loadb(line, (size_t)n, 0, &je);
        s = json_is_object(v) ? take(&r, v, o->speed) : kv_fail(err, KV_BAD_JSON, file, "line %zu: %s", r.line, v ? "a JSON object was expected" : je.text);
        json_decref(v);
    }
    if (s == KV_OK && n < 0 && !feof(f)) s = kv_fail(err, KV_IO_ERROR, file, "%s cannot be read beyond line %zu", file, r.line);
    free(line);
    fclose(f);
    if (s == KV_OK && !out->n_requests) s = kv_fail(err, KV_BAD_JSON, file, "%s holds no request", file);
    if (s == KV_OK) qsort(out->request, out->n_requests, sizeof *out->request, by_arrival);
    return s == KV_OK ? repeat(&r, o->repeat) : s;
}
