/* simt_faults.h - faults that libweft_simt.so can be told to have
 * (tests/simt/runtime.h); on a real device those tests are empty. */
#ifndef WEFT_TESTS_CUDA_SIMT_FAULTS_H
#define WEFT_TESTS_CUDA_SIMT_FAULTS_H

#include <stdlib.h>
#include <string.h>

#include "tests/support/device_kit.h"

static inline bool is_simt(void)
{
    return strcmp(device_kit_api()->name, "simt") == 0;
}

/* From here on; NULL: none. */
static inline void order_fault(const char *fault)
{
    if (fault == NULL)
        (void)unsetenv("WEFT_SIMT_FAULT");
    else
        (void)setenv("WEFT_SIMT_FAULT", fault, 1);
}

/* Blocks, streams, graphs and the rest that the library has not given back. */
static inline int64_t live_things(void)
{
    int64_t (*live)(void) = NULL;
    void *const symbol = device_kit_symbol("weft_simt_live");
    memcpy(&live, &symbol, sizeof live);
    return live == NULL ? 0 : live();
}

#endif
