/* sequence.c — see sequence.h. */
#include "runtime/service/sequence.h"

#include "runtime/model/transformer.h"
#include "runtime/selection/rank.h"
#include "runtime/selection/support.h"

#include <stdlib.h>
#include <string.h>

enum { KEPT_QUERIES = 32, /* of the prompt's end, for methods that build from queries; independent of the chunks */
       LEAST_BUILD = 1 << 22 /* products of one head's index in a step: a millisecond at most */ };

static void copy_name(char *to, size_t cap, const char *from)
{
    size_t n = from ? strlen(from) : 0;
    if (n >= cap) n = cap - 1;
    if (n) memcpy(to, from, n);
    to[n] = 0;
}

enum kv_status kv_sequence_create(const struct kv_request *r, const struct kv_sequence_shape *shape, struct kv_backlog *backlog,
                                  struct kv_sequence **out, struct kv_error *err)
{
    *out = NULL;
    struct kv_sequence *s = calloc(1, sizeof *s);
    if (!s) return kv_fail(err, KV_OUT_OF_MEMORY, "request", "no memory for a request");
    enum kv_status status = kv_text_init(&s->text, r->stop, err);
    if (status != KV_OK) return free(s), status;
    if (r->schema) status = kv_constraint_create(r->schema, &s->constraint, err);
    if (status != KV_OK) return free(s), status;
    s->n_prompt = s->n_tokens = s->segment = r->n_prompt;
    s->max_tokens = r->max_tokens;
    s->first_prompt = r->first_prompt ? r->first_prompt : r->n_prompt;
    s->n_spoken = r->n_spoken;
    s->resume = r->resume;
    s->pause_at_stop = r->pause_at_stop;
    s->probe = r->probe;
    memcpy(s->trace_id, r->trace_id, sizeof s->trace_id);
    s->n_logprobs = r->n_logprobs;
    s->n_force = r->n_force;
    s->sampling = r->sampling;
    s->ignore_eos = r->ignore_eos;
    s->contract = r->contract;
    s->priority = r->priority;
    s->kept_back = r->kept_back;
    s->deadline_us = r->deadline_us;
    s->observe = r->observe;
    s->observe_ctx = r->observe_ctx;
    s->trace = r->trace;
    s->observe_prompt = r->observe_prompt && r->observe;
    s->frontier = KV_UNTAINTED;
    s->next_block = -1;
    copy_name(s->tenant, sizeof s->tenant, r->tenant);
    copy_name(s->klass, sizeof s->klass, r->class);
    copy_name(s->session, sizeof s->session, r->session);
    int32_t rows = r->n_prompt + r->max_tokens;
    status = kv_cache_init(&s->cache, shape->n_layers, shape->n_kv_heads, shape->d_head, KV_ROW_TYPE, rows);
    s->tokens = calloc((size_t)rows, sizeof *s->tokens);
    s->force = calloc((size_t)r->n_force + 1, sizeof *s->force);
    s->stream = kv_stream_create(r->max_tokens, r->n_logprobs, backlog);
    if (status != KV_OK || !s->tokens || !s->force || !s->stream) {
        kv_stream_unref(s->stream); /* the reader's reference; destroy drops the engine's */
        kv_sequence_destroy(s);
        return kv_fail(err, KV_OUT_OF_MEMORY, "request", "no memory for a request of %d tokens", rows);
    }
    memcpy(s->tokens, r->prompt, (size_t)r->n_prompt * sizeof *s->tokens);
    if (r->n_force) memcpy(s->force, r->force, (size_t)r->n_force * sizeof *s->force);
    *out = s;
    return KV_OK;
}

void kv_sequence_destroy(struct kv_sequence *s)
{
    if (!s) return;
    kv_selection_destroy(s->selection);
    kv_selection_destroy(s->shadow);
    kv_cache_free(&s->cache, NULL);
    kv_stream_unref(s->stream);
    kv_constraint_destroy(s->constraint);
    free(s->tokens);
    free(s->force);
    free(s);
}

/* ---------------------------------------------------------------- selection */

enum kv_status kv_selection_instance(struct kv_selection *s, int32_t layer, int32_t kv_head, struct kv_selector **out)
{
    struct kv_selector **at = &s->selector[(size_t)layer * (size_t)s->n_kv_heads + (size_t)kv_head];
    enum kv_status status = KV_OK;
    /* The seed depends on the place alone, so that equal requests select equal rows. */
    if (!*at)
        status = s->method->create(&s->params, s->d_head, s->group, s->max_rows, (uint64_t)layer << 32 | (uint32_t)kv_head, at, NULL);
    *out = *at;
    return status;
}

enum kv_status kv_selection_create(const struct kv_selector_method *m, const struct kv_params *p, const struct kv_sequence_shape *shape,
                                   int32_t max_rows, int32_t n_prompt, bool all, struct kv_selection **out, struct kv_error *err)
{
    *out = NULL;
    struct kv_selection *s = calloc(1, sizeof *s);
    if (!s) goto fail;
    *s = (struct kv_selection){.pending = -1, .byte_cost = m->byte_cost, .method = m, .params = *p, .n_layers = shape->n_layers, .n_kv_heads = shape->n_kv_heads,
                               .group = shape->n_q_heads / shape->n_kv_heads, .d_head = shape->d_head, .max_rows = max_rows,
                               .max_blocks = (max_rows + KV_BLOCK_ROWS - 1) / KV_BLOCK_ROWS};
    s->estimates = m->estimate && !m->estimates;
    for (int32_t i = 0; i < m->n_params; i++) {
        if (m->rehearse && !strcmp(m->params[i].name, m->rehearse)) s->rehearses = p->value[i] != 0;
        if (m->estimates && !strcmp(m->params[i].name, m->estimates)) s->estimates = p->value[i] != 0;
    }
    size_t heads = (size_t)s->n_kv_heads, units = (size_t)s->n_layers * heads, group = (size_t)s->group;
    s->selector = calloc(units, sizeof *s->selector);
    s->built = calloc(units, sizeof *s->built);
    s->index = calloc(units, sizeof *s->index);
    s->support = calloc(heads * group * (size_t)s->max_blocks, sizeof *s->support);
    s->estimate = calloc(heads * group * (size_t)s->d_head, sizeof *s->estimate);
    s->mass = calloc(heads * group, sizeof *s->mass);
    s->ledger = calloc(heads, sizeof *s->ledger);
    s->dense_until = calloc(units, sizeof *s->dense_until);
    s->n_prefill_q = n_prompt < KEPT_QUERIES ? n_prompt : KEPT_QUERIES;
    if (n_prompt && m->from_queries) s->prefill_q = calloc(units * (size_t)s->n_prefill_q * group * (size_t)s->d_head, sizeof *s->prefill_q);
    if (!s->selector || !s->built || !s->index || !s->support || !s->estimate || !s->mass || !s->ledger || !s->dense_until || (n_prompt && m->from_queries && !s->prefill_q)) goto fail;
    for (int32_t l = m->dense_layers; all && l < s->n_layers; l++)
        for (int32_t h = 0; h < s->n_kv_heads && !kv_selector_dense(m, l); h++) {
            struct kv_selector *made;
            if (kv_selection_instance(s, l, h, &made) != KV_OK) goto fail;
        }
    *out = s;
    return KV_OK;
fail:
    kv_selection_destroy(s);
    return kv_fail(err, KV_OUT_OF_MEMORY, m->name, "no memory for the index of %d rows", max_rows);
}

void kv_selection_destroy(struct kv_selection *s)
{
    if (!s) return;
    for (size_t i = 0; s->selector && i < (size_t)s->n_layers * (size_t)s->n_kv_heads; i++)
        if (s->selector[i]) s->method->destroy(s->selector[i]);
    free(s->selector);
    free(s->built);
    free(s->index);
    free(s->support);
    free(s->estimate);
    free(s->mass);
    free(s->ledger);
    free(s->dense_until);
    free(s->prefill_q);
    free(s);
}

void kv_selection_keep_queries(struct kv_selection *s, int32_t layer, int32_t n_prompt, int32_t position, int32_t n, const float *queries)
{
    int32_t first = n_prompt - s->n_prefill_q, from = position < first ? first : position, to = position + n < n_prompt ? position + n : n_prompt;
    size_t token = (size_t)s->group * (size_t)s->d_head;
    if (!s->prefill_q || kv_selector_dense(s->method, layer) || from >= to) return;
    if (layer == s->method->dense_layers && from - first <= s->kept_q && to - first > s->kept_q) s->kept_q = to - first;
    for (int32_t h = 0; h < s->n_kv_heads; h++) {
        size_t unit = (size_t)layer * (size_t)s->n_kv_heads + (size_t)h;
        memcpy(s->prefill_q + (unit * (size_t)s->n_prefill_q + (size_t)(from - first)) * token,
               queries + ((size_t)h * (size_t)n + (size_t)(from - position)) * token, (size_t)(to - from) * token * sizeof *queries);
    }
}

struct kv_rows kv_selection_rows(const struct kv_selection *s, const struct kv_attention *a, int32_t n_visible)
{
    return (struct kv_rows){.d_head = s->d_head, .group = s->group, .n_rows = n_visible, .row_type = a->row_type, .k = a->k, .v = a->v,
                            .scale = a->scale};
}

/* Some of the build over rows [0, rows->n_rows), or all of it. */
static enum kv_status build(struct kv_selection *s, size_t unit, const struct kv_rows *rows)
{
    int64_t began = kv_now_ns();
    bool done = true;
    enum kv_status status;
    const float *q = s->prefill_q && s->kept_q == s->n_prefill_q ? s->prefill_q + unit * (size_t)s->n_prefill_q * (size_t)s->group * (size_t)s->d_head : NULL;
    int32_t n_q = q ? s->n_prefill_q : 0;
    if (s->method->build_some && s->build_share > 0) {
        double dense = 2.0 * rows->n_rows * s->d_head * s->group, share = s->build_share * dense;
        int64_t products = share < LEAST_BUILD ? LEAST_BUILD : share > 1e15 ? (int64_t)1e15 : (int64_t)share;
        status = s->method->build_some(s->selector[unit], rows, q, n_q, products, &done);
    } else {
        status = s->method->build(s->selector[unit], rows, q, n_q);
    }
    s->built[unit] = status == KV_OK && done;
    s->index[unit] = (struct kv_index_snapshot){.source = s->source, .selector = s->generation, .index = {s->index[unit].index.n + 1}};
    atomic_fetch_add_explicit(&s->build_ns, (uint64_t)(kv_now_ns() - began), memory_order_relaxed);
    return status;
}

/* The index covers rows [0, n_visible) afterwards, unless its build goes on (built is false then): built over build_rows, to which the others are
 * then appended. A step that was discarded has left its row behind; it is dropped first. */
static enum kv_status catch_up(struct kv_selection *s, size_t unit, const struct kv_attention *a, int32_t n_visible)
{
    struct kv_selector *sel = s->selector[unit];
    struct kv_rows rows = kv_selection_rows(s, a, s->build_rows && s->build_rows < n_visible ? s->build_rows : n_visible - 1);
    enum kv_status status = s->built[unit] ? KV_OK : build(s, unit, &rows);
    if (status != KV_OK || !s->built[unit]) return status;
    int32_t covered = s->method->covered(sel);
    if (covered >= n_visible) {
        status = s->method->drop(sel, n_visible - 1);
        covered = n_visible - 1;
    }
    rows.n_rows = n_visible;
    if (status == KV_OK) status = s->method->append(sel, &rows, covered);
    s->index[unit].index.n++;
    s->index[unit].covered = s->method->covered(sel);
    return status;
}

/* Whether the index may answer for these rows: never one of another source or under other parameters, or of fewer rows. */
static enum kv_status validate(const struct kv_selection *s, size_t unit, int32_t n_visible)
{
    struct kv_index_snapshot seen = s->index[unit];
    if (kv_fault_strikes(s->faults, KV_FAULT_swapped_index)) memset(&seen.source, 0xff, sizeof seen.source);
    if (kv_fault_strikes(s->faults, KV_FAULT_aged_index)) seen.selector.n--;
    return kv_index_validate(&s->source, n_visible, &seen, s->generation, NULL);
}

/* All rows as the answer of one head. */
static void take_all(struct kv_selection *s, const struct kv_rows *rows, int32_t n_blocks, uint64_t *support, struct kv_ledger *ledger)
{
    memset(support, 0, (size_t)s->group * (size_t)n_blocks * sizeof *support);
    for (int32_t g = 0; g < s->group; g++) kv_mask_set_range(support + (size_t)g * (size_t)n_blocks, 0, rows->n_rows);
    ledger->candidate_bytes = ledger->candidates = 0;
    kv_ledger_support(ledger, rows, support, n_blocks, NULL);
}

enum kv_status kv_selection_query(struct kv_selection *s, int32_t layer, int32_t kv_head, const struct kv_attention *a,
                                  int32_t n_visible, int32_t widen, double *estimated_mass, int64_t *omitted)
{
    size_t unit = (size_t)layer * (size_t)s->n_kv_heads + (size_t)kv_head, group = (size_t)s->group, blocks = (size_t)a->n_blocks;
    *estimated_mass = -1;
    *omitted = 0;
    if (!s->selector[unit]) return KV_INDEX_MISS;
    struct kv_rows rows = kv_selection_rows(s, a, n_visible);
    if (n_visible < s->dense_until[unit]) {
        atomic_fetch_add_explicit(&s->whole, 1, memory_order_relaxed);
        take_all(s, &rows, a->n_blocks, s->support + (size_t)kv_head * group * (size_t)s->max_blocks, &s->ledger[kv_head]);
        return KV_OK;
    }
    enum kv_status status = widen ? KV_OK : catch_up(s, unit, a, n_visible);
    if (status != KV_OK) return status;
    if (!s->built[unit]) {
        atomic_fetch_add_explicit(&s->waits, 1, memory_order_relaxed);
        take_all(s, &rows, a->n_blocks, s->support + (size_t)kv_head * group * (size_t)s->max_blocks, &s->ledger[kv_head]);
        return KV_OK;
    }
    if ((status = validate(s, unit, n_visible)) != KV_OK) return status;
    if (kv_fault_strikes(s->faults, KV_FAULT_index_before_row)) rows.n_rows--; /* the query must refuse an index that is ahead of them */
    int64_t began = kv_now_ns();
    struct kv_ledger *ledger = &s->ledger[kv_head];
    ledger->trace = NULL;
    uint64_t *support = s->support + (size_t)kv_head * group * (size_t)s->max_blocks;
    double *mass = s->mass + (size_t)kv_head * group;
    status = s->method->query(s->selector[unit], &rows, a->q, widen, support, a->n_blocks, mass, ledger);
    if (status != KV_OK) return status;
    if ((double)(ledger->candidate_bytes + ledger->payload_bytes) * s->byte_cost >= 2.0 * n_visible * (double)kv_rows_row_bytes(&rows)) {
        if (!widen) s->dense_until[unit] = n_visible + n_visible / 8 + 1;
        atomic_fetch_add_explicit(&s->whole, 1, memory_order_relaxed);
        take_all(s, &rows, a->n_blocks, support, ledger);
    }
    atomic_fetch_add_explicit(&s->queries, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->query_ns, (uint64_t)(kv_now_ns() - began), memory_order_relaxed);
    atomic_fetch_add_explicit(&s->ranked_bytes, ledger->candidate_bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->rows, ledger->rows, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->visible, (uint64_t)n_visible, memory_order_relaxed);
    for (size_t g = 0; g < group; g++) {
        *omitted += n_visible - kv_mask_count(support + g * blocks, a->n_blocks);
        if (mass[g] > *estimated_mass || mass[g] != mass[g]) *estimated_mass = mass[g]; /* what is no number stays: nothing compares with it */
    }
    if (*omitted == 0 && !(*estimated_mass <= 0)) *estimated_mass = 0; /* all rows were taken after it was made */
    return KV_OK;
}
