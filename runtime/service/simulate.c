/* simulate.c — see simulate.h. Time is in microseconds from the trace's beginning. */
#include "runtime/service/simulate.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct waiting {
    uint32_t request;
    int32_t priority;
    bool aged;
};

struct live {
    uint32_t request;
    double ready_us, first_us; /* of its load; of its first token */
    int64_t ends_at_step;
    int32_t prefill_left;
    uint64_t device_bytes;
    struct kv_credit_ticket ticket;
};

struct loading { /* a read in flight that others may join */
    uint8_t unit[32];
    double ready_us;
};

struct sim {
    const struct kv_sim_trace *trace;
    const struct kv_sim_config *c;
    struct kv_sim_result *out;
    struct kv_pool *host, *disk; /* NULL: the tier holds nothing */
    struct kv_credits *credits;
    struct waiting *queue;
    struct live *live;           /* [max_sequences]; first decoding, then prefilling in order, then loading */
    int32_t n_queue, n_decoding, n_prefilling, n_loading;
    struct loading *loads;       /* [max_sequences] */
    int32_t n_loads;
    double now_us, link_free_us, disk_free_us, deadline_us;
    uint64_t device_used;
    int64_t step;                /* decode steps done */
    size_t next;                 /* arrival */
    float *ttft, *tpot;
    size_t n_ttft, n_tpot;
};

void kv_sim_config_default(struct kv_sim_config *c)
{
    *c = (struct kv_sim_config){
        .bytes_per_token = 131072, .device_bytes = UINT64_C(64) << 30, .host_bytes = UINT64_C(256) << 30, .n_layers = 32,
        .link_bytes_per_s = 24.0 * 1073741824, .disk_bytes_per_s = 3.0 * 1073741824, .link_latency_us = 100, .disk_latency_us = 500,
        .prefill_tokens_per_s = 60000, .decode_base_us = 12000, .decode_sequence_us = 150, .max_sequences = 64, .max_queue = 256,
        .prefill_chunk = 2048, .starvation_ms = 10000,
        .credits = {{UINT64_C(32) << 30, UINT64_C(8) << 30, UINT64_C(32) << 30, 64}, 256}};
}

static int32_t n_live(const struct sim *s)
{
    return s->n_decoding + s->n_prefilling + s->n_loading;
}

/* ---------------------------------------------------------------- tiers */

struct found {
    uint32_t host, disk; /* leading blocks: of those in either tier, how many in each */
    int32_t tokens;      /* of them that spare prefill: the last prompt token is always computed */
    uint64_t bytes, host_bytes, disk_bytes;
    uint8_t unit[32];
};

static void look_up(const struct sim *s, const struct kv_sim_request *q, struct found *f)
{
    const uint64_t *b = s->trace->block + q->first_block;
    *f = (struct found){0};
    for (uint32_t i = 0; i < q->n_blocks; i++) {
        if (s->host && kv_pool_has(s->host, b[i])) f->host++;
        else if (s->disk && kv_pool_has(s->disk, b[i])) f->disk++;
        else break;
    }
    uint64_t n = f->host + f->disk, tokens = n * (uint64_t)s->trace->block_tokens;
    if (!n) return;
    f->tokens = (int32_t)(tokens < (uint64_t)q->input_tokens ? tokens : (uint64_t)q->input_tokens - 1);
    f->bytes = (uint64_t)f->tokens * s->c->bytes_per_token;
    f->disk_bytes = f->bytes / n * f->disk;
    f->host_bytes = f->bytes - f->disk_bytes;
    memcpy(f->unit, &b[n - 1], 8); /* a block's id names its whole prefix */
    memcpy(f->unit + 8, &f->bytes, 8);
    f->unit[31] = 1;
}

/* All blocks of a prefilled prompt become recent in the host tier; what leaves it goes down. */
static void keep(struct sim *s, const struct kv_sim_request *q)
{
    double saved = s->trace->block_tokens / s->c->prefill_tokens_per_s - (double)s->trace->block_tokens * (double)s->c->bytes_per_token / s->c->link_bytes_per_s;
    for (uint32_t i = 0; s->host && i < q->n_blocks; i++) {
        bool hit, evicted, again, lost;
        uint64_t gone, below, block = s->trace->block[q->first_block + i];
        if (s->disk) kv_pool_remove(s->disk, block);
        kv_pool_touch(s->host, block, saved > 0 ? saved * 1e3 : 0, &hit, &evicted, &gone);
        if (!evicted || !s->disk) continue;
        kv_pool_touch(s->disk, gone, saved > 0 ? saved * 1e3 : 0, &again, &lost, &below);
        s->out->disk_write_bytes += (uint64_t)s->trace->block_tokens * s->c->bytes_per_token;
    }
}

/* ---------------------------------------------------------------- admission */

static double estimate_us(const struct sim *s, const struct found *f)
{
    double disk = f->disk_bytes ? fmax(0, s->disk_free_us - s->now_us) + s->c->disk_latency_us + (double)f->disk_bytes / s->c->disk_bytes_per_s * 1e6 : 0;
    double link = fmax(0, s->link_free_us - s->now_us) + s->c->link_latency_us + (double)f->bytes / s->c->link_bytes_per_s * 1e6;
    return disk + link;
}

static double slack_us(const struct sim *s, const struct kv_sim_request *q)
{
    double limit = q->deadline_ms ? q->deadline_ms : s->c->deadline_ms;
    return limit > 0 ? (double)q->at_us + limit * 1e3 - s->now_us : DBL_MAX;
}

static void ask(struct sim *s, const struct kv_sim_request *q, const struct found *f, double wait_us, struct kv_sim_answer *a)
{
    *a = (struct kv_sim_answer){.transfer = true, .priority = 50};
    if (!s->c->decide) return;
    struct kv_credit_view v;
    kv_credits_view(s->credits, &v, NULL, 0, NULL, 0);
    double slack = slack_us(s, q);
    struct kv_sim_question question = {.request = q, .slack_ms = slack == DBL_MAX ? -1 : fmax(0, slack / 1e3), .estimate_ms = wait_us / 1e3,
        .backend_bytes = f->bytes, .staging_bytes = 2 * f->bytes / (uint64_t)s->c->n_layers,
        .pinned_free = v.total[KV_CREDIT_PINNED] - v.used[KV_CREDIT_PINNED], .staging_free = v.total[KV_CREDIT_STAGING] - v.used[KV_CREDIT_STAGING],
        .link_free = v.total[KV_CREDIT_LINK] - v.used[KV_CREDIT_LINK], .queue_free = (uint32_t)(v.total[KV_CREDIT_QUEUE] - v.used[KV_CREDIT_QUEUE])};
    s->out->policy_calls++;
    s->c->decide(s->c->decide_ctx, &question, a);
}

static void arrive(struct sim *s)
{
    while (s->next < s->trace->n_requests && (double)s->trace->request[s->next].at_us <= s->now_us) {
        const struct kv_sim_request *q = &s->trace->request[s->next];
        uint64_t bytes = ((uint64_t)q->input_tokens + (uint64_t)q->output_tokens) * s->c->bytes_per_token;
        if (bytes > s->c->device_bytes) s->out->refused_capacity++;
        else if (s->n_queue == s->c->max_queue) s->out->refused_queue++;
        else {
            struct found f;
            struct kv_sim_answer a = {.priority = 50};
            if (s->c->decide) {
                look_up(s, q, &f);
                ask(s, q, &f, estimate_us(s, &f), &a);
            }
            s->queue[s->n_queue++] = (struct waiting){(uint32_t)s->next, a.priority, false};
        }
        s->next++;
    }
}

/* As the engine does it: who has waited beyond the bound first, then priority, then arrival. */
static int32_t best(struct sim *s)
{
    int32_t at = -1;
    for (int32_t i = 0; i < s->n_queue; i++) {
        struct waiting *w = &s->queue[i], *b = at < 0 ? NULL : &s->queue[at];
        const struct kv_sim_request *q = &s->trace->request[w->request];
        w->aged = s->now_us - (double)q->at_us > s->c->starvation_ms * 1e3;
        if (!b || (w->aged && !b->aged)) at = i;
        else if (w->aged == b->aged && !w->aged && w->priority > b->priority) at = i;
    }
    return at;
}

static void leave_queue(struct sim *s, int32_t at)
{
    memmove(&s->queue[at], &s->queue[at + 1], (size_t)(--s->n_queue - at) * sizeof *s->queue);
}

/* Starts the read, or joins one of the same blocks that is in flight. */
static double start_load(struct sim *s, const struct found *f, bool shared)
{
    for (int32_t i = 0; shared && i < s->n_loads; i++)
        if (!memcmp(s->loads[i].unit, f->unit, 32)) return s->loads[i].ready_us;
    double from = s->now_us;
    if (f->disk_bytes) {
        from = fmax(from, s->disk_free_us) + s->c->disk_latency_us + (double)f->disk_bytes / s->c->disk_bytes_per_s * 1e6;
        s->disk_free_us = from;
        s->out->disk_read_bytes += f->disk_bytes;
    }
    s->link_free_us = fmax(from, s->link_free_us) + s->c->link_latency_us + (double)f->bytes / s->c->link_bytes_per_s * 1e6;
    s->out->link_bytes += f->bytes;
    if (s->n_loads < s->c->max_sequences) {
        struct loading *l = &s->loads[s->n_loads++];
        memcpy(l->unit, f->unit, 32);
        l->ready_us = s->link_free_us;
    }
    return s->link_free_us;
}

/* The transfer if policy, deadline and credits allow it; otherwise everything is computed again, which every contract permits. */
static bool wants_load(struct sim *s, const struct kv_sim_request *q, const struct found *f, struct kv_credit_ticket *t, bool *shared)
{
    double wait_us = estimate_us(s, f);
    struct kv_sim_answer a;
    ask(s, q, f, wait_us, &a);
    if (!a.transfer) return s->out->fallback_policy++, false;
    if (wait_us > slack_us(s, q)) return s->out->fallback_deadline++, false;
    struct kv_credit_ask need = {.request = (uint64_t)(q - s->trace->request) + 1, .what = "load", .backend_bytes = f->bytes,
                                 .staging_bytes = 2 * f->bytes / (uint64_t)s->c->n_layers, .queue_slots = 1};
    memcpy(need.unit, f->unit, 32);
    if (kv_credits_reserve(s->credits, &need, (int64_t)s->now_us, t, NULL, shared) != KV_OK) return s->out->fallback_credit++, false;
    return true;
}

static void start(struct sim *s, uint32_t request)
{
    const struct kv_sim_request *q = &s->trace->request[request];
    struct found f;
    look_up(s, q, &f);
    struct live l = {.request = request, .prefill_left = q->input_tokens, .ready_us = s->now_us,
                     .device_bytes = ((uint64_t)q->input_tokens + (uint64_t)q->output_tokens) * s->c->bytes_per_token};
    bool shared = false, loads = f.tokens && wants_load(s, q, &f, &l.ticket, &shared);
    s->out->blocks += q->n_blocks;
    if (loads) {
        l.ready_us = start_load(s, &f, shared);
        l.prefill_left -= f.tokens;
        s->out->host_hits += f.host;
        s->out->disk_hits += f.disk;
        uint64_t disk_tokens = (uint64_t)f.tokens * f.disk / (f.host + f.disk);
        s->out->disk_hit_tokens += disk_tokens;
        s->out->host_hit_tokens += (uint64_t)f.tokens - disk_tokens;
    }
    s->out->recomputed_tokens += (uint64_t)l.prefill_left;
    s->device_used += l.device_bytes;
    double waited_ms = (s->now_us - (double)q->at_us) / 1e3;
    if (waited_ms > s->out->max_wait_ms) s->out->max_wait_ms = waited_ms;
    s->live[n_live(s)] = l;
    s->n_loading++;
    if ((uint64_t)n_live(s) > s->out->peak_live) s->out->peak_live = (uint64_t)n_live(s);
}

/* Those whose deadline has passed give their place to others. */
static void expire(struct sim *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_queue; i++)
        if (slack_us(s, &s->trace->request[s->queue[i].request]) < 0) s->out->refused_deadline++;
        else s->queue[n++] = s->queue[i];
    s->n_queue = n;
}

static void admit(struct sim *s)
{
    expire(s);
    for (int32_t at; n_live(s) < s->c->max_sequences && (at = best(s)) >= 0;) {
        uint32_t request = s->queue[at].request;
        const struct kv_sim_request *q = &s->trace->request[request];
        uint64_t bytes = ((uint64_t)q->input_tokens + (uint64_t)q->output_tokens) * s->c->bytes_per_token;
        if (bytes > s->c->device_bytes - s->device_used) return; /* nobody passes who came in front */
        leave_queue(s, at);
        start(s, request);
    }
}

/* ---------------------------------------------------------------- iterations */

static void swap_live(struct sim *s, int32_t a, int32_t b)
{
    struct live x = s->live[a];
    s->live[a] = s->live[b];
    s->live[b] = x;
}

/* Loads that are done move to the end of the prefilling ones. */
static void finish_loads(struct sim *s)
{
    for (int32_t i = s->n_decoding + s->n_prefilling; i < n_live(s); i++) {
        if (s->live[i].ready_us > s->now_us) continue;
        if (s->live[i].ticket.generation) kv_credits_release(s->credits, &s->live[i].ticket);
        swap_live(s, i, s->n_decoding + s->n_prefilling);
        s->n_prefilling++;
        s->n_loading--;
    }
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_loads; i++)
        if (s->loads[i].ready_us > s->now_us) s->loads[n++] = s->loads[i];
    s->n_loads = n;
}

static double next_event_us(const struct sim *s)
{
    double at = s->next < s->trace->n_requests ? (double)s->trace->request[s->next].at_us : DBL_MAX;
    for (int32_t i = s->n_decoding + s->n_prefilling; i < n_live(s); i++)
        if (s->live[i].ready_us < at) at = s->live[i].ready_us;
    return at;
}

static void end(struct sim *s, int32_t at)
{
    struct live *l = &s->live[at];
    const struct kv_sim_request *q = &s->trace->request[l->request];
    s->out->finished++;
    s->out->output_tokens += (uint64_t)q->output_tokens;
    if (q->output_tokens > 1) s->tpot[s->n_tpot++] = (float)((s->now_us - l->first_us) / 1e3 / (q->output_tokens - 1));
    s->device_used -= l->device_bytes;
    int32_t last = --s->n_decoding, total = n_live(s) + 1;
    s->live[at] = s->live[last];
    memmove(&s->live[last], &s->live[last + 1], (size_t)(total - last - 1) * sizeof *s->live);
}

static void first_token(struct sim *s)
{
    struct live *l = &s->live[s->n_decoding];
    const struct kv_sim_request *q = &s->trace->request[l->request];
    l->first_us = s->now_us;
    double ms = (s->now_us - (double)q->at_us) / 1e3;
    s->ttft[s->n_ttft++] = (float)ms;
    s->out->in_time += slack_us(s, q) >= 0;
    keep(s, q);
    l->ends_at_step = s->step + q->output_tokens - 1;
    s->n_prefilling--;
    s->n_decoding++;
}

/* One iteration, or many at once while nothing but decoding goes on and nothing else happens. */
static void iterate(struct sim *s)
{
    struct live *head = s->n_prefilling ? &s->live[s->n_decoding] : NULL;
    double us = s->n_decoding ? s->c->decode_base_us + s->n_decoding * s->c->decode_sequence_us : 0;
    int64_t steps = 1;
    if (head) {
        int32_t n = head->prefill_left < s->c->prefill_chunk ? head->prefill_left : s->c->prefill_chunk;
        us += n / s->c->prefill_tokens_per_s * 1e6;
        head->prefill_left -= n;
    } else {
        steps = INT64_MAX;
        for (int32_t i = 0; i < s->n_decoding; i++)
            if (s->live[i].ends_at_step - s->step < steps) steps = s->live[i].ends_at_step - s->step;
        double until = (next_event_us(s) - s->now_us) / us;
        if (until < (double)steps) steps = until < 1 ? 1 : (int64_t)ceil(until);
        if (steps < 1) steps = 1;
    }
    s->now_us += us * (double)steps;
    s->out->busy_seconds += us * (double)steps / 1e6;
    s->step += steps;
    s->out->iterations += (uint64_t)steps;
    for (int32_t i = 0; i < s->n_decoding;)
        if (s->live[i].ends_at_step <= s->step) end(s, i);
        else i++;
    if (!head) return;
    head = &s->live[s->n_decoding];
    if (head->prefill_left > 0) return;
    first_token(s);
    if (s->live[s->n_decoding - 1].ends_at_step <= s->step) end(s, s->n_decoding - 1);
}

/* ---------------------------------------------------------------- the run */

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static struct kv_sim_spread spread(float *v, size_t n)
{
    if (!n) return (struct kv_sim_spread){0};
    qsort(v, n, sizeof *v, by_value);
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += v[i];
    return (struct kv_sim_spread){v[(n - 1) / 2], v[(n - 1) * 9 / 10], v[(size_t)((double)(n - 1) * 0.99)], sum / (double)n};
}

static enum kv_status check(const struct kv_sim_trace *t, const struct kv_sim_config *c, struct kv_error *err)
{
    const struct { const char *name; double value; } positive[] = {
        {"bytes_per_token", (double)c->bytes_per_token}, {"link_bytes_per_s", c->link_bytes_per_s}, {"disk_bytes_per_s", c->disk_bytes_per_s},
        {"prefill_tokens_per_s", c->prefill_tokens_per_s}, {"decode_base_us", c->decode_base_us + c->decode_sequence_us}, {"max_sequences", c->max_sequences},
        {"max_queue", c->max_queue}, {"prefill_chunk", c->prefill_chunk}, {"n_layers", c->n_layers}, {"block_tokens", t->block_tokens}};
    for (size_t i = 0; i < sizeof positive / sizeof *positive; i++)
        if (!(positive[i].value > 0)) return kv_fail(err, KV_BAD_ARGUMENT, positive[i].name, "%s must be above zero", positive[i].name);
    if (c->max_sequences > 1 << 16 || c->max_queue > 1 << 20) return kv_fail(err, KV_BAD_ARGUMENT, "max_sequences", "at most 65536 sequences and 1048576 waiting");
    for (size_t i = 0; i < t->n_requests; i++) {
        const struct kv_sim_request *q = &t->request[i];
        if (q->input_tokens < 1 || q->output_tokens < 1) return kv_fail(err, KV_BAD_ARGUMENT, "trace", "request %zu has no input or no output tokens", i);
        if (i && q->at_us < t->request[i - 1].at_us) return kv_fail(err, KV_BAD_ARGUMENT, "trace", "request %zu came before the one in front of it", i);
    }
    return KV_OK;
}

static enum kv_status make_pool(uint64_t bytes, const struct sim *s, struct kv_pool **out)
{
    uint64_t blocks = bytes / (s->c->bytes_per_token * (uint64_t)s->trace->block_tokens);
    return blocks ? kv_pool_create(blocks, s->trace->n_blocks, s->c->eviction, out) : KV_OK;
}

static enum kv_status prepare(struct sim *s)
{
    const struct kv_sim_config *c = s->c;
    size_t n = s->trace->n_requests + 1, live = (size_t)c->max_sequences;
    enum kv_status st = make_pool(c->host_bytes, s, &s->host);
    if (st == KV_OK) st = make_pool(c->disk_bytes, s, &s->disk);
    if (st == KV_OK) st = kv_credits_create(&c->credits, &s->credits);
    if (st != KV_OK) return st;
    s->queue = calloc((size_t)c->max_queue, sizeof *s->queue);
    s->live = calloc(live + 1, sizeof *s->live);
    s->loads = calloc(live, sizeof *s->loads);
    s->ttft = calloc(n, sizeof *s->ttft);
    s->tpot = calloc(n, sizeof *s->tpot);
    return s->queue && s->live && s->loads && s->ttft && s->tpot ? KV_OK : KV_OUT_OF_MEMORY;
}

enum kv_status kv_sim_run(const struct kv_sim_trace *t, const struct kv_sim_config *c, struct kv_sim_result *out, struct kv_error *err)
{
    *out = (struct kv_sim_result){.requests = t->n_requests};
    enum kv_status st = check(t, c, err);
    if (st != KV_OK) return st;
    struct sim sim = {.trace = t, .c = c, .out = out}, *s = &sim;
    if ((st = prepare(s)) != KV_OK) {
        kv_fail(err, st, "simulate", "no memory for the tiers and queues of the simulation, or no credits");
        goto done;
    }
    for (uint64_t round = 0;; round++) {
        if (c->told && round % 1024 == 0) c->told(c->told_ctx, s->next, t->n_requests);
        finish_loads(s);
        arrive(s);
        admit(s);
        finish_loads(s); /* what had nothing to load */
        if (s->n_decoding + s->n_prefilling) {
            iterate(s);
            continue;
        }
        double at = next_event_us(s);
        if (at == DBL_MAX) break;
        s->now_us = at;
    }
    out->seconds = s->now_us / 1e6;
    out->ttft_ms = spread(s->ttft, s->n_ttft);
    out->tpot_ms = spread(s->tpot, s->n_tpot);
    kv_credits_view(s->credits, &out->credits, NULL, 0, NULL, 0);
    out->coalesced_bytes = out->credits.coalesced_bytes;
done:
    kv_pool_destroy(s->host);
    kv_pool_destroy(s->disk);
    kv_credits_destroy(s->credits);
    free(s->queue);
    free(s->live);
    free(s->loads);
    free(s->ttft);
    free(s->tpot);
    return st;
}
