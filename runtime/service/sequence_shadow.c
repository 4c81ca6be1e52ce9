/* sequence_shadow.c — sampled units set beside the dense reference: for baseline sequences while a candidate is in shadow, and for
 * sequences that a candidate serves. Exact placements are compared by bits, selectors by omitted mass and output error.
 *
 * Which unit is sampled is a hash of (request, layer, K/V head, position): a replay samples the same. */
#include "runtime/service/engine.h"

#include "runtime/evaluate/shadow.h"

#include <string.h>

#define SHADOW_BUILD 0.03 /* products spent on an unfinished index, of a step's dense ones: a hundredth of its time, since clustering runs three times as fast */

static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static bool sampled(const struct kv_engine *e, uint64_t request, int32_t layer, int32_t kv_head, int32_t position)
{
    uint64_t h = mix(mix(mix(request) ^ (uint32_t)position) ^ ((uint64_t)(uint32_t)layer << 32 | (uint32_t)kv_head));
    return (double)(h >> 11) < e->config.shadow_fraction * 0x1p53;
}

/* ---------------------------------------------------------------- selectors: worker threads */

static void evaluate(void *ctx, int32_t worker, int32_t i)
{
    struct kv_engine *e = ctx;
    struct kv_shadow_job *j = &e->jobs[i];
    struct kv_sequence *s = j->item->owner;
    struct kv_selection *sel = j->served ? s->selection : s->shadow;
    struct kv_attention a = kv_attention_view(kv_transformer_attention(e->transformer), j->item, j->kv_head);
    int32_t n_visible = j->item->position + 1;
    struct kv_rows rows = kv_selection_rows(sel, &a, n_visible);
    struct kv_shadow_unit u = {.rows = &rows, .q = a.q, .support = a.support, .n_blocks = a.n_blocks};
    /* What was published is one side of the comparison already: all rows, or the support of an accepted selection. */
    struct kv_states published = kv_attention_state(kv_transformer_attention(e->transformer), j->item, j->kv_head);
    if (!a.support) u.whole = published;
    else if (!sel->estimates) u.part = published;
    if (j->served) {
        u.output = kv_attention_output(kv_transformer_attention(e->transformer)) +
                   ((size_t)j->item->row * (size_t)e->shape.n_q_heads + (size_t)j->kv_head * (size_t)sel->group) * (size_t)sel->d_head;
        u.estimator = sel->estimates;
    } else {
        double mass;
        int64_t omitted;
        j->status = kv_selection_query(sel, e->job_layer, j->kv_head, &a, n_visible, 0, &mass, &omitted);
        j->unbuilt = j->status == KV_OK && !sel->built[(size_t)e->job_layer * (size_t)sel->n_kv_heads + (size_t)j->kv_head];
        if (j->status != KV_OK || j->unbuilt || j->unsampled) return;
        u.support = sel->support + (size_t)j->kv_head * (size_t)sel->group * (size_t)sel->max_blocks;
        if ((u.estimator = omitted > 0 && sel->estimates)) {
            struct kv_selector *instance;
            kv_selection_instance(sel, e->job_layer, j->kv_head, &instance);
            j->status = sel->method->estimate(instance, &rows, a.q, u.support, a.n_blocks, e->shadow_output[worker]);
            if (j->status != KV_OK) return;
            u.output = e->shadow_output[worker];
        }
    }
    j->sample.bytes = sel->ledger[j->kv_head].candidate_bytes + sel->ledger[j->kv_head].transfer_bytes;
    j->status = kv_shadow_online(&u, e->shadow_scratch[worker], e->shadow_doubles, &j->sample);
}

/* ---------------------------------------------------------------- exact placements: decode thread */

/* The head again through other copies of its rows, and whether the bits are those that were published. */
static void compare(struct kv_engine *e, struct kv_shadow_job *j, const uint8_t *const *blocks)
{
    struct kv_attention_runner *r = kv_transformer_attention(e->transformer);
    size_t group = (size_t)(e->shape.n_q_heads / e->shape.n_kv_heads), d = (size_t)e->shape.d_head;
    const float *published = kv_attention_output(r) + ((size_t)j->item->row * (size_t)e->shape.n_q_heads + (size_t)j->kv_head * group) * d;
    kv_attention_once(r, 0, j->item, j->kv_head, blocks, e->shadow_output[0]);
    j->sample.exact_equal = memcmp(published, e->shadow_output[0], group * d * sizeof(float)) == 0;
    j->sample.bound_holds = true;
    j->sample.rows_selected = j->item->position + 1;
    j->status = KV_OK;
}

static void compare_all(struct kv_engine *e, int32_t layer)
{
    for (int32_t i = 0; i < e->n_jobs; i++) {
        struct kv_shadow_job *j = &e->jobs[i];
        struct kv_cache *c = j->item->cache;
        if (j->served) { /* published through the candidate's copies: compare with the authoritative rows */
            compare(e, j, (const uint8_t *const *)c->slab + (size_t)layer * (size_t)c->max_blocks);
            continue;
        }
        j->status = e->now.placement->acquire(e->placements, c, layer);
        if (j->status != KV_OK) continue;
        compare(e, j, (const uint8_t *const *)c->read);
        e->now.placement->release(e->placements, c, layer);
    }
}

/* ---------------------------------------------------------------- units of a layer */

/* A baseline sequence meets the candidate in shadow with its own index, the one that would serve it. */
static bool open_shadow(struct kv_engine *e, struct kv_sequence *s)
{
    if (s->shadow && s->shadow_candidate != e->now.candidate.id) {
        kv_selection_destroy(s->shadow);
        s->shadow = NULL;
    }
    if (!s->shadow && kv_selection_create(e->now.method, &e->now.candidate.params, &e->shape, s->n_prompt + s->max_tokens, s->n_prompt, false, &s->shadow, NULL) != KV_OK)
        return false;
    if (e->now.candidate.index_share > 0) s->shadow->build_share = SHADOW_BUILD * e->shape.n_layers * e->shape.n_kv_heads;
    s->shadow->byte_cost = e->now.candidate.byte_cost;
    s->shadow->build_rows = s->n_prompt;
    s->shadow_candidate = e->now.candidate.id;
    kv_sequence_bind(e, s, s->shadow, s->shadow_candidate);
    return true;
}

static bool shadow_ready(struct kv_engine *e, struct kv_sequence *s, int32_t layer, int32_t kv_head)
{
    if (!e->now.method) return !e->now.placement->admit || e->now.placement->admit(e->placements, s->n_prompt + s->max_tokens) == KV_OK;
    if (!open_shadow(e, s)) return false;
    struct kv_selector *made;
    return kv_selection_instance(s->shadow, layer, kv_head, &made) == KV_OK;
}

static void collect(struct kv_engine *e, struct kv_step_item *it, int32_t layer)
{
    struct kv_sequence *s = it->owner;
    bool served = s->candidate != 0;
    if (s->probe || it->n != 1 || it->position < s->n_prompt || s->recomputing || (!served && !(e->now.shadow && e->now.candidate.id))) return;
    if (served && s->selection && !it->selects) return;
    const struct kv_selector_method *m = e->now.method;
    if (m && kv_selector_dense(m, layer)) return;
    for (int32_t h = 0; h < e->shape.n_kv_heads; h++) {
        bool due = !served && s->shadow && s->shadow->pending == layer * e->shape.n_kv_heads + h, taken = sampled(e, s->id, layer, h, it->position);
        if (!taken && !due) continue;
        if (e->step_jobs >= e->config.shadow_queue || !(served || shadow_ready(e, s, layer, h))) {
            e->stats.units_dropped++;
            continue;
        }
        e->step_jobs++;
        e->jobs[e->n_jobs++] = (struct kv_shadow_job){
            .item = it, .kv_head = h, .served = served, .unsampled = !taken,
            .sample = {.kind = KV_SAMPLE_UNIT, .request = s->id, .candidate = e->now.candidate.id, .layer = layer, .kv_head = h,
                       .position = it->position, .shadow = !served, .rows_total = it->position + 1}};
    }
}

/* An index longer in the making than one part: one of a sequence is built at a time, in every step, and its unit is not measured before. */
static bool building(struct kv_engine *e, struct kv_shadow_job *j)
{
    struct kv_selection *sel = ((struct kv_sequence *)j->item->owner)->shadow;
    int32_t unit = e->job_layer * e->shape.n_kv_heads + j->kv_head;
    if (j->served || !e->now.method) return false;
    bool goes_on = j->status == KV_OK && j->unbuilt;
    if (!goes_on && sel->pending == unit) sel->pending = -1;
    if (goes_on && sel->pending < 0) sel->pending = unit;
    e->stats.units_dropped += goes_on && !j->unsampled;
    return j->status == KV_OK && (j->unbuilt || j->unsampled);
}

static void report(struct kv_engine *e, struct kv_shadow_job *j)
{
    if (building(e, j)) return;
    if (j->status != KV_OK) {
        kv_report_failure(e, j->item->owner, j->status, "a shadowed unit could not be evaluated");
        return;
    }
    e->stats.units_sampled++;
    if (j->served) {
        struct kv_sequence *s = j->item->owner;
        s->selected.mass += j->sample.omitted_mass;
        s->selected.units++;
    }
    if (!e->now.method && !j->sample.exact_equal) {
        e->stats.exact_mismatches++;
        kv_report_failure(e, j->item->owner, KV_EXACT_MISMATCH, "attention through the placement's copies has other bits");
    }
    kv_report_sample(e, &j->sample);
}

void kv_sequence_keep_queries(struct kv_engine *e, struct kv_step_item *it, int32_t layer, const float *queries)
{
    struct kv_sequence *s = it->owner;
    bool shadowed = e->now.shadow && e->now.candidate.id && e->now.method && e->now.method->from_queries && e->config.shadow_fraction > 0 && !s->candidate && !s->probe;
    if (s->selection) kv_selection_keep_queries(s->selection, layer, s->n_prompt, it->position, it->n, queries);
    if (shadowed && it->position < s->n_prompt && open_shadow(e, s)) kv_selection_keep_queries(s->shadow, layer, s->n_prompt, it->position, it->n, queries);
}

void kv_sequence_shadow(struct kv_engine *e, struct kv_step_item *const *items, int32_t n_items, int32_t layer)
{
    if (!e->now.candidate.id || e->config.shadow_fraction <= 0) return;
    e->n_jobs = 0;
    e->job_layer = layer;
    for (int32_t i = 0; i < n_items; i++) collect(e, items[i], layer);
    if (e->n_jobs == 0) return;
    if (e->now.method) kv_workers_run(e->workers, evaluate, e, e->n_jobs);
    else compare_all(e, layer);
    for (int32_t i = 0; i < e->n_jobs; i++) report(e, &e->jobs[i]);
}
