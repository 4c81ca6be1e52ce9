/* test_hunt.c — the hunt for wrong rows: worlds that differ in one field of the identity share tiers under faults, evictions and restarts. Whatever is found
 * must be what that world would compute; and with any one field left out of the identity the hunt must find rows of another world. */
#include "runtime/residency/faults.h"
#include "runtime/residency/snapshot.h"
#include "tests/unit/residency/tier_fixture.h"

#include <check.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Suite *suite_hunt(void);

enum { BYTES = 8192, HOST_SLABS = 12, STEPS = 1200, RESTARTS = 3, NO_FIELD = -1 };

static struct tiers tiers;
static struct kv_faults *faults;
static uint64_t state;

static uint32_t draw(uint32_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % n;
}

static void open_all(void)
{
    tiers_open(&tiers, BYTES, HOST_SLABS, 8 << 20, &kv_disk_io_faulty);
}

static void setup(void)
{
    tier_folder_make("hunt");
    ck_assert_int_eq(kv_faults_create(&faults), KV_OK);
}

static void teardown(void)
{
    kv_faults_destroy(faults);
    tier_folder_remove();
}

/* What tells rows apart, said once more and apart from the table that the product hashes: what the table has lost must be missed here. */
#define MEMBER(name) {#name, offsetof(struct kv_chunk_identity, name), sizeof(((struct kv_chunk_identity *)0)->name)}
static const struct {
    const char *name;
    size_t offset, size;
} member[] = {MEMBER(prefix), MEMBER(model), MEMBER(adapters), MEMBER(cache_abi), MEMBER(numerics), MEMBER(layer), MEMBER(head_first), MEMBER(head_count),
              MEMBER(position_first), MEMBER(position_count), MEMBER(position_contract), MEMBER(representation), MEMBER(tenant), MEMBER(ns), MEMBER(support)};
enum { MEMBERS = sizeof member / sizeof *member };

/* World 0, or the one that differs from it in one field. */
static struct kv_chunk_identity chunk_of(int world, int32_t layer)
{
    struct kv_chunk_identity id = {.layer = layer, .head_count = 2, .position_count = 64, .ns = {1}};
    strcpy(id.tenant, "acme");
    strcpy(id.support, "exact");
    strcpy(id.representation, "kv-f16-post-rope-v1");
    if (world) ((uint8_t *)&id)[member[world - 1].offset] ^= 16;
    return id;
}

/* As if the field were no part of what rows are known by. */
static struct kv_chunk_identity without(struct kv_chunk_identity id, int field)
{
    if (field != NO_FIELD) memset((uint8_t *)&id + member[field].offset, 0, member[field].size);
    return id;
}

/* A member that the list above does not know is none that the hunt could miss. */
START_TEST(every_member_makes_worlds)
{
    size_t at = 0;
    for (int i = 0; i < MEMBERS; i++) {
        ck_assert_uint_le(member[i].offset - at, _Alignof(uint64_t) - 1);
        at = member[i].offset + member[i].size;
    }
    ck_assert_uint_le(sizeof(struct kv_chunk_identity) - at, _Alignof(uint64_t) - 1);
    ck_assert_int_eq(kv_chunk_type.n_fields, MEMBERS);
}
END_TEST

/* The rows a world computes: nobody else's. */
static void compute(const struct kv_chunk_identity *id, uint8_t *out)
{
    uint64_t h = UINT64_C(14695981039346656037);
    for (int m = 0; m < MEMBERS; m++)
        for (size_t i = 0; i < member[m].size; i++) h = (h ^ ((const uint8_t *)id)[member[m].offset + i]) * UINT64_C(1099511628211);
    for (size_t i = 0; i < BYTES; i++) out[i] = (uint8_t)((h >> (i % 8 * 8)) + i / 8);
}

struct tally {
    int wrong, hits, misses, refused;
};

static void make_room(enum kv_tier_id tier)
{
    if (kv_evict_now(tiers.dir, tier) == KV_OK) return;
    struct kv_chunk_identity gone;
    if (kv_directory_victim(tiers.dir, tier, &gone) == KV_OK) (void)kv_directory_forget(tiers.dir, &gone, tier);
}

static void keep(const struct kv_chunk_identity *known, const uint8_t *rows)
{
    enum kv_tier_id tier = draw(3) ? KV_TIER_DISK : KV_TIER_HOST;
    for (int tries = 0; tries < 3; tries++) {
        if (kv_directory_publish(tiers.dir, known, (struct kv_cache_generation){1}, tier, rows, BYTES, 100) != KV_CAPACITY) return;
        make_room(tier);
    }
}

/* Looked for where it is nearest, as a request would; computed when it is nowhere, or cannot be read. */
static void ask(const struct kv_chunk_identity *id, int field, const struct kv_fault_marks *marks, struct tally *t)
{
    static uint8_t got[BYTES], want[BYTES];
    struct kv_chunk_identity known = without(*id, field);
    compute(id, want);
    for (int tier; (tier = kv_directory_nearest(tiers.dir, &known)) >= 0;) {
        struct kv_lease lease;
        if (kv_directory_lookup(tiers.dir, &known, (enum kv_tier_id)tier, &lease) != KV_ANSWER_READY) break;
        struct kv_tier *from = kv_directory_tier(tiers.dir, (enum kv_tier_id)tier);
        kv_faults_at_disk(marks);
        enum kv_status s = from->read(from->ctx, lease.block, &known, got, BYTES);
        kv_faults_at_disk(NULL);
        ck_assert_int_eq(kv_directory_release(tiers.dir, &lease), KV_OK);
        if (s == KV_OK) {
            t->hits++;
            t->wrong += memcmp(got, want, BYTES) != 0;
            return;
        }
        t->refused++;
        if (kv_directory_forget(tiers.dir, &known, (enum kv_tier_id)tier) != KV_OK) break;
    }
    t->misses++;
    keep(&known, want);
}

static struct tally hunt(int field)
{
    static const enum kv_fault kinds[] = {KV_FAULT_bit_flip, KV_FAULT_truncation, KV_FAULT_dropped_read};
    struct kv_fault_scope scope = {.tenant = "hunted"};
    struct tally t = {0};
    state = 9;
    tier_folder_clear();
    for (int restart = 0; restart < RESTARTS; restart++) {
        open_all();
        for (int i = 0; i < STEPS / RESTARTS; i++) {
            enum kv_fault k = kinds[draw(3)];
            if (draw(8) == 0) (void)kv_faults_arm(faults, k, 1, &scope, &(struct kv_error){0});
            struct kv_fault_marks marks = kv_faults_match(faults, "hunted", NULL, 0);
            struct kv_chunk_identity id = chunk_of((int)draw(MEMBERS + 1), (int32_t)draw(3));
            ask(&id, field, &marks, &t);
            if (draw(20) == 0) make_room(draw(2) ? KV_TIER_HOST : KV_TIER_DISK);
        }
        tiers_close(&tiers);
    }
    return t;
}

START_TEST(every_row_found_is_the_one_that_would_be_computed)
{
    struct tally t = hunt(NO_FIELD);
    ck_assert_int_eq(t.wrong, 0);
    ck_assert_int_gt(t.hits, 100);
    ck_assert_int_gt(t.misses, 40);
    ck_assert_int_gt(t.refused, 10); /* faults were met */
}
END_TEST

START_TEST(without_any_one_field_it_finds_wrong_rows)
{
    struct tally t = hunt(_i);
    ck_assert_msg(t.wrong > 0, "leaving out %s was not noticed in %d hits", member[_i].name, t.hits);
}
END_TEST

Suite *suite_hunt(void)
{
    Suite *s = suite_create("hunt");
    TCase *t = tcase_create("hunt");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, every_row_found_is_the_one_that_would_be_computed);
    tcase_add_test(t, every_member_makes_worlds);
    tcase_add_loop_test(t, without_any_one_field_it_finds_wrong_rows, 0, MEMBERS);
    suite_add_tcase(s, t);
    return s;
}
