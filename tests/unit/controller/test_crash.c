/* test_crash.c — kill -9 at every numbered step of every protocol, and rollbacks that race with advances. KVASIR_SOAK makes both long.
 *
 * A child leads a rollout OFF → SHADOW → CANARY → rollback → retry over an emulated engine and a real store, tells through a pipe what was
 * acknowledged to it, and kills itself the n-th time it comes to a step. The parent starts on what is left and compares. */
#include "tests/unit/controller/emulated_engine.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64];
static int64_t now_us;
enum { ACKNOWLEDGED = KV_CONTROL_STEPS, PLACES }; /* one place to die at beside the numbered steps */
static struct {
    enum kv_control_step step;
    int nth;
} deadly;

struct told { /* what the child was answered before it died */
    uint64_t created, rolled_back, retried;
    uint64_t receipts; /* durable by then */
    enum kv_stage stage;
};

static int64_t clock_us(void *ctx)
{
    (void)ctx;
    return now_us;
}
static void die_there(void *ctx, enum kv_control_step at)
{
    (void)ctx;
    if ((int)at == (int)deadly.step && --deadly.nth == 0) kill(getpid(), SIGKILL);
}
static void set_up(void)
{
    strcpy(dir, access("/dev/shm", W_OK) ? "/tmp/kvasir-crash-XXXXXX" : "/dev/shm/kvasir-crash-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    now_us = 1000000000;
    emulated_reset();
}
static void tear_down(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}

static struct kv_control *begin(struct kv_store **store, void (*probe)(void *, enum kv_control_step))
{
    struct kv_error err = {0};
    struct kv_control *c = NULL;
    struct kv_control_config config = {.manual = true, .monotonic_us = clock_us, .realtime_us = clock_us, .probe = probe, .model_artifact = {1}};
    ck_assert_msg(kv_store_open(&(struct kv_store_config){.dir = dir}, store, &err) == KV_OK, "%s", err.message);
    ck_assert_msg(kv_control_create(emulated_port(), *store, &config, &c, &err) == KV_OK, "%s", err.message);
    return c;
}

static enum kv_stage stage_of(struct kv_control *c, uint64_t id, struct kv_rollout_view *v)
{
    return kv_control_rollout(c, id, v, NULL) == KV_OK ? v->r.stage : KV_STAGES;
}

static void tell(int fd, const struct told *t)
{
    if (write(fd, t, sizeof *t) != (ssize_t)sizeof *t) _exit(3);
}

static void child(int fd)
{
    struct kv_store *store;
    struct kv_control *c = begin(&store, die_there);
    struct kv_rollout_view *v = malloc(sizeof *v);
    struct kv_rollout_request q = {.name = "candidate", .pipeline = "layerwise", .contract = KV_EXACT};
    struct kv_rollback_answer a;
    struct kv_store_health h;
    struct told t = {0};
    kv_params_default(kv_pipeline_find("layerwise"), &q.params);
    emulated.traffic = true;
    if (kv_control_create_rollout(c, &q, "operator:a", &t.created, NULL) != KV_OK) _exit(4);
    for (int i = 0; i < 80; i++) {
        kv_store_health(store, &h); /* what is committed is acknowledged */
        t.receipts = h.receipts;
        t.stage = stage_of(c, t.created, v);
        tell(fd, &t);
        if (t.stage == KV_STAGE_CANARY) break;
        now_us += 1000000;
        kv_control_tick(c);
    }
    if (kv_control_rollback(c, t.created, "test", "operator:a", &a, NULL) != KV_OK || !a.durable) _exit(5);
    t.rolled_back = t.created;
    t.stage = KV_STAGE_EXACT_BASELINE;
    tell(fd, &t);
    die_there(NULL, (enum kv_control_step)ACKNOWLEDGED); /* the caller knows, the database does not */
    kv_control_tick(c);
    kv_control_tick(c);
    if (kv_control_verb(c, t.created, KV_VERB_retry, 0, 0, "", "operator:a", &t.retried, NULL) != KV_OK) _exit(6);
    tell(fd, &t);
    kv_control_tick(c);
    _exit(0);
}

static void no_stage_was_skipped(const struct kv_rollout *r)
{
    enum kv_stage at = KV_STAGE_OFF;
    for (int32_t i = 0; i < r->n_transitions; i++) {
        const struct kv_transition *t = &r->transitions[i];
        ck_assert_int_eq(t->from, at);
        ck_assert(t->to == KV_STAGE_EXACT_BASELINE || t->to == at + 1 || t->to == at);
        at = t->to;
    }
    ck_assert_int_eq(at, r->stage);
}

static bool killed_at(enum kv_control_step step, int nth)
{
    int pipe_fd[2], status;
    struct told t = {0}, next;
    set_up();
    deadly.step = step;
    deadly.nth = nth;
    ck_assert_int_eq(pipe(pipe_fd), 0);
    pid_t pid = fork();
    if (pid == 0) child(pipe_fd[1]);
    close(pipe_fd[1]);
    while (read(pipe_fd[0], &next, sizeof next) == (ssize_t)sizeof next) t = next;
    close(pipe_fd[0]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFSIGNALED(status) || WEXITSTATUS(status) == 0, "step %d: exit %d", (int)step, WEXITSTATUS(status));
    struct kv_store *store;
    struct kv_control *c = begin(&store, NULL);
    struct kv_verify_result verified;
    struct kv_store_health h;
    struct kv_rollout_view *v = malloc(sizeof *v);
    ck_assert_int_eq(kv_store_verify(store, &verified, NULL), KV_OK);
    ck_assert_msg(verified.verified, "step %d: %s", (int)step, verified.detail);
    kv_store_health(store, &h);
    ck_assert_uint_ge(h.receipts, t.receipts); /* nothing acknowledged was lost */
    if (t.created) {
        enum kv_stage s = stage_of(c, t.created, v);
        ck_assert_int_ne(s, KV_STAGES);
        no_stage_was_skipped(&v->r);
        if (t.rolled_back) ck_assert_int_eq(s, KV_STAGE_EXACT_BASELINE); /* an acknowledged rollback stays rolled back */
        else ck_assert_int_ge(s, t.stage);                              /* an acknowledged stage is not taken back */
        if (s == KV_STAGE_EXACT_BASELINE || s == KV_STAGE_OFF) ck_assert_uint_ne(emulated.candidate, t.created);
    }
    if (t.retried) ck_assert_int_le(stage_of(c, t.retried, v), KV_STAGE_SHADOW);
    free(v);
    kv_control_destroy(c);
    kv_store_close(store);
    tear_down();
    return WIFSIGNALED(status);
}

static int runs(int check, int soak)
{
    return getenv("KVASIR_SOAK") ? soak : check;
}

START_TEST(a_kill_at_any_step_loses_nothing)
{
    int total = runs(200, 1000), killed = 0;
    for (int i = 0; i < total; i++) killed += killed_at((enum kv_control_step)(1 + i % (PLACES - 1)), 1 + i / (PLACES - 1) % 2);
    ck_assert_int_ge(killed, total / 2); /* not every step is met twice */
}
END_TEST

/* ---------------------------------------------------------------- rollbacks that race */

static void yield_there(void *ctx, enum kv_control_step at)
{
    static _Thread_local unsigned state = 1;
    (void)ctx, (void)at;
    state = state * 1664525 + 1013904223;
    for (unsigned i = 0; i < (state >> 28); i++) sched_yield();
}

struct race {
    struct kv_control *c;
    uint64_t id;
    _Atomic int turn;
};

static void *advance_main(void *arg)
{
    struct race *r = arg;
    struct kv_error err;
    for (int turn = 1; turn > 0;) {
        int now = r->turn;
        if (now < 0) break;
        if (now != turn) {
            sched_yield();
            continue;
        }
        kv_control_verb(r->c, r->id, KV_VERB_advance, 0, 0, "", "operator:a", NULL, &err);
        r->turn = 0;
        turn++;
        while (r->turn == 0) sched_yield();
    }
    return NULL;
}

/* Whatever an advance is doing: once the rollback has answered, nothing of the candidate is or comes into service. */
START_TEST(a_rollback_beats_every_advance)
{
    struct kv_store *store;
    set_up();
    struct kv_control *c = begin(&store, yield_there);
    struct kv_rollout_view *v = malloc(sizeof *v);
    struct kv_rollout_request q = {.name = "candidate", .pipeline = "layerwise", .contract = KV_EXACT};
    struct race race = {.c = c};
    struct kv_error err = {0};
    pthread_t thread;
    kv_params_default(kv_pipeline_find("layerwise"), &q.params);
    ck_assert_int_eq(pthread_create(&thread, NULL, advance_main, &race), 0);
    int total = runs(5000, 100000), superseded = 0;
    for (int i = 0; i < total; i++) {
        struct kv_rollback_answer a;
        ck_assert_msg(kv_control_create_rollout(c, &q, "operator:a", &race.id, &err) == KV_OK, "%d: %s", i, err.message);
        race.turn = i + 1;
        yield_there(NULL, 0);
        ck_assert_int_eq(kv_control_rollback(c, race.id, "race", "operator:b", &a, &err), KV_OK);
        ck_assert(a.fenced && a.durable);
        ck_assert(emulated.word & EMULATED_LATCH);
        while (race.turn != 0) sched_yield();
        ck_assert(emulated.word & EMULATED_LATCH); /* the advance, whenever it came, armed nothing */
        ck_assert_int_eq(stage_of(c, race.id, v), KV_STAGE_EXACT_BASELINE);
        superseded += v->r.n_transitions == 1;
        kv_control_tick(c);
        ck_assert(!(emulated.word & EMULATED_LATCH));
        ck_assert_uint_eq(emulated.candidate, 0);
    }
    race.turn = -1;
    pthread_join(thread, NULL);
    ck_assert_int_gt(superseded, 0);
    free(v);
    kv_control_destroy(c);
    kv_store_close(store);
    tear_down();
}
END_TEST

Suite *suite_crash(void);
Suite *suite_crash(void)
{
    Suite *s = suite_create("crash");
    TCase *t = tcase_create("crash");
    tcase_set_timeout(t, getenv("KVASIR_SOAK") ? 3600 : 300);
    tcase_add_test(t, a_kill_at_any_step_loses_nothing);
    tcase_add_test(t, a_rollback_beats_every_advance);
    suite_add_tcase(s, t);
    return s;
}
