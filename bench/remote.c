/* remote.c — a block read from the remote tier against a plain HTTP read of the same bytes over loopback, turn by turn in one run.
 * The server is libmicrohttpd with the object in memory; both sides use the tier's client, so what lies between is opening the seal. */
#include "controller/extent_client.h"

#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAYLOAD = 3 << 19, OBJECT_MAX = PAYLOAD + 4096, PASSES = 60 };

static uint8_t object[OBJECT_MAX];
static size_t object_bytes;

static void check(bool good, const char *what)
{
    if (good) return;
    fprintf(stderr, "bench/remote: %s failed\n", what);
    exit(1);
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static enum kv_status capture(void *ctx, const char *name, const void *bytes, size_t n, const _Atomic bool *stop)
{
    (void)ctx, (void)name, (void)stop;
    check(n <= sizeof object, "sealing");
    memcpy(object, bytes, object_bytes = n);
    return KV_OK;
}

static enum kv_status nothing_there(void *ctx, const char *name, const _Atomic bool *stop)
{
    (void)ctx, (void)name, (void)stop;
    return KV_NOT_FOUND;
}

static enum MHD_Result serve(void *cls, struct MHD_Connection *c, const char *url, const char *method, const char *version, const char *data, size_t *n, void **state)
{
    (void)cls, (void)url, (void)method, (void)version, (void)data, (void)n, (void)state;
    struct MHD_Response *r = MHD_create_response_from_buffer(object_bytes, object, MHD_RESPMEM_PERSISTENT);
    enum MHD_Result queued = MHD_queue_response(c, 200, r);
    MHD_destroy_response(r);
    return queued;
}

int main(void)
{
    static const _Atomic bool never;
    static uint8_t payload[PAYLOAD], got[OBJECT_MAX], key[32] = {1};
    struct kv_chunk_identity id = {.layer = -1, .position_count = 64, .tenant = "bench", .support = "exact"};
    struct kv_remote_io sealing = {.put = capture, .has = nothing_there};
    struct kv_remote *seals, *reads;
    struct kv_extent_client *client;
    struct kv_error err = {0};
    char url[64];
    for (size_t i = 0; i < sizeof payload; i++) payload[i] = (uint8_t)(i * 31 >> 3);
    check(!kv_remote_create(&sealing, key, 1000, &seals) && !kv_remote_put(seals, &id, payload, PAYLOAD, &never), "sealing");
    struct MHD_Daemon *d = MHD_start_daemon(MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD, 0, NULL, NULL, serve, NULL, MHD_OPTION_END);
    check(d != NULL, "the server");
    snprintf(url, sizeof url, "http://127.0.0.1:%d", MHD_get_daemon_info(d, MHD_DAEMON_INFO_BIND_PORT)->port);
    check(!kv_extent_client_create(&(struct kv_extent_client_config){url, "", "", 10000}, &client, &err), "the client");
    const struct kv_remote_io *io = kv_extent_client_io(client);
    check(!kv_remote_create(io, key, 1000, &reads), "the tier");
    double plain = 1e18, tier = 1e18;
    for (int i = 0; i < PASSES; i++) {
        size_t n = 0;
        double a = now_us();
        check(!io->get(io->ctx, "plain", got, sizeof got, &n, &never) && n == object_bytes, "a plain read");
        double b = now_us();
        check(!kv_remote_get(reads, &id, got, PAYLOAD, &never), "a read of the tier");
        double c = now_us();
        check(!memcmp(got, payload, PAYLOAD), "what was read");
        plain = b - a < plain ? b - a : plain;
        tier = c - b < tier ? c - b : tier;
    }
    double value = PAYLOAD / tier / 1e3, floor_value = (double)object_bytes / plain / 1e3;
    printf("{\"name\":\"remote/read/1.5MiB\",\"value\":%.3f,\"unit\":\"GB/s\",\"floor\":%.3f,\"ratio\":%.3f}\n", value, floor_value, value / floor_value);
    kv_remote_destroy(seals);
    kv_remote_destroy(reads);
    kv_extent_client_destroy(client);
    MHD_stop_daemon(d);
    return 0;
}
