/* The controller: plan, ack, commit, switch, retire. */
#include <stdio.h>
#include <string.h>

#include "tests/support/controller_desk.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

START_TEST(first_epoch_then_quiet)
{
    struct desk d = desk_settled(3);
    const weft_controller_state s = desk_state(&d);
    ck_assert(s.elected);
    ck_assert_uint_eq(s.n_plans, 1);
    ck_assert_uint_eq(s.n_commits, 1);
    ck_assert_uint_eq(s.planned, 0);
    ck_assert_str_eq(s.waiting, "");
    const int32_t had = d.n_txns;
    for (int32_t i = 0; i < 100; i++) desk_wait(&d, 1 * S);
    ck_assert_int_eq(d.n_txns, had);
    desk_finish(&d);
}
END_TEST

START_TEST(nothing_without_lease_or_key)
{
    kit *k = kit_create();
    kit_put_experts(k, "e0", 1, WEFT_MEMBER_SERVING);
    struct desk d = desk_of("r0", k);
    desk_take_lease(&d, WEFT_UNAVAILABLE);
    desk_run(&d);
    ck_assert_int_eq(d.n_txns, 0);
    /* Another has the key: nothing, as long as it does. */
    weft_buf value = {0};
    OK(weft_holder_encode("r1", &value, &err));
    kit_put_buf(k, "controller", &value);
    desk_take_lease(&d, WEFT_OK);
    desk_wait(&d, 60 * S);
    ck_assert_int_eq(d.n_txns, 0);
    ck_assert(!desk_state(&d).elected);
    kit_remove(k, "controller");
    desk_run(&d);
    ck_assert(desk_state(&d).elected);
    desk_finish(&d);
}
END_TEST

/* Our name in the key is not enough: it must be of this lease. */
START_TEST(a_key_of_an_earlier_process_is_taken_over)
{
    kit *k = kit_create();
    weft_buf value = {0};
    OK(weft_holder_encode("r0", &value, &err));
    kit_put_buf(k, "controller", &value);
    struct desk d = desk_of("r0", k);
    ck_assert(desk_step(&d, "r0"));
    int64_t revision;
    ck_assert_str_eq(weft_roster_controller(k->roster, &revision), "r0");
    ck_assert_int_eq(revision, 2);
    desk_run(&d);
    ck_assert(desk_state(&d).elected);
    desk_finish(&d);
}
END_TEST

START_TEST(joiners_are_gathered_and_placed)
{
    struct desk d = desk_settled(2);
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_JOINING);
    desk_wait(&d, 100 * MS);
    kit_put_experts(d.k, "e3", 1, WEFT_MEMBER_JOINING);
    desk_wait(&d, 100 * MS);
    ck_assert_uint_eq(desk_state(&d).planned, 0);
    desk_wait(&d, 200 * MS);
    ck_assert_uint_eq(desk_state(&d).planned, 2);
    ck_assert_int_eq(weft_roster_placement(d.k->roster, 2)->n_members, 4);
    desk_ack_all(&d, 2);
    ck_assert_uint_eq(desk_epoch(&d), 2);
    const weft_controller_state s = desk_state(&d);
    ck_assert_int_eq(s.moved_bytes, 8);
    ck_assert_int_eq(s.moved_least, 8);
    desk_finish(&d);
}
END_TEST

START_TEST(commit_waits_for_every_ack)
{
    struct desk d = desk_settled(2);
    desk_join(&d, "e2");
    const uint64_t hash = desk_hash(&d, 2);
    kit_put_ack(d.k, 2, "e0", 1, hash, NULL);
    kit_put_ack(d.k, 2, "e1", 1, hash, NULL);
    desk_run(&d);
    ck_assert_str_eq(desk_state(&d).waiting,
                     "epoch 2: 2 of 3 expert shards are "
                     "ready, e2 is not");
    kit_put_ack(d.k, 2, "e2", 1, hash + 1, NULL); /* of another placement */
    desk_run(&d);
    kit_put_ack(d.k, 2, "e2", 2, hash, NULL); /* of another incarnation */
    desk_run(&d);
    ck_assert_uint_eq(desk_epoch(&d), 1);
    kit_put_ack(d.k, 2, "e2", 1, hash, NULL);
    desk_run(&d);
    ck_assert_uint_eq(desk_epoch(&d), 2);
    desk_finish(&d);
}
END_TEST

START_TEST(retire_waits_for_every_lead)
{
    struct desk d = desk_settled(2);
    kit_put_lead(d.k, "l1", 1);
    kit_put_switched(d.k, 1, 1, 1);
    desk_join(&d, "e2");
    desk_ack_all(&d, 2);
    kit_put_switched(d.k, 2, 0, 1);
    desk_wait(&d, 60 * S);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 0);
    kit_put_switched(d.k, 2, 1, 2); /* another incarnation of that lead */
    desk_wait(&d, 60 * S);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 0);
    kit_put_switched(d.k, 2, 1, 1);
    desk_run(&d);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 1);
    ck_assert_int_eq(kit_count(d.k, "epoch/1/"), 0);
    ck_assert_int_gt(kit_count(d.k, "epoch/2/"), 0);
    desk_finish(&d);
}
END_TEST

START_TEST(a_lead_that_has_gone_holds_nothing_up)
{
    struct desk d = desk_settled(2);
    kit_put_lead(d.k, "l1", 1);
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_JOINING);
    desk_run(&d);
    desk_wait(&d, 20 * S); /* l1 never switched, and is waited for switch_ns */
    desk_ack_all(&d, 2);
    kit_put_switched(d.k, 2, 0, 1);
    desk_wait(&d, 20 * S);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 0);
    kit_remove(d.k, "members/layers/l1");
    desk_run(&d);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 1);
    desk_finish(&d);
}
END_TEST

/* Its lease has run out, since it has lost its way to etcd alone: routers have
 * links to it and hear what its steps are of. */
START_TEST(a_lead_that_the_registry_has_lost_keeps_its_epoch)
{
    struct desk d = desk_settled(2);
    kit_put_lead(d.k, "l1", 1);
    kit_put_switched(d.k, 1, 1, 1);
    kit_remove(d.k, "members/layers/l1");
    weft_controller_set_in_use(d.c, 1);
    desk_join(&d, "e2");
    desk_ack_all(&d, 2);
    kit_put_switched(d.k, 2, 0, 1);
    desk_wait(&d, 60 * S);
    ck_assert_uint_eq(desk_epoch(&d), 2);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 0);
    weft_controller_set_in_use(d.c, 2);
    desk_run(&d);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 1);
    desk_finish(&d);
}
END_TEST

START_TEST(who_drains_is_emptied)
{
    struct desk d = desk_settled(3);
    kit_put_experts(d.k, "e0", 1, WEFT_MEMBER_DRAINING);
    desk_run(&d);
    ck_assert_int_eq(
        weft_placement_find(weft_roster_placement(d.k->roster, 2), "e0", 0),
        -1);
    desk_ack_all(&d, 2);
    ck_assert_uint_eq(desk_epoch(&d), 2);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 0);
    kit_put_switched(d.k, 2, 0, 1);
    desk_run(&d);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 1);
    desk_finish(&d);
}
END_TEST

START_TEST(another_model_is_given_nothing)
{
    struct desk d = desk_settled(2);
    weft_member m = kit_member(WEFT_ROLE_EXPERTS, "e2", 1, WEFT_MEMBER_JOINING);
    m.weights_hash = 99;
    kit_put_member(d.k, &m);
    desk_run(&d);
    desk_wait(&d, 60 * S);
    ck_assert_uint_eq(desk_state(&d).planned, 0);
    ck_assert_str_eq(desk_state(&d).waiting, "e2 serves another model than l0");
    m.weights_hash = 8;
    (void)snprintf(m.identity, sizeof m.identity, "cuda");
    kit_put_member(d.k, &m);
    desk_run(&d);
    ck_assert_str_eq(desk_state(&d).waiting, "e2 computes as cuda, l0 as cpu");
    desk_finish(&d);
}
END_TEST

/* Experts answer layer shards of any number of ranks. */
START_TEST(layers_of_more_ranks_have_the_same_experts)
{
    struct desk d = desk_settled(2);
    weft_member m = kit_member(WEFT_ROLE_LAYERS, "l0", 1, WEFT_MEMBER_SERVING);
    (void)snprintf(m.identity, sizeof m.identity, "cpu.tp4");
    kit_put_member(d.k, &m);
    m = kit_member(WEFT_ROLE_EXPERTS, "e2", 1, WEFT_MEMBER_JOINING);
    kit_put_member(d.k, &m);
    desk_run(&d);
    desk_wait(&d, 60 * S);
    ck_assert_uint_eq(desk_state(&d).planned, 2);
    desk_finish(&d);
}
END_TEST

START_TEST(what_does_not_fit_is_said)
{
    struct desk d = desk_settled(2);
    weft_member m = kit_member(WEFT_ROLE_EXPERTS, "e1", 1, WEFT_MEMBER_SERVING);
    m.capacity_bytes = 1;
    kit_put_member(d.k, &m);
    m = kit_member(WEFT_ROLE_EXPERTS, "e0", 1, WEFT_MEMBER_SERVING);
    m.capacity_bytes = 8;
    kit_put_member(d.k, &m);
    desk_run(&d);
    for (int32_t i = 0; i < 3; i++) {
        desk_wait(&d, 20 * S);
        ck_assert_str_eq(desk_state(&d).waiting,
                         "the experts do not fit: 16 bytes are needed, 2 "
                         "expert shards offer 9");
    }
    ck_assert_uint_eq(desk_epoch(&d), 1);
    desk_finish(&d);
}
END_TEST

/* A router reads the config alone: what an expert takes is told by shards. */
START_TEST(capacities_count_in_bytes_that_members_tell)
{
    struct desk d = desk_settled(2);
    weft_member m = kit_member(WEFT_ROLE_EXPERTS, "e1", 1, WEFT_MEMBER_SERVING);
    m.capacity_bytes = 700;
    m.expert_bytes = 90;
    kit_put_member(d.k, &m);
    m = kit_member(WEFT_ROLE_EXPERTS, "e0", 1, WEFT_MEMBER_SERVING);
    m.capacity_bytes = 800;
    m.expert_bytes = 100; /* the largest counts */
    kit_put_member(d.k, &m);
    desk_run(&d);
    desk_wait(&d, 20 * S);
    ck_assert_str_eq(desk_state(&d).waiting,
                     "the experts do not fit: 1600 bytes are needed, 2 expert "
                     "shards offer 1500");
    m.capacity_bytes = 900;
    kit_put_member(d.k, &m);
    desk_run(&d);
    desk_wait(&d, 20 * S);
    ck_assert_uint_eq(desk_state(&d).planned, 2);
    desk_finish(&d);
}
END_TEST

START_TEST(load_is_looked_at_once)
{
    struct desk d = desk_settled(2);
    float load[KIT_LAYERS * KIT_EXPERTS] = {0};
    const weft_placement *p = weft_roster_placement(d.k->roster, 1);
    for (int32_t e = 0; e < KIT_EXPERTS; e++)
        load[KIT_EXPERTS + e] = weft_placement_owns(p, 0, 1, e) ? 9.0F : 1.0F;
    weft_controller_set_load(d.c, load);
    desk_run(&d);
    desk_wait(&d, 1 * S);
    ck_assert_uint_eq(desk_state(&d).planned, 2);
    desk_ack_all(&d, 2);
    kit_put_switched(d.k, 2, 0, 1);
    desk_wait(&d, 60 * S);
    desk_wait(&d, 1 * S);
    ck_assert_uint_eq(desk_epoch(&d), 2);
    weft_controller_set_load(d.c, NULL);
    desk_wait(&d, 60 * S);
    ck_assert_uint_eq(desk_epoch(&d), 2);
    desk_finish(&d);
}
END_TEST

START_TEST(keys_of_nobody_are_removed)
{
    struct desk d = desk_settled(2);
    kit_put_ack(d.k, 7, "e0", 1, 1, NULL); /* of a plan that was rolled back */
    kit_put(d.k, "epoch/9/placement", "?", 1);
    desk_run(&d);
    desk_wait(&d, 1 * S);
    ck_assert_int_eq(kit_count(d.k, "epoch/7/"), 0);
    ck_assert_int_eq(kit_count(d.k, "epoch/9/"), 0);
    ck_assert_uint_eq(desk_epoch(&d), 1);
    desk_finish(&d);
}
END_TEST

/* A hostile number does not make it remove what is in use. */
START_TEST(a_wrong_retired_number_removes_nothing_in_use)
{
    struct desk d = desk_settled(2);
    kit_put_number(d.k, "epoch/retired", 99);
    desk_run(&d);
    desk_wait(&d, 10 * S);
    ck_assert_ptr_nonnull(weft_roster_placement(d.k->roster, desk_epoch(&d)));
    desk_finish(&d);
}
END_TEST

START_TEST(options_are_checked)
{
    kit *k = kit_create();
    weft_controller *c = NULL;
    weft_err err = {0};
    weft_controller_options o = {
        .shape = &k->shape, .id = "r/0", .replicas = 1};
    ck_assert_int_eq(weft_controller_create(&o, &c, &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, "r/0"));
    o = (weft_controller_options){.shape = &k->shape, .id = "r0"};
    ck_assert_int_eq(weft_controller_create(&o, &c, &err),
                     WEFT_INVALID_ARGUMENT);
    kit_destroy(k);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_test(tests, first_epoch_then_quiet);
    tcase_add_test(tests, nothing_without_lease_or_key);
    tcase_add_test(tests, a_key_of_an_earlier_process_is_taken_over);
    tcase_add_test(tests, joiners_are_gathered_and_placed);
    tcase_add_test(tests, commit_waits_for_every_ack);
    tcase_add_test(tests, retire_waits_for_every_lead);
    tcase_add_test(tests, a_lead_that_has_gone_holds_nothing_up);
    tcase_add_test(tests, a_lead_that_the_registry_has_lost_keeps_its_epoch);
    tcase_add_test(tests, who_drains_is_emptied);
    tcase_add_test(tests, another_model_is_given_nothing);
    tcase_add_test(tests, layers_of_more_ranks_have_the_same_experts);
    tcase_add_test(tests, what_does_not_fit_is_said);
    tcase_add_test(tests, capacities_count_in_bytes_that_members_tell);
    tcase_add_test(tests, load_is_looked_at_once);
    tcase_add_test(tests, keys_of_nobody_are_removed);
    tcase_add_test(tests, a_wrong_retired_number_removes_nothing_in_use);
    tcase_add_test(tests, options_are_checked);
}

int main(void)
{
    return weft_suite_run_added("controller", add);
}
