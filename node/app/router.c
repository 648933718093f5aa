/* router.c - `weft router`. */
#include "node/app/commands.h"

int weft_command_router(const weft_options *options)
{
    weft_err err = {0};
    (void)options;
    (void)WEFT_FAIL(&err, WEFT_UNIMPLEMENTED, "router is not built");
    return weft_fail_with(WEFT_EXIT_USAGE, &err);
}
