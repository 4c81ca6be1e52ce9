/* test_http.c — routing, rights, bodies and streams of the server, and the event ring, without an engine. */
#include "controller/demo/demo_client.h"
#include "controller/http/events.h"
#include "controller/http/http.h"
#include "runtime/kvasir.h"

#include <check.h>
#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

Suite *suite_http(void);

static struct kv_config config;
static struct kv_http *server;
static struct kv_demo_client *client;
static _Atomic int released, ready = 1;

static enum kv_status echo(struct kv_http_request *r, struct kv_error *err)
{
    return kv_http_reply_json(r, 200, json_pack("{s:s, s:s, s:s, s:O?, s:s}", "path", r->path, "one", r->part[0], "two", r->part[1], "json", r->json, "tenant", r->who.tenant), err);
}

static enum kv_status refuse(struct kv_http_request *r, struct kv_error *err)
{
    (void)r;
    kv_fail(err, KV_QUEUE_FULL, "queue", "cut inside a character: \xc3");
    kv_hint(err, "wait");
    return KV_QUEUE_FULL;
}

static ssize_t endless_read(void *ctx, char *buf, size_t cap)
{
    (void)ctx;
    memset(buf, 'x', cap);
    return (ssize_t)cap;
}

static ssize_t silent_read(void *ctx, char *buf, size_t cap)
{
    const struct timespec moment = {0, 10000000};
    (void)ctx, (void)buf, (void)cap;
    nanosleep(&moment, NULL);
    return 0;
}

static void release(void *ctx)
{
    (void)ctx;
    released++;
}

static enum kv_status endless(struct kv_http_request *r, struct kv_error *err)
{
    return kv_http_reply_stream(r, "text/plain", &(struct kv_http_stream){endless_read, release, NULL}, err);
}

static enum kv_status silent(struct kv_http_request *r, struct kv_error *err)
{
    return kv_http_reply_stream(r, "text/plain", &(struct kv_http_stream){silent_read, release, NULL}, err);
}

static const struct kv_http_route routes[] = {
    {"GET", "/a/{x}", KV_RIGHT_VIEWER, 0, echo, ""},
    {"GET", "/a/fixed/{x}/{y}", KV_RIGHT_VIEWER, 0, echo, ""},
    {"POST", "/a/{x}", KV_RIGHT_OPERATOR, KV_ROUTE_JSON, echo, ""},
    {"GET", "/fail", KV_RIGHT_VIEWER, 0, refuse, ""},
    {"GET", "/endless", KV_RIGHT_VIEWER, 0, endless, ""},
    {"GET", "/silent", KV_RIGHT_VIEWER, 0, silent, ""},
    {"GET", "/early", 0, KV_ROUTE_OPEN | KV_ROUTE_EARLY, echo, ""},
    {"GET", "/admin", KV_RIGHT_ADMIN, 0, echo, ""},
    {0},
};

static enum kv_status is_ready(void *app, struct kv_error *err)
{
    (void)app;
    return ready ? KV_OK : kv_fail(err, KV_DRAINING, "server", "not yet");
}

static void start(const char *mode)
{
    char *argv[] = {"kvasird", "--listen", "127.0.0.1:0", "--set", "http.max_body_bytes=2000", "--set", (char *)mode}, url[320];
    struct kv_error err = {0};
    uint8_t digest[32];
    char hex[65], tokens[300];
    ck_assert_int_eq(kv_config_load(&config, 7, argv, NULL, &err), KV_OK);
    kv_sha256("secret", 6, digest);
    kv_hex(digest, 32, hex);
    snprintf(tokens, sizeof tokens, "[{\"name\":\"r\",\"sha256\":\"%s\",\"rights\":[\"viewer\"],\"tenant\":\"acme\"}]", hex);
    ck_assert_int_eq(kv_config_set(&config, "auth.tokens", tokens, KV_ORIGIN_FLAG, &err), KV_OK);
    struct kv_http_options o = {.config = &config, .routes = routes, .ready = is_ready};
    ck_assert_msg(kv_http_create(&o, &server, &err) == KV_OK, "%s", err.message);
    snprintf(url, sizeof url, "http://%s", kv_http_address(server));
    client = kv_demo_client_create(url, "secret", false);
    ck_assert_ptr_nonnull(client);
}

static void stop(void)
{
    kv_demo_client_free(client);
    kv_http_destroy(server);
    kv_config_free(&config);
}

static json_t *ask(const char *method, const char *path, const json_t *body, long want)
{
    long status;
    json_t *answer;
    kv_demo_call(client, method, path, body, 0, &status, &answer);
    ck_assert_msg(status == want, "%s %s: %ld", method, path, status);
    return answer;
}

static void check_text(json_t *o, const char *name, const char *want)
{
    ck_assert_str_eq(json_string_value(json_object_get(o, name)), want);
}

static void check_error(const char *method, const char *path, const json_t *body, long status, const char *code)
{
    json_t *answer = ask(method, path, body, status), *error = json_object_get(answer, "error");
    check_text(error, "code", code);
    ck_assert(json_string_length(json_object_get(error, "message")) > 0);
    json_decref(answer);
}

START_TEST(routes_carry_their_parts)
{
    start("auth.mode=local");
    json_t *body = json_pack("{s:i}", "n", 5), *a = ask("GET", "/a/one", NULL, 200);
    check_text(a, "one", "one");
    json_decref(a);
    a = ask("GET", "/a/fixed/p/q", NULL, 200);
    check_text(a, "one", "p");
    check_text(a, "two", "q");
    json_decref(a);
    check_error("POST", "/a/one", body, 403, "FORBIDDEN"); /* the token is a viewer's */
    check_error("GET", "/a/", NULL, 404, "NOT_FOUND");
    check_error("GET", "/a/b/c", NULL, 404, "NOT_FOUND");
    check_error("POST", "/fail", body, 405, "METHOD_NOT_ALLOWED");
    check_error("GET", "/fail", NULL, 503, "QUEUE_FULL");
    check_error("GET", "/admin", NULL, 403, "FORBIDDEN");
    json_decref(body);
    stop();
}
END_TEST

START_TEST(without_a_token_loopback_is_an_operator_in_local_mode_only)
{
    char url[320];
    start("auth.mode=local");
    snprintf(url, sizeof url, "http://%s", kv_http_address(server));
    kv_demo_client_free(client);
    client = kv_demo_client_create(url, "unknown", false);
    json_t *body = json_pack("{s:i}", "n", 5);
    check_error("POST", "/a/one", body, 403, "FORBIDDEN"); /* what clients send who insist on a token: infer alone */
    kv_demo_client_free(client);
    client = kv_demo_client_create(url, "", false);
    json_t *a = ask("POST", "/a/one", body, 200);
    check_text(a, "tenant", "local");
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(a, "json"), "n")), 5);
    json_decref(a);
    stop();
    start("auth.mode=token");
    a = ask("GET", "/a/one", NULL, 200);
    check_text(a, "tenant", "acme");
    json_decref(a);
    snprintf(url, sizeof url, "http://%s", kv_http_address(server));
    kv_demo_client_free(client);
    client = kv_demo_client_create(url, "unknown", false);
    check_error("GET", "/a/one", NULL, 401, "UNAUTHENTICATED");
    json_decref(ask("GET", "/early", NULL, 200));
    json_decref(body);
    stop();
}
END_TEST

START_TEST(a_body_has_a_limit)
{
    char url[320], big[3000];
    start("auth.mode=local");
    snprintf(url, sizeof url, "http://%s", kv_http_address(server));
    kv_demo_client_free(client);
    client = kv_demo_client_create(url, "", false);
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    json_t *body = json_pack("{s:s}", "t", big), *list = json_array();
    check_error("POST", "/a/one", body, 413, "BODY_TOO_LARGE");
    check_error("POST", "/a/one", list, 400, "BAD_JSON");
    json_decref(ask("POST", "/a/one", NULL, 200)); /* no body: an empty object */
    json_decref(body);
    json_decref(list);
    stop();
}
END_TEST

START_TEST(nothing_but_early_routes_is_served_before_it_is_ready)
{
    start("auth.mode=local");
    ready = 0;
    json_decref(ask("GET", "/early", NULL, 200));
    check_error("GET", "/a/one", NULL, 503, "DRAINING");
    ready = 1;
    json_decref(ask("GET", "/a/one", NULL, 200));
    stop();
}
END_TEST

static void *stop_soon(void *flag)
{
    const struct timespec moment = {0, 50000000};
    nanosleep(&moment, NULL);
    *(_Atomic bool *)flag = true;
    return NULL;
}

START_TEST(a_stream_is_released_when_its_client_leaves)
{
    static const char *const paths[] = {"/endless", "/silent"};
    _Atomic bool leave = false;
    long status;
    pthread_t t;
    start("auth.mode=local");
    released = 0;
    kv_demo_client_watch(client, &leave);
    pthread_create(&t, NULL, stop_soon, (void *)&leave);
    kv_demo_call(client, "GET", paths[_i], NULL, 0, &status, NULL);
    pthread_join(t, NULL);
    const struct timespec moment = {0, 1000000};
    for (int i = 0; i < 5000 && !released; i++) nanosleep(&moment, NULL);
    ck_assert_int_eq(released, 1);
    stop();
    ck_assert_int_eq(released, 1);
}
END_TEST

static void *call_silent(void *arg)
{
    long status;
    kv_demo_call(arg, "GET", "/silent", NULL, 0, &status, NULL);
    return NULL;
}

START_TEST(stopping_ends_open_streams)
{
    pthread_t t;
    const struct timespec moment = {0, 1000000};
    start("auth.mode=local");
    released = 0;
    pthread_create(&t, NULL, call_silent, client);
    for (int i = 0; i < 5000 && !kv_http_connections(server); i++) nanosleep(&moment, NULL);
    kv_http_destroy(server);
    pthread_join(t, NULL);
    ck_assert_int_le(released, 1);
    kv_demo_client_free(client);
    kv_config_free(&config);
}
END_TEST

/* ---------------------------------------------------------------- events */

static void next_event(struct kv_event_reader *r, char out[512])
{
    ssize_t n = kv_events_read(r, out, 511);
    ck_assert_int_ge(n, 0);
    out[n] = 0;
}

static unsigned long long id_of(const char *text)
{
    const char *p = strstr(text, "id: ");
    return p ? strtoull(p + 4, NULL, 10) : 0;
}

START_TEST(events_come_in_order_and_resume)
{
    char text[512];
    struct kv_events *e = kv_events_create(2);
    struct kv_event_reader *r = kv_events_open(e, 0), *again, *third;
    for (int i = 0; i < 3; i++) kv_events_post(e, "receipt", json_pack("{s:i}", "n", i));
    kv_events_post(e, "status", json_pack("{s:i}", "s", 1));
    kv_events_post(e, "status", json_pack("{s:i}", "s", 2));
    next_event(r, text);
    ck_assert_ptr_nonnull(strstr(text, "event: hello"));
    next_event(r, text);
    unsigned long long first = id_of(text);
    ck_assert_ptr_nonnull(strstr(text, "{\"n\":0}"));
    next_event(r, text);
    next_event(r, text);
    ck_assert_ptr_nonnull(strstr(text, "{\"n\":2}"));
    next_event(r, text);
    ck_assert_ptr_nonnull(strstr(text, "{\"s\":2}")); /* only the latest status */
    ck_assert_uint_eq(id_of(text), 0);
    again = kv_events_open(e, first);
    ck_assert_ptr_nonnull(again);
    third = kv_events_open(e, 0);
    ck_assert_ptr_null(third);
    next_event(again, text);
    next_event(again, text);
    ck_assert_ptr_nonnull(strstr(text, "{\"n\":1}"));
    kv_events_close(again);
    kv_events_close(r);
    kv_events_free(e);
}
END_TEST

START_TEST(a_reader_that_was_run_over_is_greeted_again)
{
    char text[512];
    struct kv_events *e = kv_events_create(1);
    struct kv_event_reader *r = kv_events_open(e, 0);
    next_event(r, text);
    for (int i = 0; i < KV_EVENTS_KEPT + 5; i++) kv_events_post(e, "receipt", json_pack("{s:i}", "n", i));
    next_event(r, text);
    ck_assert_ptr_nonnull(strstr(text, "event: hello"));
    next_event(r, text);
    ck_assert_ptr_nonnull(strstr(text, "{\"n\":5}"));
    ssize_t n = kv_events_read(r, text, 7); /* in pieces */
    ck_assert_int_eq(n, 7);
    next_event(r, text);
    ck_assert_ptr_nonnull(strstr(text, "{\"n\":6}"));
    kv_events_close(r);
    kv_events_free(e);
}
END_TEST

static const struct { const char *raw; size_t n; const char *want; } texts[] = {
    {"plain", 5, "plain"}, {"\xc3\xa9", 2, "\xc3\xa9"}, {"a\xc3", 2, "a\xef\xbf\xbd"}, {"\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xc0\x80", 2, "\xef\xbf\xbd\xef\xbf\xbd"}, {"\xf0\x9f\x98\x80", 4, "\xf0\x9f\x98\x80"}, {"\xf4\x90\x80\x80z", 5, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz"},
};

START_TEST(any_bytes_become_text)
{
    json_t *v = kv_text_json(texts[_i].raw, texts[_i].n);
    ck_assert_str_eq(json_string_value(v), texts[_i].want);
    json_decref(v);
}
END_TEST

/* Who may write, as "NAME right NAME right …"; whether that makes a second pair of eyes. */
static const struct { const char *tokens, *mode; bool two; } users[] = {
    {"ann operator bob approver", "token", true}, {"ann operator ann approver", "token", false}, {"ann admin ann admin", "token", false}, {"ann operator bob operator", "token", false},
    {"ann admin bob viewer", "token", false},     {"bob approver", "local", true},              {"local approver", "local", false},    {"ann operator ann operator bob admin", "token", true},
};

START_TEST(two_users_are_two_names)
{
    char *argv[] = {"kvasird"}, list[900] = "[", name[16], right[16], mode[32];
    const char *at = users[_i].tokens;
    struct kv_error err = {0};
    struct kv_http_auth *auth;
    for (int used, i = 0; sscanf(at, "%15s %15s%n", name, right, &used) == 2; at += used, i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s{\"name\":\"%s\",\"sha256\":\"%064d\",\"rights\":[\"%s\"]}", i ? "," : "", name, i + 1, right);
    strcat(list, "]");
    snprintf(mode, sizeof mode, "%s", users[_i].mode);
    ck_assert_int_eq(kv_config_load(&config, 1, argv, NULL, &err), KV_OK);
    ck_assert_int_eq(kv_config_set(&config, "auth.mode", mode, KV_ORIGIN_FLAG, &err), KV_OK);
    ck_assert_msg(kv_config_set(&config, "auth.tokens", list, KV_ORIGIN_FLAG, &err) == KV_OK, "%s", err.message);
    ck_assert_int_eq(kv_http_auth_create(&config, "127.0.0.1", false, &auth, &err), KV_OK);
    ck_assert_msg(kv_http_auth_two_users(auth) == users[_i].two, "%s", users[_i].tokens);
    kv_http_auth_free(auth);
    kv_config_free(&config);
}
END_TEST

Suite *suite_http(void)
{
    Suite *s = suite_create("http");
    TCase *t = tcase_create("http");
    tcase_add_test(t, routes_carry_their_parts);
    tcase_add_test(t, without_a_token_loopback_is_an_operator_in_local_mode_only);
    tcase_add_loop_test(t, two_users_are_two_names, 0, (int)(sizeof users / sizeof *users));
    tcase_add_test(t, a_body_has_a_limit);
    tcase_add_test(t, nothing_but_early_routes_is_served_before_it_is_ready);
    tcase_add_loop_test(t, a_stream_is_released_when_its_client_leaves, 0, 2);
    tcase_add_test(t, stopping_ends_open_streams);
    tcase_add_test(t, events_come_in_order_and_resume);
    tcase_add_test(t, a_reader_that_was_run_over_is_greeted_again);
    tcase_add_loop_test(t, any_bytes_become_text, 0, (int)(sizeof texts / sizeof *texts));
    suite_add_tcase(s, t);
    return s;
}
