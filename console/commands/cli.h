/* cli.h — kvasir's command table and what every command shares. */
#ifndef KV_CLI_H
#define KV_CLI_H

#include <stdbool.h>

enum kv_exit { KV_EXIT_DONE = 0, KV_EXIT_REFUSED = 1, KV_EXIT_USAGE = 2, KV_EXIT_UNREACHABLE = 3 };

struct kv_cli {
    const char *url, *token, *context; /* from --url, KVASIR_URL, contexts file; default http://127.0.0.1:7070 */
    bool json;
};

/* A command: argv[0] is its name. Returns an exit status. Declared by its row in commands.def. */
#define KV_COMMAND(name, usage, help) int kv_cmd_##name(int argc, char **argv, const struct kv_cli *cli);
#include "console/commands.def"
#undef KV_COMMAND

#endif
