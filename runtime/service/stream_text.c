/* stream_text.c — see stream_text.h. */
#include "runtime/service/stream_text.h"

#include <string.h>

enum kv_status kv_text_init(struct kv_text *t, const char *const *stops, struct kv_error *err)
{
    t->n_stops = t->n = 0;
    t->stopped = false;
    for (int i = 0; i < KV_MAX_STOPS && stops[i]; i++) {
        size_t n = strlen(stops[i]);
        if (n == 0 || n >= KV_MAX_STOP_BYTES) return kv_fail(err, KV_BAD_ARGUMENT, "stop", "a stop string needs 1 to %d bytes", KV_MAX_STOP_BYTES - 1);
        memcpy(t->stop[t->n_stops++], stops[i], n + 1);
    }
    return KV_OK;
}

static const char *find(const char *hay, size_t n, const char *needle, size_t m)
{
    return m <= n ? memmem(hay, n, needle, m) : NULL;
}

bool kv_text_add(struct kv_text *t, const char *bytes, size_t n)
{
    if (t->stopped) return true;
    size_t room = sizeof t->held - (size_t)t->n;
    if (n > room) n = room;
    memcpy(t->held + t->n, bytes, n);
    t->n += (int32_t)n;
    const char *first = NULL;
    for (int i = 0; i < t->n_stops; i++) {
        const char *at = find(t->held, (size_t)t->n, t->stop[i], strlen(t->stop[i]));
        if (at && (!first || at < first)) first = at;
    }
    if (!first) return false;
    t->n = (int32_t)(first - t->held);
    return t->stopped = true;
}

/* Bytes of the character that begins with lead; 1 for what cannot begin one. */
static int32_t character_bytes(unsigned char lead)
{
    return lead >= 0xf0 && lead < 0xf8 ? 4 : lead >= 0xe0 ? lead < 0xf0 ? 3 : 1 : lead >= 0xc2 ? 2 : 1;
}

/* Length of the whole characters in s[0, n): the rest is the beginning of one more. */
static int32_t whole_characters(const char *s, int32_t n)
{
    int32_t at = 0;
    while (at < n) {
        int32_t size = character_bytes((unsigned char)s[at]), have = 1;
        while (have < size && at + have < n && ((unsigned char)s[at + have] & 0xc0) == 0x80) have++;
        if (have < size && at + have == n) break;
        at += have;
    }
    return at;
}

/* Longest suffix of the held bytes that begins a stop string. */
static int32_t stop_prefix(const struct kv_text *t)
{
    int32_t longest = 0;
    for (int i = 0; i < t->n_stops; i++) {
        int32_t m = (int32_t)strlen(t->stop[i]) - 1;
        for (int32_t k = m < t->n ? m : t->n; k > longest; k--)
            if (!memcmp(t->held + t->n - k, t->stop[i], (size_t)k)) longest = k;
    }
    return longest;
}

/* Copies s, each byte that belongs to no valid character replaced; returns the bytes written, at most cap, and those read. */
static int32_t copy_valid(const char *s, int32_t n, char *out, int32_t cap, int32_t *read)
{
    int32_t at = 0, to = 0;
    while (at < n) {
        unsigned char c = (unsigned char)s[at];
        int32_t size = character_bytes(c), have = 1;
        while (have < size && at + have < n && ((unsigned char)s[at + have] & 0xc0) == 0x80) have++;
        unsigned char second = size > 1 && have > 1 ? (unsigned char)s[at + 1] : 0x90;
        bool valid = have == size && (c < 0x80 || size > 1) && c < 0xf5 && !(c == 0xe0 && second < 0xa0) && !(c == 0xed && second > 0x9f) &&
                     !(c == 0xf0 && second < 0x90) && !(c == 0xf4 && second > 0x8f);
        int32_t bytes = valid ? size : 3;
        if (to + bytes > cap) break;
        memcpy(out + to, valid ? s + at : "\xef\xbf\xbd", (size_t)bytes);
        to += bytes;
        at += have;
    }
    *read = at;
    return to;
}

int32_t kv_text_take(struct kv_text *t, bool flush, char *out, int32_t cap)
{
    bool ended = flush || t->stopped;
    int32_t read, n = ended ? t->n : whole_characters(t->held, t->n - stop_prefix(t));
    int32_t written = copy_valid(t->held, n, out, cap, &read);
    memmove(t->held, t->held + read, (size_t)(t->n - read));
    t->n -= read;
    return written;
}
