/* child_process.c — see child_process.h. */
#include "controller/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

extern char **environ;

pid_t kv_child_start(const char *program, const char *option, const char *value, int *in, int *out)
{
    int give[2], answer[2];
    if (pipe2(give, O_CLOEXEC)) return -1;
    if (pipe2(answer, O_CLOEXEC)) {
        int why = errno;
        close(give[0]), close(give[1]);
        errno = why;
        return -1;
    }
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, give[0], 0);
    posix_spawn_file_actions_adddup2(&actions, answer[1], 1);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    char *argv[] = {(char *)program, (char *)option, (char *)value, NULL};
    pid_t pid = -1;
    int rc = posix_spawn(&pid, program, &actions, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    close(give[0]), close(answer[1]);
    *in = give[1];
    *out = answer[0];
    if (!rc) return pid;
    close(*in), close(*out);
    errno = rc;
    return -1;
}
