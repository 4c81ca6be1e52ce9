/* demo_interruption.c — see demo_interruption.h. */
#include "controller/demo/demo_interruption.h"

#include "controller/demo/demo_client.h"
#include "controller/demo/demo_prompt.h"
#include "controller/http/events.h"

#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { START_LIMIT_S = 60, STOP_LIMIT_S = 15, SWAP_LIMIT_S = 30, RECEIPT_LIMIT_S = 10, POLL_MS = 20, PROMPT_LINES = 24, LONGEST_PROMPT = 16384, STEPS = 160, MARKER_AT = 40, MARKER_BYTES = 8 };

extern char **environ;

struct child {
    char folder[96], base[64];
    int starts;
    pid_t pid; /* 0: not running */
    struct kv_demo_client *client;
    const _Atomic bool *stop;
    void (*say)(void *ctx, const char *line);
    void *ctx;
};

__attribute__((format(printf, 2, 3))) static void say(const struct child *c, const char *fmt, ...)
{
    char line[320];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    c->say(c->ctx, line);
}

static void moment(void)
{
    nanosleep(&(struct timespec){0, POLL_MS * 1000000}, NULL);
}

/* ---------------------------------------------------------------- a daemon that can be killed */

/* The caller's settings are the parent's, not the child's. */
static char **plain_environment(void)
{
    size_t n = 0, kept = 0;
    while (environ[n]) n++;
    char **e = calloc(n + 1, sizeof *e);
    for (size_t i = 0; e && i < n; i++)
        if (strncmp(environ[i], "KVASIR_", 7) || !strncmp(environ[i], "KVASIR_ISA=", 11)) e[kept++] = environ[i];
    return e;
}

/* The address is in the line that says what it serves. */
static bool read_address(struct child *c, const char *log)
{
    static const char before[] = " on http://";
    char text[16384];
    FILE *f = fopen(log, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    const char *at = strstr(text, before), *end = at ? strchr(at + sizeof before - 1, '/') : NULL;
    if (!end) return false;
    snprintf(c->base, sizeof c->base, "http://%.*s", (int)(end - at - (int)sizeof before + 1), at + sizeof before - 1);
    return true;
}

static void run_child(const char *log, char *const argv[], char *const env[], pid_t parent)
{
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (fd < 0 || getppid() != parent || dup2(fd, 1) < 0 || dup2(fd, 2) < 0) _exit(127);
    execve("/proc/self/exe", argv, env);
    _exit(127);
}

static bool start(struct child *c, const char *model)
{
    char log[160], state[160], disk[192];
    snprintf(log, sizeof log, "%s/log-%d", c->folder, ++c->starts);
    snprintf(state, sizeof state, "%s/state", c->folder);
    snprintf(disk, sizeof disk, "tiers.disk.path=%s/disk", c->folder);
    const char *const argv[] = {"kvasird", "--listen", "127.0.0.1:0", "--model", model, "--state", state, "--set", disk, "--set", "tiers.disk.capacity_bytes=64MiB",
                                "--set", "tiers.disk.reserve_bytes=0", "--set", "engine.prefix_reuse=false", NULL};
    char **env = plain_environment();
    pid_t parent = getpid();
    c->pid = env ? fork() : -1;
    if (c->pid == 0) run_child(log, (char *const *)argv, env, parent);
    free(env);
    if (c->pid < 0) return c->pid = 0, false;
    for (int64_t limit_us = kv_monotonic_us() + START_LIMIT_S * 1000000LL; !*c->stop && kv_monotonic_us() < limit_us; moment()) {
        if (waitpid(c->pid, NULL, WNOHANG) == c->pid) return c->pid = 0, false;
        if (!read_address(c, log)) continue;
        c->client = kv_demo_client_create(c->base, "", false);
        if (c->client) kv_demo_client_watch(c->client, c->stop);
        return c->client != NULL;
    }
    return false;
}

static void end(struct child *c, int sig)
{
    kv_demo_client_free(c->client);
    c->client = NULL;
    if (!c->pid) return;
    kill(c->pid, sig);
    int64_t limit_us = kv_monotonic_us() + STOP_LIMIT_S * 1000000LL;
    while (waitpid(c->pid, NULL, WNOHANG) == 0) {
        if (kv_monotonic_us() > limit_us) kill(c->pid, SIGKILL);
        moment();
    }
    c->pid = 0;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st, (void)kind, (void)where;
    return remove(path);
}

void kv_demo_remove(const char *folder)
{
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* ---------------------------------------------------------------- its session */

static json_t *call(struct child *c, const char *method, const char *path, json_t *body)
{
    json_t *answer = NULL;
    long status = 0;
    kv_demo_call(c->client, method, path, body, 0, &status, &answer);
    json_decref(body);
    if (status == 200) return answer;
    if (!*c->stop) say(c, "%s %s was answered with %ld: %s", method, path, status, json_string_value(json_object_get(json_object_get(answer, "error"), "message")));
    json_decref(answer);
    return NULL;
}

static const char *text_of(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));
    return s ? s : "";
}

static json_t *first_of(const json_t *o, const char *list)
{
    return json_array_get(json_object_get(o, list), 0);
}

/* marker NULL: the whole answer, no session. */
static json_t *ask(struct child *c, const char *prompt, const char *session, const char *marker)
{
    json_t *body = json_pack("{s:s, s:i, s:f, s:i, s:b}", "prompt", prompt, "max_tokens", STEPS, "temperature", 0.8, "seed", 7, "ignore_eos", 1);
    if (marker) json_object_set_new(body, "kvasir", json_pack("{s:s, s:s}", "session", session, "tool_pause", marker));
    return call(c, "POST", "/v1/completions", body);
}

struct pause {
    char call_id[64];
    json_int_t epoch;
};

static bool until_tool_call(struct child *c, const char *prompt, const char *session, const char *marker, struct pause *p)
{
    json_t *answer = ask(c, prompt, session, marker), *pause = json_object_get(json_object_get(answer, "kvasir"), "pause");
    snprintf(p->call_id, sizeof p->call_id, "%s", text_of(pause, "call_id"));
    p->epoch = json_integer_value(json_object_get(pause, "pause_epoch"));
    json_decref(answer);
    return p->epoch > 0;
}

/* Of the tokens that a continuation published; its receipt is written behind the answer, and numbers of requests begin anew with each daemon. */
static void digest_of(struct child *c, const char *session, const json_t *answer, json_int_t tokens, char digest[72])
{
    char path[160];
    snprintf(path, sizeof path, "/api/v1/receipts?kind=PUBLICATION&session=%s&request=%.60s&limit=1", session, text_of(json_object_get(answer, "kvasir"), "receipt_id"));
    *digest = 0;
    for (int64_t limit_us = kv_monotonic_us() + RECEIPT_LIMIT_S * 1000000LL; !*digest && !*c->stop && kv_monotonic_us() < limit_us; moment()) {
        json_t *receipts = call(c, "GET", path, NULL);
        const json_t *r = first_of(receipts, "receipts");
        if (json_integer_value(json_object_get(r, "tokens")) == tokens) snprintf(digest, 72, "%s", text_of(r, "digest"));
        json_decref(receipts);
    }
}

/* The rest of the answer, and the digest of its tokens. */
static char *finish(struct child *c, const char *session, const struct pause *p, char digest[72], json_int_t *tokens)
{
    char path[96];
    snprintf(path, sizeof path, "/v1/sessions/%s/result", session);
    json_t *result = call(c, "POST", path, json_pack("{s:s, s:I, s:s, s:s}", "call_id", p->call_id, "pause_epoch", p->epoch, "result_id", "demo-result", "content", " The lamp is lit."));
    snprintf(path, sizeof path, "/v1/sessions/%s/resume", session);
    json_t *rest = result ? call(c, "POST", path, json_pack("{s:I}", "pause_epoch", p->epoch)) : NULL;
    *tokens = json_integer_value(json_object_get(json_object_get(rest, "usage"), "completion_tokens"));
    if (rest) digest_of(c, session, rest, *tokens, digest);
    char *text = rest ? strdup(text_of(first_of(rest, "choices"), "text")) : NULL;
    json_decref(result);
    json_decref(rest);
    return text;
}

static bool wait_swapped(struct child *c, json_t *out)
{
    for (int64_t limit_us = kv_monotonic_us() + SWAP_LIMIT_S * 1000000LL; !*c->stop && kv_monotonic_us() < limit_us; moment()) {
        json_t *list = call(c, "GET", "/api/v1/interruptions", NULL), *row = first_of(list, "interruptions");
        bool out_of_memory = json_integer_value(json_object_get(row, "swapped_bytes")) > 0 && !strcmp(text_of(row, "state"), "PAUSED_HOST");
        static const char *const kept[] = {"session", "call_id", "state", "action", "swapped_bytes"};
        for (size_t i = 0; row && i < sizeof kept / sizeof *kept; i++) json_object_set(out, kept[i], json_object_get(row, kept[i]));
        json_decref(list);
        if (out_of_memory) return true;
    }
    return false;
}

static bool still_paused(struct child *c, const struct pause *p, json_t *out)
{
    json_t *list = call(c, "GET", "/api/v1/interruptions", NULL), *row = first_of(list, "interruptions");
    bool there = !strcmp(text_of(row, "call_id"), p->call_id);
    json_object_set(out, "result_state", json_object_get(row, "result_state"));
    json_decref(list);
    return there;
}

static json_int_t restored_tokens(struct child *c)
{
    json_t *s = call(c, "GET", "/api/v1/sessions/agent", NULL);
    json_int_t n = json_integer_value(json_object_get(s, "restored_tokens"));
    json_decref(s);
    return n;
}

/* What ends the tool call: a piece of the answer that it says once. */
static bool choose_marker(struct child *c, const char *prompt, char marker[MARKER_BYTES + 1])
{
    json_t *answer = ask(c, prompt, NULL, NULL);
    const char *text = text_of(first_of(answer, "choices"), "text");
    bool found = false;
    for (size_t at = MARKER_AT; at + MARKER_BYTES < strlen(text) && !found; at++) {
        snprintf(marker, MARKER_BYTES + 1, "%s", text + at);
        found = strstr(text, marker) == text + at && !strstr(text + at + 1, marker);
        for (int i = 0; i < MARKER_BYTES; i++) found = found && marker[i] > 0; /* not half a character */
    }
    json_decref(answer);
    return found;
}

static bool play(struct child *c, const char *model, const char *prompt, json_t *out)
{
    char marker[MARKER_BYTES + 1], digest[2][72] = {"", ""};
    struct pause p, plain;
    json_int_t tokens[2] = {0, 0};
    if (!start(c, model) || !choose_marker(c, prompt, marker) || !until_tool_call(c, prompt, "agent", marker, &p)) return false;
    say(c, "session agent    waits for its tool, %s", p.call_id);
    if (!wait_swapped(c, out)) return false;
    say(c, "session agent    %s: %lld bytes on disk, none in memory; its daemon is killed (SIGKILL)", text_of(out, "state"), (long long)json_integer_value(json_object_get(out, "swapped_bytes")));
    end(c, SIGKILL);
    json_object_set_new(out, "killed", json_true());
    if (!start(c, model) || !still_paused(c, &p, out)) return false;
    char *rest = finish(c, "agent", &p, digest[0], &tokens[0]);
    json_int_t restored = rest ? restored_tokens(c) : 0;
    char *whole = rest && until_tool_call(c, prompt, "unkilled", marker, &plain) ? finish(c, "unkilled", &plain, digest[1], &tokens[1]) : NULL;
    bool same = whole && tokens[0] > 0 && tokens[0] == tokens[1] && *digest[0] && !strcmp(digest[0], digest[1]) && !strcmp(rest, whole);
    json_object_set_new(out, "result_state", json_string(rest ? "APPLIED" : "UNSEEN"));
    json_object_set_new(out, "restored_tokens", json_integer(restored));
    json_object_set_new(out, "tokens", json_integer(tokens[0]));
    json_object_set_new(out, "bit_exact", json_boolean(same));
    if (rest) say(c, "session agent    resumed from disk (%lld tokens) after the kill: %lld tokens, %s", (long long)restored, (long long)tokens[0], same ? "the same as without a kill" : "OTHERS than without a kill");
    free(rest);
    free(whole);
    return same && restored > 0;
}

bool kv_demo_interruption(const char *model_file, void (*to)(void *ctx, const char *line), void *ctx, const _Atomic bool *stop, json_t **out)
{
    struct child c = {.stop = stop, .say = to, .ctx = ctx};
    const char *tmp = getenv("TMPDIR");
    char *prompt = malloc(LONGEST_PROMPT);
    snprintf(c.folder, sizeof c.folder, "%.60s/kvasir-demo-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    *out = json_pack("{s:b}", "bit_exact", 0);
    bool ok = prompt && mkdtemp(c.folder);
    if (ok) {
        ok = kv_demo_prompt((enum kv_demo_kind)0, PROMPT_LINES, 4242, prompt, LONGEST_PROMPT) > 0 && play(&c, model_file, prompt, *out);
        end(&c, SIGTERM);
        kv_demo_remove(c.folder);
    }
    if (!ok && !*stop) say(&c, "session agent    did NOT go on as promised");
    free(prompt);
    return ok;
}
