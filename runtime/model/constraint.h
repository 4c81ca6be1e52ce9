/* constraint.h — answers that are JSON of a given shape: an automaton over the bytes of tokens, so that only tokens which can still lead to
 * such an answer are drawn.
 *
 * A schema is a graph of nodes made by whoever can read JSON (controller/openai/openai_schema.c). What is produced is always valid under it; not
 * everything valid is produced: properties come in the schema's order, none that it does not name, white space is short, numbers have at
 * most 24 digits, nesting ends at 32. Where alternatives begin alike the automaton follows up to 8 of them at once. A constraint belongs to one
 * sequence; kv_constraint_mask only reads it. */
#ifndef KV_CONSTRAINT_H
#define KV_CONSTRAINT_H

#include "runtime/kvasir.h"

struct kv_constraint;
/* Copies the schema. BAD_ARGUMENT when a node is out of range, no value within the nesting fits it, or alternatives
 * name nothing but each other. */
enum kv_status kv_constraint_create(const struct kv_schema *s, struct kv_constraint **out, struct kv_error *err);
void kv_constraint_destroy(struct kv_constraint *c);

/* false, and nothing changed, when no answer begins so. */
bool kv_constraint_feed(struct kv_constraint *c, const char *bytes, size_t n);
bool kv_constraint_complete(const struct kv_constraint *c); /* what was fed is an answer */
bool kv_constraint_closed(const struct kv_constraint *c);   /* and nothing can follow it */
/* allowed[id]: 1 when the token may come next. Turn-ending tokens may once the answer is complete. False when none may. */
bool kv_constraint_mask(const struct kv_constraint *c, const struct kv_model *m, uint8_t *allowed);

#endif
