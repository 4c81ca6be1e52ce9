/* digest.c — the vectors that every processor has, and the choice of wider ones. */
#include "kernels/digest.h"
#include "kernels/digest_body.h"
#include "kernels/kernels.h"

uint64_t kv_xxh3(const void *p, size_t n)
{
#ifdef __x86_64__
    const char *isa = kv_kernels()->isa; /* those files are compiled for all that a table of that name needs */
    if (!strcmp(isa, "avx512")) return kv_xxh3_avx512(p, n);
    if (!strcmp(isa, "avx2")) return kv_xxh3_avx2(p, n);
#endif
    return xxh3(p, n);
}

uint64_t kv_copy_xxh3(void *restrict dst, const void *restrict src, size_t n)
{
#ifdef __x86_64__
    const char *isa = kv_kernels()->isa; /* those files are compiled for all that a table of that name needs */
    if (!strcmp(isa, "avx512")) return kv_copy_xxh3_avx512(dst, src, n);
    if (!strcmp(isa, "avx2")) return kv_copy_xxh3_avx2(dst, src, n);
#endif
    return copy_xxh3(dst, src, n);
}
