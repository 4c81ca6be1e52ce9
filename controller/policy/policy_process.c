/* policy_process.c — see policy_process.h. The verdict is one line: reason code, tab, where, tab, message, tab, hint. */
#include "controller/policy/policy_process.h"

#include "controller/child_process.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CPU_SECONDS = 10, WALL_SECONDS = 60, MEMORY_MIB = 256 };

static bool put_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

static size_t take_all(int fd, char *p, size_t cap)
{
    size_t n = 0;
    for (ssize_t k; n < cap; n += (size_t)k) {
        k = read(fd, p + n, cap - n);
        if (k < 0 && errno == EINTR) k = 0;
        else if (k <= 0) break;
    }
    return n;
}

static enum kv_status verdict(char *line, int status, struct kv_error *err)
{
    char *part[4] = {line}, *at = line;
    for (int i = 1; i < 4; i++) {
        at = at ? strchr(at, '\t') : NULL;
        if (at) *at++ = 0;
        part[i] = at ? at : "";
    }
    enum kv_status st = *line ? kv_status_from_name(part[0]) : KV_STATUS_COUNT;
    if (st == KV_OK && WIFEXITED(status) && WEXITSTATUS(status) == 0) return KV_OK;
    if (st == KV_OK || st == KV_STATUS_COUNT)
        return kv_fail(err, KV_POLICY_BUDGET, "policy", "the process that checked it ended without a verdict (%s %d)", WIFSIGNALED(status) ? "signal" : "status",
                       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    kv_fail(err, st, part[1], "%s", part[2]);
    if (*part[3]) kv_hint(err, "%s", part[3]);
    return st;
}

enum kv_status kv_policy_check_apart(const char *program, enum kv_policy_kind kind, const char *source, size_t n, struct kv_error *err)
{
    int in, out, status = 0;
    char line[2048];
    pid_t pid = kv_child_start(program, "--check-policy", kv_policy_kind_name(kind), &in, &out);
    if (pid < 0) return kv_fail(err, KV_IO_ERROR, program, "the check cannot be started: %s", strerror(errno));
    put_all(in, source, n);
    close(in);
    line[take_all(out, line, sizeof line - 1)] = 0;
    close(out);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return verdict(line, status, err);
}

int kv_policy_check_main(const char *kind_name)
{
    enum kv_policy_kind kind;
    struct kv_error err = {0};
    struct kv_script *p = NULL;
    char *source = malloc(KV_POLICY_SOURCE_BYTES + 2);
    const struct rlimit cpu = {CPU_SECONDS, CPU_SECONDS}, memory = {(rlim_t)MEMORY_MIB << 20, (rlim_t)MEMORY_MIB << 20}, nothing = {0, 0};
    if (!source || !kv_policy_kind_from_name(kind_name, &kind)) return EXIT_FAILURE;
    alarm(WALL_SECONDS);
    setrlimit(RLIMIT_CPU, &cpu);
    setrlimit(RLIMIT_FSIZE, &nothing);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    setrlimit(RLIMIT_AS, &memory);
#else
    (void)memory;
#endif
    size_t n = take_all(0, source, KV_POLICY_SOURCE_BYTES + 1);
    enum kv_status st = kv_policy_load(kind, source, n, &p, &err);
    if (st == KV_OK) st = kv_policy_check(p, &err);
    for (char *c = err.message; *c; c++)
        if (*c == '\t' || *c == '\n') *c = ' ';
    printf("%s\t%s\t%s\t%s", kv_status_name(st), err.where, err.message, err.hint);
    kv_policy_free(p);
    free(source);
    return fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}
