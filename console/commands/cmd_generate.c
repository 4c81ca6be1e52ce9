/* cmd_generate.c — kvasir generate: continuations, by a server, or with --model by the engine itself for comparison with references. */
#include "console/client.h"
#include "console/commands/offline.h"
#include "console/output.h"
#include "console/tables.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOP = 5, DEFAULT_STEPS = 64, MAX_PARAMS = 16 };

struct options {
    const char *model, *prompts, *force, *text, *pipeline, *contract, *session;
    char *params[MAX_PARAMS];
    int n_params, steps, threads, chunk;
    double break_even;
    bool special, ignore_eos;
};

/* One prompt at work: its stream and the negative log-likelihood of the prompt, summed as logits pass by. */
struct run {
    const struct kv_prompt *prompt;
    struct kv_stream *stream;
    double nll;
};

static void observe(void *ctx, int32_t position, const float *logits, int32_t n_vocab)
{
    struct run *r = ctx;
    if (position + 1 >= r->prompt->n) return;
    float best = logits[0];
    for (int32_t i = 1; i < n_vocab; i++) best = logits[i] > best ? logits[i] : best;
    double sum = 0;
    for (int32_t i = 0; i < n_vocab; i++) sum += exp((double)logits[i] - best);
    r->nll -= logits[r->prompt->ids[position + 1]] - best - log(sum);
}

static enum kv_status begin(struct kv_engine *e, const struct options *o, struct run *r, const struct kv_prompt *force, bool json, struct kv_error *err)
{
    struct kv_release_word word = kv_engine_release(e);
    struct kv_request q = {.prompt = r->prompt->ids, .n_prompt = r->prompt->n,
                           .max_tokens = force ? force->n : r->prompt->steps ? r->prompt->steps : o->steps,
                           .sampling = {.top_p = 1, .repetition_penalty = 1}, .n_logprobs = json ? TOP : 0,
                           .ignore_eos = json || o->ignore_eos, .contract = word.epoch ? KV_APPROXIMATE : KV_EXACT,
                           .candidate = word.epoch ? 1 : 0, .epoch = word.epoch};
    if (json) {
        q.observe = observe;
        q.observe_ctx = r;
        q.observe_prompt = true;
    }
    if (force) {
        q.force = force->ids;
        q.n_force = force->n;
    }
    return kv_engine_submit(e, &q, &r->stream, err);
}

/* Reads a stream to its end. row: ids and top lists are added; NULL: the text is printed as it comes. */
static enum kv_status collect(struct run *r, json_t *row, struct kv_error *err)
{
    json_t *ids = json_array(), *top = json_array(), *published = json_array();
    enum kv_finish finish = KV_RUNNING;
    while (finish == KV_RUNNING) {
        struct kv_chunk c[16];
        int32_t got;
        kv_stream_read(r->stream, c, 16, 1000, &got, &finish);
        for (int32_t i = 0; i < got; i++) {
            json_array_append_new(ids, json_integer(c[i].token));
            json_array_append_new(published, json_boolean(c[i].published == KV_EXACT));
            json_t *best = json_array();
            for (int32_t j = 0; j < c[i].n_top; j++)
                json_array_append_new(best, json_pack("[i,f]", (int)c[i].top_id[j], (double)c[i].top_logprob[j]));
            json_array_append_new(top, best);
            if (!row) {
                fwrite(c[i].text, 1, (size_t)c[i].n_text, stdout);
                fflush(stdout);
            }
        }
    }
    struct kv_request_stats st;
    kv_stream_stats(r->stream, &st);
    if (row) {
        json_object_set(row, "ids", ids);
        json_object_set(row, "top", top);
        json_object_set(row, "exact", published);
        json_object_set_new(row, "prompt_nll", json_real(r->nll));
    } else {
        char tail[256];
        kv_stream_tail(r->stream, tail, sizeof tail);
        puts(tail);
    }
    json_decref(ids);
    json_decref(top);
    json_decref(published);
    return finish == KV_FINISH_ERROR ? kv_fail(err, st.status, "generate", "%s", kv_status_meaning(st.status)) : KV_OK;
}

static enum kv_status run_all(struct kv_engine *e, const struct options *o, const struct kv_prompt *prompts, size_t n,
                              const struct kv_prompt *force, bool json, struct kv_error *err)
{
    json_t *out = json_array();
    struct run *runs = calloc(n, sizeof *runs);
    enum kv_status s = out && runs ? KV_OK : kv_fail(err, KV_OUT_OF_MEMORY, "generate", "no memory");
    for (size_t i = 0; s == KV_OK && i < n; i++) {
        runs[i].prompt = &prompts[i];
        s = begin(e, o, &runs[i], force ? &force[i] : NULL, json, err);
        json_t *row = json ? json_object() : NULL;
        if (s == KV_OK) s = collect(&runs[i], row, err);
        if (row) json_array_append_new(out, row);
        kv_stream_close(runs[i].stream);
    }
    if (json && s == KV_OK) {
        kv_output_json(out, JSON_REAL_PRECISION(9));
        putchar('\n');
    }
    json_decref(out);
    free(runs);
    return s;
}

static int usage(const char *why)
{
    fprintf(stderr, "kvasir generate: %s\nusage: kvasir generate --text T [--steps N] [--contract exact|approximate] [--session S] [--pipeline P] [--json]      (by the server)\n"
                    "       kvasir generate --model M {--prompts FILE.json | --text T} [--steps N] [--force FILE.json]\n"
                    "                       [--pipeline P [--param key=value]… [--break-even X]] [--threads N] [--chunk N] [--special] [--ignore-eos] [--json]\n", why);
    return KV_EXIT_USAGE;
}

static const char *parse(int argc, char **argv, struct options *o)
{
    static char why[128];
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
        const char **text = !strcmp(a, "--model") ? &o->model : !strcmp(a, "--prompts") ? &o->prompts : !strcmp(a, "--force") ? &o->force
                          : !strcmp(a, "--text") ? &o->text : !strcmp(a, "--pipeline") ? &o->pipeline : !strcmp(a, "--contract") ? &o->contract
                          : !strcmp(a, "--session") ? &o->session : NULL;
        int *number = !strcmp(a, "--steps") ? &o->steps : !strcmp(a, "--threads") ? &o->threads : !strcmp(a, "--chunk") ? &o->chunk : NULL;
        bool *flag = !strcmp(a, "--special") ? &o->special : !strcmp(a, "--ignore-eos") ? &o->ignore_eos : NULL;
        if (flag) {
            *flag = true;
            continue;
        }
        bool param = !strcmp(a, "--param"), factor = !strcmp(a, "--break-even");
        snprintf(why, sizeof why, text || number || param || factor ? "%s needs a value" : "unknown option '%s'", a);
        if (!(text || number || param || factor) || !v || (param && o->n_params == MAX_PARAMS)) return why;
        if (text) *text = v;
        else if (number) *number = atoi(v);
        else if (factor) o->break_even = strtod(v, NULL);
        else o->params[o->n_params++] = argv[i + 1];
        i++;
    }
    bool offline = o->prompts || o->force || o->n_params || o->threads || o->chunk || o->break_even > 0 || o->special || o->ignore_eos;
    if (!o->model && offline) return "--prompts, --force, --param, --break-even, --threads, --chunk, --special and --ignore-eos go with --model FILE.gguf";
    if (o->model && (o->contract || o->session)) return "--contract and --session are for a server, without --model";
    return !o->prompts == !o->text ? "either --prompts or --text is needed" : NULL;
}

/* ---------------------------------------------------------------- by a server */

static json_t *question(const struct options *o, const json_t *models)
{
    json_t *own = json_object(), *name = json_object_get(json_array_get(json_object_get(models, "data"), 0), "id");
    if (o->contract) json_object_set_new(own, "contract", json_string(o->contract));
    if (o->session) json_object_set_new(own, "session", json_string(o->session));
    if (o->pipeline) json_object_set_new(own, "pipeline", json_string(o->pipeline));
    return json_pack("{s:O?, s:s, s:i, s:i, s:o}", "model", name, "prompt", o->text, "max_tokens", o->steps, "temperature", 0, "kvasir", own);
}

static void print_lines(const char *text)
{
    char *copy = strdup(text ? text : ""), *rest = copy;
    for (char *line; (line = strsep(&rest, "\n"));) {
        kv_plain_text(line);
        puts(line);
    }
    free(copy);
}

static int served(const struct options *o, const struct kv_cli *cli)
{
    json_t *models = NULL, *answer = NULL;
    int status = kv_client_do(cli, "GET", "/v1/models", NULL, NULL, &models);
    json_t *body = status ? NULL : question(o, models);
    if (!status && !body) status = usage("the text is not UTF-8");
    if (!status) status = kv_client_do(cli, "POST", "/v1/completions", body, NULL, &answer);
    if (!status && cli->json) kv_output_json(answer, JSON_INDENT(2)), putchar('\n');
    else if (!status) {
        const json_t *choice = json_array_get(json_object_get(answer, "choices"), 0), *by = json_object_get(answer, "kvasir");
        print_lines(json_string_value(json_object_get(choice, "text")));
        fprintf(stderr, "%s, %s, stage %s, receipt %s\n", json_string_value(json_object_get(by, "pipeline")), json_string_value(json_object_get(by, "published_contract")),
                json_string_value(json_object_get(by, "release_stage")), json_string_value(json_object_get(by, "receipt_id")));
    }
    json_decref(models);
    json_decref(body);
    json_decref(answer);
    return status;
}

int kv_cmd_generate(int argc, char **argv, const struct kv_cli *cli)
{
    struct options o = {.steps = DEFAULT_STEPS};
    const char *why = parse(argc, argv, &o);
    if (why) return usage(why);
    if (!o.model) return served(&o, cli);
    struct kv_error err = {0};
    struct kv_model *m = NULL;
    struct kv_engine *e = NULL;
    struct kv_prompt one = {0}, *prompts = NULL, *force = NULL;
    size_t n = 1, n_force = 0;
    enum kv_status s = kv_offline_model(o.model, &m, &err);
    if (s != KV_OK) goto done;
    if (o.text) s = kv_offline_ids(m, o.text, o.special, &one.ids, &one.n, &err);
    else s = kv_offline_prompts(m, o.prompts, &prompts, &n, &err);
    if (s == KV_OK && o.force) s = kv_offline_prompts(m, o.force, &force, &n_force, &err);
    if (s == KV_OK && force && n_force != n) s = kv_fail(&err, KV_BAD_JSON, o.force, "%zu forced lists for %zu prompts", n_force, n);
    if (s != KV_OK) goto done;
    struct kv_engine_config c;
    kv_engine_config_default(&c);
    c.n_threads = o.threads;
    c.max_sequences = 1;
    c.break_even = o.break_even > 0 ? o.break_even : 1;
    if (o.chunk) c.prefill_chunk = o.chunk;
    s = kv_engine_create(m, &c, &e, &err);
    if (s == KV_OK) s = kv_offline_install(e, o.pipeline, o.params, o.n_params, &err);
    if (s == KV_OK) s = run_all(e, &o, prompts ? prompts : &one, n, force, cli->json, &err);
done:
    if (s != KV_OK) kv_offline_complain("generate", &err);
    kv_engine_destroy(e);
    kv_offline_prompts_free(prompts, n);
    kv_offline_prompts_free(force, n_force);
    free(one.ids);
    kv_model_close(m);
    return s == KV_OK ? KV_EXIT_DONE : KV_EXIT_REFUSED;
}
