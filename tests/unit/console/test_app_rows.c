/* test_app_rows.c — rows of the terminal console: sorted, marked, copied, filtered, followed. */
#include "tests/unit/console/app_case.h"

START_TEST(rows_are_sorted_marked_and_copied)
{
    const json_t *rows[8];
    kv_app_key(&app, '3');
    kv_app_key(&app, 's'); /* by id */
    app_expect("▲id");
    kv_app_rows(&app, KV_VIEW_FAILURES, rows, 8);
    ck_assert_int_eq(json_integer_value(json_object_get(rows[0], "id")), 3);
    kv_app_key(&app, 'S');
    app_expect("▼id");
    kv_app_rows(&app, KV_VIEW_FAILURES, rows, 8);
    ck_assert_int_eq(json_integer_value(json_object_get(rows[0], "id")), 4);
    kv_app_key(&app, ' ');
    kv_app_key(&app, ' ');
    app_expect("2 marked");
    struct kv_wish w = kv_app_key(&app, 'y');
    ck_assert_int_eq(w.kind, KV_WISH_COPY);
    ck_assert_str_eq(w.text, "4 3");
    kv_app_key(&app, KV_KEY_ESCAPE);
    kv_app_key(&app, 'k');
    ck_assert_str_eq(kv_app_key(&app, 'y').text, "4");
}
END_TEST

START_TEST(the_cursor_stays_on_its_row_while_others_arrive)
{
    kv_app_key(&app, '3');
    kv_app_key(&app, 'j');
    ck_assert_str_eq(kv_app_key(&app, 'y').text, "3");
    app_event("failure", "{\"id\":5,\"reason\":\"DEADLINE\",\"receipt\":80}");
    ck_assert_str_eq(kv_app_key(&app, 'y').text, "3");
    kv_app_key(&app, KV_KEY_HOME); /* on the first row it follows */
    app_event("failure", "{\"id\":6,\"reason\":\"DEADLINE\",\"receipt\":81}");
    ck_assert_str_eq(kv_app_key(&app, 'y').text, "6");
    kv_app_key(&app, 'N'); /* from the first match to the last */
    ck_assert_str_eq(kv_app_key(&app, 'y').text, "3");
    kv_app_key(&app, 'n');
    ck_assert_str_eq(kv_app_key(&app, 'y').text, "6");
}
END_TEST

START_TEST(filter_narrows_and_escape_clears)
{
    const json_t *rows[8];
    kv_app_key(&app, '3');
    kv_app_key(&app, '/');
    for (const char *s = "short"; *s; s++) kv_app_key(&app, *s);
    kv_app_key(&app, KV_KEY_ENTER);
    ck_assert_uint_eq(kv_app_rows(&app, KV_VIEW_FAILURES, rows, 8), 1);
    kv_app_key(&app, KV_KEY_ESCAPE);
    ck_assert_uint_eq(kv_app_rows(&app, KV_VIEW_FAILURES, rows, 8), 2);
}
END_TEST

START_TEST(a_trace_is_found_although_no_column_shows_it)
{
    const json_t *rows[4];
    kv_app_list(&app, KV_VIEW_RECEIPTS, json_pack("{s:[{s:i, s:s}, {s:i, s:s, s:s}]}", "receipts", "id", 2, "kind", "REQUEST", "id", 1, "kind", "REQUEST", "trace", "4bf92f3577b34da6a3ce929d0e0e4736"));
    kv_app_key(&app, '2');
    kv_app_key(&app, '/');
    for (const char *s = "4bf92"; *s; s++) kv_app_key(&app, *s);
    ck_assert_uint_eq(kv_app_rows(&app, KV_VIEW_RECEIPTS, rows, 4), 0); /* too short to mean a digest */
    kv_app_key(&app, 'f');
    ck_assert_uint_eq(kv_app_rows(&app, KV_VIEW_RECEIPTS, rows, 4), 1);
    ck_assert_int_eq(json_integer_value(json_object_get(rows[0], "id")), 1);
}
END_TEST

START_TEST(a_click_picks_and_a_double_click_opens)
{
    kv_app_key(&app, '3');
    ck_assert_int_eq(kv_app_click(&app, 3, grid.rows, false).kind, KV_WISH_NONE);
    ck_assert_str_eq(kv_app_key(&app, 'y').text, "3");
    ck_assert_str_eq(kv_app_click(&app, 2, grid.rows, true).text, "/api/v1/receipts/77");
    kv_app_key(&app, KV_KEY_ESCAPE);
    ck_assert_int_eq(kv_app_click(&app, 20, grid.rows, true).kind, KV_WISH_NONE);
}
END_TEST

START_TEST(ten_thousand_receipts_scroll_filter_and_sort)
{
    json_t *list = json_array();
    const json_t *rows[4];
    for (int i = 10000; i > 0; i--) json_array_append_new(list, json_pack("{s:i, s:s, s:s}", "id", i, "kind", i % 1000 ? "REQUEST" : "FALLBACK", "detail", "x"));
    kv_app_list(&app, KV_VIEW_RECEIPTS, json_pack("{s:o}", "receipts", list));
    kv_app_key(&app, '2');
    kv_app_key(&app, KV_KEY_END);
    ck_assert_str_eq(kv_app_key(&app, 'y').text, "1");
    app_expect("▸1 ");
    kv_app_key(&app, KV_KEY_HOME);
    kv_app_key(&app, 's');
    app_expect("▸1 ");
    kv_app_key(&app, '/');
    for (const char *s = "fallback"; *s; s++) kv_app_key(&app, *s);
    kv_app_key(&app, KV_KEY_ENTER);
    ck_assert_uint_eq(kv_app_rows(&app, KV_VIEW_RECEIPTS, rows, 4), 4);
    app_expect("(10)");
}
END_TEST

START_TEST(failures_say_what_selection_fell_back_to)
{
    json_t *status = json_loads(APP_STATUS, 0, NULL);
    json_object_set_new(json_object_get(status, "live"), "fallbacks", json_pack("{s:i, s:i, s:i, s:i, s:i}", "full", 7, "index_missed", 1, "index_stale", 2, "budget_exceeded", 3, "not_finite", 4));
    char *text = json_dumps(status, JSON_COMPACT);
    app_event("status", text);
    kv_app_key(&app, '3');
    app_expect("full fallbacks 7: index missed 1, stale 2, over budget 3, not numbers 4");
    free(text);
    json_decref(status);
}
END_TEST

Suite *suite_app_rows(void);
Suite *suite_app_rows(void)
{
    Suite *s = suite_create("console/app rows");
    TCase *t = app_case("app_rows");
    tcase_add_test(t, rows_are_sorted_marked_and_copied);
    tcase_add_test(t, the_cursor_stays_on_its_row_while_others_arrive);
    tcase_add_test(t, filter_narrows_and_escape_clears);
    tcase_add_test(t, a_trace_is_found_although_no_column_shows_it);
    tcase_add_test(t, a_click_picks_and_a_double_click_opens);
    tcase_add_test(t, ten_thousand_receipts_scroll_filter_and_sort);
    tcase_add_test(t, failures_say_what_selection_fell_back_to);
    suite_add_tcase(s, t);
    return s;
}
