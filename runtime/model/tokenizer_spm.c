/* tokenizer_spm.c — SentencePiece vocabularies: neighbours join to the token with the highest score; what is no token becomes bytes. */
#include "runtime/model/tokenizer.h"

#include "runtime/model/unicode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The file writes a space as U+2581. */
static const char mark[3] = "\xE2\x96\x81";

/* Copies with marks turned into spaces; returns the length, never more than len. */
static size_t unmark(const char *text, size_t len, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < len; n++) {
        bool space = len - i >= 3 && !memcmp(text + i, mark, 3);
        out[n] = space ? ' ' : text[i];
        i += space ? 3 : 1;
    }
    return n;
}

/* "<0x0A>" to 10, -1 for another text. */
static int byte_of(struct kv_gguf_string s)
{
    static const char digits[] = "0123456789ABCDEF";
    if (s.len != 6 || memcmp(s.data, "<0x", 3) || s.data[5] != '>') return -1;
    const char *high = memchr(digits, s.data[3], 16), *low = memchr(digits, s.data[4], 16);
    return high && low ? (int)((high - digits) * 16 + (low - digits)) : -1;
}

static enum kv_status load_scores(struct kv_tokenizer *t, const struct kv_gguf *g, struct kv_error *err)
{
    const char *key = "tokenizer.ggml.scores";
    const struct kv_gguf_value *v = kv_gguf_find(g, key);
    if (!v || !v->is_array || v->type != KV_GGUF_F32 || v->count != (uint64_t)t->n_tokens)
        return kv_fail(err, KV_MODEL_MALFORMED, key, "a SentencePiece vocabulary of %d tokens needs as many scores", t->n_tokens);
    for (int32_t i = 0; i < t->n_tokens; i++) {
        t->scores[i] = (float)kv_gguf_number_at(v, (uint64_t)i);
        if (isnan(t->scores[i])) return kv_fail(err, KV_MODEL_MALFORMED, key, "the score of token %d is not a number", i);
    }
    return KV_OK;
}

/* Text must not become these by itself. */
static bool joins(const struct kv_tokenizer *t, int32_t id)
{
    return t->kind[id] == KV_TOKEN_NORMAL || t->kind[id] == KV_TOKEN_USER || t->kind[id] == KV_TOKEN_UNUSED;
}

static enum kv_status load_piece(struct kv_tokenizer *t, int32_t i, struct kv_gguf_string s, char **at, struct kv_error *err)
{
    if (s.len > KV_MAX_TOKEN_BYTES) return kv_fail(err, KV_MODEL_MALFORMED, "tokenizer.ggml.tokens", "token %d has %zu bytes", i, s.len);
    size_t n = 0;
    if (t->kind[i] == KV_TOKEN_BYTE) {
        int byte = byte_of(s);
        if (byte < 0) return kv_fail(err, KV_MODEL_MALFORMED, "tokenizer.ggml.tokens", "byte token %d is not written <0xHH>", i);
        (*at)[n++] = (char)byte;
        t->byte_piece[byte] = i;
    } else {
        n = unmark(s.data, s.len, *at);
    }
    t->pieces[i] = (struct kv_piece){*at, (uint32_t)n};
    *at += n;
    if (joins(t, i)) kv_piece_map_put(&t->ordinary, t->pieces, i);
    return KV_OK;
}

enum kv_status kv_spm_load(struct kv_tokenizer *t, const struct kv_gguf *g, struct kv_error *err)
{
    const struct kv_gguf_value *tokens = kv_gguf_find(g, "tokenizer.ggml.tokens");
    const uint8_t *cursor = tokens->data;
    size_t bytes = 0;
    for (int32_t i = 0; i < t->n_tokens; i++) bytes += kv_gguf_next_string(&cursor).len;
    t->n_pieces = t->n_tokens;
    t->pieces = calloc((size_t)t->n_tokens, sizeof *t->pieces);
    t->scores = calloc((size_t)t->n_tokens, sizeof *t->scores);
    t->text = malloc(bytes + 1);
    if (!t->pieces || !t->scores || !t->text || kv_piece_map_create(&t->ordinary, (size_t)t->n_tokens) != KV_OK)
        return kv_fail(err, KV_OUT_OF_MEMORY, "tokenizer", "no memory for %d tokens", t->n_tokens);
    for (int b = 0; b < 256; b++) t->byte_piece[b] = -1;
    enum kv_status s = load_scores(t, g, err);
    char *at = t->text;
    cursor = tokens->data;
    for (int32_t i = 0; s == KV_OK && i < t->n_tokens; i++) s = load_piece(t, i, kv_gguf_next_string(&cursor), &at, err);
    return s;
}

static bool join(const void *ctx, const char *text, const struct kv_symbol *a, const struct kv_symbol *b, int32_t *piece, double *order)
{
    const struct kv_tokenizer *t = ctx;
    *piece = kv_piece_map_get(&t->ordinary, t->pieces, text + a->at, (size_t)(a->len + b->len));
    if (*piece < 0) return false;
    *order = -(double)t->scores[*piece];
    return true;
}

static void put_bytes(const struct kv_tokenizer *t, const char *text, int32_t len, struct kv_token_sink *out)
{
    for (int32_t i = 0; i < len; i++) {
        int32_t id = t->byte_piece[(unsigned char)text[i]];
        if (id < 0) { /* no byte fallback: one unknown token for the whole character */
            if (t->unk >= 0) kv_token_put(out, t->unk);
            return;
        }
        kv_token_put(out, id);
    }
}

enum kv_status kv_spm_encode(const struct kv_tokenizer *t, struct kv_merge_space *m, const char *text, size_t len, bool after_special, struct kv_token_sink *out)
{
    char *plain = malloc(len + 1);
    if (!plain) return KV_OUT_OF_MEMORY;
    size_t n = 0;
    if (t->add_space_prefix && after_special) plain[n++] = ' ';
    n += unmark(text, len, plain + n);
    enum kv_status s = kv_merge_reserve(m, n);
    if (s == KV_OK) {
        int32_t count = 0;
        for (size_t at = 0, used; at < n; at += used) {
            kv_utf8_decode(plain + at, n - at, &used);
            m->symbols[count++] = (struct kv_symbol){.at = (int32_t)at, .len = (int32_t)used,
                                                     .piece = kv_piece_map_get(&t->ordinary, t->pieces, plain + at, used)};
        }
        kv_merge_run(m, plain, count, join, t);
        for (int32_t i = 0; i >= 0; i = m->symbols[i].next) {
            const struct kv_symbol *x = &m->symbols[i];
            if (x->piece >= 0) kv_token_put(out, x->piece);
            else put_bytes(t, plain + x->at, x->len, out);
        }
    }
    free(plain);
    return s;
}
