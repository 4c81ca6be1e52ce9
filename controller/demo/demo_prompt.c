/* demo_prompt.c — wording and words are those of the model's training recipe (models/README.md); others it answers worse. */
#include "controller/demo/demo_prompt.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const adjectives[] = {"amber", "brisk", "calm", "dusty", "eager", "faint", "gentle", "hollow", "ivory", "jolly", "keen", "lucid", "mellow", "noble", "olive", "placid",
    "quiet", "rustic", "silent", "tidy", "urban", "velvet", "wild", "young", "zesty", "bold", "crisp", "deep", "even", "fresh", "grand", "humble"};
static const char *const nouns[] = {"anchor", "basin", "candle", "desert", "engine", "falcon", "garden", "harbor", "island", "jacket", "kettle", "lantern", "market", "needle", "orchard",
    "pepper", "quarry", "river", "saddle", "temple", "umbrella", "valley", "window", "yard", "zephyr", "bridge", "castle", "dragon", "ember", "forest", "glacier", "hammer"};
enum { N_WORDS = 32, MOST_LINES = 128 };

struct page {
    char *at;
    size_t n, cap; /* n > cap: it did not fit */
    uint64_t state;
};

static uint64_t draw(struct page *p, uint64_t below) /* splitmix64 */
{
    uint64_t z = (p->state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

__attribute__((format(printf, 2, 3))) static void put(struct page *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(p->n < p->cap ? p->at + p->n : NULL, p->n < p->cap ? p->cap - p->n : 0, fmt, ap);
    va_end(ap);
    p->n += n > 0 ? (size_t)n : 0;
}

static void digits(struct page *p, char out[8], int n)
{
    for (int i = 0; i < n; i++) out[i] = (char)('0' + draw(p, 10));
    out[n] = 0;
}

static void numbers(struct page *p, int lines)
{
    int key[MOST_LINES], width = 4 + (int)draw(p, 3);
    char value[8];
    for (int i = 0; i < lines; i++) {
        /* A step coprime to the number of keys: no key comes twice. */
        key[i] = i ? (key[i - 1] + 389) % (N_WORDS * N_WORDS) : (int)draw(p, N_WORDS * N_WORDS);
        digits(p, value, width);
        put(p, "The magic number for %s %s is %s.\n", adjectives[key[i] / N_WORDS], nouns[key[i] % N_WORDS], value);
    }
    int asked = key[draw(p, (uint64_t)(lines / 2 + 1))];
    const char *a = adjectives[asked / N_WORDS], *n = nouns[asked % N_WORDS];
    put(p, "Question: what is the magic number for %s %s?\nAnswer: The magic number for %s %s is ", a, n, a, n);
}

static void passkey(struct page *p, int lines)
{
    static const char noise[] = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ";
    char key[8];
    int before = (int)draw(p, (uint64_t)lines);
    digits(p, key, 5);
    for (int i = 0; i < before; i++) put(p, "%s", noise);
    put(p, "\nThe pass key is %s. Remember it. %s is the pass key.\n", key, key);
    for (int i = before; i < lines; i++) put(p, "%s", noise);
    put(p, "\nQuestion: what is the pass key?\nAnswer: The pass key is ");
}

static void pairs(struct page *p, int lines)
{
    char key[MOST_LINES][8], value[8];
    for (int i = 0; i < lines; i++) {
        digits(p, key[i], 6);
        digits(p, value, 6);
        put(p, "%s\"%s\": \"%s\"", i ? ", " : "{", key[i], value);
    }
    const char *asked = key[draw(p, (uint64_t)(lines / 2 + 1))];
    put(p, "}\nQuestion: what is the value of \"%s\"?\nAnswer: \"%s\": \"", asked, asked);
}

static void recite(struct page *p, int lines)
{
    char value[8];
    put(p, "List:\n");
    for (int i = 0; i < lines; i++) {
        digits(p, value, 3);
        put(p, "%s %s %s\n", adjectives[draw(p, N_WORDS)], nouns[draw(p, N_WORDS)], value);
    }
    put(p, "Again:\n");
}

size_t kv_demo_prompt(enum kv_demo_kind kind, int lines, uint64_t seed, char *out, size_t cap)
{
    static void (*const write[KV_DEMO_KINDS])(struct page *, int) = {numbers, passkey, pairs, recite};
    struct page p = {.at = out, .cap = cap, .state = seed};
    if (lines < 1) lines = 1;
    if (lines > MOST_LINES) lines = MOST_LINES;
    write[kind](&p, lines);
    return p.n < cap ? p.n : 0;
}
