/* fixture.h — contract fixtures as their validators see them: a flat list of (path, value), so that the library needs no JSON.
 *
 * A fixture file holds one valid object and one-field mutations of it; each mutation must be refused with its own reason. The JSON side
 * (console/commands/fixture_run.c) flattens the object and calls the validator of the section. Paths join keys and array indices with dots:
 * "lookup.positions.2". An array or object has a field of its own whose number is its count: a validator can tell how many there are.
 * Pure; any thread. */
#ifndef KV_FIXTURE_H
#define KV_FIXTURE_H

#include "runtime/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kv_fixture_kind { KV_FIXTURE_NULL, KV_FIXTURE_NUMBER, KV_FIXTURE_TEXT, KV_FIXTURE_BOOL, KV_FIXTURE_ARRAY, KV_FIXTURE_OBJECT };
struct kv_fixture_field {
    const char *path;
    enum kv_fixture_kind kind;
    double number;    /* value; 0 or 1 of a bool; count of an array or object */
    const char *text; /* "" unless TEXT */
};
struct kv_fixture {
    size_t n;
    const struct kv_fixture_field *field;
};

/* NULL when the path is absent. Paths are built like printf so that arrays read naturally. */
const struct kv_fixture_field *kv_fixture_find(const struct kv_fixture *f, const char *path, ...) __attribute__((format(printf, 2, 3)));

/* A reader that remembers the first missing or mistyped field, so that a validator can read everything and check once. */
struct kv_fixture_reader {
    const struct kv_fixture *fixture;
    struct kv_error *err;
    enum kv_status status; /* OK until a field is missing (NOT_FOUND) or has another type (BAD_ARGUMENT) */
};
double kv_fixture_number(struct kv_fixture_reader *r, const char *path, ...) __attribute__((format(printf, 2, 3)));
int64_t kv_fixture_integer(struct kv_fixture_reader *r, const char *path, ...) __attribute__((format(printf, 2, 3)));
bool kv_fixture_bool(struct kv_fixture_reader *r, const char *path, ...) __attribute__((format(printf, 2, 3)));
const char *kv_fixture_text(struct kv_fixture_reader *r, const char *path, ...) __attribute__((format(printf, 2, 3))); /* never NULL */
int32_t kv_fixture_count(struct kv_fixture_reader *r, int32_t max, const char *path, ...) __attribute__((format(printf, 3, 4))); /* of an array, ≤ max */

/* OK for a valid fixture; else the reason the mutation must be refused with. err may be NULL. */
typedef enum kv_status kv_fixture_validator(const struct kv_fixture *f, struct kv_error *err);

/* By file name without folder and ".json": "contract-2-identity". Adding a section is one row in fixtures.def. */
kv_fixture_validator *kv_fixture_validator_find(const char *section);
size_t kv_fixture_section_count(void);
const char *kv_fixture_section_at(size_t i);

/* The part "interrupted" of contract-5-lifecycle; "completed" is the other. */
enum kv_status kv_fixture_interrupted(struct kv_fixture_reader *r);

#define KV_FIXTURE(section, function) kv_fixture_validator function;
#include "runtime/evaluate/fixtures.def"
#undef KV_FIXTURE

#endif
