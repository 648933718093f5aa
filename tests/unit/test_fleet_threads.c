/* A router, its fleet, fronts and real engines, over links within the process:
 * what a client is told never depends on which groups come and go. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "tests/support/expect.h"
#include "tests/support/fleet_kit.h"
#include "tests/support/suite.h"

enum { STREAMS = 6, TOKENS = 40 };

static kit_client clients[STREAMS], others[STREAMS], known[STREAMS];

static void ask_all(kit_router *r, kit_client *c, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        fleet_kit_client_init(&c[i], i, TOKENS);
        ck_assert_int_eq(fleet_kit_ask(r, &c[i]), WEFT_OK);
    }
}

static void expect_all(kit_client *c, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        fleet_kit_wait_end(&c[i]);
        fleet_kit_expect_same(&c[i], &known[i]);
        fleet_kit_client_deinit(&c[i]);
    }
}

static bool is_not_connected(const weft_group_state *state)
{
    return !state->connected;
}

static bool is_not_whole(const weft_group_state *state)
{
    return state->connected && !state->whole;
}

static bool is_draining(const weft_group_state *state)
{
    return state->draining;
}

static bool has_all_jobs(const weft_group_state *state)
{
    return state->connected && state->jobs_live == STREAMS;
}

/* A kit, and `known` as one process says it. */
static kit *open_known(void)
{
    fleet_kit_know(known, STREAMS, TOKENS);
    return fleet_kit_open();
}

/* A router of one group, whose lead is there. */
static kit_router *router_of_one(kit *k)
{
    kit_router *const r = fleet_kit_router_open(k, 1);
    fleet_kit_connect(r, 0);
    return r;
}

static void close_both(kit *k, kit_router *r)
{
    fleet_kit_router_close(r);
    fleet_kit_close(k);
}

START_TEST(tokens_are_those_of_one_process)
{
    kit *const k = open_known();
    fleet_kit_lead_start(k, 0, 0);
    kit_router *const r = router_of_one(k);
    ask_all(r, clients, STREAMS);
    expect_all(clients, STREAMS);
    fleet_kit_lead_wait_idle(k, 0);
    weft_group_state state;
    ck_assert_int_eq(weft_fleet_get_states(r->fleet, &state, 1), 1);
    ck_assert_uint_eq(state.weights_hash, 42);
    ck_assert_str_eq(state.id, "lead-0");
    close_both(k, r);
}
END_TEST

START_TEST(a_group_is_killed_mid_stream)
{
    kit *const k = open_known();
    /* Both stand still soon, so that streams are begun and not ended. */
    fleet_kit_lead_start_held(k, 0, 12);
    fleet_kit_lead_start_held(k, 1, 1);
    kit_router *const r = fleet_kit_router_open(k, 2);
    fleet_kit_connect(r, 0);
    fleet_kit_connect(r, 1);
    ask_all(r, clients, STREAMS);
    fleet_kit_wait_tokens(&clients[0], 3); /* placed first, so on group 0 */
    fleet_kit_lead_kill(k, 0);
    fleet_kit_lead_allow(k, 1, -1);
    expect_all(clients, STREAMS);
    fleet_kit_lead_wait_idle(k, 1);
    fleet_kit_wait_state(r, 0, is_not_connected);
    close_both(k, r);
}
END_TEST

/* CPU time of this process while nothing happens for a while. */
static double busy_share(kit_client *c)
{
    const clockid_t cpu = CLOCK_PROCESS_CPUTIME_ID;
    struct timespec from, to, until;
    const uint64_t began_ns = weft_clock_now_ns();
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 600000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)clock_gettime(cpu, &from);
    ck_assert_int_ne(sem_timedwait(&c->ended, &until), 0);
    (void)clock_gettime(cpu, &to);
    /* A machine that is busy wakes us late. */
    const double passed_s = (double)(weft_clock_now_ns() - began_ns) * 1e-9;
    return ((double)(to.tv_sec - from.tv_sec) +
            (double)(to.tv_nsec - from.tv_nsec) * 1e-9) /
           passed_s;
}

/* A step of the lead at a time, until the client is told a token: others that
 * have theirs already get few more. */
static void let_to_a_token(kit *k, kit_client *c)
{
    const uint64_t until_ns = weft_clock_now_ns() + UINT64_C(60000000000);
    struct timespec until;
    do {
        ck_assert_uint_lt(weft_clock_now_ns(), until_ns);
        fleet_kit_lead_allow(k, 0, 1);
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 10000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
    } while (sem_timedwait(&c->told, &until) != 0);
}

START_TEST(all_groups_are_lost_and_come_back)
{
    enum { N = 3, LONG = 200 };
    fleet_kit_know(known, N, LONG);
    kit *const k = fleet_kit_open();
    kit_router *const r = fleet_kit_router_open(k, 1);
    fleet_kit_wait_state(r, 0, is_not_connected); /* nobody is there yet */
    for (int32_t i = 0; i < N; i++) fleet_kit_client_init(&clients[i], i, LONG);
    ck_assert_int_eq(fleet_kit_ask(r, &clients[0]), WEFT_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(clients[0].why, "group 0"));
    for (int32_t round = 0; round < 3; round++) {
        fleet_kit_lead_start_held(k, 0, 0);
        /* Each gets a token in each round: two without one would be its end. */
        for (int32_t i = 0; i < N; i++)
            while (sem_trywait(&clients[i].told) == 0) {
            }
        fleet_kit_connect(r, 0);
        for (int32_t i = 0; i < N && round == 0; i++)
            ck_assert_int_eq(fleet_kit_ask(r, &clients[i]), WEFT_OK);
        for (int32_t i = 0; i < N; i++) let_to_a_token(k, &clients[i]);
        fleet_kit_lead_kill(k, 0);
        fleet_kit_wait_state(r, 0, is_not_connected);
        /* New ones are refused while those that were accepted wait. */
        kit_client late;
        fleet_kit_client_init(&late, 0, TOKENS);
        ck_assert_int_eq(fleet_kit_ask(r, &late), WEFT_UNAVAILABLE);
        fleet_kit_client_deinit(&late);
    }
    const double share = busy_share(&clients[0]);
    ck_assert_msg(share < 0.2, "%.2f of a core while all wait", share);
    fleet_kit_lead_start(k, 0, 0);
    fleet_kit_connect(r, 0);
    expect_all(clients, N);
    fleet_kit_lead_wait_idle(k, 0);
    close_both(k, r);
}
END_TEST

START_TEST(a_router_that_goes_leaves_nothing)
{
    kit *const k = fleet_kit_open();
    fleet_kit_lead_start_held(k, 0, 3);
    kit_router *const r = router_of_one(k);
    ask_all(r, clients, STREAMS);
    fleet_kit_wait_tokens(&clients[0], 1);
    fleet_kit_router_close(r);
    for (int32_t i = 0; i < STREAMS; i++) {
        ck_assert_int_eq(clients[i].status, WEFT_UNAVAILABLE);
        fleet_kit_client_deinit(&clients[i]);
    }
    fleet_kit_lead_allow(k, 0, 2);
    fleet_kit_lead_allow(k, 0, -1);
    fleet_kit_lead_wait_idle(k, 0);
    fleet_kit_close(k);
}
END_TEST

static void aborted(void *arg, int32_t n)
{
    (void)arg;
    ck_assert_int_eq(n, 1);
}

START_TEST(cancel_abort_and_deadline_without_a_group)
{
    kit *const k = fleet_kit_open();
    fleet_kit_lead_start_held(k, 0, 2);
    kit_router *const r = router_of_one(k);
    for (int32_t i = 0; i < 3; i++) {
        fleet_kit_client_init(&clients[i], i, TOKENS);
        clients[i].request.request_id = (weft_span){"abc", (size_t)i + 1};
        if (i == 2)
            clients[i].request.deadline_ns = weft_clock_now_ns() + 1500000000;
        ck_assert_int_eq(fleet_kit_ask(r, &clients[i]), WEFT_OK);
    }
    fleet_kit_wait_tokens(&clients[0], 1);
    fleet_kit_lead_kill(k, 0);
    fleet_kit_wait_state(r, 0, is_not_connected);
    weft_router_cancel(r->router, clients[0].handle);
    fleet_kit_wait_end(&clients[0]);
    ck_assert_int_eq(clients[0].status, WEFT_CANCELLED);
    static const weft_span id = {"ab", 2};
    OK(weft_router_abort(r->router, &id, 1, aborted, NULL, &err));
    fleet_kit_wait_end(&clients[1]);
    ck_assert_int_eq((int)clients[1].end, WEFT_END_ABORT);
    fleet_kit_wait_end(&clients[2]);
    ck_assert_int_eq(clients[2].status, WEFT_DEADLINE_EXCEEDED);
    /* Their slots are free again: the fleet has told their ends. */
    weft_router_load load;
    do {
        weft_router_get_load(r->router, &load);
    } while (load.n_live > 0);
    for (int32_t i = 0; i < 3; i++) fleet_kit_client_deinit(&clients[i]);
    close_both(k, r);
}
END_TEST

START_TEST(a_cancelled_job_leaves_its_lead)
{
    kit *const k = fleet_kit_open();
    fleet_kit_lead_start_held(k, 0, 2);
    kit_router *const r = router_of_one(k);
    ask_all(r, clients, STREAMS);
    fleet_kit_wait_tokens(&clients[0], 1);
    for (int32_t i = 0; i < STREAMS; i++) {
        weft_router_cancel(r->router, clients[i].handle);
        fleet_kit_wait_end(&clients[i]);
        ck_assert_int_eq(clients[i].status, WEFT_CANCELLED);
        fleet_kit_client_deinit(&clients[i]);
    }
    fleet_kit_lead_allow(k, 0, -1);
    fleet_kit_lead_wait_idle(k, 0);
    close_both(k, r);
}
END_TEST

START_TEST(a_router_without_room_loses_no_event)
{
    kit *const k = open_known();
    fleet_kit_lead_start(k, 0, 0);
    kit_router *const r = router_of_one(k);
    atomic_store(&r->closed, true);
    ask_all(r, clients, STREAMS);
    while (atomic_load(&r->n_refused) < 20) {
        const struct timespec pause = {.tv_nsec = 1000000};
        (void)nanosleep(&pause, NULL);
    }
    atomic_store(&r->closed, false);
    expect_all(clients, STREAMS);
    close_both(k, r);
}
END_TEST

/* The second router's jobs have the same handles as the first one's. */
START_TEST(two_routers_on_one_lead)
{
    kit *const k = open_known();
    fleet_kit_lead_start_held(k, 0, 0);
    kit_router *const a = router_of_one(k);
    kit_router *const b = router_of_one(k);
    ask_all(a, clients, STREAMS);
    ask_all(b, others, STREAMS);
    ck_assert_uint_eq(clients[0].handle, others[0].handle);
    fleet_kit_lead_allow(k, 0, -1);
    expect_all(clients, STREAMS);
    expect_all(others, STREAMS);
    fleet_kit_router_close(a);
    fleet_kit_lead_wait_idle(k, 0);
    fleet_kit_router_close(b);
    fleet_kit_close(k);
}
END_TEST

/* A lead that takes two jobs at once, and two routers that each think that all
 * of it is theirs: what comes back waits for its turn. */
START_TEST(a_full_lead_gives_back)
{
    kit *const k = open_known();
    fleet_kit_lead_start(k, 0, 2);
    kit_router *const a = router_of_one(k);
    kit_router *const b = router_of_one(k);
    ask_all(a, clients, STREAMS);
    ask_all(b, others, STREAMS);
    expect_all(clients, STREAMS);
    expect_all(others, STREAMS);
    fleet_kit_lead_wait_idle(k, 0);
    fleet_kit_router_close(a);
    fleet_kit_router_close(b);
    fleet_kit_close(k);
}
END_TEST

START_TEST(a_group_that_was_whole_takes_requests_while_it_mends)
{
    char reason[200];
    kit *const k = open_known();
    fleet_kit_lead_start(k, 0, 0);
    kit_router *const r = router_of_one(k);
    ck_assert(weft_fleet_is_serving(r->fleet, reason, sizeof reason));
    atomic_store(&k->leads[0].whole, false);
    fleet_kit_wait_state(r, 0, is_not_whole);
    ck_assert(weft_fleet_is_serving(r->fleet, reason, sizeof reason));
    ask_all(r, clients, STREAMS);
    const double share = busy_share(&clients[0]);
    ck_assert_msg(share < 0.2, "%.2f of a core while all wait", share);
    ck_assert_int_eq(clients[0].n_ends, 0);
    atomic_store(&k->leads[0].whole, true);
    expect_all(clients, STREAMS);
    close_both(k, r);
}
END_TEST

START_TEST(a_draining_lead_keeps_what_it_has)
{
    char reason[200];
    kit *const k = open_known();
    fleet_kit_lead_start_held(k, 0, 2);
    kit_router *const r = router_of_one(k);
    ask_all(r, clients, STREAMS);
    fleet_kit_wait_tokens(&clients[0], 1);
    /* Who comes later is not kept. */
    fleet_kit_wait_state(r, 0, has_all_jobs);
    weft_front_drain(k->leads[0].front);
    fleet_kit_wait_state(r, 0, is_draining);
    ck_assert(!weft_fleet_is_serving(r->fleet, reason, sizeof reason));
    ck_assert_str_eq(reason, "group 0 (lead-0): is draining");
    fleet_kit_lead_allow(k, 0, -1);
    expect_all(clients, STREAMS);
    fleet_kit_lead_wait_idle(k, 0);
    close_both(k, r);
}
END_TEST

/* Each goes before it gives a token, as in a roll of a group that is busy with
 * others: that is no fault of a request. */
START_TEST(leads_that_drain_and_go_are_no_break)
{
    kit *const k = open_known();
    fleet_kit_lead_start_held(k, 0, 0);
    kit_router *const r = router_of_one(k);
    ask_all(r, clients, STREAMS);
    for (int32_t round = 0; round < 4; round++) {
        fleet_kit_wait_state(r, 0, has_all_jobs);
        weft_front_drain(k->leads[0].front);
        fleet_kit_wait_state(r, 0, is_draining);
        fleet_kit_lead_kill(k, 0);
        fleet_kit_wait_state(r, 0, is_not_connected);
        if (round < 3)
            fleet_kit_lead_start_held(k, 0, 0);
        else
            fleet_kit_lead_start(k, 0, 0);
        fleet_kit_connect(r, 0);
    }
    expect_all(clients, STREAMS);
    close_both(k, r);
}
END_TEST

/* Groups killed and started in turn under streams that must not notice. */
START_TEST(groups_come_and_go)
{
    kit *const k = open_known();
    fleet_kit_lead_start(k, 0, 0);
    fleet_kit_lead_start(k, 1, 0);
    kit_router *const r = fleet_kit_router_open(k, 2);
    fleet_kit_connect(r, 0);
    fleet_kit_connect(r, 1);
    for (int32_t round = 0; round < 6; round++) {
        const int32_t at = round % 2;
        ask_all(r, clients, STREAMS);
        fleet_kit_wait_tokens(&clients[round % STREAMS], 1 + round * 3);
        fleet_kit_lead_kill(k, at);
        fleet_kit_lead_start(k, at, 0);
        fleet_kit_wait_state(r, (uint32_t)at, is_not_connected);
        fleet_kit_connect(r, at);
        expect_all(clients, STREAMS);
    }
    fleet_kit_lead_wait_idle(k, 0);
    fleet_kit_lead_wait_idle(k, 1);
    close_both(k, r);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        tokens_are_those_of_one_process,
        a_group_is_killed_mid_stream,
        all_groups_are_lost_and_come_back,
        a_router_that_goes_leaves_nothing,
        cancel_abort_and_deadline_without_a_group,
        a_cancelled_job_leaves_its_lead,
        a_router_without_room_loses_no_event,
        two_routers_on_one_lead,
        a_full_lead_gives_back,
        a_group_that_was_whole_takes_requests_while_it_mends,
        a_draining_lead_keeps_what_it_has,
        leads_that_drain_and_go_are_no_break,
        groups_come_and_go,
    };
    return WEFT_SUITE_RUN("fleet_threads", tests);
}
