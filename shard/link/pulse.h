/* pulse.h - one thread that tells all peers of this process that it is alive.
 *
 * Every interval it sends a PULSE with the process's step counter on each link
 * that it was given. It also holds the watch over the process itself: where
 * the owner of a counter says that it is busy and the counter stands still for
 * `hang_ns`, the pulses stop, so that the peers take this process as dead, and
 * `hung` is called once.
 *
 * Threads: any may call; a link is removed before it is closed.
 */
#ifndef WEFT_SHARD_LINK_PULSE_H
#define WEFT_SHARD_LINK_PULSE_H

#include "shard/link/link.h"

#define WEFT_PULSE_NS   UINT64_C(250000000)
#define WEFT_SILENCE_NS (3 * WEFT_PULSE_NS) /* three missed */

typedef struct weft_pulse weft_pulse;

WEFT_MUST_CHECK weft_status weft_pulse_start(uint64_t interval_ns,
                                             weft_pulse **pulse_out,
                                             weft_err *err);
void weft_pulse_stop(weft_pulse *pulse); /* joins; NULL is fine */
WEFT_MUST_CHECK weft_status weft_pulse_add(weft_pulse *pulse, weft_link *link,
                                           weft_err *err);
void weft_pulse_remove(weft_pulse *pulse, weft_link *link);
/* One more step done, or an idle turn. */
void weft_pulse_step(weft_pulse *pulse);
/* Whether whoever steps has work; one that has none cannot hang. */
void weft_pulse_set_busy(weft_pulse *pulse, bool busy);
/* From here on: busy and without a step for hang_ns is hung. `hung` is called
 * on the pulse thread, once until there is a step again. 0: not watched. */
void weft_pulse_watch(weft_pulse *pulse, uint64_t hang_ns,
                      void (*hung)(void *arg), void *arg);

#endif
