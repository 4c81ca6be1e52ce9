/* pack.h — the packed form of quantised weights: groups of 16 rows, unsigned codes, one scale (and minimum) a row and unit.
 *
 * A unit is 32 values (16 for Q6_K). value = scale · (code − offset) + minimum. A group is one linear stream of pairs of units,
 * since two streams that start over at every group read a third slower:
 *   scales  [2][16 rows]             fp16 where the file has them so, else fp32
 *   minima  [2][16 rows]             likewise, where the type has minima
 *   codes   [2][unit/4][16 rows][4]  one 64-byte vector holds four consecutive values of 16 rows
 *           nibbles: [2][unit/8][16 rows][4], the low half holds values 0–15 of the unit, the high half 16–31
 * Rows past the last and the second of a pair without one are zero. */
#ifndef KV_SCALAR_PACK_H
#define KV_SCALAR_PACK_H

#include "kernels/kernels.h"

#define KV_GROUP_ROWS 16

struct kv_pack_form {
    int unit;     /* values that share a scale */
    bool nibble;  /* two codes a byte */
    bool table;   /* codes index kv_iq4_codes */
    bool half;    /* fp16 scales and minima */
    bool minimum;
    int offset;   /* subtracted from a code, after the table */
};
const struct kv_pack_form *kv_pack_form(enum kv_type t); /* NULL for float types */

/* Codes of IQ4_NL, offset 128 added. */
extern const uint8_t kv_iq4_codes[16];

struct kv_unit {
    const uint8_t *codes, *scales, *minima; /* minima only where the type has them */
};
static inline size_t kv_unit_code_bytes(const struct kv_pack_form *f)
{
    return (size_t)f->unit * KV_GROUP_ROWS >> f->nibble;
}
static inline size_t kv_unit_scale_bytes(const struct kv_pack_form *f)
{
    return KV_GROUP_ROWS * (f->half ? 2u : 4u);
}
static inline size_t kv_pair_bytes(const struct kv_pack_form *f)
{
    return 2 * (kv_unit_code_bytes(f) + kv_unit_scale_bytes(f) * (f->minimum ? 2u : 1u));
}
static inline size_t kv_group_bytes(const struct kv_pack_form *f, int64_t cols)
{
    return ((size_t)cols / (size_t)f->unit + 1) / 2 * kv_pair_bytes(f);
}
static inline const uint8_t *kv_group_at(const struct kv_pack_form *f, const struct kv_mat *w, int32_t g)
{
    return (const uint8_t *)w->data + (size_t)g * kv_group_bytes(f, w->cols);
}
/* Unit u of a group. */
static inline struct kv_unit kv_unit_at(const struct kv_pack_form *f, const uint8_t *group, int32_t u)
{
    const uint8_t *pair = group + (size_t)(u / 2) * kv_pair_bytes(f);
    size_t scale_bytes = kv_unit_scale_bytes(f), odd = (size_t)(u % 2), header = scale_bytes * (f->minimum ? 4u : 2u);
    return (struct kv_unit){pair + header + odd * kv_unit_code_bytes(f), pair + odd * scale_bytes, pair + (2 + odd) * scale_bytes};
}

/* One quantisation block of the file → codes, and a scale and minimum for each unit. */
void kv_decode_block(enum kv_type t, const uint8_t *block, uint8_t *codes, float *scale, float *minimum);

#endif
