/* store_drills.c — results of drills: written with their receipt, read back by manifest. */
#include "controller/store/store_internal.h"

#include <stdio.h>
#include <string.h>

struct put_drill {
    const struct kv_rollout *r;
    struct kv_drill_result *d;
};

static enum kv_status run_put_drill(struct kv_store *s, void *arg, struct kv_error *err)
{
    struct put_drill *p = arg;
    const struct kv_drill_result *d = p->d;
    bool passed = kv_drill_passed(d);
    struct kv_receipt c;
    kv_receipt_init(&c, KV_ROW_DRILL, d->at_us);
    c.candidate = p->r->id;
    c.epoch = p->r->epoch;
    c.contract = c.published = p->r->manifest.contract;
    c.reason = passed ? KV_OK : KV_DRILL_FAILED;
    c.value = (double)d->violations;
    memcpy(c.digest, p->r->manifest.digest, 32);
    snprintf(c.detail, sizeof c.detail, "%s %s by %.20s: %.40s", kv_drill_name(d->drill), passed ? "passed" : "failed", d->actor, d->detail);
    enum kv_status st = kv_store_append(s, &c, &p->d->receipt, err);
    if (st != KV_OK) return st;
    sqlite3_stmt *q = kv_store_prepare(s, "INSERT INTO drills VALUES (?,?,?,?,?,?,?,?,?,?)");
    if (!q) return kv_store_sql_error(s->db, "drills", err);
    sqlite3_bind_int64(q, 1, (sqlite3_int64)d->receipt);
    sqlite3_bind_int64(q, 2, (sqlite3_int64)p->r->id);
    sqlite3_bind_blob(q, 3, p->r->manifest.digest, 32, SQLITE_STATIC);
    sqlite3_bind_text(q, 4, kv_drill_name(d->drill), -1, SQLITE_STATIC);
    sqlite3_bind_int64(q, 5, d->at_us);
    sqlite3_bind_double(q, 6, d->seconds);
    sqlite3_bind_int64(q, 7, (sqlite3_int64)d->checks);
    sqlite3_bind_int64(q, 8, (sqlite3_int64)d->violations);
    sqlite3_bind_text(q, 9, d->actor, -1, SQLITE_STATIC);
    sqlite3_bind_text(q, 10, d->detail, -1, SQLITE_STATIC);
    return kv_store_done(s, q, err);
}

enum kv_status kv_store_put_drill(struct kv_store *s, const struct kv_rollout *r, struct kv_drill_result *d, struct kv_error *err)
{
    return kv_store_run(s, run_put_drill, &(struct put_drill){r, d}, err);
}

enum kv_status kv_store_load_drills(struct kv_store *s, const uint8_t manifest[32], struct kv_drill_result out[KV_DRILLS], struct kv_error *err)
{
    sqlite3_stmt *q = NULL;
    for (int i = 0; i < KV_DRILLS; i++) out[i] = (struct kv_drill_result){.drill = (enum kv_drill)i};
    pthread_mutex_lock(&s->read_mutex);
    enum kv_status st = kv_store_query(s, "SELECT name, receipt, at_us, seconds, checks, violations, actor, detail, max(receipt) FROM drills WHERE manifest = ? GROUP BY name", &q, err);
    if (st == KV_OK) {
        sqlite3_bind_blob(q, 1, manifest, 32, SQLITE_STATIC);
        int rc;
        while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
            char name[32];
            enum kv_drill k;
            kv_store_copy_text(q, 0, name, sizeof name);
            if (kv_drill_find(name, &k, NULL) != KV_OK) continue; /* of another version of this program */
            struct kv_drill_result *d = &out[k];
            d->receipt = (uint64_t)sqlite3_column_int64(q, 1);
            d->at_us = sqlite3_column_int64(q, 2);
            d->seconds = sqlite3_column_double(q, 3);
            d->checks = (uint64_t)sqlite3_column_int64(q, 4);
            d->violations = (uint64_t)sqlite3_column_int64(q, 5);
            kv_store_copy_text(q, 6, d->actor, sizeof d->actor);
            kv_store_copy_text(q, 7, d->detail, sizeof d->detail);
        }
        st = kv_store_finish(s, q, rc, err);
    }
    pthread_mutex_unlock(&s->read_mutex);
    return st;
}
