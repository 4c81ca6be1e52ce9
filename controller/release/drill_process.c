/* drill_process.c — a drill's own process, from both sides. */
#include "controller/child_process.h"
#include "controller/release/drill_internal.h"

#include <errno.h>
#include <ftw.h>
#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CASE_BYTES = 512 * 1024, NICE = 10 };

static const struct {
    const char *name, *title;
    void (*run)(struct drill *d);
} drills[KV_DRILLS] = {
#define KV_DRILL(name, title) {#name, title, kv_drill_##name},
#include "controller/drills.def"
#undef KV_DRILL
};

const char *kv_drill_name(enum kv_drill d)
{
    return (unsigned)d < KV_DRILLS ? drills[d].name : "unknown";
}

const char *kv_drill_title(enum kv_drill d)
{
    return (unsigned)d < KV_DRILLS ? drills[d].title : "";
}

enum kv_status kv_drill_find(const char *name, enum kv_drill *out, struct kv_error *err)
{
    char names[256] = "";
    for (int i = 0; i < KV_DRILLS; i++) {
        if (!strcmp(drills[i].name, name)) return *out = (enum kv_drill)i, KV_OK;
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "", drills[i].name);
    }
    kv_fail(err, KV_NOT_FOUND, "drill", "no drill is named '%.40s'", name);
    kv_hint(err, "there are %s", names);
    return KV_NOT_FOUND;
}

bool kv_drill_check(struct drill *d, bool holds, const char *fmt, ...)
{
    d->out->checks++;
    if (holds) return true;
    va_list ap;
    va_start(ap, fmt);
    if (!d->out->violations++) vsnprintf(d->out->detail, sizeof d->out->detail, fmt, ap);
    va_end(ap);
    return false;
}

static int64_t now_us(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* ---------------------------------------------------------------- from outside */

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

static char *case_text(const struct kv_drill_case *c, const char *dir)
{
    const struct kv_manifest *m = c->manifest;
    json_t *params = json_object();
    for (int32_t i = 0; i < m->pipeline->n_params; i++) json_object_set_new(params, m->pipeline->params[i].name, json_real(m->params.value[i]));
    json_t *o = json_pack("{s:s, s:s, s:s, s:o, s:s, s:f}", "dir", dir, "model", c->model, "pipeline", m->pipeline->name, "params", params, "fallback", c->fallback ? c->fallback : "", "max_omitted_mass", c->max_omitted_mass);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return text;
}

/* Until it says its line or its time is over. */
static size_t listen_to(int fd, char *line, size_t cap)
{
    size_t n = 0;
    int64_t end = now_us(CLOCK_MONOTONIC) + KV_DRILL_SECONDS * INT64_C(1000000);
    for (int64_t left; (left = end - now_us(CLOCK_MONOTONIC)) > 0 && n < cap;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, (int)(left / 1000) + 1) <= 0) continue;
        ssize_t k = read(fd, line + n, cap - n);
        if (k <= 0) break;
        n += (size_t)k;
    }
    return n;
}

static void read_result(const char *line, size_t n, int status, struct kv_drill_result *out)
{
    json_t *o = json_loadb(line, n, 0, NULL);
    json_int_t checks = json_integer_value(json_object_get(o, "checks")), violations = json_integer_value(json_object_get(o, "violations"));
    const char *detail = json_string_value(json_object_get(o, "detail"));
    out->checks = (uint64_t)(checks > 0 ? checks : 1);
    out->violations = (uint64_t)violations;
    snprintf(out->detail, sizeof out->detail, "%s", detail ? detail : "");
    if (!o || !WIFEXITED(status) || WEXITSTATUS(status)) {
        out->violations++;
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) snprintf(out->detail, sizeof out->detail, "it took longer than %d s, or was killed", KV_DRILL_SECONDS);
        else snprintf(out->detail, sizeof out->detail, "its process ended without a result (%s %d)", WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    json_decref(o);
}

static enum kv_status run(const char *program, enum kv_drill d, const char *text, struct kv_drill_result *out, struct kv_error *err)
{
    int in, answer, status = 0;
    char line[2048];
    pid_t pid = kv_child_start(program, "--drill", kv_drill_name(d), &in, &answer);
    if (pid < 0) return kv_fail(err, KV_IO_ERROR, program, "the drill cannot be started: %s", strerror(errno));
    size_t n = 0, length = strlen(text);
    bool given = write(in, text, length) == (ssize_t)length;
    close(in);
    if (given) n = listen_to(answer, line, sizeof line);
    kill(-pid, SIGKILL); /* it has said what it had to say */
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    close(answer);
    if (n && line[n - 1] == '\n') status = 0; /* a whole line: how it ended afterwards says nothing */
    read_result(line, n, status, out);
    return KV_OK;
}

enum kv_status kv_drill_apart(const char *program, enum kv_drill d, const struct kv_drill_case *c, struct kv_drill_result *out, struct kv_error *err)
{
    char dir[900];
    int64_t began = now_us(CLOCK_MONOTONIC);
    *out = (struct kv_drill_result){.drill = d};
    snprintf(dir, sizeof dir, "%.800s/drill-XXXXXX", c->state);
    if (!mkdtemp(dir)) return kv_fail(err, KV_IO_ERROR, dir, "a folder for the drill cannot be made: %s", strerror(errno));
    char *text = case_text(c, dir);
    enum kv_status st = text ? run(program, d, text, out, err) : kv_fail(err, KV_OUT_OF_MEMORY, "drill", "memory could not be had");
    free(text);
    nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    out->seconds = (double)(now_us(CLOCK_MONOTONIC) - began) / 1e6;
    out->at_us = now_us(CLOCK_REALTIME);
    return st;
}

/* ---------------------------------------------------------------- from inside */

static enum kv_status read_case(struct drill *d, struct kv_error *err)
{
    json_t *o = json_loadb(d->input, d->input_bytes, 0, NULL), *v;
    const char *model = json_string_value(json_object_get(o, "model")), *pipeline = json_string_value(json_object_get(o, "pipeline")), *name;
    const char *fallback = json_string_value(json_object_get(o, "fallback")), *dir = json_string_value(json_object_get(o, "dir"));
    enum kv_status st = model && pipeline && fallback && dir && strlen(dir) < sizeof d->dir ? KV_OK : kv_fail(err, KV_BAD_JSON, "drill", "the case is not what the daemon sends");
    if (st == KV_OK && !(d->manifest.pipeline = kv_pipeline_find(pipeline))) st = kv_fail(err, KV_UNKNOWN_PIPELINE, "pipeline", "no pipeline is named '%.40s'", pipeline);
    ssize_t n = readlink("/proc/self/exe", d->program, sizeof d->program - 1);
    d->program[n > 0 ? n : 0] = 0;
    if (st == KV_OK) {
        snprintf(d->dir, sizeof d->dir, "%s", dir);
        kv_params_default(d->manifest.pipeline, &d->manifest.params);
        d->manifest.contract = d->manifest.pipeline->exactness;
    }
    json_object_foreach(json_object_get(o, "params"), name, v)
        if (st == KV_OK) st = kv_params_set(d->manifest.pipeline, &d->manifest.params, name, json_number_value(v), err);
    if (st == KV_OK) st = kv_model_open(model, NULL, &d->model, err);
    if (st == KV_OK) st = kv_heldout_load(NULL, d->model, kv_model_info(d->model)->context_length, &d->prompts, err);
    struct kv_script *p = NULL;
    struct kv_error why = {0};
    kv_fallback_table_baseline(&d->table);
    if (fallback && *fallback) d->table_status = kv_policy_load(KV_POLICY_FALLBACK, fallback, strlen(fallback), &p, &why);
    if (p) d->table_status = kv_policy_fallback_table(p, json_number_value(json_object_get(o, "max_omitted_mass")), &d->table, &why);
    snprintf(d->table_why, sizeof d->table_why, "%.150s", why.message);
    kv_policy_free(p);
    json_decref(o);
    return st;
}

int kv_drill_main(const char *name)
{
    enum kv_drill which = KV_DRILLS;
    struct kv_drill_result result = {0};
    struct kv_error err = {0};
    char *victim = !strncmp(name, "victim:", 7) ? (char *)name + 7 : NULL;
    struct drill *d = calloc(1, sizeof *d);
    if (!d || !(d->input = malloc(CASE_BYTES)) || (!victim && kv_drill_find(name, &which, &err) != KV_OK)) return EXIT_FAILURE;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpriority(PRIO_PROCESS, 0, NICE);
    d->out = &result;
    d->input_bytes = fread(d->input, 1, CASE_BYTES, stdin);
    enum kv_status st = read_case(d, &err);
    if (victim) return st == KV_OK ? kv_drill_victim(d, victim) : EXIT_FAILURE;
    if (kv_drill_check(d, st == KV_OK, "%.150s", err.message)) drills[which].run(d);
    if (!result.violations) snprintf(result.detail, sizeof result.detail, "%s", drills[which].title);
    json_t *o = json_pack("{s:I, s:I, s:s}", "checks", (json_int_t)result.checks, "violations", (json_int_t)result.violations, "detail", result.detail);
    if (o) json_dumpf(o, stdout, JSON_COMPACT);
    putchar('\n');
    fflush(stdout);
    json_decref(o);
    return EXIT_SUCCESS;
}
