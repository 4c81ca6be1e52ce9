/* tier_key.c — made under another name first, so that a start that dies midway leaves no short key behind. */
#include "controller/tier_key.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static enum kv_status make(const char *path, struct kv_error *err)
{
    char fresh[1100];
    uint8_t key[32];
    snprintf(fresh, sizeof fresh, "%s.new", path);
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool whole = fd >= 0 && getrandom(key, sizeof key, 0) == (ssize_t)sizeof key && write(fd, key, sizeof key) == (ssize_t)sizeof key && fsync(fd) == 0;
    explicit_bzero(key, sizeof key);
    if (fd >= 0) close(fd);
    if (whole && rename(fresh, path) == 0) return KV_OK;
    int e = errno;
    (void)unlink(fresh);
    return kv_fail(err, e == ENOSPC ? KV_NO_SPACE : KV_IO_ERROR, path, "the key of the disk tier cannot be written: %s", strerror(e));
}

enum kv_status kv_tier_key_load(const char *state_dir, uint8_t key[32], struct kv_error *err)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/tier.key", state_dir);
    enum kv_status s = access(path, F_OK) && errno == ENOENT ? make(path, err) : KV_OK;
    if (s != KV_OK) return s;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return kv_fail(err, KV_FILE_UNREADABLE, path, "the key of the disk tier cannot be opened: %s", strerror(errno));
    struct stat st;
    bool others = fstat(fd, &st) || st.st_mode & (S_IRWXO | S_IWGRP);
    ssize_t n = others ? 0 : read(fd, key, 32);
    close(fd);
    if (others) {
        kv_fail(err, KV_BAD_ARGUMENT, path, "the key of the disk tier may be read or changed by others than its owner");
        kv_hint(err, "chmod 600 %.300s; if somebody may have read it, remove it: a new one is made", path);
        return KV_BAD_ARGUMENT;
    }
    if (n == 32) return KV_OK;
    kv_fail(err, KV_STORE_CORRUPT, path, "the key of the disk tier is not 32 bytes long");
    kv_hint(err, "remove it: a new one is made, and what the disk tier holds is computed again");
    return KV_STORE_CORRUPT;
}
