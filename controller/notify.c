/* notify.c — see notify.h. */
#include "controller/notify.h"

#include "controller/http/events.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <gnutls/crypto.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { QUEUE = 256, TRIES = 5, CALL_TIMEOUT_S = 10, PROGRAM_TIMEOUT_S = 10, LAST_WORDS_MS = 2000 };

struct message {
    uint64_t id;
    char *text;
};

struct kv_notify {
    char webhook[512], program[512];
    uint8_t secret[1024];
    size_t secret_bytes;
    int32_t retry_ms;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    struct message queue[QUEUE];
    uint64_t put, taken, dropped;
    bool stop;
    _Atomic int64_t stop_us; /* CLOCK_MONOTONIC after which nothing more is tried, and what is under way is broken off; 0: not stopping */
};

bool kv_notify_wants(const struct kv_receipt_row *row)
{
    switch ((int)row->r.kind) {
    case KV_ROW_TRANSITION:
    case KV_ROW_SUPERSEDED:
    case KV_ROW_POLICY:
    case KV_ROW_POLICY_FAULT:
    case KV_ROW_DRILL:
        return true;
    case KV_ROW_GATE:
    case KV_ROW_STORE:
        return row->r.reason != KV_OK;
    default:
        return false;
    }
}

void kv_notify_post(struct kv_notify *n, uint64_t id, json_t *body)
{
    char *text = n && body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (!text) return;
    pthread_mutex_lock(&n->lock);
    bool room = n->put - n->taken < QUEUE && !n->stop;
    if (room) n->queue[n->put++ % QUEUE] = (struct message){id, text};
    uint64_t dropped = room ? 0 : ++n->dropped;
    pthread_cond_signal(&n->wake);
    pthread_mutex_unlock(&n->lock);
    if (room) return;
    free(text);
    if (dropped == 1 || dropped % 100 == 0) kv_events_log(KV_LOG_WARN, "notifications: the queue is full, %llu were dropped", (unsigned long long)dropped);
}

/* ---------------------------------------------------------------- the webhook */

static size_t ignore(char *data, size_t size, size_t n, void *arg)
{
    (void)data, (void)arg;
    return size * n;
}

static bool overdue(const struct kv_notify *n)
{
    int64_t end = atomic_load(&n->stop_us);
    return end && kv_monotonic_us() > end;
}

/* Asked about once a second while a receiver is silent; not 0 breaks the call off. */
static int go_on(void *arg, curl_off_t t, curl_off_t d, curl_off_t u, curl_off_t v)
{
    (void)t, (void)d, (void)u, (void)v;
    return overdue(arg);
}

static void sign(const struct kv_notify *n, const char *text, char out[100])
{
    uint8_t mac[32];
    char hex[65];
    out[0] = 0;
    if (!n->secret_bytes || gnutls_hmac_fast(GNUTLS_MAC_SHA256, n->secret, n->secret_bytes, text, strlen(text), mac)) return;
    kv_hex(mac, sizeof mac, hex);
    snprintf(out, 100, "X-Kvasir-Signature: sha256=%s", hex);
}

/* 0 when it was taken; otherwise what to say, and *again whether to try later. */
static int call_webhook(struct kv_notify *n, const struct message *m, char *why, size_t cap, bool *again)
{
    char signature[100], delivery[64];
    CURL *h = curl_easy_init();
    if (!h) return *again = false, snprintf(why, cap, "no memory"), 1;
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    snprintf(delivery, sizeof delivery, "X-Kvasir-Delivery: %llu", (unsigned long long)m->id);
    headers = curl_slist_append(headers, delivery); /* the same at every try, so that a receiver can tell */
    sign(n, m->text, signature);
    if (*signature) headers = curl_slist_append(headers, signature);
    curl_easy_setopt(h, CURLOPT_URL, n->webhook);
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(h, CURLOPT_POSTFIELDS, m->text);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_TIMEOUT, (long)CALL_TIMEOUT_S);
    curl_easy_setopt(h, CURLOPT_QUICK_EXIT, 1L); /* waits for no name server that does not answer */
    curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, go_on);
    curl_easy_setopt(h, CURLOPT_XFERINFODATA, n);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, ignore);
    CURLcode rc = curl_easy_perform(h);
    long http = 0;
    curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &http);
    curl_slist_free_all(headers);
    curl_easy_cleanup(h);
    if (rc == CURLE_OK && http >= 200 && http < 300) return 0;
    *again = rc != CURLE_OK || http >= 500 || http == 429 || http == 408;
    if (rc == CURLE_OK) snprintf(why, cap, "it answered HTTP %ld", http);
    else if (rc == CURLE_ABORTED_BY_CALLBACK) snprintf(why, cap, "the server stopped before it was answered");
    else snprintf(why, cap, "%s", curl_easy_strerror(rc));
    return 1;
}

/* False when the server stops meanwhile. */
static bool wait_ms(struct kv_notify *n, int64_t ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += ms % 1000 * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&n->lock);
    while (!n->stop && pthread_cond_timedwait(&n->wake, &n->lock, &until) != ETIMEDOUT) {}
    bool on = !n->stop;
    pthread_mutex_unlock(&n->lock);
    return on;
}

static void send_webhook(struct kv_notify *n, const struct message *m)
{
    char why[160] = "";
    bool again = true;
    int64_t pause = n->retry_ms;
    for (int i = 0; i < TRIES && again; i++, pause *= 2) {
        if (!call_webhook(n, m, why, sizeof why, &again)) return;
        if (again && i + 1 < TRIES && !wait_ms(n, pause)) break;
    }
    kv_events_log(KV_LOG_WARN, "notification %llu was not delivered: %s", (unsigned long long)m->id, why);
}

/* ---------------------------------------------------------------- the program */

static void run_program(struct kv_notify *n, const struct message *m)
{
    int in[2], status = 0;
    pid_t pid;
    sigset_t none;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    if (pipe2(in, O_CLOEXEC)) return;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    char *argv[] = {n->program, NULL};
    int rc = posix_spawn(&pid, n->program, &actions, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    close(in[0]);
    fcntl(in[1], F_SETFL, O_NONBLOCK); /* one receipt is shorter than a pipe is deep */
    bool whole = !rc && write(in[1], m->text, strlen(m->text)) == (ssize_t)strlen(m->text);
    close(in[1]);
    if (rc) {
        kv_events_log(KV_LOG_WARN, "notification %llu: %s cannot be started: %s", (unsigned long long)m->id, n->program, strerror(rc));
        return;
    }
    const struct timespec moment = {0, 20000000};
    int64_t end = kv_monotonic_us() + PROGRAM_TIMEOUT_S * 1000000;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (kv_monotonic_us() > end || overdue(n)) kill(pid, SIGKILL);
        nanosleep(&moment, NULL);
    }
    if (!whole || status) kv_events_log(KV_LOG_WARN, "notification %llu: %s ended with status %d", (unsigned long long)m->id, n->program, status);
}

/* ---------------------------------------------------------------- life */

static void *notify_main(void *arg)
{
    struct kv_notify *n = arg;
    pthread_mutex_lock(&n->lock);
    for (;;) {
        while (n->put == n->taken && !n->stop) pthread_cond_wait(&n->wake, &n->lock);
        if (n->put == n->taken || overdue(n)) break;
        struct message m = n->queue[n->taken++ % QUEUE];
        pthread_mutex_unlock(&n->lock);
        if (*n->webhook) send_webhook(n, &m);
        if (*n->program) run_program(n, &m);
        free(m.text);
        pthread_mutex_lock(&n->lock);
    }
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

static enum kv_status read_secret(struct kv_notify *n, const char *path, struct kv_error *err)
{
    FILE *f = *path ? fopen(path, "rb") : NULL;
    if (!*path) return KV_OK;
    if (!f) return kv_fail(err, KV_FILE_UNREADABLE, path, "the secret of notifications cannot be read: %s", strerror(errno));
    n->secret_bytes = fread(n->secret, 1, sizeof n->secret, f);
    fclose(f);
    while (n->secret_bytes && (n->secret[n->secret_bytes - 1] == '\n' || n->secret[n->secret_bytes - 1] == '\r')) n->secret_bytes--;
    return n->secret_bytes >= 16 ? KV_OK : kv_fail(err, KV_BAD_ARGUMENT, path, "the secret of notifications has less than 16 bytes");
}

enum kv_status kv_notify_create(const struct kv_notify_config *c, struct kv_notify **out, struct kv_error *err)
{
    *out = NULL;
    if (!*c->webhook && !*c->program) return KV_OK;
    if (*c->webhook && strncmp(c->webhook, "http://", 7) && strncmp(c->webhook, "https://", 8)) return kv_fail(err, KV_BAD_ARGUMENT, "notify.webhook", "notify.webhook is an http or https URL");
    if (*c->program && access(c->program, X_OK)) return kv_fail(err, KV_FILE_UNREADABLE, "notify.program", "%.200s cannot be run: %s", c->program, strerror(errno));
    struct kv_notify *n = calloc(1, sizeof *n);
    if (!n) return kv_fail(err, KV_OUT_OF_MEMORY, "notify", "no memory for notifications");
    snprintf(n->webhook, sizeof n->webhook, "%s", c->webhook);
    snprintf(n->program, sizeof n->program, "%s", c->program);
    n->retry_ms = c->retry_ms > 0 ? c->retry_ms : 1000;
    enum kv_status st = read_secret(n, c->secret_file, err);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&n->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&n->lock, NULL);
    if (!st && pthread_create(&n->thread, NULL, notify_main, n)) st = kv_fail(err, KV_OUT_OF_MEMORY, "notify", "no thread for notifications");
    if (st) free(n);
    else *out = n;
    return st;
}

void kv_notify_free(struct kv_notify *n)
{
    if (!n) return;
    pthread_mutex_lock(&n->lock);
    n->stop = true;
    atomic_store(&n->stop_us, kv_monotonic_us() + LAST_WORDS_MS * 1000);
    pthread_cond_broadcast(&n->wake);
    pthread_mutex_unlock(&n->lock);
    pthread_join(n->thread, NULL);
    if (n->put > n->taken) kv_events_log(KV_LOG_WARN, "notifications: %llu were not sent before the server stopped; receipts have them", (unsigned long long)(n->put - n->taken));
    for (; n->taken < n->put; n->taken++) free(n->queue[n->taken % QUEUE].text);
    pthread_mutex_destroy(&n->lock);
    pthread_cond_destroy(&n->wake);
    gnutls_memset(n->secret, 0, sizeof n->secret);
    free(n);
}
