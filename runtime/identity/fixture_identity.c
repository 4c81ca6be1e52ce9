/* fixture_identity.c — the identity fixture: one query traced from source to partial state (source 0x01J), checked by the very functions
 * that check a live one. */
#include "runtime/evaluate/fixture.h"
#include "runtime/identity/receipt.h"

#include <stdio.h>
#include <string.h>

enum { MAX_ROWS = 16, MAX_D = 16 };

/* A digest is given as 64 hex digits, or as a label to be hashed. */
static void read_digest(uint8_t out[32], const char *text)
{
    unsigned byte;
    size_t n = strlen(text), i = 0;
    for (; n == 64 && i < 32 && sscanf(text + 2 * i, "%2x", &byte) == 1; i++) out[i] = (uint8_t)byte;
    if (i != 32) kv_sha256(text, n, out);
}

static void read_name(char out[KV_NAME_CHARS], const char *text)
{
    memset(out, 0, KV_NAME_CHARS);
    snprintf(out, KV_NAME_CHARS, "%s", text);
}

static void read_binding(struct kv_fixture_reader *r, const char *at, struct kv_source_binding *b)
{
    memset(b, 0, sizeof *b);
    read_digest(b->logical_cache_abi.b, kv_fixture_text(r, "%s.logical_cache_abi", at));
    read_digest(b->cache_layout.b, kv_fixture_text(r, "%s.cache_layout", at));
    read_digest(b->visibility_policy.b, kv_fixture_text(r, "%s.visibility_policy", at));
    read_digest(b->model_artifact.b, kv_fixture_text(r, "%s.model_artifact", at));
    b->checkpoint.n = (uint64_t)kv_fixture_integer(r, "%s.checkpoint_generation", at);
    read_digest(b->adapter_set.b, kv_fixture_text(r, "%s.adapter_set", at));
    read_digest(b->position_contract.b, kv_fixture_text(r, "%s.position_contract", at));
    read_digest(b->rope_config.b, kv_fixture_text(r, "%s.rope_config", at));
    read_name(b->tenant, kv_fixture_text(r, "%s.tenant_namespace", at));
    b->ns.n = (uint64_t)kv_fixture_integer(r, "%s.namespace_generation", at);
    b->request.n = (uint64_t)kv_fixture_integer(r, "%s.request_generation", at);
    b->cache.n = (uint64_t)kv_fixture_integer(r, "%s.cache_generation", at);
    b->publication.n = (uint64_t)kv_fixture_integer(r, "%s.publication_generation", at);
    b->committed_frontier = kv_fixture_integer(r, "%s.committed_frontier", at);
}

static void read_operation(struct kv_fixture_reader *r, struct kv_decode_operation *op)
{
    op->manifest.n = (uint64_t)kv_fixture_integer(r, "operation.manifest_generation");
    op->n_q_heads = (int32_t)kv_fixture_integer(r, "tensor.q_heads");
    op->n_kv_heads = (int32_t)kv_fixture_integer(r, "tensor.kv_heads");
    op->layer = (int32_t)kv_fixture_integer(r, "operation.layer");
    op->q_head = (int32_t)kv_fixture_integer(r, "operation.q_head");
    op->kv_head = (int32_t)kv_fixture_integer(r, "operation.kv_head");
    op->decode_position = kv_fixture_integer(r, "operation.decode_position");
    read_digest(op->query.b, kv_fixture_text(r, "operation.query"));
    read_digest(op->mask.b, kv_fixture_text(r, "operation.mask"));
    op->score_scale = kv_fixture_number(r, "operation.score_scale");
    op->deadline_us = kv_fixture_integer(r, "operation.deadline_us");
    read_name(op->clock_origin, kv_fixture_text(r, "operation.clock_origin"));
    read_name(op->fallback, kv_fixture_text(r, "operation.fallback"));
    op->fallback_published = kv_fixture_bool(r, "operation.fallback_published");
}

static void read_directory(struct kv_fixture_reader *r, struct kv_directory_facts *d)
{
    d->authority.n = (uint64_t)kv_fixture_integer(r, "directory.authority_epoch");
    d->required = (int32_t)kv_fixture_integer(r, "directory.required");
    read_digest(d->payload.b, kv_fixture_text(r, "directory.payload"));
    read_name(d->codec, kv_fixture_text(r, "directory.codec"));
    read_name(d->layout, kv_fixture_text(r, "directory.layout"));
    d->n = kv_fixture_count(r, KV_RECEIPT_MAX_REPLICAS, "directory.replicas");
    for (int32_t i = 0; i < d->n; i++) {
        struct kv_replica_fact *f = &d->replica[i];
        f->replica.n = (uint64_t)kv_fixture_integer(r, "directory.replicas.%d.generation", (int)i);
        f->authority.n = (uint64_t)kv_fixture_integer(r, "directory.replicas.%d.authority_epoch", (int)i);
        read_name(f->tenant, kv_fixture_text(r, "directory.replicas.%d.tenant", (int)i));
        read_name(f->codec, kv_fixture_text(r, "directory.replicas.%d.codec", (int)i));
        read_name(f->layout, kv_fixture_text(r, "directory.replicas.%d.layout", (int)i));
        read_digest(f->payload.b, kv_fixture_text(r, "directory.replicas.%d.payload", (int)i));
        f->payload_rows = !strcmp(kv_fixture_text(r, "directory.replicas.%d.holds", (int)i), "rows");
    }
}

static int32_t read_positions(struct kv_fixture_reader *r, const char *at, int32_t out[MAX_ROWS])
{
    int32_t n = kv_fixture_count(r, MAX_ROWS, "%s", at);
    for (int32_t i = 0; i < n; i++) out[i] = (int32_t)kv_fixture_integer(r, "%s.%d", at, (int)i);
    return n;
}

static void read_lookup(struct kv_fixture_reader *r, struct kv_lookup_receipt *l, int32_t positions[MAX_ROWS], double scores[MAX_ROWS])
{
    read_name(l->semantics, kv_fixture_text(r, "lookup.semantics"));
    l->index.n = (uint64_t)kv_fixture_integer(r, "lookup.index_generation");
    l->selector.n = (uint64_t)kv_fixture_integer(r, "lookup.selector_generation");
    l->cache.n = (uint64_t)kv_fixture_integer(r, "lookup.source_cache_generation");
    l->committed_frontier = kv_fixture_integer(r, "lookup.source_committed_frontier");
    read_digest(l->query.b, kv_fixture_text(r, "lookup.query"));
    l->layer = (int32_t)kv_fixture_integer(r, "lookup.layer");
    l->q_head = (int32_t)kv_fixture_integer(r, "lookup.q_head");
    l->kv_head = (int32_t)kv_fixture_integer(r, "lookup.kv_head");
    l->positions = positions;
    l->n = read_positions(r, "lookup.candidate_original_positions", positions);
    l->scores = scores;
    l->n_scores = kv_fixture_count(r, MAX_ROWS, "lookup.scores");
    for (int32_t i = 0; i < l->n_scores; i++) scores[i] = kv_fixture_number(r, "lookup.scores.%d", (int)i);
}

static void read_gather(struct kv_fixture_reader *r, struct kv_gather_receipt *g, int32_t positions[MAX_ROWS], struct kv_replica_generation from[MAX_ROWS])
{
    g->layer = (int32_t)kv_fixture_integer(r, "gather.layer");
    g->q_head = (int32_t)kv_fixture_integer(r, "gather.q_head");
    g->kv_head = (int32_t)kv_fixture_integer(r, "gather.kv_head");
    g->positions = positions;
    g->n = read_positions(r, "gather.original_positions", positions);
    g->source = from;
    g->n_sources = kv_fixture_count(r, MAX_ROWS, "gather.source_replica_generations");
    for (int32_t i = 0; i < g->n_sources; i++) from[i].n = (uint64_t)kv_fixture_integer(r, "gather.source_replica_generations.%d", (int)i);
    g->destination.n = (uint64_t)kv_fixture_integer(r, "gather.destination_allocation_generation");
    g->visible.n = (uint64_t)kv_fixture_integer(r, "gather.visibility_event_generation");
}

static void read_partial(struct kv_fixture_reader *r, struct kv_partial_receipt *p, int32_t positions[MAX_ROWS])
{
    read_name(p->tenant, kv_fixture_text(r, "partial.tenant"));
    read_name(p->schema, kv_fixture_text(r, "partial.schema"));
    p->request.n = (uint64_t)kv_fixture_integer(r, "partial.request_generation");
    p->checkpoint.n = (uint64_t)kv_fixture_integer(r, "partial.checkpoint_generation");
    p->layer = (int32_t)kv_fixture_integer(r, "partial.layer");
    p->q_head = (int32_t)kv_fixture_integer(r, "partial.q_head");
    p->kv_head = (int32_t)kv_fixture_integer(r, "partial.kv_head");
    p->query_position = kv_fixture_integer(r, "partial.query_position");
    read_digest(p->query.b, kv_fixture_text(r, "partial.query"));
    read_digest(p->mask.b, kv_fixture_text(r, "partial.mask"));
    p->score_scale = kv_fixture_number(r, "partial.score_scale");
    p->positions = positions;
    p->n = read_positions(r, "partial.support", positions);
    read_digest(p->support.b, kv_fixture_text(r, "partial.support_digest"));
    const struct kv_fixture_field *l = kv_fixture_find(r->fixture, "partial.l"), *m = kv_fixture_find(r->fixture, "partial.m");
    p->has_mass = l && l->kind == KV_FIXTURE_NUMBER && m && m->kind == KV_FIXTURE_NUMBER;
    if (p->has_mass) p->l = l->number, p->m = m->number;
    p->completed.n = (uint64_t)kv_fixture_integer(r, "partial.completion_event");
}

/* Sentinels name layer, K/V head, original position and channel, so that a swap or a wrong head shows. */
static enum kv_status check_rows(struct kv_fixture_reader *r, const struct kv_gather_receipt *g, int32_t d_head)
{
    for (int32_t i = 0; i < g->n; i++)
        for (int32_t c = 0; c < d_head; c++) {
            double expected = 100000.0 * g->layer + 10000.0 * g->kv_head + 10.0 * g->positions[i] + c;
            double k = kv_fixture_number(r, "gather.k.%d.%d", (int)i, (int)c), v = kv_fixture_number(r, "gather.v.%d.%d", (int)i, (int)c);
            if (r->status != KV_OK) return r->status;
            if (k != expected || v != expected + 500000.0)
                return kv_fail(r->err, KV_ROW_VALUE_MISMATCH, "gather", "row %d channel %d holds %g and %g, position %d has %g and %g", (int)i, (int)c, k, v,
                               (int)g->positions[i], expected, expected + 500000.0);
        }
    return KV_OK;
}

static enum kv_status check_tensor(struct kv_fixture_reader *r, const struct kv_source_binding *source, int32_t geometry[3])
{
    geometry[0] = (int32_t)kv_fixture_integer(r, "tensor.layers");
    geometry[1] = (int32_t)kv_fixture_integer(r, "tensor.kv_heads");
    geometry[2] = (int32_t)kv_fixture_integer(r, "tensor.d_head");
    int64_t positions = kv_fixture_integer(r, "tensor.positions"), scalar = kv_fixture_integer(r, "tensor.scalar_bytes");
    int64_t payload = kv_fixture_integer(r, "tensor.payload_bytes");
    if (r->status != KV_OK) return r->status;
    double bytes = 2.0 * geometry[0] * geometry[1] * geometry[2] * (double)positions * (double)scalar;
    if (geometry[2] < 1 || geometry[2] > MAX_D || (double)payload != bytes)
        return kv_fail(r->err, KV_SOURCE_SHAPE_MISMATCH, "tensor.payload_bytes", "the shape holds %.0f bytes, %lld are declared", bytes, (long long)payload);
    if (source->committed_frontier != positions)
        return kv_fail(r->err, KV_SOURCE_SHAPE_MISMATCH, "source.committed_frontier", "%lld positions, %lld committed", (long long)positions, (long long)source->committed_frontier);
    return KV_OK;
}

enum kv_status kv_fixture_identity(const struct kv_fixture *f, struct kv_error *err)
{
    struct kv_fixture_reader r = {.fixture = f, .err = err, .status = KV_OK};
    struct kv_decode_operation op = {0};
    struct kv_source_binding proxy;
    struct kv_index_snapshot index = {0};
    struct kv_directory_facts directory = {0};
    struct kv_lookup_receipt lookup = {0};
    struct kv_gather_receipt gather = {0};
    struct kv_partial_receipt partial = {0};
    struct kv_gather_destination to;
    int32_t candidates[MAX_ROWS], rows[MAX_ROWS], support[MAX_ROWS], g[3];
    double scores[MAX_ROWS];
    struct kv_replica_generation from[MAX_ROWS];
    enum kv_status s;

    read_binding(&r, "source", &op.source);
    read_binding(&r, "proxy.source", &proxy);
    read_operation(&r, &op);
    read_directory(&r, &directory);
    read_lookup(&r, &lookup, candidates, scores);
    read_gather(&r, &gather, rows, from);
    read_partial(&r, &partial, support);
    index.index.n = (uint64_t)kv_fixture_integer(&r, "index.index_generation");
    index.selector.n = (uint64_t)kv_fixture_integer(&r, "index.selector_generation");
    index.covered = kv_fixture_integer(&r, "index.covered");
    index.exact_rest = kv_fixture_bool(&r, "index.exact_rest");
    struct kv_selector_generation selector = {(uint64_t)kv_fixture_integer(&r, "proxy.selector_generation")};
    to.allocation.n = (uint64_t)kv_fixture_integer(&r, "destination.allocation_generation");
    to.reached.n = (uint64_t)kv_fixture_integer(&r, "destination.reached_event_generation");
    if (r.status != KV_OK) return r.status;

    if ((s = check_tensor(&r, &op.source, g)) != KV_OK) return s;
    if ((s = kv_identity_compare(&kv_source_type, &op.source, &proxy, err)) != KV_OK) return s;
    op.source_digest = kv_source_digest(&op.source, g[0], g[1], g[2], KV_EXACT);
    index.source = kv_source_digest(&proxy, g[0], g[1], g[2], KV_EXACT);
    if ((s = kv_operation_validate(&op, err)) != KV_OK) return s;
    if ((s = kv_index_validate(&op.source_digest, op.source.committed_frontier, &index, selector, err)) != KV_OK) return s;
    if ((s = kv_lookup_validate(&op, &index, &lookup, err)) != KV_OK) return s;
    if ((s = kv_directory_facts_validate(&op, &directory, err)) != KV_OK) return s;
    if ((s = kv_gather_validate(&op, &lookup, &directory, &to, &gather, err)) != KV_OK) return s;
    if ((s = check_rows(&r, &gather, g[2])) != KV_OK) return s;
    return kv_partial_validate(&op, lookup.positions, lookup.n, &partial, err);
}
