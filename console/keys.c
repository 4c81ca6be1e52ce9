/* keys.c — what each key and click does in a view or on a page. */
#include "console/app.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kv_wish none = {0}, refresh = {.kind = KV_WISH_REFRESH};

static const json_t *selected_row(const struct kv_app *a, const json_t **rows, size_t *n)
{
    *n = kv_app_rows(a, a->view, rows, KV_ROWS_KEPT);
    return *n ? rows[kv_app_selected(a, a->view, rows, *n)] : NULL;
}

const json_t *kv_app_row(const struct kv_app *a)
{
    static const json_t *rows[KV_ROWS_KEPT];
    size_t n;
    return kv_view_table(a->view) ? selected_row(a, rows, &n) : NULL;
}

static void pick(struct kv_app *a, const json_t *row, size_t at)
{
    json_incref((json_t *)row);
    json_decref(a->picked[a->view]);
    a->picked[a->view] = (json_t *)row;
    a->selected[a->view] = (int)at;
}

static void move_on_page(struct kv_app *a, int step)
{
    struct kv_page *p = kv_app_page(a);
    char title[64], route[192];
    int n, to = p->link + step;
    free(kv_page_lines(p, a->cols, &n));
    if (abs(step) == 1 && to >= 0 && kv_page_link(p, to, title, sizeof title, route, sizeof route)) {
        p->link = to; /* drawing follows the link */
        p->top = 0;
        return;
    }
    p->top += step;
    if (p->top > n - 1) p->top = n - 1;
    if (p->top < 0) p->top = 0;
}

void kv_app_move(struct kv_app *a, int step)
{
    static const json_t *rows[KV_ROWS_KEPT];
    size_t n;
    if (a->depth) {
        move_on_page(a, step);
        return;
    }
    if (!selected_row(a, rows, &n)) return;
    long to = (long)kv_app_selected(a, a->view, rows, n) + step;
    if (to >= (long)n) to = (long)n - 1;
    /* On the first row the cursor follows what is new. */
    if (to <= 0) pick(a, NULL, 0);
    else pick(a, rows[to], (size_t)to);
}

void kv_app_find(struct kv_app *a, int direction)
{
    static const json_t *rows[KV_ROWS_KEPT];
    size_t count;
    struct kv_page *p = kv_app_page(a);
    if (!p) { /* a list shows matches only: the next row is the next match, and after the last comes the first */
        if (!selected_row(a, rows, &count)) return;
        size_t at = kv_app_selected(a, a->view, rows, count), to = direction > 0 ? (at + 1) % count : (at + count - 1) % count;
        pick(a, to ? rows[to] : NULL, to);
        return;
    }
    int n;
    struct kv_line *l = kv_page_lines(p, a->cols, &n);
    bool found = false;
    for (int k = 1; a->find[0] && k <= n && !found; k++) {
        int i = ((p->top + direction * k) % n + n) % n;
        found = strcasestr(l[i].text, a->find) || strcasestr(l[i].key, a->find);
        if (found) p->top = i;
    }
    if (!found) kv_app_say(a, KV_STYLE_WARN, a->find[0] ? "'%s' is not on this page" : "/ looks for words on this page%s", a->find);
    free(l);
}

/* ---------------------------------------------------------------- opening */

static struct kv_wish open_route(struct kv_app *a, const char *title, const char *route, json_t *data)
{
    struct kv_wish w = {.kind = KV_WISH_OPEN};
    snprintf(w.text, sizeof w.text, "%s", route);
    kv_app_push(a, KV_PAGE_RECORD, title, route, data);
    return w;
}

static struct kv_wish open_link(struct kv_app *a)
{
    char title[64], route[192];
    struct kv_page *p = kv_app_page(a);
    if (kv_page_link(p, p->link, title, sizeof title, route, sizeof route)) return open_route(a, title, route, NULL);
    kv_app_say(a, KV_STYLE_NORMAL, "nothing further to open here");
    return none;
}

static struct kv_wish open_row(struct kv_app *a)
{
    static const json_t *rows[KV_ROWS_KEPT];
    size_t n;
    char id[128], title[160], route[192];
    const struct kv_table *t = kv_view_table(a->view);
    const json_t *row = t ? selected_row(a, rows, &n) : NULL;
    if (a->depth) return open_link(a);
    if (a->view == KV_VIEW_ROLLOUT && a->rollout) {
        snprintf(route, sizeof route, "/api/v1/rollouts/%.64s", json_string_value(json_object_get(a->rollout, "id")) ? json_string_value(json_object_get(a->rollout, "id")) : "");
        return open_route(a, "whole", route, json_incref(a->rollout));
    }
    if (!row) return none;
    kv_row_id(t, row, id, sizeof id);
    snprintf(title, sizeof title, "%s", id);
    if (a->view == KV_VIEW_ROLLOUTS) {
        json_incref((json_t *)row);
        json_decref(a->rollout);
        a->rollout = (json_t *)row;
        kv_app_show(a, KV_VIEW_ROLLOUT);
        return none;
    }
    const json_t *receipt = json_object_get(row, "receipt");
    json_t *held = json_incref((json_t *)row);
    if (a->view == KV_VIEW_FAILURES && json_is_integer(receipt)) snprintf(id, sizeof id, "%" JSON_INTEGER_FORMAT, json_integer_value(receipt));
    if (a->view == KV_VIEW_RECEIPTS || a->view == KV_VIEW_AUDIT || a->view == KV_VIEW_FAILURES) {
        snprintf(title, sizeof title, "receipt %.40s", id);
        snprintf(route, sizeof route, "/api/v1/receipts/%.40s", id);
        return open_route(a, title, route, held);
    }
    if (a->view == KV_VIEW_SESSIONS) {
        json_decref(held);
        snprintf(route, sizeof route, "/api/v1/receipts?limit=200&session=%.120s", id);
        return open_route(a, title, route, NULL);
    }
    snprintf(route, sizeof route, "/api/v1/policies/%.80s", id);
    if (a->view == KV_VIEW_POLICIES) return open_route(a, title, route, held);
    kv_app_push(a, KV_PAGE_RECORD, title, "", held);
    return none;
}

/* ---------------------------------------------------------------- rows */

static struct kv_wish copy_ids(struct kv_app *a)
{
    static const json_t *rows[KV_ROWS_KEPT];
    struct kv_wish w = {.kind = KV_WISH_COPY};
    const struct kv_table *t = kv_view_table(a->view);
    size_t n, used = 0, cut = 0;
    const char *key;
    json_t *mark;
    struct kv_page *p = kv_app_page(a);
    const json_t *id = p ? json_object_get(p->data, "id") : !t ? json_object_get(a->rollout, "id") : NULL;
    if (json_is_string(id)) snprintf(w.text, sizeof w.text, "%s", json_string_value(id));
    else if (json_is_integer(id)) snprintf(w.text, sizeof w.text, "%" JSON_INTEGER_FORMAT, json_integer_value(id));
    else if (t && json_object_size(a->marked[a->view])) {
        json_object_foreach(a->marked[a->view], key, mark) {
            if (used + strlen(key) + 2 > sizeof w.text) cut++;
            else used += (size_t)snprintf(w.text + used, sizeof w.text - used, "%s%s", used ? " " : "", key);
        }
    } else if (t) {
        const json_t *row = selected_row(a, rows, &n);
        if (row) kv_row_id(t, row, w.text, sizeof w.text);
    }
    if (!w.text[0]) return none;
    if (cut) kv_app_say(a, KV_STYLE_WARN, "copied all but the last %zu marked", cut);
    else kv_app_say(a, KV_STYLE_NORMAL, "copied %.300s", w.text);
    return w;
}

static void toggle_mark(struct kv_app *a)
{
    static const json_t *rows[KV_ROWS_KEPT];
    char id[128];
    size_t n;
    const struct kv_table *t = kv_view_table(a->view);
    const json_t *row = t && !a->depth ? selected_row(a, rows, &n) : NULL;
    if (!row) return;
    if (!a->marked[a->view]) a->marked[a->view] = json_object();
    kv_row_id(t, row, id, sizeof id);
    if (json_object_del(a->marked[a->view], id)) json_object_set_new(a->marked[a->view], id, json_true());
    kv_app_move(a, 1);
}

static void next_order(struct kv_app *a)
{
    const struct kv_table *t = kv_view_table(a->view);
    int *s = &a->sort[a->view];
    if (!t) return;
    *s = t->column[*s].title ? *s + 1 : 0;
    a->descending[a->view] = false;
    kv_app_say(a, KV_STYLE_NORMAL, *s ? "by %s; S turns it round" : "in the server's order%s", *s ? t->column[*s - 1].title : "");
}

static struct kv_wish edit_policy(struct kv_app *a)
{
    static const json_t *rows[KV_ROWS_KEPT];
    size_t n;
    struct kv_wish w = {.kind = KV_WISH_EDIT};
    struct kv_page *p = kv_app_page(a);
    const json_t *row = a->view != KV_VIEW_POLICIES ? NULL : p && json_object_get(p->data, "kind") ? p->data : selected_row(a, rows, &n);
    const char *kind = json_string_value(json_object_get(row, "kind"));
    if (a->view != KV_VIEW_POLICIES) kv_app_say(a, KV_STYLE_NORMAL, "e edits a policy; 4 shows them");
    else if (a->readonly) kv_app_say(a, KV_STYLE_WARN, "this console is read-only (--readonly)");
    else if (!kind) kv_app_say(a, KV_STYLE_NORMAL, "there is no policy here");
    else {
        snprintf(w.text, sizeof w.text, "%.100s", kind);
        return w;
    }
    return none;
}

/* ---------------------------------------------------------------- keys */

static void step_view(struct kv_app *a, int step)
{
    int v = (int)a->view;
    do v = (v + step + KV_VIEWS) % KV_VIEWS;
    while (a->absent[v]);
    kv_app_show(a, (enum kv_view)v);
}

static void back(struct kv_app *a)
{
    if (a->depth) kv_app_pop(a);
    else if (a->filter[a->view][0]) a->filter[a->view][0] = 0;
    else if (json_object_size(a->marked[a->view])) json_object_clear(a->marked[a->view]);
    else kv_app_show(a, KV_VIEW_ROLLOUT);
}

static bool moves(struct kv_app *a, int key)
{
    switch (key) {
    case 'k': case KV_KEY_UP: kv_app_move(a, -1); return true;
    case 'j': case KV_KEY_DOWN: kv_app_move(a, 1); return true;
    case KV_KEY_PAGE_UP: kv_app_move(a, -15); return true;
    case KV_KEY_PAGE_DOWN: kv_app_move(a, 15); return true;
    case KV_KEY_HOME: kv_app_move(a, -KV_ROWS_KEPT); return true;
    case KV_KEY_END: kv_app_move(a, KV_ROWS_KEPT); return true;
    default: return false;
    }
}

static struct kv_wish view_key(struct kv_app *a, int key)
{
    switch (key) {
    case 'q': a->quit = true; return none;
    case '?':
        if (!a->depth || kv_app_page(a)->kind != KV_PAGE_HELP) kv_app_push(a, KV_PAGE_HELP, "help", "", NULL);
        return none;
    case KV_KEY_TAB: step_view(a, 1); return refresh;
    case KV_KEY_BACKTAB: step_view(a, -1); return refresh;
    case KV_KEY_ESCAPE: back(a); return none;
    case KV_KEY_ENTER: return open_row(a);
    case '/':
        if (a->depth) a->prompt = KV_PROMPT_FIND, a->find[0] = 0;
        else if (kv_view_table(a->view)) a->prompt = KV_PROMPT_FILTER;
        return none;
    case 'n': kv_app_find(a, 1); return none;
    case 'N': kv_app_find(a, -1); return none;
    case ' ': toggle_mark(a); return none;
    case 's': next_order(a); return none;
    case 'S': a->descending[a->view] = !a->descending[a->view]; return none;
    case 'o': return kv_view_long(a->view) && !a->depth ? (struct kv_wish){.kind = KV_WISH_OLDER} : none;
    case 'e': return edit_policy(a);
    case ':': a->prompt = KV_PROMPT_COMMAND; a->input[0] = 0; a->at_said = a->n_said; return none;
    case 'Z': a->frozen = !a->frozen; return none;
    case 'r': return refresh;
    case 'y': return copy_ids(a);
    default: break;
    }
    for (int i = 0; i < KV_N_VERBS; i++)
        if (kv_verbs[i].key == key) return kv_app_begin_verb(a, &kv_verbs[i]);
    return none;
}

struct kv_wish kv_app_key(struct kv_app *a, int key)
{
    if (a->prompt == KV_PROMPT_CONFIRM && a->depth && moves(a, key)) return none; /* one may read before one answers */
    if (a->prompt) return kv_app_prompt_key(a, key);
    a->message[0] = 0;
    if (key >= '0' && key <= '9') {
        kv_app_show(a, key == '0' ? KV_VIEW_CREDITS : (enum kv_view)(key - '1'));
        return refresh;
    }
    return moves(a, key) ? none : view_key(a, key);
}

struct kv_wish kv_app_click(struct kv_app *a, int row, int rows, bool twice)
{
    static const json_t *shown[KV_ROWS_KEPT];
    size_t n;
    if (a->prompt || a->depth || !kv_view_table(a->view) || row < 2 || row > rows - 2) return none;
    if (!selected_row(a, shown, &n)) return none;
    size_t at = kv_app_selected(a, a->view, shown, n), height = (size_t)(rows - 3), top = at >= height ? at - height + 1 : 0, to = top + (size_t)(row - 2);
    if (to >= n) return none;
    pick(a, to ? shown[to] : NULL, to);
    return twice ? open_row(a) : none;
}
