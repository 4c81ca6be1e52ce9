/* write_gguf.c — assembles GGUF files in memory. */
#include "tests/unit/model/write_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---------------------------------------------------------------- bytes */

static void put(struct gguf_bytes *b, const void *data, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = 2 * (b->n + n) + 64;
        b->data = realloc(b->data, b->cap);
        if (!b->data) abort();
    }
    if (!n) return;
    if (data) memcpy(b->data + b->n, data, n);
    else memset(b->data + b->n, 0, n);
    b->n += n;
}

static void put_u32(struct gguf_bytes *b, uint32_t v)
{
    put(b, &v, sizeof v);
}

static void put_u64(struct gguf_bytes *b, uint64_t v)
{
    put(b, &v, sizeof v);
}

static void put_string(struct gguf_bytes *b, const char *s)
{
    put_u64(b, strlen(s));
    put(b, s, strlen(s));
}

static void pad(struct gguf_bytes *b, size_t alignment)
{
    put(b, NULL, (alignment - b->n % alignment) % alignment);
}

/* ---------------------------------------------------------------- values and tensors */

static void put_key(struct gguf_writer *w, const char *key, enum kv_gguf_type type)
{
    w->n_values++;
    put_string(&w->values, key);
    put_u32(&w->values, type);
}

void gguf_put_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
    put_key(w, key, KV_GGUF_U32);
    put_u32(&w->values, v);
}

void gguf_put_f32(struct gguf_writer *w, const char *key, float v)
{
    put_key(w, key, KV_GGUF_F32);
    put(&w->values, &v, sizeof v);
}

void gguf_put_bool(struct gguf_writer *w, const char *key, bool v)
{
    put_key(w, key, KV_GGUF_BOOL);
    put(&w->values, &(uint8_t){v}, 1);
}

void gguf_put_text(struct gguf_writer *w, const char *key, const char *v)
{
    put_key(w, key, KV_GGUF_STRING);
    put_string(&w->values, v);
}

void gguf_put_array(struct gguf_writer *w, const char *key, enum kv_gguf_type type, const void *v, size_t bytes, uint64_t n)
{
    put_key(w, key, KV_GGUF_ARRAY);
    put_u32(&w->values, type);
    put_u64(&w->values, n);
    put(&w->values, v, bytes);
}

void gguf_put_texts(struct gguf_writer *w, const char *key, const char *const *v, uint64_t n)
{
    put_key(w, key, KV_GGUF_ARRAY);
    put_u32(&w->values, KV_GGUF_STRING);
    put_u64(&w->values, n);
    for (uint64_t i = 0; i < n; i++) put_string(&w->values, v[i]);
}

void gguf_put_tensor_at(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *dims, uint64_t offset)
{
    w->n_tensors++;
    put_string(&w->infos, name);
    put_u32(&w->infos, n_dims);
    for (uint32_t d = 0; d < n_dims; d++) put_u64(&w->infos, dims[d]);
    put_u32(&w->infos, type);
    put_u64(&w->infos, offset);
}

void gguf_put_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *dims, const void *data, size_t bytes)
{
    pad(&w->data, w->alignment ? w->alignment : 32);
    gguf_put_tensor_at(w, name, type, n_dims, dims, w->data.n);
    put(&w->data, data, bytes);
}

uint8_t *gguf_finish(struct gguf_writer *w, size_t *n)
{
    struct gguf_bytes out = {0};
    if (w->alignment) gguf_put_u32(w, "general.alignment", w->alignment);
    put(&out, "GGUF", 4);
    put_u32(&out, w->version ? w->version : 3);
    put_u64(&out, w->n_tensors);
    put_u64(&out, w->n_values);
    put(&out, w->values.data, w->values.n);
    put(&out, w->infos.data, w->infos.n);
    if (w->n_tensors) pad(&out, w->alignment ? w->alignment : 32);
    put(&out, w->data.data, w->data.n);
    free(w->values.data);
    free(w->infos.data);
    free(w->data.data);
    *n = out.n;
    return out.data;
}

void gguf_save(const uint8_t *bytes, size_t n, char path[64])
{
    snprintf(path, 64, "/tmp/kvasir-test-XXXXXX");
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n || close(fd)) abort();
}

/* ---------------------------------------------------------------- random models */

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static float small_random(uint64_t *state) /* -0.1 … 0.1 */
{
    return (float)((double)(next_random(state) >> 11) * 0x1p-53 * 0.2 - 0.1);
}

/* Where the half-precision scales of a block stand, and which value keeps weights near 0.1. */
static const struct scale {
    enum kv_type type;
    uint16_t at[2], half;
    int n;
} scales[] = {
    {KV_Q8_0, {0}, 0x1000, 1},    {KV_Q4_0, {0}, 0x2000, 1},      {KV_Q5_0, {0}, 0x1C00, 1},      {KV_IQ4_NL, {0}, 0x1000, 1}, {KV_Q4_1, {0, 2}, 0x2000, 2},
    {KV_Q5_1, {0, 2}, 0x1C00, 2}, {KV_Q4_K, {0, 2}, 0x0400, 2}, {KV_Q5_K, {0, 2}, 0x0200, 2}, {KV_Q6_K, {208}, 0x0100, 1},
};

static void fill_row(enum kv_type type, uint8_t *row, size_t bytes, int64_t cols, uint64_t *state)
{
    size_t i = 0;
    if (type == KV_F32) {
        for (; i < bytes; i += 4) memcpy(row + i, &(float){small_random(state)}, 4);
    } else if (type == KV_F16 || type == KV_BF16) {
        for (; i < bytes; i += 2) { /* magnitude 2^-5 … 2^-4 with a random sign and fraction */
            uint16_t random = (uint16_t)next_random(state), half = type == KV_F16 ? (random & 0x83FF) | 0x2800 : (random & 0x807F) | 0x3D00;
            memcpy(row + i, &half, 2);
        }
    } else {
        size_t blocks = (size_t)(cols / kv_type_block_values(type)), each = bytes / blocks;
        for (; i < bytes; i++) row[i] = (uint8_t)next_random(state);
        for (size_t s = 0; s < sizeof scales / sizeof *scales; s++)
            for (size_t b = 0; scales[s].type == type && b < blocks; b++)
                for (int k = 0; k < scales[s].n; k++) memcpy(row + b * each + scales[s].at[k], &scales[s].half, 2);
    }
}

struct maker {
    struct gguf_writer w;
    const struct random_model *r;
    uint64_t state;
};

static void put_matrix(struct maker *m, const char *name, int32_t rows, int32_t cols)
{
    if (m->r->skip && !strcmp(m->r->skip, name)) return;
    enum kv_type type = cols % kv_type_block_values(m->r->type) ? KV_F16 : m->r->type;
    size_t row_bytes = kv_type_row_bytes(type, cols);
    uint8_t *data = malloc(row_bytes * (size_t)rows);
    if (!data) abort();
    for (int32_t i = 0; i < rows; i++) fill_row(type, data + (size_t)i * row_bytes, row_bytes, cols, &m->state);
    gguf_put_tensor(&m->w, name, type, 2, (uint64_t[]){(uint64_t)cols, (uint64_t)rows}, data, row_bytes * (size_t)rows);
    free(data);
}

static void put_vector(struct maker *m, const char *name, int32_t n, float centre)
{
    if (m->r->skip && !strcmp(m->r->skip, name)) return;
    float *data = malloc((size_t)n * sizeof *data);
    if (!data) abort();
    for (int32_t i = 0; i < n; i++) data[i] = centre + small_random(&m->state);
    gguf_put_tensor(&m->w, name, KV_F32, 1, (uint64_t[]){(uint64_t)n}, data, (size_t)n * sizeof *data);
    free(data);
}

static void put_spm(struct maker *m)
{
    int32_t n = m->r->n_vocab, *kinds = calloc((size_t)n, sizeof *kinds);
    float *scores = calloc((size_t)n, sizeof *scores);
    char (*text)[16] = calloc((size_t)n, sizeof *text);
    const char **texts = calloc((size_t)n, sizeof *texts);
    static const char *const first[] = {"<unk>", "<s>", "</s>"}, *const words[] = {"\xE2\x96\x81", "a", "b", "\xE2\x96\x81" "a", "ab", "\xE2\x96\x81" "ab", "abab", "<s"};
    if (!kinds || !scores || !text || !texts) abort();
    for (int32_t i = 0; i < n; i++) {
        texts[i] = text[i];
        kinds[i] = i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1;
        scores[i] = i < 259 ? 0 : (float)-i;
        if (i < 3) snprintf(text[i], sizeof text[i], "%s", first[i]);
        else if (i < 259) snprintf(text[i], sizeof text[i], "<0x%02X>", (unsigned)(i - 3));
        else if (i - 259 < 8) snprintf(text[i], sizeof text[i], "%s", words[i - 259]);
        else snprintf(text[i], sizeof text[i], "tok%d", i);
    }
    gguf_put_text(&m->w, "tokenizer.ggml.model", "llama");
    gguf_put_texts(&m->w, "tokenizer.ggml.tokens", texts, (uint64_t)n);
    gguf_put_array(&m->w, "tokenizer.ggml.scores", KV_GGUF_F32, scores, (size_t)n * sizeof *scores, (uint64_t)n);
    gguf_put_array(&m->w, "tokenizer.ggml.token_type", KV_GGUF_I32, kinds, (size_t)n * sizeof *kinds, (uint64_t)n);
    gguf_put_u32(&m->w, "tokenizer.ggml.bos_token_id", 1);
    gguf_put_u32(&m->w, "tokenizer.ggml.eos_token_id", 2);
    gguf_put_u32(&m->w, "tokenizer.ggml.unknown_token_id", 0);
    free(kinds);
    free(scores);
    free(text);
    free(texts);
}

static void put_bpe(struct maker *m)
{
    int32_t n = m->r->n_vocab, *kinds = calloc((size_t)n, sizeof *kinds), next = 0x100;
    char (*text)[16] = calloc((size_t)n, sizeof *text);
    const char **texts = calloc((size_t)n, sizeof *texts);
    static const char *const last[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "he", "ll", "hell", "hello", "\xC4\xA0" "w", "or", "whole", "zz", "zzz"};
    static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "\xC4\xA0 w", "o r"};
    if (!kinds || !text || !texts) abort();
    for (int32_t i = 0; i < n; i++) {
        texts[i] = text[i];
        kinds[i] = i >= 256 && i < 259 ? 3 : i == 266 || i == 267 ? 4 : 1;
        int32_t c = (i >= 0x21 && i <= 0x7E) || (i >= 0xA1 && i <= 0xAC) || (i >= 0xAE && i < 256) ? i : i < 256 ? next++ : 0;
        if (i >= 256 && i - 256 < 12) snprintf(text[i], sizeof text[i], "%s", last[i - 256]);
        else if (i >= 256) snprintf(text[i], sizeof text[i], "xx%d", i);
        else if (c < 0x80) text[i][0] = (char)c;
        else snprintf(text[i], sizeof text[i], "%c%c", 0xC0 | c >> 6, 0x80 | (c & 0x3F));
    }
    gguf_put_text(&m->w, "tokenizer.ggml.model", "gpt2");
    gguf_put_text(&m->w, "tokenizer.ggml.pre", m->r->pre ? m->r->pre : "smollm");
    gguf_put_texts(&m->w, "tokenizer.ggml.tokens", texts, (uint64_t)n);
    gguf_put_array(&m->w, "tokenizer.ggml.token_type", KV_GGUF_I32, kinds, (size_t)n * sizeof *kinds, (uint64_t)n);
    gguf_put_texts(&m->w, "tokenizer.ggml.merges", merges, sizeof merges / sizeof *merges);
    gguf_put_u32(&m->w, "tokenizer.ggml.bos_token_id", 257);
    gguf_put_u32(&m->w, "tokenizer.ggml.eos_token_id", 258);
    free(kinds);
    free(text);
    free(texts);
}

static void put_shapes(struct maker *m)
{
    const struct random_model *r = m->r;
    const struct {
        const char *suffix;
        int32_t v;
    } rows[] = {{"block_count", r->n_layers},
                {"context_length", r->context_length},
                {"embedding_length", r->d_model},
                {"feed_forward_length", r->d_ff},
                {"attention.head_count", r->n_q_heads},
                {"attention.head_count_kv", r->n_kv_heads},
                {"attention.key_length", r->d_head},
                {"attention.value_length", r->d_head}};
    char key[96];
    gguf_put_text(&m->w, "general.architecture", r->architecture);
    gguf_put_text(&m->w, "general.name", "random");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(key, sizeof key, "%s.%s", r->architecture, rows[i].suffix);
        gguf_put_u32(&m->w, key, (uint32_t)rows[i].v);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", r->architecture);
    gguf_put_f32(&m->w, key, 1e-5f);
    if (!strcmp(r->architecture, "granite")) {
        gguf_put_f32(&m->w, "granite.embedding_scale", 12);
        gguf_put_f32(&m->w, "granite.residual_scale", 0.25f);
        gguf_put_f32(&m->w, "granite.attention.scale", 0.0625f);
        gguf_put_f32(&m->w, "granite.logit_scale", 8);
    }
}

static const char *layer(char name[64], int32_t i, const char *suffix)
{
    snprintf(name, 64, "blk.%d.%s", i, suffix);
    return name;
}

static void put_layer(struct maker *m, int32_t i)
{
    const struct random_model *r = m->r;
    int32_t d_q = r->n_q_heads * r->d_head, d_kv = r->n_kv_heads * r->d_head;
    char name[64];
    put_vector(m, layer(name, i, "attn_norm.weight"), r->d_model, 1);
    put_matrix(m, layer(name, i, "attn_q.weight"), d_q, r->d_model);
    put_matrix(m, layer(name, i, "attn_k.weight"), d_kv, r->d_model);
    put_matrix(m, layer(name, i, "attn_v.weight"), d_kv, r->d_model);
    put_matrix(m, layer(name, i, "attn_output.weight"), r->d_model, d_q);
    put_vector(m, layer(name, i, "ffn_norm.weight"), r->d_model, 1);
    put_matrix(m, layer(name, i, "ffn_gate.weight"), r->d_ff, r->d_model);
    put_matrix(m, layer(name, i, "ffn_up.weight"), r->d_ff, r->d_model);
    put_matrix(m, layer(name, i, "ffn_down.weight"), r->d_model, r->d_ff);
    if (!strcmp(r->architecture, "qwen2")) {
        put_vector(m, layer(name, i, "attn_q.bias"), d_q, 0);
        put_vector(m, layer(name, i, "attn_k.bias"), d_kv, 0);
        put_vector(m, layer(name, i, "attn_v.bias"), d_kv, 0);
    }
    if (!strcmp(r->architecture, "qwen3")) {
        put_vector(m, layer(name, i, "attn_q_norm.weight"), r->d_head, 1);
        put_vector(m, layer(name, i, "attn_k_norm.weight"), r->d_head, 1);
    }
}

uint8_t *random_gguf(const struct random_model *given, size_t *n)
{
    struct random_model r = *given;
#define DEFAULT(field, value) if (!r.field) r.field = (value)
    DEFAULT(architecture, "llama");
    DEFAULT(n_layers, 2);
    DEFAULT(d_model, 64);
    DEFAULT(n_q_heads, 4);
    DEFAULT(n_kv_heads, 2);
    DEFAULT(d_head, 16);
    DEFAULT(d_ff, 96);
    DEFAULT(n_vocab, 320);
    DEFAULT(context_length, 512);
#undef DEFAULT
    struct maker m = {.r = &r, .state = r.seed};
    put_shapes(&m);
    if (r.bpe) put_bpe(&m);
    else put_spm(&m);
    if (r.chat_template) gguf_put_text(&m.w, "tokenizer.chat_template", r.chat_template);
    put_matrix(&m, "token_embd.weight", r.n_vocab, r.d_model);
    for (int32_t i = 0; i < r.n_layers; i++) put_layer(&m, i);
    put_vector(&m, "output_norm.weight", r.d_model, 1);
    if (r.untied) put_matrix(&m, "output.weight", r.n_vocab, r.d_model);
    if (r.more) r.more(&m.w);
    return gguf_finish(&m.w, n);
}

void random_gguf_save(const struct random_model *r, char path[64])
{
    size_t n;
    uint8_t *bytes = random_gguf(r, &n);
    gguf_save(bytes, n, path);
    free(bytes);
}
