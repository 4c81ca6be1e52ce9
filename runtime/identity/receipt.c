/* receipt.c — the first reason to refuse a receipt. */
#include "runtime/identity/receipt.h"

#include <math.h>
#include <string.h>

#define REFUSE(reason, where, ...) return kv_fail(err, reason, where, __VA_ARGS__)

static bool same(const char *a, const char *b)
{
    return !strncmp(a, b, KV_NAME_CHARS);
}

/* Both heads are named everywhere, because "head 2" alone means two things. */
static enum kv_status same_place(const struct kv_decode_operation *op, const char *what, int32_t layer, int32_t q_head, int32_t kv_head, struct kv_error *err)
{
    if (layer != op->layer) REFUSE(KV_LAYER_MISMATCH, what, "the receipt is of layer %d, the operation of layer %d", layer, op->layer);
    if (q_head != op->q_head) REFUSE(KV_QUERY_MISMATCH, what, "the receipt is of q head %d, the operation of q head %d", q_head, op->q_head);
    if (kv_head != op->kv_head) REFUSE(KV_KV_HEAD_MISMATCH, what, "q head %d belongs to K/V head %d, not %d", op->q_head, op->kv_head, kv_head);
    return KV_OK;
}

enum kv_status kv_operation_validate(const struct kv_decode_operation *op, struct kv_error *err)
{
    static const char *const fallbacks[] = {"broaden_search", "exact_promote", "recompute", "reject"};
    if (op->n_kv_heads < 1 || op->n_q_heads < op->n_kv_heads || op->n_q_heads % op->n_kv_heads || op->q_head < 0 || op->q_head >= op->n_q_heads)
        REFUSE(KV_BAD_ARGUMENT, "operation.q_head", "%d q heads over %d K/V heads have no q head %d", op->n_q_heads, op->n_kv_heads, op->q_head);
    int32_t owner = op->q_head / (op->n_q_heads / op->n_kv_heads);
    if (op->kv_head != owner) REFUSE(KV_KV_HEAD_MISMATCH, "operation.kv_head", "q head %d belongs to K/V head %d, not %d", op->q_head, owner, op->kv_head);
    if (op->decode_position < op->source.committed_frontier)
        REFUSE(KV_BAD_ARGUMENT, "operation.decode_position", "position %lld lies before the committed frontier", (long long)op->decode_position);
    bool known = false;
    for (size_t i = 0; i < sizeof fallbacks / sizeof *fallbacks; i++) known |= same(op->fallback, fallbacks[i]);
    if (!known) REFUSE(KV_FALLBACK_UNDECLARED, "operation.fallback", "'%s' is no declared fallback", op->fallback);
    if (op->deadline_us > 0 && !op->clock_origin[0]) REFUSE(KV_CLOCK_ORIGIN_MISSING, "operation.clock_origin", "the deadline has no clock origin");
    return KV_OK;
}

enum kv_status kv_index_validate(const struct kv_source_digest *source, int64_t frontier, const struct kv_index_snapshot *index, struct kv_selector_generation current,
                                 struct kv_error *err)
{
    if (memcmp(index->source.b, source->b, 32)) REFUSE(KV_IDENTITY_MISMATCH, "index.source", "the index was built over another source");
    if (index->selector.n != current.n)
        REFUSE(KV_STALE_SELECTOR_GENERATION, "index.selector_generation", "the index binds selector generation %llu, current is %llu", (unsigned long long)index->selector.n, (unsigned long long)current.n);
    if (index->covered < 0 || index->covered > frontier)
        REFUSE(KV_STALE_INDEX, "index.covered", "the index claims %lld rows of %lld committed", (long long)index->covered, (long long)frontier);
    if (index->covered < frontier && !index->exact_rest)
        REFUSE(KV_STALE_INDEX, "index.covered", "rows %lld to %lld have neither index nor declared exact set", (long long)index->covered, (long long)frontier);
    return KV_OK;
}

enum kv_status kv_lookup_validate(const struct kv_decode_operation *op, const struct kv_index_snapshot *index, const struct kv_lookup_receipt *r, struct kv_error *err)
{
    if (!same(r->semantics, "candidate_ids_only")) REFUSE(KV_CANDIDATE_SEMANTICS, "lookup.semantics", "a lookup answers candidate ids only, not '%s'", r->semantics);
    if (memcmp(r->query.b, op->query.b, 32)) REFUSE(KV_QUERY_MISMATCH, "lookup.query", "the lookup answers another query");
    enum kv_status s = same_place(op, "lookup", r->layer, r->q_head, r->kv_head, err);
    if (s != KV_OK) return s;
    if (r->index.n != index->index.n) REFUSE(KV_STALE_INDEX_GENERATION, "lookup.index_generation", "index generation %llu, current is %llu", (unsigned long long)r->index.n, (unsigned long long)index->index.n);
    if (r->selector.n != index->selector.n) REFUSE(KV_STALE_SELECTOR_GENERATION, "lookup.selector_generation", "selector generation %llu, the index binds %llu", (unsigned long long)r->selector.n, (unsigned long long)index->selector.n);
    if (r->cache.n != op->source.cache.n) REFUSE(KV_STALE_CACHE_GENERATION, "lookup.source_cache_generation", "cache generation %llu, current is %llu", (unsigned long long)r->cache.n, (unsigned long long)op->source.cache.n);
    if (r->committed_frontier != index->covered) REFUSE(KV_STALE_INDEX, "lookup.source_committed_frontier", "the lookup saw %lld rows, the index covers %lld", (long long)r->committed_frontier, (long long)index->covered);
    for (int32_t i = 0; i < r->n; i++) {
        if (r->positions[i] < 0 || r->positions[i] >= index->covered) REFUSE(KV_CANDIDATE_OUT_OF_RANGE, "lookup.positions", "candidate %d lies outside [0, %lld)", r->positions[i], (long long)index->covered);
        if (i && r->positions[i] <= r->positions[i - 1]) REFUSE(KV_CANDIDATE_DUPLICATE, "lookup.positions", "candidate %d is not above %d", r->positions[i], r->positions[i - 1]);
    }
    if (r->n_scores != r->n) REFUSE(KV_CANDIDATE_SCORE_MISSING, "lookup.scores", "%d candidates have %d scores", r->n, r->n_scores);
    for (int32_t i = 0; i < r->n; i++)
        if (!isfinite(r->scores[i])) REFUSE(KV_CANDIDATE_SCORE_MISSING, "lookup.scores", "the score of candidate %d is not a number", r->positions[i]);
    return KV_OK;
}

static const struct kv_replica_fact *replica_of(const struct kv_directory_facts *d, struct kv_replica_generation g)
{
    for (int32_t i = 0; i < d->n; i++)
        if (d->replica[i].replica.n == g.n) return &d->replica[i];
    return NULL;
}

enum kv_status kv_directory_facts_validate(const struct kv_decode_operation *op, const struct kv_directory_facts *d, struct kv_error *err)
{
    int32_t valid = 0;
    for (int32_t i = 0; i < d->n; i++) {
        const struct kv_replica_fact *r = &d->replica[i];
        if (!same(r->tenant, op->source.tenant)) REFUSE(KV_TENANT_MISMATCH, "replicas.tenant", "a replica of tenant '%s' under '%s'", r->tenant, op->source.tenant);
        if (!r->payload_rows) REFUSE(KV_PROXY_NOT_AUTHORITY, "replicas.holds", "a proxy or index entry cannot rebuild K/V");
        if (!same(r->codec, d->codec)) REFUSE(KV_CODEC_MISMATCH, "replicas.codec", "codec '%s', declared '%s'", r->codec, d->codec);
        if (!same(r->layout, d->layout)) REFUSE(KV_CACHE_LAYOUT_MISMATCH, "replicas.layout", "layout '%s', declared '%s'", r->layout, d->layout);
        if (memcmp(r->payload.b, d->payload.b, 32)) REFUSE(KV_CHECKSUM_MISMATCH, "replicas.payload", "a replica's payload is not the chunk's");
        valid += r->authority.n == d->authority.n;
    }
    if (valid < d->required) REFUSE(KV_LAST_REPLICA, "replicas", "%d valid replicas at the authority epoch, %d are required", valid, d->required);
    return KV_OK;
}

enum kv_status kv_gather_validate(const struct kv_decode_operation *op, const struct kv_lookup_receipt *lookup, const struct kv_directory_facts *d,
                                  const struct kv_gather_destination *to, const struct kv_gather_receipt *r, struct kv_error *err)
{
    enum kv_status s = same_place(op, "gather", r->layer, r->q_head, r->kv_head, err);
    if (s != KV_OK) return s;
    if (r->n != lookup->n) REFUSE(KV_GATHER_POSITION_MISMATCH, "gather.positions", "%d rows were gathered for %d candidates", r->n, lookup->n);
    for (int32_t i = 0; i < r->n; i++)
        if (r->positions[i] != lookup->positions[i]) REFUSE(KV_GATHER_POSITION_MISMATCH, "gather.positions", "row %d holds position %d, the candidate is %d", i, r->positions[i], lookup->positions[i]);
    if (r->n_sources != r->n) REFUSE(KV_STALE_REPLICA_GENERATION, "gather.source_replicas", "%d rows name %d replicas", r->n, r->n_sources);
    for (int32_t i = 0; i < r->n; i++) {
        const struct kv_replica_fact *from = replica_of(d, r->source[i]);
        if (!from) REFUSE(KV_STALE_REPLICA_GENERATION, "gather.source_replicas", "no replica of generation %llu", (unsigned long long)r->source[i].n);
        if (from->authority.n != d->authority.n) REFUSE(KV_STALE_AUTHORITY_EPOCH, "gather.source_replicas", "replica %llu belongs to epoch %llu, current is %llu", (unsigned long long)from->replica.n, (unsigned long long)from->authority.n, (unsigned long long)d->authority.n);
    }
    if (r->destination.n != to->allocation.n) REFUSE(KV_RECYCLED_DESTINATION, "gather.destination_allocation", "the destination is at allocation %llu, the gather wrote %llu", (unsigned long long)to->allocation.n, (unsigned long long)r->destination.n);
    if (r->visible.n == 0 || r->visible.n > to->reached.n) REFUSE(KV_NOT_VISIBLE, "gather.visibility_event", "event %llu was not reached, the consumer waited for %llu", (unsigned long long)r->visible.n, (unsigned long long)to->reached.n);
    return KV_OK;
}

enum kv_status kv_partial_validate(const struct kv_decode_operation *op, const int32_t *expected, int32_t n_expected, const struct kv_partial_receipt *r, struct kv_error *err)
{
    if (op->fallback_published) REFUSE(KV_FALLBACK_PUBLISHED, "partial", "the fallback was published first");
    if (!same(r->tenant, op->source.tenant)) REFUSE(KV_TENANT_MISMATCH, "partial.tenant", "a partial of tenant '%s' under '%s'", r->tenant, op->source.tenant);
    if (r->request.n != op->source.request.n) REFUSE(KV_STALE_REQUEST_GENERATION, "partial.request_generation", "request generation %llu, current is %llu", (unsigned long long)r->request.n, (unsigned long long)op->source.request.n);
    if (r->checkpoint.n != op->source.checkpoint.n) REFUSE(KV_CHECKPOINT_MISMATCH, "partial.checkpoint_generation", "checkpoint generation %llu, current is %llu", (unsigned long long)r->checkpoint.n, (unsigned long long)op->source.checkpoint.n);
    enum kv_status s = same_place(op, "partial", r->layer, r->q_head, r->kv_head, err);
    if (s != KV_OK) return s;
    if (r->query_position != op->decode_position || memcmp(r->query.b, op->query.b, 32)) REFUSE(KV_QUERY_MISMATCH, "partial.query", "the partial answers another query");
    if (memcmp(r->mask.b, op->mask.b, 32)) REFUSE(KV_MASK_MISMATCH, "partial.mask", "the partial was made under another mask");
    if (r->score_scale != op->score_scale) REFUSE(KV_SCORE_SCALE_MISMATCH, "partial.score_scale", "score scale %g, the operation has %g", r->score_scale, op->score_scale);
    if (!same(r->schema, "fp32-m-l-u-v1")) REFUSE(KV_STATE_SCHEMA, "partial.schema", "state schema '%s'", r->schema);
    if (!r->has_mass || !(r->l > 0) || !isfinite(r->m)) REFUSE(KV_MASS_MISSING, "partial.l", "an output without m and l cannot be merged");
    bool equal = r->n == n_expected;
    for (int32_t i = 0; equal && i < r->n; i++) equal = r->positions[i] == expected[i];
    struct kv_support_digest d = kv_support_digest(r->positions, r->n);
    if (!equal || memcmp(d.b, r->support.b, 32)) REFUSE(KV_SUPPORT_MISMATCH, "partial.support", "the support has a gap, an overlap, or another digest than it claims");
    if (r->completed.n == 0) REFUSE(KV_NOT_VISIBLE, "partial.completed", "the partial has no completion event");
    return KV_OK;
}
