/* test_model.c — models of every architecture and type open with the right shapes; others are refused with their reason. */
#include "runtime/model/weights.h"
#include "tests/unit/model/write_gguf.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum kv_status open_random(const struct random_model *r, struct kv_model **m, struct kv_error *err)
{
    char path[64];
    random_gguf_save(r, path);
    *m = NULL;
    enum kv_status s = kv_model_open(path, NULL, m, err);
    unlink(path);
    ck_assert_int_eq(s == KV_OK, *m != NULL);
    return s;
}

static struct kv_model *opened(const struct random_model *r)
{
    struct kv_model *m;
    struct kv_error err = {0};
    enum kv_status s = open_random(r, &m, &err);
    ck_assert_msg(s == KV_OK, "%s at %s: %s", kv_status_name(s), err.where, err.message);
    return m;
}

START_TEST(architectures)
{
    static const struct {
        const char *name;
        enum kv_arch arch;
        enum kv_rope_layout rope;
        bool biased, normed;
    } rows[] = {{"llama", KV_ARCH_LLAMA, KV_ROPE_NORMAL, false, false},
                {"qwen2", KV_ARCH_QWEN2, KV_ROPE_NEOX, true, false},
                {"qwen3", KV_ARCH_QWEN3, KV_ROPE_NEOX, false, true},
                {"smollm3", KV_ARCH_SMOLLM3, KV_ROPE_NORMAL, false, false},
                {"granite", KV_ARCH_GRANITE, KV_ROPE_NORMAL, false, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kv_model *m = opened(&(struct random_model){.architecture = rows[i].name, .n_layers = 8, .bpe = i % 2, .untied = i % 2});
        const struct kv_weights *w = kv_model_weights(m);
        bool granite = w->arch == KV_ARCH_GRANITE;
        ck_assert_int_eq(w->arch, rows[i].arch);
        ck_assert_int_eq(w->rope_layout, rows[i].rope);
        ck_assert_int_eq(w->layers[7].bq != NULL, rows[i].biased);
        ck_assert_int_eq(w->layers[7].k_norm != NULL, rows[i].normed);
        for (int l = 0; l < 8; l++) ck_assert_int_eq(w->layers[l].rope, w->arch != KV_ARCH_SMOLLM3 || l % 4 != 3);
        ck_assert_float_eq_tol(w->attention_scale, granite ? 0.0625f : 0.25f, 1e-7f);
        ck_assert(w->embedding_scale == (granite ? 12 : 1) && w->residual_scale == (granite ? 0.25f : 1) && w->logit_scale == (granite ? 0.125f : 1));
        ck_assert_int_eq(w->layers[3].wk.rows, 32);
        ck_assert_int_eq(w->layers[3].wk.cols, 64);
        ck_assert_int_eq(w->output.rows, 320);
        ck_assert_ptr_nonnull(w->output_norm);
        kv_model_close(m);
    }
}
END_TEST

START_TEST(tensor_types)
{
    static const enum kv_type types[] = {KV_F32, KV_F16, KV_BF16, KV_Q4_0, KV_Q4_1, KV_Q5_0, KV_Q5_1, KV_Q8_0, KV_IQ4_NL, KV_Q4_K, KV_Q5_K, KV_Q6_K};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct kv_model *m = opened(&(struct random_model){.type = types[i], .d_model = 256, .d_ff = 512, .n_q_heads = 16, .seed = i});
        const struct kv_weights *w = kv_model_weights(m);
        ck_assert_int_eq(w->layers[1].gate.type, types[i]);
        ck_assert_int_eq(w->embedding_type, types[i]);
        ck_assert_uint_eq((uintptr_t)w->layers[0].wv.data % (kv_type_is_quantised(types[i]) ? 64 : 32), 0);
        float row[256];
        kv_dequantise_row(w->embedding_type, w->embedding, 256, row);
        for (int c = 0; c < 256; c++) ck_assert_msg(fabsf(row[c]) < 1, "%s: %g", kv_type_name(types[i]), (double)row[c]);
        ck_assert_uint_gt(kv_model_info(m)->weight_bytes, 100000);
        kv_model_close(m);
    }
}
END_TEST

START_TEST(the_model_that_ships)
{
    struct kv_model *m;
    struct kv_error err;
    ck_assert_int_eq(kv_model_open("models/kvasir-demo-q8_0.gguf", NULL, &m, &err), KV_OK);
    const struct kv_model_info *i = kv_model_info(m);
    char hex[65];
    kv_hex(i->artifact, 32, hex);
    ck_assert_str_eq(hex, "4561604a3cd739da8e54d9ed42803a8d6642f99ac157beb9b6b381114eb1f64b");
    ck_assert_str_eq(i->name, "kvasir-demo");
    ck_assert_str_eq(i->architecture, "llama");
    ck_assert(i->n_layers == 6 && i->d_model == 256 && i->n_q_heads == 8 && i->n_kv_heads == 2 && i->d_head == 32 && i->d_ff == 688);
    ck_assert(i->n_vocab == 1024 && i->context_length == 4096 && i->rope_base == 50000 && i->bos == 1 && i->eos == 2 && i->add_bos);
    ck_assert_uint_eq(i->parameters, 4418816);
    kv_model_close(m);
}
END_TEST

/* ---------------------------------------------------------------- RoPE */

static void put_linear(struct gguf_writer *w)
{
    gguf_put_f32(w, "llama.rope.scaling.factor", 4); /* a factor without a type means linear */
}

static void put_ntk(struct gguf_writer *w)
{
    gguf_put_text(w, "llama.rope.scaling.type", "ntk");
    gguf_put_f32(w, "llama.rope.scaling.factor", 4);
}

static void put_yarn(struct gguf_writer *w)
{
    gguf_put_text(w, "llama.rope.scaling.type", "yarn");
    gguf_put_f32(w, "llama.rope.scaling.factor", 4);
    gguf_put_u32(w, "llama.rope.scaling.original_context_length", 128);
}

static void put_factors(struct gguf_writer *w)
{
    gguf_put_tensor(w, "rope_freqs.weight", KV_F32, 1, (uint64_t[]){8}, (float[]){1, 1, 1, 2, 4, 8, 8, 8}, 32);
}

static void put_longrope(struct gguf_writer *w)
{
    gguf_put_text(w, "llama.rope.scaling.type", "longrope");
}

START_TEST(rope_scaling)
{
    static void (*const more[])(struct gguf_writer *) = {NULL, put_linear, put_ntk, put_yarn, put_factors};
    static const float factors[] = {1, 1, 1, 2, 4, 8, 8, 8};
    for (size_t k = 0; k < 5; k++) {
        struct kv_model *m = opened(&(struct random_model){.more = more[k]});
        const struct kv_weights *w = kv_model_weights(m);
        ck_assert_int_eq(w->d_rot, 16);
        ck_assert_float_eq_tol(w->rope_mscale, k == 3 ? 1 + 0.1 * log(4) : 1, 1e-6);
        double low = floor(16 * log(128 / (32 * 2 * M_PI)) / (2 * log(10000.0))), high = ceil(16 * log(128 / (2 * M_PI)) / (2 * log(10000.0)));
        if (low < 0) low = 0;
        for (int i = 0; i < 8; i++) {
            double plain = pow(10000, -2.0 * i / 16), want = plain, ramp = fmin(1, fmax(0, (i - low) / fmax(0.001, high - low)));
            if (k == 1) want = plain / 4;
            if (k == 2) want = pow(10000 * pow(4, 16.0 / 14), -2.0 * i / 16);
            if (k == 3) want = plain / 4 * ramp + plain * (1 - ramp);
            if (k == 4) want = plain / (double)factors[i];
            ck_assert_msg(fabs(w->inv_freq[i] / want - 1) < 1e-12, "scaling %zu, pair %d: %.17g, expected %.17g", k, i, w->inv_freq[i], want);
        }
        kv_model_close(m);
    }
    struct kv_model *m;
    struct kv_error err;
    ck_assert_int_eq(open_random(&(struct random_model){.more = put_longrope}, &m, &err), KV_UNSUPPORTED);
}
END_TEST

/* ---------------------------------------------------------------- refusals */

static void put_experts(struct gguf_writer *w)
{
    gguf_put_u32(w, "llama.expert_count", 8);
}

static void put_stray(struct gguf_writer *w)
{
    gguf_put_tensor(w, "blk.0.ffn_gate.bias", KV_F32, 1, (uint64_t[]){96}, NULL, 384);
}

static void put_head_norm(struct gguf_writer *w)
{
    gguf_put_tensor(w, "blk.0.attn_q_norm.weight", KV_F32, 1, (uint64_t[]){16}, NULL, 64);
}

static void put_flat_output(struct gguf_writer *w) /* three dimensions, the last of them 1 */
{
    gguf_put_tensor(w, "output.weight", KV_Q8_0, 3, (uint64_t[]){64, 320, 1}, NULL, 320 * 68);
}

static void put_window(struct gguf_writer *w)
{
    gguf_put_u32(w, "llama.attention.sliding_window", 100);
}

START_TEST(refusals)
{
    static const struct {
        struct random_model r;
        enum kv_status status;
        const char *where;
    } rows[] = {
        {{.architecture = "gpt-neox"}, KV_UNKNOWN_ARCHITECTURE, "general.architecture"},
        {{.skip = "blk.1.ffn_up.weight"}, KV_MISSING_TENSOR, "blk.1.ffn_up.weight"},
        {{.skip = "token_embd.weight"}, KV_MISSING_TENSOR, "token_embd.weight"},
        {{.skip = "output_norm.weight"}, KV_MISSING_TENSOR, "output_norm.weight"},
        {{.architecture = "qwen2", .skip = "blk.0.attn_k.bias"}, KV_MISSING_TENSOR, "blk.0.attn_k.bias"},
        {{.architecture = "qwen3", .skip = "blk.1.attn_q_norm.weight"}, KV_MISSING_TENSOR, "blk.1.attn_q_norm.weight"},
        {{.more = put_experts}, KV_UNSUPPORTED, "llama.expert_count"},
        {{.more = put_stray}, KV_UNSUPPORTED, "tensor table"},
        {{.more = put_head_norm}, KV_UNSUPPORTED, "tensor table"},
        {{.more = put_flat_output}, KV_MODEL_MALFORMED, "output.weight"},
        {{.n_q_heads = 4, .n_kv_heads = 3}, KV_MODEL_MALFORMED, "attention.head_count_kv"},
        {{.d_head = 15}, KV_MODEL_MALFORMED, "attention.key_length"},
        {{.n_layers = 2000, .d_model = 2, .d_ff = 2, .n_q_heads = 1, .n_kv_heads = 1, .d_head = 2}, KV_MODEL_MALFORMED, "llama.block_count"},
        {{.bpe = true, .pre = "tekken"}, KV_UNKNOWN_TOKENIZER, "tokenizer.ggml.pre"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kv_model *m;
        struct kv_error err = {0};
        enum kv_status s = open_random(&rows[i].r, &m, &err);
        ck_assert_msg(s == rows[i].status && !strcmp(err.where, rows[i].where), "row %zu: %s at %s: %s", i, kv_status_name(s), err.where, err.message);
    }
}
END_TEST

START_TEST(sliding_window_bounds_the_context)
{
    struct kv_model *m = opened(&(struct random_model){.more = put_window});
    ck_assert_int_eq(kv_model_info(m)->context_length, 100);
    kv_model_close(m);
}
END_TEST

START_TEST(digests)
{
    uint8_t out[32];
    char hex[65];
    kv_sha256("abc", 3, out);
    kv_hex(out, 32, hex);
    ck_assert_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    kv_sha256("", 0, out);
    kv_hex(out, 32, hex);
    ck_assert_str_eq(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}
END_TEST

Suite *suite_model(void);
Suite *suite_model(void)
{
    Suite *s = suite_create("model");
    TCase *c = tcase_create("open");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, architectures);
    tcase_add_test(c, tensor_types);
    tcase_add_test(c, the_model_that_ships);
    tcase_add_test(c, rope_scaling);
    tcase_add_test(c, refusals);
    tcase_add_test(c, sliding_window_bounds_the_context);
    tcase_add_test(c, digests);
    suite_add_tcase(s, c);
    return s;
}
