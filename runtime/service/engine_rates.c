/* engine_rates.c — rates as they were measured, for estimates of what is to come. */
#include "runtime/service/engine.h"


enum { LEAST_MOVED_BYTES = 64 << 10 }; /* less says more about the clock than about the link */

static void average(double *mean, double v)
{
    *mean = *mean > 0 ? 0.8 * *mean + 0.2 * v : v;
}

/* What the link can do: a faster crossing shows at once, a slower one slowly, since other work on the machine only ever adds. */
static void ability(double *us_per_byte, double v)
{
    *us_per_byte = *us_per_byte > 0 && v > *us_per_byte ? 0.98 * *us_per_byte + 0.02 * v : v;
}

void kv_engine_rates_step(struct kv_engine *e, double step_us)
{
    for (int32_t i = 0; i < e->n_items; i++)
        if (e->items[i].n > 1) return;
    average(&e->decode_step_us, step_us);
    average(&e->decode_items, e->n_items);
}

static void measure_link(struct kv_engine *e)
{
    double us = 0;
    uint64_t moved = e->stats.tier[0].bytes_in - e->h2d_bytes;
    for (int32_t l = 0; l < e->n_timings; l++) us += e->timings_out[l].fetch_us;
    e->h2d_bytes += moved;
    if (moved >= LEAST_MOVED_BYTES && us > 0) ability(&e->h2d_us_per_byte, us / (double)moved);
}

void kv_engine_rates(struct kv_engine *e, struct kv_rates *out)
{
    measure_link(e);
    double copy = kv_pauses_copy_rate(e), link = e->config.link_bytes_per_second;
    if (link > 0 && link < copy) copy = link;
    *out = (struct kv_rates){.prefill_tokens_per_s = e->us_per_row > 0 ? 1e6 / e->us_per_row : 0,
                             .decode_tokens_per_s = e->decode_step_us > 0 ? 1e6 * e->decode_items / e->decode_step_us : 0, .decode_step_us = e->decode_step_us,
                             .h2d_bytes_per_s = e->h2d_us_per_byte > 0 ? 1e6 / e->h2d_us_per_byte : copy, .d2h_bytes_per_s = copy,
                             .disk_read_bytes_per_s = e->stats.turns.restore_bytes_per_second, .disk_write_bytes_per_s = e->stats.turns.save_bytes_per_second,
                             .h2d_promised = e->h2d_promised, .d2h_promised = e->d2h_promised, .waiting_prompt_tokens = e->queued_tokens,
                             .swap_bytes_per_iteration = kv_pauses_cap_bytes(e)};
    for (int32_t i = 0; i < e->n_live; i++) out->live_tokens_left += e->live[i]->max_tokens - (e->live[i]->n_tokens - e->live[i]->n_prompt);
}
