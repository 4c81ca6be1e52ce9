/* constraint_step.c — one byte moves a path, drops it, or splits it: literals, keys, strings, numbers, containers. */
#include "runtime/model/constraint_internal.h"

static struct frame *top(struct path *p)
{
    return &p->frame[p->depth - 1];
}

bool kv_constraint_push(const struct kv_constraint *c, struct path *p, int32_t node)
{
    if (p->depth + (node < 0 ? 1 : c->depth[node]) > MAX_DEPTH) return false;
    p->frame[p->depth++] = (struct frame){.node = node, .kind = node < 0 ? KV_SCHEMA_STRING : c->node[node].kind};
    return true;
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
        if (kv_constraint_push(c, &q, list[i])) begin_value(c, &q, b, out);
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
            if (!kv_constraint_push(c, p, -1)) return;
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
        if (kv_constraint_push(c, p, free_keys ? value : c->item[n->first + f->index - 1].node)) keep(out, p);
    } else if (f->phase == AFTER_VALUE && b == ',') {
        if (object ? (free_keys ? !fits : !keys_to_come(c, f, p->depth)) : most >= 0 && f->count >= most) return;
        f->phase = object ? NEXT_KEY : AFTER_VALUE;
        if (!object) {
            f->count += f->count < INT32_MAX;
            if (!kv_constraint_push(c, p, value)) return;
        }
        keep(out, p);
    } else if (f->phase == FIRST_ITEM && most != 0) {
        f->phase = AFTER_VALUE;
        f->count = 1;
        if (kv_constraint_push(c, p, value)) begin(c, p, b, out);
    }
}

void kv_constraint_step(const struct kv_constraint *c, const struct path *from, uint8_t b, struct paths *out)
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

bool kv_constraint_path_complete(const struct kv_constraint *c, const struct path *p)
{
    if (p->depth != 1) return p->depth == 0;
    const struct frame *f = &p->frame[0];
    if (f->phase == LITERAL) return c->node[f->node].kind == KV_SCHEMA_ANY ? !word(f->hex)[f->offset] : ended(c, f) >= 0;
    return number_complete(f);
}

bool kv_constraint_is_plain(const struct kv_piece *p)
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
