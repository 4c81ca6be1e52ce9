/* tokenizer_merge.c — a list of symbols and a heap of the pairs in it. */
#include "runtime/model/tokenizer_merge.h"

#include <stdlib.h>

static bool before(const struct kv_pair *a, const struct kv_pair *b)
{
    return a->order < b->order || (a->order == b->order && a->left < b->left);
}

static void push(struct kv_merge_space *m, struct kv_pair p)
{
    size_t i = m->n_pairs++;
    for (; i > 0 && before(&p, &m->heap[(i - 1) / 2]); i = (i - 1) / 2) m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = p;
}

static struct kv_pair pop(struct kv_merge_space *m)
{
    struct kv_pair top = m->heap[0], last = m->heap[--m->n_pairs];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= m->n_pairs) break;
        if (child + 1 < m->n_pairs && before(&m->heap[child + 1], &m->heap[child])) child++;
        if (!before(&m->heap[child], &last)) break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return top;
}

static void offer(struct kv_merge_space *m, const char *text, int32_t left, int32_t right, kv_join join, const void *ctx)
{
    if (left < 0 || right < 0) return;
    const struct kv_symbol *a = &m->symbols[left], *b = &m->symbols[right];
    struct kv_pair p = {.left = left, .right = right, .len = a->len + b->len};
    if (join(ctx, text, a, b, &p.piece, &p.order)) push(m, p);
}

enum kv_status kv_merge_reserve(struct kv_merge_space *m, size_t n)
{
    if (n <= m->cap) return KV_OK;
    /* Every join queues at most two pairs and there are at most n - 1 joins; n - 1 pairs stand at the start. */
    struct kv_symbol *symbols = realloc(m->symbols, n * sizeof *symbols);
    if (symbols) m->symbols = symbols;
    struct kv_pair *heap = realloc(m->heap, 3 * n * sizeof *heap);
    if (heap) m->heap = heap;
    if (!symbols || !heap) return KV_OUT_OF_MEMORY;
    m->cap = n;
    return KV_OK;
}

void kv_merge_run(struct kv_merge_space *m, const char *text, int32_t n, kv_join join, const void *ctx)
{
    struct kv_symbol *s = m->symbols;
    m->n_pairs = 0;
    for (int32_t i = 0; i < n; i++) {
        s[i].prev = i - 1;
        s[i].next = i + 1 < n ? i + 1 : -1;
    }
    for (int32_t i = 0; i + 1 < n; i++) offer(m, text, i, i + 1, join, ctx);
    while (m->n_pairs) {
        struct kv_pair p = pop(m);
        struct kv_symbol *a = &s[p.left], *b = &s[p.right];
        /* Symbols only grow, at each other's cost: an unchanged sum means an unchanged pair. */
        if (!a->len || !b->len || a->len + b->len != p.len) continue;
        a->len = p.len;
        a->piece = p.piece;
        a->next = b->next;
        if (b->next >= 0) s[b->next].prev = p.left;
        b->len = 0;
        offer(m, text, a->prev, p.left, join, ctx);
        offer(m, text, p.left, a->next, join, ctx);
    }
}

void kv_merge_free(struct kv_merge_space *m)
{
    free(m->symbols);
    free(m->heap);
    *m = (struct kv_merge_space){0};
}
