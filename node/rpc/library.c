#include "node/rpc/library.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>

#include "node/base/log.h"

static void log_line(gpr_log_func_args *args)
{
    weft_log(WEFT_LOG_DEBUG, "grpc", "library", "file %s line %d text \"%s\"",
             args->file, args->line, args->message);
}

void weft_grpc_begin(void)
{
    gpr_set_log_function(log_line);
    grpc_init();
}
