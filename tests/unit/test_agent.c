/* The agent: plans, acks, epochs, draining. */
#include <stdio.h>
#include <string.h>

#include "tests/support/agent_desk.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

static const weft_ack *only_ack(const kit *k)
{
    const weft_ack *acks;
    ck_assert_int_eq(weft_roster_acks(k->roster, &acks), 1);
    return acks;
}

/* e0 with a plan for it, which it has not seen yet. */
static struct agent_desk planned(void)
{
    kit *const k = kit_create();
    const struct agent_desk d = agent_desk_experts(k, "e0");
    agent_desk_plan(k, 4, 2);
    return d;
}

/* The lead l0 with an epoch, which it has not seen yet. */
static struct agent_desk leading(void)
{
    kit *const k = kit_create();
    const struct agent_desk d = agent_desk_lead(k, "l0");
    agent_desk_move(k, 4, 2);
    return d;
}

static void load(struct agent_desk *d, uint64_t epoch)
{
    weft_agent_loaded(d->a, epoch, 1, NULL);
    agent_desk_run(d);
}

START_TEST(plan_load_ack)
{
    struct agent_desk d = planned();
    kit *const k = d.k;
    agent_desk_run(&d);
    ck_assert_uint_eq(d.prepared, 4);
    agent_desk_run(&d);
    ck_assert_int_eq(d.n_prepared, 1); /* once */
    ck_assert_int_eq(kit_count(k, "epoch/4/ack/"), 0);
    ck_assert_uint_eq(d.w.epoch_last, 0);
    weft_agent_loaded(d.a, 4, 123, NULL);
    agent_desk_run(&d);
    const weft_ack *ack = only_ack(k);
    ck_assert_uint_eq(ack->epoch, 4);
    ck_assert_uint_eq(ack->incarnation, 1);
    ck_assert_uint_eq(ack->placement_hash,
                      weft_placement_hash(weft_roster_placement(k->roster, 4)));
    ck_assert_int_eq(ack->loaded_bytes, 123);
    ck_assert(!ack->failed);
    /* It answers before the epoch is committed. */
    ck_assert_uint_eq(d.w.epoch_first, 4);
    ck_assert_uint_eq(d.w.epoch_last, 4);
    kit_remove(k, "epoch/4/ack/e0"); /* lost with a lease */
    agent_desk_run(&d);
    (void)only_ack(k);
    agent_desk_finish(&d);
}
END_TEST

START_TEST(a_failure_is_said)
{
    struct agent_desk d = planned();
    kit *const k = d.k;
    agent_desk_run(&d);
    weft_agent_loaded(d.a, 4, 0, "no memory\nfor it");
    agent_desk_run(&d);
    ck_assert(only_ack(k)->failed);
    ck_assert_str_eq(only_ack(k)->text, "no memory?for it");
    ck_assert_uint_eq(d.w.epoch_last, 0);
    agent_desk_finish(&d);
}
END_TEST

/* What was loaded for one placement is no answer for another of its number. */
START_TEST(a_plan_that_changed_is_loaded_again)
{
    struct agent_desk d = planned();
    kit *const k = d.k;
    agent_desk_run(&d);
    agent_desk_plan(k, 4, 3);
    weft_agent_loaded(d.a, 4, 1, NULL);
    agent_desk_step(&d); /* hands it out again; nothing is acknowledged */
    ck_assert_int_eq(d.n_prepared, 2);
    agent_desk_run(&d);
    ck_assert_int_eq(kit_count(k, "epoch/4/ack/"), 0);
    load(&d, 4);
    (void)only_ack(k);
    agent_desk_finish(&d);
}
END_TEST

START_TEST(plans_of_others_are_not_ours)
{
    kit *k = kit_create();
    struct agent_desk d = agent_desk_experts(k, "e7");
    agent_desk_plan(k, 4, 2);
    agent_desk_run(&d);
    ck_assert_int_eq(d.n_prepared, 0);
    /* Nor those of another incarnation. */
    struct agent_desk again = agent_desk_experts(k, "e0");
    struct agent_desk later = agent_desk_experts(k, "e0");
    agent_desk_run(&later);
    ck_assert_int_eq(later.n_prepared, 0);
    agent_desk_end(&d);
    agent_desk_end(&again);
    agent_desk_end(&later);
    kit_destroy(k);
}
END_TEST

START_TEST(retired_epochs_are_let_go_of_once_the_next_is_loaded)
{
    struct agent_desk d = planned();
    kit *const k = d.k;
    agent_desk_run(&d);
    load(&d, 4);
    agent_desk_move(k, 5, 3);
    kit_put_number(k, "epoch/retired", 4);
    agent_desk_run(&d);
    ck_assert_uint_eq(d.prepared, 5);
    ck_assert_uint_eq(d.retired, 0); /* 5 is not loaded yet */
    ck_assert_uint_eq(d.w.epoch_first, 4);
    load(&d, 5);
    ck_assert_uint_eq(d.retired, 4);
    ck_assert_uint_eq(d.w.epoch_first, 5);
    ck_assert_uint_eq(d.w.epoch_last, 5);
    agent_desk_finish(&d);
}
END_TEST

/* However many plans come to nothing, what is committed is answered for. */
START_TEST(plans_that_come_to_nothing_do_not_push_out_the_committed)
{
    struct agent_desk d = planned();
    kit *const k = d.k;
    agent_desk_run(&d);
    weft_agent_loaded(d.a, 4, 1, NULL);
    agent_desk_commit(k, 4);
    agent_desk_run(&d);
    for (uint64_t epoch = 5; epoch < 45; epoch++) {
        char key[WEFT_KEY_BYTES];
        agent_desk_plan(k, epoch, 3);
        agent_desk_run(&d);
        ck_assert_uint_eq(d.prepared, epoch);
        load(&d, epoch);
        ck_assert_uint_eq(d.w.epoch_last, epoch);
        (void)snprintf(key, sizeof key, "epoch/%d/ack/e0", (int)epoch);
        kit_remove(k, key);
        kit_remove(k, weft_key_of_placement(epoch, key));
        agent_desk_run(&d);
        ck_assert_uint_eq(d.prepared, epoch); /* not 4 again */
        ck_assert_uint_eq(d.w.epoch_first, 4);
        ck_assert_uint_eq(d.w.epoch_last, 4);
    }
    agent_desk_finish(&d);
}
END_TEST

START_TEST(the_committed_epoch_is_never_retired)
{
    struct agent_desk d = planned();
    kit *const k = d.k;
    agent_desk_commit(k, 4);
    agent_desk_run(&d);
    weft_agent_loaded(d.a, 4, 1, NULL);
    kit_put_number(k, "epoch/retired", 99);
    agent_desk_run(&d);
    ck_assert_uint_eq(d.retired, 3);
    ck_assert_uint_eq(d.w.epoch_last, 4);
    agent_desk_finish(&d);
}
END_TEST

START_TEST(committed_epochs_are_told_once_and_upwards)
{
    kit *k = kit_create();
    struct agent_desk d = agent_desk_lead(k, "l0");
    agent_desk_plan(k, 4, 2);
    agent_desk_run(&d);
    ck_assert_int_eq(d.n_committed, 0);
    agent_desk_commit(k, 4);
    agent_desk_run(&d);
    agent_desk_run(&d);
    ck_assert_int_eq(d.n_committed, 1);
    ck_assert_uint_eq(d.committed, 4);
    ck_assert_uint_eq(
        weft_roster_find(k->roster, WEFT_ROLE_LAYERS, "l0")->epoch, 4);
    agent_desk_move(k, 3, 3); /* a store that was filled from an older copy */
    agent_desk_run(&d);
    ck_assert_int_eq(d.n_committed, 1);
    /* Its member key tells of the higher one. */
    ck_assert_uint_eq(weft_roster_epoch_max(k->roster), 4);
    agent_desk_finish(&d);
}
END_TEST

START_TEST(another_placement_under_one_number_asks_for_a_higher)
{
    struct agent_desk d = leading();
    kit *const k = d.k;
    agent_desk_run(&d);
    kit_wipe(k);
    agent_desk_move(k, 4, 3);
    agent_desk_wait(&d, 2 * S);
    ck_assert_int_eq(d.n_committed, 1);
    ck_assert_uint_eq(weft_roster_epoch_max(k->roster), 5);
    agent_desk_move(k, 6, 3);
    agent_desk_run(&d);
    ck_assert_uint_eq(d.committed, 6);
    agent_desk_finish(&d);
}
END_TEST

START_TEST(a_lead_says_that_it_has_switched)
{
    struct agent_desk d = leading();
    kit *const k = d.k;
    agent_desk_run(&d);
    ck_assert_int_eq(kit_count(k, "epoch/4/switched/"), 0);
    weft_agent_switched(d.a, 4);
    agent_desk_run(&d);
    ck_assert(kit_has(k, "epoch/4/switched/3/1"));
    weft_agent_switched(d.a, 3); /* never back */
    agent_desk_run(&d);
    ck_assert(!kit_has(k, "epoch/3/switched/3/1"));
    kit_remove(k, "epoch/4/switched/3/1");
    agent_desk_run(&d);
    ck_assert(kit_has(k, "epoch/4/switched/3/1"));
    /* Not under an epoch that the store does not have, or that is over. */
    kit_wipe(k);
    agent_desk_run(&d);
    ck_assert_int_eq(kit_count(k, "epoch/"), 0);
    kit_put_number(k, "epoch/retired", 4);
    agent_desk_move(k, 5, 2);
    agent_desk_run(&d);
    ck_assert(!kit_has(k, "epoch/4/switched/3/1"));
    agent_desk_finish(&d);
}
END_TEST

/* One is about to go; until then each says what it does, and no more often
 * than if it were alone. */
START_TEST(two_leads_of_one_group_do_not_write_over_each_other)
{
    kit *k = kit_create();
    const weft_switched *switched;
    weft_member later =
        kit_member(WEFT_ROLE_LAYERS, "l1", 7, WEFT_MEMBER_SERVING);
    later.group = 3;
    struct agent_desk a = agent_desk_lead(k, "l0");
    struct agent_desk b = agent_desk_of(k, &later);
    agent_desk_run(&b);
    agent_desk_move(k, 4, 2);
    weft_agent_switched(a.a, 4);
    weft_agent_switched(b.a, 4);
    agent_desk_run(&a);
    agent_desk_run(&b);
    const int32_t n_writes = a.n_writes + b.n_writes;
    for (int32_t i = 0; i < 5; i++) {
        agent_desk_run(&a);
        agent_desk_run(&b);
    }
    ck_assert_int_le(a.n_writes + b.n_writes, n_writes + 2); /* their epochs */
    ck_assert_int_eq(weft_roster_switched(k->roster, &switched), 2);
    agent_desk_end(&a);
    agent_desk_end(&b);
    kit_destroy(k);
}
END_TEST

START_TEST(stages_behind_the_lead_say_nothing)
{
    kit *k = kit_create();
    weft_member self =
        kit_member(WEFT_ROLE_LAYERS, "l1", 0, WEFT_MEMBER_SERVING);
    self.stage = 1;
    self.n_stages = 2;
    struct agent_desk d = agent_desk_of(k, &self);
    agent_desk_move(k, 4, 2);
    weft_agent_switched(d.a, 4);
    agent_desk_run(&d);
    ck_assert_uint_eq(d.committed, 4);
    ck_assert_int_eq(kit_count(k, "epoch/4/switched/"), 0);
    agent_desk_finish(&d);
}
END_TEST

START_TEST(who_drains_knows_when_it_is_empty)
{
    struct agent_desk d = planned();
    kit *const k = d.k;
    agent_desk_commit(k, 4);
    agent_desk_run(&d);
    weft_agent_loaded(d.a, 4, 1, NULL);
    weft_agent_set_state(d.a, WEFT_MEMBER_DRAINING);
    agent_desk_run(&d);
    ck_assert(!d.w.emptied);
    ck_assert_int_eq(agent_desk_member(k, "e0")->state, WEFT_MEMBER_DRAINING);
    weft_placement *p = kit_placement(k, 5, 3);
    memcpy(p->members[0].id, "a0", 3); /* does without e0 */
    kit_put_placement(k, p);
    agent_desk_run(&d);
    ck_assert(!d.w.emptied);
    agent_desk_commit(k, 5);
    agent_desk_run(&d);
    ck_assert(!d.w.emptied); /* leads may still be of 4 */
    kit_put_number(k, "epoch/retired", 4);
    agent_desk_run(&d);
    ck_assert(d.w.emptied);
    weft_placement_destroy(p);
    agent_desk_finish(&d);
}
END_TEST

START_TEST(a_store_that_was_lost_empties_nobody)
{
    struct agent_desk d = planned();
    kit *const k = d.k;
    agent_desk_commit(k, 4);
    agent_desk_run(&d);
    weft_agent_set_state(d.a, WEFT_MEMBER_DRAINING);
    kit_wipe(k);
    agent_desk_run(&d);
    ck_assert(!d.w.emptied);
    agent_desk_finish(&d);
}
END_TEST

START_TEST(what_is_not_registered_writes_nothing_else)
{
    struct agent_desk d = leading();
    kit *const k = d.k;
    agent_desk_run(&d);
    agent_desk_take(&d, WEFT_REGISTRY_LEASE, WEFT_UNAVAILABLE);
    kit_end_lease(k, "l0");
    weft_agent_switched(d.a, 4);
    kit_put_experts(k, "e0", 1, WEFT_MEMBER_SERVING);
    weft_agent_suspect(d.a, "e0", 1, true);
    const int32_t had = d.n_writes;
    agent_desk_wait(&d, 10 * S);
    ck_assert_int_eq(d.n_writes, had);
    agent_desk_take(&d, WEFT_REGISTRY_LEASE, WEFT_OK);
    agent_desk_run(&d);
    ck_assert(kit_has(k, "members/layers/l0"));
    ck_assert(kit_has(k, "epoch/4/switched/3/1"));
    ck_assert(kit_has(k, "suspects/e0/l0"));
    agent_desk_finish(&d);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_test(tests, plan_load_ack);
    tcase_add_test(tests, a_failure_is_said);
    tcase_add_test(tests, a_plan_that_changed_is_loaded_again);
    tcase_add_test(tests, plans_of_others_are_not_ours);
    tcase_add_test(tests, retired_epochs_are_let_go_of_once_the_next_is_loaded);
    tcase_add_test(tests,
                   plans_that_come_to_nothing_do_not_push_out_the_committed);
    tcase_add_test(tests, the_committed_epoch_is_never_retired);
    tcase_add_test(tests, committed_epochs_are_told_once_and_upwards);
    tcase_add_test(tests, another_placement_under_one_number_asks_for_a_higher);
    tcase_add_test(tests, a_lead_says_that_it_has_switched);
    tcase_add_test(tests, two_leads_of_one_group_do_not_write_over_each_other);
    tcase_add_test(tests, stages_behind_the_lead_say_nothing);
    tcase_add_test(tests, who_drains_knows_when_it_is_empty);
    tcase_add_test(tests, a_store_that_was_lost_empties_nobody);
    tcase_add_test(tests, what_is_not_registered_writes_nothing_else);
}

int main(void)
{
    return weft_suite_run_added("agent", add);
}
