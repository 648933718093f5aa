/* The controller over rosters made by hand, in virtual time. */
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/expect.h"
#include "tests/support/roster_kit.h"
#include "tests/support/suite.h"

#define MS UINT64_C(1000000)
#define S  (1000 * MS)

struct desk {
    kit *k;
    weft_controller *c;
    uint64_t now, next;
    int32_t n_txns; /* submitted */
};

static struct desk desk_of(const char *id, kit *k)
{
    struct desk d = {.k = k, .now = 100 * S};
    const weft_controller_options options = {
        .shape = &k->shape, .id = id, .replicas = 1};
    OK(weft_controller_create(&options, &d.c, &err));
    const weft_registry_event lease = {.kind = WEFT_REGISTRY_LEASE};
    weft_controller_take(d.c, &lease, d.now - 50 * S);
    return d;
}

static void end(struct desk *d)
{
    weft_controller_destroy(d->c);
}

/* One transaction, if one is due. */
static bool step(struct desk *d, const char *owner)
{
    weft_txn txn;
    weft_registry_event result;
    if (!weft_controller_turn(d->c, d->k->roster, d->now, &txn, &d->next))
        return false;
    kit_submit(d->k, &txn, owner, &result);
    weft_controller_take(d->c, &result, d->now);
    d->n_txns++;
    return true;
}

static void run(struct desk *d)
{
    for (int32_t i = 0; step(d, "r0"); i++) ck_assert_int_lt(i, 50);
}

static void wait(struct desk *d, uint64_t ns)
{
    d->now += ns;
    run(d);
}

static weft_controller_state state_of(const struct desk *d)
{
    weft_controller_state s;
    weft_controller_get_state(d->c, &s);
    return s;
}

static uint64_t epoch(const struct desk *d)
{
    int64_t revision;
    return weft_roster_epoch(d->k->roster, &revision);
}

/* Every member of the plan says that it has loaded. */
static void ack_all(struct desk *d, uint64_t n)
{
    const weft_placement *p = weft_roster_placement(d->k->roster, n);
    ck_assert_msg(p != NULL, "there is no plan %d", (int)n);
    weft_placement *copy = NULL;
    OK(weft_placement_copy(p, &copy, &err));
    for (int32_t i = 0; i < copy->n_members; i++)
        kit_put_ack(d->k, n, copy->members[i].id, copy->members[i].incarnation,
                    weft_placement_hash(copy), NULL);
    weft_placement_destroy(copy);
    run(d);
}

/* Experts e0 ... e(n-1) and one lead that has switched, at epoch 1. */
static struct desk settled(int32_t n)
{
    kit *k = kit_create();
    kit_list(k, 0);
    for (int32_t i = 0; i < n; i++) {
        char id[WEFT_ID_BYTES];
        (void)snprintf(id, sizeof id, "e%d", i);
        kit_put_experts(k, id, 1, WEFT_MEMBER_SERVING);
    }
    kit_put_lead(k, "l0", 0);
    struct desk d = desk_of("r0", k);
    run(&d);
    wait(&d, 1 * S);
    ack_all(&d, 1);
    ck_assert_uint_eq(epoch(&d), 1);
    kit_put_switched(k, 1, 0, 1);
    run(&d);
    return d;
}

static void finish(struct desk *d)
{
    end(d);
    kit_destroy(d->k);
}

START_TEST(first_epoch_then_quiet)
{
    struct desk d = settled(3);
    const weft_controller_state s = state_of(&d);
    ck_assert(s.elected);
    ck_assert_uint_eq(s.n_plans, 1);
    ck_assert_uint_eq(s.n_commits, 1);
    ck_assert_uint_eq(s.planned, 0);
    ck_assert_str_eq(s.waiting, "");
    const int32_t had = d.n_txns;
    for (int32_t i = 0; i < 100; i++) wait(&d, 1 * S);
    ck_assert_int_eq(d.n_txns, had);
    finish(&d);
}
END_TEST

START_TEST(nothing_without_lease_or_key)
{
    kit *k = kit_create();
    kit_put_experts(k, "e0", 1, WEFT_MEMBER_SERVING);
    struct desk d = desk_of("r0", k);
    const weft_registry_event lost = {.kind = WEFT_REGISTRY_LEASE,
                                      .status = WEFT_UNAVAILABLE};
    weft_controller_take(d.c, &lost, d.now);
    run(&d);
    ck_assert_int_eq(d.n_txns, 0);
    /* Another has the key: nothing, as long as it does. */
    weft_buf value = {0};
    OK(weft_holder_encode("r1", &value, &err));
    kit_put_buf(k, "controller", &value);
    const weft_registry_event held = {.kind = WEFT_REGISTRY_LEASE};
    weft_controller_take(d.c, &held, d.now);
    wait(&d, 60 * S);
    ck_assert_int_eq(d.n_txns, 0);
    ck_assert(!state_of(&d).elected);
    kit_remove(k, "controller");
    run(&d);
    ck_assert(state_of(&d).elected);
    finish(&d);
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
    ck_assert(step(&d, "r0"));
    int64_t revision;
    ck_assert_str_eq(weft_roster_controller(k->roster, &revision), "r0");
    ck_assert_int_eq(revision, 2);
    run(&d);
    ck_assert(state_of(&d).elected);
    finish(&d);
}
END_TEST

START_TEST(joiners_are_gathered_and_placed)
{
    struct desk d = settled(2);
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_JOINING);
    wait(&d, 100 * MS);
    kit_put_experts(d.k, "e3", 1, WEFT_MEMBER_JOINING);
    wait(&d, 100 * MS);
    ck_assert_uint_eq(state_of(&d).planned, 0);
    wait(&d, 200 * MS);
    ck_assert_uint_eq(state_of(&d).planned, 2);
    ck_assert_int_eq(weft_roster_placement(d.k->roster, 2)->n_members, 4);
    ack_all(&d, 2);
    ck_assert_uint_eq(epoch(&d), 2);
    const weft_controller_state s = state_of(&d);
    ck_assert_int_eq(s.moved_bytes, 8);
    ck_assert_int_eq(s.moved_least, 8);
    finish(&d);
}
END_TEST

START_TEST(commit_waits_for_every_ack)
{
    struct desk d = settled(2);
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_JOINING);
    run(&d);
    wait(&d, 300 * MS);
    const uint64_t hash =
        weft_placement_hash(weft_roster_placement(d.k->roster, 2));
    kit_put_ack(d.k, 2, "e0", 1, hash, NULL);
    kit_put_ack(d.k, 2, "e1", 1, hash, NULL);
    run(&d);
    ck_assert_str_eq(state_of(&d).waiting, "epoch 2: 2 of 3 expert shards are "
                                           "ready, e2 is not");
    kit_put_ack(d.k, 2, "e2", 1, hash + 1, NULL); /* of another placement */
    run(&d);
    kit_put_ack(d.k, 2, "e2", 2, hash, NULL); /* of another incarnation */
    run(&d);
    ck_assert_uint_eq(epoch(&d), 1);
    kit_put_ack(d.k, 2, "e2", 1, hash, NULL);
    run(&d);
    ck_assert_uint_eq(epoch(&d), 2);
    finish(&d);
}
END_TEST

START_TEST(retire_waits_for_every_lead)
{
    struct desk d = settled(2);
    kit_put_lead(d.k, "l1", 1);
    kit_put_switched(d.k, 1, 1, 1);
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_JOINING);
    run(&d);
    wait(&d, 300 * MS);
    ack_all(&d, 2);
    kit_put_switched(d.k, 2, 0, 1);
    wait(&d, 60 * S);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 0);
    kit_put_switched(d.k, 2, 1, 2); /* another incarnation of that lead */
    wait(&d, 60 * S);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 0);
    kit_put_switched(d.k, 2, 1, 1);
    run(&d);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 1);
    ck_assert_int_eq(kit_count(d.k, "epoch/1/"), 0);
    ck_assert_int_gt(kit_count(d.k, "epoch/2/"), 0);
    finish(&d);
}
END_TEST

START_TEST(a_lead_that_has_gone_holds_nothing_up)
{
    struct desk d = settled(2);
    kit_put_lead(d.k, "l1", 1);
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_JOINING);
    run(&d);
    wait(&d, 20 * S); /* l1 never switched, and is waited for switch_ns */
    ack_all(&d, 2);
    kit_put_switched(d.k, 2, 0, 1);
    wait(&d, 20 * S);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 0);
    kit_remove(d.k, "members/layers/l1");
    run(&d);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 1);
    finish(&d);
}
END_TEST

START_TEST(a_lost_member_is_replaced_at_once)
{
    struct desk d = settled(3);
    kit_remove(d.k, "members/experts/e1");
    run(&d);
    ck_assert_uint_eq(state_of(&d).planned, 2);
    ck_assert_int_eq(weft_roster_placement(d.k->roster, 2)->n_members, 2);
    finish(&d);
}
END_TEST

START_TEST(a_suspect_is_gone_until_nobody_suspects_it)
{
    struct desk d = settled(3);
    kit_put_suspicion(d.k, "e1", 1, "l0");
    kit_put_suspicion(d.k, "e1", 1, "r0");
    run(&d);
    ack_all(&d, 2);
    kit_put_switched(d.k, 2, 0, 1);
    ck_assert_int_eq(weft_roster_placement(d.k->roster, 2)->n_members, 2);
    kit_remove(d.k, "suspects/e1/l0");
    wait(&d, 60 * S);
    ck_assert_uint_eq(state_of(&d).planned, 0);
    kit_remove(d.k, "suspects/e1/r0");
    run(&d);
    wait(&d, 1 * S);
    ck_assert_uint_eq(state_of(&d).planned, 3);
    ck_assert_int_eq(weft_roster_placement(d.k->roster, 3)->n_members, 3);
    finish(&d);
}
END_TEST

START_TEST(who_drains_is_emptied)
{
    struct desk d = settled(3);
    kit_put_experts(d.k, "e0", 1, WEFT_MEMBER_DRAINING);
    run(&d);
    ck_assert_int_eq(
        weft_placement_find(weft_roster_placement(d.k->roster, 2), "e0", 0),
        -1);
    ack_all(&d, 2);
    ck_assert_uint_eq(epoch(&d), 2);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 0);
    kit_put_switched(d.k, 2, 0, 1);
    run(&d);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 1);
    finish(&d);
}
END_TEST

/* _i: what happens to a member of the plan before it is committed. */
START_TEST(a_plan_is_rolled_back)
{
    struct desk d = settled(2);
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_JOINING);
    kit_put_experts(d.k, "e3", 1, WEFT_MEMBER_JOINING);
    run(&d);
    wait(&d, 300 * MS);
    ck_assert_uint_eq(state_of(&d).planned, 2);
    switch (_i) {
    case 0: kit_remove(d.k, "members/experts/e2"); break;
    case 1: kit_put_experts(d.k, "e2", 2, WEFT_MEMBER_JOINING); break;
    case 2: kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_DRAINING); break;
    default: kit_put_suspicion(d.k, "e2", 1, "l0"); break;
    }
    run(&d);
    ck_assert_int_eq(kit_count(d.k, "epoch/2/"), 0);
    ck_assert_uint_eq(epoch(&d), 1);
    ck_assert_uint_eq(state_of(&d).n_rollbacks, 1);
    wait(&d, 300 * MS);
    /* Made again, above; whoever is left takes part. */
    ck_assert_uint_eq(state_of(&d).planned, 3);
    const weft_placement *p = weft_roster_placement(d.k->roster, 3);
    ck_assert_int_eq(p->n_members, _i == 1 ? 4 : 3);
    ck_assert_int_eq(weft_placement_find(p, "e2", 1), -1);
    ack_all(&d, 3);
    ck_assert_uint_eq(epoch(&d), 3);
    finish(&d);
}
END_TEST

START_TEST(who_fails_is_left_out)
{
    struct desk d = settled(2);
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_JOINING);
    run(&d);
    wait(&d, 300 * MS);
    const uint64_t hash =
        weft_placement_hash(weft_roster_placement(d.k->roster, 2));
    kit_put_ack(d.k, 2, "e2", 1, hash, "no memory for expert 3");
    run(&d);
    wait(&d, 1 * S);
    ck_assert_uint_eq(state_of(&d).n_rollbacks, 1);
    ck_assert_uint_eq(state_of(&d).planned, 0);
    ck_assert_str_eq(state_of(&d).waiting,
                     "e2 could not load: no memory for expert 3");
    wait(&d, 61 * S); /* and is tried again */
    wait(&d, 1 * S);
    ck_assert_uint_eq(state_of(&d).planned, 3);
    finish(&d);
}
END_TEST

/* A member that cannot load more keeps what it has. */
START_TEST(who_fails_keeps_what_it_has)
{
    struct desk d = settled(3);
    kit_remove(d.k, "members/experts/e2");
    run(&d);
    const uint64_t hash =
        weft_placement_hash(weft_roster_placement(d.k->roster, 2));
    const int32_t had =
        weft_placement_count(weft_roster_placement(d.k->roster, 1), 0);
    kit_put_ack(d.k, 2, "e0", 1, hash, "no memory");
    run(&d);
    ck_assert_uint_eq(state_of(&d).planned, 3);
    const weft_placement *p = weft_roster_placement(d.k->roster, 3);
    ck_assert_int_eq(weft_placement_count(p, 0), had);
    ck_assert_int_eq(weft_placement_count(p, 1), 2 * KIT_EXPERTS - had);
    finish(&d);
}
END_TEST

START_TEST(a_plan_without_answers_ends)
{
    struct desk d = settled(2);
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_JOINING);
    run(&d);
    wait(&d, 300 * MS);
    const uint64_t hash =
        weft_placement_hash(weft_roster_placement(d.k->roster, 2));
    wait(&d, 50 * S);
    kit_put_ack(d.k, 2, "e0", 1, hash, NULL); /* progress: longer */
    run(&d);
    wait(&d, 50 * S);
    ck_assert_uint_eq(state_of(&d).planned, 2);
    kit_put_ack(d.k, 2, "e1", 1, hash, NULL);
    run(&d);
    ck_assert_uint_eq(d.next, d.now + 60 * S);
    wait(&d, 60 * S);
    ck_assert_uint_eq(state_of(&d).n_rollbacks, 1);
    ck_assert_int_eq(kit_count(d.k, "epoch/2/"), 0);
    wait(&d, 1 * S);
    ck_assert_uint_eq(state_of(&d).planned, 0);
    finish(&d);
}
END_TEST

/* _i: where the first controller is lost. */
START_TEST(another_controller_takes_over)
{
    struct desk d = settled(2);
    struct desk other = desk_of("r1", d.k);
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_JOINING);
    run(&other);
    run(&d);
    if (_i > 0) {
        wait(&d, 300 * MS);
        ck_assert_uint_eq(state_of(&d).planned, 2);
    }
    if (_i > 1) {
        const weft_placement *p = weft_roster_placement(d.k->roster, 2);
        const uint64_t hash = weft_placement_hash(p);
        for (int32_t i = 0; i < 3; i++) {
            char id[WEFT_ID_BYTES];
            (void)snprintf(id, sizeof id, "e%d", i);
            kit_put_ack(d.k, 2, id, 1, hash, NULL);
        }
    }
    if (_i > 2) run(&d); /* committed */
    kit_end_lease(d.k, "r0");
    other.now = d.now;
    for (int32_t i = 0; i < 20; i++) {
        other.now += 100 * MS;
        while (step(&other, "r1")) {
        }
    }
    ck_assert(state_of(&other).elected);
    if (_i < 2) ack_all(&other, 2);
    ck_assert_uint_eq(epoch(&other), 2);
    kit_put_switched(d.k, 2, 0, 1);
    run(&other);
    ck_assert_uint_eq(weft_roster_retired(d.k->roster), 1);
    end(&other);
    finish(&d);
}
END_TEST

/* One that does not know that it has lost its key changes nothing. */
START_TEST(a_deposed_controller_is_fenced)
{
    struct desk d = settled(2);
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_JOINING);
    run(&d);
    wait(&d, 300 * MS);
    const uint64_t hash =
        weft_placement_hash(weft_roster_placement(d.k->roster, 2));
    for (int32_t i = 0; i < 3; i++) {
        char id[WEFT_ID_BYTES];
        (void)snprintf(id, sizeof id, "e%d", i);
        kit_put_ack(d.k, 2, id, 1, hash, NULL);
    }
    d.k->is_deaf = true;
    weft_buf value = {0};
    OK(weft_holder_encode("r1", &value, &err));
    kit_put_buf(d.k, "controller", &value);
    const int64_t had = d.k->revision;
    d.now += 2 * S;
    ck_assert(step(&d, "r0")); /* it tries to commit */
    ck_assert_int_eq(d.k->revision, had);
    ck_assert(!step(&d, "r0")); /* and does not try in a loop */
    finish(&d);
}
END_TEST

START_TEST(a_store_that_lost_everything_is_filled_again)
{
    struct desk d = settled(3);
    kit_wipe(d.k);
    const weft_registry_event lost = {.kind = WEFT_REGISTRY_LEASE,
                                      .status = WEFT_UNAVAILABLE};
    const weft_registry_event held = {.kind = WEFT_REGISTRY_LEASE};
    weft_controller_take(d.c, &lost, d.now);
    weft_controller_take(d.c, &held, d.now);
    kit_put_experts(d.k, "e0", 1, WEFT_MEMBER_SERVING);
    run(&d);
    ck_assert_uint_eq(epoch(&d), 1); /* as it was */
    ck_assert_int_eq(weft_roster_placement(d.k->roster, 1)->n_members, 3);
    wait(&d, 1 * S);
    ck_assert_str_eq(state_of(&d).waiting, "e2 is missing; it may come back");
    kit_put_experts(d.k, "e1", 1, WEFT_MEMBER_SERVING);
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_SERVING);
    kit_put_lead(d.k, "l0", 0);
    kit_put_switched(d.k, 1, 0, 1);
    wait(&d, 60 * S);
    ck_assert_uint_eq(epoch(&d), 1);
    ck_assert_uint_eq(state_of(&d).n_plans, 1);
    finish(&d);
}
END_TEST

START_TEST(who_does_not_come_back_is_done_without)
{
    struct desk d = settled(3);
    kit_wipe(d.k);
    kit_put_experts(d.k, "e0", 1, WEFT_MEMBER_SERVING);
    kit_put_experts(d.k, "e1", 1, WEFT_MEMBER_SERVING);
    run(&d);
    wait(&d, 1 * S);
    ck_assert_uint_eq(state_of(&d).planned, 0);
    wait(&d, 3 * S);
    ck_assert_uint_eq(state_of(&d).planned, 2);
    finish(&d);
}
END_TEST

/* A controller that knows nothing, and members that have seen epoch 40. */
START_TEST(numbers_are_above_any_that_was_seen)
{
    kit *k = kit_create();
    kit_list(k, 0);
    struct desk d = desk_of("r0", k);
    kit_put_experts(k, "e0", 1, WEFT_MEMBER_SERVING);
    run(&d);
    wait(&d, 1 * S);
    ack_all(&d, 1);
    ck_assert_uint_eq(epoch(&d), 1);
    weft_member m = kit_member(WEFT_ROLE_LAYERS, "l0", 1, WEFT_MEMBER_SERVING);
    m.epoch = 40;
    kit_put_member(k, &m);
    kit_put_switched(k, 1, 0, 1);
    run(&d);
    wait(&d, 1 * S);
    ck_assert_uint_eq(state_of(&d).planned, 41);
    finish(&d);
}
END_TEST

START_TEST(another_model_is_given_nothing)
{
    struct desk d = settled(2);
    weft_member m = kit_member(WEFT_ROLE_EXPERTS, "e2", 1, WEFT_MEMBER_JOINING);
    m.weights_hash = 99;
    kit_put_member(d.k, &m);
    run(&d);
    wait(&d, 60 * S);
    ck_assert_uint_eq(state_of(&d).planned, 0);
    ck_assert_str_eq(state_of(&d).waiting, "e2 serves another model than l0");
    m.weights_hash = 8;
    (void)snprintf(m.identity, sizeof m.identity, "cuda");
    kit_put_member(d.k, &m);
    run(&d);
    ck_assert_str_eq(state_of(&d).waiting, "e2 computes as cuda, l0 as cpu");
    finish(&d);
}
END_TEST

START_TEST(what_does_not_fit_is_said)
{
    struct desk d = settled(2);
    weft_member m = kit_member(WEFT_ROLE_EXPERTS, "e1", 1, WEFT_MEMBER_SERVING);
    m.capacity_bytes = 1;
    kit_put_member(d.k, &m);
    m = kit_member(WEFT_ROLE_EXPERTS, "e0", 1, WEFT_MEMBER_SERVING);
    m.capacity_bytes = 8;
    kit_put_member(d.k, &m);
    run(&d);
    for (int32_t i = 0; i < 3; i++) {
        wait(&d, 20 * S);
        ck_assert_str_eq(state_of(&d).waiting,
                         "the experts do not fit: 16 bytes are needed, 2 "
                         "expert shards offer 9");
    }
    ck_assert_uint_eq(epoch(&d), 1);
    finish(&d);
}
END_TEST

START_TEST(load_is_looked_at_once)
{
    struct desk d = settled(2);
    float load[KIT_LAYERS * KIT_EXPERTS] = {0};
    const weft_placement *p = weft_roster_placement(d.k->roster, 1);
    for (int32_t e = 0; e < KIT_EXPERTS; e++)
        load[KIT_EXPERTS + e] = weft_placement_owns(p, 0, 1, e) ? 9.0F : 1.0F;
    weft_controller_set_load(d.c, load);
    run(&d);
    wait(&d, 1 * S);
    ck_assert_uint_eq(state_of(&d).planned, 2);
    ack_all(&d, 2);
    kit_put_switched(d.k, 2, 0, 1);
    wait(&d, 60 * S);
    wait(&d, 1 * S);
    ck_assert_uint_eq(epoch(&d), 2);
    weft_controller_set_load(d.c, NULL);
    wait(&d, 60 * S);
    ck_assert_uint_eq(epoch(&d), 2);
    finish(&d);
}
END_TEST

START_TEST(unknown_results_are_looked_up)
{
    struct desk d = settled(2);
    weft_txn txn;
    weft_registry_event result;
    kit_put_experts(d.k, "e2", 1, WEFT_MEMBER_JOINING);
    run(&d);
    d.now += 300 * MS;
    ck_assert(weft_controller_turn(d.c, d.k->roster, d.now, &txn, &d.next));
    kit_submit(d.k, &txn, "r0", &result); /* it happens, unknown to it */
    ck_assert_int_eq(result.status, WEFT_OK);
    result.status = WEFT_UNAVAILABLE;
    result.revision = 0;
    weft_controller_take(d.c, &result, d.now);
    wait(&d, 200 * MS);
    ck_assert_uint_eq(state_of(&d).planned, 2);
    ack_all(&d, 2);
    ck_assert_uint_eq(epoch(&d), 2);
    finish(&d);
}
END_TEST

START_TEST(keys_of_nobody_are_removed)
{
    struct desk d = settled(2);
    kit_put_ack(d.k, 7, "e0", 1, 1, NULL); /* of a plan that was rolled back */
    kit_put(d.k, "epoch/9/placement", "?", 1);
    run(&d);
    wait(&d, 1 * S);
    ck_assert_int_eq(kit_count(d.k, "epoch/7/"), 0);
    ck_assert_int_eq(kit_count(d.k, "epoch/9/"), 0);
    ck_assert_uint_eq(epoch(&d), 1);
    finish(&d);
}
END_TEST

/* A hostile number does not make it remove what is in use. */
START_TEST(a_wrong_retired_number_removes_nothing_in_use)
{
    struct desk d = settled(2);
    kit_put_number(d.k, "epoch/retired", 99);
    run(&d);
    wait(&d, 10 * S);
    ck_assert_ptr_nonnull(weft_roster_placement(d.k->roster, epoch(&d)));
    finish(&d);
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
    tcase_add_test(tests, a_lost_member_is_replaced_at_once);
    tcase_add_test(tests, a_suspect_is_gone_until_nobody_suspects_it);
    tcase_add_test(tests, who_drains_is_emptied);
    tcase_add_loop_test(tests, a_plan_is_rolled_back, 0, 4);
    tcase_add_test(tests, who_fails_is_left_out);
    tcase_add_test(tests, who_fails_keeps_what_it_has);
    tcase_add_test(tests, a_plan_without_answers_ends);
    tcase_add_loop_test(tests, another_controller_takes_over, 0, 4);
    tcase_add_test(tests, a_deposed_controller_is_fenced);
    tcase_add_test(tests, a_store_that_lost_everything_is_filled_again);
    tcase_add_test(tests, who_does_not_come_back_is_done_without);
    tcase_add_test(tests, numbers_are_above_any_that_was_seen);
    tcase_add_test(tests, another_model_is_given_nothing);
    tcase_add_test(tests, what_does_not_fit_is_said);
    tcase_add_test(tests, load_is_looked_at_once);
    tcase_add_test(tests, unknown_results_are_looked_up);
    tcase_add_test(tests, keys_of_nobody_are_removed);
    tcase_add_test(tests, a_wrong_retired_number_removes_nothing_in_use);
    tcase_add_test(tests, options_are_checked);
}

int main(void)
{
    return weft_suite_run_added("controller", add);
}
