/* heldout.c — reading held-out prompts from a file, or cutting them from the prose that ships. */
#include "controller/release/heldout.h"

#include "controller/embedded.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PASSAGE_PROMPT = 160, PASSAGE_ANSWER = 32, MOST_PASSAGES = 512 };

void kv_heldout_free(struct kv_heldout *h)
{
    for (int32_t i = 0; i < h->n; i++) free(h->item[i].ids);
    free(h->item);
    *h = (struct kv_heldout){0};
}

static enum kv_status out_of_memory(struct kv_error *err)
{
    return kv_fail(err, KV_OUT_OF_MEMORY, "quality.prompts", "no memory for the held-out prompts");
}

static bool begins_with_bos(const struct kv_model *m)
{
    return kv_model_info(m)->add_bos && kv_model_info(m)->bos >= 0;
}

/* ---------------------------------------------------------------- passages of the prose */

static enum kv_status cut_passages(const struct kv_model *m, const int32_t *ids, size_t n, int32_t context_length, struct kv_heldout *h, struct kv_error *err)
{
    int32_t bos = begins_with_bos(m), answer = PASSAGE_ANSWER, prompt = PASSAGE_PROMPT;
    if (bos + prompt + answer > context_length) prompt = context_length / 2 - bos, answer = context_length / 2;
    int32_t own = prompt + answer;
    if (prompt < 1) return kv_fail(err, KV_CONTEXT_OVERRUN, "quality.prompts", "a context of %d tokens holds no held-out passage", context_length);
    for (size_t at = 0; at + (size_t)own <= n && h->n < MOST_PASSAGES; at += (size_t)own) {
        struct kv_heldout_item *it = &h->item[h->n];
        if (!(it->ids = malloc(sizeof *it->ids * (size_t)(bos + own)))) return out_of_memory(err);
        if (bos) it->ids[0] = kv_model_info(m)->bos;
        memcpy(it->ids + bos, ids + at, sizeof *ids * (size_t)own);
        it->n_prompt = bos + prompt;
        it->n_answer = answer;
        h->n++;
    }
    return KV_OK;
}

static enum kv_status load_prose(const struct kv_model *m, int32_t context_length, struct kv_heldout *h, struct kv_error *err)
{
    const struct kv_embedded *e = kv_embedded_table;
    while (e->name && strcmp(e->name, "runtime/evaluate/prose.txt")) e++;
    if (!e->name) return kv_fail(err, KV_NOT_FOUND, "quality.prompts", "no prose is built in");
    size_t n = 0, cap = e->size + 8;
    int32_t *ids = malloc(sizeof *ids * cap);
    if (!ids) return out_of_memory(err);
    enum kv_status st = kv_tokenize(m, e->data, e->size, false, ids, cap, &n, err);
    if (st == KV_OK) st = cut_passages(m, ids, n, context_length, h, err);
    free(ids);
    return st;
}

/* ---------------------------------------------------------------- a file's lines */

static enum kv_status bad_line(const char *path, int line, enum kv_status st, const char *what, struct kv_error *err)
{
    char where[600];
    snprintf(where, sizeof where, "%.500s:%d", path, line);
    kv_fail(err, st, where, "%s, line %d: %s", path, line, what);
    kv_hint(err, "a line is {\"prompt\": \"…\", \"answer\": \"…\", \"score\": \"likelihood\" or \"exact\"}");
    return st;
}

static const char *read_fields(json_t *o, const char **prompt, const char **answer, bool *exact)
{
    const char *name;
    json_t *v;
    if (!json_is_object(o)) return "it is no JSON object";
    json_object_foreach(o, name, v) {
        if (strcmp(name, "prompt") && strcmp(name, "answer") && strcmp(name, "score")) return "it has a field other than prompt, answer and score";
        if (!json_is_string(v) || !json_string_length(v)) return "a field is not text, or empty";
    }
    *prompt = json_string_value(json_object_get(o, "prompt"));
    *answer = json_string_value(json_object_get(o, "answer"));
    const char *score = json_string_value(json_object_get(o, "score"));
    *exact = score && !strcmp(score, "exact");
    if (score && !*exact && strcmp(score, "likelihood")) return "score is likelihood or exact";
    return *prompt && *answer ? NULL : "prompt or answer is missing";
}

static enum kv_status take_item(const struct kv_model *m, const char *prompt, const char *answer, struct kv_heldout_item *it, struct kv_error *err)
{
    size_t bos = begins_with_bos(m), cap = bos + strlen(prompt) + strlen(answer) + 16, n = 0, k = 0;
    if (!(it->ids = malloc(sizeof *it->ids * cap))) return out_of_memory(err);
    if (bos) it->ids[0] = kv_model_info(m)->bos;
    enum kv_status st = kv_tokenize(m, prompt, strlen(prompt), false, it->ids + bos, cap - bos, &n, err);
    if (st == KV_OK) st = kv_tokenize(m, answer, strlen(answer), false, it->ids + bos + n, cap - bos - n, &k, err);
    it->n_prompt = (int32_t)(bos + n);
    it->n_answer = (int32_t)k;
    return st;
}

static enum kv_status take_line(const char *path, int line, const char *text, size_t len, const struct kv_model *m, int32_t context_length, struct kv_heldout *h, struct kv_error *err)
{
    const char *prompt = NULL, *answer = NULL;
    json_error_t why;
    json_t *o = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    struct kv_heldout_item *it = &h->item[h->n];
    const char *wrong = o ? read_fields(o, &prompt, &answer, &it->exact) : why.text;
    enum kv_status st = wrong ? bad_line(path, line, o ? KV_BAD_ARGUMENT : KV_BAD_JSON, wrong, err) : take_item(m, prompt, answer, it, err);
    if (!wrong) h->n++; /* its ids are freed with the set */
    if (st == KV_OK && it->n_prompt + it->n_answer > context_length) st = bad_line(path, line, KV_CONTEXT_OVERRUN, "prompt and answer are longer than the context", err);
    json_decref(o);
    return st;
}

static enum kv_status load_file(const char *path, const struct kv_model *m, int32_t context_length, struct kv_heldout *h, struct kv_error *err)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        kv_fail(err, KV_FILE_UNREADABLE, path, "the held-out prompts %s cannot be read: %s", path, strerror(errno));
        kv_hint(err, "leave quality.prompts empty for the passages that ship");
        return KV_FILE_UNREADABLE;
    }
    char *line = malloc(KV_HELDOUT_LINE_BYTES);
    enum kv_status st = line ? KV_OK : out_of_memory(err);
    for (int n = 1; st == KV_OK && fgets(line, KV_HELDOUT_LINE_BYTES, f); n++) {
        size_t len = strlen(line);
        if (len == KV_HELDOUT_LINE_BYTES - 1 && line[len - 1] != '\n') st = bad_line(path, n, KV_BODY_TOO_LARGE, "it is longer than 64 KiB", err);
        else if (line[strspn(line, " \t\r\n")] == 0) continue;
        else if (h->n == KV_HELDOUT_PROMPTS) st = bad_line(path, n, KV_BAD_ARGUMENT, "there are more than 4096 prompts", err);
        else st = take_line(path, n, line, len, m, context_length, h, err);
    }
    if (st == KV_OK && ferror(f)) st = kv_fail(err, KV_IO_ERROR, path, "the held-out prompts cannot be read to their end");
    if (st == KV_OK && !h->n) st = kv_fail(err, KV_BAD_ARGUMENT, path, "%s holds no prompt", path);
    fclose(f);
    free(line);
    return st;
}

enum kv_status kv_heldout_load(const char *path, const struct kv_model *m, int32_t context_length, struct kv_heldout *out, struct kv_error *err)
{
    bool file = path && *path;
    struct kv_heldout h = {.item = calloc(file ? KV_HELDOUT_PROMPTS : MOST_PASSAGES, sizeof *h.item)};
    enum kv_status st = h.item ? file ? load_file(path, m, context_length, &h, err) : load_prose(m, context_length, &h, err) : out_of_memory(err);
    if (st == KV_OK) *out = h;
    else kv_heldout_free(&h);
    return st;
}
