/* test_fallback.c — every cell of the fallback table against the source's predicates, and what no policy may change. */
#include "runtime/service/fallback.h"

#include <check.h>
#include <string.h>

/* 0x09K, written as nested choices instead of early returns. */
static enum kv_fallback_action expected(const struct kv_fallback_state *s)
{
    bool accept = !s->force_exact && !s->uncertain, widen = s->uncertain && s->can_widen && !s->post_widen;
    return accept ? KV_ACCEPT_APPROXIMATE : widen ? KV_WIDEN_SEARCH : s->fetch_fits ? KV_FULL_EXACT_FETCH : s->recompute_fits ? KV_RECOMPUTE_EXACT
         : s->retryable ? KV_POSTPONE_FOR_EXACT_RETRY : s->approximation_allowed && !s->force_exact ? KV_ACCEPT_DECLARED_DEGRADED : KV_REJECT_NO_LEGAL_PATH;
}

START_TEST(cells_follow_the_source)
{
    int seen[KV_FALLBACK_ACTIONS] = {0};
    struct kv_fallback_table table;
    kv_fallback_source_table(&table);
    for (unsigned i = 0; i < KV_FALLBACK_CELLS; i++) {
        struct kv_fallback_state s;
        kv_fallback_state_of(i, &s);
        ck_assert_uint_eq(kv_fallback_index(&s), i);
        ck_assert_int_eq(kv_fallback_source(&s), expected(&s));
        ck_assert_int_eq(table.action[i], expected(&s));
        seen[expected(&s)]++;
    }
    for (int a = 0; a < KV_FALLBACK_ACTIONS; a++) ck_assert_int_gt(seen[a], 0);
}
END_TEST

START_TEST(no_policy_turns_exact_into_approximate)
{
    for (unsigned i = 0; i < KV_FALLBACK_CELLS; i++) {
        struct kv_fallback_state s;
        kv_fallback_state_of(i, &s);
        ck_assert(kv_fallback_legal(&s, kv_fallback_source(&s)));
        if (s.force_exact) {
            ck_assert(!kv_fallback_legal(&s, KV_ACCEPT_APPROXIMATE));
            ck_assert(!kv_fallback_legal(&s, KV_ACCEPT_DECLARED_DEGRADED));
        }
        if (s.post_widen || !s.can_widen) ck_assert(!kv_fallback_legal(&s, KV_WIDEN_SEARCH));
        if (!s.approximation_allowed) ck_assert(!kv_fallback_legal(&s, KV_ACCEPT_DECLARED_DEGRADED));
        if (s.uncertain) ck_assert(!kv_fallback_legal(&s, KV_ACCEPT_APPROXIMATE));
        ck_assert_int_eq(kv_fallback_legal(&s, KV_FULL_EXACT_FETCH), s.fetch_fits);
        ck_assert_int_eq(kv_fallback_legal(&s, KV_RECOMPUTE_EXACT), s.recompute_fits);
        ck_assert_int_eq(kv_fallback_legal(&s, KV_POSTPONE_FOR_EXACT_RETRY), s.retryable);
        ck_assert_int_eq(kv_fallback_legal(&s, KV_REJECT_NO_LEGAL_PATH), kv_fallback_source(&s) == KV_REJECT_NO_LEGAL_PATH);
        ck_assert(!kv_fallback_legal(&s, KV_FALLBACK_ACTIONS));
    }
}
END_TEST

START_TEST(actions_have_the_sources_names)
{
    static const char *const names[] = {"ACCEPT_APPROXIMATE", "WIDEN_SEARCH", "FULL_EXACT_FETCH", "RECOMPUTE_EXACT", "POSTPONE_FOR_EXACT_RETRY",
                                        "ACCEPT_DECLARED_DEGRADED", "REJECT_NO_LEGAL_PATH"};
    ck_assert_int_eq(KV_FALLBACK_ACTIONS, 7);
    for (int a = 0; a < 7; a++) ck_assert_str_eq(kv_fallback_action_name((enum kv_fallback_action)a), names[a]);
}
END_TEST

Suite *suite_fallback(void);
Suite *suite_fallback(void)
{
    Suite *s = suite_create("fallback");
    TCase *c = tcase_create("fallback");
    tcase_add_test(c, cells_follow_the_source);
    tcase_add_test(c, no_policy_turns_exact_into_approximate);
    tcase_add_test(c, actions_have_the_sources_names);
    suite_add_tcase(s, c);
    return s;
}
