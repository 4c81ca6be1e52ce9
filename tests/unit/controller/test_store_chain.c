/* test_store_chain.c — verification: whatever was changed, removed, cut, rewritten or forged in receipts and heads is found and named. */
#include "tests/unit/controller/store_world.h"

static void expect_broken(uint64_t at)
{
    struct kv_verify_result v = verify();
    ck_assert(!v.verified);
    ck_assert_msg(v.at == at, "at %llu: %s", (unsigned long long)v.at, v.detail);
    ck_assert_int_eq(v.reason, KV_STORE_CORRUPT);
}

START_TEST(an_untouched_chain_verifies)
{
    prepare(5000); /* more than one batch of the verifier */
    struct kv_verify_result v = verify();
    ck_assert_msg(v.verified, "at %llu: %s", (unsigned long long)v.at, v.detail);
    ck_assert_uint_eq(v.rows, 5000);
    ck_assert_uint_eq(v.signed_rows, 5000);
    struct kv_store *s = open_store();
    ck_assert(kv_store_trusted(s, NULL));
    emit_many(s, 5001, 10);
    ck_assert_int_eq(kv_store_verify(s, &v, NULL), KV_OK);
    ck_assert_msg(v.verified, "at %llu: %s", (unsigned long long)v.at, v.detail);
    ck_assert_uint_eq(v.rows, 5010);
    struct kv_error err;
    ck_assert_int_eq(kv_store_verify_offline(dir, NULL, &v, &err), KV_STORE_LOCKED);
    kv_store_close(s);
}
END_TEST

static const char drop[] = "DROP TRIGGER receipts_no_update; DROP TRIGGER receipts_no_delete;";

START_TEST(a_changed_field_is_found)
{
    static const char *const changes[] = {"tokens = tokens + 1", "at_us = 1", "kind = 'REQUEST'", "reason = 'DEADLINE'", "tenant = 'mallory'", "value = 0.5",
                                          "value = NULL", "digest = zeroblob(32)", "published = 1", "layer = 0", "detail = 'x'"};
    char text[256];
    prepare(20);
    int i = _i;
    snprintf(text, sizeof text, "%s UPDATE receipts SET %s WHERE id = 7", drop, changes[i]);
    sql(text);
    if (!strcmp(changes[i], "digest = zeroblob(32)")) { /* it was zero already: the same row, so it verifies */
        ck_assert(verify().verified);
        return;
    }
    expect_broken(7);
}
END_TEST

START_TEST(a_removed_row_is_found)
{
    char text[256];
    prepare(20);
    snprintf(text, sizeof text, "%s DELETE FROM receipts WHERE id = 7", drop);
    sql(text);
    expect_broken(7);
}
END_TEST

START_TEST(a_cut_tail_is_found)
{
    char text[256];
    prepare(20);
    snprintf(text, sizeof text, "%s DELETE FROM receipts WHERE id > 15", drop);
    sql(text);
    expect_broken(16);
    struct kv_store *s = open_store();
    struct kv_error err = {0};
    ck_assert(!kv_store_trusted(s, &err)); /* a start notices too */
    ck_assert_int_eq(err.status, KV_STORE_CORRUPT);
    kv_store_close(s);
}
END_TEST

/* Whoever rewrites a row and every hash after it has no key for the heads. */
START_TEST(a_rewritten_chain_is_found)
{
    prepare(20);
    struct kv_receipt_row rows[20];
    int32_t n;
    struct kv_store *s = open_store();
    struct kv_receipt_filter f = {.limit = 20, .oldest_first = true};
    ck_assert_int_eq(kv_store_find(s, &f, rows, &n, NULL, NULL), KV_OK);
    kv_store_close(s);
    uint8_t hash[32] = {0};
    sql(drop);
    for (int i = 0; i < n; i++) {
        char text[256], hex[65];
        if (i == 9) rows[i].r.tokens++;
        kv_receipt_hash(hash, rows[i].id, &rows[i].r, hash);
        kv_hex(hash, 32, hex);
        snprintf(text, sizeof text, "UPDATE receipts SET tokens = %d, hash = x'%s' WHERE id = %d", (int)rows[i].r.tokens, hex, (int)rows[i].id);
        sql(text);
    }
    struct kv_verify_result v = verify();
    ck_assert(!v.verified);
}
END_TEST

START_TEST(altered_heads_are_found)
{
    char path[96];
    prepare(20);
    snprintf(path, sizeof path, "%s/receipts.heads", dir);
    int fd = open(path, O_RDWR);
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    char byte;
    ck_assert_int_eq(pread(fd, &byte, 1, st.st_size - 128 + 30), 1);
    byte ^= 1;
    ck_assert_int_eq(pwrite(fd, &byte, 1, st.st_size - 128 + 30), 1);
    close(fd);
    ck_assert(!verify().verified);
    ck_assert_int_eq(truncate(path, 0), 0); /* all heads gone */
    ck_assert(!verify().verified);
    struct kv_store *s = open_store();
    ck_assert(!kv_store_trusted(s, NULL));
    kv_store_close(s);
}
END_TEST

Suite *suite_store_chain(void);
Suite *suite_store_chain(void)
{
    Suite *s = suite_create("store_chain");
    TCase *t = tcase_create("store_chain");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, an_untouched_chain_verifies);
    tcase_add_loop_test(t, a_changed_field_is_found, 0, 11);
    tcase_add_test(t, a_removed_row_is_found);
    tcase_add_test(t, a_cut_tail_is_found);
    tcase_add_test(t, a_rewritten_chain_is_found);
    tcase_add_test(t, altered_heads_are_found);
    suite_add_tcase(s, t);
    return s;
}
