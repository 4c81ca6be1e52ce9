/* test_gguf.c — what a GGUF file may say and what is refused, with its reason. */
#include "tests/unit/model/write_gguf.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t dims_8x2[] = {8, 2};

/* Indexes bytes that are freed by the test's end; returns the status. */
static enum kv_status parse(const uint8_t *bytes, size_t n, struct kv_error *err)
{
    struct kv_gguf *g = NULL;
    enum kv_status s = kv_gguf_parse(bytes, n, &g, err);
    ck_assert_int_eq(s == KV_OK, g != NULL);
    kv_gguf_close(g);
    return s;
}

static enum kv_status parse_writer(struct gguf_writer *w, struct kv_error *err)
{
    size_t n;
    uint8_t *bytes = gguf_finish(w, &n);
    enum kv_status s = parse(bytes, n, err);
    free(bytes);
    return s;
}

START_TEST(values_and_tensors)
{
    for (uint32_t version = 2; version <= 3; version++) {
        struct gguf_writer w = {.version = version, .alignment = 64};
        float data[16];
        for (int i = 0; i < 16; i++) data[i] = (float)i;
        gguf_put_u32(&w, "a.int", 7);
        gguf_put_f32(&w, "a.float", 0.5f);
        gguf_put_bool(&w, "a.bool", true);
        gguf_put_text(&w, "a.text", "word");
        gguf_put_texts(&w, "a.list", (const char *const[]){"x", "", "yz"}, 3);
        gguf_put_array(&w, "a.bytes", KV_GGUF_I16, (int16_t[]){-3, 300}, 4, 2);
        gguf_put_tensor(&w, "first", KV_F32, 1, (uint64_t[]){3}, data, 12);
        gguf_put_tensor(&w, "second", KV_F32, 2, dims_8x2, data, sizeof data);
        size_t n;
        uint8_t *bytes = gguf_finish(&w, &n);
        struct kv_gguf *g;
        struct kv_error err;
        ck_assert_int_eq(kv_gguf_parse(bytes, n, &g, &err), KV_OK);
        int64_t i = 0;
        double f = 0;
        bool b = false;
        struct kv_gguf_string s;
        ck_assert_int_eq(kv_gguf_int(g, "a.int", &i, &err), KV_OK);
        ck_assert_int_eq(i, 7);
        ck_assert_int_eq(kv_gguf_float(g, "a.float", &f, &err), KV_OK);
        ck_assert(f == 0.5);
        ck_assert_int_eq(kv_gguf_bool(g, "a.bool", &b, &err), KV_OK);
        ck_assert(b);
        ck_assert_int_eq(kv_gguf_text(g, "a.text", &s, &err), KV_OK);
        ck_assert(s.len == 4 && !memcmp(s.data, "word", 4));
        ck_assert_int_eq(kv_gguf_int(g, "a.text", &i, &err), KV_MODEL_MALFORMED);
        ck_assert_int_eq(kv_gguf_text(g, "a.int", &s, &err), KV_MODEL_MALFORMED);
        ck_assert_int_eq(kv_gguf_int(g, "absent", &i, &err), KV_NOT_FOUND);
        const struct kv_gguf_value *list = kv_gguf_find(g, "a.list");
        const uint8_t *cursor = list->data;
        ck_assert(list->is_array && list->count == 3);
        ck_assert_uint_eq(kv_gguf_next_string(&cursor).len, 1);
        ck_assert_uint_eq(kv_gguf_next_string(&cursor).len, 0);
        ck_assert_uint_eq(kv_gguf_next_string(&cursor).len, 2);
        ck_assert(kv_gguf_number_at(kv_gguf_find(g, "a.bytes"), 0) == -3);
        const struct kv_gguf_tensor *t = kv_gguf_tensor(g, "second");
        ck_assert_ptr_nonnull(t);
        ck_assert_uint_eq(t->bytes, sizeof data);
        ck_assert_mem_eq(t->data, data, sizeof data);
        ck_assert_uint_eq((size_t)(t->data - bytes) % 64, 0);
        ck_assert_ptr_null(kv_gguf_tensor(g, "third"));
        kv_gguf_close(g);
        free(bytes);
    }
}
END_TEST

START_TEST(every_truncation_is_refused)
{
    size_t n;
    uint8_t *bytes = random_gguf(&(struct random_model){.n_layers = 1, .d_model = 32, .n_q_heads = 2, .n_kv_heads = 1, .d_ff = 32}, &n);
    for (size_t cut = 0; cut < n; cut += cut < 4096 || cut > n - 256 ? 1 : 97) {
        uint8_t *part = malloc(cut + 1); /* its own block, so that reading beyond is seen */
        memcpy(part, bytes, cut);
        struct kv_error err = {0};
        enum kv_status s = parse(part, cut, &err);
        ck_assert_msg(s == KV_MODEL_TRUNCATED || (cut < 4 && s == KV_NOT_GGUF), "cut at %zu: %s", cut, kv_status_name(s));
        ck_assert(err.message[0]);
        free(part);
    }
    ck_assert_int_eq(parse(bytes, n, NULL), KV_OK);
    free(bytes);
}
END_TEST

START_TEST(versions_and_magic)
{
    struct kv_error err;
    struct gguf_writer one = {.version = 1}, four = {.version = 4}, big = {.version = 0x03000000};
    ck_assert_int_eq(parse_writer(&one, &err), KV_NOT_GGUF);
    ck_assert_int_eq(parse_writer(&four, &err), KV_NOT_GGUF);
    ck_assert_int_eq(parse_writer(&big, &err), KV_NOT_GGUF);
    ck_assert_ptr_nonnull(strstr(err.message, "big-endian"));
    ck_assert_int_eq(parse((const uint8_t *)"GGML____________________", 24, &err), KV_NOT_GGUF);
}
END_TEST

START_TEST(tables_that_contradict_themselves)
{
    struct kv_error err;
    struct gguf_writer w = {0};
    gguf_put_u32(&w, "same", 1);
    gguf_put_text(&w, "same", "again");
    ck_assert_int_eq(parse_writer(&w, &err), KV_MODEL_MALFORMED);
    ck_assert_ptr_nonnull(strstr(err.message, "same"));

    w = (struct gguf_writer){0};
    gguf_put_tensor(&w, "twice", KV_F32, 2, dims_8x2, NULL, 64);
    gguf_put_tensor(&w, "twice", KV_F32, 2, dims_8x2, NULL, 64);
    ck_assert_int_eq(parse_writer(&w, &err), KV_MODEL_MALFORMED);

    w = (struct gguf_writer){0};
    gguf_put_tensor(&w, "zero", KV_F32, 2, (uint64_t[]){8, 0}, NULL, 64);
    ck_assert_int_eq(parse_writer(&w, &err), KV_MODEL_MALFORMED);
    ck_assert_ptr_nonnull(strstr(err.message, "zero"));

    w = (struct gguf_writer){0};
    gguf_put_tensor(&w, "deep", KV_F32, 5, (uint64_t[]){1, 1, 1, 1, 1}, NULL, 64);
    ck_assert_int_eq(parse_writer(&w, &err), KV_MODEL_MALFORMED);

    w = (struct gguf_writer){0};
    gguf_put_tensor(&w, "under", KV_F32, 2, dims_8x2, NULL, 64);
    gguf_put_tensor_at(&w, "over", KV_F32, 1, (uint64_t[]){8}, 32);
    ck_assert_int_eq(parse_writer(&w, &err), KV_MODEL_MALFORMED);
    ck_assert_ptr_nonnull(strstr(err.message, "overlap"));

    w = (struct gguf_writer){0};
    gguf_put_tensor(&w, "whole", KV_F32, 2, dims_8x2, NULL, 64);
    gguf_put_tensor_at(&w, "crooked", KV_F32, 1, (uint64_t[]){1}, 4);
    ck_assert_int_eq(parse_writer(&w, &err), KV_MODEL_MALFORMED);
    ck_assert_ptr_nonnull(strstr(err.message, "aligned"));

    w = (struct gguf_writer){0};
    gguf_put_tensor(&w, "ragged", KV_Q8_0, 2, dims_8x2, NULL, 64);
    ck_assert_int_eq(parse_writer(&w, &err), KV_MODEL_MALFORMED);

    w = (struct gguf_writer){.alignment = 48};
    ck_assert_int_eq(parse_writer(&w, &err), KV_MODEL_MALFORMED);
}
END_TEST

START_TEST(unknown_types_are_named)
{
    struct kv_error err;
    struct gguf_writer w = {0};
    gguf_put_tensor(&w, "small", 10, 2, (uint64_t[]){256, 1}, NULL, 84);
    ck_assert_int_eq(parse_writer(&w, &err), KV_UNKNOWN_TENSOR_TYPE);
    ck_assert_ptr_nonnull(strstr(err.message, "Q2_K"));
    ck_assert_ptr_nonnull(strstr(err.message, "small"));
    ck_assert(err.hint[0]);
    w = (struct gguf_writer){0};
    gguf_put_tensor(&w, "odd", 4000000000u, 1, (uint64_t[]){1}, NULL, 4);
    ck_assert_int_eq(parse_writer(&w, &err), KV_UNKNOWN_TENSOR_TYPE);
    w = (struct gguf_writer){0};
    gguf_put_array(&w, "nested", KV_GGUF_ARRAY, "\0\0\0\0\0\0\0\0\0\0\0\0", 12, 1);
    ck_assert_int_eq(parse_writer(&w, &err), KV_MODEL_MALFORMED);
}
END_TEST

/* Sizes that wrap around or ask for more memory than the file has bytes. */
START_TEST(sizes_beyond_the_file)
{
    struct kv_error err;
    struct gguf_writer w = {0};
    gguf_put_tensor(&w, "huge", KV_F32, 4, (uint64_t[]){INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX}, NULL, 64);
    ck_assert_int_eq(parse_writer(&w, &err), KV_MODEL_TRUNCATED);
    w = (struct gguf_writer){0};
    gguf_put_tensor(&w, "wrapped", KV_F32, 3, (uint64_t[]){1u << 30, 1u << 30, 4}, NULL, 64); /* 2^64 bytes */
    ck_assert_int_eq(parse_writer(&w, &err), KV_MODEL_TRUNCATED);
    w = (struct gguf_writer){0};
    gguf_put_tensor(&w, "wide", KV_F32, 1, (uint64_t[]){UINT64_MAX}, NULL, 64);
    ck_assert_int_eq(parse_writer(&w, &err), KV_MODEL_MALFORMED);
    w = (struct gguf_writer){0};
    gguf_put_tensor_at(&w, "far", KV_F32, 1, (uint64_t[]){1}, UINT64_MAX - 31);
    ck_assert_int_eq(parse_writer(&w, &err), KV_MODEL_TRUNCATED);
    w = (struct gguf_writer){0};
    gguf_put_array(&w, "many", KV_GGUF_U64, NULL, 8, UINT64_MAX / 8 + 2);
    ck_assert_int_eq(parse_writer(&w, &err), KV_MODEL_TRUNCATED);
    w = (struct gguf_writer){0};
    gguf_put_array(&w, "texts", KV_GGUF_STRING, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, 1);
    ck_assert_int_eq(parse_writer(&w, &err), KV_MODEL_MALFORMED);
    w = (struct gguf_writer){.n_tensors = 1u << 30};
    ck_assert_int_eq(parse_writer(&w, &err), KV_MODEL_MALFORMED);
    w = (struct gguf_writer){.n_tensors = KV_GGUF_MAX_TENSORS, .n_values = KV_GGUF_MAX_VALUES};
    ck_assert_int_eq(parse_writer(&w, &err), KV_MODEL_TRUNCATED);
}
END_TEST

START_TEST(files)
{
    struct kv_gguf *g = NULL;
    struct kv_error err;
    ck_assert_int_eq(kv_gguf_open("/nonexistent/model.gguf", 0, &g, &err), KV_FILE_UNREADABLE);
    ck_assert(err.hint[0]);
    ck_assert_int_eq(kv_gguf_open("/tmp", 0, &g, &err), KV_FILE_UNREADABLE);
    ck_assert_int_eq(kv_gguf_open("/dev/null", 0, &g, &err), KV_FILE_UNREADABLE);
    ck_assert_int_eq(kv_gguf_open("models/kvasir-demo-q8_0.gguf", 1000, &g, &err), KV_FILE_UNREADABLE);
    ck_assert_int_eq(kv_gguf_open("models/kvasir-demo-q8_0.gguf", 0, &g, &err), KV_OK);
    ck_assert_uint_eq(g->n_tensors, 56);
    kv_gguf_close(g);
}
END_TEST

Suite *suite_gguf(void);
Suite *suite_gguf(void)
{
    Suite *s = suite_create("gguf");
    TCase *c = tcase_create("index");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, values_and_tensors);
    tcase_add_test(c, every_truncation_is_refused);
    tcase_add_test(c, versions_and_magic);
    tcase_add_test(c, tables_that_contradict_themselves);
    tcase_add_test(c, unknown_types_are_named);
    tcase_add_test(c, sizes_beyond_the_file);
    tcase_add_test(c, files);
    suite_add_tcase(s, c);
    return s;
}
