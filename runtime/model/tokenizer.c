/* tokenizer.c — loads a vocabulary, sets control tokens apart from text, and turns tokens back into bytes. */
#include "runtime/model/tokenizer.h"

#include "runtime/model/model.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- pieces by text */

static uint64_t hash_bytes(const char *text, size_t len)
{
    uint64_t h = 0xcbf29ce484222325u ^ len;
    for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

enum kv_status kv_piece_map_create(struct kv_piece_map *m, size_t n)
{
    m->n_slots = 16;
    while (m->n_slots < 2 * n) m->n_slots *= 2;
    m->slots = calloc(m->n_slots, sizeof *m->slots);
    return m->slots ? KV_OK : KV_OUT_OF_MEMORY;
}

static uint32_t *slot_of(const struct kv_piece_map *m, const struct kv_piece *pieces, const char *text, size_t len)
{
    size_t i = hash_bytes(text, len) & (m->n_slots - 1);
    for (; m->slots[i]; i = (i + 1) & (m->n_slots - 1)) {
        const struct kv_piece *p = &pieces[m->slots[i] - 1];
        if (p->len == len && !memcmp(p->text, text, len)) break;
    }
    return &m->slots[i];
}

void kv_piece_map_put(struct kv_piece_map *m, const struct kv_piece *pieces, int32_t number)
{
    *slot_of(m, pieces, pieces[number].text, pieces[number].len) = (uint32_t)number + 1;
}

int32_t kv_piece_map_get(const struct kv_piece_map *m, const struct kv_piece *pieces, const char *text, size_t len)
{
    return (int32_t)*slot_of(m, pieces, text, len) - 1;
}

void kv_token_put(struct kv_token_sink *s, int32_t id)
{
    if (s->n < s->cap) s->ids[s->n] = id;
    s->n++;
}

/* ---------------------------------------------------------------- loading */

static enum kv_status need_array(const struct kv_gguf *g, const char *key, enum kv_gguf_type type, uint64_t count, const struct kv_gguf_value **out,
                                 struct kv_error *err)
{
    const struct kv_gguf_value *v = kv_gguf_find(g, key);
    if (!v || !v->is_array || v->type != type || v->count != count)
        return kv_fail(err, KV_MODEL_MALFORMED, key, v ? "expected %llu values of another type or count" : "the file lacks these %llu values",
                       (unsigned long long)count);
    *out = v;
    return KV_OK;
}

static enum kv_status load_kinds(struct kv_tokenizer *t, const struct kv_gguf *g, struct kv_error *err)
{
    const struct kv_gguf_value *v = kv_gguf_find(g, "tokenizer.ggml.token_type");
    memset(t->kind, KV_TOKEN_NORMAL, (size_t)t->n_tokens);
    if (!v) return KV_OK;
    enum kv_gguf_type type = v->type == KV_GGUF_U32 ? KV_GGUF_U32 : KV_GGUF_I32;
    enum kv_status s = need_array(g, "tokenizer.ggml.token_type", type, (uint64_t)t->n_tokens, &v, err);
    for (int32_t i = 0; s == KV_OK && i < t->n_tokens; i++) {
        double kind = kv_gguf_number_at(v, (uint64_t)i);
        if (kind < 0 || kind > KV_TOKEN_BYTE)
            return kv_fail(err, KV_MODEL_MALFORMED, "tokenizer.ggml.token_type", "token %d has kind %g, which does not exist", i, kind);
        t->kind[i] = kind == 0 ? KV_TOKEN_NORMAL : (uint8_t)kind;
    }
    return s;
}

static enum kv_status load_id(const struct kv_gguf *g, const char *key, const struct kv_tokenizer *t, int32_t *out, struct kv_error *err)
{
    int64_t id;
    enum kv_status s = kv_gguf_int(g, key, &id, err);
    if (s == KV_NOT_FOUND) return KV_OK;
    if (s == KV_OK && (id < 0 || id >= t->n_tokens)) {
        if (id == UINT32_MAX || id == -1) return KV_OK; /* how converters write "none" */
        return kv_fail(err, KV_MODEL_MALFORMED, key, "token %lld lies outside the vocabulary of %d", (long long)id, t->n_tokens);
    }
    if (s == KV_OK) *out = (int32_t)id;
    return s;
}

static enum kv_status load_options(struct kv_tokenizer *t, const struct kv_gguf *g, struct kv_error *err)
{
    t->bos = t->eos = t->eot = t->unk = -1;
    enum kv_status s = load_id(g, "tokenizer.ggml.bos_token_id", t, &t->bos, err);
    if (s == KV_OK) s = load_id(g, "tokenizer.ggml.eos_token_id", t, &t->eos, err);
    if (s == KV_OK) s = load_id(g, "tokenizer.ggml.eot_token_id", t, &t->eot, err);
    if (s == KV_OK) s = load_id(g, "tokenizer.ggml.unknown_token_id", t, &t->unk, err);
    if (s != KV_OK) return s;
    s = kv_gguf_bool(g, "tokenizer.ggml.add_bos_token", &t->add_bos, err);
    if (s == KV_OK || s == KV_NOT_FOUND) s = kv_gguf_bool(g, "tokenizer.ggml.add_space_prefix", &t->add_space_prefix, err);
    if (s != KV_OK && s != KV_NOT_FOUND) return s;
    if (t->bos < 0) t->add_bos = false;
    s = kv_gguf_text(g, "tokenizer.chat_template", &t->chat_template, err);
    return s == KV_NOT_FOUND ? KV_OK : s;
}

static bool is_special(const struct kv_tokenizer *t, int32_t id)
{
    return t->kind[id] == KV_TOKEN_CONTROL || t->kind[id] == KV_TOKEN_UNKNOWN || t->kind[id] == KV_TOKEN_USER;
}

static enum kv_status note_special_length(struct kv_tokenizer *t, uint32_t len, struct kv_error *err)
{
    int32_t i = 0;
    while (i < t->n_special_len && t->special_len[i] > len) i++;
    if (i < t->n_special_len && t->special_len[i] == len) return KV_OK;
    if (t->n_special_len == KV_MAX_SPECIAL_LENGTHS)
        return kv_fail(err, KV_MODEL_MALFORMED, "tokenizer.ggml.tokens", "control tokens have more than %d different lengths", KV_MAX_SPECIAL_LENGTHS);
    memmove(&t->special_len[i + 1], &t->special_len[i], (size_t)(t->n_special_len - i) * sizeof *t->special_len);
    t->special_len[i] = len;
    t->n_special_len++;
    return KV_OK;
}

/* Control tokens that end an answer by their name, whatever the file calls its EOS. */
static bool is_turn_end(const struct kv_piece *p)
{
    static const char *const names[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "<EOT>"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (p->len == strlen(names[i]) && !memcmp(p->text, names[i], p->len)) return true;
    return false;
}

static enum kv_status load_special(struct kv_tokenizer *t, struct kv_error *err)
{
    size_t n = 0;
    for (int32_t i = 0; i < t->n_tokens; i++) n += is_special(t, i);
    if (kv_piece_map_create(&t->special, n) != KV_OK) return kv_fail(err, KV_OUT_OF_MEMORY, "tokenizer", "no memory for control tokens");
    for (int32_t i = 0; i < t->n_tokens; i++) {
        if (!is_special(t, i) || !t->pieces[i].len) continue;
        kv_piece_map_put(&t->special, t->pieces, i);
        t->special_first[(unsigned char)t->pieces[i].text[0]] = true;
        t->ends_turn[i] = t->kind[i] == KV_TOKEN_CONTROL && is_turn_end(&t->pieces[i]);
        enum kv_status s = note_special_length(t, t->pieces[i].len, err);
        if (s != KV_OK) return s;
    }
    if (t->eos >= 0) t->ends_turn[t->eos] = true;
    if (t->eot >= 0) t->ends_turn[t->eot] = true;
    return KV_OK;
}

static enum kv_status load(struct kv_tokenizer *t, const struct kv_gguf *g, int32_t n_vocab, struct kv_error *err)
{
    const struct kv_gguf_value *tokens;
    struct kv_gguf_string model;
    enum kv_status s = kv_gguf_text(g, "tokenizer.ggml.model", &model, err);
    if (s != KV_OK) return kv_fail(err, KV_UNKNOWN_TOKENIZER, "tokenizer.ggml.model", "the file does not say which tokenizer it uses");
    t->spm = model.len == 5 && !memcmp(model.data, "llama", 5);
    if (!t->spm && (model.len != 4 || memcmp(model.data, "gpt2", 4))) {
        kv_fail(err, KV_UNKNOWN_TOKENIZER, "tokenizer.ggml.model", "tokenizer '%.*s' is not supported", (int)(model.len < 40 ? model.len : 40), model.data);
        kv_hint(err, "supported are 'llama' (SentencePiece) and 'gpt2' (byte-level BPE)");
        return KV_UNKNOWN_TOKENIZER;
    }
    s = need_array(g, "tokenizer.ggml.tokens", KV_GGUF_STRING, (uint64_t)n_vocab, &tokens, err);
    if (s != KV_OK) return s;
    t->n_tokens = n_vocab;
    t->kind = calloc((size_t)n_vocab, 1);
    t->ends_turn = calloc((size_t)n_vocab, sizeof *t->ends_turn);
    if (!t->kind || !t->ends_turn) return kv_fail(err, KV_OUT_OF_MEMORY, "tokenizer", "no memory for %d tokens", n_vocab);
    t->add_bos = t->add_space_prefix = t->spm;
    s = load_kinds(t, g, err);
    if (s == KV_OK) s = t->spm ? kv_spm_load(t, g, err) : kv_bpe_load(t, g, err);
    if (s == KV_OK) s = load_options(t, g, err);
    return s == KV_OK ? load_special(t, err) : s;
}

enum kv_status kv_tokenizer_create(const struct kv_gguf *g, int32_t n_vocab, struct kv_tokenizer **out, struct kv_error *err)
{
    struct kv_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return kv_fail(err, KV_OUT_OF_MEMORY, "tokenizer", "no memory for the tokenizer");
    enum kv_status s = load(t, g, n_vocab, err);
    if (s == KV_OK) *out = t;
    else kv_tokenizer_destroy(t);
    return s;
}

void kv_tokenizer_destroy(struct kv_tokenizer *t)
{
    if (!t) return;
    free(t->pieces);
    free(t->kind);
    free(t->scores);
    free(t->ends_turn);
    free(t->ordinary.slots);
    free(t->special.slots);
    free(t->rules);
    free(t->text);
    free(t);
}

/* ---------------------------------------------------------------- text to tokens */

struct hit {
    uint32_t at, len;
    int32_t id;
};

static int longest_first(const void *a, const void *b)
{
    const struct hit *x = a, *y = b;
    if (x->len != y->len) return x->len < y->len ? 1 : -1;
    return (x->at > y->at) - (x->at < y->at);
}

static int leftmost_first(const void *a, const void *b)
{
    const struct hit *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

struct hits {
    struct hit *rows;
    size_t n, cap;
};

static bool add_hit(struct hits *h, struct hit hit)
{
    if (h->n == h->cap) {
        size_t cap = h->cap ? 2 * h->cap : 64;
        struct hit *rows = realloc(h->rows, cap * sizeof *rows);
        if (!rows) return false;
        h->rows = rows;
        h->cap = cap;
    }
    h->rows[h->n++] = hit;
    return true;
}

/* A user-defined token may be a mark of the chat template, which is as good as a control token. */
static bool marks_turns(const struct kv_tokenizer *t, int32_t id)
{
    const struct kv_piece *p = &t->pieces[id];
    return t->chat_template.len && memmem(t->chat_template.data, t->chat_template.len, p->text, p->len);
}

/* q: the first quotation that ends after `at`, or NULL. */
static bool may_stand(const struct kv_tokenizer *t, int32_t id, size_t at, size_t len, bool special, const struct kv_quoted *q)
{
    bool touches = q && at < q->to && at + len > q->from, inside = touches && at >= q->from && at + len <= q->to;
    if (touches) return inside && t->kind[id] == KV_TOKEN_USER && !marks_turns(t, id);
    return special || t->kind[id] == KV_TOKEN_USER;
}

/* Every place where a special token stands in the text. Without `special` only user-defined ones count. */
static enum kv_status find_specials(const struct kv_tokenizer *t, const char *text, size_t len, bool special, const struct kv_quoted *quoted, size_t n_quoted,
                                    struct hits *out)
{
    size_t q = 0;
    for (size_t at = 0; at < len; at++) {
        while (q < n_quoted && quoted[q].to <= at) q++;
        if (!t->special_first[(unsigned char)text[at]]) continue;
        for (int32_t i = 0; i < t->n_special_len; i++) {
            uint32_t n = t->special_len[i];
            if (n > len - at) continue;
            int32_t id = kv_piece_map_get(&t->special, t->pieces, text + at, n);
            if (id < 0 || !may_stand(t, id, at, n, special, q < n_quoted ? &quoted[q] : NULL)) continue;
            if (!add_hit(out, (struct hit){(uint32_t)at, n, id})) return KV_OUT_OF_MEMORY;
        }
    }
    return KV_OK;
}

/* Longer tokens win over shorter ones anywhere, equal ones from left to right. Keeps the winners, in text order. */
static enum kv_status settle_specials(struct hits *h, size_t len)
{
    if (!h->n) return KV_OK;
    uint8_t *taken = calloc(len, 1);
    if (!taken) return KV_OUT_OF_MEMORY;
    size_t kept = 0;
    qsort(h->rows, h->n, sizeof *h->rows, longest_first);
    for (size_t i = 0; i < h->n; i++) {
        struct hit x = h->rows[i];
        /* whatever is taken is at least as long, so an overlap covers one of the two ends */
        if (taken[x.at] || taken[x.at + x.len - 1]) continue;
        memset(taken + x.at, 1, x.len);
        h->rows[kept++] = x;
    }
    h->n = kept;
    qsort(h->rows, h->n, sizeof *h->rows, leftmost_first);
    free(taken);
    return KV_OK;
}

static enum kv_status encode_plain(const struct kv_tokenizer *t, struct kv_merge_space *m, const char *text, size_t len, bool after_special,
                                   struct kv_token_sink *sink)
{
    if (!len) return KV_OK;
    return t->spm ? kv_spm_encode(t, m, text, len, after_special, sink) : kv_bpe_encode(t, m, text, len, sink);
}

enum kv_status kv_tokenizer_encode(const struct kv_tokenizer *t, const char *text, size_t len, bool special, const struct kv_quoted *quoted,
                                   size_t n_quoted, int32_t *ids, size_t cap, size_t *n, struct kv_error *err)
{
    if (len > KV_MAX_TEXT_BYTES) return kv_fail(err, KV_BODY_TOO_LARGE, "text", "a text of %zu bytes exceeds the limit of %u", len, KV_MAX_TEXT_BYTES);
    struct hits hits = {0};
    struct kv_merge_space space = {0};
    struct kv_token_sink sink = {ids, cap, 0};
    size_t at = 0;
    enum kv_status s = find_specials(t, text, len, special, quoted, n_quoted, &hits);
    if (s == KV_OK) s = settle_specials(&hits, len);
    for (size_t i = 0; s == KV_OK && i < hits.n; i++) {
        s = encode_plain(t, &space, text + at, hits.rows[i].at - at, true, &sink);
        kv_token_put(&sink, hits.rows[i].id);
        at = hits.rows[i].at + hits.rows[i].len;
    }
    if (s == KV_OK) s = encode_plain(t, &space, text + at, len - at, true, &sink);
    free(hits.rows);
    kv_merge_free(&space);
    if (s != KV_OK) return kv_fail(err, s, "text", "a text of %zu bytes could not be tokenised: %s", len, kv_status_meaning(s));
    *n = sink.n;
    if (sink.n > cap) return kv_fail(err, KV_CAPACITY, "ids", "the text has %zu tokens; there is room for %zu", sink.n, cap);
    return KV_OK;
}

/* ---------------------------------------------------------------- tokens to text */

size_t kv_tokenizer_bytes(const struct kv_tokenizer *t, int32_t id, bool special, char *out, size_t cap)
{
    if (id < 0 || id >= t->n_tokens) return 0;
    if ((t->kind[id] == KV_TOKEN_CONTROL || t->kind[id] == KV_TOKEN_UNKNOWN) && !special) return 0;
    const struct kv_piece *p = &t->pieces[id];
    if (cap) memcpy(out, p->text, p->len < cap ? p->len : cap);
    return p->len;
}

enum kv_status kv_tokenizer_decode(const struct kv_tokenizer *t, const int32_t *ids, size_t n, bool special, char *out, size_t cap, size_t *len)
{
    size_t at = 0;
    bool strip = t->spm && t->add_space_prefix; /* the space that encoding put before the text */
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= t->n_tokens) return KV_TOKEN_OUT_OF_RANGE;
        if (!special && (t->kind[ids[i]] == KV_TOKEN_CONTROL || t->kind[ids[i]] == KV_TOKEN_UNKNOWN)) continue;
        const struct kv_piece *p = &t->pieces[ids[i]];
        size_t skip = strip && p->len && p->text[0] == ' ' && t->kind[ids[i]] != KV_TOKEN_CONTROL;
        if (t->kind[ids[i]] != KV_TOKEN_CONTROL) strip = false;
        size_t room = at < cap ? cap - at : 0, take = p->len - skip;
        if (room) memcpy(out + at, p->text + skip, take < room ? take : room);
        at += take;
    }
    *len = at;
    return at <= cap ? KV_OK : KV_CAPACITY;
}

/* ---------------------------------------------------------------- kvasir.h */

enum kv_status kv_tokenize(const struct kv_model *m, const char *text, size_t len, bool special, int32_t *ids, size_t cap, size_t *n, struct kv_error *err)
{
    return kv_tokenizer_encode(m->tokenizer, text, len, special, NULL, 0, ids, cap, n, err);
}

size_t kv_token_bytes(const struct kv_model *m, int32_t id, bool special, char *out, size_t cap)
{
    return kv_tokenizer_bytes(m->tokenizer, id, special, out, cap);
}

enum kv_status kv_detokenize(const struct kv_model *m, const int32_t *ids, size_t n, bool special, char *out, size_t cap, size_t *len)
{
    return kv_tokenizer_decode(m->tokenizer, ids, n, special, out, cap, len);
}

bool kv_token_ends_turn(const struct kv_model *m, int32_t id)
{
    return id >= 0 && id < m->tokenizer->n_tokens && m->tokenizer->ends_turn[id];
}
