/* lab.c — one method on given tensors, without a model. */
#include "runtime/evaluate/lab.h"

#include "runtime/selection/rank.h"
#include "runtime/selection/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void kv_lab_rows_free(struct kv_lab_rows *r)
{
    for (int32_t i = 0; r->block && i < 2 * r->n_blocks; i++) free(r->block[i]);
    free(r->block);
    *r = (struct kv_lab_rows){0};
}

enum kv_status kv_lab_rows_create(enum kv_type row_type, int32_t d_head, int32_t group, float scale, int32_t n_rows, const float *k,
                                  const float *v, struct kv_lab_rows *out)
{
    *out = (struct kv_lab_rows){.n_blocks = kv_mask_words(n_rows)};
    size_t row_bytes = kv_type_row_bytes(row_type, d_head), block_bytes = (row_bytes * KV_BLOCK_ROWS + 63) / 64 * 64;
    out->block = calloc(2 * (size_t)out->n_blocks + 1, sizeof *out->block);
    if (!out->block) return KV_OUT_OF_MEMORY;
    for (int32_t i = 0; i < 2 * out->n_blocks; i++) {
        out->block[i] = aligned_alloc(64, block_bytes);
        if (!out->block[i]) {
            kv_lab_rows_free(out);
            return KV_OUT_OF_MEMORY;
        }
        memset(out->block[i], 0, block_bytes);
    }
    for (int32_t i = 0; i < n_rows; i++) {
        size_t at = (size_t)(i % KV_BLOCK_ROWS) * row_bytes, from = (size_t)i * (size_t)d_head;
        int32_t b = i / KV_BLOCK_ROWS;
        kv_kernels()->to_rows(row_type, k + from, d_head, (char *)out->block[b] + at);
        kv_kernels()->to_rows(row_type, v + from, d_head, (char *)out->block[out->n_blocks + b] + at);
    }
    out->rows = (struct kv_rows){d_head, group, n_rows, row_type, (const void *const *)out->block,
                                 (const void *const *)(out->block + out->n_blocks), scale};
    return KV_OK;
}

enum kv_status kv_lab_attend(const struct kv_rows *rows, const float *q, const uint64_t *support, int32_t n_blocks, float *m, float *l,
                             float *u, float *output)
{
    int32_t level = kv_tree_level(n_blocks), group = rows->group, d = rows->d_head;
    size_t state = (size_t)group * ((size_t)d + 2);
    float *memory = calloc(state + kv_attend_scratch_floats(group, d, level), sizeof *memory);
    int32_t *visible = calloc((size_t)group, sizeof *visible);
    if (!memory || !visible) {
        free(memory);
        free(visible);
        return KV_OUT_OF_MEMORY;
    }
    struct kv_states s = {memory, memory + group, memory + 2 * group};
    for (int32_t g = 0; g < group; g++) visible[g] = rows->n_rows;
    struct kv_attention a = {d, group, q, (size_t)d, rows->row_type, rows->scale, n_blocks, rows->k, rows->v, visible, support};
    for (int32_t g = 0; g < group; g++) s.m[g] = -INFINITY;
    if (n_blocks) kv_attend_subtree(kv_kernels(), &a, level, 0, s, memory + state);
    if (m) memcpy(m, s.m, (size_t)group * sizeof *m);
    if (l) memcpy(l, s.l, (size_t)group * sizeof *l);
    if (u) memcpy(u, s.u, (size_t)group * (size_t)d * sizeof *u);
    if (output) kv_kernels()->finish(group, d, s, output, (size_t)d);
    free(memory);
    free(visible);
    return KV_OK;
}

void kv_lab_result_free(struct kv_lab_result *r)
{
    void *const owned[] = {r->support, r->output, r->dense, r->m, r->l, r->u, r->head, r->stages, r->n_units, r->score, r->chosen, r->estimated_omitted_mass};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    *r = (struct kv_lab_result){0};
}

static enum kv_status check(const struct kv_lab_case *c, struct kv_error *err)
{
    if (c->n_q_heads < 1 || c->n_kv_heads < 1 || c->n_q_heads % c->n_kv_heads || c->n_q_heads > 4096)
        return kv_fail(err, KV_BAD_ARGUMENT, "heads", "%d query heads do not divide into %d K/V heads", c->n_q_heads, c->n_kv_heads);
    if (c->d_head < 1 || c->d_head > 1024) return kv_fail(err, KV_BAD_ARGUMENT, "d_h", "d_h %d is outside 1 to 1024", c->d_head);
    if (c->n_rows < 1 || c->n_rows > KV_LAB_MAX_ROWS)
        return kv_fail(err, KV_BAD_ARGUMENT, "k", "%d rows are outside 1 to %d", c->n_rows, KV_LAB_MAX_ROWS);
    if (c->row_type != KV_F32 && c->row_type != KV_F16 && c->row_type != KV_BF16)
        return kv_fail(err, KV_BAD_ARGUMENT, "row_type", "rows are f32, f16 or bf16");
    const int32_t *const lists[] = {c->persistent, c->resident, c->cluster_seeds};
    const int32_t counts[] = {c->n_persistent, c->n_resident, c->n_cluster_seeds};
    static const char *const names[] = {"persistent", "resident", "params.seeds"};
    for (int list = 0; list < 3; list++)
        for (int32_t i = 0; i < counts[list]; i++)
            if (lists[list][i] < 0 || lists[list][i] >= c->n_rows)
                return kv_fail(err, KV_BAD_ARGUMENT, names[list], "position %d is not a row of 0 to %d", lists[list][i], c->n_rows - 1);
    if (c->n_cluster_seeds && (!c->method || !c->method->seed_rows))
        return kv_fail(err, KV_UNKNOWN_KEY, "params.seeds", "this method takes no seed positions");
    return KV_OK;
}

static enum kv_status allocate(const struct kv_lab_case *c, struct kv_lab_result *r)
{
    size_t h = (size_t)c->n_q_heads, d = (size_t)c->d_head, blocks = (size_t)kv_mask_words(c->n_rows), units = (size_t)c->n_rows;
    r->cap_units = c->n_rows;
    r->support = calloc(h * blocks, sizeof *r->support);
    r->output = calloc(h * d, sizeof *r->output);
    r->dense = calloc(h * d, sizeof *r->dense);
    r->m = calloc(h, sizeof *r->m);
    r->l = calloc(h, sizeof *r->l);
    r->u = calloc(h * d, sizeof *r->u);
    r->head = calloc(h, sizeof *r->head);
    r->stages = calloc(h, sizeof *r->stages);
    r->n_units = calloc(h, sizeof *r->n_units);
    r->score = calloc(h * units, sizeof *r->score);
    r->chosen = calloc(h * units, sizeof *r->chosen);
    r->estimated_omitted_mass = calloc(h, sizeof *r->estimated_omitted_mass);
    return r->support && r->output && r->dense && r->m && r->l && r->u && r->head && r->stages && r->n_units && r->score && r->chosen &&
                   r->estimated_omitted_mass ? KV_OK : KV_OUT_OF_MEMORY;
}

/* Runs the case's entry points over growing views of the rows; leaves rows->n_rows at what is indexed. */
static enum kv_status run_steps(const struct kv_lab_case *c, struct kv_selector *s, struct kv_rows *rows, const float *prefill_q,
                                struct kv_error *err)
{
    static const struct kv_lab_step whole = {KV_LAB_BUILD, 0};
    const struct kv_lab_step *steps = c->n_steps ? c->steps : &whole;
    int32_t n = c->n_steps ? c->n_steps : 1, at = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct kv_lab_step *step = &steps[i];
        int32_t from = at;
        enum kv_status status = KV_OK;
        if (step->op == KV_LAB_BUILD) at = c->n_steps ? step->rows : c->n_rows;
        if (step->op == KV_LAB_APPEND && step->rows >= 0 && step->rows <= c->n_rows - at) at += step->rows;
        else if (step->op == KV_LAB_APPEND) at = -1;
        if (step->op == KV_LAB_DROP) at = step->rows <= at ? step->rows : -1;
        if (at < 0 || at > c->n_rows) return kv_fail(err, KV_BAD_ARGUMENT, "params.steps", "step %d leads outside rows 0 to %d", i, c->n_rows);
        rows->n_rows = at;
        if (s && step->op == KV_LAB_BUILD) status = c->method->build(s, rows, prefill_q, c->n_prefill_q);
        if (s && step->op == KV_LAB_APPEND) status = c->method->append(s, rows, from);
        if (s && step->op == KV_LAB_SEAL && c->method->seal) status = c->method->seal(s, rows);
        if (s && step->op == KV_LAB_DROP) status = c->method->drop(s, at);
        if (status != KV_OK) return kv_fail(err, status, "params.steps", "step %d of %s: %s", i, c->method->name, kv_status_meaning(status));
    }
    if (at < 1) return kv_fail(err, KV_BAD_ARGUMENT, "params.steps", "no row is left to attend");
    return KV_OK;
}

static void add_rows(uint64_t *support, int32_t group, int32_t n_blocks, const int32_t *positions, int32_t n, int32_t n_rows)
{
    for (int32_t g = 0; g < group; g++)
        for (int32_t i = 0; i < n; i++)
            if (positions[i] < n_rows) kv_mask_set(support + (size_t)g * (size_t)n_blocks, positions[i]);
}

static void sum_ledger(struct kv_ledger *into, const struct kv_ledger *l)
{
    into->candidate_bytes += l->candidate_bytes;
    into->index_bytes += l->index_bytes;
    into->descriptor_bytes += l->descriptor_bytes;
    into->payload_bytes += l->payload_bytes;
    into->transfer_bytes += l->transfer_bytes;
    into->selector_macs += l->selector_macs;
    into->candidates += l->candidates;
    into->units += l->units;
    into->rows += l->rows;
}

/* Selects, adds persistent rows, attends over support and over everything; all for one K/V head. */
static enum kv_status answer(const struct kv_lab_case *c, int32_t h, struct kv_selector *s, const struct kv_rows *rows, struct kv_lab_result *r)
{
    int32_t group = rows->group, nb = r->n_blocks, first = h * group;
    size_t d = (size_t)c->d_head, cap = (size_t)r->cap_units;
    const float *q = c->q + (size_t)first * d;
    uint64_t *support = r->support + (size_t)first * (size_t)nb;
    double *estimate = r->estimated_omitted_mass + first;
    struct kv_trace trace = {r->cap_units, 0, r->score + (size_t)first * cap, r->chosen + (size_t)first * cap};
    struct kv_ledger ledger = {.trace = &trace};
    enum kv_status status;
    if (s) status = c->method->query(s, rows, q, c->widen, support, nb, estimate, &ledger);
    else {
        status = kv_selection_open(rows, rows->n_rows, group, support, nb, estimate, &ledger);
        for (int32_t g = 0; g < group; g++) kv_mask_set_range(support + (size_t)g * (size_t)nb, 0, rows->n_rows);
    }
    if (status != KV_OK) return status;
    add_rows(support, group, nb, c->persistent, c->n_persistent, rows->n_rows);
    uint64_t *resident = calloc((size_t)nb, sizeof *resident);
    if (!resident) return KV_OUT_OF_MEMORY;
    add_rows(resident, 1, nb, c->resident, c->n_resident, rows->n_rows);
    kv_ledger_support(&ledger, rows, support, nb, resident);
    free(resident);
    sum_ledger(&r->ledger, &ledger);
    for (int32_t g = 0; g < group; g++) r->n_units[first + g] = trace.n_units;
    status = kv_lab_attend(rows, q, support, nb, r->m + first, r->l + first, r->u + (size_t)first * d, r->output + (size_t)first * d);
    if (status == KV_OK) status = kv_lab_attend(rows, q, NULL, nb, NULL, NULL, NULL, r->dense + (size_t)first * d);
    if (status == KV_OK && s && c->method->estimate) status = c->method->estimate(s, rows, q, support, nb, r->output + (size_t)first * d);
    return status;
}

static enum kv_status measure(const struct kv_lab_case *c, int32_t h, const struct kv_rows *rows, struct kv_lab_result *r)
{
    int32_t first = h * rows->group;
    size_t need = kv_shadow_scratch_doubles(rows->n_rows, c->d_head);
    double *scratch = malloc(need * sizeof *scratch);
    if (!scratch) return KV_OUT_OF_MEMORY;
    struct kv_shadow_unit unit = {.rows = rows, .q = c->q + (size_t)first * (size_t)c->d_head, .support = r->support + (size_t)first * (size_t)r->n_blocks,
                                  .n_blocks = r->n_blocks, .output = r->output + (size_t)first * (size_t)c->d_head,
                                  .estimator = c->method && c->method->estimate, .recall_k = c->recall_k ? c->recall_k : KV_RECALL_OWN};
    struct kv_sample sample = {0};
    enum kv_status status = kv_shadow_unit(&unit, scratch, need, &sample, r->head + first, NULL, NULL);
    free(scratch);
    return status;
}

static double apart(const double *a, const double *b, const float *b_float, size_t d)
{
    double sum = 0;
    for (size_t i = 0; i < d; i++) {
        double e = a[i] - (b ? b[i] : (double)b_float[i]);
        sum += e * e;
    }
    return sqrt(sum);
}

/* Rows that the method ranked or took; -1 unless its units are rows. */
static double candidate_recall(const struct kv_lab_case *c, int32_t q_head, const struct kv_rows *rows, const struct kv_lab_result *r, uint64_t *mask, double *scratch, size_t need)
{
    int32_t k = r->head[q_head].recall_k;
    bool all = !c->method;
    if (k < 1 || (!all && r->n_units[q_head] != rows->n_rows)) return -1;
    const float *score = r->score + (size_t)q_head * (size_t)r->cap_units;
    memset(mask, 0, (size_t)r->n_blocks * sizeof *mask);
    for (int32_t i = 0; i < rows->n_rows; i++)
        if (all || score[i] == score[i] || kv_mask_has(r->support + (size_t)q_head * (size_t)r->n_blocks, i)) kv_mask_set(mask, i);
    struct kv_rows one = *rows;
    one.group = 1;
    struct kv_shadow_unit unit = {.rows = &one, .q = c->q + (size_t)q_head * (size_t)c->d_head, .support = mask, .n_blocks = r->n_blocks, .recall_k = k};
    struct kv_shadow_head head;
    struct kv_sample sample = {0};
    return kv_shadow_unit(&unit, scratch, need, &sample, &head, NULL, NULL) == KV_OK ? head.recall : -1;
}

static enum kv_status stages(const struct kv_lab_case *c, int32_t h, const struct kv_rows *rows, struct kv_lab_result *r)
{
    int32_t group = rows->group, first = h * group;
    size_t d = (size_t)c->d_head, need = kv_shadow_scratch_doubles(rows->n_rows, c->d_head), values = (size_t)group * d, from = (size_t)h * (size_t)c->n_rows * d;
    struct kv_lab_rows given = {0};
    double *scratch = malloc((need + 3 * values) * sizeof *scratch), *dense = scratch + need, *stored = dense + values, *plain = stored + values;
    uint64_t *mask = malloc((size_t)r->n_blocks * sizeof *mask);
    enum kv_status status = scratch && mask ? kv_lab_rows_create(KV_F32, c->d_head, group, rows->scale, c->n_rows, c->k + from, c->v + from, &given) : KV_OUT_OF_MEMORY;
    struct kv_shadow_unit unit = {.rows = rows, .q = c->q + (size_t)first * d, .support = r->support + (size_t)first * (size_t)r->n_blocks, .n_blocks = r->n_blocks};
    struct kv_sample sample = {0};
    if (status == KV_OK) status = kv_shadow_unit(&unit, scratch, need, &sample, NULL, dense, stored);
    given.rows.n_rows = rows->n_rows;
    unit.rows = &given.rows;
    if (status == KV_OK) status = kv_shadow_unit(&unit, scratch, need, &sample, NULL, NULL, plain);
    for (int32_t g = 0; status == KV_OK && g < group; g++) {
        size_t at = (size_t)g * d;
        r->stages[first + g] = (struct kv_lab_stages){candidate_recall(c, first + g, rows, r, mask, scratch, need), apart(stored + at, dense + at, NULL, d),
                                                      apart(stored + at, plain + at, NULL, d), apart(stored + at, NULL, r->output + (size_t)first * d + at, d)};
    }
    kv_lab_rows_free(&given);
    free(mask);
    free(scratch);
    return status;
}

/* [group][n][d] of one K/V head → [n][group][d], as build takes them. */
static float *turn_prefill(const struct kv_lab_case *c, int32_t h, int32_t group)
{
    size_t n = (size_t)c->n_prefill_q, d = (size_t)c->d_head;
    float *out = malloc((n * (size_t)group * d + 1) * sizeof *out);
    for (size_t g = 0; out && g < (size_t)group; g++)
        for (size_t i = 0; i < n; i++)
            memcpy(out + (i * (size_t)group + g) * d, c->prefill_q + (((size_t)h * (size_t)group + g) * n + i) * d, d * sizeof *out);
    return out;
}

static enum kv_status run_head(const struct kv_lab_case *c, int32_t h, struct kv_lab_result *r, struct kv_error *err)
{
    int32_t group = c->n_q_heads / c->n_kv_heads;
    size_t from = (size_t)h * (size_t)c->n_rows * (size_t)c->d_head;
    float scale = (float)(c->scale != 0 ? c->scale : 1 / sqrt((double)c->d_head));
    struct kv_selector *s = NULL;
    struct kv_lab_rows stored = {0};
    float *prefill_q = c->prefill_q ? turn_prefill(c, h, group) : NULL;
    enum kv_status status = c->prefill_q && !prefill_q ? KV_OUT_OF_MEMORY : KV_OK;
    if (status == KV_OK) status = kv_lab_rows_create(c->row_type, c->d_head, group, scale, c->n_rows, c->k + from, c->v + from, &stored);
    if (status != KV_OK) kv_fail(err, status, "", "no memory for the case");
    if (status == KV_OK && c->method) status = c->method->create(&c->params, c->d_head, group, c->n_rows, 0, &s, err);
    if (status == KV_OK && c->n_cluster_seeds) status = c->method->seed_rows(s, c->cluster_seeds, c->n_cluster_seeds, err);
    if (status == KV_OK) status = run_steps(c, s, &stored.rows, prefill_q, err);
    if (status != KV_OK) goto done;
    r->n_rows = stored.rows.n_rows;
    r->n_blocks = kv_mask_words(r->n_rows);
    status = answer(c, h, s, &stored.rows, r);
    if (status == KV_OK) status = measure(c, h, &stored.rows, r);
    if (status == KV_OK) status = stages(c, h, &stored.rows, r);
    if (status != KV_OK) kv_fail(err, status, "", "%s on K/V head %d: %s", c->method ? c->method->name : "dense", h, kv_status_meaning(status));
done:
    if (s) c->method->destroy(s);
    kv_lab_rows_free(&stored);
    free(prefill_q);
    return status;
}

enum kv_status kv_lab_run(const struct kv_lab_case *c, struct kv_lab_result *out, struct kv_error *err)
{
    *out = (struct kv_lab_result){0};
    enum kv_status status = check(c, err);
    if (status != KV_OK) return status;
    kv_numerics_enter();
    status = allocate(c, out);
    if (status != KV_OK) kv_fail(err, status, "", "no memory for the result");
    for (int32_t h = 0; status == KV_OK && h < c->n_kv_heads; h++) status = run_head(c, h, out, err);
    if (status != KV_OK) kv_lab_result_free(out);
    return status;
}
