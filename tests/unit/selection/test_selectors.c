/* test_selectors.c — what every method owes, on random grouped shapes, ties, duplicates, damaged rows and growing sequences. */
#include "runtime/selection/draw.h"
#include "tests/unit/selection/case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int32_t lengths[] = {1, 2, 3, 15, 16, 17, 63, 64, 65, 130, 200};
static const int32_t shapes[][3] = {{1, 1, 8}, {4, 2, 16}, {3, 1, 4}, {2, 2, 64}}; /* query heads, K/V heads, width */
enum { N_LENGTHS = sizeof lengths / sizeof *lengths, N_SHAPES = sizeof shapes / sizeof *shapes };

/* Small enough that selection happens at these lengths. */
static void tighten(struct test_case *t)
{
    static const struct {
        const char *name;
        double value;
    } tight[] = {{"budget_rows", 20}, {"page_rows", 4}, {"k", 12}, {"local_rows", 4}, {"sink_rows", 2}, {"cap_rows", 10}, {"top_rows", 8}, {"bits", 3},
                 {"unit_rows", 6}, {"units", 2}, {"rows_per_cluster", 5}, {"r", 3}, {"tables", 20}, {"subspaces", 2}};
    for (size_t i = 0; i < sizeof tight / sizeof *tight; i++)
        for (int32_t p = 0; p < t->c.method->n_params; p++)
            if (!strcmp(t->c.method->params[p].name, tight[i].name)) case_param(t, tight[i].name, tight[i].value);
}

/* ClusterKV clusters every row it is given at build; only appended rows are exact. */
static bool owes_newest(const struct kv_selector_method *m) { return strcmp(m->name, "clusterkv") != 0; }

static bool samples(const struct test_case *t) { return !strcmp(t->c.method->name, "magicpig"); }

static void expect_sound(const struct test_case *t, const struct kv_lab_result *r)
{
    int32_t group = t->c.n_q_heads / t->c.n_kv_heads;
    uint64_t rows = 0;
    for (int32_t h = 0; h < t->c.n_kv_heads; h++)
        for (int32_t b = 0; b < r->n_blocks; b++) {
            uint64_t any = 0;
            for (int32_t g = 0; g < group; g++) any |= r->support[(size_t)(h * group + g) * (size_t)r->n_blocks + (size_t)b];
            rows += (uint64_t)__builtin_popcountll(any);
        }
    ck_assert_uint_eq(r->ledger.rows, rows);
    ck_assert_uint_eq(r->ledger.payload_bytes, rows * 2 * sizeof(float) * (uint64_t)t->c.d_head);
    for (int32_t q = 0; q < t->c.n_q_heads; q++) {
        const uint64_t *mask = r->support + (size_t)q * (size_t)r->n_blocks;
        if (owes_newest(t->c.method)) ck_assert_msg(kv_mask_has(mask, r->n_rows - 1), "%s leaves out the newest row", t->c.method->name);
        if (r->n_rows % 64) ck_assert_uint_eq(mask[r->n_blocks - 1] >> (r->n_rows % 64), 0);
        if (!t->c.method->per_q_head) ck_assert_mem_eq(mask, r->support + (size_t)(q / group * group) * (size_t)r->n_blocks, (size_t)r->n_blocks * sizeof *mask);
        ck_assert_msg(r->head[q].bound_holds, "%s: error %g over bound %g", t->c.method->name, r->head[q].output_error, r->head[q].bound);
        ck_assert_double_le(r->head[q].identity_residual, 1e-12);
    }
}

START_TEST(supports_are_sound)
{
    const struct kv_selector_method *m = kv_selector_at((size_t)_i);
    for (int s = 0; s < N_SHAPES; s++)
        for (int l = 0; l < N_LENGTHS; l++) {
            struct test_case t;
            case_random(&t, m->name, shapes[s][0], shapes[s][1], shapes[s][2], lengths[l], (uint64_t)(100 * s + l));
            tighten(&t);
            if (l % 2) case_prefill(&t, 3, (uint64_t)l);
            struct kv_lab_result r = case_run(&t);
            expect_sound(&t, &r);
            kv_lab_result_free(&r);
            case_free(&t);
        }
}
END_TEST

/* Drawn shapes, widths, lengths and prompts; up to all rows are copies of a few, so that scores tie and clusters and codebooks stay empty. Twice is the same. */
START_TEST(drawn_shapes_with_copies_and_empty_clusters_are_sound)
{
    const struct kv_selector_method *m = kv_selector_at((size_t)_i);
    for (uint64_t n = 0; n < 60; n++) {
        struct test_case t;
        int32_t heads = 1 + (int32_t)(kv_draw(n, 0) % 3), group = 1 + (int32_t)(kv_draw(n, 1) % 5), d = 4 * (1 + (int32_t)(kv_draw(n, 2) % 9)), rows = 1 + (int32_t)(kv_draw(n, 3) % 220);
        int32_t distinct = 1 + (int32_t)(kv_draw(n, 4) % (uint64_t)rows), copies = (int32_t)(kv_draw(n, 5) % 101);
        case_random(&t, m->name, heads * group, heads, d, rows, 1000 + n);
        tighten(&t);
        for (int32_t i = 0; i < heads * rows; i++) {
            int32_t from = i / rows * rows + (int32_t)(kv_draw(n, 10 + 2 * (uint64_t)i) % (uint64_t)distinct);
            if ((int32_t)(kv_draw(n, 11 + 2 * (uint64_t)i) % 100) < copies) memcpy(t.k + (size_t)i * (size_t)d, t.k + (size_t)from * (size_t)d, (size_t)d * sizeof *t.k);
        }
        if (n % 3 == 0) case_prefill(&t, 1 + (int32_t)(n % 4), n);
        struct kv_lab_result a = case_run(&t), b = case_run(&t);
        expect_sound(&t, &a);
        ck_assert_mem_eq(a.support, b.support, (size_t)t.c.n_q_heads * (size_t)a.n_blocks * sizeof *a.support);
        kv_lab_result_free(&a);
        kv_lab_result_free(&b);
        case_free(&t);
    }
}
END_TEST

START_TEST(full_budget_is_dense_by_bits)
{
    const struct kv_selector_method *m = kv_selector_at((size_t)_i);
    for (int s = 0; s < N_SHAPES; s++)
        for (int l = 0; l < N_LENGTHS; l++) {
            struct test_case t;
            case_random(&t, m->name, shapes[s][0], shapes[s][1], shapes[s][2], lengths[l], (uint64_t)(7 + 100 * s + l));
            t.c.row_type = l % 3 == 0 ? KV_F32 : l % 3 == 1 ? KV_F16 : KV_BF16;
            if (samples(&t)) { /* the declared exception */
                case_free(&t);
                continue;
            }
            case_widest(&t);
            struct kv_lab_result r = case_run(&t);
            size_t bytes = (size_t)t.c.n_q_heads * (size_t)t.c.d_head * sizeof *r.output;
            ck_assert_msg(!memcmp(r.output, r.dense, bytes), "%s at %d rows is not dense", m->name, lengths[l]);
            for (int32_t q = 0; q < t.c.n_q_heads; q++) ck_assert_double_eq(r.head[q].omitted_mass, 0);
            kv_lab_result_free(&r);
            case_free(&t);
        }
}
END_TEST

/* Duplicated keys tie everywhere: the answer is the lower rows, and the same each time. */
START_TEST(ties_go_to_the_lower_row)
{
    const struct kv_selector_method *m = kv_selector_at((size_t)_i);
    struct test_case t;
    case_random(&t, m->name, 2, 1, 8, 60, 5);
    tighten(&t);
    for (int32_t i = 1; i < 60; i++) memcpy(t.k + i * 8, t.k, 8 * sizeof *t.k);
    struct kv_lab_result a = case_run(&t), b = case_run(&t);
    ck_assert_mem_eq(a.support, b.support, 2 * sizeof *a.support);
    expect_sound(&t, &a);
    uint64_t mask = a.support[0];
    if (!strcmp(m->name, "quest")) ck_assert_uint_eq(mask, 0xffff | UINT64_C(0xf) << 56);
    if (!strcmp(m->name, "sparq")) ck_assert_uint_eq(mask, 0xff | UINT64_C(0xf) << 56);
    if (!strcmp(m->name, "infinigen")) ck_assert_uint_eq(mask, 0x3ff | UINT64_C(1) << 59);
    if (!strcmp(m->name, "infllm")) ck_assert_uint_eq(mask, 0x3fff | UINT64_C(0xf) << 56);
    if (!strcmp(m->name, "pqcache")) ck_assert_uint_eq(mask, 0x3ff | UINT64_C(0xf) << 56);
    kv_lab_result_free(&a);
    kv_lab_result_free(&b);
    case_free(&t);
}
END_TEST

/* Damaged in one channel or in all, in the index or beyond the budget: the row is in every head's support, the others are ranked as if its key were
 * zero, the output is no number where dense attention's is none, and no estimate says that little was left out. */
START_TEST(damaged_rows_reach_attention_and_hide_no_other)
{
    const struct kv_selector_method *m = kv_selector_at((size_t)_i);
    static const struct {
        int32_t row, channels;
        float value;
    } damage[] = {{17, 8, NAN}, {17, 1, NAN}, {170, 1, NAN}, {170, 8, NAN}, {60, 1, INFINITY}, {60, 1, -INFINITY}, {170, 8, INFINITY}, {3, 1, NAN}};
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++)
        for (int type = 0; type < 3; type++) {
            struct test_case t;
            case_random(&t, m->name, 4, 2, 8, 200, 9 + i);
            tighten(&t);
            t.c.row_type = type == 0 ? KV_F32 : type == 1 ? KV_F16 : KV_BF16;
            if (m->online_estimate && strcmp(m->name, "sparq")) case_param(&t, "estimate_rows", 8);
            float *key = t.k + damage[i].row * 8;
            memset(key, 0, 8 * sizeof *key);
            struct kv_lab_result zero = case_run(&t);
            for (int32_t c = 0; c < damage[i].channels; c++) key[(c + 5) % 8] = damage[i].value;
            struct kv_lab_result r = case_run(&t);
            for (int32_t q = 0; q < 4; q++) {
                uint64_t *mask = r.support + (size_t)q * (size_t)r.n_blocks, *other = zero.support + (size_t)q * (size_t)r.n_blocks;
                if (q < 2) { /* of the damaged K/V head */
                    ck_assert_msg(kv_mask_has(mask, damage[i].row), "%s hides row %d, damaged in %d channels by %g", m->name, damage[i].row, damage[i].channels, (double)damage[i].value);
                    ck_assert_int_eq(isfinite(r.output[q * 8]) != 0, isfinite(r.dense[q * 8]) != 0);
                    ck_assert(m->online_estimate ? r.estimated_omitted_mass[q] != r.estimated_omitted_mass[q] : r.estimated_omitted_mass[q] == -1);
                    kv_mask_set(other, damage[i].row);
                }
                ck_assert_mem_eq(mask, other, (size_t)r.n_blocks * sizeof *mask);
            }
            kv_lab_result_free(&r);
            kv_lab_result_free(&zero);
            case_free(&t);
        }
}
END_TEST

/* Dropped rows take their damage along; rows in their place, and blocks that had some, are what they are. */
START_TEST(damage_ends_with_its_row)
{
    const struct kv_selector_method *m = kv_selector_at((size_t)_i);
    struct test_case t;
    struct kv_lab_rows stored;
    struct kv_selector *grown, *fresh;
    struct kv_error err;
    uint64_t a[8], b[8];
    struct kv_ledger ledger = {0};
    case_random(&t, m->name, 2, 1, 8, 200, 31);
    tighten(&t);
    ck_assert_int_eq(kv_lab_rows_create(KV_F32, 8, 2, 0.3f, 200, t.k, t.v, &stored), KV_OK);
    ck_assert_int_eq(m->create(&t.c.params, 8, 2, 200, 3, &grown, &err), KV_OK);
    ck_assert_int_eq(m->create(&t.c.params, 8, 2, 200, 3, &fresh, &err), KV_OK);
    struct kv_rows *rows = &stored.rows;
    rows->n_rows = 140;
    ck_assert_int_eq(m->build(grown, rows, NULL, 0), KV_OK);
    ck_assert_int_eq(m->build(fresh, rows, NULL, 0), KV_OK);
    float *key = (float *)stored.block[2] + 22 * 8, whole = *key;
    *key = NAN;
    rows->n_rows = 170;
    ck_assert_int_eq(m->append(grown, rows, 140), KV_OK);
    ck_assert_int_eq(m->query(grown, rows, t.q, 0, a, 4, NULL, &ledger), KV_OK);
    ck_assert(kv_mask_has(a, 150) && kv_mask_has(a + 4, 150));
    ck_assert_int_eq(m->drop(grown, 150), KV_OK);
    *key = whole;
    ck_assert_int_eq(m->append(grown, rows, 150), KV_OK);
    ck_assert_int_eq(m->append(fresh, rows, 140), KV_OK);
    ck_assert_int_eq(m->query(grown, rows, t.q, 0, a, 4, NULL, &ledger), KV_OK);
    ck_assert_int_eq(m->query(fresh, rows, t.q, 0, b, 4, NULL, &ledger), KV_OK);
    ck_assert_mem_eq(a, b, sizeof a);
    m->destroy(grown);
    m->destroy(fresh);
    kv_lab_rows_free(&stored);
    case_free(&t);
}
END_TEST

struct instance {
    struct test_case t;
    struct kv_lab_rows stored;
    struct kv_selector *s;
};

static void open_instance(struct instance *x, const struct kv_selector_method *m, int32_t n)
{
    struct kv_error err;
    case_random(&x->t, m->name, 2, 1, 8, n, 31);
    tighten(&x->t);
    ck_assert_int_eq(kv_lab_rows_create(KV_F16, 8, 2, 0.3f, n, x->t.k, x->t.v, &x->stored), KV_OK);
    ck_assert_int_eq(m->create(&x->t.c.params, 8, 2, n, 3, &x->s, &err), KV_OK);
}

static void close_instance(struct instance *x)
{
    x->t.c.method->destroy(x->s);
    kv_lab_rows_free(&x->stored);
    case_free(&x->t);
}

static void ask(struct instance *x, uint64_t support[2 * 4])
{
    struct kv_ledger ledger = {0};
    double estimate[2];
    memset(support, 0xa5, 8 * sizeof *support);
    ck_assert_int_eq(x->t.c.method->query(x->s, &x->stored.rows, x->t.q, 0, support, 4, estimate, &ledger), KV_OK);
}

/* Rows dropped and appended again leave no trace, unless the method says so. */
START_TEST(drop_and_append_return_to_the_same_support)
{
    const struct kv_selector_method *m = kv_selector_at((size_t)_i);
    struct instance x;
    uint64_t before[8], after[8];
    open_instance(&x, m, 200);
    struct kv_rows *rows = &x.stored.rows;
    rows->n_rows = 150;
    ck_assert_int_eq(m->build(x.s, rows, NULL, 0), KV_OK);
    for (rows->n_rows = 151; rows->n_rows <= 180; rows->n_rows++) ck_assert_int_eq(m->append(x.s, rows, rows->n_rows - 1), KV_OK);
    rows->n_rows = 180;
    ask(&x, before);
    static const int32_t cuts[] = {179, 170, 155, 150};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        ck_assert_int_eq(m->drop(x.s, cuts[i]), KV_OK);
        ck_assert_int_eq(m->covered(x.s), cuts[i]);
        struct kv_ledger ledger = {0};
        ck_assert_int_eq(m->query(x.s, rows, x.t.q, 0, after, 4, NULL, &ledger), KV_STALE_INDEX);
        ck_assert_int_eq(m->append(x.s, rows, cuts[i] + 1), KV_STALE_INDEX);
        ck_assert_int_eq(m->append(x.s, rows, cuts[i]), KV_OK);
        ask(&x, after);
        ck_assert_msg(!memcmp(before, after, sizeof before), "%s changed its mind after a drop to %d", m->name, cuts[i]);
    }
    close_instance(&x);
}
END_TEST

/* A sequence that grows from nothing, is cut anywhere, sealed and grown again keeps answering soundly. */
START_TEST(any_order_of_steps_is_survived)
{
    const struct kv_selector_method *m = kv_selector_at((size_t)_i);
    struct instance x;
    uint64_t support[8];
    open_instance(&x, m, 200);
    struct kv_rows *rows = &x.stored.rows;
    srand(1);
    rows->n_rows = 0;
    ck_assert_int_eq(m->build(x.s, rows, NULL, 0), KV_OK);
    for (int step = 0; step < 300; step++) {
        int32_t at = m->covered(x.s), to = rand() % 201;
        if (to < at) ck_assert_int_eq(m->drop(x.s, to), KV_OK);
        rows->n_rows = to;
        if (to > at) ck_assert_int_eq(m->append(x.s, rows, at), KV_OK);
        if (step % 7 == 0 && m->seal) {
            enum kv_status status = m->seal(x.s, rows);
            ck_assert(status == KV_OK || status == KV_CAPACITY);
            if (status == KV_CAPACITY) ck_assert_int_eq(m->build(x.s, rows, NULL, 0), KV_OK);
        }
        ck_assert_int_eq(m->covered(x.s), to);
        if (to == 0) continue;
        ask(&x, support);
        for (int g = 0; g < 2; g++) {
            if (owes_newest(m)) ck_assert(kv_mask_has(support + 4 * g, to - 1));
            for (int32_t i = to; i < 256; i++) ck_assert(!kv_mask_has(support + 4 * g, i));
        }
    }
    close_instance(&x);
}
END_TEST

/* Other rows in the place of dropped ones: the index is that of a sequence which never had the first. Methods that fit something at build
 * keep it, and are not asked. */
START_TEST(replaced_rows_are_indexed_afresh)
{
    const struct kv_selector_method *m = kv_selector_at((size_t)_i);
    struct instance x;
    uint64_t grown[8], fresh[8];
    float mixed[16], plain[16];
    if (strcmp(m->name, "quest") && strcmp(m->name, "sparq") && strcmp(m->name, "infllm")) return;
    open_instance(&x, m, 200);
    m->destroy(x.s);
    if (!strcmp(m->name, "sparq")) case_param(&x.t, "mean_term", 1);
    for (size_t cut = 120; cut < 140; cut++) {
        struct kv_error err;
        struct kv_rows *rows = &x.stored.rows;
        ck_assert_int_eq(m->create(&x.t.c.params, 8, 2, 200, 3, &x.s, &err), KV_OK);
        rows->n_rows = 150;
        ck_assert_int_eq(m->build(x.s, rows, NULL, 0), KV_OK);
        ck_assert_int_eq(m->drop(x.s, (int32_t)cut), KV_OK);
        for (size_t i = cut; i < 200; i++)
            for (size_t half = 0; half < 2; half++) kv_kernels()->to_rows(KV_F16, x.t.q, 8, (char *)x.stored.block[4 * half + i / 64] + i % 64 * 16);
        rows->n_rows = 200;
        ck_assert_int_eq(m->append(x.s, rows, (int32_t)cut), KV_OK);
        ask(&x, grown);
        if (m->estimate) ck_assert_int_eq(m->estimate(x.s, rows, x.t.q, grown, 4, mixed), KV_OK);
        ck_assert_int_eq(m->build(x.s, rows, NULL, 0), KV_OK);
        ask(&x, fresh);
        if (m->estimate) ck_assert_int_eq(m->estimate(x.s, rows, x.t.q, fresh, 4, plain), KV_OK);
        ck_assert_msg(!memcmp(grown, fresh, sizeof grown), "%s remembers rows dropped at %zu", m->name, cut);
        if (m->estimate) ck_assert_mem_eq(mixed, plain, sizeof mixed);
        m->destroy(x.s);
        kv_lab_rows_free(&x.stored);
        ck_assert_int_eq(kv_lab_rows_create(KV_F16, 8, 2, 0.3f, 200, x.t.k, x.t.v, &x.stored), KV_OK);
    }
    struct kv_error err;
    ck_assert_int_eq(m->create(&x.t.c.params, 8, 2, 200, 3, &x.s, &err), KV_OK);
    close_instance(&x);
}
END_TEST

/* An index built a little at a time, while rows come, is the index of the rows it began with; fewer rows begin it anew. */
START_TEST(a_build_in_parts_is_the_build)
{
    const struct kv_selector_method *m = kv_selector_at((size_t)_i);
    static const int64_t parts[] = {1, 1000, 100000};
    if (!m->build_some) return;
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
        struct instance x;
        uint64_t whole[8], cut[8];
        open_instance(&x, m, 200);
        struct kv_rows *rows = &x.stored.rows;
        rows->n_rows = 150;
        ck_assert_int_eq(m->build(x.s, rows, NULL, 0), KV_OK);
        rows->n_rows = 180;
        ck_assert_int_eq(m->append(x.s, rows, 150), KV_OK);
        ask(&x, whole);
        bool done = false;
        int calls = 0;
        rows->n_rows = 190;
        ck_assert_int_eq(m->build_some(x.s, rows, NULL, 0, 1, &done), KV_OK);
        ck_assert(!done);
        for (rows->n_rows = 150; !done && calls < 100000; calls++) {
            ck_assert_int_eq(m->build_some(x.s, rows, NULL, 0, parts[p], &done), KV_OK);
            if (rows->n_rows < 180) rows->n_rows++;
        }
        ck_assert(done && (calls > 2 || p == 2));
        ck_assert_int_eq(m->covered(x.s), 150);
        rows->n_rows = 180;
        ck_assert_int_eq(m->append(x.s, rows, 150), KV_OK);
        ask(&x, cut);
        ck_assert_msg(!memcmp(whole, cut, sizeof whole), "%s depends on how its build is cut", m->name);
        close_instance(&x);
    }
}
END_TEST

START_TEST(widening_never_selects_less)
{
    const struct kv_selector_method *m = kv_selector_at((size_t)_i);
    struct test_case t;
    case_random(&t, m->name, 4, 2, 16, 200, 77);
    tighten(&t);
    struct kv_lab_result narrow = case_run(&t);
    t.c.widen = 1;
    struct kv_lab_result wide = case_run(&t);
    for (int32_t i = 0; i < 4 * narrow.n_blocks; i++) ck_assert_uint_eq(narrow.support[i] & ~wide.support[i], 0);
    if (!samples(&t)) ck_assert_uint_gt(wide.ledger.rows, narrow.ledger.rows);
    kv_lab_result_free(&narrow);
    kv_lab_result_free(&wide);
    case_free(&t);
}
END_TEST

Suite *suite_selectors(void);
Suite *suite_selectors(void)
{
    Suite *s = suite_create("selectors");
    TCase *c = tcase_create("every method");
    int n = (int)kv_selector_count();
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, supports_are_sound, 0, n);
    tcase_add_loop_test(c, drawn_shapes_with_copies_and_empty_clusters_are_sound, 0, n);
    tcase_add_loop_test(c, full_budget_is_dense_by_bits, 0, n);
    tcase_add_loop_test(c, ties_go_to_the_lower_row, 0, n);
    tcase_add_loop_test(c, damaged_rows_reach_attention_and_hide_no_other, 0, n);
    tcase_add_loop_test(c, damage_ends_with_its_row, 0, n);
    tcase_add_loop_test(c, drop_and_append_return_to_the_same_support, 0, n);
    tcase_add_loop_test(c, replaced_rows_are_indexed_afresh, 0, n);
    tcase_add_loop_test(c, any_order_of_steps_is_survived, 0, n);
    tcase_add_loop_test(c, widening_never_selects_less, 0, n);
    tcase_add_loop_test(c, a_build_in_parts_is_the_build, 0, n);
    suite_add_tcase(s, c);
    return s;
}
