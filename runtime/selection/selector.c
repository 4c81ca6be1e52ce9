/* selector.c — the table of selecting methods, made from methods.def, each behind the guard against damaged keys. */
#include "runtime/selection/selector.h"

#include "runtime/selection/damage.h"
#include "runtime/selection/methods.h"

#include <pthread.h>
#include <string.h>

#define KV_METHOD(name, n)                                                                                                                              \
    static enum kv_status create_##name(const struct kv_params *p, int32_t d_head, int32_t group, int32_t n_rows_max, uint64_t seed,                    \
                                        struct kv_selector **out, struct kv_error *err)                                                                 \
    {                                                                                                                                                   \
        return kv_damage_create(&kv_selector_##name, p, d_head, group, n_rows_max, seed, out, err);                                                     \
    }
#include "runtime/selection/methods.def"
#undef KV_METHOD

#define KV_METHOD(name, n) +1
enum { METHODS = 0
#include "runtime/selection/methods.def"
};
#undef KV_METHOD

static struct kv_selector_method methods[METHODS];
static pthread_once_t made = PTHREAD_ONCE_INIT;

static void make(void)
{
    struct kv_selector_method *m = methods;
#define KV_METHOD(name, n) *m = kv_selector_##name, kv_damage_guard(m), m++->create = create_##name;
#include "runtime/selection/methods.def"
#undef KV_METHOD
}

size_t kv_selector_count(void) { return METHODS; }

const struct kv_selector_method *kv_selector_at(size_t i)
{
    pthread_once(&made, make);
    return i < METHODS ? &methods[i] : NULL;
}

const struct kv_selector_method *kv_selector_find(const char *name)
{
    for (size_t i = 0; name && i < METHODS; i++)
        if (!strcmp(kv_selector_at(i)->name, name)) return kv_selector_at(i);
    return NULL;
}
