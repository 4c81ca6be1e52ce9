/* constraint.c — see constraint.h. A path is a stack of values that have begun; a byte moves every path (constraint_step.c). */
#include "runtime/model/constraint_internal.h"
#include "runtime/model/model.h"

#include <stdlib.h>

/* ---------------------------------------------------------------- create */

static bool shape_is_whole(const struct kv_schema *s)
{
    if (s->n_nodes < 1 || s->n_nodes > KV_SCHEMA_MAX_NODES || s->n_items < 0) return false;
    for (int32_t i = 0; i < s->n_nodes; i++) {
        const struct kv_schema_node *n = &s->node[i];
        if (n->n < 0 || n->n > KV_SCHEMA_MAX_ITEMS || n->first < 0 || n->first > s->n_items - n->n || n->value < -1 || n->value >= s->n_nodes) return false;
        bool needs_items = n->kind == KV_SCHEMA_LITERALS || n->kind == KV_SCHEMA_ANY_OF;
        if ((needs_items && n->n == 0) || (n->kind == KV_SCHEMA_ARRAY && n->value < 0) || (n->max >= 0 && n->min > n->max)) return false;
        for (int32_t j = n->first; j < n->first + n->n; j++) {
            const struct kv_schema_item *it = &s->item[j];
            if (n->kind != KV_SCHEMA_LITERALS && (it->node < 0 || it->node >= s->n_nodes)) return false;
            if (n->kind != KV_SCHEMA_ANY_OF && (!it->text || !*it->text)) return false;
        }
    }
    return true;
}

static int32_t depth_of(const struct kv_constraint *c, const struct kv_schema_node *n)
{
    int32_t d = 0, best = NO_DEPTH;
    switch (n->kind) {
    case KV_SCHEMA_OBJECT:
        for (int32_t j = n->first; j < n->first + n->n; j++)
            if (c->item[j].required && c->depth[c->item[j].node] > d) d = c->depth[c->item[j].node];
        break;
    case KV_SCHEMA_ARRAY:
        if (n->min > 0) d = c->depth[n->value];
        break;
    case KV_SCHEMA_ANY_OF:
        for (int32_t j = n->first; j < n->first + n->n; j++)
            if (c->depth[c->item[j].node] < best) best = c->depth[c->item[j].node];
        return best;
    default: break;
    }
    return d >= NO_DEPTH ? NO_DEPTH : d + 1;
}

static void find_depths(struct kv_constraint *c)
{
    for (int32_t i = 0; i < c->n_nodes; i++) c->depth[i] = NO_DEPTH;
    for (bool changed = true; changed;) {
        changed = false;
        for (int32_t i = 0; i < c->n_nodes; i++) {
            int32_t d = depth_of(c, &c->node[i]);
            if (d < c->depth[i]) c->depth[i] = d, changed = true;
        }
    }
}

enum kv_status kv_constraint_create(const struct kv_schema *s, struct kv_constraint **out, struct kv_error *err)
{
    *out = NULL;
    if (!shape_is_whole(s)) {
        kv_fail(err, KV_BAD_ARGUMENT, "response_format", "the schema has no value or refers to what is not there");
        kv_hint(err, "minItems and minLength must not exceed maxItems and maxLength; every enum and anyOf needs an entry");
        return KV_BAD_ARGUMENT;
    }
    size_t bytes = 1;
    for (int32_t i = 0; i < s->n_items; i++) bytes += s->item[i].text ? strlen(s->item[i].text) + 1 : 0;
    struct kv_constraint *c = calloc(1, sizeof *c);
    if (!c) return kv_fail(err, KV_OUT_OF_MEMORY, "response_format", "no memory for the schema");
    c->node = malloc((size_t)s->n_nodes * sizeof *c->node);
    c->item = malloc(((size_t)s->n_items + 1) * sizeof *c->item);
    c->depth = malloc((size_t)s->n_nodes * sizeof *c->depth);
    char *at = c->text = malloc(bytes);
    if (!c->node || !c->item || !c->depth || !at) {
        kv_constraint_destroy(c);
        return kv_fail(err, KV_OUT_OF_MEMORY, "response_format", "no memory for the schema");
    }
    c->n_nodes = s->n_nodes;
    c->n_items = s->n_items;
    memcpy(c->node, s->node, (size_t)s->n_nodes * sizeof *c->node);
    for (int32_t i = 0; i < s->n_items; i++) {
        c->item[i] = s->item[i];
        if (!s->item[i].text) continue;
        size_t n = strlen(s->item[i].text) + 1;
        c->item[i].text = memcpy(at, s->item[i].text, n);
        at += n;
    }
    find_depths(c);
    c->now.n = 1;
    if (kv_constraint_push(c, &c->now.path[0], 0)) {
        *out = c;
        return KV_OK;
    }
    kv_constraint_destroy(c);
    kv_fail(err, KV_BAD_ARGUMENT, "response_format", "no value that nests at most %d deep fits the schema", MAX_DEPTH);
    kv_hint(err, "a schema that refers to itself needs a way to end: an optional property, an array that may be empty, or another alternative");
    return KV_BAD_ARGUMENT;
}

void kv_constraint_destroy(struct kv_constraint *c)
{
    if (!c) return;
    free(c->node);
    free(c->item);
    free(c->depth);
    free(c->text);
    free(c);
}

static bool advance(const struct kv_constraint *c, const struct paths *from, const char *bytes, size_t n, struct paths scratch[2], const struct paths **end)
{
    for (size_t i = 0; i < n; i++) {
        struct paths *to = &scratch[i % 2];
        to->n = 0;
        for (int32_t j = 0; j < from->n; j++) kv_constraint_step(c, &from->path[j], (uint8_t)bytes[i], to);
        if (!to->n) return false;
        from = to;
    }
    *end = from;
    return true;
}

bool kv_constraint_feed(struct kv_constraint *c, const char *bytes, size_t n)
{
    struct paths scratch[2];
    const struct paths *end;
    if (!advance(c, &c->now, bytes, n, scratch, &end)) return false;
    if (n == 0) return true;
    c->now.n = 0;
    for (int32_t i = 0; i < end->n; i++) keep(&c->now, &end->path[i]);
    return true;
}

bool kv_constraint_complete(const struct kv_constraint *c)
{
    for (int32_t i = 0; i < c->now.n; i++)
        if (kv_constraint_path_complete(c, &c->now.path[i])) return true;
    return false;
}

bool kv_constraint_closed(const struct kv_constraint *c)
{
    for (int32_t i = 0; i < c->now.n; i++)
        if (c->now.path[i].depth) return false;
    return true;
}

/* ---------------------------------------------------------------- tokens */

/* Characters that the string on top takes whatever they are. */
static int32_t free_characters(const struct kv_constraint *c, const struct path *p)
{
    if (!p->depth) return 0;
    const struct frame *f = &p->frame[p->depth - 1];
    if (f->phase != TEXT || f->more) return 0;
    bool bounded = f->node >= 0 && c->node[f->node].kind == KV_SCHEMA_STRING && c->node[f->node].max >= 0;
    return bounded ? c->node[f->node].max - f->count : INT32_MAX;
}

bool kv_constraint_mask(const struct kv_constraint *c, const struct kv_model *m, uint8_t *allowed)
{
    const struct kv_tokenizer *t = m->tokenizer;
    struct paths scratch[2];
    const struct paths *end;
    bool first[256], some = false, complete = kv_constraint_complete(c);
    uint32_t plain = 0; /* bytes of plain text that fit for certain: a character has at least one */
    for (int b = 0; b < 256; b++) first[b] = advance(c, &c->now, (char[]){(char)b}, 1, scratch, &end);
    for (int32_t i = 0; i < c->now.n; i++) {
        uint32_t n = (uint32_t)free_characters(c, &c->now.path[i]);
        if (n > plain) plain = n;
    }
    for (int32_t id = 0; id < t->n_tokens; id++) {
        const struct kv_piece *p = &t->pieces[id];
        bool text = t->kind[id] != KV_TOKEN_CONTROL && t->kind[id] != KV_TOKEN_UNKNOWN && t->kind[id] != KV_TOKEN_UNUSED && p->len && !t->ends_turn[id];
        allowed[id] = t->ends_turn[id] ? complete : text && first[(uint8_t)p->text[0]] &&
                      ((p->len <= plain && kv_constraint_is_plain(p)) || p->len == 1 || advance(c, &c->now, p->text, p->len, scratch, &end));
        some |= allowed[id];
    }
    return some;
}
