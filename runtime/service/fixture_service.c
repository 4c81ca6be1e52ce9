/* fixture_service.c — validator of contract-8-service: units, requests, estimates, three policies and their credits, recomputed by the account and
 * the fallback predicates that serve (source 0x08H–L). Times in ms from the schedule's step, bytes binary. */
#include "runtime/evaluate/fixture.h"
#include "runtime/kvasir.h"
#include "runtime/service/credits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_UNITS = 16, MAX_REQUESTS = 16 };

struct unit {
    const char *id;
    uint64_t bytes;
    int64_t numa;
    uint8_t digest[32];
};

struct request {
    const char *id;
    int32_t unit;
    bool exact, degrade;
    double slack_ms, recompute_ms, retry_ms, estimate_ms;
    uint64_t staging_bytes;
};

struct service {
    struct kv_fixture_reader *r;
    struct unit unit[MAX_UNITS];
    struct request request[MAX_REQUESTS]; /* in order of arrival */
    int32_t n_units, n_requests;
    uint64_t total[KV_CREDIT_KINDS], used[KV_CREDIT_KINDS];
};

#define REFUSE(reason, where, ...) return kv_fail(s->r->err, reason, where, __VA_ARGS__)

/* What must be equal before two requests may share a read, and between a request and the unit it names. */
static const struct { const char *name; bool text; enum kv_status reason; } identity[] = {
    {"tenant", true, KV_TENANT_MISMATCH}, {"namespace_generation", false, KV_STALE_NAMESPACE_GENERATION}, {"model", true, KV_MODEL_MISMATCH},
    {"adapters", true, KV_ADAPTER_MISMATCH}, {"layout", true, KV_CACHE_LAYOUT_MISMATCH}, {"layer", false, KV_LAYER_MISMATCH},
    {"position_first", false, KV_POSITION_CONTRACT_MISMATCH}, {"rows", false, KV_SUPPORT_MISMATCH}, {"representation", true, KV_REPRESENTATION_MISMATCH},
    {"codec", true, KV_CODEC_MISMATCH}, {"cache_generation", false, KV_STALE_CACHE_GENERATION}, {"replica_generation", false, KV_STALE_REPLICA_GENERATION},
    {"authority_epoch", false, KV_STALE_AUTHORITY_EPOCH}, {"tier", true, KV_IDENTITY_MISMATCH}};

static enum kv_status read_totals(struct service *s)
{
    static const enum kv_status over[KV_CREDIT_KINDS] = {KV_PINNED_BUDGET, KV_DEVICE_BUDGET, KV_H2D_BUDGET, KV_QUEUE_FULL};
    for (int k = 0; k < KV_CREDIT_KINDS; k++) {
        const char *name = kv_credit_name((enum kv_credit)k);
        int64_t total = kv_fixture_integer(s->r, "credits.%s.total", name), used = kv_fixture_integer(s->r, "credits.%s.reserved", name), left = kv_fixture_integer(s->r, "credits.%s.free", name);
        if (s->r->status != KV_OK) return s->r->status;
        if (total < 0 || used < 0 || used > total) REFUSE(over[k], name, "%lld of %lld are reserved", (long long)used, (long long)total);
        if (left != total - used) REFUSE(KV_CREDIT_LEDGER_MISMATCH, name, "%lld are published as free, %lld are", (long long)left, (long long)(total - used));
        s->total[k] = (uint64_t)total;
        s->used[k] = (uint64_t)used;
    }
    return KV_OK;
}

static enum kv_status read_units(struct service *s)
{
    s->n_units = kv_fixture_count(s->r, MAX_UNITS, "units");
    int64_t row_bytes = kv_fixture_integer(s->r, "row_bytes"), frontier = kv_fixture_integer(s->r, "committed_frontier");
    for (int32_t u = 0; u < s->n_units; u++) {
        struct unit *x = &s->unit[u];
        char fields[512];
        size_t n = 0;
        x->id = kv_fixture_text(s->r, "units.%d.id", (int)u);
        x->bytes = (uint64_t)kv_fixture_integer(s->r, "units.%d.bytes", (int)u);
        x->numa = kv_fixture_integer(s->r, "units.%d.numa", (int)u);
        int64_t rows = kv_fixture_integer(s->r, "units.%d.rows", (int)u), first = kv_fixture_integer(s->r, "units.%d.position_first", (int)u);
        bool verified = kv_fixture_bool(s->r, "units.%d.verified", (int)u), immutable = kv_fixture_bool(s->r, "units.%d.immutable", (int)u);
        if (s->r->status != KV_OK) return s->r->status;
        if (!verified) REFUSE(KV_CHECKSUM_MISMATCH, x->id, "the unit's payload is not verified");
        if (!immutable) REFUSE(KV_COALESCING_ILLEGAL, x->id, "a unit that may change is read for each request apart");
        if (x->bytes != (uint64_t)(rows * row_bytes)) REFUSE(KV_BLOCK_BYTES_MISMATCH, x->id, "%lld rows of %lld bytes are not %llu", (long long)rows, (long long)row_bytes, (unsigned long long)x->bytes);
        if (first + rows > frontier) REFUSE(KV_CANDIDATE_OUT_OF_RANGE, x->id, "the unit reaches beyond the committed frontier %lld", (long long)frontier);
        for (size_t k = 0; k < sizeof identity / sizeof *identity && n < sizeof fields; k++)
            n += identity[k].text ? (size_t)snprintf(fields + n, sizeof fields - n, "%s=%s\n", identity[k].name, kv_fixture_text(s->r, "units.%d.%s", (int)u, identity[k].name))
                                  : (size_t)snprintf(fields + n, sizeof fields - n, "%s=%lld\n", identity[k].name, (long long)kv_fixture_integer(s->r, "units.%d.%s", (int)u, identity[k].name));
        if (s->r->status != KV_OK) return s->r->status;
        kv_sha256(fields, n < sizeof fields ? n : sizeof fields - 1, x->digest);
        for (int32_t o = 0; o < u; o++)
            if (!memcmp(s->unit[o].digest, x->digest, 32)) REFUSE(KV_CONFLICT, x->id, "two units have one identity");
    }
    return s->r->status;
}

static enum kv_status check_identity(struct service *s, int32_t i, int32_t u)
{
    for (size_t k = 0; k < sizeof identity / sizeof *identity; k++) {
        const char *name = identity[k].name;
        bool same = identity[k].text ? !strcmp(kv_fixture_text(s->r, "requests.%d.source.%s", (int)i, name), kv_fixture_text(s->r, "units.%d.%s", (int)u, name))
                                     : kv_fixture_integer(s->r, "requests.%d.source.%s", (int)i, name) == kv_fixture_integer(s->r, "units.%d.%s", (int)u, name);
        if (s->r->status != KV_OK) return s->r->status;
        if (!same) REFUSE(identity[k].reason, s->request[i].id, "the request's %s is not that of its unit", name);
    }
    return KV_OK;
}

/* T_queue + T_setup + B / BW + [NUMA differs] T_NUMA */
static double estimate(struct service *s, int32_t i, int32_t u)
{
    double far = kv_fixture_integer(s->r, "requests.%d.numa", (int)i) != s->unit[u].numa ? kv_fixture_number(s->r, "path.numa_ms") : 0;
    return kv_fixture_number(s->r, "path.queue_ms") + kv_fixture_number(s->r, "path.setup_ms") + (double)s->unit[u].bytes / kv_fixture_number(s->r, "path.bytes_per_ms") + far;
}

static enum kv_status read_request(struct service *s, int32_t i)
{
    struct request *q = &s->request[i];
    q->id = kv_fixture_text(s->r, "requests.%d.id", (int)i);
    const char *unit = kv_fixture_text(s->r, "requests.%d.unit", (int)i), *contract = kv_fixture_text(s->r, "requests.%d.contract", (int)i);
    const char *fallback = kv_fixture_text(s->r, "requests.%d.fallback", (int)i), *origin = kv_fixture_text(s->r, "requests.%d.clock_origin", (int)i);
    int64_t generation = kv_fixture_integer(s->r, "requests.%d.generation", (int)i);
    q->degrade = kv_fixture_bool(s->r, "requests.%d.degrade_allowed", (int)i);
    q->slack_ms = kv_fixture_number(s->r, "requests.%d.slack_ms", (int)i);
    q->recompute_ms = kv_fixture_number(s->r, "requests.%d.recompute_ms", (int)i);
    q->retry_ms = kv_fixture_number(s->r, "requests.%d.retry_ms", (int)i);
    q->staging_bytes = (uint64_t)kv_fixture_integer(s->r, "requests.%d.staging_bytes", (int)i);
    if (s->r->status != KV_OK) return s->r->status;
    q->exact = !strcmp(contract, "exact");
    q->unit = -1;
    for (int32_t u = 0; u < s->n_units; u++)
        if (!strcmp(s->unit[u].id, unit)) q->unit = u;
    for (int32_t o = 0; o < i; o++)
        if (!strcmp(s->request[o].id, q->id)) REFUSE(KV_CONFLICT, q->id, "two requests have one id");
    if (q->unit < 0) REFUSE(KV_NOT_FOUND, q->id, "no unit is named '%s'", unit);
    if (!q->exact && strcmp(contract, "approximate")) REFUSE(KV_BAD_ARGUMENT, q->id, "'%s' is no contract", contract);
    if (generation != kv_fixture_integer(s->r, "request_generation")) REFUSE(KV_STALE_REQUEST_GENERATION, q->id, "generation %lld is not the current one", (long long)generation);
    if (q->exact && q->degrade) REFUSE(KV_CONTRACT_FORBIDS, q->id, "an exact request is never degraded");
    if (!*fallback) REFUSE(KV_FALLBACK_UNDECLARED, q->id, "the request names no fallback contract");
    if (strcmp(origin, "monotonic")) REFUSE(KV_CLOCK_ORIGIN_MISSING, q->id, "the deadline's clock is '%s'", origin);
    if (q->staging_bytes < s->unit[q->unit].bytes) REFUSE(KV_COALESCED_STAGING, q->id, "%llu bytes of staging do not hold the unit; destinations are not shared", (unsigned long long)q->staging_bytes);
    enum kv_status st = check_identity(s, i, q->unit);
    if (st != KV_OK) return st;
    if (!(kv_fixture_number(s->r, "path.bytes_per_ms") > 0)) REFUSE(KV_BAD_ARGUMENT, "path.bytes_per_ms", "a path without measured bandwidth serves nobody");
    q->estimate_ms = estimate(s, i, q->unit);
    double published = kv_fixture_number(s->r, "requests.%d.estimate_ms", (int)i);
    if (s->r->status != KV_OK) return s->r->status;
    if (fabs(published - q->estimate_ms) > 1e-9) REFUSE(KV_ESTIMATE_MISMATCH, q->id, "the estimate is published as %.9g ms and is %.9g", published, q->estimate_ms);
    return KV_OK;
}

/* ---------------------------------------------------------------- the three policies */

static bool goes_before(const char *policy, const struct request *a, const struct request *b)
{
    if (!strcmp(policy, "fifo")) return false; /* the order of arrival stays */
    if (!strcmp(policy, "exact_deadline_coalescing") && a->exact != b->exact) return a->exact;
    return a->slack_ms < b->slack_ms;
}

static void order(const struct service *s, const char *policy, int32_t *out)
{
    for (int32_t i = 0; i < s->n_requests; i++) {
        int32_t at = i;
        for (; at && goes_before(policy, &s->request[i], &s->request[out[at - 1]]); at--) out[at] = out[at - 1];
        out[at] = i;
    }
}

static const char *fallback(const struct request *q)
{
    struct kv_fallback_state f = {.force_exact = q->exact, .uncertain = 1, .recompute_fits = q->recompute_ms <= q->slack_ms,
                                  .retryable = q->retry_ms + q->estimate_ms <= q->slack_ms && q->estimate_ms <= q->slack_ms, .approximation_allowed = q->degrade};
    return kv_fallback_action_name(kv_fallback_source(&f));
}

static enum kv_status check_outcome(struct service *s, const char *policy, int32_t place, int32_t i, const char *outcome, const char *reason)
{
    const struct request *q = &s->request[i];
    const char *who = kv_fixture_text(s->r, "policies.%s.outcomes.%d.request", policy, (int)place), *what = kv_fixture_text(s->r, "policies.%s.outcomes.%d.outcome", policy, (int)place);
    const char *why = kv_fixture_text(s->r, "policies.%s.outcomes.%d.reason", policy, (int)place);
    if (s->r->status != KV_OK) return s->r->status;
    if (q->exact && !strcmp(what, "ACCEPT_DECLARED_DEGRADED")) REFUSE(KV_ILLEGAL_FALLBACK, q->id, "an exact request was degraded under %s", policy);
    if (strcmp(who, q->id) || strcmp(what, outcome) || strcmp(why, reason))
        REFUSE(KV_DECISION_MISMATCH, policy, "place %d: %s %s %s is published, %s %s %s follows", (int)place, who, what, why, q->id, outcome, reason);
    return KV_OK;
}

static enum kv_status check_ledger(struct service *s, const char *policy, const struct kv_credit_view *v, uint64_t asked)
{
    uint64_t charged = v->used[KV_CREDIT_LINK] - s->used[KV_CREDIT_LINK], staging = v->used[KV_CREDIT_STAGING] - s->used[KV_CREDIT_STAGING];
    const struct { const char *name; uint64_t value; enum kv_status reason; } ledger[] = {
        {"backend_bytes", charged, KV_H2D_LEDGER_MISMATCH}, {"coalesced_bytes", asked - charged, KV_CREDIT_LEDGER_MISMATCH},
        {"staging_bytes", staging, KV_COALESCED_STAGING}, {"queue_slots", v->used[KV_CREDIT_QUEUE] - s->used[KV_CREDIT_QUEUE], KV_QUEUE_FULL}};
    for (size_t i = 0; i < sizeof ledger / sizeof *ledger; i++) {
        int64_t published = kv_fixture_integer(s->r, "policies.%s.%s", policy, ledger[i].name);
        if (s->r->status != KV_OK) return s->r->status;
        if (published != (int64_t)ledger[i].value) REFUSE(ledger[i].reason, policy, "%s is published as %lld and is %llu", ledger[i].name, (long long)published, (unsigned long long)ledger[i].value);
    }
    return KV_OK;
}

static enum kv_status run_policy(struct service *s, struct kv_credits *c, const char *policy)
{
    struct kv_credit_ticket held[MAX_REQUESTS] = {0};
    int32_t in_order[MAX_REQUESTS];
    uint64_t asked = 0;
    struct kv_credit_view v;
    enum kv_status st = KV_OK;
    order(s, policy, in_order);
    if (kv_fixture_count(s->r, MAX_REQUESTS, "policies.%s.outcomes", policy) != s->n_requests) REFUSE(KV_POLICY_SHAPE, policy, "a request has no outcome");
    for (int32_t place = 0; st == KV_OK && place < s->n_requests; place++) {
        int32_t i = in_order[place];
        const struct request *q = &s->request[i];
        struct kv_credit_ask ask = {.request = (uint64_t)i + 1, .what = "fixture", .backend_bytes = s->unit[q->unit].bytes, .staging_bytes = q->staging_bytes, .queue_slots = 1};
        memcpy(ask.unit, s->unit[q->unit].digest, 32);
        const char *reason = q->estimate_ms > q->slack_ms ? "DEADLINE" : kv_credits_reserve(c, &ask, 0, &held[i], NULL, NULL) != KV_OK ? "CREDIT_PRESSURE" : "OK";
        bool admitted = !strcmp(reason, "OK");
        if (admitted) asked += ask.backend_bytes;
        st = check_outcome(s, policy, place, i, admitted ? "ADMIT_TRANSFER" : fallback(q), reason);
    }
    kv_credits_view(c, &v, NULL, 0, NULL, 0);
    if (st == KV_OK) st = check_ledger(s, policy, &v, asked);
    for (int32_t i = 0; i < s->n_requests; i++)
        if (held[i].generation) kv_credits_release(c, &held[i]);
    return st;
}

/* Every completion gives its credits back once, under the generation it was issued with. */
static enum kv_status check_completions(struct service *s)
{
    int64_t epoch = kv_fixture_integer(s->r, "reset_epoch");
    int32_t n = kv_fixture_count(s->r, MAX_REQUESTS, "completions");
    for (int32_t i = 0; i < n; i++) {
        int64_t issued = kv_fixture_integer(s->r, "completions.%d.issued_generation", (int)i), released = kv_fixture_integer(s->r, "completions.%d.released_generation", (int)i);
        int64_t times = kv_fixture_integer(s->r, "completions.%d.releases", (int)i), of = kv_fixture_integer(s->r, "completions.%d.epoch", (int)i);
        bool applied = kv_fixture_bool(s->r, "completions.%d.applied", (int)i);
        if (s->r->status != KV_OK) return s->r->status;
        if (of != epoch && applied) REFUSE(KV_RECYCLED_DESTINATION, "completions", "completion %d is of epoch %lld and was applied after a reset", (int)i, (long long)of);
        if (of != epoch) continue;
        if (released != issued) REFUSE(KV_STALE_CREDIT, "completions", "completion %d releases generation %lld, issued was %lld", (int)i, (long long)released, (long long)issued);
        if (times != 1) REFUSE(KV_CREDIT_LEAK, "completions", "completion %d released its credits %lld times", (int)i, (long long)times);
    }
    return s->r->status;
}

enum kv_status kv_fixture_service(const struct kv_fixture *f, struct kv_error *err)
{
    static const char *const policies[] = {"fifo", "earliest_deadline", "exact_deadline_coalescing"};
    struct kv_fixture_reader reader = {.fixture = f, .err = err, .status = KV_OK};
    struct service service = {.r = &reader}, *s = &service;
    enum kv_status st = read_totals(s);
    if (st == KV_OK) st = read_units(s);
    if (st == KV_OK) s->n_requests = kv_fixture_count(&reader, MAX_REQUESTS, "requests");
    for (int32_t i = 0; st == KV_OK && i < s->n_requests; i++) st = read_request(s, i);
    if (st == KV_OK) st = check_completions(s);
    if (st != KV_OK) return st;
    struct kv_credit_limits limits = {.max_tickets = MAX_REQUESTS + 1};
    memcpy(limits.total, s->total, sizeof limits.total);
    struct kv_credits *c;
    if ((st = kv_credits_create(&limits, &c)) != KV_OK) return kv_fail(err, st, "credits", "no memory for the account");
    /* What is reserved already: staging and slots by one holder; of pinned memory and link the tighter one decides. */
    uint64_t pinned = s->used[KV_CREDIT_PINNED], link = s->used[KV_CREDIT_LINK];
    struct kv_credit_ticket before;
    struct kv_credit_ask taken = {.what = "before", .backend_bytes = pinned > link ? pinned : link, .staging_bytes = s->used[KV_CREDIT_STAGING], .queue_slots = (uint32_t)s->used[KV_CREDIT_QUEUE]};
    st = pinned == link ? kv_credits_reserve(c, &taken, 0, &before, NULL, NULL) : kv_fail(err, KV_CREDIT_LEDGER_MISMATCH, "credits", "bytes in flight on the link are pinned: %llu and %llu differ", (unsigned long long)link, (unsigned long long)pinned);
    for (size_t p = 0; st == KV_OK && p < sizeof policies / sizeof *policies; p++) st = run_policy(s, c, policies[p]);
    kv_credits_destroy(c);
    return st != KV_OK ? st : reader.status;
}
