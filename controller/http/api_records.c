/* api_records.c — what happened: receipts, failures, verification. */
#include "controller/http/api.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { DEFAULT_LIMIT = 100, MOST = 1000 };

/* "2026-01-31", "2026-01-31T10:20:30Z", or seconds since 1970. */
static enum kv_status read_time(const struct kv_http_request *r, const char *name, int64_t *us, struct kv_error *err)
{
    const char *text = kv_http_query(r, name);
    struct tm t = {0};
    char *end;
    *us = 0;
    if (!text || !*text) return KV_OK;
    double seconds = strtod(text, &end);
    if (!*end && seconds > 0 && seconds < 1e11) return *us = (int64_t)(seconds * 1e6), KV_OK;
    const char *rest = strptime(text, "%Y-%m-%d", &t);
    if (rest && *rest == 'T') rest = strptime(rest, "T%H:%M:%S", &t);
    if (!rest || (*rest && strcmp(rest, "Z"))) return kv_fail(err, KV_BAD_ARGUMENT, name, "%s is a time in UTC such as 2026-01-31T10:20:30Z, or seconds since 1970", name);
    *us = (int64_t)timegm(&t) * 1000000;
    return KV_OK;
}

static enum kv_status read_filter(const struct kv_http_request *r, struct kv_receipt_filter *f, struct kv_error *err)
{
    static const char *const keys[] = {"kind", "request", "rollout", "epoch", "reason", "session", "tenant", "trace", "policy", "chunk", "digest", "since", "until", "after", "before", "order", "limit"};
    int64_t after, before, limit, epoch;
    const char *request = kv_http_query(r, "request"), *rollout = kv_http_query(r, "rollout"), *order = kv_http_query(r, "order");
    enum kv_status st = kv_http_query_known(r, keys, sizeof keys / sizeof *keys, err);
    if (!st) st = kv_http_query_int(r, "after", 0, 0, INT64_MAX, &after, err);
    if (!st) st = kv_http_query_int(r, "before", 0, 0, INT64_MAX, &before, err);
    if (!st) st = kv_http_query_int(r, "epoch", 0, 0, INT64_MAX, &epoch, err);
    if (!st) st = kv_http_query_int(r, "limit", DEFAULT_LIMIT, 1, MOST, &limit, err);
    int64_t since, until;
    if (!st) st = read_time(r, "since", &since, err);
    if (!st) st = read_time(r, "until", &until, err);
    if (st) return st;
    *f = (struct kv_receipt_filter){.since_us = since, .until_us = until, .trace = kv_http_query(r, "trace"), .digest = kv_http_query(r, "digest"), .kind = kv_http_query(r, "kind"), .reason = kv_http_query(r, "reason"), .tenant = kv_http_query(r, "tenant"), .session = kv_http_query(r, "session"),
                                    .epoch = (uint64_t)epoch, .after = (uint64_t)after, .before = (uint64_t)before, .limit = (int32_t)limit, .oldest_first = order && !strcmp(order, "oldest")};
    const char **texts[] = {&f->kind, &f->reason, &f->tenant, &f->session, &f->digest, &f->trace};
    const char *policy = kv_http_query(r, "policy"), *chunk = kv_http_query(r, "chunk");
    if (!f->digest) f->digest = policy ? policy : chunk; /* both are named by their digest */
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (*texts[i] && !**texts[i]) *texts[i] = NULL; /* `kind=` is any kind */
    if (f->kind && kv_row_kind_from_name(f->kind) == KV_ROW_KINDS) return kv_fail(err, KV_BAD_ARGUMENT, "kind", "no kind of receipt is named '%.40s'", f->kind);
    if (f->reason && kv_status_from_name(f->reason) == KV_STATUS_COUNT) return kv_fail(err, KV_BAD_ARGUMENT, "reason", "no reason code is named '%.40s'", f->reason);
    if (request && *request && !kv_request_id_parse(request, &f->request)) return kv_fail(err, KV_BAD_ARGUMENT, "request", "request ids look like q_000000000012");
    if (rollout && *rollout && !kv_rollout_id_parse(rollout, &f->rollout)) return kv_fail(err, KV_BAD_ARGUMENT, "rollout", "rollout ids look like r_000003");
    return KV_OK;
}

static enum kv_status reply_rows(struct kv_http_request *r, struct kv_receipt_filter *f, const char *name, json_t *(*to_json)(const struct kv_receipt_row *), struct kv_error *err)
{
    struct kv_receipt_row *rows = calloc((size_t)f->limit, sizeof *rows);
    int32_t n = 0;
    uint64_t next = 0;
    enum kv_status st = rows ? kv_store_find(((struct kv_app *)r->app)->store, f, rows, &n, &next, err) : kv_fail(err, KV_OUT_OF_MEMORY, name, "no memory for the rows");
    json_t *list = json_array();
    for (int32_t i = 0; i < n && !st; i++) json_array_append_new(list, to_json(&rows[i]));
    free(rows);
    if (st) json_decref(list);
    return st ? st : kv_http_reply_json(r, 200, json_pack("{s:o, s:o}", name, list, "next", next ? json_integer((json_int_t)next) : json_null()), err);
}

KV_HANDLER(kv_api_receipts)
{
    struct kv_receipt_filter f;
    enum kv_status st = read_filter(r, &f, err);
    if (!st && !strcmp(r->path, "/api/v1/audit")) f.kind = kv_row_kind_name(KV_ROW_AUDIT);
    return st ? st : reply_rows(r, &f, "receipts", kv_api_receipt_json, err);
}

KV_HANDLER(kv_api_failures)
{
    struct kv_receipt_filter f;
    enum kv_status st = read_filter(r, &f, err);
    f.only_failures = true;
    return st ? st : reply_rows(r, &f, "failures", kv_api_failure_json, err);
}

enum kv_status kv_api_receipt_find(const struct kv_http_request *r, struct kv_receipt_row *row, struct kv_error *err)
{
    char *end;
    uint64_t id = strtoull(r->part[0], &end, 10);
    if (*r->part[0] < '0' || *r->part[0] > '9' || *end) return kv_fail(err, KV_NOT_FOUND, "receipt", "no receipt is named '%s'; ids are numbers", r->part[0]);
    return kv_store_get(((struct kv_app *)r->app)->store, id, row, err);
}

/* The last heads before the fault; all of them are at /flight. */
static void add_flight(json_t *o, struct kv_app *app, const struct kv_receipt_row *row)
{
    enum { SHOWN = 32 };
    struct kv_flight_copy *c = malloc(sizeof *c);
    int32_t from = c && !kv_api_flight_of(app, row, c, NULL) ? (c->n > SHOWN ? c->n - SHOWN : 0) : -1;
    if (from >= 0) json_object_set_new(o, "flight", kv_api_flight_json(c->record + from, c->n - from));
    free(c);
}

KV_HANDLER(kv_api_receipt)
{
    struct kv_app *app = r->app;
    struct kv_receipt_row row;
    struct kv_rests_on on[KV_MAX_RESTS_ON];
    int32_t n = 0;
    enum kv_status st = kv_api_receipt_find(r, &row, err);
    if (!st) st = kv_store_rests_on(app->store, &row, on, &n, err);
    if (st) return st;
    json_t *o = kv_api_receipt_json(&row), *list = json_array();
    for (int32_t i = 0; i < n; i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:o}", "kind", on[i].kind, "id", on[i].id, "title", kv_text_json(on[i].title, strlen(on[i].title))));
    json_object_set_new(o, "rests_on", list);
    struct kv_request_root root;
    if (!kv_store_request_root(app->store, &row, &root, err) && root.receipt)
        json_object_set_new(o, "request_root", json_pack("{s:o, s:I, s:I}", "root", kv_api_hex_json(root.root, 32), "leaves", (json_int_t)root.leaves, "receipt", (json_int_t)root.receipt));
    add_flight(o, app, &row);
    return kv_http_reply_json(r, 200, o, err);
}

KV_HANDLER(kv_api_verify)
{
    struct kv_verify_result v;
    enum kv_status st = kv_store_verify(((struct kv_app *)r->app)->store, &v, err);
    if (st) return st;
    json_t *o = v.verified ? json_pack("{s:b, s:I, s:I, s:I, s:I, s:o}", "verified", 1, "rows", (json_int_t)v.rows, "signed_rows", (json_int_t)v.signed_rows, "roots", (json_int_t)v.roots, "sealed", (json_int_t)v.sealed, "head", kv_api_hex_json(v.head, 32))
                           : json_pack("{s:b, s:I, s:s, s:o}", "verified", 0, "at", (json_int_t)v.at, "reason", kv_status_name(v.reason), "detail", kv_text_json(v.detail, strlen(v.detail)));
    return kv_http_reply_json(r, 200, o, err);
}

static void backup_told(void *task, uint64_t done, uint64_t total)
{
    kv_job_at(task, done, total);
}

/* Into the state folder's backups, so that a caller chooses no path of the server's. */
KV_HANDLER(kv_api_backup)
{
    struct kv_app *app = r->app;
    char path[1024], name[64];
    time_t now = time(NULL);
    struct tm t;
    gmtime_r(&now, &t);
    strftime(name, sizeof name, "%Y%m%dT%H%M%SZ", &t);
    snprintf(path, sizeof path, "%s/backups", kv_store_dir(app->store));
    if (mkdir(path, 0700) && errno != EEXIST) return kv_fail(err, KV_IO_ERROR, path, "the folder of backups cannot be made: %s", strerror(errno));
    snprintf(path, sizeof path, "%s/backups/%s", kv_store_dir(app->store), name);
    struct kv_job *task = kv_job_begin(&app->progress, KV_JOB_BACKUP, name, "pages");
    enum kv_status st = kv_store_backup(app->store, path, backup_told, task, err);
    kv_job_end(task);
    return st ? st : kv_http_reply_json(r, 201, json_pack("{s:o}", "path", kv_text_json(path, strlen(path))), err);
}
