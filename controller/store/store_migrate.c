/* store_migrate.c — numbered SQL files, applied forward only, each in one transaction. */
#include "controller/embedded.h"
#include "controller/store/store_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kv_embedded *migration(int number)
{
    for (const struct kv_embedded *e = kv_embedded_table; e->name; e++)
        if (!strncmp(e->name, "migrations/", 11) && atoi(e->name + 11) == number) return e;
    return NULL;
}

static enum kv_status user_version(sqlite3 *db, int *out, struct kv_error *err)
{
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(db, "PRAGMA user_version", -1, &q, NULL) != SQLITE_OK || sqlite3_step(q) != SQLITE_ROW) {
        sqlite3_finalize(q);
        return kv_store_sql_error(db, "user_version", err);
    }
    *out = sqlite3_column_int(q, 0);
    sqlite3_finalize(q);
    return KV_OK;
}

static enum kv_status backup(sqlite3 *db, const char *path, int version, struct kv_error *err)
{
    char to[1024];
    snprintf(to, sizeof to, "%s.v%d.backup", path, version);
    sqlite3 *copy = NULL;
    enum kv_status made = kv_store_make_file(to, err);
    if (made != KV_OK) return made;
    int rc = sqlite3_open(to, &copy);
    sqlite3_backup *b = rc == SQLITE_OK ? sqlite3_backup_init(copy, "main", db, "main") : NULL;
    if (b) {
        sqlite3_backup_step(b, -1);
        rc = sqlite3_backup_finish(b);
    }
    enum kv_status s = b && rc == SQLITE_OK ? KV_OK : kv_fail(err, KV_IO_ERROR, to, "the backup before migration failed: %s", sqlite3_errstr(rc));
    sqlite3_close(copy);
    return s;
}

enum kv_status kv_store_migrate(sqlite3 *db, const char *path, struct kv_error *err)
{
    int at = 0, latest = 0;
    enum kv_status s = user_version(db, &at, err);
    if (s != KV_OK) return s;
    while (migration(latest + 1)) latest++;
    if (at > latest) {
        kv_fail(err, KV_STORE_NEWER, path, "the database has version %d; this program knows versions up to %d", at, latest);
        kv_hint(err, "start the newer program, or restore %s.v%d.backup", path, latest);
        return KV_STORE_NEWER;
    }
    if (at > 0 && at < latest) s = backup(db, path, at, err);
    for (int n = at + 1; s == KV_OK && n <= latest; n++) {
        char set[64];
        snprintf(set, sizeof set, "PRAGMA user_version = %d; COMMIT", n);
        if (sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK || sqlite3_exec(db, migration(n)->data, NULL, NULL, NULL) != SQLITE_OK ||
            sqlite3_exec(db, set, NULL, NULL, NULL) != SQLITE_OK) {
            s = kv_store_sql_error(db, migration(n)->name, err);
            sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
        }
    }
    return s;
}
