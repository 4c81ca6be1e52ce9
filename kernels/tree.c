/* tree.c — attention states on the aligned binary tree over block indices. */
#include <string.h>

#include "kernels/kernels.h"

static size_t state_floats(int32_t n_q, int32_t d_head)
{
    return (size_t)n_q * ((size_t)d_head + 2);
}

static struct kv_states state_at(float *scratch, int32_t n_q, int32_t d_head, int32_t slot)
{
    float *p = scratch + (size_t)slot * state_floats(n_q, d_head);
    return (struct kv_states){p, p + n_q, p + 2 * (size_t)n_q};
}

size_t kv_attend_scratch_floats(int32_t n_q, int32_t d_head, int32_t level)
{
    return ((size_t)level + 1) * state_floats(n_q, d_head);
}

/* A binary counter: slot s of the stack holds a finished subtree, each smaller than the one below it. Two of one size fold at once.
 * What is left at the cut folds from the top down, since the blocks beyond it are identities. */
void kv_attend_subtree(const struct kv_kernels *k, const struct kv_attention *a, int32_t level, int32_t index,
                       struct kv_states out, float *scratch)
{
    int64_t first = (int64_t)index << level, end = first + ((int64_t)1 << level);
    if (end > a->n_blocks) end = a->n_blocks;
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
    if (first >= end)
        for (int32_t i = 0; i < a->n_q; i++) {
            out.m[i] = -__builtin_inff(), out.l[i] = 0;
            memset(out.u + (size_t)i * (size_t)a->d_head, 0, (size_t)a->d_head * sizeof *out.u);
        }
}

void kv_fold_subtrees(const struct kv_kernels *k, int32_t n_q, int32_t d_head, struct kv_states *states, int32_t n)
{
    for (int64_t step = 1; step < n; step *= 2)
        for (int64_t i = 0; i + step < n; i += 2 * step) k->fold(n_q, d_head, states[i], states[i + step]);
}
