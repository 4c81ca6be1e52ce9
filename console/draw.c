/* draw.c — the frame around every view: the bar above with where we are, the bar below with what can be done. */
#include "console/views/views.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOW_MS = 1000, NARROW = 60 };

const char *kv_field_text(const json_t *o, const char *field)
{
    const char *s = json_string_value(json_object_get(o, field));
    return s ? s : "";
}

double kv_field_number(const json_t *o, const char *field)
{
    const json_t *v = json_object_get(o, field);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

enum kv_style kv_word_style(const char *word)
{
    static const struct {
        const char *word;
        enum kv_style style;
    } words[] = {{"PASS", KV_STYLE_GOOD}, {"FAIL", KV_STYLE_BAD}, {"INCONCLUSIVE", KV_STYLE_WARN}, {"NO_DATA", KV_STYLE_DIM},
                 {"EXACT_BASELINE", KV_STYLE_BAD}, {"FULL", KV_STYLE_GOOD}, {"SHADOW", KV_STYLE_ACCENT}, {"CANARY", KV_STYLE_WARN},
                 {"RAMP", KV_STYLE_WARN}, {"OFF", KV_STYLE_DIM}, {"ACTIVE", KV_STYLE_GOOD}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(word, words[i].word)) return words[i].style;
    return KV_STYLE_NORMAL;
}

const char *kv_verdict_glyph(const char *verdict)
{
    return !strcmp(verdict, "PASS") ? "✓" : !strcmp(verdict, "FAIL") ? "✗" : !strcmp(verdict, "INCONCLUSIVE") ? "~" : "·";
}

static int draw_crumbs(const struct kv_app *a, struct kv_grid *g)
{
    bool narrow = g->cols < NARROW;
    int c = 1 + (narrow ? kv_grid_printf(g, 0, 1, 0, KV_STYLE_TITLE, "%s", a->depth ? "…" : kv_view_name(a->view))
                        : kv_grid_printf(g, 0, 1, 0, KV_STYLE_TITLE, "kvasir%s%s › %s", a->context[0] ? "@" : "", a->context, kv_view_name(a->view)));
    int from = narrow ? a->depth ? a->depth - 1 : 0 : a->depth > 3 && g->cols < 120 ? a->depth - 2 : 0;
    if (from && !narrow) c += kv_grid_text(g, 0, c, 0, KV_STYLE_TITLE, false, " › …");
    for (int i = from; i < a->depth; i++) c += kv_grid_printf(g, 0, c, 0, KV_STYLE_TITLE, " › %s", a->page[i].title);
    return c;
}

/* Stage and age always stand at the right. Of the words between, those that matter least give way first: a fault that is armed goes last. */
static void draw_top(const struct kv_app *a, struct kv_grid *g)
{
    enum { EPOCH, FAULTS, LATCHED, FROZEN, READONLY, POLICY, WORDS };
    static const unsigned char gives_way[WORDS] = {POLICY, EPOCH, READONLY, FROZEN, LATCHED, FAULTS};
    const json_t *r = json_object_get(a->status, "release"), *armed = json_object_get(json_object_get(a->status, "faults"), "armed");
    const char *policy = kv_field_text(json_object_get(json_object_get(a->status, "policies"), "release"), "version");
    char stage[64], epoch[32] = "", version[24] = "", age[64];
    kv_grid_text(g, 0, 0, 0, KV_STYLE_TITLE, true, "");
    int c = draw_crumbs(a, g);
    double seconds = (double)(a->now_ms - (a->status ? a->heard_ms : a->since_ms)) / 1000;
    if (!a->status) snprintf(stage, sizeof stage, "%s", a->connected ? "waiting" : "connecting");
    else snprintf(stage, sizeof stage, "%s %.4g %%", kv_field_text(r, "stage"), 100 * kv_field_number(r, "fraction"));
    if (a->status && g->cols >= NARROW) snprintf(epoch, sizeof epoch, "  epoch %.0f", kv_field_number(r, "epoch"));
    if (*policy) snprintf(version, sizeof version, "  policy %.8s", policy);
    snprintf(age, sizeof age, "  %s %.1f s", !a->status ? "" : kv_app_stale(a) ? "STALE" : "live", seconds);
    const char *word[WORDS] = {epoch, json_array_size(armed) ? "  FAULTS ARMED" : "", json_is_true(json_object_get(r, "latched")) ? "  LATCHED" : "",
                               json_is_true(json_object_get(r, "frozen")) ? "  releases frozen" : "", a->readonly ? "  read-only" : "", version};
    int room = g->cols - c - 2, n = (int)(strlen(stage) + strlen(age));
    for (int i = 0; i < WORDS; i++) n += (int)strlen(word[i]);
    for (int i = 0; i < WORDS && n > room; i++) n -= (int)strlen(word[gives_way[i]]), word[gives_way[i]] = "";
    int at = g->cols - n - 1;
    kv_grid_printf(g, 0, at > c + 1 ? at : c + 1, 0, a->status && kv_app_stale(a) ? KV_STYLE_SELECTED : KV_STYLE_TITLE, "%s%s%s%s%s%s%s%s", stage, word[EPOCH], word[FAULTS], word[LATCHED],
                   word[FROZEN], word[READONLY], word[POLICY], age);
}

/* The way back first: on a narrow screen the rest is cut. */
static const char *keys_of(const struct kv_app *a)
{
    if (a->depth) return a->page[a->depth - 1].kind == KV_PAGE_RECORD ? "Esc back  R rollback  j k Enter follow a link  / find  y copy" : "Esc back  R rollback  j k scroll  / find";
    switch (a->view) {
    case KV_VIEW_POLICIES: return "R rollback  e edit  Enter source  1-9 views  ? help  q quit";
    case KV_VIEW_SESSIONS: return "R rollback  :pin :unpin :drop  Enter receipts  1-9 views  ? help  q quit";
    case KV_VIEW_RECEIPTS: case KV_VIEW_FAILURES: case KV_VIEW_AUDIT: return "R rollback  Enter open  / filter  s sort  o older  1-9 views  ? help  q quit";
    case KV_VIEW_ROLLOUT: break;
    default: return "R rollback  Enter open  / filter  s sort  1-9 views  Tab next  ? help  q quit";
    }
    if (!strcmp(kv_field_text(a->rollout, "stage"), "EXACT_BASELINE")) return "R rollback  T retry  h history  Enter all  1-9 views  ? help  q quit";
    return "R rollback  a advance  p pause  u resume  Enter all  1-9 views  ? help  q quit";
}

/* A question is never cut: what does not fit on the last row begins above it. */
static void draw_question(struct kv_grid *g, const char *question)
{
    enum { MOST = 4 };
    const char *part[MOST];
    int length[MOST], n = 0, room = g->cols > 3 ? g->cols - 2 : 1;
    for (const char *s = question; *s && n < MOST; n++) {
        int take = (int)strlen(s);
        if (take > room) {
            for (take = room; take > 1 && s[take] != ' ';) take--;
            if (take <= 1) take = room;
        }
        part[n] = s;
        length[n] = take;
        s += take + (s[take] == ' ');
    }
    for (int i = 0; i < n; i++) {
        kv_grid_text(g, g->rows - n + i, 0, 0, KV_STYLE_SELECTED, true, "");
        kv_grid_printf(g, g->rows - n + i, 1, 0, KV_STYLE_SELECTED, "%.*s", length[i], part[i]);
    }
}

static void draw_bottom(const struct kv_app *a, struct kv_grid *g)
{
    int row = g->rows - 1;
    int64_t waited = a->pending[0] ? a->now_ms - a->pending_ms : 0;
    kv_grid_text(g, row, 0, 0, KV_STYLE_TITLE, true, "");
    switch (a->prompt) {
    case KV_PROMPT_CONFIRM: draw_question(g, a->question); return;
    case KV_PROMPT_FILTER: kv_grid_printf(g, row, 1, 0, KV_STYLE_TITLE, "/%s_  Enter keeps, Esc clears", a->filter[a->view]); return;
    case KV_PROMPT_FIND: kv_grid_printf(g, row, 1, 0, KV_STYLE_TITLE, "/%s_  Enter finds, n N go on", a->find); return;
    case KV_PROMPT_COMMAND: kv_grid_printf(g, row, 1, 0, KV_STYLE_TITLE, ":%s_  Tab completes", a->input); return;
    case KV_PROMPT_NAME: kv_grid_printf(g, row, 1, 0, KV_STYLE_SELECTED, "%s%s_", a->question, a->input); return;
    case KV_PROMPT_NONE: break;
    }
    if (waited > SLOW_MS) kv_grid_printf(g, row, 1, 0, KV_STYLE_SELECTED, "%s: %.0f s", a->pending, (double)waited / 1000);
    else if (a->message[0]) kv_grid_text(g, row, 1, 0, a->message_style == KV_STYLE_NORMAL ? KV_STYLE_TITLE : KV_STYLE_SELECTED, true, a->message);
    else if (a->frozen) kv_grid_text(g, row, 1, 0, KV_STYLE_SELECTED, true, "FROZEN: the screen holds still; Z goes on");
    else kv_grid_text(g, row, 1, 0, KV_STYLE_TITLE, false, keys_of(a));
}

void kv_app_draw(const struct kv_app *a, struct kv_grid *g)
{
    enum { LEAST_ROWS = 6 };
    int bar = kv_progress_shows(a) && g->rows >= LEAST_ROWS;
    g->block = a->block;
    kv_grid_clear(g);
    g->rows -= bar; /* views end above the bar */
    if (a->depth) kv_draw_page(a, g);
    else if (a->view == KV_VIEW_ROLLOUT) kv_draw_rollout(a, g);
    else if (kv_view_table(a->view)) kv_draw_list(a, g);
    else kv_draw_credits(a, g);
    g->rows += bar;
    if (bar) kv_draw_progress(a, g);
    draw_top(a, g);
    draw_bottom(a, g);
}
