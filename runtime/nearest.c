/* nearest.c — Levenshtein's distance, one row at a time. */
#include "runtime/nearest.h"

#include <stdint.h>
#include <string.h>

size_t kv_name_distance(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b), row[KV_NAME_LONGEST + 1];
    if (na > KV_NAME_LONGEST || nb > KV_NAME_LONGEST) return SIZE_MAX;
    for (size_t j = 0; j <= nb; j++) row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t up = row[j], best = diagonal + (a[i - 1] != b[j - 1]);
            if (up + 1 < best) best = up + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = up;
            row[j] = best;
        }
    }
    return row[nb];
}
