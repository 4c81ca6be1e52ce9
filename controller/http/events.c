/* events.c — a ring of encoded events under one mutex; readers copy out what they send. */
#include "controller/http/events.h"

#include "runtime/kvasir.h"

#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_MS = 200, COMMENT_EVERY_US = 15000000 };

struct event {
    uint64_t id;
    char *text; /* as it goes over the wire */
};

struct kv_events {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct event ring[KV_EVENTS_KEPT];
    uint64_t first, next; /* ids of the oldest kept and of the next event; they start at the clock, so that a restart never reuses one */
    char *status;
    uint64_t status_turn;
    int readers, max_readers;
};

struct kv_event_reader {
    struct kv_events *hub;
    uint64_t next, status_turn;
    bool greeted;
    int64_t last_us;
    char *pending; /* what is being sent */
    size_t sent;
};

int64_t kv_realtime_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t kv_monotonic_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

json_t *kv_time_json(int64_t at_us)
{
    char text[40];
    struct tm tm;
    time_t s = (time_t)(at_us / 1000000);
    if (!at_us || !gmtime_r(&s, &tm)) return json_null();
    size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text + n, sizeof text - n, ".%06dZ", (int)(at_us % 1000000));
    return json_string(text);
}

json_t *kv_real_json(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

/* Length of the UTF-8 sequence at s, 0 when it is none. */
static size_t utf8_length(const unsigned char *s, size_t n)
{
    size_t len = s[0] < 0x80 ? 1 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : 0;
    if (!len || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f)) return 0;
    return len;
}

json_t *kv_text_json(const char *s, size_t n)
{
    json_t *v = json_stringn(s, n);
    char *out = v ? NULL : malloc(3 * n + 1);
    if (v || !out) return v;
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        size_t len = utf8_length((const unsigned char *)s + i, n - i);
        memcpy(out + k, len ? s + i : "\xef\xbf\xbd", len ? len : 3);
        k += len ? len : 3;
        i += len ? len : 1;
    }
    v = json_stringn(out, k);
    free(out);
    return v;
}

struct kv_events *kv_events_create(int max_readers)
{
    struct kv_events *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->more, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&e->lock, NULL);
    e->first = e->next = (uint64_t)kv_realtime_us();
    e->max_readers = max_readers;
    return e;
}

void kv_events_free(struct kv_events *e)
{
    if (!e) return;
    for (size_t i = 0; i < KV_EVENTS_KEPT; i++) free(e->ring[i].text);
    free(e->status);
    pthread_cond_destroy(&e->more);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

static char *encode(const char *event, uint64_t id, json_t *data)
{
    char *body = json_dumps(data, JSON_COMPACT), *text = NULL;
    int n = !body ? -1 : id ? asprintf(&text, "id: %llu\nevent: %s\ndata: %s\n\n", (unsigned long long)id, event, body)
                            : asprintf(&text, "event: %s\ndata: %s\n\n", event, body);
    free(body);
    return n < 0 ? NULL : text;
}

void kv_events_post(struct kv_events *e, const char *event, json_t *data)
{
    bool status = !strcmp(event, "status");
    if (!data) return;
    pthread_mutex_lock(&e->lock);
    char *text = encode(event, status ? 0 : e->next, data);
    if (text && status) {
        free(e->status);
        e->status = text;
        e->status_turn++;
    } else if (text) {
        struct event *slot = &e->ring[e->next % KV_EVENTS_KEPT];
        free(slot->text);
        *slot = (struct event){e->next, text};
        if (++e->next - e->first > KV_EVENTS_KEPT) e->first++;
    }
    pthread_cond_broadcast(&e->more);
    pthread_mutex_unlock(&e->lock);
    json_decref(data);
}

int kv_events_readers(struct kv_events *e)
{
    pthread_mutex_lock(&e->lock);
    int n = e->readers;
    pthread_mutex_unlock(&e->lock);
    return n;
}

struct kv_event_reader *kv_events_open(struct kv_events *e, uint64_t after)
{
    struct kv_event_reader *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    pthread_mutex_lock(&e->lock);
    bool room = e->readers < e->max_readers;
    if (room) {
        e->readers++;
        r->hub = e;
        r->next = after >= e->first - 1 && after < e->next ? after + 1 : e->next;
        r->last_us = kv_monotonic_us();
    }
    pthread_mutex_unlock(&e->lock);
    if (!room) free(r), r = NULL;
    return r;
}

void kv_events_close(void *reader)
{
    struct kv_event_reader *r = reader;
    pthread_mutex_lock(&r->hub->lock);
    r->hub->readers--;
    pthread_mutex_unlock(&r->hub->lock);
    free(r->pending);
    free(r);
}

/* Under the lock: the next thing to send, NULL for nothing. */
static char *take(struct kv_event_reader *r)
{
    struct kv_events *e = r->hub;
    if (!r->greeted || r->next < e->first) { /* also when the ring ran over a slow reader: it must read its objects anew */
        if (r->next < e->first) r->next = e->first;
        r->greeted = true;
        json_t *hello = json_pack("{s:s, s:o}", "version", KVASIR_VERSION, "now", kv_time_json(kv_realtime_us()));
        char *text = encode("hello", 0, hello);
        json_decref(hello);
        return text;
    }
    if (r->next < e->next) return strdup(e->ring[r->next++ % KV_EVENTS_KEPT].text);
    if (e->status && r->status_turn != e->status_turn) {
        r->status_turn = e->status_turn;
        return strdup(e->status);
    }
    return kv_monotonic_us() - r->last_us > COMMENT_EVERY_US ? strdup(": still here\n\n") : NULL;
}

ssize_t kv_events_read(void *reader, char *buf, size_t cap)
{
    struct kv_event_reader *r = reader;
    if (!r->pending) {
        struct timespec until;
        pthread_mutex_lock(&r->hub->lock);
        if (!(r->pending = take(r))) {
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_nsec += WAIT_MS * 1000000L;
            if (until.tv_nsec >= 1000000000L) until.tv_sec++, until.tv_nsec -= 1000000000L;
            pthread_cond_timedwait(&r->hub->more, &r->hub->lock, &until);
            r->pending = take(r);
        }
        pthread_mutex_unlock(&r->hub->lock);
        r->sent = 0;
    }
    if (!r->pending) return 0;
    size_t left = strlen(r->pending + r->sent), n = left < cap ? left : cap;
    memcpy(buf, r->pending + r->sent, n);
    r->sent += n;
    if (n == left) free(r->pending), r->pending = NULL;
    r->last_us = kv_monotonic_us();
    return (ssize_t)n;
}

/* ---------------------------------------------------------------- log */

static const char *const levels[] = {"error", "warn", "info", "debug"};
static _Atomic int log_level = KV_LOG_INFO;
static struct kv_events *_Atomic log_events;

void kv_events_log_level(enum kv_log_level l)
{
    log_level = (int)l;
}

enum kv_log_level kv_events_level_from_name(const char *name)
{
    for (int i = 0; i < 4; i++)
        if (!strcmp(levels[i], name)) return (enum kv_log_level)i;
    return KV_LOG_INFO;
}

void kv_events_log_to(struct kv_events *e)
{
    log_events = e;
}

/* Never waits: whoever logs may be answering a rollback, and a reader of standard error that stands still (a paused terminal, a hung collector) is no reason
 * to let that wait. A line with the one about lost ones is shorter than what a pipe that polls as writable has room for, PIPE_BUF: write_line sees to it. */
static void put_line(const char *at, const char *text)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    static unsigned long long lost;
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    pthread_mutex_lock(&one);
    if (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT)) lost++;
    else if (lost) {
        fprintf(stderr, "{\"at\":\"%s\",\"level\":\"warn\",\"line\":\"%llu lines were lost before this one: nobody read standard error\"}\n%s\n", at, lost, text);
        lost = 0;
    } else fprintf(stderr, "%s\n", text);
    pthread_mutex_unlock(&one);
}

static void write_line(enum kv_log_level level, const char *trace, const char *fmt, va_list ap)
{
    char line[1024];
    if ((int)level > log_level) return;
    vsnprintf(line, sizeof line, fmt, ap);
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < ' ') *c = '?'; /* JSON writes it with six letters, and nothing else with more than three */
    json_t *o = json_pack("{s:o, s:s, s:o}", "at", kv_time_json(kv_realtime_us()), "level", levels[level], "line", kv_text_json(line, strlen(line)));
    if (o && *trace) json_object_set_new(o, "trace", json_string(trace));
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    if (text) put_line(json_string_value(json_object_get(o, "at")), text);
    free(text);
    struct kv_events *e = log_events;
    if (e && level <= KV_LOG_INFO && o) kv_events_post(e, "log", o);
    else json_decref(o);
}

void kv_events_log(enum kv_log_level level, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    write_line(level, "", fmt, ap);
    va_end(ap);
}

void kv_events_log_traced(enum kv_log_level level, const char *trace, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    write_line(level, trace, fmt, ap);
    va_end(ap);
}
