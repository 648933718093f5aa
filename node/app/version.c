#include "node/app/options.h"

/* Set for this file alone, so that a new commit compiles one file. */
#ifndef WEFT_COMMIT
#define WEFT_COMMIT "unknown"
#endif

const char *weft_version_text(void)
{
    return WEFT_VERSION;
}

const char *weft_version_commit(void)
{
    return WEFT_COMMIT;
}
