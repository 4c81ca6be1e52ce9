/* gguf.c — reads GGUF headers with every number checked before it is believed. */
#include "runtime/model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are read straight from little-endian files");

static const uint8_t type_bytes[KV_GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* Names of tensor types this program does not read, so that a refusal says what the file holds. */
static const char *foreign_type_name(uint32_t type)
{
    static const char *const names[] = {
        [4] = "Q4_2", [5] = "Q4_3", [9] = "Q8_1", [10] = "Q2_K", [11] = "Q3_K", [15] = "Q8_K", [16] = "IQ2_XXS",
        [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S", [21] = "IQ3_S", [22] = "IQ2_S", [23] = "IQ4_XS", [24] = "I8",
        [25] = "I16", [26] = "I32", [27] = "I64", [28] = "F64", [29] = "IQ1_M", [34] = "TQ1_0", [35] = "TQ2_0", [39] = "MXFP4",
    };
    return type < sizeof names / sizeof *names && names[type] ? names[type] : "unknown";
}

/* ---------------------------------------------------------------- reading */

struct reader {
    const uint8_t *base;
    size_t size, at;
    struct kv_error *err;
};

static enum kv_status truncated(struct reader *r, const char *what)
{
    kv_fail(r->err, KV_MODEL_TRUNCATED, what, "the file ends at byte %zu, inside the %s", r->size, what);
    kv_hint(r->err, "fetch the file again; its download was probably cut short");
    return KV_MODEL_TRUNCATED;
}

static enum kv_status take(struct reader *r, size_t n, const char *what, const uint8_t **out)
{
    if (n > r->size - r->at) return truncated(r, what);
    *out = r->base + r->at;
    r->at += n;
    return KV_OK;
}

static enum kv_status take_u32(struct reader *r, const char *what, uint32_t *out)
{
    const uint8_t *p;
    enum kv_status s = take(r, 4, what, &p);
    if (s == KV_OK) memcpy(out, p, 4);
    return s;
}

static enum kv_status take_u64(struct reader *r, const char *what, uint64_t *out)
{
    const uint8_t *p;
    enum kv_status s = take(r, 8, what, &p);
    if (s == KV_OK) memcpy(out, p, 8);
    return s;
}

static enum kv_status take_string(struct reader *r, const char *what, uint64_t max, struct kv_gguf_string *out)
{
    uint64_t n;
    enum kv_status s = take_u64(r, what, &n);
    if (s != KV_OK) return s;
    if (n > max)
        return kv_fail(r->err, KV_MODEL_MALFORMED, what, "a string of %llu bytes at byte %zu exceeds the limit of %llu",
                       (unsigned long long)n, r->at - 8, (unsigned long long)max);
    const uint8_t *p;
    s = take(r, (size_t)n, what, &p);
    if (s == KV_OK) *out = (struct kv_gguf_string){(const char *)p, (size_t)n};
    return s;
}

static enum kv_status take_elements(struct reader *r, struct kv_gguf_value *v)
{
    v->data = r->base + r->at;
    if (v->type != KV_GGUF_STRING) {
        const uint8_t *p;
        size_t each = type_bytes[v->type];
        if (v->count > (r->size - r->at) / each) return truncated(r, "metadata");
        return take(r, (size_t)v->count * each, "metadata", &p);
    }
    if (v->count > (r->size - r->at) / 8) return truncated(r, "metadata");
    for (uint64_t i = 0; i < v->count; i++) {
        struct kv_gguf_string ignored;
        enum kv_status s = take_string(r, "metadata", KV_GGUF_MAX_STRING_BYTES, &ignored);
        if (s != KV_OK) return s;
    }
    return KV_OK;
}

static enum kv_status take_value(struct reader *r, struct kv_gguf_value *v)
{
    uint32_t type;
    enum kv_status s = take_string(r, "metadata key", KV_GGUF_MAX_NAME_BYTES, &v->key);
    if (s == KV_OK) s = take_u32(r, "metadata", &type);
    if (s != KV_OK) return s;
    v->count = 1;
    v->is_array = type == KV_GGUF_ARRAY;
    if (v->is_array) {
        s = take_u32(r, "metadata", &type);
        if (s == KV_OK) s = take_u64(r, "metadata", &v->count);
        if (s != KV_OK) return s;
    }
    if (type >= KV_GGUF_TYPES || type == KV_GGUF_ARRAY)
        return kv_fail(r->err, KV_MODEL_MALFORMED, "metadata", "key '%.*s' has value type %u, which does not exist%s",
                       (int)v->key.len, v->key.data, type, type == KV_GGUF_ARRAY ? " inside an array" : "");
    v->type = (enum kv_gguf_type)type;
    return take_elements(r, v);
}

static enum kv_status take_dims(struct reader *r, struct kv_gguf_tensor *t)
{
    enum kv_status s = take_u32(r, "tensor table", &t->n_dims);
    if (s != KV_OK) return s;
    if (t->n_dims < 1 || t->n_dims > 4)
        return kv_fail(r->err, KV_MODEL_MALFORMED, "tensor table", "tensor '%.*s' has %u dimensions; 1 to 4 are legal",
                       (int)t->name.len, t->name.data, t->n_dims);
    for (int d = 0; d < 4; d++) t->dims[d] = 1;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        uint64_t n;
        s = take_u64(r, "tensor table", &n);
        if (s != KV_OK) return s;
        if (n < 1 || n > KV_GGUF_MAX_DIM)
            return kv_fail(r->err, KV_MODEL_MALFORMED, "tensor table", "dimension %u of tensor '%.*s' is %llu; 1 to %d are legal", d,
                           (int)t->name.len, t->name.data, (unsigned long long)n, KV_GGUF_MAX_DIM);
        t->dims[d] = (int64_t)n;
    }
    return KV_OK;
}

/* Leaves the tensor's offset in t->bytes until the data section's start is known. */
static enum kv_status take_tensor(struct reader *r, struct kv_gguf_tensor *t)
{
    uint32_t type;
    uint64_t offset;
    enum kv_status s = take_string(r, "tensor table", KV_GGUF_MAX_NAME_BYTES, &t->name);
    if (s == KV_OK) s = take_dims(r, t);
    if (s == KV_OK) s = take_u32(r, "tensor table", &type);
    if (s == KV_OK) s = take_u64(r, "tensor table", &offset);
    if (s != KV_OK) return s;
    if (!kv_type_known(type)) {
        kv_fail(r->err, KV_UNKNOWN_TENSOR_TYPE, "tensor table", "tensor '%.*s' has type %u (%s), which is not supported",
                (int)t->name.len, t->name.data, type, foreign_type_name(type));
        kv_hint(r->err, "use a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K or IQ4_NL");
        return KV_UNKNOWN_TENSOR_TYPE;
    }
    t->type = (enum kv_type)type;
    if (t->dims[0] % kv_type_block_values(t->type))
        return kv_fail(r->err, KV_MODEL_MALFORMED, "tensor table", "rows of tensor '%.*s' have %lld values, no multiple of %s's block of %d",
                       (int)t->name.len, t->name.data, (long long)t->dims[0], kv_type_name(t->type), kv_type_block_values(t->type));
    if (offset > r->size)
        return kv_fail(r->err, KV_MODEL_TRUNCATED, "tensor table", "tensor '%.*s' starts at byte %llu of the data; the file has %zu bytes",
                       (int)t->name.len, t->name.data, (unsigned long long)offset, r->size);
    t->bytes = (size_t)offset;
    return KV_OK;
}

/* ---------------------------------------------------------------- checks across the whole file */

static int compare_strings(struct kv_gguf_string a, struct kv_gguf_string b)
{
    int c = memcmp(a.data, b.data, a.len < b.len ? a.len : b.len);
    return c ? c : (a.len > b.len) - (a.len < b.len);
}

static int by_key(const void *a, const void *b)
{
    return compare_strings(((const struct kv_gguf_value *)a)->key, ((const struct kv_gguf_value *)b)->key);
}

static int by_name(const void *a, const void *b)
{
    return compare_strings(((const struct kv_gguf_tensor *)a)->name, ((const struct kv_gguf_tensor *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const uint8_t *x = ((const struct kv_gguf_tensor *)a)->data, *y = ((const struct kv_gguf_tensor *)b)->data;
    return (x > y) - (x < y);
}

static enum kv_status place_tensor(const struct kv_gguf *g, size_t data_at, struct kv_gguf_tensor *t, struct kv_error *err)
{
    size_t offset = t->bytes, room = g->size - data_at, bytes = kv_type_row_bytes(t->type, t->dims[0]);
    bool overflow = false;
    for (int d = 1; d < 4; d++) overflow |= __builtin_mul_overflow(bytes, (size_t)t->dims[d], &bytes);
    if (offset % g->alignment)
        return kv_fail(err, KV_MODEL_MALFORMED, "tensor table", "tensor '%.*s' starts at %zu, which is not aligned to %u bytes",
                       (int)t->name.len, t->name.data, offset, g->alignment);
    if (overflow || offset > room || bytes > room - offset) {
        kv_fail(err, KV_MODEL_TRUNCATED, "tensor data", "tensor '%.*s' reaches beyond the end of the file (%zu bytes)",
                (int)t->name.len, t->name.data, g->size);
        kv_hint(err, "fetch the file again; its download was probably cut short");
        return KV_MODEL_TRUNCATED;
    }
    t->data = g->base + data_at + offset;
    t->bytes = bytes;
    return KV_OK;
}

static enum kv_status check_tensors(struct kv_gguf *g, size_t header_end, struct kv_error *err)
{
    size_t data_at = (header_end + g->alignment - 1) / g->alignment * g->alignment;
    if (g->n_tensors && data_at > g->size)
        return kv_fail(err, KV_MODEL_TRUNCATED, "tensor data", "the file ends at byte %zu, before its tensor data", g->size);
    for (size_t i = 0; i < g->n_tensors; i++) {
        enum kv_status s = place_tensor(g, data_at, &g->tensors[i], err);
        if (s != KV_OK) return s;
    }
    qsort(g->tensors, g->n_tensors, sizeof *g->tensors, by_place);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const struct kv_gguf_tensor *a = &g->tensors[i - 1], *b = &g->tensors[i];
        if (a->data + a->bytes > b->data)
            return kv_fail(err, KV_MODEL_MALFORMED, "tensor table", "tensors '%.*s' and '%.*s' overlap", (int)a->name.len, a->name.data,
                           (int)b->name.len, b->name.data);
    }
    qsort(g->tensors, g->n_tensors, sizeof *g->tensors, by_name);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (!by_name(&g->tensors[i - 1], &g->tensors[i]))
            return kv_fail(err, KV_MODEL_MALFORMED, "tensor table", "tensor '%.*s' is declared twice", (int)g->tensors[i].name.len,
                           g->tensors[i].name.data);
    return KV_OK;
}

static enum kv_status check_values(struct kv_gguf *g, struct kv_error *err)
{
    qsort(g->values, g->n_values, sizeof *g->values, by_key);
    for (size_t i = 1; i < g->n_values; i++)
        if (!by_key(&g->values[i - 1], &g->values[i]))
            return kv_fail(err, KV_MODEL_MALFORMED, "metadata", "key '%.*s' is given twice", (int)g->values[i].key.len, g->values[i].key.data);
    int64_t alignment = 32;
    enum kv_status s = kv_gguf_int(g, "general.alignment", &alignment, err);
    if (s != KV_OK && s != KV_NOT_FOUND) return s;
    if (alignment < 8 || alignment > KV_GGUF_MAX_ALIGNMENT || (alignment & (alignment - 1)))
        return kv_fail(err, KV_MODEL_MALFORMED, "general.alignment", "alignment %lld is not a power of two from 8 to %d",
                       (long long)alignment, KV_GGUF_MAX_ALIGNMENT);
    g->alignment = (uint32_t)alignment;
    return KV_OK;
}

/* ---------------------------------------------------------------- opening */

static enum kv_status take_header(struct reader *r, struct kv_gguf *g)
{
    const uint8_t *magic;
    uint64_t n_tensors, n_values;
    if (r->size < 4 || memcmp(r->base, "GGUF", 4)) {
        kv_fail(r->err, KV_NOT_GGUF, "magic", "the file does not begin with 'GGUF'");
        kv_hint(r->err, "give a model file in GGUF format; models/README.md names some");
        return KV_NOT_GGUF;
    }
    enum kv_status s = take(r, 4, "header", &magic);
    if (s == KV_OK) s = take_u32(r, "header", &g->version);
    if (s != KV_OK) return s;
    if (g->version != 2 && g->version != 3) {
        kv_fail(r->err, KV_NOT_GGUF, "version", "GGUF version %u is not supported; 2 and 3 are%s", g->version,
                g->version & 0xffff ? "" : " (a big-endian file?)");
        kv_hint(r->err, "convert the file with a current converter");
        return KV_NOT_GGUF;
    }
    s = take_u64(r, "header", &n_tensors);
    if (s == KV_OK) s = take_u64(r, "header", &n_values);
    if (s != KV_OK) return s;
    if (n_tensors > KV_GGUF_MAX_TENSORS || n_values > KV_GGUF_MAX_VALUES)
        return kv_fail(r->err, KV_MODEL_MALFORMED, "header", "%llu tensors and %llu metadata values exceed the limits of %d and %d",
                       (unsigned long long)n_tensors, (unsigned long long)n_values, KV_GGUF_MAX_TENSORS, KV_GGUF_MAX_VALUES);
    /* The smallest value takes 13 bytes, the smallest tensor 32: a short file cannot ask for much memory. */
    if (n_values > (r->size - r->at) / 13 || n_tensors > (r->size - r->at) / 32) return truncated(r, "header");
    g->n_tensors = (size_t)n_tensors;
    g->n_values = (size_t)n_values;
    return KV_OK;
}

static enum kv_status read_all(struct kv_gguf *g, struct kv_error *err)
{
    struct reader r = {.base = g->base, .size = g->size, .err = err};
    enum kv_status s = take_header(&r, g);
    if (s != KV_OK) return s;
    g->values = calloc(g->n_values + 1, sizeof *g->values);
    g->tensors = calloc(g->n_tensors + 1, sizeof *g->tensors);
    if (!g->values || !g->tensors) return kv_fail(err, KV_OUT_OF_MEMORY, "header", "no memory for the file's index");
    for (size_t i = 0; s == KV_OK && i < g->n_values; i++) s = take_value(&r, &g->values[i]);
    if (s == KV_OK) s = check_values(g, err);
    for (size_t i = 0; s == KV_OK && i < g->n_tensors; i++) s = take_tensor(&r, &g->tensors[i]);
    return s == KV_OK ? check_tensors(g, r.at, err) : s;
}

static enum kv_status index_bytes(const void *bytes, size_t n, bool mapped, struct kv_gguf **out, struct kv_error *err)
{
    struct kv_gguf *g = calloc(1, sizeof *g);
    if (!g) {
        if (mapped) munmap((void *)(uintptr_t)bytes, n);
        return kv_fail(err, KV_OUT_OF_MEMORY, "header", "no memory for the file's index");
    }
    g->base = bytes;
    g->size = n;
    g->mapped = mapped;
    enum kv_status s = read_all(g, err);
    if (s == KV_OK) *out = g;
    else kv_gguf_close(g);
    return s;
}

enum kv_status kv_gguf_parse(const void *bytes, size_t n, struct kv_gguf **out, struct kv_error *err)
{
    return index_bytes(bytes, n, false, out, err);
}

enum kv_status kv_gguf_open(const char *path, uint64_t max_bytes, struct kv_gguf **out, struct kv_error *err)
{
    struct stat st;
    void *base = MAP_FAILED;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st)) {
        kv_fail(err, KV_FILE_UNREADABLE, path, "%s", strerror(errno));
        kv_hint(err, "check the path and its permissions");
    } else if (!S_ISREG(st.st_mode)) {
        kv_fail(err, KV_FILE_UNREADABLE, path, "not a regular file");
    } else if (st.st_size == 0) {
        kv_fail(err, KV_NOT_GGUF, path, "the file is empty");
        close(fd);
        return KV_NOT_GGUF;
    } else if (max_bytes && (uint64_t)st.st_size > max_bytes) {
        kv_fail(err, KV_FILE_UNREADABLE, path, "the file has %lld bytes, more than the cap of %llu", (long long)st.st_size,
                (unsigned long long)max_bytes);
    } else {
        base = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (base == MAP_FAILED) kv_fail(err, KV_FILE_UNREADABLE, path, "cannot be mapped: %s", strerror(errno));
    }
    if (fd >= 0) close(fd);
    return base == MAP_FAILED ? KV_FILE_UNREADABLE : index_bytes(base, (size_t)st.st_size, true, out, err);
}

void kv_gguf_close(struct kv_gguf *g)
{
    if (!g) return;
    if (g->mapped) munmap((void *)(uintptr_t)g->base, g->size);
    free(g->values);
    free(g->tensors);
    free(g);
}

/* ---------------------------------------------------------------- looking up */

const struct kv_gguf_value *kv_gguf_find(const struct kv_gguf *g, const char *key)
{
    struct kv_gguf_value wanted = {.key = {key, strlen(key)}};
    return bsearch(&wanted, g->values, g->n_values, sizeof *g->values, by_key);
}

const struct kv_gguf_tensor *kv_gguf_tensor(const struct kv_gguf *g, const char *name)
{
    struct kv_gguf_tensor wanted = {.name = {name, strlen(name)}};
    return bsearch(&wanted, g->tensors, g->n_tensors, sizeof *g->tensors, by_name);
}

static enum kv_status wrong_type(const char *key, const char *wanted, struct kv_error *err)
{
    return kv_fail(err, KV_MODEL_MALFORMED, key, "the value is not %s", wanted);
}

enum kv_status kv_gguf_int(const struct kv_gguf *g, const char *key, int64_t *out, struct kv_error *err)
{
    const struct kv_gguf_value *v = kv_gguf_find(g, key);
    if (!v) return kv_fail(err, KV_NOT_FOUND, key, "the file has no such key");
    if (v->is_array || v->type == KV_GGUF_STRING || v->type == KV_GGUF_F32 || v->type == KV_GGUF_F64) return wrong_type(key, "an integer", err);
    uint64_t raw = 0;
    memcpy(&raw, v->data, type_bytes[v->type]);
    switch (v->type) {
    case KV_GGUF_I8: *out = (int8_t)raw; break;
    case KV_GGUF_I16: *out = (int16_t)raw; break;
    case KV_GGUF_I32: *out = (int32_t)raw; break;
    case KV_GGUF_U64:
        if (raw > INT64_MAX) return wrong_type(key, "in range", err);
        *out = (int64_t)raw;
        break;
    default: *out = (int64_t)raw;
    }
    return KV_OK;
}

double kv_gguf_number_at(const struct kv_gguf_value *v, uint64_t i)
{
    const uint8_t *p = v->data + i * type_bytes[v->type];
    uint64_t raw = 0;
    float f;
    double d;
    memcpy(&raw, p, type_bytes[v->type]);
    switch (v->type) {
    case KV_GGUF_F32: return memcpy(&f, p, sizeof f), f;
    case KV_GGUF_F64: return memcpy(&d, p, sizeof d), d;
    case KV_GGUF_I8: return (int8_t)raw;
    case KV_GGUF_I16: return (int16_t)raw;
    case KV_GGUF_I32: return (int32_t)raw;
    case KV_GGUF_I64: return (double)(int64_t)raw;
    default: return (double)raw;
    }
}

enum kv_status kv_gguf_float(const struct kv_gguf *g, const char *key, double *out, struct kv_error *err)
{
    const struct kv_gguf_value *v = kv_gguf_find(g, key);
    if (!v) return kv_fail(err, KV_NOT_FOUND, key, "the file has no such key");
    if (v->is_array || v->type == KV_GGUF_STRING || v->type == KV_GGUF_BOOL) return wrong_type(key, "a number", err);
    *out = kv_gguf_number_at(v, 0);
    return KV_OK;
}

enum kv_status kv_gguf_bool(const struct kv_gguf *g, const char *key, bool *out, struct kv_error *err)
{
    const struct kv_gguf_value *v = kv_gguf_find(g, key);
    if (!v) return kv_fail(err, KV_NOT_FOUND, key, "the file has no such key");
    if (v->is_array || v->type != KV_GGUF_BOOL) return wrong_type(key, "true or false", err);
    *out = v->data[0] != 0;
    return KV_OK;
}

enum kv_status kv_gguf_text(const struct kv_gguf *g, const char *key, struct kv_gguf_string *out, struct kv_error *err)
{
    const struct kv_gguf_value *v = kv_gguf_find(g, key);
    if (!v) return kv_fail(err, KV_NOT_FOUND, key, "the file has no such key");
    if (v->is_array || v->type != KV_GGUF_STRING) return wrong_type(key, "a string", err);
    const uint8_t *cursor = v->data;
    *out = kv_gguf_next_string(&cursor);
    return KV_OK;
}

struct kv_gguf_string kv_gguf_next_string(const uint8_t **cursor)
{
    uint64_t n;
    memcpy(&n, *cursor, sizeof n);
    struct kv_gguf_string s = {(const char *)*cursor + 8, (size_t)n};
    *cursor += 8 + n;
    return s;
}
