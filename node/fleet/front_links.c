#include <string.h>

#include "node/base/clock.h"
#include "node/base/failpoint.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/fleet/front_internal.h"

enum { FRAMES_A_TURN = 64 };

/* States are told so often though nothing has changed; changes are looked for
 * so often, sooner while there is something to do. */
static const uint64_t STATE_NS = 500000000, LOOK_NS = 100000000,
                      LOOK_BUSY_NS = 20000000;

/* -- events out ------------------------------------------------------------ */

static void clear_out(weft_front_router *router)
{
    router->events = weft_pack_into(router->out, WEFT_FRONT_OUT_BYTES);
    router->n_events = 0;
    weft_pack_u32(&router->events, 0); /* the count, filled in at the end */
}

/* false: the link has no room, or was broken off. */
static bool send_out(weft_front *front, int32_t at)
{
    weft_front_router *const router = &front->routers[at];
    if (router->n_events == 0) return true;
    WEFT_FAILPOINT("front.before_events");
    weft_pack count = weft_pack_into(router->out, 4);
    weft_pack_u32(&count, router->n_events);
    const weft_frame frame = {.type = WEFT_FRAME_EVENTS,
                              .group = front->options.own.group,
                              .body = router->out,
                              .body_bytes = router->events.n};
    weft_err err = {0};
    const weft_status st = weft_link_send(router->link, &frame, NULL, &err);
    if (st == WEFT_OK)
        clear_out(router);
    else if (st != WEFT_RESOURCE_EXHAUSTED)
        weft_front_break(front, at, err.text);
    return st == WEFT_OK;
}

bool weft_front_put(weft_front *front, int32_t at, const weft_event *event)
{
    weft_front_router *const router = &front->routers[at];
    if (router->events.n + WEFT_EVENT_BYTES_MAX > WEFT_FRONT_OUT_BYTES &&
        !send_out(front, at))
        return router->link == NULL; /* then nobody wants it */
    weft_event_encode(event, &router->events);
    router->n_events++;
    return true;
}

void weft_front_flush(weft_front *front)
{
    for (int32_t i = 0; i < front->options.routers_max; i++)
        if (front->routers[i].link != NULL) (void)send_out(front, i);
}

/* -- the state ------------------------------------------------------------- */

/* So long a group takes requests that wait until it is whole again. */
#define MENDS_NS UINT64_C(60000000000)

static void read_state(weft_front *front)
{
    weft_group_state *const state = &front->state;
    const weft_front_options *const o = &front->options;
    *state = o->own;
    weft_engine_get_load(front->engine, &state->load);
    state->whole = state->load.whole;
    state->epoch = state->load.epoch;
    state->draining = atomic_load(&front->draining);
    state->jobs_max = o->jobs_max;
    state->jobs_live = atomic_load(&front->n_live);
    if (o->describe != NULL) o->describe(o->describe_arg, state);
    const uint64_t now_ns = weft_clock_now_ns();
    if (state->whole) front->whole_ns = now_ns;
    state->been_whole =
        front->whole_ns > 0 && now_ns - front->whole_ns < MENDS_NS;
}

/* What a router should know at once. */
static bool has_changed(const weft_group_state *a, const weft_group_state *b)
{
    return a->whole != b->whole || a->draining != b->draining ||
           a->epoch != b->epoch ||
           a->load.sched.n_running != b->load.sched.n_running ||
           a->load.sched.n_waiting != b->load.sched.n_waiting ||
           a->load.kv_group.free_bytes != b->load.kv_group.free_bytes ||
           strcmp(a->reason, b->reason) != 0;
}

static void send_state(weft_front *front, int32_t at, uint64_t now_ns)
{
    weft_front_router *const router = &front->routers[at];
    unsigned char body[WEFT_STATE_BYTES_MAX];
    weft_pack pack = weft_pack_into(body, sizeof body);
    weft_state_encode(&front->state, &pack);
    const weft_frame frame = {.type = WEFT_FRAME_STATE,
                              .group = front->options.own.group,
                              .epoch = front->state.epoch,
                              .body = body,
                              .body_bytes = pack.n};
    weft_err err = {0};
    const weft_status st = weft_link_send(router->link, &frame, NULL, &err);
    if (st == WEFT_OK) {
        router->told_ns = now_ns;
        router->refused = false;
    } else if (st != WEFT_RESOURCE_EXHAUSTED) {
        weft_front_break(front, at, err.text);
    }
}

/* For what was refused: telling it sooner would bring the same job again. */
static bool has_room(const weft_front *front, const weft_front_router *router)
{
    return front->first_free != WEFT_NO_JOB &&
           front->memory_bytes <=
               front->options.memory_bytes_max - router->refused_bytes;
}

uint64_t weft_front_tell_state(weft_front *front, uint64_t now_ns)
{
    const bool busy = atomic_load(&front->n_live) > 0 ||
                      front->told.load.sched.n_running > 0 ||
                      !front->told.whole;
    const uint64_t look_ns = busy ? LOOK_BUSY_NS : LOOK_NS;
    bool changed = false;
    if (now_ns - front->read_ns >= look_ns ||
        atomic_load(&front->draining) != front->told.draining) {
        read_state(front);
        front->read_ns = now_ns;
        changed = has_changed(&front->state, &front->told);
        if (changed) front->told = front->state;
    }
    for (int32_t i = 0; i < front->options.routers_max; i++) {
        const weft_front_router *const router = &front->routers[i];
        if (router->link == NULL) continue;
        if (changed || now_ns - router->told_ns >= STATE_NS ||
            (router->refused && has_room(front, router)))
            send_state(front, i, now_ns);
    }
    return front->read_ns + look_ns;
}

/* -- connected and not ------------------------------------------------------
 */

void weft_front_connect(weft_front *front, weft_link *link, uint64_t now_ns)
{
    int32_t at = 0;
    while (at < front->options.routers_max && front->routers[at].link != NULL)
        at++;
    weft_err err = {0};
    /* add_link counts, so there is one. */
    weft_front_router *const router = &front->routers[at];
    weft_status st = weft_poller_add(front->poller, link, &err);
    if (st == WEFT_OK && front->options.pulse != NULL) {
        st = weft_pulse_add(front->options.pulse, link, &err);
        if (st != WEFT_OK) weft_poller_remove(front->poller, link);
    }
    if (st == WEFT_OK && router->out == NULL) {
        router->out = weft_mem_new(WEFT_FRONT_OUT_BYTES, 1);
        if (router->out == NULL) {
            st = WEFT_FAIL(&err, WEFT_RESOURCE_EXHAUSTED, "no memory");
            if (front->options.pulse != NULL)
                weft_pulse_remove(front->options.pulse, link);
            weft_poller_remove(front->poller, link);
        }
    }
    if (st != WEFT_OK) {
        weft_log(WEFT_LOG_WARN, "front", "not_connected",
                 "router %s reason \"%s\"", weft_link_name(link), err.text);
        weft_link_close(link);
        atomic_fetch_sub(&front->n_links, 1);
        return;
    }
    unsigned char *const out = router->out;
    *router =
        (weft_front_router){.link = link, .looked_at_ns = now_ns, .out = out};
    clear_out(router);
    read_state(front);
    front->read_ns = now_ns;
    uint64_t left_out;
    if (weft_log_pace_pass(&front->pace, now_ns, &left_out))
        weft_log(WEFT_LOG_INFO, "front", "connected", "router %s left_out %llu",
                 weft_link_name(link), (unsigned long long)left_out);
    send_state(front, at, now_ns);
}

void weft_front_break(weft_front *front, int32_t at, const char *why)
{
    weft_front_router *const router = &front->routers[at];
    if (router->link == NULL) return;
    uint64_t left_out;
    if (weft_log_pace_pass(&front->pace, weft_clock_now_ns(), &left_out))
        weft_log(WEFT_LOG_INFO, "front", "lost",
                 "router %s reason \"%s\" left_out %llu",
                 weft_link_name(router->link), why,
                 (unsigned long long)left_out);
    if (front->options.pulse != NULL)
        weft_pulse_remove(front->options.pulse, router->link);
    weft_poller_remove(front->poller, router->link);
    weft_link_close(router->link);
    router->link = NULL;
    clear_out(router);
    weft_front_orphan(front, at);
    atomic_fetch_sub(&front->n_links, 1);
}

/* -- frames in --------------------------------------------------------------
 */

static weft_status take_cancels(weft_front *front, int32_t at,
                                const weft_frame *frame, weft_err *err)
{
    weft_unpack unpack = weft_unpack_from(frame->body, frame->body_bytes);
    const int32_t n =
        weft_unpack_count(&unpack, WEFT_FRAME_BODY_BYTES_MAX, sizeof(uint64_t));
    for (int32_t i = 0; i < n; i++)
        weft_front_cancel(front, at, weft_unpack_u64(&unpack));
    if (weft_unpack_done(&unpack)) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "a CANCEL of %zu bytes is malformed", frame->body_bytes);
}

static weft_status take_frame(weft_front *front, int32_t at,
                              const weft_frame *frame, uint64_t now_ns,
                              weft_err *err)
{
    switch (frame->type) {
    case WEFT_FRAME_SUBMIT:
        return weft_front_take_job(front, at, frame, now_ns, err);
    case WEFT_FRAME_CANCEL: return take_cancels(front, at, frame, err);
    default:
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a router does not send %s frames",
                         weft_frame_type_name(frame->type));
    }
}

void weft_front_serve_router(weft_front *front, int32_t at, uint64_t now_ns)
{
    weft_front_router *const router = &front->routers[at];
    for (int32_t i = 0; i < FRAMES_A_TURN && router->link != NULL; i++) {
        weft_frame frame;
        bool got = false;
        weft_err err = {0};
        weft_status st = weft_link_recv(router->link, &frame, &got, &err);
        if (st == WEFT_OK && got)
            st = take_frame(front, at, &frame, now_ns, &err);
        if (st == WEFT_OK && !got) {
            const uint64_t since_ns =
                router->looked_at_ns > front->looking_since_ns
                    ? router->looked_at_ns
                    : front->looking_since_ns;
            st = weft_link_judge(router->link, now_ns, since_ns, &err);
        }
        if (st != WEFT_OK) weft_front_break(front, at, err.text);
        if (!got) return;
    }
}
