/* unicode.h — UTF-8 and the few classes of characters that pre-tokenizers ask for. Pure functions. */
#ifndef KV_UNICODE_H
#define KV_UNICODE_H

#include <stddef.h>
#include <stdint.h>

/* Numbers as tools/unicode_tables.py writes them. */
enum kv_char_class { KV_CHAR_OTHER, KV_CHAR_LETTER, KV_CHAR_NUMBER, KV_CHAR_SPACE, KV_CHAR_PUNCTUATION };

enum kv_char_class kv_char_class(uint32_t code_point);
/* The character at text[0..len), len > 0, and its length. A byte that begins no valid sequence is U+FFFD of length 1. */
uint32_t kv_utf8_decode(const char *text, size_t len, size_t *used);

#endif
