/* cmd_db.c — kvasir db: a state folder's store migrated, checked and backed up; `backup` alone asks the running server. */
#include "console/client.h"
#include "console/commands/offline.h"
#include "console/progress_line.h"
#include "console/commands/receipts_offline.h"
#include "controller/store/store.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

static int complain(struct kv_error *err)
{
    kv_offline_complain("db", err);
    return KV_EXIT_REFUSED;
}

/* Opening migrates, after a backup; closing signs the head. */
static int migrate(const char *dir)
{
    struct kv_store *s = NULL;
    struct kv_error err = {0};
    if (kv_store_open(&(struct kv_store_config){.dir = dir}, &s, &err)) return complain(&err);
    struct kv_store_health h;
    kv_store_health(s, &h);
    bool trusted = kv_store_trusted(s, &err);
    kv_store_close(s);
    if (!trusted) return complain(&err);
    printf("%s has the newest form; %llu receipts\n", dir, (unsigned long long)h.receipts);
    return KV_EXIT_DONE;
}

static int verify(const char *dir, const struct kv_cli *cli)
{
    char path[1024];
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    snprintf(path, sizeof path, "%s/kvasir.db", dir);
    bool sound = sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK && sqlite3_prepare_v2(db, "PRAGMA integrity_check(1)", -1, &q, NULL) == SQLITE_OK &&
                 sqlite3_step(q) == SQLITE_ROW && !strcmp((const char *)sqlite3_column_text(q, 0), "ok");
    if (!sound) fprintf(stderr, "kvasir: STORE_CORRUPT: %s is not a sound database: %s\n", path, q ? (const char *)sqlite3_column_text(q, 0) : sqlite3_errmsg(db));
    sqlite3_finalize(q);
    if (db) sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    sqlite3_close(db);
    return sound ? kv_receipts_verify_directory(dir, NULL, cli) : KV_EXIT_REFUSED;
}

static int backup(const char *dir, const char *to)
{
    struct kv_store *s = NULL;
    struct kv_error err = {0};
    struct kv_progress_line line = {.what = "backup", .unit = "pages"};
    enum kv_status st = kv_store_open(&(struct kv_store_config){.dir = dir}, &s, &err);
    if (!st) st = kv_store_backup(s, to, kv_progress_line_told, &line, &err);
    kv_progress_line_end(&line);
    kv_store_close(s);
    if (st) return complain(&err);
    printf("backed up to %s\n", to);
    return KV_EXIT_DONE;
}

static int backup_online(const struct kv_cli *cli)
{
    json_t *body = json_object(), *v = NULL;
    struct kv_progress_line line = {.what = "backup"};
    kv_progress_line_watch(&line, cli);
    int status = kv_client_do(cli, "POST", "/api/v1/backups", body, NULL, &v);
    kv_progress_line_end(&line);
    if (!status) printf("backed up to %s on the server\n", json_string_value(json_object_get(v, "path")));
    json_decref(body);
    json_decref(v);
    return status;
}

int kv_cmd_db(int argc, char **argv, const struct kv_cli *cli)
{
    const char *verb = argc > 1 ? argv[1] : "", *state = NULL, *to = NULL;
    for (int i = 2; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--state")) state = argv[i + 1];
        else if (!strcmp(argv[i], "--to")) to = argv[i + 1];
        else verb = "";
    }
    if (argc % 2 == 0 && state && !to && !strcmp(verb, "migrate")) return migrate(state);
    if (argc % 2 == 0 && state && !to && !strcmp(verb, "verify")) return verify(state, cli);
    if (argc % 2 == 0 && state && to && !strcmp(verb, "backup")) return backup(state, to);
    if (argc == 2 && !strcmp(verb, "backup")) return backup_online(cli);
    fprintf(stderr, "usage: kvasir db migrate|verify --state DIR\n       kvasir db backup                      the running server, into its state folder's backups/\n"
                    "       kvasir db backup --state DIR --to DIR  a stopped one\n");
    return KV_EXIT_USAGE;
}
