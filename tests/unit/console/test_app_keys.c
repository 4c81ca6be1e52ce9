/* test_app_keys.c — what keys and commands of the terminal console ask of the server, and what is asked back first. */
#include "tests/unit/console/app_case.h"

#include <string.h>

START_TEST(rollback_takes_two_keys_and_says_what_happens)
{
    struct kv_wish w = kv_app_key(&app, 'R');
    ck_assert_int_eq(w.kind, KV_WISH_NONE);
    app_expect("roll back quest-64: CANARY 10 % > EXACT_BASELINE, 3 live requests; y/N");
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
    app_expect("STALE");
    for (int v = 0; v < KV_VIEWS; v++) {
        kv_app_key(&app, v < 10 ? '0' + (v + 1) % 10 : KV_KEY_TAB); /* ten have a digit */
        ck_assert_int_eq(app.view, v);
        kv_app_key(&app, 'R');
        ck_assert_int_eq(kv_app_key(&app, 'y').kind, KV_WISH_VERB);
    }
    ck_assert_int_eq(kv_app_key(&app, 'p').kind, KV_WISH_NONE);
    app_expect("stale");
}
END_TEST

START_TEST(refused_verbs_say_why)
{
    kv_app_key(&app, 'a');
    app_expect("advance: gate tpot_p99_ratio: INCONCLUSIVE");
    ck_assert_int_eq(kv_app_key(&app, 'p').kind, KV_WISH_VERB);
    app.readonly = true;
    kv_app_key(&app, 'R');
    ck_assert_int_eq(app.prompt, KV_PROMPT_NONE);
    app_expect("read-only");
}
END_TEST

START_TEST(failure_leads_to_its_receipt_in_two_keys)
{
    kv_app_key(&app, '3');
    app_expect("SHORT_COPY");
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
    app_expect("rests on");
    app_expect("failures › receipt 77");
    ck_assert_str_eq(kv_app_key(&app, KV_KEY_ENTER).text, "/api/v1/receipts/55"); /* a manifest has no page of its own */
    fill("/api/v1/receipts/55", "{\"id\":55,\"kind\":\"TRANSITION\",\"rests_on\":[]}");
    app_expect("failures › receipt 77 › receipt 55");
    app_expect("rests on nothing");
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
        app_expect("activate bolder fedcba987654 over 0123456789ab: 1 added, 1 removed; replay:");
        app_expect("from now on; y/N"); /* however long, on as many rows as it takes */
        app_expect("-b");
        app_expect("+B");
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
    app_expect("read-only");
}
END_TEST

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
    app_event("rollout", "{\"id\":\"r_000003\",\"name\":\"quest-64\",\"stage\":\"SHADOW\",\"version\":12,\"verbs\":[{\"verb\":\"advance\",\"enabled\":true},{\"verb\":\"pause\",\"enabled\":true}]}");
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
    app_expect("no view, verb or command is named 'nonsense'");
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
        app_expect("drop what is kept of session s 1");
        ck_assert_int_eq(kv_app_key(&app, round ? 'y' : 'n').kind, round ? KV_WISH_SESSION : KV_WISH_NONE);
    }
    kv_app_switch(&app, "north", "http://127.0.0.1:1");
    app_expect("kvasir@north ›");
    app_expect("connecting");
    ck_assert_int_eq(say("pause").kind, KV_WISH_NONE);
}
END_TEST

START_TEST(full_asks_for_the_name)
{
    app_event("rollout", "{\"id\":\"r_000003\",\"name\":\"quest-64\",\"stage\":\"RAMP\",\"fraction\":0.5,\"version\":13,\"verbs\":[{\"verb\":\"advance\",\"enabled\":true},{\"verb\":\"ramp\",\"enabled\":true}]}");
    kv_app_key(&app, 'a');
    app_expect("type the rollout's name (quest-64)");
    for (const char *s = "quest-6"; *s; s++) kv_app_key(&app, *s);
    ck_assert_int_eq(kv_app_key(&app, KV_KEY_ENTER).kind, KV_WISH_NONE);
    app_expect("the name does not match");
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

Suite *suite_app_keys(void);
Suite *suite_app_keys(void)
{
    Suite *s = suite_create("console/app keys");
    TCase *t = app_case("app_keys");
    tcase_add_test(t, rollback_takes_two_keys_and_says_what_happens);
    tcase_add_test(t, anything_but_y_leaves_all_as_it_is);
    tcase_add_test(t, rollback_works_from_every_view_and_when_stale);
    tcase_add_test(t, refused_verbs_say_why);
    tcase_add_test(t, failure_leads_to_its_receipt_in_two_keys);
    tcase_add_test(t, a_receipt_leads_to_all_it_rests_on_and_back);
    tcase_add_test(t, a_policy_is_edited_compared_and_activated_in_three_keys_beside_the_edit);
    tcase_add_test(t, each_job_takes_as_few_keys_as_promised);
    tcase_add_test(t, commands_complete_recall_and_reach_everything);
    tcase_add_test(t, full_asks_for_the_name);
    suite_add_tcase(s, t);
    return s;
}
