#include "shard/model/ranks.h"

#include <pthread.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/mem.h"
#include "shard/model/partition.h"

_Static_assert((int)WEFT_RANKS_MAX == (int)WEFT_COMM_GROUP_RANKS_MAX,
               "a model is cut for as many ranks as can sum");

/* A rank beside rank 0, and its thread. */
typedef struct follower {
    weft_ranks *ranks;
    weft_comm_rank *rank;
    weft_memory memory;
    const weft_weights *weights;
    weft_threads *threads;
    weft_kv_store *store;
    weft_forward *forward, *second; /* second NULL: no pairs */
    pthread_t thread;
    bool started;
} follower;

struct weft_ranks {
    weft_ranks_options options; /* until create returns */
    int32_t n_others;
    bool pairs;
    weft_comm_group *group;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under the lock. */
    uint64_t turn; /* steps begun so far */
    int32_t n_busy;
    bool ends, in_pairs;
    weft_batch a, b; /* of the turn */
    follower others[WEFT_COMM_GROUP_RANKS_MAX - 1];
};

/* Nobody asks another rank for logits. */
static weft_forward_options follower_options(const weft_forward_options *lead)
{
    weft_forward_options o = *lead;
    o.follows = true;
    o.max_logits_rows = 1;
    return o;
}

static weft_comm_group_options group_options(const weft_ranks_options *o)
{
    return (weft_comm_group_options){.n_ranks = o->n_ranks,
                                     .ops = o->forward->ops,
                                     .rows_max = o->forward->max_rows,
                                     .width_max = o->config->hidden_size,
                                     .name = o->name};
}

int64_t weft_ranks_bytes(const weft_ranks_options *options,
                         int64_t *device_bytes_out)
{
    const bool host = options->forward->memory == NULL;
    const weft_comm_group_options group = group_options(options);
    const int64_t sums = weft_comm_group_bytes(&group);
    const weft_forward_options first = follower_options(options->forward);
    int64_t one = weft_forward_bytes(options->config, &first, NULL);
    if (options->second != NULL) {
        const weft_forward_options second = follower_options(options->second);
        one += weft_forward_bytes(options->config, &second, NULL);
    }
    if (device_bytes_out != NULL) *device_bytes_out = host ? 0 : sums;
    return (options->n_ranks - 1) * one + (host ? options->n_ranks * sums : 0) +
           (int64_t)sizeof(weft_ranks);
}

/* -- another rank's thread ------------------------------------------------- */

static weft_status make_forward(follower *f, const weft_forward_options *lead,
                                weft_forward **out, weft_err *err)
{
    weft_forward_options o = follower_options(lead);
    o.memory = lead->memory == NULL ? NULL : &f->memory;
    o.threads = f->threads;
    o.rank = f->rank;
    return weft_forward_create(f->ranks->options.config, f->weights, f->store,
                               &o, out, err);
}

static weft_status make_parts(follower *f, weft_err *err)
{
    const weft_ranks_options *const o = &f->ranks->options;
    WEFT_TRY(weft_memory_bind(&f->memory, err));
    WEFT_TRY(weft_threads_create(o->forward->n_threads, &f->threads, err));
    WEFT_TRY(weft_kv_store_create(o->layout, o->kv_bytes, &f->memory, &f->store,
                                  err));
    WEFT_TRY(make_forward(f, o->forward, &f->forward, err));
    if (o->second == NULL) return WEFT_OK;
    return make_forward(f, o->second, &f->second, err);
}

/* On the thread that made them. */
static void free_parts(follower *f)
{
    weft_forward_destroy(f->forward);
    weft_forward_destroy(f->second);
    weft_kv_store_destroy(f->store);
    weft_threads_destroy(f->threads);
    weft_memory_unbind(&f->memory);
}

/* Whether there is another step. */
static bool wait_for_turn(follower *f, uint64_t seen)
{
    weft_ranks *const r = f->ranks;
    pthread_mutex_lock(&r->lock);
    while (r->turn == seen && !r->ends)
        (void)pthread_cond_wait(&r->changed, &r->lock);
    const bool ends = r->turn == seen;
    pthread_mutex_unlock(&r->lock);
    return !ends;
}

static void end_turn(weft_ranks *r)
{
    pthread_mutex_lock(&r->lock);
    if (--r->n_busy == 0) pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

/* The batches are not written while anybody is busy. */
static weft_status compute(follower *f, weft_err *err)
{
    const weft_ranks *const r = f->ranks;
    return r->in_pairs ? weft_forward_step_pair(f->forward, &r->a, f->second,
                                                &r->b, err)
                       : weft_forward_step(f->forward, &r->a, err);
}

/* What fails here has ended the group, or is no fault of this rank: what
 * experts elsewhere have answered. One that has not joined computes nothing;
 * but rank 0 may have joined all the same, and waits for everybody. */
static void follow(follower *f, bool joined)
{
    weft_err err = {0};
    for (uint64_t seen = 0; wait_for_turn(f, seen); seen++) {
        const weft_status st = joined ? compute(f, &err) : WEFT_OK;
        (void)st;
        end_turn(f->ranks);
    }
}

static void *run(void *arg)
{
    follower *const f = arg;
    weft_err err = {0};
    weft_status st = make_parts(f, &err);
    if (st != WEFT_OK)
        (void)weft_comm_rank_fail(f->rank, &err, NULL);
    else
        st = weft_comm_rank_join(f->rank, &err);
    follow(f, st == WEFT_OK);
    free_parts(f);
    return NULL;
}

/* -- rank 0 ---------------------------------------------------------------- */

static weft_status create_group(weft_ranks *r, weft_err *err)
{
    const weft_ranks_options *const o = &r->options;
    weft_memory memories[WEFT_COMM_GROUP_RANKS_MAX] = {0};
    weft_comm_group_options group = group_options(o);
    if (o->forward->memory != NULL) memories[0] = *o->forward->memory;
    for (int32_t i = 0; i < r->n_others; i++)
        if (o->others[i].memory != NULL) memories[i + 1] = *o->others[i].memory;
    group.memories = memories;
    WEFT_TRY(weft_comm_group_create(&group, &r->group, err));
    for (int32_t i = 0; i < r->n_others; i++)
        r->others[i] = (follower){
            .ranks = r,
            .rank = weft_comm_group_rank(r->group, i + 1),
            .memory = memories[i + 1],
            .weights = o->others[i].weights,
        };
    return WEFT_OK;
}

static weft_status start_others(weft_ranks *r, weft_err *err)
{
    for (int32_t i = 0; i < r->n_others; i++) {
        follower *const f = &r->others[i];
        const int failed = pthread_create(&f->thread, NULL, run, f);
        if (failed != 0)
            return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                             "thread of rank %d: %s", (int)i + 1,
                             strerror(failed));
        f->started = true;
    }
    return WEFT_OK;
}

weft_status weft_ranks_create(const weft_ranks_options *options,
                              weft_ranks **ranks_out, weft_err *err)
{
    WEFT_ASSERT(options->n_ranks >= 2 &&
                options->n_ranks <= WEFT_COMM_GROUP_RANKS_MAX);
    weft_ranks *const r = weft_mem_new(1, sizeof *r);
    if (r == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "ranks: out of memory");
    r->options = *options;
    r->n_others = options->n_ranks - 1;
    r->pairs = options->second != NULL;
    (void)pthread_mutex_init(&r->lock, NULL);
    (void)pthread_cond_init(&r->changed, NULL);
    weft_status st = create_group(r, err);
    if (st == WEFT_OK) st = start_others(r, err);
    if (st == WEFT_OK) st = weft_comm_rank_join(weft_ranks_own(r), err);
    if (st != WEFT_OK) {
        weft_ranks_destroy(r);
        return st;
    }
    *ranks_out = r;
    return WEFT_OK;
}

void weft_ranks_destroy(weft_ranks *ranks)
{
    weft_err ended = {0};
    if (ranks == NULL) return;
    pthread_mutex_lock(&ranks->lock);
    ranks->ends = true;
    pthread_cond_broadcast(&ranks->changed);
    pthread_mutex_unlock(&ranks->lock);
    if (ranks->group != NULL) {
        (void)WEFT_FAIL(&ended, WEFT_CANCELLED, "the stage ends");
        weft_comm_group_abort(ranks->group, &ended);
    }
    for (int32_t i = 0; i < ranks->n_others; i++)
        if (ranks->others[i].started)
            (void)pthread_join(ranks->others[i].thread, NULL);
    weft_comm_group_destroy(ranks->group);
    (void)pthread_cond_destroy(&ranks->changed);
    (void)pthread_mutex_destroy(&ranks->lock);
    weft_mem_free(ranks);
}

weft_comm_rank *weft_ranks_own(weft_ranks *ranks)
{
    return weft_comm_group_rank(ranks->group, 0);
}

void weft_ranks_begin(weft_ranks *ranks, const weft_batch *a,
                      const weft_batch *b)
{
    WEFT_ASSERT(b == NULL || ranks->pairs);
    pthread_mutex_lock(&ranks->lock);
    ranks->a = *a;
    ranks->in_pairs = b != NULL;
    if (b != NULL) ranks->b = *b;
    ranks->n_busy = ranks->n_others;
    ranks->turn++;
    pthread_cond_broadcast(&ranks->changed);
    pthread_mutex_unlock(&ranks->lock);
}

static void wait_for_others(weft_ranks *r)
{
    pthread_mutex_lock(&r->lock);
    while (r->n_busy > 0) (void)pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

/* What experts elsewhere have answered ends a step, not the stage. */
static bool is_given_up(weft_status st)
{
    return st == WEFT_UNAVAILABLE || st == WEFT_CANCELLED;
}

weft_status weft_ranks_end(weft_ranks *ranks, weft_status own, weft_err *err)
{
    weft_err why = {0};
    if (own != WEFT_OK && !is_given_up(own)) {
        (void)WEFT_FAIL(&why, own, "%s", err != NULL ? err->text : "rank 0");
        weft_comm_group_abort(ranks->group, &why);
    }
    wait_for_others(ranks);
    if (weft_comm_rank_check(weft_ranks_own(ranks), &why) == WEFT_OK)
        return own;
    /* For a step there is nothing to try again. */
    return WEFT_FAIL(err, WEFT_INTERNAL, "%s", why.text);
}
