/* cmd_sessions.c — kvasir sessions: which conversations are kept, how much of each is still there, pin, unpin, drop. */
#include "console/client.h"
#include "console/output.h"
#include "console/tables.h"

#include <stdio.h>
#include <string.h>

static int usage(void)
{
    fprintf(stderr, "usage: kvasir sessions [list] | {show|pin|unpin|drop} SESSION [--tenant NAME]\n");
    return KV_EXIT_USAGE;
}

static int show_json(json_t *v)
{
    kv_output_json(v, JSON_INDENT(2));
    putchar('\n');
    json_decref(v);
    return KV_EXIT_DONE;
}

static int list(const struct kv_cli *cli)
{
    const struct kv_table *t = kv_table_find("sessions");
    json_t *v = NULL;
    int status = kv_client_do(cli, "GET", t->route, NULL, NULL, &v);
    if (status) return status;
    if (cli->json) return show_json(v);
    kv_table_print(t, json_object_get(v, t->array));
    json_decref(v);
    return KV_EXIT_DONE;
}

/* "/api/v1/sessions/ID[/verb][?tenant=NAME]" with both names escaped. */
static bool path_of(const char *id, const char *verb, const char *tenant, char *out, size_t cap)
{
    char *name = curl_easy_escape(NULL, id, 0), *of = tenant ? curl_easy_escape(NULL, tenant, 0) : NULL;
    int n = snprintf(out, cap, "/api/v1/sessions/%s%s%s%s%s", name ? name : "", *verb ? "/" : "", verb, of ? "?tenant=" : "", of ? of : "");
    curl_free(name);
    curl_free(of);
    return name && *id && n > 0 && (size_t)n < cap;
}

int kv_cmd_sessions(int argc, char **argv, const struct kv_cli *cli)
{
    static const char *const verbs[] = {"show", "pin", "unpin", "drop"};
    char path[1024];
    if (argc == 1 || (argc == 2 && !strcmp(argv[1], "list"))) return list(cli);
    size_t v = 0;
    while (v < sizeof verbs / sizeof *verbs && strcmp(verbs[v], argv[1])) v++;
    bool named = argc == 5 && !strcmp(argv[3], "--tenant");
    if (v == sizeof verbs / sizeof *verbs || (argc != 3 && !named)) return usage();
    if (!path_of(argv[2], v ? verbs[v] : "", named ? argv[4] : NULL, path, sizeof path)) return usage();
    json_t *answer = NULL, *empty = json_object();
    int status = kv_client_do(cli, v ? "POST" : "GET", path, v ? empty : NULL, NULL, &answer);
    json_decref(empty);
    return status ? status : show_json(answer);
}
