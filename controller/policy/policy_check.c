/* policy_check.c — a policy before it is activated: a spread of questions, and its own tests. */
#include "controller/policy/policy_host.h"
#include "controller/policy/policy_sandbox.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A proposal that is illegal for one question is no defect of the policy: C refuses it there and then. Faults are. */
static bool is_defect(enum kv_status st)
{
    return st != KV_OK && st != KV_POLICY_ILLEGAL;
}

static enum kv_status check_admission(struct kv_script *p, struct kv_error *err)
{
    for (int i = 0; i < 32; i++) {
        struct kv_admission_request r = {.tenant = "tenant", .class = i & 1 ? "interactive" : "", .contract = i & 2 ? KV_APPROXIMATE : KV_EXACT,
                                         .prompt_tokens = 512, .max_tokens = 64, .slack_ms = i & 4 ? 5 : -1, .estimate_ms = i & 8 ? 10 : 1,
                                         .backend_bytes = 4096, .staging_bytes = 4096};
        uint64_t bytes = i & 16 ? 0 : 1 << 20;
        struct kv_admission_credits c = {bytes, bytes, bytes, i & 16 ? 0 : 2};
        struct kv_admission_answer a;
        enum kv_status st = kv_policy_admission(p, &r, &c, &a, err);
        if (is_defect(st)) return st;
    }
    return KV_OK;
}

static enum kv_status check_release(struct kv_script *p, struct kv_error *err)
{
    struct kv_rollout *r = calloc(1, sizeof *r);
    if (!r) return kv_fail(err, KV_OUT_OF_MEMORY, "policy", "memory could not be had");
    r->manifest.pipeline = kv_pipeline_at(0);
    r->manifest.n_steps = 4;
    enum kv_status st = KV_OK;
    for (int i = 0; i < KV_STAGE_EXACT_BASELINE * KV_VERDICTS * 2 && !is_defect(st); i++) {
        r->stage = (enum kv_stage)(i % KV_STAGE_EXACT_BASELINE);
        r->step = (int32_t)r->stage - 1;
        struct kv_gate_result g = {.metric = "omitted_mass", .verdict = (enum kv_verdict)(i / KV_STAGE_EXACT_BASELINE % KV_VERDICTS), .judged = r->stage != KV_STAGE_OFF,
                                   .value = NAN, .lower = NAN, .upper = NAN, .threshold = 0.05, .min_n = 200};
        if (g.verdict != KV_NO_DATA) g.value = 0.02, g.lower = 0.01, g.upper = 0.04, g.n = 300;
        struct kv_release_question q = {.rollout = r, .gates = &g, .n_gates = 1, .seconds_in_step = 30, .wait_over = i >= KV_STAGE_EXACT_BASELINE * KV_VERDICTS};
        struct kv_release_answer a;
        st = kv_policy_release(p, &q, &a, err);
    }
    free(r);
    return is_defect(st) ? st : KV_OK;
}

enum kv_status kv_policy_check(struct kv_script *p, struct kv_error *err)
{
    struct kv_fallback_table t;
    switch (kv_policy_kind(p)) {
    case KV_POLICY_ADMISSION:
        return check_admission(p, err);
    case KV_POLICY_FALLBACK:
        return kv_policy_fallback_table(p, KV_DEFAULT_MAX_OMITTED_MASS, &t, err);
    default:
        return check_release(p, err);
    }
}
