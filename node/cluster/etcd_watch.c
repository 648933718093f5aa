/* The store as it is, then its changes.
 *
 * A listing is read in pages of one revision and told when it is whole; then
 * the changes from the next revision on are watched. Whatever ends the stream
 * leads to a listing: who has missed something cannot know what. While a
 * listing is read there is no stream, so that nothing older than what was told
 * is told. */
#include <string.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/rng.h"
#include "node/cluster/etcd_internal.h"

#define RETRY_NS (100 * WEFT_ETCD_MS)

enum {
    LISTING_BYTES_MAX = 64 << 20,
    CHANGES_BYTES_MAX = 64 << 20,
    PAGE_KEYS_MAX = 512,
    PAGE_KEYS_SLOW = 32, /* of an etcd that takes its time */
};

/* --- telling ------------------------------------------------------------- */

static void tell_mark(struct etcd *e, weft_registry_event_kind kind)
{
    weft_etcd_tell(
        e, &(weft_registry_event){.kind = kind, .revision = e->watch.revision});
}

/* false: there is no such key here. */
static bool key_of(struct etcd *e, const Etcdserverpb__KeyValue *kv,
                   char key[WEFT_KEY_BYTES])
{
    if (weft_etcd_key(&e->prefix, kv->key, key)) return true;
    if (weft_etcd_may_log(e))
        weft_log(WEFT_LOG_WARN, "cluster", "key_skipped", "bytes %zu limit %d",
                 kv->key.len - e->prefix.n, WEFT_KEY_BYTES - 1);
    return false;
}

static bool fits(struct etcd *e, const char *key,
                 const Etcdserverpb__KeyValue *kv)
{
    const size_t most = weft_registry_value_max(key);
    if (kv->value.len <= most) return true;
    if (weft_etcd_may_log(e))
        weft_log(WEFT_LOG_WARN, "cluster", "value_skipped",
                 "key %s bytes %zu limit %zu", key, kv->value.len, most);
    return false;
}

static void tell_key(struct etcd *e, const Etcdserverpb__KeyValue *kv,
                     const char *key, weft_registry_event_kind kind)
{
    weft_registry_event event = {
        .kind = kind, .key = key, .revision = kv->mod_revision};
    if (kind == WEFT_REGISTRY_PUT)
        event.value = (weft_span){(const char *)kv->value.data, kv->value.len};
    weft_etcd_tell(e, &event);
}

static void note_revision(struct etcd *e, int64_t revision)
{
    if (revision > e->revision) e->revision = revision;
}

/* --- listing ------------------------------------------------------------- */

static void drop_pages(struct etcd_watch *w)
{
    weft_arena_destroy(w->arena);
    w->arena = NULL;
    w->first = NULL;
    w->last = &w->first;
}

static void end_stream(struct etcd *e)
{
    struct etcd_watch *w = &e->watch;
    if (w->call == NULL || w->cancelled) return;
    w->cancelled = true;
    (void)grpc_call_cancel(w->call, NULL);
}

void weft_etcd_relist(struct etcd *e)
{
    struct etcd_watch *w = &e->watch;
    end_stream(e);
    if (w->listing) return;
    w->listing = true;
    w->next_ns = 0;
    drop_pages(w);
}

static void try_later(struct etcd *e)
{
    drop_pages(&e->watch);
    e->watch.next_ns = weft_clock_now_ns() + RETRY_NS;
}

/* Somewhere between 0.8 and 1.2 of it, so that a fleet that has lost etcd at
 * one moment does not list at one moment ever after. */
static uint64_t spread(uint64_t ns, uint64_t now_ns)
{
    return (uint64_t)((double)ns * (0.8 + 0.4 * weft_rng_unit(ns, now_ns)));
}

static void tell_listing(struct etcd *e)
{
    struct etcd_watch *w = &e->watch;
    char key[WEFT_KEY_BYTES];
    if (w->revision < e->revision)
        weft_log(WEFT_LOG_WARN, "cluster", "store_replaced",
                 "revision %lld seen %lld", (long long)w->revision,
                 (long long)e->revision);
    e->revision = w->revision;
    tell_mark(e, WEFT_REGISTRY_RELIST_BEGIN);
    for (const struct etcd_page *page = w->first; page; page = page->next)
        for (size_t i = 0; i < page->response->n_kvs; i++) {
            const Etcdserverpb__KeyValue *kv = page->response->kvs[i];
            if (key_of(e, kv, key) && fits(e, key, kv))
                tell_key(e, kv, key, WEFT_REGISTRY_PUT);
        }
    tell_mark(e, WEFT_REGISTRY_RELIST_END);
    drop_pages(w);
    w->listing = false;
    if (w->page_keys < PAGE_KEYS_MAX) w->page_keys *= 2;
    const uint64_t now = weft_clock_now_ns();
    w->relist_due_ns = now + spread(e->relist_ns, now);
}

static void on_listed(struct etcd *e, struct etcd_call *call);

static void ask_page(struct etcd *e, uint64_t now_ns)
{
    struct etcd_watch *w = &e->watch;
    weft_span after = {0};
    const struct etcd_page *last = w->first;
    if (w->arena == NULL &&
        weft_arena_create(LISTING_BYTES_MAX, &w->arena, NULL) != WEFT_OK) {
        try_later(e);
        return;
    }
    while (last != NULL && last->next != NULL) last = last->next;
    if (last != NULL) {
        const Etcdserverpb__RangeResponse *r = last->response;
        const ProtobufCBinaryData *key = &r->kvs[r->n_kvs - 1]->key;
        after = (weft_span){(const char *)key->data, key->len};
    }
    grpc_byte_buffer *const request = weft_etcd_range(
        &e->prefix, after, last != NULL ? w->revision : 0, w->page_keys);
    if (request == NULL)
        try_later(e);
    else
        weft_etcd_start(e, &w->list, "/etcdserverpb.KV/Range", request, now_ns,
                        on_listed);
}

/* Append it; false: it is no page. */
static bool add_page(struct etcd *e, const Etcdserverpb__RangeResponse *r)
{
    struct etcd_watch *w = &e->watch;
    if (r == NULL || r->header == NULL || r->header->revision <= 0 ||
        (r->more != 0 && r->n_kvs == 0))
        return false;
    struct etcd_page *page = weft_arena_new(w->arena, 1, sizeof *page);
    if (page == NULL) return false;
    if (w->first == NULL) w->revision = r->header->revision;
    page->response = r;
    *w->last = page;
    w->last = &page->next;
    return true;
}

static void list_failed(struct etcd *e, struct etcd_call *call)
{
    struct etcd_watch *w = &e->watch;
    weft_etcd_failed(e, call->endpoint, call->code, &call->details);
    (void)weft_etcd_token_refused(e, call);
    try_later(e);
    /* The page was too large to be received, or to come in time. */
    if (call->code == GRPC_STATUS_RESOURCE_EXHAUSTED && w->page_keys > 1)
        w->page_keys = (w->page_keys + 7) / 8;
    if (call->code == GRPC_STATUS_DEADLINE_EXCEEDED &&
        w->page_keys > PAGE_KEYS_SLOW)
        w->page_keys /= 2;
}

static void on_listed(struct etcd *e, struct etcd_call *call)
{
    struct etcd_watch *w = &e->watch;
    if (call->code != GRPC_STATUS_OK) {
        list_failed(e, call);
        return;
    }
    weft_etcd_answered(e);
    if (w->arena == NULL) return; /* it was begun anew meanwhile */
    const Etcdserverpb__RangeResponse *r =
        (const Etcdserverpb__RangeResponse *)weft_etcd_unpack(
            &etcdserverpb__range_response__descriptor, call->answer, w->arena);
    if (!add_page(e, r)) {
        if (weft_etcd_may_log(e))
            weft_log(WEFT_LOG_ERROR, "cluster", "listing_unreadable",
                     "prefix %s bytes_max %d", e->prefix.from,
                     LISTING_BYTES_MAX);
        try_later(e);
        return;
    }
    w->next_ns = 0;
    if (r->more == 0) tell_listing(e);
}

/* --- stream -------------------------------------------------------------- */

static void start_batch(struct etcd *e, const grpc_op *ops, size_t n,
                        struct etcd_tag *tag)
{
    const grpc_call_error error =
        grpc_call_start_batch(e->watch.call, ops, n, tag, NULL);
    WEFT_ASSERT(error == GRPC_CALL_OK);
    e->watch.outstanding++;
}

static void receive(struct etcd *e)
{
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &e->watch.answer;
    start_batch(e, &op, 1, &e->watch.message);
}

static void finish_stream(struct etcd *e)
{
    struct etcd_watch *w = &e->watch;
    if (--w->outstanding > 0) return;
    grpc_call_unref(w->call);
    w->call = NULL;
    grpc_metadata_array_destroy(&w->initial);
    grpc_metadata_array_destroy(&w->trailing);
    grpc_slice_unref(w->details);
    weft_etcd_relist(e);
    if (w->failed) w->next_ns = weft_clock_now_ns() + RETRY_NS;
}

static void on_sent(struct etcd *e, struct etcd_tag *tag, bool ok)
{
    struct etcd_watch *w = &e->watch;
    (void)tag;
    (void)ok; /* the status follows */
    if (w->request != NULL) grpc_byte_buffer_destroy(w->request);
    w->request = NULL;
    finish_stream(e);
}

static void on_status(struct etcd *e, struct etcd_tag *tag, bool ok)
{
    struct etcd_watch *w = &e->watch;
    (void)tag;
    (void)ok;
    if (!w->cancelled) weft_etcd_failed(e, w->endpoint, w->code, &w->details);
    w->cancelled = true;
    finish_stream(e);
}

static void take_changes(struct etcd *e, const Etcdserverpb__WatchResponse *r)
{
    struct etcd_watch *w = &e->watch;
    char key[WEFT_KEY_BYTES];
    for (size_t i = 0; i < r->n_events; i++) {
        const Etcdserverpb__Event *event = r->events[i];
        if (event->kv == NULL || !key_of(e, event->kv, key)) continue;
        const bool put = event->type == ETCDSERVERPB__EVENT__EVENT_TYPE__PUT &&
                         fits(e, key, event->kv);
        w->revision = event->kv->mod_revision;
        note_revision(e, w->revision);
        tell_key(e, event->kv, key,
                 put ? WEFT_REGISTRY_PUT : WEFT_REGISTRY_DELETE);
    }
}

/* false: the stream is of no more use. */
static bool take_message(struct etcd *e, grpc_byte_buffer *answer)
{
    struct etcd_watch *w = &e->watch;
    weft_arena *arena;
    if (weft_arena_create(CHANGES_BYTES_MAX, &arena, NULL) != WEFT_OK)
        return false;
    const Etcdserverpb__WatchResponse *r =
        (const Etcdserverpb__WatchResponse *)weft_etcd_unpack(
            &etcdserverpb__watch_response__descriptor, answer, arena);
    bool good = r != NULL && r->header != NULL && !r->canceled &&
                r->compact_revision == 0 &&
                /* The store has not come as far as what it has told already: it
                 * is another one, or this member is behind. A listing tells. */
                !(r->created && r->header->revision < w->revision);
    if (good) {
        w->asked_ns = 0;
        weft_etcd_answered(e);
        take_changes(e, r);
    }
    weft_arena_destroy(arena);
    return good;
}

static void on_message(struct etcd *e, struct etcd_tag *tag, bool ok)
{
    struct etcd_watch *w = &e->watch;
    (void)tag;
    /* Its place is free before the next one is asked for. */
    grpc_byte_buffer *const answer = w->answer;
    w->answer = NULL;
    if (answer != NULL && ok && !w->cancelled) {
        w->failed = !take_message(e, answer);
        if (w->failed)
            weft_etcd_relist(e);
        else
            receive(e);
    }
    if (answer != NULL) grpc_byte_buffer_destroy(answer);
    finish_stream(e);
}

static void open_stream(struct etcd *e, uint64_t now_ns)
{
    struct etcd_watch *w = &e->watch;
    grpc_metadata metadata[2];
    grpc_op ops[2];
    w->cancelled = w->failed = false;
    w->asked_ns = now_ns;
    w->endpoint = e->endpoint;
    w->details = grpc_empty_slice();
    w->request = weft_etcd_watch(&e->prefix, w->revision + 1);
    grpc_metadata_array_init(&w->initial);
    grpc_metadata_array_init(&w->trailing);
    w->call = grpc_channel_create_call(
        e->channels[e->endpoint], NULL, GRPC_PROPAGATE_DEFAULTS, e->queue,
        grpc_slice_from_static_string("/etcdserverpb.Watch/Watch"), NULL,
        gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);

    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[0].data.send_initial_metadata.count = weft_etcd_metadata(e, metadata);
    ops[0].data.send_initial_metadata.metadata = metadata;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = w->request;
    start_batch(e, ops, 2, &w->sent);

    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[0].data.recv_initial_metadata.recv_initial_metadata = &w->initial;
    ops[1].op = GRPC_OP_RECV_MESSAGE;
    ops[1].data.recv_message.recv_message = &w->answer;
    start_batch(e, ops, 2, &w->message);

    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[0].data.recv_status_on_client.trailing_metadata = &w->trailing;
    ops[0].data.recv_status_on_client.status = &w->code;
    ops[0].data.recv_status_on_client.status_details = &w->details;
    start_batch(e, ops, 1, &w->status);
}

static void ping(struct etcd *e, uint64_t now_ns)
{
    struct etcd_watch *w = &e->watch;
    grpc_op op;
    memset(&op, 0, sizeof op);
    w->request = weft_etcd_watch_ping();
    w->asked_ns = now_ns;
    op.op = GRPC_OP_SEND_MESSAGE;
    op.data.send_message.send_message = w->request;
    start_batch(e, &op, 1, &w->sent);
}

/* --- turns --------------------------------------------------------------- */

static uint64_t list_turn(struct etcd *e, uint64_t now_ns)
{
    struct etcd_watch *w = &e->watch;
    if (w->call != NULL || w->list.call != NULL) return UINT64_MAX;
    if (now_ns < w->next_ns) return w->next_ns;
    ask_page(e, now_ns);
    return w->list.call != NULL ? UINT64_MAX : w->next_ns;
}

static uint64_t stream_turn(struct etcd *e, uint64_t now_ns)
{
    struct etcd_watch *w = &e->watch;
    const uint64_t patience = 2 * e->call_ns;
    if (w->call == NULL) {
        open_stream(e, now_ns);
        w->ping_ns = now_ns + e->lease_ns / 3;
    }
    if (w->asked_ns != 0 && now_ns >= w->asked_ns + patience) {
        /* Its connection may be dead without anybody having said so. */
        const grpc_slice why =
            grpc_slice_from_static_string("the watch is silent");
        weft_etcd_failed(e, w->endpoint, GRPC_STATUS_DEADLINE_EXCEEDED, &why);
        weft_etcd_relist(e);
        return UINT64_MAX;
    }
    if (now_ns >= w->relist_due_ns) {
        weft_etcd_relist(e);
        return UINT64_MAX;
    }
    if (now_ns >= w->ping_ns) {
        w->ping_ns = now_ns + e->lease_ns / 3;
        if (w->asked_ns == 0 && w->request == NULL) ping(e, now_ns);
    }
    uint64_t next = w->ping_ns;
    if (w->asked_ns != 0 && w->asked_ns + patience < next)
        next = w->asked_ns + patience;
    return next < w->relist_due_ns ? next : w->relist_due_ns;
}

uint64_t weft_etcd_watch_turn(struct etcd *e, uint64_t now_ns)
{
    if (e->ending) return UINT64_MAX;
    return e->watch.listing ? list_turn(e, now_ns) : stream_turn(e, now_ns);
}

void weft_etcd_watch_init(struct etcd *e)
{
    struct etcd_watch *w = &e->watch;
    w->listing = true;
    w->last = &w->first;
    w->page_keys = PAGE_KEYS_MAX;
    w->sent.fn = on_sent;
    w->message.fn = on_message;
    w->status.fn = on_status;
}

void weft_etcd_watch_end(struct etcd *e)
{
    end_stream(e);
    weft_etcd_cancel(&e->watch.list);
}

void weft_etcd_watch_deinit(struct etcd *e)
{
    drop_pages(&e->watch);
}
