/* pack.h — the packed form of quantised weights: groups of 16 rows, unsigned codes, one scale (and minimum) a row and unit.
 *
 * A unit is 32 values (16 for Q6_K). value = scale · (code − offset) + minimum. Within a group:
 *   codes   [units][unit/4][16 rows][4]     one 64-byte vector holds four consecutive values of 16 rows
 *           nibbles: [units][unit/8][16 rows][4], the low half holds values 0–15 of the unit, the high half 16–31
 *   scales  [units][16 rows]                fp16 where the file has them so, else fp32
 *   minima  [units][16 rows]                likewise, where the type has minima
 * and a group is padded to 64 bytes. Rows past the last are zero. */
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

struct kv_group {
    const uint8_t *codes, *scales, *minima; /* minima NULL where the type has none */
};
size_t kv_group_bytes(const struct kv_pack_form *f, int64_t cols);
/* Where group g of a packed matrix lies. */
static inline struct kv_group kv_group_at(const struct kv_pack_form *f, const struct kv_mat *w, int32_t g)
{
    size_t units = (size_t)w->cols / (size_t)f->unit, code_bytes = units * (size_t)f->unit * KV_GROUP_ROWS >> f->nibble;
    size_t scale_bytes = units * KV_GROUP_ROWS * (f->half ? 2u : 4u);
    const uint8_t *p = (const uint8_t *)w->data + (size_t)g * kv_group_bytes(f, w->cols);
    return (struct kv_group){p, p + code_bytes, f->minimum ? p + code_bytes + scale_bytes : 0};
}

/* One quantisation block of the file → codes, and a scale and minimum for each unit. */
void kv_decode_block(enum kv_type t, const uint8_t *block, uint8_t *codes, float *scale, float *minimum);

#endif
