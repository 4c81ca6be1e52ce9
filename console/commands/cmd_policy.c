/* cmd_policy.c — kvasir policy: check a file offline with its tests; everything else is policy_remote.c's. */
#include "console/output.h"
#include "console/commands/policy_remote.h"
#include "controller/policy/policy_host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NULL, with the reason in err. At most one byte more than a policy may have is read. */
static char *read_file(const char *path, size_t *n, struct kv_error *err)
{
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(KV_POLICY_SOURCE_BYTES + 2) : NULL;
    if (text) *n = fread(text, 1, KV_POLICY_SOURCE_BYTES + 1, f);
    bool bad = !text || ferror(f);
    if (bad) {
        kv_fail(err, KV_FILE_UNREADABLE, path, "%s cannot be read: %s", path, strerror(errno));
        free(text);
    }
    if (f) fclose(f);
    if (bad) return NULL;
    text[*n] = 0;
    return text;
}

/* DIR/test/NAME.lua beside DIR/NAME.lua. */
static bool test_path(const char *file, char *out, size_t cap)
{
    const char *slash = strrchr(file, '/');
    int dir = slash ? (int)(slash - file) + 1 : 0;
    return snprintf(out, cap, "%.*stest/%s", dir, file, file + dir) < (int)cap;
}

static enum kv_status run_tests(struct kv_script *p, const char *file, int32_t *passed, int32_t *failed, struct kv_error *err)
{
    char path[1024];
    size_t n;
    struct kv_error absent;
    char *source = test_path(file, path, sizeof path) ? read_file(path, &n, &absent) : NULL;
    *passed = *failed = 0;
    if (!source) return KV_OK; /* a policy need not have tests */
    enum kv_status st = kv_policy_test(p, source, n, passed, failed, err);
    free(source);
    return st;
}

static int refused(const struct kv_error *err, bool json)
{
    if (json) {
        json_t *o = json_pack("{s:b, s:{s:s, s:s, s:s, s:s}}", "ok", 0, "error", "code", kv_status_name(err->status), "message", err->message, "param", err->where, "hint", err->hint);
        kv_output_json(o, JSON_INDENT(1));
        putchar('\n');
        json_decref(o);
    } else {
        fprintf(stderr, "kvasir policy check: %s (%s)%s%s\n", err->message, kv_status_name(err->status), err->hint[0] ? "; " : "", err->hint);
    }
    return KV_EXIT_REFUSED;
}

static int check(const char *file, enum kv_policy_kind kind, bool json)
{
    struct kv_error err = {0};
    struct kv_script *p = NULL;
    size_t n = 0;
    int32_t passed = 0, failed = 0;
    char *source = read_file(file, &n, &err);
    enum kv_status st = source ? kv_policy_load(kind, source, n, &p, &err) : err.status;
    if (st == KV_OK) st = kv_policy_check(p, &err);
    if (st == KV_OK) st = run_tests(p, file, &passed, &failed, &err);
    int rc = KV_EXIT_DONE;
    if (st != KV_OK) {
        rc = refused(&err, json);
    } else if (json) {
        json_t *o = json_pack("{s:b, s:s, s:s, s:s, s:{s:i, s:i}}", "ok", 1, "kind", kv_policy_kind_name(kv_policy_kind(p)), "name", kv_policy_name(p), "version",
                              kv_policy_version(p), "tests", "passed", passed, "failed", failed);
        kv_output_json(o, JSON_INDENT(1));
        putchar('\n');
        json_decref(o);
    } else {
        printf("%s: %s policy %s, version %.12s; %d tests passed\n", file, kv_policy_kind_name(kv_policy_kind(p)), kv_policy_name(p), kv_policy_version(p), (int)passed);
    }
    kv_policy_free(p);
    free(source);
    return rc;
}

int kv_cmd_policy(int argc, char **argv, const struct kv_cli *cli)
{
    enum kv_policy_kind kind = KV_POLICY_KINDS;
    if (argc >= 3 && !strcmp(argv[1], "check")) {
        bool kinds = argc == 5 && !strcmp(argv[3], "--kind") && kv_policy_kind_from_name(argv[4], &kind);
        if (argc == 3 || kinds) return check(argv[2], kind, cli->json);
    }
    int status = kv_policy_remote(argc, argv, cli);
    if (status == KV_EXIT_USAGE) fprintf(stderr, "usage: kvasir policy check FILE [--kind admission|fallback|release]\n%s", kv_policy_remote_usage);
    return status;
}
