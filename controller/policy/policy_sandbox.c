/* policy_sandbox.c — the bounded Lua state and the small library a policy sees. */
#include "controller/policy/policy_sandbox.h"

#include "controller/policy/policy_host.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    HOOK_INSTRUCTIONS = 100,
    STRING_BYTES = 8 * 1024,   /* of one string: comparing, coercing or upper-casing it stays under 10 µs */
    BLOCK_BYTES = 256 * 1024,  /* of anything else: tables, the stack */
    EMERGENCIES = 2,           /* full collections forced by the live cap, per call */
    SORT_ITEMS = 1024,
    WALL_FACTOR = 50           /* wall time in deadlines after which a call ends whatever its CPU time */
};

static int64_t clock_us(clockid_t c)
{
    struct timespec t;
    clock_gettime(c, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void kill_call(struct kv_sandbox *s, const char *why)
{
    if (!s->killed) s->killed = why;
    s->killed_status = KV_POLICY_BUDGET;
}

static void check_deadline(struct kv_sandbox *s)
{
    int64_t wall = clock_us(CLOCK_MONOTONIC) - s->wall_start_us;
    /* Asking for the thread's own time is a system call; calls that end before their first check, as good ones do, go without it. */
    if (s->cpu_start_us < 0) s->cpu_start_us = clock_us(CLOCK_THREAD_CPUTIME_ID);
    if (wall <= s->deadline_us) return;
    if (clock_us(CLOCK_THREAD_CPUTIME_ID) - s->cpu_start_us > s->deadline_us) kill_call(s, "it ran past its deadline");
    else if (wall > s->deadline_us * WALL_FACTOR) {
        s->preempted = !s->killed;
        kill_call(s, "it ran far past its deadline");
    }
}

/* May a block of this size come to be? osize of a new block is its Lua type. */
static bool allowed(struct kv_sandbox *s, bool is_string, size_t old, size_t size)
{
    if (s->running && size > (is_string ? STRING_BYTES + 64 : BLOCK_BYTES)) {
        kill_call(s, is_string ? "it made a string longer than 8 KiB" : "it made a table or stack larger than 256 KiB");
        return false;
    }
    if (s->live - old + size > KV_POLICY_LIVE_BYTES) {
        if (++s->refusals > EMERGENCIES) kill_call(s, "it holds more than its live memory");
        return false;
    }
    s->total += size - old;
    if (s->total > KV_POLICY_TOTAL_BYTES) {
        kill_call(s, "it allocated more than its total memory");
        return false;
    }
    if (s->running && ++s->allocations % 64 == 0) check_deadline(s);
    return true;
}

static void *allocate(void *ud, void *p, size_t osize, size_t nsize)
{
    struct kv_sandbox *s = ud;
    size_t old = p ? osize : 0;
    if (nsize == 0) {
        free(p);
        s->live -= old;
        return NULL;
    }
    if (nsize > old && (s->killed || !allowed(s, !p && osize == LUA_TSTRING, old, nsize))) return NULL;
    void *q = realloc(p, nsize);
    if (q) s->live += nsize - old;
    return q;
}

static struct kv_sandbox *sandbox_of(lua_State *L)
{
    void *ud;
    lua_getallocf(L, &ud);
    return ud;
}

static void hook(lua_State *L, lua_Debug *ar)
{
    (void)ar;
    struct kv_sandbox *s = sandbox_of(L);
    if (!s->running) return;
    s->instructions += HOOK_INSTRUCTIONS;
    if (s->instructions > KV_POLICY_INSTRUCTIONS) kill_call(s, "it ran more instructions than its budget");
    if (!s->killed) check_deadline(s);
    if (!s->killed) return;
    lua_sethook(L, hook, LUA_MASKCOUNT, 1);
    luaL_error(L, "%s", s->killed);
}

/* Work done in C counts like instructions. */
static void charge(lua_State *L, uint64_t steps)
{
    struct kv_sandbox *s = sandbox_of(L);
    s->instructions += steps;
    if (s->instructions > KV_POLICY_INSTRUCTIONS) kill_call(s, "it ran more instructions than its budget");
    if (!s->killed && steps >= 16) check_deadline(s);
    if (s->killed) luaL_error(L, "%s", s->killed);
}

/* ---------------------------------------------------------------- what a policy sees */

static int safe_pcall(lua_State *L)
{
    luaL_checkany(L, 1);
    charge(L, 1);
    int rc = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
    struct kv_sandbox *s = sandbox_of(L);
    if (rc == LUA_ERRMEM) kill_call(s, "it ran out of memory");
    if (s->killed) return lua_error(L);
    lua_pushboolean(L, rc == LUA_OK);
    lua_insert(L, 1);
    return lua_gettop(L);
}

/* Total order of keys: numbers by value, then strings by bytes. */
static bool key_less(lua_State *L, int a, int b)
{
    int ta = lua_type(L, a), tb = lua_type(L, b);
    return ta != tb ? ta == LUA_TNUMBER : lua_compare(L, a, b, LUA_OPLT);
}

/* Heap sort over t[1…n] at index 1; less: comparator at index 2, or nil for key order, or false for `<`. Any comparator terminates. */
static bool item_less(lua_State *L, int64_t i, int64_t j)
{
    charge(L, 16);
    lua_rawgeti(L, 1, i);
    lua_rawgeti(L, 1, j);
    bool less;
    if (lua_isfunction(L, 2)) {
        lua_pushvalue(L, 2);
        lua_insert(L, -3);
        lua_call(L, 2, 1);
        less = lua_toboolean(L, -1);
        lua_pop(L, 1);
        return less;
    }
    less = lua_isnil(L, 2) ? key_less(L, -2, -1) : lua_compare(L, -2, -1, LUA_OPLT);
    lua_pop(L, 2);
    return less;
}

static void swap_items(lua_State *L, int64_t i, int64_t j)
{
    lua_rawgeti(L, 1, i);
    lua_rawgeti(L, 1, j);
    lua_rawseti(L, 1, i);
    lua_rawseti(L, 1, j);
}

static void sift_down(lua_State *L, int64_t root, int64_t n)
{
    for (int64_t child; (child = 2 * root) <= n; root = child) {
        if (child < n && item_less(L, child, child + 1)) child++;
        if (!item_less(L, root, child)) return;
        swap_items(L, root, child);
    }
}

static void heap_sort(lua_State *L, int64_t n)
{
    for (int64_t i = n / 2; i >= 1; i--) sift_down(L, i, n);
    for (int64_t i = n; i > 1; i--) {
        swap_items(L, 1, i);
        sift_down(L, 1, i - 1);
    }
}

static int safe_sort(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    if (!lua_isnoneornil(L, 2)) luaL_checktype(L, 2, LUA_TFUNCTION);
    lua_settop(L, 2);
    if (lua_isnil(L, 2)) {
        lua_pushboolean(L, 0);
        lua_replace(L, 2);
    }
    lua_Unsigned n = lua_rawlen(L, 1);
    if (n > SORT_ITEMS) return luaL_error(L, "sort takes at most %d items", SORT_ITEMS);
    heap_sort(L, (int64_t)n);
    return 0;
}

static int next_pair(lua_State *L)
{
    lua_Integer i = lua_tointeger(L, lua_upvalueindex(2)) + 1;
    charge(L, 1);
    lua_pushinteger(L, i);
    lua_replace(L, lua_upvalueindex(2));
    if (lua_rawgeti(L, lua_upvalueindex(1), i) == LUA_TNIL) return 1;
    lua_pushvalue(L, -1);
    lua_rawget(L, lua_upvalueindex(3));
    return 2;
}

/* pairs in a fixed order, so that a policy's answer never depends on hash seeds. */
static int safe_pairs(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    lua_newtable(L); /* keys, at 2 */
    int64_t n = 0;
    for (lua_pushnil(L); lua_next(L, 1); lua_pop(L, 1)) {
        int t = lua_type(L, -2);
        charge(L, 2);
        if (t != LUA_TNUMBER && t != LUA_TSTRING) return luaL_error(L, "pairs takes tables whose keys are numbers and strings");
        if (++n > SORT_ITEMS) return luaL_error(L, "pairs takes at most %d keys", SORT_ITEMS);
        lua_pushvalue(L, -2);
        lua_rawseti(L, 2, n);
    }
    lua_insert(L, 1);
    lua_pushnil(L);
    lua_insert(L, 2); /* keys, nil, table: the order heap_sort expects */
    heap_sort(L, n);
    lua_pushvalue(L, 1);
    lua_pushinteger(L, 0);
    lua_pushvalue(L, 3);
    lua_pushcclosure(L, next_pair, 3);
    return 1;
}

static int safe_concat(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    size_t ns, total = 0;
    const char *sep = luaL_optlstring(L, 2, "", &ns);
    lua_Unsigned n = lua_rawlen(L, 1);
    if (n > SORT_ITEMS) return luaL_error(L, "concat takes at most %d items", SORT_ITEMS);
    luaL_Buffer b;
    luaL_buffinit(L, &b);
    for (lua_Unsigned i = 1; i <= n; i++) {
        charge(L, 16);
        size_t len;
        lua_rawgeti(L, 1, (lua_Integer)i);
        const char *t = lua_type(L, -1) == LUA_TSTRING || lua_type(L, -1) == LUA_TNUMBER ? lua_tolstring(L, -1, &len) : NULL;
        if (!t) return luaL_error(L, "concat takes strings and numbers");
        if ((total += len + ns) > STRING_BYTES) return luaL_error(L, "the text is longer than 8 KiB");
        luaL_addvalue(&b);
        if (i < n) luaL_addlstring(&b, sep, ns);
    }
    luaL_pushresult(&b);
    return 1;
}

static int safe_unpack(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_Unsigned n = lua_rawlen(L, 1);
    if (n > 64) return luaL_error(L, "unpack takes at most 64 items");
    luaL_checkstack(L, (int)n, "unpack");
    for (lua_Unsigned i = 1; i <= n; i++) lua_rawgeti(L, 1, (lua_Integer)i);
    return (int)n;
}

/* The library's format, upvalue 1, for short formats of plain values: a table's address is no pure function of anything. */
static int safe_format(lua_State *L)
{
    size_t len;
    const char *f = luaL_checklstring(L, 1, &len);
    if (len > 256) return luaL_error(L, "a format is at most 256 bytes long");
    for (const char *p = f; (p = strchr(p, '%')); p++) {
        p += 1 + strspn(p + 1, "-+ #0123456789.");
        if (*p == 'p') return luaL_error(L, "format has no %%p: addresses are not a policy's business");
        if (!*p) break;
    }
    for (int i = 2; i <= lua_gettop(L); i++)
        if (lua_type(L, i) != LUA_TSTRING && lua_type(L, i) != LUA_TNUMBER && lua_type(L, i) != LUA_TBOOLEAN && lua_type(L, i) != LUA_TNIL)
            return luaL_error(L, "format takes strings, numbers, booleans and nil");
    charge(L, 64);
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, lua_gettop(L) - 1, 1);
    return 1;
}

/* Copies named functions of the table at the top into the table below it. */
static void copy_names(lua_State *L, const char *const *names)
{
    for (; *names; names++) {
        lua_getfield(L, -1, *names);
        lua_setfield(L, -3, *names);
    }
}

static int build(lua_State *L)
{
    static const char *const base[] = {"assert", "error", "ipairs", "select", "tonumber", "type", NULL};
    static const char *const math[] = {"abs", "ceil", "exp", "floor", "fmod", "huge", "log", "max", "maxinteger", "min", "mininteger", "modf", "pi", "sqrt", "tointeger", "type", "ult", NULL};
    static const char *const string[] = {"byte", "len", "lower", "sub", "upper", NULL};
    lua_newtable(L); /* the policy's globals */
    lua_pushcfunction(L, luaopen_base);
    lua_call(L, 0, 1);
    copy_names(L, base);
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushcfunction(L, luaopen_math);
    lua_call(L, 0, 1);
    copy_names(L, math);
    lua_pop(L, 1);
    lua_setfield(L, -2, "math");
    lua_newtable(L);
    lua_pushcfunction(L, luaopen_string);
    lua_call(L, 0, 1);
    copy_names(L, string);
    lua_getfield(L, -1, "format");
    lua_pushcclosure(L, safe_format, 1);
    lua_setfield(L, -3, "format");
    lua_pop(L, 1);
    lua_setfield(L, -2, "string");
    lua_pushliteral(L, ""); /* luaopen_string gave strings their methods: ("x"):rep(…) */
    lua_pushnil(L);
    lua_setmetatable(L, -2);
    lua_pop(L, 1);
    static const luaL_Reg table[] = {{"concat", safe_concat}, {"sort", safe_sort}, {"unpack", safe_unpack}, {NULL, NULL}};
    luaL_newlib(L, table);
    lua_setfield(L, -2, "table");
    lua_pushcfunction(L, safe_pairs);
    lua_setfield(L, -2, "pairs");
    lua_pushcfunction(L, safe_pcall);
    lua_setfield(L, -2, "pcall");
    lua_rawseti(L, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
    return 0;
}

/* ---------------------------------------------------------------- life */

enum kv_status kv_sandbox_open(struct kv_sandbox *s, struct kv_error *err)
{
    memset(s, 0, sizeof *s);
    s->deadline_us = KV_POLICY_DEADLINE_US;
    s->lua = lua_newstate(allocate, s);
    if (!s->lua) return kv_fail(err, KV_OUT_OF_MEMORY, "policy", "memory could not be had");
    lua_gc(s->lua, LUA_GCINC, 110, 400, 0); /* collect early: the live cap is small */
    lua_pushcfunction(s->lua, build);
    if (lua_pcall(s->lua, 0, 0, 0) != LUA_OK) {
        kv_sandbox_close(s);
        return kv_fail(err, KV_OUT_OF_MEMORY, "policy", "the sandbox cannot be built");
    }
    return KV_OK;
}

void kv_sandbox_close(struct kv_sandbox *s)
{
    if (s->lua) lua_close(s->lua);
    s->lua = NULL;
}

/* fn, or the closure under ref when fn is NULL. */
static enum kv_status call(struct kv_sandbox *s, int (*fn)(lua_State *L), int ref, void *arg, struct kv_error *err)
{
    if (s->killed) {
        kv_fail(err, s->killed_status, "policy", "the policy was stopped before: %s", s->killed);
        kv_hint(err, "activate a version that stays inside its limits");
        return s->killed_status;
    }
    s->total = 0;
    s->instructions = s->allocations = 0;
    s->refusals = 0;
    s->wall_start_us = clock_us(CLOCK_MONOTONIC);
    s->cpu_start_us = -1;
    s->running = true;
    lua_sethook(s->lua, hook, LUA_MASKCOUNT, HOOK_INSTRUCTIONS);
    lua_settop(s->lua, 0);
    if (fn) lua_pushcfunction(s->lua, fn);
    else lua_rawgeti(s->lua, LUA_REGISTRYINDEX, ref);
    lua_pushlightuserdata(s->lua, arg);
    int rc = lua_pcall(s->lua, 1, 0, 0);
    s->running = false;
    lua_sethook(s->lua, NULL, 0, 0);
    if (rc == LUA_ERRMEM) kill_call(s, "it ran out of memory");
    enum kv_status st = KV_OK;
    if (s->killed) {
        st = kv_fail(err, KV_POLICY_BUDGET, "policy", "the policy was stopped: %s", s->killed);
        kv_hint(err, "limits: %d instructions, %d us, %d KiB", KV_POLICY_INSTRUCTIONS, KV_POLICY_DEADLINE_US, KV_POLICY_LIVE_BYTES / 1024);
    } else if (rc != LUA_OK) {
        const char *m = lua_type(s->lua, -1) == LUA_TSTRING ? lua_tostring(s->lua, -1) : "an error that is not a text";
        st = kv_fail(err, KV_POLICY_FAULT, "policy", "%s", m);
    }
    lua_settop(s->lua, 0);
    return st;
}

enum kv_status kv_sandbox_run(struct kv_sandbox *s, int (*fn)(lua_State *L), void *arg, struct kv_error *err)
{
    return call(s, fn, LUA_NOREF, arg, err);
}

enum kv_status kv_sandbox_call(struct kv_sandbox *s, int ref, void *arg, struct kv_error *err)
{
    return call(s, NULL, ref, arg, err);
}
