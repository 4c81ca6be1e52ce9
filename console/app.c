/* app.c — state of the terminal console and what each key does to it. */
#include "console/app.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STALE_MS = 5000, MAX_ROWS = 2000 };

static const struct {
    const char *name, *table;
} views[KV_VIEWS] = {
    [KV_VIEW_ROLLOUT] = {"rollout", NULL},     [KV_VIEW_RECEIPTS] = {"receipts", "receipts"},
    [KV_VIEW_FAILURES] = {"failures", "failures"}, [KV_VIEW_POLICIES] = {"policies", "policies"},
    [KV_VIEW_SESSIONS] = {"sessions", "sessions"}, [KV_VIEW_TIERS] = {"tiers", "tiers"},
    [KV_VIEW_PIPELINES] = {"pipelines", "pipelines"}, [KV_VIEW_ROLLOUTS] = {"rollouts", "rollouts"},
    [KV_VIEW_HELP] = {"help", NULL},
};

const char *kv_view_name(enum kv_view v)
{
    return views[v].name;
}

const struct kv_table *kv_view_table(enum kv_view v)
{
    return views[v].table ? kv_table_find(views[v].table) : NULL;
}

void kv_app_init(struct kv_app *a)
{
    memset(a, 0, sizeof *a);
}

void kv_app_free(struct kv_app *a)
{
    json_decref(a->status);
    json_decref(a->rollout);
    json_decref(a->detail);
    for (int v = 0; v < KV_VIEWS; v++) json_decref(a->list[v]);
    memset(a, 0, sizeof *a);
}

void kv_app_say(struct kv_app *a, enum kv_style style, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(a->message, sizeof a->message, fmt, ap);
    va_end(ap);
    a->message_style = style;
}

bool kv_app_stale(const struct kv_app *a)
{
    return !a->connected || a->now_ms - a->heard_ms > STALE_MS;
}

static void push(struct kv_series *s, const json_t *v)
{
    if (s->n == KV_HISTORY) memmove(s->v, s->v + 1, (KV_HISTORY - 1) * sizeof *s->v), s->n--;
    s->v[s->n++] = json_is_number(v) ? json_number_value(v) : NAN;
}

static void replace(json_t **slot, json_t *data)
{
    json_decref(*slot);
    *slot = json_incref(data);
}

static void prepend(json_t *answer, const char *array, json_t *row)
{
    json_t *rows = json_object_get(answer, array);
    if (!json_is_array(rows)) return;
    json_array_insert(rows, 0, row);
    while (json_array_size(rows) > MAX_ROWS) json_array_remove(rows, json_array_size(rows) - 1);
}

void kv_app_event(struct kv_app *a, const char *name, json_t *data)
{
    a->heard_ms = a->now_ms;
    a->connected = true;
    if (a->frozen || !json_is_object(data)) return;
    if (!strcmp(name, "status")) {
        const json_t *live = json_object_get(data, "live");
        replace(&a->status, data);
        push(&a->tokens_per_s, json_object_get(live, "tokens_per_s"));
        push(&a->p50, json_object_get(live, "tpot_p50_ms"));
        push(&a->p99, json_object_get(live, "tpot_p99_ms"));
        push(&a->mass, json_object_get(live, "omitted_mass_mean"));
    } else if (!strcmp(name, "rollout")) {
        replace(&a->rollout, data);
    } else if (!strcmp(name, "receipt")) {
        prepend(a->list[KV_VIEW_RECEIPTS], "receipts", data);
    } else if (!strcmp(name, "failure")) {
        prepend(a->list[KV_VIEW_FAILURES], "failures", data);
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
    if (v == KV_VIEW_ROLLOUTS && !a->rollout) {
        json_t *first = json_array_get(json_object_get(answer, "rollouts"), 0);
        if (first) replace(&a->rollout, first);
    }
}

size_t kv_app_rows(const struct kv_app *a, enum kv_view v, const json_t **out, size_t cap)
{
    const struct kv_table *t = kv_view_table(v);
    size_t n = 0, i;
    json_t *row;
    if (!t) return 0;
    json_array_foreach(json_object_get(a->list[v], t->array), i, row) {
        int shown = !a->filter[v][0];
        for (const struct kv_column *c = t->column; !shown && c->title; c++) {
            char text[256];
            kv_cell_text(row, c, 1, text, sizeof text);
            shown = strcasestr(text, a->filter[v]) != NULL;
        }
        if (shown && n < cap) out[n++] = row;
    }
    return n;
}

static const json_t *selected_row(const struct kv_app *a)
{
    const json_t *rows[MAX_ROWS];
    size_t n = kv_app_rows(a, a->view, rows, MAX_ROWS);
    size_t i = (size_t)a->selected[a->view];
    return n ? rows[i < n ? i : n - 1] : NULL;
}

static void select_by(struct kv_app *a, int step)
{
    if (a->detail) {
        a->detail_top += step;
        if (a->detail_top < 0) a->detail_top = 0;
        return;
    }
    const json_t *rows[MAX_ROWS];
    int n = (int)kv_app_rows(a, a->view, rows, MAX_ROWS), *s = &a->selected[a->view];
    *s += step;
    if (*s >= n) *s = n - 1;
    if (*s < 0) *s = 0;
}

static void show_view(struct kv_app *a, enum kv_view v)
{
    if (a->view != KV_VIEW_HELP) a->back = a->view;
    a->view = v;
    json_decref(a->detail);
    a->detail = NULL;
    a->detail_top = 0;
}

static const char *rollout_text(const struct kv_app *a, const char *field)
{
    const char *s = json_string_value(json_object_get(a->rollout, field));
    return s ? s : "";
}

/* Why a verb cannot be used now, by the server's own word; NULL when it can. */
static const char *why_not(const struct kv_app *a, const struct kv_verb *verb)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(a->rollout, "verbs"), i, row) {
        const char *name = json_string_value(json_object_get(row, "verb"));
        if (name && !strcmp(name, verb->name) && json_is_false(json_object_get(row, "enabled"))) {
            const char *why = json_string_value(json_object_get(row, "why"));
            return why ? why : "not legal in this stage";
        }
    }
    return NULL;
}

static struct kv_wish begin_verb(struct kv_app *a, const struct kv_verb *verb)
{
    struct kv_wish none = {0};
    int is_rollback = !strcmp(verb->name, "rollback");
    const char *why = is_rollback ? NULL : why_not(a, verb);
    if (a->readonly) kv_app_say(a, KV_STYLE_WARN, "this console is read-only (--readonly)");
    else if (kv_app_stale(a) && !is_rollback) kv_app_say(a, KV_STYLE_WARN, "the data is stale; nothing is changed until the server answers again");
    else if (!a->rollout) kv_app_say(a, KV_STYLE_WARN, "there is no rollout; create one: kvasir rollout create -f FILE.json");
    else if (why) kv_app_say(a, KV_STYLE_WARN, "%s: %s", verb->name, why);
    else if (!strcmp(verb->name, "create")) kv_app_say(a, KV_STYLE_NORMAL, "create with: kvasir rollout create -f FILE.json");
    else if (!strcmp(verb->name, "history")) show_view(a, KV_VIEW_ROLLOUT);
    else if (verb->danger == KV_VERB_SAFE) return (struct kv_wish){.kind = KV_WISH_VERB, .verb = verb};
    else {
        a->asked = verb;
        a->input[0] = 0;
        const json_t *live = json_object_get(a->status, "live");
        long long active = (long long)json_number_value(json_object_get(live, "active"));
        if (is_rollback)
            snprintf(a->asked_question, sizeof a->asked_question, "roll back %s: %s %.3g %% > EXACT_BASELINE, %lld live requests; y/N", rollout_text(a, "name"),
                     rollout_text(a, "stage"), 100 * json_number_value(json_object_get(a->rollout, "fraction")), active);
        else snprintf(a->asked_question, sizeof a->asked_question, "%s %s at %s: %s; y/N", verb->name, rollout_text(a, "name"), rollout_text(a, "stage"), verb->help);
        a->prompt = KV_PROMPT_CONFIRM;
        const char *stage = rollout_text(a, "stage");
        if (!strcmp(verb->name, "ramp")) a->prompt = KV_PROMPT_NAME, snprintf(a->asked_question, sizeof a->asked_question, "ramp to percent: ");
        else if (!strcmp(verb->name, "advance") && !strcmp(stage, "RAMP"))
            a->prompt = KV_PROMPT_NAME, snprintf(a->asked_question, sizeof a->asked_question, "towards FULL; type the rollout's name (%.60s): ", rollout_text(a, "name"));
    }
    return none;
}

static struct kv_wish finish_input(struct kv_app *a)
{
    enum kv_prompt was = a->prompt;
    a->prompt = KV_PROMPT_NONE;
    if (was == KV_PROMPT_NAME && !strcmp(a->asked->name, "ramp")) {
        double percent = atof(a->input);
        if (percent > 0 && percent <= 100) return (struct kv_wish){.kind = KV_WISH_VERB, .verb = a->asked, .fraction = percent / 100};
        kv_app_say(a, KV_STYLE_WARN, "a ramp fraction is more than 0 and at most 100 percent");
    } else if (was == KV_PROMPT_NAME) {
        if (!strcmp(a->input, rollout_text(a, "name"))) return (struct kv_wish){.kind = KV_WISH_VERB, .verb = a->asked};
        kv_app_say(a, KV_STYLE_WARN, "the name does not match; nothing was done");
    } else if (was == KV_PROMPT_COMMAND) {
        for (int v = 0; v < KV_VIEWS; v++)
            if (!strcmp(a->input, views[v].name)) return show_view(a, (enum kv_view)v), (struct kv_wish){.kind = KV_WISH_REFRESH};
        for (int i = 0; i < KV_N_VERBS; i++)
            if (!strcmp(a->input, kv_verbs[i].name)) return begin_verb(a, &kv_verbs[i]);
        if (!strcmp(a->input, "q") || !strcmp(a->input, "quit")) a->quit = true;
        else kv_app_say(a, KV_STYLE_WARN, "no view or verb is named '%s'; ? lists them", a->input);
    }
    return (struct kv_wish){0};
}

/* Completes the word in the command prompt to the first view or verb that begins with it. */
static void complete(struct kv_app *a)
{
    size_t n = strlen(a->input);
    for (int v = 0; v < KV_VIEWS; v++)
        if (!strncmp(a->input, views[v].name, n)) return (void)snprintf(a->input, sizeof a->input, "%s", views[v].name);
    for (int i = 0; i < KV_N_VERBS; i++)
        if (!strncmp(a->input, kv_verbs[i].name, n)) return (void)snprintf(a->input, sizeof a->input, "%s", kv_verbs[i].name);
}

static struct kv_wish prompt_key(struct kv_app *a, int key)
{
    char *text = a->prompt == KV_PROMPT_FILTER ? a->filter[a->view] : a->input;
    size_t cap = a->prompt == KV_PROMPT_FILTER ? sizeof a->filter[0] : sizeof a->input, n = strlen(text);
    if (a->prompt == KV_PROMPT_CONFIRM) {
        a->prompt = KV_PROMPT_NONE;
        if (key == 'y' || key == 'Y') return (struct kv_wish){.kind = KV_WISH_VERB, .verb = a->asked};
        kv_app_say(a, KV_STYLE_NORMAL, "%s: nothing was done", a->asked->name);
        return (struct kv_wish){0};
    }
    if (key == KV_KEY_ENTER) {
        if (a->prompt == KV_PROMPT_FILTER) a->prompt = KV_PROMPT_NONE;
        else return finish_input(a);
    } else if (key == KV_KEY_ESCAPE) {
        if (a->prompt == KV_PROMPT_FILTER) text[0] = 0;
        a->prompt = KV_PROMPT_NONE;
    } else if (key == KV_KEY_BACKSPACE) {
        while (n && ((unsigned char)text[n - 1] & 0xc0) == 0x80) n--;
        if (n) text[n - 1] = 0;
    } else if (key == KV_KEY_TAB && a->prompt == KV_PROMPT_COMMAND) {
        complete(a);
    } else if (key >= 0x20 && key < 0x100 && n + 1 < cap) {
        text[n] = (char)key;
        text[n + 1] = 0;
    }
    return (struct kv_wish){0};
}

static struct kv_wish open_row(struct kv_app *a)
{
    const struct kv_table *t = kv_view_table(a->view);
    const json_t *row = t ? selected_row(a) : NULL;
    struct kv_wish w = {0};
    if (!row || a->detail) return w;
    if (a->view == KV_VIEW_ROLLOUTS) {
        replace(&a->rollout, (json_t *)row);
        show_view(a, KV_VIEW_ROLLOUT);
        return w;
    }
    a->detail = json_incref((json_t *)row);
    a->detail_top = 0;
    const json_t *id = json_object_get(row, a->view == KV_VIEW_FAILURES ? "receipt" : t->id);
    if (a->view == KV_VIEW_RECEIPTS || (a->view == KV_VIEW_FAILURES && json_is_integer(id))) {
        w.kind = KV_WISH_OPEN;
        snprintf(w.text, sizeof w.text, "/api/v1/receipts/%" JSON_INTEGER_FORMAT, json_integer_value(id));
    } else if (a->view == KV_VIEW_POLICIES && json_is_string(id)) {
        w.kind = KV_WISH_OPEN;
        snprintf(w.text, sizeof w.text, "/api/v1/policies/%.80s", json_string_value(id));
    }
    return w;
}

static struct kv_wish copy_id(struct kv_app *a)
{
    const struct kv_table *t = kv_view_table(a->view);
    const json_t *row = t ? selected_row(a) : a->rollout, *id = json_object_get(row, t ? t->id : "id");
    struct kv_wish w = {.kind = KV_WISH_COPY};
    if (json_is_string(id)) snprintf(w.text, sizeof w.text, "%s", json_string_value(id));
    else if (json_is_integer(id)) snprintf(w.text, sizeof w.text, "%" JSON_INTEGER_FORMAT, json_integer_value(id));
    else return (struct kv_wish){0};
    kv_app_say(a, KV_STYLE_NORMAL, "copied %s", w.text);
    return w;
}

struct kv_wish kv_app_key(struct kv_app *a, int key)
{
    struct kv_wish none = {0}, refresh = {.kind = KV_WISH_REFRESH};
    if (a->prompt) return prompt_key(a, key);
    a->message[0] = 0;
    if (key >= '1' && key < '1' + KV_VIEW_HELP) return show_view(a, (enum kv_view)(key - '1')), refresh;
    switch (key) {
    case 'q': a->quit = true; return none;
    case '?': show_view(a, KV_VIEW_HELP); return none;
    case KV_KEY_TAB: show_view(a, (enum kv_view)((a->view + 1) % KV_VIEW_HELP)); return refresh;
    case KV_KEY_BACKTAB: show_view(a, (enum kv_view)((a->view + KV_VIEW_HELP - 1) % KV_VIEW_HELP)); return refresh;
    case KV_KEY_ESCAPE:
        if (a->detail) json_decref(a->detail), a->detail = NULL;
        else if (a->filter[a->view][0]) a->filter[a->view][0] = 0;
        else show_view(a, a->view == KV_VIEW_HELP ? a->back : KV_VIEW_ROLLOUT);
        return none;
    case KV_KEY_UP: select_by(a, -1); return none;
    case 'k': case KV_KEY_PAGE_UP: select_by(a, key == 'k' ? -1 : -15); return none;
    case 'j': case KV_KEY_DOWN: select_by(a, 1); return none;
    case KV_KEY_PAGE_DOWN: select_by(a, 15); return none;
    case KV_KEY_HOME: select_by(a, -MAX_ROWS); return none;
    case KV_KEY_END: select_by(a, a->detail ? 0 : MAX_ROWS); return none;
    case KV_KEY_ENTER: return open_row(a);
    case '/':
        if (kv_view_table(a->view)) a->prompt = KV_PROMPT_FILTER;
        return none;
    case ':': a->prompt = KV_PROMPT_COMMAND; a->input[0] = 0; return none;
    case 'Z': a->frozen = !a->frozen; return none;
    case 'r': return refresh;
    case 'y': return copy_id(a);
    default: break;
    }
    for (int i = 0; i < KV_N_VERBS; i++)
        if (kv_verbs[i].key == key) return begin_verb(a, &kv_verbs[i]);
    return none;
}
