/* test_app.c — what the terminal console draws: views, what is said on top, sizes. */
#include "tests/unit/console/app_case.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const CREDITS =
    "{\"credits\":[{\"name\":\"pinned\",\"unit\":\"bytes\",\"total\":4096,\"used\":1024,\"free\":3072,\"peak\":2048}],"
    " \"holders\":[{\"request\":\"q_00000000000a\",\"what\":\"swap-out\",\"seconds\":0.5,\"backend_bytes\":2048,\"staging_bytes\":0,\"queue_slots\":1,\"sharers\":1}],"
    " \"waiters\":[{\"request\":\"q_00000000000b\",\"what\":\"layerwise\",\"seconds\":1.5,\"lacks\":\"link\"}],\"rates\":{\"prefill_tokens_per_s\":14510.4,\"h2d_bytes_per_s\":2e9,\"d2h_bytes_per_s\":null}}";
static const char *const PAUSED =
    "{\"total\":1,\"interruptions\":[{\"session\":\"agent-7\",\"tenant\":\"acme\",\"call_id\":\"call_9\",\"pause_epoch\":1,\"state\":\"PAUSED_HOST\",\"action\":\"swap\",\"seconds\":12.5,\"held_bytes\":0,"
    " \"swapped_bytes\":688128,\"revisions\":1,\"result_state\":\"UNSEEN\",\"waste_byte_ms\":{\"preserve\":125000,\"swap\":42,\"discard\":7000}}]}";

START_TEST(rollout_view_shows_stage_gates_and_way_back)
{
    app_expect("OFF ── SHADOW ── [CANARY 10 %] ── RAMP ── FULL");
    app_expect("omitted_mass         ✓ PASS");
    app_expect("tpot_p99_ratio       ~ INCONCLUSIVE");
    app_expect("≤ 0.05");
    app_expect("CANARY 10 %  epoch 8");
    app_expect("R rollback");
    app_expect("120.5 tokens/s");
}
END_TEST

START_TEST(the_last_row_offers_what_can_be_done)
{
    app_expect("R rollback  a advance  p pause");
    app_event("rollout", "{\"id\":\"r_000003\",\"name\":\"quest-64\",\"stage\":\"EXACT_BASELINE\",\"version\":13}");
    app_expect("R rollback  T retry  h history");
}
END_TEST

START_TEST(what_is_armed_is_said_before_the_epoch_and_the_policy)
{
    app_event("status", "{\"release\":{\"stage\":\"EXACT_BASELINE\",\"fraction\":0,\"epoch\":98,\"frozen\":true},\"live\":{},\"faults\":{\"armed\":[{\"name\":\"bit_flip\"}]},"
                    " \"policies\":{\"release\":{\"name\":\"steady\",\"version\":\"3fa2b1c0ffee\"}}}");
    app_expect("EXACT_BASELINE 0 %  FAULTS ARMED  releases frozen  live 0.0 s");
    app.view = KV_VIEW_PIPELINES;
    kv_grid_free(&grid);
    ck_assert(kv_grid_init(&grid, 24, 70, false));
    app_expect("EXACT_BASELINE 0 %  FAULTS ARMED");
    kv_grid_free(&grid);
    ck_assert(kv_grid_init(&grid, 24, 160, false));
    app_expect("EXACT_BASELINE 0 %  epoch 98  FAULTS ARMED  releases frozen  policy 3fa2b1c0  live 0.0 s");
}
END_TEST

START_TEST(credits_show_holders_waiters_and_paused_sessions)
{
    kv_app_list(&app, KV_VIEW_CREDITS, json_loads(CREDITS, 0, NULL));
    kv_app_key(&app, '0');
    app_expect("0 paused sessions");
    kv_app_list(&app, KV_VIEW_PAUSED, json_loads(PAUSED, 0, NULL));
    app_expect("pinned       4.0 KiB    1.0 KiB    3.0 KiB");
    app_expect("q_00000000000a swap-out     0.5      2.0 KiB");
    app_expect("q_00000000000b layerwise    1.5      link");
    app_expect("1 paused session;");
    app_expect("prefill tokens/s 14510  h2d MB/s 2000");
    app_expect("agent-7          PAUSED_HOST    swap     12.5    UNSEEN     call_9");
    kv_app_key(&app, KV_KEY_TAB);
    ck_assert_int_eq(app.view, KV_VIEW_PAUSED);
    kv_grid_free(&grid);
    ck_assert(kv_grid_init(&grid, 24, 180, false));
    app_expect("672.0 KiB 125000     42         7000       1       UNSEEN     call_9"); /* its waste, on a wide screen */
}
END_TEST

START_TEST(a_tournament_stands_below_the_pipelines)
{
    static const char *const names = "{\"pipelines\":[{\"name\":\"quest\",\"built\":true}],\"tournament\":";
    char answer[1024];
    snprintf(answer, sizeof answer, "%s%s}", names, "null");
    kv_app_list(&app, KV_VIEW_PIPELINES, json_loads(answer, 0, NULL));
    kv_app_show(&app, KV_VIEW_PIPELINES);
    ck_assert_ptr_null(strstr(app_screen(), "tournament"));
    snprintf(answer, sizeof answer, "%s%s}", names,
             "{\"state\":\"RUNNING\",\"mass\":0.9,\"units\":77,\"limit\":2000,\"dropped\":5,\"entries\":[{\"rank\":1,\"pipeline\":\"pqcache\",\"verdict\":\"RANKED\","
             "\"bytes\":32768,\"share\":0.25,\"rows\":190,\"mass\":0.905,\"at\":83,\"budget\":\"top_rows\"},{\"rank\":null,\"pipeline\":\"quest\",\"verdict\":\"TIE\",\"bytes\":null}]}");
    kv_app_list(&app, KV_VIEW_PIPELINES, json_loads(answer, 0, NULL));
    app_expect("tournament RUNNING  mass 0.9  units 77 of 2000  dropped 5");
    app_expect("1    pqcache    RANKED  32.0 KiB");
    app_expect("–    quest      TIE     –");
    kv_grid_free(&grid);
    ck_assert(kv_grid_init(&grid, 8, 80, false)); /* too low for both: the list stays */
    ck_assert_ptr_null(strstr(app_screen(), "tournament RUNNING"));
}
END_TEST

START_TEST(what_takes_a_while_is_shown_from_its_first_second_on)
{
    static const char *const form = "{\"release\":{\"stage\":\"OFF\"},\"progress\":[{\"kind\":\"restore\",\"what\":\"acme s05\",\"done\":64,\"total\":256,\"unit\":\"tokens\",\"seconds\":%g}]}";
    char text[300];
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text, form, i ? 1.2 : 0.4);
        app_event("status", text);
        for (int v = 0; v < KV_VIEWS; v++) {
            kv_app_show(&app, (enum kv_view)v);
            ck_assert_int_eq(strstr(app_screen(), "restore [###.........]  25 %  64 of 256 tokens  1 s  acme s05") != NULL, i);
        }
    }
    kv_app_list(&app, KV_VIEW_PROGRESS, json_loads("{\"tasks\":[]}", 0, NULL));
    app_event("status", "{\"release\":{\"stage\":\"OFF\"},\"progress\":[]}");
    app_expect("nothing takes a while now");
}
END_TEST

START_TEST(nothing_is_said_about_a_release_nobody_has_heard_of)
{
    kv_app_switch(&app, "north", "http://127.0.0.1:1");
    app_expect("Waiting for http://127.0.0.1:1.");
    ck_assert_ptr_null(strstr(app_screen(), "exact baseline"));
    app_event("status", APP_STATUS);
    ck_assert_ptr_null(strstr(app_screen(), "No rollout yet"));
    kv_app_list(&app, KV_VIEW_ROLLOUTS, json_loads("{\"rollouts\":[]}", 0, NULL));
    app_expect("No rollout yet: all traffic is served by the exact baseline.");
}
END_TEST

START_TEST(a_small_screen_shows_first_the_gates_that_do_not_pass)
{
    char text[1024] = "{\"id\":\"r_000003\",\"stage\":\"CANARY\",\"gates\":[";
    for (int i = 0; i < 8; i++) snprintf(text + strlen(text), sizeof text - strlen(text), "{\"name\":\"gate_%d\",\"verdict\":\"%s\"},", i, i == 7 ? "FAIL" : "PASS");
    snprintf(text + strlen(text) - 1, 8, "]}");
    app_event("rollout", text);
    kv_grid_free(&grid);
    ck_assert(kv_grid_init(&grid, 10, 40, false));
    app_expect("gate_7 ✗ FAIL");
    app_expect("and 6 more; Enter shows all");
    kv_grid_free(&grid);
    ck_assert(kv_grid_init(&grid, 24, 80, false)); /* with room they keep their places */
    const char *s = app_screen(), *first = strstr(s, "gate_0"), *last = strstr(s, "gate_7");
    ck_assert(first && last && first < last);
}
END_TEST

START_TEST(what_takes_over_a_second_says_so)
{
    kv_app_await(&app, "checking the %s policy", "release");
    app.now_ms += 900;
    ck_assert_ptr_null(strstr(app_screen(), "checking"));
    app.now_ms += 1200;
    app_expect("checking the release policy: 2 s");
    app_expect("policy 3fa2");
}
END_TEST

START_TEST(the_lines_begin_with_the_past)
{
    json_t *past = json_loads("{\"tokens_per_s\":[1,2,null,4],\"tpot_p50_ms\":[]}", 0, NULL);
    kv_app_history(&app, past);
    json_decref(past);
    ck_assert_int_eq(app.tokens_per_s.n, 5); /* and what the stream had said already */
    ck_assert_double_eq_tol(app.tokens_per_s.v[1], 2, 1e-9);
    ck_assert(isnan(app.tokens_per_s.v[2]));
    ck_assert_double_eq_tol(app.tokens_per_s.v[4], 120.5, 1e-9);
    ck_assert_int_eq(app.p50.n, 1);
}
END_TEST

START_TEST(frozen_screen_holds_still)
{
    kv_app_key(&app, 'Z');
    app_event("status", "{\"release\":{\"stage\":\"FULL\"},\"live\":{}}");
    app_expect("CANARY 10 %");
    app_expect("FROZEN");
    kv_app_key(&app, 'Z');
    app_event("status", "{\"release\":{\"stage\":\"FULL\",\"fraction\":1},\"live\":{}}");
    app_expect("FULL 100 %");
}
END_TEST

START_TEST(every_size_and_odd_answers_draw)
{
    static const char *const odd[] = {"{}", "{\"release\":3,\"live\":[]}", "{\"release\":{\"stage\":null},\"live\":{\"tokens_per_s\":\"x\"}}"};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) app_event("status", odd[i]), app_event("rollout", odd[i]);
    for (int rows = 1; rows < 60; rows += 7)
        for (int cols = 1; cols < 220; cols += 13)
            for (int v = 0; v < KV_VIEWS; v++) {
                struct kv_grid g;
                ck_assert(kv_grid_init(&g, rows, cols, rows & 1));
                app.view = (enum kv_view)v;
                kv_app_draw(&app, &g);
                kv_grid_free(&g);
            }
}
END_TEST

Suite *suite_app(void);
Suite *suite_app(void)
{
    Suite *s = suite_create("console/app");
    TCase *t = app_case("app");
    tcase_add_test(t, rollout_view_shows_stage_gates_and_way_back);
    tcase_add_test(t, the_last_row_offers_what_can_be_done);
    tcase_add_test(t, what_is_armed_is_said_before_the_epoch_and_the_policy);
    tcase_add_test(t, credits_show_holders_waiters_and_paused_sessions);
    tcase_add_test(t, a_tournament_stands_below_the_pipelines);
    tcase_add_test(t, what_takes_a_while_is_shown_from_its_first_second_on);
    tcase_add_test(t, nothing_is_said_about_a_release_nobody_has_heard_of);
    tcase_add_test(t, a_small_screen_shows_first_the_gates_that_do_not_pass);
    tcase_add_test(t, what_takes_over_a_second_says_so);
    tcase_add_test(t, the_lines_begin_with_the_past);
    tcase_add_test(t, frozen_screen_holds_still);
    tcase_add_test(t, every_size_and_odd_answers_draw);
    suite_add_tcase(s, t);
    return s;
}
