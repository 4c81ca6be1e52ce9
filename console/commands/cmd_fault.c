/* cmd_fault.c — kvasir fault: the failure lab. What can be injected, arm and disarm, and runs that check what must hold afterwards. */
#include "console/client.h"
#include "console/output.h"
#include "console/tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BACK_S = 120, PROBE_TOKENS = 24 };

struct options {
    const char *name, *rollout, *tenant, *session;
    long count;
};

static int usage(void)
{
    fprintf(stderr, "usage: kvasir fault [list] | arm NAME [--count N] {--rollout R | --tenant T [--session S]} | disarm NAME | run {NAME | all} [--tenant T]\n");
    return KV_EXIT_USAGE;
}

static const char *text_of(const json_t *o, const char *field)
{
    const char *s = json_string_value(json_object_get(o, field));
    return s ? s : "";
}

static int show_json(json_t *v)
{
    kv_output_json(v, JSON_INDENT(2));
    putchar('\n');
    json_decref(v);
    return KV_EXIT_DONE;
}

static bool path_of(const char *name, const char *verb, char *out, size_t cap)
{
    char *escaped = curl_easy_escape(NULL, name, 0);
    int n = snprintf(out, cap, "/api/v1/faults/%s%s", escaped ? escaped : "", verb);
    curl_free(escaped);
    return escaped && *name && n > 0 && (size_t)n < cap;
}

static int list(const struct kv_cli *cli)
{
    const struct kv_table *t = kv_table_find("faults");
    json_t *v = NULL;
    int status = kv_client_do(cli, "GET", t->route, NULL, NULL, &v);
    if (status) return status;
    if (cli->json) return show_json(v);
    if (!json_is_true(json_object_get(v, "enabled"))) puts("faults.enabled is off: none can be armed here");
    kv_table_print(t, json_object_get(v, t->array));
    json_decref(v);
    return KV_EXIT_DONE;
}

static json_t *scope_of(const struct options *o)
{
    json_t *s = json_object();
    if (o->rollout) json_object_set_new(s, "rollout", json_string(o->rollout));
    if (o->tenant) json_object_set_new(s, "tenant", json_string(o->tenant));
    if (o->session) json_object_set_new(s, "session", json_string(o->session));
    return s;
}

static int arm(const struct kv_cli *cli, const struct options *o, bool says)
{
    char path[256];
    json_t *answer = NULL, *body = json_pack("{s:I, s:o}", "count", (json_int_t)o->count, "scope", scope_of(o));
    int status = path_of(o->name, "", path, sizeof path) ? kv_client_do(cli, "POST", path, body, NULL, &answer) : KV_EXIT_USAGE;
    json_decref(body);
    if (status || !says) return json_decref(answer), status;
    if (cli->json) return show_json(answer);
    printf("%s is armed: %s; it is to lead to %s, %s\n", o->name, text_of(answer, "meaning"), text_of(answer, "expects"), text_of(answer, "action"));
    json_decref(answer);
    return KV_EXIT_DONE;
}

static int disarm(const struct kv_cli *cli, const char *name)
{
    char path[256];
    json_t *answer = NULL;
    int status = path_of(name, "", path, sizeof path) ? kv_client_do(cli, "DELETE", path, NULL, NULL, &answer) : KV_EXIT_USAGE;
    if (status) return status;
    if (cli->json) return show_json(answer);
    printf("%s %s; it struck %.0f times since the start\n", name, json_is_true(json_object_get(answer, "was_armed")) ? "is disarmed" : "was not armed",
           json_number_value(json_object_get(answer, "hits")));
    json_decref(answer);
    return KV_EXIT_DONE;
}

/* ---------------------------------------------------------------- runs */

static int print_outcome(const struct kv_cli *cli, json_t *fault)
{
    const json_t *last = json_object_get(fault, "last");
    bool pass = json_is_true(json_object_get(last, "pass"));
    size_t i;
    json_t *c;
    if (cli->json) return show_json(fault), pass ? KV_EXIT_DONE : KV_EXIT_REFUSED;
    printf("%s  %s\n", pass ? "PASS" : "FAIL", text_of(fault, "name"));
    json_array_foreach(json_object_get(last, "checks"), i, c)
        printf("      %-4s %-12s %s\n", json_is_true(json_object_get(c, "pass")) ? "ok" : "FAIL", text_of(c, "what"), text_of(c, "detail"));
    json_decref(fault);
    return pass ? KV_EXIT_DONE : KV_EXIT_REFUSED;
}

static void add_check(json_t *checks, const char *what, bool pass, const char *detail)
{
    json_array_append_new(checks, json_pack("{s:s, s:b, s:s}", "what", what, "pass", (int)pass, "detail", detail));
}

static int ask(const struct kv_cli *cli, const char *prompt, const char *session, char out[1024])
{
    json_t *answer = NULL, *body = json_pack("{s:s, s:i, s:i, s:{s:s}}", "prompt", prompt, "max_tokens", PROBE_TOKENS, "temperature", 0, "kvasir", "session", session);
    int status = kv_client_do(cli, "POST", "/v1/completions", body, NULL, &answer);
    if (!status) snprintf(out, 1024, "%s", text_of(json_array_get(json_object_get(answer, "choices"), 0), "text"));
    json_decref(answer);
    json_decref(body);
    return status;
}

/* Whether it answers again within the time somebody has to start it. */
static bool comes_back(const struct kv_cli *cli)
{
    for (int i = 0; i < BACK_S * 10; i++) {
        struct kv_reply r = {0};
        bool ready = kv_client_call(cli, "GET", "/readyz", NULL, NULL, &r) == KV_EXIT_DONE;
        json_decref(r.body);
        if (ready) return true;
        nanosleep(&(struct timespec){0, 100000000}, NULL);
    }
    return false;
}

/* From outside: what the killed process cannot check. */
static int run_kill(const struct kv_cli *cli, struct options *o)
{
    char prompt[160], session[64], before[1024] = "", after[1024] = "", lost[1024] = "";
    json_t *checks = json_array(), *chain = NULL, *c;
    snprintf(session, sizeof session, "failure-lab-%lld", (long long)time(NULL));
    snprintf(prompt, sizeof prompt, "Session %s: name what must hold after a process was killed", session);
    o->session = session;
    if (!o->tenant) o->tenant = "local";
    int status = ask(cli, prompt, "failure-lab-reference", before);
    if (!status) status = arm(cli, o, false);
    if (status) return json_decref(checks), status;
    fprintf(stderr, "kvasir: killing the server; start it again within %d s\n", BACK_S);
    int ended = ask(cli, prompt, session, lost);
    add_check(checks, "killed", ended != KV_EXIT_DONE, ended ? "the request ended without an answer" : "the request was answered; is the tenant's name right? (--tenant)");
    bool back = comes_back(cli);
    add_check(checks, "restart", back, back ? "the server is ready again" : "the server did not come back");
    if (back) {
        status = ask(cli, prompt, session, after);
        add_check(checks, "answer", !status && !strcmp(before, after), "the same question against its answer before the kill");
        status = kv_client_do(cli, "GET", "/api/v1/receipts/verify", NULL, NULL, &chain);
        add_check(checks, "chain", !status && json_is_true(json_object_get(chain, "verified")), "the receipts verify");
        json_decref(chain);
    }
    bool pass = true;
    size_t i;
    json_array_foreach(checks, i, c) pass &= json_is_true(json_object_get(c, "pass"));
    return print_outcome(cli, json_pack("{s:s, s:{s:b, s:o}}", "name", o->name, "last", "pass", (int)pass, "checks", checks));
}

static int run_one(const struct kv_cli *cli, struct options *o)
{
    char path[256];
    json_t *answer = NULL, *empty = json_object();
    if (!strcmp(o->name, "kill")) return json_decref(empty), run_kill(cli, o);
    int status = path_of(o->name, "/run", path, sizeof path) ? kv_client_do(cli, "POST", path, empty, NULL, &answer) : KV_EXIT_USAGE;
    json_decref(empty);
    return status ? status : print_outcome(cli, answer);
}

/* Every fault but the one that ends the server. What could not be run is told on standard error and is no failure. */
static int run_all(const struct kv_cli *cli)
{
    json_t *v = NULL, *fault;
    size_t i;
    int status = kv_client_do(cli, "GET", "/api/v1/faults", NULL, NULL, &v), failed = 0, passed = 0, not_run = 0;
    if (status) return status;
    json_array_foreach(json_object_get(v, "faults"), i, fault) {
        char path[256];
        json_t *answer = NULL, *empty = json_object();
        if (!strcmp(text_of(fault, "name"), "kill") || !path_of(text_of(fault, "name"), "/run", path, sizeof path)) {
            json_decref(empty);
            continue;
        }
        status = kv_client_do(cli, "POST", path, empty, NULL, &answer);
        json_decref(empty);
        if (status == KV_EXIT_UNREACHABLE) break;
        if (status) not_run++, fprintf(stderr, "kvasir: %s was not run\n", text_of(fault, "name"));
        else print_outcome(cli, answer) ? failed++ : passed++;
    }
    json_decref(v);
    if (!cli->json) printf("%d passed, %d failed, %d not run; kill is run by its name\n", passed, failed, not_run);
    return status == KV_EXIT_UNREACHABLE ? status : failed || !passed ? KV_EXIT_REFUSED : KV_EXIT_DONE;
}

int kv_cmd_fault(int argc, char **argv, const struct kv_cli *cli)
{
    struct options o = {.count = 1};
    const char *verb = argc > 1 ? argv[1] : "list";
    if (argc > 2) o.name = argv[2];
    for (int i = 3; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value && !strcmp(argv[i], "--count")) o.count = atol(value);
        else if (value && !strcmp(argv[i], "--rollout")) o.rollout = value;
        else if (value && !strcmp(argv[i], "--tenant")) o.tenant = value;
        else if (value && !strcmp(argv[i], "--session")) o.session = value;
        else return usage();
    }
    if (!strcmp(verb, "list") && argc <= 2) return list(cli);
    if (!strcmp(verb, "arm") && o.name) return arm(cli, &o, true);
    if (!strcmp(verb, "disarm") && argc == 3) return disarm(cli, o.name);
    if (!strcmp(verb, "run") && argc == 3 && !strcmp(o.name, "all")) return run_all(cli);
    if (!strcmp(verb, "run") && o.name) return run_one(cli, &o);
    return usage();
}
