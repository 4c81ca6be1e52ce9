/* demo_traffic.c — clients take the trace's rows in order, wait until each is due, and send it. */
#include "controller/demo/demo_traffic.h"

#include "controller/demo/demo_prompt.h"
#include "controller/http/events.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* QUICKER: than the trace, so that a tenth of the sessions that allow approximation is enough for a gate in some twenty seconds. */
enum { CLIENTS = 12, QUICKER = 3, LONGEST_PROMPT = 16384, EXACT = 0, APPROXIMATE = 1 };

const char *const kv_demo_tenants[KV_DEMO_TENANTS] = {"acme", "birch", "cedar"};

static const struct row {
    int at_ms;
    const char *tenant, *class, *session;
    enum kv_demo_kind kind;
    int lines, max_tokens, contract, stream;
} trace[] = {
#define KV_REQUEST(at, tenant, class, session, kind, lines, tokens, contract, stream) {at, tenant, class, session, KV_DEMO_##kind, lines, tokens, contract, stream},
#include "controller/demo/demo_trace.def"
#undef KV_REQUEST
};
enum { ROWS = sizeof trace / sizeof *trace };

struct kv_demo_traffic {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    char base[300], model[96], token[KV_DEMO_TENANTS][72];
    bool insecure;
    int slower;
    size_t next;        /* row to be sent, counting on over rounds */
    int64_t due_us;     /* of the row before it */
    _Atomic bool stop;
    _Atomic uint64_t requests, failed;
    pthread_t thread[CLIENTS];
    int n_threads;
};

/* Waits for the next row's time. False when the traffic stops. */
static bool take_row(struct kv_demo_traffic *t, size_t *index)
{
    pthread_mutex_lock(&t->lock);
    *index = t->next++;
    size_t i = *index % ROWS;
    int64_t gap = i ? trace[i].at_ms - trace[i - 1].at_ms : trace[0].at_ms, now = kv_monotonic_us();
    t->due_us += gap * 1000 * t->slower / QUICKER;
    if (t->due_us < now - 1000000) t->due_us = now; /* the server is slower than the trace: do not pile the rest up */
    int64_t due = t->due_us;
    struct timespec until = {due / 1000000, due % 1000000 * 1000};
    while (!t->stop && kv_monotonic_us() < due) pthread_cond_timedwait(&t->wake, &t->lock, &until);
    pthread_mutex_unlock(&t->lock);
    return !t->stop;
}

static json_t *request_json(const struct kv_demo_traffic *t, const struct row *r, uint64_t seed, char *prompt)
{
    if (!kv_demo_prompt(r->kind, r->lines, seed, prompt, LONGEST_PROMPT)) return NULL;
    return json_pack("{s:s, s:s, s:i, s:f, s:I, s:b, s:{s:s, s:s, s:s}}", "model", t->model, "prompt", prompt, "max_tokens", r->max_tokens, "temperature", 0.0, "seed",
                     (json_int_t)(seed & 0xffffffff), "stream", r->stream, "kvasir", "contract", r->contract == APPROXIMATE ? "approximate" : "exact", "class", r->class,
                     "session", r->session);
}

static void *client_main(void *arg)
{
    struct kv_demo_traffic *t = arg;
    struct kv_demo_client *client[KV_DEMO_TENANTS] = {0};
    char *prompt = malloc(LONGEST_PROMPT);
    size_t index;
    for (int i = 0; i < KV_DEMO_TENANTS; i++)
        if ((client[i] = kv_demo_client_create(t->base, t->token[i], t->insecure))) kv_demo_client_watch(client[i], &t->stop);
    while (prompt && take_row(t, &index)) {
        const struct row *r = &trace[index % ROWS];
        int tenant = 0;
        while (tenant < KV_DEMO_TENANTS - 1 && strcmp(kv_demo_tenants[tenant], r->tenant)) tenant++;
        json_t *body = request_json(t, r, index + 1, prompt);
        long status = 0;
        bool ok = false;
        if (client[tenant] && body && r->stream) ok = kv_demo_stream(client[tenant], "/v1/completions", body, &status);
        else if (client[tenant] && body) kv_demo_call(client[tenant], "POST", "/v1/completions", body, 0, &status, NULL), ok = status == 200;
        json_decref(body);
        if (t->stop) break; /* cut short, neither served nor failed */
        t->requests++;
        if (!ok) t->failed++;
    }
    for (int i = 0; i < KV_DEMO_TENANTS; i++) kv_demo_client_free(client[i]);
    free(prompt);
    return NULL;
}

struct kv_demo_traffic *kv_demo_traffic_start(const char *base_url, const char *const tokens[KV_DEMO_TENANTS], const char *model, bool insecure)
{
    struct kv_demo_traffic *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&t->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&t->lock, NULL);
    snprintf(t->base, sizeof t->base, "%s", base_url);
    snprintf(t->model, sizeof t->model, "%s", model);
    for (int i = 0; i < KV_DEMO_TENANTS; i++) snprintf(t->token[i], sizeof t->token[i], "%s", tokens[i]);
    t->insecure = insecure;
    t->slower = 1;
    t->due_us = kv_monotonic_us();
    while (t->n_threads < CLIENTS && !pthread_create(&t->thread[t->n_threads], NULL, client_main, t)) t->n_threads++;
    return t;
}

void kv_demo_traffic_pace(struct kv_demo_traffic *t, int slower)
{
    pthread_mutex_lock(&t->lock);
    t->slower = slower;
    pthread_mutex_unlock(&t->lock);
}

void kv_demo_traffic_stop(struct kv_demo_traffic *t)
{
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; i < t->n_threads; i++) pthread_join(t->thread[i], NULL);
    t->n_threads = 0;
}

void kv_demo_traffic_counts(const struct kv_demo_traffic *t, uint64_t *requests, uint64_t *failed)
{
    *requests = t->requests;
    *failed = t->failed;
}

void kv_demo_traffic_free(struct kv_demo_traffic *t)
{
    if (!t) return;
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
