/* cmd_rollout.c — `kvasir rollout VERB …`: every verb of controller/verbs.def over HTTP. */
#include "console/client.h"
#include "console/output.h"
#include "console/commands/rollout_evidence.h"
#include "console/tables.h"
#include "console/verbs.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    const char *id, *reason, *file, *number;
    double fraction;
    int dry_run;
};

static int usage(void)
{
    fprintf(stderr, "usage: kvasir rollout VERB [ID] [--reason TEXT]\n");
    for (int i = 0; i < KV_N_VERBS; i++)
        if (!strcmp(kv_verbs[i].group, "rollout")) fprintf(stderr, "  %-9s %s\n", kv_verbs[i].name, kv_verbs[i].help);
    fprintf(stderr, "  %-9s %s\n  %-9s %s\n  %-9s %s\n", "gates", "its gates; --dry-run FILE judges other ones by its samples, without effect", "samples", "what its gates were judged by, as JSON lines", "drill",
            "run a drill of its candidate, or list them");
    fprintf(stderr, "create takes -f FILE.json; apply -f FILE.json shows what differs from the live\n"
                    "rollout and creates it unless nothing does (--dry-run only shows); freeze and unfreeze need no ID;\n"
                    "ramp takes the fraction in percent; ID is the live rollout when left out\n");
    return KV_EXIT_USAGE;
}

static const struct kv_verb *find_verb(const char *name)
{
    for (int i = 0; i < KV_N_VERBS; i++)
        if (!strcmp(kv_verbs[i].group, "rollout") && !strcmp(kv_verbs[i].name, name)) return &kv_verbs[i];
    return NULL;
}

static void print_rollout(const json_t *r)
{
    const struct kv_table *t = kv_table_find("rollouts");
    json_t *one = json_pack("[O]", r);
    kv_table_print(t, one);
    json_decref(one);
    putchar('\n');
    kv_table_print(kv_table_find("gates"), json_object_get(r, "gates"));
    putchar('\n');
    kv_table_print(kv_table_find("transitions"), json_object_get(r, "transitions"));
}

/* The live rollout, else the newest, when no id was named. */
static int pick_rollout(const struct kv_cli *cli, const char *id, json_t **out)
{
    char path[256];
    if (id) {
        snprintf(path, sizeof path, "/api/v1/rollouts/%.64s", id);
        return kv_client_do(cli, "GET", path, NULL, NULL, out);
    }
    json_t *list = NULL, *row, *best = NULL;
    int status = kv_client_do(cli, "GET", "/api/v1/rollouts", NULL, NULL, &list);
    if (status) return status;
    size_t i;
    json_array_foreach(json_object_get(list, "rollouts"), i, row) {
        if (!best || (json_is_true(json_object_get(row, "live")) && !json_is_true(json_object_get(best, "live")))) best = row;
    }
    if (best) *out = json_incref(best);
    else fprintf(stderr, "kvasir: NOT_FOUND: there is no rollout yet; create one with: kvasir rollout create -f FILE.json\n");
    json_decref(list);
    return best ? KV_EXIT_DONE : KV_EXIT_REFUSED;
}

static int read_manifest(const char *file, json_t **out)
{
    if (!file) return fprintf(stderr, "kvasir: name the manifest with -f FILE.json\n"), KV_EXIT_USAGE;
    json_error_t why;
    *out = json_load_file(file, JSON_REJECT_DUPLICATES, &why);
    if (*out) return KV_EXIT_DONE;
    kv_client_bad_file(file, &why);
    return KV_EXIT_REFUSED;
}

static void print_value(const json_t *v)
{
    if (v) kv_output_json(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
    else fputs("(none)", stdout);
}

/* A gate is found by its metric, everything else in a list by its place. */
static const json_t *counterpart(const json_t *have, const json_t *want, size_t i)
{
    const char *metric = json_string_value(json_object_get(want, "metric")), *other;
    for (size_t k = 0; metric && k < json_array_size(have); k++) {
        other = json_string_value(json_object_get(json_array_get(have, k), "metric"));
        if (other && !strcmp(metric, other)) return json_array_get(have, k);
    }
    return metric ? NULL : json_array_get(have, i);
}

/* Prints every member of want that differs in have, by its path; how many. What want does not name may be anything. */
static int differences(const char *path, const json_t *have, json_t *want)
{
    char at[256];
    const char *key;
    json_t *value;
    size_t i;
    int n = 0;
    if (json_is_object(want) && (json_is_object(have) || !have)) {
        json_object_foreach(want, key, value) {
            snprintf(at, sizeof at, "%.150s%s%.80s", path, *path ? "." : "", key);
            n += differences(at, json_object_get(have, key), value);
        }
        return n;
    }
    if (json_is_array(want) && json_is_array(have) && json_is_object(json_array_get(want, 0))) {
        json_array_foreach(want, i, value) {
            key = json_string_value(json_object_get(value, "metric"));
            if (key) snprintf(at, sizeof at, "%.150s[%.60s]", path, key);
            else snprintf(at, sizeof at, "%.150s[%zu]", path, i);
            n += differences(at, counterpart(have, value, i), value);
        }
        if (strcmp(path, "gates") && json_array_size(have) > json_array_size(want)) { /* gates the contract demands come by themselves */
            printf("  %s: %zu instead of %zu\n", path, json_array_size(want), json_array_size(have));
            n++;
        }
        return n;
    }
    if (json_is_number(want) && json_is_number(have) ? json_number_value(want) == json_number_value(have) : have && json_equal(have, want)) return 0;
    printf("  %s: ", path);
    print_value(have);
    fputs(" -> ", stdout);
    print_value(want);
    putchar('\n');
    return 1;
}

static int create(const struct kv_cli *cli, const struct options *o, int only_if_changed)
{
    json_t *manifest = NULL, *now = NULL, *made = NULL;
    int status = read_manifest(o->file, &manifest);
    if (status) return status;
    struct kv_reply r;
    if (only_if_changed && kv_client_call(cli, "GET", "/api/v1/rollouts", NULL, NULL, &r) == 0) {
        size_t i;
        json_t *row;
        json_array_foreach(json_object_get(r.body, "rollouts"), i, row)
            if (json_is_true(json_object_get(row, "live"))) now = row;
        int changes = now ? differences("", now, manifest) : 1;
        const char *id = json_string_value(json_object_get(now, "id"));
        int same = now && !changes;
        if (same) printf("unchanged: %s is live with this manifest\n", id);
        else if (now) printf("%d of %s differ; a manifest never changes, so this is a new candidate\n", changes, id);
        else printf("no rollout is live; this is a new candidate\n");
        same |= o->dry_run;
        json_decref(r.body);
        if (same) goto done;
    }
    status = kv_client_do(cli, "POST", "/api/v1/rollouts", manifest, NULL, &made);
    if (status) goto done;
    if (cli->json) kv_output_json(made, JSON_INDENT(2)), putchar('\n');
    else printf("created %s at %s\n", json_string_value(json_object_get(made, "id")), json_string_value(json_object_get(made, "stage")));
    json_decref(made);
done:
    json_decref(manifest);
    return status;
}

static void print_rollback(const json_t *b)
{
    printf("fenced: %s in %.0f us (no candidate token leaves after this)\n", json_is_true(json_object_get(b, "fenced")) ? "yes" : "no",
           json_number_value(json_object_get(b, "fence_us")));
    printf("durable: %s in %.0f us (survives a crash)\n", json_is_true(json_object_get(b, "durable")) ? "yes" : "no",
           json_number_value(json_object_get(b, "durable_us")));
    printf("resumed: %s, %.0f sequences recomputing\n", json_is_true(json_object_get(b, "resumed")) ? "yes" : "no",
           json_number_value(json_object_get(b, "recomputing")));
    printf("unsent: %.0f tokens published before the fence are still on their way\n", json_number_value(json_object_get(b, "unsent_tokens")));
}

static int act(const struct kv_cli *cli, const struct kv_verb *verb, const struct options *o)
{
    json_t *rollout = NULL, *answer = NULL, *body = NULL;
    int status = pick_rollout(cli, o->id, &rollout);
    if (status) return status;
    const char *id = json_string_value(json_object_get(rollout, "id"));
    char path[256], version[32];
    snprintf(path, sizeof path, "/api/v1/rollouts/%s/%s", id ? id : "", verb->name);
    body = o->number ? json_pack("{s:s, s:f}", "reason", o->reason ? o->reason : "", "fraction", o->fraction)
                     : json_pack("{s:s}", "reason", o->reason ? o->reason : "");
    int write = strcmp(verb->method, "GET");
    snprintf(version, sizeof version, "%" JSON_INTEGER_FORMAT, json_integer_value(json_object_get(rollout, "version")));
    status = kv_client_do(cli, verb->method, path, write ? body : NULL, write && strcmp(verb->name, "rollback") ? version : NULL, &answer);
    if (status) goto done;
    const json_t *back = json_object_get(answer, "rollback"), *now = json_object_get(answer, "rollout");
    if (!now) now = answer;
    if (cli->json) kv_output_json(answer, JSON_INDENT(2)), putchar('\n');
    else if (back) print_rollback(back);
    else if (!write) print_rollout(now);
    else printf("%s: %s %.4g %%%s\n", json_string_value(json_object_get(now, "id")), json_string_value(json_object_get(now, "stage")), 100 * json_number_value(json_object_get(now, "fraction")),
                json_is_true(json_object_get(now, "paused")) ? ", paused" : "");
    json_decref(answer);
done:
    json_decref(body);
    json_decref(rollout);
    return status;
}

/* Freezing is about every rollout, so it works without one. */
static int freeze(const struct kv_cli *cli, int frozen, const struct options *o)
{
    json_t *body = json_pack("{s:b, s:s}", "frozen", frozen, "reason", o->reason ? o->reason : ""), *v = NULL;
    int status = kv_client_do(cli, "POST", "/api/v1/freeze", body, NULL, &v);
    if (!status && cli->json) kv_output_json(v, JSON_INDENT(2)), putchar('\n');
    else if (!status) puts(frozen ? "releases are frozen; rollback stays possible" : "releases go on");
    json_decref(body);
    json_decref(v);
    return status;
}

static bool read_percent(const char *text, double *fraction)
{
    char *end;
    *fraction = strtod(text, &end) / 100;
    return end != text && (!*end || !strcmp(end, "%")) && *fraction >= 0 && *fraction <= 1;
}

int kv_cmd_rollout(int argc, char **argv, const struct kv_cli *cli)
{
    if (argc < 2) return usage();
    if (kv_rollout_is_evidence(argv[1])) return kv_rollout_evidence(argc, argv, cli);
    struct options o = {0};
    int is_ramp = !strcmp(argv[1], "ramp");
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "--reason") && i + 1 < argc) o.reason = argv[++i];
        else if (!strcmp(argv[i], "-f") && i + 1 < argc) o.file = argv[++i];
        else if (!strcmp(argv[i], "--dry-run")) o.dry_run = 1;
        else if (argv[i][0] == '-') return usage();
        else if (is_ramp && !o.number && argv[i][0] != 'r') o.number = argv[i];
        else if (!o.id) o.id = argv[i];
        else return usage();
    }
    if (!strcmp(argv[1], "list")) {
        json_t *v = NULL;
        int status = kv_client_do(cli, "GET", "/api/v1/rollouts", NULL, NULL, &v);
        if (status) return status;
        if (cli->json) kv_output_json(v, JSON_INDENT(2)), putchar('\n');
        else kv_table_print(kv_table_find("rollouts"), json_object_get(v, "rollouts"));
        json_decref(v);
        return KV_EXIT_DONE;
    }
    if (!strcmp(argv[1], "create")) return create(cli, &o, 0);
    if (!strcmp(argv[1], "apply")) return create(cli, &o, 1);
    if (!strcmp(argv[1], "freeze") || !strcmp(argv[1], "unfreeze")) return freeze(cli, argv[1][0] == 'f', &o);
    if (is_ramp && !o.number) return usage();
    if (is_ramp && !read_percent(o.number, &o.fraction)) return fprintf(stderr, "kvasir: ramp takes a share in percent, 0 to 100, not '%s'\n", o.number), KV_EXIT_USAGE;
    if (!strcmp(argv[1], "show") || !strcmp(argv[1], "history")) {
        json_t *r = NULL;
        int status = pick_rollout(cli, o.id, &r);
        if (status) return status;
        if (cli->json) kv_output_json(r, JSON_INDENT(2)), putchar('\n');
        else if (!strcmp(argv[1], "history")) kv_table_print(kv_table_find("transitions"), json_object_get(r, "transitions"));
        else print_rollout(r);
        json_decref(r);
        return KV_EXIT_DONE;
    }
    const struct kv_verb *verb = find_verb(argv[1]);
    return verb ? act(cli, verb, &o) : usage();
}
