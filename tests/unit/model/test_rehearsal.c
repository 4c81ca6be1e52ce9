/* test_rehearsal.c — queries foretold one layer ahead: the layer's own where nothing lies in between, near them where something does. */
#include "runtime/model/transformer.h"
#include "runtime/residency/cache.h"
#include "tests/unit/service/engine_runs.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum { STEPS = 24 };

struct watch {
    struct kv_transformer *t;
    const struct kv_weights *w;
    bool same;          /* foretold bits must be the layer's own */
    double cosine;
    int compared;
};

static void attended(void *ctx, struct kv_step_item *const *items, int32_t n_items, int32_t layer)
{
    struct watch *x = ctx;
    size_t hq = (size_t)x->w->n_q_heads * (size_t)x->w->d_head;
    for (int32_t i = 0; i < n_items; i++) {
        const float *own = kv_attention_queries(kv_transformer_attention(x->t)) + (size_t)items[i]->row * hq, *told = items[i]->rehearsed;
        ck_assert_int_eq(told != NULL, items[i]->rehearses && layer > 0);
        if (!told) continue;
        double dot = 0, a = 0, b = 0;
        for (size_t c = 0; c < hq; c++) dot += (double)own[c] * (double)told[c], a += (double)own[c] * (double)own[c], b += (double)told[c] * (double)told[c];
        if (x->same) ck_assert_msg(memcmp(own, told, hq * sizeof *own) == 0, "layer %d foretold other bits", layer);
        x->cosine += dot / sqrt(a * b);
        x->compared++;
    }
}

/* Two sequences side by side, of which one or both rehearse. residual 0: layers add nothing to the stream. */
static double mean_cosine(float residual, bool both)
{
    struct kv_weights w = *kv_model_weights(demo_model());
    struct kv_workers *workers;
    struct kv_arena *arena;
    struct watch x = {.w = &w, .same = residual == 0};
    struct kv_cache cache[2];
    w.residual_scale = residual;
    ck_assert_int_eq(kv_workers_create(2, &workers), KV_OK);
    ck_assert_int_eq(kv_arena_create(kv_slab_bytes(KV_ROW_TYPE, w.n_kv_heads, w.d_head), 8 << 20, &arena), KV_OK);
    ck_assert_int_eq(kv_transformer_create(&w, workers, NULL, 8, 2, 64, &x.t), KV_OK);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(kv_cache_init(&cache[i], w.n_layers, w.n_kv_heads, w.d_head, KV_ROW_TYPE, STEPS), KV_OK);
        ck_assert_int_eq(kv_cache_reserve(&cache[i], arena, STEPS), KV_OK);
    }
    struct kv_step_hooks hooks = {.ctx = &x, .attended = attended};
    for (int32_t p = 0; p < STEPS; p++) {
        int32_t token[2] = {VOCAB_LOW + 7 * p, VOCAB_LOW + 11 * p + 1};
        struct kv_step_item items[2] = {{0}};
        for (int i = 0; i < 2; i++) {
            items[i].cache = &cache[i], items[i].placement = kv_placement_find("resident"), items[i].tokens = &token[i];
            items[i].n = 1, items[i].position = p, items[i].rehearses = i == 1 || both;
        }
        kv_transformer_step(x.t, items, 2, &hooks);
        for (int i = 0; i < 2; i++) cache[i].n_rows = p + 1;
    }
    ck_assert_int_eq(x.compared, STEPS * (w.n_layers - 1) * (both ? 2 : 1));
    for (int i = 0; i < 2; i++) kv_cache_free(&cache[i], arena);
    kv_transformer_destroy(x.t);
    kv_arena_destroy(arena);
    kv_workers_destroy(workers);
    return x.cosine / x.compared;
}

START_TEST(layers_that_add_nothing_are_foretold_by_bits)
{
    ck_assert_double_eq_tol(mean_cosine(0, true), 1, 1e-6);
    mean_cosine(0, false);
}
END_TEST

START_TEST(layers_that_add_something_are_foretold_nearly)
{
    double c = mean_cosine(1, true);
    ck_assert_msg(c > 0.5 && c < 0.999, "mean cosine %g", c);
}
END_TEST

Suite *suite_rehearsal(void);
Suite *suite_rehearsal(void)
{
    Suite *s = suite_create("rehearsal");
    TCase *t = tcase_create("all");
    tcase_add_test(t, layers_that_add_nothing_are_foretold_by_bits);
    tcase_add_test(t, layers_that_add_something_are_foretold_nearly);
    suite_add_tcase(s, t);
    return s;
}
