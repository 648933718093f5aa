/* rng.h - counter-based random numbers: a function of (seed, counter) alone,
 * so that a stream's draws do not depend on who else drew.
 *
 * Philox 4x32-10. Source: Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011. Threads: any.
 */
#ifndef WEFT_NODE_BASE_RNG_H
#define WEFT_NODE_BASE_RNG_H

#include <stdint.h>

/* One block: four words from a counter and a key. The calls below use counter
 * {low, high, 0, 0} and key {low, high}. */
void weft_rng_philox(const uint32_t counter[4], const uint32_t key[2],
                     uint32_t out[4]);

/* 64 random bits: word 1 above word 0. */
uint64_t weft_rng_u64(uint64_t seed, uint64_t counter);

/* Uniform in [0, 1): 53 bits. */
double weft_rng_unit(uint64_t seed, uint64_t counter);

#endif
