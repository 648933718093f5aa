/* thread_lead.h - a lead on a thread of its own, for tests of the router's
 * threads: it takes jobs, tells one token for each in turn, preempts now and
 * then, and confirms cancels. Tokens are a function of seed and position. */
#ifndef WEFT_TESTS_SUPPORT_THREAD_LEAD_H
#define WEFT_TESTS_SUPPORT_THREAD_LEAD_H

#include <pthread.h>
#include <stdatomic.h>

#include "node/base/ring.h"
#include "router/router.h"

enum { THREAD_LEAD_HELD_MAX = 64 };

typedef struct thread_lead_job {
    const weft_job *job; /* NULL: free */
    int32_t at;          /* the next position */
    bool cancelled;
} thread_lead_job;

typedef struct thread_lead {
    weft_ring *submits, *cancels; /* const weft_job *, uint64_t */
    weft_router *router;
    pthread_t thread;
    atomic_bool stopping, paused;
    thread_lead_job held[THREAD_LEAD_HELD_MAX];
    uint64_t n_rounds;
    atomic_int n_preempted, n_cancels, n_refused;
} thread_lead;

/* The one lead of a test program; the test sets it up and starts the thread
 * with thread_lead_run. */
extern thread_lead lead;

weft_status thread_lead_submit(void *arg, const weft_job *job);
weft_status thread_lead_cancel(void *arg, uint64_t handle);
void *thread_lead_run(void *arg);

/* The token of a position. */
int32_t thread_lead_token(const weft_job *job, int32_t position);

#endif
