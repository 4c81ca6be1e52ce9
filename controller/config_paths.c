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

static bool make_parents(const char *path)
{
    char part[512];
    snprintf(part, sizeof part, "%s", path);
    for (char *p = part + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        if (mkdir(part, 0700) && errno != EEXIST) return false;
    }
    return true;
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
    return make_parents(out) ? KV_OK : kv_fail(err, KV_IO_ERROR, "state", "the folder above %.200s cannot be made: %s", out, strerror(errno));
}
