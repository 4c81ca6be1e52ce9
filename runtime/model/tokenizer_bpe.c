/* tokenizer_bpe.c — byte-level BPE in the manner of GPT-2: words by a pre-tokenizer, bytes joined by rank of merge.
 *
 * The file writes bytes in an alphabet of printable characters; here everything is turned back into bytes once, at load. */
#include "runtime/model/tokenizer.h"

#include "runtime/model/unicode.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- the byte alphabet */

/* Bytes that stand for themselves; the others are U+0100, U+0101, … in ascending order. */
static bool is_printable(unsigned b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

struct alphabet {
    int16_t byte[0x144]; /* of a code point; -1: none */
};

static void fill_alphabet(struct alphabet *a)
{
    unsigned next = 0x100;
    for (size_t i = 0; i < sizeof a->byte / sizeof *a->byte; i++) a->byte[i] = -1;
    for (unsigned b = 0; b < 256; b++) a->byte[is_printable(b) ? b : next++] = (int16_t)b;
}

/* Bytes written in the alphabet, to out; -1 when a character is not of it. Never longer than the text. */
static long decode_alphabet(const struct alphabet *a, const char *text, size_t len, char *out)
{
    long n = 0;
    for (size_t at = 0, used; at < len; at += used) {
        uint32_t c = kv_utf8_decode(text + at, len - at, &used);
        if (c >= sizeof a->byte / sizeof *a->byte || a->byte[c] < 0) return -1;
        out[n++] = (char)a->byte[c];
    }
    return n;
}

/* ---------------------------------------------------------------- loading */

static const struct {
    const char *name;
    enum kv_split split;
    bool whole_words, add_bos;
} pres[] = {
    {"default", KV_SPLIT_DEFAULT, false, false}, {"gpt-2", KV_SPLIT_GPT2, false, false},     {"smollm", KV_SPLIT_SMOLLM, false, false},
    {"refact", KV_SPLIT_SMOLLM, false, false},   {"starcoder", KV_SPLIT_SMOLLM, false, false}, {"llama-bpe", KV_SPLIT_LLAMA3, true, true},
    {"llama3", KV_SPLIT_LLAMA3, true, true},     {"qwen2", KV_SPLIT_QWEN2, false, false},    {"deepseek-r1-qwen", KV_SPLIT_QWEN2, false, false},
};

static enum kv_status load_pre(struct kv_tokenizer *t, const struct kv_gguf *g, struct kv_error *err)
{
    const char *key = "tokenizer.ggml.pre";
    struct kv_gguf_string name = {"default", 7};
    enum kv_status s = kv_gguf_text(g, key, &name, err);
    if (s != KV_OK && s != KV_NOT_FOUND) return s;
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++) {
        if (name.len != strlen(pres[i].name) || memcmp(name.data, pres[i].name, name.len)) continue;
        t->split = pres[i].split;
        t->whole_words = pres[i].whole_words;
        t->add_bos = pres[i].add_bos;
        return KV_OK;
    }
    kv_fail(err, KV_UNKNOWN_TOKENIZER, key, "pre-tokenizer '%.*s' is not supported", (int)(name.len < 40 ? name.len : 40), name.data);
    kv_hint(err, "supported are default, gpt-2, smollm, refact, starcoder, llama-bpe, qwen2");
    return KV_UNKNOWN_TOKENIZER;
}

struct loader {
    struct kv_tokenizer *t;
    struct alphabet alphabet;
    char *at; /* free end of t->text */
    struct kv_error *err;
};

static enum kv_status load_piece(struct loader *l, int32_t i, struct kv_gguf_string s)
{
    struct kv_tokenizer *t = l->t;
    if (s.len > KV_MAX_TOKEN_BYTES) return kv_fail(l->err, KV_MODEL_MALFORMED, "tokenizer.ggml.tokens", "token %d has %zu bytes", i, s.len);
    bool plain = t->kind[i] == KV_TOKEN_CONTROL || t->kind[i] == KV_TOKEN_UNKNOWN || t->kind[i] == KV_TOKEN_USER;
    long n = plain ? -1 : decode_alphabet(&l->alphabet, s.data, s.len, l->at);
    bool ordinary = n > 0;
    if (n < 0) {
        memcpy(l->at, s.data, s.len);
        n = (long)s.len;
    }
    t->pieces[i] = (struct kv_piece){l->at, (uint32_t)n};
    l->at += n;
    if (ordinary) kv_piece_map_put(&t->ordinary, t->pieces, i);
    return KV_OK;
}

/* The piece of these bytes, which lie at l->at; makes one when there is none. */
static int32_t intern(struct loader *l, size_t len)
{
    struct kv_tokenizer *t = l->t;
    int32_t found = kv_piece_map_get(&t->ordinary, t->pieces, l->at, len);
    if (found >= 0) return found;
    t->pieces[t->n_pieces] = (struct kv_piece){l->at, (uint32_t)len};
    l->at += len;
    kv_piece_map_put(&t->ordinary, t->pieces, t->n_pieces);
    return t->n_pieces++;
}

static struct kv_merge_rule *rule_slot(const struct kv_tokenizer *t, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t i = (size_t)((pair * 0x9E3779B97F4A7C15u) >> 20) & (t->n_rule_slots - 1);
    while (t->rules[i].pair != pair && t->rules[i].pair != UINT64_MAX) i = (i + 1) & (t->n_rule_slots - 1);
    return &t->rules[i];
}

static enum kv_status load_merge(struct loader *l, int32_t rank, struct kv_gguf_string s)
{
    struct kv_tokenizer *t = l->t;
    const char *space = s.len > 1 ? memchr(s.data + 1, ' ', s.len - 1) : NULL;
    if (!space || s.len > KV_MAX_TOKEN_BYTES) return kv_fail(l->err, KV_MODEL_MALFORMED, "tokenizer.ggml.merges", "merge %d is not two pieces with a space between", rank);
    long n_left = decode_alphabet(&l->alphabet, s.data, (size_t)(space - s.data), l->at);
    int32_t left = n_left > 0 ? intern(l, (size_t)n_left) : -1;
    long n_right = decode_alphabet(&l->alphabet, space + 1, s.len - (size_t)(space + 1 - s.data), l->at);
    int32_t right = n_right > 0 ? intern(l, (size_t)n_right) : -1;
    if (left < 0 || right < 0) return kv_fail(l->err, KV_MODEL_MALFORMED, "tokenizer.ggml.merges", "merge %d holds characters outside the byte alphabet", rank);
    memcpy(l->at, t->pieces[left].text, (size_t)n_left);
    memcpy(l->at + n_left, t->pieces[right].text, (size_t)n_right);
    int32_t joined = intern(l, (size_t)(n_left + n_right));
    struct kv_merge_rule *r = rule_slot(t, left, right);
    if (r->pair == UINT64_MAX) *r = (struct kv_merge_rule){(uint64_t)(uint32_t)left << 32 | (uint32_t)right, rank, joined};
    return KV_OK;
}

static enum kv_status make_room(struct loader *l, const struct kv_gguf_value *tokens, const struct kv_gguf_value *merges)
{
    struct kv_tokenizer *t = l->t;
    size_t bytes = 0, n_pieces = (size_t)t->n_tokens + 256 + 3 * (size_t)merges->count;
    const uint8_t *cursor = tokens->data;
    for (int32_t i = 0; i < t->n_tokens; i++) bytes += kv_gguf_next_string(&cursor).len;
    cursor = merges->data;
    for (uint64_t i = 0; i < merges->count; i++) bytes += 2 * kv_gguf_next_string(&cursor).len; /* the halves and the whole */
    t->n_rule_slots = 16;
    while (t->n_rule_slots < 2 * merges->count) t->n_rule_slots *= 2;
    t->pieces = calloc(n_pieces, sizeof *t->pieces);
    t->text = malloc(bytes + 256 + KV_MAX_TOKEN_BYTES);
    t->rules = malloc(t->n_rule_slots * sizeof *t->rules);
    if (!t->pieces || !t->text || !t->rules || kv_piece_map_create(&t->ordinary, n_pieces) != KV_OK)
        return kv_fail(l->err, KV_OUT_OF_MEMORY, "tokenizer", "no memory for %d tokens", t->n_tokens);
    for (size_t i = 0; i < t->n_rule_slots; i++) t->rules[i].pair = UINT64_MAX;
    l->at = t->text;
    return KV_OK;
}

enum kv_status kv_bpe_load(struct kv_tokenizer *t, const struct kv_gguf *g, struct kv_error *err)
{
    const struct kv_gguf_value *tokens = kv_gguf_find(g, "tokenizer.ggml.tokens"), *merges = kv_gguf_find(g, "tokenizer.ggml.merges");
    struct loader l = {.t = t, .err = err};
    if (!merges || !merges->is_array || merges->type != KV_GGUF_STRING || merges->count > KV_MAX_MERGES)
        return kv_fail(err, KV_MODEL_MALFORMED, "tokenizer.ggml.merges", "a byte-pair vocabulary needs its merges, at most %d", KV_MAX_MERGES);
    enum kv_status s = load_pre(t, g, err);
    if (s == KV_OK) s = make_room(&l, tokens, merges);
    if (s != KV_OK) return s;
    fill_alphabet(&l.alphabet);
    const uint8_t *cursor = tokens->data;
    for (int32_t i = 0; s == KV_OK && i < t->n_tokens; i++) s = load_piece(&l, i, kv_gguf_next_string(&cursor));
    t->n_pieces = t->n_tokens;
    for (int b = 0; s == KV_OK && b < 256; b++) {
        *l.at = (char)b;
        t->byte_piece[b] = intern(&l, 1);
    }
    cursor = merges->data;
    for (uint64_t i = 0; s == KV_OK && i < merges->count; i++) s = load_merge(&l, (int32_t)i, kv_gguf_next_string(&cursor));
    return s;
}

/* ---------------------------------------------------------------- encoding */

static bool join(const void *ctx, const char *text, const struct kv_symbol *a, const struct kv_symbol *b, int32_t *piece, double *order)
{
    (void)text;
    const struct kv_merge_rule *r = rule_slot(ctx, a->piece, b->piece);
    if (r->pair == UINT64_MAX) return false;
    *piece = r->piece;
    *order = r->rank;
    return true;
}

struct run {
    const struct kv_tokenizer *t;
    struct kv_merge_space *m;
    struct kv_token_sink *out;
};

/* A piece that is no token is given as its bytes' tokens; a byte without a token as the unknown one. */
static void put_piece(const struct kv_tokenizer *t, const char *text, const struct kv_symbol *x, struct kv_token_sink *out)
{
    if (x->piece < t->n_tokens) {
        kv_token_put(out, x->piece);
        return;
    }
    for (int32_t i = 0; i < x->len; i++) {
        int32_t id = t->byte_piece[(unsigned char)text[x->at + i]];
        if (id < t->n_tokens) kv_token_put(out, id);
        else if (t->unk >= 0) kv_token_put(out, t->unk);
    }
}

static enum kv_status encode_word(void *ctx, const char *text, size_t len)
{
    struct run *r = ctx;
    if (r->t->whole_words) {
        int32_t id = kv_piece_map_get(&r->t->ordinary, r->t->pieces, text, len);
        if (id >= 0 && id < r->t->n_tokens) return kv_token_put(r->out, id), KV_OK;
    }
    enum kv_status s = kv_merge_reserve(r->m, len);
    if (s != KV_OK) return s;
    for (size_t i = 0; i < len; i++)
        r->m->symbols[i] = (struct kv_symbol){.at = (int32_t)i, .len = 1, .piece = r->t->byte_piece[(unsigned char)text[i]]};
    kv_merge_run(r->m, text, (int32_t)len, join, r->t);
    for (int32_t i = 0; i >= 0; i = r->m->symbols[i].next) put_piece(r->t, text, &r->m->symbols[i], r->out);
    return KV_OK;
}

enum kv_status kv_bpe_encode(const struct kv_tokenizer *t, struct kv_merge_space *m, const char *text, size_t len, struct kv_token_sink *out)
{
    struct run run = {t, m, out};
    return kv_split_words(t->split, text, len, encode_word, &run);
}
