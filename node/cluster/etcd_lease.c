#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/cluster/etcd_internal.h"

#define RETRY_NS (100 * WEFT_ETCD_MS)

/* A lease lives as long after the request as etcd gives it: etcd counts from
 * when it has handled it, which is later. */
static void extend(struct etcd_lease *lease, int64_t ttl_s)
{
    const uint64_t second = 1000 * WEFT_ETCD_MS;
    const uint64_t ttl_ns = (uint64_t)(ttl_s < 3600 ? ttl_s : 3600) * second;
    lease->good_until_ns = lease->call.started_ns + ttl_ns;
    lease->next_ns = lease->call.started_ns + ttl_ns / 3;
}

static void tell(struct etcd *e, weft_status status, const char *text)
{
    weft_etcd_tell(e, &(weft_registry_event){.kind = WEFT_REGISTRY_LEASE,
                                             .status = status,
                                             .text = text,
                                             .revision = e->revision});
}

/* `state`: what is to be done about it. */
static void lose(struct etcd *e, enum etcd_lease_state state, const char *why)
{
    struct etcd_lease *lease = &e->lease;
    if (lease->state != ETCD_LEASE_HELD) return;
    lease->state = state;
    lease->next_ns = 0;
    tell(e, WEFT_UNAVAILABLE, why);
}

void weft_etcd_lease_gone(struct etcd *e, const char *why)
{
    lose(e, ETCD_LEASE_GRANT, why);
}

static weft_status take_grant(struct etcd *e, struct etcd_call *call,
                              weft_arena *arena)
{
    const Etcdserverpb__LeaseGrantResponse *r =
        (const Etcdserverpb__LeaseGrantResponse *)weft_etcd_unpack(
            &etcdserverpb__lease_grant_response__descriptor, call->answer,
            arena);
    if (r == NULL || r->id == 0 || r->ttl <= 0) return WEFT_INTERNAL;
    e->lease.id = r->id;
    e->lease.state = ETCD_LEASE_HELD;
    extend(&e->lease, r->ttl);
    tell(e, WEFT_OK, "");
    return WEFT_OK;
}

static weft_status take_keep_alive(struct etcd *e, struct etcd_call *call,
                                   weft_arena *arena)
{
    const Etcdserverpb__LeaseKeepAliveResponse *r =
        (const Etcdserverpb__LeaseKeepAliveResponse *)weft_etcd_unpack(
            &etcdserverpb__lease_keep_alive_response__descriptor, call->answer,
            arena);
    if (r == NULL) return WEFT_INTERNAL;
    if (e->lease.state != ETCD_LEASE_HELD) return WEFT_OK;
    if (r->ttl > 0) {
        extend(&e->lease, r->ttl);
        return WEFT_OK;
    }
    /* It has run out, or the store is another one: look at all of it. */
    weft_etcd_lease_gone(e, "etcd does not know the lease any more");
    weft_etcd_relist(e);
    return WEFT_OK;
}

static weft_status take_answer(struct etcd *e, struct etcd_call *call)
{
    enum { BYTES_MAX = 64 << 10 };
    weft_arena *arena;
    weft_status st;
    if (e->lease.asked == ETCD_LEASE_REVOKE) {
        e->lease.state = ETCD_LEASE_GRANT;
        return WEFT_OK;
    }
    if (weft_arena_create(BYTES_MAX, &arena, NULL) != WEFT_OK)
        return WEFT_RESOURCE_EXHAUSTED;
    st = e->lease.asked == ETCD_LEASE_GRANT ? take_grant(e, call, arena)
                                            : take_keep_alive(e, call, arena);
    weft_arena_destroy(arena);
    return st;
}

static void on_ended(struct etcd *e, struct etcd_call *call)
{
    struct etcd_lease *lease = &e->lease;
    lease->next_ns = 0; /* unless the answer says otherwise */
    if (call->code == GRPC_STATUS_OK) {
        weft_etcd_answered(e);
        if (take_answer(e, call) == WEFT_OK) return;
    } else {
        weft_etcd_failed(e, call->endpoint, call->code, &call->details);
        if (call->code == GRPC_STATUS_NOT_FOUND &&
            lease->asked == ETCD_LEASE_REVOKE) {
            lease->state = ETCD_LEASE_GRANT;
            return;
        }
        (void)weft_etcd_token_refused(e, call);
    }
    lease->next_ns = weft_clock_now_ns() + RETRY_NS;
}

static void ask(struct etcd *e, uint64_t now_ns)
{
    struct etcd_lease *lease = &e->lease;
    lease->asked = lease->state;
    switch (lease->state) {
    case ETCD_LEASE_GRANT:
        weft_etcd_start(e, &lease->call, "/etcdserverpb.Lease/LeaseGrant",
                        weft_etcd_grant(lease->ttl_s), now_ns, on_ended);
        return;
    case ETCD_LEASE_HELD:
        /* A stream of one message: so it has a deadline, and may go to another
         * endpoint than the one before. */
        weft_etcd_start(e, &lease->call, "/etcdserverpb.Lease/LeaseKeepAlive",
                        weft_etcd_keep_alive(lease->id), now_ns, on_ended);
        return;
    case ETCD_LEASE_REVOKE:
        weft_etcd_start(e, &lease->call, "/etcdserverpb.Lease/LeaseRevoke",
                        weft_etcd_revoke(lease->id), now_ns, on_ended);
        return;
    }
}

uint64_t weft_etcd_lease_turn(struct etcd *e, uint64_t now_ns)
{
    struct etcd_lease *lease = &e->lease;
    /* etcd may still hold it, with its keys: it is given back before there is
     * another one, so that nobody sees keys of both. */
    if (lease->state == ETCD_LEASE_HELD && now_ns >= lease->good_until_ns)
        lose(e, ETCD_LEASE_REVOKE,
             "the lease has run out, since etcd has not answered for as long");
    const uint64_t lapse =
        lease->state == ETCD_LEASE_HELD ? lease->good_until_ns : UINT64_MAX;
    if (lease->call.call != NULL) return lapse;
    if (e->ending && lease->state != ETCD_LEASE_REVOKE) return UINT64_MAX;
    if (now_ns < lease->next_ns)
        return lease->next_ns < lapse ? lease->next_ns : lapse;
    ask(e, now_ns);
    return lapse;
}
