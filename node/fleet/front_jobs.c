#include <string.h>

#include "node/base/mem.h"
#include "node/fleet/front_internal.h"

enum {
    /* What a job has in its arena beside its frame's arrays. */
    JOB_BYTES = 1024,
    EVENTS_A_TURN = 1024,
};

/* -- places for jobs ------------------------------------------------------- */

static void free_job(weft_front *front, int32_t at)
{
    weft_front_job *const job = &front->jobs[at];
    if (job->cancel_due) front->n_cancels_due--;
    front->memory_bytes -= job->bytes;
    weft_arena_destroy(job->arena);
    *job = (weft_front_job){.next = front->first_free};
    front->first_free = at;
    atomic_fetch_sub(&front->n_live, 1);
}

static int32_t find_job(const weft_front *front, int32_t router,
                        uint64_t handle)
{
    for (int32_t i = 0; i < front->options.jobs_max; i++) {
        const weft_front_job *const job = &front->jobs[i];
        if (job->arena != NULL && job->router == router &&
            job->handle == handle)
            return i;
    }
    return WEFT_NO_JOB;
}

/* By the handle that the engine knows. */
static int32_t find_own(const weft_front *front, uint64_t handle)
{
    const int32_t at = weft_handle_slot(handle);
    if (at >= front->options.jobs_max) return WEFT_NO_JOB;
    const weft_front_job *const job = &front->jobs[at];
    return job->arena != NULL && job->job->handle == handle ? at : WEFT_NO_JOB;
}

static void push_due(weft_front *front, int32_t at)
{
    front->jobs[at].next = WEFT_NO_JOB;
    if (front->first_due == WEFT_NO_JOB)
        front->first_due = at;
    else
        front->jobs[front->last_due].next = at;
    front->last_due = at;
}

static void remove_due(weft_front *front, int32_t at)
{
    int32_t before = WEFT_NO_JOB;
    for (int32_t i = front->first_due; i != at; i = front->jobs[i].next)
        before = i;
    if (before == WEFT_NO_JOB)
        front->first_due = front->jobs[at].next;
    else
        front->jobs[before].next = front->jobs[at].next;
    if (front->last_due == at) front->last_due = before;
}

/* -- in ------------------------------------------------------------------- */

/* Back to the router, which finds another place for it. A frame without room
 * for that is as good as a broken link: the router has the job still. */
static weft_status give_back(weft_front *front, int32_t router, uint64_t handle,
                             size_t bytes, weft_err *err)
{
    const weft_event event = {.handle = handle,
                              .kind = WEFT_EVENT_END,
                              .finish = WEFT_FINISH_PREEMPTED,
                              .status = WEFT_RESOURCE_EXHAUSTED};
    front->routers[router].refused = true;
    front->routers[router].refused_bytes = (int64_t)bytes;
    if (weft_front_put(front, router, &event)) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "there is no room for its job, nor to say so");
}

/* Routers count ages each for itself; here they go on from where the newest
 * stands when a router comes, so that none is always first. */
static uint64_t age_here(weft_front *front, weft_front_router *router,
                         uint64_t age)
{
    if (!router->ages_known) router->age_shift = front->age_max - age;
    router->ages_known = true;
    const uint64_t here = age + router->age_shift;
    /* As far back as an older job may lie, it is not the newest. */
    if ((int64_t)(here - front->age_max) > 0) front->age_max = here;
    return here;
}

static void hold(weft_front *front, int32_t router, weft_arena *arena,
                 weft_job *job)
{
    const int32_t at = front->first_free;
    weft_front_job *const place = &front->jobs[at];
    front->first_free = place->next;
    *place = (weft_front_job){
        .arena = arena,
        .job = job,
        .router = router,
        .handle = job->handle,
        .bytes = (int64_t)weft_arena_used(arena),
    };
    front->memory_bytes += place->bytes;
    job->handle = weft_handle_make(++front->serial, at);
    job->age = age_here(front, &front->routers[router], job->age);
    atomic_fetch_add(&front->n_live, 1);
    push_due(front, at);
}

weft_status weft_front_take_job(weft_front *front, int32_t router,
                                const weft_frame *frame, uint64_t now_ns,
                                weft_err *err)
{
    const weft_front_options *const o = &front->options;
    weft_unpack unpack = weft_unpack_from(frame->body, frame->body_bytes);
    const uint64_t handle = weft_unpack_u64(&unpack);
    const size_t bytes = frame->body_bytes + JOB_BYTES;
    weft_arena *arena = NULL;
    weft_job *job = NULL;
    if (front->first_free == WEFT_NO_JOB ||
        front->memory_bytes > o->memory_bytes_max - (int64_t)bytes ||
        weft_arena_create(bytes, &arena, err) != WEFT_OK)
        return give_back(front, router, handle, bytes, err);
    weft_status st = weft_job_decode(frame->body, frame->body_bytes,
                                     o->vocab_size, now_ns, arena, &job, err);
    if (st == WEFT_OK && find_job(front, router, job->handle) != WEFT_NO_JOB)
        st = WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                       "a SUBMIT has the handle of a job that is here");
    if (st == WEFT_OK) {
        hold(front, router, arena, job);
        return WEFT_OK;
    }
    weft_arena_destroy(arena);
    return st == WEFT_RESOURCE_EXHAUSTED
               ? give_back(front, router, handle, bytes, err)
               : st;
}

/* Its last event will come; nobody may want it by then. */
static void cancel_at(weft_front *front, int32_t at)
{
    weft_front_job *const job = &front->jobs[at];
    if (!job->submitted) {
        remove_due(front, at);
        free_job(front, at);
    } else if (!job->cancel_due) {
        job->cancel_due = true;
        front->n_cancels_due++;
    }
}

void weft_front_cancel(weft_front *front, int32_t router, uint64_t handle)
{
    const int32_t at = find_job(front, router, handle);
    if (at == WEFT_NO_JOB) return;
    front->jobs[at].router = WEFT_NO_ROUTER;
    cancel_at(front, at);
}

void weft_front_orphan(weft_front *front, int32_t router)
{
    for (int32_t i = 0; i < front->options.jobs_max; i++) {
        weft_front_job *const job = &front->jobs[i];
        if (job->arena == NULL || job->router != router) continue;
        job->router = WEFT_NO_ROUTER;
        cancel_at(front, i);
    }
}

static void send_cancels(weft_front *front)
{
    for (int32_t i = 0; i < front->options.jobs_max && front->n_cancels_due > 0;
         i++) {
        weft_front_job *const job = &front->jobs[i];
        if (!job->cancel_due) continue;
        if (weft_engine_cancel(front->engine, job->job->handle) != WEFT_OK)
            return;
        job->cancel_due = false;
        front->n_cancels_due--;
    }
}

bool weft_front_hand_over(weft_front *front)
{
    /* Cancels first: they make room. */
    send_cancels(front);
    while (front->first_due != WEFT_NO_JOB) {
        const int32_t at = front->first_due;
        weft_front_job *const job = &front->jobs[at];
        /* Before the call: its events may be on their way at once. */
        job->submitted = true;
        if (weft_engine_submit(front->engine, job->job) != WEFT_OK) {
            job->submitted = false;
            return true;
        }
        front->first_due = job->next;
        if (front->first_due == WEFT_NO_JOB) front->last_due = WEFT_NO_JOB;
    }
    return front->n_cancels_due > 0;
}

/* -- out ------------------------------------------------------------------ */

/* false: its router has no room. */
static bool pass_event(weft_front *front, const weft_event *event)
{
    const int32_t at = find_own(front, event->handle);
    if (at != WEFT_NO_JOB && front->jobs[at].router != WEFT_NO_ROUTER) {
        weft_event told = *event;
        told.handle = front->jobs[at].handle;
        if (!weft_front_put(front, front->jobs[at].router, &told)) return false;
    }
    weft_mem_free(event->top);
    if (at != WEFT_NO_JOB && event->finish != WEFT_FINISH_NONE)
        free_job(front, at);
    return true;
}

void weft_front_take_events(weft_front *front)
{
    for (int32_t i = 0; i < EVENTS_A_TURN; i++) {
        if (!front->has_held && !weft_ring_pop(front->events, &front->held))
            return;
        front->has_held = !pass_event(front, &front->held);
        if (front->has_held) return;
    }
}
