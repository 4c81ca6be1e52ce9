/* test_extents.c — the store of extents where the process lacks what it needs; objects over HTTP: tests/integration/test_remote.py. */
#include "controller/extents.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

Suite *suite_extents(void);

static const char name[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

START_TEST(an_object_outlives_want_of_descriptors)
{
    char folder[] = "/tmp/kvasir-extents-XXXXXX", path[200];
    struct kv_extents *e;
    struct kv_extents_stats s;
    struct kv_error err = {0};
    struct rlimit whole, few;
    uint64_t n = 0;
    int fd;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(kv_extents_open(&(struct kv_extents_config){.path = folder, .capacity_bytes = 1 << 20, .object_bytes = 4096}, &e, &err), KV_OK);
    ck_assert_int_eq(kv_extents_put(e, name, "rows", 4, &err), KV_OK);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &whole), 0);
    few = whole;
    few.rlim_cur = 0;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    enum kv_status without = kv_extents_get(e, name, &fd, &n, &err);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &whole), 0);
    ck_assert_int_eq(without, KV_IO_ERROR);
    ck_assert_int_eq(kv_extents_get(e, name, &fd, &n, &err), KV_OK);
    ck_assert_uint_eq(n, 4);
    close(fd);
    /* One that somebody took away is none. */
    snprintf(path, sizeof path, "%s/%s", folder, name);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(kv_extents_get(e, name, &fd, &n, &err), KV_NOT_FOUND);
    kv_extents_stats(e, &s);
    ck_assert_uint_eq(s.objects, 0);
    kv_extents_close(e);
    rmdir(folder);
}
END_TEST

Suite *suite_extents(void)
{
    Suite *s = suite_create("extents");
    TCase *t = tcase_create("extents");
    tcase_add_test(t, an_object_outlives_want_of_descriptors);
    suite_add_tcase(s, t);
    return s;
}
