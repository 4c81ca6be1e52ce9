/* app.h — what the terminal console knows and shows, apart from the terminal and the network. */
#ifndef KV_APP_H
#define KV_APP_H

#include "console/grid.h"
#include "console/tables.h"
#include "console/verbs.h"

#include <jansson.h>
#include <stdint.h>

enum kv_view { KV_VIEW_ROLLOUT, KV_VIEW_RECEIPTS, KV_VIEW_FAILURES, KV_VIEW_POLICIES, KV_VIEW_SESSIONS, KV_VIEW_TIERS, KV_VIEW_PIPELINES, KV_VIEW_ROLLOUTS, KV_VIEW_HELP, KV_VIEWS };

enum kv_prompt { KV_PROMPT_NONE, KV_PROMPT_CONFIRM, KV_PROMPT_FILTER, KV_PROMPT_COMMAND, KV_PROMPT_NAME };

#define KV_HISTORY 240
struct kv_series {
    double v[KV_HISTORY];
    int n;
};

struct kv_app {
    char url[256];
    bool readonly, frozen, quit, ascii;
    enum kv_view view, back;
    json_t *status, *rollout;          /* latest by the event stream */
    json_t *list[KV_VIEWS];            /* answer of each list's route */
    json_t *detail;                    /* opened row */
    int detail_top;
    int selected[KV_VIEWS], top[KV_VIEWS];
    char filter[KV_VIEWS][64];
    int64_t now_ms, heard_ms;          /* monotonic; heard: last event */
    bool connected;
    char message[320];
    enum kv_style message_style;
    enum kv_prompt prompt;
    const struct kv_verb *asked;       /* verb a confirmation or an input is about */
    char input[128], asked_question[256];
    struct kv_series tokens_per_s, p50, p99, mass;
};

/* What the network side must do next; the app never talks itself. */
enum kv_wish_kind { KV_WISH_NONE, KV_WISH_REFRESH, KV_WISH_OPEN, KV_WISH_VERB, KV_WISH_COPY };
struct kv_wish {
    enum kv_wish_kind kind;
    const struct kv_verb *verb;
    double fraction;    /* of ramp */
    char text[128];     /* route to open, or text to copy */
};

const char *kv_view_name(enum kv_view v);
const struct kv_table *kv_view_table(enum kv_view v); /* NULL for views that are no list */

void kv_app_init(struct kv_app *a);
void kv_app_free(struct kv_app *a);
void kv_app_event(struct kv_app *a, const char *name, json_t *data); /* borrows data */
void kv_app_list(struct kv_app *a, enum kv_view v, json_t *answer);  /* takes answer */
void kv_app_say(struct kv_app *a, enum kv_style style, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool kv_app_stale(const struct kv_app *a);
/* Rows of a view that pass its filter, newest first as served. */
size_t kv_app_rows(const struct kv_app *a, enum kv_view v, const json_t **out, size_t cap);

/* Keys: ASCII, or one of these. */
enum { KV_KEY_UP = 0x101, KV_KEY_DOWN, KV_KEY_PAGE_UP, KV_KEY_PAGE_DOWN, KV_KEY_HOME, KV_KEY_END, KV_KEY_ENTER, KV_KEY_ESCAPE, KV_KEY_BACKSPACE, KV_KEY_TAB, KV_KEY_BACKTAB };
struct kv_wish kv_app_key(struct kv_app *a, int key);

void kv_app_draw(const struct kv_app *a, struct kv_grid *g);

#endif
