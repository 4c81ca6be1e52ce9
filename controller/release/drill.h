/* drill.h — drills: a candidate and its release protocols are put through what must not go wrong, in a process of their own.
 *
 * The process loads the same model, runs the candidate's pipeline with its parameters and has a state folder of its own, so nothing that is served is
 * touched: it runs at the lowest priority, on one thread, and is killed after KV_DRILL_SECONDS. A violation is a fact of the drill that did not hold. */
#ifndef KV_DRILL_H
#define KV_DRILL_H

#include "controller/policy/policy_host.h"
#include "controller/release/release.h"

#define KV_DRILL_SECONDS 120

enum kv_drill {
#define KV_DRILL(name, title) KV_DRILL_##name,
#include "controller/drills.def"
#undef KV_DRILL
    KV_DRILLS
};
const char *kv_drill_name(enum kv_drill d);
const char *kv_drill_title(enum kv_drill d);
/* NOT_FOUND with every name as hint. */
enum kv_status kv_drill_find(const char *name, enum kv_drill *out, struct kv_error *err);

struct kv_drill_case {
    const char *model;           /* path */
    const struct kv_manifest *manifest;
    const char *fallback;        /* source of the active fallback policy */
    const char *state;           /* where the drill's own folder is made, and removed afterwards */
    double max_omitted_mass;     /* the manifest's limit, which its table is compiled with */
};
struct kv_drill_result {
    enum kv_drill drill;
    int64_t at_us;               /* CLOCK_REALTIME; 0: it never ran */
    uint64_t checks, violations; /* passed: some checks, no violation */
    double seconds;
    uint64_t receipt;            /* 0 until it is recorded */
    char actor[64], detail[160]; /* detail: the first violation, or what was done */
};
static inline bool kv_drill_passed(const struct kv_drill_result *r)
{
    return r->checks > 0 && r->violations == 0;
}

/* Blocks until the drill is over. A process that crashes or runs too long is a violation, not an error; IO_ERROR when it cannot be started. */
enum kv_status kv_drill_apart(const char *program, enum kv_drill d, const struct kv_drill_case *c, struct kv_drill_result *out, struct kv_error *err);
/* What `--drill NAME` does: the case on standard input, one line of JSON on standard output. An exit status. */
int kv_drill_main(const char *name);

#endif
