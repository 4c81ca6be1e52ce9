/* tier_fixture.c — see tier_fixture.h. */
#include "tests/unit/residency/tier_fixture.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

char tier_folder[64];

void tier_folder_clear(void)
{
    DIR *d = opendir(tier_folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        char name[400];
        snprintf(name, sizeof name, "%s/%s", tier_folder, e->d_name);
        if (e->d_name[0] != '.') unlink(name);
    }
    if (d) closedir(d);
}

void tier_folder_make(const char *name)
{
    snprintf(tier_folder, sizeof tier_folder, "%s/kvasir-%s-%d", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", name, (int)getpid());
    mkdir(tier_folder, 0700);
    tier_folder_clear();
}

void tier_folder_remove(void)
{
    tier_folder_clear();
    rmdir(tier_folder);
}

static void on_found(void *ctx, const struct kv_chunk_identity *id, struct kv_block b, uint64_t bytes)
{
    struct tiers *t = ctx;
    ck_assert_int_eq(kv_directory_adopt(t->dir, id, KV_TIER_DISK, b, bytes), KV_OK);
}

void tiers_open(struct tiers *t, size_t slab_bytes, int host_slabs, uint64_t disk_bytes, const struct kv_disk_io *io)
{
    struct kv_error err = {0};
    ck_assert_int_eq(kv_tier_memory_create("host", "host", false, slab_bytes, (uint64_t)host_slabs * slab_bytes, &t->host), KV_OK);
    struct kv_directory_config c = {.tier = {[KV_TIER_HOST] = &t->host, [KV_TIER_DISK] = &t->disk}, .max_chunks = 256, .max_transactions = 4, .max_payload_bytes = slab_bytes,
                                    .victim = KV_VICTIM_LRU};
    ck_assert_int_eq(kv_directory_create(&c, &t->dir), KV_OK);
    struct kv_disk_config dc = {.path = tier_folder, .capacity_bytes = disk_bytes, .segment_bytes = 1 << 20, .key = {3}, .found = on_found, .found_ctx = t, .io = io};
    ck_assert_msg(kv_disk_open(&dc, &t->disk, &err) == KV_OK, "%s", err.message);
}

void tiers_close(struct tiers *t)
{
    ck_assert_msg(kv_directory_check(t->dir, NULL) == KV_OK, "invariants");
    kv_directory_destroy(t->dir);
    kv_tier_memory_destroy(&t->host);
    kv_disk_close(&t->disk);
}
