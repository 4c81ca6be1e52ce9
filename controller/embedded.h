/* embedded.h — files built into the program: web assets, migrations, shipped policies. */
#ifndef KV_EMBEDDED_H
#define KV_EMBEDDED_H

#include <stddef.h>

struct kv_embedded {
    const char *name; /* "web/index.html", "migrations/001-initial.sql", "policies/release.lua" */
    const char *data; /* zero-terminated beyond size */
    size_t size;
};
extern const struct kv_embedded kv_embedded_table[]; /* ends with a NULL name */

#endif
