/* refusals.h — how many rows callers may leave in the audit who are turned away at the door: a stranger could fill the disk with them, and hold up
 * everybody's group commit. The first of an address and an answer get a row each, the others are counted and told once a minute. Any thread. */
#ifndef KV_REFUSALS_H
#define KV_REFUSALS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    KV_REFUSALS_EACH = 10,   /* rows of their own a minute, of one address and answer */
    KV_REFUSALS_ROWS = 100,  /* the same of all together */
    KV_REFUSALS_KINDS = 32   /* addresses and answers that are counted apart; the last stands for all the others */
};

struct kv_refusals;
struct kv_refusals *kv_refusals_create(void);
void kv_refusals_free(struct kv_refusals *f);
/* Whether this one gets a row of its own; if not, it is counted. status: of the answer. now_us: monotonic. */
bool kv_refusals_own_row(struct kv_refusals *f, const char *address, int status, int64_t now_us);
/* One row for the counted ones of an address and answer. False: it could not be taken, and is told again the next time. */
typedef bool (*kv_refusals_post)(void *ctx, const char *address, int status, uint64_t more);
/* Tells what a minute that is over has counted; where `now_us` is 0, what the present one has. */
void kv_refusals_tell(struct kv_refusals *f, int64_t now_us, kv_refusals_post post, void *ctx);

#endif
