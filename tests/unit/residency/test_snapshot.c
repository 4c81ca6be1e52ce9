/* test_snapshot.c — blocks of one sequence found again by another: same bits, same tokens, same tenant, or not at all. */
#include "runtime/residency/snapshot.h"
#include "tests/unit/residency/tier_fixture.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 3, HEADS = 2, D = 16, TOKENS = 64 * 6 + 17 };

static struct tiers tiers;
static struct kv_arena *arena;
static struct kv_chunk_identity base;
static int32_t tokens[TOKENS];
static size_t slab;

static void open_all(int host_slabs)
{
    tiers_open(&tiers, slab, host_slabs, 64 << 20, NULL);
}

static void setup(void)
{
    tier_folder_make("snapshot");
    slab = kv_slab_bytes(KV_F16, HEADS, D);
    ck_assert_int_eq(kv_arena_create(slab, 200 * slab, &arena), KV_OK);
    memset(&base, 0, sizeof base);
    strcpy(base.tenant, "alpha");
    strcpy(base.support, "exact");
    strcpy(base.representation, "kv-f16-post-rope-v1");
    for (int i = 0; i < TOKENS; i++) tokens[i] = i * 7 % 251;
}

static void teardown(void)
{
    kv_arena_destroy(arena);
    tier_folder_remove();
}

static void make_cache(struct kv_cache *c, int32_t rows)
{
    ck_assert_int_eq(kv_cache_init(c, LAYERS, HEADS, D, KV_F16, 640), KV_OK);
    ck_assert_int_eq(kv_cache_reserve(c, arena, rows), KV_OK);
    c->n_rows = rows;
    c->n_sealed = rows / 64;
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t b = 0; b < c->n_blocks; b++)
            for (size_t i = 0; i < slab; i++) c->slab[l * c->max_blocks + b][i] = (uint8_t)(l * 91 + b * 17 + i * 5 + (i >> 7));
}

static void same_rows(const struct kv_cache *a, const struct kv_cache *b, int32_t blocks)
{
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t k = 0; k < blocks; k++) ck_assert_mem_eq(a->slab[l * a->max_blocks + k], b->slab[l * b->max_blocks + k], slab);
}

static int32_t restored(struct kv_cache *c, const struct kv_chunk_identity *id, const int32_t *t, int32_t n, enum kv_status expected)
{
    int32_t rows;
    ck_assert_int_eq(kv_cache_init(c, LAYERS, HEADS, D, KV_F16, 640), KV_OK);
    ck_assert_int_eq(kv_snapshot_restore(tiers.dir, id, t, n, c, arena, &rows), expected);
    ck_assert_int_eq(rows, c->n_rows);
    ck_assert_int_eq(c->n_blocks, rows / 64);
    return rows;
}

START_TEST(round_trip)
{
    struct kv_cache a, b;
    int32_t blocks;
    open_all(64);
    make_cache(&a, TOKENS);
    ck_assert_int_eq(kv_snapshot_save(tiers.dir, &base, tokens, &a, (struct kv_cache_generation){1}, KV_TIER_HOST, 100, &blocks), KV_OK);
    ck_assert_int_eq(blocks, 6);
    ck_assert_int_eq(kv_snapshot_probe(tiers.dir, &base, tokens, TOKENS, LAYERS, HEADS), 6);
    ck_assert_int_eq(restored(&b, &base, tokens, TOKENS, KV_OK), 384);
    same_rows(&a, &b, 6);
    kv_cache_free(&b, arena);
    ck_assert_int_eq(restored(&b, &base, tokens, 200, KV_OK), 192); /* a shorter request with the same beginning */
    same_rows(&a, &b, 3);
    int32_t rows;
    ck_assert_int_eq(kv_snapshot_restore(tiers.dir, &base, tokens, TOKENS, &b, arena, &rows), KV_OK); /* and on from there */
    ck_assert_int_eq(rows, 384);
    same_rows(&a, &b, 6);
    kv_cache_free(&b, arena);
    uint64_t used = tiers.host.used_bytes(tiers.host.ctx);
    ck_assert_int_eq(kv_snapshot_save(tiers.dir, &base, tokens, &a, (struct kv_cache_generation){1}, KV_TIER_HOST, 100, &blocks), KV_OK);
    ck_assert_uint_eq(tiers.host.used_bytes(tiers.host.ctx), used); /* nothing is kept twice */
    kv_cache_free(&a, arena);
    tiers_close(&tiers);
}
END_TEST

START_TEST(only_the_same_rows_match)
{
    struct kv_cache a, b;
    int32_t blocks, other[TOKENS];
    open_all(64);
    make_cache(&a, TOKENS);
    ck_assert_int_eq(kv_snapshot_save(tiers.dir, &base, tokens, &a, (struct kv_cache_generation){1}, KV_TIER_HOST, 100, &blocks), KV_OK);
    for (int32_t at = 0; at < 384; at += 50) { /* one token differs: blocks before it match, none after it does */
        memcpy(other, tokens, sizeof other);
        other[at]++;
        ck_assert_int_eq(restored(&b, &base, other, TOKENS, KV_OK), at / 64 * 64);
        kv_cache_free(&b, arena);
    }
    for (int field = 0; field < kv_chunk_type.n_fields; field++) {
        struct kv_chunk_identity id = base;
        const char *name = kv_chunk_type.field[field].name;
        if (!strcmp(name, "prefix") || !strcmp(name, "layer") || !strncmp(name, "head", 4) || !strcmp(name, "position_first") || !strcmp(name, "position_count")) continue;
        ((uint8_t *)&id)[kv_chunk_type.field[field].offset] ^= 1;
        ck_assert_msg(kv_snapshot_probe(tiers.dir, &id, tokens, TOKENS, LAYERS, HEADS) == 0, "%s is no part of the match", name);
    }
    kv_cache_free(&a, arena);
    tiers_close(&tiers);
}
END_TEST

START_TEST(full_host_goes_to_disk)
{
    struct kv_cache a, b;
    struct kv_directory_stats st;
    int32_t blocks;
    open_all(7); /* of 18 chunks */
    make_cache(&a, TOKENS);
    ck_assert_int_eq(kv_snapshot_save(tiers.dir, &base, tokens, &a, (struct kv_cache_generation){1}, KV_TIER_HOST, 100, &blocks), KV_OK);
    ck_assert_int_eq(blocks, 6);
    kv_directory_stats(tiers.dir, &st);
    ck_assert_uint_gt(st.replicas[KV_TIER_DISK], 0);
    ck_assert_uint_eq(st.replicas[KV_TIER_DISK] + st.replicas[KV_TIER_HOST], 18);
    ck_assert_int_eq(restored(&b, &base, tokens, TOKENS, KV_OK), 384);
    same_rows(&a, &b, 6);
    kv_cache_free(&a, arena);
    kv_cache_free(&b, arena);
    tiers_close(&tiers);
}
END_TEST

START_TEST(survives_a_restart)
{
    struct kv_cache a, b;
    struct kv_disk_stats st;
    int32_t blocks;
    open_all(8);
    make_cache(&a, TOKENS);
    ck_assert_int_eq(kv_snapshot_save(tiers.dir, &base, tokens, &a, (struct kv_cache_generation){1}, KV_TIER_DISK, 100, &blocks), KV_OK);
    kv_disk_stats(&tiers.disk, &st);
    ck_assert_uint_le(st.syncs, 6 * 2 + 2); /* two a block, not two a layer; the segment's and the folder's own */
    tiers_close(&tiers);
    open_all(8);
    ck_assert_int_eq(kv_snapshot_probe(tiers.dir, &base, tokens, TOKENS, LAYERS, HEADS), 6);
    ck_assert_int_eq(restored(&b, &base, tokens, TOKENS, KV_OK), 384);
    same_rows(&a, &b, 6);
    kv_cache_free(&a, arena);
    kv_cache_free(&b, arena);
    tiers_close(&tiers);
}
END_TEST

/* A hit whose payload then fails is a typed answer, and the rows before it are whole. */
START_TEST(damage_stops_the_restore)
{
    struct kv_cache a, b;
    int32_t blocks;
    char name[128];
    uint8_t byte;
    open_all(8);
    make_cache(&a, TOKENS);
    ck_assert_int_eq(kv_snapshot_save(tiers.dir, &base, tokens, &a, (struct kv_cache_generation){1}, KV_TIER_DISK, 100, &blocks), KV_OK);
    snprintf(name, sizeof name, "%s/segment-%016x", tier_folder, 0);
    int fd = open(name, O_RDWR);
    off_t at = 4096 + (off_t)(2 * LAYERS + 1) * (4096 + (off_t)slab + 4096) + 4096 + 100; /* block 2, layer 1 */
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
    ck_assert_int_eq(restored(&b, &base, tokens, TOKENS, KV_CHECKSUM_MISMATCH), 128);
    same_rows(&a, &b, 2);
    kv_cache_free(&a, arena);
    kv_cache_free(&b, arena);
    tiers_close(&tiers);
}
END_TEST

START_TEST(small_arena_restores_what_fits)
{
    struct kv_cache a, b;
    struct kv_arena *large = arena, *small;
    int32_t blocks;
    open_all(64);
    make_cache(&a, TOKENS);
    ck_assert_int_eq(kv_snapshot_save(tiers.dir, &base, tokens, &a, (struct kv_cache_generation){1}, KV_TIER_HOST, 100, &blocks), KV_OK);
    ck_assert_int_eq(kv_arena_create(slab, slab * (LAYERS * 2 + 1), &small), KV_OK);
    arena = small;
    ck_assert_int_eq(restored(&b, &base, tokens, TOKENS, KV_CAPACITY), 128);
    same_rows(&a, &b, 2);
    kv_cache_free(&b, arena);
    arena = large;
    kv_arena_destroy(small);
    kv_cache_free(&a, arena);
    tiers_close(&tiers);
}
END_TEST

Suite *suite_snapshot(void);
Suite *suite_snapshot(void)
{
    Suite *s = suite_create("snapshot");
    TCase *t = tcase_create("snapshot");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, round_trip);
    tcase_add_test(t, only_the_same_rows_match);
    tcase_add_test(t, full_host_goes_to_disk);
    tcase_add_test(t, survives_a_restart);
    tcase_add_test(t, damage_stops_the_restore);
    tcase_add_test(t, small_arena_restores_what_fits);
    suite_add_tcase(s, t);
    return s;
}
