/* terminal.h — ncurses: colours, keys, the mouse, cells on the screen, and the terminal given back whatever happens. */
#ifndef KV_TERMINAL_H
#define KV_TERMINAL_H

#include "console/app.h"

enum kv_look { KV_LOOK_AUTO, KV_LOOK_DARK, KV_LOOK_LIGHT };

void kv_terminal_open(enum kv_look look, bool mouse);
void kv_terminal_close(void);
bool kv_terminal_stopped(void); /* a signal asked for the end */
/* Reads every key that waits into the app; wishes go to grant. True when there was any. */
bool kv_terminal_keys(struct kv_app *a, void (*grant)(void *ctx, struct kv_wish w), void *ctx);
bool kv_terminal_draw(struct kv_app *a, struct kv_grid *g); /* false: the screen cannot be had */
bool kv_terminal_resized(const struct kv_grid *g);
/* VISUAL, EDITOR or vi on text; the screen is lent meanwhile. NULL with the reason in why. The caller frees. */
char *kv_terminal_edit(const char *kind, const char *text, char *why, size_t cap);

#endif
