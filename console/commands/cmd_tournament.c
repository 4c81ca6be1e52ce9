/* cmd_tournament.c — kvasir tournament: pipelines on the same sampled live queries, ranked by bytes read at equal measured mass. */
#include "console/client.h"
#include "console/output.h"
#include "console/tables.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char route[] = "/api/v1/tournament";

static int usage(void)
{
    fprintf(stderr, "usage: kvasir tournament start P,Q… [--mass 0.9] [--fraction 0.01] [--units 2000]\n"
                    "       kvasir tournament [show]\n"
                    "       kvasir tournament stop\n"
                    "P: a pipeline that selects, or P:key=value:… ; a pipeline named twice tells how much of a difference is chance\n");
    return KV_EXIT_USAGE;
}

static int show(const struct kv_cli *cli, json_t *answer)
{
    json_t *t = json_object_get(answer, "tournament");
    if (cli->json) kv_output_json(answer, JSON_INDENT(2)), putchar('\n');
    else if (json_is_null(t)) printf("no tournament since the server started; kvasir tournament start quest,pqcache starts one\n");
    else {
        printf("%s  mass %.4g  units %lld of %lld  dropped %lld  sampled %.4g %%\n", json_string_value(json_object_get(t, "state")), json_number_value(json_object_get(t, "mass")),
               (long long)json_integer_value(json_object_get(t, "units")), (long long)json_integer_value(json_object_get(t, "limit")), (long long)json_integer_value(json_object_get(t, "dropped")),
               100 * json_number_value(json_object_get(t, "fraction")));
        kv_table_print(kv_table_find("tournament"), json_object_get(t, "entries"));
    }
    json_decref(answer);
    return KV_EXIT_DONE;
}

static int ask(const struct kv_cli *cli, const char *method, const json_t *body)
{
    json_t *answer = NULL;
    int status = kv_client_do(cli, method, route, body, NULL, &answer);
    return status ? status : show(cli, answer);
}

/* "quest:page_rows=8" as the API takes it; NULL when it is no such thing. */
static json_t *entry_of(char *text)
{
    char *name = strsep(&text, ":");
    if (!text) return json_string(name);
    json_t *params = json_object();
    for (char *one; (one = strsep(&text, ":"));) {
        char *value = strchr(one, '='), *end = NULL;
        double number = value ? strtod(value + 1, &end) : NAN;
        if (!value || end == value + 1 || *end || !isfinite(number)) return json_decref(params), NULL;
        *value = 0;
        json_object_set_new(params, one, json_real(number));
    }
    return json_pack("{s:s, s:o}", "pipeline", name, "params", params);
}

static int start(int argc, char **argv, const struct kv_cli *cli)
{
    json_t *list = json_array(), *body = json_pack("{s:o}", "pipelines", list);
    bool good = argc >= 3 && argv[2][0] != '-';
    char *rest = good ? argv[2] : NULL;
    for (char *one; good && (one = strsep(&rest, ","));) good = json_array_append_new(list, entry_of(one)) == 0;
    for (int i = 3; good && i < argc; i += 2) {
        char *end = NULL;
        double v = i + 1 < argc ? strtod(argv[i + 1], &end) : NAN;
        good = isfinite(v) && end != argv[i + 1] && !*end && (!strcmp(argv[i], "--mass") || !strcmp(argv[i], "--fraction") || !strcmp(argv[i], "--units"));
        if (good) json_object_set_new(body, argv[i] + 2, json_real(v));
    }
    int status = good ? ask(cli, "POST", body) : usage();
    json_decref(body);
    return status;
}

int kv_cmd_tournament(int argc, char **argv, const struct kv_cli *cli)
{
    const char *what = argc > 1 ? argv[1] : "show";
    if (!strcmp(what, "start")) return start(argc, argv, cli);
    if (!strcmp(what, "show") && argc <= 2) return ask(cli, "GET", NULL);
    if (!strcmp(what, "stop") && argc == 2) return ask(cli, "DELETE", NULL);
    return usage();
}
