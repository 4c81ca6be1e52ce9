/* cmd_completion.c — kvasir completion: shell completion and the manual page, made from commands.def and verbs.def. */
#include "console/commands/cli.h"
#include "console/verbs.h"
#include "runtime/kvasir.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *usage, *help;
} commands[] = {
#define KV_COMMAND(name, usage, help) {#name, usage, help},
#include "console/commands.def"
#undef KV_COMMAND
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

/* The words between { and } of a usage line; other commands have none. */
static void print_words(const char *name, const char *usage)
{
    const char *p = strchr(usage, '{'), *end = p ? strchr(p, '}') : NULL;
    if (!strcmp(name, "rollout")) {
        fputs("apply gates samples drill", stdout); /* the command's own; the rest are verbs */
        for (int i = 0; i < KV_N_VERBS; i++)
            if (!strcmp(kv_verbs[i].group, name)) printf(" %s", kv_verbs[i].name);
        return;
    }
    for (const char *c = p ? p + 1 : ""; p && c < end; c++)
        if (*c < 'A' || *c > 'Z') putchar(*c == ',' || *c == '|' ? ' ' : *c); /* capitals stand for an argument */
}

static int bash(void)
{
    puts("# bash completion for kvasir; made by `kvasir completion bash`\n_kvasir() {\n    local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]}\n    if [ \"$COMP_CWORD\" -eq 1 ]; then");
    fputs("        COMPREPLY=($(compgen -W \"--url --token --context --json help", stdout);
    for (int i = 0; i < N_COMMANDS; i++) printf(" %s", commands[i].name);
    puts("\" -- \"$word\"))\n        return\n    fi\n    case $command in");
    for (int i = 0; i < N_COMMANDS; i++) {
        if (!strchr(commands[i].usage, '{') || strchr(commands[i].usage, '{')[1] == '-') continue;
        printf("    %s) [ \"$COMP_CWORD\" -eq 2 ] && COMPREPLY=($(compgen -W \"", commands[i].name);
        print_words(commands[i].name, commands[i].usage);
        puts("\" -- \"$word\")) || COMPREPLY=($(compgen -f -- \"$word\")) ;;");
    }
    puts("    *) COMPREPLY=($(compgen -f -- \"$word\")) ;;\n    esac\n}\ncomplete -F _kvasir kvasir");
    return KV_EXIT_DONE;
}

/* roff reads '-' as a hyphen, '\' as an escape and a leading '.' as a request. */
static void roff(const char *text)
{
    for (const char *c = text; *c; c++) {
        if (*c == '-' || *c == '\\') putchar('\\');
        if ((*c == '.' || *c == '\'') && c == text) fputs("\\&", stdout);
        putchar(*c);
    }
}

static int man(void)
{
    printf(".TH KVASIR 1 \"\" \"Kvasir %s\" \"User Commands\"\n.SH NAME\nkvasir \\- the operator's tool of Kvasir\n.SH SYNOPSIS\n.B kvasir\n[\\-\\-url URL] [\\-\\-token TOKEN] [\\-\\-context NAME] [\\-\\-json] COMMAND ...\n", KVASIR_VERSION);
    puts(".SH COMMANDS");
    for (int i = 0; i < N_COMMANDS; i++) {
        fputs(".TP\n.B ", stdout);
        roff(commands[i].usage);
        putchar('\n');
        roff(commands[i].help);
        putchar('\n');
    }
    puts(".SH ROLLOUT VERBS\nStages where a verb is legal: O OFF, S SHADOW, C CANARY, R RAMP, F FULL, B EXACT_BASELINE, * any.");
    for (int i = 0; i < KV_N_VERBS; i++) {
        printf(".TP\n.B %s\n", kv_verbs[i].name);
        roff(kv_verbs[i].help);
        printf(" (right: %s; at: %s)\n", kv_verbs[i].right, kv_verbs[i].stages);
    }
    puts(".SH EXIT STATUS\n0 done, 1 refused, 2 usage, 3 unreachable\n.SH ENVIRONMENT\nKVASIR_URL, KVASIR_TOKEN, KVASIR_CONTEXT");
    return KV_EXIT_DONE;
}

int kv_cmd_completion(int argc, char **argv, const struct kv_cli *cli)
{
    (void)cli;
    if (argc == 2 && !strcmp(argv[1], "bash")) return bash();
    if (argc == 2 && !strcmp(argv[1], "man")) return man();
    fprintf(stderr, "usage: kvasir completion bash | man\n");
    return KV_EXIT_USAGE;
}
