/* progress_line.h — one line on stderr that says how far a command is: on a terminal only, from its first second on, gone at its end. */
#ifndef KV_PROGRESS_LINE_H
#define KV_PROGRESS_LINE_H

#include "console/commands/cli.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

struct kv_progress_line {
    const char *what, *unit; /* set by the caller, the rest zero */
    int64_t began_ms, shown_ms;
    const struct kv_cli *cli; /* of a line about a server's task */
    pthread_t thread;
    _Atomic bool watching;
};

void kv_progress_line_told(void *line, uint64_t done, uint64_t total); /* a kv_told; any number of times a second */
void kv_progress_line_end(struct kv_progress_line *l);

/* While a call to the server waits for its answer: asks, from a thread, how far tasks of the kind `what` are. Ended by kv_progress_line_end. */
void kv_progress_line_watch(struct kv_progress_line *l, const struct kv_cli *cli);

/* "[#####.....]  50 %  10 of 20 requests"; total 0: not known. Shared with the terminal console. */
void kv_progress_text(double done, double total, const char *unit, int width, char *out, size_t cap);

#endif
