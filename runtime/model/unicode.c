/* unicode.c — strict UTF-8 and character classes from a generated table. */
#include "runtime/model/unicode.h"

#include "runtime/model/unicode_table.h"

enum kv_char_class kv_char_class(uint32_t code_point)
{
    size_t low = 0, high = sizeof class_starts / sizeof *class_starts;
    while (high - low > 1) {
        size_t mid = (low + high) / 2;
        if (class_starts[mid] >> 3 <= code_point) low = mid;
        else high = mid;
    }
    return (enum kv_char_class)(class_starts[low] & 7);
}

uint32_t kv_utf8_decode(const char *text, size_t len, size_t *used)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t n = p[0] < 0x80 ? 1 : p[0] < 0xC2 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : p[0] < 0xF5 ? 4 : 0;
    *used = 1;
    if (n == 1) return p[0];
    if (n == 0 || n > len) return 0xFFFD;
    uint32_t c = p[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0xFFFD;
        c = c << 6 | (p[i] & 0x3F);
    }
    if ((n == 3 && c < 0x800) || (n == 4 && (c < 0x10000 || c > 0x10FFFF)) || (c >= 0xD800 && c < 0xE000)) return 0xFFFD;
    *used = n;
    return c;
}
