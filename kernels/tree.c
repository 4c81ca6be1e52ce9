/* tree.c — attention states on the aligned binary tree over block indices. */
#include <stdbool.h>
#include <string.h>

#include "kernels/scalar/scalar.h"

/* Each part of a state begins a cache line where the scratch does: what one fold stores is what the next one loads. */
static size_t padded(size_t floats)
{
    return (floats + 15) & ~(size_t)15;
}

static size_t state_floats(int32_t n_q, int32_t d_head)
{
    return 2 * padded((size_t)n_q) + padded((size_t)n_q * (size_t)d_head);
}

static struct kv_states state_at(float *scratch, int32_t n_q, int32_t d_head, int32_t slot)
{
    float *p = scratch + (size_t)slot * state_floats(n_q, d_head);
    size_t n = padded((size_t)n_q);
    return (struct kv_states){p, p + n, p + 2 * n};
}

size_t kv_attend_scratch_floats(int32_t n_q, int32_t d_head, int32_t level)
{
    return ((size_t)level + 1) * state_floats(n_q, d_head) + KV_BATCH_BLOCKS * state_floats(1, d_head);
}

static void identity(const struct kv_attention *a, struct kv_states out)
{
    for (int32_t i = 0; i < a->n_q; i++) out.m[i] = -__builtin_inff(), out.l[i] = 0;
    memset(out.u, 0, (size_t)a->n_q * (size_t)a->d_head * sizeof *out.u);
}

/* A binary counter: slot s of the stack holds a finished subtree, each smaller than the one below it. Two of one size fold at once.
 * What is left at the cut folds from the top down, since the blocks beyond it are identities. */
static void attend_all(const struct kv_kernels *k, const struct kv_attention *a, int64_t first, int64_t end, struct kv_states out, float *scratch)
{
    int32_t depth = 0;
    for (int64_t b = first; b < end; b++) {
        k->attend_block(a, (int32_t)b, depth ? state_at(scratch, a->n_q, a->d_head, depth) : out);
        depth++;
        for (int64_t done = b - first + 1; !(done & 1); done >>= 1, depth--) {
            struct kv_states left = depth > 2 ? state_at(scratch, a->n_q, a->d_head, depth - 2) : out;
            k->fold(a->n_q, a->d_head, left, state_at(scratch, a->n_q, a->d_head, depth - 1));
        }
    }
    for (; depth > 1; depth--) {
        struct kv_states left = depth > 2 ? state_at(scratch, a->n_q, a->d_head, depth - 2) : out;
        k->fold(a->n_q, a->d_head, left, state_at(scratch, a->n_q, a->d_head, depth - 1));
    }
    if (first >= end) identity(a, out);
}

/* ---------------------------------------------------------------- a selected support */

static uint64_t rows_of(const struct kv_attention *a, int64_t b)
{
    uint64_t any = 0;
    for (int32_t i = 0; a->k[b] && i < a->n_q; i++)
        if (a->support[(size_t)i * (size_t)a->n_blocks + (size_t)b]) any |= kv_visible_rows(a, i, (int32_t)b);
    return any;
}

/* The first block from b on with a row in it; *rows: which. */
static int64_t next_block(const struct kv_attention *a, int64_t b, int64_t end, uint64_t *rows)
{
    for (; b < end; b++)
        if ((*rows = rows_of(a, b))) break;
    return b;
}

/* Selected rows lie where no hardware prefetcher looks: those of the next block are asked for while this one computes. For one query row
 * attend_blocks does that. */
static void fetch(const struct kv_attention *a, int64_t b, uint64_t rows)
{
    size_t row_bytes = kv_type_row_bytes(a->row_type, a->d_head);
    const char *k = a->k[b], *v = a->v[b];
    for (; rows; rows &= rows - 1) {
        size_t at = (size_t)__builtin_ctzll(rows) * row_bytes;
        for (size_t i = 0; i < row_bytes; i += 64) __builtin_prefetch(k + at + i, 0, 2), __builtin_prefetch(v + at + i, 0, 2);
    }
}

/* The same tree over the blocks that hold a row; the identities between them are passed through by not being there. join[s]: level of the
 * smallest subtree that holds both the blocks of slot s and of the one below it; below a new block, all of less than its own is folded. */
static void attend_some(const struct kv_kernels *k, const struct kv_attention *a, int64_t first, int64_t end, struct kv_states out, float *scratch)
{
    int32_t depth = 0, join[64];
    uint64_t rows = 0, ahead = 0;
    int64_t before = 0;
    for (int64_t b = next_block(a, first, end, &rows), next; b < end; b = next) {
        next = next_block(a, b + 1, end, &ahead);
        if (next < end) fetch(a, next, ahead);
        if (depth) {
            int32_t level = 64 - __builtin_clzll((uint64_t)(before ^ b));
            for (; depth > 1 && join[depth - 1] < level; depth--)
                k->fold(a->n_q, a->d_head, depth > 2 ? state_at(scratch, a->n_q, a->d_head, depth - 2) : out, state_at(scratch, a->n_q, a->d_head, depth - 1));
            join[depth] = level;
        }
        k->attend_block(a, (int32_t)b, depth ? state_at(scratch, a->n_q, a->d_head, depth) : out);
        depth++;
        before = b;
    }
    if (!depth) identity(a, out);
    for (; depth > 1; depth--)
        k->fold(a->n_q, a->d_head, depth > 2 ? state_at(scratch, a->n_q, a->d_head, depth - 2) : out, state_at(scratch, a->n_q, a->d_head, depth - 1));
}

static int32_t next_blocks(const struct kv_attention *a, int64_t *from, int64_t end, int32_t most, int32_t *block)
{
    uint64_t rows;
    int32_t n = 0;
    while (n < most && (*from = next_block(a, *from, end, &rows)) < end) block[n++] = (int32_t)(*from)++;
    return n;
}

/* The same for one query row, several blocks at a time: their states move into the scratch of the tree one by one. */
static void attend_row(const struct kv_kernels *k, const struct kv_attention *a, int64_t first, int64_t end, struct kv_states out, float *scratch, float *batch)
{
    struct kv_states state[KV_BATCH_BLOCKS];
    int32_t depth = 0, join[64], block[2 * KV_BATCH_BLOCKS], before = 0;
    for (int32_t j = 0; j < KV_BATCH_BLOCKS; j++) state[j] = state_at(batch, 1, a->d_head, j);
    int32_t n = next_blocks(a, &first, end, KV_BATCH_BLOCKS, block);
    if (!n) identity(a, out);
    for (int32_t ahead; n; n = ahead) {
        ahead = next_blocks(a, &first, end, KV_BATCH_BLOCKS, block + n);
        k->attend_blocks(a, block, n, ahead, state);
        for (int32_t j = 0; j < n; j++, depth++) {
            if (depth) {
                int32_t level = 64 - __builtin_clzll((uint64_t)(before ^ block[j]));
                for (; depth > 1 && join[depth - 1] < level; depth--)
                    k->fold(1, a->d_head, depth > 2 ? state_at(scratch, 1, a->d_head, depth - 2) : out, state_at(scratch, 1, a->d_head, depth - 1));
                join[depth] = level;
            }
            struct kv_states to = depth ? state_at(scratch, 1, a->d_head, depth) : out;
            *to.m = *state[j].m, *to.l = *state[j].l;
            memcpy(to.u, state[j].u, (size_t)a->d_head * sizeof *to.u);
            before = block[j];
        }
        memmove(block, block + n, (size_t)ahead * sizeof *block);
    }
    for (; depth > 1; depth--)
        k->fold(1, a->d_head, depth > 2 ? state_at(scratch, 1, a->d_head, depth - 2) : out, state_at(scratch, 1, a->d_head, depth - 1));
}

/* Query rows of one support share each pass over K and V; query rows of their own are taken one by one. */
static void attend_selected(const struct kv_kernels *k, const struct kv_attention *a, int64_t first, int64_t end, struct kv_states out, float *scratch,
                            float *batch)
{
    bool shared = a->n_q > 1;
    size_t words = first < end ? (size_t)(end - first) : 0;
    for (int32_t i = 1; shared && i < a->n_q; i++)
        shared = !memcmp(a->support + first, a->support + (size_t)i * (size_t)a->n_blocks + first, words * sizeof *a->support);
    if (shared) {
        attend_some(k, a, first, end, out, scratch);
        return;
    }
    for (int32_t i = 0; i < a->n_q; i++) {
        struct kv_attention one = *a;
        one.n_q = 1;
        one.q += (size_t)i * a->q_stride;
        one.visible += i;
        one.support += (size_t)i * (size_t)a->n_blocks;
        attend_row(k, &one, first, end, (struct kv_states){out.m + i, out.l + i, out.u + (size_t)i * (size_t)a->d_head}, scratch, batch);
    }
}

void kv_attend_subtree(const struct kv_kernels *k, const struct kv_attention *a, int32_t level, int32_t index,
                       struct kv_states out, float *scratch)
{
    int64_t first = (int64_t)index << level, end = first + ((int64_t)1 << level);
    if (end > a->n_blocks) end = a->n_blocks;
    if (a->support) attend_selected(k, a, first, end, out, scratch + KV_BATCH_BLOCKS * state_floats(1, a->d_head), scratch);
    else attend_all(k, a, first, end, out, scratch);
}

void kv_fold_subtrees(const struct kv_kernels *k, int32_t n_q, int32_t d_head, struct kv_states *states, int32_t n)
{
    for (int64_t step = 1; step < n; step *= 2)
        for (int64_t i = 0; i + step < n; i += 2 * step) k->fold(n_q, d_head, states[i], states[i + step]);
}
