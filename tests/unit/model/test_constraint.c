/* test_constraint.c — which bytes lead to an answer of a shape, and that whatever is drawn ends as one. */
#include "runtime/model/constraint.h"
#include "runtime/model/model.h"
#include "tests/unit/service/engine_runs.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

Suite *suite_constraint(void);

/* {"name": string ≤ 5, "age"?: integer, "tags": [1..2 of "a"|"ab"|null], "x"?: anything} */
static const struct kv_schema_item items[] = {{"\"name\"", 1, true}, {"\"age\"", 2, false}, {"\"tags\"", 3, true}, {"\"x\"", 5, false},
                                              {"\"a\"", 0, false}, {"\"ab\"", 0, false}, {"null", 0, false}};
static const struct kv_schema_node nodes[] = {{KV_SCHEMA_OBJECT, 0, 4, -1, 0, -1}, {KV_SCHEMA_STRING, 0, 0, -1, 1, 5}, {KV_SCHEMA_INTEGER, 0, 0, -1, 0, -1},
                                              {KV_SCHEMA_ARRAY, 0, 0, 4, 1, 2}, {KV_SCHEMA_LITERALS, 4, 3, -1, 0, -1}, {KV_SCHEMA_ANY, 0, 0, -1, 0, -1}};
static const struct kv_schema person = {nodes, items, 6, 7};

static struct kv_constraint *make(const struct kv_schema *s)
{
    struct kv_constraint *c;
    struct kv_error err = {0};
    ck_assert_msg(kv_constraint_create(s, &c, &err) == KV_OK, "%s", err.message);
    return c;
}

static bool takes(const struct kv_schema *s, const char *text, bool *complete)
{
    struct kv_constraint *c = make(s);
    bool all = kv_constraint_feed(c, text, strlen(text));
    *complete = all && kv_constraint_complete(c);
    kv_constraint_destroy(c);
    return all;
}

START_TEST(answers_and_what_is_none)
{
    static const struct { const char *text; bool ok, complete; } rows[] = {
        {"{\"name\":\"Ann\",\"age\":-30,\"tags\":[\"a\",null]}", true, true},
        {" { \"name\" : \"A\\n\\u00e9\" , \"tags\" : [ \"ab\" ] , \"x\" : {\"y\":[1.5e-3,true,{}],\"z\":null} } ", false, false}, /* nothing follows the end */
        {" { \"name\" : \"A\\n\\u00e9\" , \"tags\" : [ \"ab\" ] , \"x\" : {\"y\":[1.5e-3,true,{}],\"z\":null} }", true, true},
        {"{\"name\":\"Ann\"", true, false}, {"{\"name\":\"Ann\"}", false, false}, {"{\"age\"", false, false}, {"{}", false, false},
        {"{\"name\":\"\"", false, false}, {"{\"name\":\"sixsix", false, false}, {"{\"name\":\"\xc3\xa9\xe2\x82\xac" "abc\"", true, false}, {"{\"name\":\"\xc3(", false, false},
        {"{\"name\":\"\xed\xa0", false, false}, {"{\"name\":\"\\ud8", false, false}, {"{\"name\":\"\\ud7ff", true, false}, {"{\"name\":\"a\n", false, false}, {"{\"name\":\"\\x", false, false},
        {"{\"name\":\"a\",\"age\":01", false, false}, {"{\"name\":\"a\",\"age\":1.", false, false}, {"{\"name\":\"a\",\"age\":12,\"tags\":[", true, false},
        {"{\"name\":\"a\",\"tags\":[]", false, false}, {"{\"name\":\"a\",\"tags\":[null,null,", false, false}, {"{\"name\":\"a\",\"tags\":[\"b", false, false},
        {"{\"name\":\"a\",\"tags\":[null],\"age\"", false, false}, {"{\"name\":\"a\",\"tags\":[null],\"x\":1e", true, false}, {"{\"name\":\"a\",\"tags\":[null],\"x\":1e}", false, false},
        {"{\"name\":\"a\",\"tags\":[null],\"x\":[1,2}", false, false}, {"{\"name\":\"a\",\"tags\":[null],\"x\":tru}", false, false}, {"x", false, false},
        {"                          {", false, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool complete;
        ck_assert_msg(takes(&person, rows[i].text, &complete) == rows[i].ok, "%s", rows[i].text);
        ck_assert_msg(complete == rows[i].complete, "%s", rows[i].text);
    }
}
END_TEST

START_TEST(alternatives_that_begin_alike_are_followed_together)
{
    static const struct kv_schema_item alike[] = {{NULL, 1, false}, {NULL, 2, false}, {"12", 0, false}, {"1234", 0, false}};
    static const struct kv_schema_node either[] = {{KV_SCHEMA_ANY_OF, 0, 2, -1, 0, -1}, {KV_SCHEMA_NUMBER, 0, 0, -1, 0, -1}, {KV_SCHEMA_LITERALS, 2, 2, -1, 0, -1}};
    struct kv_schema s = {either, alike, 3, 4};
    bool complete;
    ck_assert(takes(&s, "12", &complete) && complete);
    ck_assert(takes(&s, "12.5", &complete) && complete);
    ck_assert(takes(&s, "-", &complete) && !complete);
    struct kv_schema only = {(struct kv_schema_node[]){{KV_SCHEMA_LITERALS, 2, 2, -1, 0, -1}}, alike, 1, 4};
    ck_assert(takes(&only, "12", &complete) && complete);
    ck_assert(takes(&only, "123", &complete) && !complete);
    ck_assert(!takes(&only, "124", &complete));
}
END_TEST

/* 24 alternatives that all name the next 24, 12 times over: 24^12 ways to one value. */
START_TEST(alternatives_of_alternatives_are_tried_once)
{
    enum { LEVELS = 12, WIDTH = 24 };
    struct kv_schema_item item[LEVELS * WIDTH + 1] = {{NULL, 0, false}};
    struct kv_schema_node node[LEVELS + 1];
    for (int32_t l = 0; l < LEVELS; l++) {
        node[l] = (struct kv_schema_node){KV_SCHEMA_ANY_OF, l * WIDTH, WIDTH, -1, 0, -1};
        for (int32_t i = 0; i < WIDTH; i++) item[l * WIDTH + i].node = l + 1;
    }
    node[LEVELS] = (struct kv_schema_node){KV_SCHEMA_LITERALS, LEVELS * WIDTH, 1, -1, 0, -1};
    item[LEVELS * WIDTH].text = "null";
    struct kv_schema s = {node, item, LEVELS + 1, LEVELS * WIDTH + 1};
    bool complete;
    ck_assert(takes(&s, "null", &complete) && complete);
    ck_assert(!takes(&s, "{", &complete));
}
END_TEST

START_TEST(shapes_without_a_value_are_refused)
{
    static const struct kv_schema_item self[] = {{"\"next\"", 0, true}, {NULL, 0, false}, {NULL, 1, false}};
    const struct kv_schema_node endless[] = {{KV_SCHEMA_OBJECT, 0, 1, -1, 0, -1}}, circle[] = {{KV_SCHEMA_ANY_OF, 2, 1, -1, 0, -1}, {KV_SCHEMA_ANY_OF, 1, 1, -1, 0, -1}},
                                none[] = {{KV_SCHEMA_LITERALS, 0, 0, -1, 0, -1}}, outside[] = {{KV_SCHEMA_ARRAY, 0, 0, 7, 0, -1}};
    const struct kv_schema bad[] = {{endless, self, 1, 3}, {circle, self, 2, 3}, {none, self, 1, 3}, {outside, self, 1, 3}, {none, self, 0, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kv_constraint *c;
        struct kv_error err = {0};
        ck_assert_msg(kv_constraint_create(&bad[i], &c, &err) == KV_BAD_ARGUMENT, "case %zu", i);
        ck_assert_ptr_null(c);
        ck_assert_msg(err.hint[0], "case %zu says not what to do", i);
    }
}
END_TEST

/* Random bytes that the automaton takes never lead into a dead end, however deep. */
START_TEST(every_beginning_can_be_ended)
{
    static const struct kv_schema_item tree[] = {{"\"l\"", 0, false}, {"\"r\"", 0, false}, {"\"v\"", 1, true}};
    static const struct kv_schema_node node[] = {{KV_SCHEMA_OBJECT, 0, 3, -1, 0, -1}, {KV_SCHEMA_INTEGER, 0, 0, -1, 0, -1}};
    const struct kv_schema s[2] = {{node, tree, 2, 3}, {nodes, items, 6, 7}};
    uint32_t seed = 7;
    for (int run = 0; run < 60; run++) {
        struct kv_constraint *c = make(&s[run % 2]);
        bool stuck = false;
        for (int i = 0; i < 600 && !kv_constraint_closed(c) && !stuck; i++) {
            stuck = true;
            seed = seed * 1664525u + 1013904223u;
            for (uint32_t b = 0, from = seed >> 24; b < 256 && stuck; b++) {
                char byte = (char)((from + b * 37) & 255);
                if (byte != ' ' && byte != '\n' && byte != '\t' && byte != '\r') stuck = !kv_constraint_feed(c, &byte, 1);
            }
        }
        ck_assert(!stuck);
        kv_constraint_destroy(c);
    }
}
END_TEST

/* A token may come where its bytes may: also near the end of a string of a given length. */
START_TEST(tokens_are_masked_as_their_bytes_are_taken)
{
    static const char *const begun[] = {"", "{", "{\"name\":\"", "{\"name\":\"ab", "{\"name\":\"abc", "{\"name\":\"abcd\xc3", "{\"name\":\"abcde", "{\"name\":\"a\",\"age\":1",
                                        "{\"name\":\"a\",\"tags\":[null],\"x\":\"", "{\"name\":\"a\",\"tags\":[null],\"x\":{\"", "{\"name\":\"a\",\"tags\":[null]}"};
    const struct kv_model *m = demo_model();
    const struct kv_tokenizer *t = m->tokenizer;
    uint8_t *allowed = malloc((size_t)t->n_tokens);
    for (size_t i = 0; i < sizeof begun / sizeof *begun; i++) {
        struct kv_constraint *c = make(&person);
        ck_assert(kv_constraint_feed(c, begun[i], strlen(begun[i])));
        kv_constraint_mask(c, m, allowed);
        for (int32_t id = 0; id < t->n_tokens; id++) {
            const struct kv_piece *p = &t->pieces[id];
            if (t->ends_turn[id] || t->kind[id] == KV_TOKEN_CONTROL || t->kind[id] == KV_TOKEN_UNKNOWN || t->kind[id] == KV_TOKEN_UNUSED || !p->len) continue;
            struct kv_constraint *one = make(&person);
            kv_constraint_feed(one, begun[i], strlen(begun[i]));
            ck_assert_msg(kv_constraint_feed(one, p->text, p->len) == allowed[id], "after %s, token %d", begun[i], id);
            kv_constraint_destroy(one);
        }
        kv_constraint_destroy(c);
    }
    free(allowed);
}
END_TEST

/* The engine draws such an answer from a model that knows nothing of it, greedy and sampled, whatever the seed. */
START_TEST(the_engine_answers_in_shape)
{
    struct run *r = calloc(1, sizeof *r);
    struct kv_engine *e = make_engine(NULL);
    run_init(r, (uint32_t)_i, 40, 400);
    r->request.ignore_eos = false;
    r->request.schema = &person;
    r->request.sampling.temperature = _i ? 0.9f : 0;
    r->request.sampling.top_k = _i == 2 ? 5 : 0;
    r->request.sampling.top_p = _i == 3 ? 0.8f : 1;
    r->request.sampling.seed = (uint64_t)_i;
    run_all(e, r);
    char text[8192];
    size_t len;
    ck_assert_int_eq(kv_detokenize(demo_model(), r->ids, (size_t)r->n, false, text, sizeof text - 1, &len), KV_OK);
    text[len] = 0;
    bool complete, begun = takes(&person, text, &complete);
    ck_assert_msg(begun, "%s", text);
    if (r->stats.finish == KV_FINISH_STOP) ck_assert_msg(complete, "%s", text);
    else ck_assert_int_eq(r->stats.finish, KV_FINISH_LENGTH);
    kv_engine_destroy(e);
    free(r);
}
END_TEST

Suite *suite_constraint(void)
{
    Suite *s = suite_create("constraint");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, answers_and_what_is_none);
    tcase_add_test(t, alternatives_that_begin_alike_are_followed_together);
    tcase_add_test(t, alternatives_of_alternatives_are_tried_once);
    tcase_add_test(t, shapes_without_a_value_are_refused);
    tcase_add_test(t, every_beginning_can_be_ended);
    tcase_add_test(t, tokens_are_masked_as_their_bytes_are_taken);
    tcase_add_loop_test(t, the_engine_answers_in_shape, 0, 4);
    suite_add_tcase(s, t);
    return s;
}
