/* cmd_lab.c — kvasir lab: one method on given tensors, the list of methods, a contract fixture. */
#include "console/commands/cli.h"
#include "console/commands/fixture_run.h"
#include "console/commands/lab_case.h"
#include "console/output.h"
#include "runtime/selection/rank.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static json_t *floats(const float *x, size_t n)
{
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(out, number((double)x[i]));
    return out;
}

static json_t *matrix(const float *x, int32_t rows, int32_t cols)
{
    json_t *out = json_array();
    for (int32_t i = 0; i < rows; i++) json_array_append_new(out, floats(x + (size_t)i * (size_t)cols, (size_t)cols));
    return out;
}

/* One number per query head, at `offset` in its struct kv_shadow_head. */
static json_t *per_head(const struct kv_lab_case *c, const struct kv_lab_result *r, size_t offset)
{
    json_t *out = json_array();
    for (int32_t h = 0; h < c->n_q_heads; h++) {
        double x;
        memcpy(&x, (const char *)&r->head[h] + offset, sizeof x);
        json_array_append_new(out, number(x));
    }
    return out;
}

/* As contract 7 names the stages. */
static json_t *stages_of(const struct kv_lab_case *c, const struct kv_lab_result *r)
{
    json_t *recall = json_array(), *support = json_array(), *payload = json_array(), *estimator = json_array();
    for (int32_t h = 0; h < c->n_q_heads; h++) {
        const struct kv_lab_stages *s = &r->stages[h];
        json_array_append_new(recall, s->candidate_recall < 0 ? json_null() : number(s->candidate_recall));
        json_array_append_new(support, number(s->support));
        json_array_append_new(payload, number(s->payload));
        json_array_append_new(estimator, number(s->estimator));
    }
    return json_pack("{s:{s:o}, s:o, s:o, s:o}", "index_representation", "candidate_recall", recall, "candidate_support", support, "payload_representation", payload, "reduction_estimator", estimator);
}

static json_t *support_of(const struct kv_lab_result *r, int32_t h)
{
    json_t *out = json_array();
    const uint64_t *mask = r->support + (size_t)h * (size_t)r->n_blocks;
    for (int32_t i = 0; i < r->n_rows; i++)
        if (kv_mask_has(mask, i)) json_array_append_new(out, json_integer(i));
    return out;
}

/* Unit ids of one head: ranked ones best first, or only the chosen ones in order. */
static json_t *units_of(const struct kv_lab_result *r, int32_t h, bool chosen_only, json_t **scores)
{
    int32_t n = r->n_units[h];
    const float *score = r->score + (size_t)h * (size_t)r->cap_units;
    const uint8_t *chosen = r->chosen + (size_t)h * (size_t)r->cap_units;
    json_t *ids = json_array();
    if (scores) *scores = json_array();
    uint64_t *keys = malloc(((size_t)n + 1) * sizeof *keys);
    size_t ranked = 0;
    for (int32_t u = 0; keys && u < n; u++) {
        if (chosen_only && chosen[u]) json_array_append_new(ids, json_integer(u));
        if (!chosen_only && score[u] == score[u]) keys[ranked++] = kv_rank_key(score[u], (uint32_t)u);
    }
    if (keys) kv_rank_sort(keys, ranked);
    for (size_t i = 0; keys && i < ranked; i++) {
        json_array_append_new(ids, json_integer(kv_rank_index(keys[i])));
        if (scores) json_array_append_new(*scores, number((double)score[kv_rank_index(keys[i])]));
    }
    free(keys);
    return ids;
}

static json_t *ledger_of(const struct kv_ledger *l)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "candidate_bytes", (json_int_t)l->candidate_bytes, "index_bytes", (json_int_t)l->index_bytes,
                     "descriptor_bytes", (json_int_t)l->descriptor_bytes, "payload_bytes", (json_int_t)l->payload_bytes, "transfer_bytes",
                     (json_int_t)l->transfer_bytes, "selector_macs", (json_int_t)l->selector_macs, "candidates", (json_int_t)l->candidates, "units",
                     (json_int_t)l->units, "rows", (json_int_t)l->rows);
}

static json_t *result_json(const struct kv_lab_case *c, const struct kv_lab_result *r)
{
    json_t *candidates = json_array(), *scores = json_array(), *units = json_array(), *support = json_array(), *k = json_array(), *estimate = json_array(),
           *holds = json_array();
    for (int32_t h = 0; h < c->n_q_heads; h++) {
        json_t *score = NULL;
        bool shown = r->n_units[h] > 0;
        json_array_append_new(candidates, shown ? units_of(r, h, false, &score) : json_null());
        json_array_append_new(scores, score ? score : json_null());
        json_array_append_new(units, shown ? units_of(r, h, true, NULL) : json_null());
        json_array_append_new(support, support_of(r, h));
        json_array_append_new(k, json_integer(r->head[h].recall_k));
        json_array_append_new(estimate, r->estimated_omitted_mass[h] < 0 ? json_null() : number(r->estimated_omitted_mass[h]));
        json_array_append_new(holds, json_boolean(r->head[h].bound_holds));
    }
    json_t *out = json_object();
    json_object_set_new(out, "method", json_string(c->method ? c->method->name : "dense"));
    json_object_set_new(out, "rows", json_integer(r->n_rows));
    json_object_set_new(out, "candidates", candidates);
    json_object_set_new(out, "scores", scores);
    json_object_set_new(out, "units", units);
    json_object_set_new(out, "support", support);
    json_object_set_new(out, "output", matrix(r->output, c->n_q_heads, c->d_head));
    json_object_set_new(out, "dense_output", matrix(r->dense, c->n_q_heads, c->d_head));
#define HEAD(name, field) json_object_set_new(out, name, per_head(c, r, offsetof(struct kv_shadow_head, field)))
    HEAD("retained_mass", retained_mass);
    HEAD("omitted_mass", omitted_mass);
    HEAD("recall", recall);
    json_object_set_new(out, "recall_k", k);
    json_object_set_new(out, "recall_ties", json_string("lower position"));
    HEAD("output_error", output_error);
    HEAD("output_error_relative", output_error_relative);
    HEAD("dense_norm", output_norm);
    HEAD("identity_residual", identity_residual);
    HEAD("bound", bound);
#undef HEAD
    json_object_set_new(out, "error_stages", stages_of(c, r));
    json_object_set_new(out, "bound_holds", holds);
    json_object_set_new(out, "estimated_omitted_mass", estimate);
    json_object_set_new(out, "ledger", ledger_of(&r->ledger));
    json_object_set_new(out, "state", json_pack("{s:o, s:o, s:o}", "m", floats(r->m, (size_t)c->n_q_heads), "l", floats(r->l, (size_t)c->n_q_heads), "u",
                                                matrix(r->u, c->n_q_heads, c->d_head)));
    return out;
}

static int report(const struct kv_error *e, bool as_json)
{
    if (as_json) {
        json_t *out = json_pack("{s:{s:s, s:s, s:s, s:s}}", "error", "code", kv_status_name(e->status), "message", e->message, "param", e->where, "hint", e->hint);
        kv_output_json(out, JSON_COMPACT);
        putchar('\n');
        json_decref(out);
    }
    fprintf(stderr, "kvasir lab: %s: %s%s%s\n", kv_status_name(e->status), e->message, *e->hint ? "; " : "", e->hint);
    return KV_EXIT_REFUSED;
}

static int run_case(const char *file, bool as_json)
{
    struct kv_lab_file f;
    struct kv_lab_result r;
    struct kv_error err = {0};
    if (kv_lab_file_read(file, &f, &err) != KV_OK) return report(&err, as_json);
    enum kv_status status = kv_lab_run(&f.c, &r, &err);
    if (status == KV_OK) {
        json_t *out = result_json(&f.c, &r);
        kv_output_json(out, as_json ? JSON_COMPACT : JSON_INDENT(1));
        putchar('\n');
        json_decref(out);
        kv_lab_result_free(&r);
    }
    kv_lab_file_free(&f);
    return status == KV_OK ? KV_EXIT_DONE : report(&err, as_json);
}

static json_t *params_json(const struct kv_param_spec *p, int32_t n)
{
    json_t *out = json_array();
    for (int32_t i = 0; i < n; i++)
        json_array_append_new(out, json_pack("{s:s, s:s, s:f, s:f, s:f, s:s, s:s, s:s}", "name", p[i].name, "type", p[i].type, "default", p[i].def, "min", p[i].min,
                                             "max", p[i].max, "unit", p[i].unit, "source", p[i].source, "help", p[i].help));
    return out;
}

static void print_params(const struct kv_param_spec *p, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        printf("  %-18s %-5s default %-10g %g to %g %s\n  %-18s   %s (%s)\n", p[i].name, p[i].type, p[i].def, p[i].min, p[i].max, p[i].unit, "", p[i].help,
               p[i].source);
}

/* The ten contract fields of every registered pipeline, and whether it runs here. */
static json_t *contracts_json(void)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < kv_pipeline_count(); i++) {
        const struct kv_pipeline *p = kv_pipeline_at(i);
        json_array_append_new(rows, json_pack("{s:s, s:s, s:b, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "name", p->name, "section", p->section, "built", (int)p->built,
                                              "support", p->support, "representation", p->representation, "tier", p->tier, "unit", p->unit, "index", p->index, "update_phase",
                                              p->update_phase, "compute_site", p->compute_site, "exactness", p->exactness == KV_APPROXIMATE ? "approximate" : "exact", "fallback",
                                              p->fallback, "workload", p->workload));
    }
    return rows;
}

static void print_not_built(void)
{
    printf("registered, NOT_BUILT here:\n");
    for (size_t i = 0; i < kv_pipeline_count(); i++) {
        const struct kv_pipeline *p = kv_pipeline_at(i);
        if (!p->built) printf("  %-18s %-11s %-12s %s\n", p->name, p->exactness == KV_APPROXIMATE ? "approximate" : "exact", p->section, p->support);
    }
}

static int list(bool as_json)
{
    json_t *methods = json_array();
    for (size_t i = 0; i < kv_selector_count(); i++) {
        const struct kv_selector_method *m = kv_selector_at(i);
        json_array_append_new(methods, json_pack("{s:s, s:i, s:i, s:s, s:b, s:s?, s:f, s:o}", "name", m->name, "dense_layers", m->dense_layers, "dense_every", m->dense_every, "support",
                                                 m->per_q_head ? "query head" : "K/V head", "estimator", m->estimate != NULL, "omitted_mass_estimate", m->online_estimate, "byte_cost", m->byte_cost, "params",
                                                 params_json(m->params, m->n_params)));
        if (as_json) continue;
        char every[48] = "";
        if (m->dense_every) snprintf(every, sizeof every, ", and layers %d, %d …", m->dense_every, 2 * m->dense_every);
        printf("%s — one support per %s, first %d layers dense%s%s\n", m->name, m->per_q_head ? "query head" : "K/V head", m->dense_layers, every,
               m->estimate ? ", declared estimator" : "");
        print_params(m->params, m->n_params);
        printf("  a byte it reads counts as %g read in order: all rows are read where no fewer count\n", m->byte_cost);
        printf("  omitted mass, estimated online: %s\n", m->online_estimate ? m->online_estimate : "NONE");
    }
    json_array_append_new(methods, json_pack("{s:s, s:i, s:s, s:b, s:[]}", "name", "dense", "dense_layers", 0, "support", "K/V head", "estimator", 0, "params"));
    if (as_json) {
        json_t *out = json_pack("{s:O, s:o}", "methods", methods, "pipelines", contracts_json());
        kv_output_json(out, JSON_COMPACT);
        putchar('\n');
        json_decref(out);
    } else {
        printf("dense — every row; no parameters\n");
        print_not_built();
    }
    json_decref(methods);
    return KV_EXIT_DONE;
}

/* Done when the valid object is accepted and every mutation is refused with the reason it names. */
static int fixture(const char *file, bool as_json)
{
    json_t *out = NULL, *m;
    struct kv_error err = {0};
    if (kv_fixture_run_file(file, &out, &err) != KV_OK) return report(&err, as_json);
    json_t *wrong = json_object_get(out, "wrong");
    size_t i, n_wrong = json_array_size(wrong);
    bool accepted = json_integer_value(json_object_get(out, "accepted")) > 0;
    if (as_json) {
        kv_output_json(out, JSON_COMPACT);
        putchar('\n');
    } else {
        printf("%s: %lld accepted, %lld rejected, %zu wrong\n", file, (long long)json_integer_value(json_object_get(out, "accepted")),
               (long long)json_integer_value(json_object_get(out, "rejected")), n_wrong);
        json_array_foreach(wrong, i, m) {
            fputs("  ", stdout);
            kv_output_json(m, JSON_COMPACT);
            putchar('\n');
        }
    }
    json_decref(out);
    return accepted && !n_wrong ? KV_EXIT_DONE : KV_EXIT_REFUSED;
}

int kv_cmd_lab(int argc, char **argv, const struct kv_cli *cli)
{
    if (argc == 2 && !strcmp(argv[1], "--list")) return list(cli->json);
    if (argc == 3 && !strcmp(argv[1], "--fixture")) return fixture(argv[2], cli->json);
    if (argc == 2 && argv[1][0] != '-') return run_case(argv[1], cli->json);
    fprintf(stderr, "usage: kvasir lab CASE.json | kvasir lab --list | kvasir lab --fixture FILE.json\n");
    return KV_EXIT_USAGE;
}
