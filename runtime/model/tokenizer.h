/* tokenizer.h — a model's vocabulary and how text becomes its tokens. Immutable after creation; any thread.
 *
 * Pieces are byte strings with numbers: 0 … n_tokens-1 are the tokens, later ones only exist inside byte-pair merges. Their text is
 * what they stand for in a text: plain spaces and bytes, not the file's "▁" or byte alphabet. */
#ifndef KV_TOKENIZER_H
#define KV_TOKENIZER_H

#include "runtime/kvasir.h"
#include "runtime/model/gguf.h"
#include "runtime/model/tokenizer_merge.h"
#include "runtime/model/tokenizer_split.h"

#define KV_MAX_TEXT_BYTES (4u << 20)      /* of one tokenisation */
#define KV_MAX_TOKEN_BYTES 65535
#define KV_MAX_MERGES (1 << 22)
#define KV_MAX_SPECIAL_LENGTHS 256        /* distinct lengths of control tokens */

enum kv_token_kind { KV_TOKEN_NORMAL = 1, KV_TOKEN_UNKNOWN = 2, KV_TOKEN_CONTROL = 3, KV_TOKEN_USER = 4, KV_TOKEN_UNUSED = 5, KV_TOKEN_BYTE = 6 };

struct kv_piece {
    const char *text;
    uint32_t len;
};

struct kv_piece_map { /* open addressing; a slot holds number + 1 */
    uint32_t *slots;
    size_t n_slots; /* a power of two */
};

struct kv_merge_rule {
    uint64_t pair; /* left << 32 | right; UINT64_MAX: empty */
    int32_t rank, piece;
};

struct kv_tokenizer {
    bool spm;                     /* SentencePiece by scores; otherwise byte-level merges by rank */
    enum kv_split split;
    bool whole_words;             /* a word that is a token needs no merges */
    bool add_bos, add_space_prefix;
    int32_t bos, eos, eot, unk;   /* -1: none */
    int32_t n_tokens, n_pieces;
    struct kv_piece *pieces;
    uint8_t *kind;                /* [n_tokens] enum kv_token_kind */
    float *scores;                /* [n_tokens], SentencePiece */
    int32_t byte_piece[256];      /* piece or byte token of each byte, -1: none */
    struct kv_piece_map ordinary; /* pieces that text can become by itself */
    struct kv_piece_map special;  /* control, unknown and user-defined tokens */
    uint32_t special_len[KV_MAX_SPECIAL_LENGTHS]; /* descending */
    int32_t n_special_len;
    bool special_first[256];      /* bytes that begin one */
    bool *ends_turn;              /* [n_tokens] */
    struct kv_merge_rule *rules;
    size_t n_rule_slots;          /* a power of two */
    char *text;                   /* what pieces point into */
    struct kv_gguf_string chat_template; /* in the file; len 0: none */
};

/* MODEL_MALFORMED, UNKNOWN_TOKENIZER. The index must outlive the tokenizer. */
enum kv_status kv_tokenizer_create(const struct kv_gguf *g, int32_t n_vocab, struct kv_tokenizer **out, struct kv_error *err);
void kv_tokenizer_destroy(struct kv_tokenizer *t);
/* Bytes [from, to) of a text that somebody else wrote: no control token begins, ends or lies in them. */
struct kv_quoted {
    size_t from, to;
};
/* quoted: ascending and apart from each other, or NULL. */
enum kv_status kv_tokenizer_encode(const struct kv_tokenizer *t, const char *text, size_t len, bool special, const struct kv_quoted *quoted,
                                   size_t n_quoted, int32_t *ids, size_t cap, size_t *n, struct kv_error *err);
size_t kv_tokenizer_bytes(const struct kv_tokenizer *t, int32_t id, bool special, char *out, size_t cap);
enum kv_status kv_tokenizer_decode(const struct kv_tokenizer *t, const int32_t *ids, size_t n, bool special, char *out, size_t cap, size_t *len);

/* ---------------------------------------------------------------- for the two kinds of tokenizer */

struct kv_token_sink { /* counts beyond its capacity */
    int32_t *ids;
    size_t cap, n;
};
void kv_token_put(struct kv_token_sink *s, int32_t id);

enum kv_status kv_piece_map_create(struct kv_piece_map *m, size_t n);
void kv_piece_map_put(struct kv_piece_map *m, const struct kv_piece *pieces, int32_t number); /* a later number replaces an equal text */
int32_t kv_piece_map_get(const struct kv_piece_map *m, const struct kv_piece *pieces, const char *text, size_t len); /* -1: none */

/* Read what is particular to a kind: piece texts into t->text, maps, byte pieces, merges. */
enum kv_status kv_spm_load(struct kv_tokenizer *t, const struct kv_gguf *g, struct kv_error *err);
enum kv_status kv_bpe_load(struct kv_tokenizer *t, const struct kv_gguf *g, struct kv_error *err);
/* Text without special tokens in it. after_special: at the start, or after a special token. */
enum kv_status kv_spm_encode(const struct kv_tokenizer *t, struct kv_merge_space *m, const char *text, size_t len, bool after_special, struct kv_token_sink *out);
enum kv_status kv_bpe_encode(const struct kv_tokenizer *t, struct kv_merge_space *m, const char *text, size_t len, struct kv_token_sink *out);

#endif
