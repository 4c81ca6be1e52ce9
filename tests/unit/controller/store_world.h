/* store_world.h — what the tests of the store share: a folder, receipts, a rollout and SQL behind its back. */
#ifndef STORE_WORLD_H
#define STORE_WORLD_H

#include "controller/embedded.h"
#include "controller/store/store.h"

#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64];

static inline void set_up(void)
{
    strcpy(dir, "/tmp/kvasir-store-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static inline void tear_down(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}

static inline struct kv_store *open_store(void)
{
    struct kv_store *s = NULL;
    struct kv_error err = {0};
    ck_assert_msg(kv_store_open(&(struct kv_store_config){.dir = dir}, &s, &err) == KV_OK, "%s", err.message);
    return s;
}

static inline struct kv_receipt receipt(uint64_t request)
{
    struct kv_receipt r;
    kv_receipt_init(&r, KV_RECEIPT_PUBLICATION, 1000 + (int64_t)request);
    r.request = request;
    r.tokens = 3 * request;
    snprintf(r.tenant, sizeof r.tenant, "tenant%d", (int)(request % 3));
    snprintf(r.session, sizeof r.session, "s%d", (int)(request % 7));
    return r;
}

static inline void emit_many(struct kv_store *s, uint64_t from, uint64_t n)
{
    struct kv_receipt_sink sink = kv_store_sink(s);
    for (uint64_t i = 0; i < n; i++) {
        struct kv_receipt r = receipt(from + i);
        while (!sink.emit(sink.ctx, &r)) kv_store_flush(s, NULL);
    }
    ck_assert_int_eq(kv_store_flush(s, NULL), KV_OK);
}

static inline void sql(const char *text)
{
    char path[96], *why = NULL;
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/kvasir.db", dir);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    int rc = sqlite3_exec(db, text, NULL, NULL, &why);
    ck_assert_msg(rc == SQLITE_OK, "%s: %s", text, why);
    sqlite3_close(db);
}

static inline struct kv_rollout rollout(void)
{
    struct kv_rollout r;
    memset(&r, 0, sizeof r);
    strcpy(r.manifest.name, "quest-64");
    r.manifest.pipeline = kv_pipeline_find("quest");
    kv_params_default(r.manifest.pipeline, &r.manifest.params);
    r.manifest.contract = KV_APPROXIMATE;
    ck_assert_int_eq(kv_manifest_seal(&r.manifest, NULL), KV_OK);
    r.id = 1;
    r.step = -1;
    r.live = true;
    r.version = 1;
    r.created_us = 77;
    return r;
}

static inline void advance(struct kv_store *s, struct kv_rollout *r, uint64_t epoch)
{
    struct kv_transition t = {.epoch = epoch, .at_us = (int64_t)epoch, .actor = "test", .detail = "because"};
    int32_t step;
    ck_assert(kv_release_next(r, &t.to, &step, &t.fraction));
    ck_assert_int_eq(kv_release_move(r, &t, step, NULL), KV_OK);
    ck_assert_int_eq(kv_store_put_transition(s, r, &t, NULL), KV_OK);
    ck_assert_uint_gt(t.receipt, 0);
}

static inline struct kv_verify_result verify(void)
{
    struct kv_verify_result v;
    struct kv_error err = {0};
    ck_assert_msg(kv_store_verify_offline(dir, NULL, &v, &err) == KV_OK, "%s", err.message);
    return v;
}

static inline void prepare(uint64_t n)
{
    struct kv_store *s = open_store();
    emit_many(s, 1, n);
    kv_store_close(s);
}

#endif
