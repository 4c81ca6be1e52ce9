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

/* Selected rows lie where no hardware prefetcher looks: those of the next block are asked for while this one computes. For query
 * rows of their own attend_picks does that. */
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

/* Query rows one after the other, the blocks of each in order. */
static int32_t next_picks(const struct kv_attention *a, struct kv_pick *at, int64_t first, int64_t end, struct kv_pick *pick)
{
    int32_t n = 0;
    while (n < KV_BATCH_BLOCKS && at->query < a->n_q) {
        const uint64_t *support = a->support + (size_t)at->query * (size_t)a->n_blocks;
        int64_t b = at->block;
        while (b < end && (!support[b] || !a->k[b] || !kv_visible_rows(a, at->query, (int32_t)b))) b++;
        if (b < end) pick[n++] = (struct kv_pick){at->query, (int32_t)b}, at->block = (int32_t)b + 1;
        else *at = (struct kv_pick){at->query + 1, (int32_t)first};
    }
    return n;
}

struct stack { /* of one query row, as in attend_some; slot 0 is its part of the answer */
    struct kv_states bottom;
    int32_t depth, before, join[64];
};

static struct kv_states slot(const struct kv_attention *a, const struct stack *t, float *scratch, int32_t s)
{
    return s ? state_at(scratch, 1, a->d_head, s) : t->bottom;
}

static void fold_down(const struct kv_kernels *k, const struct kv_attention *a, struct stack *t, float *scratch, int32_t level)
{
    for (; t->depth > 1 && t->join[t->depth - 1] < level; t->depth--)
        k->fold(1, a->d_head, slot(a, t, scratch, t->depth - 2), slot(a, t, scratch, t->depth - 1));
}

static void push(const struct kv_kernels *k, const struct kv_attention *a, struct stack *t, float *scratch, int32_t block, struct kv_states state)
{
    if (t->depth) {
        int32_t level = 64 - __builtin_clzll((uint64_t)(t->before ^ block));
        fold_down(k, a, t, scratch, level);
        t->join[t->depth] = level;
    }
    struct kv_states to = slot(a, t, scratch, t->depth++);
    *to.m = *state.m, *to.l = *state.l;
    memcpy(to.u, state.u, (size_t)a->d_head * sizeof *to.u);
    t->before = block;
}

/* The same for query rows of their own, several blocks at a time: their states move into the scratch of the tree one by one. */
static void attend_rows(const struct kv_kernels *k, const struct kv_attention *a, int64_t first, int64_t end, struct kv_states out, float *scratch, float *batch)
{
    enum { WHOLE = 65 /* above every level */ };
    struct kv_states state[KV_BATCH_BLOCKS];
    struct kv_pick pick[2 * KV_BATCH_BLOCKS], at = {0, (int32_t)first};
    struct stack t = {.depth = 0};
    for (int32_t j = 0; j < KV_BATCH_BLOCKS; j++) state[j] = state_at(batch, 1, a->d_head, j);
    identity(a, out);
    int32_t n = next_picks(a, &at, first, end, pick), query = -1;
    for (int32_t ahead; n; n = ahead) {
        ahead = next_picks(a, &at, first, end, pick + n);
        k->attend_picks(a, pick, n, ahead, state);
        for (int32_t j = 0; j < n; j++) {
            if (pick[j].query != query) {
                fold_down(k, a, &t, scratch, WHOLE);
                query = pick[j].query, t.depth = 0;
                t.bottom = (struct kv_states){out.m + query, out.l + query, out.u + (size_t)query * (size_t)a->d_head};
            }
            push(k, a, &t, scratch, pick[j].block, state[j]);
        }
        memmove(pick, pick + n, (size_t)ahead * sizeof *pick);
    }
    fold_down(k, a, &t, scratch, WHOLE);
}

/* Query rows of one support share each pass over K and V; query rows of their own are taken one by one. */
static void attend_selected(const struct kv_kernels *k, const struct kv_attention *a, int64_t first, int64_t end, struct kv_states out, float *scratch,
                            float *batch)
{
    bool shared = a->n_q > 1;
    size_t words = first < end ? (size_t)(end - first) : 0;
    for (int32_t i = 1; shared && i < a->n_q; i++)
        shared = !memcmp(a->support + first, a->support + (size_t)i * (size_t)a->n_blocks + first, words * sizeof *a->support);
    if (shared) attend_some(k, a, first, end, out, scratch);
    else attend_rows(k, a, first, end, out, scratch, batch);
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
