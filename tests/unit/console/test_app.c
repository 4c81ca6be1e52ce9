/* test_app.c — the terminal console without a terminal: cells, views, keys. */
#include "console/app.h"

#include <check.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const STATUS =
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

static const char *const CREDITS =
    "{\"credits\":[{\"name\":\"pinned\",\"unit\":\"bytes\",\"total\":4096,\"used\":1024,\"free\":3072,\"peak\":2048}],"
    " \"holders\":[{\"request\":\"q_00000000000a\",\"what\":\"swap-out\",\"seconds\":0.5,\"backend_bytes\":2048,\"staging_bytes\":0,\"queue_slots\":1,\"sharers\":1}],"
    " \"waiters\":[{\"request\":\"q_00000000000b\",\"what\":\"layerwise\",\"seconds\":1.5,\"lacks\":\"link\"}],\"rates\":{\"prefill_tokens_per_s\":5000,\"h2d_bytes_per_s\":2e9,\"d2h_bytes_per_s\":null}}";
static const char *const PAUSED =
    "{\"interruptions\":[{\"session\":\"agent-7\",\"tenant\":\"acme\",\"call_id\":\"call_9\",\"pause_epoch\":1,\"state\":\"PAUSED_HOST\",\"action\":\"swap\",\"seconds\":12.5,\"held_bytes\":0,"
    " \"swapped_bytes\":688128,\"revisions\":1,\"result_state\":\"UNSEEN\",\"waste_byte_ms\":{\"preserve\":125000,\"swap\":42,\"discard\":7000}}]}";

static struct kv_app app;
static struct kv_grid grid;

static void event(const char *name, const char *text)
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
    event("status", STATUS);
    event("rollout", ROLLOUT);
    kv_app_list(&app, KV_VIEW_FAILURES, json_loads(FAILURES, 0, NULL));
}

static void teardown(void)
{
    kv_app_free(&app);
    kv_grid_free(&grid);
}

static const char *screen(void)
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

/* Runs of spaces as one: how columns stand is the golden screens' business. */
static void squeeze(const char *from, char *to, size_t cap)
{
    size_t n = 0;
    for (; *from && n + 1 < cap; from++)
        if (*from != ' ' || !n || to[n - 1] != ' ') to[n++] = *from;
    to[n] = 0;
}

static void expect(const char *what)
{
    static char seen[24 * 400], wanted[512];
    const char *s = screen();
    squeeze(s, seen, sizeof seen);
    squeeze(what, wanted, sizeof wanted);
    ck_assert_msg(strstr(seen, wanted) != NULL, "'%s' is not on the screen:\n%s", what, s);
}

START_TEST(rollout_view_shows_stage_gates_and_way_back)
{
    expect("OFF ── SHADOW ── [CANARY 10 %] ── RAMP ── FULL");
    expect("omitted_mass         ✓ PASS");
    expect("tpot_p99_ratio       ~ INCONCLUSIVE");
    expect("≤ 0.05");
    expect("CANARY 10 %  epoch 8");
    expect("R rollback");
    expect("120.5 tokens/s");
}
END_TEST

START_TEST(what_is_armed_is_said_before_the_epoch_and_the_policy)
{
    event("status", "{\"release\":{\"stage\":\"EXACT_BASELINE\",\"fraction\":0,\"epoch\":98,\"frozen\":true},\"live\":{},\"faults\":{\"armed\":[{\"name\":\"bit_flip\"}]},"
                    " \"policies\":{\"release\":{\"name\":\"steady\",\"version\":\"3fa2b1c0ffee\"}}}");
    expect("EXACT_BASELINE 0 %  FAULTS ARMED  releases frozen  live 0.0 s");
    app.view = KV_VIEW_PIPELINES;
    kv_grid_free(&grid);
    ck_assert(kv_grid_init(&grid, 24, 70, false));
    expect("EXACT_BASELINE 0 %  FAULTS ARMED");
    kv_grid_free(&grid);
    ck_assert(kv_grid_init(&grid, 24, 160, false));
    expect("EXACT_BASELINE 0 %  epoch 98  FAULTS ARMED  releases frozen  policy 3fa2b1c0  live 0.0 s");
}
END_TEST

START_TEST(rollback_takes_two_keys_and_says_what_happens)
{
    struct kv_wish w = kv_app_key(&app, 'R');
    ck_assert_int_eq(w.kind, KV_WISH_NONE);
    expect("roll back quest-64: CANARY 10 % > EXACT_BASELINE, 3 live requests; y/N");
    w = kv_app_key(&app, 'y');
    ck_assert_int_eq(w.kind, KV_WISH_VERB);
    ck_assert_str_eq(w.verb->name, "rollback");
}
END_TEST

START_TEST(anything_but_y_leaves_all_as_it_is)
{
    static const int keys[] = {'n', KV_KEY_ENTER, KV_KEY_ESCAPE, ' ', 'R'};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        kv_app_key(&app, 'R');
        ck_assert_int_eq(kv_app_key(&app, keys[i]).kind, KV_WISH_NONE);
        ck_assert_int_eq(app.prompt, KV_PROMPT_NONE);
    }
}
END_TEST

START_TEST(rollback_works_from_every_view_and_when_stale)
{
    app.now_ms += 60000;
    expect("STALE");
    for (int v = 0; v < KV_VIEWS; v++) {
        kv_app_key(&app, v < 10 ? '0' + (v + 1) % 10 : KV_KEY_TAB); /* ten have a digit */
        ck_assert_int_eq(app.view, v);
        kv_app_key(&app, 'R');
        ck_assert_int_eq(kv_app_key(&app, 'y').kind, KV_WISH_VERB);
    }
    ck_assert_int_eq(kv_app_key(&app, 'p').kind, KV_WISH_NONE);
    expect("stale");
}
END_TEST

START_TEST(credits_show_holders_waiters_and_paused_sessions)
{
    kv_app_list(&app, KV_VIEW_CREDITS, json_loads(CREDITS, 0, NULL));
    kv_app_key(&app, '0');
    expect("0 paused sessions");
    kv_app_list(&app, KV_VIEW_PAUSED, json_loads(PAUSED, 0, NULL));
    expect("pinned       4.0 KiB    1.0 KiB    3.0 KiB");
    expect("q_00000000000a swap-out     0.5      2.0 KiB");
    expect("q_00000000000b layerwise    1.5      link");
    expect("1 paused session;");
    expect("prefill tokens/s 5000  h2d MB/s 2000");
    expect("agent-7          PAUSED_HOST    swap     12.5    UNSEEN     call_9");
    kv_app_key(&app, KV_KEY_TAB);
    ck_assert_int_eq(app.view, KV_VIEW_PAUSED);
    kv_grid_free(&grid);
    ck_assert(kv_grid_init(&grid, 24, 180, false));
    expect("672.0 KiB 125000     42         7000       1       UNSEEN     call_9"); /* its waste, on a wide screen */
}
END_TEST

START_TEST(a_tournament_stands_below_the_pipelines)
{
    static const char *const names = "{\"pipelines\":[{\"name\":\"quest\",\"built\":true}],\"tournament\":";
    char answer[1024];
    snprintf(answer, sizeof answer, "%s%s}", names, "null");
    kv_app_list(&app, KV_VIEW_PIPELINES, json_loads(answer, 0, NULL));
    kv_app_show(&app, KV_VIEW_PIPELINES);
    ck_assert_ptr_null(strstr(screen(), "tournament"));
    snprintf(answer, sizeof answer, "%s%s}", names,
             "{\"state\":\"RUNNING\",\"mass\":0.9,\"units\":77,\"limit\":2000,\"dropped\":5,\"entries\":[{\"rank\":1,\"pipeline\":\"pqcache\",\"verdict\":\"RANKED\","
             "\"bytes\":32768,\"share\":0.25,\"rows\":190,\"mass\":0.905,\"at\":83,\"budget\":\"top_rows\"},{\"rank\":null,\"pipeline\":\"quest\",\"verdict\":\"TIE\",\"bytes\":null}]}");
    kv_app_list(&app, KV_VIEW_PIPELINES, json_loads(answer, 0, NULL));
    expect("tournament RUNNING  mass 0.9  units 77 of 2000  dropped 5");
    expect("1    pqcache    RANKED  32.0 KiB");
    expect("–    quest      TIE     –");
    kv_grid_free(&grid);
    ck_assert(kv_grid_init(&grid, 8, 80, false)); /* too low for both: the list stays */
    ck_assert_ptr_null(strstr(screen(), "tournament RUNNING"));
}
END_TEST

START_TEST(refused_verbs_say_why)
{
    kv_app_key(&app, 'a');
    expect("advance: gate tpot_p99_ratio: INCONCLUSIVE");
    ck_assert_int_eq(kv_app_key(&app, 'p').kind, KV_WISH_VERB);
    app.readonly = true;
    kv_app_key(&app, 'R');
    ck_assert_int_eq(app.prompt, KV_PROMPT_NONE);
    expect("read-only");
}
END_TEST

START_TEST(failure_leads_to_its_receipt_in_two_keys)
{
    kv_app_key(&app, '3');
    expect("SHORT_COPY");
    struct kv_wish w = kv_app_key(&app, KV_KEY_ENTER);
    ck_assert_int_eq(w.kind, KV_WISH_OPEN);
    ck_assert_str_eq(w.text, "/api/v1/receipts/77");
    kv_app_key(&app, KV_KEY_ESCAPE);
    kv_app_key(&app, 'j');
    ck_assert_str_eq(kv_app_key(&app, KV_KEY_ENTER).text, "/api/v1/receipts/70");
}
END_TEST

static const char *const RECEIPT =
    "{\"id\":77,\"kind\":\"FALLBACK\",\"request\":\"q_000000000012\",\"rollout\":\"r_000003\",\"rests_on\":["
    "{\"kind\":\"manifest\",\"id\":\"629239d4\",\"title\":\"quest-64\"},{\"kind\":\"transition\",\"id\":\"55\",\"title\":\"SHADOW to CANARY\"},"
    "{\"kind\":\"gate\",\"id\":\"54\",\"title\":\"omitted_mass PASS\"}]}";

static void fill(const char *route, const char *text)
{
    json_t *v = json_loads(text, 0, NULL);
    ck_assert_ptr_nonnull(v);
    kv_app_fill(&app, route, v);
    json_decref(v);
}

START_TEST(a_receipt_leads_to_all_it_rests_on_and_back)
{
    kv_app_key(&app, '3');
    kv_app_key(&app, KV_KEY_ENTER);
    fill("/api/v1/receipts/77", RECEIPT);
    expect("rests on");
    expect("failures › receipt 77");
    ck_assert_str_eq(kv_app_key(&app, KV_KEY_ENTER).text, "/api/v1/receipts/55"); /* a manifest has no page of its own */
    fill("/api/v1/receipts/55", "{\"id\":55,\"kind\":\"TRANSITION\",\"rests_on\":[]}");
    expect("failures › receipt 77 › receipt 55");
    expect("rests on nothing");
    kv_app_key(&app, KV_KEY_ESCAPE);
    kv_app_key(&app, 'j');
    ck_assert_str_eq(kv_app_key(&app, KV_KEY_ENTER).text, "/api/v1/receipts/54");
    kv_app_key(&app, KV_KEY_ESCAPE);
    kv_app_key(&app, 'j');
    ck_assert_str_eq(kv_app_key(&app, KV_KEY_ENTER).text, "/api/v1/receipts?request=q_000000000012");
    kv_app_key(&app, KV_KEY_ESCAPE);
    kv_app_key(&app, 'j');
    ck_assert_str_eq(kv_app_key(&app, KV_KEY_ENTER).text, "/api/v1/rollouts/r_000003");
    for (int i = 0; i < 40; i++) kv_app_push(&app, KV_PAGE_RECORD, "deep", "", NULL);
    for (int i = 0; i < KV_PAGES; i++) kv_app_key(&app, KV_KEY_ESCAPE);
    ck_assert_int_eq(app.depth, 0);
    ck_assert_int_eq(app.view, KV_VIEW_FAILURES);
}
END_TEST

START_TEST(a_policy_is_edited_compared_and_activated_in_three_keys_beside_the_edit)
{
    kv_app_list(&app, KV_VIEW_POLICIES, json_loads("{\"policies\":[{\"kind\":\"release\",\"name\":\"steady\",\"state\":\"ACTIVE\"}]}", 0, NULL));
    kv_app_key(&app, '4');
    struct kv_wish w = kv_app_key(&app, 'e');
    ck_assert_int_eq(w.kind, KV_WISH_EDIT);
    ck_assert_str_eq(w.text, "release");
    json_t *active = json_loads("{\"version\":\"0123456789abcdef\",\"source\":\"a\\nb\\nc\\n\"}", 0, NULL);
    for (int round = 0; round < 2; round++) {
        kv_app_propose(&app, "release", active, "a\nB\nc\n", json_loads("{\"ok\":true,\"name\":\"bolder\",\"version\":\"fedcba9876543210\"}", 0, NULL));
        expect("activate bolder fedcba987654 over 0123456789ab: 1 added, 1 removed; replay:");
        expect("from now on; y/N"); /* however long, on as many rows as it takes */
        expect("-b");
        expect("+B");
        kv_app_key(&app, 'j'); /* one may read before one answers */
        ck_assert_int_eq(app.prompt, KV_PROMPT_CONFIRM);
        w = kv_app_key(&app, round ? 'y' : 'n');
        ck_assert_int_eq(w.kind, round ? KV_WISH_ACTIVATE : KV_WISH_NONE);
    }
    json_decref(active);
    ck_assert_str_eq(w.text, "release");
    app.readonly = true;
    kv_app_key(&app, KV_KEY_ESCAPE);
    ck_assert_int_eq(kv_app_key(&app, 'e').kind, KV_WISH_NONE);
    expect("read-only");
}
END_TEST

/* Keys of each job from the first view on: what one presses, and what then is asked of the server. */
START_TEST(each_job_takes_as_few_keys_as_promised)
{
    static const struct {
        const char *keys;
        int most;
        enum kv_wish_kind last;
        const char *what;
    } jobs[] = {
        {"Ry", 2, KV_WISH_VERB, "rollback"},
        {"ay", 2, KV_WISH_VERB, "advance"},
        {"p", 1, KV_WISH_VERB, "pause"},
        {"3\r", 4, KV_WISH_OPEN, "/api/v1/receipts/77"},
        {"4jje", 8 - 1, KV_WISH_EDIT, "release"}, /* and y to the difference */
    };
    event("rollout", "{\"id\":\"r_000003\",\"name\":\"quest-64\",\"stage\":\"SHADOW\",\"version\":12,\"verbs\":[{\"verb\":\"advance\",\"enabled\":true},{\"verb\":\"pause\",\"enabled\":true}]}");
    kv_app_list(&app, KV_VIEW_POLICIES, json_loads("{\"policies\":[{\"kind\":\"admission\"},{\"kind\":\"fallback\"},{\"kind\":\"release\"}]}", 0, NULL));
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        struct kv_wish w = {0};
        kv_app_show(&app, KV_VIEW_ROLLOUT);
        for (const char *k = jobs[i].keys; *k; k++) w = kv_app_key(&app, *k == '\r' ? KV_KEY_ENTER : *k);
        ck_assert_int_le((int)strlen(jobs[i].keys), jobs[i].most);
        ck_assert_int_eq(w.kind, jobs[i].last);
        ck_assert_str_eq(w.verb ? w.verb->name : w.text, jobs[i].what);
    }
}
END_TEST

START_TEST(what_takes_a_while_is_shown_from_its_first_second_on)
{
    static const char *const form = "{\"release\":{\"stage\":\"OFF\"},\"progress\":[{\"kind\":\"restore\",\"what\":\"acme s05\",\"done\":64,\"total\":256,\"unit\":\"tokens\",\"seconds\":%g}]}";
    char text[300];
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text, form, i ? 1.2 : 0.4);
        event("status", text);
        for (int v = 0; v < KV_VIEWS; v++) {
            kv_app_show(&app, (enum kv_view)v);
            ck_assert_int_eq(strstr(screen(), "restore [###.........]  25 %  64 of 256 tokens  1 s  acme s05") != NULL, i);
        }
    }
    kv_app_list(&app, KV_VIEW_PROGRESS, json_loads("{\"tasks\":[]}", 0, NULL));
    event("status", "{\"release\":{\"stage\":\"OFF\"},\"progress\":[]}");
    expect("nothing takes a while now");
}
END_TEST

START_TEST(nothing_is_said_about_a_release_nobody_has_heard_of)
{
    kv_app_switch(&app, "north", "http://127.0.0.1:1");
    expect("Waiting for http://127.0.0.1:1.");
    ck_assert_ptr_null(strstr(screen(), "exact baseline"));
    event("status", STATUS);
    ck_assert_ptr_null(strstr(screen(), "No rollout yet"));
    kv_app_list(&app, KV_VIEW_ROLLOUTS, json_loads("{\"rollouts\":[]}", 0, NULL));
    expect("No rollout yet: all traffic is served by the exact baseline.");
}
END_TEST

START_TEST(a_small_screen_shows_first_the_gates_that_do_not_pass)
{
    char text[1024] = "{\"id\":\"r_000003\",\"stage\":\"CANARY\",\"gates\":[";
    for (int i = 0; i < 8; i++) snprintf(text + strlen(text), sizeof text - strlen(text), "{\"name\":\"gate_%d\",\"verdict\":\"%s\"},", i, i == 7 ? "FAIL" : "PASS");
    snprintf(text + strlen(text) - 1, 8, "]}");
    event("rollout", text);
    kv_grid_free(&grid);
    ck_assert(kv_grid_init(&grid, 10, 40, false));
    expect("gate_7 ✗ FAIL");
    expect("and 6 more; Enter shows all");
    kv_grid_free(&grid);
    ck_assert(kv_grid_init(&grid, 24, 80, false)); /* with room they keep their places */
    const char *s = screen(), *first = strstr(s, "gate_0"), *last = strstr(s, "gate_7");
    ck_assert(first && last && first < last);
}
END_TEST

START_TEST(rows_are_sorted_marked_and_copied)
{
    const json_t *rows[8];
    kv_app_key(&app, '3');
    kv_app_key(&app, 's'); /* by id */
    expect("▲id");
    kv_app_rows(&app, KV_VIEW_FAILURES, rows, 8);
    ck_assert_int_eq(json_integer_value(json_object_get(rows[0], "id")), 3);
    kv_app_key(&app, 'S');
    expect("▼id");
    kv_app_rows(&app, KV_VIEW_FAILURES, rows, 8);
    ck_assert_int_eq(json_integer_value(json_object_get(rows[0], "id")), 4);
    kv_app_key(&app, ' ');
    kv_app_key(&app, ' ');
    expect("2 marked");
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
    event("failure", "{\"id\":5,\"reason\":\"DEADLINE\",\"receipt\":80}");
    ck_assert_str_eq(kv_app_key(&app, 'y').text, "3");
    kv_app_key(&app, KV_KEY_HOME); /* on the first row it follows */
    event("failure", "{\"id\":6,\"reason\":\"DEADLINE\",\"receipt\":81}");
    ck_assert_str_eq(kv_app_key(&app, 'y').text, "6");
    kv_app_key(&app, 'N'); /* from the first match to the last */
    ck_assert_str_eq(kv_app_key(&app, 'y').text, "3");
    kv_app_key(&app, 'n');
    ck_assert_str_eq(kv_app_key(&app, 'y').text, "6");
}
END_TEST

static struct kv_wish say(const char *text)
{
    kv_app_key(&app, ':');
    for (; *text; text++) kv_app_key(&app, *text);
    return kv_app_key(&app, KV_KEY_ENTER);
}

START_TEST(commands_complete_recall_and_reach_everything)
{
    say("failures");
    ck_assert_int_eq(app.view, KV_VIEW_FAILURES);
    say("nonsense");
    expect("no view, verb or command is named 'nonsense'");
    kv_app_key(&app, ':');
    kv_app_key(&app, KV_KEY_UP);
    ck_assert_str_eq(app.input, "nonsense");
    kv_app_key(&app, KV_KEY_UP);
    ck_assert_str_eq(app.input, "failures");
    kv_app_key(&app, KV_KEY_DOWN);
    kv_app_key(&app, KV_KEY_DOWN);
    ck_assert_str_eq(app.input, "");
    kv_app_key(&app, 'p');
    kv_app_key(&app, 'o');
    kv_app_key(&app, KV_KEY_TAB);
    ck_assert_str_eq(app.input, "policies");
    kv_app_key(&app, KV_KEY_ESCAPE);
    struct kv_wish w = say("context north");
    ck_assert_int_eq(w.kind, KV_WISH_CONTEXT);
    ck_assert_str_eq(w.text, "north");
    w = say("compare The river ran");
    ck_assert_int_eq(w.kind, KV_WISH_COMPARE);
    ck_assert_str_eq(w.text, "The river ran");
    ck_assert_int_eq(say("edit fallback").kind, KV_WISH_EDIT);
    ck_assert_int_eq(say("pin").kind, KV_WISH_NONE);
    kv_app_list(&app, KV_VIEW_SESSIONS, json_loads("{\"sessions\":[{\"session\":\"s 1\",\"tenant\":\"acme\"}]}", 0, NULL));
    say("sessions");
    w = say("pin");
    ck_assert_int_eq(w.kind, KV_WISH_SESSION);
    ck_assert_str_eq(w.text, "pin\nacme\ns 1");
    for (int round = 0; round < 2; round++) {
        ck_assert_int_eq(say("drop").kind, KV_WISH_NONE);
        expect("drop what is kept of session s 1");
        ck_assert_int_eq(kv_app_key(&app, round ? 'y' : 'n').kind, round ? KV_WISH_SESSION : KV_WISH_NONE);
    }
    kv_app_switch(&app, "north", "http://127.0.0.1:1");
    expect("kvasir@north ›");
    expect("connecting");
    ck_assert_int_eq(say("pause").kind, KV_WISH_NONE);
}
END_TEST

START_TEST(what_takes_over_a_second_says_so)
{
    kv_app_await(&app, "checking the %s policy", "release");
    app.now_ms += 900;
    ck_assert_ptr_null(strstr(screen(), "checking"));
    app.now_ms += 1200;
    expect("checking the release policy: 2 s");
    expect("policy 3fa2");
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

START_TEST(full_asks_for_the_name)
{
    event("rollout", "{\"id\":\"r_000003\",\"name\":\"quest-64\",\"stage\":\"RAMP\",\"fraction\":0.5,\"version\":13,\"verbs\":[{\"verb\":\"advance\",\"enabled\":true},{\"verb\":\"ramp\",\"enabled\":true}]}");
    kv_app_key(&app, 'a');
    expect("type the rollout's name (quest-64)");
    for (const char *s = "quest-6"; *s; s++) kv_app_key(&app, *s);
    ck_assert_int_eq(kv_app_key(&app, KV_KEY_ENTER).kind, KV_WISH_NONE);
    expect("the name does not match");
    kv_app_key(&app, 'a');
    for (const char *s = "quest-64"; *s; s++) kv_app_key(&app, *s);
    ck_assert_int_eq(kv_app_key(&app, KV_KEY_ENTER).kind, KV_WISH_VERB);
    kv_app_key(&app, 'm');
    for (const char *s = "75"; *s; s++) kv_app_key(&app, *s);
    struct kv_wish w = kv_app_key(&app, KV_KEY_ENTER);
    ck_assert_int_eq(w.kind, KV_WISH_VERB);
    ck_assert_double_eq_tol(w.fraction, 0.75, 1e-9);
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
    expect("▸1 ");
    kv_app_key(&app, KV_KEY_HOME);
    kv_app_key(&app, 's');
    expect("▸1 ");
    kv_app_key(&app, '/');
    for (const char *s = "fallback"; *s; s++) kv_app_key(&app, *s);
    kv_app_key(&app, KV_KEY_ENTER);
    ck_assert_uint_eq(kv_app_rows(&app, KV_VIEW_RECEIPTS, rows, 4), 4);
    expect("(10)");
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

START_TEST(frozen_screen_holds_still)
{
    kv_app_key(&app, 'Z');
    event("status", "{\"release\":{\"stage\":\"FULL\"},\"live\":{}}");
    expect("CANARY 10 %");
    expect("FROZEN");
    kv_app_key(&app, 'Z');
    event("status", "{\"release\":{\"stage\":\"FULL\",\"fraction\":1},\"live\":{}}");
    expect("FULL 100 %");
}
END_TEST

START_TEST(every_size_and_odd_answers_draw)
{
    static const char *const odd[] = {"{}", "{\"release\":3,\"live\":[]}", "{\"release\":{\"stage\":null},\"live\":{\"tokens_per_s\":\"x\"}}"};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) event("status", odd[i]), event("rollout", odd[i]);
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

START_TEST(text_keeps_to_its_cells)
{
    char row[200];
    kv_grid_clear(&grid);
    ck_assert_int_eq(kv_grid_text(&grid, 0, 0, 6, KV_STYLE_NORMAL, true, "漢字テスト"), 6);
    kv_grid_row_text(&grid, 0, row, sizeof row);
    ck_assert_str_eq(row, "漢字…");
    kv_grid_text(&grid, 1, 0, 0, KV_STYLE_NORMAL, false, "e\xcc\x81\x1b[31m\xff!");
    kv_grid_row_text(&grid, 1, row, sizeof row);
    ck_assert_str_eq(row, "e\xcc\x81?[31m?!");
    grid.ascii = true;
    kv_grid_text(&grid, 2, 0, 0, KV_STYLE_NORMAL, false, "a ── ✓");
    kv_grid_row_text(&grid, 2, row, sizeof row);
    ck_assert_str_eq(row, "a -- +");
}
END_TEST

START_TEST(a_line_of_braille_shows_two_values_a_cell)
{
    double v[] = {0, 1, 2, 3, 4, 4, NAN, 4};
    char row[100];
    kv_grid_clear(&grid);
    kv_grid_spark(&grid, 0, 0, 10, KV_STYLE_NORMAL, v, 8);
    kv_grid_row_text(&grid, 0, row, sizeof row);
    ck_assert_str_eq(row, "⣀⣴⣿⢸");
    kv_grid_clear(&grid);
    grid.block = true;
    kv_grid_spark(&grid, 0, 0, 10, KV_STYLE_NORMAL, v, 6);
    kv_grid_row_text(&grid, 0, row, sizeof row);
    ck_assert_str_eq(row, "▁▂▄▆██");
    grid.block = false;
}
END_TEST

Suite *suite_app(void);
Suite *suite_app(void)
{
    Suite *s = suite_create("console/app");
    TCase *t = tcase_create("app");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, rollout_view_shows_stage_gates_and_way_back);
    tcase_add_test(t, what_is_armed_is_said_before_the_epoch_and_the_policy);
    tcase_add_test(t, rollback_takes_two_keys_and_says_what_happens);
    tcase_add_test(t, anything_but_y_leaves_all_as_it_is);
    tcase_add_test(t, rollback_works_from_every_view_and_when_stale);
    tcase_add_test(t, credits_show_holders_waiters_and_paused_sessions);
    tcase_add_test(t, a_tournament_stands_below_the_pipelines);
    tcase_add_test(t, refused_verbs_say_why);
    tcase_add_test(t, failure_leads_to_its_receipt_in_two_keys);
    tcase_add_test(t, filter_narrows_and_escape_clears);
    tcase_add_test(t, a_trace_is_found_although_no_column_shows_it);
    tcase_add_test(t, a_receipt_leads_to_all_it_rests_on_and_back);
    tcase_add_test(t, a_policy_is_edited_compared_and_activated_in_three_keys_beside_the_edit);
    tcase_add_test(t, each_job_takes_as_few_keys_as_promised);
    tcase_add_test(t, what_takes_a_while_is_shown_from_its_first_second_on);
    tcase_add_test(t, nothing_is_said_about_a_release_nobody_has_heard_of);
    tcase_add_test(t, a_small_screen_shows_first_the_gates_that_do_not_pass);
    tcase_add_test(t, rows_are_sorted_marked_and_copied);
    tcase_add_test(t, the_cursor_stays_on_its_row_while_others_arrive);
    tcase_add_test(t, commands_complete_recall_and_reach_everything);
    tcase_add_test(t, what_takes_over_a_second_says_so);
    tcase_add_test(t, the_lines_begin_with_the_past);
    tcase_add_test(t, full_asks_for_the_name);
    tcase_add_test(t, a_click_picks_and_a_double_click_opens);
    tcase_add_test(t, ten_thousand_receipts_scroll_filter_and_sort);
    tcase_add_test(t, frozen_screen_holds_still);
    tcase_add_test(t, every_size_and_odd_answers_draw);
    tcase_add_test(t, text_keeps_to_its_cells);
    tcase_add_test(t, a_line_of_braille_shows_two_values_a_cell);
    suite_add_tcase(s, t);
    return s;
}
