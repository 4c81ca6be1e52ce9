/* weights.c — shapes from metadata, tensors by name; quantised matrices are packed once, float ones stay in the mapping. */
#include "runtime/execution/workers.h"
#include "runtime/model/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PACK_ROWS = 256 /* a multiple of the 16 rows of a group */ };

static const struct arch_row {
    const char *name;
    enum kv_arch arch;
    enum kv_rope_layout rope;
    bool needs_qkv_bias, needs_qk_norm;
    int32_t no_rope_every; /* layers (i + 1) % n == 0 carry no positions; 0: all do */
} archs[] = {
    {"llama", KV_ARCH_LLAMA, KV_ROPE_NORMAL, false, false, 0},
    {"qwen2", KV_ARCH_QWEN2, KV_ROPE_NEOX, true, false, 0},
    {"qwen3", KV_ARCH_QWEN3, KV_ROPE_NEOX, false, true, 0},
    {"smollm3", KV_ARCH_SMOLLM3, KV_ROPE_NORMAL, false, false, 4},
    {"granite", KV_ARCH_GRANITE, KV_ROPE_NORMAL, false, false, 0},
};

/* ---------------------------------------------------------------- shapes */

static enum kv_status find_arch(const struct kv_gguf *g, const struct arch_row **out, struct kv_error *err)
{
    struct kv_gguf_string name;
    if (kv_gguf_text(g, "general.architecture", &name, err) != KV_OK)
        return kv_fail(err, KV_MODEL_MALFORMED, "general.architecture", "the file does not say its architecture");
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (name.len == strlen(archs[i].name) && !memcmp(name.data, archs[i].name, name.len)) return *out = &archs[i], KV_OK;
    kv_fail(err, KV_UNKNOWN_ARCHITECTURE, "general.architecture", "architecture '%.*s' is not supported", (int)(name.len < 64 ? name.len : 64), name.data);
    kv_hint(err, "supported are llama (with mistral and smollm2), qwen2, qwen3, smollm3 and granite");
    return KV_UNKNOWN_ARCHITECTURE;
}

/* A required integer when *out is 0, an optional one otherwise. */
static enum kv_status read_int(const struct kv_gguf *g, const char *arch, const char *suffix, int64_t max, int32_t *out, struct kv_error *err)
{
    char key[160];
    int64_t v = 0;
    kv_model_key(arch, suffix, key);
    const struct kv_gguf_value *array = kv_gguf_find(g, key);
    if (array && array->is_array) return kv_fail(err, KV_UNSUPPORTED, key, "layers of different shapes are not supported");
    enum kv_status s = kv_gguf_int(g, key, &v, err);
    if (s == KV_NOT_FOUND) return *out ? KV_OK : kv_fail(err, KV_MODEL_MALFORMED, key, "the file lacks this key");
    if (s == KV_OK && (v < 1 || v > max))
        return kv_fail(err, KV_MODEL_MALFORMED, key, "%lld lies outside 1 to %lld", (long long)v, (long long)max);
    if (s == KV_OK) *out = (int32_t)v;
    return s;
}

static enum kv_status read_scale(const struct kv_gguf *g, const char *arch, const char *suffix, float *out, struct kv_error *err)
{
    char key[160];
    double v = *out;
    kv_model_key(arch, suffix, key);
    enum kv_status s = kv_gguf_float(g, key, &v, err);
    if (s == KV_NOT_FOUND) return KV_OK;
    if (s == KV_OK && !(v >= 1e-12 && v <= 1e12)) return kv_fail(err, KV_MODEL_MALFORMED, key, "%g is no usable scale", v);
    if (s == KV_OK) *out = (float)v;
    return s;
}

static enum kv_status read_heads(const struct kv_gguf *g, const char *arch, struct kv_weights *w, struct kv_error *err)
{
    int32_t value_length;
    enum kv_status s = read_int(g, arch, "attention.head_count", KV_MAX_HEADS, &w->n_q_heads, err);
    w->n_kv_heads = w->n_q_heads;
    if (s == KV_OK) s = read_int(g, arch, "attention.head_count_kv", KV_MAX_HEADS, &w->n_kv_heads, err);
    if (s != KV_OK) return s;
    w->d_head = w->d_model / w->n_q_heads;
    s = read_int(g, arch, "attention.key_length", KV_MAX_D_HEAD, &w->d_head, err);
    value_length = w->d_head;
    if (s == KV_OK) s = read_int(g, arch, "attention.value_length", KV_MAX_D_HEAD, &value_length, err);
    if (s != KV_OK) return s;
    if (w->d_head < 2 || w->d_head > KV_MAX_D_HEAD || w->d_head % 2)
        return kv_fail(err, KV_MODEL_MALFORMED, "attention.key_length", "a head of %d values is not supported; even numbers from 2 to %d are", w->d_head, KV_MAX_D_HEAD);
    if (value_length != w->d_head)
        return kv_fail(err, KV_UNSUPPORTED, "attention.value_length", "value heads of %d beside key heads of %d are not supported", value_length, w->d_head);
    if (w->n_q_heads % w->n_kv_heads)
        return kv_fail(err, KV_MODEL_MALFORMED, "attention.head_count_kv", "%d query heads cannot share %d K/V heads", w->n_q_heads, w->n_kv_heads);
    return KV_OK;
}

static enum kv_status read_scales(const struct kv_gguf *g, const char *arch, struct kv_weights *w, struct kv_error *err)
{
    float attention = 0, divisor = 1;
    w->embedding_scale = w->residual_scale = 1;
    w->norm_eps = 1e-5f;
    enum kv_status s = read_scale(g, arch, "attention.layer_norm_rms_epsilon", &w->norm_eps, err);
    if (s == KV_OK && w->arch == KV_ARCH_GRANITE) {
        s = read_scale(g, arch, "embedding_scale", &w->embedding_scale, err);
        if (s == KV_OK) s = read_scale(g, arch, "residual_scale", &w->residual_scale, err);
        if (s == KV_OK) s = read_scale(g, arch, "attention.scale", &attention, err);
        if (s == KV_OK) s = read_scale(g, arch, "logit_scale", &divisor, err); /* the file's value divides the logits */
    }
    w->attention_scale = attention != 0 ? attention : (float)kv_pow(w->d_head, -0.5);
    w->logit_scale = 1.0f / divisor;
    return s;
}

/* Features that would change the result and are not built must not be passed over. */
static enum kv_status refuse_unbuilt(const struct kv_gguf *g, const char *arch, struct kv_error *err)
{
    static const struct {
        const char *suffix, *what;
    } rows[] = {{"expert_count", "mixture of experts"}, {"attention.max_alibi_bias", "ALiBi"}, {"attention.clamp_kqv", "clamped attention inputs"},
                {"attn_logit_softcapping", "capped attention logits"}, {"final_logit_softcapping", "capped logits"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char key[160];
        double v = 0;
        kv_model_key(arch, rows[i].suffix, key);
        if (kv_gguf_float(g, key, &v, NULL) != KV_NOT_FOUND && v != 0) return kv_fail(err, KV_UNSUPPORTED, key, "%s is not supported", rows[i].what);
    }
    return KV_OK;
}

enum kv_status kv_weights_shapes(const struct kv_gguf *g, struct kv_model_info *info, struct kv_weights *w, struct kv_error *err)
{
    const struct arch_row *a;
    enum kv_status s = find_arch(g, &a, err);
    if (s != KV_OK) return s;
    snprintf(info->architecture, sizeof info->architecture, "%s", a->name);
    w->arch = a->arch;
    w->rope_layout = a->rope;
    s = read_int(g, a->name, "block_count", KV_MAX_LAYERS, &w->n_layers, err);
    if (s == KV_OK) s = read_int(g, a->name, "embedding_length", KV_MAX_WIDTH, &w->d_model, err);
    if (s == KV_OK) s = read_int(g, a->name, "feed_forward_length", KV_MAX_WIDTH, &w->d_ff, err);
    if (s == KV_OK) s = read_int(g, a->name, "context_length", KV_MAX_CONTEXT, &w->context_length, err);
    if (s == KV_OK) s = read_heads(g, a->name, w, err);
    if (s == KV_OK) s = read_scales(g, a->name, w, err);
    if (s == KV_OK) s = refuse_unbuilt(g, a->name, err);
    if (s != KV_OK) return s;
    /* Within its window a sliding-window model is an ordinary one; beyond it would not be. */
    int32_t window = w->context_length;
    s = read_int(g, a->name, "attention.sliding_window", INT32_MAX, &window, err);
    if (window < w->context_length) w->context_length = window;
    const struct kv_gguf_tensor *t = kv_gguf_tensor(g, "token_embd.weight");
    if (s == KV_OK && !t) return kv_fail(err, KV_MISSING_TENSOR, "token_embd.weight", "the file lacks this tensor");
    if (s == KV_OK && t->dims[1] > KV_MAX_VOCAB)
        return kv_fail(err, KV_MODEL_MALFORMED, "token_embd.weight", "%lld tokens exceed the limit of %d", (long long)t->dims[1], KV_MAX_VOCAB);
    if (s == KV_OK) w->n_vocab = (int32_t)t->dims[1];
    return s;
}

/* ---------------------------------------------------------------- tensors */

struct packing { /* a matrix that is still to be packed */
    enum kv_type type;
    const void *file;
    int32_t rows, cols;
    uint8_t *to;
};

struct binder {
    struct kv_model *m;
    const struct kv_model_options *opt;
    struct kv_error *err;
    bool *used;          /* [n_tensors] */
    struct packing *pack; /* [n_pack] */
    size_t n_pack;
    uint8_t *packed_at;
    float *vector_at;
    uint64_t step_bytes; /* what one decode step reads */
};

static const struct kv_gguf_tensor *claim(struct binder *b, const char *name)
{
    const struct kv_gguf_tensor *t = kv_gguf_tensor(b->m->file, name);
    if (t) b->used[t - b->m->file->tensors] = true;
    return t;
}

static enum kv_status wrong_shape(struct binder *b, const char *name, const struct kv_gguf_tensor *t, int64_t cols, int64_t rows)
{
    return kv_fail(b->err, KV_MODEL_MALFORMED, name, "the tensor has %lld × %lld values; the metadata asks for %lld × %lld", (long long)t->dims[0],
                   (long long)t->dims[1], (long long)cols, (long long)rows);
}

static size_t round64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static enum kv_status bind_mat(struct binder *b, const char *name, int32_t rows, int32_t cols, struct kv_mat *out)
{
    const struct kv_gguf_tensor *t = claim(b, name);
    if (!t) return kv_fail(b->err, KV_MISSING_TENSOR, name, "the file lacks this tensor");
    /* exactly two dimensions: reserve() counted room for those */
    if (t->n_dims != 2 || t->dims[0] != cols || t->dims[1] != rows) return wrong_shape(b, name, t, cols, rows);
    kv_mat_describe(out, t->type, t->data, rows, cols, b->packed_at);
    if (kv_mat_packed_bytes(t->type, rows, cols)) b->pack[b->n_pack++] = (struct packing){t->type, t->data, rows, cols, b->packed_at};
    b->packed_at += round64(kv_mat_packed_bytes(t->type, rows, cols));
    b->step_bytes += out->data_bytes;
    return KV_OK;
}

/* Absent optional vectors leave *out NULL. */
static enum kv_status bind_vector(struct binder *b, const char *name, int32_t n, bool required, const float **out)
{
    const struct kv_gguf_tensor *t = claim(b, name);
    if (!t) return required ? kv_fail(b->err, KV_MISSING_TENSOR, name, "the file lacks this tensor") : KV_OK;
    if (t->n_dims != 1 || t->dims[0] != n) return wrong_shape(b, name, t, n, 1);
    kv_dequantise_row(t->type, t->data, n, b->vector_at);
    *out = b->vector_at;
    b->vector_at += n;
    b->step_bytes += (uint64_t)n * sizeof(float);
    return KV_OK;
}

static const char *layer_name(char out[64], int32_t layer, const char *suffix)
{
    snprintf(out, 64, "blk.%d.%s", layer, suffix);
    return out;
}

static enum kv_status bind_layer_vectors(struct binder *b, const struct arch_row *a, int32_t i)
{
    const struct kv_weights *w = &b->m->weights;
    struct kv_layer_weights *l = &w->layers[i];
    int32_t d_q = w->n_q_heads * w->d_head, d_kv = w->n_kv_heads * w->d_head;
    const struct {
        const char *suffix;
        int32_t n;
        bool required;
        const float **out;
    } rows[] = {
        {"attn_norm.weight", w->d_model, true, &l->attn_norm},
        {"ffn_norm.weight", w->d_model, true, &l->ffn_norm},
        {"attn_q.bias", d_q, a->needs_qkv_bias, &l->bq},
        {"attn_k.bias", d_kv, a->needs_qkv_bias, &l->bk},
        {"attn_v.bias", d_kv, a->needs_qkv_bias, &l->bv},
        {"attn_output.bias", w->d_model, false, &l->bo},
        {"attn_q_norm.weight", w->d_head, a->needs_qk_norm, &l->q_norm},
        {"attn_k_norm.weight", w->d_head, a->needs_qk_norm, &l->k_norm},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        char name[64];
        bool norm = rows[r].out == &l->q_norm || rows[r].out == &l->k_norm;
        if (norm && !a->needs_qk_norm) continue; /* left unclaimed, so that a file holding one is refused below */
        enum kv_status s = bind_vector(b, layer_name(name, i, rows[r].suffix), rows[r].n, rows[r].required, rows[r].out);
        if (s != KV_OK) return s;
    }
    return KV_OK;
}

static enum kv_status bind_layer(struct binder *b, const struct arch_row *a, int32_t i)
{
    const struct kv_weights *w = &b->m->weights;
    struct kv_layer_weights *l = &w->layers[i];
    int32_t d_q = w->n_q_heads * w->d_head, d_kv = w->n_kv_heads * w->d_head;
    const struct {
        const char *suffix;
        int32_t rows, cols;
        struct kv_mat *out;
    } rows[] = {
        {"attn_q.weight", d_q, w->d_model, &l->wq},        {"attn_k.weight", d_kv, w->d_model, &l->wk},
        {"attn_v.weight", d_kv, w->d_model, &l->wv},       {"attn_output.weight", w->d_model, d_q, &l->wo},
        {"ffn_gate.weight", w->d_ff, w->d_model, &l->gate}, {"ffn_up.weight", w->d_ff, w->d_model, &l->up},
        {"ffn_down.weight", w->d_model, w->d_ff, &l->down},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        char name[64];
        enum kv_status s = bind_mat(b, layer_name(name, i, rows[r].suffix), rows[r].rows, rows[r].cols, rows[r].out);
        if (s != KV_OK) return s;
    }
    l->rope = !a->no_rope_every || (i + 1) % a->no_rope_every != 0;
    if (w->arch == KV_ARCH_GRANITE) { /* the flag that other architectures only report is this one's switch for positions */
        enum kv_status s = kv_gguf_bool(b->m->file, "granite.rope.scaling.finetuned", &l->rope, b->err);
        if (s != KV_OK && s != KV_NOT_FOUND) return s;
    }
    return bind_layer_vectors(b, a, i);
}

static enum kv_status bind_ends(struct binder *b)
{
    struct kv_weights *w = &b->m->weights;
    const struct kv_gguf_tensor *e = claim(b, "token_embd.weight");
    if (e->dims[0] != w->d_model || e->n_dims != 2) return wrong_shape(b, "token_embd.weight", e, w->d_model, w->n_vocab);
    w->embedding_type = e->type;
    w->embedding = e->data;
    enum kv_status s = bind_vector(b, "output_norm.weight", w->d_model, true, &w->output_norm);
    const char *output = kv_gguf_tensor(b->m->file, "output.weight") ? "output.weight" : "token_embd.weight";
    if (s == KV_OK) s = bind_mat(b, output, w->n_vocab, w->d_model, &w->output);
    if (s != KV_OK) return s;
    double base = 10000;
    char key[160];
    kv_model_key(b->m->info.architecture, "rope.freq_base", key);
    s = kv_gguf_float(b->m->file, key, &base, b->err);
    if (s != KV_OK && s != KV_NOT_FOUND) return s;
    if (!(base > 1 && base < 1e15)) return kv_fail(b->err, KV_MODEL_MALFORMED, key, "%g is no usable base", base);
    b->m->info.rope_base = (float)base;
    return kv_rope_load(b->m->file, b->m->info.architecture, base, claim(b, "rope_freqs.weight"), w, b->err);
}

/* Room for everything at once: packed matrices in one mapping that asks for huge pages, vectors in one array. */
static enum kv_status reserve(struct binder *b)
{
    struct kv_model *m = b->m;
    size_t packed = 0, vector = 0;
    bool tied = !kv_gguf_tensor(m->file, "output.weight"), overflow = false;
    for (size_t i = 0; i < m->file->n_tensors; i++) {
        const struct kv_gguf_tensor *t = &m->file->tensors[i];
        m->info.parameters += (uint64_t)(t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3]);
        if (t->n_dims == 1) overflow |= __builtin_add_overflow(vector, (size_t)t->dims[0], &vector);
        bool lookup_only = !tied && t->name.len == 17 && !memcmp(t->name.data, "token_embd.weight", 17);
        if (t->n_dims == 2 && !lookup_only) overflow |= __builtin_add_overflow(packed, round64(kv_mat_packed_bytes(t->type, t->dims[1], t->dims[0])), &packed);
    }
    if (overflow || vector > SIZE_MAX / sizeof(float)) return kv_fail(b->err, KV_MODEL_MALFORMED, "tensor table", "the tensors exceed the address space");
    m->vectors = calloc(vector + 1, sizeof *m->vectors);
    m->weights.layers = calloc((size_t)m->weights.n_layers, sizeof *m->weights.layers);
    b->used = calloc(m->file->n_tensors + 1, sizeof *b->used);
    b->pack = calloc(m->file->n_tensors + 2, sizeof *b->pack); /* the embedding may be the output as well */
    if (!m->vectors || !m->weights.layers || !b->used || !b->pack) return kv_fail(b->err, KV_OUT_OF_MEMORY, "weights", "no memory for the weights' index");
    if (packed) {
        void *p = mmap(NULL, packed, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) return kv_fail(b->err, KV_OUT_OF_MEMORY, "weights", "no memory for %zu bytes of packed weights", packed);
        madvise(p, packed, MADV_HUGEPAGE);
        m->packed = p;
        m->packed_bytes = packed;
    }
    b->packed_at = m->packed;
    b->vector_at = m->vectors;
    return KV_OK;
}

/* A tensor nobody read means a computation nobody does: refused rather than computed wrongly. */
static enum kv_status check_all_used(struct binder *b)
{
    const struct kv_gguf *g = b->m->file;
    for (size_t i = 0; i < g->n_tensors; i++) {
        if (b->used[i]) continue;
        kv_fail(b->err, KV_UNSUPPORTED, "tensor table", "tensor '%.*s' has no place in architecture '%s' as it is built here", (int)g->tensors[i].name.len,
                g->tensors[i].name.data, b->m->info.architecture);
        return KV_UNSUPPORTED;
    }
    return KV_OK;
}

/* Every processor packs rows of the same matrix, one matrix after another. */
static void pack_part(void *ctx, int32_t worker, int32_t part)
{
    const struct packing *p = ctx;
    int32_t from = part * PACK_ROWS;
    (void)worker;
    kv_mat_pack_rows(p->type, p->file, p->rows, p->cols, p->to, from, from + PACK_ROWS);
}

static enum kv_status pack_all(struct binder *b)
{
    struct kv_workers *w;
    if (!b->n_pack) return KV_OK;
    enum kv_status s = kv_workers_create(0, &w);
    if (s != KV_OK) return kv_fail(b->err, s, "weights", "the threads that pack weights could not be started");
    for (size_t i = 0; i < b->n_pack; i++) {
        kv_workers_run(w, pack_part, &b->pack[i], (b->pack[i].rows + PACK_ROWS - 1) / PACK_ROWS);
        if (b->opt && b->opt->progress) b->opt->progress(b->opt->progress_ctx, "packing", 0.9 * (double)(i + 1) / (double)b->n_pack);
    }
    kv_workers_destroy(w);
    return KV_OK;
}

enum kv_status kv_weights_bind(struct kv_model *m, const struct kv_model_options *opt, struct kv_error *err)
{
    struct binder b = {.m = m, .opt = opt, .err = err};
    const struct arch_row *a;
    enum kv_status s = find_arch(m->file, &a, err);
    if (s == KV_OK && (size_t)m->weights.n_layers * 9 > m->file->n_tensors)
        s = kv_fail(err, KV_MISSING_TENSOR, "tensor table", "%d layers need at least %d tensors; the file has %zu", m->weights.n_layers, m->weights.n_layers * 9, m->file->n_tensors);
    if (s == KV_OK) s = reserve(&b);
    if (s == KV_OK) s = bind_ends(&b);
    for (int32_t i = 0; s == KV_OK && i < m->weights.n_layers; i++) s = bind_layer(&b, a, i);
    if (s == KV_OK) s = check_all_used(&b);
    if (s == KV_OK) s = pack_all(&b);
    m->info.weight_bytes = b.step_bytes + kv_type_row_bytes(m->weights.embedding_type, m->weights.d_model);
    free(b.used);
    free(b.pack);
    return s;
}
