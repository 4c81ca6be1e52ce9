/* directory_runs.c — see directory_runs.h. */
#include "tests/unit/residency/directory_runs.h"

#include <check.h>
#include <string.h>

struct kv_tier dir_device, dir_host, dir_disk;
struct kv_directory *dir;

void dir_open(int device_slabs, int host_slabs, int disk_slabs, enum kv_victim eviction)
{
    ck_assert_int_eq(kv_tier_memory_create("device", "device", true, SLAB, (uint64_t)device_slabs * SLAB, &dir_device), KV_OK);
    ck_assert_int_eq(kv_tier_memory_create("host", "host", false, SLAB, (uint64_t)host_slabs * SLAB, &dir_host), KV_OK);
    ck_assert_int_eq(kv_tier_memory_create("disk", "file", true, SLAB, (uint64_t)disk_slabs * SLAB, &dir_disk), KV_OK);
    struct kv_directory_config c = {.tier = {&dir_device, &dir_host, &dir_disk}, .max_chunks = 64, .max_transactions = 8, .max_payload_bytes = SLAB, .victim = eviction,
                                    .promote_us = {0, 10, 1000}, .capacity_us_per_mib = {1, 1, 1}};
    ck_assert_int_eq(kv_directory_create(&c, &dir), KV_OK);
}

void dir_close(void)
{
    kv_directory_destroy(dir);
    ck_assert_uint_eq(dir_device.used_bytes(dir_device.ctx), 0);
    ck_assert_uint_eq(dir_host.used_bytes(dir_host.ctx), 0);
    kv_tier_memory_destroy(&dir_device);
    kv_tier_memory_destroy(&dir_host);
    kv_tier_memory_destroy(&dir_disk);
}

struct kv_chunk_identity dir_chunk(int n)
{
    struct kv_chunk_identity id;
    memset(&id, 0, sizeof id);
    id.layer = n;
    strcpy(id.tenant, "alpha");
    strcpy(id.support, "exact");
    return id;
}

void dir_payload(int n, uint8_t *out)
{
    for (int i = 0; i < BYTES; i++) out[i] = (uint8_t)(n * 37 + i * 3);
}

void dir_publish(int n, enum kv_tier_id tier)
{
    uint8_t p[BYTES];
    struct kv_chunk_identity id = dir_chunk(n);
    dir_payload(n, p);
    ck_assert_int_eq(kv_directory_publish(dir, &id, (struct kv_cache_generation){1}, tier, p, BYTES, 100 * n), KV_OK);
}

void dir_holds(int n, enum kv_tier_id tier)
{
    uint8_t want[BYTES], have[BYTES];
    struct kv_lease l;
    struct kv_chunk_identity id = dir_chunk(n);
    struct kv_tier *t = tier == KV_TIER_DEVICE ? &dir_device : tier == KV_TIER_HOST ? &dir_host : &dir_disk;
    ck_assert_int_eq(kv_directory_lookup(dir, &id, tier, &l), KV_ANSWER_READY);
    ck_assert_int_eq(t->read(t->ctx, l.block, &id, have, BYTES), KV_OK);
    dir_payload(n, want);
    ck_assert_mem_eq(have, want, BYTES);
    ck_assert_int_eq(kv_directory_release(dir, &l), KV_OK);
}

void dir_invariants(void)
{
    struct kv_error err = {0};
    ck_assert_msg(kv_directory_check(dir, &err) == KV_OK, "%s", err.message);
}

struct kv_transfer_done dir_copied(const struct kv_transfer *t)
{
    struct kv_transfer_done done;
    kv_transfer_copy(t, &done);
    return done;
}
