/* disk_runs.h — what tests of the disk tier share: one tier in a folder of its own, numbered payloads, and what a reopen found. */
#ifndef KV_DISK_RUNS_H
#define KV_DISK_RUNS_H

#include "tests/unit/residency/tier_fixture.h"

enum { BYTES = 20000, SEGMENT = 1 << 20, GROUP = 40, FOUND_MAX = 256 };

extern struct kv_tier disk;
struct found { /* by the last open_disk */
    int n;
    struct kv_chunk_identity id[FOUND_MAX];
    struct kv_block b[FOUND_MAX];
    uint64_t bytes[FOUND_MAX];
};
extern struct found found;

void disk_setup(void);
void disk_teardown(void);
void on_found(void *ctx, const struct kv_chunk_identity *id, struct kv_block b, uint64_t bytes);
enum kv_status open_disk(uint64_t capacity, uint64_t reserve, const struct kv_disk_io *io);
struct kv_chunk_identity identity(int n, const char *tenant);
void payload(int n, uint8_t *out);
enum kv_status put(int n, struct kv_block *b);                          /* payload n of tenant alpha; nothing stays reserved when it fails */
enum kv_status get(int n, struct kv_block b, const char *tenant);       /* compares; a refusal hands out nothing */
enum kv_status put_group(int first, struct kv_block *b);                /* GROUP payloads, or none */
struct kv_disk_stats disk_facts(void);

#endif
