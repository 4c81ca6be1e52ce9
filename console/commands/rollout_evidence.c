/* rollout_evidence.c — gates tried without effect, samples downloaded, drills run. */
#include "console/commands/rollout_evidence.h"

#include "console/client.h"
#include "console/output.h"
#include "console/tables.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    const char *id, *name, *file, *metric, *limit, *out;
};

static int usage(void)
{
    fprintf(stderr, "usage: kvasir rollout gates [ID] [--dry-run FILE.json]\n"
                    "       kvasir rollout samples [ID] [--metric NAME] [--limit N] [--out FILE.jsonl]\n"
                    "       kvasir rollout drill [NAME] [ID]\n"
                    "FILE.json is a list of {\"metric\", \"threshold\", \"min_n\"}, or a rollout's file with its gates; without a\n"
                    "NAME the drills and their last results are listed; ID is the live rollout when left out\n");
    return KV_EXIT_USAGE;
}

bool kv_rollout_is_evidence(const char *verb)
{
    return !strcmp(verb, "gates") || !strcmp(verb, "samples") || !strcmp(verb, "drill");
}

static int show_json(json_t *v)
{
    kv_output_json(v, JSON_INDENT(2));
    putchar('\n');
    json_decref(v);
    return KV_EXIT_DONE;
}

/* The id itself, or that of the live or newest rollout. */
static int rollout_id(const struct kv_cli *cli, const char *id, char *out, size_t cap)
{
    json_t *v = NULL, *row, *best = NULL;
    size_t i;
    if (id) return snprintf(out, cap, "%.63s", id), KV_EXIT_DONE;
    int status = kv_client_do(cli, "GET", "/api/v1/rollouts", NULL, NULL, &v);
    if (status) return status;
    json_array_foreach(json_object_get(v, "rollouts"), i, row)
        if (!best || (json_is_true(json_object_get(row, "live")) && !json_is_true(json_object_get(best, "live")))) best = row;
    if (best) snprintf(out, cap, "%s", json_string_value(json_object_get(best, "id")));
    else fprintf(stderr, "kvasir: NOT_FOUND: there is no rollout yet; create one with: kvasir rollout create -f FILE.json\n");
    json_decref(v);
    return best ? KV_EXIT_DONE : KV_EXIT_REFUSED;
}

/* ---------------------------------------------------------------- gates */

static int read_gates(const char *file, json_t **out)
{
    json_error_t why;
    json_t *v = json_load_file(file, JSON_REJECT_DUPLICATES, &why), *gates = json_is_object(v) ? json_object_get(v, "gates") : v;
    if (json_is_array(gates)) *out = json_incref(gates);
    else if (!v) kv_client_bad_file(file, &why);
    else fprintf(stderr, "kvasir: BAD_ARGUMENT: %s holds no list of gates\n", file);
    json_decref(v);
    return *out ? KV_EXIT_DONE : KV_EXIT_REFUSED;
}

static int gates(const struct kv_cli *cli, const struct options *o)
{
    char id[64], path[128];
    json_t *v = NULL, *list = NULL;
    int status = rollout_id(cli, o->id, id, sizeof id);
    if (!status && o->file) status = read_gates(o->file, &list);
    if (status) return status;
    snprintf(path, sizeof path, "/api/v1/rollouts/%s", id);
    json_t *body = list ? json_pack("{s:s, s:o}", "rollout", id, "gates", list) : NULL;
    status = body ? kv_client_do(cli, "POST", "/api/v1/gates/dry-run", body, NULL, &v) : kv_client_do(cli, "GET", path, NULL, NULL, &v);
    json_decref(body);
    if (status) return status;
    if (cli->json) return show_json(v);
    kv_table_print(kv_table_find("gates"), json_object_get(v, "gates"));
    const char *decided = json_string_value(json_object_get(v, "decided_by"));
    if (o->file) printf("\ndry run on %s at %s, %.0f samples%s: %s%s%s; nothing was moved\n", id, json_string_value(json_object_get(v, "stage")), json_number_value(json_object_get(v, "samples")),
                        json_is_true(json_object_get(v, "complete")) ? "" : " (not all of them)", json_string_value(json_object_get(v, "verdict")), decided ? " by " : "", decided ? decided : "");
    json_decref(v);
    return KV_EXIT_DONE;
}

/* ---------------------------------------------------------------- samples */

static size_t write_out(char *p, size_t size, size_t n, void *ctx)
{
    return fwrite(p, size, n, ctx);
}

static int samples(const struct kv_cli *cli, const struct options *o)
{
    char id[64], path[256], url[512], token[256];
    int status = rollout_id(cli, o->id, id, sizeof id);
    if (!status) status = kv_client_resolve(cli, url, sizeof url, token, sizeof token);
    if (status) return status;
    snprintf(path, sizeof path, "/api/v1/rollouts/%s/samples?metric=%.40s&limit=%.12s", id, o->metric ? o->metric : "", o->limit ? o->limit : "65536");
    char first[4096] = "";
    struct kv_output file = {.f = stdout};
    if (o->out && !kv_output_open(&file, o->out)) return fprintf(stderr, "kvasir: %s cannot be written: %s\n", o->out, strerror(errno)), KV_EXIT_REFUSED;
    FILE *refusal = fmemopen(first, sizeof first - 1, "wb");
    CURL *h = curl_easy_init();
    struct curl_slist *headers = NULL;
    long http = 0;
    kv_client_prepare(h, url, token, "GET", path, NULL, &headers);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, write_out);
    curl_easy_setopt(h, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, file.f);
    CURLcode rc = curl_easy_perform(h);
    if (rc == CURLE_HTTP_RETURNED_ERROR) { /* once more for the sentence that says why */
        curl_easy_setopt(h, CURLOPT_FAILONERROR, 0L);
        curl_easy_setopt(h, CURLOPT_WRITEDATA, refusal);
        curl_easy_perform(h);
        curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &http);
        fflush(refusal);
        char text[640];
        json_t *v = json_loads(first, 0, NULL);
        kv_client_error_text(v, http, text, sizeof text);
        fprintf(stderr, "kvasir: %s\n", text);
        json_decref(v);
    } else if (rc != CURLE_OK) fprintf(stderr, "kvasir: the samples were not read to their end: %s\n", curl_easy_strerror(rc));
    curl_slist_free_all(headers);
    curl_easy_cleanup(h);
    fclose(refusal);
    bool written = o->out ? kv_output_close(&file, rc == CURLE_OK) : fflush(stdout) == 0;
    if (rc == CURLE_OK && !written) fprintf(stderr, "kvasir: the samples cannot be written: %s\n", strerror(errno));
    return rc == CURLE_OK && written ? KV_EXIT_DONE : rc == CURLE_COULDNT_CONNECT ? KV_EXIT_UNREACHABLE : KV_EXIT_REFUSED;
}

/* ---------------------------------------------------------------- drills */

static int drill(const struct kv_cli *cli, const struct options *o)
{
    char id[64], path[128];
    json_t *v = NULL;
    int status = rollout_id(cli, o->id, id, sizeof id);
    if (status) return status;
    if (!o->name) {
        snprintf(path, sizeof path, "/api/v1/drills?rollout=%s", id);
        status = kv_client_do(cli, "GET", path, NULL, NULL, &v);
        if (status || cli->json) return status ? status : show_json(v);
        kv_table_print(kv_table_find("drills"), json_object_get(v, "drills"));
        json_decref(v);
        return KV_EXIT_DONE;
    }
    json_t *body = json_pack("{s:s}", "rollout", id);
    snprintf(path, sizeof path, "/api/v1/drills/%.40s", o->name);
    status = kv_client_do(cli, "POST", path, body, NULL, &v);
    json_decref(body);
    if (status) return status;
    const char *state = json_string_value(json_object_get(v, "state"));
    bool passed = state && !strcmp(state, "PASSED");
    if (cli->json) kv_output_json(v, JSON_INDENT(2)), putchar('\n');
    else printf("%s: %s, %.0f checks, %.0f violations in %.1f s, receipt %.0f\n%s\n", o->name, state, json_number_value(json_object_get(v, "checks")),
                json_number_value(json_object_get(v, "violations")), json_number_value(json_object_get(v, "seconds")), json_number_value(json_object_get(v, "receipt")),
                json_string_value(json_object_get(v, "detail")));
    json_decref(v);
    return passed ? KV_EXIT_DONE : KV_EXIT_REFUSED;
}

int kv_rollout_evidence(int argc, char **argv, const struct kv_cli *cli)
{
    struct options o = {0};
    bool is_drill = !strcmp(argv[1], "drill"), is_samples = !strcmp(argv[1], "samples");
    for (int i = 2; i < argc; i++) {
        const char **value = !is_drill && !is_samples && !strcmp(argv[i], "--dry-run") ? &o.file
                           : is_samples && !strcmp(argv[i], "--metric") ? &o.metric
                           : is_samples && !strcmp(argv[i], "--limit")  ? &o.limit
                           : is_samples && !strcmp(argv[i], "--out")    ? &o.out : NULL;
        if (value && i + 1 < argc) *value = argv[++i];
        else if (argv[i][0] == '-') return usage();
        else if (is_drill && !o.name && strncmp(argv[i], "r_", 2)) o.name = argv[i];
        else if (!o.id) o.id = argv[i];
        else return usage();
    }
    return is_drill ? drill(cli, &o) : is_samples ? samples(cli, &o) : gates(cli, &o);
}
