/* cmd_bundle.c — kvasir bundle: what somebody else needs to understand a problem, as one .tar.gz. Nothing secret is in any of the answers it asks for. */
#include "console/client.h"
#include "console/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

enum { MAX_METRICS_BYTES = 16 << 20 };

static const struct {
    const char *file, *path;
} parts[] = {
    {"status.json", "/api/v1/status"},     {"rollouts.json", "/api/v1/rollouts"}, {"policies.json", "/api/v1/policies"}, {"failures.json", "/api/v1/failures?limit=1000"},
    {"receipts.json", "/api/v1/receipts?limit=1000"}, {"audit.json", "/api/v1/audit?limit=1000"}, {"tiers.json", "/api/v1/tiers"},   {"pipelines.json", "/api/v1/pipelines"},
    {"history.json", "/api/v1/metrics/history?seconds=900"}, {"verify.json", "/api/v1/receipts/verify"}, {"openapi.json", "/api/v1/openapi.json"},
};

/* One file of a POSIX tar archive. */
static bool add(gzFile out, const char *name, const char *data, size_t n)
{
    char head[512] = {0}, zero[512] = {0};
    unsigned sum = 0;
    snprintf(head, 100, "kvasir-bundle/%s", name);
    snprintf(head + 100, 8, "%07o", 0600u);
    snprintf(head + 108, 8, "%07o", 0u);
    snprintf(head + 116, 8, "%07o", 0u);
    snprintf(head + 124, 12, "%011llo", (unsigned long long)n);
    snprintf(head + 136, 12, "%011llo", (unsigned long long)time(NULL));
    memset(head + 148, ' ', 8);
    head[156] = '0';
    memcpy(head + 257, "ustar\00000", 8);
    for (size_t i = 0; i < sizeof head; i++) sum += (unsigned char)head[i];
    snprintf(head + 148, 8, "%06o", sum);
    size_t pad = (512 - n % 512) % 512;
    return gzwrite(out, head, 512) == 512 && (n == 0 || gzwrite(out, data, (unsigned)n) == (int)n) && (pad == 0 || gzwrite(out, zero, (unsigned)pad) == (int)pad);
}

static bool add_metrics(const struct kv_cli *cli, gzFile out)
{
    char url[512], token[256];
    struct curl_slist *headers = NULL;
    struct kv_answer text = {.most = MAX_METRICS_BYTES};
    CURL *h = curl_easy_init();
    if (!h || kv_client_resolve(cli, url, sizeof url, token, sizeof token)) return false;
    kv_client_prepare(h, url, token, "GET", "/metrics", NULL, &headers);
    curl_easy_setopt(h, CURLOPT_TIMEOUT, 30L);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, kv_client_collect);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, &text);
    CURLcode rc = curl_easy_perform(h);
    const char *why = curl_easy_strerror(rc);
    bool ok = rc == CURLE_OK ? add(out, "metrics.txt", text.data ? text.data : "", text.n) : add(out, "metrics.txt", why, strlen(why));
    curl_slist_free_all(headers);
    curl_easy_cleanup(h);
    free(text.data);
    return ok;
}

/* What a part answers, or the sentence why it does not: a bundle of a sick server is still worth having. */
static int add_part(const struct kv_cli *cli, gzFile out, const char *file, const char *path)
{
    struct kv_reply r;
    int status = kv_client_call(cli, "GET", path, NULL, NULL, &r);
    if (status == KV_EXIT_UNREACHABLE) return fprintf(stderr, "kvasir: %s\n", r.error), status;
    char *text = r.body ? json_dumps(r.body, JSON_INDENT(1)) : NULL;
    json_decref(r.body);
    const char *data = text ? text : r.error;
    bool ok = add(out, file, data, strlen(data));
    free(text);
    return ok ? KV_EXIT_DONE : KV_EXIT_REFUSED;
}

static int cannot(const char *name)
{
    fprintf(stderr, "kvasir: IO_ERROR: %s cannot be written: %s\n", name, strerror(errno));
    return KV_EXIT_REFUSED;
}

int kv_cmd_bundle(int argc, char **argv, const struct kv_cli *cli)
{
    char zero[1024] = {0};
    const char *name = argc == 3 ? argv[2] : "kvasir-bundle.tar.gz";
    if (argc != 1 && (argc != 3 || strcmp(argv[1], "--out"))) return fprintf(stderr, "usage: kvasir bundle [--out FILE.tar.gz]\n"), KV_EXIT_USAGE;
    struct kv_output file;
    if (!kv_output_open(&file, name)) return cannot(name);
    gzFile out = gzdopen(dup(fileno(file.f)), "wb");
    int status = out ? KV_EXIT_DONE : KV_EXIT_REFUSED;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !status; i++) status = add_part(cli, out, parts[i].file, parts[i].path);
    if (!status && (!add_metrics(cli, out) || gzwrite(out, zero, sizeof zero) != (int)sizeof zero)) status = KV_EXIT_REFUSED;
    if (out && gzclose(out) != Z_OK && !status) status = KV_EXIT_REFUSED;
    int why = errno;
    if (!kv_output_close(&file, !status)) status = KV_EXIT_REFUSED, why = errno;
    errno = why;
    if (status == KV_EXIT_REFUSED) cannot(name);
    if (!status) printf("%s holds status, rollouts, policies, failures, receipts, audit, metrics and the state of the receipt chain\n", name);
    return status;
}
