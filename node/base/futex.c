#include "node/base/futex.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000U

void weft_futex_wait(_Atomic uint32_t *word, uint32_t value,
                     uint64_t deadline_ns)
{
    const struct timespec until = {.tv_sec = (time_t)(deadline_ns / NS_PER_S),
                                   .tv_nsec = (long)(deadline_ns % NS_PER_S)};
    /* The BITSET form takes an absolute time on CLOCK_MONOTONIC. */
    (void)syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG,
                  value, deadline_ns == UINT64_MAX ? NULL : &until, NULL,
                  FUTEX_BITSET_MATCH_ANY);
}

void weft_futex_wake(_Atomic uint32_t *word, int n)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}
