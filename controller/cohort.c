/* cohort.c — see cohort.h. */
#include "controller/cohort.h"

#include "controller/canonical.h"

#include <string.h>

const char *kv_arm_name(enum kv_arm a)
{
    static const char *const names[] = {"outside", "control", "candidate"};
    return (unsigned)a < 3 ? names[a] : "outside";
}

static bool listed(const char (*names)[64], int32_t n, const char *name)
{
    if (n == 0) return true;
    for (int32_t i = 0; i < n && name; i++)
        if (!strcmp(names[i], name)) return true;
    return false;
}

double kv_cohort_place(const uint8_t seed[32], const char *tenant, const char *session)
{
    uint8_t buf[1024], h[32];
    struct kv_canonical c = {buf, sizeof buf, 0};
    kv_canonical_bytes(&c, seed, 32);
    kv_canonical_text(&c, tenant);
    kv_canonical_text(&c, session);
    if (c.n > sizeof buf) return 1.0; /* an absurdly long key never reaches a candidate below FULL */
    kv_sha256(buf, c.n, h);
    uint64_t x = 0;
    for (int i = 0; i < 8; i++) x = x << 8 | h[i];
    return (double)(x >> 11) * 0x1p-53;
}

enum kv_arm kv_cohort_arm(const struct kv_cohort *c, const uint8_t seed[32], enum kv_contract exactness, double fraction,
                          const struct kv_cohort_key *k)
{
    if (exactness == KV_APPROXIMATE && k->contract != KV_APPROXIMATE) return KV_ARM_OUTSIDE;
    if (!k->session || !*k->session) return KV_ARM_OUTSIDE;
    if (!listed((const char (*)[64])c->tenants, c->n_tenants, k->tenant) || !listed((const char (*)[64])c->classes, c->n_classes, k->class)) return KV_ARM_OUTSIDE;
    return kv_cohort_place(seed, k->tenant, k->session) < fraction ? KV_ARM_CANDIDATE : KV_ARM_CONTROL;
}
