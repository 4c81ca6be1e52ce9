/* progress_line.c — see progress_line.h. */
#include "console/progress_line.h"

#include "console/client.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_MS = 1000, EVERY_MS = 100, ASK_MS = 300, BAR = 24 };

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void kv_progress_text(double done, double total, const char *unit, int width, char *out, size_t cap)
{
    char bar[64];
    double share = total > 0 ? done / total > 1 ? 1 : done / total : 0;
    int full = (int)(share * width);
    if (width > (int)sizeof bar - 1) width = (int)sizeof bar - 1;
    for (int i = 0; i < width; i++) bar[i] = i < full ? '#' : '.';
    bar[width > 0 ? width : 0] = 0;
    /* The load is counted in thousandths, which say nothing beside the percent. */
    if (total <= 0) snprintf(out, cap, "[%s]  %.0f %s", bar, done, unit);
    else if (!strcmp(unit, "permille")) snprintf(out, cap, "[%s] %3.0f %%", bar, 100 * share);
    else snprintf(out, cap, "[%s] %3.0f %%  %.0f of %.0f %s", bar, 100 * share, done, total, unit);
}

void kv_progress_line_told(void *line, uint64_t done, uint64_t total)
{
    struct kv_progress_line *l = line;
    int64_t now = now_ms();
    char text[160];
    if (!l->began_ms) l->began_ms = now;
    if (now - l->began_ms < FIRST_MS || now - l->shown_ms < EVERY_MS || !isatty(STDERR_FILENO)) return;
    l->shown_ms = now;
    kv_progress_text((double)done, (double)total, l->unit, BAR, text, sizeof text);
    fprintf(stderr, "\r%.40s %s  %lld s\033[K\r", l->what, text, (long long)(now - l->began_ms) / 1000);
    fflush(stderr);
}

static void *watch(void *arg)
{
    struct kv_progress_line *l = arg;
    const struct timespec pause = {0, ASK_MS * 1000000};
    l->began_ms = now_ms();
    while (l->watching) {
        nanosleep(&pause, NULL);
        struct kv_reply reply = {0};
        size_t i;
        json_t *task;
        if (now_ms() - l->began_ms < FIRST_MS || kv_client_call(l->cli, "GET", "/api/v1/progress", NULL, NULL, &reply) != KV_EXIT_DONE) {
            json_decref(reply.body);
            continue;
        }
        json_array_foreach(json_object_get(reply.body, "tasks"), i, task) {
            const char *kind = json_string_value(json_object_get(task, "kind")), *unit = json_string_value(json_object_get(task, "unit"));
            if (!kind || !unit || strcmp(kind, l->what)) continue;
            l->unit = unit;
            kv_progress_line_told(l, (uint64_t)json_number_value(json_object_get(task, "done")), (uint64_t)json_number_value(json_object_get(task, "total")));
        }
        l->unit = "";
        json_decref(reply.body);
    }
    return NULL;
}

void kv_progress_line_watch(struct kv_progress_line *l, const struct kv_cli *cli)
{
    if (cli->json || !isatty(STDERR_FILENO)) return;
    curl_global_init(CURL_GLOBAL_DEFAULT); /* before a second thread uses it */
    l->cli = cli;
    l->watching = true;
    if (pthread_create(&l->thread, NULL, watch, l)) l->watching = false;
}

void kv_progress_line_end(struct kv_progress_line *l)
{
    if (atomic_exchange(&l->watching, false)) pthread_join(l->thread, NULL);
    if (l->shown_ms) fputs("\r\033[K", stderr), fflush(stderr);
    l->shown_ms = 0;
    l->began_ms = 0;
}
