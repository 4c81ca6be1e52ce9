/* selector.c — the table of selecting methods, made from methods.def. */
#include "runtime/selection/selector.h"

#include "runtime/selection/methods.h"

#include <string.h>

static const struct kv_selector_method *const methods[] = {
#define KV_METHOD(name, n) &kv_selector_##name,
#include "runtime/selection/methods.def"
#undef KV_METHOD
};

size_t kv_selector_count(void) { return sizeof methods / sizeof *methods; }

const struct kv_selector_method *kv_selector_at(size_t i) { return i < kv_selector_count() ? methods[i] : NULL; }

const struct kv_selector_method *kv_selector_find(const char *name)
{
    for (size_t i = 0; name && i < kv_selector_count(); i++)
        if (!strcmp(methods[i]->name, name)) return methods[i];
    return NULL;
}
