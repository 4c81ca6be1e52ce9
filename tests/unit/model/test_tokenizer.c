/* test_tokenizer.c — tokens equal the reference's, words equal the regular expressions', and text comes back whole. */
#include "runtime/model/model.h"
#include "runtime/model/unicode.h"
#include "tests/unit/model/write_gguf.h"

#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static json_t *load(const char *file)
{
    json_error_t why;
    json_t *j = json_load_file(file, JSON_ALLOW_NUL, &why);
    ck_assert_msg(j != NULL, "%s: %s", file, why.text);
    return j;
}

static struct kv_model *opened(const char *path)
{
    struct kv_model *m = NULL;
    struct kv_error err = {0};
    ck_assert_msg(kv_model_open(path, NULL, &m, &err) == KV_OK, "%s: %s", path, err.message);
    return m;
}

static struct kv_model *random_opened(const struct random_model *r)
{
    char path[64];
    random_gguf_save(r, path);
    struct kv_model *m = opened(path);
    unlink(path);
    return m;
}

static size_t encode(const struct kv_model *m, const char *text, size_t len, bool special, int32_t *ids, size_t cap)
{
    size_t n;
    struct kv_error err = {0};
    enum kv_status s = kv_tokenize(m, text, len, special, ids, cap, &n, &err);
    ck_assert_msg(s == KV_OK, "%s: %s", kv_status_name(s), err.message);
    return n;
}

/* Ids as listed, and the text back from them. */
static void compare(const struct kv_model *m, const json_t *rows)
{
    size_t i;
    json_t *row;
    int32_t ids[4096];
    char out[16384];
    json_array_foreach(rows, i, row) {
        const json_t *text = json_object_get(row, "text"), *want = json_object_get(row, "ids");
        size_t n = encode(m, json_string_value(text), json_string_length(text), json_is_true(json_object_get(row, "special")), ids, 4096), len;
        ck_assert_msg(n == json_array_size(want), "row %zu: %zu tokens, expected %zu", i, n, json_array_size(want));
        for (size_t k = 0; k < n; k++)
            ck_assert_msg(ids[k] == json_integer_value(json_array_get(want, k)), "row %zu, token %zu: %d", i, k, ids[k]);
        ck_assert_int_eq(kv_detokenize(m, ids, n, true, out, sizeof out, &len), KV_OK);
        ck_assert_msg(len == json_string_length(text) && !memcmp(out, json_string_value(text), len), "row %zu does not come back", i);
    }
}

START_TEST(reference_tokens)
{
    json_t *rows = load("tests/fixtures/tokens-demo.json");
    struct kv_model *m = opened("models/kvasir-demo-q8_0.gguf");
    ck_assert_uint_gt(json_array_size(rows), 60);
    compare(m, rows);
    kv_model_close(m);
    json_decref(rows);
}
END_TEST

/* ---------------------------------------------------------------- words */

struct words {
    const json_t *want;
    size_t n;
    const char *name, *text;
};

static enum kv_status word(void *ctx, const char *text, size_t len)
{
    struct words *w = ctx;
    const json_t *want = json_array_get(w->want, w->n++);
    ck_assert_msg(want && json_string_length(want) == len && !memcmp(json_string_value(want), text, len), "%s: word %zu of '%s' is '%.*s', expected '%s'",
                  w->name, w->n - 1, w->text, (int)len, text, want ? json_string_value(want) : "(none)");
    return KV_OK;
}

START_TEST(words_of_every_pre_tokenizer)
{
    static const char *const names[KV_SPLITS] = {"default", "gpt-2", "smollm", "llama-bpe", "qwen2"};
    json_t *rows = load("tests/fixtures/splits.json"), *row;
    size_t i;
    json_array_foreach(rows, i, row) {
        const json_t *text = json_object_get(row, "text");
        for (int k = 0; k < KV_SPLITS; k++) {
            struct words w = {json_object_get(row, names[k]), 0, names[k], json_string_value(text)};
            ck_assert_int_eq(kv_split_words((enum kv_split)k, json_string_value(text), json_string_length(text), word, &w), KV_OK);
            ck_assert_uint_eq(w.n, json_array_size(w.want));
        }
    }
    json_decref(rows);
}
END_TEST

static enum kv_status refuse(void *ctx, const char *text, size_t len)
{
    (void)text;
    (void)len;
    return ++*(int *)ctx == 2 ? KV_CANCELLED : KV_OK;
}

START_TEST(splitting_stops_when_told)
{
    int calls = 0;
    ck_assert_int_eq(kv_split_words(KV_SPLIT_SMOLLM, "a b c 1 d", 9, refuse, &calls), KV_CANCELLED);
    ck_assert_int_eq(calls, 2);
}
END_TEST

START_TEST(utf8_is_strict)
{
    static const struct {
        const char *text;
        uint32_t c;
        size_t used;
    } rows[] = {{"a", 'a', 1},         {"\xC3\xA9", 0xE9, 2},          {"\xE2\x82\xAC", 0x20AC, 3},     {"\xF0\x9F\x98\x80", 0x1F600, 4}, {"\xF4\x8F\xBF\xBF", 0x10FFFF, 4},
                {"\x80", 0xFFFD, 1},   {"\xC1\x81", 0xFFFD, 1},        {"\xE0\x80\xAF", 0xFFFD, 1},     {"\xED\xA0\x80", 0xFFFD, 1},      {"\xF0\x80\x80\xAF", 0xFFFD, 1},
                {"\xF4\x90\x80\x80", 0xFFFD, 1}, {"\xE2\x82", 0xFFFD, 1}, {"\xE2\x28\xA1", 0xFFFD, 1}, {"\xFF", 0xFFFD, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t used;
        uint32_t c = kv_utf8_decode(rows[i].text, strlen(rows[i].text), &used);
        ck_assert_msg(c == rows[i].c && used == rows[i].used, "row %zu: U+%04X of %zu bytes", i, c, used);
    }
}
END_TEST

/* ---------------------------------------------------------------- the two kinds, on vocabularies made here */

static void expect(const struct kv_model *m, const char *text, bool special, const int32_t *want, size_t n_want)
{
    int32_t ids[256];
    size_t n = encode(m, text, strlen(text), special, ids, 256);
    ck_assert_msg(n == n_want, "'%s': %zu tokens, expected %zu", text, n, n_want);
    for (size_t i = 0; i < n; i++) ck_assert_msg(ids[i] == want[i], "'%s': token %zu is %d, expected %d", text, i, ids[i], want[i]);
}
#define EXPECT(m, text, special, ...) expect(m, text, special, (int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

START_TEST(byte_pairs)
{
    struct kv_model *m = random_opened(&(struct random_model){.bpe = true});
    EXPECT(m, "hello", false, 262);                  /* h e, l l, he ll, hell o: by rank */
    EXPECT(m, "hell yes", false, 261, ' ', 'y', 'e', 's');
    EXPECT(m, "hellwor", false, 261, 'w', 264);      /* merges follow ranks, not positions */
    EXPECT(m, " wor", false, 263, 264);
    EXPECT(m, "lll", false, 260, 'l');               /* equal ranks from left to right */
    EXPECT(m, "whole", false, 'w', 'h', 'o', 'l', 'e'); /* a token that no merges lead to */
    EXPECT(m, "azzzza", false, 'a', 267, 'z', 'a');  /* user-defined tokens always, the longest first */
    EXPECT(m, "a\xff", false, 'a', 255);             /* a byte of no valid character is kept */
    EXPECT(m, "<|im_end|>", true, 258);
    EXPECT(m, "a<|im_end|><|im_start|>b", true, 'a', 258, 257, 'b');
    int32_t ids[64];
    ck_assert_uint_eq(encode(m, "<|im_end|>", 10, false, ids, 64), 10);
    ck_assert(kv_token_ends_turn(m, 258) && kv_token_ends_turn(m, 256) && !kv_token_ends_turn(m, 257) && !kv_token_ends_turn(m, -1));
    char out[16];
    ck_assert_uint_eq(kv_token_bytes(m, 258, false, out, sizeof out), 0);
    ck_assert_uint_eq(kv_token_bytes(m, 258, true, out, sizeof out), 10);
    ck_assert_uint_eq(kv_token_bytes(m, 263, false, out, 1), 2); /* needed, beyond the capacity */
    ck_assert_int_eq(out[0], ' ');
    ck_assert_int_eq(kv_model_info(m)->add_bos, 0);
    kv_model_close(m);
    m = random_opened(&(struct random_model){.bpe = true, .pre = "llama-bpe"});
    EXPECT(m, " wor", false, 263, 264);
    EXPECT(m, "whole", false, 265); /* the word as it stands, without merges */
    ck_assert_int_eq(kv_model_info(m)->add_bos, 1);
    kv_model_close(m);
}
END_TEST

static void put_prefix(struct gguf_writer *w)
{
    gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", false);
}

START_TEST(scores)
{
    struct kv_model *m = random_opened(&(struct random_model){.more = put_prefix});
    enum { SPACE = 259, A, B, SPACE_A, AB, SPACE_AB, ABAB };
    EXPECT(m, "ab", false, AB);
    EXPECT(m, " ab", false, SPACE_AB);      /* "▁a" before "ab", then both become "▁ab" */
    EXPECT(m, "bab ", false, B, AB, SPACE);
    EXPECT(m, "abab", false, ABAB);
    EXPECT(m, "c", false, 3 + 'c');
    EXPECT(m, "\xC3\xA9", false, 3 + 0xC3, 3 + 0xA9);
    EXPECT(m, "</s>ab", true, 2, AB);
    EXPECT(m, "<s>", false, 266, 3 + '>');  /* text never becomes a control token, though "<s" is one step from it */
    kv_model_close(m);
    m = random_opened(&(struct random_model){0});
    EXPECT(m, "a", false, SPACE_A);         /* the space that stands before a text */
    EXPECT(m, "<s>a<s>", true, 1, SPACE_A, 1);
    char out[8];
    size_t len;
    ck_assert_int_eq(kv_detokenize(m, (int32_t[]){1, SPACE_A, SPACE_A}, 3, false, out, sizeof out, &len), KV_OK);
    ck_assert(len == 3 && !memcmp(out, "a a", 3)); /* and goes again */
    kv_model_close(m);
}
END_TEST

/* ---------------------------------------------------------------- limits */

START_TEST(limits)
{
    struct kv_model *m = random_opened(&(struct random_model){.bpe = true});
    int32_t ids[4];
    size_t n = 0;
    struct kv_error err;
    ck_assert_int_eq(kv_tokenize(m, "abcdefgh", 8, false, ids, 4, &n, &err), KV_CAPACITY);
    ck_assert_uint_eq(n, 8);
    ck_assert_int_eq(ids[3], 'd');
    ck_assert_int_eq(kv_tokenize(m, "", 0, false, NULL, 0, &n, &err), KV_OK);
    ck_assert_uint_eq(n, 0);
    char *big = calloc(KV_MAX_TEXT_BYTES + 1, 1);
    ck_assert_int_eq(kv_tokenize(m, big, KV_MAX_TEXT_BYTES + 1, false, ids, 4, &n, &err), KV_BODY_TOO_LARGE);
    free(big);
    size_t len;
    ck_assert_int_eq(kv_detokenize(m, (int32_t[]){320}, 1, false, NULL, 0, &len), KV_TOKEN_OUT_OF_RANGE);
    ck_assert_int_eq(kv_detokenize(m, (int32_t[]){'a'}, 1, false, NULL, 0, &len), KV_CAPACITY);
    ck_assert_uint_eq(len, 1);
    kv_model_close(m);
}
END_TEST

/* A word or a text of one piece must not cost the square of its length: 16 times the text takes far less than 256 times as long. */
START_TEST(long_words_take_linear_time)
{
    for (int bpe = 0; bpe < 2; bpe++) {
        struct kv_model *m = random_opened(&(struct random_model){.bpe = bpe});
        size_t n = 1 << 18;
        char *text = malloc(n);
        int32_t *ids = malloc((n + 8) * sizeof *ids);
        for (size_t i = 0; i < n; i++) text[i] = (bpe ? "hello" : "ababa")[i % 5];
        double took[2];
        for (int k = 0; k < 2; k++) {
            struct timespec a, b;
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
            encode(m, text, k ? n : n / 16, false, ids, n + 8);
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
            took[k] = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
        }
        ck_assert_msg(took[1] < 80 * took[0] + 0.05, "16 times the text took %.1f times as long", took[1] / took[0]);
        free(text);
        free(ids);
        kv_model_close(m);
    }
}
END_TEST

START_TEST(random_bytes_come_back)
{
    struct kv_model *m[] = {random_opened(&(struct random_model){.bpe = true}), random_opened(&(struct random_model){.more = put_prefix}),
                            opened("models/kvasir-demo-q8_0.gguf")};
    uint64_t state = 1;
    for (int k = 0; k < 3; k++) {
        for (int round = 0; round < 300; round++) {
            char text[64], out[256];
            int32_t ids[64];
            size_t n_text = (size_t)round % 64, len;
            for (size_t i = 0; i < n_text; i++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                text[i] = round % 2 ? (char)(state >> 56) : " abhelo\n1"[(state >> 40) % 9];
            }
            size_t n = encode(m[k], text, n_text, false, ids, 64);
            ck_assert_int_eq(kv_detokenize(m[k], ids, n, true, out, sizeof out, &len), KV_OK);
            ck_assert_uint_eq(len, n_text);
            ck_assert_mem_eq(out, text, n_text);
        }
        kv_model_close(m[k]);
    }
}
END_TEST

Suite *suite_tokenizer(void);
Suite *suite_tokenizer(void)
{
    Suite *s = suite_create("tokenizer");
    TCase *c = tcase_create("tokens");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, reference_tokens);
    tcase_add_test(c, words_of_every_pre_tokenizer);
    tcase_add_test(c, splitting_stops_when_told);
    tcase_add_test(c, utf8_is_strict);
    tcase_add_test(c, byte_pairs);
    tcase_add_test(c, scores);
    tcase_add_test(c, limits);
    tcase_add_test(c, long_words_take_linear_time);
    tcase_add_test(c, random_bytes_come_back);
    suite_add_tcase(s, c);
    return s;
}
