/* select.c — which table of kernels this machine runs, and the state of its floating-point unit. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/scalar/scalar.h"
#ifdef __x86_64__
#include <xmmintrin.h>

#include "kernels/x86/x86.h"
#endif

const struct kv_kernels *kv_kernels_for(const char *isa)
{
    if (!strcmp(isa, "scalar")) return &kv_scalar_kernels;
#ifdef __x86_64__
    if (!strcmp(isa, "avx2")) /* every processor with AVX2 and FMA has F16C too */
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kv_avx2_kernels : 0;
    if (!strcmp(isa, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni")
                   ? &kv_avx512_kernels
                   : 0;
#endif
    return 0;
}

const struct kv_kernels *kv_kernels(void)
{
    static _Atomic(const struct kv_kernels *) chosen;
    const struct kv_kernels *k = atomic_load(&chosen);
    if (k) return k;
    static const char *const best_first[] = {"avx512", "avx2", "scalar"};
    const char *wanted = getenv("KVASIR_ISA");
    if (wanted && *wanted) k = kv_kernels_for(wanted);
    if (wanted && *wanted && !k) return &kv_scalar_kernels; /* said by kv_kernels_refused; whoever goes on gets what runs everywhere */
    for (size_t i = 0; !k && i < sizeof best_first / sizeof *best_first; i++) k = kv_kernels_for(best_first[i]);
    atomic_store(&chosen, k);
    return k;
}

const char *kv_kernels_refused(void)
{
    const char *wanted = getenv("KVASIR_ISA");
    return wanted && *wanted && !kv_kernels_for(wanted) ? wanted : 0;
}

void kv_numerics_enter(void)
{
#ifdef __x86_64__
    _mm_setcsr(0x1f80); /* nearest, denormals kept, no traps */
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, xzr");
#endif
}
