/* kernels.h — canonical numerics on plain arrays: no allocation, no I/O, no locks, no runtime types.
 *
 * The scalar functions in kernels/scalar define the bits; every other table equals them by memcmp. docs/developers/numerics.md
 * writes down the order of reduction of each operation. All functions are pure, reentrant and callable from any thread whose
 * MXCSR is set by kv_numerics_enter(). Shapes are row-major; [a][b] means b is contiguous. */
#ifndef KV_KERNELS_H
#define KV_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KV_BATCH_BLOCKS 4 /* blocks of selected rows that attention takes together at most */
#define KV_BLOCK_ROWS 64 /* logical positions per block: the unit of attention state, of digests and of transfer */

/* Values as in GGUF files. */
enum kv_type {
    KV_F32 = 0, KV_F16 = 1, KV_Q4_0 = 2, KV_Q4_1 = 3, KV_Q5_0 = 6, KV_Q5_1 = 7, KV_Q8_0 = 8,
    KV_Q4_K = 12, KV_Q5_K = 13, KV_Q6_K = 14, KV_IQ4_NL = 20, KV_BF16 = 30
};
bool kv_type_known(uint32_t type);
const char *kv_type_name(enum kv_type t);
int kv_type_block_values(enum kv_type t);   /* values per quantisation block; 1 for floats */
size_t kv_type_row_bytes(enum kv_type t, int64_t cols); /* bytes of one row in the file; cols % block_values == 0 */
bool kv_type_is_quantised(enum kv_type t);

/* A weight matrix [rows][cols]. Float types are read straight from the file; quantised types are repacked once by
 * kv_mat_pack into 16-row groups (kernels/scalar/pack.h): same integers, same scales, same bits. */
struct kv_mat {
    enum kv_type type;  /* type in the file */
    int32_t rows, cols;
    const void *data;   /* float types: file rows. quantised types: packed form */
    size_t data_bytes;
};
/* 0 for float types, which need no packing. */
size_t kv_mat_packed_bytes(enum kv_type t, int64_t rows, int64_t cols);
/* dst: kv_mat_packed_bytes, 64-byte aligned; unused for float types. file: rows as in the file. */
void kv_mat_pack(struct kv_mat *out, enum kv_type t, const void *file, int32_t rows, int32_t cols, void *dst);
/* The same in parts, so that threads can share it: the matrix as kv_mat_pack leaves it, and rows [row0, row1) of dst; row0 a multiple of 16,
 * row1 too or at least `rows`. */
void kv_mat_describe(struct kv_mat *out, enum kv_type t, const void *file, int32_t rows, int32_t cols, void *dst);
void kv_mat_pack_rows(enum kv_type t, const void *file, int32_t rows, int32_t cols, void *dst, int32_t row0, int32_t row1);
/* One row of the file to fp32, for embeddings and for the oracle. */
void kv_dequantise_row(enum kv_type t, const void *row, int64_t cols, float *out);

/* Activations of n rows: fp32 as given, and quantised per row and per 32 values. The caller owns all arrays. */
struct kv_act {
    int32_t n, cols;
    const float *f32;  /* [n][cols] */
    int8_t *q;         /* [n][cols32], cols32 = cols rounded up to 32, zero padded */
    float *d;          /* [n][cols32/32] scales */
    int32_t *sum;      /* [n][cols32/32] sums of q */
};

enum kv_rope_layout { KV_ROPE_NORMAL = 0 /* pairs (2i, 2i+1) */, KV_ROPE_NEOX = 1 /* pairs (i, i+d_rot/2) */ };

/* Attention states: per query row m (maximum of scores), l (sum of exp), u[d] (weighted sum of values); fp32.
 * The identity state is m = -inf, l = 0, u = 0; folding with it passes the other state through unchanged. */
struct kv_states {
    float *m, *l; /* [n_q] */
    float *u;     /* [n_q][d_head] */
};

/* One sequence, one layer, one K/V head: query rows against the blocks of that head. Row type: F16, BF16 or F32. */
struct kv_attention {
    int32_t d_head, n_q;          /* n_q = tokens × group; all heads of a group in one pass over K and V */
    const float *q;               /* [n_q] rows of d_head at q_stride floats */
    size_t q_stride;
    enum kv_type row_type;
    float scale;
    int32_t n_blocks;
    const void *const *k, *const *v; /* [n_blocks] → [64][d_head]; an absent block may be NULL: identity */
    const int32_t *visible;       /* [n_q] visible rows (position + 1): row p is seen when p < visible */
    const uint64_t *support;      /* [n_q][n_blocks] row masks of the selected support, or NULL for all rows */
};

struct kv_pick { /* a block, which is not absent, for one query row */
    int32_t query, block;
};

struct kv_kernels {
    const char *isa; /* "scalar", "avx2", "avx512" */

    /* Quantised activations of a->f32 into q, d, sum. */
    void (*quantise)(struct kv_act *a);
    /* y[t*y_stride + r] = w[r] · x[t] for r in [row0, row1), t in [0, x->n). row0 a multiple of 16. */
    void (*matmul)(const struct kv_mat *w, const struct kv_act *x, int32_t row0, int32_t row1, float *y, size_t y_stride);
    float (*dot)(const float *a, const float *b, int32_t n); /* 16 k-strided lanes, fixed tree */
    void (*rmsnorm)(const float *x, const float *weight, int32_t n, float eps, float *y);
    /* x: [heads][d_head] in place; cos_sin: [d_rot/2][2] of this position. */
    void (*rope)(float *x, int32_t heads, int32_t d_head, int32_t d_rot, const float *cos_sin, enum kv_rope_layout layout);
    void (*swiglu)(const float *gate, const float *up, int32_t n, float *out); /* gate / (1 + exp(-gate)) * up */
    void (*add)(const float *a, const float *b, int32_t n, float *out);
    void (*exp)(const float *x, int32_t n, float *out);
    void (*to_rows)(enum kv_type row_type, const float *x, int32_t n, void *out);   /* fp32 → stored row */
    void (*from_rows)(enum kv_type row_type, const void *x, int32_t n, float *out); /* stored row → fp32 */
    /* State of block b alone, overwriting out. */
    void (*attend_block)(const struct kv_attention *a, int32_t b, struct kv_states out);
    /* States of pick[0, n), n ≤ KV_BATCH_BLOCKS, one query row each, as attend_block makes it. pick[n, n + ahead), as many at most, come next:
     * their selected keys are asked of memory meanwhile. */
    void (*attend_picks)(const struct kv_attention *a, const struct kv_pick *pick, int32_t n, int32_t ahead, struct kv_states *out);
    /* into := fold(into, other), into being the left (lower) operand. */
    void (*fold)(int32_t n_q, int32_t d_head, struct kv_states into, struct kv_states other);
    /* out[n_q] rows at out_stride: u / l; zero where l = 0. */
    void (*finish)(int32_t n_q, int32_t d_head, struct kv_states s, float *out, size_t out_stride);
    /* Channelwise minimum and maximum of rows [row0, row1) of a stored [64][d] block, accumulated into lo, hi [d]. */
    void (*extrema)(enum kv_type row_type, const void *k, int32_t row0, int32_t row1, int32_t d, float *lo, float *hi);
    /* Quest bounds of n_q query rows at q_stride: out[i * out_stride + p] = sum over c of q_c times lo_c of page p where q_c has the sign of less than
     * 0, hi_c where not, for whole blocks of KV_BLOCK_ROWS pages. columns: stored values [n_blocks][d][2][KV_BLOCK_ROWS]: lo, then hi. Each sum is
     * one chain of fused steps in ascending c. */
    void (*page_bounds)(enum kv_type row_type, const float *q, int32_t n_q, size_t q_stride, const void *columns, int32_t n_blocks, int32_t d, float *out,
                        size_t out_stride);
    /* label[i] = the c with the least square[c] - 2 x_i · c, ties to the lower, 0 where none compares; x: n rows at x_stride. centroids:
     * [width][k rounded up to 16], channel-major. Each product is one chain of fused steps in ascending channels. */
    void (*nearest)(const float *x, int32_t n, size_t x_stride, const float *centroids, const float *square, int32_t k, int32_t width, int32_t *label);
    /* The same, and what was compared: the least, and the least of all other c. Infinite where none compares. */
    void (*nearest_two)(const float *x, int32_t n, size_t x_stride, const float *centroids, const float *square, int32_t k, int32_t width, int32_t *label,
                        float *least, float *second);
    /* out[i * out_stride + t] = sum over c of weight[i * n_channels + c] times channel pick[c] (NULL: c) of row t, for n_q query rows and whole
     * blocks. columns: stored values, channel-major in each run of rows, a multiple of 64: [runs][d][run]. Each sum is one chain of fused steps in
     * ascending c. Some of the channels are read fastest where a run fills a page, all of them where it is a block. */
    void (*column_dots)(enum kv_type row_type, const void *columns, int32_t d, int32_t run, const int32_t *pick, const float *weight, int32_t n_q,
                        int32_t n_channels, int32_t n_blocks, float *out, size_t out_stride);
    /* Bit t of mask: x[t] is over `least` or no number; bits from n to the end of the last word are 0. Returns how many are set. */
    int32_t (*outrank)(const float *x, int32_t n, float least, uint64_t *mask);
    /* out[i] = q · row[i], as dot; blocks: stored [64][d_head]. */
    void (*row_dots)(enum kv_type row_type, const void *const *blocks, const int32_t *row, int32_t n, const float *q, int32_t d, float *out);
    /* out[c] = sum over i of weight[i] times channel c of row[i]: one chain of fused steps in ascending i. */
    void (*row_sum)(enum kv_type row_type, const void *const *blocks, const int32_t *row, int32_t n, const float *weight, int32_t d, float *out);
};

/* The table for this machine: the best of scalar, avx2, avx512, or what KVASIR_ISA names if this machine can run it (the
 * table's isa tells). Chosen once. */
const struct kv_kernels *kv_kernels(void);
/* What KVASIR_ISA names and this machine does not know or cannot run; NULL: nothing is wrong. A program refuses to start on it. */
const char *kv_kernels_refused(void);
/* NULL when this machine cannot run it. */
const struct kv_kernels *kv_kernels_for(const char *isa);
/* Rounding to nearest, denormals kept. Every thread that calls kernels calls this once first. */
void kv_numerics_enter(void);
/* Runs every operation on fixed inputs and writes the results; the hash of these bytes is the numerics_id.
 * Returns the number of bytes (≤ cap); KV_SELFTEST_BYTES is room for all. Equal on every instruction set by construction. */
#define KV_SELFTEST_BYTES 32768
size_t kv_numerics_selftest(const struct kv_kernels *k, uint8_t *out, size_t cap);

/* Aligned binary tree: the state of subtree (level, index), i.e. of blocks [index << level, (index+1) << level) cut at
 * n_blocks. scratch: kv_attend_scratch_floats of them, best at a cache line. Any cut of a range into aligned subtrees folded by
 * kv_fold_subtrees gives the same bits. */
size_t kv_attend_scratch_floats(int32_t n_q, int32_t d_head, int32_t level);
void kv_attend_subtree(const struct kv_kernels *k, const struct kv_attention *a, int32_t level, int32_t index,
                       struct kv_states out, float *scratch);
/* Folds the states of subtrees 0 … n-1 of one level on the tree above them, into states[0]. */
void kv_fold_subtrees(const struct kv_kernels *k, int32_t n_q, int32_t d_head, struct kv_states *states, int32_t n);

/* RoPE tables in double precision with own functions: cos_sin [n_positions][d_rot/2][2] from inv_freq[d_rot/2]. */
void kv_rope_table(const double *inv_freq, int32_t d_rot, int64_t first_position, int32_t n_positions, float mscale, float *cos_sin);
double kv_pow(double base, double exponent); /* own, for inverse frequencies */
double kv_log(double x);

#endif
