#include "tests/support/cluster_suite.h"

#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "tests/support/expect.h"

#define MS UINT64_C(1000000)

enum { ROUTER, LEAD, A, B, C, ROUTER2, OTHER };

static const party_world *w;

static void begin(void)
{
    party_begin(w);
}

/* A router, a lead and n expert shards, all at epoch > 0. */
static void begin_cluster(int n)
{
    static const char *const ids[] = {"a", "b", "c"};
    party_start(ROUTER, WEFT_ROLE_ROUTER, "r", 0);
    party_start(LEAD, WEFT_ROLE_LAYERS, "lead", 0);
    for (int i = 0; i < n; i++)
        party_start(A + i, WEFT_ROLE_EXPERTS, ids[i], 0);
    party_register(ROUTER);
    party_register(LEAD);
    for (int i = 0; i < n; i++) party_register(A + i);
    for (int i = 0; i < n; i++)
        PARTY_UNTIL(party_owned(LEAD, ids[i]) == 3 * PARTY_EXPERTS / n);
    PARTY_UNTIL(party[ROUTER].epoch == party[LEAD].epoch);
}

START_TEST(join_plan_ack_commit_switch_retire)
{
    begin_cluster(2);
    for (int i = ROUTER; i <= B; i++) {
        PARTY_UNTIL(party[i].epoch == party[LEAD].epoch);
        PARTY_UNTIL(party_is_complete(i, 1));
        PARTY_UNTIL(party[i].n_members == 4);
        PARTY_UNTIL(party_shows(i, "a", WEFT_MEMBER_SERVING) &&
                    party_shows(i, "b", WEFT_MEMBER_SERVING));
        ck_assert_uint_gt(party[i].incarnation, 0);
    }
    /* Both answer for it, and for nothing that nobody uses. */
    const uint64_t epoch = party[LEAD].epoch;
    PARTY_UNTIL(party[A].first == epoch && party[A].last == epoch);
    PARTY_UNTIL(party[B].first == epoch && party[B].last == epoch);
}
END_TEST

START_TEST(another_joins_and_one_drains)
{
    begin_cluster(2);
    const uint64_t first = party[LEAD].epoch;
    party_start(C, WEFT_ROLE_EXPERTS, "c", 0);
    PARTY_UNTIL(party_owned(LEAD, "c") == PARTY_EXPERTS);
    PARTY_UNTIL(party[A].retired >= first && party[B].retired >= first);

    ck_assert(!weft_cluster_is_emptied(party[B].cluster));
    party_lock();
    party[B].wants = WEFT_MEMBER_DRAINING;
    party_unlock();
    weft_cluster_set_state(party[B].cluster, WEFT_MEMBER_DRAINING);
    PARTY_UNTIL(party_shows(ROUTER, "b", WEFT_MEMBER_DRAINING));
    PARTY_UNTIL(party_owned(LEAD, "b") <= 0 && party_is_complete(LEAD, 1));
    PARTY_UNTIL(weft_cluster_is_emptied(party[B].cluster));
    party_stop(B); /* its lease would run out much later */
    PARTY_UNTIL(!party_knows(ROUTER, "b") && !party_knows(LEAD, "b"));
}
END_TEST

/* A loader that ends late says that it serves: in one turn with the drain, and
 * after it. */
START_TEST(who_drains_does_not_serve_again)
{
    begin_cluster(2);
    weft_cluster_set_state(party[B].cluster, WEFT_MEMBER_DRAINING);
    weft_cluster_set_state(party[B].cluster, WEFT_MEMBER_SERVING);
    PARTY_UNTIL(party_shows(ROUTER, "b", WEFT_MEMBER_DRAINING));
    weft_cluster_set_state(party[B].cluster, WEFT_MEMBER_SERVING);
    PARTY_UNTIL(party_owned(LEAD, "b") <= 0 && party_is_complete(LEAD, 1));
    PARTY_UNTIL(weft_cluster_is_emptied(party[B].cluster));
    PARTY_UNTIL(party_shows(ROUTER, "b", WEFT_MEMBER_DRAINING));
}
END_TEST

START_TEST(nothing_is_committed_before_it_is_loaded)
{
    begin_cluster(2);
    const uint64_t first = party[LEAD].epoch;
    party[C].loads = false;
    party_start(C, WEFT_ROLE_EXPERTS, "c", 0);
    PARTY_UNTIL(party[C].prepared > first);
    weft_cluster_view view;
    OK(weft_cluster_get_view(party[ROUTER].cluster, &view, &err));
    ck_assert_uint_eq(view.epoch, first);
    weft_cluster_view_deinit(&view);
    ck_assert_uint_eq(party[LEAD].epoch, first);
    weft_cluster_loaded(party[C].cluster, party[C].prepared, 5, NULL);
    PARTY_UNTIL(party_owned(LEAD, "c") == PARTY_EXPERTS);
}
END_TEST

START_TEST(who_cannot_load_is_done_without)
{
    begin_cluster(2);
    const uint64_t first = party[LEAD].epoch;
    party[C].cannot_load = true;
    party_start(C, WEFT_ROLE_EXPERTS, "c", 0);
    PARTY_UNTIL(party[C].prepared > first);
    weft_cluster_view view = {0};
    for (const uint64_t stop = party_stop_time();;) {
        OK(weft_cluster_get_view(party[ROUTER].cluster, &view, &err));
        const uint64_t n = view.controller.n_rollbacks;
        weft_cluster_view_deinit(&view);
        if (n > 0) break;
        ck_assert_msg(!party_is_over(stop), "never rolled back");
        party_moment();
    }
    ck_assert_int_le(party_owned(LEAD, "c"), 0);
    ck_assert(party_is_complete(LEAD, 1));
}
END_TEST

START_TEST(second_of_one_id_fences_the_first)
{
    begin_cluster(2);
    const uint64_t before = party[A].incarnation;
    party_start(OTHER, WEFT_ROLE_EXPERTS, "a", 0);
    party_register(OTHER);
    ck_assert_uint_gt(party[OTHER].incarnation, before);
    PARTY_UNTIL(party[A].fenced);
    ck_assert_ptr_nonnull(strstr(party[A].fenced_text, "a"));
    PARTY_UNTIL(party[LEAD].placement != NULL &&
                weft_placement_find(party[LEAD].placement, "a",
                                    party[OTHER].incarnation) >= 0);
    ck_assert(!party[OTHER].fenced);
}
END_TEST

static weft_controller_state controller_of(int i)
{
    weft_cluster_view view = {0};
    OK(weft_cluster_get_view(party[i].cluster, &view, &err));
    const weft_controller_state state = view.controller;
    weft_cluster_view_deinit(&view);
    return state;
}

static bool is_elected(int i)
{
    return controller_of(i).elected;
}

static void until_elected(int i, bool elected)
{
    for (const uint64_t stop = party_stop_time(); is_elected(i) != elected;) {
        ck_assert_msg(!party_is_over(stop), "elected stays %d", !elected);
        party_moment();
    }
}

/* Both would be elected under the one name, in turn and for ever. */
START_TEST(second_of_one_id_controls_alone)
{
    begin_cluster(2);
    party_start(ROUTER2, WEFT_ROLE_ROUTER, "r", 0);
    party_register(ROUTER2);
    PARTY_UNTIL(party[ROUTER].fenced);
    until_elected(ROUTER2, true);
    until_elected(ROUTER, false);
    const uint64_t stop = party_stop_time();
    const uint64_t n_plans = controller_of(ROUTER).n_plans;
    party_start(C, WEFT_ROLE_EXPERTS, "c", 0);
    for (bool over = false; !over; party_moment()) {
        ck_assert_msg(!party_is_over(stop), "nobody plans for c");
        ck_assert(!is_elected(ROUTER));
        party_lock();
        over = party_owned(LEAD, "c") == PARTY_EXPERTS;
        party_unlock();
    }
    ck_assert_uint_eq(controller_of(ROUTER).n_plans, n_plans);
    /* It hears of its own write, and shows it, after others may have read it.
     */
    while (controller_of(ROUTER2).n_plans == 0) {
        ck_assert_msg(!party_is_over(stop), "the second one has not planned");
        party_moment();
    }
}
END_TEST

START_TEST(controller_lost)
{
    begin_cluster(2);
    party_start(ROUTER2, WEFT_ROLE_ROUTER, "r2", 0);
    party_register(ROUTER2);
    ck_assert(is_elected(ROUTER));
    ck_assert(!is_elected(ROUTER2));
    party_stop(ROUTER);
    PARTY_UNTIL(!party_knows(LEAD, "r"));
    until_elected(ROUTER2, true);
    party_start(C, WEFT_ROLE_EXPERTS, "c", 0);
    PARTY_UNTIL(party_owned(LEAD, "c") == PARTY_EXPERTS);
}
END_TEST

START_TEST(suspected_member)
{
    begin_cluster(3);
    const uint64_t first = party[LEAD].epoch;
    weft_cluster_suspect(party[LEAD].cluster, "b", party[B].incarnation, true);
    PARTY_UNTIL(party_shows(ROUTER, "b", WEFT_MEMBER_LOST) &&
                party_shows(LEAD, "b", WEFT_MEMBER_LOST));
    PARTY_UNTIL(party_owned(LEAD, "b") <= 0 && party_is_complete(LEAD, 1));
    ck_assert_uint_gt(party[LEAD].epoch, first);
    weft_cluster_suspect(party[LEAD].cluster, "b", party[B].incarnation, false);
    PARTY_UNTIL(party_owned(LEAD, "b") == PARTY_EXPERTS);
    PARTY_UNTIL(party_shows(ROUTER, "b", WEFT_MEMBER_SERVING));
}
END_TEST

static void watch_members(void)
{
    party_lock();
    for (int i = 0; i < PARTY_MAX; i++)
        party[i].n_members_min = party[i].n_members;
    party_unlock();
}

static bool is_reachable(int i)
{
    weft_cluster_view view = {0};
    OK(weft_cluster_get_view(party[i].cluster, &view, &err));
    const bool reachable = view.reachable;
    weft_cluster_view_deinit(&view);
    return reachable;
}

static void until_reachable(int i, bool reachable)
{
    for (const uint64_t stop = party_stop_time();
         is_reachable(i) != reachable;) {
        ck_assert_msg(!party_is_over(stop), "reachable stays %d", !reachable);
        party_moment();
    }
}

/* Nobody is told that anybody has gone, and no epoch goes back. */
static void lose_the_store(void (*back)(void))
{
    begin_cluster(2);
    for (int i = ROUTER; i <= B; i++) PARTY_UNTIL(party[i].n_members == 4);
    watch_members();
    const uint64_t first = party[LEAD].epoch;
    w->away();
    for (int i = ROUTER; i <= B; i++) until_reachable(i, false);
    back();
    for (int i = ROUTER; i <= B; i++) until_reachable(i, true);
    party_start(C, WEFT_ROLE_EXPERTS, "c", 0);
    party_register(C);
    PARTY_UNTIL(party_owned(LEAD, "c") == PARTY_EXPERTS);
    for (int i = ROUTER; i <= B; i++) {
        party_lock();
        ck_assert_int_eq(party[i].n_members_min, 4);
        ck_assert_uint_eq(party[i].epoch_lowered, 0);
        ck_assert(!party[i].fenced);
        party_unlock();
    }
    ck_assert_uint_gt(party[LEAD].epoch, first);
    ck_assert(party_is_complete(LEAD, 1));
}

START_TEST(registry_away_and_back)
{
    lose_the_store(w->back);
}
END_TEST

START_TEST(registry_back_empty)
{
    lose_the_store(w->back_empty);
}
END_TEST

START_TEST(nobody_to_register_with)
{
    weft_err err = {0};
    uint64_t incarnation = 0;
    w->away();
    party_start(ROUTER, WEFT_ROLE_ROUTER, "r", 0);
    ck_assert_int_eq(weft_cluster_wait_registered(
                         party[ROUTER].cluster, weft_clock_now_ns() + 2500 * MS,
                         &incarnation, &err),
                     WEFT_UNAVAILABLE);
    ck_assert_str_ne(err.text, "");
    w->back();
    party_register(ROUTER);
}
END_TEST

START_TEST(view_has_members_and_their_experts)
{
    begin_cluster(2);
    for (const uint64_t stop = party_stop_time();;) {
        weft_cluster_view view = {0};
        int32_t n = 0;
        OK(weft_cluster_get_view(party[LEAD].cluster, &view, &err));
        ck_assert(view.reachable);
        for (int32_t i = 0; i < view.n_members; i++) {
            n += view.experts[i];
            if (view.members[i].role != WEFT_ROLE_EXPERTS)
                ck_assert_int_eq(view.experts[i], 0);
        }
        const bool good = view.n_members == 4 && n == 3 * PARTY_EXPERTS &&
                          view.epoch == party[LEAD].epoch &&
                          view.retired == view.epoch - 1;
        weft_cluster_view_deinit(&view);
        if (good) break;
        ck_assert_msg(!party_is_over(stop), "members %d experts %d",
                      view.n_members, n);
        party_moment();
    }
}
END_TEST

static void add_all(TCase *tests, const party_world *world,
                    const TTest *const *all, size_t n)
{
    w = world;
    tcase_add_checked_fixture(tests, begin, party_end);
    tcase_set_timeout(tests, 120);
    for (size_t i = 0; i < n; i++) tcase_add_test(tests, all[i]);
}

void cluster_suite_add(TCase *tests, const party_world *world)
{
    const TTest *const all[] = {
        join_plan_ack_commit_switch_retire,
        another_joins_and_one_drains,
        who_drains_does_not_serve_again,
        nothing_is_committed_before_it_is_loaded,
        who_cannot_load_is_done_without,
        second_of_one_id_fences_the_first,
        second_of_one_id_controls_alone,
        controller_lost,
        suspected_member,
        nobody_to_register_with,
        view_has_members_and_their_experts,
    };
    add_all(tests, world, all, sizeof all / sizeof *all);
}

void cluster_suite_add_away(TCase *tests, const party_world *world)
{
    const TTest *const all[] = {registry_away_and_back, registry_back_empty};
    add_all(tests, world, all, sizeof all / sizeof *all);
}
