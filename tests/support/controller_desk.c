#include "tests/support/controller_desk.h"

#include <stdio.h>

#include "tests/support/expect.h"

void desk_take_lease(struct desk *d, weft_status st)
{
    const weft_registry_event lease = {.kind = WEFT_REGISTRY_LEASE,
                                       .status = st};
    weft_controller_take(d->c, &lease, d->now);
}

struct desk desk_of(const char *id, kit *k)
{
    struct desk d = {.k = k, .now = 50 * S};
    const weft_controller_options options = {
        .shape = &k->shape, .id = id, .replicas = 1};
    OK(weft_controller_create(&options, &d.c, &err));
    desk_take_lease(&d, WEFT_OK);
    d.now += 50 * S;
    return d;
}

void desk_end(struct desk *d)
{
    weft_controller_destroy(d->c);
}

bool desk_step(struct desk *d, const char *owner)
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

void desk_run(struct desk *d)
{
    for (int32_t i = 0; desk_step(d, "r0"); i++) ck_assert_int_lt(i, 50);
}

void desk_wait(struct desk *d, uint64_t ns)
{
    d->now += ns;
    desk_run(d);
}

void desk_join(struct desk *d, const char *id)
{
    kit_put_experts(d->k, id, 1, WEFT_MEMBER_JOINING);
    desk_run(d);
    desk_wait(d, 300 * MS);
}

weft_controller_state desk_state(const struct desk *d)
{
    weft_controller_state s;
    weft_controller_get_state(d->c, &s);
    return s;
}

uint64_t desk_epoch(const struct desk *d)
{
    int64_t revision;
    return weft_roster_epoch(d->k->roster, &revision);
}

uint64_t desk_hash(const struct desk *d, uint64_t n)
{
    const weft_placement *const p = weft_roster_placement(d->k->roster, n);
    ck_assert_msg(p != NULL, "there is no plan %d", (int)n);
    return weft_placement_hash(p);
}

void desk_put_acks(struct desk *d, uint64_t n)
{
    const weft_placement *p = weft_roster_placement(d->k->roster, n);
    ck_assert_msg(p != NULL, "there is no plan %d", (int)n);
    weft_placement *copy = NULL;
    OK(weft_placement_copy(p, &copy, &err));
    for (int32_t i = 0; i < copy->n_members; i++)
        kit_put_ack(d->k, n, copy->members[i].id, copy->members[i].incarnation,
                    weft_placement_hash(copy), NULL);
    weft_placement_destroy(copy);
}

void desk_ack_all(struct desk *d, uint64_t n)
{
    desk_put_acks(d, n);
    desk_run(d);
}

struct desk desk_settled(int32_t n)
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
    desk_run(&d);
    desk_wait(&d, 1 * S);
    desk_ack_all(&d, 1);
    ck_assert_uint_eq(desk_epoch(&d), 1);
    kit_put_switched(k, 1, 0, 1);
    desk_run(&d);
    return d;
}

void desk_finish(struct desk *d)
{
    desk_end(d);
    kit_destroy(d->k);
}
