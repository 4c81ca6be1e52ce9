/* test_digest.c — checksums with any vectors are the library's, and copies are copies. */
#include "kernels/digest.h"
#include "kernels/kernels.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

Suite *suite_digest(void);

START_TEST(every_set_of_vectors_agrees)
{
    enum { MOST = 300000 };
    static const size_t sizes[] = {0, 1, 3, 16, 17, 128, 129, 240, 241, 255, 256, 1024, 1025, 4095, 4096, 4097, 8192 + 240, 12288, 65536, 262144, MOST - 8};
    uint8_t *a = malloc(MOST), *b = malloc(MOST);
    for (int i = 0; i < MOST; i++) a[i] = (uint8_t)((unsigned)i * 2654435761u >> 11);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t off = 0; off < 3; off++) {
            size_t n = sizes[i];
            uint64_t want = XXH3_64bits(a + off, n);
            memset(b, 0x5a, MOST);
            ck_assert_uint_eq(kv_xxh3(a + off, n), want);
            ck_assert_uint_eq(kv_copy_xxh3(b + 1, a + off, n), want);
            ck_assert(!memcmp(b + 1, a + off, n) && b[0] == 0x5a && b[n + 1] == 0x5a);
#ifdef __x86_64__
            if (kv_kernels_for("avx2")) ck_assert(kv_xxh3_avx2(a + off, n) == want && kv_copy_xxh3_avx2(b, a + off, n) == want);
            if (kv_kernels_for("avx512")) ck_assert(kv_xxh3_avx512(a + off, n) == want && kv_copy_xxh3_avx512(b, a + off, n) == want);
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
