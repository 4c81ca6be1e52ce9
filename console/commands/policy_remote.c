/* policy_remote.c — see policy_remote.h. */
#include "console/commands/policy_remote.h"

#include "console/diff.h"
#include "console/output.h"
#include "console/progress_line.h"
#include "console/tables.h"
#include "controller/policy/policy_host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char kv_policy_remote_usage[] = "       kvasir policy list [KIND] | show KIND [VERSION] | diff KIND VERSION [VERSION]\n"
                                      "       kvasir policy submit KIND FILE | check|replay|activate KIND VERSION | approve KIND VERSION [--reason TEXT]\n"
                                      "       kvasir policy revert KIND [VERSION] | activate KIND FILE\n";

struct options {
    const char *kind, *what, *other, *reason;
};

static int finish(const struct kv_cli *cli, json_t *v, int status)
{
    if (status == KV_EXIT_DONE && cli->json) kv_output_json(v, JSON_INDENT(2)), putchar('\n');
    json_decref(v);
    return status;
}

static const char *member(const json_t *o, const char *name)
{
    const char *v = json_string_value(json_object_get(o, name));
    return v ? v : "";
}

static int list(const struct kv_cli *cli, const char *kind)
{
    char path[128];
    json_t *v = NULL, *row;
    size_t i;
    snprintf(path, sizeof path, kind ? "/api/v1/policies/%.40s/versions" : "/api/v1/policies", kind);
    int status = kv_client_do(cli, "GET", path, NULL, NULL, &v);
    if (status == KV_EXIT_DONE && !cli->json && !kind) kv_table_print(kv_table_find("policies"), json_object_get(v, "policies"));
    if (status == KV_EXIT_DONE && !cli->json && kind) {
        printf("%-12s  %-9s  %-20s  %-20s  %-20s  %s\n", "version", "state", "name", "author", "last moved by", "detail");
        json_array_foreach(json_object_get(v, "versions"), i, row)
            printf("%-12.12s  %-9s  %-20.20s  %-20.20s  %-20.20s  %s\n", member(row, "version"), member(row, "state"), member(row, "name"), member(row, "author"), member(row, "actor"), member(row, "detail"));
    }
    return finish(cli, v, status);
}

static int get(const struct kv_cli *cli, const char *kind, const char *version, json_t **out)
{
    char path[192];
    snprintf(path, sizeof path, version ? "/api/v1/policies/%.40s/%.80s" : "/api/v1/policies/%.40s", kind, version);
    return kv_client_do(cli, "GET", path, NULL, NULL, out);
}

static int show(const struct kv_cli *cli, const struct options *o)
{
    json_t *v = NULL;
    int status = get(cli, o->kind, o->what, &v);
    if (status == KV_EXIT_DONE && !cli->json) {
        const char *source = member(v, "source");
        fputs(source, stdout);
        if (*source && source[strlen(source) - 1] != '\n') putchar('\n');
    }
    return finish(cli, v, status);
}

static int post(const struct kv_cli *cli, const char *kind, const char *verb, json_t *body, const char *if_match, json_t **out)
{
    char path[128];
    snprintf(path, sizeof path, "/api/v1/policies/%.40s/%s", kind, verb);
    int status = kv_client_do(cli, "POST", path, body, if_match, out);
    json_decref(body);
    return status;
}

static void print_replay(const json_t *v)
{
    json_t *row;
    size_t i;
    printf("%.0f of %.0f answers would change, %.0f faults", json_number_value(json_object_get(v, "changed")), json_number_value(json_object_get(v, "asked")),
           json_number_value(json_object_get(v, "faults")));
    double unreadable = json_number_value(json_object_get(v, "unreadable"));
    printf(unreadable > 0 ? ", %.0f recorded questions could not be read\n" : "\n", unreadable);
    json_array_foreach(json_object_get(v, "changes"), i, row) {
        json_int_t receipt = json_integer_value(json_object_get(row, "receipt"));
        if (receipt) printf("  receipt %" JSON_INTEGER_FORMAT ":", receipt);
        printf("  %s -> %s  (%s)\n", member(row, "was"), member(row, "now"), member(row, "where"));
    }
}

static int move(const struct kv_cli *cli, const char *verb, const struct options *o)
{
    json_t *v = NULL, *active = NULL;
    json_t *body = o->what ? json_pack("{s:s, s:s}", "version", o->what, "reason", o->reason ? o->reason : "") : json_pack("{s:s}", "reason", o->reason ? o->reason : "");
    bool switches = !strcmp(verb, "activate") || !strcmp(verb, "revert");
    /* What is active now is what this switch is based on: if somebody else is faster it is refused. */
    int status = switches ? get(cli, o->kind, NULL, &active) : KV_EXIT_DONE;
    struct kv_progress_line line = {.what = verb};
    if (!strcmp(verb, "replay")) kv_progress_line_watch(&line, cli);
    if (status == KV_EXIT_DONE) status = post(cli, o->kind, verb, body, switches ? member(active, "version") : NULL, &v);
    else json_decref(body);
    kv_progress_line_end(&line);
    if (status == KV_EXIT_DONE && !cli->json) {
        if (!strcmp(verb, "replay")) print_replay(v);
        else printf("%s policy %s (%.12s): %s\n", o->kind, member(v, "name"), member(v, "version"), member(v, "state"));
    }
    json_decref(active);
    return finish(cli, v, status);
}

static char *read_source(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(KV_POLICY_SOURCE_BYTES + 2) : NULL;
    if (text) *n = fread(text, 1, KV_POLICY_SOURCE_BYTES + 1, f);
    else fprintf(stderr, "kvasir: FILE_UNREADABLE: %s cannot be read: %s\n", path, strerror(errno));
    if (f) fclose(f);
    return text;
}

static int send_file(const struct kv_cli *cli, const char *verb, const struct options *o)
{
    size_t n = 0;
    char *source = read_source(o->what, &n);
    if (!source) return KV_EXIT_REFUSED;
    json_t *body = json_pack("{s:s%}", "source", source, n), *v = NULL, *active = NULL;
    free(source);
    if (!body) return fprintf(stderr, "kvasir: POLICY_PARSE: %s is not UTF-8 text\n", o->what), KV_EXIT_REFUSED;
    bool switches = !strcmp(verb, "activate");
    int status = switches ? get(cli, o->kind, NULL, &active) : KV_EXIT_DONE;
    if (status == KV_EXIT_DONE) status = post(cli, o->kind, verb, body, switches ? member(active, "version") : NULL, &v);
    else json_decref(body);
    if (status == KV_EXIT_DONE && !cli->json) {
        if (switches) printf("%s policy %s is active\n", o->kind, member(v, "name"));
        else printf("%s policy %s (%.12s): %s\n", o->kind, member(v, "name"), member(v, "version"), member(v, "state"));
    }
    json_decref(active);
    return finish(cli, v, status);
}

/* A fallback policy is its table: the cells in which two versions differ. */
static int diff_cells(const char *a, size_t na, const char *b, size_t nb, double limit)
{
    struct kv_script *p = NULL, *q = NULL;
    struct kv_fallback_table ta, tb;
    struct kv_error err = {0};
    int changed = 0;
    enum kv_status st = kv_policy_load(KV_POLICY_FALLBACK, a, na, &p, &err);
    if (!st) st = kv_policy_load(KV_POLICY_FALLBACK, b, nb, &q, &err);
    if (!st) st = kv_policy_fallback_table(p, limit, &ta, &err);
    if (!st) st = kv_policy_fallback_table(q, limit, &tb, &err);
    for (unsigned i = 0; !st && i < KV_FALLBACK_CELLS; i++) {
        struct kv_fallback_state s;
        if (ta.action[i] == tb.action[i]) continue;
        kv_fallback_state_of(i, &s);
        printf("  cell %3u%s%s%s%s%s%s%s%s: %s -> %s\n", i, s.post_widen ? " post_widen" : " initial", s.force_exact ? " force_exact" : "", s.uncertain ? " uncertain" : "",
               s.can_widen ? " can_widen" : "", s.fetch_fits ? " fetch_fits" : "", s.recompute_fits ? " recompute_fits" : "", s.retryable ? " retryable" : "",
               s.approximation_allowed ? " approximation_allowed" : "", kv_fallback_action_name((enum kv_fallback_action)ta.action[i]),
               kv_fallback_action_name((enum kv_fallback_action)tb.action[i]));
        changed++;
    }
    if (st) fprintf(stderr, "kvasir: %s: %s\n", kv_status_name(st), err.message);
    else printf("%d of %d cells differ\n", changed, KV_FALLBACK_CELLS);
    kv_policy_free(p);
    kv_policy_free(q);
    return st ? KV_EXIT_REFUSED : KV_EXIT_DONE;
}

static int diff(const struct kv_cli *cli, const struct options *o)
{
    json_t *a = NULL, *b = NULL, *serving = NULL;
    int status = get(cli, o->kind, o->other ? o->what : NULL, &a);
    if (status == KV_EXIT_DONE) status = get(cli, o->kind, o->other ? o->other : o->what, &b);
    bool cells = !strcmp(o->kind, "fallback");
    if (status == KV_EXIT_DONE && cells) status = get(cli, o->kind, NULL, &serving);
    if (status == KV_EXIT_DONE && cells) {
        const json_t *x = json_object_get(a, "source"), *y = json_object_get(b, "source");
        status = diff_cells(json_string_value(x), json_string_length(x), json_string_value(y), json_string_length(y), json_number_value(json_object_get(serving, "max_omitted_mass")));
    } else if (status == KV_EXIT_DONE) {
        printf("--- %.12s %s\n+++ %.12s %s\n", member(a, "version"), member(a, "name"), member(b, "version"), member(b, "name"));
        int added = 0, gone = 0;
        json_t *lines = kv_diff_lines(member(a, "source"), member(b, "source"), &added, &gone), *line;
        size_t i;
        json_array_foreach(lines, i, line) puts(json_string_value(line));
        json_decref(lines);
        if (!added && !gone) puts("no line differs");
    }
    json_decref(a);
    json_decref(b);
    json_decref(serving);
    return status;
}

int kv_policy_remote(int argc, char **argv, const struct kv_cli *cli)
{
    struct options o = {0};
    const char **to[] = {&o.kind, &o.what, &o.other};
    size_t n = 0;
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "--reason") && i + 1 < argc) o.reason = argv[++i];
        else if (n < 3 && argv[i][0] != '-') *to[n++] = argv[i];
        else return KV_EXIT_USAGE;
    }
    enum kv_policy_kind kind;
    const char *verb = argc > 1 ? argv[1] : "";
    if (!strcmp(verb, "list") && n <= 1) return list(cli, o.kind);
    if (n == 0) return KV_EXIT_USAGE;
    if (!kv_policy_kind_from_name(o.kind, &kind)) return fprintf(stderr, "kvasir: '%s' is no kind of policy: admission, fallback, release\n", o.kind), KV_EXIT_USAGE;
    if (!strcmp(verb, "show") && n <= 2) return show(cli, &o);
    if (!strcmp(verb, "diff") && n >= 2) return diff(cli, &o);
    if (!strcmp(verb, "submit") && n == 2) return send_file(cli, verb, &o);
    if (!strcmp(verb, "activate") && n == 2 && (strchr(o.what, '/') || strchr(o.what, '.'))) return send_file(cli, verb, &o);
    if (n == 2 && (!strcmp(verb, "check") || !strcmp(verb, "replay") || !strcmp(verb, "approve") || !strcmp(verb, "activate"))) return move(cli, verb, &o);
    if (!strcmp(verb, "revert") && n <= 2) return move(cli, verb, &o);
    return KV_EXIT_USAGE;
}
