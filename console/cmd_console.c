/* cmd_console.c — `kvasir console`: the terminal, the event stream and the calls the console asks for, in one loop. */
#include "console/app.h"
#include "console/client.h"

#include <langinfo.h>
#include <locale.h>
#include <ncurses.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CALLS = 16, MAX_EVENT_BYTES = 4 << 20, DRAW_MS = 500, RETRY_MS = 1000, REFRESH_MS = 3000 };

enum purpose { FOR_EVENTS, FOR_LIST, FOR_OPEN, FOR_VERB };

struct call {
    CURL *h;
    struct curl_slist *headers;
    enum purpose purpose;
    enum kv_view view;
    const struct kv_verb *verb;
    char *data, *body;
    size_t n;
};

struct terminal {
    struct kv_app app;
    CURLM *multi;
    struct call call[MAX_CALLS];
    char url[256], token[256], last_id[64], event[64];
    int64_t retry_ms, refreshed_ms;
    json_t *event_data;
};

static int64_t clock_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---------------------------------------------------------------- network */

static size_t receive(char *p, size_t size, size_t count, void *ctx)
{
    struct call *c = ctx;
    size_t n = size * count;
    if (c->n + n > MAX_EVENT_BYTES) return 0;
    char *grown = realloc(c->data, c->n + n + 1);
    if (!grown) return 0;
    memcpy(grown + c->n, p, n);
    c->data = grown;
    c->n += n;
    grown[c->n] = 0;
    return n;
}

static struct call *start(struct terminal *t, enum purpose purpose, const char *method, const char *path, json_t *body, const char *if_match)
{
    struct call *c = NULL;
    for (int i = 0; i < MAX_CALLS && !c; i++)
        if (!t->call[i].h) c = &t->call[i];
    if (!c) return NULL;
    *c = (struct call){.h = curl_easy_init(), .purpose = purpose};
    if (!c->h) return NULL;
    kv_client_prepare(c->h, t->url, t->token, method, path, if_match, &c->headers);
    if (purpose == FOR_EVENTS && t->last_id[0]) {
        char header[96];
        snprintf(header, sizeof header, "Last-Event-ID: %s", t->last_id);
        c->headers = curl_slist_append(c->headers, header);
        curl_easy_setopt(c->h, CURLOPT_HTTPHEADER, c->headers);
    }
    if (purpose != FOR_EVENTS) curl_easy_setopt(c->h, CURLOPT_TIMEOUT, 30L);
    if (strcmp(method, "GET")) {
        c->body = body ? json_dumps(body, JSON_COMPACT) : NULL;
        curl_easy_setopt(c->h, CURLOPT_POSTFIELDS, c->body ? c->body : "{}");
    }
    curl_easy_setopt(c->h, CURLOPT_WRITEFUNCTION, receive);
    curl_easy_setopt(c->h, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(c->h, CURLOPT_PRIVATE, c);
    curl_multi_add_handle(t->multi, c->h);
    return c;
}

static void finish(struct terminal *t, struct call *c)
{
    curl_multi_remove_handle(t->multi, c->h);
    curl_easy_cleanup(c->h);
    curl_slist_free_all(c->headers);
    free(c->data);
    free(c->body);
    *c = (struct call){0};
}

/* One line of the event stream: id, event, data, or the blank line that ends an event. */
static void event_line(struct terminal *t, const char *s)
{
    if (!strncmp(s, "id:", 3)) snprintf(t->last_id, sizeof t->last_id, "%s", s + 3 + (s[3] == ' '));
    else if (!strncmp(s, "event:", 6)) snprintf(t->event, sizeof t->event, "%s", s + 6 + (s[6] == ' '));
    else if (!strncmp(s, "data:", 5)) {
        json_decref(t->event_data);
        t->event_data = json_loads(s + 5, 0, NULL);
    } else if (!*s && t->event_data) {
        kv_app_event(&t->app, t->event, t->event_data);
        json_decref(t->event_data);
        t->event_data = NULL;
    }
}

static void take_events(struct terminal *t, struct call *c)
{
    long http = 0;
    curl_easy_getinfo(c->h, CURLINFO_RESPONSE_CODE, &http);
    if (http != 200) return;
    char *from = c->data, *end;
    while (from && (end = strchr(from, '\n'))) {
        *end = 0;
        if (end > from && end[-1] == '\r') end[-1] = 0;
        event_line(t, from);
        from = end + 1;
    }
    if (!from) return;
    c->n -= (size_t)(from - c->data);
    memmove(c->data, from, c->n + 1);
}

static void fetch_list(struct terminal *t, enum kv_view view)
{
    for (int i = 0; i < MAX_CALLS; i++)
        if (t->call[i].h && t->call[i].purpose == FOR_LIST && t->call[i].view == view) return;
    const struct kv_table *table = kv_view_table(view);
    char path[160];
    snprintf(path, sizeof path, "%s%s", table->route, view == KV_VIEW_RECEIPTS || view == KV_VIEW_FAILURES ? "?limit=500" : "");
    struct call *c = start(t, FOR_LIST, "GET", path, NULL, NULL);
    if (c) c->view = view;
}

static void take_answer(struct terminal *t, struct call *c, CURLcode rc)
{
    struct kv_app *a = &t->app;
    long http = 0;
    curl_easy_getinfo(c->h, CURLINFO_RESPONSE_CODE, &http);
    json_t *v = c->data ? json_loadb(c->data, c->n, 0, NULL) : NULL;
    if (c->purpose == FOR_EVENTS) {
        a->connected = false;
        t->retry_ms = a->now_ms + RETRY_MS;
        if (rc != CURLE_OK) kv_app_say(a, KV_STYLE_WARN, "cannot reach %s: %s; trying again", t->url, curl_easy_strerror(rc));
        else if (http != 200) {
            char why[320];
            kv_client_error_text(v, http, why, sizeof why);
            kv_app_say(a, KV_STYLE_WARN, "%s", why);
        }
    } else if (rc != CURLE_OK) {
        kv_app_say(a, KV_STYLE_BAD, "no answer: %s", curl_easy_strerror(rc));
    } else if (http < 200 || http >= 300) {
        char why[300];
        kv_client_error_text(v, http, why, sizeof why);
        kv_app_say(a, KV_STYLE_BAD, "%s", why);
    } else if (c->purpose == FOR_LIST && v) {
        kv_app_list(a, c->view, json_incref(v));
    } else if (c->purpose == FOR_OPEN && v && a->detail) {
        json_decref(a->detail);
        a->detail = json_incref(v);
    } else if (c->purpose == FOR_VERB && v) {
        json_t *back = json_object_get(v, "rollback"), *now = json_object_get(v, "rollout");
        if (!now) now = v;
        if (back)
            kv_app_say(a, KV_STYLE_GOOD, "fenced in %.0f us, durable %s, %.0f recomputing, %.0f tokens already on their way", json_number_value(json_object_get(back, "fence_us")),
                       json_is_true(json_object_get(back, "durable")) ? "yes" : "NO", json_number_value(json_object_get(back, "recomputing")), json_number_value(json_object_get(back, "unsent_tokens")));
        else kv_app_say(a, KV_STYLE_GOOD, "%s: done, now %s", c->verb->name, json_string_value(json_object_get(now, "stage")) ? json_string_value(json_object_get(now, "stage")) : "");
        if (json_is_object(now)) json_decref(a->rollout), a->rollout = json_incref(now);
    }
    json_decref(v);
}

static void pump(struct terminal *t)
{
    int running, left;
    curl_multi_perform(t->multi, &running);
    for (int i = 0; i < MAX_CALLS; i++)
        if (t->call[i].h && t->call[i].purpose == FOR_EVENTS && t->call[i].n) take_events(t, &t->call[i]);
    CURLMsg *m;
    while ((m = curl_multi_info_read(t->multi, &left))) {
        struct call *c;
        if (m->msg != CURLMSG_DONE) continue;
        CURLcode rc = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&c);
        take_answer(t, c, rc);
        finish(t, c);
    }
}

static void grant(struct terminal *t, struct kv_wish w)
{
    struct kv_app *a = &t->app;
    if (w.kind == KV_WISH_REFRESH) {
        if (kv_view_table(a->view)) fetch_list(t, a->view);
    } else if (w.kind == KV_WISH_OPEN) {
        start(t, FOR_OPEN, "GET", w.text, NULL, NULL);
    } else if (w.kind == KV_WISH_COPY) {
        static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        printf("\033]52;c;");
        for (size_t i = 0, n = strlen(w.text); i < n; i += 3) {
            unsigned v = (unsigned)(unsigned char)w.text[i] << 16 | (i + 1 < n ? (unsigned)(unsigned char)w.text[i + 1] << 8 : 0) | (i + 2 < n ? (unsigned char)w.text[i + 2] : 0);
            printf("%c%c%c%c", digits[v >> 18], digits[v >> 12 & 63], i + 1 < n ? digits[v >> 6 & 63] : '=', i + 2 < n ? digits[v & 63] : '=');
        }
        printf("\a");
        fflush(stdout);
    } else if (w.kind == KV_WISH_VERB) {
        char path[192], version[32];
        const char *id = json_string_value(json_object_get(a->rollout, "id"));
        snprintf(path, sizeof path, "/api/v1/rollouts/%.64s/%s", id ? id : "", w.verb->name);
        snprintf(version, sizeof version, "%lld", (long long)json_integer_value(json_object_get(a->rollout, "version")));
        json_t *body = w.fraction > 0 ? json_pack("{s:s, s:f}", "reason", "from the console", "fraction", w.fraction) : json_pack("{s:s}", "reason", "from the console");
        struct call *c = start(t, FOR_VERB, w.verb->method, path, body, strcmp(w.verb->name, "rollback") ? version : NULL);
        if (c) c->verb = w.verb, kv_app_say(a, KV_STYLE_NORMAL, "%s: asked", w.verb->name);
        json_decref(body);
    }
}

/* ---------------------------------------------------------------- terminal */

static volatile sig_atomic_t stop_signal;

static void on_stop(int s)
{
    stop_signal = s;
}

static void on_crash(int s)
{
    endwin();
    signal(s, SIG_DFL);
    raise(s);
}

static int attribute(enum kv_style s)
{
    static const int plain[KV_STYLES] = {[KV_STYLE_DIM] = A_DIM, [KV_STYLE_BOLD] = A_BOLD, [KV_STYLE_TITLE] = A_REVERSE, [KV_STYLE_WARN] = A_BOLD,
                                         [KV_STYLE_BAD] = A_BOLD | A_REVERSE, [KV_STYLE_ACCENT] = A_BOLD, [KV_STYLE_SELECTED] = A_REVERSE | A_BOLD};
    if (!has_colors() || getenv("NO_COLOR")) return plain[s];
    static const int extra[KV_STYLES] = {[KV_STYLE_DIM] = A_DIM, [KV_STYLE_BOLD] = A_BOLD, [KV_STYLE_TITLE] = A_REVERSE, [KV_STYLE_BAD] = A_BOLD, [KV_STYLE_SELECTED] = A_REVERSE};
    return COLOR_PAIR(s) | extra[s];
}

static void open_terminal(void)
{
    initscr();
    cbreak();
    noecho();
    nonl();
    keypad(stdscr, TRUE);
    nodelay(stdscr, TRUE);
    set_escdelay(50);
    curs_set(0);
    if (has_colors() && !getenv("NO_COLOR")) {
        start_color();
        use_default_colors();
        static const short colour[KV_STYLES] = {-1, -1, -1, -1, COLOR_GREEN, COLOR_YELLOW, COLOR_RED, COLOR_CYAN, COLOR_CYAN};
        for (short s = 1; s < KV_STYLES; s++) init_pair(s, colour[s], -1);
    }
}

static void show(const struct kv_grid *g)
{
    for (int r = 0; r < g->rows; r++)
        for (int c = 0; c < g->cols; c++) {
            const struct kv_cell *cell = &g->cell[r * g->cols + c];
            if (!cell->text[0]) continue;
            attrset(attribute((enum kv_style)cell->style));
            mvaddstr(r, c, cell->text);
        }
    refresh();
}

static int key_of(int k)
{
    switch (k) {
    case KEY_UP: return KV_KEY_UP;
    case KEY_DOWN: return KV_KEY_DOWN;
    case KEY_PPAGE: return KV_KEY_PAGE_UP;
    case KEY_NPAGE: return KV_KEY_PAGE_DOWN;
    case KEY_HOME: return KV_KEY_HOME;
    case KEY_END: return KV_KEY_END;
    case KEY_ENTER: case '\r': case '\n': return KV_KEY_ENTER;
    case 27: return KV_KEY_ESCAPE;
    case KEY_BACKSPACE: case 127: case 8: return KV_KEY_BACKSPACE;
    case '\t': return KV_KEY_TAB;
    case KEY_BTAB: return KV_KEY_BACKTAB;
    default: return k >= 0x20 && k < 0x100 ? k : 0;
    }
}

static void draw(struct terminal *t, struct kv_grid *g)
{
    if (g->rows != LINES || g->cols != COLS) {
        kv_grid_free(g);
        if (!kv_grid_init(g, LINES, COLS, t->app.ascii)) return;
        erase();
    }
    kv_app_draw(&t->app, g);
    show(g);
}

static void loop(struct terminal *t)
{
    struct kv_grid g = {0};
    int64_t drawn = 0;
    while (!t->app.quit && !stop_signal) {
        struct kv_app *a = &t->app;
        a->now_ms = clock_ms();
        int events = 0, touched = 0;
        for (int i = 0; i < MAX_CALLS; i++) events |= t->call[i].h && t->call[i].purpose == FOR_EVENTS;
        if (!events && a->now_ms >= t->retry_ms) {
            start(t, FOR_EVENTS, "GET", "/api/v1/events", NULL, NULL);
            fetch_list(t, KV_VIEW_RECEIPTS);
            fetch_list(t, KV_VIEW_FAILURES);
            fetch_list(t, KV_VIEW_ROLLOUTS);
        }
        if (kv_view_table(a->view) && a->view != KV_VIEW_RECEIPTS && a->now_ms - t->refreshed_ms > REFRESH_MS) fetch_list(t, a->view), t->refreshed_ms = a->now_ms;
        struct curl_waitfd in = {.fd = STDIN_FILENO, .events = CURL_WAIT_POLLIN};
        curl_multi_poll(t->multi, &in, 1, 200, NULL);
        a->now_ms = clock_ms();
        pump(t);
        for (int k; (k = getch()) != ERR;) {
            touched = 1;
            if (k == KEY_RESIZE) continue;
            int key = key_of(k);
            if (key) grant(t, kv_app_key(a, key));
        }
        if (touched || a->now_ms - drawn >= DRAW_MS || g.rows != LINES || g.cols != COLS) draw(t, &g), drawn = a->now_ms;
    }
    kv_grid_free(&g);
}

static int once(const struct kv_cli *cli)
{
    json_t *status = NULL, *rollouts = NULL;
    int rc = kv_client_do(cli, "GET", "/api/v1/status", NULL, NULL, &status);
    if (!rc) rc = kv_client_do(cli, "GET", "/api/v1/rollouts", NULL, NULL, &rollouts);
    if (!rc && cli->json) {
        json_t *both = json_pack("{s:O, s:O}", "status", status, "rollouts", json_object_get(rollouts, "rollouts"));
        json_dumpf(both, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(both);
    } else if (!rc) {
        struct kv_app a;
        struct kv_grid g;
        kv_app_init(&a);
        a.now_ms = clock_ms();
        kv_app_event(&a, "status", status);
        kv_app_list(&a, KV_VIEW_ROLLOUTS, json_incref(rollouts));
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
    json_decref(status);
    json_decref(rollouts);
    return rc;
}

int kv_cmd_console(int argc, char **argv, const struct kv_cli *cli)
{
    bool readonly = false, just_once = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--readonly")) readonly = true;
        else if (!strcmp(argv[i], "--once")) just_once = true;
        else return fprintf(stderr, "usage: kvasir console [--readonly] [--once]\n"), KV_EXIT_USAGE;
    }
    setlocale(LC_ALL, "");
    if (just_once) return once(cli);
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) return fprintf(stderr, "kvasir: the console needs a terminal; use console --once for a picture of it\n"), KV_EXIT_REFUSED;
    struct terminal *t = calloc(1, sizeof *t);
    if (!t) return KV_EXIT_REFUSED;
    int status = kv_client_resolve(cli, t->url, sizeof t->url, t->token, sizeof t->token);
    if (status) goto done;
    kv_app_init(&t->app);
    t->app.readonly = readonly;
    t->app.ascii = strcmp(nl_langinfo(CODESET), "UTF-8") != 0;
    snprintf(t->app.url, sizeof t->app.url, "%s", t->url);
    t->multi = curl_multi_init();
    signal(SIGTERM, on_stop);
    signal(SIGHUP, on_stop);
    signal(SIGINT, on_stop);
    signal(SIGSEGV, on_crash);
    signal(SIGABRT, on_crash);
    signal(SIGPIPE, SIG_IGN);
    open_terminal();
    loop(t);
    endwin();
    for (int i = 0; i < MAX_CALLS; i++)
        if (t->call[i].h) finish(t, &t->call[i]);
    curl_multi_cleanup(t->multi);
    json_decref(t->event_data);
    kv_app_free(&t->app);
done:
    free(t);
    return status;
}
