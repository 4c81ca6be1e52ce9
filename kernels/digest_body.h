/* digest_body.h — the two functions of digest.h, compiled once for each set of vectors: xxh3 and copy_xxh3, for the file that includes it. */
#define XXH_INLINE_ALL
#include <string.h>
#include <xxhash.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

/* PIECE: hashed and copied in turn: smaller ones cost calls, larger ones leave the first-level cache. A large copy is on its way to lie somewhere: past
 * the caches it spares them, and memory the reading of what it overwrites. */
enum { PIECE = 4096, STREAM_PIECE = 2048, STREAM_MIN = 128 << 10, LINE = 64 };

static uint64_t xxh3(const void *p, size_t n)
{
    return XXH3_64bits(p, n);
}

/* Whole lines, both ends of dst on their borders. */
static inline void stream(uint8_t *restrict dst, const uint8_t *restrict src, size_t n)
{
#if defined(__AVX512F__)
    for (size_t at = 0; at < n; at += LINE) _mm512_stream_si512((void *)(dst + at), _mm512_loadu_si512(src + at));
#elif defined(__AVX2__)
    for (size_t at = 0; at < n; at += LINE / 2) _mm256_stream_si256((void *)(dst + at), _mm256_loadu_si256((const void *)(src + at)));
#elif defined(__x86_64__)
    for (size_t at = 0; at < n; at += LINE / 4) _mm_stream_si128((void *)(dst + at), _mm_loadu_si128((const void *)(src + at)));
#else
    memcpy(dst, src, n);
#endif
}

static uint64_t copy_xxh3(void *restrict dst, const void *restrict src, size_t n)
{
    XXH3_state_t state;
    uint8_t *to = dst;
    const uint8_t *from = src;
    (void)XXH3_64bits_reset(&state);
    size_t at = 0;
    if (n >= STREAM_MIN && (uintptr_t)dst % LINE == 0) {
        for (; n - at >= STREAM_PIECE; at += STREAM_PIECE) {
            (void)XXH3_64bits_update(&state, from + at, STREAM_PIECE);
            stream(to + at, from + at, STREAM_PIECE);
        }
#ifdef __x86_64__
        _mm_sfence(); /* whoever is told that the copy is done sees it */
#endif
    }
    for (size_t piece; at < n; at += piece) {
        piece = n - at < PIECE ? n - at : PIECE;
        (void)XXH3_64bits_update(&state, from + at, piece);
        memcpy(to + at, from + at, piece);
    }
    return XXH3_64bits_digest(&state);
}
