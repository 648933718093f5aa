#include "node/app/exit.h"

#include <stdbool.h>

/* Out of memory, a port in use, a file that may not be read: the machine lacks
 * something, whatever is being done. */
static bool is_resource(weft_status st)
{
    return st == WEFT_RESOURCE_EXHAUSTED || st == WEFT_UNAVAILABLE;
}

weft_exit weft_exit_of(weft_status st, weft_doing doing)
{
    if (st == WEFT_OK) return WEFT_EXIT_DONE;
    if (doing == WEFT_DOING_CALL) return WEFT_EXIT_ANSWERED;
    if (doing == WEFT_DOING_REACH) return WEFT_EXIT_UNREACHABLE;
    if (st == WEFT_INTERNAL) return WEFT_EXIT_INTERNAL;
    if (is_resource(st)) return WEFT_EXIT_RESOURCE;
    switch (doing) {
    case WEFT_DOING_LOAD: return WEFT_EXIT_REFUSED;
    case WEFT_DOING_START:
        return st == WEFT_INVALID_ARGUMENT || st == WEFT_UNIMPLEMENTED
                   ? WEFT_EXIT_USAGE
                   : WEFT_EXIT_RESOURCE;
    default: return st == WEFT_NOT_FOUND ? WEFT_EXIT_RESOURCE : WEFT_EXIT_USAGE;
    }
}
