/* Requests wait for a lead that has just been told of, or that takes the place
 * of one that drains, and for no other. */
#include <sched.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/fleet/fleet.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

static const uint64_t WAIT_NS = 60000000000U;

static bool take(void *arg, const weft_event *event)
{
    (void)arg;
    (void)event;
    return true;
}

static weft_fleet *start(uint64_t coming_ns, uint64_t renewing_ns)
{
    const weft_fleet_options o = {.jobs_max = 4,
                                  .vocab_size = 8,
                                  .coming_ns = coming_ns,
                                  .renewing_ns = renewing_ns,
                                  .take = take};
    weft_fleet *fleet = NULL;
    OK(weft_fleet_start(&o, &fleet, &err));
    return fleet;
}

/* Until the group is shown as draining or not. */
static void await_draining(weft_fleet *fleet, bool draining)
{
    const uint64_t until_ns = weft_clock_now_ns() + WAIT_NS;
    weft_group_state state;
    while (weft_fleet_get_states(fleet, &state, 1) == 0 ||
           state.draining != draining) {
        ck_assert_uint_lt(weft_clock_now_ns(), until_ns);
        (void)sched_yield();
    }
}

static bool takes(weft_fleet *fleet)
{
    char reason[200];
    ck_assert(!weft_fleet_is_serving(fleet, reason, sizeof reason));
    return weft_fleet_takes_requests(fleet, reason, sizeof reason);
}

START_TEST(it_may_be_connected_soon)
{
    weft_fleet_lead lead = {.peer = {.id = "new", .incarnation = 7}};
    weft_fleet *const fleet = start(10 * WAIT_NS, 0);
    ck_assert(!takes(fleet)); /* nobody is known */
    OK(weft_fleet_want(fleet, &lead, 1, &err));
    await_draining(fleet, false);
    ck_assert(takes(fleet));
    lead.draining = true;
    OK(weft_fleet_want(fleet, &lead, 1, &err));
    await_draining(fleet, true);
    ck_assert(!takes(fleet));
    weft_fleet_destroy(fleet);
}
END_TEST

START_TEST(it_took_too_long)
{
    char reason[200];
    const weft_fleet_lead lead = {.peer = {.id = "new", .incarnation = 7}};
    weft_fleet *const fleet = start(1, 10 * WAIT_NS);
    OK(weft_fleet_want(fleet, &lead, 1, &err));
    await_draining(fleet, false);
    ck_assert(!takes(fleet));
    ck_assert(!weft_fleet_takes_requests(fleet, reason, sizeof reason));
    ck_assert_ptr_nonnull(strstr(reason, "new"));
    weft_fleet_destroy(fleet);
}
END_TEST

static void await_groups(weft_fleet *fleet, int32_t n)
{
    const uint64_t until_ns = weft_clock_now_ns() + WAIT_NS;
    weft_group_state state;
    while (weft_fleet_get_states(fleet, &state, 1) != n) {
        ck_assert_uint_lt(weft_clock_now_ns(), until_ns);
        (void)sched_yield();
    }
}

START_TEST(one_that_drains_is_renewed)
{
    weft_fleet_lead lead = {.peer = {.id = "old", .incarnation = 7}};
    weft_fleet *const fleet = start(1, 10 * WAIT_NS);
    OK(weft_fleet_want(fleet, &lead, 1, &err));
    await_draining(fleet, false);
    ck_assert(!takes(fleet));
    lead.draining = true;
    OK(weft_fleet_want(fleet, &lead, 1, &err));
    await_draining(fleet, true);
    ck_assert(takes(fleet));
    /* And when it has gone. */
    OK(weft_fleet_want(fleet, NULL, 0, &err));
    await_groups(fleet, 0);
    ck_assert(takes(fleet));
    weft_fleet_destroy(fleet);
}
END_TEST

START_TEST(the_wait_for_another_has_an_end)
{
    const weft_fleet_lead lead = {.peer = {.id = "old"}, .draining = true};
    weft_fleet *const fleet = start(1, 1);
    OK(weft_fleet_want(fleet, &lead, 1, &err));
    await_draining(fleet, true);
    ck_assert(!takes(fleet));
    weft_fleet_destroy(fleet);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {it_may_be_connected_soon, it_took_too_long,
                                  one_that_drains_is_renewed,
                                  the_wait_for_another_has_an_end};
    return weft_suite_run("fleet_coming", tests,
                          sizeof tests / sizeof tests[0]);
}
