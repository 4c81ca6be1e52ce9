/* control_freeze.c — freezing holds at once and is written down afterwards, as a rollback; thawing waits for its receipt. */
#include "controller/release/control_internal.h"

#include <stdio.h>
#include <time.h>

enum { RECORD_WAIT_MS = 500 };

static void receipt_of(const struct kv_control *c, bool frozen, const char *reason, const char *actor, struct kv_receipt *r)
{
    kv_receipt_init(r, KV_ROW_AUDIT, kv_control_realtime(c));
    snprintf(r->detail, sizeof r->detail, "releases %s by %.30s%s%.35s", frozen ? "frozen" : "unfrozen", actor, reason && *reason ? ": " : "", reason ? reason : "");
}

void kv_control_record_freeze(struct kv_control *c)
{
    pthread_mutex_lock(&c->state);
    struct kv_receipt r = c->freeze;
    uint64_t upto = c->freezes, live = c->live ? c->live->r.id : 0;
    bool due = upto > c->freezes_recorded;
    pthread_mutex_unlock(&c->state);
    if (!due || kv_store_put_setting(c->store, "frozen", 1, &r, NULL) != KV_OK) return;
    kv_control_note(c, KV_EVENT_LOG, 0, "%s", r.detail);
    if (live) kv_control_note(c, KV_EVENT_ROLLOUT, live, "%s", r.detail);
    pthread_mutex_lock(&c->state);
    c->freezes_recorded = upto;
    pthread_cond_broadcast(&c->wake);
    pthread_mutex_unlock(&c->state);
}

/* state, which it gives up while it waits. */
static bool recorded(struct kv_control *c, uint64_t freeze)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += RECORD_WAIT_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    while (c->freezes_recorded < freeze && !pthread_cond_timedwait(&c->wake, &c->state, &until)) {}
    return c->freezes_recorded >= freeze;
}

/* No lock held: whoever holds work may be waiting for the disk. */
static enum kv_status freeze(struct kv_control *c, const char *reason, const char *actor, struct kv_error *err)
{
    struct kv_receipt r;
    receipt_of(c, true, reason, actor, &r);
    pthread_mutex_lock(&c->state);
    c->frozen = true;
    c->freeze = r;
    uint64_t mine = ++c->freezes, live = c->live ? c->live->r.id : 0;
    pthread_cond_broadcast(&c->wake);
    pthread_mutex_unlock(&c->state);
    kv_control_show(c);
    if (c->config.on_event && live) c->config.on_event(c->config.event_ctx, KV_EVENT_ROLLOUT, live, r.detail);
    if (!c->running) {
        kv_control_begin(c);
        kv_control_record_freeze(c);
        kv_control_end(c);
    }
    pthread_mutex_lock(&c->state);
    bool durable = recorded(c, mine);
    pthread_mutex_unlock(&c->state);
    if (durable) return KV_OK;
    kv_fail(err, KV_STORE_UNAVAILABLE, "freeze", "releases are frozen, and the record that would keep them so over a restart is not written yet");
    kv_hint(err, "check the disk of the state directory before restarting; the record is written as soon as it can be");
    return KV_STORE_UNAVAILABLE;
}

static enum kv_status thaw(struct kv_control *c, const char *reason, const char *actor, struct kv_error *err)
{
    struct kv_receipt r;
    receipt_of(c, false, reason, actor, &r);
    kv_control_begin(c);
    kv_control_record_freeze(c); /* what came first is written first */
    pthread_mutex_lock(&c->state);
    uint64_t freezes = c->freezes;
    bool written = recorded(c, freezes);
    pthread_mutex_unlock(&c->state);
    if (!written) {
        kv_control_end(c);
        kv_fail(err, KV_STORE_UNAVAILABLE, "freeze", "the freeze before is not written yet, and would come back with a restart; releases stay frozen");
        kv_hint(err, "check the disk of the state directory, and unfreeze again");
        return KV_STORE_UNAVAILABLE;
    }
    enum kv_status st = kv_store_put_setting(c->store, "frozen", 0, &r, err);
    pthread_mutex_lock(&c->state);
    if (st == KV_OK && c->freezes != freezes) st = kv_fail(err, KV_CONFLICT, "frozen", "releases were frozen again meanwhile");
    if (st == KV_OK) c->frozen = false;
    uint64_t live = c->live ? c->live->r.id : 0;
    pthread_mutex_unlock(&c->state);
    if (st == KV_OK) kv_control_note(c, KV_EVENT_LOG, 0, "%s", r.detail);
    if (st == KV_OK && live) kv_control_note(c, KV_EVENT_ROLLOUT, live, "%s", r.detail);
    kv_control_end(c);
    return st;
}

enum kv_status kv_control_freeze(struct kv_control *c, bool frozen, const char *reason, const char *actor, struct kv_error *err)
{
    return (frozen ? freeze : thaw)(c, reason, actor, err);
}
