/* lab_case.c — a lab case file as the library takes it. */
#include "console/commands/lab_case.h"
#include "console/commands/offline.h"

#include "runtime/selection/params.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct reader {
    const char *file;
    struct kv_lab_file *out;
    struct kv_error *err;
};

void kv_lab_file_free(struct kv_lab_file *f)
{
    void *const owned[] = {f->q, f->k, f->v, f->prefill_q, f->persistent, f->resident, f->cluster_seeds, f->steps};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    *f = (struct kv_lab_file){0};
}

static enum kv_status refuse(struct reader *r, const char *where, const char *what)
{
    return kv_fail(r->err, KV_BAD_ARGUMENT, where, "%s %s", where, what);
}

/* ---------------------------------------------------------------- tensors */

/* Numbers nested to `rank`, all rows of one length, into out (NULL: only measured). */
static bool fill(json_t *value, int32_t rank, int64_t *shape, float **at)
{
    if (rank == 0) {
        if (!json_is_number(value)) return false;
        if (*at) *(*at)++ = (float)json_number_value(value);
        return true;
    }
    if (!json_is_array(value) || json_array_size(value) == 0) return false;
    if (*shape == 0) *shape = (int64_t)json_array_size(value);
    if (*shape != (int64_t)json_array_size(value)) return false;
    size_t i;
    json_t *member;
    json_array_foreach(value, i, member) if (!fill(member, rank - 1, shape + 1, at)) return false;
    return true;
}

/* A path in the case is taken from the working directory, else from beside the case file. */
static void locate(const char *case_file, const char *path, char *out, size_t cap)
{
    const char *slash = strrchr(case_file, '/');
    if (path[0] == '/' || !slash || access(path, R_OK) == 0) snprintf(out, cap, "%s", path);
    else snprintf(out, cap, "%.*s/%s", (int)(slash - case_file), case_file, path);
}

static enum kv_status tensor(struct reader *r, json_t *root, const char *name, int32_t rank, int64_t shape[3], float **out)
{
    json_t *value = json_object_get(root, name);
    if (!value) return refuse(r, name, "is missing");
    if (json_is_object(value)) {
        const char *file = json_string_value(json_object_get(value, "safetensors")), *key = json_string_value(json_object_get(value, "name"));
        char path[1024];
        if (!file) return refuse(r, name, "is neither numbers nor {\"safetensors\":\"file\",\"name\":\"…\"}");
        locate(r->file, file, path, sizeof path);
        return kv_safetensors_read(path, key ? key : name, rank, shape, out, r->err);
    }
    int64_t found[4] = {0};
    float *none = NULL;
    if (!fill(value, rank, found, &none)) return refuse(r, name, "is not an array of numbers of the right depth and of equal rows");
    int64_t total = 1;
    for (int32_t i = 0; i < 3; i++) shape[i] = 1;
    for (int32_t i = 0; i < rank; i++) {
        shape[3 - rank + i] = found[i];
        total *= found[i];
    }
    *out = malloc((size_t)total * sizeof **out);
    if (!*out) return kv_fail(r->err, KV_OUT_OF_MEMORY, name, "no memory for the tensor");
    float *at = *out;
    fill(value, rank, found, &at);
    return KV_OK;
}

static enum kv_status positions(struct reader *r, json_t *value, const char *name, int32_t **out, int32_t *n)
{
    *n = 0;
    if (!value || json_is_null(value)) return KV_OK;
    if (!json_is_array(value) || json_array_size(value) > KV_LAB_MAX_ROWS) return refuse(r, name, "is not an array of positions");
    *out = malloc((json_array_size(value) + 1) * sizeof **out);
    if (!*out) return kv_fail(r->err, KV_OUT_OF_MEMORY, name, "no memory for the positions");
    size_t i;
    json_t *member;
    json_array_foreach(value, i, member) {
        json_int_t p = json_integer_value(member);
        if (!json_is_integer(member) || p < 0 || p > KV_LAB_MAX_ROWS) return refuse(r, name, "holds something that is not a position");
        (*out)[(*n)++] = (int32_t)p;
    }
    return KV_OK;
}

/* ---------------------------------------------------------------- method and parameters */

static enum kv_status read_steps(struct reader *r, json_t *value)
{
    static const char *const ops[] = {"build", "append", "seal", "drop"};
    size_t i, n = json_array_size(value);
    json_t *member;
    if (!json_is_array(value) || n > 100000) return refuse(r, "params.steps", "is not an array of steps");
    r->out->steps = calloc(n + 1, sizeof *r->out->steps);
    if (!r->out->steps) return kv_fail(r->err, KV_OUT_OF_MEMORY, "params.steps", "no memory for the steps");
    json_array_foreach(value, i, member) {
        int op = 0;
        while (op < 4 && !json_object_get(member, ops[op])) op++;
        json_t *argument = op < 4 ? json_object_get(member, ops[op]) : NULL;
        json_int_t rows = json_integer_value(argument);
        if (op == 4 || json_object_size(member) != 1 || (op != KV_LAB_SEAL && (!json_is_integer(argument) || rows < 0 || rows > KV_LAB_MAX_ROWS)))
            return refuse(r, "params.steps", "holds something else than {\"build\":rows}, {\"append\":rows}, {\"seal\":true}, {\"drop\":rows kept}");
        r->out->steps[i] = (struct kv_lab_step){(enum kv_lab_op)op, (int32_t)rows};
    }
    r->out->c.steps = r->out->steps;
    r->out->c.n_steps = (int32_t)n;
    return KV_OK;
}

static enum kv_status read_param(struct reader *r, const char *key, json_t *value)
{
    struct kv_lab_case *c = &r->out->c;
    if (!strcmp(key, "steps")) return read_steps(r, value);
    if (!strcmp(key, "seeds")) {
        enum kv_status status = positions(r, value, "params.seeds", &r->out->cluster_seeds, &c->n_cluster_seeds);
        c->cluster_seeds = r->out->cluster_seeds;
        return status;
    }
    if (!strcmp(key, "widen") || !strcmp(key, "recall_k")) {
        json_int_t n = json_integer_value(value);
        if (!json_is_integer(value) || n < 0 || n > KV_LAB_MAX_ROWS) return refuse(r, key, "is not a count");
        *(*key == 'w' ? &c->widen : &c->recall_k) = (int32_t)n;
        return KV_OK;
    }
    if (!strcmp(key, "score") && c->method && !strcmp(c->method->name, "infllm"))
        return json_is_string(value) && !strcmp(json_string_value(value), "sum") ? KV_OK : refuse(r, "params.score", "can only be \"sum\"");
    if (json_is_null(value)) return KV_OK; /* the default */
    if (!json_is_number(value) && !json_is_boolean(value)) return refuse(r, key, "is neither a number nor a boolean");
    double x = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
    return kv_specs_set(c->method ? c->method->params : NULL, c->method ? c->method->n_params : 0, c->method ? c->method->name : "dense", &c->params,
                        key, x, r->err);
}

static enum kv_status read_method(struct reader *r, json_t *root)
{
    struct kv_lab_case *c = &r->out->c;
    const char *name = json_string_value(json_object_get(root, "method")), *key;
    if (!name) return refuse(r, "method", "is missing");
    c->method = kv_selector_find(name);
    if (!c->method && strcmp(name, "dense")) {
        kv_fail(r->err, kv_pipeline_find(name) ? KV_NOT_BUILT : KV_NOT_FOUND, "method", "no selecting method is named '%s'", name);
        kv_hint(r->err, "kvasir lab --list shows them");
        return r->err->status;
    }
    if (c->method) kv_specs_default(c->method->params, c->method->n_params, &c->params);
    json_t *params = json_object_get(root, "params"), *value;
    if (params && !json_is_object(params)) return refuse(r, "params", "is not an object");
    json_object_foreach(params, key, value) {
        enum kv_status status = read_param(r, key, value);
        if (status != KV_OK) return status;
    }
    return KV_OK;
}

/* ---------------------------------------------------------------- the case */

static enum kv_status known_keys(struct reader *r, json_t *root)
{
    static const char *const keys[] = {"method", "params", "heads", "d_h", "q", "k", "v", "prefill_q", "persistent", "resident", "scale", "row_type"};
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        size_t i = 0;
        while (i < sizeof keys / sizeof *keys && strcmp(key, keys[i])) i++;
        if (i == sizeof keys / sizeof *keys) return kv_fail(r->err, KV_UNKNOWN_KEY, key, "a case has no field '%s'", key);
    }
    return KV_OK;
}

static bool agrees(json_t *declared, int64_t found)
{
    return !declared || json_is_null(declared) || (json_is_integer(declared) && json_integer_value(declared) == found);
}

static enum kv_status read_tensors(struct reader *r, json_t *root)
{
    struct kv_lab_file *o = r->out;
    int64_t q[3], k[3], v[3], p[3];
    enum kv_status status = tensor(r, root, "q", 2, q, &o->q);
    if (status == KV_OK) status = tensor(r, root, "k", 3, k, &o->k);
    if (status == KV_OK) status = tensor(r, root, "v", 3, v, &o->v);
    if (status != KV_OK) return status;
    if (memcmp(k, v, sizeof k)) return refuse(r, "v", "has another shape than k");
    if (q[2] != k[2]) return refuse(r, "q", "has another width than k");
    json_t *heads = json_object_get(root, "heads");
    if (!agrees(json_object_get(heads, "q"), q[1]) || !agrees(json_object_get(heads, "kv"), k[0])) return refuse(r, "heads", "disagrees with the tensors");
    if (!agrees(json_object_get(root, "d_h"), q[2])) return refuse(r, "d_h", "disagrees with the tensors");
    if (q[1] > 4096 || k[0] > 4096 || k[1] > KV_LAB_MAX_ROWS || k[2] > 1024) return refuse(r, "k", "exceeds 4096 heads, 1048576 rows or width 1024");
    json_t *prefill = json_object_get(root, "prefill_q");
    if (prefill && !json_is_null(prefill)) {
        status = tensor(r, root, "prefill_q", 3, p, &o->prefill_q);
        if (status != KV_OK) return status;
        if (p[0] != q[1] || p[2] != q[2]) return refuse(r, "prefill_q", "is not [query heads][queries][width]");
        o->c.n_prefill_q = (int32_t)p[1];
    }
    o->c.q = o->q, o->c.k = o->k, o->c.v = o->v, o->c.prefill_q = o->prefill_q;
    o->c.n_q_heads = (int32_t)q[1], o->c.n_kv_heads = (int32_t)k[0], o->c.n_rows = (int32_t)k[1], o->c.d_head = (int32_t)k[2];
    return KV_OK;
}

static enum kv_status read_rest(struct reader *r, json_t *root)
{
    struct kv_lab_file *o = r->out;
    json_t *scale = json_object_get(root, "scale"), *type = json_object_get(root, "row_type");
    if (scale && !json_is_null(scale)) {
        o->c.scale = json_number_value(scale);
        if (!json_is_number(scale) || !(o->c.scale > 0) || !isfinite(o->c.scale)) return refuse(r, "scale", "is not a positive number");
    }
    const char *name = type && !json_is_null(type) ? json_string_value(type) : "f32";
    o->c.row_type = name && !strcmp(name, "f32") ? KV_F32 : name && !strcmp(name, "f16") ? KV_F16 : KV_BF16;
    if (o->c.row_type == KV_BF16 && (!name || strcmp(name, "bf16"))) return refuse(r, "row_type", "is not f32, f16 or bf16");
    enum kv_status status = positions(r, json_object_get(root, "persistent"), "persistent", &o->persistent, &o->c.n_persistent);
    if (status == KV_OK) status = positions(r, json_object_get(root, "resident"), "resident", &o->resident, &o->c.n_resident);
    o->c.persistent = o->persistent, o->c.resident = o->resident;
    return status;
}

enum kv_status kv_lab_file_read(const char *file, struct kv_lab_file *out, struct kv_error *err)
{
    *out = (struct kv_lab_file){0};
    struct reader r = {file, out, err};
    json_t *root;
    enum kv_status status = kv_offline_json(file, 0, &root, err);
    if (status != KV_OK) return status;
    status = json_is_object(root) ? known_keys(&r, root) : refuse(&r, "case", "is not an object");
    if (status == KV_OK) status = read_method(&r, root);
    if (status == KV_OK) status = read_tensors(&r, root);
    if (status == KV_OK) status = read_rest(&r, root);
    json_decref(root);
    if (status != KV_OK) kv_lab_file_free(out);
    return status;
}
