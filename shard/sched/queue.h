/* queue.h - the jobs that wait, in the order in which they are served.
 *
 * A binary heap over borrowed jobs: priority (higher first), then age (older
 * first), then handle, so that the order is total.
 *
 * Threads: the engine's thread. Nothing allocates after create.
 */
#ifndef WEFT_SHARD_SCHED_QUEUE_H
#define WEFT_SHARD_SCHED_QUEUE_H

#include "node/base/gen.h"

typedef struct weft_queue {
    const weft_job **jobs; /* [capacity], heap order */
    int32_t n, capacity;
} weft_queue;

/* Whether a is served before b. */
bool weft_queue_before(const weft_job *a, const weft_job *b);

/* RESOURCE_EXHAUSTED: no memory. End with weft_queue_deinit. */
WEFT_MUST_CHECK weft_status weft_queue_init(weft_queue *queue, int32_t capacity,
                                            weft_err *err);
void weft_queue_deinit(weft_queue *queue);

void weft_queue_push(weft_queue *queue, const weft_job *job); /* has room */
const weft_job *weft_queue_first(const weft_queue *queue);    /* NULL: empty */
void weft_queue_pop(weft_queue *queue);                       /* not empty */

/* False: no such job. Looks at every entry. */
bool weft_queue_remove(weft_queue *queue, uint64_t handle);

/* Remove every job whose deadline is at or before now_ns and hand it to `each`.
 * Looks at every entry; their order of leaving is the heap's. */
void weft_queue_expire(weft_queue *queue, uint64_t now_ns,
                       void (*each)(void *arg, const weft_job *job), void *arg);

#endif
