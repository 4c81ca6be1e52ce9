/* cmd_console.c — `kvasir console`: terminal, network and app in one loop; --once prints a picture and ends. */
#include "console/output.h"
#include "console/terminal.h"
#include "console/wire.h"

#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { DRAW_MS = 500, WAIT_MS = 200 };

static int64_t clock_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void grant(void *ctx, struct kv_wish wish)
{
    kv_wire_grant(ctx, wish);
}

static void loop(struct kv_app *a, struct kv_wire *w)
{
    struct kv_grid g = {0};
    int64_t drawn = 0;
    while (!a->quit && !kv_terminal_stopped()) {
        a->now_ms = clock_ms();
        kv_wire_step(w, WAIT_MS);
        a->now_ms = clock_ms();
        bool touched = kv_terminal_keys(a, grant, w);
        if (!touched && a->now_ms - drawn < DRAW_MS && !kv_terminal_resized(&g)) continue;
        if (!kv_terminal_draw(a, &g)) break;
        drawn = a->now_ms;
    }
    kv_grid_free(&g);
}

static void print_picture(const struct kv_cli *cli, enum kv_view view, json_t *status, json_t *rollouts, json_t *list)
{
    struct kv_app a;
    struct kv_grid g;
    kv_app_init(&a);
    a.now_ms = clock_ms();
    snprintf(a.context, sizeof a.context, "%s", cli->context ? cli->context : "");
    kv_app_event(&a, "status", status);
    kv_app_list(&a, KV_VIEW_ROLLOUTS, json_incref(rollouts));
    if (list) kv_app_list(&a, view, json_incref(list));
    kv_app_show(&a, view);
    if (kv_grid_init(&g, 24, 100, strcmp(nl_langinfo(CODESET), "UTF-8") != 0)) {
        kv_app_draw(&a, &g);
        for (int r = 0; r < g.rows - 1; r++) {
            char text[2048];
            kv_grid_row_text(&g, r, text, sizeof text);
            puts(text);
        }
    }
    kv_grid_free(&g);
    kv_app_free(&a);
}

static int once(const struct kv_cli *cli, enum kv_view view)
{
    json_t *status = NULL, *rollouts = NULL, *list = NULL;
    int rc = kv_client_do(cli, "GET", "/api/v1/status", NULL, NULL, &status);
    if (!rc) rc = kv_client_do(cli, "GET", "/api/v1/rollouts", NULL, NULL, &rollouts);
    if (!rc && kv_view_route(view)) rc = kv_client_do(cli, "GET", kv_view_route(view), NULL, NULL, &list);
    if (!rc && cli->json) {
        json_t *all = json_pack("{s:O, s:O}", "status", status, "rollouts", json_object_get(rollouts, "rollouts"));
        if (list) json_object_update(all, list);
        kv_output_json(all, JSON_INDENT(2));
        putchar('\n');
        json_decref(all);
    } else if (!rc) print_picture(cli, view, status, rollouts, list);
    json_decref(status);
    json_decref(rollouts);
    json_decref(list);
    return rc;
}

static bool view_named(const char *name, enum kv_view *out)
{
    for (int v = 0; v < KV_VIEWS; v++)
        if (!strcmp(name, kv_view_name((enum kv_view)v))) return *out = (enum kv_view)v, true;
    fprintf(stderr, "kvasir: no view is named '%s'; they are", name);
    for (int v = 0; v < KV_VIEWS; v++) fprintf(stderr, " %s", kv_view_name((enum kv_view)v));
    fputc('\n', stderr);
    return false;
}

static int run(const struct kv_cli *cli, bool readonly, enum kv_view view, enum kv_look look, bool mouse)
{
    struct kv_app *a = calloc(1, sizeof *a);
    struct kv_wire *w = calloc(1, sizeof *w);
    int status = KV_EXIT_REFUSED;
    if (!a || !w) goto done;
    kv_app_init(a);
    a->readonly = readonly;
    kv_app_show(a, view);
    a->ascii = strcmp(nl_langinfo(CODESET), "UTF-8") != 0;
    const char *term = getenv("TERM");
    a->block = term && !strcmp(term, "linux"); /* the kernel's own font has no braille */
    a->now_ms = clock_ms();
    w->edit = kv_terminal_edit;
    status = kv_wire_open(w, a, cli);
    if (!status) {
        kv_terminal_open(look, mouse);
        loop(a, w);
        kv_terminal_close();
    }
    kv_wire_close(w);
    kv_app_free(a);
done:
    free(a);
    free(w);
    return status;
}

int kv_cmd_console(int argc, char **argv, const struct kv_cli *cli)
{
    bool readonly = false, just_once = false, mouse = false;
    enum kv_look look = KV_LOOK_AUTO;
    enum kv_view view = KV_VIEW_ROLLOUT;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--readonly")) readonly = true;
        else if (!strcmp(argv[i], "--once")) just_once = true;
        else if (!strcmp(argv[i], "--view") && i + 1 < argc) {
            if (!view_named(argv[++i], &view)) return KV_EXIT_USAGE;
        } else if (!strcmp(argv[i], "--mouse")) mouse = true;
        else if (!strcmp(argv[i], "--light")) look = KV_LOOK_LIGHT;
        else if (!strcmp(argv[i], "--dark")) look = KV_LOOK_DARK;
        else return fprintf(stderr, "usage: kvasir console [--readonly] [--once] [--view NAME] [--light | --dark] [--mouse]\n"), KV_EXIT_USAGE;
    }
    setlocale(LC_ALL, "");
    if (just_once) return once(cli, view);
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) return fprintf(stderr, "kvasir: the console needs a terminal; use console --once for a picture of it\n"), KV_EXIT_REFUSED;
    return run(cli, readonly, view, look, mouse);
}
