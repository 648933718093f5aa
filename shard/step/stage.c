#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "shard/step/stage_internal.h"

static const uint64_t SPIN_NS = UINT64_C(20) * 1000;
static const uint64_t IDLE_NS = UINT64_C(50) * 1000 * 1000;

/* ---- create and destroy ------------------------------------------------- */

static weft_status create_slots(weft_stage *s, weft_err *err)
{
    const weft_engine_options *const o = &s->options.engine;
    weft_slots *const slots = &s->slots;
    *slots = (weft_slots){
        .layout = &s->spaces.at[0].layout,
        .arena_bytes = s->arena_bytes,
        .n = o->max_seqs,
        .max_pages = (o->max_context + o->page_tokens - 1) / o->page_tokens,
        .max_context = o->max_context,
        .max_rows = s->layers.max_rows,
        .store = s->layers.store,
    };
    slots->at = weft_mem_new((size_t)slots->n, sizeof *slots->at);
    bool all = slots->at != NULL;
    for (int32_t i = 0; all && i < slots->n; i++)
        for (int32_t k = 0; all && k < WEFT_KINDS; k++) {
            if (slots->layout->page_bytes[k] == 0) continue;
            slots->at[i].offsets[k] =
                weft_mem_new((size_t)slots->max_pages, sizeof(int64_t));
            all = slots->at[i].offsets[k] != NULL;
        }
    if (all) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "stage: no memory for tables of %d times %d pages",
                     slots->n, slots->max_pages);
}

static weft_status create_buffers(weft_stage *s, weft_err *err)
{
    const size_t rows = (size_t)s->layers.max_rows;
    s->body_bytes_max = weft_plan_bytes_max(&s->options.engine);
    s->wanted = weft_mem_new(rows, sizeof *s->wanted);
    s->row_at = weft_mem_new(rows, sizeof *s->row_at);
    bool all = s->wanted != NULL && s->row_at != NULL;
    for (int32_t i = 0; i < WEFT_MICRO_MAX; i++) {
        s->plans[i].body = weft_mem_new(s->body_bytes_max, 1);
        all = all && s->plans[i].body != NULL;
    }
    if (all) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "stage: no memory for %zu rows", rows);
}

static weft_status create_parts(weft_stage *s, weft_err *err)
{
    const weft_stage_options *const o = &s->options;
    s->experts = o->engine.experts;
    if (s->experts == NULL && o->exchange != NULL) {
        s->pool = weft_exchange_experts(o->exchange);
        s->experts = &s->pool;
    }
    WEFT_TRY(weft_kv_spaces_init(
        &s->spaces, o->config,
        o->engine.profile == WEFT_EXACT ? WEFT_F32 : WEFT_BF16,
        o->engine.page_tokens, &o->engine.kv_bytes, 1, err));
    weft_kv_stats stats;
    weft_kv_pool_get_stats(s->spaces.at[0].pool, &stats);
    s->arena_bytes = stats.total_bytes;
    WEFT_TRY(weft_layers_init(&s->layers, o->config, o->weights, &o->engine,
                              &s->spaces.at[0], s->experts, err));
    WEFT_TRY(create_slots(s, err));
    WEFT_TRY(create_buffers(s, err));
    return weft_poller_create(&s->poller, err);
}

static void destroy(weft_stage *s)
{
    for (int32_t i = 0; i < WEFT_STAGE_LINKS; i++) {
        weft_stage_break(s, (weft_stage_from)i, "the end");
        weft_link_close(s->offered[i]);
    }
    weft_poller_destroy(s->poller);
    for (int32_t i = 0; s->slots.at != NULL && i < s->slots.n; i++)
        for (int32_t k = 0; k < WEFT_KINDS; k++)
            weft_mem_free(s->slots.at[i].offsets[k]);
    weft_mem_free(s->slots.at);
    for (int32_t i = 0; i < WEFT_MICRO_MAX; i++)
        weft_mem_free(s->plans[i].body);
    weft_mem_free(s->wanted);
    weft_mem_free(s->row_at);
    weft_layers_deinit(&s->layers);
    weft_kv_spaces_deinit(&s->spaces);
    (void)pthread_mutex_destroy(&s->lock);
    weft_mem_free(s);
}

/* ---- links -------------------------------------------------------------- */

static bool is_last(const weft_stage *s)
{
    return s->options.stage == s->options.n_stages - 1;
}

/* Whose frames the link is read for: of stage 1 the lead is the one before. */
static bool is_needed(const weft_stage *s, weft_stage_from from)
{
    if (from == WEFT_FROM_BEFORE) return s->options.stage > 1;
    return from == WEFT_FROM_LEAD || !is_last(s);
}

void weft_stage_tell(weft_stage *s, const weft_frame *frame)
{
    weft_link *const lead = s->links[WEFT_FROM_LEAD];
    weft_err err = {0};
    if (lead == NULL) return;
    const weft_status st = weft_link_send(lead, frame, NULL, &err);
    if (st == WEFT_OK) return;
    const char *const why =
        st == WEFT_RESOURCE_EXHAUSTED ? "its queue is full" : err.text;
    weft_log(WEFT_LOG_WARN, "stage", "lead_lost", "from \"%s\" reason \"%s\"",
             weft_link_name(lead), why);
    weft_stage_break(s, WEFT_FROM_LEAD, why);
}

void weft_stage_break(weft_stage *s, weft_stage_from from, const char *why)
{
    weft_link *const link = s->links[from];
    if (link == NULL) return;
    if (s->options.pulse != NULL) weft_pulse_remove(s->options.pulse, link);
    weft_poller_remove(s->poller, link);
    weft_link_close(link);
    s->links[from] = NULL;
    if (from == WEFT_FROM_NEXT && s->dialled) {
        weft_peers_lost(s->options.peers, s->next.id, s->next.incarnation);
        s->dialled = false;
    }
    /* Rows that are still borrowed were the link's. */
    s->rows.n_rows = 0;
    if (from == WEFT_FROM_LEAD) {
        s->run = s->answered = 0;
        weft_stage_forget(s);
        return;
    }
    if (s->run == 0 || s->over) return;
    s->over = true;
    weft_stuck stuck = {.run = s->run, .why = WEFT_STUCK_BROKEN};
    (void)snprintf(stuck.text, sizeof stuck.text, "stage %d: %.120s",
                   s->options.stage, why);
    unsigned char body[WEFT_STAGES_BODY_BYTES];
    const weft_frame frame = {
        .type = WEFT_FRAME_STUCK,
        .group = s->options.group,
        .body = body,
        .body_bytes = weft_stuck_encode(&stuck, body),
    };
    weft_stage_tell(s, &frame);
}

static void take_link(weft_stage *s, weft_stage_from from, weft_link *link)
{
    weft_stage_break(s, from, "another link");
    weft_err err = {0};
    weft_status st = weft_poller_add(s->poller, link, &err);
    if (st == WEFT_OK) s->links[from] = link;
    if (st == WEFT_OK && s->options.pulse != NULL)
        st = weft_pulse_add(s->options.pulse, link, &err);
    if (st != WEFT_OK)
        weft_log(WEFT_LOG_WARN, "stage", "link_lost", "reason \"%s\"",
                 err.text);
    if (s->links[from] == NULL) {
        weft_link_close(link);
        return;
    }
    if (from == WEFT_FROM_LEAD) weft_stage_hail(s, 0);
}

static void take_offered(weft_stage *s)
{
    weft_link *links[WEFT_STAGE_LINKS];
    (void)pthread_mutex_lock(&s->lock);
    memcpy(links, s->offered, sizeof links);
    memset(s->offered, 0, sizeof s->offered);
    (void)pthread_mutex_unlock(&s->lock);
    for (int32_t i = 0; i < WEFT_STAGE_LINKS; i++)
        if (links[i] != NULL) take_link(s, (weft_stage_from)i, links[i]);
}

static bool is_wanted(weft_stage *s, const weft_peer *peer)
{
    (void)pthread_mutex_lock(&s->lock);
    const bool same = strcmp(peer->id, s->wanted_next.id) == 0 &&
                      peer->incarnation == s->wanted_next.incarnation;
    (void)pthread_mutex_unlock(&s->lock);
    return same;
}

/* With the lock, so that nobody's later word is overtaken. */
static weft_status dial_next(weft_stage *s, weft_err *err)
{
    const weft_status st =
        weft_peers_want(s->options.peers, &s->wanted_next,
                        s->wanted_next.id[0] != '\0' ? 1 : 0, err);
    s->want_ns = st == WEFT_RESOURCE_EXHAUSTED
                     ? weft_clock_now_ns() + WEFT_PEERS_AGAIN_NS
                     : 0;
    return st;
}

static void want_again(weft_stage *s)
{
    weft_err err = {0};
    weft_status st = WEFT_OK;
    (void)pthread_mutex_lock(&s->lock);
    if (s->want_ns != 0 && weft_clock_now_ns() >= s->want_ns)
        st = dial_next(s, &err);
    (void)pthread_mutex_unlock(&s->lock);
    if (st != WEFT_OK)
        weft_log(WEFT_LOG_ERROR, "stage", "cannot_dial", "reason \"%s\"",
                 err.text);
}

static void take_dialled(weft_stage *s)
{
    weft_peer peer;
    weft_link *link = NULL;
    if (s->options.peers == NULL) return;
    want_again(s);
    if (s->dialled && !is_wanted(s, &s->next))
        weft_stage_break(s, WEFT_FROM_NEXT, "another shard is next");
    while (weft_peers_take(s->options.peers, &peer, &link)) {
        if (!is_wanted(s, &peer)) {
            weft_link_close(link);
            weft_peers_lost(s->options.peers, peer.id, peer.incarnation);
            continue;
        }
        take_link(s, WEFT_FROM_NEXT, link);
        s->next = peer;
        s->dialled = s->links[WEFT_FROM_NEXT] == link;
        if (!s->dialled)
            weft_peers_lost(s->options.peers, peer.id, peer.incarnation);
    }
}

/* ---- the thread --------------------------------------------------------- */

static bool is_connected(const weft_stage *s)
{
    for (int32_t i = 0; i < WEFT_STAGE_LINKS; i++)
        if (is_needed(s, (weft_stage_from)i) && s->links[i] == NULL)
            return false;
    return true;
}

void weft_stage_publish(weft_stage *s)
{
    const weft_stage_state state = {
        .n_steps = s->n_steps,
        .epoch = s->epoch,
        .connected = is_connected(s),
        .last_progress_ns = weft_clock_now_ns(),
    };
    weft_snapshot_write(&s->snapshot, &state, sizeof state);
    if (s->options.pulse != NULL) weft_pulse_step(s->options.pulse);
}

static void judge(weft_stage *s, uint64_t since_ns)
{
    const uint64_t now_ns = weft_clock_now_ns();
    for (int32_t i = 0; i < WEFT_STAGE_LINKS; i++) {
        weft_err err = {0};
        /* While its rows wait for their plan nobody listens to it. */
        if (i == WEFT_FROM_BEFORE && s->rows.n_rows > 0) continue;
        if (s->links[i] != NULL &&
            weft_link_judge(s->links[i], now_ns, since_ns, &err) != WEFT_OK)
            weft_stage_break(s, (weft_stage_from)i, err.text);
    }
}

void weft_stage_fail(weft_stage *s, const weft_err *why)
{
    if (s->lost) return;
    s->lost = true;
    weft_log(WEFT_LOG_ERROR, "stage", "device_failed", "reason \"%s\"",
             why->text);
    for (int32_t i = 0; i < WEFT_STAGE_LINKS; i++)
        weft_stage_break(s, (weft_stage_from)i, why->text);
    if (s->options.engine.failed != NULL)
        s->options.engine.failed(s->options.engine.failed_arg, why);
}

static void bind_device(weft_stage *s)
{
    weft_err err = {0};
    const weft_memory *const memory = s->options.engine.memory;
    if (memory != NULL && weft_memory_bind(memory, &err) != WEFT_OK)
        weft_stage_fail(s, &err);
}

/* A turn without a device: who comes is turned away, so that the lead hears at
 * once that this stage is not there. */
static void turn_away(weft_stage *s)
{
    take_offered(s);
    for (int32_t i = 0; i < WEFT_STAGE_LINKS; i++)
        weft_stage_break(s, (weft_stage_from)i, "the device has failed");
    weft_stage_publish(s);
    weft_poller_wait(s->poller, weft_clock_now_ns() + IDLE_NS, 0);
}

static void *loop(void *arg)
{
    weft_stage *const s = arg;
    uint64_t since_ns = weft_clock_now_ns();
    bind_device(s);
    while (!atomic_load(&s->stop)) {
        if (s->lost) {
            turn_away(s);
            continue;
        }
        take_offered(s);
        take_dialled(s);
        if (weft_stage_turn(s)) {
            since_ns = weft_clock_now_ns();
            continue;
        }
        judge(s, since_ns);
        weft_stage_publish(s);
        weft_poller_wait(s->poller, weft_clock_now_ns() + IDLE_NS, SPIN_NS);
        if (s->experts != NULL) s->experts->idle(s->experts->arg, 0);
    }
    if (s->options.engine.memory != NULL)
        weft_memory_unbind(s->options.engine.memory);
    return NULL;
}

weft_status weft_stage_start(const weft_stage_options *options,
                             weft_stage **stage_out, weft_err *err)
{
    if (options->stage < 1 || options->stage >= options->n_stages ||
        options->n_stages > WEFT_STAGES_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "stage %d of %d",
                         options->stage, options->n_stages);
    weft_stage *const s = weft_mem_new(1, sizeof *s);
    if (s == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "stage: no memory");
    s->options = *options;
    (void)pthread_mutex_init(&s->lock, NULL);
    weft_status st = create_parts(s, err);
    if (st == WEFT_OK) {
        weft_stage_publish(s);
        const int failed = pthread_create(&s->thread, NULL, loop, s);
        if (failed != 0)
            st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "stage thread: %s",
                           strerror(failed));
    }
    if (st != WEFT_OK) {
        destroy(s);
        return st;
    }
    s->started = true;
    *stage_out = s;
    return WEFT_OK;
}

void weft_stage_stop(weft_stage *s)
{
    if (s == NULL) return;
    atomic_store(&s->stop, true);
    if (s->options.exchange != NULL) weft_exchange_stop(s->options.exchange);
    weft_poller_wake(s->poller);
    (void)pthread_join(s->thread, NULL);
    destroy(s);
}

void weft_stage_wake(weft_stage *s)
{
    weft_poller_wake(s->poller);
}

weft_status weft_stage_want(weft_stage *s, const weft_peer *next, weft_err *err)
{
    if (s->options.peers == NULL)
        return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION, "stage %d dials nobody",
                         s->options.stage);
    (void)pthread_mutex_lock(&s->lock);
    s->wanted_next = next != NULL ? *next : (weft_peer){0};
    const weft_status st = dial_next(s, err);
    (void)pthread_mutex_unlock(&s->lock);
    return st;
}

static void offer(weft_stage *s, weft_stage_from from, weft_link *link)
{
    (void)pthread_mutex_lock(&s->lock);
    weft_link *const earlier = s->offered[from];
    s->offered[from] = link;
    (void)pthread_mutex_unlock(&s->lock);
    weft_link_close(earlier);
    weft_poller_wake(s->poller);
}

weft_status weft_stage_add_link(weft_stage *s, int32_t from_stage,
                                weft_link *link, weft_err *err)
{
    if (from_stage != 0 && from_stage != s->options.stage - 1) {
        weft_link_close(link);
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "stage %d takes no link from stage %d",
                         s->options.stage, from_stage);
    }
    offer(s, from_stage == 0 ? WEFT_FROM_LEAD : WEFT_FROM_BEFORE, link);
    return WEFT_OK;
}

weft_status weft_stage_set_next(weft_stage *s, weft_link *link, weft_err *err)
{
    if (is_last(s)) {
        weft_link_close(link);
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "stage %d is the last",
                         s->options.stage);
    }
    offer(s, WEFT_FROM_NEXT, link);
    return WEFT_OK;
}

void weft_stage_get_state(weft_stage *s, weft_stage_state *state_out)
{
    weft_snapshot_read(&s->snapshot, state_out, sizeof *state_out);
}
