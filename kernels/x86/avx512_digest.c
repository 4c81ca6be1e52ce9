/* avx512_digest.c — payload checksums with AVX-512. */
#include "kernels/digest.h"
#include "kernels/digest_body.h"

uint64_t kv_xxh3_avx512(const void *p, size_t n)
{
    return xxh3(p, n);
}

uint64_t kv_copy_xxh3_avx512(void *restrict dst, const void *restrict src, size_t n)
{
    return copy_xxh3(dst, src, n);
}
