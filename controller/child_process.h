/* child_process.h — starts a program with pipes to and from it, for work that must not take the daemon along. */
#ifndef KV_CHILD_PROCESS_H
#define KV_CHILD_PROCESS_H

#include <sys/types.h>

/* `program option value`, with no signal blocked and in a group of its own, so that kill(-pid, …) reaches whoever it starts. *in: its standard input,
 * *out: its standard output; the caller closes both and waits for it. -1 and errno when it cannot be started. Any thread. */
pid_t kv_child_start(const char *program, const char *option, const char *value, int *in, int *out);

#endif
