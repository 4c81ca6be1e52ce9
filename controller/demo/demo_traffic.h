/* demo_traffic.h — plays the bundled trace against the server, round after round, with as many clients as requests overlap. */
#ifndef KV_DEMO_TRAFFIC_H
#define KV_DEMO_TRAFFIC_H

#include "controller/demo/demo_client.h"

#define KV_DEMO_TENANTS 3
extern const char *const kv_demo_tenants[KV_DEMO_TENANTS];

struct kv_demo_traffic;
/* tokens: one per tenant. */
struct kv_demo_traffic *kv_demo_traffic_start(const char *base_url, const char *const tokens[KV_DEMO_TENANTS], const char *model, bool insecure);
/* 1: as at the start; larger is slower. */
void kv_demo_traffic_pace(struct kv_demo_traffic *t, int slower);
void kv_demo_traffic_stop(struct kv_demo_traffic *t); /* waits for the clients; calls in progress are cut */
void kv_demo_traffic_counts(const struct kv_demo_traffic *t, uint64_t *requests, uint64_t *failed);
void kv_demo_traffic_free(struct kv_demo_traffic *t);

#endif
