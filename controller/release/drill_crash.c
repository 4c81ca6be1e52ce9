/* drill_crash.c — drills of what must outlive a process: acknowledged receipts, stages, rollbacks, results that are applied once. */
#include "controller/child_process.h"
#include "controller/release/control.h"
#include "controller/release/drill_internal.h"
#include "controller/http/http_once.h"
#include "controller/store/store_pauses.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RECEIPTS = 25, VICTIMS = 3 };

/* ---------------------------------------------------------------- the process that is killed */

static void say(const char *fmt, uint64_t n, const char *word)
{
    char line[96];
    int k = snprintf(line, sizeof line, fmt, (unsigned long long)n, word);
    if (write(STDOUT_FILENO, line, (size_t)k) != k) _exit(EXIT_FAILURE);
}

static enum kv_status live_as(struct drill *d, struct kv_store *s, struct kv_control *c, struct kv_error *err)
{
    struct kv_rollout_view *v = calloc(1, sizeof *v);
    struct kv_rollback_answer back;
    int32_t n = 1;
    uint64_t id = 0;
    if (!v) return KV_OUT_OF_MEMORY;
    kv_control_rollouts(c, v, &n);
    enum kv_status st = KV_OK;
    bool first = n == 0;
    if (first) {
        const struct kv_manifest *m = &d->manifest;
        struct kv_rollout_request q = {.name = "drill", .pipeline = m->pipeline->name, .params = m->params, .contract = m->contract};
        st = kv_control_create_rollout(c, &q, "operator:drill", &id, err);
        if (st == KV_OK) say("created %llu%s\n", id, "");
        if (st == KV_OK) st = kv_control_rollout(c, id, v, err);
        if (st == KV_OK) st = kv_control_verb(c, id, KV_VERB_advance, v->r.version, 0, "drill", "operator:drill", NULL, err);
        if (st == KV_OK) say("stage %llu %s\n", id, "SHADOW");
    } else say("stage %llu %s\n", v->r.id, kv_stage_name(v->r.stage));
    for (int i = 0; i < RECEIPTS && st == KV_OK; i++) {
        struct kv_receipt r;
        kv_receipt_init(&r, KV_ROW_AUDIT, 1);
        st = kv_store_put_receipt(s, &r, &id, err);
        if (st == KV_OK) say("receipt %llu%s\n", id, "");
    }
    if (!first && st == KV_OK && v->r.live) {
        st = kv_control_rollback(c, v->r.id, "drill", "operator:drill", &back, err);
        if (st == KV_OK) say("rollback %llu%s\n", v->r.id, "");
    }
    free(v);
    return st;
}

int kv_drill_victim(struct drill *d, const char *dir)
{
    struct kv_store *s = NULL;
    struct kv_engine *e = NULL;
    struct kv_control *c = NULL;
    struct kv_error err = {0};
    struct kv_engine_config ec;
    kv_engine_config_default(&ec);
    ec.n_threads = 1;
    ec.host_bytes = 64u << 20;
    enum kv_status st = kv_store_open(&(struct kv_store_config){.dir = dir}, &s, &err);
    if (st == KV_OK) st = kv_engine_create(d->model, &ec, &e, &err);
    struct kv_control_config cc = {.manual = true};
    memcpy(cc.model_artifact, kv_model_info(d->model)->artifact, 32);
    kv_numerics_id(cc.numerics_id);
    if (st == KV_OK) st = kv_control_create(kv_release_port_of(e), s, &cc, &c, &err);
    if (st == KV_OK) st = live_as(d, s, c, &err);
    if (st != KV_OK) say("failed %llu %s\n", 0, err.message);
    for (;;) pause(); /* until it is killed */
}

/* ---------------------------------------------------------------- who kills it */

struct told { /* what a victim acknowledged */
    uint64_t receipt, rollout;
    char stage[32], failed[96];
    bool created, rollback;
};

static pid_t start_victim(struct drill *d, int *out)
{
    int in;
    char victim[sizeof d->dir + 8];
    snprintf(victim, sizeof victim, "victim:%s", d->dir);
    pid_t pid = kv_child_start(d->program, "--drill", victim, &in, out);
    if (pid < 0) return -1;
    if (write(in, d->input, d->input_bytes) != (ssize_t)d->input_bytes) kill(pid, SIGKILL);
    close(in);
    return pid;
}

static bool enough(const struct told *t, int victim, int receipts)
{
    return *t->failed || (victim == 1 ? t->rollback : receipts >= RECEIPTS / 2);
}

/* Reads acknowledgements until there are enough, then kills it in the middle of what it does next. */
static void watch(int fd, int victim, struct told *t)
{
    char line[160];
    FILE *f = fdopen(fd, "r");
    int receipts = 0;
    while (f && !enough(t, victim, receipts) && fgets(line, sizeof line, f)) {
        unsigned long long n = 0;
        char word[96] = "";
        if (sscanf(line, "receipt %llu", &n) == 1) t->receipt = n, receipts++;
        else if (sscanf(line, "created %llu", &n) == 1) t->created = true, t->rollout = n;
        else if (sscanf(line, "stage %llu %31s", &n, word) == 2) t->rollout = n, snprintf(t->stage, sizeof t->stage, "%.31s", word);
        else if (sscanf(line, "rollback %llu", &n) == 1) t->rollback = true;
        else if (!strncmp(line, "failed", 6)) snprintf(t->failed, sizeof t->failed, "%.*s", (int)strcspn(line + 6, "\n"), line + 6);
    }
    if (f) fclose(f);
    else close(fd);
}

static void check_store(struct drill *d, const struct told *t)
{
    struct kv_store *s = NULL;
    struct kv_error err = {0};
    struct kv_verify_result v;
    struct kv_receipt_row row;
    struct kv_rollout *all = NULL;
    int32_t n = 0;
    if (!kv_drill_check(d, kv_store_open(&(struct kv_store_config){.dir = d->dir}, &s, &err) == KV_OK, "the store does not open after a kill: %.90s", err.message)) return;
    kv_drill_check(d, kv_store_trusted(s, &err), "the store is not trusted after a kill: %.90s", err.message);
    kv_drill_check(d, kv_store_verify(s, &v, &err) == KV_OK && v.verified, "the receipts do not verify after a kill: %.90s", v.detail);
    kv_drill_check(d, !t->receipt || kv_store_get(s, t->receipt, &row, &err) == KV_OK, "receipt %llu was acknowledged and is lost", (unsigned long long)t->receipt);
    enum kv_status st = kv_store_load_rollouts(s, &all, &n, &err);
    kv_drill_check(d, st == KV_OK && n == 1, "%d rollouts are there after a kill: %.90s", (int)n, err.message);
    free(all);
    kv_store_close(s);
}

void kv_drill_crash_restart(struct drill *d)
{
    static const char *const expected[VICTIMS] = {"SHADOW", "SHADOW", "EXACT_BASELINE"}; /* as each says at its start */
    for (int i = 0; i < VICTIMS; i++) {
        struct told t = {0};
        int fd = -1, status;
        pid_t pid = start_victim(d, &fd);
        if (!kv_drill_check(d, pid > 0, "the process to be killed cannot be started")) return;
        watch(fd, i, &t);
        kill(pid, SIGKILL);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
        if (!kv_drill_check(d, !*t.failed && *t.stage, "start %d failed:%.90s", i + 1, t.failed)) return;
        kv_drill_check(d, !strcmp(t.stage, expected[i]), "start %d stood at %s instead of %s", i + 1, t.stage, expected[i]);
        check_store(d, &t);
    }
}

/* ---------------------------------------------------------------- the same write again */

static enum kv_status give(struct kv_store *s, const char *result, const int32_t *tokens, int32_t n, enum kv_result_answer *answer)
{
    static const enum kv_result_state steps[] = {KV_RESULT_RESERVED, KV_RESULT_CACHE_READY_AND_VALIDATED, KV_RESULT_RESULT_APPEND_COMMITTED, KV_RESULT_APPLIED};
    struct kv_result_key k = {.call_id = "call", .pause_epoch = 1};
    snprintf(k.result_id, sizeof k.result_id, "%s", result);
    kv_sha256(tokens, sizeof *tokens * (size_t)n, k.digest);
    enum kv_status st = KV_OK;
    for (int i = 0; i < 4 && st == KV_OK; i++) {
        bool commit = steps[i] == KV_RESULT_RESULT_APPEND_COMMITTED;
        struct kv_error err = {0};
        st = kv_store_move_result(s, "drill", "one", &k, steps[i], commit ? tokens : NULL, commit ? n : 0, answer, &err);
        if (*answer == KV_RESULT_NOOP) break;
    }
    return st;
}

static void results_once(struct drill *d)
{
    static const int32_t right[] = {7, 8, 9}, wrong[] = {1};
    int32_t tokens[] = {1, 2, 3, 4};
    char manifest[] = "{}";
    for (int open = 0; open < 2; open++) { /* the second time after a restart */
        struct kv_store *s = NULL;
        struct kv_error err = {0};
        struct kv_stored_pause p = {.tenant = "drill", .session = "one", .manifest = manifest, .tokens = tokens, .n_tokens = 4, .paused_us = 1};
        snprintf(p.result.call_id, sizeof p.result.call_id, "call");
        enum kv_result_answer answer = KV_RESULT_GO_ON;
        if (!kv_drill_check(d, kv_store_open(&(struct kv_store_config){.dir = d->dir}, &s, &err) == KV_OK, "the store does not open: %.90s", err.message)) return;
        if (!open) kv_drill_check(d, kv_store_put_pause(s, &p, &err) == KV_OK && give(s, "r1", right, 3, &answer) == KV_OK, "a result is not taken: %.90s", err.message);
        struct kv_store_health before, after;
        kv_store_health(s, &before);
        kv_drill_check(d, give(s, "r1", right, 3, &answer) == KV_OK && answer == KV_RESULT_NOOP, "a result that was given again is not recognised");
        kv_store_health(s, &after);
        kv_drill_check(d, before.receipts == after.receipts, "a result that was given again was recorded again");
        kv_drill_check(d, give(s, "r2", wrong, 1, &answer) == KV_COMPETING_RESULT, "another result for the same call was taken");
        struct kv_stored_pause q = {0};
        bool there = kv_store_last_pause(s, "drill", "one", &q, &err) == KV_OK;
        kv_drill_check(d, there && q.n_result_tokens == 3 && !memcmp(q.result_tokens, right, sizeof right), "the result's tokens are not the ones given first");
        if (there) kv_stored_pause_free(&q);
        kv_store_close(s);
    }
}

static void writes_once(struct drill *d)
{
    struct kv_once *o = kv_once_create();
    struct kv_error err = {0};
    uint64_t ticket = 0, other;
    int status = 0;
    char *body = NULL;
    if (!kv_drill_check(d, o != NULL, "no memory for the drill itself")) return;
    kv_drill_check(d, kv_once_begin(o, "operator", "k1", "POST /x", "{}", 2, &ticket, &status, &body, &err) == KV_OK && !body, "a first write is not let through");
    kv_drill_check(d, kv_once_begin(o, "operator", "k1", "POST /x", "{}", 2, &other, &status, &body, &err) == KV_CONFLICT, "a write is let through while the same one is being done");
    kv_once_finish(o, ticket, 201, "{\"a\":1}");
    kv_drill_check(d, kv_once_begin(o, "operator", "k1", "POST /x", "{}", 2, &other, &status, &body, &err) == KV_OK && body && status == 201 && !strcmp(body, "{\"a\":1}"),
                   "a write that was sent again is not answered as before");
    free(body);
    body = NULL;
    kv_drill_check(d, kv_once_begin(o, "operator", "k1", "POST /x", "{1}", 3, &other, &status, &body, &err) == KV_CONFLICT, "a key is taken for another write");
    kv_once_free(o);
}

void kv_drill_idempotent_replay(struct drill *d)
{
    writes_once(d);
    results_once(d);
}
