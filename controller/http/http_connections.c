/* http_connections.c — a list of what is open, and the thread that looks at it once a second. */
#include "controller/http/http_connections.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct kv_connection {
    struct kv_connection *next, *prev;
    int fd;
    uint8_t address[16]; /* IPv4 in its first four bytes */
    int beyond;          /* the limit that was reached when it came, 0 none */
    bool beyond_one;     /* that of its address */
    int64_t deadline_us; /* when its request must have arrived; 0 while a request is served */
};

struct kv_connections {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t wake;
    struct kv_connection list;
    int max, max_of_one, open;
    bool stopping;
    pthread_t guard;
};

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void *guard_main(void *arg)
{
    struct kv_connections *cs = arg;
    pthread_mutex_lock(&cs->lock);
    while (!cs->stopping) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += 1;
        pthread_cond_timedwait(&cs->wake, &cs->lock, &until);
        int64_t now = now_us();
        for (struct kv_connection *c = cs->list.next; c != &cs->list; c = c->next)
            if (c->deadline_us && now > c->deadline_us) shutdown(c->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&cs->lock);
    return NULL;
}

struct kv_connections *kv_connections_create(int max, int max_of_one)
{
    struct kv_connections *cs = calloc(1, sizeof *cs);
    if (!cs) return NULL;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&cs->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&cs->lock, NULL);
    cs->list.next = cs->list.prev = &cs->list;
    cs->max = max;
    cs->max_of_one = max_of_one;
    if (!pthread_create(&cs->guard, NULL, guard_main, cs)) return cs;
    pthread_cond_destroy(&cs->wake);
    pthread_mutex_destroy(&cs->lock);
    free(cs);
    return NULL;
}

void kv_connections_free(struct kv_connections *cs)
{
    if (!cs) return;
    pthread_mutex_lock(&cs->lock);
    cs->stopping = true;
    pthread_cond_signal(&cs->wake);
    pthread_mutex_unlock(&cs->lock);
    pthread_join(cs->guard, NULL);
    pthread_cond_destroy(&cs->wake);
    pthread_mutex_destroy(&cs->lock);
    free(cs);
}

static void take_address(struct kv_connection *c, const struct sockaddr *peer)
{
    if (peer && peer->sa_family == AF_INET6) memcpy(c->address, &((const struct sockaddr_in6 *)(const void *)peer)->sin6_addr, 16);
    else if (peer && peer->sa_family == AF_INET) memcpy(c->address, &((const struct sockaddr_in *)(const void *)peer)->sin_addr, 4);
}

struct kv_connection *kv_connections_open(struct kv_connections *cs, int fd, const struct sockaddr *peer, int64_t wait_us)
{
    struct kv_connection *c = calloc(1, sizeof *c);
    int served = 0, of_one = 0;
    if (c) {
        c->fd = fd;
        take_address(c, peer);
        c->deadline_us = now_us() + wait_us;
    }
    pthread_mutex_lock(&cs->lock);
    cs->open++;
    if (c) {
        for (const struct kv_connection *o = cs->list.next; o != &cs->list; o = o->next) {
            if (o->beyond) continue; /* it may stay for a while and ask nothing */
            served++;
            of_one += !memcmp(o->address, c->address, sizeof c->address);
        }
        c->beyond_one = cs->max_of_one && of_one >= cs->max_of_one;
        c->beyond = c->beyond_one ? cs->max_of_one : served >= cs->max ? cs->max : 0;
        c->next = cs->list.next;
        c->prev = &cs->list;
        c->next->prev = cs->list.next = c;
    }
    pthread_mutex_unlock(&cs->lock);
    return c;
}

void kv_connections_close(struct kv_connections *cs, struct kv_connection *c)
{
    pthread_mutex_lock(&cs->lock);
    cs->open--;
    if (c) {
        c->prev->next = c->next;
        c->next->prev = c->prev;
    }
    pthread_mutex_unlock(&cs->lock);
    free(c);
}

void kv_connections_wait(struct kv_connections *cs, struct kv_connection *c, int64_t wait_us)
{
    if (!c) return;
    pthread_mutex_lock(&cs->lock);
    c->deadline_us = wait_us ? now_us() + wait_us : 0;
    pthread_mutex_unlock(&cs->lock);
}

enum kv_status kv_connections_admit(const struct kv_connection *c, struct kv_error *err)
{
    if (!c || !c->beyond) return KV_OK;
    kv_fail(err, KV_QUEUE_FULL, "connections", "%d connections%s are open already", c->beyond, c->beyond_one ? " from this address" : "");
    kv_hint(err, "close some, or raise %s", c->beyond_one ? "http.max_connections_per_client" : "http.max_connections");
    return KV_QUEUE_FULL;
}

int kv_connections_count(struct kv_connections *cs)
{
    pthread_mutex_lock(&cs->lock);
    int n = cs->open;
    pthread_mutex_unlock(&cs->lock);
    return n;
}
