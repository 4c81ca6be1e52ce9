/* scratch.c — see scratch.h. */
#include "runtime/selection/scratch.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20, LINE = 64 };

struct scratch {
    size_t bytes; /* behind the first line, which holds this */
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static int key_status;

static void make_key(void) { key_status = pthread_key_create(&key, free); }

static void *aligned(size_t bytes, size_t to)
{
    size_t rounded;
    if (__builtin_add_overflow(bytes, to - 1, &rounded)) return NULL;
    return aligned_alloc(to, rounded / to * to);
}

void *kv_index_memory(size_t bytes)
{
    if (bytes < 2 * HUGE_PAGE) return aligned(bytes ? bytes : 1, LINE);
    void *p = aligned(bytes, HUGE_PAGE);
    if (p) (void)madvise(p, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE); /* only faster */
    return p;
}

void *kv_scratch(size_t bytes)
{
    pthread_once(&once, make_key);
    if (key_status || bytes > SIZE_MAX / 2) return NULL;
    struct scratch *s = pthread_getspecific(key);
    if (!s || s->bytes < bytes) {
        size_t whole = bytes < HUGE_PAGE / 8 ? bytes + LINE : (bytes + LINE + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        free(s);
        s = aligned(whole, whole < HUGE_PAGE ? LINE : HUGE_PAGE);
        if (s && whole >= HUGE_PAGE) (void)madvise(s, whole, MADV_HUGEPAGE);
        if (s) s->bytes = whole - LINE;
        if (pthread_setspecific(key, s)) free(s), s = NULL;
    }
    return s ? (char *)s + LINE : NULL;
}
