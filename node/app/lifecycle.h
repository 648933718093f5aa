/* lifecycle.h - what the signals of a serving process mean, by its phase.
 *
 *   STARTING   SIGTERM or SIGINT: nothing has been accepted, exit 0 at once,
 *              with a line in the log
 *   SERVING    SIGTERM or SIGINT: weft_lifecycle_wait_for_drain returns
 *   DRAINING   a further one: exit 1 at once, whatever is being done, with a
 *              line too
 *
 * A thread of its own takes them, so that the second one works while the main
 * thread waits for something. SIGPIPE is ignored: a client that has left is an
 * error of a write, not the end of the process.
 *
 * Threads: begin before any other thread is started (they inherit the blocked
 * signals), all by the main thread. One lifecycle a process.
 */
#ifndef WEFT_NODE_APP_LIFECYCLE_H
#define WEFT_NODE_APP_LIFECYCLE_H

#include <stdbool.h>
#include <stdint.h>

#include "node/base/err.h"

/* RESOURCE_EXHAUSTED: no thread. */
WEFT_MUST_CHECK weft_status weft_lifecycle_begin(weft_err *err);
/* After every other thread has ended; signals have their default meaning
 * again. Without begin: nothing. */
void weft_lifecycle_end(void);

/* STARTING to SERVING; before anybody can be told that the process serves. */
void weft_lifecycle_set_serving(void);

/* As if the first signal had come; before SERVING: once it serves. `why` is
 * borrowed for good. Any thread. */
void weft_lifecycle_drain(const char *why);

/* Returns when the first signal has come since, in DRAINING. */
void weft_lifecycle_wait_for_drain(void);

/* Whether `done` says true before deadline_ns (CLOCK_MONOTONIC); asked every
 * few milliseconds. */
bool weft_lifecycle_wait_until(bool (*done)(void *arg), void *arg,
                               uint64_t deadline_ns);

#endif
