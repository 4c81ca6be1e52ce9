/* disk_runs.c — see disk_runs.h. */
#include "tests/unit/residency/disk_runs.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

struct kv_tier disk;
struct found found;

void on_found(void *ctx, const struct kv_chunk_identity *id, struct kv_block b, uint64_t bytes)
{
    (void)ctx;
    ck_assert_int_lt(found.n, FOUND_MAX);
    found.id[found.n] = *id;
    found.b[found.n] = b;
    found.bytes[found.n++] = bytes;
}

enum kv_status open_disk(uint64_t capacity, uint64_t reserve, const struct kv_disk_io *io)
{
    struct kv_error err = {0};
    struct kv_disk_config c = {.path = tier_folder, .capacity_bytes = capacity, .reserve_bytes = reserve, .segment_bytes = SEGMENT, .io = io, .found = on_found};
    memset(c.key, 7, sizeof c.key);
    found.n = 0;
    return kv_disk_open(&c, &disk, &err);
}

struct kv_chunk_identity identity(int n, const char *tenant)
{
    struct kv_chunk_identity id;
    memset(&id, 0, sizeof id);
    id.layer = n;
    snprintf(id.tenant, sizeof id.tenant, "%s", tenant);
    snprintf(id.support, sizeof id.support, "exact");
    return id;
}

void payload(int n, uint8_t *out)
{
    for (int i = 0; i < BYTES; i++) out[i] = (uint8_t)(n * 131 + i * 7 + (i >> 8));
}

enum kv_status put(int n, struct kv_block *b)
{
    static uint8_t buffer[BYTES];
    uint64_t hash;
    struct kv_chunk_identity id = identity(n, "alpha");
    payload(n, buffer);
    enum kv_status s = disk.reserve(disk.ctx, BYTES, &id, b);
    if (s != KV_OK) return s;
    s = disk.write(disk.ctx, *b, &id, buffer, BYTES, &hash);
    if (s != KV_OK) disk.release(disk.ctx, *b);
    return s;
}

enum kv_status get(int n, struct kv_block b, const char *tenant)
{
    static uint8_t want[BYTES], have[BYTES], zero[BYTES], untouched[BYTES];
    struct kv_chunk_identity id = identity(n, tenant);
    memset(have, 0xEE, sizeof have);
    memset(untouched, 0xEE, sizeof untouched);
    enum kv_status s = disk.read(disk.ctx, b, &id, have, BYTES);
    payload(n, want);
    /* Nothing unverified is ever handed out: a refusal leaves zeros or what was there. */
    if (s == KV_OK) ck_assert_mem_eq(have, want, BYTES);
    else ck_assert(!memcmp(have, zero, BYTES) || !memcmp(have, untouched, BYTES));
    return s;
}

enum kv_status put_group(int first, struct kv_block *b)
{
    static uint8_t text[GROUP][BYTES];
    static struct kv_chunk_identity id[GROUP];
    const void *payloads[GROUP];
    enum kv_status s = KV_OK;
    int n = 0;
    for (; n < GROUP && s == KV_OK; n++) {
        id[n] = identity(first + n, "alpha");
        payload(first + n, text[n]);
        payloads[n] = text[n];
        s = disk.reserve(disk.ctx, BYTES, &id[n], &b[n]);
        if (s != KV_OK) break;
    }
    if (s == KV_OK) s = disk.write_group(disk.ctx, GROUP, b, id, payloads, BYTES);
    for (int i = 0; i < n && s != KV_OK; i++) disk.release(disk.ctx, b[i]);
    return s;
}

struct kv_disk_stats disk_facts(void)
{
    struct kv_disk_stats st;
    kv_disk_stats(&disk, &st);
    return st;
}

void disk_setup(void)
{
    tier_folder_make("disk");
}

void disk_teardown(void)
{
    kv_disk_close(&disk);
    tier_folder_remove();
}
