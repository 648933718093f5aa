#include "node/base/clock.h"

#include <time.h>

uint64_t weft_clock_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail on Linux */
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}
