/* eval_report.h — what kvasir eval prints: a row per pipeline and suite, as a table and as JSON. */
#ifndef KV_EVAL_REPORT_H
#define KV_EVAL_REPORT_H

#include "runtime/evaluate/trial.h"

#include <jansson.h>

struct kv_eval_row {
    const struct kv_suite *suite;
    const struct kv_trial_setup *setup;
    const char *variant;              /* "page_rows=8" in a sweep; NULL else */
    const char *baseline_name;        /* which of the source's baselines it is; NULL else */
    const struct kv_trial *trial, *baseline; /* baseline NULL: this is it */
    const struct kv_task *tasks;
    const char *insane;               /* why the suite is not scored; NULL: it is */
};

json_t *kv_eval_row_json(const struct kv_eval_row *r);
void kv_eval_table_head(const struct kv_suite *s, int32_t length, int32_t samples);
void kv_eval_table_row(const struct kv_eval_row *r);
void kv_eval_baseline_head(const struct kv_suite *s, int32_t length, int32_t samples, bool emulated);
void kv_eval_baseline_row(const struct kv_eval_row *r);
/* A baseline that this pipeline cannot be: r has no trial, why says what it lacks. Every figure is null. */
json_t *kv_eval_missing_json(const struct kv_eval_row *r, const char *why);
void kv_eval_missing_row(const struct kv_eval_row *r, const char *why);

#endif
