/* cmd_verify.c — kvasir verify: the digest of a forced run's logits in every batch, chunk, thread count and exact placement, after rollback, over rows
 * that were found by their prefix, kept, swapped, read back from disk or computed again. One that differs is a broken promise, and the exit status
 * says so; the position, layer and operation where it begins are named. */
#include "console/commands/cli.h"
#include "console/output.h"
#include "console/commands/verify.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { DEFAULT_TOKENS = 640 /* ten blocks: deep enough that decode is cut into subtrees */, MAX_TOKENS = 65536 };

static uint32_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

static struct kv_verify_case setting(int32_t batch, int32_t chunk, int32_t threads)
{
    struct kv_verify_case s = {.batch = batch, .chunk = chunk, .threads = threads, .faulty = batch == 7};
    int n = snprintf(s.name, sizeof s.name, "batch-%d/chunk-", batch);
    if (chunk) n += snprintf(s.name + n, sizeof s.name - (size_t)n, "%d", chunk);
    else n += snprintf(s.name + n, sizeof s.name - (size_t)n, "whole");
    snprintf(s.name + n, sizeof s.name - (size_t)n, "/threads-%d", threads);
    return s;
}

static enum kv_status check_pipelines(struct kv_verification *v, struct kv_error *err)
{
    enum kv_status status = KV_OK;
    for (size_t i = 0; i < kv_pipeline_count() && status == KV_OK; i++) {
        const struct kv_pipeline *p = kv_pipeline_at(i);
        if (!p->built || p->exactness != KV_EXACT || !strcmp(p->name, "resident")) continue;
        struct kv_verify_case s = {.batch = 2, .chunk = 64, .threads = 2, .pipeline = p->name};
        snprintf(s.name, sizeof s.name, "placement/%s", p->name);
        status = kv_verify_check(v, &s, err);
        s.rollback = true;
        snprintf(s.name, sizeof s.name, "rollback/%s", p->name);
        if (status == KV_OK) status = kv_verify_check(v, &s, err);
    }
    struct kv_verify_case again = {.name = "reuse/prefix", .batch = 1, .chunk = 64, .threads = 2, .source = KV_VERIFY_SAME_ENGINE};
    if (status == KV_OK) status = kv_verify_check(v, &again, err);
    struct kv_verify_case s = {.name = "recompute/quest", .batch = 1, .chunk = 3, .threads = 2, .pipeline = "quest", .rollback = true};
    return status == KV_OK ? kv_verify_check(v, &s, err) : status;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *f)
{
    (void)st, (void)kind, (void)f;
    return remove(path);
}

static enum kv_status check_restore(struct kv_verification *v, struct kv_error *err)
{
    const char *parent = getenv("TMPDIR");
    char folder[512];
    snprintf(folder, sizeof folder, "%.480s/kvasir-verify-XXXXXX", parent && *parent ? parent : "/tmp");
    v->disk = mkdtemp(folder);
    if (!v->disk) return kv_fail(err, KV_IO_ERROR, folder, "no folder for the restore case could be made");
    struct kv_verify_case back = {.name = "restore/disk", .batch = 1, .chunk = 64, .threads = 2, .source = KV_VERIFY_DISK};
    enum kv_status status = kv_verify_check(v, &back, err);
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    v->disk = NULL;
    return status;
}

static enum kv_status check_all(struct kv_verification *v, bool full, struct kv_error *err)
{
    static const int32_t batches[] = {1, 2, 7, 32}, chunks[] = {0, 1, 3, 64, 512}, threads[] = {2, 1, 4};
    enum kv_status status = KV_OK;
    for (int b = 0; b < 4; b++)
        for (int c = 0; c < 5; c++)
            for (int t = 0; t < 3 && status == KV_OK; t++) {
                if (!full && (b > 0) + (c > 0) + (t > 0) > 1) continue; /* short: one control at a time */
                struct kv_verify_case s = setting(batches[b], chunks[c], threads[t]);
                status = kv_verify_check(v, &s, err);
            }
    if (status == KV_OK) status = check_pipelines(v, err);
    if (status == KV_OK) status = kv_verify_restores(v, err);
    return status == KV_OK ? check_restore(v, err) : status;
}

static void print_rows(const json_t *rows)
{
    size_t i;
    json_t *c;
    json_array_foreach(rows, i, c) {
        const char *digest = json_string_value(json_object_get(c, "digest"));
        json_t *from = json_object_get(c, "differs_from_position");
        printf("%-9s %-34s %.16s", from ? "DIFFERENT" : "equal", json_string_value(json_object_get(c, "name")), digest);
        if (from) printf("  from position %lld on", (long long)json_integer_value(from));
        const char *operation = json_string_value(json_object_get(c, "begins_in_operation"));
        if (operation)
            printf("; it begins at position %lld in layer %lld, %s", (long long)json_integer_value(json_object_get(c, "begins_at_position")),
                   (long long)json_integer_value(json_object_get(c, "begins_in_layer")), operation);
        putchar('\n');
    }
}

static void print(const struct kv_verification *v, double seconds, bool as_json)
{
    if (as_json) {
        json_t *out = json_pack("{s:O,s:O,s:b,s:f}", "cases", v->cases, "rollbacks", v->rollbacks, "equal", v->equal, "seconds", seconds);
        kv_output_json(out, 0);
        putchar('\n');
        json_decref(out);
        return;
    }
    print_rows(v->cases);
    print_rows(v->rollbacks);
    printf("%zu cases in %.1f s: %s\n", json_array_size(v->cases) + json_array_size(v->rollbacks), seconds, v->equal ? "every digest is equal" : "digests differ: an exact answer depends on how it was computed");
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
    struct kv_verification v = {.equal = true, .n_forced = tokens / 4, .n_prompt = tokens - tokens / 4};
    enum kv_status status = kv_offline_model(model, &v.model, &err);
    if (status != KV_OK) goto done;
    v.cases = json_array();
    v.rollbacks = json_array();
    v.ids = malloc((size_t)tokens * sizeof *v.ids);
    if (!v.cases || !v.rollbacks || !v.ids) status = kv_fail(&err, KV_OUT_OF_MEMORY, "verify", "no memory for %d tokens", tokens);
    uint64_t seed = 1;
    for (int32_t i = 0; status == KV_OK && i < tokens; i++) v.ids[i] = (int32_t)(next_random(&seed) % (uint32_t)kv_model_info(v.model)->n_vocab);
    if (status == KV_OK) status = kv_verify_fault(&v, getenv("KVASIR_VERIFY_FAULT"), &err);
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    if (status == KV_OK) status = check_all(&v, full, &err);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    if (status == KV_OK) print(&v, (double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec) / 1e9, cli->json);
done:
    if (status != KV_OK) kv_offline_complain("verify", &err);
    json_decref(v.cases);
    json_decref(v.rollbacks);
    free(v.ids);
    free(v.first);
    kv_model_close(v.model);
    return status == KV_OK && v.equal ? KV_EXIT_DONE : KV_EXIT_REFUSED;
}
