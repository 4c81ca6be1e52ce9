/* policy_host_internal.h — what policy_host.c, policy_admission.c and policy_test.c share; nobody else includes it. */
#ifndef KV_POLICY_HOST_INTERNAL_H
#define KV_POLICY_HOST_INTERNAL_H

#include "controller/policy/policy_host.h"
#include "controller/policy/policy_sandbox.h"

enum { LOAD_DEADLINE_US = 50000 };

struct kv_script {
    struct kv_sandbox box;
    enum kv_policy_kind kind;
    char name[64], version[65];
    char *source;
    size_t source_bytes;
    int table, function; /* registry references */
    int admission;       /* of the closure that makes the arguments of an admission policy */
};

enum kv_status kv_policy_prepare_admission(struct kv_script *p, struct kv_error *err); /* once, after loading */

#endif
