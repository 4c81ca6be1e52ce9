/* evidence.c — the commands drill and dry-run: what the shown rollout's gates rest on, opened as pages. */
#include "console/app.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kv_wish none = {0};

static struct kv_wish ask(struct kv_app *a, const char *title, const char *route, json_t *body)
{
    struct kv_wish w = {.kind = KV_WISH_EVIDENCE};
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    snprintf(w.text, sizeof w.text, "%.190s\n%.300s", route, text ? text : "");
    free(text);
    json_decref(body);
    kv_app_push(a, KV_PAGE_RECORD, title, route, NULL);
    return w;
}

static bool a_name(const char *s)
{
    return *s && strlen(s) < 40 && !s[strspn(s, "abcdefghijklmnopqrstuvwxyz_")];
}

struct kv_wish kv_app_evidence(struct kv_app *a, const char *word, const char *rest)
{
    const char *id = json_string_value(json_object_get(a->rollout, "id"));
    char name[64] = "", route[192], title[48];
    double threshold;
    if (!id) return kv_app_say(a, KV_STYLE_NORMAL, "there is no rollout yet, so nothing to drill or judge"), none;
    int n = sscanf(rest, "%63s %lf", name, &threshold);
    if (n > 0 && !a_name(name)) return kv_app_say(a, KV_STYLE_WARN, "names are small letters and _"), none;
    if (!strcmp(word, "dry-run")) {
        if (n < 1) return kv_app_say(a, KV_STYLE_NORMAL, "dry-run METRIC [THRESHOLD]: another gate on the same samples; kvasir rollout samples saves them"), none;
        json_t *gate = n > 1 ? json_pack("{s:s, s:f}", "metric", name, "threshold", threshold) : json_pack("{s:s}", "metric", name);
        snprintf(title, sizeof title, "dry run of %.34s", name);
        return ask(a, title, "/api/v1/gates/dry-run", json_pack("{s:s, s:[o]}", "rollout", id, "gates", gate));
    }
    if (n < 1) {
        snprintf(route, sizeof route, "/api/v1/drills?rollout=%.64s", id);
        return ask(a, "drills", route, NULL);
    }
    if (a->readonly) return kv_app_say(a, KV_STYLE_WARN, "this console is read-only (--readonly)"), none;
    if (kv_app_stale(a)) return kv_app_say(a, KV_STYLE_WARN, "the data is stale; nothing is run until the server answers again"), none;
    snprintf(route, sizeof route, "/api/v1/drills/%.60s", name);
    snprintf(title, sizeof title, "drill %.40s", name);
    return ask(a, title, route, json_pack("{s:s}", "rollout", id));
}

bool kv_evidence_lines(struct kv_lines *l, const json_t *page, const char *member, const json_t *rows)
{
    const struct kv_table *t = !strcmp(member, "drills") || !strcmp(member, "flight") || (!strcmp(member, "gates") && json_object_get(page, "decided_by")) ? kv_table_find(member) : NULL;
    char text[320], cell[160];
    if (!t) return false;
    for (size_t i = 0; i <= json_array_size(rows); i++) {
        size_t n = 0;
        for (const struct kv_column *c = t->column; c->title && n < sizeof text - 1; c++) {
            if (i) kv_cell_text(json_array_get(rows, i - 1), c, 1, cell, sizeof cell);
            int k = snprintf(text + n, sizeof text - n, "%-*.*s ", c->width, c->width ? c->width : 120, i ? cell : c->title);
            n += k > 0 ? (size_t)k : 0;
        }
        kv_lines_add(l, 0, NULL, i ? KV_STYLE_NORMAL : KV_STYLE_BOLD, text);
    }
    return true;
}
