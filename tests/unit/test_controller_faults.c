/* The controller when members, itself or the store are lost. */
#include "tests/support/controller_desk.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

START_TEST(a_lost_member_is_replaced_at_once)
{
    struct desk d = desk_settled(3);
    kit_remove(d.k, "members/experts/e1");
    desk_run(&d);
    ck_assert_uint_eq(desk_state(&d).planned, 2);
    ck_assert_int_eq(weft_roster_placement(d.k->roster, 2)->n_members, 2);
    desk_finish(&d);
}
END_TEST

START_TEST(a_suspect_is_gone_until_nobody_suspects_it)
{
    struct desk d = desk_settled(3);
    kit_put_suspicion(d.k, "e1", 1, "l0");
    kit_put_suspicion(d.k, "e1", 1, "r0");
    desk_run(&d);
    desk_ack_all(&d, 2);
    kit_put_switched(d.k, 2, 0, 1);
    ck_assert_int_eq(weft_roster_placement(d.k->roster, 2)->n_members, 2);
    kit_remove(d.k, "suspects/e1/l0");
    desk_wait(&d, 60 * S);
    ck_assert_uint_eq(desk_state(&d).planned, 0);
    kit_remove(d.k, "suspects/e1/r0");
    desk_run(&d);
    desk_wait(&d, 1 * S);
    ck_assert_uint_eq(desk_state(&d).planned, 3);
    ck_assert_int_eq(weft_roster_placement(d.k->roster, 3)->n_members, 3);
    desk_finish(&d);
}
END_TEST

/* _i: before or after the loss. */
START_TEST(who_joins_and_does_not_answer_holds_no_lost_expert_up)
{
    struct desk d = desk_settled(3);
    if (_i == 0) {
        desk_join(&d, "e9");
        ck_assert_uint_eq(desk_state(&d).planned, 2);
        ck_assert_int_eq(weft_roster_placement(d.k->roster, 2)->n_members, 4);
        kit_remove(d.k, "members/experts/e1");
    } else {
        kit_remove(d.k, "members/experts/e1");
        kit_put_experts(d.k, "e9", 1, WEFT_MEMBER_JOINING);
    }
    desk_run(&d);
    const uint64_t planned = desk_state(&d).planned;
    const weft_placement *p = weft_roster_placement(d.k->roster, planned);
    ck_assert_ptr_nonnull(p);
    ck_assert_int_eq(p->n_members, 2);
    ck_assert_int_lt(weft_placement_find(p, "e9", 1), 0);
    desk_ack_all(&d, planned);
    ck_assert_uint_eq(desk_epoch(&d), planned);
    kit_put_switched(d.k, planned, 0, 1);
    desk_wait(&d, 1 * S); /* and then it is given its share */
    p = weft_roster_placement(d.k->roster, desk_state(&d).planned);
    ck_assert_ptr_nonnull(p);
    ck_assert_int_ge(weft_placement_find(p, "e9", 1), 0);
    desk_finish(&d);
}
END_TEST

/* The one who drains has not been waited for, and is gone before its experts
 * have been taken. */
START_TEST(who_drains_and_goes_is_not_waited_for_with_who_joins)
{
    struct desk d = desk_settled(3);
    kit_put_experts(d.k, "e1", 1, WEFT_MEMBER_DRAINING);
    desk_join(&d, "e9");
    const uint64_t first = desk_state(&d).planned;
    ck_assert_uint_ne(first, 0);
    kit_remove(d.k, "members/experts/e1");
    desk_run(&d);
    const uint64_t planned = desk_state(&d).planned;
    ck_assert_uint_ne(planned, 0);
    const weft_placement *p = weft_roster_placement(d.k->roster, planned);
    ck_assert_int_lt(weft_placement_find(p, "e9", 1), 0);
    desk_finish(&d);
}
END_TEST

/* All who held anything are gone: there is nobody else to wait for. */
START_TEST(who_joins_is_given_what_nobody_else_can_hold)
{
    struct desk d = desk_settled(2);
    kit_remove(d.k, "members/experts/e0");
    kit_remove(d.k, "members/experts/e1");
    kit_put_experts(d.k, "e9", 1, WEFT_MEMBER_JOINING);
    desk_run(&d);
    const uint64_t planned = desk_state(&d).planned;
    ck_assert_uint_ne(planned, 0);
    desk_wait(&d, 10 * S);
    ck_assert_uint_eq(desk_state(&d).planned, planned); /* not begun again */
    desk_ack_all(&d, planned);
    ck_assert_uint_eq(desk_epoch(&d), planned);
    desk_finish(&d);
}
END_TEST

/* _i: what happens to a member of the plan before it is committed. */
START_TEST(a_plan_is_rolled_back)
{
    struct desk d = desk_settled(2);
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_JOINING);
    desk_join(&d, "e3");
    ck_assert_uint_eq(desk_state(&d).planned, 2);
    switch (_i) {
    case 0: kit_remove(d.k, "members/experts/e2"); break;
    case 1: kit_put_experts(d.k, "e2", 2, WEFT_MEMBER_JOINING); break;
    case 2: kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_DRAINING); break;
    default: kit_put_suspicion(d.k, "e2", 1, "l0"); break;
    }
    desk_run(&d);
    ck_assert_int_eq(kit_count(d.k, "epoch/2/"), 0);
    ck_assert_uint_eq(desk_epoch(&d), 1);
    ck_assert_uint_eq(desk_state(&d).n_rollbacks, 1);
    desk_wait(&d, 300 * MS);
    /* Made again, above; whoever is left takes part. */
    ck_assert_uint_eq(desk_state(&d).planned, 3);
    const weft_placement *p = weft_roster_placement(d.k->roster, 3);
    ck_assert_int_eq(p->n_members, _i == 1 ? 4 : 3);
    ck_assert_int_eq(weft_placement_find(p, "e2", 1), -1);
    desk_ack_all(&d, 3);
    ck_assert_uint_eq(desk_epoch(&d), 3);
    desk_finish(&d);
}
END_TEST

START_TEST(who_fails_is_left_out)
{
    struct desk d = desk_settled(2);
    desk_join(&d, "e2");
    const uint64_t hash = desk_hash(&d, 2);
    kit_put_ack(d.k, 2, "e2", 1, hash, "no memory for expert 3");
    desk_run(&d);
    desk_wait(&d, 1 * S);
    ck_assert_uint_eq(desk_state(&d).n_rollbacks, 1);
    ck_assert_uint_eq(desk_state(&d).planned, 0);
    ck_assert_str_eq(desk_state(&d).waiting,
                     "e2 could not load: no memory for expert 3");
    desk_wait(&d, 61 * S); /* and is tried again */
    desk_wait(&d, 1 * S);
    ck_assert_uint_eq(desk_state(&d).planned, 3);
    desk_finish(&d);
}
END_TEST

/* A member that cannot load more keeps what it has. */
START_TEST(who_fails_keeps_what_it_has)
{
    struct desk d = desk_settled(3);
    kit_remove(d.k, "members/experts/e2");
    desk_run(&d);
    const uint64_t hash = desk_hash(&d, 2);
    const int32_t had =
        weft_placement_count(weft_roster_placement(d.k->roster, 1), 0);
    kit_put_ack(d.k, 2, "e0", 1, hash, "no memory");
    desk_run(&d);
    ck_assert_uint_eq(desk_state(&d).planned, 3);
    const weft_placement *p = weft_roster_placement(d.k->roster, 3);
    ck_assert_int_eq(weft_placement_count(p, 0), had);
    ck_assert_int_eq(weft_placement_count(p, 1), 2 * KIT_EXPERTS - had);
    desk_finish(&d);
}
END_TEST

START_TEST(a_plan_without_answers_ends)
{
    struct desk d = desk_settled(2);
    desk_join(&d, "e2");
    const uint64_t hash = desk_hash(&d, 2);
    desk_wait(&d, 500 * S);
    kit_put_ack(d.k, 2, "e0", 1, hash, NULL); /* progress: longer */
    desk_run(&d);
    desk_wait(&d, 500 * S);
    ck_assert_uint_eq(desk_state(&d).planned, 2);
    kit_put_ack(d.k, 2, "e1", 1, hash, NULL);
    desk_run(&d);
    ck_assert_uint_eq(d.next, d.now + 600 * S);
    desk_wait(&d, 600 * S);
    ck_assert_uint_eq(desk_state(&d).n_rollbacks, 1);
    ck_assert_int_eq(kit_count(d.k, "epoch/2/"), 0);
    desk_wait(&d, 1 * S);
    ck_assert_uint_eq(desk_state(&d).planned, 0);
    desk_finish(&d);
}
END_TEST

/* _i: where the first controller is lost. */
START_TEST(another_controller_takes_over)
{
    struct desk d = desk_settled(2);
    struct desk other = desk_of("r1", d.k);
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_JOINING);
    desk_run(&other);
    desk_run(&d);
    if (_i > 0) {
        desk_wait(&d, 300 * MS);
        ck_assert_uint_eq(desk_state(&d).planned, 2);
    }
    if (_i > 1) desk_put_acks(&d, 2);
    if (_i > 2) desk_run(&d); /* committed */
    kit_end_lease(d.k, "r0");
    other.now = d.now;
    for (int32_t i = 0; i < 20; i++) {
        other.now += 100 * MS;
        while (desk_step(&other, "r1")) {
        }
    }
    ck_assert(desk_state(&other).elected);
    if (_i < 2) desk_ack_all(&other, 2);
    ck_assert_uint_eq(desk_epoch(&other), 2);
    kit_put_switched(d.k, 2, 0, 1);
    desk_run(&other);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 1);
    desk_end(&other);
    desk_finish(&d);
}
END_TEST

/* One that does not know that it has lost its key changes nothing. */
START_TEST(a_deposed_controller_is_fenced)
{
    struct desk d = desk_settled(2);
    desk_join(&d, "e2");
    desk_put_acks(&d, 2);
    d.k->is_deaf = true;
    weft_buf value = {0};
    OK(weft_holder_encode("r1", &value, &err));
    kit_put_buf(d.k, "controller", &value);
    const int64_t had = d.k->revision;
    d.now += 2 * S;
    ck_assert(desk_step(&d, "r0")); /* it tries to commit */
    ck_assert_int_eq(d.k->revision, had);
    ck_assert(!desk_step(&d, "r0")); /* and does not try in a loop */
    desk_finish(&d);
}
END_TEST

START_TEST(a_store_that_lost_everything_is_filled_again)
{
    struct desk d = desk_settled(3);
    kit_wipe(d.k);
    desk_take_lease(&d, WEFT_UNAVAILABLE);
    desk_take_lease(&d, WEFT_OK);
    kit_put_experts(d.k, "e0", 1, WEFT_MEMBER_SERVING);
    desk_run(&d);
    ck_assert_uint_eq(desk_epoch(&d), 1); /* as it was */
    ck_assert_int_eq(weft_roster_placement(d.k->roster, 1)->n_members, 3);
    desk_wait(&d, 1 * S);
    ck_assert_str_eq(desk_state(&d).waiting, "e2 is missing; it may come back");
    kit_put_experts(d.k, "e1", 1, WEFT_MEMBER_SERVING);
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_SERVING);
    kit_put_lead(d.k, "l0", 0);
    kit_put_switched(d.k, 1, 0, 1);
    desk_wait(&d, 60 * S);
    ck_assert_uint_eq(desk_epoch(&d), 1);
    ck_assert_uint_eq(desk_state(&d).n_plans, 1);
    desk_finish(&d);
}
END_TEST

START_TEST(a_placement_that_was_lost_is_written_again)
{
    struct desk d = desk_settled(3);
    kit_remove(d.k, "epoch/1/placement");
    ck_assert_ptr_null(weft_roster_placement(d.k->roster, 1));
    desk_run(&d);
    ck_assert_ptr_nonnull(weft_roster_placement(d.k->roster, 1));
    kit_put(d.k, "epoch/1/placement", "no placement", 12);
    ck_assert_ptr_null(weft_roster_placement(d.k->roster, 1));
    desk_run(&d);
    ck_assert_int_eq(weft_roster_placement(d.k->roster, 1)->n_members, 3);
    desk_wait(&d, 60 * S);
    ck_assert_uint_eq(desk_epoch(&d), 1);
    ck_assert_uint_eq(desk_state(&d).n_plans, 1);
    desk_finish(&d);
}
END_TEST

START_TEST(who_does_not_come_back_is_done_without)
{
    struct desk d = desk_settled(3);
    kit_wipe(d.k);
    kit_put_experts(d.k, "e0", 1, WEFT_MEMBER_SERVING);
    kit_put_experts(d.k, "e1", 1, WEFT_MEMBER_SERVING);
    desk_run(&d);
    desk_wait(&d, 1 * S);
    ck_assert_uint_eq(desk_state(&d).planned, 0);
    desk_wait(&d, 3 * S);
    ck_assert_uint_eq(desk_state(&d).planned, 2);
    desk_finish(&d);
}
END_TEST

/* A controller that knows nothing, and members that have seen epoch 40. */
START_TEST(numbers_are_above_any_that_was_seen)
{
    kit *k = kit_create();
    kit_list(k, 0);
    struct desk d = desk_of("r0", k);
    kit_put_experts(k, "e0", 1, WEFT_MEMBER_SERVING);
    desk_run(&d);
    desk_wait(&d, 1 * S);
    desk_ack_all(&d, 1);
    ck_assert_uint_eq(desk_epoch(&d), 1);
    weft_member m = kit_member(WEFT_ROLE_LAYERS, "l0", 1, WEFT_MEMBER_SERVING);
    m.epoch = 40;
    kit_put_member(k, &m);
    kit_put_switched(k, 1, 0, 1);
    desk_run(&d);
    desk_wait(&d, 1 * S);
    ck_assert_uint_eq(desk_state(&d).planned, 41);
    desk_finish(&d);
}
END_TEST

/* Whoever has seen that number committed would not take it for news. */
START_TEST(a_plan_below_what_was_seen_is_made_again)
{
    struct desk d = desk_settled(2);
    desk_join(&d, "e2");
    ck_assert_uint_eq(desk_state(&d).planned, 2);
    weft_member m = kit_member(WEFT_ROLE_LAYERS, "l0", 1, WEFT_MEMBER_SERVING);
    m.epoch = 2;
    kit_put_member(d.k, &m);
    desk_run(&d);
    desk_wait(&d, 300 * MS);
    ck_assert_uint_eq(desk_state(&d).planned, 3);
    desk_finish(&d);
}
END_TEST

START_TEST(unknown_results_are_looked_up)
{
    struct desk d = desk_settled(2);
    weft_txn txn;
    weft_registry_event result;
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_JOINING);
    desk_run(&d);
    d.now += 300 * MS;
    ck_assert(weft_controller_turn(d.c, d.k->roster, d.now, &txn, &d.next));
    kit_submit(d.k, &txn, "r0", &result); /* it happens, unknown to it */
    ck_assert_int_eq(result.status, WEFT_OK);
    result.status = WEFT_UNAVAILABLE;
    result.revision = 0;
    weft_controller_take(d.c, &result, d.now);
    desk_wait(&d, 200 * MS);
    ck_assert_uint_eq(desk_state(&d).planned, 2);
    desk_ack_all(&d, 2);
    ck_assert_uint_eq(desk_epoch(&d), 2);
    desk_finish(&d);
}
END_TEST

/* The answer to a commit is lost, a member drains, and then the commit
 * happens: what is committed is not rolled back. */
START_TEST(a_commit_that_comes_late_is_not_rolled_back)
{
    struct desk d = desk_settled(2);
    weft_txn commit, rollback;
    weft_registry_event result = {.kind = WEFT_REGISTRY_TXN,
                                  .status = WEFT_UNAVAILABLE};
    desk_join(&d, "e2");
    ck_assert_uint_eq(desk_state(&d).planned, 2);
    desk_put_acks(&d, 2);
    ck_assert(weft_controller_turn(d.c, d.k->roster, d.now, &commit, &d.next));
    result.tag = commit.tag;
    weft_controller_take(d.c, &result, d.now);
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_DRAINING);
    d.now += 200 * MS;
    ck_assert(
        weft_controller_turn(d.c, d.k->roster, d.now, &rollback, &d.next));
    kit_submit(d.k, &commit, "r0", &result);
    ck_assert_int_eq(result.status, WEFT_OK);
    ck_assert_uint_eq(desk_epoch(&d), 2);
    kit_submit(d.k, &rollback, "r0", &result);
    ck_assert_int_eq(result.status, WEFT_FAILED_PRECONDITION);
    ck_assert_int_gt(kit_count(d.k, "epoch/2/"), 0);
    weft_controller_take(d.c, &result, d.now);
    kit_put_switched(d.k, 2, 0, 1);
    desk_wait(&d, 1 * S);
    const uint64_t next = desk_state(&d).planned;
    ck_assert_uint_eq(next, 3);
    ck_assert_int_eq(weft_roster_placement(d.k->roster, next)->n_members, 2);
    desk_ack_all(&d, next);
    ck_assert_uint_eq(desk_epoch(&d), next);
    desk_finish(&d);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_test(tests, a_lost_member_is_replaced_at_once);
    tcase_add_test(tests, a_suspect_is_gone_until_nobody_suspects_it);
    tcase_add_loop_test(
        tests, who_joins_and_does_not_answer_holds_no_lost_expert_up, 0, 2);
    tcase_add_test(tests, who_drains_and_goes_is_not_waited_for_with_who_joins);
    tcase_add_test(tests, who_joins_is_given_what_nobody_else_can_hold);
    tcase_add_loop_test(tests, a_plan_is_rolled_back, 0, 4);
    tcase_add_test(tests, who_fails_is_left_out);
    tcase_add_test(tests, who_fails_keeps_what_it_has);
    tcase_add_test(tests, a_plan_without_answers_ends);
    tcase_add_loop_test(tests, another_controller_takes_over, 0, 4);
    tcase_add_test(tests, a_deposed_controller_is_fenced);
    tcase_add_test(tests, a_store_that_lost_everything_is_filled_again);
    tcase_add_test(tests, a_placement_that_was_lost_is_written_again);
    tcase_add_test(tests, who_does_not_come_back_is_done_without);
    tcase_add_test(tests, numbers_are_above_any_that_was_seen);
    tcase_add_test(tests, a_plan_below_what_was_seen_is_made_again);
    tcase_add_test(tests, unknown_results_are_looked_up);
    tcase_add_test(tests, a_commit_that_comes_late_is_not_rolled_back);
}

int main(void)
{
    return weft_suite_run_added("controller, faults", add);
}
