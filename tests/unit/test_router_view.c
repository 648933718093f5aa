/* What a router makes of the members that the registry tells. */
#include <stdio.h>
#include <string.h>

#include "node/app/router_view.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

static weft_member member(const char *id, int32_t group, int32_t stage,
                          weft_member_state state, uint64_t incarnation)
{
    weft_member m = {.role = WEFT_ROLE_LAYERS,
                     .state = state,
                     .group = group,
                     .stage = stage,
                     .incarnation = incarnation};
    (void)snprintf(m.id, sizeof m.id, "%s", id);
    (void)snprintf(m.address, sizeof m.address, "127.0.0.1:%d",
                   1000 + group * 10 + stage);
    return m;
}

static weft_fleet_lead leads[WEFT_GROUPS_MAX];
static weft_router_refusal refused;

static int32_t leads_of(const weft_member *members, int32_t n)
{
    return weft_router_view_leads(members, n, leads, &refused);
}

START_TEST(leads_are_the_first_stages_that_serve)
{
    weft_member m[] = {
        member("a", 0, 0, WEFT_MEMBER_SERVING, 5),
        member("b", 0, 1, WEFT_MEMBER_SERVING, 6),
        member("c", 1, 0, WEFT_MEMBER_JOINING, 7),
        member("d", 2, 0, WEFT_MEMBER_LOST, 8),
        member("e", 3, 0, WEFT_MEMBER_SERVING, 9),
        member("f", 0, 0, WEFT_MEMBER_SERVING, 9),
    };
    m[5].role = WEFT_ROLE_EXPERTS;
    ck_assert_int_eq(leads_of(m, 6), 2);
    ck_assert_uint_eq(leads[0].group, 0);
    ck_assert_str_eq(leads[0].peer.id, "a");
    ck_assert_str_eq(leads[0].peer.address, "127.0.0.1:1000");
    ck_assert_uint_eq(leads[0].peer.incarnation, 5);
    ck_assert(!leads[0].draining);
    ck_assert_uint_eq(leads[1].group, 3);
    ck_assert_int_eq(leads_of(NULL, 0), 0);
}
END_TEST

START_TEST(a_stage_that_drains_drains_its_group)
{
    const weft_member m[] = {
        member("a", 0, 0, WEFT_MEMBER_SERVING, 1),
        member("b", 0, 1, WEFT_MEMBER_DRAINING, 1),
        member("c", 1, 0, WEFT_MEMBER_DRAINING, 1),
        member("d", 2, 0, WEFT_MEMBER_SERVING, 1),
    };
    ck_assert_int_eq(leads_of(m, 4), 3);
    ck_assert(leads[0].draining && leads[1].draining && !leads[2].draining);
}
END_TEST

START_TEST(of_two_leads_the_later_one)
{
    const weft_member m[] = {
        member("a", 0, 0, WEFT_MEMBER_SERVING, 5),
        member("b", 0, 0, WEFT_MEMBER_SERVING, 9),
        member("c", 0, 0, WEFT_MEMBER_SERVING, 7),
    };
    ck_assert_int_eq(leads_of(m, 3), 1);
    ck_assert_str_eq(leads[0].peer.id, "b");
}
END_TEST

/* A rolled lead or stage, and one that came later and goes again. */
START_TEST(who_drains_and_is_replaced_drains_nobody)
{
    const weft_member m[] = {
        member("old", 0, 0, WEFT_MEMBER_DRAINING, 5),
        member("next", 0, 0, WEFT_MEMBER_SERVING, 9),
        member("stage", 1, 1, WEFT_MEMBER_SERVING, 9),
        member("older", 1, 1, WEFT_MEMBER_DRAINING, 5),
        member("lead", 1, 0, WEFT_MEMBER_SERVING, 1),
        member("guest", 2, 0, WEFT_MEMBER_DRAINING, 9),
        member("host", 2, 0, WEFT_MEMBER_SERVING, 5),
    };
    ck_assert_int_eq(leads_of(m, 7), 3);
    ck_assert_str_eq(leads[0].peer.id, "next");
    ck_assert_str_eq(leads[1].peer.id, "lead");
    ck_assert_str_eq(leads[2].peer.id, "host");
    ck_assert_uint_eq(leads[2].peer.incarnation, 5);
    for (int32_t i = 0; i < 3; i++) ck_assert(!leads[i].draining);
}
END_TEST

START_TEST(who_drains_and_has_no_other_that_serves_drains_its_group)
{
    const weft_member m[] = {
        member("a", 0, 0, WEFT_MEMBER_DRAINING, 5),
        member("b", 0, 0, WEFT_MEMBER_JOINING, 9),
        member("c", 1, 0, WEFT_MEMBER_DRAINING, 9),
        member("d", 1, 0, WEFT_MEMBER_DRAINING, 5),
        member("e", 2, 0, WEFT_MEMBER_SERVING, 5),
        member("f", 2, 1, WEFT_MEMBER_DRAINING, 5),
        member("g", 3, 1, WEFT_MEMBER_SERVING, 5),
    };
    ck_assert_int_eq(leads_of(m, 7), 3);
    ck_assert_str_eq(leads[0].peer.id, "a");
    ck_assert_str_eq(leads[1].peer.id, "c");
    for (int32_t i = 0; i < 3; i++) ck_assert(leads[i].draining);
}
END_TEST

/* A stream may go on in another group: all give the bits of the oldest. */
START_TEST(groups_are_of_one_identity)
{
    static const char *const identities[] = {"cpu.tp2", "cpu", "", "cpu",
                                             "cpu.tp2"};
    weft_member m[5];
    for (int32_t i = 0; i < 5; i++) {
        m[i] = member("x", i, 0, WEFT_MEMBER_SERVING, 10 - (uint64_t)i);
        (void)snprintf(m[i].identity, sizeof m[i].identity, "%s",
                       identities[i]);
    }
    m[4].incarnation = 8;
    ck_assert_int_eq(leads_of(m, 5), 3);
    ck_assert_uint_eq(leads[0].group, 1);
    ck_assert_uint_eq(leads[1].group, 2);
    ck_assert_uint_eq(leads[2].group, 3);
    ck_assert_ptr_eq(refused.lead, &m[4]);
    ck_assert_ptr_eq(refused.first, &m[3]);
    /* Another that came in its place does not count. */
    m[3].state = WEFT_MEMBER_LOST;
    m[1].state = WEFT_MEMBER_DRAINING;
    m[4].group = 1;
    ck_assert_int_eq(leads_of(m, 5), 3);
    ck_assert_uint_eq(leads[0].group, 0);
    ck_assert_uint_eq(leads[1].group, 1);
    ck_assert_uint_eq(leads[1].peer.incarnation, 8);
    ck_assert_ptr_null(refused.lead);
    ck_assert_int_eq(leads_of(m + 2, 1), 1);
    ck_assert_ptr_null(refused.first);
}
END_TEST

START_TEST(more_groups_than_one_router_serves)
{
    static weft_member m[WEFT_GROUPS_MAX + 3];
    for (int32_t i = 0; i < WEFT_GROUPS_MAX + 3; i++)
        m[i] = member("x", i, 0, WEFT_MEMBER_SERVING, 1);
    ck_assert_int_eq(leads_of(m, WEFT_GROUPS_MAX + 3), WEFT_GROUPS_MAX);
}
END_TEST

/* Before it has joined and without groups: answers, and no cluster. */
START_TEST(nothing_is_known_yet)
{
    static weft_router_view own;
    const weft_fleet_options o = {.jobs_max = 1, .vocab_size = 1};
    OK(weft_fleet_start(&o, &own.fleet, &err));
    const weft_view view = weft_router_view_of(&own);
    char reason[200] = "";
    weft_view_load load;
    weft_cluster_info info;
    weft_arena *arena = NULL;
    OK(weft_arena_create(1 << 16, &arena, &err));
    view.get_load(view.arg, &load);
    ck_assert_int_eq(load.kv.total_bytes, 0);
    ck_assert(!view.can_serve(view.arg, reason, sizeof reason));
    ck_assert_str_eq(reason, "no group of layer shards is known");
    ck_assert_uint_eq(view.weights_hash(view.arg), 0);
    ck_assert_int_eq(view.get_cluster(view.arg, arena, &info, NULL),
                     WEFT_UNAVAILABLE);
    weft_arena_destroy(arena);
    weft_fleet_destroy(own.fleet);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        leads_are_the_first_stages_that_serve,
        a_stage_that_drains_drains_its_group,
        of_two_leads_the_later_one,
        who_drains_and_is_replaced_drains_nobody,
        who_drains_and_has_no_other_that_serves_drains_its_group,
        groups_are_of_one_identity,
        more_groups_than_one_router_serves,
        nothing_is_known_yet,
    };
    return WEFT_SUITE_RUN("router_view", tests);
}
