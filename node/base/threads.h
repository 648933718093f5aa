/* threads.h - a pool of worker threads for the ops of one engine.
 *
 * One caller hands out work; the workers and the caller itself take units in
 * rising order until none is left. Workers spin for about 20 microseconds after
 * a run (a step is hundreds of runs with little between them) and then sleep on
 * a futex. In a pool that takes all cores the process may use, each worker is
 * pinned to a core of its own, and one stays free for the caller.
 *
 * Not a task graph: a run has no dependencies inside, and which thread takes a
 * unit is not determined, so a unit must write only what no other unit touches.
 *
 * Threads: create, run and destroy are called by one thread, the owner.
 * Guarantees: when run returns, every unit is done and its writes are visible
 * to the caller. Nothing allocates after create.
 */
#ifndef WEFT_NODE_BASE_THREADS_H
#define WEFT_NODE_BASE_THREADS_H

#include <stdint.h>

#include "node/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_threads weft_threads;

/* Computes unit `unit`; `thread` in [0, count) names the scratch to use. */
typedef void (*weft_unit_fn)(void *arg, int32_t unit, int32_t thread);

/* n_threads counts the caller: 1 makes a pool without workers.
 * INVALID_ARGUMENT: n_threads < 1 or above 1024. RESOURCE_EXHAUSTED: a thread
 * or memory could not be had; nothing is left running. */
WEFT_MUST_CHECK weft_status weft_threads_create(int32_t n_threads,
                                                weft_threads **threads_out,
                                                weft_err *err);
void weft_threads_destroy(weft_threads *threads); /* NULL is fine; joins */
int32_t weft_threads_count(const weft_threads *threads);

/* fn(arg, u, t) for every u in [0, n_units). n_units <= 0 does nothing. */
void weft_threads_run(weft_threads *threads, int32_t n_units, weft_unit_fn fn,
                      void *arg);

#ifdef __cplusplus
}
#endif

#endif
