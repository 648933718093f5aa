#include "node/fleet/front.h"

#include <string.h>
#include <time.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/fleet/front_internal.h"

enum {
    ROUTERS_MAX = 16,
    EVENTS_MAX = 4096, /* a few steps of a large batch, prompt logprobs */
    MEMORY_BYTES_MAX = 256 << 20,
    /* Between two tries to hand over what the engine had no room for. */
    ENGINE_RETRY_NS = 1000 * 1000,
};

static const uint64_t NAP_NS = 100000000;

/* -- the engine's side ------------------------------------------------------
 */

static bool take(void *arg, const weft_event *event)
{
    weft_front *const front = arg;
    if (atomic_load(&front->stopped)) {
        weft_mem_free(event->top);
        return true;
    }
    if (!weft_ring_push(front->events, event)) return false;
    if (!atomic_exchange(&front->woken, true)) weft_poller_wake(front->poller);
    return true;
}

weft_event_sink weft_front_sink(weft_front *front)
{
    return (weft_event_sink){.take = take, .arg = front};
}

/* -- the thread -------------------------------------------------------------
 */

/* true: the engine has no room for what is due. */
static bool turn(weft_front *front, uint64_t *due_ns_out)
{
    const uint64_t now_ns = weft_clock_now_ns();
    weft_link *link = NULL;
    /* After a pause of the whole process nobody's silence is judged at once. */
    if (now_ns - front->turn_ns > 3 * NAP_NS) front->looking_since_ns = now_ns;
    front->turn_ns = now_ns;
    /* Before the look at the ring: what comes after it wakes again. */
    atomic_store(&front->woken, false);
    while (weft_ring_pop(front->links, &link))
        weft_front_connect(front, link, now_ns);
    for (int32_t i = 0; i < front->options.routers_max; i++)
        weft_front_serve_router(front, i, now_ns);
    const bool stuck = weft_front_hand_over(front);
    weft_front_take_events(front);
    weft_front_flush(front);
    *due_ns_out = weft_front_tell_state(front, now_ns);
    if (*due_ns_out > now_ns + NAP_NS) *due_ns_out = now_ns + NAP_NS;
    return stuck;
}

static void *run(void *arg)
{
    weft_front *const front = arg;
    while (!atomic_load(&front->stop)) {
        uint64_t due_ns = 0;
        const bool stuck = turn(front, &due_ns);
        if (stuck && due_ns > front->turn_ns + ENGINE_RETRY_NS)
            due_ns = front->turn_ns + ENGINE_RETRY_NS;
        weft_poller_wait(front->poller, due_ns, 0);
    }
    return NULL;
}

/* -- what other threads call ------------------------------------------------
 */

weft_status weft_front_add_link(weft_front *front, weft_link *link,
                                weft_err *err)
{
    if (atomic_fetch_add(&front->n_links, 1) < front->options.routers_max &&
        !atomic_load(&front->stopped) && weft_ring_push(front->links, &link)) {
        weft_poller_wake(front->poller);
        return WEFT_OK;
    }
    atomic_fetch_sub(&front->n_links, 1);
    weft_link_close(link);
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "a lead serves at most %d routers",
                     front->options.routers_max);
}

void weft_front_drain(weft_front *front)
{
    atomic_store(&front->draining, true);
    weft_poller_wake(front->poller);
}

int32_t weft_front_live(const weft_front *front)
{
    return atomic_load(&front->n_live);
}

/* -- life -------------------------------------------------------------------
 */

static weft_status create_parts(weft_front *front, weft_err *err)
{
    const size_t n_jobs = (size_t)front->options.jobs_max;
    const size_t n_routers = (size_t)front->options.routers_max;
    front->jobs = weft_mem_new(n_jobs, sizeof *front->jobs);
    front->routers = weft_mem_new(n_routers, sizeof *front->routers);
    if (front->jobs == NULL || front->routers == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %d jobs of %d routers",
                         front->options.jobs_max, front->options.routers_max);
    for (int32_t i = 0; i < front->options.jobs_max; i++)
        front->jobs[i].next =
            i + 1 < front->options.jobs_max ? i + 1 : WEFT_NO_JOB;
    front->first_due = WEFT_NO_JOB;
    front->last_due = WEFT_NO_JOB;
    WEFT_TRY(weft_poller_create(&front->poller, err));
    WEFT_TRY(
        weft_ring_create(sizeof(weft_event), EVENTS_MAX, &front->events, err));
    return weft_ring_create(sizeof(weft_link *), n_routers, &front->links, err);
}

weft_status weft_front_create(const weft_front_options *options,
                              weft_front **front_out, weft_err *err)
{
    if (options->jobs_max < 1 || options->jobs_max > WEFT_SLOTS_MAX ||
        options->vocab_size < 1)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a front of %d jobs and %d tokens: allowed are 1 to "
                         "%d and at least 1",
                         options->jobs_max, options->vocab_size,
                         WEFT_SLOTS_MAX);
    weft_front *const front = weft_mem_new(1, sizeof *front);
    if (front == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the front");
    front->options = *options;
    if (front->options.routers_max <= 0)
        front->options.routers_max = ROUTERS_MAX;
    if (front->options.memory_bytes_max <= 0)
        front->options.memory_bytes_max = MEMORY_BYTES_MAX;
    const weft_status st = create_parts(front, err);
    if (st != WEFT_OK) {
        weft_front_destroy(front);
        return st;
    }
    *front_out = front;
    return WEFT_OK;
}

weft_status weft_front_start(weft_front *front, weft_engine *engine,
                             weft_err *err)
{
    front->engine = engine;
    front->turn_ns = weft_clock_now_ns();
    const int code = pthread_create(&front->thread, NULL, run, front);
    if (code != 0)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "cannot start the front's thread: %s", strerror(code));
    front->started = true;
    return WEFT_OK;
}

void weft_front_stop(weft_front *front)
{
    if (front == NULL || !front->started) return;
    atomic_store(&front->stop, true);
    weft_poller_wake(front->poller);
    (void)pthread_join(front->thread, NULL);
    front->started = false;
    /* From here on the engine's events are dropped. */
    atomic_store(&front->stopped, true);
    for (int32_t i = 0; i < front->options.routers_max; i++)
        weft_front_break(front, i, "the shard stops");
}

static void drop_what_is_left(weft_front *front)
{
    weft_event event;
    weft_link *link = NULL;
    while (front->events != NULL && weft_ring_pop(front->events, &event))
        weft_mem_free(event.top);
    while (front->links != NULL && weft_ring_pop(front->links, &link))
        weft_link_close(link);
    if (front->has_held) weft_mem_free(front->held.top);
    for (int32_t i = 0; front->jobs != NULL && i < front->options.jobs_max; i++)
        weft_arena_destroy(front->jobs[i].arena);
    for (int32_t i = 0;
         front->routers != NULL && i < front->options.routers_max; i++)
        weft_mem_free(front->routers[i].out);
}

void weft_front_destroy(weft_front *front)
{
    if (front == NULL) return;
    weft_front_stop(front);
    drop_what_is_left(front);
    weft_ring_destroy(front->events);
    weft_ring_destroy(front->links);
    weft_poller_destroy(front->poller);
    weft_mem_free(front->jobs);
    weft_mem_free(front->routers);
    weft_mem_free(front);
}
