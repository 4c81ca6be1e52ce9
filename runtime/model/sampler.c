/* sampler.c — see sampler.h. Cuts work on a heap of the candidates, so that only those that are kept get sorted. */
#include "runtime/model/sampler.h"

#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kv_sampler {
    int32_t n_vocab;
    float *weight;   /* [n_vocab] penalised logits, then exp((logit - best) / temperature) */
    int32_t *heap;   /* [n_vocab] ids */
    int32_t *counts; /* [n_vocab] zero between calls */
    uint8_t *mask;   /* [n_vocab] the caller's */
};

enum kv_status kv_sampler_create(int32_t n_vocab, struct kv_sampler **out)
{
    if (n_vocab < 1) return KV_BAD_ARGUMENT;
    struct kv_sampler *s = calloc(1, sizeof *s);
    if (!s) return KV_OUT_OF_MEMORY;
    s->n_vocab = n_vocab;
    s->weight = calloc((size_t)n_vocab, sizeof *s->weight);
    s->heap = calloc((size_t)n_vocab, sizeof *s->heap);
    s->counts = calloc((size_t)n_vocab, sizeof *s->counts);
    s->mask = calloc((size_t)n_vocab, sizeof *s->mask);
    if (!s->weight || !s->heap || !s->counts || !s->mask) {
        kv_sampler_destroy(s);
        return KV_OUT_OF_MEMORY;
    }
    *out = s;
    return KV_OK;
}

void kv_sampler_destroy(struct kv_sampler *s)
{
    if (!s) return;
    free(s->weight);
    free(s->heap);
    free(s->counts);
    free(s->mask);
    free(s);
}

/* ---------------------------------------------------------------- numbers */

/* Philox 4x32, ten rounds (Salmon et al., SC 2011): counter and key in, random bits out. */
static void philox(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
        memcpy(c, next, sizeof next);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

double kv_draw(uint64_t seed, uint64_t output_index)
{
    uint32_t c[4] = {(uint32_t)output_index, (uint32_t)(output_index >> 32), 0, 0};
    philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
    return (double)(((uint64_t)c[1] << 32 | c[0]) >> 11) * 0x1p-53;
}

uint8_t *kv_sampler_mask(struct kv_sampler *s)
{
    return s->mask;
}

/* ---------------------------------------------------------------- the model's distribution */

static enum kv_status find_best(const float *logits, int32_t n, int32_t *best)
{
    *best = 0;
    for (int32_t i = 0; i < n; i++) {
        if (isnan(logits[i])) return KV_NAN_LOGITS;
        if (logits[i] > logits[*best]) *best = i;
    }
    return isinf(logits[*best]) ? KV_NAN_LOGITS : KV_OK;
}

static double log_sum(const float *logits, int32_t n, float best)
{
    enum { CHUNK = 256, LANES = 4 };
    float e[CHUNK];
    double sum[LANES] = {0};
    for (int32_t i = 0; i < n; i += CHUNK) {
        int32_t len = n - i < CHUNK ? n - i : CHUNK;
        for (int32_t j = 0; j < len; j++) e[j] = logits[i + j] - best;
        kv_kernels()->exp(e, len, e);
        for (int32_t j = 0; j < len; j++) sum[j % LANES] += (double)e[j];
    }
    return best + kv_log((sum[0] + sum[2]) + (sum[1] + sum[3]));
}

static void fill_top(const float *logits, int32_t n, double norm, int32_t n_top, struct kv_sampled *out)
{
    out->n_top = 0;
    for (int32_t i = 0; n_top && i < n; i++) {
        if (out->n_top == n_top && logits[i] <= logits[out->top_id[n_top - 1]]) continue;
        int32_t at = out->n_top < n_top ? out->n_top++ : n_top - 1;
        for (; at > 0 && logits[i] > logits[out->top_id[at - 1]]; at--) out->top_id[at] = out->top_id[at - 1];
        out->top_id[at] = i;
    }
    for (int32_t i = 0; i < out->n_top; i++) out->top_logprob[i] = (float)(logits[out->top_id[i]] - norm);
}

enum kv_status kv_logprob(struct kv_sampler *s, const float *logits, int32_t id, double *out)
{
    int32_t best;
    if (id < 0 || id >= s->n_vocab) return KV_TOKEN_OUT_OF_RANGE;
    enum kv_status status = find_best(logits, s->n_vocab, &best);
    if (status == KV_OK) *out = logits[id] - log_sum(logits, s->n_vocab, logits[best]);
    return status;
}

/* ---------------------------------------------------------------- penalties */

static bool penalised(const struct kv_sampling *p)
{
    return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

/* OpenAI's: logit - presence · [generated before] - frequency · times generated. Repetition divides a positive logit and multiplies a negative one. */
static void penalise(struct kv_sampler *s, const struct kv_sampling *p, struct kv_history h)
{
    for (int32_t i = h.n_prompt; i < h.n; i++) s->counts[h.ids[i]]++;
    for (int32_t i = h.n_prompt; i < h.n; i++) {
        int32_t id = h.ids[i], times = s->counts[id];
        s->counts[id] = 0;
        if (times) s->weight[id] -= p->presence_penalty + p->frequency_penalty * (float)times;
    }
    if (p->repetition_penalty == 1) return;
    for (int32_t i = 0; i < h.n; i++) {
        int32_t id = h.ids[i];
        if (s->counts[id]++) continue; /* once, however often it occurred */
        s->weight[id] = s->weight[id] > 0 ? s->weight[id] / p->repetition_penalty : s->weight[id] * p->repetition_penalty;
    }
    for (int32_t i = 0; i < h.n; i++) s->counts[h.ids[i]] = 0;
}

/* ---------------------------------------------------------------- cuts and the draw */

/* Order of candidates: by weight, equal ones by id. */
static bool ahead(const struct kv_sampler *s, int32_t a, int32_t b)
{
    return s->weight[a] > s->weight[b] || (s->weight[a] == s->weight[b] && a < b);
}

/* Restores the heap below i; its root is the best candidate, or the worst one when `worst`. */
static void sift(struct kv_sampler *s, int32_t i, int32_t n, bool worst)
{
    int32_t id = s->heap[i];
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && ahead(s, s->heap[child + 1], s->heap[child]) != worst) child++;
        if (ahead(s, s->heap[child], id) == worst) break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = id;
}

static void heapify(struct kv_sampler *s, int32_t n, bool worst)
{
    for (int32_t i = n / 2 - 1; i >= 0; i--) sift(s, i, n, worst);
}

/* The best k candidates, unordered, into the heap's array: the worst of those kept so far is the root. */
static int32_t gather_top_k(struct kv_sampler *s, int32_t k)
{
    for (int32_t i = 0; i < k; i++) s->heap[i] = i;
    heapify(s, k, true);
    for (int32_t i = k; i < s->n_vocab; i++) {
        if (!ahead(s, i, s->heap[0])) continue;
        s->heap[0] = i;
        sift(s, 0, k, true);
    }
    return k;
}

/* All candidates that can belong to a top_p share: those under (1 - top_p) · total / n together weigh less than what may be left out. */
static int32_t gather_likely(struct kv_sampler *s, double top_p)
{
    double total = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_vocab; i++) total += s->weight[i];
    double least = (1 - top_p) * total / s->n_vocab * 0.999; /* less, for the rounding of sums */
    for (int32_t i = 0; i < s->n_vocab; i++)
        if (s->weight[i] > 0 && s->weight[i] >= least) s->heap[n++] = i;
    return n;
}

/* Sorts candidates to the end of the heap's array, best last, until their share reaches top_p. Returns how many of them.
 * The share is of what top-k left, or of everything. */
static int32_t keep_best(struct kv_sampler *s, int32_t k, double top_p, int32_t *n_gathered)
{
    bool by_k = k < s->n_vocab;
    int32_t n = *n_gathered = by_k ? gather_top_k(s, k) : gather_likely(s, top_p), kept = 0;
    double total = 0, sum = 0;
    if (by_k) for (int32_t i = 0; i < n; i++) total += s->weight[s->heap[i]];
    else for (int32_t i = 0; i < s->n_vocab; i++) total += s->weight[i];
    heapify(s, n, false);
    while (kept < n && (!kept || sum < top_p * total)) {
        int32_t id = s->heap[0];
        s->heap[0] = s->heap[n - 1 - kept];
        s->heap[n - 1 - kept++] = id;
        sift(s, 0, n - kept, false);
        sum += s->weight[id];
    }
    return kept;
}

static int32_t draw_from_all(const struct kv_sampler *s, double u)
{
    double total = 0, sum = 0;
    int32_t last = 0;
    for (int32_t i = 0; i < s->n_vocab; i++) total += s->weight[i];
    for (int32_t i = 0; i < s->n_vocab; i++) {
        if (s->weight[i] == 0) continue;
        last = i;
        if ((sum += s->weight[i]) > u * total) return i;
    }
    return last; /* rounding */
}

/* last: the best of `kept` candidates that lie before it. */
static int32_t draw_from_best(const struct kv_sampler *s, const int32_t *last, int32_t kept, double u)
{
    double total = 0, sum = 0;
    for (int32_t i = 0; i < kept; i++) total += s->weight[last[-i]];
    for (int32_t i = 0; i < kept; i++)
        if ((sum += s->weight[last[-i]]) > u * total) return last[-i];
    return *last; /* rounding */
}

static int32_t best_weight(const struct kv_sampler *s)
{
    int32_t best = 0;
    for (int32_t i = 1; i < s->n_vocab; i++)
        if (s->weight[i] > s->weight[best]) best = i;
    return best;
}

static int32_t choose(struct kv_sampler *s, const struct kv_sampling *p, uint64_t output_index)
{
    int32_t best = best_weight(s);
    if (p->temperature == 0) return best;
    float top = s->weight[best];
    for (int32_t i = 0; i < s->n_vocab; i++) s->weight[i] = (s->weight[i] - top) / p->temperature;
    kv_kernels()->exp(s->weight, s->n_vocab, s->weight);
    double u = kv_draw(p->seed, output_index);
    int32_t k = p->top_k > 0 && p->top_k < s->n_vocab ? p->top_k : s->n_vocab, n_gathered;
    if (k == s->n_vocab && p->top_p >= 1) return draw_from_all(s, u);
    int32_t kept = keep_best(s, k, p->top_p, &n_gathered);
    return draw_from_best(s, s->heap + n_gathered - 1, kept, u);
}

static enum kv_status check(const struct kv_sampler *s, const struct kv_sampling *p, struct kv_history h, int32_t n_top)
{
    bool good = p->temperature >= 0 && p->temperature <= 100 && p->top_p >= 0 && p->top_p <= 1 && p->top_k >= 0 && p->repetition_penalty > 0 &&
                p->repetition_penalty <= 100 && fabsf(p->presence_penalty) <= 100 && fabsf(p->frequency_penalty) <= 100 && n_top >= 0 &&
                n_top <= KV_MAX_LOGPROBS && h.n_prompt >= 0 && h.n_prompt <= h.n;
    if (!good) return KV_BAD_ARGUMENT;
    if (!penalised(p)) return KV_OK;
    for (int32_t i = 0; i < h.n; i++)
        if (h.ids[i] < 0 || h.ids[i] >= s->n_vocab) return KV_TOKEN_OUT_OF_RANGE;
    return KV_OK;
}

enum kv_status kv_sample(struct kv_sampler *s, const struct kv_sampling *p, const float *logits, struct kv_history history,
                         uint64_t output_index, int32_t n_top, const uint8_t *allowed, struct kv_sampled *out)
{
    int32_t best;
    enum kv_status status = check(s, p, history, n_top);
    if (status == KV_OK) status = find_best(logits, s->n_vocab, &best);
    if (status != KV_OK) return status;
    double norm = n_top ? log_sum(logits, s->n_vocab, logits[best]) : 0; /* exp of every logit: only for those who ask */
    out->id = best;
    if (p->temperature != 0 || penalised(p) || allowed) {
        for (int32_t i = 0; i < s->n_vocab; i++) s->weight[i] = !allowed || allowed[i] ? logits[i] : -INFINITY;
        if (penalised(p)) penalise(s, p, history);
        out->id = choose(s, p, output_index);
    }
    out->logprob = n_top ? (float)(logits[out->id] - norm) : 0;
    fill_top(logits, s->n_vocab, norm, n_top, out);
    return KV_OK;
}
