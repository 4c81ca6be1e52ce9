/* nearest.h — the known name that a misspelt one most likely meant. */
#ifndef KV_NEAREST_H
#define KV_NEAREST_H

#include <stddef.h>

#define KV_NAME_LONGEST 96

/* Characters added, left out or changed between two names; SIZE_MAX when one is longer than KV_NAME_LONGEST. */
size_t kv_name_distance(const char *a, const char *b);

#endif
