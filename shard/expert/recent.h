/* recent.h - how much of recent time was spent in a state: what is scaled by
 * has to rise and fall with the load, which a share of all time does not.
 *
 * After dt in one state the old share counts TAU / (TAU + dt), which is
 * exp(-dt / TAU) for short dt: a state that began half a minute ago is most of
 * the value, and one of five minutes ago nothing.
 *
 * Threads: pure.
 */
#ifndef WEFT_SHARD_EXPERT_RECENT_H
#define WEFT_SHARD_EXPERT_RECENT_H

#include <stdbool.h>
#include <stdint.h>

#define WEFT_RECENT_NS UINT64_C(30000000000) /* TAU */

/* share in [0, 1], after dt_ns more of which all or nothing counts. */
static inline double weft_recent_share(double share, bool counts,
                                       uint64_t dt_ns)
{
    const double old =
        (double)WEFT_RECENT_NS / ((double)WEFT_RECENT_NS + (double)dt_ns);
    return share * old + (counts ? 1.0 - old : 0.0);
}

#endif
