/* main.c — kvasir: finds the command, takes the options every command shares, runs it. */
#include "console/commands/cli.h"
#include "runtime/kvasir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *usage, *help;
    int (*run)(int, char **, const struct kv_cli *);
} commands[] = {
#define KV_COMMAND(name, usage, help) {#name, usage, help, kv_cmd_##name},
#include "console/commands.def"
#undef KV_COMMAND
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void print_help(FILE *f)
{
    fprintf(f, "kvasir %s — operator's tool\nusage: kvasir [--url URL] [--token TOKEN] [--context NAME] [--json] COMMAND …\n\n", KVASIR_VERSION);
    for (int i = 0; i < N_COMMANDS; i++) fprintf(f, "  %-12s %s\n  %-12s   kvasir %s\n", commands[i].name, commands[i].help, "", commands[i].usage);
    fprintf(f, "\nexit status: 0 done, 1 refused, 2 usage, 3 unreachable\n");
}

/* Takes a shared option at argv[i]; returns how many arguments it used, 0 if it is none, -1 if its value is missing. */
static int shared_option(struct kv_cli *cli, int argc, char **argv, int i)
{
    if (!strcmp(argv[i], "--json")) return cli->json = true, 1;
    const char **to = !strcmp(argv[i], "--url") ? &cli->url : !strcmp(argv[i], "--token") ? &cli->token
                    : !strcmp(argv[i], "--context") ? &cli->context : NULL;
    if (!to) return 0;
    if (i + 1 >= argc) return -1;
    *to = argv[i + 1];
    return 2;
}

int main(int argc, char **argv)
{
    struct kv_cli cli = {.token = getenv("KVASIR_TOKEN")};
    char **rest = calloc((size_t)argc + 1, sizeof *rest);
    if (!rest) return KV_EXIT_REFUSED;
    int n = 0;
    for (int i = 1; i < argc;) {
        int used = shared_option(&cli, argc, argv, i);
        if (used < 0) {
            fprintf(stderr, "kvasir: %s needs a value\n", argv[i]);
            return KV_EXIT_USAGE;
        }
        if (used) i += used;
        else rest[n++] = argv[i++];
    }
    const char *context = getenv("KVASIR_CONTEXT");
    if (!cli.url && !cli.context && context && *context) cli.context = context;
    if (!cli.url) cli.url = getenv("KVASIR_URL");
    if (!cli.url) cli.url = "http://127.0.0.1:7070";
    int status = KV_EXIT_USAGE;
    if (n == 0 || !strcmp(rest[0], "help") || !strcmp(rest[0], "--help") || !strcmp(rest[0], "-h")) {
        print_help(n ? stdout : stderr);
        status = n ? KV_EXIT_DONE : KV_EXIT_USAGE;
    } else if (!strcmp(rest[0], "--version")) {
        puts("kvasir " KVASIR_VERSION);
        status = KV_EXIT_DONE;
    } else {
        int i = 0;
        while (i < N_COMMANDS && strcmp(commands[i].name, rest[0])) i++;
        if (i < N_COMMANDS) status = commands[i].run(n, rest, &cli);
        else fprintf(stderr, "kvasir: no command named '%s'; kvasir help lists them\n", rest[0]);
    }
    free(rest);
    return status;
}
