/* test_identity.c — digests, canonical bytes, comparison, and the source's worked trace. */
#include "runtime/identity/receipt.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct kv_chunk_identity chunk(void)
{
    struct kv_chunk_identity c;
    memset(&c, 0, sizeof c);
    int32_t tokens[3] = {5, 6, 7};
    c.prefix = kv_prefix_extend(NULL, tokens, 3);
    memset(c.model.b, 1, 32);
    c.layer = 1;
    c.head_count = 2;
    c.position_count = 3;
    strcpy(c.representation, "kv-f16-post-rope-v1");
    strcpy(c.tenant, "alpha");
    c.ns.n = 2;
    strcpy(c.support, "exact");
    return c;
}

START_TEST(prefix_chains_the_content)
{
    int32_t a[65], b[65];
    for (int i = 0; i < 65; i++) a[i] = b[i] = i;
    b[3] = 99;
    struct kv_prefix_digest pa = kv_prefix_extend(NULL, a, 64), pb = kv_prefix_extend(NULL, b, 64);
    struct kv_prefix_digest qa = kv_prefix_extend(&pa, a + 64, 1), qb = kv_prefix_extend(&pb, b + 64, 1);
    ck_assert(memcmp(pa.b, pb.b, 32));
    ck_assert(memcmp(qa.b, qb.b, 32)); /* the last block is equal, what came before is not */
    struct kv_prefix_digest again = kv_prefix_extend(&pa, a + 64, 1);
    ck_assert(!memcmp(qa.b, again.b, 32));
    struct kv_prefix_digest shorter = kv_prefix_extend(NULL, a, 63);
    ck_assert(memcmp(pa.b, shorter.b, 32));
}
END_TEST

/* Changes field f of an object so that it differs. */
static void spoil(const struct kv_identity_field *f, void *object)
{
    ((uint8_t *)object + f->offset)[0] ^= 1;
}

static void every_field(const struct kv_identity_type *t, const void *object, size_t size)
{
    uint8_t *copy = malloc(size), a[KV_IDENTITY_MAX_BYTES], b[KV_IDENTITY_MAX_BYTES];
    size_t la, lb;
    ck_assert_int_eq(kv_identity_encode(t, object, a, sizeof a, &la), KV_OK);
    ck_assert_int_eq(kv_identity_encode(t, object, a, 10, &lb), KV_CAPACITY);
    ck_assert_uint_eq(la, lb);
    ck_assert_int_eq(kv_identity_encode(t, object, a, sizeof a, &la), KV_OK);
    for (int32_t i = 0; i < t->n_fields; i++) {
        struct kv_error err;
        memcpy(copy, object, size);
        spoil(&t->field[i], copy);
        ck_assert_int_eq(kv_identity_compare(t, object, copy, &err), t->field[i].mismatch);
        ck_assert_str_eq(err.where, t->field[i].name);
        kv_identity_encode(t, copy, b, sizeof b, &lb);
        ck_assert_msg(la != lb || memcmp(a, b, la), "%s is not hashed", t->field[i].name);
    }
    memset(copy, 0, size);
    ck_assert_int_eq(kv_identity_decode(t, a, la, copy), KV_OK);
    ck_assert_int_eq(kv_identity_compare(t, object, copy, NULL), KV_OK);
    for (size_t cut = 0; cut < la; cut++) ck_assert_int_eq(kv_identity_decode(t, a, cut, copy), KV_IDENTITY_MISMATCH);
    a[la] = 0;
    ck_assert_int_eq(kv_identity_decode(t, a, la + 1, copy), KV_IDENTITY_MISMATCH);
    a[5] ^= 1; /* the domain */
    ck_assert_int_eq(kv_identity_decode(t, a, la, copy), KV_IDENTITY_MISMATCH);
    free(copy);
}

START_TEST(each_field_counts)
{
    struct kv_chunk_identity c = chunk();
    struct kv_replica_identity r;
    struct kv_source_binding s;
    memset(&r, 0, sizeof r);
    memset(&s, 0, sizeof s);
    r.chunk = kv_chunk_digest(&c);
    strcpy(r.tier, "host");
    strcpy(r.codec, "identity");
    strcpy(r.layout, "slab-64");
    strcpy(s.tenant, "alpha");
    every_field(&kv_chunk_type, &c, sizeof c);
    every_field(&kv_replica_type, &r, sizeof r);
    every_field(&kv_source_type, &s, sizeof s);
    ck_assert_int_eq(kv_chunk_type.n_fields, 15);
    ck_assert_int_eq(kv_replica_type.n_fields, 8);
    ck_assert_int_eq(kv_source_type.n_fields, 14);
}
END_TEST

/* "ab" + "c" and "a" + "bc" are one string when joined and two identities when typed. */
START_TEST(fields_do_not_run_together)
{
    struct kv_chunk_identity a = chunk(), b = chunk();
    strcpy(a.representation, "ab"), strcpy(a.tenant, "c");
    strcpy(b.representation, "a"), strcpy(b.tenant, "bc");
    struct kv_chunk_digest da = kv_chunk_digest(&a), db = kv_chunk_digest(&b);
    ck_assert(memcmp(da.b, db.b, 32));
}
END_TEST

START_TEST(moving_keeps_the_chunk)
{
    struct kv_chunk_identity c = chunk();
    struct kv_replica_identity host, device;
    memset(&host, 0, sizeof host);
    host.chunk = kv_chunk_digest(&c);
    strcpy(host.tier, "host");
    device = host;
    strcpy(device.tier, "device");
    device.allocation.n = 85;
    struct kv_replica_digest a = kv_replica_digest(&host), b = kv_replica_digest(&device);
    ck_assert(memcmp(a.b, b.b, 32));
    struct kv_row_digest r0 = kv_row_digest(&host.chunk, 0), r1 = kv_row_digest(&host.chunk, 1), d0 = kv_row_digest(&device.chunk, 0);
    ck_assert(memcmp(r0.b, r1.b, 32));
    ck_assert(!memcmp(r0.b, d0.b, 32));
}
END_TEST

START_TEST(tainted_rows_never_match_exact)
{
    struct kv_chunk_identity exact = chunk(), tainted = chunk();
    strcpy(tainted.support, "approximate:quest");
    struct kv_error err;
    ck_assert_int_eq(kv_identity_compare(&kv_chunk_type, &exact, &tainted, &err), KV_LINEAGE_MISMATCH);
    ck_assert_str_eq(err.message, "support: expected exact, found approximate:quest");
}
END_TEST

START_TEST(explain_names_every_field)
{
    struct kv_chunk_identity c = chunk();
    char text[2048];
    size_t n = kv_identity_explain(&kv_chunk_type, &c, text, sizeof text);
    ck_assert_uint_eq(n, strlen(text));
    for (int32_t i = 0; i < kv_chunk_type.n_fields; i++) ck_assert_ptr_nonnull(strstr(text, kv_chunk_type.field[i].name));
    ck_assert_ptr_nonnull(strstr(text, "tenant=alpha\n"));
    ck_assert_uint_eq(kv_identity_explain(&kv_chunk_type, &c, text, 7), n);
    ck_assert_uint_eq(strlen(text), 6);
}
END_TEST

/* The source's trace (0x01J): sentinels in fp32 tensors, a lookup of q head 2, rows gathered through K/V head 1. */
START_TEST(worked_trace)
{
    enum { L = 2, H = 2, T = 8, D = 4 };
    static float k[L][H][T][D], v[L][H][T][D];
    for (int l = 0; l < L; l++)
        for (int h = 0; h < H; h++)
            for (int p = 0; p < T; p++)
                for (int c = 0; c < D; c++) k[l][h][p][c] = 100000.0f * l + 10000.0f * h + 10.0f * p + c, v[l][h][p][c] = k[l][h][p][c] + 500000.0f;
    ck_assert_int_eq(L * H * T * D * (2 + 2), 512);

    struct kv_decode_operation op = {.n_q_heads = 4, .n_kv_heads = 2, .layer = 1, .q_head = 2, .kv_head = 1, .decode_position = 8, .score_scale = 0.5,
                              .fallback = "exact_promote", .clock_origin = "monotonic:boot", .deadline_us = 1};
    op.source.cache.n = 23, op.source.publication.n = 11, op.source.committed_frontier = 8;
    strcpy(op.source.tenant, "alpha");
    op.source_digest = kv_source_digest(&op.source, L, H, D, KV_EXACT);
    struct kv_index_snapshot index = {.source = op.source_digest, .selector = {4}, .index = {6}, .covered = 8};
    int32_t ids[3] = {0, 3, 7};
    double scores[3] = {3, 2, 1};
    struct kv_lookup_receipt lookup = {.semantics = "candidate_ids_only", .index = {6}, .selector = {4}, .cache = {23}, .committed_frontier = 8, .layer = 1,
                                       .q_head = 2, .kv_head = 1, .positions = ids, .scores = scores, .n = 3, .n_scores = 3};
    struct kv_directory_facts d = {.authority = {3}, .n = 2, .required = 1};
    d.replica[0] = (struct kv_replica_fact){.replica = {17}, .authority = {3}, .tenant = "alpha", .payload_rows = true};
    d.replica[1] = (struct kv_replica_fact){.replica = {18}, .authority = {3}, .tenant = "alpha", .payload_rows = true};
    struct kv_replica_generation from[3] = {{18}, {17}, {17}};
    struct kv_gather_receipt gather = {.layer = 1, .q_head = 2, .kv_head = 1, .positions = ids, .source = from, .n = 3, .n_sources = 3, .destination = {85}, .visible = {31}};
    struct kv_gather_destination to = {{85}, {31}};
    struct kv_error err;
    ck_assert_int_eq(kv_operation_validate(&op, &err), KV_OK);
    ck_assert_int_eq(kv_index_validate(&op.source_digest, op.source.committed_frontier, &index, (struct kv_selector_generation){4}, &err), KV_OK);
    ck_assert_int_eq(kv_lookup_validate(&op, &index, &lookup, &err), KV_OK);
    ck_assert_int_eq(kv_directory_facts_validate(&op, &d, &err), KV_OK);
    ck_assert_int_eq(kv_gather_validate(&op, &lookup, &d, &to, &gather, &err), KV_OK);

    static const float k1[4] = {110030, 110031, 110032, 110033}, v1[4] = {610030, 610031, 610032, 610033};
    ck_assert_mem_eq(k[gather.layer][gather.kv_head][gather.positions[1]], k1, sizeof k1);
    ck_assert_mem_eq(v[gather.layer][gather.kv_head][gather.positions[1]], v1, sizeof v1);

    to.allocation.n = 86; /* reused before the callback */
    ck_assert_int_eq(kv_gather_validate(&op, &lookup, &d, &to, &gather, &err), KV_RECYCLED_DESTINATION);
    index.covered = lookup.committed_frontier = 7; /* an index that lags is legal only with a declared rest */
    ck_assert_int_eq(kv_index_validate(&op.source_digest, op.source.committed_frontier, &index, (struct kv_selector_generation){4}, &err), KV_STALE_INDEX);
    index.exact_rest = true;
    ck_assert_int_eq(kv_index_validate(&op.source_digest, op.source.committed_frontier, &index, (struct kv_selector_generation){4}, &err), KV_OK);
    ck_assert_int_eq(kv_lookup_validate(&op, &index, &lookup, &err), KV_CANDIDATE_OUT_OF_RANGE);
}
END_TEST

Suite *suite_identity(void);
Suite *suite_identity(void)
{
    Suite *s = suite_create("identity");
    TCase *t = tcase_create("identity");
    tcase_add_test(t, prefix_chains_the_content);
    tcase_add_test(t, each_field_counts);
    tcase_add_test(t, fields_do_not_run_together);
    tcase_add_test(t, moving_keeps_the_chunk);
    tcase_add_test(t, tainted_rows_never_match_exact);
    tcase_add_test(t, explain_names_every_field);
    tcase_add_test(t, worked_trace);
    suite_add_tcase(s, t);
    return s;
}
