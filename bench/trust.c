/* trust.c — what an operator's guarantees cost: a policy's decision with all limits on, and receipts written durably. */
#include "controller/embedded.h"
#include "controller/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { DECISIONS = 20000, SECONDS = 3 };

static double now_s(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void figure(const char *name, double value, const char *unit)
{
    printf("{\"name\":\"%s\",\"value\":%.6g,\"unit\":\"%s\"}\n", name, value, unit);
    fflush(stdout);
}

static int decisions(void)
{
    const struct kv_embedded *e = kv_embedded_table;
    while (e->name && strcmp(e->name, "policies/admission.lua")) e++;
    struct kv_script *p = NULL;
    struct kv_error err = {0};
    double *us = calloc(DECISIONS, sizeof *us);
    if (!us || !e->name || kv_policy_load(KV_POLICY_ADMISSION, e->data, e->size, &p, &err)) return fprintf(stderr, "trust: %s\n", err.message), EXIT_FAILURE;
    struct kv_admission_request r = {.tenant = "tenant", .class = "interactive", .prompt_tokens = 512, .max_tokens = 64, .slack_ms = 50, .estimate_ms = 10, .backend_bytes = 4096, .staging_bytes = 4096};
    struct kv_admission_credits c = {1 << 20, 1 << 20, 1 << 20, 8};
    struct kv_admission_answer a;
    for (int i = 0; i < DECISIONS; i++) {
        double start = now_s(CLOCK_MONOTONIC);
        if (kv_policy_admission(p, &r, &c, &a, &err)) return fprintf(stderr, "trust: %s\n", err.message), EXIT_FAILURE;
        us[i] = (now_s(CLOCK_MONOTONIC) - start) * 1e6;
    }
    qsort(us, DECISIONS, sizeof *us, by_value);
    figure("policy/decision", us[DECISIONS / 2], "us");
    figure("policy/decision-p99", us[DECISIONS * 99 / 100], "us");
    free(us);
    kv_policy_free(p);
    return EXIT_SUCCESS;
}

/* Bytes a second that one thread writes durably to the same folder in pieces as large as a group's rows: the floor of what the rows need. */
static double floor_rows(const char *dir, double row_bytes)
{
    enum { PIECE = 1 << 19 };
    char path[1024], *piece = calloc(1, PIECE);
    snprintf(path, sizeof path, "%s/floor", dir);
    FILE *f = piece ? fopen(path, "wb") : NULL;
    double start = now_s(CLOCK_MONOTONIC), bytes = 0;
    while (f && now_s(CLOCK_MONOTONIC) - start < 1) {
        if (fwrite(piece, 1, PIECE, f) != PIECE || fflush(f) || fdatasync(fileno(f))) break;
        bytes += PIECE;
    }
    double seconds = now_s(CLOCK_MONOTONIC) - start;
    if (f) fclose(f);
    unlink(path);
    free(piece);
    return bytes / seconds / row_bytes;
}

static int receipts(void)
{
    char dir[] = "/var/tmp/kvasir-bench-XXXXXX", command[128];
    struct kv_store *s = NULL;
    struct kv_error err = {0};
    if (!mkdtemp(dir) || kv_store_open(&(struct kv_store_config){.dir = dir}, &s, &err)) return fprintf(stderr, "trust: %s\n", err.message), EXIT_FAILURE;
    struct kv_receipt_sink sink = kv_store_sink(s);
    uint64_t n = 0;
    double start = now_s(CLOCK_MONOTONIC), cpu = now_s(CLOCK_PROCESS_CPUTIME_ID);
    while (now_s(CLOCK_MONOTONIC) - start < SECONDS) {
        struct kv_receipt r;
        kv_receipt_init(&r, n % 50 == 49 ? KV_RECEIPT_REQUEST : KV_RECEIPT_PUBLICATION, (int64_t)n);
        r.request = 1 + n / 50;
        r.tokens = 32;
        strcpy(r.tenant, "tenant");
        strcpy(r.session, "session-0001");
        if (sink.emit(sink.ctx, &r)) n++;
        else nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    if (kv_store_flush(s, &err)) return fprintf(stderr, "trust: %s\n", err.message), EXIT_FAILURE;
    double seconds = now_s(CLOCK_MONOTONIC) - start;
    struct kv_store_health h;
    kv_store_health(s, &h);
    double rate = (double)n / seconds, floor = floor_rows(dir, (double)h.bytes / (double)n);
    printf("{\"name\":\"receipts/rows\",\"value\":%.6g,\"unit\":\"rows/s\",\"floor\":%.6g,\"ratio\":%.4g}\n", rate, floor, floor > 0 ? rate / floor : 0);
    figure("receipts/cpu", (now_s(CLOCK_PROCESS_CPUTIME_ID) - cpu) * 1e6 / (double)n, "us/row");
    kv_store_close(s);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(void)
{
    int status = decisions();
    return status ? status : receipts();
}
