/* lab_safetensors.c — one tensor of a safetensors file as fp32. Every offset and size in the file is checked. */
#include "console/commands/lab_case.h"

#include "kernels/kernels.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADER_BYTES = 16 << 20 };

static const struct {
    const char *dtype;
    size_t bytes;
} types[] = {{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F64", 8}};

static json_t *read_header(FILE *f, uint64_t *data_at)
{
    unsigned char length[8];
    uint64_t n = 0;
    if (fread(length, 1, 8, f) != 8) return NULL;
    for (int i = 7; i >= 0; i--) n = n << 8 | length[i];
    if (n < 2 || n > MAX_HEADER_BYTES) return NULL;
    char *text = malloc((size_t)n);
    json_t *header = text && fread(text, 1, (size_t)n, f) == n ? json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, NULL) : NULL;
    free(text);
    *data_at = 8 + n;
    return header;
}

/* Shape of at most max_rank dimensions into shape[3], right-aligned; the count of values, or -1. */
static int64_t shape_of(json_t *tensor, int32_t max_rank, int64_t shape[3])
{
    json_t *dims = json_object_get(tensor, "shape");
    size_t rank = json_array_size(dims);
    if (!json_is_array(dims) || rank < 1 || rank > (size_t)max_rank) return -1;
    int64_t total = 1;
    shape[0] = shape[1] = shape[2] = 1;
    for (size_t i = 0; i < rank; i++) {
        json_int_t n = json_integer_value(json_array_get(dims, i));
        if (n < 1 || n > KV_LAB_MAX_VALUES || total > KV_LAB_MAX_VALUES / n) return -1;
        shape[3 - rank + i] = n;
        total *= n;
    }
    return total;
}

static void widen(size_t type, const void *raw, int64_t n, float *out)
{
    if (type == 0) memcpy(out, raw, (size_t)n * sizeof *out);
    else if (type == 3)
        for (int64_t i = 0; i < n; i++) {
            double x;
            memcpy(&x, (const char *)raw + (size_t)i * 8, 8);
            out[i] = (float)x;
        }
    else
        for (int64_t i = 0; i < n; i += 4096) { /* from_rows counts in int32 */
            int64_t run = n - i < 4096 ? n - i : 4096;
            kv_kernels()->from_rows(type == 1 ? KV_F16 : KV_BF16, (const char *)raw + (size_t)i * 2, (int32_t)run, out + i);
        }
}

enum kv_status kv_safetensors_read(const char *file, const char *name, int32_t max_rank, int64_t shape[3], float **out, struct kv_error *err)
{
    FILE *f = fopen(file, "rb");
    if (!f) return kv_fail(err, KV_FILE_UNREADABLE, file, "the safetensors file cannot be opened");
    uint64_t data_at = 0;
    json_t *header = read_header(f, &data_at), *tensor = json_object_get(header, name);
    void *raw = NULL;
    enum kv_status status = KV_OK;
    if (!header) status = kv_fail(err, KV_BAD_ARGUMENT, file, "the file does not start with a safetensors header");
    else if (!tensor) status = kv_fail(err, KV_NOT_FOUND, name, "%s holds no tensor of that name", file);
    if (status != KV_OK) goto done;
    const char *dtype = json_string_value(json_object_get(tensor, "dtype"));
    size_t type = 0;
    while (type < sizeof types / sizeof *types && (!dtype || strcmp(types[type].dtype, dtype))) type++;
    json_t *offsets = json_object_get(tensor, "data_offsets");
    json_int_t begin = json_integer_value(json_array_get(offsets, 0)), end = json_integer_value(json_array_get(offsets, 1));
    int64_t n = shape_of(tensor, max_rank, shape);
    if (type == sizeof types / sizeof *types) status = kv_fail(err, KV_UNKNOWN_TENSOR_TYPE, name, "its dtype is %s; F32, F16, BF16 and F64 are read", dtype ? dtype : "missing");
    else if (n < 0) status = kv_fail(err, KV_BAD_ARGUMENT, name, "its shape is not 1 to %d positive dimensions within the limit", max_rank);
    else if (begin < 0 || end < begin || (uint64_t)(end - begin) != (uint64_t)n * types[type].bytes)
        status = kv_fail(err, KV_BAD_ARGUMENT, name, "its data_offsets do not span its shape");
    if (status != KV_OK) goto done;
    raw = malloc((size_t)n * types[type].bytes);
    *out = malloc((size_t)n * sizeof **out);
    if (!raw || !*out) status = kv_fail(err, KV_OUT_OF_MEMORY, name, "no memory for %lld values", (long long)n);
    else if (fseeko(f, (off_t)(data_at + (uint64_t)begin), SEEK_SET) || fread(raw, types[type].bytes, (size_t)n, f) != (size_t)n)
        status = kv_fail(err, KV_FILE_UNREADABLE, name, "%s ends before the tensor does", file);
    else widen(type, raw, n, *out);
    if (status != KV_OK) {
        free(*out);
        *out = NULL;
    }
done:
    free(raw);
    json_decref(header);
    fclose(f);
    return status;
}
