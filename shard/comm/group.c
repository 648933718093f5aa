#include "shard/comm/group.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/mem.h"
#include "shard/comm/group_internal.h"

static const uint64_t JOIN_NS = 30000000000U;

/* Below this what everybody hears takes as long as what a share of it takes. */
enum { SMALL_BYTES = 64 * 1024 };

/* Failure. ----------------------------------------------------------------- */

weft_status weft_comm_group_reason(weft_comm_group *group, weft_err *err)
{
    pthread_mutex_lock(&group->lock);
    const weft_status st = group->why.status;
    if (st != WEFT_OK && err != NULL) *err = group->why;
    pthread_mutex_unlock(&group->lock);
    return st;
}

void weft_comm_group_abort(weft_comm_group *group, const weft_err *why)
{
    WEFT_ASSERT(why->status != WEFT_OK);
    pthread_mutex_lock(&group->lock);
    if (group->why.status == WEFT_OK) group->why = *why;
    for (int32_t i = 0; i < group->n_ranks; i++) {
        weft_comm_rank *const r = &group->ranks[i];
        if (r->comm != NULL) r->memory.api->comm()->abort(r->comm);
    }
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
}

void weft_comm_group_wait(weft_comm_group *group, uint64_t deadline_ns)
{
    const struct timespec until = {
        .tv_sec = (time_t)(deadline_ns / 1000000000U),
        .tv_nsec = (long)(deadline_ns % 1000000000U)};
    (void)pthread_cond_timedwait(&group->changed, &group->lock, &until);
}

weft_status weft_comm_rank_fail(weft_comm_rank *rank, weft_err *own,
                                weft_err *err)
{
    (void)WEFT_WRAP(own, own->status, "group %s: rank %d", rank->group->name,
                    (int)rank->rank);
    weft_comm_group_abort(rank->group, own);
    return weft_comm_group_reason(rank->group, err);
}

/* Life. -------------------------------------------------------------------- */

static weft_status check_options(const weft_comm_group_options *o,
                                 weft_err *err)
{
    if (o->n_ranks < 2 || o->n_ranks > WEFT_COMM_GROUP_RANKS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "n_ranks %d: 2 to %d",
                         (int)o->n_ranks, (int)WEFT_COMM_GROUP_RANKS_MAX);
    if (o->rows_max < 1 || o->width_max < 1)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "sums of %d rows of %d: at least 1 of 1",
                         (int)o->rows_max, (int)o->width_max);
    for (int32_t i = 0; i < o->n_ranks; i++)
        if (o->memories[i].api != o->memories[0].api)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "memories: those of rank 0 and %d are not of one "
                             "kind",
                             (int)i);
    if (weft_memory_is_host(&o->memories[0]) && o->ops == NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "ops: not given");
    return WEFT_OK;
}

/* Each rank's share of as many rows as there may be. */
static int32_t part_rows(const weft_comm_group *g, int32_t n_row)
{
    return (n_row + g->n_ranks - 1) / g->n_ranks;
}

/* How many rows go whole to everybody: two ranks gain nothing by shares. */
static int32_t gather_rows(const weft_comm_group *g, int32_t width)
{
    if (g->n_ranks == 2) return g->rows_max;
    const int32_t small = SMALL_BYTES / 4 / width;
    const int32_t few = 2 * g->n_ranks - 1;
    const int32_t n = small > few ? small : few;
    return n < g->rows_max ? n : g->rows_max;
}

static void set_shape(weft_comm_group *g, const weft_comm_group_options *o)
{
    g->n_ranks = o->n_ranks;
    g->rows_max = o->rows_max;
    g->width_max = o->width_max;
    g->gather_rows_max = gather_rows(g, o->width_max);
}

/* Of a rank: [n_ranks][part rows][width], where there are shares, and what is
 * heard of others. */
typedef struct sizes {
    int64_t parts_bytes, heard_bytes;
} sizes;

static sizes sizes_of(const weft_comm_group *g)
{
    const int64_t row_bytes = 4 * (int64_t)g->n_ranks * g->width_max;
    const int32_t part = part_rows(g, g->rows_max);
    const int32_t heard = part > g->gather_rows_max ? part : g->gather_rows_max;
    const bool shares = g->rows_max > g->gather_rows_max;
    return (sizes){shares ? part * row_bytes : 0, heard * row_bytes};
}

int64_t weft_comm_group_bytes(const weft_comm_group_options *options)
{
    weft_comm_group g = {0};
    set_shape(&g, options);
    const sizes n = sizes_of(&g);
    return n.parts_bytes + n.heard_bytes;
}

static weft_status take_memory(weft_comm_rank *r, weft_err *err)
{
    const sizes n = sizes_of(r->group);
    void *at = NULL;
    WEFT_TRY(weft_memory_alloc(&r->memory, n.heard_bytes, "sums of other ranks",
                               &at, err));
    r->heard = at;
    if (n.parts_bytes == 0) return WEFT_OK;
    WEFT_TRY(weft_memory_alloc(&r->memory, n.parts_bytes, "parts of sums", &at,
                               err));
    r->parts = at;
    return WEFT_OK;
}

static weft_status set_up(weft_comm_group *g, const weft_comm_group_options *o,
                          weft_err *err)
{
    const bool host = weft_memory_is_host(&o->memories[0]);
    g->way = host ? &weft_comm_local : &weft_comm_near;
    set_shape(g, o);
    g->join_ns = o->join_ns != 0 ? o->join_ns : JOIN_NS;
    (void)snprintf(g->name, sizeof g->name, "%.63s", o->name);
    if (!host) {
        const weft_comm_api *const comms = o->memories[0].api->comm();
        if (comms->version == 0)
            return WEFT_FAIL(err, WEFT_UNAVAILABLE, "%s", comms->why);
        WEFT_TRY(comms->make_id(g->id, err));
    }
    for (int32_t i = 0; i < g->n_ranks; i++) {
        weft_comm_rank *const r = &g->ranks[i];
        *r = (weft_comm_rank){
            .group = g,
            .rank = i,
            .memory = o->memories[i],
            .ops = host ? o->ops : o->memories[i].api->ops,
        };
        WEFT_TRY(take_memory(r, err));
    }
    return WEFT_OK;
}

weft_status weft_comm_group_create(const weft_comm_group_options *options,
                                   weft_comm_group **group_out, weft_err *err)
{
    WEFT_TRY(check_options(options, err));
    weft_comm_group *const g = weft_mem_new(1, sizeof *g);
    if (g == NULL) return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory");
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&g->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)pthread_mutex_init(&g->lock, NULL);
    const weft_status st = set_up(g, options, err);
    if (st != WEFT_OK) {
        weft_comm_group_destroy(g);
        return st;
    }
    *group_out = g;
    return WEFT_OK;
}

void weft_comm_group_destroy(weft_comm_group *group)
{
    if (group == NULL) return;
    weft_err ended = {0};
    (void)WEFT_FAIL(&ended, WEFT_CANCELLED, "group %s has ended", group->name);
    weft_comm_group_abort(group, &ended);
    for (int32_t i = 0; i < group->n_ranks; i++) {
        weft_comm_rank *const r = &group->ranks[i];
        if (r->group == NULL) continue; /* not yet made */
        group->way->end(r);
        weft_memory_free(&r->memory, r->parts);
        weft_memory_free(&r->memory, r->heard);
    }
    pthread_cond_destroy(&group->changed);
    pthread_mutex_destroy(&group->lock);
    weft_mem_free(group);
}

weft_comm_rank *weft_comm_group_rank(weft_comm_group *group, int32_t rank)
{
    WEFT_ASSERT(rank >= 0 && rank < group->n_ranks);
    return &group->ranks[rank];
}

weft_status weft_comm_rank_join(weft_comm_rank *rank, weft_err *err)
{
    weft_err own = {0};
    const uint64_t deadline = weft_clock_now_ns() + rank->group->join_ns;
    if (rank->group->way->join(rank, deadline, &own) == WEFT_OK) return WEFT_OK;
    return weft_comm_rank_fail(rank, &own, err);
}

weft_status weft_comm_rank_check(weft_comm_rank *rank, weft_err *err)
{
    weft_err own = {0};
    WEFT_TRY(weft_comm_group_reason(rank->group, err));
    if (rank->group->way->check(rank, &own) == WEFT_OK) return WEFT_OK;
    return weft_comm_rank_fail(rank, &own, err);
}

/* Following. --------------------------------------------------------------- */

int32_t weft_comm_rank_index(const weft_comm_rank *rank)
{
    return rank->rank;
}

/* The lock is held. */
static void tell(weft_comm_group *g, weft_status own, const weft_err *err)
{
    g->n_told++;
    g->told = (weft_err){0};
    if (own != WEFT_OK && err != NULL) g->told = *err;
    g->told.status = own;
    pthread_cond_broadcast(&g->changed);
}

/* What was told at that turn, or the reason of the abort. */
static weft_err hear(weft_comm_group *g, uint64_t turn)
{
    pthread_mutex_lock(&g->lock);
    while (g->n_told < turn && g->why.status == WEFT_OK)
        (void)pthread_cond_wait(&g->changed, &g->lock);
    const bool is_last = g->n_told == turn && g->told.status != WEFT_OK;
    const weft_err heard = is_last ? g->told : g->why;
    pthread_mutex_unlock(&g->lock);
    return heard;
}

weft_status weft_comm_follow(weft_comm_rank *rank, weft_status own,
                             weft_err *err)
{
    weft_comm_group *const g = rank->group;
    if (rank->rank == 0) {
        pthread_mutex_lock(&g->lock);
        tell(g, own, err);
        pthread_mutex_unlock(&g->lock);
        return own != WEFT_OK ? own : weft_comm_group_reason(g, err);
    }
    const weft_err heard = hear(g, ++rank->n_followed);
    if (heard.status != WEFT_OK && err != NULL) *err = heard;
    return heard.status;
}

/* Sums. -------------------------------------------------------------------- */

/* The first of them becomes the sum of all, in their order. */
static void add_all(weft_comm_rank *r, weft_threads *threads, float *all,
                    int32_t n_row, int32_t width, weft_round round)
{
    const int32_t n = r->group->n_ranks;
    for (int32_t i = 1; i < n; i++) {
        const weft_add add = {
            .x = all,
            .y = all + (int64_t)i * n_row * width,
            .x_stride = width,
            .y_stride = width,
            .n_row = n_row,
            .width = width,
            .round = i == n - 1 ? round : WEFT_ROUND_NONE,
        };
        r->ops->add(threads, &add);
    }
}

struct sum {
    float *x;
    int64_t bytes; /* of x */
    int32_t n_row, width;
    weft_round round;
};

static weft_status sum_whole(weft_comm_rank *r, weft_threads *threads,
                             const struct sum *s, weft_err *err)
{
    const weft_comm_way *const way = r->group->way;
    WEFT_TRY(way->gather(r, s->x, r->heard, s->bytes, err));
    add_all(r, threads, r->heard, s->n_row, s->width, s->round);
    way->copy(r, s->x, r->heard, s->bytes);
    return WEFT_OK;
}

/* Rows beyond x, up to whole shares, are what was there; nobody reads them. */
static weft_status sum_shares(weft_comm_rank *r, weft_threads *threads,
                              const struct sum *s, weft_err *err)
{
    const weft_comm_way *const way = r->group->way;
    const int32_t part = part_rows(r->group, s->n_row);
    const int64_t part_bytes = 4 * (int64_t)part * s->width;
    way->copy(r, r->parts, s->x, s->bytes);
    WEFT_TRY(way->exchange(r, r->parts, r->heard, part_bytes, err));
    add_all(r, threads, r->heard, part, s->width, s->round);
    WEFT_TRY(way->gather(r, r->heard, r->parts, part_bytes, err));
    way->copy(r, s->x, r->parts, s->bytes);
    return WEFT_OK;
}

weft_status weft_comm_sum_rows(weft_comm_rank *rank, weft_threads *threads,
                               float *x, int32_t n_row, int32_t width,
                               weft_round round, weft_err *err)
{
    const weft_comm_group *const g = rank->group;
    WEFT_ASSERT(n_row >= 0 && n_row <= g->rows_max);
    WEFT_ASSERT(width >= 1 && width <= g->width_max);
    WEFT_TRY(weft_comm_group_reason(rank->group, err));
    if (n_row == 0) return WEFT_OK;
    const struct sum s = {x, 4 * (int64_t)n_row * width, n_row, width, round};
    weft_err own = {0};
    const weft_status st = n_row <= g->gather_rows_max
                               ? sum_whole(rank, threads, &s, &own)
                               : sum_shares(rank, threads, &s, &own);
    return st == WEFT_OK ? WEFT_OK : weft_comm_rank_fail(rank, &own, err);
}
