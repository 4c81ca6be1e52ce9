/* pack.c — the row types of GGUF files: sizes, decoding of one block, and repacking into groups of 16 rows. */
#include "kernels/scalar/pack.h"
#include "kernels/scalar/real.h"

#define MAX_BLOCK 256

const uint8_t kv_iq4_codes[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

static const struct type_row {
    enum kv_type type;
    const char *name;
    int block_values, block_bytes;
    struct kv_pack_form form; /* unit 0: a float type */
} types[] = {
    {KV_F32, "F32", 1, 4, {0}},
    {KV_F16, "F16", 1, 2, {0}},
    {KV_BF16, "BF16", 1, 2, {0}},
    {KV_Q4_0, "Q4_0", 32, 18, {32, true, false, true, false, 8}},
    {KV_Q4_1, "Q4_1", 32, 20, {32, true, false, true, true, 0}},
    {KV_Q5_0, "Q5_0", 32, 22, {32, false, false, true, false, 16}},
    {KV_Q5_1, "Q5_1", 32, 24, {32, false, false, true, true, 0}},
    {KV_Q8_0, "Q8_0", 32, 34, {32, false, false, true, false, 128}},
    {KV_Q4_K, "Q4_K", 256, 144, {32, true, false, false, true, 0}},
    {KV_Q5_K, "Q5_K", 256, 176, {32, false, false, false, true, 0}},
    {KV_Q6_K, "Q6_K", 256, 210, {16, false, false, false, false, 32}},
    {KV_IQ4_NL, "IQ4_NL", 32, 18, {32, true, true, true, false, 128}},
};

static const struct type_row *find(uint32_t t)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].type == t) return &types[i];
    return 0;
}

bool kv_type_known(uint32_t type)
{
    return find(type) != 0;
}

const char *kv_type_name(enum kv_type t)
{
    const struct type_row *r = find(t);
    return r ? r->name : "unknown";
}

int kv_type_block_values(enum kv_type t)
{
    return find(t)->block_values;
}

size_t kv_type_row_bytes(enum kv_type t, int64_t cols)
{
    const struct type_row *r = find(t);
    return (size_t)(cols / r->block_values) * (size_t)r->block_bytes;
}

bool kv_type_is_quantised(enum kv_type t)
{
    return find(t)->form.unit != 0;
}

const struct kv_pack_form *kv_pack_form(enum kv_type t)
{
    const struct type_row *r = find(t);
    return r->form.unit ? &r->form : 0;
}

static uint16_t u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static float half_at(const uint8_t *p)
{
    return kv_from_f16(u16(p));
}

static void split_nibbles(const uint8_t *packed, uint8_t *codes)
{
    for (int i = 0; i < 16; i++) {
        codes[i] = packed[i] & 15;
        codes[16 + i] = packed[i] >> 4;
    }
}

/* Fifth bits: bit i of the little-endian word belongs to value i. */
static void add_fifth_bits(const uint8_t *word, uint8_t *codes)
{
    for (int i = 0; i < 32; i++) codes[i] |= (uint8_t)((word[i / 8] >> i % 8 & 1) << 4);
}

/* The eight 6-bit scales and minima of Q4_K and Q5_K share twelve bytes. */
static void decode_k_scales(const uint8_t *block, float *scale, float *minimum)
{
    float d = half_at(block), dmin = half_at(block + 2);
    const uint8_t *s = block + 4;
    for (int j = 0; j < 8; j++) {
        int sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        int mn = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
        scale[j] = d * (float)sc;
        minimum[j] = -(dmin * (float)mn);
    }
}

static void decode_q6_k(const uint8_t *block, uint8_t *codes, float *scale)
{
    const uint8_t *low = block, *high = block + 128;
    const int8_t *sc = (const int8_t *)block + 192;
    float d = half_at(block + 208);
    for (int half = 0; half < 2; half++, low += 64, high += 32, codes += 128)
        for (int i = 0; i < 128; i++) {
            int nibble = i < 64 ? low[i] & 15 : low[i - 64] >> 4;
            codes[i] = (uint8_t)(nibble | (high[i % 32] >> i / 32 * 2 & 3) << 4);
        }
    for (int j = 0; j < 16; j++) scale[j] = d * (float)sc[j];
}

void kv_decode_block(enum kv_type t, const uint8_t *block, uint8_t *codes, float *scale, float *minimum)
{
    switch (t) {
    case KV_Q4_0: scale[0] = half_at(block); split_nibbles(block + 2, codes); break;
    case KV_Q4_1:
        scale[0] = half_at(block), minimum[0] = half_at(block + 2);
        split_nibbles(block + 4, codes);
        break;
    case KV_Q5_0:
        scale[0] = half_at(block);
        split_nibbles(block + 6, codes), add_fifth_bits(block + 2, codes);
        break;
    case KV_Q5_1:
        scale[0] = half_at(block), minimum[0] = half_at(block + 2);
        split_nibbles(block + 8, codes), add_fifth_bits(block + 4, codes);
        break;
    case KV_Q8_0:
        scale[0] = half_at(block);
        for (int i = 0; i < 32; i++) codes[i] = block[2 + i] ^ 0x80; /* two's complement + 128 */
        break;
    case KV_Q4_K:
    case KV_Q5_K: {
        const uint8_t *nibbles = block + (t == KV_Q4_K ? 16 : 48), *fifth = block + 16;
        decode_k_scales(block, scale, minimum);
        for (int i = 0; i < 256; i++) {
            int chunk = i / 64, within = i % 64;
            codes[i] = within < 32 ? nibbles[32 * chunk + within] & 15 : nibbles[32 * chunk + within - 32] >> 4;
            if (t == KV_Q5_K) codes[i] |= (uint8_t)((fifth[i % 32] >> i / 32 & 1) << 4);
        }
        break;
    }
    case KV_Q6_K: decode_q6_k(block, codes, scale); break;
    case KV_IQ4_NL:
        scale[0] = half_at(block);
        split_nibbles(block + 2, codes);
        break;
    case KV_F32: case KV_F16: case KV_BF16: break;
    }
}

void kv_dequantise_row(enum kv_type t, const void *row, int64_t cols, float *out)
{
    const struct type_row *r = find(t);
    const uint8_t *p = row;
    uint8_t codes[MAX_BLOCK];
    float scale[16], minimum[16];
    if (t == KV_F32) memcpy(out, row, (size_t)cols * 4);
    else if (t == KV_F16)
        for (int64_t i = 0; i < cols; i++) out[i] = half_at(p + 2 * i);
    else if (t == KV_BF16)
        for (int64_t i = 0; i < cols; i++) out[i] = kv_from_bf16(u16(p + 2 * i));
    else
        for (int64_t b = 0; b < cols / r->block_values; b++, p += r->block_bytes, out += r->block_values) {
            kv_decode_block(t, p, codes, scale, minimum);
            for (int i = 0; i < r->block_values; i++) {
                int code = r->form.table ? kv_iq4_codes[codes[i]] : codes[i], unit = i / r->form.unit;
                float v = scale[unit] * (float)(code - r->form.offset);
                out[i] = r->form.minimum ? v + minimum[unit] : v;
            }
        }
}

size_t kv_mat_packed_bytes(enum kv_type t, int64_t rows, int64_t cols)
{
    const struct kv_pack_form *f = kv_pack_form(t);
    return f ? (size_t)((rows + KV_GROUP_ROWS - 1) / KV_GROUP_ROWS) * kv_group_bytes(f, cols) : 0;
}

static void put_scale(const struct kv_pack_form *f, uint8_t *at, int row, float value)
{
    if (f->half) {
        uint16_t h = kv_to_f16(value);
        memcpy(at + 2 * row, &h, 2);
    } else memcpy(at + 4 * row, &value, 4);
}

static void pack_row(const struct type_row *r, const uint8_t *file, int32_t cols, uint8_t *group, int row)
{
    const struct kv_pack_form *f = &r->form;
    uint8_t codes[MAX_BLOCK];
    float scale[16], minimum[16];
    int32_t unit = 0;
    for (int32_t b = 0; b < cols / r->block_values; b++, file += r->block_bytes) {
        kv_decode_block(r->type, file, codes, scale, minimum);
        for (int u = 0; u < r->block_values / f->unit; u++, unit++) {
            const uint8_t *c = codes + u * f->unit;
            struct kv_unit at = kv_unit_at(f, group, unit);
            uint8_t *out = group + (at.codes - group);
            for (int i = 0; i < f->unit >> f->nibble; i += 4) {
                uint32_t four, high;
                memcpy(&four, c + i, 4);
                memcpy(&high, c + (f->nibble ? i + 16 : i), 4);
                if (f->nibble) four |= high << 4; /* codes of four bits: nothing crosses a byte */
                memcpy(out + i * 16 + row * 4, &four, 4);
            }
            put_scale(f, group + (at.scales - group), row, scale[u]);
            if (f->minimum) put_scale(f, group + (at.minima - group), row, minimum[u]);
        }
    }
}

void kv_mat_describe(struct kv_mat *out, enum kv_type t, const void *file, int32_t rows, int32_t cols, void *dst)
{
    bool packed = kv_pack_form(t) != 0;
    *out = (struct kv_mat){t, rows, cols, packed ? dst : file, packed ? kv_mat_packed_bytes(t, rows, cols) : kv_type_row_bytes(t, cols) * (size_t)rows};
}

void kv_mat_pack_rows(enum kv_type t, const void *file, int32_t rows, int32_t cols, void *dst, int32_t row0, int32_t row1)
{
    const struct type_row *r = find(t);
    if (!r->form.unit) return;
    size_t group = kv_group_bytes(&r->form, cols);
    if (row1 > rows) row1 = rows;
    memset((uint8_t *)dst + (size_t)(row0 / KV_GROUP_ROWS) * group, 0, (size_t)((row1 + KV_GROUP_ROWS - 1) / KV_GROUP_ROWS - row0 / KV_GROUP_ROWS) * group);
    for (int32_t row = row0; row < row1; row++)
        pack_row(r, (const uint8_t *)file + (size_t)row * kv_type_row_bytes(t, cols), cols,
                 (uint8_t *)dst + (size_t)(row / KV_GROUP_ROWS) * kv_group_bytes(&r->form, cols), row % KV_GROUP_ROWS);
}

void kv_mat_pack(struct kv_mat *out, enum kv_type t, const void *file, int32_t rows, int32_t cols, void *dst)
{
    kv_mat_describe(out, t, file, rows, cols, dst);
    kv_mat_pack_rows(t, file, rows, cols, dst, 0, rows);
}
