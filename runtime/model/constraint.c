/* constraint.c — see constraint.h. A path is a stack of values that have begun; a byte moves every path, drops it, or splits it. */
#include "runtime/model/constraint.h"
#include "runtime/model/model.h"

#include <stdlib.h>
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

static void copy_path(struct path *to, const struct path *from)
{
    to->depth = from->depth;
    to->spaces = from->spaces;
    memcpy(to->frame, from->frame, (size_t)from->depth * sizeof *from->frame);
}

static void keep(struct paths *out, const struct path *p)
{
    if (out->n < MAX_PATHS) copy_path(&out->path[out->n++], p); /* every path can be completed, so one less is still right */
}

static struct frame *top(struct path *p)
{
    return &p->frame[p->depth - 1];
}

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

static bool push(const struct kv_constraint *c, struct path *p, int32_t node)
{
    if (p->depth + (node < 0 ? 1 : c->depth[node]) > MAX_DEPTH) return false;
    p->frame[p->depth++] = (struct frame){.node = node, .kind = node < 0 ? KV_SCHEMA_STRING : c->node[node].kind};
    return true;
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
    if (push(c, &c->now.path[0], 0)) {
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

/* ---------------------------------------------------------------- literals and keys */

static bool has(const struct frame *f, int32_t i) { return f->candidates[i / 64] >> i % 64 & 1; }
static void set(struct frame *f, int32_t i) { f->candidates[i / 64] |= UINT64_C(1) << i % 64; }

/* Narrows the candidates by one byte; false when none is left. */
static bool narrow(const struct kv_constraint *c, struct frame *f, uint8_t byte)
{
    const struct kv_schema_node *n = &c->node[f->node];
    uint64_t left[WORDS] = {0}, any = 0;
    for (int32_t i = 0; i < n->n; i++)
        if (has(f, i) && (uint8_t)c->item[n->first + i].text[f->offset] == byte) left[i / 64] |= UINT64_C(1) << i % 64; /* the end holds 0, which no byte equals */
    for (int w = 0; w < WORDS; w++) any |= left[w];
    if (!any || byte == 0) return false;
    memcpy(f->candidates, left, sizeof left);
    f->offset++;
    return true;
}

/* The candidate that ends here, or -1. */
static int32_t ended(const struct kv_constraint *c, const struct frame *f)
{
    const struct kv_schema_node *n = &c->node[f->node];
    for (int32_t i = 0; i < n->n; i++)
        if (has(f, i) && !c->item[n->first + i].text[f->offset]) return i;
    return -1;
}

/* Properties that may come next, as far as their values still nest: from the index to the first required one. False when there is none. */
static bool keys_to_come(const struct kv_constraint *c, struct frame *f, int32_t depth)
{
    const struct kv_schema_node *n = &c->node[f->node];
    bool any = false;
    memset(f->candidates, 0, sizeof f->candidates);
    for (int32_t i = f->index; i < n->n; i++) {
        const struct kv_schema_item *it = &c->item[n->first + i];
        if (depth + c->depth[it->node] <= MAX_DEPTH) set(f, i), any = true;
        if (it->required) break;
    }
    return any;
}

static bool lacks_required(const struct kv_constraint *c, const struct frame *f)
{
    const struct kv_schema_node *n = &c->node[f->node];
    for (int32_t i = f->index; i < n->n; i++)
        if (c->item[n->first + i].required) return true;
    return false;
}

/* Node of every value of a free object, of the items of an array; an ANY holds anything again. */
static int32_t inner(const struct kv_constraint *c, const struct frame *f)
{
    return c->node[f->node].kind == KV_SCHEMA_ANY ? f->node : c->node[f->node].value;
}

/* ---------------------------------------------------------------- one byte */

static bool is_space(uint8_t b) { return b == ' ' || b == '\n' || b == '\t' || b == '\r'; }
static bool is_digit(uint8_t b) { return b >= '0' && b <= '9'; }

static bool begin_kind(struct frame *f, enum kv_schema_kind kind, enum phase phase)
{
    bool ok = f->kind == kind || f->kind == KV_SCHEMA_ANY || (kind == KV_SCHEMA_NUMBER && f->kind == KV_SCHEMA_INTEGER);
    if (ok && f->kind == KV_SCHEMA_ANY) f->kind = kind;
    f->phase = phase;
    return ok;
}

/* true, false and null where anything may stand: told by their first byte, spelt by `offset`. */
static const char *word(uint8_t first) { return first == 't' ? "true" : first == 'f' ? "false" : "null"; }

static void begin_value(const struct kv_constraint *c, struct path *p, uint8_t b, struct paths *out)
{
    struct frame *f = top(p);
    bool ok = false;
    if (f->kind == KV_SCHEMA_LITERALS) {
        for (int32_t i = 0; i < c->node[f->node].n; i++) set(f, i);
        f->phase = LITERAL;
        ok = narrow(c, f, b);
    } else if (b == '{') ok = begin_kind(f, KV_SCHEMA_OBJECT, FIRST_KEY);
    else if (b == '[') ok = begin_kind(f, KV_SCHEMA_ARRAY, FIRST_ITEM);
    else if (b == '"') ok = begin_kind(f, KV_SCHEMA_STRING, TEXT);
    else if (b == '-') ok = begin_kind(f, KV_SCHEMA_NUMBER, MINUS);
    else if (is_digit(b)) ok = begin_kind(f, KV_SCHEMA_NUMBER, b == '0' ? ZERO : DIGITS);
    else if (b == 't' || b == 'f' || b == 'n') {
        ok = f->kind == KV_SCHEMA_ANY;
        f->kind = KV_SCHEMA_LITERALS;
        f->phase = LITERAL;
        f->hex = b;
        f->offset = 1;
    }
    p->spaces = 0;
    if (ok) keep(out, p);
}

/* The value on top, or every one that its alternatives come down to, once each: alternatives of alternatives may name one in more ways than can be tried. */
static void begin(const struct kv_constraint *c, struct path *p, uint8_t b, struct paths *out)
{
    int32_t list[KV_SCHEMA_MAX_NODES] = {top(p)->node}, n_list = 1;
    bool listed[KV_SCHEMA_MAX_NODES] = {false};
    p->depth--;
    listed[list[0]] = true;
    for (int32_t i = 0; i < n_list; i++) {
        const struct kv_schema_node *n = &c->node[list[i]];
        struct path q;
        for (int32_t j = n->first; n->kind == KV_SCHEMA_ANY_OF && j < n->first + n->n; j++) {
            int32_t to = c->item[j].node;
            if (!listed[to]) list[n_list++] = to;
            listed[to] = true;
        }
        if (n->kind == KV_SCHEMA_ANY_OF) continue;
        copy_path(&q, p);
        if (push(c, &q, list[i])) begin_value(c, &q, b, out);
    }
}

/* The first byte of a character in a string: how many follow, and between what the next one lies. */
static bool begin_character(struct frame *f, uint8_t b)
{
    f->low = 0x80;
    f->high = 0xbf;
    if (b < 0x80) return f->more = 0, b >= 0x20;
    if (b < 0xc2 || b > 0xf4) return false;
    f->more = b < 0xe0 ? 1 : b < 0xf0 ? 2 : 3;
    if (b == 0xe0) f->low = 0xa0;
    if (b == 0xed) f->high = 0x9f;
    if (b == 0xf0) f->low = 0x90;
    if (b == 0xf4) f->high = 0x8f;
    return true;
}

static bool is_hex(uint8_t b) { return is_digit(b) || (b >= 'a' && b <= 'f') || (b >= 'A' && b <= 'F'); }

/* false: refused. *closed: the quote that ends it. */
static bool in_string(const struct kv_constraint *c, struct frame *f, uint8_t b, bool *closed)
{
    const struct kv_schema_node *n = f->node < 0 || c->node[f->node].kind == KV_SCHEMA_ANY ? NULL : &c->node[f->node];
    if (f->phase == HEX) { /* no surrogates: those characters are written as themselves */
        if (!is_hex(b) || (f->hex == 1 && f->surrogate && (b > '7'))) return false;
        if (f->hex == 0) f->surrogate = b == 'd' || b == 'D';
        if (++f->hex == 4) f->phase = TEXT;
        return true;
    }
    if (f->phase == ESCAPE) {
        f->phase = b == 'u' ? HEX : TEXT;
        f->hex = f->surrogate = 0;
        return b && strchr("\"\\/bfnrtu", b);
    }
    if (f->more) {
        if (b < f->low || b > f->high) return false;
        f->more--;
        f->low = 0x80;
        f->high = 0xbf;
        return true;
    }
    if (b == '"') return *closed = true, !n || f->count >= n->min;
    if ((n && n->max >= 0 && f->count >= n->max) || !begin_character(f, b)) return false;
    if (b == '\\') f->phase = ESCAPE;
    f->count++;
    return true;
}

static bool number_complete(const struct frame *f)
{
    return f->phase == ZERO || f->phase == DIGITS || f->phase == FRACTION || f->phase == EXPONENT;
}

/* false: the byte is no part of the number. */
static bool in_number(const struct kv_constraint *c, struct frame *f, uint8_t b)
{
    bool whole = c->node[f->node].kind == KV_SCHEMA_INTEGER;
    if (is_digit(b)) {
        if (f->phase == ZERO || ++f->count >= MAX_DIGITS) return false;
        if (f->phase == MINUS) f->phase = b == '0' ? ZERO : DIGITS;
        else if (f->phase == POINT) f->phase = FRACTION;
        else if (f->phase == E || f->phase == E_SIGN) f->phase = EXPONENT;
        return true;
    }
    /* A number that ends in '.' or 'e' needs a digit more. */
    if (whole || f->count + 2 >= MAX_DIGITS) return false;
    if (b == '.' && (f->phase == ZERO || f->phase == DIGITS)) return f->phase = POINT, true;
    if ((b == 'e' || b == 'E') && (f->phase == ZERO || f->phase == DIGITS || f->phase == FRACTION)) return f->phase = E, true;
    if ((b == '+' || b == '-') && f->phase == E) return f->phase = E_SIGN, true;
    return false;
}

static void in_container(const struct kv_constraint *c, struct path *p, uint8_t b, struct paths *out)
{
    struct frame *f = top(p);
    bool object = f->kind == KV_SCHEMA_OBJECT, free_keys = c->node[f->node].kind == KV_SCHEMA_ANY || c->node[f->node].n == 0;
    const struct kv_schema_node *n = &c->node[f->node];
    int32_t value = inner(c, f), most = n->kind == KV_SCHEMA_ARRAY ? n->max : -1, least = n->kind == KV_SCHEMA_ARRAY ? n->min : 0;
    bool fits = value >= 0 && p->depth + c->depth[value] <= MAX_DEPTH;
    bool ends = b == (object ? '}' : ']') && (f->phase == AFTER_VALUE || f->phase == FIRST_KEY || f->phase == FIRST_ITEM);
    p->spaces = 0;
    if (ends) {
        if (object ? !free_keys && lacks_required(c, f) : f->count < least) return;
        p->depth--;
        keep(out, p);
    } else if (object && (f->phase == FIRST_KEY || f->phase == NEXT_KEY) && b == '"') {
        if (free_keys) {
            if (!fits) return;
            f->phase = COLON;
            if (!push(c, p, -1)) return;
            top(p)->phase = TEXT;
        } else {
            if (!keys_to_come(c, f, p->depth)) return;
            f->offset = 0;
            f->phase = KEY;
            if (!narrow(c, f, b)) return;
        }
        keep(out, p);
    } else if (object && f->phase == COLON && b == ':') {
        f->phase = AFTER_VALUE;
        if (push(c, p, free_keys ? value : c->item[n->first + f->index - 1].node)) keep(out, p);
    } else if (f->phase == AFTER_VALUE && b == ',') {
        if (object ? (free_keys ? !fits : !keys_to_come(c, f, p->depth)) : most >= 0 && f->count >= most) return;
        f->phase = object ? NEXT_KEY : AFTER_VALUE;
        if (!object) {
            f->count += f->count < INT32_MAX;
            if (!push(c, p, value)) return;
        }
        keep(out, p);
    } else if (f->phase == FIRST_ITEM && most != 0) {
        f->phase = AFTER_VALUE;
        f->count = 1;
        if (push(c, p, value)) begin(c, p, b, out);
    }
}

static void step(const struct kv_constraint *c, const struct path *from, uint8_t b, struct paths *out)
{
    struct path p;
    copy_path(&p, from);
    while (p.depth) { /* numbers and literals end at a byte that belongs to what encloses them */
        struct frame *f = top(&p);
        bool closed = false, goes_on;
        if (f->phase == TEXT || f->phase == ESCAPE || f->phase == HEX) {
            if (!in_string(c, f, b, &closed)) return;
            p.depth -= closed;
            keep(out, &p);
            return;
        }
        if (f->phase == LITERAL) {
            bool spelt = c->node[f->node].kind == KV_SCHEMA_ANY;
            if (spelt) goes_on = b && (uint8_t)word(f->hex)[f->offset] == b;
            else goes_on = narrow(c, f, b);
            if (goes_on) {
                f->offset += spelt;
                keep(out, &p);
                return;
            }
            if (spelt ? word(f->hex)[f->offset] != 0 : ended(c, f) < 0) return;
            p.depth--;
            continue;
        }
        if (f->phase >= MINUS && f->phase <= EXPONENT) {
            if (in_number(c, f, b)) {
                keep(out, &p);
                return;
            }
            if (!number_complete(f)) return;
            p.depth--;
            continue;
        }
        if (f->phase == KEY) {
            if (!narrow(c, f, b)) return;
            int32_t i = ended(c, f);
            if (i >= 0) f->index = i + 1, f->phase = COLON;
            keep(out, &p);
            return;
        }
        if (is_space(b)) {
            if (p.spaces++ < MAX_SPACES) keep(out, &p);
            return;
        }
        if (f->phase == START) begin(c, &p, b, out);
        else in_container(c, &p, b, out);
        return;
    }
}

static bool advance(const struct kv_constraint *c, const struct paths *from, const char *bytes, size_t n, struct paths scratch[2], const struct paths **end)
{
    for (size_t i = 0; i < n; i++) {
        struct paths *to = &scratch[i % 2];
        to->n = 0;
        for (int32_t j = 0; j < from->n; j++) step(c, &from->path[j], (uint8_t)bytes[i], to);
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

static bool path_complete(const struct kv_constraint *c, const struct path *p)
{
    if (p->depth != 1) return p->depth == 0;
    const struct frame *f = &p->frame[0];
    if (f->phase == LITERAL) return c->node[f->node].kind == KV_SCHEMA_ANY ? !word(f->hex)[f->offset] : ended(c, f) >= 0;
    return number_complete(f);
}

bool kv_constraint_complete(const struct kv_constraint *c)
{
    for (int32_t i = 0; i < c->now.n; i++)
        if (path_complete(c, &c->now.path[i])) return true;
    return false;
}

bool kv_constraint_closed(const struct kv_constraint *c)
{
    for (int32_t i = 0; i < c->now.n; i++)
        if (c->now.path[i].depth) return false;
    return true;
}

/* ---------------------------------------------------------------- tokens */

/* Text that a string takes whatever it is, if it is long enough: no quote, no escape, no control character, whole characters. */
static bool is_plain(const struct kv_piece *p)
{
    struct frame f = {0};
    for (uint32_t i = 0; i < p->len; i++) {
        uint8_t b = (uint8_t)p->text[i];
        if (f.more) {
            if (b < f.low || b > f.high) return false;
            f.more--;
            f.low = 0x80;
            f.high = 0xbf;
        } else if (b == '"' || b == '\\' || !begin_character(&f, b)) return false;
    }
    return f.more == 0;
}

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
                      ((p->len <= plain && is_plain(p)) || p->len == 1 || advance(c, &c->now, p->text, p->len, scratch, &end));
        some |= allowed[id];
    }
    return some;
}
