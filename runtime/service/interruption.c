/* interruption.c — see interruption.h. */
#include "runtime/service/interruption.h"

#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- waste */

static double discard_waste(const struct kv_pause_costs *c, double tokens)
{
    double rows = c->chunk_rows > 0 ? c->chunk_rows : 1, chunks = ceil(tokens / rows);
    double all_ms = tokens * c->us_per_row / 1e3, chunk_ms = tokens / chunks * c->us_per_row / 1e3;
    return all_ms * tokens * c->bytes_per_token / 2 + chunks * chunk_ms * (double)c->other_tokens * c->bytes_per_token;
}

void kv_pause_waste_of(const struct kv_pause_costs *c, int64_t tokens, int64_t elapsed_us, struct kv_pause_waste *out)
{
    double n = tokens > 0 ? (double)tokens : 0, m = c->bytes_per_token;
    double swap_ms = c->swap_bytes_per_s > 0 ? n * m / c->swap_bytes_per_s * 1e3 + c->swap_fixed_us / 1e3 : INFINITY;
    *out = (struct kv_pause_waste){.preserve = (double)elapsed_us / 1e3 * n * m, .discard = n > 0 ? discard_waste(c, n) : 0,
                                   .swap = 2 * swap_ms * (1 - c->hidden_share) * (n + (double)c->other_tokens) * m};
}

double kv_pause_crossing_us(const struct kv_pause_costs *c, int64_t tokens)
{
    return tokens > 0 ? discard_waste(c, (double)tokens) / ((double)tokens * c->bytes_per_token) * 1e3 : 0;
}

static double potential(const struct kv_pause_choice *p)
{
    return fmin(p->waste.preserve, p->waste.discard);
}

void kv_pause_decide(const struct kv_pause_costs *c, struct kv_pause_choice *p, int32_t n, uint64_t budget_bytes)
{
    for (int32_t i = 0; i < n; i++) {
        kv_pause_waste_of(c, p[i].tokens, p[i].elapsed_us, &p[i].waste);
        p[i].action = p[i].waste.preserve <= p[i].waste.discard ? KV_PAUSE_PRESERVE : KV_PAUSE_DISCARD;
    }
    /* The greatest potential first, while the budget lasts; as many rounds as there are pauses. */
    for (int32_t round = 0; round < n; round++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++) {
            double bytes = (double)p[i].tokens * c->bytes_per_token;
            bool gains = p[i].can_swap && p[i].action != KV_PAUSE_SWAP && p[i].waste.swap < potential(&p[i]) && bytes <= (double)budget_bytes;
            if (gains && (best < 0 || potential(&p[i]) > potential(&p[best]))) best = i;
        }
        if (best < 0) return;
        p[best].action = KV_PAUSE_SWAP;
        budget_bytes -= (uint64_t)((double)p[best].tokens * c->bytes_per_token);
    }
}

int64_t kv_swap_tokens(double foreground_us, double bytes_per_s, double fixed_us, double bytes_per_token)
{
    double us = foreground_us - fixed_us;
    return us > 0 && bytes_per_token > 0 ? (int64_t)floor(us / 1e6 * bytes_per_s / bytes_per_token) : 0;
}

int32_t kv_recompute_rows(int32_t saturation_rows, int32_t running_rows)
{
    return saturation_rows > running_rows ? saturation_rows - running_rows : 0;
}

/* ---------------------------------------------------------------- results */

static const char *const states[KV_RESULT_STATE_COUNT] = {
#define KV_RESULT_STATE(name) #name,
    KV_RESULT_STATES(KV_RESULT_STATE)
#undef KV_RESULT_STATE
};

#define TO(name) (1u << KV_RESULT_##name)
static const uint32_t next[KV_RESULT_STATE_COUNT] = {
    [KV_RESULT_UNSEEN] = TO(RESERVED),
    [KV_RESULT_RESERVED] = TO(CACHE_READY_AND_VALIDATED) | TO(RETRYABLE),
    [KV_RESULT_CACHE_READY_AND_VALIDATED] = TO(RESULT_APPEND_COMMITTED) | TO(RETRYABLE),
    [KV_RESULT_RESULT_APPEND_COMMITTED] = TO(APPLIED),
    [KV_RESULT_RETRYABLE] = TO(RESERVED),
};

const char *kv_result_state_name(enum kv_result_state s)
{
    return (unsigned)s < KV_RESULT_STATE_COUNT ? states[s] : "?";
}

enum kv_result_state kv_result_state_from_name(const char *name)
{
    int i = 0;
    while (i < KV_RESULT_STATE_COUNT && strcmp(states[i], name)) i++;
    return (enum kv_result_state)i;
}

enum kv_status kv_result_move(enum kv_result_state *state, enum kv_result_state to)
{
    if ((unsigned)*state >= KV_RESULT_STATE_COUNT || (unsigned)to >= KV_RESULT_STATE_COUNT || !(next[*state] >> to & 1)) return KV_ILLEGAL_TRANSITION;
    *state = to;
    return KV_OK;
}

enum kv_status kv_result_offer(const struct kv_result_key *bound, enum kv_result_state state, const struct kv_result_key *offered, enum kv_result_answer *out, struct kv_error *err)
{
    if (strcmp(bound->call_id, offered->call_id)) return kv_fail(err, KV_NOT_FOUND, "call_id", "the session does not wait for call '%s'", offered->call_id);
    if (bound->pause_epoch != offered->pause_epoch) {
        kv_fail(err, KV_STALE_PAUSE_EPOCH, "pause_epoch", "the call was made at pause epoch %llu, not %llu", (unsigned long long)bound->pause_epoch, (unsigned long long)offered->pause_epoch);
        kv_hint(err, "send the pause_epoch of its last pause");
        return KV_STALE_PAUSE_EPOCH;
    }
    bool same = !strcmp(bound->result_id, offered->result_id) && !memcmp(bound->digest, offered->digest, 32);
    if (state != KV_RESULT_UNSEEN && !same) {
        kv_fail(err, KV_COMPETING_RESULT, "result_id", "result '%s' was reserved for this call first", bound->result_id);
        kv_hint(err, "offer that result again, or take its answer");
        return KV_COMPETING_RESULT;
    }
    *out = state == KV_RESULT_APPLIED ? KV_RESULT_NOOP : state == KV_RESULT_RESULT_APPEND_COMMITTED ? KV_RESULT_FINALIZE : KV_RESULT_GO_ON;
    return KV_OK;
}
