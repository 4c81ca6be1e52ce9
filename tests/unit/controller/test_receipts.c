/* test_receipts.c — a row's canonical bytes and hash. */
#include "controller/store/canonical.h"
#include "controller/store/receipts.h"

#include <check.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

START_TEST(every_field_is_in_the_hash)
{
    struct kv_receipt a;
    uint8_t zero[32] = {0}, h[32], g[32];
    kv_receipt_init(&a, KV_RECEIPT_PUBLICATION, 1);
    kv_receipt_hash(zero, 1, &a, h);
#define CHANGES(statement)                                                                                             \
    {                                                                                                                  \
        struct kv_receipt b = a;                                                                                       \
        statement;                                                                                                     \
        kv_receipt_hash(zero, 1, &b, g);                                                                               \
        ck_assert_msg(memcmp(h, g, 32), #statement);                                                                   \
    }
    CHANGES(b.kind = KV_RECEIPT_REQUEST)
    CHANGES(b.at_us++)
    CHANGES(b.request++)
    CHANGES(b.candidate++)
    CHANGES(b.epoch++)
    CHANGES(b.contract = KV_APPROXIMATE)
    CHANGES(b.published = KV_APPROXIMATE)
    CHANGES(b.reason = KV_DEADLINE)
    CHANGES(b.layer++)
    CHANGES(b.kv_head++)
    CHANGES(b.q_head++)
    CHANGES(b.position++)
    CHANGES(b.bytes++)
    CHANGES(b.rows++)
    CHANGES(b.rows_total++)
    CHANGES(b.tokens++)
    CHANGES(b.value = 1)
    CHANGES(b.digest[31]++)
    CHANGES(strcpy(b.tenant, "a"))
    CHANGES(strcpy(b.session, "a"))
    CHANGES(strcpy(b.detail, "a"))
#undef CHANGES
    kv_receipt_hash(zero, 2, &a, g);
    ck_assert_mem_ne(h, g, 32);
    kv_receipt_hash(h, 1, &a, g);
    ck_assert_mem_ne(h, g, 32);
}
END_TEST

/* Text moved from one field to the next gives other bytes: fields are length-prefixed. */
START_TEST(fields_do_not_run_together)
{
    struct kv_receipt a, b;
    uint8_t zero[32] = {0}, h[32], g[32];
    kv_receipt_init(&a, KV_RECEIPT_REQUEST, 1);
    b = a;
    strcpy(a.tenant, "ab");
    strcpy(a.session, "c");
    strcpy(b.tenant, "a");
    strcpy(b.session, "bc");
    kv_receipt_hash(zero, 1, &a, h);
    kv_receipt_hash(zero, 1, &b, g);
    ck_assert_mem_ne(h, g, 32);
}
END_TEST

START_TEST(the_longest_row_fits)
{
    struct kv_receipt r;
    uint8_t out[KV_RECEIPT_BYTES];
    for (int k = 0; k < KV_ROW_KINDS; k++) {
        kv_receipt_init(&r, k, INT64_MAX);
        memset(r.tenant, 'x', sizeof r.tenant - 1);
        memset(r.session, 'x', sizeof r.session - 1);
        memset(r.detail, 'x', sizeof r.detail - 1);
        for (int s = 0; s < KV_STATUS_COUNT; s++) {
            r.reason = (enum kv_status)s;
            ck_assert_uint_le(kv_receipt_bytes(UINT64_MAX, &r, out), KV_RECEIPT_BYTES);
        }
    }
}
END_TEST

START_TEST(kinds_read_back)
{
    for (int k = 0; k < KV_ROW_KINDS; k++) ck_assert_int_eq(kv_row_kind_from_name(kv_row_kind_name(k)), k);
    ck_assert_int_eq(kv_row_kind_from_name("NONSENSE"), KV_ROW_KINDS);
}
END_TEST

START_TEST(canonical_fields_read_back)
{
    uint8_t buf[256];
    struct kv_canonical c = {buf, sizeof buf, 0};
    kv_canonical_text(&c, "käse");
    kv_canonical_u64(&c, UINT64_MAX);
    kv_canonical_i64(&c, INT64_MIN);
    kv_canonical_f64(&c, -0.0);
    kv_canonical_f64(&c, NAN);
    kv_canonical_bytes(&c, "\0\1", 2);
    struct kv_canonical_reader r = {.in = buf, .n = c.n};
    char text[8], bytes[2];
    ck_assert(kv_canonical_read_text(&r, text, sizeof text));
    ck_assert_str_eq(text, "käse");
    ck_assert_uint_eq(kv_canonical_read_u64(&r), UINT64_MAX);
    ck_assert_int_eq(kv_canonical_read_i64(&r), INT64_MIN);
    ck_assert(signbit(kv_canonical_read_f64(&r)));
    ck_assert(isnan(kv_canonical_read_f64(&r)));
    ck_assert(kv_canonical_read_bytes(&r, bytes, 2));
    ck_assert(!r.failed && r.at == r.n);
    for (size_t cut = 0; cut < c.n; cut++) { /* a cut list never reads past its end */
        struct kv_canonical_reader q = {.in = buf, .n = cut};
        kv_canonical_read_text(&q, text, sizeof text);
        kv_canonical_read_u64(&q);
        kv_canonical_read_i64(&q);
        kv_canonical_read_f64(&q);
        kv_canonical_read_f64(&q);
        kv_canonical_read_bytes(&q, bytes, 2);
        ck_assert(q.failed);
    }
}
END_TEST

Suite *suite_receipts(void);
Suite *suite_receipts(void)
{
    Suite *s = suite_create("receipts");
    TCase *t = tcase_create("receipts");
    tcase_add_test(t, every_field_is_in_the_hash);
    tcase_add_test(t, fields_do_not_run_together);
    tcase_add_test(t, the_longest_row_fits);
    tcase_add_test(t, kinds_read_back);
    tcase_add_test(t, canonical_fields_read_back);
    suite_add_tcase(s, t);
    return s;
}
