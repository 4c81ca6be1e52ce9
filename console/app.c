/* app.c — state of the terminal console: what arrives, which rows show, which pages lie open. */
#include "console/app.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STALE_MS = 5000 };

static const struct {
    const char *name, *table, *route;
} views[KV_VIEWS] = {
    [KV_VIEW_ROLLOUT] = {"rollout", NULL, NULL},
    [KV_VIEW_RECEIPTS] = {"receipts", "receipts", NULL},
    [KV_VIEW_FAILURES] = {"failures", "failures", NULL},
    [KV_VIEW_POLICIES] = {"policies", "policies", NULL},
    [KV_VIEW_SESSIONS] = {"sessions", "sessions", NULL},
    [KV_VIEW_TIERS] = {"tiers", "tiers", NULL},
    [KV_VIEW_PIPELINES] = {"pipelines", "pipelines", NULL},
    [KV_VIEW_ROLLOUTS] = {"rollouts", "rollouts", NULL},
    [KV_VIEW_AUDIT] = {"audit", "audit", NULL},
    [KV_VIEW_CREDITS] = {"credits", NULL, "/api/v1/credits"},
    [KV_VIEW_PAUSED] = {"paused", "interruptions", NULL},
    [KV_VIEW_PROGRESS] = {"progress", "progress", NULL},
};

const char *kv_view_name(enum kv_view v)
{
    return views[v].name;
}

const struct kv_table *kv_view_table(enum kv_view v)
{
    return views[v].table ? kv_table_find(views[v].table) : NULL;
}

const char *kv_view_route(enum kv_view v)
{
    return views[v].table ? kv_view_table(v)->route : views[v].route;
}

bool kv_view_long(enum kv_view v)
{
    return v == KV_VIEW_RECEIPTS || v == KV_VIEW_FAILURES || v == KV_VIEW_AUDIT;
}

void kv_app_init(struct kv_app *a)
{
    memset(a, 0, sizeof *a);
    a->cols = 80;
}

static void forget(struct kv_app *a)
{
    while (a->depth) kv_app_pop(a);
    json_decref(a->status);
    json_decref(a->rollout);
    json_decref(a->tasks);
    a->status = a->rollout = a->tasks = NULL;
    for (int v = 0; v < KV_VIEWS; v++) {
        json_decref(a->list[v]);
        json_decref(a->marked[v]);
        json_decref(a->picked[v]);
        a->list[v] = a->marked[v] = a->picked[v] = NULL;
        a->absent[v] = a->older[v] = false;
        a->selected[v] = 0;
    }
    json_decref(a->draft);
    a->draft = NULL;
    a->tokens_per_s.n = a->p50.n = a->p99.n = a->mass.n = 0;
}

void kv_app_free(struct kv_app *a)
{
    forget(a);
    memset(a, 0, sizeof *a);
}

void kv_app_switch(struct kv_app *a, const char *context, const char *url)
{
    forget(a);
    snprintf(a->context, sizeof a->context, "%s", context);
    snprintf(a->url, sizeof a->url, "%s", url);
    a->connected = a->frozen = false;
    a->message[0] = 0;
    a->heard_ms = a->since_ms = a->now_ms;
    kv_app_await(a, "%s", "");
}

void kv_app_say(struct kv_app *a, enum kv_style style, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(a->message, sizeof a->message, fmt, ap);
    va_end(ap);
    a->message_style = style;
}

void kv_app_await(struct kv_app *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(a->pending, sizeof a->pending, fmt, ap);
    va_end(ap);
    a->pending_ms = a->now_ms;
}

bool kv_app_stale(const struct kv_app *a)
{
    return !a->connected || a->now_ms - a->heard_ms > STALE_MS;
}

void kv_app_show(struct kv_app *a, enum kv_view v)
{
    a->view = v;
    while (a->depth) kv_app_pop(a);
}

/* ---------------------------------------------------------------- what arrives */

static void push_value(struct kv_series *s, const json_t *v)
{
    if (s->n == KV_HISTORY) memmove(s->v, s->v + 1, (KV_HISTORY - 1) * sizeof *s->v), s->n--;
    s->v[s->n++] = json_is_number(v) ? json_number_value(v) : NAN;
}

static void replace(json_t **slot, json_t *data)
{
    json_incref(data);
    json_decref(*slot);
    *slot = data;
}

static void prepend(struct kv_app *a, enum kv_view v, json_t *row)
{
    json_t *answer = a->list[v];
    const char *array = kv_view_table(v)->array;
    size_t most = a->older[v] ? KV_ROWS_KEPT : KV_ROWS_STREAMED;
    json_t *rows = json_object_get(answer, array), *first = json_array_get(rows, 0);
    if (!json_is_array(rows) || (first && json_equal(json_object_get(first, "id"), json_object_get(row, "id")))) return;
    json_array_insert(rows, 0, row);
    while (json_array_size(rows) > most) json_array_remove(rows, json_array_size(rows) - 1);
}

void kv_app_event(struct kv_app *a, const char *name, json_t *data)
{
    a->heard_ms = a->now_ms;
    a->connected = true;
    if (a->frozen || !json_is_object(data)) return;
    if (!strcmp(name, "status")) {
        const json_t *live = json_object_get(data, "live");
        replace(&a->status, data);
        replace(&a->tasks, json_object_get(data, "progress"));
        push_value(&a->tokens_per_s, json_object_get(live, "tokens_per_s"));
        push_value(&a->p50, json_object_get(live, "tpot_p50_ms"));
        push_value(&a->p99, json_object_get(live, "tpot_p99_ms"));
        push_value(&a->mass, json_object_get(live, "omitted_mass_mean"));
    } else if (!strcmp(name, "rollout")) {
        replace(&a->rollout, data);
    } else if (!strcmp(name, "receipt")) {
        prepend(a, KV_VIEW_RECEIPTS, data);
    } else if (!strcmp(name, "failure")) {
        prepend(a, KV_VIEW_FAILURES, data);
    }
}

void kv_app_list(struct kv_app *a, enum kv_view v, json_t *answer)
{
    if (a->frozen) {
        json_decref(answer);
        return;
    }
    json_decref(a->list[v]);
    a->list[v] = answer;
    a->absent[v] = false;
    json_t *first = v == KV_VIEW_ROLLOUTS ? json_array_get(json_object_get(answer, "rollouts"), 0) : NULL;
    if (first && !a->rollout) replace(&a->rollout, first);
}

void kv_app_tasks(struct kv_app *a, json_t *answer)
{
    replace(&a->tasks, json_object_get(answer, "tasks"));
}

void kv_app_older(struct kv_app *a, enum kv_view v, json_t *answer)
{
    const struct kv_table *t = kv_view_table(v);
    json_t *rows = json_object_get(a->list[v], t->array), *more = json_object_get(answer, t->array);
    if (!json_array_size(more)) kv_app_say(a, KV_STYLE_NORMAL, "there is nothing older");
    else if (json_array_size(rows) >= KV_ROWS_KEPT) kv_app_say(a, KV_STYLE_WARN, "%d rows are kept at most; kvasir receipts find goes further back", KV_ROWS_KEPT);
    else if (json_is_array(rows)) {
        a->older[v] = true;
        json_array_extend(rows, more);
        kv_app_say(a, KV_STYLE_NORMAL, "%zu older; %zu in all", json_array_size(more), json_array_size(rows));
    }
    json_decref(answer);
}

void kv_app_history(struct kv_app *a, const json_t *answer)
{
    static const char *const names[] = {"tokens_per_s", "tpot_p50_ms", "tpot_p99_ms", "omitted_mass"};
    struct kv_series *series[] = {&a->tokens_per_s, &a->p50, &a->p99, &a->mass};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        struct kv_series since = *series[k];
        size_t i;
        json_t *v;
        series[k]->n = 0;
        json_array_foreach(json_object_get(answer, names[k]), i, v) push_value(series[k], v);
        for (int j = 0; j < since.n; j++) {
            json_t *own = isfinite(since.v[j]) ? json_real(since.v[j]) : json_null();
            push_value(series[k], own);
            json_decref(own);
        }
    }
}

/* ---------------------------------------------------------------- rows */

void kv_row_id(const struct kv_table *t, const json_t *row, char *out, size_t cap)
{
    const json_t *id = json_object_get(row, t->id);
    if (json_is_integer(id)) snprintf(out, cap, "%" JSON_INTEGER_FORMAT, json_integer_value(id));
    else snprintf(out, cap, "%s", json_is_string(id) ? json_string_value(id) : "");
}

struct order {
    const struct kv_column *column;
    int sign;
};

static int compare_rows(const void *x, const void *y, void *ctx)
{
    const struct order *o = ctx;
    const json_t *p = kv_cell_value(*(json_t *const *)x, o->column), *q = kv_cell_value(*(json_t *const *)y, o->column);
    if (json_is_number(p) && json_is_number(q)) {
        double a = json_number_value(p), b = json_number_value(q);
        return o->sign * ((a > b) - (a < b));
    }
    char a[256], b[256];
    /* Times sort by their whole text, not by the hour that is shown. */
    if (json_is_string(p) && json_is_string(q)) return o->sign * strcmp(json_string_value(p), json_string_value(q));
    kv_cell_text(*(json_t *const *)x, o->column, 1, a, sizeof a);
    kv_cell_text(*(json_t *const *)y, o->column, 1, b, sizeof b);
    return o->sign * strcmp(a, b);
}

/* What the row shows; and by six letters or more, so that no digest passes by chance, what no column has room for: a trace, a session, a digest. */
static int passes(const struct kv_table *t, json_t *row, const char *filter)
{
    const char *key;
    json_t *value;
    for (const struct kv_column *c = t->column; c->title; c++) {
        char text[256];
        kv_cell_text(row, c, 1, text, sizeof text);
        if (strcasestr(text, filter)) return 1;
    }
    if (strlen(filter) < 6) return 0;
    json_object_foreach(row, key, value)
        if (json_is_string(value) && strcasestr(json_string_value(value), filter)) return 1;
    return 0;
}

size_t kv_app_rows(const struct kv_app *a, enum kv_view v, const json_t **out, size_t cap)
{
    const struct kv_table *t = kv_view_table(v);
    size_t n = 0, i;
    json_t *row;
    if (!t) return 0;
    json_array_foreach(json_object_get(a->list[v], t->array), i, row)
        if (n < cap && (!a->filter[v][0] || passes(t, row, a->filter[v]))) out[n++] = row;
    if (a->sort[v]) {
        struct order o = {&t->column[a->sort[v] - 1], a->descending[v] ? -1 : 1};
        qsort_r(out, n, sizeof *out, compare_rows, &o);
    }
    return n;
}

size_t kv_app_selected(const struct kv_app *a, enum kv_view v, const json_t **rows, size_t n)
{
    const struct kv_table *t = kv_view_table(v);
    size_t last = (size_t)a->selected[v] < n ? (size_t)a->selected[v] : n ? n - 1 : 0;
    if (!a->picked[v] || !t) return a->picked[v] ? last : 0;
    const json_t *id = json_object_get(a->picked[v], t->id);
    for (size_t i = 0; i < n; i++)
        if (rows[i] == a->picked[v] || json_equal(json_object_get(rows[i], t->id), id)) return i;
    return last;
}

/* ---------------------------------------------------------------- pages */

struct kv_page *kv_app_page(struct kv_app *a)
{
    return a->depth ? &a->page[a->depth - 1] : NULL;
}

void kv_app_push(struct kv_app *a, enum kv_page_kind kind, const char *title, const char *route, json_t *data)
{
    if (a->depth == KV_PAGES) { /* the oldest step of a long walk is forgotten */
        json_decref(a->page[0].data);
        memmove(a->page, a->page + 1, (KV_PAGES - 1) * sizeof *a->page);
        a->depth--;
    }
    struct kv_page *p = &a->page[a->depth++];
    *p = (struct kv_page){.kind = kind, .data = data};
    snprintf(p->title, sizeof p->title, "%s", title);
    snprintf(p->route, sizeof p->route, "%s", route);
}

void kv_app_pop(struct kv_app *a)
{
    if (!a->depth) return;
    a->depth--;
    json_decref(a->page[a->depth].data);
    a->page[a->depth].data = NULL;
}

void kv_app_fill(struct kv_app *a, const char *route, json_t *data)
{
    for (int i = 0; i < a->depth; i++)
        if (!strcmp(a->page[i].route, route)) replace(&a->page[i].data, data);
}
