/* test_store.c — what is acknowledged is kept, what is altered is noticed, and what cannot be written is not said to be. */
#include "tests/unit/controller/store_world.h"

/* ---------------------------------------------------------------- receipts */

START_TEST(receipts_come_back_as_they_were)
{
    struct kv_store *s = open_store();
    emit_many(s, 1, 100);
    struct kv_receipt_row rows[100];
    int32_t n;
    uint64_t next;
    struct kv_receipt_filter f = {.kind = "PUBLICATION", .limit = 100, .oldest_first = true};
    ck_assert_int_eq(kv_store_find(s, &f, rows, &n, &next, NULL), KV_OK);
    ck_assert_int_eq(n, 100);
    uint8_t previous[32] = {0}, hash[32];
    for (int i = 0; i < n; i++) {
        struct kv_receipt want = receipt((uint64_t)i + 1);
        ck_assert_uint_eq(rows[i].id, (uint64_t)i + 1);
        ck_assert_mem_eq(&rows[i].r, &want, sizeof want);
        kv_receipt_hash(previous, rows[i].id, &want, hash);
        ck_assert_mem_eq(hash, rows[i].hash, 32);
        memcpy(previous, hash, 32);
    }
    kv_store_close(s);
}
END_TEST

START_TEST(filters_and_pages)
{
    struct kv_store *s = open_store();
    emit_many(s, 1, 50);
    struct kv_receipt_row rows[50];
    int32_t n, seen = 0;
    uint64_t next = 0;
    do { /* newest first, seven at a time */
        struct kv_receipt_filter f = {.limit = 7, .before = next};
        ck_assert_int_eq(kv_store_find(s, &f, rows, &n, &next, NULL), KV_OK);
        for (int i = 0; i < n; i++) ck_assert_uint_eq(rows[i].id, (uint64_t)(50 - seen++));
    } while (next);
    ck_assert_int_eq(seen, 50);
    struct kv_receipt_filter f = {.tenant = "tenant1", .session = "s4", .limit = 50};
    ck_assert_int_eq(kv_store_find(s, &f, rows, &n, &next, NULL), KV_OK);
    ck_assert_int_eq(n, 3); /* 4, 25, 46 */
    f = (struct kv_receipt_filter){.request = 9, .limit = 5};
    ck_assert_int_eq(kv_store_find(s, &f, rows, &n, &next, NULL), KV_OK);
    ck_assert_int_eq(n, 1);
    f = (struct kv_receipt_filter){.only_failures = true, .limit = 5};
    ck_assert_int_eq(kv_store_find(s, &f, rows, &n, &next, NULL), KV_OK);
    ck_assert_int_eq(n, 0);
    struct kv_receipt bad;
    kv_receipt_init(&bad, KV_RECEIPT_FAILURE, 5);
    bad.reason = KV_CHECKSUM_MISMATCH;
    ck_assert_int_eq(kv_store_put_receipt(s, &bad, NULL, NULL), KV_OK);
    ck_assert_int_eq(kv_store_find(s, &f, rows, &n, &next, NULL), KV_OK);
    ck_assert_int_eq(n, 1);
    ck_assert_int_eq(rows[0].r.reason, KV_CHECKSUM_MISMATCH);
    struct kv_error err;
    f = (struct kv_receipt_filter){.kind = "' OR 1=1 --", .limit = 5};
    ck_assert_int_eq(kv_store_find(s, &f, rows, &n, &next, &err), KV_BAD_ARGUMENT);
    f = (struct kv_receipt_filter){.tenant = "' OR 1=1 --", .limit = 5};
    ck_assert_int_eq(kv_store_find(s, &f, rows, &n, &next, &err), KV_OK);
    ck_assert_int_eq(n, 0);
    f = (struct kv_receipt_filter){.limit = 0};
    ck_assert_int_eq(kv_store_find(s, &f, rows, &n, &next, &err), KV_BAD_ARGUMENT);
    ck_assert_int_eq(kv_store_get(s, 999, rows, &err), KV_NOT_FOUND);
    kv_store_close(s);
}
END_TEST

START_TEST(receipts_are_append_only)
{
    struct kv_store *s = open_store();
    emit_many(s, 1, 3);
    kv_store_close(s);
    char path[96];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/kvasir.db", dir);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    static const char *const forbidden[] = {"UPDATE receipts SET tokens = 0", "DELETE FROM receipts", "DELETE FROM transitions", "UPDATE manifests SET created_us = 1"};
    ck_assert_int_ne(sqlite3_exec(db, forbidden[0], NULL, NULL, NULL), SQLITE_OK);
    ck_assert_int_ne(sqlite3_exec(db, forbidden[1], NULL, NULL, NULL), SQLITE_OK);
    ck_assert_str_eq(sqlite3_errmsg(db), "receipts are append-only");
    sqlite3_close(db);
}
END_TEST

/* ---------------------------------------------------------------- opening */

START_TEST(one_process_holds_the_directory)
{
    struct kv_store *s = open_store(), *other;
    struct kv_error err;
    ck_assert_int_eq(kv_store_open(&(struct kv_store_config){.dir = dir}, &other, &err), KV_STORE_LOCKED);
    ck_assert(err.hint[0]);
    kv_store_close(s);
    s = open_store();
    kv_store_close(s);
}
END_TEST

START_TEST(a_newer_database_is_refused_and_left_alone)
{
    prepare(3);
    sql("PRAGMA user_version = 99");
    struct kv_store *s;
    struct kv_error err;
    ck_assert_int_eq(kv_store_open(&(struct kv_store_config){.dir = dir}, &s, &err), KV_STORE_NEWER);
    ck_assert_ptr_nonnull(strstr(err.message, "99"));
    ck_assert(err.hint[0]);
    sql("PRAGMA user_version = 2");
    ck_assert(verify().verified);
}
END_TEST

/* Two of one number would leave one of them out. */
START_TEST(migrations_are_numbered_once)
{
    int last = 0;
    for (const struct kv_embedded *e = kv_embedded_table; e->name; e++)
        if (!strncmp(e->name, "migrations/", 11)) ck_assert_int_eq(atoi(e->name + 11), ++last);
    ck_assert_int_ge(last, 7);
}
END_TEST

/* A database of version 1 is copied, then brought forward; its receipts stay what they were. */
START_TEST(an_older_database_is_migrated)
{
    prepare(3);
    sql("DROP INDEX receipts_trace; DROP TABLE drills; DROP TABLE pauses; DROP TABLE settings; DROP TABLE policy_states; DROP TABLE decision_inputs; DROP TABLE tokens; DROP TABLE request_roots; DROP TABLE seals;"
        "ALTER TABLE rollouts DROP COLUMN author; ALTER TABLE rollouts DROP COLUMN approver; PRAGMA user_version = 1");
    struct kv_store *s = open_store();
    int64_t value;
    struct kv_receipt r = receipt(4);
    ck_assert_int_eq(kv_store_load_setting(s, "frozen", &value, NULL), KV_OK);
    ck_assert_int_eq(value, 0);
    ck_assert_int_eq(kv_store_put_setting(s, "frozen", 1, &r, NULL), KV_OK);
    ck_assert_int_eq(kv_store_load_setting(s, "frozen", &value, NULL), KV_OK);
    ck_assert_int_eq(value, 1);
    kv_store_close(s);
    char path[96];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/kvasir.db.v1.backup", dir);
    ck_assert_int_eq(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, "SELECT hash FROM receipts WHERE id = 3", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    struct kv_verify_result v = verify();
    ck_assert(v.verified);
    ck_assert_uint_eq(v.rows, 4);
}
END_TEST

START_TEST(what_is_no_database_is_refused)
{
    char path[96];
    snprintf(path, sizeof path, "%s/kvasir.db", dir);
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 1000; i++) fputs("this is not a database ", f);
    fclose(f);
    struct kv_store *s;
    struct kv_error err;
    ck_assert_int_eq(kv_store_open(&(struct kv_store_config){.dir = dir}, &s, &err), KV_STORE_CORRUPT);
    ck_assert(err.hint[0]);
    ck_assert_int_eq(kv_store_open(&(struct kv_store_config){.dir = "/nonexistent/state"}, &s, &err), KV_FILE_UNREADABLE);
}
END_TEST

/* ---------------------------------------------------------------- rollouts, gates, policies */

START_TEST(rollouts_come_back)
{
    struct kv_store *s = open_store();
    struct kv_rollout r = rollout(), *all;
    int32_t n;
    ck_assert_int_eq(kv_store_put_rollout(s, &r, "operator:me", "created", NULL, NULL), KV_OK);
    advance(s, &r, 5);
    advance(s, &r, 6);
    struct kv_gate_result g[2] = {{.metric = "omitted_mass", .verdict = KV_PASS, .judged = true, .value = 0.01, .lower = 0.005, .upper = 0.02, .threshold = 0.05, .n = 300, .min_n = 200},
                                  {.metric = "output_error", .verdict = KV_INCONCLUSIVE, .judged = true}};
    ck_assert_int_eq(kv_store_put_gates(s, &r, g, 2, 9, NULL), KV_OK);
    kv_store_close(s);
    s = open_store();
    struct kv_error err = {0};
    ck_assert_msg(kv_store_load_rollouts(s, &all, &n, &err) == KV_OK, "%s", err.message);
    ck_assert_int_eq(n, 1);
    ck_assert_int_eq(all[0].stage, KV_STAGE_CANARY);
    ck_assert_int_eq(all[0].step, 1);
    ck_assert_double_eq(all[0].fraction, 0.1);
    ck_assert_uint_eq(all[0].epoch, 6);
    ck_assert_mem_eq(all[0].manifest.digest, r.manifest.digest, 32);
    ck_assert_int_eq(all[0].n_transitions, 2);
    ck_assert_str_eq(all[0].transitions[1].actor, "test");
    ck_assert_uint_gt(all[0].transitions[1].receipt, 0);
    free(all);
    uint64_t rid, epoch;
    ck_assert_int_eq(kv_store_last_ids(s, &rid, &epoch, NULL), KV_OK);
    ck_assert_uint_eq(rid, 1);
    ck_assert_uint_eq(epoch, 6);
    struct kv_gate_result back[KV_MAX_GATES];
    ck_assert_int_eq(kv_store_load_gates(s, 1, back, &n, NULL), KV_OK);
    ck_assert_int_eq(n, 2);
    ck_assert_int_eq(back[0].verdict, KV_PASS);
    ck_assert_str_eq(back[0].unit, "share");
    kv_store_close(s);
}
END_TEST

START_TEST(a_receipt_says_what_it_rests_on)
{
    struct kv_store *s = open_store();
    struct kv_rollout r = rollout();
    ck_assert_int_eq(kv_store_put_rollout(s, &r, "operator:me", "created", NULL, NULL), KV_OK);
    advance(s, &r, 5);
    struct kv_receipt x = receipt(4);
    x.candidate = 1;
    x.epoch = 5;
    uint64_t id;
    ck_assert_int_eq(kv_store_put_receipt(s, &x, &id, NULL), KV_OK);
    struct kv_receipt_row row;
    struct kv_rests_on on[KV_MAX_RESTS_ON];
    int32_t n, manifest = 0, transition = 0;
    ck_assert_int_eq(kv_store_get(s, id, &row, NULL), KV_OK);
    ck_assert_int_eq(kv_store_rests_on(s, &row, on, &n, NULL), KV_OK);
    for (int32_t i = 0; i < n; i++) {
        manifest += !strcmp(on[i].kind, "manifest") && strlen(on[i].id) == 64;
        transition += !strcmp(on[i].kind, "transition") && !strcmp(on[i].title, "OFF to SHADOW, epoch 5");
    }
    ck_assert_int_eq(manifest, 1);
    ck_assert_int_eq(transition, 1);
    kv_store_close(s);
}
END_TEST

/* The row says one stage, its transitions another: a live rollout in that state is not to be resumed. */
START_TEST(a_contradicting_rollout_is_not_trusted)
{
    struct kv_store *s = open_store();
    struct kv_rollout r = rollout(), *all;
    int32_t n;
    struct kv_error err;
    ck_assert_int_eq(kv_store_put_rollout(s, &r, "operator:me", "created", NULL, NULL), KV_OK);
    advance(s, &r, 5);
    kv_store_close(s);
    sql("UPDATE rollouts SET stage = 'FULL', step = 3, fraction = 1");
    s = open_store();
    ck_assert_int_eq(kv_store_load_rollouts(s, &all, &n, &err), KV_STORE_CORRUPT);
    ck_assert_int_eq(n, 1);
    free(all);
    kv_store_close(s);
}
END_TEST

START_TEST(only_one_rollout_is_live)
{
    struct kv_store *s = open_store();
    struct kv_rollout r = rollout();
    struct kv_error err;
    ck_assert_int_eq(kv_store_put_rollout(s, &r, "a", "created", NULL, NULL), KV_OK);
    struct kv_store_health before, after;
    kv_store_health(s, &before);
    r.id = 2;
    ck_assert_int_eq(kv_store_put_rollout(s, &r, "a", "created", NULL, &err), KV_CONFLICT);
    kv_store_health(s, &after);
    ck_assert_uint_eq(before.receipts, after.receipts); /* a refused record leaves no receipt */
    emit_many(s, 1, 3);
    kv_store_close(s);
    ck_assert(verify().verified);
}
END_TEST

START_TEST(policies_are_kept_by_version)
{
    struct kv_store *s = open_store();
    struct kv_script *p;
    static const char source[] = "return {api=1,name='mine',release=function() return {action='HOLD'} end}";
    char *back;
    size_t n;
    int64_t at;
    ck_assert_int_eq(kv_store_load_policy(s, KV_POLICY_RELEASE, &back, &n, &at, NULL), KV_NOT_FOUND);
    ck_assert_int_eq(kv_policy_load(KV_POLICY_RELEASE, source, sizeof source - 1, &p, NULL), KV_OK);
    ck_assert_int_eq(kv_store_put_policy(s, p, "operator:me", 5, NULL), KV_OK);
    ck_assert_int_eq(kv_store_put_policy(s, p, "operator:me", 6, NULL), KV_OK); /* the same version again */
    ck_assert_int_eq(kv_store_load_policy(s, KV_POLICY_RELEASE, &back, &n, &at, NULL), KV_OK);
    ck_assert_str_eq(back, source);
    ck_assert_int_eq(at, 6);
    free(back);
    kv_policy_free(p);
    kv_store_close(s);
}
END_TEST

/* ---------------------------------------------------------------- trouble */

/* A child acknowledges transitions and receipts after their commits and is killed: all that was acknowledged is there and verifies. */
START_TEST(what_was_acknowledged_survives_kill)
{
    for (int round = 0; round < 8; round++) {
        int p[2];
        ck_assert_int_eq(pipe(p), 0);
        pid_t child = fork();
        if (child == 0) {
            struct kv_store *s;
            if (kv_store_open(&(struct kv_store_config){.dir = dir}, &s, NULL) != KV_OK) _exit(1);
            for (uint64_t i = 1;; i++) {
                struct kv_receipt r = receipt(i);
                uint64_t id;
                struct kv_receipt_sink sink = kv_store_sink(s);
                sink.emit(sink.ctx, &r);
                if (kv_store_put_receipt(s, &r, &id, NULL) != KV_OK || write(p[1], &id, sizeof id) != sizeof id) _exit(1);
            }
        }
        uint64_t acknowledged = 0, next;
        close(p[1]);
        for (int n = 0; n < 3 + round * 5 && read(p[0], &next, sizeof next) == sizeof next; n++) acknowledged = next;
        kill(child, SIGKILL);
        while (read(p[0], &next, sizeof next) == sizeof next) acknowledged = next;
        waitpid(child, NULL, 0);
        close(p[0]);
        ck_assert_uint_gt(acknowledged, 0);
        struct kv_verify_result v = verify();
        ck_assert_msg(v.verified, "round %d at %llu: %s", round, (unsigned long long)v.at, v.detail);
        ck_assert_uint_ge(v.rows, acknowledged);
        struct kv_store *s = open_store();
        ck_assert(kv_store_trusted(s, NULL));
        kv_store_close(s);
    }
}
END_TEST

/* The file cannot grow: nothing is acknowledged, nothing is lost, the queue bounds what waits; and it recovers by itself. */
START_TEST(a_full_disk_holds_and_recovers)
{
    struct kv_store *s = NULL;
    ck_assert_int_eq(kv_store_open(&(struct kv_store_config){.dir = dir, .queue_rows = 256}, &s, NULL), KV_OK);
    emit_many(s, 1, 10);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit was, small = {.rlim_cur = 1024, .rlim_max = RLIM_INFINITY};
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &was), 0);
    small.rlim_max = was.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    struct kv_receipt r = receipt(11);
    struct kv_error err = {0};
    ck_assert_int_eq(kv_store_put_receipt(s, &r, NULL, &err), KV_STORE_UNAVAILABLE);
    ck_assert(err.message[0]);
    struct kv_receipt_sink sink = kv_store_sink(s);
    int taken = 0;
    while (sink.emit(sink.ctx, &r) && taken < 10000) taken++;
    ck_assert_int_eq(taken, 256);
    struct kv_store_health h;
    kv_store_health(s, &h);
    ck_assert(!h.ok);
    ck_assert_int_ne(h.failing_since_us, 0);
    ck_assert_uint_eq(h.refused, 1);
    ck_assert_uint_eq(h.receipts, 10);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &was), 0);
    ck_assert_int_eq(kv_store_flush(s, &err), KV_OK);
    kv_store_health(s, &h);
    ck_assert_uint_eq(h.receipts, 266);
    ck_assert(h.ok);
    ck_assert(!kv_store_settle(s)); /* one was turned away, and waits outside */
    ck_assert(sink.emit(sink.ctx, &r) && kv_store_settle(s));
    kv_store_close(s);
    ck_assert(verify().verified);
}
END_TEST

static void *post_many(void *s)
{
    for (uint64_t i = 0; i < 2000; i++) {
        struct kv_receipt r = receipt(100000 + i);
        while (!kv_store_post(s, &r)) kv_store_flush(s, NULL);
    }
    return NULL;
}

static void *query_many(void *s)
{
    struct kv_receipt_row rows[50];
    int32_t n;
    for (int i = 0; i < 200; i++) {
        struct kv_receipt_filter f = {.limit = 50};
        ck_assert_int_eq(kv_store_find(s, &f, rows, &n, NULL, NULL), KV_OK);
    }
    return NULL;
}

START_TEST(many_threads_at_once)
{
    struct kv_store *s = open_store();
    pthread_t t[4];
    pthread_create(&t[0], NULL, post_many, s);
    pthread_create(&t[1], NULL, post_many, s);
    pthread_create(&t[2], NULL, query_many, s);
    pthread_create(&t[3], NULL, query_many, s);
    emit_many(s, 1, 5000);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    ck_assert_int_eq(kv_store_flush(s, NULL), KV_OK);
    struct kv_store_health h;
    kv_store_health(s, &h);
    ck_assert_uint_eq(h.receipts, 9000);
    kv_store_close(s);
    ck_assert(verify().verified);
}
END_TEST

Suite *suite_store(void);
Suite *suite_store(void)
{
    Suite *s = suite_create("store");
    TCase *t = tcase_create("store");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, receipts_come_back_as_they_were);
    tcase_add_test(t, filters_and_pages);
    tcase_add_test(t, receipts_are_append_only);
    tcase_add_test(t, one_process_holds_the_directory);
    tcase_add_test(t, a_newer_database_is_refused_and_left_alone);
    tcase_add_test(t, migrations_are_numbered_once);
    tcase_add_test(t, an_older_database_is_migrated);
    tcase_add_test(t, what_is_no_database_is_refused);
    tcase_add_test(t, rollouts_come_back);
    tcase_add_test(t, a_receipt_says_what_it_rests_on);
    tcase_add_test(t, a_contradicting_rollout_is_not_trusted);
    tcase_add_test(t, only_one_rollout_is_live);
    tcase_add_test(t, policies_are_kept_by_version);
    tcase_add_test(t, what_was_acknowledged_survives_kill);
    tcase_add_test(t, a_full_disk_holds_and_recovers);
    tcase_add_test(t, many_threads_at_once);
    suite_add_tcase(s, t);
    return s;
}
