/* tables.c — columns of every list, and a cell as text. */
#include "console/tables.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const struct kv_table kv_tables[] = {
    {"rollouts", "/api/v1/rollouts", "rollouts", "id",
     {{"id", "id", 9, KV_CELL_TEXT}, {"name", "name", 18, KV_CELL_TEXT}, {"stage", "stage", 14, KV_CELL_TEXT},
      {"share", "fraction", 6, KV_CELL_PERCENT}, {"pipeline", "pipeline", 10, KV_CELL_TEXT},
      {"contract", "contract", 11, KV_CELL_TEXT}, {"live", "live", 4, KV_CELL_BOOL}, {"paused", "paused", 6, KV_CELL_BOOL},
      {"created", "created_at", 8, KV_CELL_TIME}}},
    {"gates", "", "gates", "name",
     {{"verdict", "verdict", 12, KV_CELL_TEXT}, {"gate", "name", 20, KV_CELL_TEXT}, {"value", "value", 10, KV_CELL_FLOAT},
      {"lower", "lower", 10, KV_CELL_FLOAT}, {"upper", "upper", 10, KV_CELL_FLOAT}, {"limit", "threshold", 10, KV_CELL_FLOAT},
      {"n", "n", 7, KV_CELL_INT}, {"min", "min_n", 6, KV_CELL_INT}, {"unit", "unit", 8, KV_CELL_TEXT}, {"why", "detail", 0, KV_CELL_TEXT}}},
    {"drills", "/api/v1/drills", "drills", "name",
     {{"state", "state", 10, KV_CELL_TEXT}, {"drill", "name", 20, KV_CELL_TEXT}, {"at", "at", 8, KV_CELL_TIME}, {"checks", "checks", 7, KV_CELL_INT}, {"failed", "violations", 7, KV_CELL_INT},
      {"seconds", "seconds", 8, KV_CELL_FLOAT}, {"receipt", "receipt", 8, KV_CELL_INT}, {"detail", "detail", 0, KV_CELL_TEXT}}},
    {"transitions", "", "transitions", "receipt",
     {{"at", "at", 8, KV_CELL_TIME}, {"from", "from", 14, KV_CELL_TEXT}, {"to", "to", 14, KV_CELL_TEXT},
      {"epoch", "epoch", 5, KV_CELL_INT, 100}, {"receipt", "receipt", 7, KV_CELL_INT}, {"reason", "reason", 17, KV_CELL_TEXT},
      {"actor", "actor", 16, KV_CELL_TEXT, 100}, {"detail", "detail", 0, KV_CELL_TEXT}}},
    {"receipts", "/api/v1/receipts", "receipts", "id",
     {{"id", "id", 7, KV_CELL_INT}, {"at", "at", 8, KV_CELL_TIME}, {"kind", "kind", 12, KV_CELL_TEXT},
      {"reason", "reason", 17, KV_CELL_TEXT}, {"rollout", "rollout", 9, KV_CELL_TEXT, 110}, {"published", "published", 11, KV_CELL_TEXT, 110},
      {"request", "request", 14, KV_CELL_TEXT}, {"tenant", "tenant", 8, KV_CELL_TEXT, 130}, {"detail", "detail", 0, KV_CELL_TEXT}}},
    {"failures", "/api/v1/failures", "failures", "id",
     {{"id", "id", 7, KV_CELL_INT}, {"at", "at", 8, KV_CELL_TIME}, {"reason", "reason", 20, KV_CELL_TEXT},
      {"class", "class", 9, KV_CELL_TEXT, 110}, {"rollout", "rollout", 9, KV_CELL_TEXT, 110}, {"request", "request", 14, KV_CELL_TEXT, 110},
      {"receipt", "receipt", 7, KV_CELL_INT}, {"detail", "detail", 0, KV_CELL_TEXT}}},
    {"flight", "/api/v1/flight", "flight", "order",
     {{"request", "request", 14, KV_CELL_TEXT, 110}, {"position", "position", 8, KV_CELL_INT}, {"layer", "layer", 5, KV_CELL_INT}, {"head", "kv_head", 4, KV_CELL_INT},
      {"rows", "rows", 6, KV_CELL_INT}, {"of", "frontier", 6, KV_CELL_INT}, {"covered", "covered", 7, KV_CELL_INT}, {"index", "index", 6, KV_CELL_INT, 110}, {"mass", "omitted_mass", 9, KV_CELL_FLOAT, 100},
      {"widened", "widened", 7, KV_CELL_BOOL, 120}, {"support", "support", 16, KV_CELL_TEXT, 140}, {"status", "status", 18, KV_CELL_TEXT}, {"action", "action", 0, KV_CELL_TEXT}}},
    {"faults", "/api/v1/faults", "faults", "name",
     {{"fault", "name", 27, KV_CELL_TEXT}, {"strikes at", "class", 10, KV_CELL_TEXT}, {"expects", "expects", 24, KV_CELL_TEXT}, {"action", "action", 18, KV_CELL_TEXT},
      {"armed", "armed", 5, KV_CELL_BOOL}, {"hits", "hits", 5, KV_CELL_INT}, {"last run", "outcome", 8, KV_CELL_TEXT}, {"meaning", "meaning", 0, KV_CELL_TEXT}}},
    {"policies", "/api/v1/policies", "policies", "kind",
     {{"kind", "kind", 10, KV_CELL_TEXT}, {"name", "name", 24, KV_CELL_TEXT}, {"version", "version", 12, KV_CELL_HEX},
      {"state", "state", 9, KV_CELL_TEXT}, {"since", "activated_at", 8, KV_CELL_TIME}, {"faults", "faults", 6, KV_CELL_INT}}},
    {"sessions", "/api/v1/sessions", "sessions", "session",
     {{"session", "session", 18, KV_CELL_TEXT}, {"tenant", "tenant", 10, KV_CELL_TEXT}, {"arm", "arm", 10, KV_CELL_TEXT},
      {"requests", "requests", 8, KV_CELL_INT, 110}, {"tokens", "tokens", 8, KV_CELL_INT}, {"last", "last_at", 8, KV_CELL_TIME},
      {"history", "state", 16, KV_CELL_TEXT}, {"kept", "saved_bytes", 9, KV_CELL_BYTES}, {"restored", "restores", 8, KV_CELL_INT},
      {"pinned", "pinned", 6, KV_CELL_BOOL}}},
    {"tiers", "/api/v1/tiers", "tiers", "name",
     {{"tier", "name", 8, KV_CELL_TEXT}, {"emulated", "emulated", 8, KV_CELL_BOOL}, {"used", "used_bytes", 10, KV_CELL_BYTES},
      {"capacity", "capacity_bytes", 10, KV_CELL_BYTES}, {"persistent", "persistent_bytes", 10, KV_CELL_BYTES, 120}, {"staging", "staging_bytes", 10, KV_CELL_BYTES, 100},
      {"pinned", "pinned_bytes", 9, KV_CELL_BYTES, 140}, {"scratch", "scratch_bytes", 9, KV_CELL_BYTES, 140},
      {"came in", "bytes_in", 10, KV_CELL_BYTES}, {"went out", "bytes_out", 10, KV_CELL_BYTES}, {"hits", "hits", 7, KV_CELL_INT},
      {"misses", "misses", 9, KV_CELL_INT, 100}, {"moving", "transfers_in_flight", 6, KV_CELL_INT, 110}, {"failures", "failures", 8, KV_CELL_INT}, {"breaker", "breaker", 7, KV_CELL_TEXT, 100}, {"objects", "objects", 8, KV_CELL_INT, 140},
      {"last failure", "last_failure.reason", 20, KV_CELL_TEXT, 110}}},
    {"pipelines", "/api/v1/pipelines", "pipelines", "name",
     {{"name", "name", 18, KV_CELL_TEXT}, {"built", "built", 5, KV_CELL_BOOL}, {"exactness", "exactness", 11, KV_CELL_TEXT},
      {"placement", "placement", 13, KV_CELL_TEXT}, {"selector", "selector", 16, KV_CELL_TEXT}, {"byte cost", "byte_cost", 9, KV_CELL_FLOAT, 110}, {"unit", "unit", 12, KV_CELL_TEXT},
      {"section", "section", 10, KV_CELL_TEXT}, {"tier", "tier", 0, KV_CELL_TEXT}}},
    {"tournament", "/api/v1/tournament", "entries", "pipeline",
     {{"rank", "rank", 4, KV_CELL_INT}, {"pipeline", "pipeline", 10, KV_CELL_TEXT}, {"verdict", "verdict", 7, KV_CELL_TEXT}, {"bytes", "bytes", 10, KV_CELL_BYTES},
      {"low", "bytes_low", 10, KV_CELL_BYTES, 100}, {"high", "bytes_high", 10, KV_CELL_BYTES, 100}, {"of all", "share", 8, KV_CELL_PERCENT}, {"rows", "rows", 7, KV_CELL_FLOAT},
      {"mass", "mass", 7, KV_CELL_FLOAT}, {"low", "mass_low", 7, KV_CELL_FLOAT, 120}, {"high", "mass_high", 7, KV_CELL_FLOAT, 120}, {"at", "at", 6, KV_CELL_FLOAT}, {"of", "budget", 0, KV_CELL_TEXT}}},
    {"credits", "/api/v1/credits", "credits", "name",
     {{"credit", "name", 9, KV_CELL_TEXT}, {"total", "total", 10, KV_CELL_AMOUNT}, {"used", "used", 10, KV_CELL_AMOUNT},
      {"free", "free", 10, KV_CELL_AMOUNT}, {"peak", "peak", 10, KV_CELL_AMOUNT}}},
    {"progress", "/api/v1/progress", "tasks", "id",
     {{"id", "id", 14, KV_CELL_TEXT}, {"kind", "kind", 9, KV_CELL_TEXT}, {"done", "done", 8, KV_CELL_INT}, {"of", "total", 8, KV_CELL_INT},
      {"unit", "unit", 9, KV_CELL_TEXT}, {"seconds", "seconds", 8, KV_CELL_FLOAT}, {"what", "what", 0, KV_CELL_TEXT}}},
    {"holders", "", "holders", "request",
     {{"holds", "request", 14, KV_CELL_TEXT}, {"for", "what", 12, KV_CELL_TEXT}, {"age s", "seconds", 8, KV_CELL_FLOAT}, {"bytes", "backend_bytes", 10, KV_CELL_BYTES},
      {"staging", "staging_bytes", 10, KV_CELL_BYTES}, {"slots", "queue_slots", 5, KV_CELL_INT}, {"sharers", "sharers", 7, KV_CELL_INT}}},
    {"waiters", "", "waiters", "request",
     {{"waits", "request", 14, KV_CELL_TEXT}, {"for", "what", 12, KV_CELL_TEXT}, {"age s", "seconds", 8, KV_CELL_FLOAT}, {"lacks", "lacks", 0, KV_CELL_TEXT}}},
    {"interruptions", "/api/v1/interruptions", "interruptions", "session",
     {{"session", "session", 16, KV_CELL_TEXT}, {"tenant", "tenant", 8, KV_CELL_TEXT, 100}, {"epoch", "pause_epoch", 5, KV_CELL_INT, 150},
      {"state", "state", 14, KV_CELL_TEXT}, {"action", "action", 8, KV_CELL_TEXT}, {"age s", "seconds", 7, KV_CELL_FLOAT},
      {"held", "held_bytes", 9, KV_CELL_BYTES, 90}, {"out", "swapped_bytes", 9, KV_CELL_BYTES, 100}, {"preserve", "waste_byte_ms.preserve", 10, KV_CELL_FLOAT, 140},
      {"swap", "waste_byte_ms.swap", 10, KV_CELL_FLOAT, 140}, {"discard", "waste_byte_ms.discard", 10, KV_CELL_FLOAT, 140}, {"revised", "revisions", 7, KV_CELL_INT, 170},
      {"result", "result_state", 10, KV_CELL_TEXT}, {"call", "call_id", 0, KV_CELL_TEXT}}},
    {"audit", "/api/v1/audit", "receipts", "id",
     {{"id", "id", 7, KV_CELL_INT}, {"at", "at", 8, KV_CELL_TIME}, {"reason", "reason", 17, KV_CELL_TEXT},
      {"rollout", "rollout", 9, KV_CELL_TEXT}, {"what", "detail", 0, KV_CELL_TEXT}}},
    {NULL, NULL, NULL, NULL, {{NULL, NULL, 0, KV_CELL_TEXT}}},
};

const struct kv_table *kv_table_find(const char *name)
{
    for (const struct kv_table *t = kv_tables; t->name; t++)
        if (!strcmp(t->name, name)) return t;
    return NULL;
}

void kv_bytes_text(double v, char *out, size_t cap)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int i = 0;
    while (v >= 1024 && i < 4) v /= 1024, i++;
    snprintf(out, cap, i ? "%.1f %s" : "%.0f %s", v, unit[i]);
}

static void amount_text(double v, const char *unit, char *out, size_t cap)
{
    if (unit && !strcmp(unit, "bytes")) kv_bytes_text(v, out, cap);
    else snprintf(out, cap, "%.0f %s", v, unit ? unit : "");
}

/* "2026-01-01T10:20:30.123456Z" to the local hour, minute and second. */
static void time_text(const char *s, char *out, size_t cap)
{
    struct tm utc = {0}, local;
    if (sscanf(s, "%d-%d-%dT%d:%d:%d", &utc.tm_year, &utc.tm_mon, &utc.tm_mday, &utc.tm_hour, &utc.tm_min, &utc.tm_sec) != 6) {
        snprintf(out, cap, "%s", s);
        return;
    }
    utc.tm_year -= 1900;
    utc.tm_mon -= 1;
    time_t at = timegm(&utc);
    localtime_r(&at, &local);
    strftime(out, cap, "%H:%M:%S", &local);
}

const json_t *kv_cell_value(const json_t *row, const struct kv_column *c)
{
    char outer[32];
    const char *dot = strchr(c->field, '.');
    if (!dot) return json_object_get(row, c->field);
    snprintf(outer, sizeof outer, "%.*s", (int)(dot - c->field), c->field);
    return json_object_get(json_object_get(row, outer), dot + 1);
}

void kv_cell_text(const json_t *row, const struct kv_column *c, int ascii, char *out, size_t cap)
{
    const json_t *v = kv_cell_value(row, c);
    if (!v || json_is_null(v)) {
        snprintf(out, cap, "%s", ascii ? "-" : "–");
        return;
    }
    switch (c->kind) {
    case KV_CELL_PERCENT: snprintf(out, cap, "%.4g %%", 100 * json_number_value(v)); return;
    case KV_CELL_BYTES: kv_bytes_text(json_number_value(v), out, cap); return;
    case KV_CELL_AMOUNT: amount_text(json_number_value(v), json_string_value(json_object_get(row, "unit")), out, cap); return;
    case KV_CELL_BOOL: snprintf(out, cap, "%s", json_is_true(v) ? "yes" : "no"); return;
    case KV_CELL_TIME: time_text(json_is_string(v) ? json_string_value(v) : "", out, cap); return;
    case KV_CELL_HEX: snprintf(out, cap, "%.12s", json_is_string(v) ? json_string_value(v) : ""); return;
    default: break;
    }
    if (json_is_string(v)) snprintf(out, cap, "%s", json_string_value(v));
    else if (json_is_integer(v)) snprintf(out, cap, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_real(v)) kv_number_text(json_real_value(v), out, cap);
    else if (json_is_boolean(v)) snprintf(out, cap, "%s", json_is_true(v) ? "yes" : "no");
    else {
        char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
        snprintf(out, cap, "%s", text ? text : "");
        free(text);
    }
}

void kv_number_text(double v, char *out, size_t cap)
{
    snprintf(out, cap, fabs(v) >= 1e4 && fabs(v) < 1e9 ? "%.0f" : "%.4g", v);
}

void kv_plain_text(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        bool c1 = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0;
        bool turns = c[0] == 0xe2 && ((c[1] == 0x80 && c[2] >= 0xaa && c[2] <= 0xae) || (c[1] == 0x81 && c[2] >= 0xa6 && c[2] <= 0xa9)); /* U+202A–202E, U+2066–2069 */
        if (*c < 0x20 || *c == 0x7f || c1 || turns) *c = '?';
        if (c1 || turns) *++c = '?';
        if (turns) *++c = '?';
    }
}

void kv_table_print(const struct kv_table *t, const json_t *rows)
{
    int width[sizeof t->column / sizeof *t->column] = {0}; /* the longest cell's, so that none pushes its row aside; in bytes, as printf counts */
    size_t i;
    json_t *row;
    char text[512];
    for (int c = 0; t->column[c].title; c++) {
        width[c] = t->column[c].width;
        json_array_foreach(rows, i, row) {
            kv_cell_text(row, &t->column[c], 1, text, sizeof text);
            if (t->column[c + 1].title && width[c] < (int)strlen(text)) width[c] = (int)strlen(text);
        }
        printf("%-*s%s", width[c], t->column[c].title, t->column[c + 1].title ? "  " : "\n");
    }
    if (!json_array_size(rows)) puts("none");
    json_array_foreach(rows, i, row) {
        for (int c = 0; t->column[c].title; c++) {
            kv_cell_text(row, &t->column[c], 1, text, sizeof text);
            kv_plain_text(text);
            printf("%-*s%s", width[c], text, t->column[c + 1].title ? "  " : "\n");
        }
    }
}
