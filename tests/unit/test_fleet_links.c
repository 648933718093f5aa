/* What the other end of a link can do: a fleet with leads that lie, and a front
 * with routers that do. A link is broken off; nothing else happens. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/ring.h"
#include "node/fleet/codec.h"
#include "tests/support/expect.h"
#include "tests/support/fleet_kit.h"
#include "tests/support/suite.h"

static const uint64_t WAIT_NS = 60000000000U;

static const weft_link_options LINK = {.limits = {.body_bytes_max = 1 << 20},
                                       .name = "peer"};

/* -- a peer that the test plays ------------------------------------------ */

typedef struct peer {
    weft_link *link;
    weft_poller *poller;
} peer;

static peer play(weft_link *link)
{
    peer p = {.link = link};
    OK(weft_poller_create(&p.poller, &err));
    OK(weft_poller_add(p.poller, link, &err));
    return p;
}

static void stop(peer *p)
{
    weft_poller_remove(p->poller, p->link);
    weft_link_close(p->link);
    weft_poller_destroy(p->poller);
}

static void send(peer *p, weft_frame_type type, const void *body, size_t n)
{
    const weft_frame frame = {.type = type, .body = body, .body_bytes = n};
    OK(weft_link_send(p->link, &frame, NULL, &err));
}

/* The next frame of that type; others pass by. */
static weft_frame await(peer *p, weft_frame_type type)
{
    for (;;) {
        weft_frame frame;
        bool got = false;
        OK(weft_link_recv(p->link, &frame, &got, &err));
        if (got && frame.type == type) return frame;
        if (!got) weft_poller_wait(p->poller, weft_clock_now_ns() + WAIT_NS, 0);
    }
}

static void await_break(peer *p)
{
    const uint64_t until_ns = weft_clock_now_ns() + WAIT_NS;
    for (;;) {
        weft_frame frame;
        bool got = false;
        if (weft_link_recv(p->link, &frame, &got, NULL) != WEFT_OK) break;
        ck_assert_uint_lt(weft_clock_now_ns(), until_ns);
        if (!got) weft_poller_wait(p->poller, until_ns, 0);
    }
    stop(p);
}

/* -- a fleet with leads that the test plays ---------------------------------
 */

enum { JOBS = 8, VOCAB = 97 };

static weft_ring *events;

static bool take(void *arg, const weft_event *event)
{
    (void)arg;
    return weft_ring_push(events, event);
}

static weft_event next_event(void)
{
    weft_event event;
    weft_ring_wait(events, weft_clock_now_ns() + WAIT_NS);
    ck_assert(weft_ring_pop(events, &event));
    return event;
}

static weft_fleet *start_fleet(int32_t n_groups)
{
    const weft_fleet_options o = {
        .jobs_max = JOBS, .vocab_size = VOCAB, .take = take};
    weft_fleet *fleet = NULL;
    weft_fleet_lead leads[3] = {0};
    OK(weft_ring_create(sizeof(weft_event), 64, &events, &err));
    OK(weft_fleet_start(&o, &fleet, &err));
    for (int32_t i = 0; i < n_groups; i++) leads[i].group = (uint32_t)i;
    OK(weft_fleet_want(fleet, leads, n_groups, &err));
    return fleet;
}

static void stop_fleet(weft_fleet *fleet)
{
    weft_event event;
    weft_fleet_destroy(fleet);
    while (weft_ring_pop(events, &event)) weft_mem_free(event.top);
    weft_ring_destroy(events);
}

static peer join(weft_fleet *fleet, uint32_t group)
{
    weft_link *ours = NULL, *theirs = NULL;
    OK(weft_link_create_local(&LINK, &LINK, &ours, &theirs, &err));
    OK(weft_fleet_add_link(fleet, group, ours, &err));
    return play(theirs);
}

static void tell_state(peer *p, weft_group_state state)
{
    unsigned char body[WEFT_STATE_BYTES_MAX];
    weft_pack pack = weft_pack_into(body, sizeof body);
    if (state.max_seqs == 0) state.max_seqs = state.jobs_max = 4;
    weft_state_encode(&state, &pack);
    send(p, WEFT_FRAME_STATE, body, pack.n);
}

static void tell_whole(peer *p, uint32_t group)
{
    tell_state(p, (weft_group_state){
                      .group = group, .whole = true, .been_whole = true});
}

static void tell_events(peer *p, const weft_event *told, uint32_t n)
{
    unsigned char body[8192];
    weft_pack pack = weft_pack_into(body, sizeof body);
    weft_pack_u32(&pack, n);
    for (uint32_t i = 0; i < n; i++) weft_event_encode(&told[i], &pack);
    ck_assert(!pack.full);
    send(p, WEFT_FRAME_EVENTS, body, pack.n);
}

static const int32_t PROMPT[] = {1, 2, 3};

static weft_job a_job(int32_t slot)
{
    return (weft_job){
        .handle = weft_handle_make(7, slot),
        .age = 1,
        .deadline_ns = UINT64_MAX,
        .tokens = PROMPT,
        .n_prompt = 3,
        .n_tokens = 3,
        .max_tokens = 5,
        .sampling = {.top_p = 1.0F, .repetition_penalty = 1.0F},
        .logprobs = 1,
        .prompt_logprobs = -1,
    };
}

static void submit(weft_fleet *fleet, const weft_job *job)
{
    const weft_lead lead = weft_fleet_lead_ops(fleet);
    OK(lead.submit(lead.arg, job));
}

static weft_event a_token(const weft_job *job, int32_t position)
{
    return (weft_event){.handle = job->handle,
                        .kind = WEFT_EVENT_TOKEN,
                        .token = 9,
                        .position = position};
}

static void expect_end(const weft_job *job, weft_finish finish,
                       weft_status status)
{
    const weft_event event = next_event();
    ck_assert_uint_eq(event.handle, job->handle);
    ck_assert_int_eq(event.kind, WEFT_EVENT_END);
    ck_assert_int_eq(event.finish, finish);
    ck_assert_int_eq(event.status, status);
}

START_TEST(a_lead_that_lies_is_broken_off)
{
    weft_fleet *const fleet = start_fleet(1);
    static weft_logprob top[2] = {{0, 1}, {0, 2}};
    for (int32_t i = 0; i < 9; i++) {
        weft_job job = a_job(i % JOBS);
        job.handle = weft_handle_make((uint64_t)i + 1, i % JOBS);
        peer lead = join(fleet, 0);
        tell_whole(&lead, 0);
        submit(fleet, &job);
        (void)await(&lead, WEFT_FRAME_SUBMIT);
        weft_event event = a_token(&job, 3);
        if (i == 0) event.position = 4;  /* a gap */
        if (i == 1) event.token = VOCAB; /* no token */
        if (i == 2) event.n_top = 2, event.top = top;
        if (i == 3) event.kind = WEFT_EVENT_PROMPT, event.position = 1;
        if (i < 4) tell_events(&lead, &event, 1);
        if (i == 4) {
            const weft_event twice[] = {event, event};
            tell_events(&lead, twice, 2);
        }
        if (i == 5) send(&lead, WEFT_FRAME_EVENTS, "\2\0\0\0xyz", 7);
        if (i == 6) send(&lead, WEFT_FRAME_STATE, "", 0);
        if (i == 7) tell_whole(&lead, 1);
        if (i == 8) send(&lead, WEFT_FRAME_SUBMIT, "", 0);
        await_break(&lead);
        if (i == 4) ck_assert_int_eq(next_event().token, 9);
        expect_end(&job, WEFT_FINISH_PREEMPTED, WEFT_OK);
    }
    stop_fleet(fleet);
}
END_TEST

/* Events for what it never had, or has no more, change nothing. */
START_TEST(stray_events_are_dropped)
{
    weft_fleet *const fleet = start_fleet(1);
    const weft_job job = a_job(1), other = a_job(2);
    const weft_lead ops = weft_fleet_lead_ops(fleet);
    peer lead = join(fleet, 0);
    tell_whole(&lead, 0);
    submit(fleet, &job);
    submit(fleet, &other);
    (void)await(&lead, WEFT_FRAME_SUBMIT);
    (void)await(&lead, WEFT_FRAME_SUBMIT);
    OK(ops.cancel(ops.arg, other.handle));
    expect_end(&other, WEFT_FINISH_FAILED, WEFT_CANCELLED);
    const weft_frame cancel = await(&lead, WEFT_FRAME_CANCEL);
    weft_unpack unpack = weft_unpack_from(cancel.body, cancel.body_bytes);
    ck_assert_uint_eq(weft_unpack_u32(&unpack), 1);
    ck_assert_uint_eq(weft_unpack_u64(&unpack), other.handle);
    weft_job unknown = a_job(1);
    unknown.handle = weft_handle_make(99, 1);
    const weft_event told[] = {a_token(&other, 3), a_token(&unknown, 3),
                               a_token(&job, 3)};
    tell_events(&lead, told, 3);
    ck_assert_uint_eq(next_event().handle, job.handle);
    stop(&lead);
    expect_end(&job, WEFT_FINISH_PREEMPTED, WEFT_OK);
    /* A cancel of what has ended: nothing. */
    OK(ops.cancel(ops.arg, job.handle));
    stop_fleet(fleet);
}
END_TEST

START_TEST(a_job_that_breaks_groups_ends)
{
    weft_fleet *const fleet = start_fleet(2);
    const weft_job bad = a_job(0), good = a_job(1);
    for (int32_t i = 0; i < 2; i++) {
        peer lead = join(fleet, (uint32_t)i);
        tell_whole(&lead, (uint32_t)i);
        submit(fleet, &bad);
        (void)await(&lead, WEFT_FRAME_SUBMIT);
        stop(&lead);
        if (i == 0) expect_end(&bad, WEFT_FINISH_PREEMPTED, WEFT_OK);
    }
    expect_end(&bad, WEFT_FINISH_FAILED, WEFT_INTERNAL);
    /* The slot's next job has seen nothing. */
    weft_job fresh = a_job(0);
    fresh.handle = weft_handle_make(8, 0);
    peer lead = join(fleet, 0);
    tell_whole(&lead, 0);
    submit(fleet, &fresh);
    submit(fleet, &good);
    (void)await(&lead, WEFT_FRAME_SUBMIT);
    (void)await(&lead, WEFT_FRAME_SUBMIT);
    stop(&lead);
    expect_end(&fresh, WEFT_FINISH_PREEMPTED, WEFT_OK);
    expect_end(&good, WEFT_FINISH_PREEMPTED, WEFT_OK);
    stop_fleet(fleet);
}
END_TEST

/* After a break each of its jobs goes to a group alone, until it has a token;
 * fresh ones go past them. */
START_TEST(suspects_go_one_after_another)
{
    weft_fleet *const fleet = start_fleet(1);
    const weft_job a = a_job(0), b = a_job(1), fresh = a_job(2);
    peer lead = join(fleet, 0);
    tell_whole(&lead, 0);
    submit(fleet, &a);
    submit(fleet, &b);
    (void)await(&lead, WEFT_FRAME_SUBMIT);
    (void)await(&lead, WEFT_FRAME_SUBMIT);
    stop(&lead);
    expect_end(&a, WEFT_FINISH_PREEMPTED, WEFT_OK);
    expect_end(&b, WEFT_FINISH_PREEMPTED, WEFT_OK);
    submit(fleet, &a);
    submit(fleet, &b);
    submit(fleet, &fresh);
    lead = join(fleet, 0);
    tell_whole(&lead, 0);
    const uint64_t order[] = {a.handle, fresh.handle, b.handle};
    for (int32_t i = 0; i < 3; i++) {
        const weft_frame frame = await(&lead, WEFT_FRAME_SUBMIT);
        weft_unpack unpack = weft_unpack_from(frame.body, frame.body_bytes);
        ck_assert_uint_eq(weft_unpack_u64(&unpack), order[i]);
        const weft_event token = a_token(&a, 3);
        if (i == 1) tell_events(&lead, &token, 1);
    }
    ck_assert_uint_eq(next_event().handle, a.handle);
    stop(&lead);
    for (int32_t i = 0; i < 3; i++) (void)next_event();
    stop_fleet(fleet);
}
END_TEST

/* By priority, then age, as soon as there is a group that can. */
START_TEST(jobs_wait_in_order)
{
    weft_fleet *const fleet = start_fleet(1);
    weft_job jobs[4];
    static const struct {
        int32_t priority;
        uint64_t age;
        int32_t place;
    } order[] = {{0, 5, 3}, {0, 4, 2}, {1, 9, 1}, {2, 9, 0}};
    for (int32_t i = 0; i < 4; i++) {
        jobs[i] = a_job(i);
        jobs[i].priority = order[i].priority;
        jobs[i].age = order[i].age;
        submit(fleet, &jobs[i]);
    }
    peer lead = join(fleet, 0);
    tell_state(&lead, (weft_group_state){.whole = false}); /* not yet */
    tell_whole(&lead, 0);
    for (int32_t i = 0; i < 4; i++) {
        const weft_frame frame = await(&lead, WEFT_FRAME_SUBMIT);
        weft_unpack unpack = weft_unpack_from(frame.body, frame.body_bytes);
        const uint64_t handle = weft_unpack_u64(&unpack);
        ck_assert_int_eq(order[weft_handle_slot(handle)].place, i);
    }
    stop(&lead);
    for (int32_t i = 0; i < 4; i++) (void)next_event();
    stop_fleet(fleet);
}
END_TEST

static void await_not_serving(weft_fleet *fleet)
{
    const uint64_t until_ns = weft_clock_now_ns() + WAIT_NS;
    char reason[200];
    while (weft_fleet_is_serving(fleet, reason, sizeof reason)) {
        const struct timespec pause = {.tv_nsec = 1000000};
        ck_assert_uint_lt(weft_clock_now_ns(), until_ns);
        (void)nanosleep(&pause, NULL);
    }
}

START_TEST(who_is_wanted)
{
    weft_fleet *const fleet = start_fleet(1);
    char reason[200];
    const weft_fleet_lead two[2] = {{.group = 1}, {.group = 1}};
    weft_err why = {0};
    ck_assert_int_eq(weft_fleet_want(fleet, two, 2, &why),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(why.text, "group 1"));
    weft_link *a = NULL, *b = NULL;
    OK(weft_link_create_local(&LINK, &LINK, &a, &b, &err));
    ck_assert_int_eq(weft_fleet_add_link(fleet, 5, a, &why),
                     WEFT_FAILED_PRECONDITION);
    weft_link_close(b);
    peer lead = join(fleet, 0);
    tell_whole(&lead, 0);
    const weft_job job = a_job(0);
    submit(fleet, &job);
    (void)await(&lead, WEFT_FRAME_SUBMIT);
    /* Nobody names its group any more, but its link lives: it serves on. */
    OK(weft_fleet_want(fleet, NULL, 0, &err));
    const weft_job second = a_job(1);
    submit(fleet, &second);
    (void)await(&lead, WEFT_FRAME_SUBMIT);
    ck_assert(weft_fleet_is_serving(fleet, reason, sizeof reason));
    weft_event end = a_token(&second, 3);
    end.finish = WEFT_FINISH_STOP;
    tell_events(&lead, &end, 1);
    ck_assert_int_eq(next_event().finish, WEFT_FINISH_STOP);
    /* One that drains keeps its job, and goes when it has none. */
    const weft_fleet_lead draining = {.draining = true};
    OK(weft_fleet_want(fleet, &draining, 1, &err));
    /* Of two sets that are told at once only the later one is seen. */
    await_not_serving(fleet);
    OK(weft_fleet_want(fleet, NULL, 0, &err));
    weft_event token = a_token(&job, 3);
    token.finish = WEFT_FINISH_STOP;
    tell_events(&lead, &token, 1);
    ck_assert_int_eq(next_event().finish, WEFT_FINISH_STOP);
    await_break(&lead);
    ck_assert(!weft_fleet_is_serving(fleet, reason, sizeof reason));
    stop_fleet(fleet);
}
END_TEST

START_TEST(another_lead_takes_the_place)
{
    weft_fleet *const fleet = start_fleet(1);
    peer lead = join(fleet, 0);
    tell_whole(&lead, 0);
    const weft_job job = a_job(0);
    submit(fleet, &job);
    (void)await(&lead, WEFT_FRAME_SUBMIT);
    weft_fleet_lead next = {.peer = {.id = "other", .incarnation = 2}};
    OK(weft_fleet_want(fleet, &next, 1, &err));
    await_break(&lead);
    expect_end(&job, WEFT_FINISH_PREEMPTED, WEFT_OK);
    stop_fleet(fleet);
}
END_TEST

/* -- a front with routers that the test plays -------------------------------
 */

static peer join_front(kit *k)
{
    weft_link *ours = NULL, *theirs = NULL;
    OK(weft_link_create_local(&LINK, &LINK, &ours, &theirs, &err));
    OK(weft_front_add_link(k->leads[0].front, theirs, &err));
    return play(ours);
}

static void send_job(peer *p, const weft_job *job)
{
    unsigned char body[1024];
    weft_pack pack = weft_pack_into(body, sizeof body);
    OK(weft_job_encode(job, weft_clock_now_ns(), &pack, &err));
    send(p, WEFT_FRAME_SUBMIT, body, pack.n);
}

START_TEST(a_router_that_lies_is_broken_off)
{
    kit *const k = fleet_kit_open();
    fleet_kit_lead_start(k, 0, 0);
    kit_router *const r = fleet_kit_router_open(k, 1);
    fleet_kit_connect(r, 0);
    kit_client other;
    fleet_kit_client_init(&other, 1, 200);
    ck_assert_int_eq(fleet_kit_ask(r, &other), WEFT_OK);
    for (int32_t i = 0; i < 7; i++) {
        peer router = join_front(k);
        weft_job job = a_job(0);
        static const int32_t wrong[] = {1, 2, VOCAB};
        if (i == 0) send(&router, WEFT_FRAME_SUBMIT, "abc", 3);
        if (i == 1) job.tokens = wrong;
        if (i == 2) send(&router, WEFT_FRAME_STATE, "", 0);
        if (i == 3) send(&router, WEFT_FRAME_CANCEL, "\5\0\0\0a", 5);
        if (i == 4) send(&router, WEFT_FRAME_CANCEL, "\xff\xff\xff\xff", 4);
        if (i == 5) job.n_prompt = 0;
        if (i == 1 || i == 5) send_job(&router, &job);
        if (i == 6) { /* one handle twice */
            job.max_tokens = 200;
            send_job(&router, &job);
            send_job(&router, &job);
        }
        await_break(&router);
    }
    fleet_kit_wait_end(&other);
    ck_assert_msg(other.status == WEFT_OK, "%s", other.why);
    ck_assert_int_eq(other.n_ids, 200);
    fleet_kit_client_deinit(&other);
    fleet_kit_lead_wait_idle(k, 0);
    fleet_kit_router_close(r);
    fleet_kit_close(k);
}
END_TEST

START_TEST(a_job_goes_through_a_front)
{
    kit *const k = fleet_kit_open();
    fleet_kit_lead_start(k, 0, 0);
    peer router = join_front(k);
    const weft_frame first = await(&router, WEFT_FRAME_STATE);
    weft_group_state state;
    OK(weft_state_decode(first.body, first.body_bytes, &state, &err));
    ck_assert(state.whole && state.been_whole);
    ck_assert_int_eq(state.jobs_max, KIT_SEQS + KIT_QUEUE);
    const weft_job job = a_job(3);
    send_job(&router, &job);
    int32_t n_tokens = 0;
    for (bool over = false; !over;) {
        const weft_frame frame = await(&router, WEFT_FRAME_EVENTS);
        weft_unpack unpack = weft_unpack_from(frame.body, frame.body_bytes);
        for (uint32_t n = weft_unpack_u32(&unpack); n > 0; n--) {
            weft_event event;
            OK(weft_event_decode(&unpack, VOCAB, &event, &err));
            ck_assert_uint_eq(event.handle, job.handle);
            if (event.kind == WEFT_EVENT_TOKEN)
                ck_assert_int_eq(event.position, 3 + n_tokens++);
            over = event.finish != WEFT_FINISH_NONE;
            weft_mem_free(event.top);
        }
        ck_assert(weft_unpack_done(&unpack));
    }
    ck_assert_int_eq(n_tokens, 5);
    stop(&router);
    fleet_kit_lead_wait_idle(k, 0);
    fleet_kit_close(k);
}
END_TEST

/* Its job ends with its link, long before its last token. */
START_TEST(a_router_that_goes_takes_its_jobs_along)
{
    kit *const k = fleet_kit_open();
    fleet_kit_lead_start_held(k, 0, 2);
    peer router = join_front(k);
    weft_job job = a_job(0);
    job.max_tokens = 200;
    send_job(&router, &job);
    (void)await(&router, WEFT_FRAME_EVENTS);
    stop(&router);
    /* Once the front has told another twice, it has looked at all links. */
    peer next = join_front(k);
    for (int32_t i = 0; i < 2; i++) (void)await(&next, WEFT_FRAME_STATE);
    fleet_kit_lead_allow(k, 0, 4);
    fleet_kit_lead_wait_idle(k, 0);
    stop(&next);
    fleet_kit_lead_allow(k, 0, -1);
    fleet_kit_lead_wait_idle(k, 0);
    fleet_kit_close(k);
}
END_TEST

/* A lead with places but no memory does not ask for the same job at once. */
START_TEST(a_job_without_memory_is_not_asked_for_at_once)
{
    kit *const k = fleet_kit_open();
    k->memory_bytes = 1300; /* one job */
    fleet_kit_lead_start_held(k, 0, 0);
    peer router = join_front(k);
    const weft_job first = a_job(0), second = a_job(1);
    send_job(&router, &first);
    const uint64_t from_ns = weft_clock_now_ns();
    for (int32_t i = 0; i < 4; i++) {
        weft_event event = {0};
        send_job(&router, &second);
        do { /* of the first job, too */
            const weft_frame frame = await(&router, WEFT_FRAME_EVENTS);
            weft_unpack unpack = weft_unpack_from(frame.body, frame.body_bytes);
            uint32_t left = weft_unpack_u32(&unpack);
            while (left-- > 0 && event.handle != second.handle)
                OK(weft_event_decode(&unpack, VOCAB, &event, &err));
        } while (event.handle != second.handle);
        ck_assert_int_eq(event.status, WEFT_RESOURCE_EXHAUSTED);
        (void)await(&router, WEFT_FRAME_STATE);
    }
    ck_assert_uint_gt(weft_clock_now_ns() - from_ns, UINT64_C(1000000000));
    stop(&router);
    fleet_kit_lead_allow(k, 0, -1);
    fleet_kit_lead_wait_idle(k, 0);
    fleet_kit_close(k);
}
END_TEST

/* So many routers and no more; each that leaves makes room. */
START_TEST(too_many_routers)
{
    kit *const k = fleet_kit_open();
    fleet_kit_lead_start(k, 0, 0);
    peer routers[16];
    for (int32_t i = 0; i < 16; i++) routers[i] = join_front(k);
    weft_link *ours = NULL, *theirs = NULL;
    OK(weft_link_create_local(&LINK, &LINK, &ours, &theirs, &err));
    ck_assert_int_eq(weft_front_add_link(k->leads[0].front, theirs, NULL),
                     WEFT_RESOURCE_EXHAUSTED);
    weft_link_close(ours);
    for (int32_t i = 0; i < 16; i++) stop(&routers[i]);
    fleet_kit_close(k);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_lead_that_lies_is_broken_off,
        stray_events_are_dropped,
        a_job_that_breaks_groups_ends,
        suspects_go_one_after_another,
        jobs_wait_in_order,
        who_is_wanted,
        another_lead_takes_the_place,
        a_router_that_lies_is_broken_off,
        a_job_goes_through_a_front,
        a_router_that_goes_takes_its_jobs_along,
        a_job_without_memory_is_not_asked_for_at_once,
        too_many_routers,
    };
    return WEFT_SUITE_RUN("fleet_links", tests);
}
