/* app.h — what the terminal console knows and shows, apart from the terminal and the network. */
#ifndef KV_APP_H
#define KV_APP_H

#include "console/lines.h"
#include "console/tables.h"
#include "console/verbs.h"

#include <jansson.h>
#include <stdint.h>

enum kv_view {
    KV_VIEW_ROLLOUT, KV_VIEW_RECEIPTS, KV_VIEW_FAILURES, KV_VIEW_POLICIES, KV_VIEW_SESSIONS, KV_VIEW_TIERS, KV_VIEW_PIPELINES, KV_VIEW_ROLLOUTS,
    KV_VIEW_AUDIT, KV_VIEW_CREDITS, KV_VIEW_PAUSED, KV_VIEW_PROGRESS, KV_VIEWS
};

enum kv_prompt { KV_PROMPT_NONE, KV_PROMPT_CONFIRM, KV_PROMPT_FILTER, KV_PROMPT_FIND, KV_PROMPT_COMMAND, KV_PROMPT_NAME };

enum { KV_HISTORY = 240, KV_PAGES = 12, KV_SAID = 32, KV_ROWS_KEPT = 20000, KV_ROWS_STREAMED = 2000 };

struct kv_series {
    double v[KV_HISTORY];
    int n;
};

/* What the network side must do next; the app never talks itself. */
enum kv_wish_kind {
    KV_WISH_NONE, KV_WISH_REFRESH, KV_WISH_OLDER, KV_WISH_OPEN, KV_WISH_VERB, KV_WISH_COPY, KV_WISH_EDIT, KV_WISH_ACTIVATE, KV_WISH_CONTEXT, KV_WISH_COMPARE, KV_WISH_SESSION, KV_WISH_FAULT, KV_WISH_EVIDENCE
};
struct kv_wish {
    enum kv_wish_kind kind;
    const struct kv_verb *verb;
    double fraction; /* of ramp */
    char text[512];  /* route to open, ids to copy, kind of policy, context, prompt, or "verb\ntenant\nsession" */
};

enum kv_page_kind { KV_PAGE_RECORD, KV_PAGE_DIFF, KV_PAGE_COMPARE, KV_PAGE_HELP };

/* One thing opened over a view; pages lie on each other, Esc takes the topmost away. */
struct kv_page {
    enum kv_page_kind kind;
    char title[48], route[192]; /* route: whose answer fills it */
    json_t *data;
    int top, link; /* first line shown; chosen link */
};

struct kv_app {
    char url[256], context[64];
    bool readonly, frozen, quit, ascii, block;
    enum kv_view view;
    int cols; /* of the screen: what pages are broken for */
    json_t *status, *rollout;         /* latest by the event stream */
    json_t *tasks;                    /* what takes a while: of the status, or asked for while the server starts */
    json_t *list[KV_VIEWS];           /* answer of each view's route */
    bool older[KV_VIEWS];             /* older rows were asked for: then KV_ROWS_KEPT stay, else KV_ROWS_STREAMED */
    bool absent[KV_VIEWS];            /* this kvasird does not serve the view's route */
    json_t *marked[KV_VIEWS];         /* ids marked by space */
    json_t *picked[KV_VIEWS];         /* row the cursor stays on while others arrive; NULL: the first */
    int selected[KV_VIEWS], sort[KV_VIEWS]; /* sort: 0 as served, else column number from 1 */
    bool descending[KV_VIEWS];
    char filter[KV_VIEWS][64], find[64];
    struct kv_page page[KV_PAGES];
    int depth;
    int64_t now_ms, heard_ms, since_ms; /* monotonic; heard: last event, since: started or switched */
    bool connected;
    char message[512];
    enum kv_style message_style;
    enum kv_prompt prompt;
    struct kv_wish asked;             /* what y or the typed name lets happen */
    char input[256], question[320];
    char said[KV_SAID][256];          /* commands, newest last */
    int n_said, at_said;
    char pending[96];                 /* what an answer is awaited for */
    int64_t pending_ms;
    json_t *draft;                    /* kind of policy → text that was edited and is not active */
    struct kv_series tokens_per_s, p50, p99, mass;
};

const char *kv_view_name(enum kv_view v);
const char *kv_view_route(enum kv_view v);            /* NULL where nothing is fetched */
const struct kv_table *kv_view_table(enum kv_view v); /* NULL for views that are no list */
bool kv_view_long(enum kv_view v);                    /* its list has older rows than were fetched */

void kv_app_init(struct kv_app *a);
void kv_app_free(struct kv_app *a);
/* Another daemon: forgets what was shown, keeps what was chosen. */
void kv_app_switch(struct kv_app *a, const char *context, const char *url);
void kv_app_event(struct kv_app *a, const char *name, json_t *data); /* borrows data */
void kv_app_list(struct kv_app *a, enum kv_view v, json_t *answer);  /* takes answer */
void kv_app_history(struct kv_app *a, const json_t *answer);          /* the lines' past, before the stream's own values */
void kv_app_tasks(struct kv_app *a, json_t *answer); /* borrows the answer of /api/v1/progress */
void kv_app_older(struct kv_app *a, enum kv_view v, json_t *answer); /* takes answer */
void kv_app_say(struct kv_app *a, enum kv_style style, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void kv_app_await(struct kv_app *a, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* "" ends it */
bool kv_app_stale(const struct kv_app *a);
void kv_app_show(struct kv_app *a, enum kv_view v);
/* Rows of a view that pass its filter, in its order. */
size_t kv_app_rows(const struct kv_app *a, enum kv_view v, const json_t **out, size_t cap);
size_t kv_app_selected(const struct kv_app *a, enum kv_view v, const json_t **rows, size_t n);
void kv_row_id(const struct kv_table *t, const json_t *row, char *out, size_t cap);

/* Pages. push takes data, which may be NULL until the answer of route comes. */
struct kv_page *kv_app_page(struct kv_app *a);
void kv_app_push(struct kv_app *a, enum kv_page_kind kind, const char *title, const char *route, json_t *data);
void kv_app_pop(struct kv_app *a);
void kv_app_fill(struct kv_app *a, const char *route, json_t *data); /* borrows data */
/* Where a page's links lead: title and route of the i-th. False when there are fewer. */
bool kv_page_link(const struct kv_page *p, int i, char *title, size_t title_cap, char *route, size_t route_cap);

/* The lines of a page, made anew for each drawing and each search; the caller frees. */
struct kv_line *kv_page_lines(const struct kv_page *p, int cols, int *n);
void kv_help_lines(struct kv_lines *l);

/* A checked edit: shows what changes and asks. Takes answer (of the check), source and active are borrowed. */
void kv_app_propose(struct kv_app *a, const char *kind, const json_t *active, const char *source, json_t *answer);

/* Keys: ASCII, or one of these. */
enum { KV_KEY_UP = 0x101, KV_KEY_DOWN, KV_KEY_PAGE_UP, KV_KEY_PAGE_DOWN, KV_KEY_HOME, KV_KEY_END, KV_KEY_ENTER, KV_KEY_ESCAPE, KV_KEY_BACKSPACE, KV_KEY_TAB, KV_KEY_BACKTAB };
struct kv_wish kv_app_key(struct kv_app *a, int key);
struct kv_wish kv_app_click(struct kv_app *a, int row, int rows, bool twice); /* the mouse, on a screen of so many rows */
struct kv_wish kv_app_begin_verb(struct kv_app *a, const struct kv_verb *verb);
struct kv_wish kv_app_prompt_key(struct kv_app *a, int key);
/* Drills, or the gates of a dry run, as rows; false: the member is neither. */
bool kv_evidence_lines(struct kv_lines *l, const json_t *page, const char *member, const json_t *rows);
struct kv_wish kv_app_evidence(struct kv_app *a, const char *word, const char *rest); /* the commands drill and dry-run */
const json_t *kv_app_row(const struct kv_app *a); /* the chosen row of this view's list, NULL without */
void kv_app_move(struct kv_app *a, int step);
void kv_app_find(struct kv_app *a, int direction); /* next or previous match */

void kv_app_draw(const struct kv_app *a, struct kv_grid *g);

#endif
