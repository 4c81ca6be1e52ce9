/* test_config.c — precedence, types, misspellings, reloadable settings. */
#include "controller/config.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

Suite *suite_config(void);

static char file[64];

static void write_file(const char *text)
{
    strcpy(file, "/tmp/kvasir-config-XXXXXX");
    int fd = mkstemp(file);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static enum kv_status load(struct kv_config *c, struct kv_error *err, char **env, const char *a, const char *b)
{
    char *argv[] = {"kvasird", "--config", file, (char *)a, (char *)b, NULL};
    int argc = a ? b ? 5 : 4 : 3;
    return *file ? kv_config_load(c, argc, argv, env, err) : kv_config_load(c, argc - 2, argv + 2, env, err);
}

START_TEST(the_nearer_origin_wins)
{
    struct kv_config c;
    struct kv_error err = {0};
    char *env[] = {"HOME=/", "KVASIR_ENGINE_MAX_QUEUE=44", "KVASIR_ENGINE_MAX_SEQUENCES=4", "KVASIR_URL=http://elsewhere", NULL};
    write_file("{\"engine\":{\"threads\":3,\"max_queue\":33},\"engine.max_sequences\":3}");
    ck_assert_int_eq(load(&c, &err, env, "--set", "engine.max_sequences=5"), KV_OK);
    ck_assert_int_eq(c.threads, 3);
    ck_assert_int_eq(c.max_queue, 44);
    ck_assert_int_eq(c.max_sequences, 5);
    ck_assert_int_eq(c.prefill_chunk, 256);
    ck_assert_int_eq(c.origin[KV_SET_threads], KV_ORIGIN_FILE);
    ck_assert_int_eq(c.origin[KV_SET_max_queue], KV_ORIGIN_ENVIRONMENT);
    ck_assert_int_eq(c.origin[KV_SET_max_sequences], KV_ORIGIN_FLAG);
    ck_assert_int_eq(c.origin[KV_SET_prefill_chunk], KV_ORIGIN_DEFAULT);
    kv_config_free(&c);
    unlink(file);
}
END_TEST

static const struct { const char *pair; enum kv_status want; const char *hint; } pairs[] = {
    {"tiers.host.capacity_bytes=64MiB", KV_OK, ""},
    {"tiers.host.capacity_bytes=64MB", KV_BAD_ARGUMENT, ""},       /* decimal units are not guessed at */
    {"tiers.host.capacity_bytes=-1", KV_BAD_ARGUMENT, ""},
    {"tiers.host.capacity_bytes=18446744073709551616", KV_BAD_ARGUMENT, ""},
    {"tiers.host.capacity_bytes=17592186044416KiB", KV_BAD_ARGUMENT, ""}, /* overflows or exceeds the range */
    {"tiers.host.capacity_byte=1", KV_UNKNOWN_KEY, "tiers.host.capacity_bytes"},
    {"capacity_bytes=1", KV_UNKNOWN_KEY, "capacity_bytes"},
    {"engine.threads=2.5", KV_BAD_ARGUMENT, ""},
    {"engine.threads=", KV_BAD_ARGUMENT, ""},
    {"engine.threads=257", KV_BAD_ARGUMENT, ""},
    {"shadow.fraction=0.5", KV_OK, ""},
    {"shadow.fraction=nan", KV_BAD_ARGUMENT, ""},
    {"shadow.fraction=1.5", KV_BAD_ARGUMENT, ""},
    {"auth.mode=token", KV_OK, ""},
    {"auth.mode=tok", KV_BAD_ARGUMENT, ""},
    {"auth.mode=", KV_BAD_ARGUMENT, ""},
    {"log.level=warn", KV_OK, ""},
    {"http.allowed_hosts=[\"a\",\"b\"]", KV_OK, ""},
    {"http.allowed_hosts=[1]", KV_BAD_ARGUMENT, ""},
    {"http.allowed_hosts=a", KV_BAD_ARGUMENT, ""},
    {"auth.tokens=[{\"name\":\"x\",\"sha256\":\"00\",\"rights\":[\"viewer\"]}]", KV_BAD_ARGUMENT, ""},
    {"auth.tokens=[{\"nam\":\"x\"}]", KV_UNKNOWN_KEY, "name"},
    {"entirely-else=1", KV_UNKNOWN_KEY, ""},
};

START_TEST(a_value_is_taken_or_refused_by_name)
{
    struct kv_config c;
    struct kv_error err = {0};
    *file = 0;
    char *argv[] = {"kvasird", "--set", (char *)pairs[_i].pair};
    ck_assert_msg(kv_config_load(&c, 3, argv, NULL, &err) == pairs[_i].want, "%s: %s", pairs[_i].pair, err.message);
    if (pairs[_i].want) {
        ck_assert(*err.where && *err.message);
        ck_assert_ptr_nonnull(strstr(err.hint, pairs[_i].hint));
    }
    kv_config_free(&c);
}
END_TEST

static const struct { const char *text; enum kv_status want; const char *where; } files[] = {
    {"{\"engine\":{\"thread\":2}}", KV_UNKNOWN_KEY, "engine.thread"},
    {"{\"engine\":{\"threads\":\"2\"}}", KV_BAD_ARGUMENT, "engine.threads"},
    {"{\"engine\":{\"threads\":2.0}}", KV_BAD_ARGUMENT, "engine.threads"},
    {"{\"engine\":2}", KV_UNKNOWN_KEY, "engine"},
    {"{\"engine\":{}}", KV_UNKNOWN_KEY, "engine"},
    {"{\"model\":5}", KV_BAD_ARGUMENT, "model"},
    {"[]", KV_BAD_JSON, ""},
    {"{", KV_BAD_JSON, ""},
    {"{\"http.tls.key\":\"k.pem\"}", KV_BAD_ARGUMENT, "http.tls"},
    {"{\"tiers\":{\"host\":{\"capacity_bytes\":2097152}}}", KV_OK, ""},
};

START_TEST(a_file_is_taken_or_refused_by_name)
{
    struct kv_config c;
    struct kv_error err = {0};
    write_file(files[_i].text);
    ck_assert_msg(load(&c, &err, NULL, NULL, NULL) == files[_i].want, "%s: %s", files[_i].text, err.message);
    if (files[_i].want && *files[_i].where) ck_assert_str_eq(err.where, files[_i].where);
    if (!files[_i].want) ck_assert_uint_eq(c.host_capacity, 2097152);
    kv_config_free(&c);
    unlink(file);
}
END_TEST

START_TEST(a_misspelt_flag_or_variable_is_refused_with_the_nearest)
{
    struct kv_config c;
    struct kv_error err = {0};
    char *argv[] = {"kvasird", "--lisen", "x"}, *env[] = {"KVASIR_LISTN=1", NULL};
    *file = 0;
    ck_assert_int_eq(kv_config_load(&c, 3, argv, NULL, &err), KV_UNKNOWN_KEY);
    ck_assert_str_eq(err.hint, "did you mean '--listen'?");
    kv_config_free(&c);
    ck_assert_int_eq(load(&c, &err, env, NULL, NULL), KV_UNKNOWN_KEY);
    ck_assert_str_eq(err.hint, "did you mean 'KVASIR_LISTEN'?");
    kv_config_free(&c);
}
END_TEST

/* The hint of a refusal is the setting's help, whose last words often say what to do: none is too long for it. */
START_TEST(hints_say_all_of_a_settings_help)
{
    static const char *const help[] = {
#define KV_SETTING(field, key, type, def, min, max, unit, reload, help) help,
#include "controller/config.def"
#undef KV_SETTING
    };
    struct kv_config c;
    *file = 0;
    ck_assert_int_eq(load(&c, NULL, NULL, NULL, NULL), KV_OK);
    for (int i = 0; i < KV_SETTINGS; i++) {
        struct kv_error err = {0};
        const char *key = kv_config_key((enum kv_setting_id)i);
        if (kv_config_set(&c, key, "none of these", KV_ORIGIN_FLAG, &err) == KV_OK) continue; /* text of any kind */
        ck_assert_str_eq(err.where, key);
        ck_assert_msg(!strncmp(err.hint, help[i], strlen(help[i])) && err.hint[strlen(err.hint) - 1] == ')', "%s: %s", key, err.hint);
    }
    kv_config_free(&c);
}
END_TEST

START_TEST(differences_are_seen_also_in_tokens_that_are_never_printed)
{
    struct kv_config a, b;
    char hash[65], text[200], *printed = NULL;
    size_t n;
    memset(hash, 'a', 64);
    hash[64] = 0;
    *file = 0;
    ck_assert_int_eq(load(&a, NULL, NULL, NULL, NULL), KV_OK);
    ck_assert_int_eq(load(&b, NULL, NULL, NULL, NULL), KV_OK);
    for (int i = 0; i < KV_SETTINGS; i++) ck_assert(!kv_config_differs(&a, &b, (enum kv_setting_id)i));
    snprintf(text, sizeof text, "[{\"name\":\"x\",\"sha256\":\"%s\",\"rights\":[\"viewer\"]}]", hash);
    ck_assert_int_eq(kv_config_set(&b, "auth.tokens", text, KV_ORIGIN_FLAG, NULL), KV_OK);
    ck_assert(kv_config_differs(&a, &b, KV_SET_auth_tokens) && kv_config_reloadable(KV_SET_auth_tokens) && !kv_config_reloadable(KV_SET_listen));
    FILE *f = open_memstream(&printed, &n);
    kv_config_print(&b, f);
    fclose(f);
    ck_assert_ptr_null(strstr(printed, hash));
    ck_assert_ptr_nonnull(strstr(printed, "1 tokens"));
    free(printed);
    kv_config_free(&a);
    kv_config_free(&b);
}
END_TEST

Suite *suite_config(void)
{
    Suite *s = suite_create("config");
    TCase *t = tcase_create("config");
    tcase_add_test(t, the_nearer_origin_wins);
    tcase_add_loop_test(t, a_value_is_taken_or_refused_by_name, 0, (int)(sizeof pairs / sizeof *pairs));
    tcase_add_loop_test(t, a_file_is_taken_or_refused_by_name, 0, (int)(sizeof files / sizeof *files));
    tcase_add_test(t, a_misspelt_flag_or_variable_is_refused_with_the_nearest);
    tcase_add_test(t, hints_say_all_of_a_settings_help);
    tcase_add_test(t, differences_are_seen_also_in_tokens_that_are_never_printed);
    suite_add_tcase(s, t);
    return s;
}
