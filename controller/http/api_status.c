/* api_status.c — what is going on now: status, tiers, layers, pipelines. */
#include "controller/flights.h"
#include "controller/http/api.h"
#include "controller/extent_client.h"

#include "runtime/residency/tier.h"
#include "runtime/selection/selector.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What code asks of a tier before it puts rows there or takes them. */
static json_t *capability_json(const struct kv_tier_capability *c)
{
    if (!c) return json_null();
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:b, s:b, s:b, s:b, s:b}", "address_space", c->address_space, "codecs", c->codecs, "layouts", c->layouts, "persistence",
                     c->persistence, "trust", c->trust, "checksum", c->checksum, "alignment_bytes", (int)c->alignment_bytes, "kernel_readable", (int)c->kernel_readable, "dma_source",
                     (int)c->dma_source, "dma_destination", (int)c->dma_destination, "partial_attention", (int)c->partial_attention, "visible_on_write", (int)c->visible_on_write);
}

static json_t *tier_json(const struct kv_tier_stats *t)
{
    json_t *o = json_pack("{s:s, s:b, s:I, s:I, s:I, s:I}", "name", t->name, "emulated", (int)t->emulated, "capacity_bytes", (json_int_t)t->capacity_bytes, "used_bytes",
                          (json_int_t)t->used_bytes, "persistent_bytes", (json_int_t)t->persistent_bytes, "staging_bytes", (json_int_t)t->staging_bytes);
    json_t *more = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "pinned_bytes", (json_int_t)t->pinned_bytes, "scratch_bytes", (json_int_t)t->scratch_bytes, "hits",
                             (json_int_t)t->hits, "misses", (json_int_t)t->misses, "bytes_in", (json_int_t)t->bytes_in, "bytes_out", (json_int_t)t->bytes_out,
                             "transfers_in_flight", (json_int_t)t->transfers_in_flight, "failures", (json_int_t)t->failures);
    if (t->breaker)
        json_object_update_new(more, json_pack("{s:I, s:I, s:I, s:s}", "objects", (json_int_t)t->objects, "skipped", (json_int_t)t->skipped, "refused", (json_int_t)t->refused,
                                               "breaker", t->breaker));
    json_object_set_new(more, "capability", capability_json(t->capability));
    json_object_set_new(more, "huge_pages", json_boolean(t->huge_pages));
    json_object_set_new(more, "last_failure", t->last_failure_us ? json_pack("{s:s, s:o}", "reason", kv_status_name(t->last_failure), "at", kv_time_json(t->last_failure_us)) : json_null());
    json_object_update(o, more);
    json_decref(more);
    return o;
}

static json_t *tiers(const struct kv_engine_stats *s)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < s->n_tiers; i++) json_array_append_new(list, tier_json(&s->tier[i]));
    return list;
}

static json_t *turns(const struct kv_turn_stats *s)
{
    json_t *o = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i}", "sessions", (json_int_t)s->sessions, "saves", (json_int_t)s->saves, "restores", (json_int_t)s->restores,
                          "overlapped", (json_int_t)s->overlapped, "recomputes", (json_int_t)s->recomputes, "failures", (json_int_t)s->failures, "restored_tokens",
                          (json_int_t)s->restored_tokens, "restored_bytes", (json_int_t)s->restored_bytes, "waiting", (int)s->waiting);
    json_object_set_new(o, "prefetches", json_integer((json_int_t)s->prefetches));
    json_object_set_new(o, "prefetched_bytes", json_integer((json_int_t)s->prefetched_bytes));
    json_object_set_new(o, "restore_bytes_per_s", kv_real_json(s->restore_bytes_per_second));
    json_object_set_new(o, "restore_wait_ms", kv_real_json(s->restore_wait_us / 1e3));
    return o;
}

static json_t *layers(struct kv_app *app)
{
    enum { MOST = 256 };
    struct kv_layer_timing *t = calloc(MOST, sizeof *t);
    json_t *list = json_array();
    int32_t n = t ? kv_engine_layer_timings(app->engine, t, MOST) : 0;
    for (int32_t i = 0; i < n && i < MOST; i++)
        json_array_append_new(list, json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "layer", (int)i, "fetch_us", t[i].fetch_us, "compute_us", t[i].compute_us,
                                              "stall_us", t[i].stall_us, "predicted_stall_us", t[i].predicted_stall_us, "start_us", t[i].start_us, "predicted_start_us",
                                              t[i].predicted_start_us, "end_us", t[i].end_us));
    free(t);
    return list;
}

static json_t *live(const struct kv_status_view *v)
{
    const struct kv_engine_stats *e = &v->engine;
    json_t *o = json_pack("{s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o}", "active", (int)e->active, "queued", (int)e->queued, "recomputing", (int)e->recomputing, "tokens_per_s",
                          kv_real_json(v->tokens_per_s), "tpot_p50_ms", kv_real_json(v->tpot_p50_ms), "tpot_p99_ms", kv_real_json(v->tpot_p99_ms), "ttft_p50_ms",
                          kv_real_json(v->ttft_p50_ms), "stall_ms", kv_real_json(v->stall_ms));
    json_t *counts = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "requests", (json_int_t)e->requests, "published_tokens", (json_int_t)e->published_tokens,
                               "exact_tokens", (json_int_t)e->exact_tokens, "approximate_tokens", (json_int_t)e->approximate_tokens, "exact_mismatches",
                               (json_int_t)e->exact_mismatches, "illegal_fallbacks", (json_int_t)e->illegal_fallbacks, "units", (json_int_t)v->units, "units_sampled",
                               (json_int_t)e->units_sampled, "units_dropped", (json_int_t)e->units_dropped, "rejected", (json_int_t)e->rejected);
    json_object_update(o, counts);
    json_decref(counts);
    json_object_set_new(o, "reused_tokens", json_integer((json_int_t)e->reused_tokens));
    json_object_set_new(o, "fallbacks", json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "full", (json_int_t)e->full_fallbacks, "widened", (json_int_t)e->widened, "index_missed",
                                                  (json_int_t)e->index_missed, "index_stale", (json_int_t)e->index_stale, "budget_exceeded", (json_int_t)e->budget_exceeded, "not_finite",
                                                  (json_int_t)e->not_finite));
    json_object_set_new(o, "omitted_mass_mean", kv_real_json(v->omitted_mass_mean));
    json_object_set_new(o, "omitted_mass_upper", kv_real_json(v->omitted_mass_upper));
    return o;
}

static json_t *release(const struct kv_status_view *v)
{
    char id[24];
    kv_rollout_id_format(v->rollout, id);
    return json_pack("{s:s, s:f, s:I, s:b, s:o, s:s, s:s, s:s, s:b}", "stage", kv_stage_name(v->stage), "fraction", v->fraction, "epoch", (json_int_t)v->epoch, "latched",
                     (int)v->latched, "rollout", v->rollout ? json_string(id) : json_null(), "name", v->name, "pipeline", *v->pipeline ? v->pipeline : "resident", "contract",
                     v->contract == KV_APPROXIMATE ? "approximate" : "exact", "frozen", (int)v->frozen);
}

static json_t *policies(struct kv_app *app)
{
    struct kv_policy_view view[KV_POLICY_KINDS];
    json_t *o = json_object();
    kv_control_policies(app->control, view);
    for (int i = 0; i < KV_POLICY_KINDS; i++) {
        view[i].version[12] = 0;
        json_object_set_new(o, kv_policy_kind_name(view[i].kind), json_pack("{s:s, s:s, s:I}", "name", view[i].name, "version", view[i].version, "faults", (json_int_t)view[i].faults));
    }
    return o;
}

static json_t *machine(struct kv_app *app)
{
    uint8_t id[32];
    kv_numerics_id(id);
    int threads = (int)app->config->threads;
    if (!threads) threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
#ifdef KV_CUDA
    const char *cuda = "built";
#else
    const char *cuda = "absent";
#endif
    return json_pack("{s:s, s:i, s:o, s:s}", "isa", kv_engine_isa(app->engine), "threads", threads, "numerics_id", kv_api_hex_json(id, 32), "cuda", cuda);
}

static json_t *model(struct kv_app *app)
{
    const struct kv_model_info *m = kv_model_info(app->model);
    return json_pack("{s:o, s:o, s:s, s:i, s:i, s:o}", "name", kv_text_json(m->name, strlen(m->name)), "artifact", kv_api_hex_json(m->artifact, 32), "architecture",
                     m->architecture, "context_length", (int)m->context_length, "layers", (int)m->n_layers, "file", kv_text_json(m->file, strlen(m->file)));
}

json_t *kv_api_status_json(struct kv_app *app)
{
    struct kv_status_view *v = calloc(1, sizeof *v);
    if (!v) return NULL;
    kv_control_status(app->control, v);
    json_t *o = json_pack("{s:s, s:o, s:I, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "version", KVASIR_VERSION, "now", kv_time_json(kv_realtime_us()), "uptime_s",
                          (json_int_t)((kv_monotonic_us() - app->started_us) / 1000000), "listen", kv_http_address(app->http), "model", model(app), "machine", machine(app),
                          "release", release(v), "live", live(v), "tiers", tiers(&v->engine), "layers", layers(app), "policies", policies(app));
    const struct kv_store_health *h = &v->store;
    json_object_set_new(o, "store", json_pack("{s:b, s:s, s:I, s:I, s:I, s:I, s:I}", "ok", (int)h->ok, "reason", kv_status_name(h->reason), "receipts", (json_int_t)h->receipts,
                                              "queued", (json_int_t)h->queued, "dropped", (json_int_t)h->refused, "bytes", (json_int_t)h->bytes, "last_commit_us",
                                              (json_int_t)h->last_commit_us));
    json_t *progress = kv_progress_json(&app->progress, app->engine);
    json_object_set(o, "progress", json_object_get(progress, "tasks"));
    json_decref(progress);
    json_object_set_new(o, "mode", json_string(app->config->auth_mode));
    json_object_set_new(o, "demo", json_boolean(app->demo));
    json_object_set_new(o, "faults", json_pack("{s:b, s:o}", "enabled", app->fault_lab != NULL, "armed", kv_api_armed_faults_json(app)));
    json_object_set_new(o, "extents", kv_api_extents_json(app));
    json_object_set_new(o, "draining", json_boolean(app->draining));
    free(v);
    return o;
}

json_t *kv_api_tiers_json(struct kv_app *app)
{
    struct kv_engine_stats s;
    kv_engine_stats(app->engine, &s);
    json_t *list = tiers(&s), *remote = app->remote ? json_array_get(list, (size_t)s.n_tiers - 1) : NULL;
    if (remote) {
        char why[KV_EXTENT_WHY_CHARS];
        kv_extent_client_why(app->remote, why);
        json_object_set_new(remote, "why", *why ? json_string(why) : json_null());
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tiers", list, "layers", layers(app), "sessions", turns(&s.turns), "extents", kv_api_extents_json(app));
}

static json_t *param_json(const struct kv_param_spec *p)
{
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:s, s:s, s:s}", "name", p->name, "type", p->type, "default", kv_real_json(p->def), "min", kv_real_json(p->min), "max",
                     kv_real_json(p->max), "unit", p->unit ? p->unit : "", "source", p->source ? p->source : "", "help", p->help ? p->help : "");
}

json_t *kv_api_pipelines_json(const struct kv_app *app)
{
    json_t *list = json_array();
    for (size_t i = 0; i < kv_pipeline_count(); i++) {
        const struct kv_pipeline *p = kv_pipeline_at(i);
        json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s?, s:b, s:s}", "name", p->name, "title", p->title, "section", p->section, "exactness",
                              p->exactness == KV_APPROXIMATE ? "approximate" : "exact", "placement", p->placement, "selector", p->selector, "built", (int)p->built,
                              "provenance", p->provenance);
        json_t *contract = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "support", p->support, "representation", p->representation, "tier", p->tier, "unit",
                                     p->unit, "index", p->index, "update_phase", p->update_phase, "compute_site", p->compute_site, "fallback", p->fallback, "workload",
                                     p->workload);
        json_t *params = json_array();
        for (int32_t k = 0; k < p->n_params; k++) json_array_append_new(params, param_json(&p->params[k]));
        json_object_update(o, contract);
        json_decref(contract);
        const struct kv_selector_method *m = kv_selector_find(p->selector);
        json_object_set_new(o, "omitted_mass_estimate", json_string(m && m->online_estimate ? m->online_estimate : "none"));
        json_object_set_new(o, "declared_byte_cost", m ? kv_real_json(m->byte_cost) : json_null());
        json_object_set_new(o, "byte_cost", m ? kv_real_json(m->byte_cost * app->config->break_even) : json_null());
        json_object_set_new(o, "params", params);
        json_array_append_new(list, o);
    }
    return json_pack("{s:o}", "pipelines", list);
}

void kv_api_post_status(struct kv_app *app)
{
    if (app->ready && kv_events_readers(app->events)) kv_events_post(app->events, "status", kv_api_status_json(app));
    kv_flights_keep(kv_store_dir(app->store), app->engine, NULL); /* what cannot be written is missing where its receipt is shown */
}
