/* cohort.c — see cohort.h. */
#include "controller/release/cohort.h"

#include "controller/store/canonical.h"

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

enum kv_status kv_cohort_header(const char *text, char out[128], struct kv_error *err)
{
    static const char *const secret[] = {"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-auth-token"};
    const char *equals = strchr(text, '=');
    size_t n = equals ? (size_t)(equals - text) : 0, value = equals ? strlen(equals + 1) : 0;
    bool fine = n >= 1 && n < 64 && value >= 1 && value < 64;
    for (size_t i = 0; fine && i < n; i++) {
        char c = text[i];
        out[i] = c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
        fine = (out[i] >= 'a' && out[i] <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    }
    for (size_t i = 1; fine && i <= value; i++) fine = equals[i] > 0x20 && equals[i] < 0x7f;
    if (!fine) {
        kv_fail(err, KV_BAD_ARGUMENT, "cohort.headers", "'%.60s' is no header: name=value, a name of letters, digits, - and _, each of 1 to 63 bytes", text);
        kv_hint(err, "for example x-team=blue");
        return KV_BAD_ARGUMENT;
    }
    memcpy(out + n, equals, value + 2);
    for (size_t i = 0; i < sizeof secret / sizeof *secret; i++)
        if (strlen(secret[i]) == n && !memcmp(out, secret[i], n)) {
            kv_fail(err, KV_BAD_ARGUMENT, "cohort.headers", "%s holds secrets; a manifest keeps what it names for ever", secret[i]);
            kv_hint(err, "choose by a header that says who asks, for example x-team=blue");
            return KV_BAD_ARGUMENT;
        }
    return KV_OK;
}

static bool has_header(const struct kv_cohort *c, const struct kv_cohort_key *k)
{
    if (c->n_headers == 0) return true;
    for (int32_t i = 0; i < c->n_headers && k->header; i++) {
        char name[64];
        size_t n = strcspn(c->headers[i], "=");
        memcpy(name, c->headers[i], n);
        name[n] = 0;
        const char *value = k->header(k->ctx, name);
        if (value && !strcmp(value, c->headers[i] + n + 1)) return true;
    }
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
    if (!listed((const char (*)[64])c->tenants, c->n_tenants, k->tenant) || !listed((const char (*)[64])c->classes, c->n_classes, k->class) || !has_header(c, k)) return KV_ARM_OUTSIDE;
    return kv_cohort_place(seed, k->tenant, k->session) < fraction ? KV_ARM_CANDIDATE : KV_ARM_CONTROL;
}
