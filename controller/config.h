/* config.h — kvasird's settings: flag over environment over file over default, each with its origin. */
#ifndef KV_CONFIG_H
#define KV_CONFIG_H

#include "runtime/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef char *kv_setting_STRING;
typedef bool kv_setting_BOOL;
typedef int64_t kv_setting_INT;
typedef double kv_setting_FLOAT;
typedef uint64_t kv_setting_SIZE;
typedef json_t *kv_setting_LIST;   /* array of strings */
typedef json_t *kv_setting_TOKENS; /* array of objects, checked */

enum kv_setting_id {
#define KV_SETTING(field, ...) KV_SET_##field,
#include "controller/config.def"
#undef KV_SETTING
    KV_SETTINGS
};

enum kv_origin { KV_ORIGIN_DEFAULT, KV_ORIGIN_FILE, KV_ORIGIN_ENVIRONMENT, KV_ORIGIN_FLAG };

struct kv_config {
#define KV_SETTING(field, key, type, ...) kv_setting_##type field;
#include "controller/config.def"
#undef KV_SETTING
    enum kv_origin origin[KV_SETTINGS];
    char *file; /* of --config; NULL without one */
    bool print, demo, exit, help, version;
};

/* Reads flags, the environment (`environ` form) and the file --config names. On failure the error names the key, and the
 * nearest valid one; c is safe to free either way. */
enum kv_status kv_config_load(struct kv_config *c, int argc, char **argv, char **env, struct kv_error *err);
/* Sets one key from its text, as --set does. */
enum kv_status kv_config_set(struct kv_config *c, const char *key, const char *text, enum kv_origin origin, struct kv_error *err);
void kv_config_free(struct kv_config *c);

/* One line a setting: key, value, default, unit, origin. Token hashes are left out. */
void kv_config_print(const struct kv_config *c, FILE *out);
void kv_config_help(FILE *out);
/* Whether SIGHUP may change it, and whether two configurations differ in it. */
const char *kv_config_key(enum kv_setting_id id);
bool kv_config_reloadable(enum kv_setting_id id);
bool kv_config_differs(const struct kv_config *a, const struct kv_config *b, enum kv_setting_id id);

/* The name among n nearest to `name` by edits, or NULL when none is near enough to be a misspelling. */
const char *kv_config_nearest(const char *name, const char *const *names, size_t n);

#endif
