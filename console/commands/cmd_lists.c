/* cmd_lists.c — commands that show what the server holds: status, receipts, failures, tiers, pipelines. */
#include "console/client.h"
#include "console/output.h"
#include "console/commands/receipts_offline.h"
#include "console/tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int show_json(json_t *v)
{
    kv_output_json(v, JSON_INDENT(2));
    putchar('\n');
    json_decref(v);
    return KV_EXIT_DONE;
}

/* GET route+query and print it as the named table, or as JSON. */
static int show_list(const struct kv_cli *cli, const char *table, const char *query)
{
    const struct kv_table *t = kv_table_find(table);
    char path[1024];
    snprintf(path, sizeof path, "%s%s", t->route, query);
    json_t *v = NULL;
    int status = kv_client_do(cli, "GET", path, NULL, NULL, &v);
    if (status) return status;
    if (cli->json) return show_json(v);
    kv_table_print(t, json_object_get(v, t->array));
    json_decref(v);
    return KV_EXIT_DONE;
}

static int show_one(const struct kv_cli *cli, const char *path)
{
    json_t *v = NULL;
    int status = kv_client_do(cli, "GET", path, NULL, NULL, &v);
    return status ? status : show_json(v);
}

/* Turns `--kind request --limit 5` into `?kind=request&limit=5`. 0, or KV_EXIT_USAGE. */
static int query_of(int argc, char **argv, int from, const char *const *allowed, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = 0;
    for (int i = from; i < argc; i += 2) {
        int ok = !strncmp(argv[i], "--", 2) && i + 1 < argc, known = 0;
        for (int k = 0; ok && allowed[k]; k++) known |= !strcmp(allowed[k], argv[i] + 2);
        if (!ok || !known) {
            fprintf(stderr, "kvasir: '%s' is no filter here; use", argv[i]);
            for (int k = 0; allowed[k]; k++) fprintf(stderr, " --%s", allowed[k]);
            fprintf(stderr, ", each with a value\n");
            return KV_EXIT_USAGE;
        }
        char *value = curl_easy_escape(NULL, argv[i + 1], 0);
        n += (size_t)snprintf(out + n, n < cap ? cap - n : 0, "%c%s=%s", n ? '&' : '?', argv[i] + 2, value ? value : "");
        curl_free(value);
        if (n >= cap) return KV_EXIT_USAGE;
    }
    return 0;
}

int kv_cmd_status(int argc, char **argv, const struct kv_cli *cli)
{
    (void)argv;
    if (argc > 1) return fprintf(stderr, "usage: kvasir status\n"), KV_EXIT_USAGE;
    json_t *v = NULL;
    int status = kv_client_do(cli, "GET", "/api/v1/status", NULL, NULL, &v);
    if (status) return status;
    if (cli->json) return show_json(v);
    const json_t *r = json_object_get(v, "release"), *l = json_object_get(v, "live"), *m = json_object_get(v, "model");
#define S(o, k) (json_string_value(json_object_get(o, k)) ? json_string_value(json_object_get(o, k)) : "-")
#define N(o, k) json_number_value(json_object_get(o, k))
    printf("stage     %s %.4g %%  epoch %.0f%s%s%s\n", S(r, "stage"), 100 * N(r, "fraction"), N(r, "epoch"), json_array_size(json_object_get(json_object_get(v, "faults"), "armed")) ? "  FAULTS ARMED" : "",
           json_is_true(json_object_get(r, "latched")) ? "  LATCHED" : "", json_is_true(json_object_get(r, "frozen")) ? "  releases frozen" : "");
    printf("rollout   %s %s  pipeline %s  contract %s\n", S(r, "rollout"), S(r, "name"), S(r, "pipeline"), S(r, "contract"));
    printf("model     %s (%s)\n", S(m, "name"), S(m, "file"));
    printf("live      %.0f active, %.0f queued, %.1f tokens/s, per token p50 %.2f ms p99 %.2f ms\n", N(l, "active"), N(l, "queued"),
           N(l, "tokens_per_s"), N(l, "tpot_p50_ms"), N(l, "tpot_p99_ms"));
    printf("served    %.0f requests, %.0f exact tokens, %.0f approximate tokens, %.0f exact mismatches\n", N(l, "requests"),
           N(l, "exact_tokens"), N(l, "approximate_tokens"), N(l, "exact_mismatches"));
    const json_t *f = json_object_get(l, "fallbacks");
    printf("fallbacks %.0f full, %.0f widened; index missed %.0f, stale %.0f; over budget %.0f, not a number %.0f\n", N(f, "full"), N(f, "widened"), N(f, "index_missed"),
           N(f, "index_stale"), N(f, "budget_exceeded"), N(f, "not_finite"));
    printf("mass      omitted mean %.4g, upper bound %.4g over %.0f units\n", N(l, "omitted_mass_mean"), N(l, "omitted_mass_upper"), N(l, "units"));
#undef S
#undef N
    json_decref(v);
    return KV_EXIT_DONE;
}

/* Every receipt the filters leave, oldest first, one JSON object a line. */
static int export_rows(const struct kv_cli *cli, const char *query)
{
    json_int_t after = 0;
    for (;;) {
        char path[1024];
        json_t *v = NULL, *row;
        size_t i;
        snprintf(path, sizeof path, "/api/v1/receipts%s%sorder=oldest&limit=1000&after=%" JSON_INTEGER_FORMAT, query, *query ? "&" : "?", after);
        int status = kv_client_do(cli, "GET", path, NULL, NULL, &v);
        if (status) return status;
        json_t *rows = json_object_get(v, "receipts");
        json_array_foreach(rows, i, row) {
            kv_output_json(row, JSON_COMPACT);
            putchar('\n');
            after = json_integer_value(json_object_get(row, "id"));
        }
        bool more = json_is_integer(json_object_get(v, "next")) && json_array_size(rows) > 0;
        json_decref(v);
        if (ferror(stdout)) return fprintf(stderr, "kvasir: the export cannot be written\n"), KV_EXIT_REFUSED;
        if (!more) return KV_EXIT_DONE;
    }
}

int kv_cmd_receipts(int argc, char **argv, const struct kv_cli *cli)
{
    static const char *const filters[] = {"kind", "request", "rollout", "reason", "session", "tenant", "after", "before", "limit", "policy", "chunk", "trace", "since", "until", NULL};
    const char *what = argc > 1 ? argv[1] : "tail";
    char query[768];
    if (!strcmp(what, "tail") || !strcmp(what, "find")) {
        int status = query_of(argc, argv, 2, filters, query, sizeof query);
        return status ? status : show_list(cli, "receipts", query);
    }
    if (!strcmp(what, "export")) {
        int status = query_of(argc, argv, 2, filters, query, sizeof query);
        return status ? status : export_rows(cli, query);
    }
    if (!strcmp(what, "verify") && argc > 2) {
        const char *state = NULL, *key = NULL;
        for (int i = 2; i + 1 < argc; i += 2) {
            if (!strcmp(argv[i], "--state")) state = argv[i + 1];
            else if (!strcmp(argv[i], "--key")) key = argv[i + 1];
            else argc = 1; /* no such flag */
        }
        if (state && argc % 2 == 0) return kv_receipts_verify_directory(state, key, cli);
    }
    if (!strcmp(what, "verify") && argc == 2) {
        json_t *v = NULL;
        int status = kv_client_do(cli, "GET", "/api/v1/receipts/verify", NULL, NULL, &v);
        if (status) return status;
        int good = json_is_true(json_object_get(v, "verified"));
        show_json(v);
        return good ? KV_EXIT_DONE : KV_EXIT_REFUSED;
    }
    if (!strcmp(what, "show") && argc == 3) {
        snprintf(query, sizeof query, "/api/v1/receipts/%.64s", argv[2]);
        return show_one(cli, query);
    }
    fprintf(stderr, "usage: kvasir receipts [tail|find|export] [--kind K --rollout R --request Q --session S --tenant T --reason C --policy HEX --chunk HEX --trace HEX --since TIME --until TIME …] | show ID | verify [--state DIR [--key FILE]]\n");
    return KV_EXIT_USAGE;
}

int kv_cmd_failures(int argc, char **argv, const struct kv_cli *cli)
{
    static const char *const filters[] = {"limit", NULL};
    char query[256];
    int status = query_of(argc, argv, 1, filters, query, sizeof query);
    return status ? status : show_list(cli, "failures", query);
}

int kv_cmd_flight(int argc, char **argv, const struct kv_cli *cli)
{
    static const char *const filters[] = {"request", "limit", NULL};
    char path[256];
    json_t *v = NULL;
    if (argc != 2 || !strncmp(argv[1], "--", 2)) {
        int status = query_of(argc, argv, 1, filters, path, sizeof path);
        return status ? status : show_list(cli, "flight", path);
    }
    snprintf(path, sizeof path, "/api/v1/receipts/%.64s/flight", argv[1]);
    int status = kv_client_do(cli, "GET", path, NULL, NULL, &v);
    if (status) return status;
    if (cli->json) return show_json(v);
    kv_table_print(kv_table_find("flight"), json_object_get(v, "flight"));
    json_decref(v);
    return KV_EXIT_DONE;
}

static int plain_list(int argc, const char *name, const struct kv_cli *cli)
{
    if (argc > 1) return fprintf(stderr, "usage: kvasir %s\n", name), KV_EXIT_USAGE;
    return show_list(cli, name, "");
}

int kv_cmd_tiers(int argc, char **argv, const struct kv_cli *cli)
{
    (void)argv;
    return plain_list(argc, "tiers", cli);
}

int kv_cmd_pipelines(int argc, char **argv, const struct kv_cli *cli)
{
    (void)argv;
    return plain_list(argc, "pipelines", cli);
}

int kv_cmd_progress(int argc, char **argv, const struct kv_cli *cli)
{
    (void)argv;
    return plain_list(argc, "progress", cli);
}

/* Names and figures of one member, a line each. */
static void print_figures(const json_t *answer, const char *member)
{
    const char *name;
    json_t *v;
    printf("\n%s\n", member);
    json_object_foreach(json_object_get(answer, member), name, v) {
        if (json_is_number(v)) printf("  %-22s %.6g\n", name, json_number_value(v));
        else printf("  %-22s %s\n", name, json_is_null(v) ? "not measured yet" : json_is_true(v) ? "yes" : "no");
    }
}

int kv_cmd_credits(int argc, char **argv, const struct kv_cli *cli)
{
    static const char *const lists[] = {"credits", "holders", "waiters"};
    json_t *v = NULL;
    (void)argv;
    if (argc > 1) return fprintf(stderr, "usage: kvasir credits\n"), KV_EXIT_USAGE;
    int status = kv_client_do(cli, "GET", "/api/v1/credits", NULL, NULL, &v);
    if (status) return status;
    if (cli->json) return show_json(v);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const json_t *rows = json_object_get(v, lists[i]);
        if (i && json_array_size(rows)) putchar('\n');
        if (!i || json_array_size(rows)) kv_table_print(kv_table_find(lists[i]), rows);
    }
    print_figures(v, "rates");
    print_figures(v, "demand");
    json_decref(v);
    return KV_EXIT_DONE;
}

int kv_cmd_interruptions(int argc, char **argv, const struct kv_cli *cli)
{
    (void)argv;
    return plain_list(argc, "interruptions", cli);
}
