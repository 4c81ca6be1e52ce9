/* model.c — opens a model file: index, digest, shapes, tokenizer, weights; and lets it go again. */
#include "runtime/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void kv_model_key(const char *architecture, const char *suffix, char out[160])
{
    snprintf(out, 160, "%s.%s", architecture, suffix);
}

static void copy_text(const struct kv_gguf *g, const char *key, char *out, size_t cap)
{
    struct kv_gguf_string s;
    if (kv_gguf_text(g, key, &s, NULL) == KV_OK) snprintf(out, cap, "%.*s", (int)(s.len < cap ? s.len : cap), s.data);
}

static void progress(const struct kv_model_options *opt, const char *what, double fraction)
{
    if (opt && opt->progress) opt->progress(opt->progress_ctx, what, fraction);
}

static void describe(struct kv_model *m, const char *path)
{
    struct kv_model_info *i = &m->info;
    const struct kv_weights *w = &m->weights;
    snprintf(i->file, sizeof i->file, "%s", path);
    const char *base = strrchr(path, '/');
    snprintf(i->name, sizeof i->name, "%s", base ? base + 1 : path);
    copy_text(m->file, "general.name", i->name, sizeof i->name);
    copy_text(m->file, "tokenizer.ggml.model", i->tokenizer, sizeof i->tokenizer);
    copy_text(m->file, "tokenizer.ggml.pre", i->pre_tokenizer, sizeof i->pre_tokenizer);
    i->n_layers = w->n_layers;
    i->d_model = w->d_model;
    i->n_q_heads = w->n_q_heads;
    i->n_kv_heads = w->n_kv_heads;
    i->d_head = w->d_head;
    i->d_ff = w->d_ff;
    i->n_vocab = w->n_vocab;
    i->context_length = w->context_length;
    i->bos = m->tokenizer->bos;
    i->eos = m->tokenizer->eos;
    i->add_bos = m->tokenizer->add_bos;
    kv_sha256(m->file->base, m->file->size, i->artifact);
}

enum kv_status kv_model_open(const char *path, const struct kv_model_options *opt, struct kv_model **out, struct kv_error *err)
{
    if (kv_kernels_refused()) {
        kv_fail(err, KV_BAD_ARGUMENT, "KVASIR_ISA", "instruction set '%.32s' is unknown, or this machine does not have it", kv_kernels_refused());
        kv_hint(err, "use scalar, avx2 or avx512, or leave KVASIR_ISA out for the best this machine has");
        return KV_BAD_ARGUMENT;
    }
    struct kv_model *m = calloc(1, sizeof *m);
    if (!m) return kv_fail(err, KV_OUT_OF_MEMORY, path, "no memory to open a model");
    progress(opt, "reading", 0);
    enum kv_status s = kv_gguf_open(path, opt ? opt->max_file_bytes : 0, &m->file, err);
    if (s == KV_OK) s = kv_weights_shapes(m->file, &m->info, &m->weights, err);
    if (s == KV_OK) s = kv_tokenizer_create(m->file, m->weights.n_vocab, &m->tokenizer, err);
    if (s == KV_OK) s = kv_weights_bind(m, opt, err);
    if (s == KV_OK) {
        progress(opt, "hashing", 0.9);
        describe(m, path);
        progress(opt, "ready", 1);
        *out = m;
    } else {
        kv_model_close(m);
    }
    return s;
}

void kv_model_close(struct kv_model *m)
{
    if (!m) return;
    kv_tokenizer_destroy(m->tokenizer);
    if (m->packed) munmap(m->packed, m->packed_bytes);
    free(m->vectors);
    free(m->weights.inv_freq);
    free(m->weights.layers);
    kv_gguf_close(m->file);
    free(m);
}

const struct kv_model_info *kv_model_info(const struct kv_model *m)
{
    return &m->info;
}

const struct kv_weights *kv_model_weights(const struct kv_model *m)
{
    return &m->weights;
}
