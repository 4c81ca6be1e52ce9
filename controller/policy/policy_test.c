/* policy_test.c — a policy's own tests, run in its sandbox. */
#include "controller/policy/policy_host_internal.h"

#include <lauxlib.h>
#include <lua.h>
#include <stdio.h>
#include <string.h>

struct test_run {
    struct kv_script *p;
    const char *source;
    size_t n;
    int tests;        /* registry reference of the table of tests */
    int32_t count, at; /* at: which test, in the order of their names */
    char name[64];
};

static int load_tests(lua_State *L)
{
    struct test_run *t = lua_touserdata(L, 1);
    if (luaL_loadbufferx(L, t->source, t->n, "=test", "t") != LUA_OK) return lua_error(L);
    lua_call(L, 0, 1);
    luaL_checktype(L, -1, LUA_TTABLE);
    for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING || !lua_isfunction(L, -1) || lua_rawlen(L, -2) >= sizeof t->name)
            return luaL_error(L, "a test file returns a table of functions with names of at most 63 bytes");
        t->count++;
    }
    t->tests = luaL_ref(L, LUA_REGISTRYINDEX);
    return 0;
}

/* Test number `at` by name order; few tests, so the scan for the next name is cheap. */
static int run_test(lua_State *L)
{
    struct test_run *t = lua_touserdata(L, 1);
    char previous[64];
    memcpy(previous, t->name, sizeof previous);
    t->name[0] = 0;
    lua_rawgeti(L, LUA_REGISTRYINDEX, t->tests);
    for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING) continue; /* a test may have added it since */
        const char *name = lua_tostring(L, -2);
        if (strcmp(name, previous) > 0 && (!t->name[0] || strcmp(name, t->name) < 0)) snprintf(t->name, sizeof t->name, "%s", name);
    }
    lua_getfield(L, 2, t->name);
    lua_rawgeti(L, LUA_REGISTRYINDEX, t->p->table);
    lua_call(L, 1, 0);
    return 0;
}

enum kv_status kv_policy_test(struct kv_script *p, const char *source, size_t n, int32_t *passed, int32_t *failed, struct kv_error *err)
{
    *passed = *failed = 0;
    if (n > KV_POLICY_SOURCE_BYTES) return kv_fail(err, KV_POLICY_BUDGET, "test", "the test file is longer than %d bytes", KV_POLICY_SOURCE_BYTES);
    struct test_run t = {.p = p, .source = source, .n = n};
    p->box.deadline_us = LOAD_DEADLINE_US;
    enum kv_status st = kv_sandbox_run(&p->box, load_tests, &t, err);
    p->box.deadline_us = KV_POLICY_DEADLINE_US;
    enum kv_status first = KV_OK;
    for (t.at = 0; st == KV_OK && t.at < t.count; t.at++) {
        struct kv_error e = {0};
        enum kv_status one = kv_sandbox_run(&p->box, run_test, &t, &e);
        if (one == KV_OK) {
            (*passed)++;
            continue;
        }
        (*failed)++;
        if (first == KV_OK) first = kv_fail(err, one, t.name, "test %s: %s", t.name, e.message);
    }
    return st == KV_OK ? first : st;
}
