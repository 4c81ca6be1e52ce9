/* app_case.h — a console without a terminal, in a state of its own before every test: a candidate in CANARY and two failures. */
#ifndef KV_APP_CASE_H
#define KV_APP_CASE_H

#include "console/app.h"

#include <check.h>

extern struct kv_app app;
extern struct kv_grid grid;
extern const char *const APP_STATUS;

/* A test case whose tests begin with that state. */
TCase *app_case(const char *name);
/* What the stream of events brings. */
void app_event(const char *name, const char *text);
/* The screen's rows, each with its newline. */
const char *app_screen(void);
/* what stands on the screen; runs of spaces count as one: how columns stand is the golden screens' business. */
void app_expect(const char *what);

#endif
