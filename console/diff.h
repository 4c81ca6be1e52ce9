/* diff.h — what differs between two texts, line by line. */
#ifndef KV_DIFF_H
#define KV_DIFF_H

#include <jansson.h>

/* Lines of both as an array of strings that begin with ' ' (both), '-' (only old) or '+' (only new); unchanged stretches are cut to three lines
 * beside a change, a line "@N" (of new) before each piece. Counts of '+' and '-' through added and gone. NULL without memory. */
json_t *kv_diff_lines(const char *was, const char *is, int *added, int *gone);

#endif
