/* What kvasir prints and writes: no control character passes in JSON, and a file is there whole or as it was. */
#include "console/output.h"
#include "console/tables.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64], path[128];

static void setup(void)
{
    snprintf(folder, sizeof folder, "/tmp/kvasir-output-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
}

static void teardown(void)
{
    remove(path);
    ck_assert_int_eq(rmdir(folder), 0); /* no temporary file stayed */
}

static void put(const char *name, const char *text)
{
    FILE *f = fopen(name, "wb");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

static void holds(const char *name, const char *text)
{
    char got[256] = "";
    FILE *f = fopen(name, "rb");
    ck_assert_ptr_nonnull(f);
    got[fread(got, 1, sizeof got - 1, f)] = 0;
    fclose(f);
    ck_assert_str_eq(got, text);
}

START_TEST(json_holds_no_control_character)
{
    /* ESC, DEL, the ends of C1, their neighbours U+007E and U+00A0, other letters with the same first byte or more of them, the lead byte's own end */
    json_t *v = json_string("\x1b[m\x7f~\xc2\x80\xc2\x9b\xc2\x9f\xc2\xa0\xc2\xbf\xc3\xa9\xe2\x80\x9c\xf0\x9f\x98\x80\xc2\xb5\xc2\x85");
    ck_assert_ptr_nonnull(v);
    ck_assert_ptr_nonnull(freopen(path, "wb", stdout));
    kv_output_json(v, JSON_ENCODE_ANY);
    fclose(stdout);
    holds(path, "\"\\u001B[m\\u007F~\\u0080\\u009B\\u009F\xc2\xa0\xc2\xbf\xc3\xa9\xe2\x80\x9c\xf0\x9f\x98\x80\xc2\xb5\\u0085\"");
    json_t *back = json_load_file(path, JSON_DECODE_ANY, NULL);
    ck_assert(json_equal(v, back));
    json_decref(v);
    json_decref(back);
}
END_TEST

START_TEST(text_turns_no_terminal)
{
    char text[] = "a\033[2J\302\233m\342\200\256b\342\201\246c\342\201\251\177", plain[] = "\303\251 \342\200\251 \342\201\252 \342\200\257"; /* é, and neighbours of those */
    kv_plain_text(text);
    ck_assert_str_eq(text, "a?[2J??m???b???c????");
    kv_plain_text(plain);
    ck_assert_str_eq(plain, "\303\251 \342\200\251 \342\201\252 \342\200\257");
}
END_TEST

START_TEST(a_file_is_replaced_whole_or_stays)
{
    struct kv_output o;
    struct stat s;
    put(path, "before");
    ck_assert_int_eq(chmod(path, 0640), 0);
    ck_assert(kv_output_open(&o, path));
    fputs("half", o.f);
    fflush(o.f);
    holds(path, "before");
    ck_assert(kv_output_close(&o, false));
    holds(path, "before");
    ck_assert(kv_output_open(&o, path));
    fputs("after", o.f);
    ck_assert(kv_output_close(&o, true));
    holds(path, "after");
    ck_assert_int_eq(stat(path, &s), 0);
    ck_assert_int_eq(s.st_mode & 0777, 0640);
    remove(path);
    ck_assert(kv_output_open(&o, path));
    ck_assert(kv_output_close(&o, false));
    ck_assert_int_ne(access(path, F_OK), 0);
}
END_TEST

START_TEST(links_and_devices_stay_what_they_are)
{
    struct kv_output o;
    struct stat s;
    char link[160], nowhere[160];
    snprintf(link, sizeof link, "%s/link", folder);
    snprintf(nowhere, sizeof nowhere, "%s/no/file", folder);
    put(path, "before");
    ck_assert_int_eq(symlink("file", link), 0);
    ck_assert(kv_output_open(&o, link));
    fputs("after", o.f);
    ck_assert(kv_output_close(&o, true));
    ck_assert_int_eq(lstat(link, &s), 0);
    ck_assert(S_ISLNK(s.st_mode));
    holds(path, "after");
    remove(link);
    ck_assert(kv_output_open(&o, "/dev/full"));
    fputs("more than fits", o.f);
    ck_assert(!kv_output_close(&o, true));
    ck_assert_int_eq(stat("/dev/full", &s), 0);
    ck_assert(S_ISCHR(s.st_mode));
    ck_assert(!kv_output_open(&o, nowhere));
}
END_TEST

Suite *suite_output(void);
Suite *suite_output(void)
{
    Suite *s = suite_create("console/output");
    TCase *t = tcase_create("output");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, json_holds_no_control_character);
    tcase_add_test(t, text_turns_no_terminal);
    tcase_add_test(t, a_file_is_replaced_whole_or_stays);
    tcase_add_test(t, links_and_devices_stay_what_they_are);
    suite_add_tcase(s, t);
    return s;
}
