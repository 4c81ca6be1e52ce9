/* digest_body.h — the two functions of digest.h, compiled once for each set of vectors: xxh3 and copy_xxh3, for the file that includes it. */
#define XXH_INLINE_ALL
#include <string.h>
#include <xxhash.h>

enum { PIECE = 4096 }; /* hashed and copied in turn: smaller ones cost calls, larger ones leave the first-level cache */

static uint64_t xxh3(const void *p, size_t n)
{
    return XXH3_64bits(p, n);
}

static uint64_t copy_xxh3(void *restrict dst, const void *restrict src, size_t n)
{
    XXH3_state_t state;
    uint8_t *to = dst;
    const uint8_t *from = src;
    (void)XXH3_64bits_reset(&state);
    for (size_t at = 0; at < n; at += PIECE) {
        size_t piece = n - at < PIECE ? n - at : PIECE;
        (void)XXH3_64bits_update(&state, from + at, piece);
        memcpy(to + at, from + at, piece);
    }
    return XXH3_64bits_digest(&state);
}
