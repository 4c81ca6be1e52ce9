/* contest.c — see contest.h. */
#include "runtime/evaluate/contest.h"

#include "runtime/evaluate/budget.h"
#include "runtime/evaluate/interval.h"
#include "runtime/selection/rank.h"
#include "runtime/selection/support.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define ALPHA 0.05 /* of all comparisons together */
enum { BUILD_PRODUCTS = 1 << 22 };

struct mean {
    uint64_t n;
    double mean, squares; /* squares: of deviations */
};

struct entry {
    const struct kv_selector_method *method;
    struct kv_selector *instance;
    struct kv_contest_point sum[KV_CONTEST_RUNGS]; /* over all units */
    struct mean mass, share, rows;                 /* of scored units, between the rungs that enclose the reference */
};

struct bracket {
    int32_t lo, hi;
    double weight, rate; /* of hi; λ */
};

struct kv_contest {
    struct kv_tournament_config config;
    int32_t d_head, group, max_rows;
    uint64_t units;
    double dense_bytes; /* Σ */
    struct entry entry[KV_TOURNAMENT_MAX];
    struct mean difference[KV_TOURNAMENT_MAX][KV_TOURNAMENT_MAX]; /* [i][j], i < j: share of i − share of j */
    uint64_t *support;  /* [group][blocks of max_rows] */
    float *weight, *row; /* [group][max_rows] shares of the dense softmax; [d_head] */
};

static void mean_add(struct mean *m, double x)
{
    double before = x - m->mean;
    m->n++;
    m->mean += before / (double)m->n;
    m->squares += before * (x - m->mean);
}

/* ---------------------------------------------------------------- made and ended */

static enum kv_status check(const struct kv_tournament_config *c, struct kv_error *err)
{
    if (c->n < 2 || c->n > KV_TOURNAMENT_MAX) return kv_fail(err, KV_BAD_ARGUMENT, "pipelines", "a tournament has 2 to %d entries, not %d", KV_TOURNAMENT_MAX, c->n);
    if (!(c->mass >= 0.5 && c->mass <= 0.999)) return kv_fail(err, KV_BAD_ARGUMENT, "mass", "the reference mass must lie in 0.5 to 0.999");
    if (!(c->fraction > 0 && c->fraction <= 0.05)) return kv_fail(err, KV_BAD_ARGUMENT, "fraction", "the sampled fraction must lie over 0 and not over 0.05");
    if (c->units < 64 || c->units > 1000000) return kv_fail(err, KV_BAD_ARGUMENT, "units", "a tournament ends after 64 to 1000000 units");
    return KV_OK;
}

enum kv_status kv_contest_create(const struct kv_tournament_config *config, int32_t d_head, int32_t group, int32_t max_rows, struct kv_contest **out,
                                 struct kv_error *err)
{
    enum kv_status s = check(config, err);
    if (s != KV_OK) return s;
    struct kv_contest *c = calloc(1, sizeof *c);
    if (!c) return kv_fail(err, KV_OUT_OF_MEMORY, "tournament", "no memory for a tournament");
    c->config = *config;
    c->d_head = d_head, c->group = group, c->max_rows = max_rows;
    for (int32_t i = 0; s == KV_OK && i < config->n; i++) {
        const struct kv_pipeline *p = config->pipeline[i];
        c->entry[i].method = p->selector ? kv_selector_find(p->selector) : NULL;
        if (!p->built) s = kv_fail(err, KV_NOT_BUILT, "pipelines", "pipeline %s is registered but not built", p->name);
        else if (!c->entry[i].method) s = kv_fail(err, KV_BAD_ARGUMENT, "pipelines", "%s selects nothing: it holds all mass and moves all rows", p->name);
        else s = c->entry[i].method->create(&config->params[i], d_head, group, max_rows, 0, &c->entry[i].instance, err);
    }
    c->support = calloc((size_t)group * (size_t)kv_mask_words(max_rows), sizeof *c->support);
    c->weight = calloc((size_t)group * (size_t)max_rows, sizeof *c->weight);
    c->row = calloc((size_t)d_head, sizeof *c->row);
    if (s == KV_OK && (!c->support || !c->weight || !c->row)) s = kv_fail(err, KV_OUT_OF_MEMORY, "tournament", "no memory for units of %d rows", max_rows);
    if (s != KV_OK) return kv_contest_destroy(c), s;
    *out = c;
    return KV_OK;
}

void kv_contest_rest(struct kv_contest *c)
{
    for (int32_t i = 0; i < c->config.n; i++) {
        if (c->entry[i].instance) c->entry[i].method->destroy(c->entry[i].instance);
        c->entry[i].instance = NULL;
    }
    free(c->support);
    free(c->weight);
    free(c->row);
    c->support = NULL;
    c->weight = c->row = NULL;
}

void kv_contest_destroy(struct kv_contest *c)
{
    if (!c) return;
    kv_contest_rest(c);
    free(c);
}

/* ---------------------------------------------------------------- one unit */

/* The dense softmax of every head. */
static void weigh(struct kv_contest *c, const struct kv_contest_unit *u)
{
    int32_t n = u->rows->n_rows;
    for (int32_t t = 0; t < n; t++) {
        kv_rows_key(u->rows, t, c->row);
        for (int32_t g = 0; g < c->group; g++)
            c->weight[(size_t)g * (size_t)c->max_rows + (size_t)t] = kv_kernels()->dot(u->q + (size_t)g * (size_t)c->d_head, c->row, c->d_head) * u->rows->scale;
    }
    for (int32_t g = 0; g < c->group; g++) {
        float *w = c->weight + (size_t)g * (size_t)c->max_rows, top = -INFINITY;
        double sum = 0;
        for (int32_t t = 0; t < n; t++) top = w[t] > top ? w[t] : top;
        for (int32_t t = 0; t < n; t++) w[t] -= top;
        kv_kernels()->exp(w, n, w);
        for (int32_t t = 0; t < n; t++) sum += (double)w[t];
        for (int32_t t = 0; t < n; t++) w[t] = (float)((double)w[t] / sum);
    }
}

/* The least mass that a head of the group keeps. */
static double retained(const struct kv_contest *c, int32_t blocks)
{
    double least = 1;
    for (int32_t g = 0; g < c->group; g++) {
        const float *w = c->weight + (size_t)g * (size_t)c->max_rows;
        double mass = 0;
        for (int32_t b = 0; b < blocks; b++)
            for (uint64_t bits = c->support[(size_t)g * (size_t)blocks + (size_t)b]; bits; bits &= bits - 1) mass += (double)w[b * 64 + __builtin_ctzll(bits)];
        if (!(mass >= least)) least = mass;
    }
    return least;
}

static bool stopped(const _Atomic bool *stop) { return stop && atomic_load(stop); }

/* In parts where the method can, so that nobody who stops a tournament waits for a whole index at the lowest priority. */
static enum kv_status index_rows(struct entry *e, const struct kv_rows *rows, const _Atomic bool *stop)
{
    bool done = false;
    if (!e->method->build_some) return e->method->build(e->instance, rows, NULL, 0);
    while (!done) {
        if (stopped(stop)) return KV_CANCELLED;
        enum kv_status s = e->method->build_some(e->instance, rows, NULL, 0, BUILD_PRODUCTS, &done);
        if (s != KV_OK) return s;
    }
    return KV_OK;
}

static enum kv_status climb(struct kv_contest *c, int32_t i, struct kv_contest_unit *u, const _Atomic bool *stop)
{
    struct entry *e = &c->entry[i];
    const struct kv_rows *rows = u->rows;
    struct kv_rows prompt = *rows;
    prompt.n_rows = u->n_prompt < rows->n_rows ? u->n_prompt : rows->n_rows;
    enum kv_status s = index_rows(e, &prompt, stop);
    if (s == KV_OK && prompt.n_rows < rows->n_rows) s = e->method->append(e->instance, rows, prompt.n_rows);
    struct kv_params params = c->config.params[i];
    int32_t blocks = kv_mask_words(rows->n_rows);
    for (int32_t r = 0; s == KV_OK && r < KV_CONTEST_RUNGS; r++) {
        struct kv_ledger ledger = {0};
        struct kv_contest_point *p = &u->point[i][r];
        if (stopped(stop)) return KV_CANCELLED;
        kv_budget_rung(c->config.pipeline[i], r, KV_CONTEST_RUNGS, c->max_rows, &params);
        e->method->tune(e->instance, &params);
        s = e->method->query(e->instance, rows, u->q, 0, c->support, blocks, NULL, &ledger);
        double share = (double)(ledger.candidate_bytes + ledger.transfer_bytes) / u->dense_bytes;
        *p = share < 1 ? (struct kv_contest_point){retained(c, blocks), share, (double)ledger.rows} : (struct kv_contest_point){1, 1, rows->n_rows};
    }
    return s;
}

enum kv_status kv_contest_measure(struct kv_contest *c, struct kv_contest_unit *u, const _Atomic bool *stop)
{
    int32_t n = u->rows->n_rows;
    if (n < 1 || n > c->max_rows || u->rows->group != c->group || u->rows->d_head != c->d_head) return KV_BAD_ARGUMENT;
    u->dense_bytes = (double)n * 2 * (double)kv_rows_row_bytes(u->rows);
    weigh(c, u);
    enum kv_status s = KV_OK;
    for (int32_t i = 0; s == KV_OK && i < c->config.n; i++) {
        if (stopped(stop)) return KV_CANCELLED;
        if (!kv_selector_dense(c->entry[i].method, u->layer)) s = climb(c, i, u, stop);
        else for (int32_t r = 0; r < KV_CONTEST_RUNGS; r++) u->point[i][r] = (struct kv_contest_point){1, 1, n};
    }
    return s;
}

/* ---------------------------------------------------------------- many units */

/* false: the reference lies over what the ladder reaches. */
static bool enclose(const struct kv_contest *c, const struct entry *e, struct bracket *out)
{
    double n = (double)c->units;
    int32_t hi = 0;
    while (hi < KV_CONTEST_RUNGS && e->sum[hi].mass / n < c->config.mass) hi++;
    if (hi == KV_CONTEST_RUNGS) return false;
    *out = (struct bracket){.lo = hi ? hi - 1 : 0, .hi = hi, .weight = 1};
    double dm = (e->sum[hi].mass - e->sum[out->lo].mass) / n, dx = (e->sum[hi].share - e->sum[out->lo].share) / n;
    if (hi == 0 || dm <= 0) return true; /* the least budget holds it already */
    out->weight = (c->config.mass - e->sum[out->lo].mass / n) / dm;
    out->rate = dx > 0 ? dx / dm : 0;
    return true;
}

static double between(double lo, double hi, double weight) { return lo + weight * (hi - lo); }

static void score(struct kv_contest *c, const struct kv_contest_unit *u)
{
    double share[KV_TOURNAMENT_MAX];
    for (int32_t i = 0; i < c->config.n; i++) {
        struct entry *e = &c->entry[i];
        struct bracket b;
        share[i] = NAN;
        if (!enclose(c, e, &b)) continue;
        const struct kv_contest_point *lo = &u->point[i][b.lo], *hi = &u->point[i][b.hi];
        double mass = between(lo->mass, hi->mass, b.weight);
        share[i] = between(lo->share, hi->share, b.weight) - b.rate * (mass - c->config.mass);
        mean_add(&e->mass, mass);
        mean_add(&e->share, share[i]);
        mean_add(&e->rows, between(lo->rows, hi->rows, b.weight));
    }
    for (int32_t i = 0; i < c->config.n; i++)
        for (int32_t j = i + 1; j < c->config.n; j++)
            if (share[i] == share[i] && share[j] == share[j]) mean_add(&c->difference[i][j], share[i] - share[j]);
}

void kv_contest_add(struct kv_contest *c, const struct kv_contest_unit *u)
{
    if (c->units >= KV_CONTEST_WARM) score(c, u);
    c->units++;
    c->dense_bytes += u->dense_bytes;
    for (int32_t i = 0; i < c->config.n; i++)
        for (int32_t r = 0; r < KV_CONTEST_RUNGS; r++) {
            struct kv_contest_point *sum = &c->entry[i].sum[r];
            sum->mass += u->point[i][r].mass, sum->share += u->point[i][r].share, sum->rows += u->point[i][r].rows;
        }
}

/* ---------------------------------------------------------------- what is known */

/* -1: i reads less than j, 1: more, 0: nobody can tell. */
static int apart(const struct kv_contest *c, int32_t i, int32_t j)
{
    const struct mean *d = i < j ? &c->difference[i][j] : &c->difference[j][i];
    double pairs = c->config.n * (c->config.n - 1) / 2.0;
    struct kv_interval k = kv_interval_sequence(d->mean, d->squares, d->n, ALPHA / pairs);
    int sign = d->n < KV_CONTEST_LEAST ? 0 : k.upper < 0 ? -1 : k.lower > 0 ? 1 : 0;
    return i < j ? sign : -sign;
}

static void describe(const struct kv_contest *c, int32_t i, struct kv_tournament_entry *out)
{
    const struct entry *e = &c->entry[i];
    struct bracket b;
    bool reached = c->units && enclose(c, e, &b);
    *out = (struct kv_tournament_entry){.pipeline = c->config.pipeline[i], .params = c->config.params[i], .verdict = KV_TOURNAMENT_NO_DATA, .mass = NAN, .mass_low = NAN,
                                        .mass_high = NAN, .bytes = NAN, .bytes_low = NAN, .bytes_high = NAN, .share = NAN, .rows = NAN};
    struct kv_params lower = out->params;
    kv_budget_rung(out->pipeline, reached ? b.lo : KV_CONTEST_RUNGS - 1, KV_CONTEST_RUNGS, c->max_rows, &lower);
    out->budget = kv_budget_rung(out->pipeline, reached ? b.hi : KV_CONTEST_RUNGS - 1, KV_CONTEST_RUNGS, c->max_rows, &out->params);
    if (c->units >= KV_CONTEST_WARM && !reached) {
        out->verdict = KV_TOURNAMENT_SHORT;
        out->mass = e->sum[KV_CONTEST_RUNGS - 1].mass / (double)c->units;
    }
    if (!reached || e->share.n < KV_CONTEST_LEAST) return;
    double value = between(kv_params_get(out->pipeline, &lower, out->budget), kv_params_get(out->pipeline, &out->params, out->budget), b.weight);
    kv_params_set(out->pipeline, &out->params, out->budget, strcmp(out->budget, "alpha") ? round(value) : value, NULL);
    struct kv_interval mass = kv_interval_sequence(e->mass.mean, e->mass.squares, e->mass.n, ALPHA), share = kv_interval_sequence(e->share.mean, e->share.squares, e->share.n, ALPHA);
    double dense = c->dense_bytes / (double)c->units;
    out->mass = mass.value, out->mass_low = fmax(0, mass.lower), out->mass_high = fmin(1, mass.upper);
    out->bytes = dense * share.value, out->bytes_low = dense * fmax(0, share.lower), out->bytes_high = dense * share.upper;
    out->share = share.value, out->rows = e->rows.mean;
    out->verdict = KV_TOURNAMENT_RANKED;
}

void kv_contest_view(const struct kv_contest *c, struct kv_tournament_view *out)
{
    *out = (struct kv_tournament_view){.mass = c->config.mass, .fraction = c->config.fraction, .units = c->units, .limit = c->config.units, .n = c->config.n,
                                       .dense_bytes = c->units ? c->dense_bytes / (double)c->units : NAN};
    for (int32_t i = 0; i < c->config.n; i++) describe(c, i, &out->entry[i]);
    for (int32_t i = 0; i < c->config.n; i++) {
        struct kv_tournament_entry *e = &out->entry[i];
        if (e->share != e->share) continue;
        int32_t better = 0;
        for (int32_t j = 0; j < c->config.n; j++) {
            if (j == i || out->entry[j].share != out->entry[j].share) continue;
            int side = apart(c, i, j);
            if (side == 0) e->verdict = KV_TOURNAMENT_TIE;
            better += side > 0;
        }
        if (e->verdict == KV_TOURNAMENT_RANKED) e->rank = better + 1;
    }
}

const char *kv_tournament_verdict_name(enum kv_tournament_verdict v)
{
    static const char *const names[] = {"NO_DATA", "SHORT", "TIE", "RANKED"};
    return names[v];
}
