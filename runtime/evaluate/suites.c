/* suites.c — see suites.h. */
#include "runtime/evaluate/suites.h"

#include "runtime/selection/draw.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KEYS = 1024, FEW_KEYS = 4, PAIRS = 24, TEXT_BYTES = 1 << 22, MAX_QUESTION = 1024, WORDS_ASKED = 3, CHAIN_HOPS = 2, CHAINS = 5, LAST_TEXT = 128 };

/* A context of `size` units, whose meaning is the suite's: sentences, lines, words. */
struct kv_writing {
    uint64_t seed, draws;
    int32_t size;
    const char *prose;
    size_t prose_bytes;
    char *text, question[MAX_QUESTION], *answer;
    size_t n;
    bool full;
};

static uint32_t below(struct kv_writing *w, uint32_t n) { return (uint32_t)(kv_draw(w->seed, w->draws++) % n); }

static void say(struct kv_writing *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(struct kv_writing *w, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(w->text + w->n, TEXT_BYTES - w->n, fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= TEXT_BYTES - w->n) w->full = true;
    else w->n += (size_t)n;
}

static void digits(struct kv_writing *w, int n, char *out)
{
    for (int i = 0; i < n; i++) out[i] = (char)('0' + below(w, 10));
    out[n] = 0;
}

/* ---------------------------------------------------------------- words */

static const char *const adjectives[] = {"amber", "brisk", "calm", "dusty", "eager", "faint", "gentle", "hollow", "ivory", "jolly", "keen",
    "lucid", "mellow", "noble", "olive", "placid", "quiet", "rustic", "silent", "tidy", "urban", "velvet", "wild", "young", "zesty", "bold",
    "crisp", "deep", "even", "fresh", "grand", "humble"};
static const char *const nouns[] = {"anchor", "basin", "candle", "desert", "engine", "falcon", "garden", "harbor", "island", "jacket",
    "kettle", "lantern", "market", "needle", "orchard", "pepper", "quarry", "river", "saddle", "temple", "umbrella", "valley", "window",
    "yard", "zephyr", "bridge", "castle", "dragon", "ember", "forest", "glacier", "hammer"};
enum { N_WORDS = sizeof nouns / sizeof *nouns, N_NAMES = (int)(sizeof adjectives / sizeof *adjectives) * N_WORDS };

struct key {
    uint16_t name; /* adjective × noun */
    char value[12];
};

/* n different names with values of `width` digits. */
static void draw_keys(struct kv_writing *w, struct key *k, int32_t n, int width)
{
    bool taken[N_NAMES] = {false};
    for (int32_t i = 0; i < n; i++) {
        do k[i].name = (uint16_t)below(w, N_NAMES);
        while (taken[k[i].name]);
        taken[k[i].name] = true;
        digits(w, width, k[i].value);
    }
}

static const char *first_word(const struct key *k) { return adjectives[k->name / N_WORDS]; }
static const char *second_word(const struct key *k) { return nouns[k->name % N_WORDS]; }

/* The next sentence of the prose from *at on, which wraps around. */
static void sentence(struct kv_writing *w, size_t *at)
{
    size_t from = *at, to = from;
    while (to < w->prose_bytes && w->prose[to] != '\n' && !(strchr(".!?", w->prose[to]) && to + 1 < w->prose_bytes && w->prose[to + 1] == ' ')) to++;
    if (to < w->prose_bytes && w->prose[to] != '\n') to++;
    say(w, "%.*s ", (int)(to - from), w->prose + from);
    *at = to + 1 < w->prose_bytes ? to + 1 : 0;
}

/* Where prose begins: the start of a paragraph. */
static size_t paragraph(struct kv_writing *w)
{
    size_t at = below(w, (uint32_t)w->prose_bytes), tried = 0;
    while (tried++ < w->prose_bytes && (at == 0 || w->prose[at - 1] != '\n')) at = (at + 1) % w->prose_bytes;
    return at;
}

/* ---------------------------------------------------------------- the suites */

static void ask_number(struct kv_writing *w, const struct key *k)
{
    snprintf(w->question, sizeof w->question, "Question: what is the magic number for %s %s?\nAnswer: The magic number for %s %s is ", first_word(k), second_word(k),
             first_word(k), second_word(k));
    snprintf(w->answer, KV_TASK_ANSWER, "%s", k->value);
}

static void say_number(struct kv_writing *w, const struct key *k)
{
    say(w, "The magic number for %s %s is %s.\n", first_word(k), second_word(k), k->value);
}

static void write_passkey(struct kv_writing *w)
{
    static const char noise[] = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ";
    char key[8];
    digits(w, 5, key);
    int32_t at = (int32_t)below(w, (uint32_t)w->size + 1);
    for (int32_t i = 0; i <= w->size; i++) {
        if (i == at) say(w, "\nThe pass key is %s. Remember it. %s is the pass key.\n", key, key);
        if (i < w->size) say(w, "%s", noise);
    }
    snprintf(w->question, sizeof w->question, "\nQuestion: what is the pass key?\nAnswer: The pass key is ");
    snprintf(w->answer, KV_TASK_ANSWER, "%s", key);
}

/* A few facts of one form among prose; one is asked for. */
static void write_niah_multikey(struct kv_writing *w)
{
    struct key k[FEW_KEYS];
    draw_keys(w, k, FEW_KEYS, 4);
    size_t at = paragraph(w);
    int32_t said = 0;
    for (int32_t i = 0; i < w->size; i++) {
        /* Fact j lies in the j-th part of the text, anywhere in it. */
        int32_t left = (int32_t)((int64_t)w->size * (said + 1) / FEW_KEYS) - i;
        if (said < FEW_KEYS && (left <= 1 || below(w, (uint32_t)left) == 0)) {
            say(w, "\n");
            say_number(w, &k[said++]);
        }
        sentence(w, &at);
    }
    w->full |= said < FEW_KEYS; /* too short for all */
    say(w, "\n");
    ask_number(w, &k[below(w, FEW_KEYS)]);
}

/* Every line is a needle; one is asked for. */
static void write_niah_multikey_2(struct kv_writing *w)
{
    struct key k[MAX_KEYS];
    int32_t n = w->size < N_NAMES / 2 ? w->size : N_NAMES / 2;
    draw_keys(w, k, n, 4);
    for (int32_t i = 0; i < n; i++) say_number(w, &k[i]);
    w->full |= n < w->size;
    ask_number(w, &k[below(w, (uint32_t)n)]);
}

/* Needles only, and neither key nor value is a word. */
static void write_niah_multikey_3(struct kv_writing *w)
{
    int32_t asked = (int32_t)below(w, (uint32_t)w->size);
    for (int32_t i = 0; i < w->size; i++) {
        char a[9], b[9], v[9];
        digits(w, 8, a);
        digits(w, 4, b);
        digits(w, 8, v);
        say(w, "The magic number for %s-%s is %s.\n", a, b, v);
        if (i != asked) continue;
        snprintf(w->question, sizeof w->question, "Question: what is the magic number for %s-%s?\nAnswer: The magic number for %s-%s is ", a, b, a, b);
        snprintf(w->answer, KV_TASK_ANSWER, "%s", v);
    }
}

/* One JSON object of pairs, with prose before and after it. */
static void write_kv(struct kv_writing *w)
{
    size_t at = paragraph(w);
    int32_t object = (int32_t)below(w, (uint32_t)w->size + 1), asked = (int32_t)below(w, PAIRS);
    for (int32_t i = 0; i <= w->size; i++) {
        if (i < object || i > object) sentence(w, &at);
        if (i != object) continue;
        say(w, "\n{");
        for (int32_t p = 0; p < PAIRS; p++) {
            char key[8], value[8];
            digits(w, 6, key);
            digits(w, 6, value);
            say(w, "%s\"%s\": \"%s\"", p ? ", " : "", key, value);
            if (p != asked) continue;
            snprintf(w->question, sizeof w->question, "Question: what is the value of \"%s\"?\nAnswer: \"%s\": \"", key, key);
            snprintf(w->answer, KV_TASK_ANSWER, "%s", value);
        }
        say(w, "}\n");
    }
    say(w, "\n");
}

/* Chains of assignments among prose; the value at the end of one is asked for. */
static void write_vt(struct kv_writing *w)
{
    char name[CHAINS][CHAIN_HOPS + 1][3], value[CHAINS][8];
    for (int c = 0; c < CHAINS; c++) {
        digits(w, 5, value[c]);
        for (int h = 0; h <= CHAIN_HOPS; h++) {
            int at = c * (CHAIN_HOPS + 1) + h;
            snprintf(name[c][h], sizeof name[c][h], "%c%c", "ABCDEFGHJK"[at % 10], "LMNPQRSTUV"[at / 10 + (int)below(w, 5) * 2 % 10]);
        }
    }
    size_t at = paragraph(w);
    int32_t said = 0, n = CHAINS * (CHAIN_HOPS + 1);
    for (int32_t i = 0; i < w->size || said < n; i++) {
        if (said < n && (i >= w->size || below(w, (uint32_t)(1 + (w->size - i) / (n - said))) == 0)) {
            int c = said % CHAINS, h = said / CHAINS;
            if (h == 0) say(w, "\nVAR %s = %s\n", name[c][0], value[c]);
            else say(w, "\nVAR %s = VAR %s\n", name[c][h], name[c][h - 1]);
            said++;
        }
        if (i < w->size) sentence(w, &at);
    }
    int asked = (int)below(w, CHAINS);
    snprintf(w->question, sizeof w->question, "\nQuestion: what is VAR %s?\nAnswer: VAR %s = ", name[asked][CHAIN_HOPS], name[asked][CHAIN_HOPS]);
    snprintf(w->answer, KV_TASK_ANSWER, "%s", value[asked]);
}

/* size words, of which WORDS_ASKED are frequent: the question wants those. often: of 10 words, how many are frequent ones. */
static void write_words(struct kv_writing *w, const char *what, uint32_t often, bool skewed)
{
    uint16_t order[N_WORDS];
    for (int i = 0; i < N_WORDS; i++) order[i] = (uint16_t)i;
    for (uint32_t i = 0; i < N_WORDS; i++) {
        uint32_t j = i + below(w, N_WORDS - i);
        uint16_t t = order[i];
        order[i] = order[j], order[j] = t;
    }
    say(w, "List of words:\n");
    for (int32_t i = 0; i < w->size; i++) {
        uint32_t pick = below(w, 10) < often ? below(w, WORDS_ASKED) : WORDS_ASKED + below(w, N_WORDS - WORDS_ASKED);
        if (skewed && pick >= WORDS_ASKED) pick = WORDS_ASKED + below(w, 1 + pick - WORDS_ASKED); /* rarer by rank */
        say(w, "%s%s", i ? " " : "", nouns[order[pick]]);
    }
    say(w, "\n");
    snprintf(w->question, sizeof w->question, "Question: which %d words are %s in the list?\nAnswer: The words are ", WORDS_ASKED, what);
    snprintf(w->answer, KV_TASK_ANSWER, "%s %s %s", nouns[order[0]], nouns[order[1]], nouns[order[2]]);
}

static void write_cwe(struct kv_writing *w) { write_words(w, "most common", 5, false); }
static void write_fwe(struct kv_writing *w) { write_words(w, "most frequent", 6, true); }

static const struct kv_suite suites[] = {
    {"passkey", "a pass key in repeated filler", KV_SUITE_FACT, 0, write_passkey},
    {"niah_multikey", "four numbered keys among prose, one asked for", KV_SUITE_FACT, 0, write_niah_multikey},
    {"niah_multikey_2", "a text of keys and numbers only, one asked for", KV_SUITE_FACT, 0, write_niah_multikey_2},
    {"niah_multikey_3", "the same with keys of digits and numbers of eight", KV_SUITE_FACT, 0, write_niah_multikey_3},
    {"kv", "a JSON object of pairs among prose, one value asked for", KV_SUITE_FACT, 0, write_kv},
    {"vt", "chains of variables among prose, the value at the end of one asked for", KV_SUITE_FACT, 0, write_vt},
    {"cwe", "the most common words of a list, the others equally rare", KV_SUITE_LIST, (double)WORDS_ASKED / N_WORDS, write_cwe},
    {"fwe", "the most frequent words of a list with a skewed rest", KV_SUITE_LIST, (double)WORDS_ASKED / N_WORDS, write_fwe},
    {"ppl", "the continuation of public-domain prose", KV_SUITE_TEXT, 0, NULL},
};

size_t kv_suite_count(void) { return sizeof suites / sizeof *suites; }
const struct kv_suite *kv_suite_at(size_t i) { return i < kv_suite_count() ? &suites[i] : NULL; }

const struct kv_suite *kv_suite_find(const char *name)
{
    for (size_t i = 0; i < kv_suite_count(); i++)
        if (!strcmp(suites[i].name, name)) return &suites[i];
    return NULL;
}

/* ---------------------------------------------------------------- tokens */

/* Ids of a text; *n even when it exceeds cap. */
static enum kv_status ids_of(const struct kv_model *m, const char *text, size_t len, int32_t *ids, size_t cap, size_t *n)
{
    return kv_tokenize(m, text, len, false, ids, cap, n, NULL);
}

/* The context of `size` units, tokenised together with its question so that the seam is the model's own; *n_context tokens of it come first. */
static enum kv_status write_task(const struct kv_suite *s, const struct kv_model *m, struct kv_writing *w, int32_t size, uint64_t seed,
                                 int32_t *ids, size_t cap, size_t *n_context, size_t *n)
{
    w->seed = seed;
    w->draws = w->n = 0;
    w->size = size;
    w->full = false;
    s->write(w);
    if (w->full) return KV_CAPACITY;
    enum kv_status status = ids_of(m, w->text, w->n, ids, cap, n_context);
    if (status != KV_OK) return status;
    say(w, "%s", w->question);
    status = w->full ? KV_CAPACITY : ids_of(m, w->text, w->n, ids, cap, n);
    /* A seam inside a token: the context's last token belongs to the question then. */
    if (status == KV_OK && *n <= *n_context) *n_context = *n - 1;
    return status;
}

/* The largest size whose tokens fit: they grow with it nearly in proportion. */
static enum kv_status fit_task(const struct kv_suite *s, const struct kv_model *m, struct kv_writing *w, int32_t length, uint64_t seed,
                               int32_t *ids, size_t cap, struct kv_task *out)
{
    int32_t good = 0, bad = INT32_MAX, size = 4;
    size_t n_context = 0, n = 0;
    for (int tries = 0; tries < 24 && bad - good > 1; tries++) {
        enum kv_status status = write_task(s, m, w, size, seed, ids, cap, &n_context, &n);
        if (status != KV_OK && status != KV_CAPACITY) return status;
        if (status == KV_OK && n <= (size_t)length) good = size;
        else bad = size;
        if (good && n + n / 50 >= (size_t)length && n <= (size_t)length) break;
        int64_t next = status == KV_OK && n ? (int64_t)size * (length - length / 100) / (int64_t)n : (good + bad) / 2;
        if (next <= good) next = good + (bad == INT32_MAX ? good + 1 : (bad - good) / 2);
        if (next >= bad) next = good + (bad - good) / 2;
        if (next < 1) next = 1;
        if (next > 1 << 20) next = 1 << 20;
        size = (int32_t)next;
    }
    if (!good) return KV_CAPACITY;
    enum kv_status status = write_task(s, m, w, good, seed, ids, cap, &n_context, &n);
    out->n_context = (int32_t)n_context;
    out->n_question = (int32_t)(n - n_context);
    return status;
}

/* A stretch of the prose: its last LAST_TEXT tokens, or a quarter, are what is scored. */
static enum kv_status fit_text(const struct kv_model *m, struct kv_writing *w, int32_t length, uint64_t seed, int32_t *ids, size_t cap,
                               struct kv_task *out)
{
    w->seed = seed;
    w->draws = w->n = 0;
    size_t at = paragraph(w), n = 0;
    while (n < (size_t)length && !w->full) {
        for (int i = 0; i < 16; i++) sentence(w, &at);
        enum kv_status status = ids_of(m, w->text, w->n, ids, cap, &n);
        if (status != KV_OK) return status;
    }
    if (length < 16) return KV_CAPACITY;
    out->n_question = length / 4 < LAST_TEXT ? length / 4 : LAST_TEXT;
    out->n_context = length - out->n_question;
    return KV_OK;
}

enum kv_status kv_task_make(const struct kv_suite *s, const struct kv_model *m, const char *prose, size_t prose_bytes, int32_t length,
                            uint64_t seed, struct kv_task *out, struct kv_error *err)
{
    const struct kv_model_info *info = kv_model_info(m);
    *out = (struct kv_task){0};
    int32_t bos = info->add_bos && info->bos >= 0;
    size_t cap = TEXT_BYTES;
    struct kv_writing w = {.prose = prose, .prose_bytes = prose_bytes, .answer = out->answer, .text = malloc(TEXT_BYTES)};
    int32_t *ids = malloc((cap + 1) * sizeof *ids);
    enum kv_status status = w.text && ids && prose_bytes > 1 ? KV_OK : KV_OUT_OF_MEMORY;
    if (status == KV_OK)
        status = s->write ? fit_task(s, m, &w, length - bos, seed, ids + bos, cap, out) : fit_text(m, &w, length - bos, seed, ids + bos, cap, out);
    free(w.text);
    if (status != KV_OK) {
        free(ids);
        kv_fail(err, status, "--length", "no task of %s fits into %d tokens", s->name, length);
        kv_hint(err, "ask for more tokens");
        return status;
    }
    if (bos) ids[0] = info->bos;
    out->n_context += bos;
    out->ids = ids;
    if (s->kind != KV_SUITE_TEXT) {
        size_t n;
        int32_t answer[KV_TASK_ANSWER];
        status = kv_tokenize(m, out->answer, strlen(out->answer), false, answer, KV_TASK_ANSWER, &n, err);
        out->n_answer = (int32_t)n + 2; /* room for a leading space and for what ends the answer */
        if (s->kind == KV_SUITE_LIST) out->n_answer *= 2;
    }
    if (status != KV_OK) kv_task_free(out);
    return status;
}

void kv_task_free(struct kv_task *t)
{
    free(t->ids);
    *t = (struct kv_task){0};
}

/* ---------------------------------------------------------------- scores */

static bool word_char(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

static bool holds_word(const char *text, const char *word, size_t n)
{
    for (const char *p = text; (p = strstr(p, word)); p++)
        if ((p == text || !word_char(p[-1])) && !word_char(p[n])) return true;
    return false;
}

double kv_task_score(const struct kv_suite *s, const struct kv_task *t, const char *generated)
{
    if (s->kind == KV_SUITE_FACT) {
        size_t n = strlen(t->answer);
        while (*generated == ' ') generated++;
        return !strncmp(generated, t->answer, n) && !word_char(generated[n]) ? 1 : 0;
    }
    char words[KV_TASK_ANSWER], *rest = words;
    int asked = 0, held = 0;
    memcpy(words, t->answer, sizeof words);
    for (char *word; (word = strsep(&rest, " "));) {
        asked++;
        held += holds_word(generated, word, strlen(word));
    }
    return (double)held / asked;
}

static int by_value(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

double kv_text_unigram_nats(const int32_t *ids, int32_t n)
{
    int32_t *sorted = n > 0 ? malloc((size_t)n * sizeof *sorted) : NULL;
    double nats = 0;
    if (!sorted) return 0;
    memcpy(sorted, ids, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    for (int32_t from = 0, to; from < n; from = to) {
        for (to = from; to < n && sorted[to] == sorted[from]; to++) continue;
        nats -= (double)(to - from) / n * log((double)(to - from) / n);
    }
    free(sorted);
    return nats;
}
