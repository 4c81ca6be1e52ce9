/* stream_text.h — bytes of tokens to pieces of text: whole UTF-8 sequences only, stop strings found wherever tokens cut them.
 *
 * A value type without allocation after init; used by the decode thread at publication, so it always stands at the published state. */
#ifndef KV_STREAM_TEXT_H
#define KV_STREAM_TEXT_H

#include "runtime/kvasir.h"

#define KV_MAX_STOP_BYTES 128
#define KV_MAX_TOKEN_BYTES 1024 /* of one token that is still shown as text; longer ones are cut */

struct kv_text {
    char stop[KV_MAX_STOPS][KV_MAX_STOP_BYTES];
    int32_t n_stops;
    int32_t n;             /* bytes held back */
    char held[2 * KV_MAX_TOKEN_BYTES];
    bool stopped;          /* a stop string was found: held ends before it and nothing more is taken */
};

/* BAD_ARGUMENT for an empty or too long stop string. */
enum kv_status kv_text_init(struct kv_text *t, const char *const *stops, struct kv_error *err);
/* Takes the bytes of one token. Returns true when they complete a stop string. */
bool kv_text_add(struct kv_text *t, const char *bytes, size_t n);
/* Moves up to cap bytes that may be shown into out, cut between characters; returns how many. flush: the answer has ended, so what might
 * have begun a stop string may go too; an unfinished character becomes U+FFFD. */
int32_t kv_text_take(struct kv_text *t, bool flush, char *out, int32_t cap);

#endif
