/* cmd_token.c — kvasir token: over HTTP for administrators; --state DIR of a stopped server makes the first one. */
#include "console/client.h"
#include "console/commands/offline.h"
#include "console/output.h"
#include "controller/http/http_auth.h"
#include "controller/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct options {
    const char *name, *tenant, *state;
    char rights[64];
    double days;
};

static int usage(void)
{
    fprintf(stderr, "usage: kvasir token list\n"
                    "       kvasir token create NAME --right viewer|operator|approver|admin|infer|extents … [--tenant TENANT] [--days N] [--state DIR]\n"
                    "       kvasir token revoke NAME\n"
                    "--state DIR: in the folder of a stopped server, which is how the first administrator comes to be\n");
    return KV_EXIT_USAGE;
}

static const char *member(const json_t *o, const char *name)
{
    const char *v = json_string_value(json_object_get(o, name));
    return v ? v : "-";
}

static int list(const struct kv_cli *cli)
{
    json_t *v = NULL, *row;
    size_t i;
    int status = kv_client_do(cli, "GET", "/api/v1/tokens", NULL, NULL, &v);
    if (status) return status;
    if (cli->json) kv_output_json(v, JSON_INDENT(2)), putchar('\n');
    else {
        printf("%-20s  %-9s  %-28s  %-16s  %-20s  %s\n", "name", "state", "rights", "tenant", "expires", "made by");
        json_array_foreach(json_object_get(v, "tokens"), i, row)
            printf("%-20.20s  %-9s  %-28.28s  %-16.16s  %-20.20s  %s\n", member(row, "name"), member(row, "state"), member(row, "rights"), member(row, "tenant"), member(row, "expires_at"), member(row, "creator"));
    }
    json_decref(v);
    return KV_EXIT_DONE;
}

static void print_secret(const char *name, const char *secret)
{
    printf("token %s: %s\nIt is shown this once; only its SHA-256 is kept.\n", name, secret);
}

static int create_offline(const struct options *o)
{
    struct kv_store *s = NULL;
    struct kv_error err = {0};
    struct timespec now;
    char secret[64];
    clock_gettime(CLOCK_REALTIME, &now);
    struct kv_stored_token t = {.created_us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000};
    snprintf(t.name, sizeof t.name, "%s", o->name);
    snprintf(t.tenant, sizeof t.tenant, "%s", o->tenant ? o->tenant : o->name);
    snprintf(t.rights, sizeof t.rights, "%s", o->rights);
    snprintf(t.creator, sizeof t.creator, "offline");
    if (o->days > 0) t.expires_us = t.created_us + (int64_t)(o->days * 86400e6);
    enum kv_status st = kv_rights_parse(o->rights) ? KV_OK : kv_fail(&err, KV_BAD_ARGUMENT, "--right", "rights are viewer, operator, approver, admin, infer, extents");
    if (!st) st = kv_store_open(&(struct kv_store_config){.dir = o->state}, &s, &err);
    if (!st) st = kv_token_make(&t, secret, &err);
    if (!st) st = kv_store_put_token(s, &t, &err);
    kv_store_close(s);
    if (st) return kv_offline_complain("token", &err), KV_EXIT_REFUSED;
    print_secret(o->name, secret);
    return KV_EXIT_DONE;
}

static int create(const struct kv_cli *cli, const struct options *o)
{
    if (o->state) return create_offline(o);
    json_t *body = json_pack("{s:s, s:s}", "name", o->name, "rights", o->rights), *v = NULL;
    if (o->tenant) json_object_set_new(body, "tenant", json_string(o->tenant));
    if (o->days > 0) json_object_set_new(body, "days", json_real(o->days));
    int status = kv_client_do(cli, "POST", "/api/v1/tokens", body, NULL, &v);
    if (!status && cli->json) kv_output_json(v, JSON_INDENT(2)), putchar('\n');
    else if (!status) print_secret(o->name, member(v, "token"));
    json_decref(body);
    json_decref(v);
    return status;
}

static int revoke(const struct kv_cli *cli, const char *name)
{
    char path[160];
    json_t *body = json_object(), *v = NULL;
    snprintf(path, sizeof path, "/api/v1/tokens/%.64s/revoke", name);
    int status = kv_client_do(cli, "POST", path, body, NULL, &v);
    if (!status) printf("token %s is revoked\n", name);
    json_decref(body);
    json_decref(v);
    return status;
}

int kv_cmd_token(int argc, char **argv, const struct kv_cli *cli)
{
    struct options o = {0};
    const char *verb = argc > 1 ? argv[1] : "";
    for (int i = 2; i < argc; i++) {
        bool more = i + 1 < argc;
        size_t n = strlen(o.rights);
        if (!strcmp(argv[i], "--right") && more && n + strlen(argv[i + 1]) + 2 < sizeof o.rights) snprintf(o.rights + n, sizeof o.rights - n, "%s%s", n ? " " : "", argv[i + 1]), i++;
        else if (!strcmp(argv[i], "--tenant") && more) o.tenant = argv[++i];
        else if (!strcmp(argv[i], "--state") && more) o.state = argv[++i];
        else if (!strcmp(argv[i], "--days") && more) {
            char *end;
            o.days = strtod(argv[++i], &end);
            if (*end || !(o.days > 0)) return usage();
        } else if (argv[i][0] != '-' && !o.name) o.name = argv[i];
        else return usage();
    }
    if (!strcmp(verb, "list") && argc == 2) return list(cli);
    if (!strcmp(verb, "create") && o.name && *o.rights) return create(cli, &o);
    if (!strcmp(verb, "revoke") && o.name && argc == 3) return revoke(cli, o.name);
    return usage();
}
