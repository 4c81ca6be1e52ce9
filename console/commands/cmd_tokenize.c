/* cmd_tokenize.c — kvasir tokenize: texts to token ids, without a server. */
#include "console/commands/cli.h"
#include "console/commands/offline.h"
#include "console/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int usage(const char *why, const char *what)
{
    fprintf(stderr, "kvasir tokenize: %s%s\nusage: kvasir tokenize --model M {--texts FILE.json | --text T} [--special] [--json]\n", why, what);
    return KV_EXIT_USAGE;
}

struct options {
    const char *model, *texts, *text;
    bool special;
};

/* Ids of one text as {"ids":[…]}. */
static enum kv_status encode(const struct kv_model *m, const char *text, size_t len, bool special, json_t *rows, struct kv_error *err)
{
    size_t cap = len + 8, n; /* a byte is one token at most, and a space may be put in front */
    int32_t *ids = malloc(cap * sizeof *ids);
    if (!ids) return kv_fail(err, KV_OUT_OF_MEMORY, "text", "no memory for %zu bytes of text", len);
    enum kv_status s = kv_tokenize(m, text, len, special, ids, cap, &n, err);
    json_t *list = json_array();
    for (size_t i = 0; s == KV_OK && i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    json_array_append_new(rows, json_pack("{s:o}", "ids", list));
    free(ids);
    return s;
}

static enum kv_status encode_file(const struct kv_model *m, const struct options *o, json_t *rows, struct kv_error *err)
{
    json_t *root;
    enum kv_status s = kv_offline_json(o->texts, JSON_ALLOW_NUL, &root, err);
    if (s != KV_OK) return s;
    s = json_is_array(root) ? KV_OK : kv_fail(err, KV_BAD_JSON, o->texts, "a list of texts is expected");
    size_t i;
    json_t *row;
    json_array_foreach(root, i, row) {
        if (s != KV_OK) break;
        json_t *text = json_is_object(row) ? json_object_get(row, "text") : row, *special = json_object_get(row, "special");
        if (!json_is_string(text) || (special && !json_is_boolean(special))) {
            s = kv_fail(err, KV_BAD_JSON, o->texts, "row %zu is neither a text nor {\"text\":…, \"special\":true or false}", i);
            break;
        }
        s = encode(m, json_string_value(text), json_string_length(text), special ? json_is_true(special) : o->special, rows, err);
    }
    json_decref(root);
    return s;
}

static void print(const json_t *rows, bool as_json)
{
    size_t i, j;
    json_t *row, *id;
    if (as_json) {
        kv_output_json(rows, JSON_COMPACT);
        putchar('\n');
        return;
    }
    json_array_foreach(rows, i, row) {
        json_array_foreach(json_object_get(row, "ids"), j, id) printf("%s%lld", j ? " " : "", (long long)json_integer_value(id));
        putchar('\n');
    }
}

int kv_cmd_tokenize(int argc, char **argv, const struct kv_cli *cli)
{
    struct options o = {0};
    for (int i = 1; i < argc; i++) {
        const char **to = !strcmp(argv[i], "--model") ? &o.model : !strcmp(argv[i], "--texts") ? &o.texts : !strcmp(argv[i], "--text") ? &o.text : NULL;
        if (to && i + 1 < argc) *to = argv[++i];
        else if (to) return usage("a value is missing after ", argv[i]);
        else if (!strcmp(argv[i], "--special")) o.special = true;
        else return usage("unknown argument ", argv[i]);
    }
    if (!o.texts == !o.text) return usage("one of --texts and --text is needed", "");
    struct kv_error err = {0};
    struct kv_model *m = NULL;
    json_t *rows = json_array();
    enum kv_status s = kv_offline_model(o.model, &m, &err);
    if (s == KV_OK) s = o.text ? encode(m, o.text, strlen(o.text), o.special, rows, &err) : encode_file(m, &o, rows, &err);
    if (s == KV_OK) print(rows, cli->json);
    else kv_offline_complain("tokenize", &err);
    json_decref(rows);
    kv_model_close(m);
    return s == KV_OK ? KV_EXIT_DONE : KV_EXIT_REFUSED;
}
