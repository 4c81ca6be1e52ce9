/* views.h — what the views share when they draw: fields of JSON, words in their colours, rows of a table. */
#ifndef KV_VIEWS_H
#define KV_VIEWS_H

#include "console/app.h"

const char *kv_field_text(const json_t *o, const char *field); /* "" when absent */
double kv_field_number(const json_t *o, const char *field);    /* NaN when absent */
enum kv_style kv_word_style(const char *word);
const char *kv_verdict_glyph(const char *verdict);
void kv_draw_cells(struct kv_grid *g, int row, const struct kv_table *t, const json_t *data, enum kv_style style);
int kv_draw_layers(const struct kv_app *a, struct kv_grid *g);     /* the same */
int kv_draw_tournament(const struct kv_app *a, struct kv_grid *g); /* above the last row; returns the rows it took, 0 when there is none */

void kv_draw_rollout(const struct kv_app *a, struct kv_grid *g);
void kv_draw_list(const struct kv_app *a, struct kv_grid *g);
void kv_draw_page(const struct kv_app *a, struct kv_grid *g);
void kv_draw_header(struct kv_grid *g, int row, const struct kv_table *t, int sort, bool descending); /* sort: as in kv_app */
void kv_draw_credits(const struct kv_app *a, struct kv_grid *g);
bool kv_progress_shows(const struct kv_app *a);
void kv_draw_progress(const struct kv_app *a, struct kv_grid *g); /* above the last row: what has taken over a second */

#endif
