/* policy_admission.c — admission decisions: asked for every request, so the argument tables and the names of their fields are made once.
 *
 * A closure holds the decision function, both tables and every name; a call fills the tables in place. What a policy adds to them stays, as what it keeps
 * in its own variables does: C relies on neither. */
#include "controller/policy/policy_host_internal.h"
#include "runtime/execution/placement.h"

#include <lua.h>
#include <lauxlib.h>
#include <string.h>

#define REQUEST_FIELDS(X) X(tenant) X(class) X(contract) X(prompt_tokens) X(max_tokens) X(slack_ms) X(estimate_ms) X(backend_bytes) X(staging_bytes)
#define CREDIT_FIELDS(X) X(pinned_free) X(staging_free) X(link_free) X(queue_free)
#define ANSWER_FIELDS(X) X(action) X(cause) X(placement) X(reason) X(priority) /* placement is of the request, too */

enum upvalue {
    UP_FUNCTION = 1, UP_REQUEST, UP_CREDITS, UP_EXACT, UP_APPROXIMATE,
#define FIELD(name) UP_##name,
    REQUEST_FIELDS(FIELD) CREDIT_FIELDS(FIELD) ANSWER_FIELDS(FIELD)
#undef FIELD
    UP_END
};

struct question {
    const struct kv_admission_request *r;
    const struct kv_admission_credits *c;
    bool table, no_word; /* no_word: a placement that is no text, or too long for any */
    char action[48], cause[32], placement[32], reason[96];
    double priority;
};

/* ---------------------------------------------------------------- asking */

static void put_text(lua_State *L, int name, const char *v)
{
    lua_pushvalue(L, lua_upvalueindex(name));
    lua_pushstring(L, v ? v : "");
    lua_rawset(L, -3);
}

static void put_integer(lua_State *L, int name, uint64_t v)
{
    lua_pushvalue(L, lua_upvalueindex(name));
    lua_pushinteger(L, v > INT64_MAX ? INT64_MAX : (lua_Integer)v);
    lua_rawset(L, -3);
}

static void put_number(lua_State *L, int name, bool there, double v)
{
    lua_pushvalue(L, lua_upvalueindex(name));
    if (there && v == v) lua_pushnumber(L, v);
    else lua_pushnil(L);
    lua_rawset(L, -3);
}

/* A field's text; empty when it is no string or holds a zero byte. A name must fit whole, prose is cut between characters. */
static void take_text(lua_State *L, int name, char *out, size_t cap, bool prose)
{
    out[0] = 0;
    lua_pushvalue(L, lua_upvalueindex(name));
    if (lua_rawget(L, -2) == LUA_TSTRING) {
        size_t n;
        const char *t = lua_tolstring(L, -1, &n);
        if (memchr(t, 0, n) || (n >= cap && !prose)) n = 0;
        if (n >= cap)
            for (n = cap - 1; n > 0 && ((unsigned char)t[n] & 0xc0) == 0x80;) n--;
        memcpy(out, t, n);
        out[n] = 0;
    }
    lua_pop(L, 1);
}

static int decide(lua_State *L)
{
    struct question *q = lua_touserdata(L, 1);
    const struct kv_admission_request *r = q->r;
    const struct kv_admission_credits *c = q->c;
    lua_pushvalue(L, lua_upvalueindex(UP_FUNCTION));
    lua_pushvalue(L, lua_upvalueindex(UP_REQUEST));
    put_text(L, UP_tenant, r->tenant);
    put_text(L, UP_class, r->class);
    lua_pushvalue(L, lua_upvalueindex(UP_contract));
    lua_pushvalue(L, lua_upvalueindex(r->contract == KV_EXACT ? UP_EXACT : UP_APPROXIMATE));
    lua_rawset(L, -3);
    put_integer(L, UP_prompt_tokens, (uint64_t)r->prompt_tokens);
    put_integer(L, UP_max_tokens, (uint64_t)r->max_tokens);
    put_number(L, UP_slack_ms, r->slack_ms >= 0, r->slack_ms);
    put_number(L, UP_estimate_ms, true, r->estimate_ms);
    put_integer(L, UP_backend_bytes, r->backend_bytes);
    put_integer(L, UP_staging_bytes, r->staging_bytes);
    put_text(L, UP_placement, r->placement);
    lua_pushvalue(L, lua_upvalueindex(UP_CREDITS));
    put_integer(L, UP_pinned_free, c->pinned_free);
    put_integer(L, UP_staging_free, c->staging_free);
    put_integer(L, UP_link_free, c->link_free);
    put_integer(L, UP_queue_free, c->queue_free);
    lua_call(L, 2, 1);
    q->table = lua_istable(L, -1);
    if (!q->table) return 0;
    take_text(L, UP_action, q->action, sizeof q->action, false);
    take_text(L, UP_cause, q->cause, sizeof q->cause, false);
    take_text(L, UP_placement, q->placement, sizeof q->placement, false);
    lua_pushvalue(L, lua_upvalueindex(UP_placement));
    int type = lua_rawget(L, -2);
    q->no_word = type != LUA_TNIL && !q->placement[0] && (type != LUA_TSTRING || lua_rawlen(L, -1));
    lua_pop(L, 1);
    take_text(L, UP_reason, q->reason, sizeof q->reason, true);
    lua_pushvalue(L, lua_upvalueindex(UP_priority));
    q->priority = lua_rawget(L, -2) == LUA_TNUMBER ? lua_tonumber(L, -1) : 0;
    return 0;
}

static int make_closure(lua_State *L)
{
    struct kv_script *p = lua_touserdata(L, 1);
    luaL_checkstack(L, UP_END, "admission");
    lua_rawgeti(L, LUA_REGISTRYINDEX, p->function);
    lua_createtable(L, 0, 10);
    lua_createtable(L, 0, 4);
    lua_pushliteral(L, "exact");
    lua_pushliteral(L, "approximate");
#define FIELD(name) lua_pushliteral(L, #name);
    REQUEST_FIELDS(FIELD) CREDIT_FIELDS(FIELD) ANSWER_FIELDS(FIELD)
#undef FIELD
    lua_pushcclosure(L, decide, UP_END - 1);
    p->admission = luaL_ref(L, LUA_REGISTRYINDEX);
    return 0;
}

enum kv_status kv_policy_prepare_admission(struct kv_script *p, struct kv_error *err)
{
    return kv_sandbox_run(&p->box, make_closure, p, err);
}

/* ---------------------------------------------------------------- what is legal */

static bool credits_fit(const struct kv_admission_request *r, const struct kv_admission_credits *c)
{
    uint64_t backend = c->pinned_free < c->link_free ? c->pinned_free : c->link_free;
    return r->backend_bytes <= backend && r->staging_bytes <= c->staging_free && c->queue_free >= 1;
}

static bool in_time(const struct kv_admission_request *r)
{
    return r->slack_ms < 0 || r->estimate_ms <= r->slack_ms;
}

void kv_admission_baseline(const struct kv_admission_request *r, const struct kv_admission_credits *c, struct kv_admission_answer *out)
{
    memset(out, 0, sizeof *out);
    out->action = !in_time(r) ? KV_ADMIT_FALLBACK_DEADLINE : !credits_fit(r, c) ? KV_ADMIT_FALLBACK_CREDIT : KV_ADMIT_TRANSFER;
    static const char reasons[KV_ADMISSIONS][32] = {"deadline and credits suffice", "the estimate exceeds the slack", "no credit is free"};
    memcpy(out->reason, reasons[out->action], sizeof reasons[0]);
}

/* The candidate's own, or "resident": then the baseline serves the request. There is no third one to serve it. */
static enum kv_status check_placement(const struct question *q, struct kv_error *err)
{
    const char *own = q->r->placement;
    if (q->no_word || (q->placement[0] && !kv_placement_find(q->placement))) {
        kv_fail(err, KV_POLICY_SHAPE, "placement", "'%s' is no placement", q->no_word ? "" : q->placement);
        kv_hint(err, "answer \"resident\", the request's own (r.placement), or none");
        return KV_POLICY_SHAPE;
    }
    if (!q->placement[0] || !own || !strcmp(q->placement, own) || !strcmp(q->placement, "resident")) return KV_OK;
    return kv_fail(err, KV_POLICY_ILLEGAL, "placement", "'%s' was proposed where the candidate is '%s'", q->placement, own);
}

static enum kv_status judge(const struct question *q, struct kv_admission_answer *out, struct kv_error *err)
{
    if (!q->table) return kv_fail(err, KV_POLICY_SHAPE, "admission", "the policy must answer with a table");
    if (!q->action[0]) return kv_fail(err, KV_POLICY_SHAPE, "action", "the policy's answer has no action");
    bool deadline = !strcmp(q->cause, "DEADLINE"), credit = !strcmp(q->cause, "CREDIT_PRESSURE");
    if (!strcmp(q->action, "ADMIT_TRANSFER")) out->action = KV_ADMIT_TRANSFER;
    else if (!strcmp(q->action, "FALLBACK") && (deadline || credit)) out->action = deadline ? KV_ADMIT_FALLBACK_DEADLINE : KV_ADMIT_FALLBACK_CREDIT;
    else return kv_fail(err, KV_POLICY_SHAPE, "action", "'%s' is no admission: ADMIT_TRANSFER, or FALLBACK with cause DEADLINE or CREDIT_PRESSURE", q->action);
    if (!(q->priority >= 0 && q->priority <= 100)) return kv_fail(err, KV_POLICY_SHAPE, "priority", "the priority must lie between 0 and 100");
    if (out->action == KV_ADMIT_TRANSFER && !(in_time(q->r) && credits_fit(q->r, q->c)))
        return kv_fail(err, KV_POLICY_ILLEGAL, "ADMIT_TRANSFER", "a transfer was proposed that %s", in_time(q->r) ? "the free credits do not cover" : "cannot meet the deadline");
    enum kv_status st = out->action == KV_ADMIT_TRANSFER ? check_placement(q, err) : KV_OK;
    if (st != KV_OK) return st;
    out->priority = (int32_t)q->priority;
    memcpy(out->placement, q->placement, strlen(q->placement) + 1);
    memcpy(out->reason, q->reason, strlen(q->reason) + 1);
    return KV_OK;
}

enum kv_status kv_policy_admission(struct kv_script *p, const struct kv_admission_request *r, const struct kv_admission_credits *c,
                                   struct kv_admission_answer *out, struct kv_error *err)
{
    struct question q;
    q.r = r;
    q.c = c;
    q.table = false;
    enum kv_status st = kv_sandbox_call(&p->box, p->admission, &q, err);
    if (st == KV_OK) st = judge(&q, out, err);
    if (st != KV_OK) kv_admission_baseline(r, c, out);
    return st;
}
