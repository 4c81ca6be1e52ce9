/* gguf.h — a GGUF file as a checked index over its bytes: metadata values and tensors, nothing copied.
 *
 * Every count, length, offset and size in the file is checked before it is used; after kv_gguf_open or kv_gguf_parse returned OK,
 * every pointer in the index lies inside the file. Immutable afterwards; any thread. Format: versions 2 and 3, little endian. */
#ifndef KV_GGUF_H
#define KV_GGUF_H

#include "kernels/kernels.h"
#include "runtime/status.h"

/* What a file may declare at most; a file beyond is MODEL_MALFORMED. */
#define KV_GGUF_MAX_VALUES 4096
#define KV_GGUF_MAX_TENSORS 65536
#define KV_GGUF_MAX_NAME_BYTES 255
#define KV_GGUF_MAX_STRING_BYTES (16u << 20)
#define KV_GGUF_MAX_ALIGNMENT 65536
#define KV_GGUF_MAX_DIM INT32_MAX

enum kv_gguf_type {
    KV_GGUF_U8, KV_GGUF_I8, KV_GGUF_U16, KV_GGUF_I16, KV_GGUF_U32, KV_GGUF_I32, KV_GGUF_F32, KV_GGUF_BOOL,
    KV_GGUF_STRING, KV_GGUF_ARRAY, KV_GGUF_U64, KV_GGUF_I64, KV_GGUF_F64, KV_GGUF_TYPES
};

struct kv_gguf_string { /* not terminated */
    const char *data;
    size_t len;
};

struct kv_gguf_value {
    struct kv_gguf_string key;
    enum kv_gguf_type type;    /* of the value, or of an array's elements */
    bool is_array;
    uint64_t count;            /* 1 unless an array */
    const uint8_t *data;       /* first element */
};

struct kv_gguf_tensor {
    struct kv_gguf_string name;
    uint32_t n_dims;
    int64_t dims[4];           /* dims[0] is contiguous; absent ones are 1 */
    enum kv_type type;
    const uint8_t *data;
    size_t bytes;
};

struct kv_gguf {
    const uint8_t *base;
    size_t size;
    bool mapped;
    uint32_t version, alignment;
    size_t n_values, n_tensors;
    struct kv_gguf_value *values;   /* sorted by key */
    struct kv_gguf_tensor *tensors; /* sorted by name */
};

/* Maps the file. max_bytes 0: no cap. FILE_UNREADABLE, NOT_GGUF, MODEL_TRUNCATED, MODEL_MALFORMED, UNKNOWN_TENSOR_TYPE. */
enum kv_status kv_gguf_open(const char *path, uint64_t max_bytes, struct kv_gguf **out, struct kv_error *err);
/* The same over bytes that outlive the index. */
enum kv_status kv_gguf_parse(const void *bytes, size_t n, struct kv_gguf **out, struct kv_error *err);
void kv_gguf_close(struct kv_gguf *g);

const struct kv_gguf_value *kv_gguf_find(const struct kv_gguf *g, const char *key);          /* NULL: absent */
const struct kv_gguf_tensor *kv_gguf_tensor(const struct kv_gguf *g, const char *name);      /* NULL: absent */

/* A scalar of any numeric type; NOT_FOUND leaves *out as it was, MODEL_MALFORMED when the value has another type. */
enum kv_status kv_gguf_int(const struct kv_gguf *g, const char *key, int64_t *out, struct kv_error *err);
enum kv_status kv_gguf_float(const struct kv_gguf *g, const char *key, double *out, struct kv_error *err);
enum kv_status kv_gguf_bool(const struct kv_gguf *g, const char *key, bool *out, struct kv_error *err);
enum kv_status kv_gguf_text(const struct kv_gguf *g, const char *key, struct kv_gguf_string *out, struct kv_error *err);

/* Element i of an array of numbers, as a double; of a string array, from a cursor that starts as v->data. */
double kv_gguf_number_at(const struct kv_gguf_value *v, uint64_t i);
struct kv_gguf_string kv_gguf_next_string(const uint8_t **cursor);

#endif
