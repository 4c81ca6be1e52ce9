/* config.c — settings are rows of config.def; text and JSON are parsed by type, every origin through one function. */
#include "controller/config.h"

#include "runtime/nearest.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum type { STRING, BOOL, INT, FLOAT, SIZE, LIST, TOKENS };

static const struct setting {
    const char *key, *def, *unit, *help;
    enum type type;
    double min, max;
    size_t offset;
    bool reload;
} settings[KV_SETTINGS] = {
#define KV_SETTING(field, key, type, def, min, max, unit, reload, help)                                                \
    {key, def, unit, help, type, min, max, offsetof(struct kv_config, field), reload},
#include "controller/config.def"
#undef KV_SETTING
};

/* Names of the environment that belong to other programs of this project. */
static const char *const foreign_env[] = {"KVASIR_URL", "KVASIR_TOKEN", "KVASIR_CONTEXT", "KVASIR_BUILD", "KVASIR_ISA", "KVASIR_TEST_MODEL", "KVASIR_TEST_START_S"};
static const char *const rights[] = {"viewer", "operator", "approver", "admin", "infer", "extents"};
static const char *const flags[] = {"--config", "--model", "--state", "--listen", "--set", "--print-config", "--demo", "--exit", "--help", "--version"};
#define COUNT(a) (sizeof(a) / sizeof *(a))

const char *kv_config_nearest(const char *name, const char *const *names, size_t n)
{
    const char *best = NULL;
    size_t best_edits = strlen(name) / 2 + 1;
    if (strlen(name) > KV_NAME_LONGEST) return NULL;
    for (size_t i = 0; i < n; i++) {
        size_t e = kv_name_distance(name, names[i]);
        /* The last part of a dotted key alone counts too: `capacity_bytes` is near `tiers.host.capacity_bytes`. */
        const char *last = strrchr(names[i], '.');
        if (last && kv_name_distance(name, last + 1) + 1 < e) e = kv_name_distance(name, last + 1) + 1;
        if (e < best_edits) best_edits = e, best = names[i];
    }
    return best;
}

static enum kv_status unknown(const char *what, const char *name, const char *const *names, size_t n, struct kv_error *err)
{
    const char *near = kv_config_nearest(name, names, n);
    enum kv_status s = kv_fail(err, KV_UNKNOWN_KEY, name, "no %s is named '%s'", what, name);
    if (near) kv_hint(err, "did you mean '%s'?", near);
    else kv_hint(err, "kvasird --help lists them");
    return s;
}

static enum kv_status unknown_setting(const char *name, struct kv_error *err)
{
    const char *keys[KV_SETTINGS];
    for (size_t i = 0; i < KV_SETTINGS; i++) keys[i] = settings[i].key;
    return unknown("setting", name, keys, KV_SETTINGS, err);
}

static const struct setting *find_setting(const char *key)
{
    for (size_t i = 0; i < KV_SETTINGS; i++)
        if (!strcmp(settings[i].key, key)) return &settings[i];
    return NULL;
}

static enum kv_status bad_value(const struct setting *s, const char *text, const char *want, struct kv_error *err)
{
    enum kv_status st = kv_fail(err, KV_BAD_ARGUMENT, s->key, "%s: '%.80s' is not %s", s->key, text, want);
    kv_hint(err, "%s (default %s)", s->help, *s->def ? s->def : "empty");
    return st;
}

/* "64MiB", "1GiB", "4096"; binary units only, so that GB and GiB are never mixed. */
static bool parse_size(const char *text, uint64_t *out)
{
    static const struct { const char *suffix; int shift; } units[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
    char *end;
    if (!isdigit((unsigned char)*text)) return false;
    errno = 0;
    uint64_t v = strtoull(text, &end, 10);
    if (errno) return false;
    for (size_t i = 0; i < COUNT(units); i++)
        if (!strcmp(end, units[i].suffix)) return !__builtin_mul_overflow(v, UINT64_C(1) << units[i].shift, out);
    return false;
}

static enum kv_status set_number(const struct setting *s, void *at, const char *text, struct kv_error *err)
{
    char *end, want[120];
    double v;
    int64_t i = 0;
    uint64_t u = 0;
    bool ok;
    errno = 0;
    if (s->type == SIZE) ok = parse_size(text, &u), v = (double)u;
    else if (s->type == INT) i = strtoll(text, &end, 10), ok = !errno && end != text && !*end, v = (double)i;
    else v = strtod(text, &end), ok = !errno && end != text && !*end && isfinite(v);
    if (!ok) return bad_value(s, text, s->type == SIZE ? "a size such as 64MiB" : s->type == INT ? "a whole number" : "a number", err);
    snprintf(want, sizeof want, "between %.15g and %.15g %s", s->min, s->max, s->unit);
    if (v < s->min || v > s->max) return bad_value(s, text, want, err);
    if (s->type == SIZE) *(uint64_t *)at = u;
    else if (s->type == INT) *(int64_t *)at = i;
    else *(double *)at = v;
    return KV_OK;
}

static enum kv_status bad_token(const char *name, const char *want, struct kv_error *err)
{
    enum kv_status st = kv_fail(err, KV_BAD_ARGUMENT, "auth.tokens", "auth.tokens: token '%.63s' %s", name ? name : "", want);
    kv_hint(err, "sha256 is that of the token's text: printf %%s TOKEN | sha256sum");
    return st;
}

static enum kv_status check_token(json_t *t, struct kv_error *err)
{
    static const char *const fields[] = {"name", "sha256", "rights", "tenant"};
    const char *name = json_string_value(json_object_get(t, "name")), *hash = json_string_value(json_object_get(t, "sha256")), *field;
    json_t *list = json_object_get(t, "rights"), *v, *tenant = json_object_get(t, "tenant");
    json_object_foreach(t, field, v) {
        size_t i = 0;
        while (i < COUNT(fields) && strcmp(fields[i], field)) i++;
        if (i == COUNT(fields)) return unknown("field of auth.tokens", field, fields, COUNT(fields), err);
    }
    if (!name || !*name || strlen(name) > 63) return bad_token(name, "needs a name of 1 to 63 bytes", err);
    if (!hash || strlen(hash) != 64 || strspn(hash, "0123456789abcdef") != 64)
        return bad_token(name, "needs a sha256 of 64 lower-case hex digits", err);
    if (!json_is_array(list) || !json_array_size(list)) return bad_token(name, "needs a list of rights", err);
    if (tenant && (!json_is_string(tenant) || json_string_length(tenant) > 63)) return bad_token(name, "has a tenant that is not text of at most 63 bytes", err);
    size_t k;
    json_array_foreach(list, k, v) {
        size_t i = 0;
        while (i < COUNT(rights) && (!json_is_string(v) || strcmp(rights[i], json_string_value(v)))) i++;
        if (i == COUNT(rights)) return unknown("right", json_is_string(v) ? json_string_value(v) : "?", rights, COUNT(rights), err);
    }
    return KV_OK;
}

static enum kv_status set_list(const struct setting *s, json_t **at, json_t *list, struct kv_error *err)
{
    size_t i;
    json_t *v;
    if (!json_is_array(list)) return bad_value(s, "the value", "a list", err);
    json_array_foreach(list, i, v) {
        if (s->type == LIST && !json_is_string(v)) return bad_value(s, "an entry", "a string", err);
        if (s->type == TOKENS && !json_is_object(v)) return bad_value(s, "an entry", "an object", err);
        enum kv_status st = s->type == TOKENS ? check_token(v, err) : KV_OK;
        if (st) return st;
    }
    json_decref(*at);
    *at = json_incref(list);
    return KV_OK;
}

static enum kv_status set_text(struct kv_config *c, const struct setting *s, const char *text, struct kv_error *err)
{
    void *at = (char *)c + s->offset;
    switch (s->type) {
    case STRING: {
        /* A unit such as "local|token" lists the values there are. */
        if (strchr(s->unit, '|')) {
            size_t n = strlen(text);
            const char *p = s->unit;
            while (p && (strncmp(p, text, n) || (p[n] && p[n] != '|'))) p = strchr(p, '|'), p = p ? p + 1 : NULL;
            if (!p || !n) return bad_value(s, text, s->unit, err);
        }
        char *copy = strdup(text);
        if (!copy) return kv_fail(err, KV_OUT_OF_MEMORY, s->key, "no memory for the setting");
        free(*(char **)at);
        *(char **)at = copy;
        return KV_OK;
    }
    case BOOL:
        if (strcmp(text, "true") && strcmp(text, "false")) return bad_value(s, text, "true or false", err);
        *(bool *)at = *text == 't';
        return KV_OK;
    case LIST:
    case TOKENS: {
        json_t *list = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        enum kv_status st = list ? set_list(s, at, list, err) : bad_value(s, text, "a JSON list", err);
        json_decref(list);
        return st;
    }
    default: return set_number(s, at, text, err);
    }
}

enum kv_status kv_config_set(struct kv_config *c, const char *key, const char *text, enum kv_origin origin, struct kv_error *err)
{
    const struct setting *s = find_setting(key);
    if (!s) return unknown_setting(key, err);
    enum kv_status st = set_text(c, s, text, err);
    if (!st) c->origin[s - settings] = origin;
    return st;
}

static enum kv_status set_json(struct kv_config *c, const struct setting *s, json_t *v, struct kv_error *err)
{
    char text[64];
    if (s->type == LIST || s->type == TOKENS) return set_list(s, (json_t **)((char *)c + s->offset), v, err);
    if (json_is_string(v) && (s->type == STRING || s->type == SIZE)) return set_text(c, s, json_string_value(v), err);
    if (json_is_boolean(v) && s->type == BOOL) return set_text(c, s, json_is_true(v) ? "true" : "false", err);
    if (json_is_integer(v) && (s->type == INT || s->type == SIZE || s->type == FLOAT)) {
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
        return set_text(c, s, text, err);
    }
    if (json_is_real(v) && s->type == FLOAT) {
        snprintf(text, sizeof text, "%.17g", json_real_value(v));
        return set_text(c, s, text, err);
    }
    static const char *const want[] = {"text", "true or false", "a whole number", "a number", "a size such as 64MiB or a number of bytes", "a list", "a list"};
    char *dump = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    enum kv_status st = bad_value(s, dump ? dump : "the value", want[s->type], err);
    free(dump);
    return st;
}

/* Keys may nest or be written with dots. */
static enum kv_status set_object(struct kv_config *c, const char *prefix, json_t *o, int depth, struct kv_error *err)
{
    const char *name;
    json_t *v;
    json_object_foreach(o, name, v) {
        char key[128];
        int n = snprintf(key, sizeof key, "%s%s%s", prefix, *prefix ? "." : "", name);
        const struct setting *s = n > 0 && (size_t)n < sizeof key ? find_setting(key) : NULL;
        enum kv_status st;
        if (s && c->origin[s - settings] == KV_ORIGIN_FILE) {
            st = kv_fail(err, KV_BAD_ARGUMENT, key, "the file sets %s twice, nested and with dots", key);
            kv_hint(err, "keep one of them");
        } else if (s) {
            st = set_json(c, s, v, err);
            if (!st) c->origin[s - settings] = KV_ORIGIN_FILE;
        } else if (json_is_object(v) && json_object_size(v) && depth < 4 && n < (int)sizeof key) st = set_object(c, key, v, depth + 1, err);
        else st = unknown_setting(key, err);
        if (st) return st;
    }
    return KV_OK;
}

static enum kv_status load_file(struct kv_config *c, const char *path, struct kv_error *err)
{
    json_error_t je;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &je);
    enum kv_status st;
    if (!root && je.line < 0) st = kv_fail(err, KV_FILE_UNREADABLE, path, "the configuration file %s cannot be read: %s", path, strerror(errno ? errno : EIO));
    else if (!root) {
        st = kv_fail(err, KV_BAD_JSON, path, "%s, line %d, column %d: %.160s", path, je.line, je.column, je.text);
        kv_hint(err, "the file is one JSON object of settings; kvasird --print-config shows them");
    } else if (!json_is_object(root)) st = kv_fail(err, KV_BAD_JSON, path, "%s holds no JSON object", path);
    else st = set_object(c, "", root, 0, err);
    json_decref(root);
    return st;
}

static void env_name(const char *key, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "KVASIR_%s", key);
    for (size_t i = 0; i < n && i < cap; i++) out[i] = out[i] == '.' ? '_' : (char)toupper((unsigned char)out[i]);
}

static enum kv_status load_env(struct kv_config *c, char **env, struct kv_error *err)
{
    char name[KV_SETTINGS][128];
    const char *names[KV_SETTINGS];
    for (size_t i = 0; i < KV_SETTINGS; i++) env_name(settings[i].key, name[i], sizeof name[i]), names[i] = name[i];
    for (; env && *env; env++) {
        const char *eq = strchr(*env, '=');
        if (strncmp(*env, "KVASIR_", 7) || !eq) continue;
        size_t n = (size_t)(eq - *env), i = 0, f = 0;
        while (i < KV_SETTINGS && (strlen(name[i]) != n || memcmp(name[i], *env, n))) i++;
        while (f < COUNT(foreign_env) && (strlen(foreign_env[f]) != n || memcmp(foreign_env[f], *env, n))) f++;
        if (f < COUNT(foreign_env)) continue;
        if (i == KV_SETTINGS) {
            char given[96];
            snprintf(given, sizeof given, "%.*s", (int)n, *env);
            return unknown("setting in the environment", given, names, KV_SETTINGS, err);
        }
        enum kv_status st = kv_config_set(c, settings[i].key, eq + 1, KV_ORIGIN_ENVIRONMENT, err);
        if (st) return st;
    }
    return KV_OK;
}

/* The value of a flag that takes one, as `--flag VALUE` or `--flag=VALUE`. */
static const char *flag_value(const char *flag, int argc, char **argv, int *i)
{
    size_t n = strlen(flag);
    if (argv[*i][n] == '=') return argv[*i] + n + 1;
    return *i + 1 < argc ? argv[++*i] : NULL;
}

static bool is_flag(const char *arg, const char *flag)
{
    size_t n = strlen(flag);
    return !strncmp(arg, flag, n) && (!arg[n] || arg[n] == '=');
}

static enum kv_status read_set(struct kv_config *c, const char *pair, struct kv_error *err)
{
    char key[128];
    const char *eq = strchr(pair, '=');
    if (!eq || (size_t)(eq - pair) >= sizeof key) return kv_fail(err, KV_BAD_ARGUMENT, "--set", "--set wants key=value, not '%.80s'", pair);
    snprintf(key, sizeof key, "%.*s", (int)(eq - pair), pair);
    return kv_config_set(c, key, eq + 1, KV_ORIGIN_FLAG, err);
}

static enum kv_status read_flag(struct kv_config *c, int argc, char **argv, int *i, bool config_pass, struct kv_error *err)
{
    static const struct { const char *flag, *key; } valued[] = {{"--config", NULL}, {"--set", NULL}, {"--model", "model"}, {"--state", "state"}, {"--listen", "listen"}};
    const struct { const char *flag; bool *to; } plain[] = {{"--print-config", &c->print}, {"--demo", &c->demo}, {"--exit", &c->exit}, {"--help", &c->help}, {"-h", &c->help}, {"--version", &c->version}};
    const char *arg = argv[*i];
    for (size_t k = 0; k < COUNT(plain); k++)
        if (!strcmp(arg, plain[k].flag)) return *plain[k].to = true, KV_OK;
    for (size_t k = 0; k < COUNT(valued); k++) {
        if (!is_flag(arg, valued[k].flag)) continue;
        const char *v = flag_value(valued[k].flag, argc, argv, i);
        if (!v) return kv_fail(err, KV_BAD_ARGUMENT, valued[k].flag, "%s needs a value", valued[k].flag);
        if (k == 0) {
            if (!config_pass) return KV_OK;
            free(c->file);
            return (c->file = strdup(v)) ? KV_OK : kv_fail(err, KV_OUT_OF_MEMORY, "--config", "no memory");
        }
        if (config_pass) return KV_OK;
        return valued[k].key ? kv_config_set(c, valued[k].key, v, KV_ORIGIN_FLAG, err) : read_set(c, v, err);
    }
    return unknown("flag", arg, flags, COUNT(flags), err);
}

enum kv_status kv_config_load(struct kv_config *c, int argc, char **argv, char **env, struct kv_error *err)
{
    enum kv_status st = KV_OK;
    memset(c, 0, sizeof *c);
    for (size_t i = 0; i < KV_SETTINGS && !st; i++) st = set_text(c, &settings[i], settings[i].def, err);
    for (int i = 1; i < argc && !st; i++) st = read_flag(c, argc, argv, &i, true, err);
    if (!st && c->file) st = load_file(c, c->file, err);
    if (!st) st = load_env(c, env, err);
    for (int i = 1; i < argc && !st; i++) st = read_flag(c, argc, argv, &i, false, err);
    if (!st && !*c->tls_certificate != !*c->tls_key)
        st = kv_fail(err, KV_BAD_ARGUMENT, "http.tls", "http.tls.certificate and http.tls.key go together; one of them is empty");
    return st;
}

void kv_config_free(struct kv_config *c)
{
    for (size_t i = 0; i < KV_SETTINGS; i++) {
        void **at = (void **)((char *)c + settings[i].offset);
        if (settings[i].type == STRING) free(*at);
        else if (settings[i].type == LIST || settings[i].type == TOKENS) json_decref(*at);
    }
    free(c->file);
    memset(c, 0, sizeof *c);
}

static void value_text(const struct kv_config *c, const struct setting *s, char *out, size_t cap)
{
    const void *at = (const char *)c + s->offset;
    switch (s->type) {
    case STRING: snprintf(out, cap, "%s", *(char *const *)at); break;
    case BOOL: snprintf(out, cap, "%s", *(const bool *)at ? "true" : "false"); break;
    case INT: snprintf(out, cap, "%lld", (long long)*(const int64_t *)at); break;
    case FLOAT: snprintf(out, cap, "%.15g", *(const double *)at); break;
    case SIZE: snprintf(out, cap, "%llu", (unsigned long long)*(const uint64_t *)at); break;
    case LIST: {
        char *text = json_dumps(*(json_t *const *)at, JSON_COMPACT);
        snprintf(out, cap, "%s", text ? text : "[]");
        free(text);
        break;
    }
    case TOKENS: snprintf(out, cap, "%zu tokens", json_array_size(*(json_t *const *)at)); break;
    }
}

void kv_config_print(const struct kv_config *c, FILE *out)
{
    static const char *const origin[] = {"default", "file", "environment", "flag"};
    fprintf(out, "%-36s %-24s %-18s %-22s %s\n", "# key", "value", "default", "unit", "origin");
    for (size_t i = 0; i < KV_SETTINGS; i++) {
        char value[512];
        value_text(c, &settings[i], value, sizeof value);
        fprintf(out, "%-36s %-24s %-18s %-22s %s\n", settings[i].key, *value ? value : "\"\"", *settings[i].def ? settings[i].def : "\"\"",
                settings[i].unit, origin[c->origin[i]]);
    }
}

void kv_config_help(FILE *out)
{
    fprintf(out, "usage: kvasird [--config FILE.json] [--model FILE.gguf] [--state DIR] [--listen HOST:PORT] [--set key=value]…\n"
                 "               [--print-config] [--demo [--exit]] [--version] [--help]\n\n"
                 "  --demo   plays a bundled request trace and stages three rollouts; --exit ends with one JSON line\n\n"
                 "A flag goes before the environment (KVASIR_…), that before the file, that before the default.\n"
                 "SIGTERM drains, SIGHUP reloads the file, SIGUSR1 returns all traffic to the exact baseline.\n\nsettings:\n");
    for (size_t i = 0; i < KV_SETTINGS; i++)
        fprintf(out, "  %-36s %s [%s; default %s]%s\n", settings[i].key, settings[i].help, settings[i].unit, *settings[i].def ? settings[i].def : "empty",
                settings[i].reload ? " (reloadable)" : "");
}

const char *kv_config_key(enum kv_setting_id id)
{
    return settings[id].key;
}

bool kv_config_reloadable(enum kv_setting_id id)
{
    return settings[id].reload;
}

bool kv_config_differs(const struct kv_config *a, const struct kv_config *b, enum kv_setting_id id)
{
    const struct setting *s = &settings[id];
    const void *x = (const char *)a + s->offset, *y = (const char *)b + s->offset;
    if (s->type == TOKENS) return !json_equal(*(json_t *const *)x, *(json_t *const *)y);
    char p[512], q[512];
    value_text(a, s, p, sizeof p);
    value_text(b, s, q, sizeof q);
    return strcmp(p, q) != 0;
}
