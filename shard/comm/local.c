/* local.c - ranks that share the host's memory: each shows the others where its
 * rows are, and they take what they need. */
#include <string.h>

#include "node/base/clock.h"
#include "shard/comm/group_internal.h"

/* The lock is held: whether this was the last to come. */
static bool arrive(weft_comm_group *g)
{
    if (++g->n_here < g->n_ranks) return false;
    g->n_here = 0;
    g->round++;
    pthread_cond_broadcast(&g->changed);
    return true;
}

/* Until all ranks are here; 0: no deadline. What fails is the group's reason,
 * and then no rank gets on: who comes later is not counted. */
static weft_status meet(weft_comm_rank *r, uint64_t deadline_ns, weft_err *err)
{
    weft_comm_group *const g = r->group;
    bool late = false;
    pthread_mutex_lock(&g->lock);
    const uint64_t round = g->round;
    if (g->why.status == WEFT_OK) (void)arrive(g);
    while (g->round == round && g->why.status == WEFT_OK && !late) {
        if (deadline_ns == 0) {
            (void)pthread_cond_wait(&g->changed, &g->lock);
        } else {
            weft_comm_group_wait(g, deadline_ns);
            late = weft_clock_now_ns() >= deadline_ns;
        }
    }
    const bool met = g->round != round;
    const weft_err why = g->why;
    const int32_t n_here = g->n_here;
    pthread_mutex_unlock(&g->lock);
    if (met) return WEFT_OK;
    if (why.status == WEFT_OK)
        return WEFT_FAIL(err, WEFT_DEADLINE_EXCEEDED,
                         "%d of %d ranks have joined", (int)n_here,
                         (int)g->n_ranks);
    *err = why;
    return why.status;
}

/* After a meeting that all came to, so all come here: whatever has failed
 * since, what a rank has shown stays until the others have read it. */
static void part(weft_comm_rank *r)
{
    weft_comm_group *const g = r->group;
    pthread_mutex_lock(&g->lock);
    const uint64_t round = g->round;
    if (!arrive(g))
        while (g->round == round)
            (void)pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static weft_status join(weft_comm_rank *r, uint64_t deadline_ns, weft_err *err)
{
    return meet(r, deadline_ns, err);
}

/* Of what each shows, `bytes` from `step` times the own rank on. */
static weft_status take(weft_comm_rank *r, const void *from, void *to,
                        int64_t bytes, int64_t step, weft_err *err)
{
    weft_comm_group *const g = r->group;
    unsigned char *const all = to;
    r->from = from;
    WEFT_TRY(meet(r, 0, err));
    for (int32_t i = 0; i < g->n_ranks; i++) {
        const unsigned char *const theirs = g->ranks[i].from;
        memcpy(all + i * bytes, theirs + r->rank * step, (size_t)bytes);
    }
    part(r);
    return WEFT_OK;
}

static weft_status gather(weft_comm_rank *r, const void *from, void *to,
                          int64_t bytes, weft_err *err)
{
    return take(r, from, to, bytes, 0, err);
}

static weft_status exchange(weft_comm_rank *r, const void *from, void *to,
                            int64_t bytes, weft_err *err)
{
    return take(r, from, to, bytes, bytes, err);
}

static weft_status check(weft_comm_rank *r, weft_err *err)
{
    (void)r;
    (void)err;
    return WEFT_OK;
}

static void copy(weft_comm_rank *r, void *to, const void *from, int64_t bytes)
{
    (void)r;
    memcpy(to, from, (size_t)bytes);
}

static void end(weft_comm_rank *r)
{
    (void)r;
}

const weft_comm_way weft_comm_local = {
    .join = join,
    .gather = gather,
    .exchange = exchange,
    .check = check,
    .copy = copy,
    .end = end,
};
