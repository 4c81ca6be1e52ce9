/* app_case.c — the state, and what of the screen is compared. */
#include "tests/unit/console/app_case.h"

#include <locale.h>
#include <string.h>

const char *const APP_STATUS =
    "{\"release\":{\"stage\":\"CANARY\",\"fraction\":0.1,\"epoch\":8,\"latched\":false},"
    " \"live\":{\"active\":3,\"tokens_per_s\":120.5,\"tpot_p50_ms\":8.1,\"tpot_p99_ms\":12.5,\"omitted_mass_mean\":0.011},"
    " \"policies\":{\"release\":{\"name\":\"steady\",\"version\":\"3fa2b1c0ffee\"}}}";
static const char *const ROLLOUT =
    "{\"id\":\"r_000003\",\"name\":\"quest-64\",\"pipeline\":\"quest\",\"contract\":\"approximate\",\"stage\":\"CANARY\",\"fraction\":0.1,\"version\":12,"
    " \"gates\":[{\"name\":\"omitted_mass\",\"verdict\":\"PASS\",\"value\":0.011,\"upper\":0.014,\"threshold\":0.05,\"comparison\":\"<=\",\"n\":400,\"min_n\":200},"
    "            {\"name\":\"tpot_p99_ratio\",\"verdict\":\"INCONCLUSIVE\",\"value\":1.02,\"upper\":1.2,\"threshold\":1.1,\"comparison\":\"<=\",\"n\":90,\"min_n\":200}],"
    " \"transitions\":[{\"at\":\"2026-01-01T10:20:30.000000Z\",\"from\":\"OFF\",\"to\":\"SHADOW\",\"epoch\":7,\"receipt\":5,\"reason\":\"OK\"}],"
    " \"verbs\":[{\"verb\":\"advance\",\"enabled\":false,\"why\":\"gate tpot_p99_ratio: INCONCLUSIVE\"},{\"verb\":\"pause\",\"enabled\":true}]}";
static const char *const FAILURES = "{\"failures\":[{\"id\":4,\"at\":\"2026-01-01T10:20:30Z\",\"reason\":\"SHORT_COPY\",\"class\":\"TRANSFER\",\"receipt\":77,\"detail\":\"layer 3\"},"
                                    "{\"id\":3,\"at\":\"2026-01-01T10:20:29Z\",\"reason\":\"DEADLINE\",\"class\":\"CREDIT\",\"receipt\":70,\"detail\":\"20 ms\"}]}";

struct kv_app app;
struct kv_grid grid;

void app_event(const char *name, const char *text)
{
    json_t *v = json_loads(text, 0, NULL);
    ck_assert_ptr_nonnull(v);
    kv_app_event(&app, name, v);
    json_decref(v);
}

static void setup(void)
{
    setlocale(LC_ALL, "C.UTF-8");
    kv_app_init(&app);
    ck_assert(kv_grid_init(&grid, 24, 80, false));
    app.now_ms = 1000;
    app_event("status", APP_STATUS);
    app_event("rollout", ROLLOUT);
    kv_app_list(&app, KV_VIEW_FAILURES, json_loads(FAILURES, 0, NULL));
}

static void teardown(void)
{
    kv_app_free(&app);
    kv_grid_free(&grid);
}

TCase *app_case(const char *name)
{
    TCase *t = tcase_create(name);
    tcase_add_checked_fixture(t, setup, teardown);
    return t;
}

const char *app_screen(void)
{
    static char text[24 * 400];
    size_t n = 0;
    kv_app_draw(&app, &grid);
    for (int r = 0; r < grid.rows; r++) {
        kv_grid_row_text(&grid, r, text + n, sizeof text - n - 1);
        n += strlen(text + n);
        text[n++] = '\n';
    }
    text[n] = 0;
    return text;
}

static void squeeze(const char *from, char *to, size_t cap)
{
    size_t n = 0;
    for (; *from && n + 1 < cap; from++)
        if (*from != ' ' || !n || to[n - 1] != ' ') to[n++] = *from;
    to[n] = 0;
}

void app_expect(const char *what)
{
    static char seen[24 * 400], wanted[512];
    const char *s = app_screen();
    squeeze(s, seen, sizeof seen);
    squeeze(what, wanted, sizeof wanted);
    ck_assert_msg(strstr(seen, wanted) != NULL, "'%s' is not on the screen:\n%s", what, s);
}
