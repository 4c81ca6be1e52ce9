/* tokenizer_split.c — the pre-tokenizers' regular expressions as hand-written matchers.
 *
 * A pre-tokenizer is a row of stages. Each stage cuts every piece it is given into matches and the gaps between them, and hands
 * both to the next stage; what leaves the last stage is a word. A matcher sees its piece only: lookahead stops at the piece's end.
 *
 *   gpt2:  's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *   llama3, qwen2:  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *           (qwen2 takes one \p{N} where llama3 takes up to three)
 */
#include "runtime/model/tokenizer_split.h"

#include "runtime/model/unicode.h"

#include <stdbool.h>
#include <stdint.h>

struct glyph { /* a character; len 0 at the end of the piece */
    uint32_t c;
    size_t len;
    enum kv_char_class class;
};

/* Cursors are byte offsets from the piece's start. */
struct piece {
    const char *text;
    size_t len;
};

static struct glyph glyph_at(struct piece p, size_t at)
{
    struct glyph g = {.class = KV_CHAR_SPACE};
    if (at >= p.len) return g;
    g.c = kv_utf8_decode(p.text + at, p.len - at, &g.len);
    g.class = kv_char_class(g.c);
    return g;
}

static bool in_class(struct glyph g, enum kv_char_class class)
{
    return g.len && g.class == class;
}

static bool is_mark(struct glyph g) /* [^\s\p{L}\p{N}] */
{
    return g.len && g.class != KV_CHAR_SPACE && g.class != KV_CHAR_LETTER && g.class != KV_CHAR_NUMBER;
}

static size_t skip_class(struct piece p, size_t at, enum kv_char_class class)
{
    for (struct glyph g; in_class(g = glyph_at(p, at), class);) at += g.len;
    return at;
}

static size_t skip_marks(struct piece p, size_t at)
{
    for (struct glyph g; is_mark(g = glyph_at(p, at));) at += g.len;
    return at;
}

static char folded(struct piece p, size_t at, bool fold)
{
    char c = at < p.len ? p.text[at] : 0;
    return fold && c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

/* End of 's 't 'm 'd 're 've 'll at `at`, or `at`. */
static size_t match_contraction(struct piece p, size_t at, bool fold)
{
    if (p.text[at] != '\'') return at;
    char a = folded(p, at + 1, fold), b = folded(p, at + 2, fold);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return at + 3;
    return at;
}

/* \s+(?!\S)|\s+ : a run of spaces leaves its last one to the word that follows. */
static size_t match_spaces(struct piece p, size_t at)
{
    size_t end = at, last = at;
    for (struct glyph g; in_class(g = glyph_at(p, end), KV_CHAR_SPACE); end += g.len) last = end;
    return end < p.len && last > at ? last : end;
}

static size_t match_gpt2(struct piece p, size_t at)
{
    size_t end = match_contraction(p, at, false);
    if (end > at) return end;
    size_t body = at + (p.text[at] == ' ');
    struct glyph g = glyph_at(p, body);
    if (in_class(g, KV_CHAR_LETTER)) return skip_class(p, body, KV_CHAR_LETTER);
    if (in_class(g, KV_CHAR_NUMBER)) return skip_class(p, body, KV_CHAR_NUMBER);
    if (is_mark(g)) return skip_marks(p, body);
    return match_spaces(p, at);
}

static bool is_line_end(struct glyph g)
{
    return g.len && (g.c == '\r' || g.c == '\n');
}

/* \s*[\r\n]+ : up to the last line end of a run of spaces. */
static size_t match_lines(struct piece p, size_t at)
{
    size_t end = at, found = at;
    for (struct glyph g; in_class(g = glyph_at(p, end), KV_CHAR_SPACE);) {
        end += g.len;
        if (is_line_end(g)) found = end;
    }
    return found;
}

static size_t match_modern(struct piece p, size_t at, int max_digits)
{
    size_t end = match_contraction(p, at, true);
    if (end > at) return end;
    struct glyph g = glyph_at(p, at), after = glyph_at(p, at + g.len);
    if (in_class(g, KV_CHAR_LETTER)) return skip_class(p, at, KV_CHAR_LETTER);
    if (in_class(after, KV_CHAR_LETTER) && !is_line_end(g) && g.class != KV_CHAR_NUMBER) return skip_class(p, at + g.len, KV_CHAR_LETTER);
    if (in_class(g, KV_CHAR_NUMBER)) {
        for (int i = 0; i < max_digits && in_class(g, KV_CHAR_NUMBER); i++, g = glyph_at(p, end)) end += g.len;
        return end;
    }
    if (is_mark(g) || (g.c == ' ' && is_mark(after))) {
        end = skip_marks(p, at + (g.c == ' '));
        while (is_line_end(glyph_at(p, end))) end++;
        return end;
    }
    end = match_lines(p, at);
    return end > at ? end : match_spaces(p, at);
}

static size_t match_llama3(struct piece p, size_t at)
{
    return match_modern(p, at, 3);
}

static size_t match_qwen2(struct piece p, size_t at)
{
    return match_modern(p, at, 1);
}

static size_t match_number(struct piece p, size_t at) /* \p{N} */
{
    struct glyph g = glyph_at(p, at);
    return in_class(g, KV_CHAR_NUMBER) ? at + g.len : at;
}

static size_t match_numbers(struct piece p, size_t at) /* \p{N}+ */
{
    return skip_class(p, at, KV_CHAR_NUMBER);
}

static size_t match_three_digits(struct piece p, size_t at) /* [0-9][0-9][0-9] */
{
    if (p.len - at < 3) return at;
    for (size_t i = at; i < at + 3; i++)
        if (p.text[i] < '0' || p.text[i] > '9') return at;
    return at + 3;
}

static size_t match_punctuation(struct piece p, size_t at) /* [\p{P}\$\+<=>\^~\|]+ */
{
    for (;;) {
        struct glyph g = glyph_at(p, at);
        bool listed = g.c == '$' || g.c == '+' || g.c == '<' || g.c == '=' || g.c == '>' || g.c == '^' || g.c == '~' || g.c == '|';
        if (!g.len || (g.class != KV_CHAR_PUNCTUATION && !listed)) return at;
        at += g.len;
    }
}

typedef size_t (*matcher)(struct piece p, size_t at); /* the match's end, or at when there is none */

static const matcher stages[KV_SPLITS][5] = {
    [KV_SPLIT_DEFAULT] = {match_punctuation, match_gpt2, match_numbers, match_three_digits},
    [KV_SPLIT_GPT2] = {match_gpt2},
    [KV_SPLIT_SMOLLM] = {match_number, match_gpt2},
    [KV_SPLIT_LLAMA3] = {match_llama3},
    [KV_SPLIT_QWEN2] = {match_qwen2},
};

struct sink {
    enum kv_status (*word)(void *ctx, const char *text, size_t len);
    void *ctx;
};

static enum kv_status run_stage(const matcher *stage, struct piece p, const struct sink *sink)
{
    if (!*stage) return p.len ? sink->word(sink->ctx, p.text, p.len) : KV_OK;
    size_t gap = 0;
    enum kv_status s = KV_OK;
    for (size_t at = 0; s == KV_OK && at < p.len;) {
        size_t end = (*stage)(p, at);
        if (end == at) {
            at += glyph_at(p, at).len;
            continue;
        }
        if (gap < at) s = run_stage(stage + 1, (struct piece){p.text + gap, at - gap}, sink);
        if (s == KV_OK) s = run_stage(stage + 1, (struct piece){p.text + at, end - at}, sink);
        at = gap = end;
    }
    if (s == KV_OK && gap < p.len) s = run_stage(stage + 1, (struct piece){p.text + gap, p.len - gap}, sink);
    return s;
}

enum kv_status kv_split_words(enum kv_split split, const char *text, size_t len,
                              enum kv_status (*word)(void *ctx, const char *text, size_t len), void *ctx)
{
    struct sink sink = {word, ctx};
    return run_stage(stages[split], (struct piece){text, len}, &sink);
}
