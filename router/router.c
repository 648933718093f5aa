#include "router/router.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/hash.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/base/ring.h"
#include "router/text_thread.h"

enum {
    EVENTS_MAX = 4096, /* a few steps of a large batch, prompt logprobs */
    EVENTS_A_TURN = 256,
    ABORTS_MAX = 64,
    WORD_BITS = 64,
};

/* How long to wait before a lead without room is asked again. */
static const uint64_t AGAIN_NS = 1000000;

/* A slot: owner is the live request's handle, or 0. cancel is the newest
 * handle of this slot that was cancelled: serials rise, so a late cancel of an
 * earlier request in the slot cannot hide one of the present request. */
typedef struct slot {
    _Atomic uint64_t owner, cancel;
} slot;

typedef struct abort_call {
    weft_span *ids; /* sorted, ours; what they point to: the caller's */
    size_t n;
    weft_abort_fn done;
    void *arg;
} abort_call;

struct weft_router {
    weft_router_options options;
    weft_flow *flow;
    weft_text_thread *text;
    weft_ring *events; /* weft_event; the one the router's thread waits on */
    weft_ring *opens; /* weft_entry *: accepted, or back from the text thread */
    weft_ring *aborts; /* abort_call */

    int32_t n_slots;
    slot *slots;
    _Atomic uint64_t *cancelled; /* a bit a slot: its mark is to be looked at */
    _Atomic uint32_t slot_hint;
    _Atomic uint64_t serial;
    _Atomic int64_t memory_bytes;
    _Atomic bool cancel_due, cut_due, draining, stopping, ending;
    _Atomic int32_t n_entering; /* threads inside generate, abort, tokenize */
    _Atomic int32_t n_live, n_running, n_closing;

    pthread_t thread;
    bool started, stopped;
};

/* -- slots and memory ----------------------------------------------------- */

/* 0: all taken. */
static uint64_t slot_acquire(weft_router *router, uint64_t serial)
{
    const uint32_t n = (uint32_t)router->n_slots;
    const uint32_t from = atomic_load(&router->slot_hint);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = (from + i) % n;
        const uint64_t handle = weft_handle_make(serial, (int32_t)at);
        uint64_t free_slot = 0;
        if (!atomic_compare_exchange_strong(&router->slots[at].owner,
                                            &free_slot, handle))
            continue;
        atomic_store(&router->slot_hint, (at + 1) % n);
        atomic_fetch_add(&router->n_live, 1);
        return handle;
    }
    return 0;
}

static void slot_release(weft_router *router, uint64_t handle)
{
    atomic_store(&router->slots[weft_handle_slot(handle)].owner, 0);
    atomic_fetch_sub(&router->n_live, 1);
}

/* What the entry holds, or will by its end, against what was counted for it: a
 * stream that has begun never ends for want of memory that others took. */
static weft_status charge(void *arg, weft_entry *entry, weft_err *err)
{
    weft_router *const router = arg;
    const int64_t holds = (int64_t)(sizeof *entry) +
                          (int64_t)weft_arena_used(entry->arena) +
                          (int64_t)entry->prompt_text_bytes +
                          entry->ask.logprob_bytes + entry->ask.text_bytes;
    const int64_t more = holds - entry->charged_bytes;
    const int64_t limit = router->options.memory_bytes_max;
    const int64_t before = atomic_fetch_add(&router->memory_bytes, more);
    if (more > 0 && before > limit - more) {
        atomic_fetch_sub(&router->memory_bytes, more);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "request memory is full: this request needs %lld "
                         "bytes, %lld of %lld are in use",
                         (long long)more, (long long)before, (long long)limit);
    }
    entry->charged_bytes = holds;
    return WEFT_OK;
}

static void release_entry(void *arg, const weft_entry *entry)
{
    weft_router *const router = arg;
    atomic_fetch_sub(&router->memory_bytes, entry->charged_bytes);
    slot_release(router, entry->handle);
}

/* -- the way in ----------------------------------------------------------- */

static void push_open(void *arg, weft_entry *entry)
{
    weft_router *const router = arg;
    /* Room for every slot, and an entry is in it at most once. */
    const bool pushed = weft_ring_push(router->opens, &entry);
    WEFT_ASSERT(pushed);
    weft_ring_wake(router->events);
}

static bool prompt_wanted(void *arg, const weft_entry *entry)
{
    const weft_router *const router = arg;
    const slot *const at = &router->slots[weft_handle_slot(entry->handle)];
    return atomic_load(&at->cancel) != entry->handle;
}

static void send_to_text(void *arg, weft_entry *entry)
{
    weft_router *const router = arg;
    weft_text_thread_push(router->text, entry);
}

static weft_status make_entry(weft_router *router, const weft_request *request,
                              weft_entry **entry_out, weft_err *err)
{
    weft_arena *arena = NULL;
    weft_admitted ask;
    weft_entry *entry = NULL;
    WEFT_TRY(weft_arena_create(WEFT_REQUEST_ARENA_MAX, &arena, err));
    weft_status st =
        weft_admit_request(&router->options.limits, request, arena, &ask, err);
    if (st == WEFT_OK)
        st = weft_entry_create(arena, &ask, request->text, &entry, err);
    if (st != WEFT_OK) {
        weft_arena_destroy(arena);
        return st;
    }
    st = charge(router, entry, err);
    if (st != WEFT_OK) {
        weft_entry_destroy(entry);
        return st;
    }
    *entry_out = entry;
    return WEFT_OK;
}

static weft_status accept_request(weft_router *router,
                                  const weft_request *request,
                                  const weft_client_ops *client,
                                  void *client_arg, uint64_t *handle_out,
                                  weft_err *err)
{
    const uint64_t serial = atomic_fetch_add(&router->serial, 1);
    const uint64_t handle = slot_acquire(router, serial);
    if (handle == 0)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "the queue is full: %d requests are running or "
                         "waiting (max-seqs %d and max-queue %d)",
                         router->n_slots, router->options.max_seqs,
                         router->options.max_queue);
    weft_request numbered = *request;
    numbered.serial = weft_hash_mix(router->options.start_id + serial);
    weft_entry *entry = NULL;
    const weft_status st = make_entry(router, &numbered, &entry, err);
    if (st != WEFT_OK) {
        slot_release(router, handle);
        return st;
    }
    entry->handle = handle;
    entry->ask.job.age = serial;
    entry->accepted_ns = weft_clock_now_ns();
    entry->client = client;
    entry->client_arg = client_arg;
    *handle_out = handle;
    push_open(router, entry);
    return WEFT_OK;
}

/* Between enter and leave the threads stay; false: they may be gone. */
static bool enter(weft_router *router, _Atomic bool *closed)
{
    atomic_fetch_add(&router->n_entering, 1);
    if (!atomic_load(closed)) return true;
    atomic_fetch_sub(&router->n_entering, 1);
    return false;
}

static void leave(weft_router *router)
{
    atomic_fetch_sub(&router->n_entering, 1);
}

static weft_status check_can_serve(const weft_router *router, weft_err *err)
{
    const weft_router_options *const o = &router->options;
    char reason[WEFT_ERR_TEXT_BYTES] = "";
    if (o->can_serve == NULL ||
        o->can_serve(o->can_serve_arg, reason, sizeof reason))
        return WEFT_OK;
    return WEFT_FAIL(err, WEFT_UNAVAILABLE, "no shards can serve this: %s",
                     reason);
}

weft_status weft_router_generate(weft_router *router,
                                 const weft_request *request,
                                 const weft_client_ops *client,
                                 void *client_arg, uint64_t *handle_out,
                                 int32_t *retry_after_ms_out, weft_err *err)
{
    *retry_after_ms_out = WEFT_RETRY_DRAIN_MS;
    if (!enter(router, &router->draining))
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "the server is draining");
    weft_status st = check_can_serve(router, err);
    if (st == WEFT_OK)
        st = accept_request(router, request, client, client_arg, handle_out,
                            err);
    leave(router);
    *retry_after_ms_out = -1;
    if (st == WEFT_RESOURCE_EXHAUSTED) *retry_after_ms_out = WEFT_RETRY_FULL_MS;
    if (st == WEFT_UNAVAILABLE) *retry_after_ms_out = WEFT_RETRY_SHARDS_MS;
    return st;
}

void weft_router_cancel(weft_router *router, uint64_t handle)
{
    const int32_t at = weft_handle_slot(handle);
    if (handle == 0 || at >= router->n_slots) return;
    uint64_t newest = atomic_load(&router->slots[at].cancel);
    while (newest < handle && !atomic_compare_exchange_weak(
                                  &router->slots[at].cancel, &newest, handle)) {
    }
    atomic_fetch_or(&router->cancelled[at / WORD_BITS], UINT64_C(1)
                                                            << at % WORD_BITS);
    atomic_store(&router->cancel_due, true);
    weft_ring_wake(router->events);
}

bool weft_router_take_event(void *arg, const weft_event *event)
{
    weft_router *const router = arg;
    return weft_ring_push(router->events, event);
}

weft_status weft_router_abort(weft_router *router, const weft_span *ids,
                              size_t n, weft_abort_fn done, void *arg,
                              weft_err *err)
{
    if (n > WEFT_ABORT_IDS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "request_ids has %zu ids: allowed are at most %d", n,
                         WEFT_ABORT_IDS_MAX);
    weft_span *const sorted = weft_mem_new(n, sizeof *sorted);
    if (sorted == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "request_ids: no memory for %zu of them", n);
    if (n > 0) memcpy(sorted, ids, n * sizeof *sorted);
    weft_flow_sort_ids(sorted, n);
    const abort_call call = {.ids = sorted, .n = n, .done = done, .arg = arg};
    if (!enter(router, &router->stopping)) {
        weft_mem_free(sorted);
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "the server is draining");
    }
    const bool pushed = weft_ring_push(router->aborts, &call);
    weft_ring_wake(router->events);
    leave(router);
    if (pushed) return WEFT_OK;
    weft_mem_free(sorted);
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "%d Abort calls are in line already", ABORTS_MAX);
}

weft_status weft_router_tokenize(weft_router *router, weft_span text,
                                 bool add_special, bool parse_special,
                                 weft_tokenize_fn done, void *arg,
                                 weft_err *err)
{
    if (!enter(router, &router->stopping))
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "the server is draining");
    const weft_status st = weft_text_thread_tokenize(
        router->text, text, add_special, parse_special, done, arg, err);
    leave(router);
    return st;
}

weft_status weft_router_detokenize(weft_router *router, const uint32_t *ids,
                                   size_t n, bool skip_special,
                                   weft_detokenize_fn done, void *arg,
                                   weft_err *err)
{
    if (!enter(router, &router->stopping))
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "the server is draining");
    const weft_status st = weft_text_thread_detokenize(
        router->text, ids, n, skip_special, done, arg, err);
    leave(router);
    return st;
}

/* -- the router's thread -------------------------------------------------- */

static void publish_load(weft_router *router)
{
    weft_flow_load load;
    weft_flow_get_load(router->flow, &load);
    atomic_store_explicit(&router->n_running, load.n_running,
                          memory_order_relaxed);
    atomic_store_explicit(&router->n_closing, load.n_closing,
                          memory_order_relaxed);
}

static const char CANCELLED_TEXT[] = "the client cancelled";

static void take_cancel(weft_router *router, int32_t at)
{
    const uint64_t handle = atomic_load(&router->slots[at].cancel);
    if (handle == atomic_load(&router->slots[at].owner))
        weft_flow_cancel(router->flow, handle, WEFT_CANCELLED, CANCELLED_TEXT);
}

static bool take_cancels(weft_router *router)
{
    if (!atomic_exchange(&router->cancel_due, false)) return false;
    for (int32_t i = 0; i < router->n_slots; i += WORD_BITS) {
        _Atomic uint64_t *const word = &router->cancelled[i / WORD_BITS];
        if (atomic_load_explicit(word, memory_order_relaxed) == 0) continue;
        for (uint64_t bits = atomic_exchange(word, 0); bits != 0;
             bits &= bits - 1)
            take_cancel(router, i + __builtin_ctzll(bits));
    }
    return true;
}

/* Fresh requests, and those that come back from the text thread. A cancel that
 * was marked before the request was opened is seen here. */
static bool take_opens(weft_router *router)
{
    weft_entry *entry = NULL;
    bool any = false;
    while (weft_ring_pop(router->opens, &entry)) {
        const uint64_t handle = entry->handle;
        slot *const at = &router->slots[weft_handle_slot(handle)];
        any = true;
        if (entry->held_by_text)
            weft_flow_text_done(router->flow, entry);
        else
            weft_flow_open(router->flow, entry);
        if (atomic_load(&at->cancel) == handle)
            weft_flow_cancel(router->flow, handle, WEFT_CANCELLED,
                             CANCELLED_TEXT);
    }
    return any;
}

static bool take_abort(weft_router *router)
{
    abort_call call;
    if (!weft_ring_pop(router->aborts, &call)) return false;
    const int32_t n = weft_flow_abort(router->flow, call.ids, call.n);
    weft_mem_free(call.ids);
    call.done(call.arg, n);
    return true;
}

static bool take_events(weft_router *router, uint64_t now_ns)
{
    weft_event event;
    int32_t n = 0;
    while (n < EVENTS_A_TURN && weft_ring_pop(router->events, &event)) {
        weft_flow_event(router->flow, &event, now_ns);
        publish_load(router);
        n++;
    }
    return n > 0;
}

/* One round over everything that may have come. Returns when the next is due
 * at the latest; now_ns: at once. */
static uint64_t turn(weft_router *router, uint64_t now_ns)
{
    bool any = take_cancels(router);
    any |= take_opens(router);
    any |= take_abort(router);
    if (atomic_exchange(&router->cut_due, false))
        weft_flow_cancel_all(router->flow, WEFT_UNAVAILABLE,
                             "the server is draining and its time is up",
                             WEFT_RETRY_DRAIN_MS);
    any |= take_events(router, now_ns);
    const uint64_t due_ns = weft_flow_tick(router->flow, now_ns);
    publish_load(router);
    if (any) return now_ns;
    return due_ns > now_ns ? due_ns : now_ns + AGAIN_NS;
}

static void *run(void *arg)
{
    weft_router *const router = arg;
    for (;;) {
        /* Before the last look around: nobody brings anything after it. */
        const bool end = atomic_load(&router->ending);
        const uint64_t now_ns = weft_clock_now_ns();
        const uint64_t due_ns = turn(router, now_ns);
        if (end) break;
        if (due_ns > now_ns) weft_ring_wait(router->events, due_ns);
    }
    while (take_abort(router)) {
    }
    weft_flow_cancel_all(router->flow, WEFT_UNAVAILABLE,
                         "the server has stopped", WEFT_RETRY_DRAIN_MS);
    (void)weft_flow_tick(router->flow, weft_clock_now_ns());
    publish_load(router);
    return NULL;
}

/* -- life ----------------------------------------------------------------- */

static weft_status create_parts(weft_router *router, weft_err *err)
{
    const size_t n = (size_t)router->n_slots;
    const weft_flow_hooks flow_hooks = {.watch = router->options.watch,
                                        .to_text = send_to_text,
                                        .release = release_entry,
                                        .arg = router};
    const weft_text_hooks text_hooks = {
        .done = push_open,
        .charge = charge,
        .prompt_wanted = prompt_wanted,
        .call_wanted = router->options.is_wanted,
        .arg = router,
    };
    router->slots = weft_mem_new(n, sizeof *router->slots);
    router->cancelled =
        weft_mem_new((n + WORD_BITS - 1) / WORD_BITS, sizeof(uint64_t));
    if (router->slots == NULL || router->cancelled == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %d live requests", router->n_slots);
    WEFT_TRY(weft_flow_create(router->n_slots, router->options.tokenizer,
                              &flow_hooks, &router->flow, err));
    WEFT_TRY(
        weft_ring_create(sizeof(weft_event), EVENTS_MAX, &router->events, err));
    WEFT_TRY(weft_ring_create(sizeof(weft_entry *), n, &router->opens, err));
    WEFT_TRY(
        weft_ring_create(sizeof(abort_call), ABORTS_MAX, &router->aborts, err));
    return weft_text_thread_create(router->options.tokenizer,
                                   &router->options.limits, router->n_slots,
                                   &text_hooks, &router->text, err);
}

weft_status weft_router_create(const weft_router_options *options,
                               weft_router **router_out, weft_err *err)
{
    const int64_t live = (int64_t)options->max_seqs + options->max_queue;
    if (options->max_seqs < 1 || options->max_queue < 0 ||
        live > WEFT_SLOTS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "max-seqs %d and max-queue %d: allowed are at least 1 "
                         "and 0, together at most %d",
                         options->max_seqs, options->max_queue, WEFT_SLOTS_MAX);
    weft_router *const router = weft_mem_new(1, sizeof *router);
    if (router == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the router");
    router->options = *options;
    router->n_slots = (int32_t)live;
    atomic_store(&router->serial, 1); /* so that no handle is 0 */
    const weft_status st = create_parts(router, err);
    if (st != WEFT_OK) {
        weft_router_destroy(router);
        return st;
    }
    *router_out = router;
    return WEFT_OK;
}

weft_status weft_router_start(weft_router *router, weft_lead lead,
                              weft_err *err)
{
    weft_flow_set_lead(router->flow, lead);
    WEFT_TRY(weft_text_thread_start(router->text, err));
    const int code = pthread_create(&router->thread, NULL, run, router);
    if (code != 0) {
        weft_text_thread_stop(router->text);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "cannot start the router's thread: %s",
                         strerror(code));
    }
    router->started = true;
    return WEFT_OK;
}

void weft_router_drain(weft_router *router)
{
    atomic_store(&router->draining, true);
}

bool weft_router_is_draining(const weft_router *router)
{
    return atomic_load(&router->draining);
}

void weft_router_cut(weft_router *router)
{
    atomic_store(&router->cut_due, true);
    weft_ring_wake(router->events);
}

void weft_router_stop(weft_router *router)
{
    atomic_store(&router->draining, true);
    atomic_store(&router->stopping, true);
    if (!router->started || router->stopped) return;
    router->stopped = true;
    /* Who is inside a call may still push; they do not wait for anything. */
    while (atomic_load(&router->n_entering) != 0) (void)sched_yield();
    /* The router's thread may still send it prompts, which it then leaves. */
    weft_text_thread_stop(router->text);
    atomic_store(&router->ending, true);
    weft_ring_wake(router->events);
    (void)pthread_join(router->thread, NULL);
}

void weft_router_destroy(weft_router *router)
{
    if (router == NULL) return;
    if (router->events != NULL) weft_router_stop(router);
    weft_event event;
    while (router->events != NULL && weft_ring_pop(router->events, &event))
        weft_mem_free(event.top);
    weft_text_thread_destroy(router->text);
    weft_flow_destroy(router->flow);
    weft_ring_destroy(router->events);
    weft_ring_destroy(router->opens);
    weft_ring_destroy(router->aborts);
    weft_mem_free(router->slots);
    weft_mem_free(router->cancelled);
    weft_mem_free(router);
}

void weft_router_get_load(const weft_router *router, weft_router_load *load_out)
{
    /* The parts before the whole, so that a sum read while it changes does not
     * go below zero for long; what is left of that is cut. */
    const int32_t running =
        atomic_load_explicit(&router->n_running, memory_order_relaxed);
    const int32_t closing =
        atomic_load_explicit(&router->n_closing, memory_order_relaxed);
    const int32_t live = atomic_load(&router->n_live);
    const int32_t waiting = live - running - closing;
    *load_out = (weft_router_load){
        .n_running = running < live ? running : live,
        .n_waiting = waiting > 0 ? waiting : 0,
        .n_live = live,
    };
}
