#include "node/base/check.h"

#include <stdio.h>
#include <stdlib.h>

void weft_panic(const char *file, int line, const char *what)
{
    (void)fprintf(stderr, "weft: invariant broken at %s:%d: %s\n", file, line,
                  what);
    abort();
}
