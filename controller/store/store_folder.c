/* store_folder.c — who can reach what is kept: the state folder's files are its owner's alone. */
#include "controller/store/store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum kv_status kv_store_make_file(const char *path, struct kv_error *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        enum kv_status st = kv_fail(err, errno == ENOSPC ? KV_NO_SPACE : KV_FILE_UNREADABLE, path, "%s cannot be opened: %s", path, strerror(errno));
        kv_hint(err, "check the owner and mode of its folder");
        return st;
    }
    close(fd);
    return KV_OK;
}

/* But tier.key: what it sealed may lie on other machines, so that one that others could read is refused (tier_key.c). */
enum kv_status kv_store_narrow(struct kv_store *s, struct kv_error *err)
{
    static const char *const names[] = {"lock", "kvasir.db", "kvasir.db-wal", "kvasir.db-shm", "receipts.heads", "receipts.key", "rollback.intent", "samples", "backups",
                                        "kvasir.db.v1.backup", "kvasir.db.v2.backup", "kvasir.db.v3.backup", "kvasir.db.v4.backup", "kvasir.db.v5.backup", "kvasir.db.v6.backup", "kvasir.db.v7.backup"};
    size_t used = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[1024];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", s->dir, names[i]);
        if (stat(path, &st) || !(st.st_mode & 077) || (st.st_uid != geteuid() && !(st.st_mode & 037))) continue; /* its owner lets our group read it */
        if (chmod(path, st.st_mode & 0700)) {
            kv_fail(err, KV_FILE_UNREADABLE, path, "others can reach %s (mode %04o), and that cannot be changed: %s", path, (unsigned)(st.st_mode & 07777), strerror(errno));
            kv_hint(err, "as its owner: chmod go-rwx %s", path);
            return KV_FILE_UNREADABLE;
        }
        if (used < sizeof s->narrowed) used += (size_t)snprintf(s->narrowed + used, sizeof s->narrowed - used, "%s%s %04o", used ? ", " : "", names[i], (unsigned)(st.st_mode & 07777));
    }
    return KV_OK;
}

void kv_store_tell_narrowed(struct kv_store *s)
{
    struct kv_receipt r;
    if (!*s->narrowed) return;
    kv_receipt_init(&r, KV_ROW_STORE, kv_store_now_us(CLOCK_REALTIME));
    snprintf(r.detail, sizeof r.detail, "closed to others: %.75s", s->narrowed);
    kv_store_post(s, &r);
}
