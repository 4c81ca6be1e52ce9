/* test_tokens.c — which tokens are in force when there are more of them than fit, and which names they may have. */
#include "controller/store/store.h"

#include <check.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char dir[64];

static void set_up(void)
{
    strcpy(dir, "/tmp/kvasir-tokens-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void tear_down(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}

static struct kv_store *open_store(void)
{
    struct kv_store *s = NULL;
    struct kv_error err = {0};
    ck_assert_msg(kv_store_open(&(struct kv_store_config){.dir = dir}, &s, &err) == KV_OK, "%s", err.message);
    return s;
}

static enum kv_status put(struct kv_store *s, const char *name, int64_t expires_us)
{
    struct kv_stored_token t = {.created_us = 1000, .expires_us = expires_us};
    struct kv_error err = {0};
    char secret[64];
    snprintf(t.name, sizeof t.name, "%s", name);
    strcpy(t.rights, "viewer");
    strcpy(t.creator, "test");
    ck_assert_int_eq(kv_token_make(&t, secret, &err), KV_OK);
    return kv_store_put_token(s, &t, &err);
}

/* The first administrator's token is the oldest one: those that came and went since must not push it out. */
START_TEST(tokens_in_force_come_before_those_that_are_not)
{
    struct kv_store *s = open_store();
    struct kv_stored_token one;
    int32_t n = 1;
    ck_assert_int_eq(put(s, "root", 0), KV_OK);
    ck_assert_int_eq(put(s, "expired", 2000), KV_OK);
    ck_assert_int_eq(put(s, "revoked", 0), KV_OK);
    ck_assert_int_eq(kv_store_revoke_token(s, "revoked", "test", 3000, NULL), KV_OK);
    ck_assert_int_eq(kv_store_tokens(s, 4000, &one, &n, NULL), KV_OK);
    ck_assert_int_eq(n, 1);
    ck_assert_str_eq(one.name, "root");
    kv_store_close(s);
}
END_TEST

START_TEST(no_more_are_made_than_can_be_in_force)
{
    struct kv_store *s = open_store();
    ck_assert_int_eq(put(s, "root", 0), KV_OK);
    kv_store_close(s);
    char text[512];
    sqlite3 *db;
    snprintf(text, sizeof text, "%s/kvasir.db", dir);
    ck_assert_int_eq(sqlite3_open(text, &db), SQLITE_OK);
    snprintf(text, sizeof text, "WITH RECURSIVE i(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM i WHERE n < %d) "
             "INSERT INTO tokens (name, sha256, rights, tenant, created_us, expires_us, revoked_us, creator, receipt) SELECT 't' || n, randomblob(32), 'viewer', '', 1, 0, 0, '', 1 FROM i", KV_MAX_TOKENS);
    ck_assert_int_eq(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    s = open_store();
    ck_assert_int_eq(put(s, "one-more", 0), KV_CAPACITY);
    ck_assert_int_eq(kv_store_revoke_token(s, "t7", "test", 3000, NULL), KV_OK);
    ck_assert_int_eq(put(s, "one-more", 0), KV_OK);
    kv_store_close(s);
}
END_TEST

/* A token is revoked by naming it in an address: one that cannot be named there could not be taken back. */
START_TEST(names_can_stand_in_an_address)
{
    static const char *const bad[] = {"", "a/b", "a b", "a?b", "a%2fb", "a#b", "a\nb", "\x1b[31m", "\xc3\xa9"};
    struct kv_store *s = open_store();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) ck_assert_int_eq(put(s, bad[i], 0), KV_BAD_ARGUMENT);
    ck_assert_int_eq(put(s, "ann.b-c_d@example:1+2", 0), KV_OK);
    kv_store_close(s);
}
END_TEST

Suite *suite_tokens(void);
Suite *suite_tokens(void)
{
    Suite *s = suite_create("tokens");
    TCase *t = tcase_create("tokens");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, tokens_in_force_come_before_those_that_are_not);
    tcase_add_test(t, no_more_are_made_than_can_be_in_force);
    tcase_add_test(t, names_can_stand_in_an_address);
    suite_add_tcase(s, t);
    return s;
}
