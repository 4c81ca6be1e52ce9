/* api_extents.c — /v1/extents: the store that remote tiers of other daemons keep their sealed blocks in. */
#include "controller/http/api.h"

#include "controller/extents.h"

#include <string.h>
#include <unistd.h>

static enum kv_status store_of(struct kv_http_request *r, struct kv_extents **out, struct kv_error *err)
{
    *out = ((struct kv_app *)r->app)->extents;
    if (*out) return KV_OK;
    kv_fail(err, KV_UNSUPPORTED, "extents.serve", "this server keeps no extents for others");
    kv_hint(err, "start it with extents.serve");
    return KV_UNSUPPORTED;
}

json_t *kv_api_extents_json(struct kv_app *app)
{
    struct kv_extents_stats s;
    if (!app->extents) return json_null();
    kv_extents_stats(app->extents, &s);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "objects", (json_int_t)s.objects, "bytes", (json_int_t)s.bytes, "capacity_bytes", (json_int_t)s.capacity_bytes,
                     "hits", (json_int_t)s.hits, "misses", (json_int_t)s.misses, "puts", (json_int_t)s.puts, "erased", (json_int_t)s.erased, "evictions", (json_int_t)s.evictions,
                     "refused", (json_int_t)s.refused);
}

KV_HANDLER(kv_api_extents)
{
    struct kv_extents *e;
    enum kv_status s = store_of(r, &e, err);
    return s == KV_OK ? kv_http_reply_json(r, 200, kv_api_extents_json(r->app), err) : s;
}

KV_HANDLER(kv_api_extent_get)
{
    struct kv_extents *e;
    int fd;
    uint64_t n;
    enum kv_status s = store_of(r, &e, err);
    if (s == KV_OK && !strcmp(r->method, "HEAD")) {
        s = kv_extents_has(e, r->part[0], &n, err);
        return s == KV_OK ? kv_http_reply_text(r, 200, "application/octet-stream", "", 0, err) : s;
    }
    if (s == KV_OK) s = kv_extents_get(e, r->part[0], &fd, &n, err);
    return s == KV_OK ? kv_http_reply_file(r, 200, "application/octet-stream", fd, n, err) : s;
}

KV_HANDLER(kv_api_extent_put)
{
    struct kv_extents *e;
    enum kv_status s = store_of(r, &e, err);
    if (s == KV_OK) s = kv_extents_put(e, r->part[0], r->body, r->body_bytes, err);
    return s == KV_OK ? kv_http_reply_text(r, 204, "application/octet-stream", "", 0, err) : s;
}

KV_HANDLER(kv_api_extent_erase)
{
    struct kv_extents *e;
    enum kv_status s = store_of(r, &e, err);
    if (s == KV_OK) s = kv_extents_erase(e, r->part[0], err);
    return s == KV_OK ? kv_http_reply_text(r, 204, "application/octet-stream", "", 0, err) : s;
}
