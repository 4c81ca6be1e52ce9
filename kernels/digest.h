/* digest.h — checksums of payloads (XXH3-64) with the widest vectors the processor has; the bits are the same with any. Pure functions; any thread. */
#ifndef KV_DIGEST_H
#define KV_DIGEST_H

#include <stddef.h>
#include <stdint.h>

uint64_t kv_xxh3(const void *p, size_t n);
/* Copies n bytes and returns their checksum; each piece comes from memory once. */
uint64_t kv_copy_xxh3(void *restrict dst, const void *restrict src, size_t n);

/* x86/avx2_digest.c, x86/avx512_digest.c */
uint64_t kv_xxh3_avx2(const void *p, size_t n);
uint64_t kv_copy_xxh3_avx2(void *restrict dst, const void *restrict src, size_t n);
uint64_t kv_xxh3_avx512(const void *p, size_t n);
uint64_t kv_copy_xxh3_avx512(void *restrict dst, const void *restrict src, size_t n);

#endif
