/* trace_context.c — see trace_context.h. */
#include "controller/http/trace_context.h"

#include <string.h>

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; /* capitals are not valid here */
}

static bool read_hex(const char *text, int n, uint8_t *out)
{
    uint8_t any = 0;
    for (int i = 0; i < n; i++) {
        int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);
        if (low < 0) return false;
        out[i] = (uint8_t)(high << 4 | low);
        any |= out[i];
    }
    return any != 0;
}

bool kv_traceparent_parse(const char *text, uint8_t out[24])
{
    uint8_t version, flags, ids[24];
    memset(out, 0, 24);
    size_t n = text ? strnlen(text, 256) : 0;
    if (n < 55 || text[2] != '-' || text[35] != '-' || text[52] != '-') return false;
    bool known = !strncmp(text, "00", 2);
    if (!known && (!read_hex(text, 1, &version) || version == 0xff)) return false;
    if (known ? n != 55 : n > 55 && text[55] != '-') return false;
    if (!read_hex(text + 3, 16, ids) || !read_hex(text + 36, 8, ids + 16)) return false;
    if (strncmp(text + 53, "00", 2) && !read_hex(text + 53, 1, &flags)) return false;
    memcpy(out, ids, 24);
    return true;
}
