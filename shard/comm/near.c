/* near.c - ranks that are devices: what they sum goes by a comm of all of them
 * (kernels/comm.h), in the order of each thread's ops. */
#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "shard/comm/group_internal.h"

/* Blocks of the device for a sum: it is alone on the way of a step, so its
 * speed counts, and all links have one each. */
enum { CTAS = 8 };

static const uint64_t ASK_NS = 1000000;

static const weft_comm_api *comms(const weft_comm_rank *r)
{
    return r->memory.api->comm();
}

static weft_status begin(weft_comm_rank *r, weft_err *err)
{
    weft_comm_group *const g = r->group;
    weft_comm_options options = {
        .n_ranks = g->n_ranks, .rank = r->rank, .ctas_max = CTAS};
    char name[96];
    weft_comm *comm = NULL;
    (void)snprintf(name, sizeof name, "%s rank %d", g->name, (int)r->rank);
    options.name = name;
    memcpy(options.id, g->id, sizeof options.id);
    WEFT_TRY(comms(r)->begin(r->memory.device, &options, &comm, err));
    pthread_mutex_lock(&g->lock);
    r->comm = comm;
    /* What was aborted before it was there. */
    if (g->why.status != WEFT_OK) comms(r)->abort(comm);
    pthread_mutex_unlock(&g->lock);
    return WEFT_OK;
}

static weft_status join(weft_comm_rank *r, uint64_t deadline_ns, weft_err *err)
{
    weft_comm_group *const g = r->group;
    WEFT_TRY(weft_comm_group_reason(g, err));
    WEFT_TRY(begin(r, err));
    for (;;) {
        const weft_comm_state state = comms(r)->state(r->comm, err);
        if (state == WEFT_COMM_READY) return WEFT_OK;
        if (state == WEFT_COMM_BROKEN) return WEFT_UNAVAILABLE;
        const uint64_t now = weft_clock_now_ns();
        if (now >= deadline_ns)
            return WEFT_FAIL(err, WEFT_DEADLINE_EXCEEDED,
                             "not all of %d ranks have joined",
                             (int)g->n_ranks);
        pthread_mutex_lock(&g->lock);
        if (g->why.status == WEFT_OK) weft_comm_group_wait(g, now + ASK_NS);
        pthread_mutex_unlock(&g->lock);
    }
}

static weft_status gather(weft_comm_rank *r, const void *from, void *to,
                          int64_t bytes, weft_err *err)
{
    comms(r)->after_ops(r->comm);
    WEFT_TRY(comms(r)->gather(r->comm, from, to, bytes, err));
    comms(r)->before_ops(r->comm);
    return WEFT_OK;
}

static weft_status exchange(weft_comm_rank *r, const void *from, void *to,
                            int64_t bytes, weft_err *err)
{
    comms(r)->after_ops(r->comm);
    WEFT_TRY(comms(r)->exchange(r->comm, from, to, bytes, err));
    comms(r)->before_ops(r->comm);
    return WEFT_OK;
}

static weft_status check(weft_comm_rank *r, weft_err *err)
{
    return comms(r)->state(r->comm, err) == WEFT_COMM_BROKEN ? WEFT_UNAVAILABLE
                                                             : WEFT_OK;
}

static void copy(weft_comm_rank *r, void *to, const void *from, int64_t bytes)
{
    r->memory.api->copy(to, from, bytes);
}

static void end(weft_comm_rank *r)
{
    if (r->comm != NULL) comms(r)->destroy(r->comm);
    r->comm = NULL;
}

const weft_comm_way weft_comm_near = {
    .join = join,
    .gather = gather,
    .exchange = exchange,
    .check = check,
    .copy = copy,
    .end = end,
};
