#include "node/app/flags.h"

#include <ctype.h>
#include <string.h>

const weft_command_row weft_command_rows[WEFT_COMMANDS] = {
    [WEFT_COMMAND_SERVE] = {.name = "serve",
                            .usage = "--model DIR [--flag value]...",
                            .help = "router, layers and experts in one process",
                            .needed = {WEFT_FLAG_MODEL},
                            .n_needed = 1},
    [WEFT_COMMAND_GENERATE] = {.name = "generate",
                               .usage = "[--flag value]... [PROMPT...]",
                               .help =
                                   "client: streams text to stdout, usage "
                                   "and timing to stderr; without a prompt, "
                                   "stdin is read, its last newline included",
                               .words = true},
    [WEFT_COMMAND_EVAL] = {.name = "eval",
                           .usage = "--model DIR --ids FILE|--text FILE "
                                    "[--flag value]...",
                           .help = "scores given tokens, prints one JSON line",
                           .needed = {WEFT_FLAG_MODEL},
                           .n_needed = 1},
    [WEFT_COMMAND_CHECK] = {.name = "check",
                            .usage = "--model DIR [--flag value]...",
                            .help = "validates a checkpoint; prints counts, KV "
                                    "plan and memory",
                            .needed = {WEFT_FLAG_MODEL},
                            .n_needed = 1},
    [WEFT_COMMAND_STATUS] = {.name = "status",
                             .usage = "[--addr HOST:PORT] [--json]",
                             .help = "members, KV and streams of a server"},
    [WEFT_COMMAND_ROUTER] =
        {.name = "router",
         .usage = "--cluster NAME --etcd HOST:PORT,...|--members FILE "
                  "--model DIR [--flag value]...",
         .help = "the router process of a cluster; of the model, config and "
                 "tokenizer alone are read",
         .needed = {WEFT_FLAG_MODEL, WEFT_FLAG_CLUSTER},
         .n_needed = 2},
    [WEFT_COMMAND_SHARD] =
        {.name = "shard",
         .usage = "--role layers|experts --cluster NAME --etcd "
                  "HOST:PORT,...|--members FILE --model DIR [--flag value]...",
         .help = "one shard process of a cluster",
         .needed = {WEFT_FLAG_MODEL, WEFT_FLAG_CLUSTER, WEFT_FLAG_ROLE},
         .n_needed = 3},
    [WEFT_COMMAND_PLAN] = {.name = "plan",
                           .usage = "--model DIR [--flag value]...",
                           .help = "how many shards a load needs, and how fast "
                                   "they could be at best; of the model, "
                                   "config.json alone is read",
                           .needed = {WEFT_FLAG_MODEL},
                           .n_needed = 1},
    [WEFT_COMMAND_BENCH] = {.name = "bench",
                            .usage = "",
                            .help = "measurements",
                            .not_built = "the programs of tests/bench measure"},
    [WEFT_COMMAND_HELP] = {.name = "help",
                           .usage = "[COMMAND]",
                           .help = "this list, or the flags of a command",
                           .words = true},
    [WEFT_COMMAND_VERSION] = {.name = "version",
                              .usage = "",
                              .help = "version, commit, CPU paths, backends"},
};

weft_command weft_command_find(const char *name)
{
    for (int c = 0; c < WEFT_COMMANDS; c++)
        if (strcmp(weft_command_rows[c].name, name) == 0)
            return (weft_command)c;
    return WEFT_COMMANDS;
}

void weft_flag_env_name(const char *flag, char *name_out, size_t n)
{
    size_t i = 0;
    for (const char *p = "WEFT_"; *p != '\0' && i + 1 < n; p++)
        name_out[i++] = *p;
    for (const char *p = flag; *p != '\0' && i + 1 < n; p++)
        name_out[i++] = (char)(*p == '-' ? '_' : toupper((unsigned char)*p));
    name_out[i] = '\0';
}
