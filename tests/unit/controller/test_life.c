/* test_life.c — lives of policy versions, approvals and tokens over an emulated engine and a real store. */
#include "controller/release/control.h"
#include "controller/http/http_auth.h"
#include "controller/policy/policy_replay.h"
#include "tests/unit/controller/emulated_engine.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[64];
static struct kv_store *store;
static struct kv_control *control;
static bool two;
static const char *configured;

static bool two_users(void *ctx)
{
    (void)ctx;
    return two;
}

static void start(void)
{
    struct kv_error err = {0};
    ck_assert_msg(kv_store_open(&(struct kv_store_config){.dir = dir}, &store, &err) == KV_OK, "%s", err.message);
    struct kv_control_config c = {.manual = true, .two_users = two_users, .policy_source = {[KV_POLICY_RELEASE] = configured}};
    ck_assert_msg(kv_control_create(emulated_port(), store, &c, &control, &err) == KV_OK, "%s", err.message);
}
static void stop(void)
{
    kv_control_destroy(control);
    kv_store_close(store);
}
static void set_up(void)
{
    strcpy(dir, "/tmp/kvasir-life-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    two = false;
    configured = NULL;
    emulated_reset();
    start();
}
static void tear_down(void)
{
    char command[128];
    stop();
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}

static const char holds[] = "return { api = 1, name = 'holds', release = function() return { action = 'HOLD', reason = 'always' } end }";
static const char breaks[] = "return { api = 1, name = 'breaks', admission = function(r) if r.prompt_tokens == 7 then error('seven') end return { action = 'ADMIT_TRANSFER' } end }";

static struct kv_policy_version submit(enum kv_policy_kind kind, const char *source, const char *who)
{
    struct kv_policy_version v;
    struct kv_error err = {0};
    ck_assert_msg(kv_control_policy_submit(control, kind, source, strlen(source), who, &v, &err) == KV_OK, "%s", err.message);
    return v;
}

static void lead_to_active(enum kv_policy_kind kind, const char *version, const char *author, const char *approver)
{
    struct kv_error err = {0};
    struct kv_replay *r = calloc(1, sizeof *r);
    ck_assert_msg(kv_control_policy_check(control, kind, version, author, &err) == KV_OK, "%s", err.message);
    ck_assert_msg(kv_control_policy_replay(control, kind, version, author, r, &err) == KV_OK, "%s", err.message);
    ck_assert_msg(kv_control_policy_approve(control, kind, version, "", approver, &err) == KV_OK, "%s", err.message);
    ck_assert_msg(kv_control_policy_switch(control, kind, version, NULL, false, author, &err) == KV_OK, "%s", err.message);
    free(r);
}

static void active(enum kv_policy_kind kind, char out[65])
{
    struct kv_policy_view v[KV_POLICY_KINDS];
    kv_control_policies(control, v);
    memcpy(out, v[kind].version, 65);
}

/* What the configuration names goes the way every version goes. */
START_TEST(a_configured_policy_is_led_through_its_life)
{
    char version[65];
    struct kv_policy_version v[16];
    struct kv_receipt_row row[64];
    int32_t n = 64, steps = 0;
    stop();
    configured = holds;
    start();
    active(KV_POLICY_RELEASE, version);
    struct kv_policy_version mine = submit(KV_POLICY_RELEASE, holds, "operator:ann");
    ck_assert_str_eq(version, mine.version);
    ck_assert_str_eq(mine.author, "config");
    ck_assert_int_eq(kv_store_find(store, &(struct kv_receipt_filter){.kind = "POLICY", .limit = 64}, row, &n, NULL, NULL), KV_OK);
    for (int32_t i = 0; i < n; i++) steps += strstr(row[i].r.detail, "release") && strstr(row[i].r.detail, "config");
    ck_assert_int_ge(steps, 6); /* DRAFT, CHECKED, REPLAYED, APPROVED, STAGED, ACTIVE */
    stop();
    start(); /* active already: nothing moves */
    int32_t again = 64;
    ck_assert_int_eq(kv_store_find(store, &(struct kv_receipt_filter){.kind = "POLICY", .limit = 64}, row, &again, NULL, NULL), KV_OK);
    ck_assert_int_eq(again, n);

    stop();
    two = true;
    configured = "return { api = 1, name = 'other', release = function() return { action = 'HOLD' } end }";
    start(); /* two users: it waits, and what was active stays */
    active(KV_POLICY_RELEASE, version);
    ck_assert_str_eq(version, mine.version);
    n = 16;
    ck_assert_int_eq(kv_store_policy_versions(store, KV_POLICY_RELEASE, v, &n, NULL), KV_OK);
    ck_assert_str_eq(v[0].name, "other");
    ck_assert_int_eq(v[0].state, KV_POLICY_REPLAYED);
    struct kv_error err = {0};
    ck_assert_int_eq(kv_control_activate(control, KV_POLICY_RELEASE, configured, strlen(configured), "operator:SIGHUP", &err), KV_FORBIDDEN);
    ck_assert_int_eq(kv_control_policy_approve(control, KV_POLICY_RELEASE, v[0].version, "", "operator:bob", &err), KV_OK);
    ck_assert_int_eq(kv_control_activate(control, KV_POLICY_RELEASE, configured, strlen(configured), "operator:SIGHUP", &err), KV_OK);
    active(KV_POLICY_RELEASE, version);
    ck_assert_str_eq(version, v[0].version);
}
END_TEST

START_TEST(a_version_goes_the_whole_way_and_back)
{
    char before[65], now[65];
    struct kv_error err = {0};
    active(KV_POLICY_RELEASE, before);
    struct kv_policy_version v = submit(KV_POLICY_RELEASE, holds, "operator:a");
    ck_assert_int_eq(v.state, KV_POLICY_DRAFT);
    ck_assert_int_eq(kv_control_policy_switch(control, KV_POLICY_RELEASE, v.version, NULL, false, "operator:a", &err), KV_CONFLICT);
    ck_assert_int_eq(kv_control_policy_approve(control, KV_POLICY_RELEASE, v.version, "", "operator:a", &err), KV_CONFLICT);
    lead_to_active(KV_POLICY_RELEASE, v.version, "operator:a", "operator:a");
    active(KV_POLICY_RELEASE, now);
    ck_assert_str_eq(now, v.version);
    ck_assert_int_eq(kv_control_policy_switch(control, KV_POLICY_RELEASE, NULL, "ffffffff", true, "operator:a", &err), KV_VERSION_CONFLICT);
    ck_assert_msg(kv_control_policy_switch(control, KV_POLICY_RELEASE, NULL, now, true, "operator:a", &err) == KV_OK, "%s", err.message);
    active(KV_POLICY_RELEASE, now);
    ck_assert_str_eq(now, before);
    stop();
    start(); /* what was active is active again, and the lives are kept */
    active(KV_POLICY_RELEASE, now);
    ck_assert_str_eq(now, before);
    ck_assert_int_eq(kv_store_policy_version(store, KV_POLICY_RELEASE, v.version, &v, NULL, NULL, &err), KV_OK);
    ck_assert_int_eq(v.state, KV_POLICY_RETIRED);
    ck_assert(v.was_active);
    ck_assert_str_eq(v.author, "operator:a");
    struct kv_verify_result r;
    ck_assert_int_eq(kv_store_verify(store, &r, &err), KV_OK);
    ck_assert(r.verified);
}
END_TEST

START_TEST(nobody_approves_what_is_their_own)
{
    struct kv_error err = {0};
    struct kv_replay *r = calloc(1, sizeof *r);
    two = true;
    struct kv_policy_version v = submit(KV_POLICY_RELEASE, holds, "operator:a");
    ck_assert_int_eq(kv_control_policy_check(control, KV_POLICY_RELEASE, v.version, "operator:a", &err), KV_OK);
    ck_assert_int_eq(kv_control_policy_replay(control, KV_POLICY_RELEASE, v.version, "operator:a", r, &err), KV_OK);
    ck_assert_int_eq(kv_control_policy_approve(control, KV_POLICY_RELEASE, v.version, "", "operator:a", &err), KV_FORBIDDEN);
    ck_assert_int_eq(kv_control_policy_approve(control, KV_POLICY_RELEASE, v.version, "", "operator:b", &err), KV_OK);
    free(r);
}
END_TEST

/* What was recorded by one release policy is asked of another: the answer that would change is named with its receipt. */
START_TEST(a_replay_names_what_would_change)
{
    struct kv_error err = {0};
    struct kv_replay *r = calloc(1, sizeof *r);
    struct kv_rollout_request q = {.name = "candidate", .pipeline = "quest", .contract = KV_APPROXIMATE};
    uint64_t id;
    kv_params_default(kv_pipeline_find("quest"), &q.params);
    ck_assert_int_eq(kv_control_create_rollout(control, &q, "operator:a", &id, &err), KV_OK);
    kv_control_tick(control); /* the shipped policy leaves OFF */
    struct kv_policy_version v = submit(KV_POLICY_RELEASE, holds, "operator:a");
    ck_assert_int_eq(kv_control_policy_check(control, KV_POLICY_RELEASE, v.version, "operator:a", &err), KV_OK);
    struct kv_progress progress = {0};
    r->job = kv_job_begin(&progress, KV_JOB_REPLAY, "release", "decisions");
    ck_assert_int_eq(kv_control_policy_replay(control, KV_POLICY_RELEASE, v.version, "operator:a", r, &err), KV_OK);
    ck_assert_uint_ge(r->asked, 1);
    ck_assert_uint_eq(r->job->total, r->asked);
    ck_assert_uint_eq(r->job->done, r->asked);
    kv_job_end(r->job);
    ck_assert_uint_eq(r->unreadable, 0);
    ck_assert_uint_eq(r->changed, 1);
    ck_assert_str_eq(r->change[0].was, "ADVANCE");
    ck_assert_str_eq(r->change[0].now, "HOLD");
    ck_assert_uint_gt(r->change[0].receipt, 0);
    char now[65];
    active(KV_POLICY_RELEASE, now); /* the one that decided would decide the same again */
    ck_assert_int_eq(kv_control_policy_replay(control, KV_POLICY_RELEASE, now, "operator:a", r, &err), KV_OK);
    ck_assert_uint_eq(r->changed, 0);
    free(r);
}
END_TEST

START_TEST(repeated_faults_bring_the_previous_version_back)
{
    char before[65], now[65];
    active(KV_POLICY_ADMISSION, before);
    struct kv_policy_version v = submit(KV_POLICY_ADMISSION, breaks, "operator:a");
    lead_to_active(KV_POLICY_ADMISSION, v.version, "operator:a", "operator:a");
    struct kv_admission_request r = {.tenant = "t", .class = "", .prompt_tokens = 7, .max_tokens = 1, .slack_ms = -1};
    struct kv_admission_credits k = {1 << 20, 1 << 20, 1 << 20, 4};
    struct kv_admission_answer a;
    for (int i = 0; i < 2; i++) kv_control_admission(control, &r, &k, &a);
    kv_control_tick(control);
    active(KV_POLICY_ADMISSION, now);
    ck_assert_str_eq(now, v.version); /* twice is not yet a habit */
    kv_control_admission(control, &r, &k, &a);
    ck_assert_int_eq(a.action, KV_ADMIT_TRANSFER); /* the baseline's answer */
    kv_control_tick(control);
    active(KV_POLICY_ADMISSION, now);
    ck_assert_str_eq(now, before);
    struct kv_error err = {0};
    ck_assert_int_eq(kv_store_policy_version(store, KV_POLICY_ADMISSION, v.version, &v, NULL, NULL, &err), KV_OK);
    ck_assert_int_eq(v.state, KV_POLICY_RETIRED);
    ck_assert_str_eq(v.actor, "control:faults");
}
END_TEST

/* Its answer is the same fault at every tick, which is recorded once: that must not hide how often it fails. */
START_TEST(a_release_policy_that_only_fails_while_a_rollout_is_live_is_not_kept)
{
    static const char late[] = "return { api = 1, name = \"late\", release = function(stage, gates, history)\n"
                               "  if #history.transitions > 0 then error(\"boom\") end\n  return { action = \"ADVANCE\", reason = \"start\" } end }\n";
    struct kv_rollout_request q = {.name = "candidate", .pipeline = "quest", .contract = KV_APPROXIMATE};
    struct kv_error err = {0};
    char before[65], now[65];
    uint64_t id;
    active(KV_POLICY_RELEASE, before);
    struct kv_policy_version v = submit(KV_POLICY_RELEASE, late, "operator:a");
    lead_to_active(KV_POLICY_RELEASE, v.version, "operator:a", "operator:a");
    kv_params_default(kv_pipeline_find("quest"), &q.params);
    ck_assert_int_eq(kv_control_create_rollout(control, &q, "operator:a", &id, &err), KV_OK);
    kv_control_tick(control); /* OFF to SHADOW: no transition was there yet */
    active(KV_POLICY_RELEASE, now);
    ck_assert_str_eq(now, v.version);
    for (int i = 0; i < 4; i++) kv_control_tick(control);
    active(KV_POLICY_RELEASE, now);
    ck_assert_str_eq(now, before);
}
END_TEST

#define CONTRACT_FALLBACK "  if not s.force_exact and not s.uncertain then return { action = 'ACCEPT_APPROXIMATE' } end\n" \
                          "  %s\n" \
                          "  if s.phase == 'initial' and s.uncertain and s.can_widen then return { action = 'WIDEN_SEARCH' } end\n" \
                          "  if s.fetch_fits then return { action = 'FULL_EXACT_FETCH' } end\n" \
                          "  if s.recompute_fits then return { action = 'RECOMPUTE_EXACT' } end\n" \
                          "  if s.retryable then return { action = 'POSTPONE_FOR_EXACT_RETRY' } end\n" \
                          "  if s.approximation_allowed and not s.force_exact then return { action = 'ACCEPT_DECLARED_DEGRADED' } end\n" \
                          "  return { action = 'REJECT_NO_LEGAL_PATH' } end }\n"

static void reads_the_limit(char *out, size_t cap, const char *name, const char *then)
{
    char line[160];
    snprintf(line, sizeof line, "if gate.max_estimated_omitted_mass > 0.1 %s end", then);
    int n = snprintf(out, cap, "return { api = 1, name = '%s', fallback = function(s, gate)\n", name);
    snprintf(out + n, cap - (size_t)n, CONTRACT_FALLBACK, line);
}

/* What is checked, replayed and served is one table: the one at the live rollout's limit. */
START_TEST(a_fallback_policy_is_judged_at_the_limit_that_serves)
{
    struct kv_rollout_request q = {.name = "candidate", .pipeline = "quest", .contract = KV_APPROXIMATE, .gates = {{.metric = "omitted_mass", .threshold = 0.5}}, .n_gates = 1};
    struct kv_error err = {0};
    struct kv_replay *r = calloc(1, sizeof *r);
    char other[2048], illegal[2048], shipped[65], now[65];
    uint64_t id;
    reads_the_limit(other, sizeof other, "other", "and s.fetch_fits then return { action = 'FULL_EXACT_FETCH' }");
    reads_the_limit(illegal, sizeof illegal, "illegal", "then return { action = 'ACCEPT_APPROXIMATE' }");
    active(KV_POLICY_FALLBACK, shipped);
    struct kv_policy_version v = submit(KV_POLICY_FALLBACK, other, "operator:a"), bad = submit(KV_POLICY_FALLBACK, illegal, "operator:a");
    kv_params_default(kv_pipeline_find("quest"), &q.params);
    ck_assert_double_eq(kv_control_mass_limit(control), 0.05);
    ck_assert_int_eq(kv_control_policy_replay(control, KV_POLICY_FALLBACK, v.version, "operator:a", r, &err), KV_OK);
    ck_assert_uint_eq(r->changed, 0); /* under 0.1 both say the same */
    lead_to_active(KV_POLICY_FALLBACK, bad.version, "operator:a", "operator:a"); /* legal there */
    lead_to_active(KV_POLICY_FALLBACK, v.version, "operator:a", "operator:a");
    ck_assert_int_eq(kv_control_policy_switch(control, KV_POLICY_FALLBACK, shipped, NULL, true, "operator:a", &err), KV_OK);
    ck_assert_msg(kv_control_create_rollout(control, &q, "operator:a", &id, &err) == KV_OK, "%s", err.message);
    ck_assert_double_eq(kv_control_mass_limit(control), 0.5);
    memset(r, 0, sizeof *r);
    ck_assert_int_eq(kv_control_policy_replay(control, KV_POLICY_FALLBACK, v.version, "operator:a", r, &err), KV_OK);
    ck_assert_uint_eq(r->changed, 16);
    ck_assert_msg(kv_control_policy_switch(control, KV_POLICY_FALLBACK, v.version, NULL, true, "operator:a", &err) == KV_OK, "%s", err.message);
    memset(r, 0, sizeof *r);
    ck_assert_int_eq(kv_control_policy_replay(control, KV_POLICY_FALLBACK, v.version, "operator:a", r, &err), KV_OK);
    ck_assert_uint_eq(r->changed, 0); /* the active one against itself */
    ck_assert_int_eq(kv_control_policy_check(control, KV_POLICY_FALLBACK, bad.version, "operator:a", &err), KV_POLICY_ILLEGAL);
    ck_assert_int_eq(kv_control_policy_switch(control, KV_POLICY_FALLBACK, bad.version, NULL, true, "operator:a", &err), KV_POLICY_ILLEGAL);
    active(KV_POLICY_FALLBACK, now);
    ck_assert_str_eq(now, v.version);
    free(r);
}
END_TEST

START_TEST(traffic_needs_a_second_pair_of_eyes)
{
    struct kv_error err = {0};
    struct kv_rollout_request q = {.name = "candidate", .pipeline = "quest", .contract = KV_APPROXIMATE};
    uint64_t id;
    kv_params_default(kv_pipeline_find("quest"), &q.params);
    two = true;
    ck_assert_int_eq(kv_control_create_rollout(control, &q, "operator:a", &id, &err), KV_OK);
    struct kv_rollout_view v;
    struct kv_release_facts f = {.store_ok = true, .two_users = true, .now_us = INT64_MAX / 2, .samples = 1000000};
    struct kv_gate_result g = {.metric = "omitted_mass", .verdict = KV_PASS, .judged = true};
    f.gates = &g;
    f.n_gates = 1;
    kv_control_tick(control);
    ck_assert_int_eq(kv_control_rollout(control, id, &v, &err), KV_OK);
    ck_assert_int_eq(v.r.stage, KV_STAGE_SHADOW); /* shadow serves nobody */
    v.r.waited = true;
    ck_assert_int_eq(kv_release_may(&v.r, KV_VERB_advance, &f, &err), KV_CONFLICT);
    ck_assert_str_eq(err.where, "approve");
    ck_assert_int_eq(kv_release_may(&v.r, KV_VERB_breakglass, &f, &err), KV_OK);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_approve, 0, 0, "", "operator:a", NULL, &err), KV_FORBIDDEN);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_approve, 0, 0, "looks right", "operator:b", NULL, &err), KV_OK);
    ck_assert_int_eq(kv_control_rollout(control, id, &v, &err), KV_OK);
    ck_assert_str_eq(v.r.approver, "operator:b");
    v.r.waited = true;
    ck_assert_int_eq(kv_release_may(&v.r, KV_VERB_advance, &f, &err), KV_OK);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_freeze, 0, 0, "audit", "operator:a", NULL, &err), KV_OK);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_advance, 0, 0, "", "operator:a", NULL, &err), KV_FROZEN);
    int without = kv_control_verb(control, id, KV_VERB_breakglass, 0, 0, "", "operator:a", NULL, &err);
    ck_assert_msg(without != KV_OK && without != KV_FROZEN, "%s", err.message);
    ck_assert_int_eq(kv_control_verb(control, id, KV_VERB_unfreeze, 0, 0, "", "operator:a", NULL, &err), KV_OK);
}
END_TEST

START_TEST(tokens_are_kept_as_hashes_and_revoked)
{
    struct kv_error err = {0};
    struct kv_stored_token t = {.name = "ann", .tenant = "acme", .rights = "operator infer", .creator = "operator:root", .created_us = 5}, all[4];
    char secret[64];
    uint8_t digest[32];
    int32_t n = 4;
    ck_assert_int_eq(kv_token_make(&t, secret, &err), KV_OK);
    ck_assert_uint_eq(strlen(secret), 46);
    kv_sha256(secret, strlen(secret), digest);
    ck_assert_mem_eq(digest, t.sha256, 32);
    ck_assert_int_eq(kv_store_put_token(store, &t, &err), KV_OK);
    ck_assert_int_eq(kv_token_make(&t, secret, &err), KV_OK);
    ck_assert_int_eq(kv_store_put_token(store, &t, &err), KV_CONFLICT);
    ck_assert_int_eq(kv_store_revoke_token(store, "bob", "operator:root", 6, &err), KV_NOT_FOUND);
    ck_assert_int_eq(kv_store_revoke_token(store, "ann", "operator:root", 6, &err), KV_OK);
    ck_assert_int_eq(kv_store_put_token(store, &t, &err), KV_OK); /* the name is free again */
    ck_assert_int_eq(kv_store_tokens(store, 0, all, &n, &err), KV_OK);
    ck_assert_int_eq(n, 2);
    ck_assert_int_eq(all[1].revoked_us, 6);
    ck_assert_int_eq(all[0].revoked_us, 0);
    ck_assert_uint_eq(kv_rights_parse("viewer nonsense"), 0);
    ck_assert(kv_rights_parse(all[0].rights) == (KV_RIGHT_VIEWER | KV_RIGHT_OPERATOR | KV_RIGHT_INFER));
}
END_TEST

Suite *suite_life(void);
Suite *suite_life(void)
{
    Suite *s = suite_create("life");
    TCase *t = tcase_create("life");
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, a_configured_policy_is_led_through_its_life);
    tcase_add_test(t, a_version_goes_the_whole_way_and_back);
    tcase_add_test(t, nobody_approves_what_is_their_own);
    tcase_add_test(t, a_replay_names_what_would_change);
    tcase_add_test(t, repeated_faults_bring_the_previous_version_back);
    tcase_add_test(t, a_release_policy_that_only_fails_while_a_rollout_is_live_is_not_kept);
    tcase_add_test(t, a_fallback_policy_is_judged_at_the_limit_that_serves);
    tcase_add_test(t, traffic_needs_a_second_pair_of_eyes);
    tcase_add_test(t, tokens_are_kept_as_hashes_and_revoked);
    suite_add_tcase(s, t);
    return s;
}
