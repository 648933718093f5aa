/* The agent: its own key, and suspicions. */
#include <stdio.h>
#include <string.h>

#include "tests/support/agent_desk.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

START_TEST(registers_and_keeps_its_key)
{
    kit *k = kit_create();
    struct agent_desk d = agent_desk_experts(k, "e0");
    ck_assert(d.w.registered);
    ck_assert_uint_eq(agent_desk_member(k, "e0")->incarnation, 1);
    ck_assert_uint_eq(weft_agent_self(d.a)->incarnation, 1);
    ck_assert_int_eq(agent_desk_member(k, "e0")->state, WEFT_MEMBER_JOINING);
    weft_agent_set_state(d.a, WEFT_MEMBER_SERVING);
    agent_desk_run(&d);
    ck_assert_int_eq(agent_desk_member(k, "e0")->state, WEFT_MEMBER_SERVING);
    ck_assert_uint_eq(agent_desk_member(k, "e0")->incarnation, 1);
    const int32_t had = d.n_writes;
    agent_desk_wait(&d, 100 * S);
    ck_assert_int_eq(d.n_writes, had);
    kit_remove(k, "members/experts/e0"); /* by whomever */
    agent_desk_run(&d);
    ck_assert_uint_eq(agent_desk_member(k, "e0")->incarnation, 1);
    agent_desk_finish(&d);
}
END_TEST

/* What loads may end, and say so, after that. */
START_TEST(who_drains_does_not_serve_again)
{
    kit *k = kit_create();
    struct agent_desk d = agent_desk_experts(k, "e0");
    weft_agent_set_state(d.a, WEFT_MEMBER_DRAINING);
    weft_agent_set_state(d.a, WEFT_MEMBER_SERVING);
    agent_desk_run(&d);
    ck_assert_int_eq(agent_desk_member(k, "e0")->state, WEFT_MEMBER_DRAINING);
    weft_agent_set_state(d.a, WEFT_MEMBER_SERVING);
    agent_desk_run(&d);
    ck_assert_int_eq(agent_desk_member(k, "e0")->state, WEFT_MEMBER_DRAINING);
    agent_desk_finish(&d);
}
END_TEST

START_TEST(waits_for_lease_and_listing)
{
    kit *k = kit_create();
    const weft_member self =
        kit_member(WEFT_ROLE_EXPERTS, "e0", 0, WEFT_MEMBER_JOINING);
    struct agent_desk d = {.k = k, .now = S};
    OK(weft_agent_create(&self, &d.a, &err));
    agent_desk_run(&d);
    agent_desk_take(&d, WEFT_REGISTRY_LEASE, WEFT_OK);
    agent_desk_run(&d);
    ck_assert_int_eq(d.n_writes, 0);
    ck_assert(!d.w.registered);
    agent_desk_take(&d, WEFT_REGISTRY_RELIST_END, WEFT_OK);
    agent_desk_run(&d);
    ck_assert(d.w.registered);
    agent_desk_finish(&d);
}
END_TEST

/* _i: where a higher incarnation is told of. */
START_TEST(incarnation_is_above_any_before)
{
    kit *k = kit_create();
    weft_placement *p = kit_placement(k, 2, 2);
    p->members[0].incarnation = 9;
    switch (_i) {
    case 0: kit_put_experts(k, "e0", 9, WEFT_MEMBER_SERVING); break;
    case 1: kit_put_placement(k, p); break;
    case 2: kit_put_ack(k, 2, "e0", 9, 1, NULL); break;
    default: kit_put_suspicion(k, "e0", 9, "l0"); break;
    }
    struct agent_desk d = agent_desk_experts(k, "e0");
    ck_assert_uint_eq(agent_desk_member(k, "e0")->incarnation, 10);
    weft_placement_destroy(p);
    agent_desk_finish(&d);
}
END_TEST

START_TEST(incarnation_is_at_least_the_given)
{
    kit *k = kit_create();
    weft_member self =
        kit_member(WEFT_ROLE_EXPERTS, "e0", 1234, WEFT_MEMBER_JOINING);
    struct agent_desk d = agent_desk_of(k, &self);
    agent_desk_run(&d);
    ck_assert_uint_eq(agent_desk_member(k, "e0")->incarnation, 1234);
    agent_desk_finish(&d);
}
END_TEST

START_TEST(the_second_of_one_id_fences_the_first)
{
    kit *k = kit_create();
    struct agent_desk a = agent_desk_experts(k, "e0"),
                      b = agent_desk_experts(k, "e0");
    ck_assert(b.w.registered);
    ck_assert_uint_eq(agent_desk_member(k, "e0")->incarnation, 2);
    agent_desk_run(&a);
    ck_assert(a.w.fenced && !a.w.registered && !a.w.write);
    ck_assert_str_eq(a.w.text, "e0 is another process since: incarnation 2, "
                               "ours is 1");
    kit_remove(k, "members/experts/e0");
    agent_desk_run(&a);
    ck_assert(a.w.fenced); /* for good */
    agent_desk_run(&b);
    ck_assert_uint_eq(agent_desk_member(k, "e0")->incarnation, 2);
    agent_desk_end(&a);
    agent_desk_end(&b);
    kit_destroy(k);
}
END_TEST

/* Both write at the same moment: one compare holds. */
START_TEST(two_that_register_at_once)
{
    kit *k = kit_create();
    const weft_member self =
        kit_member(WEFT_ROLE_EXPERTS, "e0", 0, WEFT_MEMBER_JOINING);
    struct agent_desk a = agent_desk_of(k, &self), b = agent_desk_of(k, &self);
    weft_txn ta, tb;
    weft_registry_event result;
    weft_agent_turn(a.a, k->roster, a.now, &ta, &a.w);
    weft_agent_turn(b.a, k->roster, b.now, &tb, &b.w);
    kit_submit(k, &ta, "a", &result);
    weft_agent_take(a.a, &result, a.now);
    kit_submit(k, &tb, "b", &result);
    ck_assert_int_eq(result.status, WEFT_FAILED_PRECONDITION);
    weft_agent_take(b.a, &result, b.now);
    agent_desk_run(&a);
    agent_desk_wait(&b, 1 * S);
    agent_desk_run(&a);
    ck_assert(b.w.registered && a.w.fenced);
    agent_desk_end(&a);
    agent_desk_end(&b);
    kit_destroy(k);
}
END_TEST

START_TEST(an_unknown_result_is_not_taken_for_success)
{
    kit *k = kit_create();
    const weft_member self =
        kit_member(WEFT_ROLE_EXPERTS, "e0", 0, WEFT_MEMBER_JOINING);
    struct agent_desk d = agent_desk_of(k, &self);
    weft_txn txn;
    weft_registry_event result;
    weft_agent_turn(d.a, k->roster, d.now, &txn, &d.w);
    kit_submit(k, &txn, "e0", &result);
    result.status = WEFT_UNAVAILABLE;
    weft_agent_take(d.a, &result, d.now);
    agent_desk_wait(&d, 1 * S);
    ck_assert(d.w.registered && !d.w.fenced);
    ck_assert_uint_eq(agent_desk_member(k, "e0")->incarnation, 2);
    agent_desk_finish(&d);
}
END_TEST

START_TEST(lease_and_store_lost_are_survived_with_the_same)
{
    kit *k = kit_create();
    struct agent_desk d = agent_desk_experts(k, "e0");
    agent_desk_take(&d, WEFT_REGISTRY_LEASE, WEFT_UNAVAILABLE);
    kit_end_lease(k, "e0");
    agent_desk_run(&d);
    ck_assert(!d.w.registered);
    ck_assert_int_eq(k->n, 0);
    agent_desk_take(&d, WEFT_REGISTRY_LEASE, WEFT_OK);
    agent_desk_run(&d);
    ck_assert_uint_eq(agent_desk_member(k, "e0")->incarnation, 1);
    kit_wipe(k);
    agent_desk_take(&d, WEFT_REGISTRY_LEASE, WEFT_UNAVAILABLE);
    agent_desk_take(&d, WEFT_REGISTRY_LEASE, WEFT_OK);
    agent_desk_run(&d);
    ck_assert_uint_eq(agent_desk_member(k, "e0")->incarnation, 1);
    ck_assert(!d.w.fenced);
    agent_desk_finish(&d);
}
END_TEST

START_TEST(suspicions_are_written_and_withdrawn)
{
    kit *k = kit_create();
    struct agent_desk d = agent_desk_lead(k, "l0");
    kit_put_experts(k, "e0", 1, WEFT_MEMBER_SERVING);
    agent_desk_plan(k, 4, 2);
    agent_desk_commit(k, 4);
    weft_agent_suspect(d.a, "e0", 1, true);
    agent_desk_run(&d);
    ck_assert(kit_has(k, "suspects/e0/l0"));
    ck_assert(weft_roster_is_suspect(k->roster, agent_desk_member(k, "e0")));
    agent_desk_wait(&d, 100 * S); /* as long as the epoch needs it */
    ck_assert(kit_has(k, "suspects/e0/l0"));
    weft_agent_suspect(d.a, "e0", 1, false);
    agent_desk_run(&d);
    ck_assert(!kit_has(k, "suspects/e0/l0"));
    agent_desk_finish(&d);
}
END_TEST

/* A lead in an epoch that does without e0, which serves. */
static struct agent_desk lead_without_e0(void)
{
    kit *const k = kit_create();
    const struct agent_desk d = agent_desk_lead(k, "l0");
    kit_put_experts(k, "e0", 1, WEFT_MEMBER_SERVING);
    weft_placement *const p = kit_placement(k, 5, 3);
    memcpy(p->members[0].id, "a0", 3);
    kit_put_placement(k, p);
    agent_desk_commit(k, 5);
    weft_placement_destroy(p);
    return d;
}

START_TEST(a_suspicion_ends_with_its_member)
{
    struct agent_desk d = lead_without_e0();
    kit *const k = d.k;
    weft_agent_suspect(d.a, "e0", 1, true);
    agent_desk_run(&d);
    ck_assert(kit_has(k, "suspects/e0/l0"));
    kit_put_experts(k, "e0", 2, WEFT_MEMBER_JOINING);
    agent_desk_run(&d);
    ck_assert(!kit_has(k, "suspects/e0/l0"));
    agent_desk_finish(&d);
}
END_TEST

/* Else nobody would ever look whether it can be reached again. */
START_TEST(a_suspicion_heals_with_time)
{
    struct agent_desk d = lead_without_e0();
    kit *const k = d.k;
    for (uint64_t round = 1; round <= 3; round++) {
        const uint64_t heals = (10 * S) << (round - 1);
        weft_agent_suspect(d.a, "e0", 1, true);
        agent_desk_run(&d);
        ck_assert(kit_has(k, "suspects/e0/l0"));
        ck_assert_uint_le(d.w.next_ns, d.now + heals + 1);
        agent_desk_wait(&d, heals - 1 * S);
        ck_assert(kit_has(k, "suspects/e0/l0"));
        agent_desk_wait(&d, 2 * S);
        ck_assert(!kit_has(k, "suspects/e0/l0"));
    }
    agent_desk_finish(&d);
}
END_TEST

/* Both may go by the name of their host. */
START_TEST(a_lead_suspects_an_expert_shard_of_its_own_name)
{
    kit *k = kit_create();
    struct agent_desk lead = agent_desk_lead(k, "host");
    struct agent_desk experts = agent_desk_experts(k, "host");
    weft_agent_suspect(lead.a, "host",
                       agent_desk_member(k, "host")->incarnation, true);
    agent_desk_run(&lead);
    ck_assert(kit_has(k, "suspects/host/host"));
    agent_desk_run(&experts); /* which reported nothing: not its key */
    ck_assert(kit_has(k, "suspects/host/host"));
    agent_desk_end(&lead);
    agent_desk_end(&experts);
    kit_destroy(k);
}
END_TEST

START_TEST(nobody_suspects_itself)
{
    kit *k = kit_create();
    struct agent_desk d = agent_desk_lead(k, "l0");
    weft_agent_suspect(d.a, "l0", 1, true);
    weft_agent_suspect(d.a, "not a name", 1, true);
    for (int32_t i = 0; i < 200; i++) {
        char id[WEFT_ID_BYTES];
        (void)snprintf(id, sizeof id, "x%d", i);
        weft_agent_suspect(d.a, id, 1, true);
    }
    agent_desk_run(&d);
    ck_assert_int_eq(kit_count(k, "suspects/"), 0);
    agent_desk_finish(&d);
}
END_TEST

START_TEST(ids_are_checked)
{
    weft_agent *a = NULL;
    weft_err err = {0};
    const weft_member self =
        kit_member(WEFT_ROLE_EXPERTS, "e/0", 0, WEFT_MEMBER_JOINING);
    ck_assert_int_eq(weft_agent_create(&self, &a, &err), WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, "e/0"));
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_test(tests, registers_and_keeps_its_key);
    tcase_add_test(tests, who_drains_does_not_serve_again);
    tcase_add_test(tests, waits_for_lease_and_listing);
    tcase_add_loop_test(tests, incarnation_is_above_any_before, 0, 4);
    tcase_add_test(tests, incarnation_is_at_least_the_given);
    tcase_add_test(tests, the_second_of_one_id_fences_the_first);
    tcase_add_test(tests, two_that_register_at_once);
    tcase_add_test(tests, an_unknown_result_is_not_taken_for_success);
    tcase_add_test(tests, lease_and_store_lost_are_survived_with_the_same);
    tcase_add_test(tests, suspicions_are_written_and_withdrawn);
    tcase_add_test(tests, a_suspicion_ends_with_its_member);
    tcase_add_test(tests, a_suspicion_heals_with_time);
    tcase_add_test(tests, a_lead_suspects_an_expert_shard_of_its_own_name);
    tcase_add_test(tests, nobody_suspects_itself);
    tcase_add_test(tests, ids_are_checked);
}

int main(void)
{
    return weft_suite_run_added("agent, member", add);
}
