/* http.c — kvasird's HTTP side: latency and rate of a small route beside bare loopback round trips; then what an operator waits for while every sequence decodes.
 * usage: http [KVASIRD]. Starts the program on a free port with a fresh state. One JSON line a figure: {"name","value","unit","floor","ratio"};
 * the floor of a latency is the same number of clients bouncing the same bytes off a thread each. */
#include <arpa/inet.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS = 8, ROUNDS = 1500, REPLY = 65536, LOAD = 32 /* as many as decode at once */, LOOKS = 200, ROLLOUTS = 12, FENCES = 25 /* a rollout */ };
static const char question[] = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
static char echo[300]; /* as long as the reply of /healthz */
static size_t echo_n;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int dial(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a)) {
        perror("connect");
        exit(EXIT_FAILURE);
    }
    return fd;
}

/* One request and its whole answer, whose length its header says. Returns the bytes of the answer, 0 on failure. */
static size_t ask(int fd, const char *text, char *reply)
{
    size_t n = 0, need = 0;
    if (write(fd, text, strlen(text)) != (ssize_t)strlen(text)) return 0;
    while (!need || n < need) {
        ssize_t got = read(fd, reply + n, REPLY - 1 - n);
        if (got <= 0) return 0;
        reply[n += (size_t)got] = 0;
        char *end = strstr(reply, "\r\n\r\n"), *length = strstr(reply, "Content-Length: ");
        if (end && length) need = (size_t)(end + 4 - reply) + strtoul(length + 16, NULL, 10);
    }
    return n;
}

struct client {
    int port;
    bool http;
    double us[ROUNDS];
};

static void *client_main(void *arg)
{
    struct client *c = arg;
    static _Thread_local char reply[REPLY];
    int fd = dial(c->port);
    for (int i = 0; i < ROUNDS; i++) {
        double begun = now_us();
        size_t n = 0;
        if (c->http) n = ask(fd, question, reply);
        else if (write(fd, question, sizeof question - 1) > 0)
            while (n < echo_n) {
                ssize_t got = read(fd, reply, echo_n - n);
                if (got <= 0) break;
                n += (size_t)got;
            }
        c->us[i] = now_us() - begun;
        if (!n) exit(EXIT_FAILURE);
    }
    close(fd);
    return NULL;
}

static void *bounce_main(void *arg)
{
    int fd = (int)(intptr_t)arg;
    char in[sizeof question];
    for (;;) {
        size_t n = 0;
        while (n < sizeof question - 1) {
            ssize_t got = read(fd, in, sizeof question - 1 - n);
            if (got <= 0) return close(fd), NULL;
            n += (size_t)got;
        }
        if (write(fd, echo, echo_n) != (ssize_t)echo_n) return close(fd), NULL;
    }
}

static void *bouncer_main(void *arg)
{
    int listener = (int)(intptr_t)arg;
    for (int i = 0; i < CLIENTS; i++) {
        pthread_t t;
        int fd = accept(listener, NULL, NULL);
        if (fd >= 0 && !pthread_create(&t, NULL, bounce_main, (void *)(intptr_t)fd)) pthread_detach(t);
    }
    return NULL;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorted latencies of all clients; returns requests a second. */
static double measure(int port, bool http, double all[CLIENTS * ROUNDS])
{
    static struct client client[CLIENTS];
    pthread_t t[CLIENTS];
    double begun = now_us();
    for (int i = 0; i < CLIENTS; i++) {
        client[i].port = port;
        client[i].http = http;
        pthread_create(&t[i], NULL, client_main, &client[i]);
    }
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(t[i], NULL);
        memcpy(all + i * ROUNDS, client[i].us, sizeof client[i].us);
    }
    double seconds = (now_us() - begun) / 1e6;
    qsort(all, CLIENTS * ROUNDS, sizeof *all, compare);
    return CLIENTS * ROUNDS / seconds;
}

static void figure(const char *name, double value, const char *unit, double floor, double ratio)
{
    printf("{\"name\":\"%s\",\"value\":%.3f,\"unit\":\"%s\"", name, value, unit);
    if (floor > 0) printf(",\"floor\":%.3f,\"ratio\":%.3f}\n", floor, ratio);
    else printf(",\"floor\":null,\"ratio\":null}\n");
}

static pid_t start(const char *program, const char *state, int *port)
{
    int fd[2];
    if (pipe(fd)) exit(EXIT_FAILURE);
    pid_t pid = fork();
    if (!pid) {
        dup2(fd[1], 2);
        close(fd[0]);
        execl(program, program, "--listen", "127.0.0.1:0", "--state", state, "--set", "http.max_connections_per_client=128", (char *)NULL);
        _exit(127);
    }
    close(fd[1]);
    FILE *f = fdopen(fd[0], "r");
    char line[2048], *at = NULL;
    while (f && fgets(line, sizeof line, f))
        if ((at = strstr(line, "://127.0.0.1:"))) break;
        else fputs(line, stderr);
    *port = at ? atoi(at + 13) : 0;
    return pid; /* f stays open: the program goes on writing to it */
}

/* ---------------------------------------------------------------- under load */

struct load {
    int port, n;
    _Atomic bool *stop;
    _Atomic long *tokens;
};

static void *load_main(void *arg)
{
    enum { TOKENS = 256 };
    struct load *l = arg;
    static _Thread_local char reply[REPLY];
    char body[256], request[512];
    snprintf(body, sizeof body, "{\"prompt\":\"The river ran over the stones\",\"max_tokens\":%d,\"ignore_eos\":true,\"kvasir\":{\"contract\":\"approximate\",\"session\":\"load-%d\"}}", TOKENS, l->n);
    snprintf(request, sizeof request, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    int fd = dial(l->port);
    while (!*l->stop && ask(fd, request, reply) && !strncmp(reply + 9, "200", 3)) *l->tokens += TOKENS;
    if (!*l->stop) fprintf(stderr, "http: a completion under load: %.60s\n", reply);
    close(fd);
    return NULL;
}

/* Sorted latencies of what both consoles ask for, one after the other. False when something is not answered 200. */
static bool looks(int port, double us[LOOKS])
{
    static const char *const routes[] = {"/api/v1/status", "/api/v1/rollouts", "/api/v1/receipts?limit=50", "/api/v1/sessions", "/metrics", "/"};
    static char reply[REPLY];
    char request[256];
    bool ok = true;
    int fd = dial(port);
    for (int i = 0; ok && i < LOOKS; i++) {
        snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", routes[i % (sizeof routes / sizeof *routes)]);
        double begun = now_us();
        ok = ask(fd, request, reply) && !strncmp(reply + 9, "200", 3);
        us[i] = now_us() - begun;
        if (!ok) fprintf(stderr, "http: %s under load: %.60s\n", request, reply);
    }
    close(fd);
    qsort(us, LOOKS, sizeof *us, compare);
    return ok;
}

/* Sorted microseconds from a rollback's arrival to its fence, as the service says it: the first of each rollout ends it, the others meet the engine anywhere. */
static bool fences(int port, double us[ROLLOUTS * FENCES])
{
    static char reply[REPLY];
    static const char body[] = "{\"name\":\"bench\",\"pipeline\":\"layerwise\",\"steps\":[{\"stage\":\"SHADOW\",\"min_seconds\":60},{\"stage\":\"CANARY\",\"fraction\":0.1},"
                               "{\"stage\":\"RAMP\",\"fraction\":0.5},{\"stage\":\"FULL\"}]}";
    const struct timespec moment = {0, 50000000};
    char request[1024], id[32];
    bool ok = true;
    int fd = dial(port);
    for (int i = 0; ok && i < ROLLOUTS * FENCES; i++) {
        if (i % FENCES == 0) {
            snprintf(request, sizeof request, "POST /api/v1/rollouts HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", sizeof body - 1, body);
            char *at = NULL;
            for (int tries = 0; tries < 200 && !at; tries++) { /* the tick re-arms the baseline first */
                at = ask(fd, request, reply) ? strstr(reply, "\"id\":\"r_") : NULL;
                if (!at) nanosleep(&moment, NULL);
            }
            ok = at && sscanf(at, "\"id\":\"%31[^\"]\"", id) == 1;
            if (!ok) break;
            snprintf(request, sizeof request, "POST /api/v1/rollouts/%s/rollback HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", id);
        }
        char *at = ask(fd, request, reply) ? strstr(reply, "\"fence_us\":") : NULL;
        ok = at != NULL;
        if (ok) us[i] = strtod(at + 11, NULL);
    }
    if (!ok) fprintf(stderr, "http: a rollback under load: %.300s\n", reply);
    close(fd);
    qsort(us, ROLLOUTS * FENCES, sizeof *us, compare);
    return ok;
}

static bool loaded(int port)
{
    static struct load load[LOAD];
    pthread_t t[LOAD];
    _Atomic bool stop = false;
    _Atomic long tokens = 0;
    static double look[LOOKS], us[ROLLOUTS * FENCES];
    for (int i = 0; i < LOAD; i++) {
        load[i] = (struct load){port, i, &stop, &tokens};
        pthread_create(&t[i], NULL, load_main, &load[i]);
    }
    while (!tokens) nanosleep(&(struct timespec){0, 1000000}, NULL);
    double begun = now_us();
    long before = tokens;
    bool ok = looks(port, look) && fences(port, us);
    double rate = (double)(tokens - before) / (now_us() - begun) * 1e6;
    stop = true;
    for (int i = 0; i < LOAD; i++) pthread_join(t[i], NULL);
    if (!ok) return false;
    figure("loaded/decode", rate, "tokens/s", 0, 0);
    figure("loaded/operator/p50", look[LOOKS / 2], "us", 0, 0);
    figure("loaded/operator/p99", look[LOOKS * 99 / 100], "us", 0, 0);
    figure("loaded/fence/p50", us[ROLLOUTS * FENCES / 2], "us", 0, 0);
    figure("rollback/fence", us[ROLLOUTS * FENCES * 99 / 100], "us", 0, 0);
    return true;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st, (void)kind, (void)where;
    return remove(path);
}

int main(int argc, char **argv)
{
    static double http[CLIENTS * ROUNDS], floor[CLIENTS * ROUNDS];
    static char reply[REPLY];
    char program[512], state[] = "/tmp/kvasir-bench-XXXXXX";
    const char *slash = strrchr(argv[0], '/');
    snprintf(program, sizeof program, "%.*s/../kvasird", slash ? (int)(slash - argv[0]) : 1, slash ? argv[0] : ".");
    int port = 0, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof any;
    pthread_t bouncer;
    signal(SIGPIPE, SIG_IGN);
    if (!mkdtemp(state) || bind(listener, (struct sockaddr *)&any, len) || listen(listener, CLIENTS) || getsockname(listener, (struct sockaddr *)&any, &len)) return EXIT_FAILURE;
    pid_t pid = start(argc > 1 ? argv[1] : program, state, &port);
    if (!port) {
        fprintf(stderr, "http: %s did not start\n", argc > 1 ? argv[1] : program);
        return EXIT_FAILURE;
    }
    int fd = dial(port);
    echo_n = ask(fd, question, reply);
    memcpy(echo, reply, echo_n < sizeof echo ? echo_n : (echo_n = sizeof echo));
    close(fd);
    pthread_create(&bouncer, NULL, bouncer_main, (void *)(intptr_t)listener);
    double floor_rate = measure(ntohs(any.sin_port), false, floor), rate = measure(port, true, http);
    pthread_join(bouncer, NULL);
    size_t p50 = CLIENTS * ROUNDS / 2, p99 = CLIENTS * ROUNDS * 99 / 100;
    figure("http/p50", http[p50], "us", floor[p50], floor[p50] / http[p50]);
    figure("http/p99", http[p99], "us", floor[p99], floor[p99] / http[p99]);
    figure("http/rate", rate, "requests/s", floor_rate, rate / floor_rate);
    bool ok = loaded(port);
    kill(pid, SIGTERM);
    int status;
    waitpid(pid, &status, 0);
    nftw(state, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return ok && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
