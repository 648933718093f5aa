/* futex.h - sleep on a 32-bit word until another thread wakes it, the only
 * place that makes this system call.
 *
 * Threads: any. The word's value carries the meaning; a wake without a change
 * and a return without a wake are both possible, so callers loop.
 */
#ifndef WEFT_NODE_BASE_FUTEX_H
#define WEFT_NODE_BASE_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

/* Sleep while *word == value, at most to deadline_ns (CLOCK_MONOTONIC;
 * UINT64_MAX: no deadline). */
void weft_futex_wait(_Atomic uint32_t *word, uint32_t value,
                     uint64_t deadline_ns);

/* Wake up to n sleepers. */
void weft_futex_wake(_Atomic uint32_t *word, int n);

#endif
