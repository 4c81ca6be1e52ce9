/* help.c — the keys, and every verb that has one, from the one list of verbs. */
#include "console/views/views.h"

static const char *const keys[][2] = {
    {"1-9 0, Tab", "views: rollout receipts failures policies sessions tiers pipelines rollouts audit credits paused"},
    {"j k, arrows", "move; PgUp PgDn Home End; o loads older receipts"},
    {"Enter, Esc", "open a row, then what it rests on; back"},
    {"/ n N", "filter a list, find on a page; next and previous match; Esc clears"},
    {"s S", "sort by the next column; turn the order round"},
    {"space y", "mark rows; copy the id, or the marked ones"},
    {"e", "on a policy: edit in $EDITOR, checked and compared with ACTIVE before y activates"},
    {":", "a view, a verb, edit KIND, compare PROMPT, context NAME, quit; Tab completes"},
    {"", "on a session: pin, unpin or drop what is kept of it"},
    {"Z r q", "freeze the screen; read the list again; quit"},
};

void kv_draw_help(const struct kv_app *a, struct kv_grid *g)
{
    int row = 2;
    (void)a;
    kv_grid_text(g, 1, 1, 0, KV_STYLE_BOLD, false, "Keys");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        kv_grid_text(g, row, 3, 12, KV_STYLE_ACCENT, true, keys[i][0]);
        kv_grid_text(g, row++, 16, 0, KV_STYLE_NORMAL, false, keys[i][1]);
    }
    kv_grid_text(g, row++, 1, 0, KV_STYLE_BOLD, false, "Verbs");
    for (int i = 0; i < KV_N_VERBS; i++) {
        const struct kv_verb *v = &kv_verbs[i];
        if (!v->key) continue;
        kv_grid_printf(g, row, 3, 0, v->danger == KV_VERB_DANGER ? KV_STYLE_BAD : KV_STYLE_ACCENT, "%c", v->key);
        kv_grid_text(g, row, 6, 9, KV_STYLE_NORMAL, true, v->name);
        kv_grid_text(g, row++, 16, 0, KV_STYLE_NORMAL, false, v->help);
    }
}
