/* main.c — kvasird: reads its configuration, starts everything in order, waits for signals, stops everything in reverse. */
#include "controller/flights.h"
#include "controller/http/api.h"
#include "controller/config_paths.h"
#include "controller/demo/demo.h"
#include "controller/release/drill.h"
#include "controller/extent_client.h"
#include "controller/extents.h"
#include "controller/fault_lab.h"
#include "controller/interruptions.h"
#include "controller/store/store_pauses.h"
#include "controller/tier_key.h"
#include "controller/policy/policy_process.h"
#include "controller/release/quality.h"
#include "controller/http/refusals.h"
#include "controller/http/trace_record.h"
#include "kernels/cuda/device.h"

#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

struct daemon {
    struct kv_app app;
    struct kv_config config;
    char model[512], state[512];
    int argc;
    char **argv;
    pthread_t status_thread, hearing, main;
    bool status_runs, hears;
    sigset_t urgent; /* signals the hearing thread takes */
    _Atomic bool stopping, ending, deaf;
    struct kv_demo *demo;
};

static int report(const struct kv_error *e)
{
    bool named = !*e->where || strstr(e->message, e->where);
    fprintf(stderr, "kvasird: %s: %s%s%s%s%s%s\n", kv_status_name(e->status), e->message, named ? "" : " (", named ? "" : e->where, named ? "" : ")",
            *e->hint ? "; " : "", e->hint);
    return EXIT_FAILURE;
}

/* ---------------------------------------------------------------- start */

/* The remote tier that blocks leave for, and the store for other daemons' ones. */
static enum kv_status start_extents(struct daemon *d, struct kv_error *err)
{
    const struct kv_config *c = &d->config;
    char path[600];
    snprintf(path, sizeof path, "%s%s", *c->extents_path ? c->extents_path : d->state, *c->extents_path ? "" : "/extents");
    struct kv_extents_config serve = {.path = path, .capacity_bytes = c->extents_capacity, .reserve_bytes = c->extents_reserve, .object_bytes = c->extents_object};
    enum kv_status st = c->extents_serve ? kv_extents_open(&serve, &d->app.extents, err) : KV_OK;
    if (st || !*c->remote_url) return st;
    if (d->app.fault_lab) kv_faults_offer_remote(kv_fault_lab_faults(d->app.fault_lab));
    if (!*c->disk_path) {
        kv_fail(err, KV_BAD_ARGUMENT, "tiers.remote.url", "the remote tier takes what leaves the disk tier, and tiers.disk.path is empty");
        kv_hint(err, "set tiers.disk.path");
        return KV_BAD_ARGUMENT;
    }
    if (!strncmp(c->remote_url, "http://", 7) && *c->remote_token)
        kv_events_log(KV_LOG_WARN, "tiers.remote.url is http: whoever sees the network between reads the token; blocks are sealed either way");
    return kv_extent_client_create(&(struct kv_extent_client_config){c->remote_url, c->remote_token, c->remote_ca, (int32_t)c->remote_timeout}, &d->app.remote, err);
}

static enum kv_status start_engine(struct daemon *d, struct kv_error *err)
{
    const struct kv_config *c = &d->config;
    struct kv_engine_config e;
    uint64_t requests = 0;
    enum kv_status known = kv_store_last_request(d->app.store, &requests, err);
    if (known) return known;
    kv_engine_config_default(&e);
    e.n_threads = (int32_t)c->threads;
    e.max_sequences = (int32_t)c->max_sequences;
    e.max_queue = (int32_t)c->max_queue;
    e.starvation_us = c->starvation_ms * 1000;
    e.max_pause_us = c->max_pause_s * 1000000;
    e.context_length = (int32_t)c->context_length;
    e.host_bytes = c->host_capacity;
    e.device_bytes = c->device_capacity;
    e.link_bytes_per_second = c->link_bytes_per_second;
    e.link_latency_us = c->link_latency_us;
    e.iteration_us = (int32_t)c->iteration_us;
    e.prefill_chunk = (int32_t)c->prefill_chunk;
    e.index_share = c->index_share;
    e.break_even = c->break_even;
    e.shadow_fraction = c->shadow_fraction;
    e.shadow_queue = (int32_t)c->shadow_queue;
    e.sink = kv_store_sink(d->app.store);
    e.last_request = requests;
    e.prefix_reuse = c->prefix_reuse;
    e.disk_path = c->disk_path;
    e.disk_bytes = c->disk_capacity;
    e.disk_reserve_bytes = c->disk_reserve;
    e.remote = d->app.remote ? kv_extent_client_io(d->app.remote) : NULL;
    e.remote_bytes = (uint64_t)c->remote_bytes;
    e.remote_timeout_ms = (int32_t)c->remote_timeout;
    e.remote_pause_ms = (int32_t)c->remote_pause;
    e.prefetch_bytes = (uint64_t)c->prefetch_bytes;
    e.eviction = c->disk_eviction;
    e.faults = d->app.fault_lab ? kv_fault_lab_faults(d->app.fault_lab) : NULL;
    enum kv_status st = *c->disk_path ? kv_tier_key_load(d->state, e.disk_key, err) : KV_OK;
    if (st) return st;
    return kv_engine_create(d->app.model, &e, &d->app.engine, err);
}

static enum kv_status read_policy(const char *path, char **out, struct kv_error *err)
{
    FILE *f = *path ? fopen(path, "rb") : NULL;
    if (!*path) return KV_OK;
    if (!f) return kv_fail(err, KV_FILE_UNREADABLE, path, "the policy %s cannot be read: %s", path, strerror(errno));
    *out = calloc(1, KV_POLICY_SOURCE_BYTES + 2);
    size_t n = *out ? fread(*out, 1, KV_POLICY_SOURCE_BYTES + 1, f) : 0;
    fclose(f);
    return n <= KV_POLICY_SOURCE_BYTES ? KV_OK : kv_fail(err, KV_BODY_TOO_LARGE, path, "the policy %s exceeds %d bytes", path, KV_POLICY_SOURCE_BYTES);
}

static bool two_users(void *ctx)
{
    return kv_http_auth_two_users(kv_http_get_auth(((struct kv_app *)ctx)->http));
}

static enum kv_status start_control(struct daemon *d, struct kv_error *err)
{
    const char *const paths[KV_POLICY_KINDS] = {d->config.policy_admission, d->config.policy_fallback, d->config.policy_release};
    char *source[KV_POLICY_KINDS] = {0};
    struct kv_control_config c = {.on_event = kv_api_on_control, .event_ctx = &d->app, .check_program = "/proc/self/exe", .model_path = d->model, .two_users = two_users, .users_ctx = &d->app,
                                  .faults = d->app.fault_lab ? kv_fault_lab_faults(d->app.fault_lab) : NULL};
    c.break_even = d->config.break_even;
    c.drills_before_full = d->config.drills_before_full;
    memcpy(c.model_artifact, kv_model_info(d->app.model)->artifact, 32);
    kv_numerics_id(c.numerics_id);
    enum kv_status st = KV_OK;
    for (int i = 0; i < KV_POLICY_KINDS && !st; i++) {
        st = read_policy(paths[i], &source[i], err);
        c.policy_source[i] = source[i];
    }
    if (!st) st = kv_control_create(kv_release_port_of(d->app.engine), d->app.store, &c, &d->app.control, err);
    for (int i = 0; i < KV_POLICY_KINDS; i++) free(source[i]);
    return st;
}

static enum kv_status start_quality(struct daemon *d, struct kv_error *err)
{
    const struct kv_config *c = &d->config;
    if (c->quality_share <= 0) return KV_OK;
    return kv_quality_create(&(struct kv_quality_config){d->app.control, d->app.engine, d->app.model, c->quality_prompts, (int32_t)c->context_length, c->quality_share}, &d->app.quality, err);
}

enum { RETAIN_EVERY = 20 }; /* half seconds: 2000 receipts a second can be sealed */

static void retain(struct kv_app *app)
{
    double days = app->config->retention_days;
    int64_t now = kv_realtime_us();
    uint64_t removed = 0;
    struct kv_error err = {0};
    if (days <= 0) return;
    if (kv_store_retain(app->store, now - (int64_t)(days * 86400e6), now, &removed, &err)) kv_events_log(KV_LOG_WARN, "old receipts were not sealed: %s: %s", kv_status_name(err.status), err.message);
    else if (removed) kv_events_log(KV_LOG_INFO, "%llu receipts older than %g days were sealed and removed", (unsigned long long)removed, days);
}

static void *status_main(void *arg)
{
    struct daemon *d = arg;
    const struct timespec half_second = {0, 500000000};
    for (int i = 0; !d->stopping; i++) {
        if (i % RETAIN_EVERY == 0) retain(&d->app);
        kv_api_post_status(&d->app);
        kv_interruptions_forget_ended(&d->app);
        kv_interruptions_expire(&d->app);
        kv_api_audit_refused(&d->app, false);
        nanosleep(&half_second, NULL);
    }
    return NULL;
}

static void loading(void *task, const char *what, double fraction)
{
    (void)what;
    kv_job_at(task, (uint64_t)(fraction * 1000), 1000);
}

static enum kv_status open_model(struct daemon *d, struct kv_error *err)
{
    const char *base = strrchr(d->model, '/');
    struct kv_job *task = kv_job_begin(&d->app.progress, KV_JOB_LOAD, base ? base + 1 : d->model, "permille");
    enum kv_status st = kv_model_open(d->model, &(struct kv_model_options){.progress = loading, .progress_ctx = task}, &d->app.model, err);
    kv_job_end(task);
    return st;
}

/* The port is taken first: a taken one is told at once, and /healthz answers while the model loads. */
static enum kv_status start(struct daemon *d, struct kv_error *err)
{
    struct kv_app *app = &d->app;
    struct kv_http_options http = {.config = &d->config, .routes = kv_api_routes, .app = app, .ready = kv_api_ready, .answering = kv_api_audit, .log = kv_api_log};
    app->config = &d->config;
    app->started_us = kv_monotonic_us();
    app->default_max_tokens = (int)d->config.default_max_tokens;
    app->max_inferring = (int)(d->config.max_connections - (d->config.max_connections + 15) / 16);
    app->demo = d->config.demo;
    app->events = kv_events_create((int)d->config.max_event_streams);
    app->sessions = kv_sessions_create();
    app->interruptions = kv_interruptions_create();
    app->refusals = kv_refusals_create();
    bool lab = !d->config.faults_enabled || !kv_fault_lab_create(&app->fault_lab);
    if (!app->events || !app->sessions || !app->interruptions || !app->refusals || !lab) return kv_fail(err, KV_OUT_OF_MEMORY, "kvasird", "no memory to start");
    kv_events_log_level(kv_events_level_from_name(d->config.log_level));
    kv_events_log_to(app->events);
    enum kv_status st = kv_config_model_path(&d->config, d->model, sizeof d->model, err);
    if (!st) st = kv_config_state_dir(&d->config, d->state, sizeof d->state, err);
    if (!st) st = kv_config_make_parents(d->state, err);
    if (!st) st = kv_config_check_folders(&d->config, d->state, err);
    if (!st) st = kv_http_create(&http, &app->http, err);
    if (!st) st = kv_notify_create(&(struct kv_notify_config){.webhook = d->config.notify_webhook, .secret_file = d->config.notify_secret, .program = d->config.notify_program}, &app->notify, err);
    if (!st) st = kv_store_open(&(struct kv_store_config){.dir = d->state, .key_file = *d->config.receipts_key ? d->config.receipts_key : NULL, .on_row = kv_api_on_row, .on_row_ctx = app}, &app->store, err);
    if (!st) st = kv_api_issue_tokens(app, err);
    if (!st && *d->config.trace_path) st = kv_trace_record_open(d->config.trace_path, &app->trace, err);
    if (!st) st = open_model(d, err);
    if (!st) st = start_extents(d, err);
    if (!st) st = start_engine(d, err);
    int32_t reopened = 0;
    if (!st) st = kv_store_reopen_resumed(app->store, &reopened, err);
    if (!st && reopened) kv_events_log(KV_LOG_INFO, "%d sessions are paused again: the last process ended before their continuations did", (int)reopened);
    if (!st) st = start_control(d, err);
    if (!st) st = start_quality(d, err);
    if (st) return st;
    app->ready = true;
    const char *key, *secret;
    for (int at = 0; (secret = kv_config_open_secret(&d->config, &at, &key));) kv_events_log(KV_LOG_WARN, "every user of this machine may read %s, %s: chmod o-rwx %s", key, secret, secret);
    d->status_runs = !pthread_create(&d->status_thread, NULL, status_main, d);
    kv_events_log(KV_LOG_INFO, "kvasird %s serves %s on %s://%s/, state in %s", KVASIR_VERSION, kv_model_info(app->model)->name, *d->config.tls_key ? "https" : "http",
           kv_http_address(app->http), d->state);
    return KV_OK;
}

/* ---------------------------------------------------------------- stop */

/* Whoever stops a daemon under traffic may still have to roll it back: routes and signals are heard until nothing is live. */
static void stop(struct daemon *d)
{
    struct kv_app *app = &d->app;
    app->draining = true;
    d->stopping = true;
    if (d->demo) kv_demo_stop(d->demo);
    kv_quality_destroy(app->quality);
    if (app->ready) {
        kv_events_log(KV_LOG_INFO, "draining: live requests have %lld ms to finish", (long long)d->config.drain_timeout_ms);
        kv_engine_drain(app->engine, (int32_t)d->config.drain_timeout_ms);
        /* Answers that were published are still on their way to their readers. */
        const struct timespec moment = {0, 5000000};
        for (int i = 0; i < 400 && app->inferring > 0; i++) nanosleep(&moment, NULL);
    }
    if (d->hears) {
        d->deaf = true;
        pthread_kill(d->hearing, SIGUSR1);
        pthread_join(d->hearing, NULL);
    }
    if (d->status_runs) pthread_join(d->status_thread, NULL); /* it writes to the state folder, whose disk may hang */
    kv_http_stop(app->http); /* no request reaches the control thread any more; it still asks who the users are */
    if (app->engine) kv_flights_keep(kv_store_dir(app->store), app->engine, NULL);
    if (app->engine) kv_interruptions_forget_ended(app);
    if (app->control) kv_control_destroy(app->control);
    kv_http_destroy(app->http);
    if (app->engine) kv_engine_destroy(app->engine);
    kv_extent_client_destroy(app->remote);
    kv_extents_close(app->extents);
    if (app->store) kv_api_audit_refused(app, true);
    if (app->store) kv_store_close(app->store);
    kv_notify_free(app->notify);
    if (app->model) kv_model_close(app->model);
    kv_events_log_to(NULL);
    kv_events_free(app->events);
    kv_sessions_free(app->sessions);
    kv_interruptions_free(app->interruptions);
    kv_refusals_free(app->refusals);
    kv_trace_record_close(app->trace);
    kv_fault_lab_destroy(app->fault_lab);
}

/* ---------------------------------------------------------------- signals */

static void reload(struct daemon *d)
{
    struct kv_config fresh;
    struct kv_error err = {0};
    enum kv_status st = kv_config_load(&fresh, d->argc, d->argv, environ, &err);
    if (!st && d->config.demo) st = kv_demo_configure(&fresh, &err);
    if (!st) st = kv_http_auth_reload(kv_http_get_auth(d->app.http), &fresh, &err);
    if (st) {
        kv_events_log(KV_LOG_ERROR, "the configuration was not reloaded: %s: %s", kv_status_name(err.status), err.message);
        kv_config_free(&fresh);
        return;
    }
    for (int i = 0; i < KV_SETTINGS; i++)
        if (kv_config_differs(&d->config, &fresh, (enum kv_setting_id)i) && !kv_config_reloadable((enum kv_setting_id)i))
            kv_events_log(KV_LOG_WARN, "%s changed and needs a restart", kv_config_key((enum kv_setting_id)i));
    const char *const paths[KV_POLICY_KINDS] = {fresh.policy_admission, fresh.policy_fallback, fresh.policy_release};
    for (int i = 0; i < KV_POLICY_KINDS; i++) {
        char *source = NULL;
        st = read_policy(paths[i], &source, &err);
        if (!st && source) st = kv_control_activate(d->app.control, (enum kv_policy_kind)i, source, strlen(source), "operator:SIGHUP", &err);
        if (st) kv_events_log(KV_LOG_ERROR, "the %s policy was not reloaded: %s: %s", kv_policy_kind_name((enum kv_policy_kind)i), kv_status_name(err.status), err.message);
        free(source);
    }
    d->app.default_max_tokens = (int)fresh.default_max_tokens;
    d->config.drain_timeout_ms = fresh.drain_timeout_ms;
    kv_control_set_drills_before_full(d->app.control, fresh.drills_before_full);
    kv_events_log_level(kv_events_level_from_name(fresh.log_level));
    kv_events_log(KV_LOG_INFO, "the configuration was reloaded");
    kv_config_free(&fresh);
}

static void force_baseline(struct daemon *d)
{
    struct kv_rollback_answer a;
    struct kv_error err = {0};
    if (kv_control_rollback(d->app.control, 0, "SIGUSR1", "operator:SIGUSR1", &a, &err)) kv_events_log(KV_LOG_ERROR, "SIGUSR1: %s: %s", kv_status_name(err.status), err.message);
    else kv_events_log(KV_LOG_WARN, "SIGUSR1: all traffic is on the exact baseline, fenced after %lld us, %s, %d sequences recompute", (long long)a.fence_us, a.durable ? "durable" : "not durable",
                (int)a.recomputing);
}

static void block_signals(struct daemon *d)
{
    sigset_t all;
    sigemptyset(&d->urgent);
    const int urgent[] = {SIGTERM, SIGINT, SIGUSR1};
    for (size_t i = 0; i < sizeof urgent / sizeof *urgent; i++) sigaddset(&d->urgent, urgent[i]);
    all = d->urgent;
    sigaddset(&all, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &all, NULL); /* before any thread starts: all inherit it */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file-size limit is a full disk, not an end */
}

/* A thread of its own: a rollback waits neither for a reload nor for a drain. */
static void *hear(void *arg)
{
    struct daemon *d = arg;
    for (;;) {
        int sig = 0;
        if (sigwait(&d->urgent, &sig)) continue;
        if (d->deaf) return NULL;
        if (sig == SIGUSR1) {
            force_baseline(d);
        } else if (!d->ending) {
            d->ending = true;
            pthread_kill(d->main, SIGHUP);
        } else {
            kv_events_log(KV_LOG_WARN, "told to stop once more: live requests are cut off");
            kv_engine_drain(d->app.engine, 0);
        }
    }
}

static enum kv_status start_hearing(struct daemon *d, struct kv_error *err)
{
    d->main = pthread_self();
    d->hears = !pthread_create(&d->hearing, NULL, hear, d);
    return d->hears ? KV_OK : kv_fail(err, KV_OUT_OF_MEMORY, "kvasird", "no thread to hear signals");
}

static void serve(struct daemon *d)
{
    sigset_t hup;
    sigemptyset(&hup);
    sigaddset(&hup, SIGHUP);
    while (!d->ending) {
        int sig = 0;
        if (!sigwait(&hup, &sig) && !d->ending) reload(d);
    }
}

/* What the settings meet: processor, kernels and devices, as comments below them. */
static void print_hardware(FILE *out)
{
    fprintf(out, "# processor: %ld cores, kernels %s\n", sysconf(_SC_NPROCESSORS_ONLN), kv_kernels()->isa);
#ifdef KV_CUDA
    int n = kv_cuda_device_count();
    fprintf(out, "# cuda: built in, %d device%s\n", n, n == 1 ? "" : "s");
#else
    int n = 0;
    fputs("# cuda: not built in; no nvcc was found when this was built\n", out);
#endif
    for (int i = 0; i < n; i++) {
        struct kv_cuda_device d;
        if (kv_cuda_device_query(i, &d))
            fprintf(out, "# cuda device %d: %s, compute %d.%d, %zu of %zu bytes free\n", i, d.name, d.compute_major, d.compute_minor, d.free_bytes, d.memory_bytes);
    }
}

int main(int argc, char **argv)
{
    struct kv_error err = {0};
    if (argc == 3 && !strcmp(argv[1], "--check-policy")) return kv_policy_check_main(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "--drill")) return kv_drill_main(argv[2]);
    struct daemon *d = calloc(1, sizeof *d);
    if (!d) return EXIT_FAILURE;
    d->argc = argc;
    d->argv = argv;
    enum kv_status st = kv_config_load(&d->config, argc, argv, environ, &err);
    if (!st && d->config.exit && !d->config.demo) st = kv_fail(&err, KV_BAD_ARGUMENT, "--exit", "--exit goes with --demo");
    if (!st && d->config.demo) st = kv_demo_configure(&d->config, &err);
    int status = st ? report(&err) : EXIT_SUCCESS;
    if (!st && (d->config.help || d->config.version || d->config.print)) {
        if (d->config.help) kv_config_help(stdout);
        else if (d->config.version) puts("kvasird " KVASIR_VERSION);
        else kv_config_print(&d->config, stdout), print_hardware(stdout);
    } else if (!st) {
        umask(077); /* whatever is made from here on is its owner's alone */
        block_signals(d);
        curl_global_init(CURL_GLOBAL_DEFAULT); /* before a second thread uses it */
        st = start(d, &err);
        if (!st) st = start_hearing(d, &err);
        if (!st && d->config.demo) st = kv_demo_start(&d->app, d->config.exit, &d->demo, &err);
        if (st) status = report(&err);
        else serve(d);
        stop(d);
    }
    int demo_status = d->demo ? kv_demo_finish(d->demo) : EXIT_SUCCESS;
    if (!status) status = demo_status;
    kv_config_free(&d->config);
    free(d);
    return status;
}
