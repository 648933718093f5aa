/* shard_command.c - `weft shard`: one shard process of a cluster. */
#include "node/app/commands.h"
#include "node/app/lifecycle.h"
#include "node/app/shard.h"

int weft_command_shard(const weft_options *options)
{
    weft_err err = {0};
    int code = WEFT_EXIT_DONE;
    if (weft_lifecycle_begin(&err) != WEFT_OK)
        return weft_fail_with(WEFT_EXIT_RESOURCE, &err);
    code = options->role == WEFT_ROLE_EXPERTS ? weft_shard_run_experts(options)
                                              : weft_shard_run_layers(options);
    weft_lifecycle_end();
    return code;
}
