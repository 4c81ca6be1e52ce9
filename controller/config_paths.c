/* config_paths.c — defaults that depend on where the program runs. */
#include "controller/config_paths.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char small_model[] = "models/kvasir-demo-q8_0.gguf";

/* Folder of the running program, without the final slash. */
static void program_dir(char *out, size_t cap)
{
    ssize_t n = readlink("/proc/self/exe", out, cap - 1);
    out[n > 0 ? n : 0] = 0;
    char *slash = strrchr(out, '/');
    if (slash) *slash = 0;
}

enum kv_status kv_config_model_path(const struct kv_config *c, char *out, size_t cap, struct kv_error *err)
{
    char dir[400];
    program_dir(dir, sizeof dir);
    if (*c->model) return snprintf(out, cap, "%s", c->model), KV_OK;
    const char *const places[][2] = {{"", small_model}, {dir, "/../models/kvasir-demo-q8_0.gguf"}, {dir, "/../share/kvasir/models/kvasir-demo-q8_0.gguf"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(out, cap, "%s%s", places[i][0], places[i][1]);
        if (!access(out, R_OK)) return KV_OK;
    }
    kv_fail(err, KV_FILE_UNREADABLE, "model", "no model was named and the small one is not at %s", small_model);
    kv_hint(err, "name a GGUF file with --model FILE.gguf");
    return KV_FILE_UNREADABLE;
}

enum kv_status kv_config_make_parents(const char *path, struct kv_error *err)
{
    char part[512];
    snprintf(part, sizeof part, "%s", path);
    for (char *p = part + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        if (mkdir(part, 0700) && errno != EEXIST) return kv_fail(err, KV_IO_ERROR, "state", "the folder above %.200s cannot be made: %s", path, strerror(errno));
    }
    return KV_OK;
}

enum kv_status kv_config_state_dir(const struct kv_config *c, char *out, size_t cap, struct kv_error *err)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    bool checkout = !access("controller/config.def", R_OK) && !access("Makefile", R_OK);
    if (*c->state) snprintf(out, cap, "%s", c->state);
    else if (checkout) snprintf(out, cap, "build/state");
    else if (xdg && *xdg) snprintf(out, cap, "%s/kvasir", xdg);
    else if (home && *home) snprintf(out, cap, "%s/.local/state/kvasir", home);
    else return kv_fail(err, KV_BAD_ARGUMENT, "state", "neither --state, XDG_STATE_HOME nor HOME says where the state belongs");
    return KV_OK;
}

static enum kv_status check_writers(const char *key, const char *path, const struct stat *st, struct kv_error *err)
{
    if (!(st->st_mode & 022)) return KV_OK;
    kv_fail(err, KV_BAD_ARGUMENT, key, "others may write to the folder %s (mode %04o): they could replace what is kept in it", path, (unsigned)(st->st_mode & 07777));
    if (st->st_mode & S_ISVTX) kv_hint(err, "it is everybody's; name a folder of its own, such as %s/kvasir", path);
    else kv_hint(err, "chmod go-w %s", path);
    return KV_BAD_ARGUMENT;
}

enum kv_status kv_config_check_folders(const struct kv_config *c, const char *state, struct kv_error *err)
{
    const char *const folder[][2] = {{"state", state}, {"tiers.disk.path", c->disk_path}, {"extents.path", c->extents_serve ? c->extents_path : ""}};
    struct stat st[3];
    bool there[3];
    for (int i = 0; i < 3; i++) {
        there[i] = *folder[i][1] && !stat(folder[i][1], &st[i]);
        enum kv_status s = there[i] && S_ISDIR(st[i].st_mode) ? check_writers(folder[i][0], folder[i][1], &st[i], err) : KV_OK;
        if (s != KV_OK) return s;
        for (int k = 0; k < i; k++) {
            bool one = there[i] && there[k] ? st[i].st_dev == st[k].st_dev && st[i].st_ino == st[k].st_ino : *folder[i][1] && !strcmp(folder[i][1], folder[k][1]);
            if (!one) continue;
            kv_fail(err, KV_BAD_ARGUMENT, folder[i][0], "%s and %s are one folder, %s", folder[i][0], folder[k][0], folder[i][1]);
            kv_hint(err, "give %s one of its own, such as %s/%s", folder[i][0], folder[k][1], i == 1 ? "disk" : "extents");
            return KV_BAD_ARGUMENT;
        }
    }
    return KV_OK;
}

const char *kv_config_open_secret(const struct kv_config *c, int *at, const char **key)
{
    const char *const file[][2] = {{"receipts.key_file", c->receipts_key}, {"notify.secret_file", c->notify_secret}, {"http.tls.key", c->tls_key}, {"tiers.remote.token_file", c->remote_token}};
    for (struct stat st; *at < 4;) {
        int i = (*at)++;
        *key = file[i][0];
        if (*file[i][1] && !stat(file[i][1], &st) && st.st_mode & 007) return file[i][1];
    }
    return NULL;
}
