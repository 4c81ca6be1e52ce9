/* offline.c — see offline.h. */
#include "console/commands/offline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kv_offline_complain(const char *command, const struct kv_error *err)
{
    fprintf(stderr, "kvasir %s: %s (%s%s%s)\n", command, err->message, kv_status_name(err->status), err->where[0] ? ", " : "", err->where);
    if (err->hint[0]) fprintf(stderr, "  %s\n", err->hint);
}

enum kv_status kv_offline_json(const char *file, size_t flags, json_t **out, struct kv_error *err)
{
    json_error_t why;
    bool standard = !strcmp(file, "-");
    FILE *f = standard ? stdin : fopen(file, "rb");
    *out = NULL;
    if (!f) return kv_fail(err, KV_FILE_UNREADABLE, file, "%s cannot be opened: %s", file, strerror(errno));
    errno = 0;
    *out = json_loadf(f, JSON_REJECT_DUPLICATES | flags, &why);
    bool broken = ferror(f);
    enum kv_status st = *out ? KV_OK : broken ? kv_fail(err, KV_FILE_UNREADABLE, file, "%s cannot be read: %s", file, strerror(errno)) : kv_fail(err, KV_BAD_JSON, file, "line %d: %s", why.line, why.text);
    if (!standard) fclose(f);
    return st;
}

enum kv_status kv_offline_model(const char *path, struct kv_model **out, struct kv_error *err)
{
    *out = NULL;
    if (path) return kv_model_open(path, NULL, out, err);
    kv_fail(err, KV_BAD_ARGUMENT, "--model", "no model was named");
    kv_hint(err, "give --model FILE.gguf; one ships as models/kvasir-demo-q8_0.gguf");
    return KV_BAD_ARGUMENT;
}

enum kv_status kv_offline_ids(const struct kv_model *m, const char *text, bool special, int32_t **ids, int32_t *n, struct kv_error *err)
{
    const struct kv_model_info *info = kv_model_info(m);
    size_t len = strlen(text), cap = len + 8, count = 0, bos = info->add_bos && info->bos >= 0;
    int32_t *out = malloc((cap + 1) * sizeof *out);
    if (!out) return kv_fail(err, KV_OUT_OF_MEMORY, "text", "no memory for %zu bytes of text", len);
    enum kv_status s = kv_tokenize(m, text, len, special, out + bos, cap, &count, err);
    if (s != KV_OK) return free(out), s;
    if (bos) out[0] = info->bos;
    *ids = out;
    *n = (int32_t)(count + bos);
    return KV_OK;
}

static enum kv_status read_ids(const json_t *list, struct kv_prompt *p, const char *where, struct kv_error *err)
{
    size_t n = json_array_size(list);
    p->ids = malloc((n + 1) * sizeof *p->ids);
    if (!p->ids) return kv_fail(err, KV_OUT_OF_MEMORY, where, "no memory for %zu ids", n);
    for (size_t i = 0; i < n; i++) {
        json_t *v = json_array_get(list, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX) return kv_fail(err, KV_BAD_JSON, where, "id %zu is not a token id", i);
        p->ids[i] = (int32_t)id;
    }
    p->n = (int32_t)n;
    return KV_OK;
}

enum kv_status kv_offline_prompts(const struct kv_model *m, const char *file, struct kv_prompt **out, size_t *n, struct kv_error *err)
{
    json_t *root;
    *out = NULL;
    *n = 0;
    enum kv_status read = kv_offline_json(file, 0, &root, err);
    if (read != KV_OK) return read;
    enum kv_status s = KV_OK;
    size_t count = json_array_size(root);
    struct kv_prompt *p = calloc(count + 1, sizeof *p);
    if (!json_is_array(root) || count == 0 || !p) s = kv_fail(err, KV_BAD_JSON, file, "a list of prompts is expected");
    for (size_t i = 0; s == KV_OK && i < count; i++) {
        json_t *o = json_array_get(root, i), *ids = json_is_array(o) ? o : json_object_get(o, "ids");
        const char *text = json_string_value(json_object_get(o, "text"));
        p[i].steps = (int32_t)json_integer_value(json_object_get(o, "steps"));
        if (ids) s = read_ids(ids, &p[i], file, err);
        else if (text) s = kv_offline_ids(m, text, json_is_true(json_object_get(o, "special")), &p[i].ids, &p[i].n, err);
        else s = kv_fail(err, KV_BAD_JSON, file, "prompt %zu has neither ids nor text", i);
    }
    json_decref(root);
    if (s != KV_OK) {
        if (p) kv_offline_prompts_free(p, count);
        return s;
    }
    *out = p;
    *n = count;
    return KV_OK;
}

void kv_offline_prompts_free(struct kv_prompt *p, size_t n)
{
    for (size_t i = 0; p && i < n; i++) free(p[i].ids);
    free(p);
}

enum kv_status kv_offline_param(const struct kv_pipeline *p, const char *text, struct kv_params *params, struct kv_error *err)
{
    char key[64], *end;
    const char *eq = strchr(text, '=');
    if (!eq || (size_t)(eq - text) >= sizeof key) return kv_fail(err, KV_BAD_ARGUMENT, "--param", "'%s' is not key=value", text);
    snprintf(key, sizeof key, "%.*s", (int)(eq - text), text);
    double value = strtod(eq + 1, &end);
    if (end == eq + 1 || *end) return kv_fail(err, KV_BAD_ARGUMENT, key, "'%s' is not a number", eq + 1);
    return kv_params_set(p, params, key, value, err);
}

enum kv_status kv_offline_install(struct kv_engine *e, const char *name, char *const *params, int n_params, struct kv_error *err)
{
    if (!name || !strcmp(name, "resident")) return KV_OK;
    struct kv_candidate c = {.id = 1, .pipeline = kv_pipeline_find(name)};
    if (!c.pipeline) {
        kv_fail(err, KV_UNKNOWN_PIPELINE, "--pipeline", "no pipeline is named '%s'", name);
        kv_hint(err, "kvasir lab --list names the methods");
        return KV_UNKNOWN_PIPELINE;
    }
    kv_params_default(c.pipeline, &c.params);
    for (int i = 0; i < n_params; i++) {
        enum kv_status s = kv_offline_param(c.pipeline, params[i], &c.params, err);
        if (s != KV_OK) return s;
    }
    return kv_engine_install(e, &c, false, 0, 1, err);
}
