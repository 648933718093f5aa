/* A process's client of the store: what etcd.c is to a real one. */
#include <string.h>

#include "node/base/check.h"
#include "node/base/mem.h"
#include "tests/cluster/sim/world.h"

enum { CALL_MS = 700, KEEP_MS = 1500, RELIST_S = 8, LOOK_MS = 250 };

void client_tell(struct world *w, struct node *n,
                 const weft_registry_event *event)
{
    if (weft_roster_apply(n->roster, event)) process_wake(w, n);
    const bool is_result = event->kind == WEFT_REGISTRY_TXN;
    if (!is_result || !n->client.of_controller)
        weft_agent_take(n->agent, event, w->now);
    if (n->controller != NULL && (!is_result || n->client.of_controller))
        weft_controller_take(n->controller, event, w->now);
    if (event->kind != WEFT_REGISTRY_PUT && event->kind != WEFT_REGISTRY_DELETE)
        process_wake(w, n);
}

static struct call *call_make(struct node *n, enum call_kind kind, uint64_t now)
{
    struct call *call = weft_mem_new(1, sizeof *call);
    WEFT_ASSERT(call != NULL);
    /* Numbers of one process are not those of the next. */
    call->number = (uint64_t)n->gen * 1000000 + ++n->client.calls;
    call->kind = kind;
    call->sent_ns = now;
    call->lease = n->client.lease;
    return call;
}

static uint64_t send(struct world *w, struct node *n, struct call *call)
{
    const uint64_t number = call->number;
    if (w->cut[n->index][STORE] || (!w->calm && chance(w, 5))) {
        call_destroy(call);
        return number;
    }
    post(w, w->now + delay(w), EV_TO_STORE, n->index, 0, 0, call);
    return number;
}

static void set_lease(struct world *w, struct node *n, int64_t lease,
                      weft_status status)
{
    const weft_registry_event event = {.kind = WEFT_REGISTRY_LEASE,
                                       .status = status};
    n->client.lease = lease;
    client_tell(w, n, &event);
}

static void set_linked(struct world *w, struct node *n, bool linked)
{
    const weft_registry_event event = {.kind = WEFT_REGISTRY_LINK,
                                       .status =
                                           linked ? WEFT_OK : WEFT_UNAVAILABLE};
    if (n->client.is_linked == linked) return;
    n->client.is_linked = linked;
    client_tell(w, n, &event);
}

static void end_txn(struct world *w, struct node *n, weft_status status,
                    int64_t revision)
{
    const weft_registry_event event = {.kind = WEFT_REGISTRY_TXN,
                                       .tag = n->client.txn_tag,
                                       .status = status,
                                       .revision = revision};
    n->client.txn_call = 0;
    client_tell(w, n, &event);
}

void client_submit(struct world *w, struct node *n, const weft_txn *txn,
                   bool of_controller)
{
    struct client *c = &n->client;
    struct call *call = call_make(n, CALL_TXN, w->now);
    call->txn = *txn;
    for (int32_t i = 0; i < txn->n_writes; i++)
        if (!txn->writes[i].remove)
            call->values[i] =
                blob_make(txn->writes[i].value.data, txn->writes[i].value.n);
    c->of_controller = of_controller;
    c->txn_tag = txn->tag;
    c->txn_until = w->now + CALL_MS * MS;
    c->txn_call = send(w, n, call);
}

void client_break(struct world *w, struct node *n)
{
    if (!n->alive) return;
    n->client.must_list = true;
    post(w, w->now + LOOK_MS * MS, EV_CLIENT, n->index, n->gen, 1, NULL);
}

static void list(struct world *w, struct node *n)
{
    struct client *c = &n->client;
    if (c->is_listing && w->now < c->list_ns + CALL_MS * MS) return;
    c->is_listing = true;
    c->list_ns = w->now;
    c->listing = send(w, n, call_make(n, CALL_LIST, w->now));
}

/* What is due: lease, listing, deadlines of calls. */
void client_run(struct world *w, struct node *n, bool once)
{
    struct client *c = &n->client;
    const bool relists = w->mutation != SIM_LOST_EVENT;
    if (c->lease != 0 && w->now >= c->lease_until)
        set_lease(w, n, 0, WEFT_UNAVAILABLE);
    if (w->now > c->heard_ns + 2 * S) set_linked(w, n, false);
    if (c->txn_call != 0 && w->now >= c->txn_until)
        end_txn(w, n, WEFT_UNAVAILABLE, 0);
    (void)send(w, n,
               call_make(n, c->lease != 0 ? CALL_KEEP : CALL_LEASE, w->now));
    if (c->must_list || (relists && w->now > c->list_ns + RELIST_S * S))
        list(w, n);
    if (once) return;
    post(w, w->now + (c->is_linked && !c->must_list ? KEEP_MS : LOOK_MS) * MS,
         EV_CLIENT, n->index, n->gen, 0, NULL);
}

static void take_list(struct world *w, struct node *n, const struct call *call)
{
    struct client *c = &n->client;
    weft_registry_event event = {.kind = WEFT_REGISTRY_RELIST_BEGIN};
    if (!c->is_listing || call->number != c->listing) return;
    c->is_listing = false;
    c->must_list = false;
    c->stream = call->number;
    client_tell(w, n, &event);
    for (int32_t i = 0; i < call->n_list; i++)
        client_watch(w, n, call->number, &call->list[i]);
    event = (weft_registry_event){.kind = WEFT_REGISTRY_RELIST_END,
                                  .revision = call->revision};
    client_tell(w, n, &event);
}

void client_answer(struct world *w, struct node *n, struct call *call)
{
    struct client *c = &n->client;
    const bool is_ours = call->number / 1000000 == n->gen;
    if (is_ours) {
        c->heard_ns = w->now;
        set_linked(w, n, true);
        switch (call->kind) {
        case CALL_LEASE:
            if (c->lease != 0) break; /* one of two calls for one */
            c->lease_until = call->sent_ns + LEASE_S * S;
            set_lease(w, n, call->lease, WEFT_OK);
            break;
        case CALL_KEEP:
            if (call->lease != c->lease) break;
            if (call->status != WEFT_OK)
                set_lease(w, n, 0, WEFT_UNAVAILABLE);
            else if (call->sent_ns + LEASE_S * S > c->lease_until)
                c->lease_until = call->sent_ns + LEASE_S * S;
            break;
        case CALL_LIST: take_list(w, n, call); break;
        case CALL_TXN:
            if (call->number == c->txn_call)
                end_txn(w, n, call->status, call->revision);
            break;
        }
    }
    call_destroy(call);
}

/* Bugs on purpose that lie in what a roster is told. */
static struct blob *twist(const struct world *w, const struct node *n,
                          const char *key, const struct blob *value)
{
    weft_member m;
    weft_buf buf = {0};
    struct blob *out = NULL;
    const bool reused =
        w->mutation == SIM_EPOCH_REUSED && n->role == WEFT_ROLE_ROUTER;
    const bool ignored = w->mutation == SIM_NO_INCARNATION &&
                         n->role == WEFT_ROLE_ROUTER &&
                         strncmp(key, "members/experts/", 16) == 0;
    if (!reused && !ignored) return NULL;
    if (strncmp(key, "members/", 8) != 0 ||
        weft_member_decode((weft_span){value->data, value->n}, &m, NULL) !=
            WEFT_OK)
        return NULL;
    if (reused) m.epoch = 0;
    if (ignored) m.incarnation = 1;
    if (weft_member_encode(&m, &buf, NULL) == WEFT_OK)
        out = blob_make(buf.data, buf.n);
    weft_buf_deinit(&buf);
    return out;
}

void client_watch(struct world *w, struct node *n, uint64_t stream,
                  const struct change *change)
{
    if (stream != n->client.stream) return;
    struct blob *twisted =
        change->value != NULL ? twist(w, n, change->key, change->value) : NULL;
    const struct blob *value = twisted != NULL ? twisted : change->value;
    const weft_registry_event event = {
        .kind = change->removed ? WEFT_REGISTRY_DELETE : WEFT_REGISTRY_PUT,
        .key = change->key,
        .value = {.data = value != NULL ? value->data : NULL,
                  .n = value != NULL ? value->n : 0},
        .revision = change->revision};
    client_tell(w, n, &event);
    blob_drop(twisted);
}
