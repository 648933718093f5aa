/* shard_command.c - `weft shard`: one shard process of a cluster. */
#include "node/app/commands.h"

int weft_command_shard(const weft_options *options)
{
    weft_err err = {0};
    (void)options;
    (void)WEFT_FAIL(&err, WEFT_UNIMPLEMENTED, "shard is not built");
    return weft_fail_with(WEFT_EXIT_USAGE, &err);
}
