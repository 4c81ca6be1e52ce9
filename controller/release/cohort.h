/* cohort.h — who may meet a candidate: tenant, class and header filters, and a share of sessions that stay where they are.
 *
 * A session's place is a keyed hash of (tenant, session) in [0, 1), compared with the fraction: growing the fraction only adds
 * sessions, shrinking it only removes some. Pure functions; any thread. */
#ifndef KV_COHORT_H
#define KV_COHORT_H

#include "runtime/kvasir.h"

#define KV_COHORT_NAMES 16

struct kv_cohort { /* n = 0: everyone */
    char tenants[KV_COHORT_NAMES][64], classes[KV_COHORT_NAMES][64];
    int32_t n_tenants, n_classes;
    char headers[KV_COHORT_NAMES][128]; /* "name=value", the name in small letters: a request has one of them */
    int32_t n_headers;
};
/* Brings "X-Team=blue" into that form. BAD_ARGUMENT for what is no header or holds a secret. */
enum kv_status kv_cohort_header(const char *text, char out[128], struct kv_error *err);

/* Which arm of the experiment a request belongs to. */
enum kv_arm {
    KV_ARM_OUTSIDE,   /* not eligible: wrong contract, tenant or class, no session, no candidate installed */
    KV_ARM_CONTROL,   /* eligible, on the baseline: what the candidate is compared with */
    KV_ARM_CANDIDATE
};
const char *kv_arm_name(enum kv_arm a); /* "outside", "control", "candidate" */

struct kv_cohort_key {
    const char *tenant, *class, *session; /* may be NULL or empty; no session: outside, so the baseline */
    enum kv_contract contract;            /* as requested */
    const char *(*header)(void *ctx, const char *name); /* value or NULL; may be NULL */
    void *ctx;
};

/* seed: of the rollout (its manifest's digest), so that another rollout meets another share. fraction 0 in OFF and SHADOW.
 * An exact request is never on the candidate arm of an approximate candidate. */
enum kv_arm kv_cohort_arm(const struct kv_cohort *c, const uint8_t seed[32], enum kv_contract exactness, double fraction,
                          const struct kv_cohort_key *k);
/* The session's place in [0, 1). */
double kv_cohort_place(const uint8_t seed[32], const char *tenant, const char *session);

#endif
