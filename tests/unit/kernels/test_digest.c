/* test_digest.c — checksums with any vectors are the library's, and copies are copies. */
#include "kernels/digest.h"
#include "kernels/kernels.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

Suite *suite_digest(void);

typedef uint64_t copier(void *restrict dst, const void *restrict src, size_t n);

/* To borders of lines, where large copies go past the caches, and beside them; nothing beyond is touched. */
static void copies(copier *copy, uint8_t *to, size_t room, const uint8_t *from, size_t n, uint64_t want)
{
    for (size_t beside = 0; beside < 2; beside++) {
        memset(to, 0x5a, room);
        ck_assert_uint_eq(copy(to + 64 + beside, from, n), want);
        ck_assert(!memcmp(to + 64 + beside, from, n) && to[63 + beside] == 0x5a && to[64 + beside + n] == 0x5a);
    }
}

START_TEST(every_set_of_vectors_agrees)
{
    enum { MOST = 300000 };
    static const size_t sizes[] = {0, 1, 3, 16, 17, 128, 129, 240, 241, 255, 256, 1024, 1025, 4095, 4096, 4097, 8192 + 240, 12288, 65536, 131072, 262144, 262144 + 2048 + 5, MOST - 80};
    uint8_t *a = malloc(MOST), *b = aligned_alloc(64, (MOST + 63) / 64 * 64);
    for (int i = 0; i < MOST; i++) a[i] = (uint8_t)((unsigned)i * 2654435761u >> 11);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t off = 0; off < 3; off++) {
            size_t n = sizes[i];
            uint64_t want = XXH3_64bits(a + off, n);
            ck_assert_uint_eq(kv_xxh3(a + off, n), want);
            copies(kv_copy_xxh3, b, MOST, a + off, n, want);
#ifdef __x86_64__
            if (kv_kernels_for("avx2")) ck_assert_uint_eq(kv_xxh3_avx2(a + off, n), want);
            if (kv_kernels_for("avx2")) copies(kv_copy_xxh3_avx2, b, MOST, a + off, n, want);
            if (kv_kernels_for("avx512")) ck_assert_uint_eq(kv_xxh3_avx512(a + off, n), want);
            if (kv_kernels_for("avx512")) copies(kv_copy_xxh3_avx512, b, MOST, a + off, n, want);
#endif
        }
    free(a);
    free(b);
}
END_TEST

Suite *suite_digest(void)
{
    Suite *s = suite_create("digest");
    TCase *t = tcase_create("digest");
    tcase_add_test(t, every_set_of_vectors_agrees);
    suite_add_tcase(s, t);
    return s;
}
