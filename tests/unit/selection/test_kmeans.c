/* test_kmeans.c — k-means with bounds against k-means that compares every row with every centroid: the same bits, with less work. */
#include "runtime/selection/kmeans.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 1500, D = 48, K = 20, BLOCKS = (ROWS + KV_BLOCK_ROWS - 1) / KV_BLOCK_ROWS };

struct model {
    float centroid[K * D], channel[D * 32], square[K], row[D], tile[2 * KV_KMEANS_TILE * D], own[ROWS], rest[ROWS], moved[K];
    double sum[K * D], scale[ROWS];
    int32_t label[ROWS], count[K];
    uint64_t key[ROWS];
    struct kv_kmeans run;
};

static float drawn(void) { return (float)rand() / (float)RAND_MAX * 2 - 1; }

/* Rows about `topics` directions; some are zero, some are copies, and one may hold what is not a number. */
static void make_rows(float *k, int topics, bool damaged)
{
    float topic[40 * D];
    for (int i = 0; i < topics * D; i++) topic[i] = 2 * drawn();
    for (int i = 0; i < ROWS; i++)
        for (int c = 0; c < D; c++) k[i * D + c] = i % 97 == 5 ? 0 : i % 31 == 7 ? k[(i - 1) * D + c] : topic[(i / 6 * 7 % topics) * D + c] + drawn();
    if (damaged) k[700 * D + 3] = NAN, k[900 * D] = INFINITY;
}

/* How many products it took. */
static int64_t cluster(struct model *m, const struct kv_rows *rows, bool bounds, int64_t part)
{
    memset(m, 0, sizeof *m);
    m->run = (struct kv_kmeans){.rows = rows, .first = 10, .n = ROWS - 10, .width = D, .k = K, .iterations = 20, .cosine = true, .centroid = m->centroid, .channel = m->channel,
                                .label = m->label, .count = m->count, .sum = m->sum, .square = m->square, .row = m->row, .tile = m->tile};
    if (bounds) m->run.own = m->own, m->run.rest = m->rest, m->run.moved = m->moved, m->run.scale = m->scale;
    kv_kmeans_draw_seeds(&m->run, 9, m->key);
    int64_t all = 0, left = part;
    while (!kv_kmeans_run(&m->run, &left)) all += part - left, left = part;
    return all + part - left;
}

START_TEST(bounds_change_no_bit)
{
    float *k = malloc(BLOCKS * KV_BLOCK_ROWS * D * sizeof *k);
    const void *block[BLOCKS];
    struct model *plain = malloc(sizeof *plain), *bounded = malloc(sizeof *bounded);
    for (int b = 0; b < BLOCKS; b++) block[b] = k + b * KV_BLOCK_ROWS * D;
    struct kv_rows rows = {.d_head = D, .group = 1, .n_rows = ROWS, .row_type = KV_F32, .k = block, .v = block, .scale = 1};
    int64_t saved = 0;
    srand(4);
    for (int trial = 0; trial < 24; trial++) {
        make_rows(k, 3 + trial, trial % 4 == 3);
        int64_t all = cluster(plain, &rows, false, INT64_MAX / 4), some = cluster(bounded, &rows, true, trial % 2 ? 40000 : INT64_MAX / 4);
        ck_assert_mem_eq(plain->label, bounded->label, sizeof plain->label);
        ck_assert_mem_eq(plain->count, bounded->count, sizeof plain->count);
        ck_assert_mem_eq(plain->centroid, bounded->centroid, sizeof plain->centroid);
        saved += all - some;
    }
    ck_assert_int_gt(saved, 0);
    free(k), free(plain), free(bounded);
}
END_TEST

Suite *suite_kmeans(void);
Suite *suite_kmeans(void)
{
    Suite *s = suite_create("kmeans");
    TCase *c = tcase_create("kmeans");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, bounds_change_no_bit);
    suite_add_tcase(s, c);
    return s;
}
