/* http_query.c — what a request says of itself beside its route: the part behind the question mark, and the address it came from. */
#include "controller/http/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

void kv_http_address_of(const struct kv_http_request *r, char *out, size_t cap)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    snprintf(out, cap, "unknown");
    if (info && info->client_addr) getnameinfo(info->client_addr, info->client_addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in), out, (socklen_t)cap, NULL, 0, NI_NUMERICHOST);
}

const char *kv_http_query(const struct kv_http_request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_GET_ARGUMENT_KIND, name);
}

enum kv_status kv_http_query_int(const struct kv_http_request *r, const char *name, int64_t def, int64_t min, int64_t max, int64_t *out, struct kv_error *err)
{
    const char *text = kv_http_query(r, name);
    char *end;
    *out = def;
    if (!text) return KV_OK;
    errno = 0;
    *out = strtoll(text, &end, 10);
    if (errno || end == text || *end || *out < min || *out > max)
        return kv_fail(err, KV_BAD_ARGUMENT, name, "%s is a whole number from %lld to %lld, not '%.40s'", name, (long long)min, (long long)max, text);
    return KV_OK;
}

struct known {
    const char *const *names;
    size_t n;
    const char *stray; /* the first key that is none of them */
};

static enum MHD_Result look_up(void *ctx, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct known *k = ctx;
    (void)kind, (void)value;
    for (size_t i = 0; i < k->n; i++)
        if (!strcmp(key, k->names[i])) return MHD_YES;
    k->stray = key;
    return MHD_NO;
}

enum kv_status kv_http_query_known(const struct kv_http_request *r, const char *const *names, size_t n, struct kv_error *err)
{
    struct known k = {names, n, NULL};
    char all[200] = "";
    size_t used = 0;
    MHD_get_connection_values(r->connection, MHD_GET_ARGUMENT_KIND, look_up, &k);
    if (!k.stray) return KV_OK;
    for (size_t i = 0; i < n && used < sizeof all; i++) used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", names[i]);
    kv_fail(err, KV_UNKNOWN_KEY, k.stray, "%.120s takes no '%.60s'", r->path, k.stray);
    const char *near = kv_config_nearest(k.stray, names, n);
    if (near) kv_hint(err, "did you mean '%s'?", near);
    else if (n) kv_hint(err, "it takes %s", all);
    else kv_hint(err, "leave it out: there is nothing to choose by");
    return KV_UNKNOWN_KEY;
}
