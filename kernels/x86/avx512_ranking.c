/* avx512_ranking.c — what ranking rows takes, sixteen rows or channels a vector. */
#include "kernels/x86/avx512.h"

enum { TILE_ROWS = 2048, TILE_CHANNELS = 4, ROWS_AHEAD = 12 /* fetched while these are multiplied */ };

/* One block and N query rows. next: bytes to the block to fetch, or 0. */
KV_INLINE void block_dots(const enum kv_type type, const int N, const uint8_t *block, const int32_t *pick, const float *weight, int32_t n_channels, size_t next,
                          float *out, size_t out_stride)
{
    __m512 acc[4][4];
    for (int i = 0; i < N; i++)
        for (int v = 0; v < 4; v++) acc[i][v] = _mm512_setzero_ps();
    for (int32_t c = 0; c < n_channels; c++) {
        const uint8_t *column = block + (size_t)(pick ? pick[c] : c) * KV_BLOCK_ROWS * kv_width(type);
        __m512 k[4];
        if (next)
            for (size_t line = 0; line < KV_BLOCK_ROWS * kv_width(type); line += 64) _mm_prefetch((const char *)column + next + line, _MM_HINT_T1);
        _Pragma("GCC unroll 4") for (int v = 0; v < 4; v++) k[v] = kv_load16(type, column, 16 * (size_t)v);
        _Pragma("GCC unroll 4") for (int i = 0; i < N; i++)
        {
            __m512 w = _mm512_set1_ps(weight[i * n_channels + c]);
            _Pragma("GCC unroll 4") for (int v = 0; v < 4; v++) acc[i][v] = _mm512_fmadd_ps(w, k[v], acc[i][v]);
        }
    }
    for (int i = 0; i < N; i++)
        for (int v = 0; v < 4; v++) _mm512_storeu_ps(out + (size_t)i * out_stride + 16 * v, kv_canon16(acc[i][v]));
}

KV_INLINE void blocks_dots(const enum kv_type type, const uint8_t *columns, int32_t d, const int32_t *pick, const float *weight, int32_t n_q, int32_t n_channels,
                           int32_t n_blocks, float *out, size_t out_stride)
{
    const size_t bytes = (size_t)d * KV_BLOCK_ROWS * kv_width(type);
    for (int32_t b = 0; b < n_blocks; b++, columns += bytes, out += KV_BLOCK_ROWS) {
        size_t next = b + 1 < n_blocks ? bytes : 0;
        for (int32_t i = 0; i < n_q; i += 4, next = 0) {
            const float *w = weight + (size_t)i * (size_t)n_channels;
            float *to = out + (size_t)i * out_stride;
            switch (n_q - i) {
            case 1: block_dots(type, 1, columns, pick, w, n_channels, next, to, out_stride); break;
            case 2: block_dots(type, 2, columns, pick, w, n_channels, next, to, out_stride); break;
            case 3: block_dots(type, 3, columns, pick, w, n_channels, next, to, out_stride); break;
            default: block_dots(type, 4, columns, pick, w, n_channels, next, to, out_stride); break;
            }
        }
    }
}

/* Longer runs: few channels at a time, each read from end to end, and what rows have so far in the nearest cache. */
struct streams { /* channels that are read side by side */
    const uint8_t *at[TILE_CHANNELS];
};

/* C channels of `rows` rows added to what N query rows have so far, while as many rows of the next channels are fetched. */
KV_INLINE void tile_dots(const enum kv_type type, const int N, const int C, struct streams column, struct streams next, const float *weight, int32_t n_channels,
                         int32_t rows, bool begins, bool ends, float *out, size_t out_stride)
{
    __m512 w[4][TILE_CHANNELS];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < C; j++) w[i][j] = _mm512_set1_ps(weight[i * n_channels + j]);
    for (int32_t t = 0; t < rows; t += 16) {
        __m512 k[TILE_CHANNELS];
        if (t % (64 / (int32_t)kv_width(type)) == 0)
            _Pragma("GCC unroll 4") for (int j = 0; j < TILE_CHANNELS; j++) _mm_prefetch((const char *)next.at[j] + (size_t)t * kv_width(type), _MM_HINT_T1);
        _Pragma("GCC unroll 4") for (int j = 0; j < C; j++) k[j] = kv_load16(type, column.at[j], (size_t)t);
        _Pragma("GCC unroll 4") for (int i = 0; i < N; i++)
        {
            float *at = out + (size_t)i * out_stride + t;
            __m512 acc = begins ? _mm512_setzero_ps() : _mm512_loadu_ps(at);
            _Pragma("GCC unroll 4") for (int j = 0; j < C; j++) acc = _mm512_fmadd_ps(w[i][j], k[j], acc);
            _mm512_storeu_ps(at, ends ? kv_canon16(acc) : acc);
        }
    }
}

/* TILE_CHANNELS channels from c on, the last one again where there are no more. */
KV_INLINE struct streams streams_from(const uint8_t *rows_at, size_t stride, const int32_t *pick, int32_t c, int32_t n_channels)
{
    struct streams s;
    for (int32_t j = 0; j < TILE_CHANNELS; j++) {
        int32_t at = c + j < n_channels ? c + j : n_channels - 1;
        s.at[j] = rows_at + (size_t)(pick ? pick[at] : at) * stride;
    }
    return s;
}

/* All channels of a tile of rows; stride: bytes from channel to channel; then: the next tile. */
KV_INLINE void rows_dots(const enum kv_type type, const int N, const uint8_t *rows_at, const uint8_t *then, size_t stride, const int32_t *pick, const float *weight,
                         int32_t n_channels, int32_t rows, float *out, size_t out_stride)
{
    for (int32_t c = 0, n; c < n_channels; c += n) {
        struct streams column = streams_from(rows_at, stride, pick, c, n_channels);
        n = n_channels - c < TILE_CHANNELS ? 1 : TILE_CHANNELS;
        bool ends = c + n == n_channels;
        struct streams next = ends ? streams_from(then, stride, pick, 0, n_channels) : streams_from(rows_at, stride, pick, c + n, n_channels);
        if (n == TILE_CHANNELS) tile_dots(type, N, TILE_CHANNELS, column, next, weight + c, n_channels, rows, c == 0, ends, out, out_stride);
        else tile_dots(type, N, 1, column, next, weight + c, n_channels, rows, c == 0, ends, out, out_stride);
    }
}

KV_INLINE size_t offset_of(int32_t row, int32_t d, int32_t run) { return (size_t)(row / run) * (size_t)d * (size_t)run + (size_t)(row % run); }

KV_INLINE void column_dots(const enum kv_type type, const uint8_t *columns, int32_t d, int32_t run, const int32_t *pick, const float *weight, int32_t n_q,
                           int32_t n_channels, int32_t n_blocks, float *out, size_t out_stride)
{
    const size_t stride = (size_t)run * kv_width(type);
    const int32_t all = n_blocks * KV_BLOCK_ROWS;
    if (run == KV_BLOCK_ROWS) return blocks_dots(type, columns, d, pick, weight, n_q, n_channels, n_blocks, out, out_stride);
    for (int32_t first = 0, rows; first < all; first += rows, out += rows) {
        rows = run - first % run < TILE_ROWS ? run - first % run : TILE_ROWS;
        if (rows > all - first) rows = all - first;
        const uint8_t *at = columns + offset_of(first, d, run) * kv_width(type), *then = columns + offset_of(first + rows < all ? first + rows : 0, d, run) * kv_width(type);
        for (int32_t i = 0; i < n_q; i += 4) {
            const float *w = weight + (size_t)i * (size_t)n_channels;
            float *to = out + (size_t)i * out_stride;
            switch (n_q - i) {
            case 1: rows_dots(type, 1, at, then, stride, pick, w, n_channels, rows, to, out_stride); break;
            case 2: rows_dots(type, 2, at, then, stride, pick, w, n_channels, rows, to, out_stride); break;
            case 3: rows_dots(type, 3, at, then, stride, pick, w, n_channels, rows, to, out_stride); break;
            default: rows_dots(type, 4, at, then, stride, pick, w, n_channels, rows, to, out_stride); break;
            }
        }
    }
}

void kv_avx512_column_dots(enum kv_type row_type, const void *columns, int32_t d, int32_t run, const int32_t *pick, const float *weight, int32_t n_q,
                           int32_t n_channels, int32_t n_blocks, float *out, size_t out_stride)
{
    if (row_type == KV_F16) column_dots(KV_F16, columns, d, run, pick, weight, n_q, n_channels, n_blocks, out, out_stride);
    else if (row_type == KV_BF16) column_dots(KV_BF16, columns, d, run, pick, weight, n_q, n_channels, n_blocks, out, out_stride);
    else column_dots(KV_F32, columns, d, run, pick, weight, n_q, n_channels, n_blocks, out, out_stride);
}

int32_t kv_avx512_outrank(const float *x, int32_t n, float least, uint64_t *mask)
{
    const __m512 bar = _mm512_set1_ps(least);
    int32_t count = 0;
    for (int32_t first = 0; first < n; first += 64) {
        uint64_t bits = 0;
        for (int32_t t = first; t < first + 64 && t < n; t += 16) {
            __mmask16 here = kv_first(n - t);
            bits |= (uint64_t)_mm512_mask_cmp_ps_mask(here, _mm512_maskz_loadu_ps(here, x + t), bar, _CMP_NLE_UQ) << (t - first);
        }
        mask[first / 64] = bits;
        count += __builtin_popcountll(bits);
    }
    return count;
}

KV_INLINE const uint8_t *row_at(const void *const *blocks, int32_t row, size_t row_bytes)
{
    return (const uint8_t *)blocks[row / KV_BLOCK_ROWS] + (size_t)(row % KV_BLOCK_ROWS) * row_bytes;
}

KV_INLINE void fetch(const void *const *blocks, const int32_t *row, int32_t i, int32_t n, size_t row_bytes)
{
    if (i >= n) return;
    const char *at = (const char *)row_at(blocks, row[i], row_bytes);
    for (size_t c = 0; c < row_bytes; c += 64) _mm_prefetch(at + c, _MM_HINT_T0);
}

/* Four rows (fewer: the last ones repeat), a sum a lane. */
KV_INLINE __m512 four_dots(const enum kv_type type, const uint8_t *const row[4], const float *q, int32_t d)
{
    __m512 acc[4];
    for (int r = 0; r < 4; r++) acc[r] = _mm512_setzero_ps();
    int32_t c = 0;
    for (; c + 16 <= d; c += 16) {
        __m512 x = _mm512_loadu_ps(q + c);
        _Pragma("GCC unroll 4") for (int r = 0; r < 4; r++) acc[r] = _mm512_fmadd_ps(kv_load16(type, row[r], (size_t)c), x, acc[r]);
    }
    if (c < d) {
        __mmask16 m = kv_first(d - c);
        __m512 x = _mm512_maskz_loadu_ps(m, q + c);
        _Pragma("GCC unroll 4") for (int r = 0; r < 4; r++) acc[r] = _mm512_mask3_fmadd_ps(kv_load16_first(type, m, row[r], (size_t)c), x, acc[r], m);
    }
    const __m512 zero = _mm512_setzero_ps();
    return kv_canon16(kv_tree_tail(kv_tree_head(acc[0], acc[1], acc[2], acc[3]), zero, zero, zero));
}

KV_INLINE void row_dots(const enum kv_type type, const void *const *blocks, const int32_t *row, int32_t n, const float *q, int32_t d, float *out)
{
    const size_t row_bytes = (size_t)d * kv_width(type);
    for (int32_t i = 0; i < n && i < ROWS_AHEAD; i++) fetch(blocks, row, i, n, row_bytes);
    for (int32_t i = 0; i < n; i += 4) {
        const uint8_t *four[4];
        for (int32_t r = 0; r < 4; r++) {
            four[r] = row_at(blocks, row[i + r < n ? i + r : n - 1], row_bytes);
            fetch(blocks, row, i + r + ROWS_AHEAD, n, row_bytes);
        }
        _mm512_mask_storeu_ps(out + i, kv_first(n - i < 4 ? n - i : 4), four_dots(type, four, q, d));
    }
}

void kv_avx512_row_dots(enum kv_type row_type, const void *const *blocks, const int32_t *row, int32_t n, const float *q, int32_t d, float *out)
{
    if (row_type == KV_F16) row_dots(KV_F16, blocks, row, n, q, d, out);
    else if (row_type == KV_BF16) row_dots(KV_BF16, blocks, row, n, q, d, out);
    else row_dots(KV_F32, blocks, row, n, q, d, out);
}

/* V vectors of channels from c on, whose chains run side by side. */
KV_INLINE void channels_sum(const enum kv_type type, const int V, const void *const *blocks, const int32_t *row, int32_t n, const float *weight, size_t row_bytes,
                            int32_t c, int32_t d, float *out)
{
    const __mmask16 last = kv_first(d - c - 16 * (V - 1));
    __m512 acc[4];
    for (int v = 0; v < V; v++) acc[v] = _mm512_setzero_ps();
    for (int32_t i = 0; i < n; i++) {
        const uint8_t *at = row_at(blocks, row[i], row_bytes);
        __m512 w = _mm512_set1_ps(weight[i]);
        if (c == 0) fetch(blocks, row, i + ROWS_AHEAD, n, row_bytes);
        _Pragma("GCC unroll 4") for (int v = 0; v < V - 1; v++) acc[v] = _mm512_fmadd_ps(w, kv_load16(type, at, (size_t)c + 16 * (size_t)v), acc[v]);
        acc[V - 1] = _mm512_fmadd_ps(w, kv_load16_first(type, last, at, (size_t)c + 16 * (size_t)(V - 1)), acc[V - 1]);
    }
    for (int v = 0; v < V; v++) _mm512_mask_storeu_ps(out + c + 16 * v, v < V - 1 ? 0xffff : last, kv_canon16(acc[v]));
}

KV_INLINE void row_sum(const enum kv_type type, const void *const *blocks, const int32_t *row, int32_t n, const float *weight, int32_t d, float *out)
{
    const size_t row_bytes = (size_t)d * kv_width(type);
    int32_t c = 0;
    for (; c + 64 <= d; c += 64) channels_sum(type, 4, blocks, row, n, weight, row_bytes, c, d, out);
    for (; c < d; c += 16) channels_sum(type, 1, blocks, row, n, weight, row_bytes, c, d, out);
}

void kv_avx512_row_sum(enum kv_type row_type, const void *const *blocks, const int32_t *row, int32_t n, const float *weight, int32_t d, float *out)
{
    if (row_type == KV_F16) row_sum(KV_F16, blocks, row, n, weight, d, out);
    else if (row_type == KV_BF16) row_sum(KV_BF16, blocks, row, n, weight, d, out);
    else row_sum(KV_F32, blocks, row, n, weight, d, out);
}
