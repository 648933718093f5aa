#include "shard/expert/exchange.h"

#include <stdio.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/failpoint.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "shard/expert/exchange_internal.h"

/* As long as a whole step may take: a shard that lives and does not answer has
 * others to answer first, and where all are slow, leaving one out makes the
 * rest slower. */
#define ANSWER_NS UINT64_C(120000000000)

/* -- making --------------------------------------------------------------- */

static bool create_lane(const weft_exchange *ex, weft_exchange_lane *lane)
{
    const size_t n = (size_t)ex->pairs_max;
    lane->order = weft_mem_new(n, sizeof *lane->order);
    lane->piece_of = weft_mem_new(n, sizeof *lane->piece_of);
    lane->rows = weft_mem_new(n, sizeof *lane->rows);
    lane->pieces = weft_mem_new((size_t)ex->pieces_max, sizeof *lane->pieces);
    lane->owed = weft_mem_new(WEFT_EXPERT_SHARDS_MAX, sizeof *lane->owed);
    return lane->order != NULL && lane->piece_of != NULL &&
           lane->rows != NULL && lane->pieces != NULL && lane->owed != NULL;
}

static bool create_scratch(weft_exchange *ex)
{
    const size_t n = (size_t)ex->pairs_max;
    ex->slots = weft_mem_new(WEFT_EXPERT_SHARDS_MAX, sizeof *ex->slots);
    ex->wanted = weft_mem_new(WEFT_EXPERT_SHARDS_MAX, sizeof *ex->wanted);
    ex->counts = weft_mem_new(WEFT_EXPERT_SHARDS_MAX + 1, sizeof *ex->counts);
    ex->targets = weft_mem_new(n, sizeof *ex->targets);
    ex->sorted = weft_mem_new(n, sizeof *ex->sorted);
    ex->body_pairs =
        weft_mem_new(WEFT_DISPATCH_PAIRS_MAX, sizeof *ex->body_pairs);
    ex->body = weft_mem_new(WEFT_DISPATCH_BODY_BYTES_MAX, 1);
    return ex->slots != NULL && ex->wanted != NULL && ex->counts != NULL &&
           ex->targets != NULL && ex->sorted != NULL &&
           ex->body_pairs != NULL && ex->body != NULL;
}

weft_status weft_exchange_create(const weft_exchange_options *options,
                                 weft_exchange **exchange_out, weft_err *err)
{
    WEFT_ASSERT(options->max_rows >= 1 && options->config->top_k >= 1);
    weft_exchange *const ex = weft_mem_new(1, sizeof *ex);
    if (ex == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "exchange: out of memory");
    ex->options = *options;
    /* Where nobody pulses (threads of one process) silence says nothing. */
    if (ex->options.silence_ns == 0)
        ex->options.silence_ns =
            options->pulse != NULL ? WEFT_SILENCE_NS : UINT64_MAX;
    if (ex->options.answer_ns == 0) ex->options.answer_ns = ANSWER_NS;
    ex->config = options->config;
    ex->pairs_max = options->max_rows * options->config->top_k;
    /* Enough that a call of full size can be sent again whole a few times in
     * the smallest pieces that many shards make of it. */
    ex->pieces_max = 4 * WEFT_EXPERT_SHARDS_MAX + ex->pairs_max / 8;
    ex->topology = 1;
    ex->expiry_ns = UINT64_MAX;
    (void)pthread_mutex_init(&ex->lock, NULL);
    atomic_init(&ex->woken, false);
    atomic_init(&ex->stopped, false);
    bool ok = create_scratch(ex);
    for (int32_t i = 0; i < WEFT_STEP_LANES; i++)
        ok = ok && create_lane(ex, &ex->lanes[i]);
    weft_status st = WEFT_OK;
    if (!ok)
        st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                       "exchange: no memory for %d rows", options->max_rows);
    if (st == WEFT_OK) st = weft_exchange_near_create(ex, err);
    if (st == WEFT_OK) st = weft_poller_create(&ex->poller, err);
    if (st != WEFT_OK) {
        weft_exchange_destroy(ex);
        return st;
    }
    *exchange_out = ex;
    return WEFT_OK;
}

void weft_exchange_destroy(weft_exchange *ex)
{
    if (ex == NULL) return;
    ex->options.peers = NULL; /* gone, or about to go */
    for (int32_t s = 0; s < ex->n_slots; s++) weft_exchange_close_link(ex, s);
    weft_poller_destroy(ex->poller);
    weft_exchange_near_destroy(ex);
    for (int32_t i = 0; i < ex->n_held; i++)
        weft_expert_map_release(ex->held[i].map);
    for (int32_t i = 0; i < ex->n_inbox; i++)
        weft_expert_map_release(ex->inbox[i]);
    for (int32_t i = 0; i < WEFT_STEP_LANES; i++) {
        weft_exchange_lane *const lane = &ex->lanes[i];
        weft_mem_free(lane->order);
        weft_mem_free(lane->piece_of);
        weft_mem_free(lane->rows);
        weft_mem_free(lane->pieces);
        weft_mem_free(lane->owed);
    }
    weft_mem_free(ex->slots);
    weft_mem_free(ex->wanted);
    weft_mem_free(ex->counts);
    weft_mem_free(ex->targets);
    weft_mem_free(ex->sorted);
    weft_mem_free(ex->body_pairs);
    weft_mem_free(ex->body);
    (void)pthread_mutex_destroy(&ex->lock);
    weft_mem_free(ex);
}

/* -- by any thread -------------------------------------------------------- */

void weft_exchange_set_map(weft_exchange *ex, weft_expert_map *map)
{
    WEFT_ASSERT(map->epoch > 0 && map->n_layer == ex->config->n_layer &&
                map->n_expert == ex->config->n_expert);
    (void)pthread_mutex_lock(&ex->lock);
    weft_expert_map *out = NULL;
    const bool newer = map->epoch > ex->newest_epoch;
    if (newer) {
        if (ex->n_inbox == WEFT_EXCHANGE_MAPS) {
            out = ex->inbox[0];
            memmove(ex->inbox, ex->inbox + 1,
                    (size_t)--ex->n_inbox * sizeof(weft_expert_map *));
        }
        ex->inbox[ex->n_inbox++] = weft_expert_map_retain(map);
        ex->newest_epoch = map->epoch;
        ex->state.map_epoch = map->epoch;
    }
    (void)pthread_mutex_unlock(&ex->lock);
    weft_expert_map_release(out);
    if (newer) weft_exchange_wake(ex);
}

void weft_exchange_wake(weft_exchange *ex)
{
    atomic_store(&ex->woken, true);
    weft_poller_wake(ex->poller);
}

void weft_exchange_stop(weft_exchange *ex)
{
    atomic_store(&ex->stopped, true);
    weft_poller_wake(ex->poller);
}

void weft_exchange_get_state(weft_exchange *ex, weft_exchange_state *state_out)
{
    (void)pthread_mutex_lock(&ex->lock);
    *state_out = ex->state;
    (void)pthread_mutex_unlock(&ex->lock);
}

weft_status weft_exchange_add_link(weft_exchange *ex, const weft_peer *peer,
                                   weft_link *link, weft_err *err)
{
    const int32_t s = weft_exchange_slot_of(ex, peer);
    if (s == WEFT_NO_SLOT)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "exchange: more than %d peers",
                         WEFT_EXPERT_SHARDS_MAX);
    if (ex->slots[s].link != NULL)
        return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                         "exchange: %s is connected", peer->id);
    WEFT_TRY(weft_exchange_connect(ex, s, link, err));
    ex->slots[s].fixed = true;
    return WEFT_OK;
}

/* -- the computing thread ------------------------------------------------- */

/* The newest map that a step could use, or none. */
static weft_exchange_held *choose(weft_exchange *ex, uint64_t epoch)
{
    for (int32_t i = ex->n_held - 1; i >= 0; i--) {
        weft_exchange_held *const held = &ex->held[i];
        if (epoch != 0 ? held->map->epoch != epoch
                       : held->map->epoch < ex->epoch)
            continue;
        if (weft_exchange_is_whole(ex, held)) return held;
    }
    return NULL;
}

void weft_exchange_publish(weft_exchange *ex)
{
    weft_exchange_held *const newest =
        ex->n_held > 0 ? &ex->held[ex->n_held - 1] : NULL;
    weft_exchange_held *const held = choose(ex, 0);
    (void)pthread_mutex_lock(&ex->lock);
    weft_exchange_state *const state = &ex->state;
    state->epoch = ex->epoch;
    state->whole = held != NULL;
    (void)snprintf(state->missing, sizeof state->missing, "%s",
                   held != NULL     ? ""
                   : newest == NULL ? "no placement is known"
                                    : newest->missing);
    state->n_stale = ex->n_stale;
    state->n_resent = ex->n_resent;
    state->n_fenced = ex->n_fenced;
    state->n_garbage = ex->n_garbage;
    state->n_rejected = ex->n_rejected;
    state->n_links = ex->n_links;
    state->n_near = weft_exchange_near_count(ex);
    (void)pthread_mutex_unlock(&ex->lock);
}

/* Maps, links and what has come on them, while no call is under way. Whether
 * anything is different. */
static bool look_after(weft_exchange *ex)
{
    const uint64_t topology = ex->topology;
    bool changed = weft_exchange_take_maps(ex);
    changed |= weft_exchange_take_links(ex);
    const uint64_t now = weft_clock_now_ns();
    /* Looks that lie further apart than pulses say nothing about silence. */
    if (now - ex->looked_ns > ex->options.silence_ns / 3)
        ex->looking_since_ns = now;
    ex->looked_ns = now;
    for (int32_t s = 0; s < ex->n_slots; s++) {
        (void)weft_exchange_receive(ex, s);
        weft_exchange_judge(ex, s, now, ex->looking_since_ns);
    }
    weft_exchange_repair(ex);
    changed |= weft_exchange_age(ex, now);
    return changed || ex->topology != topology;
}

/* The step at hand, or the next, is of this map. */
static void use(weft_exchange *ex, weft_exchange_held *held)
{
    const bool later = held->map->epoch > ex->epoch;
    if (later) WEFT_FAILPOINT("lead.before_switch");
    ex->current = held;
    ex->epoch = held->map->epoch;
    weft_exchange_publish(ex);
    if (later) WEFT_FAILPOINT("lead.after_switch");
    if (later && ex->options.watch.switched != NULL)
        ex->options.watch.switched(ex->options.watch.arg, ex->epoch);
}

static weft_status begin(void *arg, uint64_t step, uint32_t attempt,
                         uint64_t epoch, uint64_t *epoch_out, weft_err *err)
{
    weft_exchange *const ex = arg;
    (void)attempt; /* the exchange counts its own, which never come again */
    weft_exchange_give_up(ex, "the step began again");
    if (atomic_load(&ex->stopped))
        return WEFT_FAIL(err, WEFT_CANCELLED, "exchange: stopped");
    (void)look_after(ex);
    weft_exchange_held *const held = choose(ex, epoch);
    ex->step = step;
    ex->step_failed = held == NULL;
    ex->failed_why[0] = '\0';
    ex->is_near = false;
    if (held == NULL) {
        weft_exchange_publish(ex);
        const char *missing = "no placement is known";
        for (int32_t i = 0; i < ex->n_held; i++)
            if (epoch == 0 || ex->held[i].map->epoch == epoch)
                missing = ex->held[i].missing;
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "epoch %llu: %s",
                         (unsigned long long)epoch, missing);
    }
    use(ex, held);
    /* Who can be asked grows between steps alone, and a link that has near rows
     * has them to its end: so this holds for the whole step. */
    ex->is_near = weft_exchange_near_can(ex, held);
    *epoch_out = ex->epoch;
    return WEFT_OK;
}

static bool is_near(void *arg)
{
    const weft_exchange *const ex = arg;
    return ex->is_near;
}

/* A lead that has nothing to compute switches all the same, so that others
 * need not wait for its next request. A stage waits to be told. */
static bool switch_idly(weft_exchange *ex)
{
    if (ex->config->first_layer > 0 || atomic_load(&ex->stopped)) return false;
    weft_exchange_held *const held = choose(ex, 0);
    if (held == NULL || held->map->epoch <= ex->epoch) return false;
    use(ex, held);
    return true;
}

static void idle(void *arg, uint64_t deadline_ns)
{
    weft_exchange *const ex = arg;
    weft_exchange_give_up(ex, "the step was left");
    for (;;) {
        bool changed = look_after(ex);
        if (switch_idly(ex)) changed = true;
        const uint64_t now = weft_clock_now_ns();
        weft_exchange_publish(ex);
        if (atomic_exchange(&ex->woken, false) || changed ||
            atomic_load(&ex->stopped) || now >= deadline_ns)
            return;
        uint64_t until = now + WEFT_EXCHANGE_TICK_NS;
        if (until > deadline_ns) until = deadline_ns;
        if (until > ex->expiry_ns) until = ex->expiry_ns;
        weft_poller_wait(ex->poller, until, 0);
    }
}

weft_expert_map *weft_exchange_current_map(weft_exchange *ex)
{
    return ex->current == NULL ? NULL
                               : weft_expert_map_retain(ex->current->map);
}

weft_experts weft_exchange_experts(weft_exchange *ex)
{
    return (weft_experts){
        .dispatch = weft_exchange_dispatch,
        .collect = weft_exchange_collect,
        .begin = begin,
        .is_near = is_near,
        .idle = idle,
        .on_device = ex->on_device,
        .arg = ex,
    };
}
