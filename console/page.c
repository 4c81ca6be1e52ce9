/* page.c — what is opened over a view, as lines and links: a record, a policy's difference, a comparison. */
#include "console/app.h"
#include "console/diff.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *text_of(const json_t *o, const char *field)
{
    const char *s = json_string_value(json_object_get(o, field));
    return s ? s : "";
}

/* ---------------------------------------------------------------- links */

static bool all_digits(const char *s)
{
    if (!*s) return false;
    while (isdigit((unsigned char)*s)) s++;
    return !*s;
}

/* Only what has an address of its own is a link: receipts by number, the rollout, the request's other receipts. */
static bool link_of_reason(const json_t *on, char *title, size_t title_cap, char *route, size_t route_cap)
{
    const char *id = text_of(on, "id"), *kind = text_of(on, "kind");
    if (all_digits(id)) {
        snprintf(title, title_cap, "receipt %.20s", id);
        snprintf(route, route_cap, "/api/v1/receipts/%.20s", id);
        return true;
    }
    if (strcmp(kind, "rollout") || strncmp(id, "r_", 2)) return false;
    snprintf(title, title_cap, "%.40s", id);
    snprintf(route, route_cap, "/api/v1/rollouts/%.60s", id);
    return true;
}

bool kv_page_link(const struct kv_page *p, int want, char *title, size_t title_cap, char *route, size_t route_cap)
{
    size_t i;
    json_t *on;
    int at = 0;
    if (p->kind != KV_PAGE_RECORD) return false;
    json_array_foreach(json_object_get(p->data, "rests_on"), i, on)
        if (link_of_reason(on, title, title_cap, route, route_cap) && at++ == want) return true;
    json_array_foreach(json_object_get(p->data, "receipts"), i, on) {
        if (at++ != want) continue;
        snprintf(title, title_cap, "receipt %" JSON_INTEGER_FORMAT, json_integer_value(json_object_get(on, "id")));
        snprintf(route, route_cap, "/api/v1/receipts/%" JSON_INTEGER_FORMAT, json_integer_value(json_object_get(on, "id")));
        return true;
    }
    const char *request = text_of(p->data, "request"), *rollout = text_of(p->data, "rollout");
    if (*request && at++ == want) {
        snprintf(title, title_cap, "%.40s", request);
        snprintf(route, route_cap, "/api/v1/receipts?request=%.60s", request);
        return true;
    }
    if (*rollout && at++ == want) {
        snprintf(title, title_cap, "%.40s", rollout);
        snprintf(route, route_cap, "/api/v1/rollouts/%.60s", rollout);
        return true;
    }
    return false;
}

/* ---------------------------------------------------------------- lines */

/* Links first: what a receipt rests on is what one opens it for. */
static void record_lines(struct kv_lines *l, const struct kv_page *p)
{
    static const struct kv_column at_column = {"at", "at", 8, KV_CELL_TIME, 0};
    char title[64], route[192], text[300], at[32];
    json_t *on, *member, *rests = json_object_get(p->data, "rests_on"), *rows = json_object_get(p->data, "receipts");
    size_t i;
    int link = 0;
    const char *k;
    if (rests) kv_lines_add(l, 0, NULL, KV_STYLE_BOLD, json_array_size(rests) ? "rests on" : "rests on nothing: it is a root");
    json_array_foreach(rests, i, on) {
        snprintf(text, sizeof text, "%.20s  %.64s  %.160s", text_of(on, "kind"), text_of(on, "id"), text_of(on, "title"));
        struct kv_line *line = kv_lines_add(l, 2, NULL, KV_STYLE_NORMAL, text);
        if (line && link_of_reason(on, title, sizeof title, route, sizeof route)) line->link = link++;
    }
    if (rows) kv_lines_add(l, 0, NULL, KV_STYLE_BOLD, json_array_size(rows) ? "id       at       kind         reason             detail" : "no receipt");
    json_array_foreach(rows, i, on) {
        kv_cell_text(on, &at_column, 1, at, sizeof at);
        snprintf(text, sizeof text, "%-8" JSON_INTEGER_FORMAT " %-8.8s %-12.20s %-18.30s %.160s", json_integer_value(json_object_get(on, "id")), at, text_of(on, "kind"), text_of(on, "reason"),
                 text_of(on, "detail"));
        struct kv_line *line = kv_lines_add(l, 0, NULL, KV_STYLE_NORMAL, text);
        if (line) line->link = link++;
    }
    if (rests) kv_lines_add(l, 0, NULL, KV_STYLE_NORMAL, "");
    json_object_foreach(p->data, k, member) {
        if (member == rests || member == rows || (rows && !strcmp(k, "next"))) continue;
        int first = l->n;
        if (kv_evidence_lines(l, p->data, k, member)) continue;
        kv_lines_value(l, 0, k, member);
        /* In the order of kv_page_link: the request, then the rollout. */
        bool linked = json_string_length(member) && (!strcmp(k, "request") || !strcmp(k, "rollout"));
        if (linked && first < l->n) l->line[first].link = link + (!strcmp(k, "rollout") && *text_of(p->data, "request"));
    }
    if (rows && json_is_integer(json_object_get(p->data, "next"))) kv_lines_add(l, 0, NULL, KV_STYLE_DIM, "there are older ones: kvasir receipts find, or the receipts view and its filter");
}

static void diff_lines(struct kv_lines *l, const struct kv_page *p)
{
    size_t i;
    json_t *s;
    kv_lines_members(l, 0, json_object_get(p->data, "check"));
    kv_lines_add(l, 0, NULL, KV_STYLE_BOLD, "against ACTIVE");
    json_array_foreach(json_object_get(p->data, "lines"), i, s) {
        const char *t = json_string_value(s);
        char at[48];
        if (*t == '@') snprintf(at, sizeof at, "line %s", t + 1), kv_lines_add(l, 0, NULL, KV_STYLE_DIM, at);
        else kv_lines_add(l, 0, NULL, *t == '+' ? KV_STYLE_GOOD : *t == '-' ? KV_STYLE_BAD : KV_STYLE_NORMAL, t);
    }
}

static void compare_lines(struct kv_lines *l, const struct kv_page *p)
{
    size_t i;
    json_t *s;
    char text[320];
    int wide = l->cols >= 96 ? 28 : l->cols >= 70 ? 16 : 8;
    kv_lines_add(l, 0, NULL, KV_STYLE_BOLD, text_of(p->data, "summary"));
    snprintf(text, sizeof text, "%5s   %-*s %9s   %-*s %9s", "", wide, "baseline", "logprob", wide, "candidate", "logprob");
    kv_lines_add(l, 0, NULL, KV_STYLE_DIM, text);
    json_array_foreach(json_object_get(p->data, "rows"), i, s) {
        bool same = json_is_true(json_object_get(s, "same"));
        snprintf(text, sizeof text, "%5zu %s %-*.*s %9.3f   %-*.*s %9.3f", i + 1, same ? " " : "≠", wide, wide, text_of(s, "baseline"), json_number_value(json_object_get(s, "baseline_logprob")),
                 wide, wide, text_of(s, "candidate"), json_number_value(json_object_get(s, "candidate_logprob")));
        kv_lines_add(l, 0, NULL, same ? KV_STYLE_NORMAL : KV_STYLE_WARN, text);
    }
}

struct kv_line *kv_page_lines(const struct kv_page *p, int cols, int *n)
{
    struct kv_lines l = {.cols = cols};
    if (p->kind == KV_PAGE_HELP) kv_help_lines(&l);
    else if (!p->data) kv_lines_add(&l, 0, NULL, KV_STYLE_DIM, "loading");
    else if (p->kind == KV_PAGE_DIFF) diff_lines(&l, p);
    else if (p->kind == KV_PAGE_COMPARE) compare_lines(&l, p);
    else record_lines(&l, p);
    *n = l.n;
    return l.line;
}

void kv_app_propose(struct kv_app *a, const char *kind, const json_t *active, const char *source, json_t *answer)
{
    int added, gone;
    json_t *lines = kv_diff_lines(text_of(active, "source"), source, &added, &gone);
    const char *version = text_of(active, "version");
    json_t *data = json_pack("{s:s, s:s, s:s, s:o, s:o}", "kind", kind, "source", source, "base", version, "check", answer, "lines", lines);
    char title[48];
    snprintf(title, sizeof title, "%.20s edited", kind);
    if (!data) return kv_app_say(a, KV_STYLE_BAD, "no memory for the difference");
    snprintf(a->question, sizeof a->question, "activate %.40s %.12s over %.12s: %d added, %d removed; replay: %.80s; for every decision from now on; y/N", text_of(answer, "name"),
             text_of(answer, "version"), version, added, gone, *text_of(answer, "replay") ? text_of(answer, "replay") : "none");
    kv_app_push(a, KV_PAGE_DIFF, title, "", data);
    a->asked = (struct kv_wish){.kind = KV_WISH_ACTIVATE};
    snprintf(a->asked.text, sizeof a->asked.text, "%s", kind);
    a->prompt = KV_PROMPT_CONFIRM;
}
