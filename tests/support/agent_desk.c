#include "tests/support/agent_desk.h"

#include <stdio.h>

#include "tests/support/expect.h"

void agent_desk_take(struct agent_desk *d, weft_registry_event_kind kind,
                     weft_status st)
{
    const weft_registry_event event = {.kind = kind, .status = st};
    weft_agent_take(d->a, &event, d->now);
}

struct agent_desk agent_desk_of(kit *k, const weft_member *self)
{
    struct agent_desk d = {.k = k, .now = 100 * S};
    (void)snprintf(d.owner, sizeof d.owner, "%s", self->id);
    OK(weft_agent_create(self, &d.a, &err));
    agent_desk_take(&d, WEFT_REGISTRY_LEASE, WEFT_OK);
    agent_desk_take(&d, WEFT_REGISTRY_RELIST_END, WEFT_OK);
    return d;
}

bool agent_desk_step(struct agent_desk *d)
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

void agent_desk_run(struct agent_desk *d)
{
    for (int32_t i = 0; agent_desk_step(d); i++) ck_assert_int_lt(i, 50);
}

void agent_desk_wait(struct agent_desk *d, uint64_t ns)
{
    d->now += ns;
    agent_desk_run(d);
}

void agent_desk_end(struct agent_desk *d)
{
    weft_agent_destroy(d->a);
}

void agent_desk_finish(struct agent_desk *d)
{
    agent_desk_end(d);
    kit_destroy(d->k);
}

struct agent_desk agent_desk_experts(kit *k, const char *id)
{
    const weft_member self =
        kit_member(WEFT_ROLE_EXPERTS, id, 0, WEFT_MEMBER_JOINING);
    struct agent_desk d = agent_desk_of(k, &self);
    agent_desk_run(&d);
    return d;
}

struct agent_desk agent_desk_lead(kit *k, const char *id)
{
    weft_member self = kit_member(WEFT_ROLE_LAYERS, id, 0, WEFT_MEMBER_SERVING);
    self.group = 3;
    struct agent_desk d = agent_desk_of(k, &self);
    agent_desk_run(&d);
    return d;
}

const weft_member *agent_desk_member(const kit *k, const char *id)
{
    return weft_roster_find(k->roster, WEFT_ROLE_EXPERTS, id);
}

void agent_desk_commit(kit *k, uint64_t epoch)
{
    kit_put_number(k, "epoch/current", epoch);
}

void agent_desk_plan(kit *k, uint64_t epoch, int32_t n)
{
    weft_placement *p = kit_placement(k, epoch, n);
    kit_put_placement(k, p);
    weft_placement_destroy(p);
}

void agent_desk_move(kit *k, uint64_t epoch, int32_t n)
{
    agent_desk_plan(k, epoch, n);
    agent_desk_commit(k, epoch);
}
