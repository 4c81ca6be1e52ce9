/* damage.c — see damage.h. */
#include "runtime/selection/damage.h"

#include "runtime/selection/rank.h"
#include "runtime/selection/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kv_selector { /* the guard; `guarded` is the method's own instance */
    const struct kv_selector_method *method;
    struct kv_selector *guarded;
    int32_t n_blocks, building; /* rows of the build in work; 0: none */
    bool any;
    uint64_t *damaged;   /* [n_blocks] rows */
    uint8_t **clean;     /* [n_blocks] keys of a block that has damaged ones, those as zeros; NULL: of none. NULL until a key is */
    const void **shown;  /* [n_blocks] blocks as the method sees them */
};

static void guard_destroy(struct kv_selector *s)
{
    if (!s) return;
    if (s->guarded) s->method->destroy(s->guarded);
    for (int32_t b = 0; s->clean && b < s->n_blocks; b++) free(s->clean[b]);
    free(s->clean);
    free(s->shown);
    free(s->damaged);
    free(s);
}

enum kv_status kv_damage_create(const struct kv_selector_method *method, const struct kv_params *p, int32_t d_head, int32_t group, int32_t n_rows_max,
                                uint64_t seed, struct kv_selector **out, struct kv_error *err)
{
    enum kv_status status = kv_selection_check(d_head, group, n_rows_max, err);
    if (status != KV_OK) return status;
    struct kv_selector *s = calloc(1, sizeof *s);
    if (s) *s = (struct kv_selector){.method = method, .n_blocks = kv_mask_words(n_rows_max), .damaged = calloc((size_t)kv_mask_words(n_rows_max), sizeof *s->damaged)};
    if (!s || !s->damaged) status = kv_fail(err, KV_OUT_OF_MEMORY, method->name, "no memory for a selector");
    if (status == KV_OK) status = method->create(p, d_head, group, n_rows_max, seed, &s->guarded, err);
    if (status == KV_OK) *out = s;
    else guard_destroy(s);
    return status;
}

/* Several values a word: from infinity on, and only there, the sum reaches the sign's place. */
static bool no_numbers(enum kv_type type, const uint8_t *values, size_t bytes)
{
    const uint64_t size = type == KV_F32 ? UINT64_C(0x7fffffff7fffffff) : UINT64_C(0x7fff7fff7fff7fff);
    const uint64_t to_sign = type == KV_F32 ? UINT64_C(0x0080000000800000) : type == KV_F16 ? UINT64_C(0x0400040004000400) : UINT64_C(0x0080008000800080);
    uint64_t any = 0, word;
    size_t i = 0;
    for (; i + sizeof word <= bytes; i += sizeof word) {
        memcpy(&word, values + i, sizeof word);
        any |= (word & size) + to_sign;
    }
    word = 0;
    memcpy(&word, values + i, bytes - i);
    return ((any | ((word & size) + to_sign)) & ~size) != 0;
}

/* Forgets rows from `to` on. */
static void forget(struct kv_selector *s, int32_t to)
{
    if (!s->any) return;
    s->any = false;
    for (int32_t b = 0; b < s->n_blocks; b++) {
        int32_t left = to - b * KV_BLOCK_ROWS;
        s->damaged[b] &= left <= 0 ? 0 : left >= KV_BLOCK_ROWS ? ~UINT64_C(0) : (UINT64_C(1) << left) - 1;
        if (s->damaged[b]) s->any = true;
        else free(s->clean[b]), s->clean[b] = NULL;
    }
}

/* Rows [first, end) of block b into the copy that the method sees, which is made if there is none. */
static enum kv_status copy_clean(struct kv_selector *s, const struct kv_rows *rows, int32_t b, int32_t first, int32_t end)
{
    size_t row_bytes = kv_rows_row_bytes(rows), block_bytes = (row_bytes * KV_BLOCK_ROWS + 63) / 64 * 64;
    if (!s->clean) s->clean = calloc((size_t)s->n_blocks, sizeof *s->clean);
    if (!s->shown) s->shown = calloc((size_t)s->n_blocks, sizeof *s->shown);
    if (!s->clean || !s->shown) return KV_OUT_OF_MEMORY;
    if (!s->clean[b]) {
        s->clean[b] = aligned_alloc(64, block_bytes);
        if (!s->clean[b]) return KV_OUT_OF_MEMORY;
        memset(s->clean[b], 0, block_bytes);
        first = 0;
    }
    for (int32_t i = first; i < end; i++) {
        const uint8_t *key = (const uint8_t *)rows->k[b] + (size_t)i * row_bytes;
        if (no_numbers(rows->row_type, key, row_bytes)) kv_mask_set(s->damaged, b * KV_BLOCK_ROWS + i), s->any = true;
        else memcpy(s->clean[b] + (size_t)i * row_bytes, key, row_bytes);
    }
    return KV_OK;
}

/* Looks through rows [from, rows->n_rows). */
static enum kv_status look(struct kv_selector *s, const struct kv_rows *rows, int32_t from)
{
    enum kv_status status = KV_OK;
    size_t row_bytes = kv_rows_row_bytes(rows);
    if (rows->n_rows > s->n_blocks * KV_BLOCK_ROWS) return KV_CAPACITY;
    forget(s, from);
    for (int32_t b = from / KV_BLOCK_ROWS; b < kv_mask_words(rows->n_rows) && status == KV_OK; b++) {
        int32_t start = b * KV_BLOCK_ROWS, first = from > start ? from - start : 0, end = rows->n_rows - start < KV_BLOCK_ROWS ? rows->n_rows - start : KV_BLOCK_ROWS;
        bool damaged = no_numbers(rows->row_type, (const uint8_t *)rows->k[b] + (size_t)first * row_bytes, (size_t)(end - first) * row_bytes);
        if (damaged || (s->clean && s->clean[b])) status = copy_clean(s, rows, b, first, end);
    }
    return status;
}

static struct kv_rows shown(struct kv_selector *s, const struct kv_rows *rows)
{
    struct kv_rows out = *rows;
    int32_t n = kv_mask_words(rows->n_rows);
    if (!s->any || n > s->n_blocks) return out;
    for (int32_t b = 0; b < n; b++) s->shown[b] = s->clean[b] ? s->clean[b] : rows->k[b];
    out.k = s->shown;
    return out;
}

static enum kv_status guard_build(struct kv_selector *s, const struct kv_rows *rows, const float *prefill_q, int32_t n_prefill_q)
{
    enum kv_status status = look(s, rows, 0);
    if (status != KV_OK) return status;
    struct kv_rows seen = shown(s, rows);
    s->building = 0;
    return s->method->build(s->guarded, &seen, prefill_q, n_prefill_q);
}

static enum kv_status guard_build_some(struct kv_selector *s, const struct kv_rows *rows, const float *prefill_q, int32_t n_prefill_q, int64_t products, bool *done)
{
    if (!s->building || rows->n_rows < s->building) {
        enum kv_status status = look(s, rows, 0);
        if (status != KV_OK) return status;
        s->building = rows->n_rows;
    }
    struct kv_rows seen = shown(s, rows);
    enum kv_status status = s->method->build_some(s->guarded, &seen, prefill_q, n_prefill_q, products, done);
    if (*done) s->building = 0;
    return status;
}

static enum kv_status guard_append(struct kv_selector *s, const struct kv_rows *rows, int32_t from)
{
    if (from != s->method->covered(s->guarded) || rows->n_rows < from) return KV_STALE_INDEX;
    enum kv_status status = look(s, rows, from);
    if (status != KV_OK) return status;
    struct kv_rows seen = shown(s, rows);
    return s->method->append(s->guarded, &seen, from);
}

static enum kv_status guard_seal(struct kv_selector *s, const struct kv_rows *rows)
{
    struct kv_rows seen = shown(s, rows);
    return s->method->seal(s->guarded, &seen);
}

static enum kv_status guard_drop(struct kv_selector *s, int32_t to)
{
    enum kv_status status = s->method->drop(s->guarded, to);
    if (status == KV_OK) forget(s, to);
    return status;
}

static enum kv_status guard_query(struct kv_selector *s, const struct kv_rows *rows, const float *q, int32_t widen, uint64_t *support, int32_t n_blocks,
                                  double *estimated_omitted_mass, struct kv_ledger *ledger)
{
    struct kv_rows seen = shown(s, rows);
    enum kv_status status = s->method->query(s->guarded, &seen, q, widen, support, n_blocks, estimated_omitted_mass, ledger);
    if (status != KV_OK || !s->any) return status;
    for (int32_t g = 0; g < rows->group; g++) {
        for (int32_t b = 0; b < kv_mask_words(rows->n_rows); b++) support[(size_t)g * (size_t)n_blocks + (size_t)b] |= s->damaged[b];
        if (estimated_omitted_mass && estimated_omitted_mass[g] >= 0) estimated_omitted_mass[g] = NAN;
    }
    kv_ledger_support(ledger, rows, support, n_blocks, NULL);
    return KV_OK;
}

/* Of the rows as they are: a damaged one is to reach the output. */
static enum kv_status guard_estimate(struct kv_selector *s, const struct kv_rows *rows, const float *q, const uint64_t *support, int32_t n_blocks, float *out)
{
    return s->method->estimate(s->guarded, rows, q, support, n_blocks, out);
}

static void guard_tune(struct kv_selector *s, const struct kv_params *p) { s->method->tune(s->guarded, p); }
static int32_t guard_covered(const struct kv_selector *s) { return s->method->covered(s->guarded); }

static enum kv_status guard_seed_rows(struct kv_selector *s, const int32_t *positions, int32_t n, struct kv_error *err)
{
    return s->method->seed_rows(s->guarded, positions, n, err);
}

void kv_damage_guard(struct kv_selector_method *m)
{
    m->destroy = guard_destroy;
    m->build = guard_build;
    if (m->build_some) m->build_some = guard_build_some;
    m->append = guard_append;
    if (m->seal) m->seal = guard_seal;
    m->drop = guard_drop;
    m->query = guard_query;
    m->tune = guard_tune;
    m->covered = guard_covered;
    if (m->seed_rows) m->seed_rows = guard_seed_rows;
    if (m->estimate) m->estimate = guard_estimate;
}
