/* fixture_run.c — flattens fixtures for their validators and tries every mutation. */
#include "console/commands/fixture_run.h"
#include "console/commands/offline.h"
#include "controller/release/fixture_release.h"
#include "runtime/evaluate/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FIELDS = 20000, PATH_CHARS = 160 };

struct flat {
    size_t n, cap;
    struct kv_fixture_field *field;
};

static bool add(struct flat *f, const char *path, struct kv_fixture_field value)
{
    if (f->n == f->cap) {
        size_t cap = f->cap ? f->cap * 2 : 64;
        struct kv_fixture_field *grown = cap <= MAX_FIELDS ? realloc(f->field, cap * sizeof *grown) : NULL;
        if (!grown) return false;
        f->field = grown;
        f->cap = cap;
    }
    value.path = strdup(path);
    if (!value.path) return false;
    f->field[f->n++] = value;
    return true;
}

static bool flatten(struct flat *f, const json_t *v, const char *path)
{
    char sub[PATH_CHARS];
    const char *dot = *path ? "." : "";
    struct kv_fixture_field self = {.text = ""};
    if (json_is_object(v)) {
        self.kind = KV_FIXTURE_OBJECT, self.number = (double)json_object_size(v);
        if (!add(f, path, self)) return false;
        const char *key;
        json_t *child;
        json_object_foreach((json_t *)v, key, child)
        {
            if (snprintf(sub, sizeof sub, "%s%s%s", path, dot, key) >= (int)sizeof sub || !flatten(f, child, sub)) return false;
        }
        return true;
    }
    if (json_is_array(v)) {
        self.kind = KV_FIXTURE_ARRAY, self.number = (double)json_array_size(v);
        if (!add(f, path, self)) return false;
        for (size_t i = 0; i < json_array_size(v); i++)
            if (snprintf(sub, sizeof sub, "%s%s%zu", path, dot, i) >= (int)sizeof sub || !flatten(f, json_array_get(v, i), sub)) return false;
        return true;
    }
    if (json_is_number(v)) self.kind = KV_FIXTURE_NUMBER, self.number = json_number_value(v);
    if (json_is_string(v)) self.kind = KV_FIXTURE_TEXT, self.text = json_string_value(v);
    if (json_is_boolean(v)) self.kind = KV_FIXTURE_BOOL, self.number = json_is_true(v);
    return add(f, path, self);
}

static enum kv_status validate(kv_fixture_validator *validator, const json_t *object, struct kv_error *err)
{
    struct flat f = {0};
    enum kv_status s;
    if (flatten(&f, object, "")) s = validator(&(struct kv_fixture){f.n, f.field}, err);
    else s = kv_fail(err, KV_BODY_TOO_LARGE, "fixture", "the fixture has more than %d fields or too long a path", MAX_FIELDS);
    for (size_t i = 0; i < f.n; i++) free((char *)f.field[i].path);
    free(f.field);
    return s;
}

/* Sets, or with value NULL removes, the field at a dotted path. */
static bool mutate(json_t *root, const char *path, json_t *value)
{
    char copy[PATH_CHARS], *save = NULL;
    if (snprintf(copy, sizeof copy, "%s", path) >= (int)sizeof copy) return false;
    json_t *at = root;
    for (char *part = strtok_r(copy, ".", &save); part;) {
        char *next = strtok_r(NULL, ".", &save);
        size_t index = strtoul(part, NULL, 10);
        json_t *child = json_is_array(at) ? json_array_get(at, index) : json_object_get(at, part);
        if (next) {
            if (!(at = child)) return false;
        } else if (json_is_array(at)) {
            return value ? json_array_set(at, index, value) == 0 : json_array_remove(at, index) == 0;
        } else {
            return value ? json_object_set(at, part, value) == 0 : json_object_del(at, part) == 0;
        }
        part = next;
    }
    return false;
}

static enum kv_status run_mutation(kv_fixture_validator *validator, const json_t *valid, const json_t *m, json_t *wrong, json_t *reasons, long *rejected)
{
    const char *path = json_string_value(json_object_get(m, "path")), *reason = json_string_value(json_object_get(m, "reason"));
    if (!path || !reason || kv_status_from_name(reason) == KV_STATUS_COUNT) return KV_BAD_ARGUMENT;
    json_t *object = json_deep_copy(valid);
    struct kv_error err = {0};
    bool set = object && mutate(object, path, json_object_get(m, "value"));
    enum kv_status s = set ? validate(validator, object, &err) : KV_NOT_FOUND;
    json_decref(object);
    if (set && s != KV_OK && !strcmp(kv_status_name(s), reason)) {
        ++*rejected;
        json_object_set_new(reasons, reason, json_true());
        return KV_OK;
    }
    json_t *value = json_object_get(m, "value");
    json_array_append_new(wrong, json_pack("{s:s,s:O,s:s,s:s,s:s}", "path", path, "value", value ? value : json_null(), "expected", reason, "got",
                                           kv_status_name(s), "message", set ? err.message : "the valid object has no such field"));
    return KV_OK;
}

enum kv_status kv_fixture_run_file(const char *file, json_t **out, struct kv_error *err)
{
    char section[96];
    const char *base = strrchr(file, '/');
    snprintf(section, sizeof section, "%s", base ? base + 1 : file);
    char *dot = strrchr(section, '.');
    if (dot) *dot = 0;
    *out = NULL;
    kv_fixture_validator *validator = kv_fixture_validator_find(section);
    if (!validator && !strcmp(section, "contract-9-release")) validator = kv_fixture_release; /* the release machine is the controller's */
    if (!validator) return kv_fail(err, KV_NOT_FOUND, section, "no contract fixture of that name is known");
    json_t *root;
    enum kv_status read = kv_offline_json(file, 0, &root, err);
    if (read != KV_OK) return read;
    json_t *valid = json_object_get(root, "valid"), *mutations = json_object_get(root, "mutations"), *m;
    enum kv_status s = KV_OK;
    json_t *wrong = json_array(), *reasons = json_object();
    long accepted = 0, rejected = 0;
    size_t i;
    if (!json_is_object(valid) || !json_is_array(mutations)) {
        s = kv_fail(err, KV_BAD_ARGUMENT, file, "a fixture holds an object \"valid\" and an array \"mutations\"");
        goto done;
    }
    struct kv_error why = {0};
    enum kv_status base_status = validate(validator, valid, &why);
    if (base_status == KV_OK) accepted = 1;
    else json_array_append_new(wrong, json_pack("{s:s,s:n,s:s,s:s,s:s}", "path", why.where, "value", "expected", "OK", "got", kv_status_name(base_status), "message", why.message));
    json_array_foreach(mutations, i, m)
    {
        if ((s = run_mutation(validator, valid, m, wrong, reasons, &rejected)) != KV_OK) {
            kv_fail(err, s, file, "mutation %zu needs a path and a known reason", i);
            goto done;
        }
    }
    *out = json_pack("{s:s,s:i,s:i,s:O,s:i}", "section", section, "accepted", (int)accepted, "rejected", (int)rejected, "wrong", wrong, "reasons", (int)json_object_size(reasons));
done:
    json_decref(wrong);
    json_decref(reasons);
    json_decref(root);
    return s;
}
