/* test_pipelines.c — the list of pipelines is whole and agrees with the methods and placements it names. */
#include "runtime/selection/methods.h"

#include <check.h>
#include <math.h>
#include <string.h>

/* The twenty-one published rows of the registry; beside them the baseline and the plain exact placement. */
static const char *const published[] = {"flexgen", "cachedattention", "infercept", "headinfer", "neo", "instinfer-dense", "instinfer-sparf",
                                        "sparq", "quest", "infinigen", "pqcache", "retrievalattention", "squeezedattention", "magicpig", "infllm",
                                        "em-llm", "clusterkv", "scoutattention", "icecache", "kvdrive", "retroinfer"};

START_TEST(every_published_system_has_its_row)
{
    ck_assert_uint_eq(sizeof published / sizeof *published, 21);
    ck_assert_uint_eq(kv_pipeline_count(), 23);
    for (size_t i = 0; i < 21; i++) ck_assert_msg(kv_pipeline_find(published[i]) != NULL, "no row %s", published[i]);
    ck_assert_ptr_nonnull(kv_pipeline_find("resident"));
    ck_assert_ptr_nonnull(kv_pipeline_find("layerwise"));
    ck_assert_ptr_null(kv_pipeline_find("knn-lm"));
    ck_assert_ptr_null(kv_pipeline_find(NULL));
    ck_assert_ptr_null(kv_pipeline_at(kv_pipeline_count()));
}
END_TEST

static void expect_specs(const char *owner, const struct kv_param_spec *p, int32_t n)
{
    ck_assert_int_le(n, KV_MAX_PARAMS);
    for (int32_t i = 0; i < n; i++) {
        ck_assert_msg(!strcmp(p[i].type, "int") || !strcmp(p[i].type, "float") || !strcmp(p[i].type, "bool"), "%s.%s is a %s", owner, p[i].name, p[i].type);
        ck_assert_msg(p[i].def >= p[i].min && p[i].def <= p[i].max, "%s.%s: default outside its range", owner, p[i].name);
        if (strcmp(p[i].type, "float")) ck_assert_double_eq(p[i].def, floor(p[i].def));
        ck_assert(p[i].source[0] && p[i].help[0] && p[i].unit);
        for (int32_t j = 0; j < i; j++) ck_assert_str_ne(p[i].name, p[j].name);
    }
}

START_TEST(rows_are_whole_and_agree_with_methods)
{
    for (size_t i = 0; i < kv_pipeline_count(); i++) {
        const struct kv_pipeline *p = kv_pipeline_at(i);
        const char *const fields[] = {p->name, p->title, p->section, p->support, p->representation, p->tier, p->unit, p->index, p->update_phase,
                                      p->compute_site, p->fallback, p->workload, p->placement, p->provenance};
        for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) ck_assert_msg(fields[f] && fields[f][0], "%s lacks field %zu", p->name, f);
        ck_assert_ptr_eq(kv_pipeline_find(p->name), p);
        expect_specs(p->name, p->params, p->n_params);
        const struct kv_selector_method *m = kv_selector_find(p->selector);
        if (p->built && p->selector) ck_assert_msg(m && m->params == p->params && m->n_params == p->n_params, "%s and its method disagree", p->name);
        if (p->built) ck_assert_msg(!strcmp(p->placement, "resident") || !strcmp(p->placement, "layerwise"), "%s has no placement", p->name);
        if (p->exactness == KV_EXACT) ck_assert_ptr_null(p->selector);
        if (p->built && p->exactness == KV_APPROXIMATE) ck_assert_ptr_nonnull(m);
    }
}
END_TEST

START_TEST(every_method_is_a_built_pipeline)
{
    for (size_t i = 0; i < kv_selector_count(); i++) {
        const struct kv_selector_method *m = kv_selector_at(i);
        const struct kv_pipeline *p = kv_pipeline_find(m->name);
        ck_assert_msg(p && p->built && p->selector && !strcmp(p->selector, m->name), "method %s has no built pipeline", m->name);
        ck_assert(m->create && m->destroy && m->build && m->append && m->drop && m->query && m->covered);
    }
    ck_assert_ptr_null(kv_selector_at(kv_selector_count()));
    ck_assert_ptr_null(kv_selector_find(NULL));
}
END_TEST

START_TEST(parameters_are_checked_by_name_and_range)
{
    const struct kv_pipeline *p = kv_pipeline_find("quest");
    struct kv_params v;
    struct kv_error err = {0};
    kv_params_default(p, &v);
    ck_assert_double_eq(kv_params_get(p, &v, "page_rows"), 16);
    ck_assert_int_eq(kv_params_set(p, &v, "budget_rows", 64, &err), KV_OK);
    ck_assert_double_eq(kv_params_get(p, &v, "budget_rows"), 64);
    ck_assert(isnan(kv_params_get(p, &v, "budget")));
    ck_assert_int_eq(kv_params_set(p, &v, "pagerows", 8, &err), KV_UNKNOWN_KEY);
    ck_assert_ptr_nonnull(strstr(err.hint, "page_rows"));
    ck_assert_int_eq(kv_params_set(p, &v, "page_rows", 0, &err), KV_BAD_ARGUMENT);
    ck_assert_int_eq(kv_params_set(p, &v, "page_rows", 16.5, &err), KV_BAD_ARGUMENT);
    ck_assert_int_eq(kv_params_set(p, &v, "page_rows", NAN, &err), KV_BAD_ARGUMENT);
    ck_assert_double_eq(kv_params_get(p, &v, "page_rows"), 16);
    ck_assert_int_eq(kv_params_set(kv_pipeline_find("resident"), &v, "x", 1, &err), KV_UNKNOWN_KEY);
    ck_assert_ptr_nonnull(strstr(err.hint, "no parameters"));
}
END_TEST

Suite *suite_pipelines(void);
Suite *suite_pipelines(void)
{
    Suite *s = suite_create("pipelines");
    TCase *c = tcase_create("pipelines");
    tcase_add_test(c, every_published_system_has_its_row);
    tcase_add_test(c, rows_are_whole_and_agree_with_methods);
    tcase_add_test(c, every_method_is_a_built_pipeline);
    tcase_add_test(c, parameters_are_checked_by_name_and_range);
    suite_add_tcase(s, c);
    return s;
}
