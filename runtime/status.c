/* status.c — names and meanings of the reason codes, made from status.def. */
#include "runtime/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *class, *meaning;
    int http;
} rows[] = {
#define KV_STATUS(name, class, http, meaning) {#name, #class, meaning, http},
#include "runtime/status.def"
#undef KV_STATUS
};

const char *kv_status_name(enum kv_status s)
{
    return (unsigned)s < KV_STATUS_COUNT ? rows[s].name : "INTERNAL";
}

const char *kv_status_class(enum kv_status s)
{
    return (unsigned)s < KV_STATUS_COUNT ? rows[s].class : "BUG";
}

const char *kv_status_meaning(enum kv_status s)
{
    return (unsigned)s < KV_STATUS_COUNT ? rows[s].meaning : "an unknown reason code";
}

int kv_status_http(enum kv_status s)
{
    return (unsigned)s < KV_STATUS_COUNT ? rows[s].http : 500;
}

enum kv_status kv_status_from_name(const char *name)
{
    for (int i = 0; i < KV_STATUS_COUNT; i++)
        if (!strcmp(rows[i].name, name)) return (enum kv_status)i;
    return KV_STATUS_COUNT;
}

enum kv_status kv_fail(struct kv_error *err, enum kv_status s, const char *where, const char *fmt, ...)
{
    if (!err) return s;
    err->status = s;
    snprintf(err->where, sizeof err->where, "%s", where ? where : "");
    err->hint[0] = 0;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->message, sizeof err->message, fmt, ap);
    va_end(ap);
    return s;
}

void kv_hint(struct kv_error *err, const char *fmt, ...)
{
    if (!err) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->hint, sizeof err->hint, fmt, ap);
    va_end(ap);
}
