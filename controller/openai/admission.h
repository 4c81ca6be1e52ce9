/* admission.h — a request put to the admission policy: what it would take and how long, from rates the engine has measured. */
#ifndef KV_ADMISSION_H
#define KV_ADMISSION_H

#include "controller/openai/openai.h"

struct kv_admission_estimate { /* of an answer's whole time, in ms; a part whose rate is not measured yet is 0 */
    double queue_ms, transfer_ms, prefill_ms, decode_ms;
};
/* bytes: that cross the link before the first step, behind `setup_us`. Pure. */
void kv_admission_estimate(const struct kv_engine_stats *s, int32_t max_sequences, int32_t prompt_tokens, int32_t max_tokens, uint64_t bytes, double setup_us,
                           struct kv_admission_estimate *out);
/* Before submit: sets o->q.priority, and sends to the baseline what the policy does not let move. A request that moves nothing and need not wait is not asked about. */
void kv_admission_ask(struct kv_openai *o);

#endif
