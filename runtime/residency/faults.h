/* faults.h — faults that can be armed while the engine runs, on one tenant's, session's or candidate's requests and no others (contract §10).
 *
 * A request meets what was armed when it was admitted: its marks say which faults, and are zero for everybody else, so that a hook costs one
 * branch. No hook lies in the kernels or in the loop over rows. */
#ifndef KV_FAULTS_H
#define KV_FAULTS_H

#include "runtime/kvasir.h"

#include <stdatomic.h>

enum kv_fault {
#define KV_FAULT(name, site, reason, action, meaning) KV_FAULT_##name,
#include "runtime/residency/faults.def"
#undef KV_FAULT
    KV_FAULTS
};
enum kv_fault_site { KV_FAULT_TRANSFER, KV_FAULT_DISK_READ, KV_FAULT_DISK_WRITE, KV_FAULT_SELECTOR, KV_FAULT_POLICY, KV_FAULT_CLOCK, KV_FAULT_PROCESS, KV_FAULT_REMOTE, KV_FAULT_SITES };

struct kv_fault_info {
    const char *name, *action, *meaning;
    enum kv_fault_site site;
    enum kv_status reason;
};
const struct kv_fault_info *kv_fault_info(enum kv_fault k);
const char *kv_fault_site_name(enum kv_fault_site s); /* "TRANSFER" */
enum kv_fault kv_fault_from_name(const char *name);   /* KV_FAULTS: none */
uint32_t kv_fault_sites(uint32_t mask);               /* bits of the sites that the faults of a mask lie at */

struct kv_fault_scope { /* what is given must agree; candidate alone, or a tenant with or without one of its sessions */
    uint64_t candidate;
    char tenant[64], session[64];
};
#define KV_FAULT_EVERY UINT32_MAX /* count: until it is disarmed */

struct kv_faults;
enum kv_status kv_faults_create(struct kv_faults **out);
void kv_faults_offer_remote(struct kv_faults *f); /* there is a remote tier to strike; before anything is armed */
void kv_faults_destroy(struct kv_faults *f);

/* Any thread. BAD_ARGUMENT without a scope or a count, UNSUPPORTED where its site does not exist, CONFLICT while it is armed. */
enum kv_status kv_faults_arm(struct kv_faults *f, enum kv_fault k, uint32_t count, const struct kv_fault_scope *scope, struct kv_error *err);
bool kv_faults_disarm(struct kv_faults *f, enum kv_fault k); /* false: it was not armed */
struct kv_fault_view {
    bool armed;
    uint32_t left;   /* KV_FAULT_EVERY: no end */
    uint64_t hits;   /* since the start */
    struct kv_fault_scope scope; /* as last armed */
};
void kv_faults_view(struct kv_faults *f, enum kv_fault k, struct kv_fault_view *out);

struct kv_fault_marks { /* of one request; all zero: it meets none */
    struct kv_faults *from;
    uint32_t mask;
    uint32_t arming; /* the last one before it was admitted: what is armed later is for others */
};
/* f may be NULL. */
struct kv_fault_marks kv_faults_match(struct kv_faults *f, const char *tenant, const char *session, uint64_t candidate);
bool kv_faults_take(const struct kv_fault_marks *m, enum kv_fault k); /* one of the count; false when there is none left, or it was armed anew since */
static inline bool kv_fault_strikes(const struct kv_fault_marks *m, enum kv_fault k)
{
    return m && (m->mask >> k & 1) && kv_faults_take(m, k);
}

/* The system's calls, which fail as armed for the request named last on this thread; NULL: none. */
struct kv_disk_io;
extern const struct kv_disk_io kv_disk_io_faulty;
void kv_faults_at_disk(const struct kv_fault_marks *m);

#endif
