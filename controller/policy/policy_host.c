/* policy_host.c — loading policies; the arguments and answers of fallback and release decisions. */
#include "controller/policy/policy_host_internal.h"

#include <jansson.h>
#include <lauxlib.h>
#include <lua.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[KV_POLICY_KINDS] = {"admission", "fallback", "release"};

const char *kv_policy_kind_name(enum kv_policy_kind k)
{
    return (unsigned)k < KV_POLICY_KINDS ? kinds[k] : "unknown";
}

bool kv_policy_kind_from_name(const char *name, enum kv_policy_kind *out)
{
    for (int i = 0; i < KV_POLICY_KINDS; i++)
        if (!strcmp(kinds[i], name)) return *out = (enum kv_policy_kind)i, true;
    return false;
}

/* ---------------------------------------------------------------- loading */

struct load {
    struct kv_script *p;
    enum kv_policy_kind wanted;
    bool parsed;
    const char *shape; /* what is wrong with the table */
    char field[32];
};

static int parse_chunk(lua_State *L)
{
    struct load *l = lua_touserdata(L, 1);
    if (luaL_loadbufferx(L, l->p->source, l->p->source_bytes, "=policy", "t") != LUA_OK) return lua_error(L);
    l->parsed = true;
    l->p->function = luaL_ref(L, LUA_REGISTRYINDEX);
    return 0;
}

static int bad_shape(struct load *l, const char *field, const char *what)
{
    l->shape = what;
    snprintf(l->field, sizeof l->field, "%s", field);
    return 0;
}

/* The name goes into JSON, receipts and terminals. */
static bool printable(const char *text, size_t n)
{
    json_t *v = json_stringn(text, n); /* NULL where it is no UTF-8 */
    bool ok = v != NULL;
    json_decref(v);
    for (size_t i = 0; i < n; i++) ok &= (unsigned char)text[i] >= 0x20 && text[i] != 0x7f && !((unsigned char)text[i] == 0xc2 && (unsigned char)text[i + 1] < 0xa0);
    return ok;
}

static int run_chunk(lua_State *L)
{
    struct load *l = lua_touserdata(L, 1);
    struct kv_script *p = l->p;
    lua_rawgeti(L, LUA_REGISTRYINDEX, p->function);
    luaL_unref(L, LUA_REGISTRYINDEX, p->function);
    lua_call(L, 0, 1);
    if (!lua_istable(L, -1)) return bad_shape(l, "policy", "the file must return one table");
    lua_getfield(L, -1, "api");
    if (!lua_isinteger(L, -1) || lua_tointeger(L, -1) != 1) return bad_shape(l, "api", "the table needs api = 1");
    lua_pop(L, 1);
    if (lua_getfield(L, -1, "name") != LUA_TSTRING || lua_rawlen(L, -1) == 0 || lua_rawlen(L, -1) >= sizeof p->name || !printable(lua_tostring(L, -1), lua_rawlen(L, -1)))
        return bad_shape(l, "name", "the table needs a name of 1 to 63 bytes, UTF-8 without control characters");
    snprintf(p->name, sizeof p->name, "%s", lua_tostring(L, -1));
    lua_pop(L, 1);
    int found = -1;
    for (int k = 0; k < KV_POLICY_KINDS; k++) {
        int t = lua_getfield(L, -1, kinds[k]);
        lua_pop(L, 1);
        if (t == LUA_TNIL) continue;
        if (t != LUA_TFUNCTION) return bad_shape(l, kinds[k], "the decision must be a function");
        if (found >= 0) return bad_shape(l, kinds[k], "one policy decides one thing: the table has two decision functions");
        found = k;
    }
    if (found < 0) return bad_shape(l, "policy", "the table has none of the functions admission, fallback and release");
    if (l->wanted != KV_POLICY_KINDS && (int)l->wanted != found) return bad_shape(l, kinds[found], "the table decides another thing than asked for");
    p->kind = (enum kv_policy_kind)found;
    lua_getfield(L, -1, kinds[found]);
    p->function = luaL_ref(L, LUA_REGISTRYINDEX);
    p->table = luaL_ref(L, LUA_REGISTRYINDEX);
    return 0;
}

static enum kv_status load_source(struct kv_script *p, enum kv_policy_kind kind, struct kv_error *err)
{
    struct load l = {.p = p, .wanted = kind};
    p->box.deadline_us = LOAD_DEADLINE_US; /* the parser's time, not the policy's */
    enum kv_status st = kv_sandbox_run(&p->box, parse_chunk, &l, err);
    p->box.deadline_us = KV_POLICY_DEADLINE_US;
    if (st == KV_POLICY_FAULT && err) st = err->status = KV_POLICY_PARSE;
    if (st != KV_OK) return st == KV_POLICY_FAULT ? KV_POLICY_PARSE : st;
    st = kv_sandbox_run(&p->box, run_chunk, &l, err);
    if (st == KV_OK && l.shape) {
        st = kv_fail(err, KV_POLICY_SHAPE, l.field, "%s", l.shape);
        kv_hint(err, "return { api = 1, name = \"…\", %s = function(…) … end }", kv_policy_kind_name(kind == KV_POLICY_KINDS ? KV_POLICY_RELEASE : kind));
    }
    return st;
}

enum kv_status kv_policy_load(enum kv_policy_kind kind, const char *source, size_t n, struct kv_script **out, struct kv_error *err)
{
    if (n > KV_POLICY_SOURCE_BYTES) return kv_fail(err, KV_POLICY_BUDGET, "policy", "the source has %zu bytes; at most %d are allowed", n, KV_POLICY_SOURCE_BYTES);
    struct kv_script *p = calloc(1, sizeof *p);
    if (p) p->source = malloc(n + 1);
    if (!p || !p->source) {
        free(p);
        return kv_fail(err, KV_OUT_OF_MEMORY, "policy", "memory could not be had");
    }
    memcpy(p->source, source, n);
    p->source[n] = 0;
    p->source_bytes = n;
    uint8_t digest[32];
    kv_sha256(source, n, digest);
    kv_hex(digest, 32, p->version);
    enum kv_status st = kv_sandbox_open(&p->box, err);
    if (st == KV_OK) st = load_source(p, kind, err);
    if (st == KV_OK && p->kind == KV_POLICY_ADMISSION) st = kv_policy_prepare_admission(p, err);
    if (st != KV_OK) {
        kv_policy_free(p);
        return st;
    }
    *out = p;
    return KV_OK;
}

void kv_policy_free(struct kv_script *p)
{
    if (!p) return;
    kv_sandbox_close(&p->box);
    free(p->source);
    free(p);
}

enum kv_policy_kind kv_policy_kind(const struct kv_script *p)
{
    return p->kind;
}

bool kv_policy_dead(const struct kv_script *p, bool *preempted)
{
    *preempted = p->box.preempted;
    return p->box.killed != NULL;
}

const char *kv_policy_name(const struct kv_script *p)
{
    return p->name;
}

const char *kv_policy_version(const struct kv_script *p)
{
    return p->version;
}

const char *kv_policy_source(const struct kv_script *p, size_t *n)
{
    *n = p->source_bytes;
    return p->source;
}

/* ---------------------------------------------------------------- arguments and answers */

struct answer { /* the fields that fallback and release return, copied out of Lua */
    bool table;
    char action[48], reason[160];
};
struct call {
    struct kv_script *p;
    const void *a, *b;
    double number;
    int (*push)(lua_State *L, const struct call *c); /* pushes the arguments, returns how many */
    struct answer answer;
};

static void set_number(lua_State *L, const char *k, double v)
{
    if (v != v) return; /* absent, hence nil */
    lua_pushnumber(L, v);
    lua_setfield(L, -2, k);
}

static void set_integer(lua_State *L, const char *k, uint64_t v)
{
    lua_pushinteger(L, v > INT64_MAX ? INT64_MAX : (lua_Integer)v);
    lua_setfield(L, -2, k);
}

static void set_bool(lua_State *L, const char *k, bool v)
{
    lua_pushboolean(L, v);
    lua_setfield(L, -2, k);
}

static void set_text(lua_State *L, const char *k, const char *v)
{
    lua_pushstring(L, v ? v : "");
    lua_setfield(L, -2, k);
}

/* A field's text; empty when it is no string or holds a zero byte. A name must fit whole, prose is cut. */
static void read_text(lua_State *L, const char *k, char *out, size_t cap, bool prose)
{
    out[0] = 0;
    if (lua_getfield(L, -1, k) == LUA_TSTRING) {
        size_t n;
        const char *t = lua_tolstring(L, -1, &n);
        if (memchr(t, 0, n) || (n >= cap && !prose)) n = 0;
        if (n >= cap)
            for (n = cap - 1; n > 0 && ((unsigned char)t[n] & 0xc0) == 0x80;) n--; /* not inside a character */
        memcpy(out, t, n);
        out[n] = 0;
    }
    lua_pop(L, 1);
}

static int run_call(lua_State *L)
{
    struct call *c = lua_touserdata(L, 1);
    struct answer *a = &c->answer;
    lua_rawgeti(L, LUA_REGISTRYINDEX, c->p->function);
    lua_call(L, c->push(L, c), 1);
    a->table = lua_istable(L, -1);
    if (!a->table) return 0;
    read_text(L, "action", a->action, sizeof a->action, false);
    read_text(L, "reason", a->reason, sizeof a->reason, true);
    return 0;
}

static enum kv_status ask(struct call *c, struct kv_error *err)
{
    enum kv_status st = kv_sandbox_run(&c->p->box, run_call, c, err);
    if (st == KV_OK && !c->answer.table) st = kv_fail(err, KV_POLICY_SHAPE, c->p->name, "the policy must answer with a table");
    if (st == KV_OK && !c->answer.action[0]) st = kv_fail(err, KV_POLICY_SHAPE, "action", "the policy's answer has no action");
    return st;
}

/* ---------------------------------------------------------------- fallback */

void kv_fallback_table_baseline(struct kv_fallback_table *out)
{
    for (unsigned i = 0; i < KV_FALLBACK_CELLS; i++) {
        struct kv_fallback_state s;
        kv_fallback_state_of(i, &s);
        out->action[i] = (uint8_t)kv_fallback_source(&s);
    }
}

static int push_fallback(lua_State *L, const struct call *c)
{
    const struct kv_fallback_state *s = c->a;
    lua_createtable(L, 0, 8);
    set_bool(L, "force_exact", s->force_exact);
    set_bool(L, "uncertain", s->uncertain);
    set_text(L, "phase", s->post_widen ? "post_widen" : "initial");
    set_bool(L, "can_widen", s->can_widen);
    set_bool(L, "fetch_fits", s->fetch_fits);
    set_bool(L, "recompute_fits", s->recompute_fits);
    set_bool(L, "retryable", s->retryable);
    set_bool(L, "approximation_allowed", s->approximation_allowed);
    lua_createtable(L, 0, 1);
    set_number(L, "max_estimated_omitted_mass", c->number);
    return 2;
}

static void describe(const struct kv_fallback_state *s, char *out, size_t cap)
{
    snprintf(out, cap, "force_exact=%d uncertain=%d phase=%s can_widen=%d fetch_fits=%d recompute_fits=%d retryable=%d approximation_allowed=%d", s->force_exact,
             s->uncertain, s->post_widen ? "post_widen" : "initial", s->can_widen, s->fetch_fits, s->recompute_fits, s->retryable, s->approximation_allowed);
}

static enum kv_status fallback_cell(struct kv_script *p, unsigned i, double max_mass, uint8_t *out, struct kv_error *err)
{
    struct kv_fallback_state s;
    char at[160];
    kv_fallback_state_of(i, &s);
    struct call c = {.p = p, .a = &s, .number = max_mass, .push = push_fallback};
    enum kv_status st = ask(&c, err);
    if (st != KV_OK) return st;
    int a = 0;
    while (a < KV_FALLBACK_ACTIONS && strcmp(kv_fallback_action_name((enum kv_fallback_action)a), c.answer.action)) a++;
    describe(&s, at, sizeof at);
    if (a == KV_FALLBACK_ACTIONS) return kv_fail(err, KV_POLICY_SHAPE, "action", "'%s' is none of the seven fallback actions; at %s", c.answer.action, at);
    if (!kv_fallback_legal(&s, (enum kv_fallback_action)a)) {
        kv_fail(err, KV_POLICY_ILLEGAL, c.answer.action, "%s is not legal at %s", c.answer.action, at);
        kv_hint(err, "here the contract's own answer is %s", kv_fallback_action_name(kv_fallback_source(&s)));
        return KV_POLICY_ILLEGAL;
    }
    *out = (uint8_t)a;
    return KV_OK;
}

enum kv_status kv_policy_fallback_table(struct kv_script *p, double max_omitted_mass, struct kv_fallback_table *out, struct kv_error *err)
{
    struct kv_fallback_table t;
    for (unsigned i = 0; i < KV_FALLBACK_CELLS; i++) {
        enum kv_status st = fallback_cell(p, i, max_omitted_mass, &t.action[i], err);
        if (st == KV_OK) continue;
        kv_fallback_table_baseline(out);
        return st;
    }
    *out = t;
    return KV_OK;
}

/* ---------------------------------------------------------------- release */

const char *kv_release_action_name(enum kv_release_action a)
{
    static const char *const names[KV_RELEASE_ACTIONS] = {"HOLD", "ADVANCE", "ROLLBACK"};
    return (unsigned)a < KV_RELEASE_ACTIONS ? names[a] : "HOLD";
}

static void push_gate(lua_State *L, const struct kv_gate_result *g)
{
    lua_createtable(L, 0, 10);
    set_text(L, "metric", g->metric);
    set_text(L, "verdict", kv_verdict_name(g->verdict));
    set_bool(L, "judged", g->judged);
    set_number(L, "value", g->value);
    set_number(L, "lower", g->lower);
    set_number(L, "upper", g->upper);
    set_number(L, "threshold", g->threshold);
    set_integer(L, "n", g->n);
    set_integer(L, "min_n", g->min_n);
    set_text(L, "detail", g->detail);
}

static int push_release(lua_State *L, const struct call *c)
{
    const struct kv_release_question *q = c->a;
    const struct kv_rollout *r = q->rollout;
    lua_pushstring(L, kv_stage_name(r->stage));
    lua_createtable(L, q->n_gates, 0);
    for (int32_t i = 0; i < q->n_gates; i++) {
        push_gate(L, &q->gates[i]);
        lua_rawseti(L, -2, i + 1);
    }
    lua_createtable(L, 0, 8);
    set_number(L, "seconds_in_step", q->seconds_in_step);
    set_bool(L, "wait_over", q->wait_over);
    set_number(L, "fraction", r->fraction);
    set_integer(L, "step", (uint64_t)(r->step + 1));
    set_integer(L, "steps", (uint64_t)r->manifest.n_steps);
    set_text(L, "contract", r->manifest.contract == KV_EXACT ? "exact" : "approximate");
    set_text(L, "pipeline", r->manifest.pipeline->name);
    lua_createtable(L, r->n_transitions, 0);
    for (int32_t i = 0; i < r->n_transitions; i++) {
        lua_createtable(L, 0, 3);
        set_text(L, "from", kv_stage_name(r->transitions[i].from));
        set_text(L, "to", kv_stage_name(r->transitions[i].to));
        set_number(L, "seconds_ago", q->seconds_in_step + (double)(r->stage_since_us - r->transitions[i].at_us) / 1e6);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "transitions");
    return 3;
}

enum kv_status kv_policy_release(struct kv_script *p, const struct kv_release_question *q, struct kv_release_answer *out, struct kv_error *err)
{
    memset(out, 0, sizeof *out);
    struct call c = {.p = p, .a = q, .push = push_release};
    enum kv_status st = ask(&c, err);
    int a = 0;
    while (st == KV_OK && a < KV_RELEASE_ACTIONS && strcmp(kv_release_action_name((enum kv_release_action)a), c.answer.action)) a++;
    if (st == KV_OK && a == KV_RELEASE_ACTIONS) st = kv_fail(err, KV_POLICY_SHAPE, "action", "'%s' is none of ADVANCE, HOLD, ROLLBACK", c.answer.action);
    bool passed = q->rollout->stage == KV_STAGE_OFF || kv_gates_decide(q->gates, q->n_gates, NULL) == KV_PASS;
    if (st == KV_OK && a == KV_RELEASE_ADVANCE && !(passed && q->wait_over))
        st = kv_fail(err, KV_POLICY_ILLEGAL, "ADVANCE", "an advance was proposed %s", passed ? "before the step's waiting time is over" : "while a gate does not pass");
    if (st != KV_OK) {
        snprintf(out->reason, sizeof out->reason, "policy fault");
        return st;
    }
    out->action = (enum kv_release_action)a;
    memcpy(out->reason, c.answer.reason, sizeof out->reason);
    return KV_OK;
}
