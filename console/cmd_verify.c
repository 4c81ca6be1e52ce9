/* cmd_verify.c — kvasir verify: the digest of a forced run's logits in every batch, chunk, thread count and exact placement, after
 * recompute, after rollback, and over rows that were found by their prefix or read back from disk. One that differs is a broken promise,
 * and the exit status says so. */
#include "console/cli.h"
#include "console/offline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <ftw.h>

enum { DEFAULT_TOKENS = 640 /* ten blocks: deep enough that decode is cut into subtrees */, MAX_TOKENS = 65536, MAX_COMPANY = 32, NAME = 64, WHOLE_BLOCKS = 2 * 64 /* a prompt this long has a block that can be found again */ };

/* Where the rows of the prompt come from. */
enum source { COMPUTED, SAME_ENGINE, DISK };

struct setting {
    char name[NAME];
    int32_t batch, chunk, threads; /* chunk 0: the whole prompt */
    const char *pipeline;          /* NULL: resident */
    bool rollback;                 /* in the middle of the continuation, from the step itself */
    enum source source;
};

struct verification {
    struct kv_model *model;
    int32_t *ids, n_prompt, n_forced; /* ids: prompt, then forced tokens */
    json_t *cases;
    uint8_t (*first)[32]; /* digests of the first case, by position */
    bool equal;
    const char *disk; /* folder of the restore cases */
};

/* One sequence's digests by position; a position computed again overwrites the earlier one. */
struct watch {
    struct kv_engine *engine;
    uint8_t (*digest)[32];
    int32_t roll_back_at; /* -1: never */
};

static void observe(void *ctx, int32_t position, const float *logits, int32_t n_vocab)
{
    struct watch *w = ctx;
    if (position == w->roll_back_at) {
        struct kv_rollback back;
        kv_engine_rollback(w->engine, &back); /* from the decode thread, outside a publication: the step in work must not publish */
        w->roll_back_at = -1;
    }
    kv_sha256(logits, (size_t)n_vocab * sizeof *logits, w->digest[position]);
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

/* Rows that are reused yield no logits: only those from the last prompt token on are observed then. */
static bool reuses(const struct setting *s) { return s->source != COMPUTED; }

static enum kv_status begin(struct kv_engine *e, const struct verification *v, const struct setting *s, struct watch *w, int32_t skip,
                            struct kv_stream **out, struct kv_error *err)
{
    struct kv_release_word word = kv_engine_release(e);
    struct kv_request q = {.prompt = v->ids + skip, .n_prompt = v->n_prompt - skip, .max_tokens = v->n_forced, .force = v->ids + v->n_prompt,
                           .n_force = v->n_forced, .ignore_eos = true, .sampling = {.top_p = 1, .repetition_penalty = 1},
                           .contract = s->pipeline ? KV_APPROXIMATE : KV_EXACT, .candidate = s->pipeline ? 1 : 0, .epoch = word.epoch,
                           .tenant = "verify", .session = s->source == DISK ? "verify" : NULL};
    if (w) {
        q.observe = observe;
        q.observe_ctx = w;
        q.observe_prompt = !reuses(s);
    }
    return kv_engine_submit(e, &q, out, err);
}

static enum kv_status finish(struct kv_stream *s, int32_t *n_reused, struct kv_error *err)
{
    enum kv_finish end = KV_RUNNING;
    while (end == KV_RUNNING) {
        struct kv_chunk c[32];
        int32_t got;
        kv_stream_read(s, c, 32, 1000, &got, &end);
    }
    struct kv_request_stats st;
    kv_stream_stats(s, &st);
    kv_stream_close(s);
    *n_reused = st.n_reused;
    return end == KV_FINISH_LENGTH ? KV_OK : kv_fail(err, st.status ? st.status : KV_INTERNAL, "verify", "the run ended early: %s", kv_status_meaning(st.status));
}

/* The run in its company: shorter sequences of the same tokens, each with other positions, start with it. */
static enum kv_status run(struct kv_engine *e, struct verification *v, const struct setting *s, struct kv_error *err)
{
    int32_t rows = v->n_prompt + v->n_forced - 1;
    struct watch w = {.engine = e, .digest = calloc((size_t)rows, 32), .roll_back_at = s->rollback ? v->n_prompt + v->n_forced / 2 : -1};
    if (!w.digest) return kv_fail(err, KV_OUT_OF_MEMORY, "verify", "no memory for %d digests", rows);
    struct kv_stream *stream[MAX_COMPANY] = {0};
    enum kv_status status = KV_OK, ended;
    for (int32_t i = s->batch - 1; i >= 0 && status == KV_OK; i--) {
        int32_t skip = i * 5 < v->n_prompt ? i * 5 : 0;
        status = begin(e, v, s, i == 0 ? &w : NULL, skip, &stream[i], err);
    }
    int32_t n_reused = 0, others;
    for (int32_t i = 0; i < s->batch; i++)
        if (stream[i] && (ended = finish(stream[i], i == 0 ? &n_reused : &others, err)) != KV_OK) status = ended;
    if (status == KV_OK && reuses(s) && n_reused == 0 && v->n_prompt > WHOLE_BLOCKS) status = kv_fail(err, KV_INTERNAL, "verify", "%s: no row was found again", s->name);
    if (status == KV_OK && reuses(s) && v->first) memcpy(w.digest, v->first, (size_t)(v->n_prompt - 1) * 32); /* not computed again */
    if (status == KV_OK) {
        uint8_t all[32];
        char hex[65];
        kv_sha256(w.digest, (size_t)rows * 32, all);
        kv_hex(all, sizeof all, hex);
        json_t *row = json_pack("{s:s,s:s}", "name", s->name, "digest", hex);
        for (int32_t p = 0; v->first && p < rows; p++)
            if (memcmp(w.digest[p], v->first[p], 32)) {
                json_object_set_new(row, "differs_from_position", json_integer(p));
                v->equal = false;
                break;
            }
        json_array_append_new(v->cases, row);
        if (!v->first) {
            v->first = w.digest;
            w.digest = NULL;
        }
    }
    free(w.digest);
    return status;
}

static enum kv_status create(struct verification *v, const struct setting *s, struct kv_engine **out, struct kv_error *err)
{
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = s->threads;
    c.prefill_chunk = s->chunk ? s->chunk : v->n_prompt < 8192 ? v->n_prompt : 8192;
    c.iteration_us = INT32_MAX;
    c.max_sequences = MAX_COMPANY;
    c.context_length = v->n_prompt + v->n_forced;
    if (s->source == DISK) {
        c.disk_path = v->disk;
        c.disk_bytes = UINT64_C(4) << 30;
    }
    return kv_engine_create(v->model, &c, out, err);
}

/* One unobserved run that leaves its rows behind; those of the disk are left by another engine. */
static enum kv_status leave_rows(struct verification *v, const struct setting *s, struct kv_engine **e, struct kv_error *err)
{
    struct kv_stream *stream;
    int32_t n_reused;
    enum kv_status status = begin(*e, v, s, NULL, 0, &stream, err);
    if (status == KV_OK) status = finish(stream, &n_reused, err);
    if (status != KV_OK || s->source != DISK) return status;
    kv_engine_drain(*e, 10000);
    kv_engine_destroy(*e);
    return create(v, s, e, err);
}

static enum kv_status check(struct verification *v, const struct setting *s, struct kv_error *err)
{
    struct kv_engine *e = NULL;
    enum kv_status status = create(v, s, &e, err);
    if (status == KV_OK && reuses(s)) status = leave_rows(v, s, &e, err);
    char budget[] = "budget_rows=16";
    bool narrow = s->pipeline && !strcmp(s->pipeline, "quest"); /* a budget small enough that rows are tainted */
    if (status == KV_OK) status = kv_offline_install(e, s->pipeline, (char *[]){budget}, narrow, err);
    if (status == KV_OK) status = run(e, v, s, err);
    kv_engine_destroy(e);
    return status;
}

static struct setting setting(int32_t batch, int32_t chunk, int32_t threads)
{
    struct setting s = {.batch = batch, .chunk = chunk, .threads = threads};
    int n = snprintf(s.name, sizeof s.name, "batch-%d/chunk-", batch);
    if (chunk) n += snprintf(s.name + n, sizeof s.name - (size_t)n, "%d", chunk);
    else n += snprintf(s.name + n, sizeof s.name - (size_t)n, "whole");
    snprintf(s.name + n, sizeof s.name - (size_t)n, "/threads-%d", threads);
    return s;
}

static enum kv_status check_pipelines(struct verification *v, struct kv_error *err)
{
    enum kv_status status = KV_OK;
    for (size_t i = 0; i < kv_pipeline_count() && status == KV_OK; i++) {
        const struct kv_pipeline *p = kv_pipeline_at(i);
        if (!p->built || p->exactness != KV_EXACT || !strcmp(p->name, "resident")) continue;
        struct setting s = {.batch = 2, .chunk = 64, .threads = 2, .pipeline = p->name};
        snprintf(s.name, sizeof s.name, "placement/%s", p->name);
        status = check(v, &s, err);
        s.rollback = true;
        snprintf(s.name, sizeof s.name, "rollback/%s", p->name);
        if (status == KV_OK) status = check(v, &s, err);
    }
    struct setting again = {.name = "reuse/prefix", .batch = 1, .chunk = 64, .threads = 2, .source = SAME_ENGINE};
    if (status == KV_OK) status = check(v, &again, err);
    struct setting s = {.name = "recompute/quest", .batch = 1, .chunk = 3, .threads = 2, .pipeline = "quest", .rollback = true};
    return status == KV_OK ? check(v, &s, err) : status;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *f)
{
    (void)st, (void)kind, (void)f;
    return remove(path);
}

static enum kv_status check_restore(struct verification *v, struct kv_error *err)
{
    const char *parent = getenv("TMPDIR");
    char folder[512];
    snprintf(folder, sizeof folder, "%.480s/kvasir-verify-XXXXXX", parent && *parent ? parent : "/tmp");
    v->disk = mkdtemp(folder);
    if (!v->disk) return kv_fail(err, KV_IO_ERROR, folder, "no folder for the restore case could be made");
    struct setting back = {.name = "restore/disk", .batch = 1, .chunk = 64, .threads = 2, .source = DISK};
    enum kv_status status = check(v, &back, err);
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    v->disk = NULL;
    return status;
}

static enum kv_status check_all(struct verification *v, bool full, struct kv_error *err)
{
    static const int32_t batches[] = {1, 2, 7, 32}, chunks[] = {0, 1, 3, 64, 512}, threads[] = {2, 1, 4};
    enum kv_status status = KV_OK;
    for (int b = 0; b < 4; b++)
        for (int c = 0; c < 5; c++)
            for (int t = 0; t < 3 && status == KV_OK; t++) {
                if (!full && (b > 0) + (c > 0) + (t > 0) > 1) continue; /* short: one control at a time */
                struct setting s = setting(batches[b], chunks[c], threads[t]);
                status = check(v, &s, err);
            }
    if (status == KV_OK) status = check_pipelines(v, err);
    return status == KV_OK ? check_restore(v, err) : status;
}

static void print(const struct verification *v, bool as_json)
{
    if (as_json) {
        json_t *out = json_pack("{s:O,s:b}", "cases", v->cases, "equal", v->equal);
        json_dumpf(out, stdout, 0);
        putchar('\n');
        json_decref(out);
        return;
    }
    size_t i;
    json_t *c;
    json_array_foreach(v->cases, i, c) {
        const char *digest = json_string_value(json_object_get(c, "digest"));
        json_t *from = json_object_get(c, "differs_from_position");
        printf("%-9s %-34s %.16s", from ? "DIFFERENT" : "equal", json_string_value(json_object_get(c, "name")), digest);
        if (from) printf("  from position %lld on", (long long)json_integer_value(from));
        putchar('\n');
    }
    puts(v->equal ? "every digest is equal" : "digests differ: an exact answer depends on how it was computed");
}

int kv_cmd_verify(int argc, char **argv, const struct kv_cli *cli)
{
    const char *model = NULL, *matrix = "short";
    int tokens = DEFAULT_TOKENS;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value && !strcmp(argv[i], "--model")) model = value;
        else if (value && !strcmp(argv[i], "--tokens")) tokens = atoi(value);
        else if (value && !strcmp(argv[i], "--matrix")) matrix = value;
        else tokens = 0;
    }
    bool full = !strcmp(matrix, "full");
    if (tokens < 8 || tokens > MAX_TOKENS || (!full && strcmp(matrix, "short"))) {
        fprintf(stderr, "usage: kvasir verify --model M [--tokens 8…%d] [--matrix short|full] [--json]\n", MAX_TOKENS);
        return KV_EXIT_USAGE;
    }
    struct kv_error err = {0};
    struct verification v = {.equal = true, .n_forced = tokens / 4, .n_prompt = tokens - tokens / 4};
    enum kv_status status = kv_offline_model(model, &v.model, &err);
    if (status != KV_OK) goto done;
    v.cases = json_array();
    v.ids = malloc((size_t)tokens * sizeof *v.ids);
    if (!v.cases || !v.ids) status = kv_fail(&err, KV_OUT_OF_MEMORY, "verify", "no memory for %d tokens", tokens);
    uint64_t seed = 1;
    for (int32_t i = 0; status == KV_OK && i < tokens; i++) v.ids[i] = (int32_t)(next_random(&seed) % (uint32_t)kv_model_info(v.model)->n_vocab);
    if (status == KV_OK) status = check_all(&v, full, &err);
    if (status == KV_OK) print(&v, cli->json);
done:
    if (status != KV_OK) kv_offline_complain("verify", &err);
    json_decref(v.cases);
    free(v.ids);
    free(v.first);
    kv_model_close(v.model);
    return status == KV_OK && v.equal ? KV_EXIT_DONE : KV_EXIT_REFUSED;
}
