/* constraint_internal.h — paths through a schema: what constraint.c keeps of them and constraint_step.c moves by one byte. */
#ifndef KV_CONSTRAINT_INTERNAL_H
#define KV_CONSTRAINT_INTERNAL_H

#include "runtime/model/constraint.h"
#include "runtime/model/tokenizer.h"

#include <string.h>

enum { MAX_DEPTH = 32, MAX_PATHS = 8, MAX_SPACES = 24, MAX_DIGITS = 24, NO_DEPTH = 1 << 20, WORDS = KV_SCHEMA_MAX_ITEMS / 64 };

enum phase {
    START,                                     /* of any value */
    FIRST_KEY, KEY, COLON, AFTER_VALUE, NEXT_KEY, /* object; AFTER_VALUE: array too */
    FIRST_ITEM,                                /* array */
    TEXT, ESCAPE, HEX,                         /* string */
    MINUS, ZERO, DIGITS, POINT, FRACTION, E, E_SIGN, EXPONENT, /* number */
    LITERAL
};

struct frame {
    int32_t node;              /* -1: a free key, or text of any length */
    enum kv_schema_kind kind;  /* what an ANY has turned out to be */
    enum phase phase;
    int32_t count;             /* items, characters, digits */
    int32_t index;             /* object: first property that may come */
    uint32_t offset;           /* in a key or literal */
    uint8_t more, low, high, hex, surrogate; /* text: bytes of the character to come and the range of the next */
    uint64_t candidates[WORDS]; /* keys or literals that fit so far */
};

struct path {
    int32_t depth, spaces;
    struct frame frame[MAX_DEPTH];
};

struct paths {
    int32_t n;
    struct path path[MAX_PATHS];
};

struct kv_constraint {
    struct kv_schema_node *node;
    struct kv_schema_item *item;
    int32_t n_nodes, n_items;
    char *text;
    int32_t *depth; /* [n_nodes] least nesting a value needs */
    struct paths now;
};

static inline void copy_path(struct path *to, const struct path *from)
{
    to->depth = from->depth;
    to->spaces = from->spaces;
    memcpy(to->frame, from->frame, (size_t)from->depth * sizeof *from->frame);
}

static inline void keep(struct paths *out, const struct path *p)
{
    if (out->n < MAX_PATHS) copy_path(&out->path[out->n++], p); /* every path can be completed, so one less is still right */
}

/* Begins a value of a node, -1 for a free key; false when it cannot nest that deep. */
bool kv_constraint_push(const struct kv_constraint *c, struct path *p, int32_t node);
/* What becomes of a path by one byte, added to out: nothing, one path or several. */
void kv_constraint_step(const struct kv_constraint *c, const struct path *from, uint8_t b, struct paths *out);
/* Whether the answer may end here. */
bool kv_constraint_path_complete(const struct kv_constraint *c, const struct path *p);
/* Text that a string takes whatever it is, if it is long enough: no quote, no escape, no control character, whole characters. */
bool kv_constraint_is_plain(const struct kv_piece *p);

#endif
