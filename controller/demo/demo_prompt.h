/* demo_prompt.h — documents that state facts far apart and ask for one: what the small model was trained to recall. */
#ifndef KV_DEMO_PROMPT_H
#define KV_DEMO_PROMPT_H

#include <stddef.h>
#include <stdint.h>

enum kv_demo_kind { KV_DEMO_NUMBERS, KV_DEMO_PASSKEY, KV_DEMO_PAIRS, KV_DEMO_RECITE, KV_DEMO_KINDS };

/* The same (kind, lines, seed) gives the same text. It ends right before the answer. Returns its length, 0 when it does not fit. */
size_t kv_demo_prompt(enum kv_demo_kind kind, int lines, uint64_t seed, char *out, size_t cap);

#endif
