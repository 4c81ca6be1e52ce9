/* test_screens.c — whole screens, cell by cell with their looks, against those kept in tests/fixtures/console.
 * KVASIR_GOLDEN=write makes them anew; look at the difference before you keep it. */
#include "console/app.h"

#include <check.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FOLDER "tests/fixtures/console/"

static struct kv_app app;
static json_t *fixture;

/* One letter a look, '.' the plain one. */
static const char looks[KV_STYLES + 1] = ".dbtgwxas";

static void past(void)
{
    json_t *v = json_object(), *rate = json_array(), *p50 = json_array(), *mass = json_array();
    for (int i = 0; i < 60; i++) {
        json_array_append_new(rate, json_real(400 + (i * 37) % 200));
        json_array_append_new(p50, json_real(0.2 + (i % 7) * 0.05));
        json_array_append_new(mass, i < 20 ? json_null() : json_real(0.02 + (i % 5) * 0.01));
    }
    json_object_set(v, "tokens_per_s", rate);
    json_object_set(v, "tpot_p50_ms", p50);
    json_object_set_new(v, "tpot_p99_ms", p50);
    json_object_set_new(v, "omitted_mass", mass);
    kv_app_history(&app, v);
    json_decref(rate);
    json_decref(v);
}

static void setup(void)
{
    setlocale(LC_ALL, "C.UTF-8");
    setenv("TZ", "UTC", 1);
    tzset();
    json_error_t e;
    fixture = json_load_file(FOLDER "screens.json", 0, &e);
    ck_assert_msg(fixture != NULL, "%s", e.text);
    kv_app_init(&app);
    snprintf(app.url, sizeof app.url, "http://127.0.0.1:7070");
    app.now_ms = 1000;
    kv_app_event(&app, "status", json_object_get(fixture, "status"));
    kv_app_event(&app, "rollout", json_object_get(fixture, "rollout"));
    for (int v = 0; v < KV_VIEWS; v++) {
        json_t *list = json_object_get(json_object_get(fixture, "lists"), kv_view_name((enum kv_view)v));
        if (list) kv_app_list(&app, (enum kv_view)v, json_incref(list));
    }
    past();
    app.now_ms += 300;
}

static void teardown(void)
{
    kv_app_free(&app);
    json_decref(fixture);
}

static char *picture(const struct kv_grid *g)
{
    size_t cap = (size_t)(g->rows * (g->cols + 8)) * 6, n = 0;
    char *out = malloc(cap), row[4096];
    for (int r = 0; r < g->rows; r++) {
        kv_grid_row_text(g, r, row, sizeof row);
        n += (size_t)snprintf(out + n, cap - n, "|%s\n", row);
        int last = -1;
        for (int c = 0; c < g->cols; c++) {
            row[c] = looks[g->cell[r * g->cols + c].style];
            if (row[c] != '.') last = c;
        }
        row[last + 1] = 0;
        n += (size_t)snprintf(out + n, cap - n, " %s\n", row);
    }
    return out;
}

static void compare(const char *name, int rows, int cols, bool ascii)
{
    char path[160], kept[1 << 16] = "";
    struct kv_grid g;
    ck_assert(kv_grid_init(&g, rows, cols, ascii));
    app.cols = cols;
    kv_app_draw(&app, &g);
    char *now = picture(&g);
    snprintf(path, sizeof path, FOLDER "%s-%dx%d%s.txt", name, cols, rows, ascii ? "-ascii" : "");
    FILE *f = fopen(path, getenv("KVASIR_GOLDEN") ? "w" : "r");
    ck_assert_msg(f != NULL, "%s cannot be opened", path);
    if (getenv("KVASIR_GOLDEN")) fputs(now, f);
    else kept[fread(kept, 1, sizeof kept - 1, f)] = 0;
    fclose(f);
    if (!getenv("KVASIR_GOLDEN")) ck_assert_msg(!strcmp(now, kept), "%s is another screen now; if that is meant, KVASIR_GOLDEN=write CK_RUN_SUITE=console/screens keeps it:\n%s", path, now);
    free(now);
    kv_grid_free(&g);
}

START_TEST(every_view)
{
    enum kv_view v = (enum kv_view)_i;
    kv_app_show(&app, v);
    compare(kv_view_name(v), 24, 80, false);
}
END_TEST

START_TEST(the_first_view_at_other_sizes_and_in_ascii)
{
    compare("rollout", 10, 40, false);
    compare("rollout", 50, 200, false);
    compare("rollout", 24, 80, true);
    kv_app_show(&app, KV_VIEW_RECEIPTS);
    compare("receipts", 10, 40, true);
    compare("receipts", 50, 200, false);
    kv_app_show(&app, KV_VIEW_TIERS);
    compare("tiers", 50, 200, false);
}
END_TEST

START_TEST(what_is_opened_over_a_view)
{
    kv_app_key(&app, '?');
    compare("help", 24, 80, false);
    compare("help", 10, 40, true);
    kv_app_show(&app, KV_VIEW_RECEIPTS);
    kv_app_push(&app, KV_PAGE_RECORD, "receipt 887", "", json_incref(json_object_get(fixture, "receipt")));
    compare("receipt", 24, 80, false);
    kv_app_show(&app, KV_VIEW_POLICIES);
    json_t *p = json_object_get(fixture, "policy"), *active = json_pack("{s:s, s:O}", "version", "0123456789abcdef", "source", json_object_get(p, "was"));
    kv_app_propose(&app, "release", active, json_string_value(json_object_get(p, "is")),
                   json_pack("{s:s, s:s, s:s, s:s}", "name", "bolder", "version", "fedcba9876543210", "state", "REPLAYED", "replay", "3 of 2000 recorded answers would change, 0 faults"));
    compare("activate", 24, 80, false);
    json_decref(active);
}
END_TEST

START_TEST(what_asks_waits_or_is_not_there)
{
    kv_app_key(&app, 'R');
    compare("rollback", 24, 80, false);
    kv_app_key(&app, 'n');
    app.now_ms += 60000;
    compare("stale", 24, 80, false);
    kv_app_switch(&app, "north", "http://127.0.0.1:7071");
    app.now_ms += 1500;
    json_t *load = json_pack("{s:[{s:s, s:s, s:s, s:i, s:i, s:s, s:f}]}", "tasks", "id", "t_000001", "kind", "load", "what", "smollm2.gguf", "done", 450, "total", 1000, "unit", "permille",
                             "seconds", 1.5);
    kv_app_tasks(&app, load);
    json_decref(load);
    compare("starting", 24, 80, false);
}
END_TEST

Suite *suite_screens(void);
Suite *suite_screens(void)
{
    Suite *s = suite_create("console/screens");
    TCase *t = tcase_create("screens");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, every_view, 0, KV_VIEWS);
    tcase_add_test(t, the_first_view_at_other_sizes_and_in_ascii);
    tcase_add_test(t, what_is_opened_over_a_view);
    tcase_add_test(t, what_asks_waits_or_is_not_there);
    suite_add_tcase(s, t);
    return s;
}
