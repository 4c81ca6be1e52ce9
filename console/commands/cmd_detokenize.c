/* cmd_detokenize.c — kvasir detokenize: token ids to text, without a server. */
#include "console/commands/cli.h"
#include "console/commands/offline.h"
#include "console/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int usage(const char *why, const char *what)
{
    fprintf(stderr, "kvasir detokenize: %s%s\nusage: kvasir detokenize --model M {--ids FILE.json | ID …} [--special] [--json]\n", why, what);
    return KV_EXIT_USAGE;
}

struct options {
    const char *model, *file;
    bool special;
    int32_t *ids; /* from the command line */
    size_t n_ids;
};

/* JSON holds no broken UTF-8: a token may end within a character. Each byte that cannot stay becomes U+FFFD. */
static json_t *json_text(const char *text, size_t len)
{
    json_t *whole = json_stringn(text, len);
    if (whole) return whole;
    char *out = malloc(3 * len + 1);
    size_t n = 0, at = 0;
    while (out && at < len) {
        size_t take = 1;
        json_t *piece = NULL;
        for (size_t w = 1; w <= 4 && w <= len - at && !piece; w++) {
            piece = json_stringn(text + at, w);
            take = piece ? w : 1;
        }
        memcpy(out + n, piece ? text + at : "\xEF\xBF\xBD", piece ? take : 3);
        n += piece ? take : 3;
        at += take;
        json_decref(piece);
    }
    whole = json_stringn(out ? out : "", n);
    free(out);
    return whole;
}

/* Text of one list of ids as {"text":"…"}, or to standard output as it is. */
static enum kv_status decode(const struct kv_model *m, const int32_t *ids, size_t n, bool special, bool as_json, json_t *rows, struct kv_error *err)
{
    size_t len = 0;
    enum kv_status s = kv_detokenize(m, ids, n, special, NULL, 0, &len);
    if (s == KV_TOKEN_OUT_OF_RANGE) {
        size_t bad = 0;
        while (bad + 1 < n && ids[bad] >= 0 && ids[bad] < kv_model_info(m)->n_vocab) bad++;
        return kv_fail(err, s, "ids", "token %d at index %zu lies outside the vocabulary of %d", ids[bad], bad, kv_model_info(m)->n_vocab);
    }
    char *text = malloc(len + 1);
    if (!text) return kv_fail(err, KV_OUT_OF_MEMORY, "ids", "no memory for %zu bytes of text", len);
    s = kv_detokenize(m, ids, n, special, text, len, &len);
    if (as_json) json_array_append_new(rows, json_pack("{s:o}", "text", json_text(text, len)));
    else fwrite(text, 1, len, stdout), putchar('\n');
    free(text);
    return s;
}

static enum kv_status decode_row(const struct kv_model *m, const json_t *row, size_t index, const struct options *o, bool as_json, json_t *rows,
                                 struct kv_error *err)
{
    json_t *list = json_is_object(row) ? json_object_get(row, "ids") : (json_t *)(uintptr_t)row, *id;
    size_t n = json_array_size(list), i;
    if (!json_is_array(list)) return kv_fail(err, KV_BAD_JSON, o->file, "row %zu is neither a list of ids nor {\"ids\":[…]}", index);
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    if (!ids) return kv_fail(err, KV_OUT_OF_MEMORY, o->file, "no memory for %zu ids", n);
    enum kv_status s = KV_OK;
    json_array_foreach(list, i, id) {
        json_int_t v = json_integer_value(id);
        if (!json_is_integer(id) || v < INT32_MIN || v > INT32_MAX) s = kv_fail(err, KV_BAD_JSON, o->file, "row %zu: id %zu is not a token id", index, i);
        ids[i] = (int32_t)v;
    }
    if (s == KV_OK) s = decode(m, ids, n, o->special, as_json, rows, err);
    free(ids);
    return s;
}

static enum kv_status decode_file(const struct kv_model *m, const struct options *o, bool as_json, json_t *rows, struct kv_error *err)
{
    json_t *root, *row;
    enum kv_status s = kv_offline_json(o->file, 0, &root, err);
    if (s != KV_OK) return s;
    s = json_is_array(root) ? KV_OK : kv_fail(err, KV_BAD_JSON, o->file, "a list is expected");
    size_t i;
    json_array_foreach(root, i, row) {
        if (s == KV_OK) s = decode_row(m, row, i, o, as_json, rows, err);
    }
    json_decref(root);
    return s;
}

static bool read_id(const char *text, int32_t *out)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    *out = (int32_t)v;
    return *text && !*end && !errno && v >= 0 && v <= INT32_MAX;
}

static int run(const struct options *o, const struct kv_cli *cli)
{
    struct kv_error err = {0};
    struct kv_model *m = NULL;
    json_t *rows = json_array();
    enum kv_status s = kv_offline_model(o->model, &m, &err);
    if (s == KV_OK) s = o->file ? decode_file(m, o, cli->json, rows, &err) : decode(m, o->ids, o->n_ids, o->special, cli->json, rows, &err);
    if (s == KV_OK && cli->json) {
        kv_output_json(rows, JSON_COMPACT);
        putchar('\n');
    }
    if (s != KV_OK) kv_offline_complain("detokenize", &err);
    json_decref(rows);
    kv_model_close(m);
    return s == KV_OK ? KV_EXIT_DONE : KV_EXIT_REFUSED;
}

int kv_cmd_detokenize(int argc, char **argv, const struct kv_cli *cli)
{
    struct options o = {.ids = malloc((size_t)argc * sizeof *o.ids)};
    int status = o.ids ? KV_EXIT_DONE : KV_EXIT_REFUSED;
    for (int i = 1; status == KV_EXIT_DONE && i < argc; i++) {
        const char **to = !strcmp(argv[i], "--model") ? &o.model : !strcmp(argv[i], "--ids") ? &o.file : NULL;
        if (to && i + 1 < argc) *to = argv[++i];
        else if (to) status = usage("a value is missing after ", argv[i]);
        else if (!strcmp(argv[i], "--special")) o.special = true;
        else if (read_id(argv[i], &o.ids[o.n_ids])) o.n_ids++;
        else status = usage("neither an option nor a token id: ", argv[i]);
    }
    if (status == KV_EXIT_DONE && !o.file == !o.n_ids) status = usage("either --ids or token ids are needed", "");
    if (status == KV_EXIT_DONE) status = run(&o, cli);
    free(o.ids);
    return status;
}
