/* openai_schema.c — see openai_schema.h. Keywords are taken or refused by name: one that is passed over would be a promise not kept. */
#include "controller/openai/openai_schema.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_NODES = KV_SCHEMA_MAX_NODES, MAX_ITEMS = 4096, MAX_TEXT = 64 << 10, MAX_NESTING = 64, PLACE = 96 };

struct kv_openai_schema {
    struct kv_schema schema;
    struct kv_schema_node node[MAX_NODES];
    struct kv_schema_item item[MAX_ITEMS];
    const json_t *source[MAX_NODES]; /* what a node was made of: a reference finds it again */
    char *text[MAX_ITEMS];           /* owned */
    size_t text_bytes;
    json_t *root;                    /* where "#/…" begins; borrowed */
    struct kv_error *err;
};

static enum kv_status bad(struct kv_openai_schema *s, const char *place, const char *what)
{
    return kv_fail(s->err, KV_BAD_ARGUMENT, "response_format", "%s: %s", *place ? place : "the schema", what);
}

static enum kv_status add_node(struct kv_openai_schema *s, const char *place, int32_t *out)
{
    if (s->schema.n_nodes == MAX_NODES) return bad(s, place, "more than 512 schemas in one");
    *out = s->schema.n_nodes++;
    s->node[*out] = (struct kv_schema_node){.kind = KV_SCHEMA_ANY, .value = -1, .max = -1};
    return KV_OK;
}

/* Room for n items in a row. */
static enum kv_status add_items(struct kv_openai_schema *s, const char *place, int32_t node, size_t n)
{
    if (n > KV_SCHEMA_MAX_ITEMS) return bad(s, place, "more than 256 properties, values or alternatives");
    if (s->schema.n_items + (int32_t)n > MAX_ITEMS) return bad(s, place, "more than 4096 properties, values and alternatives in all");
    s->node[node].first = s->schema.n_items;
    s->node[node].n = (int32_t)n;
    s->schema.n_items += (int32_t)n;
    return KV_OK;
}

/* The item's text is the value as JSON. */
static enum kv_status spell(struct kv_openai_schema *s, const char *place, int32_t item, const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text) return bad(s, place, "a value that cannot be written as JSON");
    s->text[item] = text;
    s->item[item].text = text;
    s->text_bytes += strlen(text);
    return s->text_bytes <= MAX_TEXT ? KV_OK : bad(s, place, "keys and values of more than 64 KiB");
}

static enum kv_status compile(struct kv_openai_schema *s, json_t *from, const char *place, int depth, int32_t *out);

/* ---------------------------------------------------------------- keywords */

static const char *const taken[] = {"type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "enum", "const", "anyOf",
                                    "minLength", "maxLength", "$ref", "$defs", "definitions"};
static const char *const remarks[] = {"title", "description", "default", "examples", "example", "$schema", "$id", "$comment", "deprecated", "readOnly", "writeOnly"};

static enum kv_status check_keywords(struct kv_openai_schema *s, json_t *from, const char *place)
{
    const char *key;
    json_t *v;
    json_object_foreach(from, key, v) {
        bool known = false;
        for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) known |= !strcmp(taken[i], key);
        for (size_t i = 0; i < sizeof remarks / sizeof *remarks; i++) known |= !strcmp(remarks[i], key);
        if (known) continue;
        kv_fail(s->err, KV_UNSUPPORTED, "response_format", "%s: the keyword '%.40s' is not supported", *place ? place : "the schema", key);
        kv_hint(s->err, "supported are type, properties, required, additionalProperties, items, minItems, maxItems, enum, const, anyOf, minLength, maxLength, $ref and $defs");
        return KV_UNSUPPORTED;
    }
    return KV_OK;
}

static enum kv_status read_count(struct kv_openai_schema *s, json_t *from, const char *key, const char *place, int32_t *out)
{
    json_t *v = json_object_get(from, key);
    if (!v) return KV_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 1 << 20) return bad(s, place, "minItems, maxItems, minLength and maxLength are whole numbers up to 1048576");
    *out = (int32_t)json_integer_value(v);
    return KV_OK;
}

static enum kv_status compile_literals(struct kv_openai_schema *s, json_t *values, const char *place, int32_t node)
{
    size_t i;
    json_t *v;
    if (!json_is_array(values) || !json_array_size(values)) return bad(s, place, "enum is a list of at least one value");
    s->node[node].kind = KV_SCHEMA_LITERALS;
    enum kv_status st = add_items(s, place, node, json_array_size(values));
    int32_t first = s->node[node].first;
    if (st == KV_OK) json_array_foreach(values, i, v)
        if ((st = spell(s, place, first + (int32_t)i, v)) != KV_OK) break;
    return st;
}

static bool is_required(json_t *from, const char *name)
{
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(from, "required"), i, v)
        if (json_is_string(v) && !strcmp(json_string_value(v), name)) return true;
    return false;
}

static enum kv_status compile_object(struct kv_openai_schema *s, json_t *from, const char *place, int depth, int32_t node)
{
    json_t *properties = json_object_get(from, "properties"), *extra = json_object_get(from, "additionalProperties"), *v;
    const char *name;
    size_t i;
    s->node[node].kind = KV_SCHEMA_OBJECT;
    if (properties && !json_is_object(properties)) return bad(s, place, "properties is an object");
    if (json_object_get(from, "required") && !json_is_array(json_object_get(from, "required"))) return bad(s, place, "required is a list of names");
    json_array_foreach(json_object_get(from, "required"), i, v)
        if (!json_is_string(v) || !json_object_get(properties, json_string_value(v))) return bad(s, place, "every required name must be among the properties");
    enum kv_status st = add_items(s, place, node, json_object_size(properties));
    int32_t at = s->node[node].first;
    json_object_foreach(properties, name, v) {
        char where[PLACE];
        json_t *key = json_string(name);
        int32_t value = 0;
        snprintf(where, sizeof where, "%.60s.%.30s", place, name);
        if (st == KV_OK) st = key ? spell(s, where, at, key) : bad(s, where, "a name that is no text");
        json_decref(key);
        if (st == KV_OK) st = compile(s, v, where, depth + 1, &value);
        if (st != KV_OK) return st;
        s->item[at].node = value;
        s->item[at++].required = is_required(from, name);
    }
    if (st != KV_OK || json_object_size(properties) || json_is_false(extra)) return st;
    int32_t value;
    st = json_is_object(extra) ? compile(s, extra, place, depth + 1, &value) : add_node(s, place, &value);
    s->node[node].value = value;
    return st;
}

static enum kv_status compile_array(struct kv_openai_schema *s, json_t *from, const char *place, int depth, int32_t node)
{
    json_t *items = json_object_get(from, "items");
    char where[PLACE];
    int32_t value;
    s->node[node].kind = KV_SCHEMA_ARRAY;
    snprintf(where, sizeof where, "%.80s[]", place);
    enum kv_status st = read_count(s, from, "minItems", place, &s->node[node].min);
    if (st == KV_OK) st = read_count(s, from, "maxItems", place, &s->node[node].max);
    if (st == KV_OK) st = items ? compile(s, items, where, depth + 1, &value) : add_node(s, where, &value);
    if (st == KV_OK) s->node[node].value = value;
    return st;
}

static enum kv_status compile_type(struct kv_openai_schema *s, json_t *from, const char *type, const char *place, int depth, int32_t node)
{
    if (!strcmp(type, "object")) return compile_object(s, from, place, depth, node);
    if (!strcmp(type, "array")) return compile_array(s, from, place, depth, node);
    if (!strcmp(type, "string")) {
        s->node[node].kind = KV_SCHEMA_STRING;
        enum kv_status st = read_count(s, from, "minLength", place, &s->node[node].min);
        return st == KV_OK ? read_count(s, from, "maxLength", place, &s->node[node].max) : st;
    }
    if (!strcmp(type, "number") || !strcmp(type, "integer")) return s->node[node].kind = *type == 'n' ? KV_SCHEMA_NUMBER : KV_SCHEMA_INTEGER, KV_OK;
    if (strcmp(type, "boolean") && strcmp(type, "null")) return bad(s, place, "type is object, array, string, number, integer, boolean or null");
    json_t *values = *type == 'b' ? json_pack("[b,b]", 1, 0) : json_pack("[n]");
    enum kv_status st = values ? compile_literals(s, values, place, node) : bad(s, place, "no memory");
    json_decref(values);
    return st;
}

/* anyOf, and a list of types. */
static enum kv_status compile_alternatives(struct kv_openai_schema *s, json_t *from, json_t *list, const char *place, int depth, int32_t node)
{
    size_t i;
    json_t *v;
    bool types = json_is_string(json_array_get(list, 0));
    if (!json_is_array(list) || !json_array_size(list)) return bad(s, place, "anyOf is a list of at least one schema");
    s->node[node].kind = KV_SCHEMA_ANY_OF;
    enum kv_status st = add_items(s, place, node, json_array_size(list));
    int32_t first = s->node[node].first;
    json_array_foreach(list, i, v) {
        int32_t value = 0;
        if (st == KV_OK && types) {
            st = add_node(s, place, &value);
            if (st == KV_OK) st = json_is_string(v) ? compile_type(s, from, json_string_value(v), place, depth + 1, value) : bad(s, place, "type is a name or a list of names");
        } else if (st == KV_OK) {
            st = compile(s, v, place, depth + 1, &value);
        }
        if (st != KV_OK) return st;
        s->item[first + (int32_t)i].node = value;
    }
    return st;
}

static json_t *referred(struct kv_openai_schema *s, const char *ref)
{
    static const char *const folders[] = {"$defs", "definitions"};
    if (!strcmp(ref, "#")) return s->root;
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(folders[i]);
        if (!strncmp(ref, "#/", 2) && !strncmp(ref + 2, folders[i], n) && ref[2 + n] == '/') return json_object_get(json_object_get(s->root, folders[i]), ref + 3 + n);
    }
    return NULL;
}

static enum kv_status compile(struct kv_openai_schema *s, json_t *from, const char *place, int depth, int32_t *out)
{
    if (depth > MAX_NESTING) return bad(s, place, "schemas nest more than 64 deep");
    for (int32_t i = 0; i < s->schema.n_nodes; i++)
        if (from && s->source[i] == from && !json_is_boolean(from)) return *out = i, KV_OK;
    enum kv_status st = add_node(s, place, out);
    if (st != KV_OK || json_is_true(from)) return st;
    if (!json_is_object(from)) return bad(s, place, "a schema is an object");
    s->source[*out] = from;
    if ((st = check_keywords(s, from, place)) != KV_OK) return st;
    json_t *ref = json_object_get(from, "$ref"), *type = json_object_get(from, "type"), *any = json_object_get(from, "anyOf"), *constant = json_object_get(from, "const");
    if (ref) {
        json_t *to = json_is_string(ref) ? referred(s, json_string_value(ref)) : NULL;
        if (!json_is_object(to) || to == from) return bad(s, place, "$ref must name something under #/$defs");
        json_t *list = json_pack("[O]", to); /* an alternative with no other: the node of the reference stands for what it names */
        st = list ? compile_alternatives(s, from, list, place, depth, *out) : bad(s, place, "no memory");
        json_decref(list);
        return st;
    }
    if (constant) {
        json_t *list = json_pack("[O]", constant);
        st = list ? compile_literals(s, list, place, *out) : bad(s, place, "no memory");
        json_decref(list);
        return st;
    }
    if (json_object_get(from, "enum")) return compile_literals(s, json_object_get(from, "enum"), place, *out);
    if (any && (type || json_object_get(from, "properties"))) return bad(s, place, "anyOf beside type or properties is not supported");
    if (any) return json_is_object(json_array_get(any, 0)) || json_is_boolean(json_array_get(any, 0)) ? compile_alternatives(s, from, any, place, depth, *out) : bad(s, place, "anyOf is a list of at least one schema");
    if (json_is_array(type)) return compile_alternatives(s, from, type, place, depth, *out);
    if (json_is_string(type)) return compile_type(s, from, json_string_value(type), place, depth, *out);
    if (type) return bad(s, place, "type is a name or a list of names");
    if (json_object_get(from, "properties")) return compile_object(s, from, place, depth, *out);
    return json_object_get(from, "items") ? compile_array(s, from, place, depth, *out) : KV_OK;
}

/* ---------------------------------------------------------------- response_format */

enum kv_status kv_openai_schema_read(json_t *format, struct kv_openai_schema **out, struct kv_error *err)
{
    const char *type = json_string_value(json_object_get(format, "type"));
    *out = NULL;
    if (!type) return kv_fail(err, KV_BAD_ARGUMENT, "response_format", "response_format must be an object with a type");
    if (!strcmp(type, "text")) return KV_OK;
    bool by_schema = !strcmp(type, "json_schema");
    if (!by_schema && strcmp(type, "json_object")) return kv_fail(err, KV_BAD_ARGUMENT, "response_format", "type '%.40s' is none of text, json_object and json_schema", type);
    json_t *schema = by_schema ? json_object_get(json_object_get(format, "json_schema"), "schema") : NULL;
    if (by_schema && !json_is_object(schema)) return kv_fail(err, KV_BAD_ARGUMENT, "response_format", "response_format.json_schema.schema must be an object");
    struct kv_openai_schema *s = calloc(1, sizeof *s);
    if (!s) return kv_fail(err, KV_OUT_OF_MEMORY, "response_format", "no memory for the schema");
    s->root = schema;
    s->err = err;
    json_t *any_object = by_schema ? NULL : json_pack("{s:s}", "type", "object");
    int32_t root;
    enum kv_status st = compile(s, by_schema ? schema : any_object, "", 0, &root);
    json_decref(any_object);
    s->schema.node = s->node;
    s->schema.item = s->item;
    if (st != KV_OK) return kv_openai_schema_free(s), st;
    *out = s;
    return KV_OK;
}

const struct kv_schema *kv_openai_schema_of(const struct kv_openai_schema *s)
{
    return s ? &s->schema : NULL;
}

void kv_openai_schema_free(struct kv_openai_schema *s)
{
    if (!s) return;
    for (int32_t i = 0; i < s->schema.n_items; i++) free(s->text[i]);
    free(s);
}
