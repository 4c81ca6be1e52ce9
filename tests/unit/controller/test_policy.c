/* test_policy.c — loading, decisions and their checks, and every known way out of a sandbox. */
#include "controller/embedded.h"
#include "controller/policy/policy_host.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static enum kv_status load(const char *source, struct kv_script **p, struct kv_error *err)
{
    *p = NULL;
    return kv_policy_load(KV_POLICY_KINDS, source, strlen(source), p, err);
}

static const struct kv_admission_request request = {.tenant = "t", .class = "c", .slack_ms = -1, .estimate_ms = 1, .backend_bytes = 4096, .staging_bytes = 4096};
static const struct kv_admission_credits credits = {8192, 8192, 8192, 2};

/* ---------------------------------------------------------------- loading */

START_TEST(what_is_no_policy_is_refused_with_its_reason)
{
    static const struct {
        const char *source;
        enum kv_status want;
    } cases[] = {
        {"return {", KV_POLICY_PARSE},
        {"x = = 1", KV_POLICY_PARSE},
        {"\033Lua", KV_POLICY_PARSE}, /* bytecode */
        {"return 1", KV_POLICY_SHAPE},
        {"return {}", KV_POLICY_SHAPE},
        {"return {api=2,name='x',release=function() end}", KV_POLICY_SHAPE},
        {"return {api=1,release=function() end}", KV_POLICY_SHAPE},
        {"return {api=1,name='',release=function() end}", KV_POLICY_SHAPE},
        {"return {api=1,name='x'}", KV_POLICY_SHAPE},
        {"return {api=1,name='x',release=1}", KV_POLICY_SHAPE},
        {"return {api=1,name='x',release=function() end,admission=function() end}", KV_POLICY_SHAPE},
        {"error('no')", KV_POLICY_FAULT},
        {"error({})", KV_POLICY_FAULT},
        {"while true do end", KV_POLICY_BUDGET},
        {"return nil + 1", KV_POLICY_FAULT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kv_script *p;
        struct kv_error err = {0};
        enum kv_status s = load(cases[i].source, &p, &err);
        ck_assert_msg(s == cases[i].want, "%s: %s %s", cases[i].source, kv_status_name(s), err.message);
        ck_assert_int_eq(err.status, s);
        ck_assert(err.message[0]);
    }
    struct kv_script *p;
    struct kv_error err;
    static const char good[] = "return {api=1,name='x',release=function() end}";
    ck_assert_int_eq(kv_policy_load(KV_POLICY_ADMISSION, good, sizeof good - 1, &p, &err), KV_POLICY_SHAPE);
    char *large = malloc(KV_POLICY_SOURCE_BYTES + 1);
    memset(large, ' ', KV_POLICY_SOURCE_BYTES + 1);
    ck_assert_int_eq(kv_policy_load(KV_POLICY_RELEASE, large, KV_POLICY_SOURCE_BYTES + 1, &p, &err), KV_POLICY_BUDGET);
    free(large);
}
END_TEST

/* A source as large as is allowed, full of code, still loads. */
START_TEST(a_large_source_loads)
{
    char *text = malloc(KV_POLICY_SOURCE_BYTES + 1);
    size_t n = 0;
    for (int i = 0; n < KV_POLICY_SOURCE_BYTES - 200; i++) n += (size_t)sprintf(text + n, "local function f%d(a) return a + %d end f%d(1)\n", i % 100, i, i % 100) * (i % 1 == 0);
    sprintf(text + n, "return {api=1,name='x',release=function() end}");
    struct kv_script *p = NULL;
    struct kv_error err = {0};
    enum kv_status s = load(text, &p, &err);
    /* more than 200 locals in one function is Lua's own limit: wrapped in blocks it must load */
    if (s == KV_POLICY_PARSE) {
        n = 0;
        for (int i = 0; n < KV_POLICY_SOURCE_BYTES - 200; i++) n += (size_t)sprintf(text + n, "do local a = %d end\n", i);
        sprintf(text + n, "return {api=1,name='x',release=function() end}");
        s = load(text, &p, &err);
    }
    ck_assert_msg(s == KV_OK, "%s", err.message);
    kv_policy_free(p);
    free(text);
}
END_TEST

START_TEST(versions_are_the_contents)
{
    struct kv_script *a, *b;
    ck_assert_int_eq(load("return {api=1,name='x',release=function() end}", &a, NULL), KV_OK);
    ck_assert_int_eq(load("return {api=1,name='x',release=function() end} ", &b, NULL), KV_OK);
    ck_assert_uint_eq(strlen(kv_policy_version(a)), 64);
    ck_assert_str_ne(kv_policy_version(a), kv_policy_version(b));
    kv_policy_free(a);
    kv_policy_free(b);
}
END_TEST

/* ---------------------------------------------------------------- ways out */

/* Each body runs inside a decision, the way a hostile policy would: it may fault, be stopped, or come to nothing. It must never run
 * much past its deadline, and never get what it wants (then it answers ESCAPED). */
static const char *const escapes[] = {
    /* time */
    "while true do end",
    "for i = 1, math.huge do end",
    "local function f() return f() end f()",
    "local function f() return 1 + f() end f()",
    "repeat pcall(error) until false",
    "while true do pcall(function() while true do end end) end",
    "pcall(pcall, function() while true do end end) while true do end",
    "local function g() pcall(g) end while true do g() end",
    "if not pcall(function() while true do end end) then return {action='ESCAPED'} end",
    "local t = {} for i = 1, 1000 do t[i] = 1000 - i end table.sort(t, function() while true do end end)",
    "local t = {} for i = 1, 1000 do t[i] = i end while true do table.sort(t, function(a, b) return true end) end",
    "local t = {} for i = 1, 1000 do t[i] = i end while true do table.sort(t) end",
    "local t = {} for i = 1, 1000 do t[i] = 'aaaaaaa' end while true do table.concat(t) end",
    "local t = {} for i = 1, 1000 do t[i] = i end while true do for k in pairs(t) do end end",
    "local t = {} for i = 1, 1000 do t[i] = i end while true do pairs(t) end",
    "local s = 'a' for i = 1, 12 do s = s .. s end while true do local b = s < s .. 'b' end",
    "local s = 'a' for i = 1, 12 do s = s .. s end while true do local b = string.upper(s) end",
    "local s = '9' for i = 1, 12 do s = s .. s end while true do local b = s + 1 end",
    "local s = '9' for i = 1, 12 do s = s .. s end while true do tonumber(s) end",
    "local s = '9' for i = 1, 12 do s = s .. s end while true do tonumber(s, 16) end",
    "while true do string.format('%99.99f%99.99f%99.99f%99.99f%99.99f%99.99f%99.99f%99.99f', 1e308, 1e308, 1e308, 1e308, 1e308, 1e308, 1e308, 1e308) end",
    "while true do string.format(('%s'), 'x') end",
    "::a:: goto a",
    "local t = {} while true do t[#t + 1] = #t end",
    "while true do math.max(1, 2, 3, 4, 5, 6, 7, 8, 9) end",
    "while true do select('#', 1, 2, 3) end",
    "while true do local t = {1, 2, 3, 4, 5, 6, 7, 8} end",
    "local t = {} for i = 1, 60 do t[i] = i end while true do table.unpack(t) end",
    /* memory */
    "local s = 'a' while true do s = s .. s end",
    "local s = 'a' while true do pcall(function() s = s .. s end) end",
    "local t = {} while true do t = {t, t} end",
    "local t = {} for i = 1, 1e9 do t[i] = {} end",
    "local t = {} while true do pcall(function() for i = 1, 1e9 do t[#t + 1] = {i} end end) end",
    "local t = {} for i = 1, 3000 do t[i] = {i, i, i, i} end while true do local x = {1, 2, 3} pcall(function() local y = {} for i = 1, 200 do y[i] = {} end end) end",
    "local function f(...) return f(1, ...) end f()",
    "local t = {} for i = 1, 250 do t[i] = i end return table.unpack(t)",
    "local t = {} t[1e8] = 1 t[1] = 1 for i = 2, 1e8 do t[i] = i end",
    "local f = function(s) return s .. s end local s = 'aaaaaaaa' for i = 1, 40 do s = f(s) end",
    /* reach */
    "if load or loadstring or dofile or require or loadfile then return {action='ESCAPED'} end",
    "if io or os or package or debug or coroutine or utf8 then return {action='ESCAPED'} end",
    "if setmetatable or getmetatable or rawset or rawget or rawequal or rawlen then return {action='ESCAPED'} end",
    "if collectgarbage or print or next or xpcall or warn or tostring then return {action='ESCAPED'} end",
    "if _G or _VERSION or _ENV._G then return {action='ESCAPED'} end",
    "if string.rep or string.dump or string.find or string.gsub or string.gmatch or string.match or string.pack then return {action='ESCAPED'} end",
    "if table.move or table.insert or table.remove or table.pack or math.random or math.randomseed then return {action='ESCAPED'} end",
    "if pcall(function() return ('x'):rep(3) end) then return {action='ESCAPED'} end",
    "if pcall(function() return ('x').rep end) then return {action='ESCAPED'} end",
    "if pcall(function() return string.format('%s', {}) end) then return {action='ESCAPED'} end",
    "if pcall(function() return string.format('%p', 'x') end) and true then return {action='ESCAPED'} end",
    "if pcall(function() local t <close> = {} end) then return {action='ESCAPED'} end",
    "if pcall(function() return #string.format('%d', '3') end) and false then return {action='ESCAPED'} end",
    "if type(r) == 'userdata' then return {action='ESCAPED'} end",
    "error(nil)",
    "error(setmetatable)",
    "error({code = 1})",
    "return setmetatable({}, {__index = function() return 'ADMIT_TRANSFER' end})",
    "return 'ADMIT_TRANSFER'",
    "return nil",
    "return {action = {}}",
    "return {action = 1}",
    "return {action = 'ADMIT_TRANSFER\\0'}",
    "return {action = 'ADMIT_TRANSFER', priority = 0/0}",
    "return {action = 'ADMIT_TRANSFER', priority = -1}",
    "return {action = 'ADMIT_TRANSFER', priority = math.huge}",
};
enum { N_ESCAPES = sizeof escapes / sizeof *escapes };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const double most_ms = 25; /* every byte is looked at */
#else
static const double most_ms = 5;
#endif

START_TEST(no_way_out)
{
    char source[1024];
    struct kv_script *p;
    struct kv_error err = {0};
    struct kv_admission_answer a, baseline;
    snprintf(source, sizeof source, "return {api=1,name='x',admission=function(r, credits) do %s end return {action = 'NOTHING'} end}", escapes[_i]);
    ck_assert_msg(load(source, &p, &err) == KV_OK, "%s: %s", source, err.message);
    kv_admission_baseline(&request, &credits, &baseline);
    double began = cpu_ms();
    enum kv_status s = kv_policy_admission(p, &request, &credits, &a, &err);
    double took = cpu_ms() - began;
    ck_assert_msg(s == KV_POLICY_BUDGET || s == KV_POLICY_FAULT || s == KV_POLICY_SHAPE, "%s: %s", escapes[_i], kv_status_name(s));
    ck_assert_msg(!strstr(err.message, "ESCAPED"), "%s", escapes[_i]);
    ck_assert_msg(took < most_ms, "%s took %.2f ms of CPU", escapes[_i], took);
    ck_assert_int_eq(a.action, baseline.action); /* a fault is answered as without a policy */
    ck_assert_int_eq(a.priority, 0);
    if (s == KV_POLICY_BUDGET) { /* and a stopped policy stays stopped */
        ck_assert_int_eq(kv_policy_admission(p, &request, &credits, &a, &err), KV_POLICY_BUDGET);
        ck_assert_int_eq(a.action, baseline.action);
    }
    kv_policy_free(p);
}
END_TEST

START_TEST(an_error_does_not_end_a_policy)
{
    struct kv_script *p;
    struct kv_admission_answer a;
    struct kv_error err;
    ck_assert_int_eq(load("return {api=1,name='x',admission=function(r) if r.tenant == 't' then error('no') end return {action='ADMIT_TRANSFER'} end}", &p, &err), KV_OK);
    ck_assert_int_eq(kv_policy_admission(p, &request, &credits, &a, &err), KV_POLICY_FAULT);
    struct kv_admission_request other = request;
    other.tenant = "u";
    ck_assert_int_eq(kv_policy_admission(p, &other, &credits, &a, &err), KV_OK);
    kv_policy_free(p);
}
END_TEST

static const struct { const char *answer, *own; int want; } placements[] = {
    {"nil", "layerwise", KV_OK}, {"'layerwise'", "layerwise", KV_OK}, {"'resident'", "layerwise", KV_OK}, {"r.placement", "layerwise", KV_OK}, {"'layerwise'", NULL, KV_OK}, {"r.placement", NULL, KV_OK},
    {"'layerwise'", "resident", KV_POLICY_ILLEGAL}, {"'on the moon'", "layerwise", KV_POLICY_SHAPE}, {"'on the moon'", NULL, KV_POLICY_SHAPE}, {"7", "layerwise", KV_POLICY_SHAPE},
    {"'a word that is far too long for the name of any placement'", "layerwise", KV_POLICY_SHAPE},
};

START_TEST(a_placement_is_one_that_can_serve)
{
    char source[200];
    struct kv_script *p;
    struct kv_admission_answer a;
    struct kv_error err = {0};
    struct kv_admission_request r = request;
    r.placement = placements[_i].own;
    snprintf(source, sizeof source, "return {api=1,name='x',admission=function(r) return {action='ADMIT_TRANSFER', placement=%s} end}", placements[_i].answer);
    ck_assert_int_eq(load(source, &p, &err), KV_OK);
    ck_assert_msg((int)kv_policy_admission(p, &r, &credits, &a, &err) == placements[_i].want, "%s: %s", placements[_i].answer, err.message);
    ck_assert_int_eq(a.action, KV_ADMIT_TRANSFER); /* a refused answer is the baseline's */
    if (placements[_i].want != KV_OK) ck_assert_str_eq(err.where, "placement");
    kv_policy_free(p);
}
END_TEST

START_TEST(the_library_works)
{
    static const char source[] =
        "return {api=1,name='x',admission=function(r, credits)\n"
        "  local t = {b = 2, a = 1, [2] = 'y', [1] = 'x'}\n"
        "  local keys = {}\n"
        "  for k, v in pairs(t) do keys[#keys + 1] = string.format('%s=%s', k, v) end\n"
        "  assert(table.concat(keys, ',') == '1=x,2=y,a=1,b=2', table.concat(keys, ','))\n"
        "  local s = {3, 1, 2} table.sort(s) assert(s[1] == 1 and s[3] == 3)\n"
        "  table.sort(s, function(a, b) return a > b end) assert(s[1] == 3 and s[2] == 2 and s[3] == 1)\n"
        "  local w = {'b', 'a'} table.sort(w) assert(w[1] == 'a')\n"
        "  assert(select('#', table.unpack(s)) == 3)\n"
        "  local ok, e = pcall(error, 'x') assert(not ok and e == 'x')\n"
        "  assert(pcall(function() return true end))\n"
        "  assert(math.floor(1.5) == 1 and math.max(1, 2) == 2 and string.upper('a') == 'A' and string.sub('abc', 2, 2) == 'b')\n"
        "  assert(tonumber('12') == 12 and type(r) == 'table' and string.len('abc') == 3)\n"
        "  for i, v in ipairs({1, 2}) do assert(i == v) end\n"
        "  for k in pairs({}) do error('empty') end\n"
        "  return {action='ADMIT_TRANSFER', priority=7, reason='fine', placement='layerwise'}\n"
        "end}";
    struct kv_script *p;
    struct kv_admission_answer a;
    struct kv_error err = {0};
    ck_assert_int_eq(load(source, &p, &err), KV_OK);
    ck_assert_msg(kv_policy_admission(p, &request, &credits, &a, &err) == KV_OK, "%s", err.message);
    ck_assert_int_eq(a.priority, 7);
    ck_assert_str_eq(a.reason, "fine");
    ck_assert_str_eq(a.placement, "layerwise");
    kv_policy_free(p);
}
END_TEST

/* ---------------------------------------------------------------- checks by C */

START_TEST(illegal_admissions_are_answered_by_the_baseline)
{
    struct kv_script *p;
    struct kv_admission_answer a;
    struct kv_error err;
    ck_assert_int_eq(load("return {api=1,name='x',admission=function() return {action='ADMIT_TRANSFER'} end}", &p, NULL), KV_OK);
    struct kv_admission_request late = request;
    late.slack_ms = 0.5;
    ck_assert_int_eq(kv_policy_admission(p, &late, &credits, &a, &err), KV_POLICY_ILLEGAL);
    ck_assert_int_eq(a.action, KV_ADMIT_FALLBACK_DEADLINE);
    struct kv_admission_credits none = credits;
    none.staging_free = 0;
    ck_assert_int_eq(kv_policy_admission(p, &request, &none, &a, &err), KV_POLICY_ILLEGAL);
    ck_assert_int_eq(a.action, KV_ADMIT_FALLBACK_CREDIT);
    ck_assert_int_eq(kv_policy_check(p, &err), KV_OK); /* not a defect: C refuses it each time */
    kv_policy_free(p);
}
END_TEST

START_TEST(a_fallback_policy_becomes_a_table)
{
    struct kv_script *p;
    struct kv_fallback_table t, baseline;
    struct kv_error err = {0};
    kv_fallback_table_baseline(&baseline);
    const struct kv_embedded *e = kv_embedded_table;
    while (strcmp(e->name, "policies/fallback.lua")) e++;
    ck_assert_int_eq(kv_policy_load(KV_POLICY_FALLBACK, e->data, e->size, &p, &err), KV_OK);
    ck_assert_msg(kv_policy_fallback_table(p, 0.05, &t, &err) == KV_OK, "%s", err.message);
    ck_assert_mem_eq(&t, &baseline, sizeof t); /* the shipped one is the contract's order */
    kv_policy_free(p);
    static const char *const illegal[] = {"ACCEPT_APPROXIMATE", "WIDEN_SEARCH", "ACCEPT_DECLARED_DEGRADED", "NONSENSE"};
    for (int i = 0; i < 4; i++) {
        char source[200];
        snprintf(source, sizeof source, "return {api=1,name='x',fallback=function() return {action='%s'} end}", illegal[i]);
        ck_assert_int_eq(load(source, &p, NULL), KV_OK);
        ck_assert_int_ne(kv_policy_fallback_table(p, 0.05, &t, &err), KV_OK);
        ck_assert_mem_eq(&t, &baseline, sizeof t);
        ck_assert_int_ne(kv_policy_check(p, &err), KV_OK);
        kv_policy_free(p);
    }
}
END_TEST

static enum kv_status release(const char *body, enum kv_verdict v, bool wait_over, struct kv_release_answer *a)
{
    char source[300];
    struct kv_script *p;
    struct kv_error err;
    static struct kv_rollout r;
    memset(&r, 0, sizeof r);
    r.stage = KV_STAGE_CANARY;
    r.manifest.pipeline = kv_pipeline_at(0);
    struct kv_gate_result g = {.metric = "omitted_mass", .judged = true, .verdict = v, .value = NAN, .lower = NAN, .upper = NAN};
    struct kv_release_question q = {.rollout = &r, .gates = &g, .n_gates = 1, .wait_over = wait_over};
    snprintf(source, sizeof source, "return {api=1,name='x',release=function(stage, gates, history) %s end}", body);
    ck_assert_int_eq(load(source, &p, &err), KV_OK);
    enum kv_status s = kv_policy_release(p, &q, a, &err);
    kv_policy_free(p);
    return s;
}

START_TEST(an_advance_needs_every_gate_whatever_the_policy_says)
{
    struct kv_release_answer a;
    static const char body[] = "return {action='ADVANCE', reason='because'}";
    ck_assert_int_eq(release(body, KV_PASS, true, &a), KV_OK);
    ck_assert_int_eq(a.action, KV_RELEASE_ADVANCE);
    static const enum kv_verdict others[] = {KV_NO_DATA, KV_INCONCLUSIVE, KV_FAILED};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(release(body, others[i], true, &a), KV_POLICY_ILLEGAL);
        ck_assert_int_eq(a.action, KV_RELEASE_HOLD);
    }
    ck_assert_int_eq(release(body, KV_PASS, false, &a), KV_POLICY_ILLEGAL);
    ck_assert_int_eq(release("return {action='ROLLBACK'}", KV_PASS, true, &a), KV_OK);
    ck_assert_int_eq(a.action, KV_RELEASE_ROLLBACK);
    ck_assert_int_eq(release("return {action='SKIP'}", KV_PASS, true, &a), KV_POLICY_SHAPE);
    ck_assert_int_eq(a.action, KV_RELEASE_HOLD);
    ck_assert_int_eq(release("return {action = stage == 'CANARY' and gates[1].value == nil and gates[1].verdict == 'NO_DATA' and 'HOLD' or 'ROLLBACK'}", KV_NO_DATA, true, &a), KV_OK);
    ck_assert_int_eq(a.action, KV_RELEASE_HOLD);
}
END_TEST

START_TEST(shipped_policies_pass_their_check)
{
    int n = 0;
    for (const struct kv_embedded *e = kv_embedded_table; e->name; e++) {
        if (strncmp(e->name, "policies/", 9)) continue;
        struct kv_script *p;
        struct kv_error err = {0};
        ck_assert_msg(kv_policy_load(KV_POLICY_KINDS, e->data, e->size, &p, &err) == KV_OK, "%s: %s", e->name, err.message);
        ck_assert_msg(kv_policy_check(p, &err) == KV_OK, "%s: %s", e->name, err.message);
        kv_policy_free(p);
        n++;
    }
    ck_assert_int_ge(n, 5);
}
END_TEST

START_TEST(shipped_policies_pass_tests_of_their_own)
{
    static char tests[65536];
    for (const struct kv_embedded *e = kv_embedded_table; e->name; e++) {
        if (strncmp(e->name, "policies/", 9)) continue;
        char path[128];
        snprintf(path, sizeof path, "policies/test/%s", e->name + 9);
        FILE *f = fopen(path, "r");
        ck_assert_msg(f != NULL, "%s has no tests in %s", e->name, path);
        size_t n = fread(tests, 1, sizeof tests, f);
        fclose(f);
        struct kv_script *p;
        struct kv_error err = {0};
        int32_t passed = 0, failed = 0;
        ck_assert_int_eq(kv_policy_load(KV_POLICY_KINDS, e->data, e->size, &p, &err), KV_OK);
        ck_assert_msg(kv_policy_test(p, tests, n, &passed, &failed, &err) == KV_OK, "%s: %s", path, err.message);
        ck_assert_int_ge(passed, 3);
        kv_policy_free(p);
    }
}
END_TEST

START_TEST(a_policys_own_tests_are_counted)
{
    struct kv_script *p;
    struct kv_error err = {0};
    int32_t passed, failed;
    ck_assert_int_eq(load("return {api=1,name='x',admission=function() return {action='FALLBACK',cause='DEADLINE'} end}", &p, NULL), KV_OK);
    static const char tests[] = "return {a=function(p) assert(p.name == 'x') end, b=function(p) assert(p.admission().action == 'ADMIT_TRANSFER', 'wanted a transfer') end,"
                                "c=function(p) error('third') end, d=function() end}";
    ck_assert_int_eq(kv_policy_test(p, tests, sizeof tests - 1, &passed, &failed, &err), KV_POLICY_FAULT);
    ck_assert_int_eq(passed, 2);
    ck_assert_int_eq(failed, 2);
    ck_assert_ptr_nonnull(strstr(err.message, "wanted a transfer"));
    ck_assert_int_eq(kv_policy_test(p, "return 1", 8, &passed, &failed, &err), KV_POLICY_FAULT);
    static const char adds[] = "local t = {b=function() end} t.a=function() t[true]=1 t[7]=2 end return t";
    ck_assert_int_eq(kv_policy_test(p, adds, sizeof adds - 1, &passed, &failed, &err), KV_OK);
    ck_assert_int_eq(passed, 2);
    kv_policy_free(p);
}
END_TEST

START_TEST(a_decision_is_quick)
{
    struct kv_script *p;
    struct kv_admission_answer a;
    const struct kv_embedded *e = kv_embedded_table;
    while (strcmp(e->name, "policies/admission.lua")) e++;
    ck_assert_int_eq(kv_policy_load(KV_POLICY_ADMISSION, e->data, e->size, &p, NULL), KV_OK);
    enum { CALLS = 20000 };
    double began = cpu_ms();
    for (int i = 0; i < CALLS; i++) ck_assert_int_eq(kv_policy_admission(p, &request, &credits, &a, NULL), KV_OK);
    fprintf(stderr, "admission decision: %.2f us of CPU\n", (cpu_ms() - began) * 1e3 / CALLS);
    kv_policy_free(p);
}
END_TEST

Suite *suite_policy(void);
Suite *suite_policy(void)
{
    Suite *s = suite_create("policy");
    TCase *t = tcase_create("policy");
    tcase_add_test(t, what_is_no_policy_is_refused_with_its_reason);
    tcase_add_test(t, a_large_source_loads);
    tcase_add_test(t, versions_are_the_contents);
    tcase_add_loop_test(t, no_way_out, 0, N_ESCAPES);
    tcase_add_test(t, an_error_does_not_end_a_policy);
    tcase_add_test(t, the_library_works);
    tcase_add_loop_test(t, a_placement_is_one_that_can_serve, 0, (int)(sizeof placements / sizeof *placements));
    tcase_add_test(t, illegal_admissions_are_answered_by_the_baseline);
    tcase_add_test(t, a_fallback_policy_becomes_a_table);
    tcase_add_test(t, an_advance_needs_every_gate_whatever_the_policy_says);
    tcase_add_test(t, shipped_policies_pass_their_check);
    tcase_add_test(t, shipped_policies_pass_tests_of_their_own);
    tcase_add_test(t, a_policys_own_tests_are_counted);
    tcase_add_test(t, a_decision_is_quick);
    suite_add_tcase(s, t);
    return s;
}
