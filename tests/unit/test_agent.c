/* The agent over rosters made by hand, in virtual time. */
#include <stdio.h>
#include <string.h>

#include "tests/support/expect.h"
#include "tests/support/roster_kit.h"
#include "tests/support/suite.h"

#define MS UINT64_C(1000000)
#define S  (1000 * MS)

struct desk {
    kit *k;
    weft_agent *a;
    uint64_t now;
    char owner[WEFT_ID_BYTES];
    weft_agent_wants w; /* of the last turn */
    /* What was told, over all turns. */
    uint64_t prepared, committed, retired;
    int32_t n_prepared, n_committed, n_writes;
};

static void take(struct desk *d, weft_registry_event_kind kind, weft_status st)
{
    const weft_registry_event event = {.kind = kind, .status = st};
    weft_agent_take(d->a, &event, d->now);
}

static struct desk desk_of(kit *k, const weft_member *self)
{
    struct desk d = {.k = k, .now = 100 * S};
    (void)snprintf(d.owner, sizeof d.owner, "%s", self->id);
    OK(weft_agent_create(self, &d.a, &err));
    take(&d, WEFT_REGISTRY_LEASE, WEFT_OK);
    take(&d, WEFT_REGISTRY_RELIST_END, WEFT_OK);
    return d;
}

static bool step(struct desk *d)
{
    weft_txn txn;
    weft_registry_event result;
    weft_agent_turn(d->a, d->k->roster, d->now, &txn, &d->w);
    if (d->w.prepare != NULL) {
        d->prepared = d->w.prepare->epoch;
        d->n_prepared++;
    }
    if (d->w.commit != NULL) {
        d->committed = d->w.commit->epoch;
        d->n_committed++;
    }
    if (d->w.retired != 0) d->retired = d->w.retired;
    if (!d->w.write) return d->w.next_ns <= d->now;
    d->n_writes++;
    kit_submit(d->k, &txn, d->owner, &result);
    weft_agent_take(d->a, &result, d->now);
    return true;
}

static void run(struct desk *d)
{
    for (int32_t i = 0; step(d); i++) ck_assert_int_lt(i, 50);
}

static void wait(struct desk *d, uint64_t ns)
{
    d->now += ns;
    run(d);
}

static void end(struct desk *d)
{
    weft_agent_destroy(d->a);
}

static struct desk experts(kit *k, const char *id)
{
    const weft_member self =
        kit_member(WEFT_ROLE_EXPERTS, id, 0, WEFT_MEMBER_JOINING);
    struct desk d = desk_of(k, &self);
    run(&d);
    return d;
}

static struct desk lead(kit *k, const char *id)
{
    weft_member self = kit_member(WEFT_ROLE_LAYERS, id, 0, WEFT_MEMBER_SERVING);
    self.group = 3;
    struct desk d = desk_of(k, &self);
    run(&d);
    return d;
}

static const weft_member *member(const kit *k, const char *id)
{
    return weft_roster_find(k->roster, WEFT_ROLE_EXPERTS, id);
}

static void commit(kit *k, uint64_t epoch)
{
    kit_put_number(k, "epoch/current", epoch);
}

static void plan(kit *k, uint64_t epoch, int32_t n)
{
    weft_placement *p = kit_placement(k, epoch, n);
    kit_put_placement(k, p);
    weft_placement_destroy(p);
}

static const weft_ack *only_ack(const kit *k)
{
    const weft_ack *acks;
    ck_assert_int_eq(weft_roster_acks(k->roster, &acks), 1);
    return acks;
}

START_TEST(registers_and_keeps_its_key)
{
    kit *k = kit_create();
    struct desk d = experts(k, "e0");
    ck_assert(d.w.registered);
    ck_assert_uint_eq(member(k, "e0")->incarnation, 1);
    ck_assert_uint_eq(weft_agent_self(d.a)->incarnation, 1);
    ck_assert_int_eq(member(k, "e0")->state, WEFT_MEMBER_JOINING);
    weft_agent_set_state(d.a, WEFT_MEMBER_SERVING);
    run(&d);
    ck_assert_int_eq(member(k, "e0")->state, WEFT_MEMBER_SERVING);
    ck_assert_uint_eq(member(k, "e0")->incarnation, 1);
    const int32_t had = d.n_writes;
    wait(&d, 100 * S);
    ck_assert_int_eq(d.n_writes, had);
    kit_remove(k, "members/experts/e0"); /* by whomever */
    run(&d);
    ck_assert_uint_eq(member(k, "e0")->incarnation, 1);
    end(&d);
    kit_destroy(k);
}
END_TEST

START_TEST(waits_for_lease_and_listing)
{
    kit *k = kit_create();
    const weft_member self =
        kit_member(WEFT_ROLE_EXPERTS, "e0", 0, WEFT_MEMBER_JOINING);
    struct desk d = {.k = k, .now = S};
    OK(weft_agent_create(&self, &d.a, &err));
    run(&d);
    take(&d, WEFT_REGISTRY_LEASE, WEFT_OK);
    run(&d);
    ck_assert_int_eq(d.n_writes, 0);
    ck_assert(!d.w.registered);
    take(&d, WEFT_REGISTRY_RELIST_END, WEFT_OK);
    run(&d);
    ck_assert(d.w.registered);
    end(&d);
    kit_destroy(k);
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
    struct desk d = experts(k, "e0");
    ck_assert_uint_eq(member(k, "e0")->incarnation, 10);
    weft_placement_destroy(p);
    end(&d);
    kit_destroy(k);
}
END_TEST

START_TEST(incarnation_is_at_least_the_given)
{
    kit *k = kit_create();
    weft_member self =
        kit_member(WEFT_ROLE_EXPERTS, "e0", 1234, WEFT_MEMBER_JOINING);
    struct desk d = desk_of(k, &self);
    run(&d);
    ck_assert_uint_eq(member(k, "e0")->incarnation, 1234);
    end(&d);
    kit_destroy(k);
}
END_TEST

START_TEST(the_second_of_one_id_fences_the_first)
{
    kit *k = kit_create();
    struct desk a = experts(k, "e0"), b = experts(k, "e0");
    ck_assert(b.w.registered);
    ck_assert_uint_eq(member(k, "e0")->incarnation, 2);
    run(&a);
    ck_assert(a.w.fenced && !a.w.registered && !a.w.write);
    ck_assert_str_eq(a.w.text, "e0 is another process since: incarnation 2, "
                               "ours is 1");
    kit_remove(k, "members/experts/e0");
    run(&a);
    ck_assert(a.w.fenced); /* for good */
    run(&b);
    ck_assert_uint_eq(member(k, "e0")->incarnation, 2);
    end(&a);
    end(&b);
    kit_destroy(k);
}
END_TEST

/* Both write at the same moment: one compare holds. */
START_TEST(two_that_register_at_once)
{
    kit *k = kit_create();
    const weft_member self =
        kit_member(WEFT_ROLE_EXPERTS, "e0", 0, WEFT_MEMBER_JOINING);
    struct desk a = desk_of(k, &self), b = desk_of(k, &self);
    weft_txn ta, tb;
    weft_registry_event result;
    weft_agent_turn(a.a, k->roster, a.now, &ta, &a.w);
    weft_agent_turn(b.a, k->roster, b.now, &tb, &b.w);
    kit_submit(k, &ta, "a", &result);
    weft_agent_take(a.a, &result, a.now);
    kit_submit(k, &tb, "b", &result);
    ck_assert_int_eq(result.status, WEFT_FAILED_PRECONDITION);
    weft_agent_take(b.a, &result, b.now);
    run(&a);
    wait(&b, 1 * S);
    run(&a);
    ck_assert(b.w.registered && a.w.fenced);
    end(&a);
    end(&b);
    kit_destroy(k);
}
END_TEST

START_TEST(an_unknown_result_is_not_taken_for_success)
{
    kit *k = kit_create();
    const weft_member self =
        kit_member(WEFT_ROLE_EXPERTS, "e0", 0, WEFT_MEMBER_JOINING);
    struct desk d = desk_of(k, &self);
    weft_txn txn;
    weft_registry_event result;
    weft_agent_turn(d.a, k->roster, d.now, &txn, &d.w);
    kit_submit(k, &txn, "e0", &result);
    result.status = WEFT_UNAVAILABLE;
    weft_agent_take(d.a, &result, d.now);
    wait(&d, 1 * S);
    ck_assert(d.w.registered && !d.w.fenced);
    ck_assert_uint_eq(member(k, "e0")->incarnation, 2);
    end(&d);
    kit_destroy(k);
}
END_TEST

START_TEST(lease_and_store_lost_are_survived_with_the_same)
{
    kit *k = kit_create();
    struct desk d = experts(k, "e0");
    take(&d, WEFT_REGISTRY_LEASE, WEFT_UNAVAILABLE);
    kit_end_lease(k, "e0");
    run(&d);
    ck_assert(!d.w.registered);
    ck_assert_int_eq(k->n, 0);
    take(&d, WEFT_REGISTRY_LEASE, WEFT_OK);
    run(&d);
    ck_assert_uint_eq(member(k, "e0")->incarnation, 1);
    kit_wipe(k);
    take(&d, WEFT_REGISTRY_LEASE, WEFT_UNAVAILABLE);
    take(&d, WEFT_REGISTRY_LEASE, WEFT_OK);
    run(&d);
    ck_assert_uint_eq(member(k, "e0")->incarnation, 1);
    ck_assert(!d.w.fenced);
    end(&d);
    kit_destroy(k);
}
END_TEST

START_TEST(plan_load_ack)
{
    kit *k = kit_create();
    struct desk d = experts(k, "e0");
    plan(k, 4, 2);
    run(&d);
    ck_assert_uint_eq(d.prepared, 4);
    run(&d);
    ck_assert_int_eq(d.n_prepared, 1); /* once */
    ck_assert_int_eq(kit_count(k, "epoch/4/ack/"), 0);
    ck_assert_uint_eq(d.w.epoch_last, 0);
    weft_agent_loaded(d.a, 4, 123, NULL);
    run(&d);
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
    run(&d);
    (void)only_ack(k);
    end(&d);
    kit_destroy(k);
}
END_TEST

START_TEST(a_failure_is_said)
{
    kit *k = kit_create();
    struct desk d = experts(k, "e0");
    plan(k, 4, 2);
    run(&d);
    weft_agent_loaded(d.a, 4, 0, "no memory\nfor it");
    run(&d);
    ck_assert(only_ack(k)->failed);
    ck_assert_str_eq(only_ack(k)->text, "no memory?for it");
    ck_assert_uint_eq(d.w.epoch_last, 0);
    end(&d);
    kit_destroy(k);
}
END_TEST

/* What was loaded for one placement is no answer for another of its number. */
START_TEST(a_plan_that_changed_is_loaded_again)
{
    kit *k = kit_create();
    struct desk d = experts(k, "e0");
    plan(k, 4, 2);
    run(&d);
    plan(k, 4, 3);
    weft_agent_loaded(d.a, 4, 1, NULL);
    step(&d); /* hands it out again; nothing is acknowledged */
    ck_assert_int_eq(d.n_prepared, 2);
    run(&d);
    ck_assert_int_eq(kit_count(k, "epoch/4/ack/"), 0);
    weft_agent_loaded(d.a, 4, 1, NULL);
    run(&d);
    (void)only_ack(k);
    end(&d);
    kit_destroy(k);
}
END_TEST

START_TEST(plans_of_others_are_not_ours)
{
    kit *k = kit_create();
    struct desk d = experts(k, "e7");
    plan(k, 4, 2);
    run(&d);
    ck_assert_int_eq(d.n_prepared, 0);
    /* Nor those of another incarnation. */
    struct desk again = experts(k, "e0");
    struct desk later = experts(k, "e0");
    run(&later);
    ck_assert_int_eq(later.n_prepared, 0);
    end(&d);
    end(&again);
    end(&later);
    kit_destroy(k);
}
END_TEST

START_TEST(retired_epochs_are_let_go_of_once_the_next_is_loaded)
{
    kit *k = kit_create();
    struct desk d = experts(k, "e0");
    plan(k, 4, 2);
    run(&d);
    weft_agent_loaded(d.a, 4, 1, NULL);
    run(&d);
    plan(k, 5, 3);
    commit(k, 5);
    kit_put_number(k, "epoch/retired", 4);
    run(&d);
    ck_assert_uint_eq(d.prepared, 5);
    ck_assert_uint_eq(d.retired, 0); /* 5 is not loaded yet */
    ck_assert_uint_eq(d.w.epoch_first, 4);
    weft_agent_loaded(d.a, 5, 1, NULL);
    run(&d);
    ck_assert_uint_eq(d.retired, 4);
    ck_assert_uint_eq(d.w.epoch_first, 5);
    ck_assert_uint_eq(d.w.epoch_last, 5);
    end(&d);
    kit_destroy(k);
}
END_TEST

START_TEST(the_committed_epoch_is_never_retired)
{
    kit *k = kit_create();
    struct desk d = experts(k, "e0");
    plan(k, 4, 2);
    commit(k, 4);
    run(&d);
    weft_agent_loaded(d.a, 4, 1, NULL);
    kit_put_number(k, "epoch/retired", 99);
    run(&d);
    ck_assert_uint_eq(d.retired, 3);
    ck_assert_uint_eq(d.w.epoch_last, 4);
    end(&d);
    kit_destroy(k);
}
END_TEST

START_TEST(committed_epochs_are_told_once_and_upwards)
{
    kit *k = kit_create();
    struct desk d = lead(k, "l0");
    plan(k, 4, 2);
    run(&d);
    ck_assert_int_eq(d.n_committed, 0);
    commit(k, 4);
    run(&d);
    run(&d);
    ck_assert_int_eq(d.n_committed, 1);
    ck_assert_uint_eq(d.committed, 4);
    ck_assert_uint_eq(
        weft_roster_find(k->roster, WEFT_ROLE_LAYERS, "l0")->epoch, 4);
    plan(k, 3, 3);
    commit(k, 3); /* a store that was filled from an older copy */
    run(&d);
    ck_assert_int_eq(d.n_committed, 1);
    /* Its member key tells of the higher one. */
    ck_assert_uint_eq(weft_roster_epoch_max(k->roster), 4);
    end(&d);
    kit_destroy(k);
}
END_TEST

START_TEST(another_placement_under_one_number_asks_for_a_higher)
{
    kit *k = kit_create();
    struct desk d = lead(k, "l0");
    plan(k, 4, 2);
    commit(k, 4);
    run(&d);
    kit_wipe(k);
    plan(k, 4, 3);
    commit(k, 4);
    wait(&d, 2 * S);
    ck_assert_int_eq(d.n_committed, 1);
    ck_assert_uint_eq(weft_roster_epoch_max(k->roster), 5);
    plan(k, 6, 3);
    commit(k, 6);
    run(&d);
    ck_assert_uint_eq(d.committed, 6);
    end(&d);
    kit_destroy(k);
}
END_TEST

START_TEST(a_lead_says_that_it_has_switched)
{
    kit *k = kit_create();
    struct desk d = lead(k, "l0");
    plan(k, 4, 2);
    commit(k, 4);
    run(&d);
    ck_assert_int_eq(kit_count(k, "epoch/4/switched/"), 0);
    weft_agent_switched(d.a, 4);
    run(&d);
    ck_assert(kit_has(k, "epoch/4/switched/3"));
    weft_agent_switched(d.a, 3); /* never back */
    run(&d);
    ck_assert(!kit_has(k, "epoch/3/switched/3"));
    kit_remove(k, "epoch/4/switched/3");
    run(&d);
    ck_assert(kit_has(k, "epoch/4/switched/3"));
    /* Not under an epoch that the store does not have, or that is over. */
    kit_wipe(k);
    run(&d);
    ck_assert_int_eq(kit_count(k, "epoch/"), 0);
    kit_put_number(k, "epoch/retired", 4);
    plan(k, 5, 2);
    commit(k, 5);
    run(&d);
    ck_assert(!kit_has(k, "epoch/4/switched/3"));
    end(&d);
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
    struct desk d = desk_of(k, &self);
    plan(k, 4, 2);
    commit(k, 4);
    weft_agent_switched(d.a, 4);
    run(&d);
    ck_assert_uint_eq(d.committed, 4);
    ck_assert_int_eq(kit_count(k, "epoch/4/switched/"), 0);
    end(&d);
    kit_destroy(k);
}
END_TEST

START_TEST(who_drains_knows_when_it_is_empty)
{
    kit *k = kit_create();
    struct desk d = experts(k, "e0");
    plan(k, 4, 2);
    commit(k, 4);
    run(&d);
    weft_agent_loaded(d.a, 4, 1, NULL);
    weft_agent_set_state(d.a, WEFT_MEMBER_DRAINING);
    run(&d);
    ck_assert(!d.w.emptied);
    ck_assert_int_eq(member(k, "e0")->state, WEFT_MEMBER_DRAINING);
    weft_placement *p = kit_placement(k, 5, 3);
    memcpy(p->members[0].id, "a0", 3); /* does without e0 */
    kit_put_placement(k, p);
    run(&d);
    ck_assert(!d.w.emptied);
    commit(k, 5);
    run(&d);
    ck_assert(!d.w.emptied); /* leads may still be of 4 */
    kit_put_number(k, "epoch/retired", 4);
    run(&d);
    ck_assert(d.w.emptied);
    weft_placement_destroy(p);
    end(&d);
    kit_destroy(k);
}
END_TEST

START_TEST(a_store_that_was_lost_empties_nobody)
{
    kit *k = kit_create();
    struct desk d = experts(k, "e0");
    plan(k, 4, 2);
    commit(k, 4);
    run(&d);
    weft_agent_set_state(d.a, WEFT_MEMBER_DRAINING);
    kit_wipe(k);
    run(&d);
    ck_assert(!d.w.emptied);
    end(&d);
    kit_destroy(k);
}
END_TEST

START_TEST(suspicions_are_written_and_withdrawn)
{
    kit *k = kit_create();
    struct desk d = lead(k, "l0");
    kit_put_experts(k, "e0", 1, WEFT_MEMBER_SERVING);
    plan(k, 4, 2);
    commit(k, 4);
    weft_agent_suspect(d.a, "e0", 1, true);
    run(&d);
    ck_assert(kit_has(k, "suspects/e0/l0"));
    ck_assert(weft_roster_is_suspect(k->roster, member(k, "e0")));
    wait(&d, 100 * S); /* as long as the epoch needs it */
    ck_assert(kit_has(k, "suspects/e0/l0"));
    weft_agent_suspect(d.a, "e0", 1, false);
    run(&d);
    ck_assert(!kit_has(k, "suspects/e0/l0"));
    end(&d);
    kit_destroy(k);
}
END_TEST

START_TEST(a_suspicion_ends_with_its_member)
{
    kit *k = kit_create();
    struct desk d = lead(k, "l0");
    kit_put_experts(k, "e0", 1, WEFT_MEMBER_SERVING);
    weft_placement *p = kit_placement(k, 5, 3);
    memcpy(p->members[0].id, "a0", 3);
    kit_put_placement(k, p);
    commit(k, 5);
    weft_agent_suspect(d.a, "e0", 1, true);
    run(&d);
    ck_assert(kit_has(k, "suspects/e0/l0"));
    kit_put_experts(k, "e0", 2, WEFT_MEMBER_JOINING);
    run(&d);
    ck_assert(!kit_has(k, "suspects/e0/l0"));
    weft_placement_destroy(p);
    end(&d);
    kit_destroy(k);
}
END_TEST

/* Else nobody would ever look whether it can be reached again. */
START_TEST(a_suspicion_heals_with_time)
{
    kit *k = kit_create();
    struct desk d = lead(k, "l0");
    kit_put_experts(k, "e0", 1, WEFT_MEMBER_SERVING);
    weft_placement *p = kit_placement(k, 5, 3);
    memcpy(p->members[0].id, "a0", 3);
    kit_put_placement(k, p);
    commit(k, 5);
    for (uint64_t round = 1; round <= 3; round++) {
        const uint64_t heals = (10 * S) << (round - 1);
        weft_agent_suspect(d.a, "e0", 1, true);
        run(&d);
        ck_assert(kit_has(k, "suspects/e0/l0"));
        ck_assert_uint_le(d.w.next_ns, d.now + heals + 1);
        wait(&d, heals - 1 * S);
        ck_assert(kit_has(k, "suspects/e0/l0"));
        wait(&d, 2 * S);
        ck_assert(!kit_has(k, "suspects/e0/l0"));
    }
    weft_placement_destroy(p);
    end(&d);
    kit_destroy(k);
}
END_TEST

START_TEST(nobody_suspects_itself)
{
    kit *k = kit_create();
    struct desk d = lead(k, "l0");
    weft_agent_suspect(d.a, "l0", 1, true);
    weft_agent_suspect(d.a, "not a name", 1, true);
    for (int32_t i = 0; i < 200; i++) {
        char id[WEFT_ID_BYTES];
        (void)snprintf(id, sizeof id, "x%d", i);
        weft_agent_suspect(d.a, id, 1, true);
    }
    run(&d);
    ck_assert_int_eq(kit_count(k, "suspects/"), 0);
    end(&d);
    kit_destroy(k);
}
END_TEST

START_TEST(what_is_not_registered_writes_nothing_else)
{
    kit *k = kit_create();
    struct desk d = lead(k, "l0");
    plan(k, 4, 2);
    commit(k, 4);
    run(&d);
    take(&d, WEFT_REGISTRY_LEASE, WEFT_UNAVAILABLE);
    kit_end_lease(k, "l0");
    weft_agent_switched(d.a, 4);
    kit_put_experts(k, "e0", 1, WEFT_MEMBER_SERVING);
    weft_agent_suspect(d.a, "e0", 1, true);
    const int32_t had = d.n_writes;
    wait(&d, 10 * S);
    ck_assert_int_eq(d.n_writes, had);
    take(&d, WEFT_REGISTRY_LEASE, WEFT_OK);
    run(&d);
    ck_assert(kit_has(k, "members/layers/l0"));
    ck_assert(kit_has(k, "epoch/4/switched/3"));
    ck_assert(kit_has(k, "suspects/e0/l0"));
    end(&d);
    kit_destroy(k);
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
    tcase_add_test(tests, waits_for_lease_and_listing);
    tcase_add_loop_test(tests, incarnation_is_above_any_before, 0, 4);
    tcase_add_test(tests, incarnation_is_at_least_the_given);
    tcase_add_test(tests, the_second_of_one_id_fences_the_first);
    tcase_add_test(tests, two_that_register_at_once);
    tcase_add_test(tests, an_unknown_result_is_not_taken_for_success);
    tcase_add_test(tests, lease_and_store_lost_are_survived_with_the_same);
    tcase_add_test(tests, plan_load_ack);
    tcase_add_test(tests, a_failure_is_said);
    tcase_add_test(tests, a_plan_that_changed_is_loaded_again);
    tcase_add_test(tests, plans_of_others_are_not_ours);
    tcase_add_test(tests, retired_epochs_are_let_go_of_once_the_next_is_loaded);
    tcase_add_test(tests, the_committed_epoch_is_never_retired);
    tcase_add_test(tests, committed_epochs_are_told_once_and_upwards);
    tcase_add_test(tests, another_placement_under_one_number_asks_for_a_higher);
    tcase_add_test(tests, a_lead_says_that_it_has_switched);
    tcase_add_test(tests, stages_behind_the_lead_say_nothing);
    tcase_add_test(tests, who_drains_knows_when_it_is_empty);
    tcase_add_test(tests, a_store_that_was_lost_empties_nobody);
    tcase_add_test(tests, suspicions_are_written_and_withdrawn);
    tcase_add_test(tests, a_suspicion_ends_with_its_member);
    tcase_add_test(tests, a_suspicion_heals_with_time);
    tcase_add_test(tests, nobody_suspects_itself);
    tcase_add_test(tests, what_is_not_registered_writes_nothing_else);
    tcase_add_test(tests, ids_are_checked);
}

int main(void)
{
    return weft_suite_run_added("agent", add);
}
