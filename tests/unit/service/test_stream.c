/* test_stream.c — text in whole characters, stop strings across tokens, and a log that a slow reader finds complete. */
#include "runtime/service/stream.h"
#include "runtime/service/stream_text.h"

#include <check.h>
#include <pthread.h>
#include <string.h>

Suite *suite_stream(void);

static struct kv_text *fresh(const char *const *stops)
{
    static struct kv_text t;
    ck_assert_int_eq(kv_text_init(&t, stops, NULL), KV_OK);
    return &t;
}

static const char *take(struct kv_text *t, bool flush)
{
    static char out[512];
    int32_t n = kv_text_take(t, flush, out, sizeof out - 1);
    out[n] = 0;
    return out;
}

static const char *const none[KV_MAX_STOPS] = {NULL};

START_TEST(characters_stay_whole)
{
    struct kv_text *t = fresh(none);
    kv_text_add(t, "a\xc3", 2);
    ck_assert_str_eq(take(t, false), "a");
    kv_text_add(t, "\xa9\xf0\x9f", 3);
    ck_assert_str_eq(take(t, false), "\xc3\xa9");
    kv_text_add(t, "\x98\x80!", 3);
    ck_assert_str_eq(take(t, false), "\xf0\x9f\x98\x80!");
    kv_text_add(t, "\xe2\x82", 2);
    ck_assert_str_eq(take(t, false), "");
    ck_assert_str_eq(take(t, true), "\xef\xbf\xbd"); /* an answer that ends inside a character */
}
END_TEST

START_TEST(bytes_that_are_no_text_are_replaced)
{
    struct kv_text *t = fresh(none);
    kv_text_add(t, "x\xff\xc0\xaf\xed\xa0\x80y", 8);
    const char *out = take(t, true);
    ck_assert_ptr_nonnull(strstr(out, "\xef\xbf\xbd"));
    ck_assert(out[0] == 'x' && out[strlen(out) - 1] == 'y');
    ck_assert_ptr_null(strchr(out, '\xff'));
}
END_TEST

START_TEST(a_stop_string_is_found_across_tokens)
{
    static const char *const stops[KV_MAX_STOPS] = {"\nUser:", "###"};
    struct kv_text *t = fresh(stops);
    ck_assert(!kv_text_add(t, "Hello\n", 6));
    ck_assert_str_eq(take(t, false), "Hello"); /* the newline may begin a stop string */
    ck_assert(!kv_text_add(t, "Use", 3));
    ck_assert_str_eq(take(t, false), "");
    ck_assert(!kv_text_add(t, "ful", 3));
    ck_assert_str_eq(take(t, false), "\nUseful");
    ck_assert(!kv_text_add(t, " #", 2));
    ck_assert_str_eq(take(t, false), " ");
    ck_assert(kv_text_add(t, "## and more", 11));
    ck_assert_str_eq(take(t, false), "");
    ck_assert(kv_text_add(t, "never shown", 11));
    ck_assert_str_eq(take(t, true), "");
}
END_TEST

START_TEST(what_was_held_back_comes_at_the_end)
{
    static const char *const stops[KV_MAX_STOPS] = {"END"};
    struct kv_text *t = fresh(stops);
    kv_text_add(t, "the EN", 6);
    ck_assert_str_eq(take(t, false), "the ");
    ck_assert_str_eq(take(t, true), "EN");
}
END_TEST

START_TEST(small_pieces_lose_nothing)
{
    struct kv_text *t = fresh(none);
    char long_token[200], got[256] = "", piece[8];
    memset(long_token, 'z', sizeof long_token);
    kv_text_add(t, long_token, sizeof long_token);
    for (int32_t n; (n = kv_text_take(t, false, piece, sizeof piece)) > 0;) strncat(got, piece, (size_t)n);
    ck_assert_uint_eq(strlen(got), sizeof long_token);
}
END_TEST

START_TEST(a_stop_string_has_limits)
{
    struct kv_text t;
    char big[KV_MAX_STOP_BYTES + 1];
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = 0;
    ck_assert_int_eq(kv_text_init(&t, (const char *const[KV_MAX_STOPS]){""}, NULL), KV_BAD_ARGUMENT);
    ck_assert_int_eq(kv_text_init(&t, (const char *const[KV_MAX_STOPS]){big}, NULL), KV_BAD_ARGUMENT);
}
END_TEST

enum { TOKENS = 5000 };

static void *writer(void *arg)
{
    struct kv_stream *s = arg;
    for (int32_t i = 0; i < TOKENS; i++) {
        struct kv_log_top *top;
        struct kv_log_entry *e = kv_stream_next(s, &top);
        *e = (struct kv_log_entry){.token = i, .n_text = 1, .n_top = 1, .text = {(char)('a' + i % 26)}};
        top[0] = (struct kv_log_top){i + 1, 0.5f};
        kv_stream_publish(s);
        kv_stream_wake(s);
    }
    struct kv_log_top *top;
    if (kv_stream_next(s, &top)) return s; /* full: nothing more fits */
    kv_stream_finish(s, &(struct kv_request_stats){.finish = KV_FINISH_LENGTH, .n_published = TOKENS});
    kv_stream_unref(s);
    return NULL;
}

START_TEST(a_reader_gets_every_token_once)
{
    struct kv_backlog *b = kv_backlog_create();
    struct kv_stream *s = kv_stream_create(TOKENS, 1, b);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, writer, s), 0);
    struct kv_chunk c[7];
    enum kv_finish finish = KV_RUNNING;
    int32_t seen = 0;
    while (finish == KV_RUNNING) {
        int32_t got;
        ck_assert_int_eq(kv_stream_read(s, c, 7, 1000, &got, &finish), KV_OK);
        for (int32_t i = 0; i < got; i++, seen++) {
            ck_assert_int_eq(c[i].token, seen);
            ck_assert_int_eq(c[i].top_id[0], seen + 1);
            ck_assert_int_eq(c[i].text[0], 'a' + seen % 26);
        }
    }
    void *result;
    pthread_join(thread, &result);
    ck_assert_ptr_null(result);
    ck_assert_int_eq(seen, TOKENS);
    ck_assert_int_eq(finish, KV_FINISH_LENGTH);
    ck_assert_int_eq(atomic_load(&b->unsent), 0);
    kv_stream_close(s);
    kv_backlog_unref(b);
}
END_TEST

START_TEST(unread_tokens_are_counted_until_the_reader_leaves)
{
    struct kv_backlog *b = kv_backlog_create();
    struct kv_stream *s = kv_stream_create(3, 0, b);
    struct kv_log_top *top;
    for (int i = 0; i < 3; i++) {
        *kv_stream_next(s, &top) = (struct kv_log_entry){.token = i};
        kv_stream_publish(s);
        kv_stream_wake(s);
    }
    struct kv_chunk c;
    int32_t got;
    enum kv_finish finish;
    kv_stream_read(s, &c, 1, 0, &got, &finish);
    ck_assert_int_eq(atomic_load(&b->unsent), 2);
    ck_assert(!atomic_load(&s->cancelled));
    kv_stream_close(s);
    ck_assert(atomic_load(&s->cancelled)); /* a reader that is gone cancels */
    kv_stream_unref(s);
    ck_assert_int_eq(atomic_load(&b->unsent), 0);
    kv_backlog_unref(b);
}
END_TEST

Suite *suite_stream(void)
{
    Suite *s = suite_create("stream");
    TCase *t = tcase_create("stream");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, characters_stay_whole);
    tcase_add_test(t, bytes_that_are_no_text_are_replaced);
    tcase_add_test(t, a_stop_string_is_found_across_tokens);
    tcase_add_test(t, what_was_held_back_comes_at_the_end);
    tcase_add_test(t, small_pieces_lose_nothing);
    tcase_add_test(t, a_stop_string_has_limits);
    tcase_add_test(t, a_reader_gets_every_token_once);
    tcase_add_test(t, unread_tokens_are_counted_until_the_reader_leaves);
    suite_add_tcase(s, t);
    return s;
}
