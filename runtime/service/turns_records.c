/* turns_records.c — records of sessions: written when a turn was saved or a pin changed, read once at the start. */
#include "runtime/service/turns_records.h"

#include <stdlib.h>
#include <string.h>

#define SUPPORT "session-record-v1"
#define MAGIC UINT64_C(0x3143455353534b56) /* "VKSSSEC1" */

struct record { /* followed by n_blocks prefix digests */
    uint64_t magic;
    char session[64];
    int64_t used_us;
    uint64_t turns, saves, restores, recomputes, failures;
    int32_t tokens, n_blocks, pinned, reserved;
};

struct found_record {
    struct kv_chunk_identity id;
    struct kv_block block;
    uint64_t bytes;
};

static struct kv_chunk_identity identity_of(const struct kv_turns *t, const char *tenant, const char *session)
{
    struct kv_chunk_identity id = t->config.base;
    memset(id.tenant, 0, sizeof id.tenant);
    memset(id.support, 0, sizeof id.support);
    memcpy(id.tenant, tenant, strnlen(tenant, sizeof id.tenant - 1));
    memcpy(id.support, SUPPORT, sizeof SUPPORT);
    kv_sha256(session, strlen(session), id.prefix.b);
    id.layer = -1;
    id.head_first = id.position_first = id.position_count = 0;
    id.head_count = t->config.n_kv_heads;
    return id;
}

static bool first_block_held(const struct kv_turns *t, const struct kv_chunk_identity *record, const char *support, const struct kv_prefix_digest *prefix)
{
    struct kv_chunk_identity id = *record;
    memset(id.support, 0, sizeof id.support);
    memcpy(id.support, support, strnlen(support, sizeof id.support - 1));
    id.prefix = *prefix;
    id.layer = 0;
    id.position_count = KV_BLOCK_ROWS;
    return kv_directory_nearest(t->directory, &id) >= 0;
}

/* ---------------------------------------------------------------- at the start */

bool kv_turns_record_found(struct kv_turns *t, const struct kv_chunk_identity *id, struct kv_block b, uint64_t bytes)
{
    if (strncmp(id->support, SUPPORT, sizeof id->support)) return false;
    struct found_record *grown = realloc(t->records, (t->n_records + 1) * sizeof *grown);
    if (!grown) return true; /* it stays on disk, unlisted, until the next start */
    t->records = grown;
    t->records[t->n_records++] = (struct found_record){*id, b, bytes};
    return true;
}

/* NULL: damaged, of another version, or no memory. */
static struct record *read_record(struct kv_turns *t, const struct found_record *f)
{
    struct record *r = f->bytes >= sizeof *r ? malloc(f->bytes) : NULL;
    bool good = r && t->disk.read(t->disk.ctx, f->block, &f->id, r, f->bytes) == KV_OK && r->magic == MAGIC && r->n_blocks > 0 &&
                f->bytes == sizeof *r + (uint64_t)r->n_blocks * sizeof(struct kv_prefix_digest) && r->session[0] && memchr(r->session, 0, sizeof r->session) &&
                memchr(f->id.tenant, 0, sizeof f->id.tenant);
    if (good) return r;
    free(r);
    return NULL;
}

static void list_session(struct kv_turns *t, const struct found_record *f, const struct record *r)
{
    struct session *s = kv_turns_make(t, f->id.tenant, r->session, KV_SESSION_PAUSED_HOST);
    struct kv_chain chain = {.base = t->config.base, .n_layers = t->config.n_layers, .n_kv_heads = t->config.n_kv_heads, .n_blocks = r->n_blocks, .leaving = t->remote ? &t->leaving : NULL};
    memcpy(chain.base.tenant, f->id.tenant, sizeof chain.base.tenant);
    chain.prefix = malloc((size_t)r->n_blocks * sizeof *chain.prefix);
    if (!chain.prefix) return;
    memcpy(chain.prefix, r + 1, (size_t)r->n_blocks * sizeof *chain.prefix);
    kv_turns_record_release(t, s); /* an older one, left by a death between the two */
    kv_turns_unpin(t, s);
    s->info.pinned = r->pinned != 0;
    kv_turns_keep_chain(t, s, &chain, r->n_blocks);
    s->info.held_blocks = kv_chain_held(t->directory, &s->chain);
    s->info.tokens = r->tokens;
    s->info.turns = r->turns;
    s->info.saves = r->saves;
    s->info.restores = r->restores;
    s->info.recomputes = r->recomputes;
    s->info.failures = r->failures;
    s->info.used_us = r->used_us;
    s->record = f->block;
}

void kv_turns_records_load(struct kv_turns *t)
{
    for (size_t i = 0; i < t->n_records; i++) {
        const struct found_record *f = &t->records[i];
        struct record *r = read_record(t, f);
        struct kv_chunk_identity ours;
        bool held = r && first_block_held(t, &f->id, t->config.base.support, (const struct kv_prefix_digest *)(r + 1));
        if (held) ours = identity_of(t, f->id.tenant, r->session);
        if (!held) t->disk.release(t->disk.ctx, f->block);
        else if (kv_identity_compare(&kv_chunk_type, &ours, &f->id, NULL) == KV_OK) list_session(t, f, r);
        free(r);
    }
    free(t->records);
    t->records = NULL;
    t->n_records = 0;
}

/* ---------------------------------------------------------------- while it runs */

static struct record *make_record(struct kv_turns *t, const struct session *s, uint64_t *bytes)
{
    *bytes = sizeof(struct record) + (uint64_t)s->chain.n_blocks * sizeof *s->chain.prefix;
    struct record *r = calloc(1, *bytes);
    if (!r) return NULL;
    pthread_mutex_lock(&t->lock);
    const struct kv_session_info *i = &s->info;
    *r = (struct record){.magic = MAGIC, .used_us = i->used_us, .turns = i->turns, .saves = i->saves, .restores = i->restores, .recomputes = i->recomputes,
                         .failures = i->failures, .tokens = i->tokens, .n_blocks = s->chain.n_blocks, .pinned = i->pinned};
    memcpy(r->session, i->session, sizeof r->session);
    pthread_mutex_unlock(&t->lock);
    memcpy(r + 1, s->chain.prefix, (size_t)s->chain.n_blocks * sizeof *s->chain.prefix);
    return r;
}

enum kv_status kv_turns_record_write(struct kv_turns *t, struct session *s)
{
    struct kv_block b;
    uint64_t bytes, hash;
    if (s->chain.n_blocks == 0) return KV_OK;
    struct record *r = make_record(t, s, &bytes);
    if (!r) return KV_OUT_OF_MEMORY;
    struct kv_chunk_identity id = identity_of(t, s->info.tenant, s->info.session);
    enum kv_status status;
    while ((status = t->disk.reserve(t->disk.ctx, bytes, &id, &b)) == KV_CAPACITY)
        if ((status = kv_chain_make_room(t->directory, &s->chain, KV_TIER_DISK)) != KV_OK) break;
    if (status == KV_OK) {
        status = t->disk.write(t->disk.ctx, b, &id, r, bytes, &hash);
        if (status != KV_OK) t->disk.release(t->disk.ctx, b);
    }
    free(r);
    if (status != KV_OK) return status;
    kv_turns_record_release(t, s);
    s->record = b;
    return KV_OK;
}

void kv_turns_record_release(struct kv_turns *t, struct session *s)
{
    if (s->record.allocation.n) t->disk.release(t->disk.ctx, s->record);
    s->record = (struct kv_block){0};
}

enum kv_status kv_turns_record_erase(struct kv_turns *t, struct session *s)
{
    enum kv_status r = s->record.allocation.n ? t->disk.erase(t->disk.ctx, s->record) : KV_OK;
    if (r == KV_OK) s->record = (struct kv_block){0};
    return r;
}

void kv_turns_records_sweep(struct kv_turns *t)
{
    for (int32_t i = 0; i < KV_SESSIONS_MAX; i++) {
        struct session *s = &t->session[i];
        if (!s->record.allocation.n || s->chain.n_blocks == 0) continue;
        struct kv_chunk_identity id = kv_chain_chunk(&s->chain, 0, 0);
        if (kv_directory_nearest(t->directory, &id) < 0) kv_turns_record_release(t, s);
    }
}
