/* test_samples.c — the ring of a rollout's samples: order, bound, what survives a reopening, what is refused; held-out prompts from files. */
#include "controller/release/heldout.h"
#include "controller/release/samples.h"
#include "tests/unit/service/engine_runs.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

Suite *suite_samples(void);

static char dir[64];

static void setup(void)
{
    strcpy(dir, "/tmp/kvasir-samples-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void teardown(void)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}

static void write_samples(uint64_t rollout, uint64_t from, uint64_t n)
{
    struct kv_samples *s;
    ck_assert_int_eq(kv_samples_open(dir, rollout, &s, NULL), KV_OK);
    for (uint64_t i = from; i < from + n; i++) {
        kv_samples_add(s, &(struct kv_sample_record){.request = i, .a = (double)i});
        if ((i - from) % 300 == 299) kv_samples_flush(s);
    }
    kv_samples_close(s);
}

static size_t read_samples(uint64_t rollout, uint64_t first, uint64_t expect_written)
{
    struct kv_sample_record *r;
    size_t n;
    uint64_t written;
    ck_assert_int_eq(kv_samples_read(dir, rollout, &r, &n, &written, NULL), KV_OK);
    ck_assert_uint_eq(written, expect_written);
    for (size_t i = 0; i < n; i++) ck_assert_uint_eq(r[i].request, first + i);
    free(r);
    return n;
}

START_TEST(a_file_goes_on_after_a_restart)
{
    write_samples(1, 0, 1000);
    write_samples(1, 1000, 7);
    ck_assert_uint_eq(read_samples(1, 0, 1007), 1007);
}
END_TEST

START_TEST(the_oldest_give_way)
{
    write_samples(1, 0, KV_SAMPLES_KEPT - 3);
    write_samples(1, KV_SAMPLES_KEPT - 3, 1000); /* across the end of the ring, in blocks that do not end there */
    ck_assert_uint_eq(read_samples(1, 997, KV_SAMPLES_KEPT + 997), KV_SAMPLES_KEPT);
}
END_TEST

START_TEST(so_do_the_files_of_the_oldest_rollouts)
{
    struct kv_sample_record *r;
    size_t n;
    uint64_t written;
    for (uint64_t id = 1; id <= KV_SAMPLES_FILES + 3; id++) write_samples(id, 0, 2);
    for (uint64_t id = 1; id <= 3; id++) ck_assert_int_eq(kv_samples_read(dir, id, &r, &n, &written, NULL), KV_NOT_FOUND);
    for (uint64_t id = 4; id <= KV_SAMPLES_FILES + 3; id++) ck_assert_uint_eq(read_samples(id, 0, 2), 2);
}
END_TEST

START_TEST(a_file_that_is_not_one_is_refused)
{
    struct kv_sample_record *r;
    size_t n;
    uint64_t written;
    char path[96];
    write_samples(1, 0, 300);
    snprintf(path, sizeof path, "%s/samples/r_000001", dir);
    ck_assert_int_eq(truncate(path, 64 * 200), 0);
    ck_assert_int_eq(kv_samples_read(dir, 1, &r, &n, &written, NULL), KV_STORE_CORRUPT);
    FILE *f = fopen(path, "r+");
    fputs("something else", f);
    fclose(f);
    ck_assert_int_eq(kv_samples_read(dir, 1, &r, &n, &written, NULL), KV_STORE_CORRUPT);
    write_samples(1, 0, 5); /* written anew */
    ck_assert_uint_eq(read_samples(1, 0, 5), 5);
}
END_TEST

START_TEST(what_could_not_be_written_is_counted)
{
    struct kv_samples *s;
    struct rlimit plenty, few;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &plenty), 0);
    few = (struct rlimit){64 * 11, plenty.rlim_max}; /* the header and ten records */
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(kv_samples_open(dir, 1, &s, NULL), KV_OK);
    setrlimit(RLIMIT_FSIZE, &few); /* Check's own notes are files too: nothing is asserted meanwhile */
    for (uint64_t i = 0; i < 10; i++) kv_samples_add(s, &(struct kv_sample_record){.request = i});
    kv_samples_flush(s);
    uint64_t before = kv_samples_lost(s);
    for (uint64_t i = 0; i < 5; i++) kv_samples_add(s, &(struct kv_sample_record){.request = 99});
    kv_samples_flush(s);
    setrlimit(RLIMIT_FSIZE, &plenty);
    ck_assert_uint_eq(before, 0);
    ck_assert_uint_eq(kv_samples_lost(s), 5);
    kv_samples_close(s);
    ck_assert_uint_eq(read_samples(1, 0, 10), 10); /* and the file says no more than it holds */
}
END_TEST

/* ---------------------------------------------------------------- held-out prompts */

static enum kv_status load(const char *text, struct kv_heldout *h, struct kv_error *err)
{
    char path[96];
    snprintf(path, sizeof path, "%s/prompts.jsonl", dir);
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
    memset(err, 0, sizeof *err);
    return kv_heldout_load(path, demo_model(), kv_model_info(demo_model())->context_length, h, err);
}

START_TEST(prompts_are_read_line_by_line)
{
    struct kv_heldout h;
    struct kv_error err;
    ck_assert_msg(load("{\"prompt\":\"The red door\",\"answer\":\" is open\"}\n\n{\"prompt\":\"a\",\"answer\":\"b\",\"score\":\"exact\"}\n", &h, &err) == KV_OK, "%s", err.message);
    ck_assert_int_eq(h.n, 2);
    ck_assert(!h.item[0].exact && h.item[1].exact && h.item[0].n_answer > 0);
    kv_heldout_free(&h);
    ck_assert_int_eq(kv_heldout_load(NULL, demo_model(), 4096, &h, &err), KV_OK);
    ck_assert_int_ge(h.n, 100);
    kv_heldout_free(&h);
    ck_assert_int_eq(kv_heldout_load("/nonexistent/prompts", demo_model(), 4096, &h, &err), KV_FILE_UNREADABLE);
}
END_TEST

static const struct {
    const char *text;
    enum kv_status status;
    const char *says;
} wrong[] = {{"{\"prompt\":\"a\",\"answer\":\"b\"}\n{\"prompt\":\"a\"}\n", KV_BAD_ARGUMENT, "line 2"}, {"nonsense\n", KV_BAD_JSON, "line 1"}, {"[]\n", KV_BAD_ARGUMENT, "object"},
             {"{\"prompt\":\"a\",\"answer\":\"b\",\"weight\":\"1\"}\n", KV_BAD_ARGUMENT, "other than"}, {"{\"prompt\":\"a\",\"answer\":\"b\",\"score\":\"rouge\"}\n", KV_BAD_ARGUMENT, "score"},
             {"{\"prompt\":\"\",\"answer\":\"b\"}\n", KV_BAD_ARGUMENT, "empty"}, {"\n", KV_BAD_ARGUMENT, "no prompt"}};

START_TEST(wrong_lines_are_named)
{
    struct kv_heldout h;
    struct kv_error err;
    ck_assert_int_eq(load(wrong[_i].text, &h, &err), wrong[_i].status);
    ck_assert_msg(strstr(err.message, wrong[_i].says) != NULL, "%s", err.message);
}
END_TEST

Suite *suite_samples(void)
{
    Suite *s = suite_create("samples");
    TCase *t = tcase_create("samples");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_file_goes_on_after_a_restart);
    tcase_add_test(t, the_oldest_give_way);
    tcase_add_test(t, so_do_the_files_of_the_oldest_rollouts);
    tcase_add_test(t, a_file_that_is_not_one_is_refused);
    tcase_add_test(t, what_could_not_be_written_is_counted);
    tcase_add_test(t, prompts_are_read_line_by_line);
    tcase_add_loop_test(t, wrong_lines_are_named, 0, (int)(sizeof wrong / sizeof *wrong));
    suite_add_tcase(s, t);
    return s;
}
