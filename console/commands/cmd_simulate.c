/* cmd_simulate.c — kvasir simulate: a request trace through one pool, or through tiers, policies and credits on a virtual clock. */
#include "console/commands/offline.h"
#include "console/output.h"
#include "console/progress_line.h"
#include "console/commands/simulate_trace.h"
#include "controller/embedded.h"
#include "controller/policy/policy_host.h"
#include "runtime/service/simulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "console/commands/cli.h"

enum { MAX_CHOICES = 8, MAX_RUNS = 64 };

struct choices { /* one option's values, separated by commas */
    int32_t n;
    char text[MAX_CHOICES][128];
};

struct options {
    const char *file;
    struct kv_trace_options trace;
    struct choices eviction, policy, device, host, disk;
    struct kv_sim_config sim;
    int64_t blocks; /* < 0: no one-pool form */
    double target;  /* 0: no sizing */
};

static const char usage[] =
    "usage: kvasir simulate --trace FILE.jsonl --blocks N|unlimited [--eviction lru,fifo,lfu,value]\n"
    "       kvasir simulate --trace FILE.jsonl [--policy fifo,earliest-deadline,exact-deadline-coalescing,FILE.lua] [--eviction …]\n"
    "              [--device SIZE,…] [--host SIZE,…] [--disk SIZE,…] [--target SHARE] [--deadline-ms N] [--set KEY=VALUE]…\n"
    "       both:  [--block-tokens 512] [--requests N] [--speed X] [--repeat N]\n"
    "       keys:  bytes_per_token layers link_bytes_per_s link_latency_us disk_bytes_per_s disk_latency_us prefill_tokens_per_s decode_base_us\n"
    "              decode_sequence_us max_sequences max_queue prefill_chunk starvation_ms pinned_bytes staging_bytes link_window_bytes read_queue\n";

/* ---------------------------------------------------------------- arguments */

static bool split(const char *text, struct choices *out)
{
    out->n = 0;
    for (const char *at = text; out->n < MAX_CHOICES;) {
        size_t n = strcspn(at, ",");
        if (!n || n >= sizeof out->text[0]) return false;
        memcpy(out->text[out->n], at, n);
        out->text[out->n++][n] = 0;
        if (!at[n]) return true;
        at += n + 1;
    }
    return false;
}

/* "64MiB" or bytes; false when it is neither. */
static bool size_of(const char *text, double *out)
{
    static const struct { const char *suffix; double factor; } units[] = {
        {"", 1}, {"B", 1}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}, {"TiB", 1099511627776.0}};
    char *end;
    *out = strtod(text, &end);
    if (end == text || !(*out >= 0 && *out < 1e18)) return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strcmp(end, units[i].suffix)) return *out *= units[i].factor, *out < 1e18;
    return false;
}

static bool set_key(struct kv_sim_config *c, const char *pair)
{
    struct { const char *name; double *d; uint64_t *u; int32_t *i; } keys[] = {
        {"bytes_per_token", NULL, &c->bytes_per_token, NULL}, {"layers", NULL, NULL, &c->n_layers}, {"link_bytes_per_s", &c->link_bytes_per_s, NULL, NULL},
        {"link_latency_us", &c->link_latency_us, NULL, NULL}, {"disk_bytes_per_s", &c->disk_bytes_per_s, NULL, NULL}, {"disk_latency_us", &c->disk_latency_us, NULL, NULL},
        {"prefill_tokens_per_s", &c->prefill_tokens_per_s, NULL, NULL}, {"decode_base_us", &c->decode_base_us, NULL, NULL},
        {"decode_sequence_us", &c->decode_sequence_us, NULL, NULL}, {"max_sequences", NULL, NULL, &c->max_sequences}, {"max_queue", NULL, NULL, &c->max_queue},
        {"prefill_chunk", NULL, NULL, &c->prefill_chunk}, {"starvation_ms", NULL, NULL, &c->starvation_ms},
        {"pinned_bytes", NULL, &c->credits.total[KV_CREDIT_PINNED], NULL}, {"staging_bytes", NULL, &c->credits.total[KV_CREDIT_STAGING], NULL},
        {"link_window_bytes", NULL, &c->credits.total[KV_CREDIT_LINK], NULL}, {"read_queue", NULL, &c->credits.total[KV_CREDIT_QUEUE], NULL}};
    const char *eq = strchr(pair, '=');
    double v;
    if (!eq || !size_of(eq + 1, &v)) return false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (strlen(keys[i].name) != (size_t)(eq - pair) || strncmp(keys[i].name, pair, (size_t)(eq - pair))) continue;
        if (keys[i].d) *keys[i].d = v;
        else if (keys[i].u) *keys[i].u = (uint64_t)v;
        else if (v > INT32_MAX) return false;
        else *keys[i].i = (int32_t)v;
        return true;
    }
    return false;
}

static bool number(const char *text, double least, double most, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && *out >= least && *out <= most;
}

static bool option(struct options *o, const char *name, const char *value)
{
    double v;
    if (!strcmp(name, "--trace")) return o->file = value, true;
    if (!strcmp(name, "--eviction")) return split(value, &o->eviction);
    if (!strcmp(name, "--policy")) return split(value, &o->policy);
    if (!strcmp(name, "--device")) return split(value, &o->device);
    if (!strcmp(name, "--host")) return split(value, &o->host);
    if (!strcmp(name, "--disk")) return split(value, &o->disk);
    if (!strcmp(name, "--set")) return set_key(&o->sim, value);
    if (!strcmp(name, "--blocks") && !strcmp(value, "unlimited")) return o->blocks = 0, true;
    if (!strcmp(name, "--blocks")) return number(value, 1, 1e9, &v) && (o->blocks = (int64_t)v, true);
    if (!strcmp(name, "--block-tokens")) return number(value, 1, 1 << 20, &v) && (o->trace.block_tokens = (int32_t)v, true);
    if (!strcmp(name, "--requests")) return number(value, 1, 5e7, &v) && (o->trace.limit = (size_t)v, true);
    if (!strcmp(name, "--repeat")) return number(value, 1, 1e6, &v) && (o->trace.repeat = (int32_t)v, true);
    if (!strcmp(name, "--speed")) return number(value, 1e-6, 1e6, &v) && (o->trace.speed = v, true);
    if (!strcmp(name, "--deadline-ms")) return number(value, 1, INT32_MAX, &v) && (o->sim.deadline_ms = (int32_t)v, true);
    if (!strcmp(name, "--target")) return number(value, 1e-9, 1, &v) && (o->target = v, true);
    return false;
}

/* ---------------------------------------------------------------- policies */

/* Shipped ones by file or by their own name, '-' and '_' alike; anything else is a file. */
static bool same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if ((*a == '_' ? '-' : *a) != (*b == '_' ? '-' : *b)) return false;
    return !*a && !*b;
}

static enum kv_status load_policy(const char *name, struct kv_script **out, struct kv_error *err)
{
    for (const struct kv_embedded *e = kv_embedded_table; e->name; e++) {
        if (strncmp(e->name, "policies/", 9) || kv_policy_load(KV_POLICY_ADMISSION, e->data, e->size, out, err) != KV_OK) continue;
        char stem[64];
        snprintf(stem, sizeof stem, "%.*s", (int)strcspn(e->name + 9, "."), e->name + 9);
        if (same_name(name, stem) || same_name(name, kv_policy_name(*out))) return KV_OK;
        kv_policy_free(*out);
    }
    FILE *f = fopen(name, "r");
    char *text = f ? malloc(KV_POLICY_SOURCE_BYTES + 1) : NULL;
    size_t n = text ? fread(text, 1, KV_POLICY_SOURCE_BYTES + 1, f) : 0;
    if (f) fclose(f);
    *out = NULL;
    enum kv_status s = text ? kv_policy_load(KV_POLICY_ADMISSION, text, n, out, err) : kv_fail(err, KV_NOT_FOUND, name, "no admission policy ships as '%s' and no file has that name", name);
    free(text);
    if (s == KV_OK && (s = kv_policy_check(*out, err)) != KV_OK) kv_policy_free(*out), *out = NULL;
    return s;
}

struct asked {
    struct kv_script *script;
    uint64_t faults;
};

static void decide(void *ctx, const struct kv_sim_question *q, struct kv_sim_answer *out)
{
    struct asked *a = ctx;
    struct kv_admission_request r = {.tenant = "", .class = "", .contract = q->request->approximate ? KV_APPROXIMATE : KV_EXACT, .prompt_tokens = q->request->input_tokens,
        .max_tokens = q->request->output_tokens, .slack_ms = q->slack_ms, .estimate_ms = q->estimate_ms, .backend_bytes = q->backend_bytes, .staging_bytes = q->staging_bytes};
    struct kv_admission_credits c = {q->pinned_free, q->staging_free, q->link_free, q->queue_free};
    struct kv_admission_answer answer;
    struct kv_error err;
    a->faults += kv_policy_admission(a->script, &r, &c, &answer, &err) != KV_OK;
    *out = (struct kv_sim_answer){.transfer = answer.action == KV_ADMIT_TRANSFER, .priority = answer.priority};
}

/* ---------------------------------------------------------------- one pool */

static int one_pool(const struct options *o, const struct kv_sim_trace *t, bool json)
{
    json_t *all = json_array();
    for (int32_t i = 0; i < o->eviction.n; i++) {
        enum kv_eviction e;
        struct kv_pool_result r;
        if (!kv_eviction_from_name(o->eviction.text[i], &e)) {
            json_decref(all);
            return fprintf(stderr, "kvasir simulate: no eviction is named '%s'; they are lru, fifo, lfu and value\n", o->eviction.text[i]), KV_EXIT_USAGE;
        }
        if (kv_pool_run(t, (size_t)o->blocks, e, &r) != KV_OK) {
            json_decref(all);
            return fprintf(stderr, "kvasir simulate: no memory for a pool of %lld blocks\n", (long long)o->blocks), KV_EXIT_REFUSED;
        }
        double share = r.blocks ? (double)r.block_hits / (double)r.blocks : 0;
        if (!json) printf("%-6s %12lld blocks: %llu of %llu blocks hit (%.3f %%), %llu evictions\n", o->eviction.text[i], (long long)o->blocks,
                          (unsigned long long)r.block_hits, (unsigned long long)r.blocks, 100 * share, (unsigned long long)r.evictions);
        json_array_append_new(all, json_pack("{s:s,s:I,s:I,s:I,s:f,s:I,s:I,s:I,s:I}", "eviction", o->eviction.text[i], "capacity_blocks", (json_int_t)o->blocks,
            "block_hits", (json_int_t)r.block_hits, "blocks", (json_int_t)r.blocks, "hit_share", share, "requests", (json_int_t)r.requests, "input_tokens", (json_int_t)r.input_tokens,
            "hit_tokens", (json_int_t)r.hit_tokens, "evictions", (json_int_t)r.evictions));
    }
    if (json) kv_output_json(json_array_size(all) == 1 ? json_array_get(all, 0) : all, JSON_INDENT(1)), puts("");
    json_decref(all);
    return KV_EXIT_DONE;
}

/* ---------------------------------------------------------------- the virtual clock */

static json_t *spread_json(const struct kv_sim_spread *s)
{
    return json_pack("{s:f,s:f,s:f,s:f}", "p50", s->p50, "p90", s->p90, "p99", s->p99, "mean", s->mean);
}

#define I(x) (json_int_t)(x)
static json_t *result_json(const struct kv_sim_result *r, const struct kv_sim_config *c, const char *policy, uint64_t faults, double wall_s)
{
    json_t *o = json_pack("{s:b,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "emulated", 1, "policy", policy, "eviction", kv_eviction_name(c->eviction),
        "device_bytes", I(c->device_bytes), "host_bytes", I(c->host_bytes), "disk_bytes", I(c->disk_bytes), "requests", I(r->requests), "finished", I(r->finished),
        "in_time", I(r->in_time), "output_tokens", I(r->output_tokens), "iterations", I(r->iterations), "peak_live", I(r->peak_live));
    json_object_set_new(o, "refused", json_pack("{s:I,s:I,s:I}", "QUEUE_FULL", I(r->refused_queue), "DEADLINE", I(r->refused_deadline), "CAPACITY", I(r->refused_capacity)));
    json_object_set_new(o, "recomputed_because", json_pack("{s:I,s:I,s:I}", "DEADLINE", I(r->fallback_deadline), "CREDIT_PRESSURE", I(r->fallback_credit), "POLICY", I(r->fallback_policy)));
    json_object_set_new(o, "blocks", json_pack("{s:I,s:I,s:I}", "asked", I(r->blocks), "host_hits", I(r->host_hits), "disk_hits", I(r->disk_hits)));
    json_object_set_new(o, "prompt_tokens", json_pack("{s:I,s:I,s:I}", "host", I(r->host_hit_tokens), "disk", I(r->disk_hit_tokens), "computed", I(r->recomputed_tokens)));
    json_object_set_new(o, "bytes", json_pack("{s:I,s:I,s:I,s:I}", "link", I(r->link_bytes), "disk_read", I(r->disk_read_bytes), "disk_write", I(r->disk_write_bytes), "coalesced", I(r->coalesced_bytes)));
    json_object_set_new(o, "ttft_ms", spread_json(&r->ttft_ms));
    json_object_set_new(o, "tpot_ms", spread_json(&r->tpot_ms));
    json_object_set_new(o, "virtual_seconds", json_real(r->seconds));
    json_object_set_new(o, "busy_seconds", json_real(r->busy_seconds));
    json_object_set_new(o, "goodput_tokens_per_s", json_real(r->seconds > 0 ? (double)r->output_tokens / r->seconds : 0));
    json_object_set_new(o, "max_wait_ms", json_real(r->max_wait_ms));
    json_object_set_new(o, "policy_calls", json_integer(I(r->policy_calls)));
    json_object_set_new(o, "policy_faults", json_integer(I(faults)));
    json_object_set_new(o, "wall_seconds", json_real(wall_s));
    return o;
}

static void print_row(const struct kv_sim_result *r, const struct kv_sim_config *c, const char *policy)
{
    const double gib = 1073741824.0, blocks = r->blocks ? (double)r->blocks : 1;
    printf("%-26.26s %-5s %8.4g %8.4g %8.4g %6.2f %6.2f %9.1f %9.1f %7.2f %7.2f %8llu %8llu %8llu %8.1f %8.1f\n", policy, kv_eviction_name(c->eviction), (double)c->device_bytes / gib,
           (double)c->host_bytes / gib, (double)c->disk_bytes / gib, 100 * (double)r->host_hits / blocks, 100 * (double)r->disk_hits / blocks, r->ttft_ms.p50, r->ttft_ms.p99,
           r->tpot_ms.p50, r->tpot_ms.p99, (unsigned long long)r->finished, (unsigned long long)r->in_time,
           (unsigned long long)(r->refused_queue + r->refused_deadline + r->refused_capacity), (double)r->link_bytes / gib, (double)r->disk_read_bytes / gib);
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static enum kv_status run_one(const struct options *o, const struct kv_sim_trace *t, const char *policy, struct kv_sim_config *c, json_t *all, bool json, struct kv_error *err)
{
    struct asked a = {0};
    struct kv_sim_result r;
    enum kv_status s = o->policy.n ? load_policy(policy, &a.script, err) : KV_OK;
    if (s != KV_OK) return s;
    c->decide = a.script ? decide : NULL;
    c->decide_ctx = &a;
    struct kv_progress_line line = {.what = policy ? policy : "simulate", .unit = "requests"};
    c->told = kv_progress_line_told;
    c->told_ctx = &line;
    double began = seconds_now();
    s = kv_sim_run(t, c, &r, err);
    kv_progress_line_end(&line);
    const char *name = a.script ? kv_policy_name(a.script) : "none";
    if (s == KV_OK && !json) print_row(&r, c, name);
    if (s == KV_OK) json_array_append_new(all, result_json(&r, c, name, a.faults, seconds_now() - began));
    kv_policy_free(a.script);
    return s;
}

static bool value_at(const struct choices *c, int32_t i, uint64_t *out)
{
    double v;
    if (!c->n) return true; /* the default stays */
    if (!size_of(c->text[i], &v)) return fprintf(stderr, "kvasir simulate: '%s' is no size such as 64MiB\n", c->text[i]), false;
    *out = (uint64_t)v;
    return true;
}

/* What one pool under LRU needs for the share; host and disk together are such a pool. */
static json_t *advise(const struct options *o, const struct kv_sim_trace *t, bool json)
{
    size_t blocks = 0;
    double best = 0, share = o->target;
    enum kv_status s = kv_pool_size_for(t, share, &blocks, &best);
    double bytes = (double)blocks * t->block_tokens * (double)o->sim.bytes_per_token;
    if (!json && s == KV_OK)
        printf("\n%.3f %% of the blocks hit from %zu blocks on: %.1f GiB of host and disk together at %llu bytes a token (lru).\n"
               "Host should hold what one disk read cannot hide; the rest may be disk.\n", 100 * share, blocks, bytes / 1073741824.0, (unsigned long long)o->sim.bytes_per_token);
    else if (!json) printf("\nNo size reaches %.3f %%: an unlimited pool hits %.3f %% of the blocks.\n", 100 * share, 100 * best);
    return json_pack("{s:f,s:b,s:I,s:f,s:f}", "target", share, "reachable", s == KV_OK, "blocks", I(blocks), "bytes", bytes, "unlimited", best);
}

static int compare(struct options *o, const struct kv_sim_trace *t, bool json)
{
#define AT_LEAST_ONE(c) ((c).n ? (c).n : 1)
    int32_t n[5] = {AT_LEAST_ONE(o->policy), AT_LEAST_ONE(o->eviction), AT_LEAST_ONE(o->device), AT_LEAST_ONE(o->host), AT_LEAST_ONE(o->disk)}, total = 1;
    for (int k = 0; k < 5; k++) total *= n[k];
    if (total > MAX_RUNS) return fprintf(stderr, "kvasir simulate: %d combinations; at most %d run side by side\n", total, MAX_RUNS), KV_EXIT_USAGE;
    if (!json) printf("emulated: every rate is an input, nothing is measured; sizes in GiB, hits in %% of blocks, times in ms\n%-26s %-5s %8s %8s %8s %6s %6s %9s %9s %7s %7s %8s %8s %8s %8s %8s\n", "policy", "evict",
                      "device", "host", "disk", "host%", "disk%", "ttft50", "ttft99", "tpot50", "tpot99", "finished", "in time", "refused", "link", "diskrd");
    json_t *runs = json_array();
    struct kv_error err = {0};
    enum kv_status s = KV_OK;
    for (int32_t i = 0; i < total && s == KV_OK; i++) {
        struct kv_sim_config c = o->sim;
        int32_t at = i, pick[5];
        for (int k = 4; k >= 0; at /= n[k--]) pick[k] = at % n[k];
        if (!value_at(&o->device, pick[2], &c.device_bytes) || !value_at(&o->host, pick[3], &c.host_bytes) || !value_at(&o->disk, pick[4], &c.disk_bytes)) break;
        if (!kv_eviction_from_name(o->eviction.text[pick[1]], &c.eviction)) s = kv_fail(&err, KV_BAD_ARGUMENT, "--eviction", "no eviction is named '%s'; they are lru, fifo, lfu and value", o->eviction.text[pick[1]]);
        else s = run_one(o, t, o->policy.n ? o->policy.text[pick[0]] : NULL, &c, runs, json, &err);
    }
    if (s != KV_OK) kv_offline_complain("simulate", &err);
    bool done = s == KV_OK && (int32_t)json_array_size(runs) == total;
    json_t *sizing = done && o->target > 0 ? advise(o, t, json) : NULL;
    json_t *all = json_pack("{s:b,s:o}", "emulated", 1, "runs", runs);
    if (sizing) json_object_set_new(all, "sizing", sizing);
    if (json && done) kv_output_json(all, JSON_INDENT(1)), puts("");
    json_decref(all);
    return done ? KV_EXIT_DONE : s != KV_OK ? KV_EXIT_REFUSED : KV_EXIT_USAGE;
}
#undef I

int kv_cmd_simulate(int argc, char **argv, const struct kv_cli *cli)
{
    static struct options o;
    o = (struct options){.blocks = -1, .trace = {.block_tokens = 512, .speed = 1, .repeat = 1}};
    kv_sim_config_default(&o.sim);
    for (int i = 1; i < argc; i += 2)
        if (i + 1 >= argc || !option(&o, argv[i], argv[i + 1]))
            return fprintf(stderr, "kvasir simulate: '%s%s%s' is not understood\n%s", argv[i], i + 1 < argc ? " " : "", i + 1 < argc ? argv[i + 1] : "", usage), KV_EXIT_USAGE;
    if (!o.file) return fprintf(stderr, "%s", usage), KV_EXIT_USAGE;
    if (!o.eviction.n) split("lru", &o.eviction);
    struct kv_sim_trace t;
    struct kv_error err = {0};
    int status = KV_EXIT_REFUSED;
    if (kv_trace_read(o.file, &o.trace, &t, &err) != KV_OK) kv_offline_complain("simulate", &err);
    else status = o.blocks >= 0 ? one_pool(&o, &t, cli->json) : compare(&o, &t, cli->json);
    kv_trace_free(&t);
    return status;
}
