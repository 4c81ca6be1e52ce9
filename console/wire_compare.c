/* wire_compare.c — `:compare PROMPT`: kvasir compare in a process of its own, since two generations take longer than a key may. */
#include "console/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_BYTES = 4 << 20 };

void kv_wire_compare(struct kv_wire *w, const char *prompt)
{
    int pipe_fd[2];
    kv_wire_end_compare(w);
    if (pipe2(pipe_fd, O_CLOEXEC)) {
        kv_app_say(w->app, KV_STYLE_BAD, "no pipe: %s", strerror(errno));
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, STDIN_FILENO);
        dup2(pipe_fd[1], STDOUT_FILENO);
        dup2(pipe_fd[1], STDERR_FILENO);
        setenv("KVASIR_TOKEN", w->token, 1); /* not among the arguments, which others can read */
        execl("/proc/self/exe", "kvasir", "--url", w->url, "--json", "compare", "--", prompt, (char *)NULL);
        _exit(127);
    }
    close(pipe_fd[1]);
    if (pid < 0) {
        close(pipe_fd[0]);
        kv_app_say(w->app, KV_STYLE_BAD, "no process: %s", strerror(errno));
        return;
    }
    fcntl(pipe_fd[0], F_SETFL, O_NONBLOCK);
    w->compare.fd = pipe_fd[0];
    w->compare.pid = pid;
    kv_app_push(w->app, KV_PAGE_COMPARE, "compare", "compare", NULL);
    kv_app_await(w->app, "both arms generate");
}

void kv_wire_take_compare(struct kv_wire *w)
{
    char piece[4096];
    ssize_t n;
    while ((n = read(w->compare.fd, piece, sizeof piece)) > 0) {
        char *grown = w->compare.n + (size_t)n < MAX_BYTES ? realloc(w->compare.data, w->compare.n + (size_t)n + 1) : NULL;
        if (!grown) break;
        memcpy(grown + w->compare.n, piece, (size_t)n);
        w->compare.data = grown;
        w->compare.n += (size_t)n;
        grown[w->compare.n] = 0;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    json_t *v = json_loads(w->compare.data ? w->compare.data : "", 0, NULL);
    w->app->pending[0] = 0;
    if (json_is_object(v)) kv_app_fill(w->app, "compare", v);
    else {
        if (kv_app_page(w->app) && kv_app_page(w->app)->kind == KV_PAGE_COMPARE) kv_app_pop(w->app);
        kv_app_say(w->app, KV_STYLE_BAD, "%.400s", w->compare.data ? w->compare.data : "compare ended without an answer");
    }
    json_decref(v);
    kv_wire_end_compare(w);
}

void kv_wire_end_compare(struct kv_wire *w)
{
    if (!w->compare.pid) return;
    kill((pid_t)w->compare.pid, SIGTERM);
    waitpid((pid_t)w->compare.pid, NULL, 0);
    close(w->compare.fd);
    free(w->compare.data);
    memset(&w->compare, 0, sizeof w->compare);
}
