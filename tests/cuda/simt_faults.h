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

static inline int64_t number_from(const char *name)
{
    int64_t (*number)(void) = NULL;
    void *const symbol = device_kit_symbol(name);
    memcpy(&number, &symbol, sizeof number);
    return number == NULL ? 0 : number();
}

/* Device blocks, streams, graphs and the rest that the library has not given
 * back, and what it took of the host. */
static inline int64_t live_things(void)
{
    return number_from("weft_simt_live") + number_from("weft_mem_live");
}

#endif
