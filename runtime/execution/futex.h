/* futex.h — waiting on a 32-bit word without a lock. Spurious returns are allowed; callers re-check. Any thread. */
#ifndef KV_FUTEX_H
#define KV_FUTEX_H

#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* timeout_us < 0: no time-out. */
static inline void kv_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_us)
{
    struct timespec ts = {.tv_sec = timeout_us / 1000000, .tv_nsec = timeout_us % 1000000 * 1000};
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, expected, timeout_us < 0 ? 0 : &ts, 0, 0);
}

static inline void kv_futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0);
}

#endif
