/* fault_lab.c — see fault_lab.h. A run per site of a fault; each asks the engine as a client would, under a tenant of the lab's own. */
#include "controller/fault_lab.h"

#include "runtime/service/credits.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TURN_ROWS = 200 /* three blocks and some */, MORE_ROWS = 72, DEEP_ROWS = 1400 /* deep enough that selecting reads less than all rows */, ANSWER = 8, LONG_ANSWER = 24,
       PATIENCE_MS = 60000, SETTLE_MS = 5000, POLL_MS = 5, HOLDERS = 64, ARM_TRIES = 4096 };
static const char lab_tenant[] = "failure-lab", other_tenant[] = "failure-lab-reference";

struct kv_fault_lab {
    struct kv_faults *faults;
    pthread_mutex_t running, lock;
    struct kv_fault_outcome last[KV_FAULTS]; /* lock */
};

struct answer {
    int32_t token[LONG_ANSWER], n;
    struct kv_request_stats stats;
};

struct run {
    struct kv_app *app;
    enum kv_fault fault;
    const struct kv_fault_info *info;
    struct kv_fault_outcome *out;
    struct kv_fault_scope scope;
    enum kv_contract contract;
    char klass[64];
    uint64_t candidate, epoch;
    int64_t deadline_us, began_us; /* began: CLOCK_REALTIME */
    uint64_t hits;
    struct kv_engine_stats before;
};

/* ---------------------------------------------------------------- the lab */

enum kv_status kv_fault_lab_create(struct kv_fault_lab **out)
{
    struct kv_fault_lab *l = *out = calloc(1, sizeof *l);
    if (!l) return KV_OUT_OF_MEMORY;
    if (kv_faults_create(&l->faults)) return free(l), *out = NULL, KV_OUT_OF_MEMORY;
    pthread_mutex_init(&l->running, NULL);
    pthread_mutex_init(&l->lock, NULL);
    return KV_OK;
}

void kv_fault_lab_destroy(struct kv_fault_lab *l)
{
    if (!l) return;
    pthread_mutex_destroy(&l->running);
    pthread_mutex_destroy(&l->lock);
    kv_faults_destroy(l->faults);
    free(l);
}

struct kv_faults *kv_fault_lab_faults(struct kv_fault_lab *l)
{
    return l->faults;
}

void kv_fault_lab_last(struct kv_fault_lab *l, enum kv_fault k, struct kv_fault_outcome *out)
{
    pthread_mutex_lock(&l->lock);
    *out = l->last[k];
    pthread_mutex_unlock(&l->lock);
}

/* ---------------------------------------------------------------- ask */

static void wait_a_moment(void)
{
    nanosleep(&(struct timespec){0, POLL_MS * 1000000}, NULL);
}

/* tenant other_tenant: on the baseline, every row computed now. A probe, since no gate may judge a candidate by what was broken on purpose. */
static enum kv_status ask(struct run *r, const int32_t *prompt, int32_t n, int32_t n_answer, const char *tenant, struct answer *a, struct kv_error *err)
{
    bool reference = tenant == other_tenant;
    struct kv_request q = {.prompt = prompt, .n_prompt = n, .max_tokens = n_answer, .ignore_eos = true, .sampling = {.top_p = 1, .repetition_penalty = 1}, .tenant = tenant,
                           .class = r->klass, .session = reference ? NULL : r->scope.session, .observe_prompt = reference, .probe = true};
    if (!reference) q.contract = r->contract, q.candidate = r->candidate, q.epoch = r->epoch, q.deadline_us = r->deadline_us;
    struct kv_stream *stream;
    enum kv_status st = kv_engine_submit(r->app->engine, &q, &stream, err);
    if (st) return st;
    enum kv_finish finish = KV_RUNNING;
    int64_t limit_us = kv_monotonic_us() + PATIENCE_MS * 1000LL;
    *a = (struct answer){.n = 0};
    for (int32_t got = 0; finish == KV_RUNNING || got;) {
        struct kv_chunk chunk[4];
        kv_stream_read(stream, chunk, 4, 200, &got, &finish);
        for (int32_t i = 0; i < got && a->n < LONG_ANSWER; i++) a->token[a->n++] = chunk[i].token;
        if (kv_monotonic_us() > limit_us || r->app->draining) kv_stream_cancel(stream);
    }
    kv_stream_stats(stream, &a->stats);
    kv_stream_close(stream);
    return KV_OK;
}

static enum kv_status arm(struct run *r, uint32_t count, struct kv_error *err)
{
    return kv_faults_arm(r->app->fault_lab->faults, r->fault, count, &r->scope, err);
}

static uint64_t hits_of(const struct run *r)
{
    struct kv_fault_view v;
    kv_faults_view(r->app->fault_lab->faults, r->fault, &v);
    return v.hits;
}

/* Tokens that no cache has seen before. */
static int32_t *fresh_tokens(const struct run *r, int32_t n, struct kv_error *err)
{
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    uint64_t state = (uint64_t)kv_monotonic_us();
    for (int32_t i = 0; ids && i < n; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        ids[i] = (int32_t)((state >> 33) % (uint64_t)kv_model_info(r->app->model)->n_vocab);
    }
    if (!ids) kv_fail(err, KV_OUT_OF_MEMORY, "fault", "no memory for the lab's prompt");
    return ids;
}

/* ---------------------------------------------------------------- check */

__attribute__((format(printf, 4, 5))) static void check(struct run *r, const char *what, bool pass, const char *fmt, ...)
{
    struct kv_fault_outcome *o = r->out;
    va_list ap;
    if (o->n_checks == KV_FAULT_CHECKS) return;
    struct kv_fault_check *c = &o->check[o->n_checks++];
    snprintf(c->what, sizeof c->what, "%s", what);
    c->pass = pass;
    va_start(ap, fmt);
    vsnprintf(c->detail, sizeof c->detail, fmt, ap);
    va_end(ap);
}

static void check_strikes(struct run *r)
{
    uint64_t n = hits_of(r) - r->hits;
    check(r, "strikes", n > 0, "it struck %llu times", (unsigned long long)n);
}

static void check_answer(struct run *r, const struct answer *a, const struct answer *reference)
{
    int32_t same = 0;
    while (same < reference->n && same < a->n && a->token[same] == reference->token[same]) same++;
    bool whole = a->stats.finish == KV_FINISH_LENGTH && same == reference->n && a->n == reference->n;
    if (whole) check(r, "answer", true, "%d tokens equal an uncached recompute's, published as %s", same, a->stats.published == KV_EXACT ? "exact" : "approximate");
    else check(r, "answer", false, "%d of %d tokens equal an uncached recompute's; the request ended with %s", same, reference->n, kv_status_name(a->stats.status));
}

/* One receipt the filter leaves; waits for what is on its way. */
static bool find(struct run *r, struct kv_receipt_filter f, struct kv_receipt_row *row)
{
    struct kv_error err;
    f.since_us = f.request ? 0 : r->began_us;
    f.limit = 1;
    int patience_ms = f.request ? SETTLE_MS / 10 : SETTLE_MS; /* those of a request were written before it ended */
    for (int waited = 0; waited < patience_ms; waited += POLL_MS) {
        int32_t n = 1;
        uint64_t next;
        if (!kv_store_flush(r->app->store, &err) && !kv_store_find(r->app->store, &f, row, &n, &next, &err) && n > 0) return true;
        wait_a_moment();
    }
    return false;
}

/* The typed reason, on a receipt of this request, or of the lab's tenant when it is about no request. */
static void check_reason(struct run *r, const char *kind, enum kv_status reason, uint64_t request)
{
    struct kv_receipt_row row;
    const char *name = kv_status_name(reason);
    if (find(r, (struct kv_receipt_filter){.kind = kind, .reason = name, .request = request, .tenant = r->scope.tenant}, &row))
        check(r, "receipt", true, "%llu %s %s: %.90s", (unsigned long long)row.id, kind, name, row.r.detail);
    else check(r, "receipt", false, "no %s receipt with the reason %s was written", kind, name);
}

/* What was published is on record by its digest, under the identity it has. */
static void check_publication(struct run *r, const struct answer *a, const struct answer *reference)
{
    struct kv_receipt_row row;
    uint8_t want[32];
    kv_sha256(reference->token, (size_t)reference->n * sizeof *reference->token, want);
    bool found = find(r, (struct kv_receipt_filter){.kind = kv_row_kind_name(KV_RECEIPT_PUBLICATION), .request = a->stats.id}, &row);
    if (!found) check(r, "publication", false, "no receipt says what was published");
    else check(r, "publication", !memcmp(row.r.digest, want, sizeof want) && !strcmp(row.r.tenant, r->scope.tenant), "receipt %llu of tenant %.40s, against the digest of the recomputed tokens", (unsigned long long)row.id, row.r.tenant);
}

static void check_counters(struct run *r)
{
    struct kv_engine_stats s;
    kv_engine_stats(r->app->engine, &s);
    uint64_t mismatches = s.exact_mismatches - r->before.exact_mismatches, illegal = s.illegal_fallbacks - r->before.illegal_fallbacks, tenants = s.tenant_failures - r->before.tenant_failures;
    check(r, "counters", mismatches + illegal + tenants == 0, "%llu exact mismatches, %llu illegal fallbacks, %llu tenant failures more than before", (unsigned long long)mismatches,
          (unsigned long long)illegal, (unsigned long long)tenants);
}

/* Credits by their holders; memory when nobody else runs; the disk's books. */
static void check_reclaimed(struct run *r, uint64_t request)
{
    struct kv_credit_holder holder[HOLDERS];
    struct kv_credit_view credits;
    struct kv_engine_stats s;
    bool held = false, idle = false;
    kv_credits_view(kv_engine_credits(r->app->engine), &credits, holder, HOLDERS, NULL, 0);
    for (int32_t i = 0; i < credits.n_holders && i < HOLDERS; i++) held |= holder[i].request == request;
    check(r, "credits", !held, held ? "the request still holds credits" : "the request holds no credit");
    for (int waited = 0; waited < SETTLE_MS && !(idle && s.reserved_bytes <= r->before.reserved_bytes); waited += POLL_MS) {
        kv_engine_stats(r->app->engine, &s);
        idle = s.active == 0 && s.queued == 0 && s.turns.waiting == 0;
        if (!idle && waited > SETTLE_MS / 10) break; /* a busy server has its own reservations */
        wait_a_moment();
    }
    if (idle) check(r, "memory", s.reserved_bytes <= r->before.reserved_bytes, "%llu bytes are set aside while nothing runs, %llu before", (unsigned long long)s.reserved_bytes, (unsigned long long)r->before.reserved_bytes);
    for (int32_t i = 0; i < s.n_tiers; i++) {
        const struct kv_tier_stats *t = &s.tier[i];
        if (strcmp(t->name, "disk")) continue;
        check(r, "disk", t->bytes_in - t->bytes_out == t->persistent_bytes && t->used_bytes <= t->capacity_bytes, "%llu bytes in, %llu out, %llu there, %llu of %llu used", (unsigned long long)t->bytes_in,
              (unsigned long long)t->bytes_out, (unsigned long long)t->persistent_bytes, (unsigned long long)t->used_bytes, (unsigned long long)t->capacity_bytes);
    }
}

/* What every run ends with. */
static void check_all(struct run *r, const struct answer *a, const struct answer *reference)
{
    check_strikes(r);
    check_answer(r, a, reference);
    check_publication(r, a, reference);
    check_counters(r);
    check_reclaimed(r, a->stats.id);
}

/* ---------------------------------------------------------------- one run per site */

static enum kv_status run_transfer(struct run *r, struct kv_error *err)
{
    struct answer reference, a;
    int32_t *ids = fresh_tokens(r, TURN_ROWS, err);
    enum kv_status st = ids ? ask(r, ids, TURN_ROWS, LONG_ANSWER, other_tenant, &reference, err) : KV_OUT_OF_MEMORY;
    if (!st) st = arm(r, 1, err);
    if (!st) st = ask(r, ids, TURN_ROWS, LONG_ANSWER, lab_tenant, &a, err);
    if (!st) {
        check_all(r, &a, &reference);
        if (r->fault != KV_FAULT_delayed_completion) check_reason(r, kv_row_kind_name(KV_RECEIPT_FAILURE), r->info->reason, a.stats.id);
    }
    if (!st && r->fault == KV_FAULT_delayed_completion) { /* late in every layer of every step: half of what that adds up to is not enough */
        int64_t late_us = 20000LL * kv_model_info(r->app->model)->n_layers * LONG_ANSWER;
        kv_faults_disarm(r->app->fault_lab->faults, r->fault);
        st = arm(r, KV_FAULT_EVERY, err);
        r->deadline_us = kv_monotonic_us() + reference.stats.total_us * 5 / 4 + late_us / 2;
        if (!st) st = ask(r, ids, TURN_ROWS, LONG_ANSWER, lab_tenant, &a, err);
        if (!st) {
            check(r, "deadline", a.stats.status == KV_DEADLINE, "with a deadline the request ended with %s after %d tokens", kv_status_name(a.stats.status), a.n);
            check_reason(r, kv_row_kind_name(KV_RECEIPT_FAILURE), KV_DEADLINE, a.stats.id);
        }
    }
    free(ids);
    return st;
}

/* The session's row once nothing of its last turn is under way. */
static enum kv_status settled(struct run *r, struct kv_session_info *s, struct kv_error *err)
{
    for (int waited = 0; waited < SETTLE_MS; waited += POLL_MS) {
        enum kv_status st = kv_engine_session(r->app->engine, KV_SESSION_SHOW, lab_tenant, r->scope.session, s, err);
        if (st || s->state == KV_SESSION_PAUSED_HOST || s->state == KV_SESSION_TOKEN_ONLY) return st;
        wait_a_moment();
    }
    return kv_fail(err, KV_CONFLICT, "session", "the lab's session is still %s; the disk is slow", kv_session_state_name(s->state));
}

/* Two turns of one session: the first is saved, the second begins with what was saved. A fault in writing strikes the first, one in reading the second. */
static enum kv_status run_disk(struct run *r, struct kv_error *err)
{
    enum { WHOLE = TURN_ROWS + ANSWER + MORE_ROWS };
    bool writes = r->info->site == KV_FAULT_DISK_WRITE;
    struct answer reference[2], a[2];
    struct kv_session_info saved = {0};
    int32_t *ids = fresh_tokens(r, WHOLE, err);
    enum kv_status st = ids ? ask(r, ids, TURN_ROWS, ANSWER, other_tenant, &reference[0], err) : KV_OUT_OF_MEMORY;
    for (int32_t i = 0; !st && i < ANSWER; i++) ids[TURN_ROWS + i] = reference[0].token[i];
    if (!st) st = ask(r, ids, WHOLE, ANSWER, other_tenant, &reference[1], err);
    if (!st && writes) st = arm(r, KV_FAULT_EVERY, err);
    if (!st) st = ask(r, ids, TURN_ROWS, ANSWER, lab_tenant, &a[0], err);
    if (!st) st = settled(r, &saved, err);
    if (!st && writes) {
        check_reason(r, kv_row_kind_name(KV_RECEIPT_FAILURE), r->info->reason, 0);
        check(r, "session", saved.reason == r->info->reason && saved.blocks == 0, "nothing of the turn counts as saved (%d blocks), because of %s", saved.blocks, kv_status_name(saved.reason));
        check_answer(r, &a[0], &reference[0]);
    }
    if (!st && !writes) st = saved.blocks ? arm(r, 1, err) : kv_fail(err, saved.reason ? saved.reason : KV_CAPACITY, "tiers.disk", "the turn to be read back could not be saved");
    if (!st) st = ask(r, ids, WHOLE, ANSWER, lab_tenant, &a[1], err);
    if (!st) {
        check_all(r, &a[1], &reference[1]);
        if (!writes) check_reason(r, kv_row_kind_name(KV_RECEIPT_FAILURE), r->info->reason, a[1].stats.id);
        if (!writes) check(r, "rows", a[1].stats.n_reused < saved.blocks * 64, "%d of %d saved rows were used; the others were computed", a[1].stats.n_reused, saved.blocks * 64);
    }
    kv_faults_disarm(r->app->fault_lab->faults, r->fault);
    if (*r->scope.session && !settled(r, &saved, &(struct kv_error){0})) (void)kv_engine_session(r->app->engine, KV_SESSION_DROP, lab_tenant, r->scope.session, NULL, NULL);
    free(ids);
    return st;
}

/* As a request of the cohort would have it. */
static const char *cohort_header(void *cohort, const char *name)
{
    const char *first = ((const struct kv_cohort *)cohort)->headers[0];
    size_t n = strlen(name);
    return !strncmp(first, name, n) && first[n] == '=' ? first + n + 1 : NULL;
}

/* A session that the live rollout's selector serves. */
static enum kv_status meet_candidate(struct run *r, struct kv_error *err)
{
    struct kv_status_view *v = calloc(1, sizeof *v);
    struct kv_rollout_view *o = calloc(1, sizeof *o);
    enum kv_status st = v && o ? KV_OK : kv_fail(err, KV_OUT_OF_MEMORY, "fault", "no memory for the run");
    if (!st) kv_control_status(r->app->control, v);
    bool selects = !st && v->rollout && v->contract == KV_APPROXIMATE && v->fraction > 0 && !kv_control_rollout(r->app->control, v->rollout, o, err);
    if (!st && !selects) {
        st = kv_fail(err, KV_CONFLICT, "rollout", "%s strikes a selector, and no approximate candidate serves", r->info->name);
        kv_hint(err, "run it while an approximate rollout is at CANARY, RAMP or FULL");
    }
    for (int i = 0; !st && !r->candidate && i < ARM_TRIES; i++) {
        struct kv_assignment arm_of;
        struct kv_cohort *c = &o->r.manifest.cohort;
        snprintf(r->scope.tenant, sizeof r->scope.tenant, "%s", c->n_tenants ? c->tenants[0] : lab_tenant);
        snprintf(r->klass, sizeof r->klass, "%s", c->n_classes ? c->classes[0] : "");
        snprintf(r->scope.session, sizeof r->scope.session, "failure-lab-%lld-%d", (long long)(r->began_us / 1000), i);
        kv_control_assign(r->app->control, &(struct kv_cohort_key){r->scope.tenant, r->klass, r->scope.session, KV_APPROXIMATE, cohort_header, c}, &arm_of);
        if (arm_of.arm == KV_ARM_CANDIDATE) r->candidate = arm_of.candidate, r->epoch = arm_of.epoch;
    }
    if (!st && !r->candidate) st = kv_fail(err, KV_CONFLICT, "rollout", "the rollout's share is so small that no session of the lab met it");
    r->contract = KV_APPROXIMATE;
    free(v);
    free(o);
    return st;
}

/* Struck at every query, a selector has no say: what is published is exact, whoever asked for less. */
static enum kv_status run_selector(struct run *r, struct kv_error *err)
{
    struct answer reference, a;
    int32_t context = kv_model_info(r->app->model)->context_length, n = DEEP_ROWS < context / 2 ? DEEP_ROWS : context / 2;
    enum kv_status st = meet_candidate(r, err);
    int32_t *ids = st ? NULL : fresh_tokens(r, n, err);
    if (!st) st = ids ? ask(r, ids, n, ANSWER, other_tenant, &reference, err) : KV_OUT_OF_MEMORY;
    if (!st) st = arm(r, KV_FAULT_EVERY, err);
    if (!st) st = ask(r, ids, n, ANSWER, r->scope.tenant, &a, err);
    if (!st) {
        check_all(r, &a, &reference);
        check(r, "candidate", a.stats.candidate == r->candidate && a.stats.published == KV_EXACT, "the candidate's pipeline served, and what it published is %s",
              a.stats.published == KV_EXACT ? "exact" : "approximate");
        check_reason(r, kv_row_kind_name(KV_RECEIPT_FALLBACK), r->info->reason, a.stats.id);
    }
    free(ids);
    return st;
}

static enum kv_status run_policy(struct run *r, struct kv_error *err)
{
    struct answer reference, a;
    int32_t *ids = fresh_tokens(r, TURN_ROWS, err);
    struct kv_admission_request q = {.tenant = lab_tenant, .class = "", .contract = KV_EXACT, .prompt_tokens = TURN_ROWS, .max_tokens = ANSWER, .slack_ms = -1, .backend_bytes = 4096, .staging_bytes = 4096};
    struct kv_admission_credits free_ones = {.pinned_free = 1 << 20, .staging_free = 1 << 20, .link_free = 1 << 20, .queue_free = 1};
    struct kv_admission_answer got, baseline;
    enum kv_status st = ids ? ask(r, ids, TURN_ROWS, ANSWER, other_tenant, &reference, err) : KV_OUT_OF_MEMORY;
    if (!st) st = arm(r, 1, err);
    if (!st) {
        kv_control_admission(r->app->control, &q, &free_ones, &got);
        kv_admission_baseline(&q, &free_ones, &baseline);
        check(r, "policy", got.action == baseline.action && !strcmp(got.reason, baseline.reason), "the answer taken is the baseline's: %.80s", got.reason);
        check_reason(r, kv_row_kind_name(KV_ROW_POLICY_FAULT), r->info->reason, 0);
        st = ask(r, ids, TURN_ROWS, ANSWER, lab_tenant, &a, err);
    }
    if (!st) check_all(r, &a, &reference);
    free(ids);
    return st;
}

static enum kv_status run_clock(struct run *r, struct kv_error *err)
{
    struct answer reference, a;
    struct kv_receipt_row row;
    struct kv_verify_result v = {0};
    int32_t *ids = fresh_tokens(r, TURN_ROWS, err);
    enum kv_status st = ids ? ask(r, ids, TURN_ROWS, ANSWER, other_tenant, &reference, err) : KV_OUT_OF_MEMORY;
    if (!st) st = arm(r, KV_FAULT_EVERY, err);
    r->deadline_us = kv_monotonic_us() + PATIENCE_MS * 1000LL; /* a deadline must not move with the wall clock */
    if (!st) st = ask(r, ids, TURN_ROWS, ANSWER, lab_tenant, &a, err);
    if (!st) {
        check_all(r, &a, &reference);
        int64_t back_s = find(r, (struct kv_receipt_filter){.kind = kv_row_kind_name(KV_RECEIPT_REQUEST), .request = a.stats.id}, &row) ? (r->began_us - row.r.at_us) / 1000000 : 0;
        check(r, "receipt", back_s > 3000, "the request's receipt is dated %lld s before the run began", (long long)back_s);
        st = kv_store_verify(r->app->store, &v, err);
        check(r, "chain", !st && v.verified, "%llu receipts verify", (unsigned long long)v.rows);
    }
    free(ids);
    return st;
}

/* A session that nobody has rows of asks the store and gets no answer. Without such a tier the fault itself must be refused. */
static enum kv_status run_remote(struct run *r, struct kv_error *err)
{
    struct answer reference, a;
    struct kv_error refusal = {0};
    struct kv_session_info saved;
    if (!r->app->remote) {
        enum kv_status refused = arm(r, 1, &refusal);
        check(r, "refusal", refused == KV_UNSUPPORTED, "%s: %.120s", kv_status_name(refused), refusal.message);
        return KV_OK;
    }
    snprintf(r->scope.session, sizeof r->scope.session, "failure-lab-%lld", (long long)r->began_us);
    int32_t *ids = fresh_tokens(r, TURN_ROWS, err);
    enum kv_status st = ids ? ask(r, ids, TURN_ROWS, ANSWER, other_tenant, &reference, err) : KV_OUT_OF_MEMORY;
    if (!st) st = arm(r, 1, err);
    if (!st) st = ask(r, ids, TURN_ROWS, ANSWER, lab_tenant, &a, err);
    if (!st) {
        check_all(r, &a, &reference);
        check_reason(r, kv_row_kind_name(KV_RECEIPT_FAILURE), r->info->reason, a.stats.id);
    }
    kv_faults_disarm(r->app->fault_lab->faults, r->fault);
    if (!settled(r, &saved, &(struct kv_error){0})) (void)kv_engine_session(r->app->engine, KV_SESSION_DROP, lab_tenant, r->scope.session, NULL, NULL);
    free(ids);
    return st;
}

/* ---------------------------------------------------------------- a run */

static enum kv_status dispatch(struct run *r, struct kv_error *err)
{
    switch (r->info->site) {
    case KV_FAULT_TRANSFER: return run_transfer(r, err);
    case KV_FAULT_DISK_READ:
    case KV_FAULT_DISK_WRITE:
        snprintf(r->scope.session, sizeof r->scope.session, "failure-lab-%lld", (long long)r->began_us);
        if (*r->app->config->disk_path) return run_disk(r, err);
        kv_fail(err, KV_UNSUPPORTED, "tiers.disk.path", "%s strikes the disk tier, and none is configured", r->info->name);
        kv_hint(err, "set tiers.disk.path");
        return KV_UNSUPPORTED;
    case KV_FAULT_SELECTOR: return run_selector(r, err);
    case KV_FAULT_POLICY: return run_policy(r, err);
    case KV_FAULT_CLOCK: return run_clock(r, err);
    case KV_FAULT_REMOTE: return run_remote(r, err);
    default:
        kv_fail(err, KV_CONFLICT, r->info->name, "%s ends this process, which cannot check itself afterwards", r->info->name);
        kv_hint(err, "kvasir fault run %s checks it from outside, with somebody to start kvasird again", r->info->name);
        return KV_CONFLICT;
    }
}

enum kv_status kv_fault_lab_run(struct kv_app *app, enum kv_fault k, struct kv_fault_outcome *out, struct kv_error *err)
{
    struct kv_fault_lab *lab = app->fault_lab;
    struct kv_fault_view armed;
    struct run r = {.app = app, .fault = k, .info = kv_fault_info(k), .out = out, .began_us = kv_realtime_us()};
    *out = (struct kv_fault_outcome){.at_us = r.began_us};
    if (pthread_mutex_trylock(&lab->running)) return kv_fail(err, KV_CONFLICT, "fault", "another run is under way");
    kv_faults_view(lab->faults, k, &armed);
    if (armed.armed) {
        pthread_mutex_unlock(&lab->running);
        kv_fail(err, KV_CONFLICT, r.info->name, "%s is armed on somebody already", r.info->name);
        kv_hint(err, "disarm it first");
        return KV_CONFLICT;
    }
    snprintf(r.scope.tenant, sizeof r.scope.tenant, "%s", lab_tenant);
    r.hits = armed.hits;
    kv_engine_stats(app->engine, &r.before);
    enum kv_status st = dispatch(&r, err);
    kv_faults_disarm(lab->faults, k);
    out->pass = out->n_checks > 0;
    for (int32_t i = 0; i < out->n_checks; i++) out->pass &= out->check[i].pass;
    if (!st) {
        struct kv_receipt audit;
        kv_receipt_init(&audit, KV_ROW_AUDIT, kv_realtime_us());
        snprintf(audit.detail, sizeof audit.detail, "fault run %s: %s, %d checks", r.info->name, out->pass ? "PASS" : "FAIL", out->n_checks);
        kv_store_post(app->store, &audit);
        pthread_mutex_lock(&lab->lock);
        lab->last[k] = *out;
        pthread_mutex_unlock(&lab->lock);
    }
    pthread_mutex_unlock(&lab->running);
    return st;
}
