/* cmd_doctor.c — `kvasir doctor`: what of this machine would surprise an operator, before it does. */
#include "console/client.h"
#include "console/output.h"
#include "controller/config_paths.h"
#include "kernels/kernels.h"
#include "runtime/kvasir.h"

#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

struct report {
    json_t *rows;
    int worst; /* 0 good, 1 warning, 2 bad */
    bool served; /* the server answers */
};

static void say(struct report *r, const char *what, int level, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static void say(struct report *r, const char *what, int level, const char *fmt, ...)
{
    static const char *const word[] = {"good", "warning", "bad"};
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_array_append_new(r->rows, json_pack("{s:s, s:s, s:s}", "check", what, "verdict", word[level], "detail", text));
    if (level > r->worst) r->worst = level;
}

static void check_memory(struct report *r)
{
    struct sysinfo s;
    if (sysinfo(&s)) return say(r, "memory", 1, "sysinfo: %s", strerror(errno));
    double total = (double)s.totalram * s.mem_unit / (1 << 30), free_ = (double)(s.freeram + s.bufferram) * s.mem_unit / (1 << 30);
    say(r, "memory", total < 2 ? 1 : 0, "%.1f GiB in all, %.1f GiB free; K/V rows take tiers.host.capacity_bytes beside the weights", total, free_);
}

/* Of a folder that is not there yet, where it would be made. */
static void check_disk(struct report *r, const char *dir)
{
    char at[512];
    struct statvfs v;
    struct stat there;
    snprintf(at, sizeof at, "%s", dir);
    for (char *slash; stat(at, &there) && errno == ENOENT && (slash = strrchr(at, '/')) && slash != at;) *slash = 0;
    if (stat(at, &there) && errno == ENOENT) snprintf(at, sizeof at, ".");
    if (statvfs(at, &v)) return say(r, "disk", 2, "%s: %s; name the state folder with --state", dir, strerror(errno));
    double free_gib = (double)v.f_bavail * (double)v.f_frsize / (1 << 30);
    say(r, "disk", free_gib < 1 ? 2 : free_gib < 5 ? 1 : 0, "%.1f GiB free at %s", free_gib, dir);
    if (access(at, W_OK)) say(r, "permissions", 2, "%s cannot be written: %s", at, strerror(errno));
    else say(r, "permissions", 0, "%s can be written", at);
}

static void say_error(struct report *r, const char *what, const struct kv_error *e)
{
    say(r, what, 2, "%s%s%s", e->message, *e->hint ? "; " : "", e->hint);
}

static void check_model(struct report *r, const struct kv_config *c)
{
    char path[512];
    struct kv_error err = {0};
    if (kv_config_model_path(c, path, sizeof path, &err)) say_error(r, "model", &err);
    else if (access(path, R_OK)) say(r, "model", 2, "%s: %s; name a GGUF file with --model", path, strerror(errno));
    else say(r, "model", 0, "%s", path);
}

static void check_folders(struct report *r, const struct kv_config *c, const char *state)
{
    struct kv_error err = {0};
    const char *key, *secret;
    if (kv_config_check_folders(c, state, &err)) say_error(r, "folders", &err);
    else say(r, "folders", 0, "only their owner may write to them");
    for (int at = 0; (secret = kv_config_open_secret(c, &at, &key));) say(r, "secrets", 1, "every user of this machine may read %s, %s: chmod o-rwx %s", key, secret, secret);
}

/* Where the server answers, the port is its own. */
static void check_port(struct report *r, const struct kv_config *c)
{
    char host[256];
    const char *colon = strrchr(c->listen, ':');
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;
    int one = 1;
    if (!colon) return say(r, "port", 2, "listen wants HOST:PORT, not '%.80s'", c->listen);
    bool literal = *c->listen == '[' && colon > c->listen + 1 && colon[-1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(colon - c->listen) - 2 * literal, c->listen + literal);
    int gai = getaddrinfo(host, colon + 1, &hints, &found);
    if (gai) return say(r, "port", 2, "the address %s is not known: %s", c->listen, gai_strerror(gai));
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool bound = fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) && !bind(fd, found->ai_addr, found->ai_addrlen);
    if (bound || (errno == EADDRINUSE && r->served)) say(r, "port", 0, "%s is %s", c->listen, bound ? "free" : "taken, and a server answers");
    else say(r, "port", 2, "%s cannot be taken: %s; stop who has it, or choose another with --listen", c->listen, strerror(errno));
    if (fd >= 0) close(fd);
    freeaddrinfo(found);
}

static void check_huge_pages(struct report *r)
{
    char text[80] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (f && !fgets(text, sizeof text, f)) *text = 0;
    if (f) fclose(f);
    text[strcspn(text, "\n")] = 0;
    bool never = !*text || strstr(text, "[never]");
    say(r, "huge pages", never, "%s%s", *text ? text : "the kernel offers none", never ? "; echo madvise > /sys/kernel/mm/transparent_hugepage/enabled spares the reading of rows many page walks" : "");
}

static void check_limits(struct report *r)
{
    struct rlimit files, core;
    getrlimit(RLIMIT_NOFILE, &files);
    getrlimit(RLIMIT_FSIZE, &core);
    say(r, "open files", files.rlim_cur < 1024 ? 1 : 0, "limit %llu; each connection takes one", (unsigned long long)files.rlim_cur);
    if (core.rlim_cur != RLIM_INFINITY) say(r, "file size", 1, "files are limited to %llu bytes; the receipt database may outgrow that", (unsigned long long)core.rlim_cur);
}

static void check_clock(struct report *r)
{
    time_t now = time(NULL);
    struct tm t;
    gmtime_r(&now, &t);
    char text[40];
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &t);
    say(r, "clock", t.tm_year + 1900 < 2025 ? 2 : 0, "%s; receipts carry it", text);
}

static void check_processor(struct report *r)
{
    const struct kv_kernels *k = kv_kernels();
    uint8_t id[32];
    char hex[65];
    kv_numerics_id(id);
    kv_hex(id, 32, hex);
    say(r, "processor", !strcmp(k->isa, "scalar") ? 1 : 0, "%ld cores, kernels %s, numerics %.16s", sysconf(_SC_NPROCESSORS_ONLN), k->isa, hex);
}

static void check_server(struct report *r, const struct kv_cli *cli)
{
    struct kv_reply reply;
    int status = kv_client_call(cli, "GET", "/api/v1/status", NULL, NULL, &reply);
    if (status == KV_EXIT_DONE) {
        const json_t *release = json_object_get(reply.body, "release");
        const char *stage = json_string_value(json_object_get(release, "stage"));
        r->served = true;
        say(r, "server", 0, "answers at %s, stage %s", cli->url, stage ? stage : "unknown");
    } else say(r, "server", 1, "%s", reply.error);
    json_decref(reply.body);
}

/* As the server met its remote tier last: at its start, and whenever blocks went there or were looked for. */
static void check_remote(struct report *r, const struct kv_cli *cli)
{
    struct kv_reply reply;
    size_t i;
    json_t *t;
    if (kv_client_call(cli, "GET", "/api/v1/tiers", NULL, NULL, &reply) == KV_EXIT_DONE)
        json_array_foreach(json_object_get(reply.body, "tiers"), i, t) {
            const char *name = json_string_value(json_object_get(t, "name")), *breaker = json_string_value(json_object_get(t, "breaker"));
            const char *why = json_string_value(json_object_get(t, "why"));
            if (!why) why = json_string_value(json_object_get(json_object_get(t, "last_failure"), "reason"));
            double capacity = json_number_value(json_object_get(t, "capacity_bytes"));
            if (!name || !breaker || strcmp(name, "remote")) continue;
            if (!strcmp(breaker, "closed") && capacity > 0)
                say(r, "remote tier", 0, "answers; %lld objects, %.3g of %.3g GiB", (long long)json_integer_value(json_object_get(t, "objects")),
                    json_number_value(json_object_get(t, "used_bytes")) / (1 << 30), capacity / (1 << 30));
            else say(r, "remote tier", 1, "%s, the breaker is %s: %s. What it does not give is computed",
                     !strcmp(breaker, "full") ? "it has no room" : capacity > 0 ? "it does not answer any more" : "it has not answered yet", breaker, why ? why : "nothing was asked");
        }
    json_decref(reply.body);
}

/* As kvasird would start with the same flags, environment and file. */
static void check_start(struct report *r, const struct kv_config *c)
{
    char state[512];
    struct kv_error err = {0};
    check_model(r, c);
    if (kv_config_state_dir(c, state, sizeof state, &err)) say_error(r, "disk", &err);
    else check_disk(r, state), check_folders(r, c, state);
    check_port(r, c);
}

int kv_cmd_doctor(int argc, char **argv, const struct kv_cli *cli)
{
    struct report r = {.rows = json_array()};
    struct kv_config c;
    struct kv_error err = {0};
    if (argc > 1 && !strcmp(argv[1], "--help")) return printf("usage: kvasir doctor [flags as kvasird takes them: --config FILE, --state DIR, --model FILE, --listen HOST:PORT, --set key=value]\n"), KV_EXIT_DONE;
    kv_numerics_enter();
    check_processor(&r);
    check_memory(&r);
    check_huge_pages(&r);
    check_limits(&r);
    check_clock(&r);
    check_server(&r, cli);
    check_remote(&r, cli);
    if (kv_config_load(&c, argc, argv, environ, &err)) say_error(&r, "settings", &err);
    else check_start(&r, &c);
    kv_config_free(&c);
    if (cli->json) kv_output_json(r.rows, JSON_INDENT(2)), putchar('\n');
    else {
        size_t i;
        json_t *row;
        json_array_foreach(r.rows, i, row)
            printf("%-8s %-12s %s\n", json_string_value(json_object_get(row, "verdict")), json_string_value(json_object_get(row, "check")), json_string_value(json_object_get(row, "detail")));
    }
    json_decref(r.rows);
    return r.worst == 2 ? KV_EXIT_REFUSED : KV_EXIT_DONE;
}
