#include <grpc/grpc.h>
#include <stdio.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/cluster/etcd_internal.h"
#include "node/rpc/library.h"

#define LOG_GAP_NS (10000 * WEFT_ETCD_MS)

/* --- telling ------------------------------------------------------------- */

void weft_etcd_tell(struct etcd *e, const weft_registry_event *event)
{
    /* Without a taker it is the end, and nobody wants to know. */
    if (e->take == NULL) return;
    weft_registry_event copy = *event;
    if (copy.text == NULL) copy.text = "";
    e->n_told++;
    e->take(e->take_arg, &copy);
}

bool weft_etcd_may_log(struct etcd *e)
{
    const uint64_t now = weft_clock_now_ns();
    if (now < e->log_ns) return false;
    e->log_ns = now + LOG_GAP_NS;
    return true;
}

void weft_etcd_answered(struct etcd *e)
{
    e->unanswered_ns = 0;
    if (e->reached == ETCD_REACHED) return;
    e->reached = ETCD_REACHED;
    weft_etcd_tell(e, &(weft_registry_event){.kind = WEFT_REGISTRY_LINK,
                                             .status = WEFT_OK});
}

static uint64_t link_turn(struct etcd *e, uint64_t now_ns)
{
    char text[WEFT_ETCD_TEXT_BYTES + 128];
    if (e->unanswered_ns == 0 || e->reached == ETCD_UNREACHED)
        return UINT64_MAX;
    const uint64_t due = e->unanswered_ns + 2 * e->call_ns;
    if (now_ns < due) return due;
    e->reached = ETCD_UNREACHED;
    (void)snprintf(text, sizeof text, "etcd at %.100s does not answer%s%s",
                   e->endpoint_text, e->last_error[0] != '\0' ? ": " : "",
                   e->last_error);
    weft_etcd_tell(e, &(weft_registry_event){.kind = WEFT_REGISTRY_LINK,
                                             .status = WEFT_UNAVAILABLE,
                                             .text = text});
    return UINT64_MAX;
}

/* --- transactions -------------------------------------------------------- */

static void tell_txn(struct etcd *e, uint64_t tag, weft_status status,
                     int64_t revision, const char *text)
{
    weft_etcd_tell(e, &(weft_registry_event){.kind = WEFT_REGISTRY_TXN,
                                             .tag = tag,
                                             .status = status,
                                             .revision = revision,
                                             .text = text});
}

/* An answer below what was known before it was asked for is of another store.
 * Below what has been told since it need not be: watch and answers overtake. */
static void note_revision(struct etcd *e, int64_t revision, int64_t asked)
{
    if (revision < asked)
        weft_etcd_relist(e);
    else if (revision > e->revision)
        e->revision = revision;
}

static void take_txn(struct etcd *e, struct etcd_txn *txn)
{
    enum { BYTES_MAX = 1 << 20 };
    weft_arena *arena;
    const Etcdserverpb__TxnResponse *r = NULL;
    weft_etcd_answered(e);
    if (weft_arena_create(BYTES_MAX, &arena, NULL) == WEFT_OK)
        r = (const Etcdserverpb__TxnResponse *)weft_etcd_unpack(
            &etcdserverpb__txn_response__descriptor, txn->call.answer, arena);
    else
        arena = NULL;
    if (r == NULL || r->header == NULL) {
        tell_txn(e, txn->tag, WEFT_UNAVAILABLE, 0, "the answer cannot be read");
    } else {
        const int64_t revision = r->header->revision;
        note_revision(e, revision, txn->asked_revision);
        tell_txn(e, txn->tag, r->succeeded ? WEFT_OK : WEFT_FAILED_PRECONDITION,
                 revision, r->succeeded ? "" : "a compare did not hold");
    }
    weft_arena_destroy(arena);
}

static void fail_txn(struct etcd *e, struct etcd_call *call, uint64_t tag)
{
    char text[WEFT_ETCD_TEXT_BYTES];
    weft_status status = WEFT_UNAVAILABLE;
    (void)weft_etcd_reason(call, text);
    weft_etcd_failed(e, call->endpoint, call->code, &call->details);
    (void)weft_etcd_token_refused(e, call);
    if (call->code == GRPC_STATUS_NOT_FOUND) {
        status = WEFT_FAILED_PRECONDITION;
        weft_etcd_lease_gone(e, text);
    } else if (call->code == GRPC_STATUS_INVALID_ARGUMENT) {
        status = WEFT_FAILED_PRECONDITION;
        weft_log(WEFT_LOG_ERROR, "cluster", "txn_refused", "reason \"%s\"",
                 text);
    }
    tell_txn(e, tag, status, 0, text);
}

static void on_txn(struct etcd *e, struct etcd_call *call)
{
    struct etcd_txn *txn = (struct etcd_txn *)call;
    /* The slot is free only when the call is cleared away, after this. */
    if (call->code == GRPC_STATUS_OK)
        take_txn(e, txn);
    else
        fail_txn(e, call, txn->tag);
}

static struct etcd_txn *free_txn(struct etcd *e)
{
    for (int i = 0; i < WEFT_ETCD_TXNS_MAX; i++)
        if (e->txns[i].call.call == NULL && !e->txns[i].call.busy)
            return &e->txns[i];
    return NULL;
}

static weft_status keep_result(struct etcd *e, uint64_t tag, weft_status status,
                               const char *text, weft_err *err)
{
    if (e->n_results == WEFT_ETCD_TXNS_MAX)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "too many transactions under way");
    e->results[e->n_results++] = (struct etcd_result){tag, status, text};
    return WEFT_OK;
}

static weft_status submit(weft_registry *registry, const weft_txn *txn,
                          weft_err *err)
{
    struct etcd *e = (struct etcd *)registry;
    bool leased = false;
    WEFT_TRY(weft_txn_check(txn, err));
    for (int32_t i = 0; i < txn->n_writes; i++)
        leased |= txn->writes[i].leased && !txn->writes[i].remove;
    if (leased && e->lease.state != ETCD_LEASE_HELD)
        return keep_result(e, txn->tag, WEFT_FAILED_PRECONDITION,
                           "there is no lease", err);
    if (!weft_etcd_is_logged_in(e))
        return keep_result(e, txn->tag, WEFT_UNAVAILABLE,
                           "etcd has not let us in", err);
    struct etcd_txn *slot = free_txn(e);
    if (slot == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "too many transactions under way");
    slot->tag = txn->tag;
    slot->asked_revision = e->revision;
    weft_etcd_start(e, &slot->call, "/etcdserverpb.KV/Txn",
                    weft_etcd_txn(&e->prefix, txn, e->lease.id),
                    weft_clock_now_ns(), on_txn);
    return WEFT_OK;
}

/* --- polling ------------------------------------------------------------- */

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* What is due; when to look again. */
static uint64_t turn(struct etcd *e)
{
    const uint64_t now = weft_clock_now_ns();
    uint64_t next = weft_etcd_secret_turn(e, now);
    if (weft_etcd_is_logged_in(e)) {
        next = earlier(next, weft_etcd_lease_turn(e, now));
        next = earlier(next, weft_etcd_watch_turn(e, now));
    }
    return earlier(next, link_turn(e, now));
}

static void on_woken(struct etcd *e, struct etcd_tag *tag, bool ok)
{
    (void)tag;
    (void)ok;
    atomic_store(&e->wake_pending, false);
    e->awake = true;
}

static void tell_results(struct etcd *e)
{
    struct etcd_result results[WEFT_ETCD_TXNS_MAX];
    const int32_t n = e->n_results;
    memcpy(results, e->results, sizeof results);
    e->n_results = 0;
    for (int32_t i = 0; i < n; i++)
        tell_txn(e, results[i].tag, results[i].status, 0, results[i].text);
}

static void poll(weft_registry *registry, uint64_t deadline_ns,
                 weft_registry_fn take, void *arg)
{
    struct etcd *e = (struct etcd *)registry;
    bool waited = false;
    e->take = take;
    e->take_arg = arg;
    e->n_told = 0;
    e->awake = false;
    tell_results(e);
    for (;;) {
        /* Before anything that has come: whose time is up is told so. */
        const uint64_t due = turn(e);
        const bool over = e->n_told > 0 || e->awake || waited;
        const uint64_t until = over ? 0 : earlier(due, deadline_ns);
        if (weft_etcd_next(e, until)) continue;
        if (over) break;
        waited = weft_clock_now_ns() >= deadline_ns;
    }
    e->take = NULL;
}

static void wake(weft_registry *registry)
{
    struct etcd *e = (struct etcd *)registry;
    if (atomic_exchange(&e->wake_pending, true)) return;
    /* A batch of nothing comes out of the queue at once. */
    const grpc_call_error error =
        grpc_call_start_batch(e->waker, NULL, 0, &e->woken, NULL);
    WEFT_ASSERT(error == GRPC_CALL_OK);
}

/* --- beginning and end --------------------------------------------------- */

static bool is_cluster_name(const char *name)
{
    size_t n = 0;
    for (; name[n] != '\0'; n++) {
        const char c = name[n];
        const bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '.' || c == '_' ||
                          c == '-';
        if (!good || n >= 63) return false;
    }
    return n > 0;
}

static weft_status set_options(struct etcd *e, const weft_etcd_options *options,
                               weft_err *err)
{
    if (!is_cluster_name(options->cluster))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "\"%.80s\" is no name of a cluster (allowed: 1 to 63 "
                         "of A-Z a-z 0-9 . _ -)",
                         options->cluster);
    e->lease_ns =
        options->lease_ns != 0 ? options->lease_ns : 5000 * WEFT_ETCD_MS;
    e->relist_ns =
        options->relist_ns != 0 ? options->relist_ns : 30000 * WEFT_ETCD_MS;
    e->call_ns = options->call_ns != 0 ? options->call_ns : 700 * WEFT_ETCD_MS;
    const uint64_t second = 1000 * WEFT_ETCD_MS;
    e->lease.ttl_s = (int64_t)((e->lease_ns + second - 1) / second);
    weft_etcd_prefix *p = &e->prefix;
    p->n = (size_t)snprintf(p->from, sizeof p->from, "/weft/%s/",
                            options->cluster);
    (void)snprintf(p->to, sizeof p->to, "/weft/%s0", options->cluster);
    e->endpoint_text =
        weft_mem_copy_text(options->endpoints, strlen(options->endpoints));
    if (e->endpoint_text == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the endpoints of etcd");
    return WEFT_OK;
}

static void release(struct etcd *e)
{
    weft_etcd_close(e);
    weft_etcd_watch_deinit(e);
    weft_etcd_secret_deinit(e);
    weft_mem_free(e->endpoint_text);
    weft_mem_free(e);
    grpc_shutdown();
}

static void cancel_all(struct etcd *e)
{
    weft_etcd_watch_end(e);
    weft_etcd_cancel(&e->lease.call);
    weft_etcd_cancel(&e->secret.call);
    for (int i = 0; i < WEFT_ETCD_TXNS_MAX; i++)
        weft_etcd_cancel(&e->txns[i].call);
}

/* A call that was cancelled ends by what happens here alone. */
static void wait_idle(struct etcd *e)
{
    while (e->n_calls > 0 || e->watch.call != NULL)
        (void)weft_etcd_next(e, UINT64_MAX);
}

static void destroy(weft_registry *registry, uint64_t deadline_ns)
{
    struct etcd *e = (struct etcd *)registry;
    e->ending = true;
    cancel_all(e);
    wait_idle(e);
    if (e->lease.state == ETCD_LEASE_HELD) e->lease.state = ETCD_LEASE_REVOKE;
    e->lease.next_ns = 0;
    while (e->lease.state == ETCD_LEASE_REVOKE) {
        const uint64_t now = weft_clock_now_ns();
        if (now >= deadline_ns) break;
        const uint64_t due = weft_etcd_lease_turn(e, now);
        (void)weft_etcd_next(e, earlier(due, deadline_ns));
    }
    cancel_all(e);
    wait_idle(e);
    release(e);
}

weft_status weft_registry_create_etcd(const weft_etcd_options *options,
                                      weft_registry **registry_out,
                                      weft_err *err)
{
    static const weft_registry_ops ops = {submit, poll, wake, destroy};
    struct etcd *e = weft_mem_new(1, sizeof *e);
    if (e == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the client of etcd");
    weft_grpc_begin();
    e->base.ops = &ops;
    e->woken.fn = on_woken;
    weft_etcd_watch_init(e);
    weft_status st = set_options(e, options, err);
    if (st == WEFT_OK) st = weft_etcd_secret_init(e, options, err);
    if (st == WEFT_OK) st = weft_etcd_open(e, options, err);
    if (st != WEFT_OK) {
        release(e);
        return st;
    }
    *registry_out = &e->base;
    return WEFT_OK;
}
