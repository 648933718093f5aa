#include "shard/expert/server.h"

#include <stdio.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "shard/expert/recent.h"
#include "shard/expert/server_internal.h"
#include "shard/link/near.h"

/* A layer shard that computes does not read. */
#define STALL_NS UINT64_C(120000000000)
#define TICK_NS  UINT64_C(50000000)
/* A link whose question is in hand is not polled, since it may be readable all
 * the time; whether its answers have left is looked at so often. */
#define HELD_TICK_NS UINT64_C(500000)
/* The next layer's question mostly comes sooner than a sleep and a wake-up
 * take. */
#define SPIN_NS UINT64_C(50000)

/* -- links ---------------------------------------------------------------- */

static void close_link(weft_expert_server *s, weft_link *link)
{
    if (s->options.pulse != NULL) weft_pulse_remove(s->options.pulse, link);
    weft_link_close(link);
}

static void end_client(weft_expert_server *s, weft_server_client *c)
{
    if (c->polled) weft_poller_remove(s->poller, c->link);
    close_link(s, c->link);
    weft_mem_free(c->question.pairs);
    weft_mem_free(c->question.places);
    weft_mem_free(c->memory);
    *c = (weft_server_client){0};
    (void)pthread_mutex_lock(&s->lock);
    s->n_links--;
    (void)pthread_mutex_unlock(&s->lock);
}

static void end_with(weft_server_client *c, weft_log_level level,
                     const char *event, const char *why)
{
    uint64_t left_out;
    if (c->broken) return;
    c->broken = true;
    if (!weft_log_pace_pass(c->pace, weft_clock_now_ns(), &left_out)) return;
    weft_log(level, "experts", event, "peer \"%s\" why \"%s\" left_out %llu",
             weft_link_name(c->link), why, (unsigned long long)left_out);
}

/* What a peer should not have done. */
static void break_client(weft_server_client *c, const char *why)
{
    end_with(c, WEFT_LOG_WARN, "link_broken", why);
}

void weft_server_lose(weft_server_client *c, const weft_err *err)
{
    end_with(c, WEFT_LOG_INFO, "link_lost", err->text);
}

static void set_polled(weft_expert_server *s, weft_server_client *c,
                       bool polled)
{
    if (c->polled == polled) return;
    c->polled = polled;
    weft_err err = {0};
    if (!polled)
        weft_poller_remove(s->poller, c->link);
    else if (weft_poller_add(s->poller, c->link, &err) != WEFT_OK) {
        c->polled = false;
        break_client(c, err.text);
    }
}

static void adopt(weft_expert_server *s, weft_link *link)
{
    int32_t at = 0;
    while (s->clients[at].link != NULL) at++;
    if (at == s->n_clients) s->n_clients++;
    weft_server_client *const c = &s->clients[at];
    const size_t bytes = (size_t)WEFT_ANSWER_ROWS_MAX *
                         (size_t)s->config->hidden_size * sizeof(float);
    *c = (weft_server_client){
        .link = link, .pace = &s->pace, .moved_ns = weft_clock_now_ns()};
    c->question.pairs =
        weft_mem_new(WEFT_DISPATCH_PAIRS_MAX, sizeof *c->question.pairs);
    c->memory = weft_mem_new_aligned(64, WEFT_ANSWERS_FLYING * bytes);
    c->question.places =
        weft_mem_new((size_t)s->options.max_rows, sizeof *c->question.places);
    if (c->question.pairs == NULL || c->question.places == NULL ||
        c->memory == NULL) {
        break_client(c, "no memory for its answers");
        return;
    }
    for (size_t b = 0; b < WEFT_ANSWERS_FLYING; b++)
        c->answers[b] = (float *)((unsigned char *)c->memory + b * bytes);
    set_polled(s, c, true);
}

/* Nothing can be computed for it any more. */
static void turn_away(weft_expert_server *s, weft_link *link)
{
    close_link(s, link);
    (void)pthread_mutex_lock(&s->lock);
    s->n_links--;
    (void)pthread_mutex_unlock(&s->lock);
}

static void take_links(weft_expert_server *s)
{
    for (;;) {
        (void)pthread_mutex_lock(&s->lock);
        weft_link *const link = s->n_inbox > 0 ? s->inbox[--s->n_inbox] : NULL;
        (void)pthread_mutex_unlock(&s->lock);
        if (link == NULL) return;
        if (s->lost)
            turn_away(s, link);
        else
            adopt(s, link);
    }
}

weft_status weft_expert_server_add_link(weft_expert_server *s, weft_link *link,
                                        weft_err *err)
{
    /* At once: it may be taken after a long round. */
    if (s->options.pulse != NULL) {
        const weft_status st = weft_pulse_add(s->options.pulse, link, err);
        if (st != WEFT_OK) {
            weft_link_close(link);
            return st;
        }
    }
    (void)pthread_mutex_lock(&s->lock);
    const bool room = s->n_links < s->options.links_max;
    if (room) {
        s->n_links++;
        s->inbox[s->n_inbox++] = link;
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (!room) {
        close_link(s, link);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "experts: more than %d links", s->options.links_max);
    }
    weft_poller_wake(s->poller);
    return WEFT_OK;
}

void weft_server_fail(weft_expert_server *s, const weft_err *why)
{
    if (s->lost) return;
    s->lost = true;
    weft_log(WEFT_LOG_ERROR, "experts", "device_failed", "reason \"%s\"",
             why->text);
    for (int32_t i = 0; i < s->n_clients; i++)
        if (s->clients[i].link != NULL) end_client(s, &s->clients[i]);
    if (s->options.failed != NULL)
        s->options.failed(s->options.failed_arg, why);
}

/* -- questions ------------------------------------------------------------ */

/* Pairs in order of experts, in their own order inside one. */
static void sort_pairs(weft_expert_server *s, weft_server_question *q,
                       const weft_dispatch_pair *pairs)
{
    int32_t *const counts = s->counts;
    memset(counts, 0, ((size_t)s->config->n_expert + 1) * sizeof *counts);
    for (int32_t i = 0; i < q->n_pairs; i++) counts[pairs[i].expert + 1]++;
    for (int32_t e = 0; e < s->config->n_expert; e++)
        counts[e + 1] += counts[e];
    for (int32_t i = 0; i < q->n_pairs; i++)
        q->pairs[counts[pairs[i].expert]++] = pairs[i];
}

static void take_question(weft_expert_server *s, weft_server_client *c,
                          const weft_frame *frame)
{
    weft_server_question *const q = &c->question;
    weft_err err = {0};
    if (frame->type != WEFT_FRAME_DISPATCH) {
        char why[80];
        (void)snprintf(why, sizeof why, "%s from a layer shard",
                       weft_frame_type_name(frame->type));
        break_client(c, why);
        return;
    }
    if (frame->is_near && s->device == NULL) {
        break_client(c, "DISPATCH with near rows where there is no device");
        return;
    }
    if (frame->n_rows > s->options.max_rows) {
        break_client(c, "DISPATCH with more rows than a step may have");
        return;
    }
    if (weft_dispatch_decode(frame, s->config, s->sorted, &q->n_pairs, &err) !=
        WEFT_OK) {
        break_client(c, err.text);
        return;
    }
    sort_pairs(s, q, s->sorted);
    q->frame = *frame;
    q->next = 0;
    q->came_ns = weft_clock_now_ns();
    q->held = true;
    atomic_fetch_add(&s->questions, 1);
    if (frame->epoch > atomic_load(&s->last_epoch))
        atomic_store(&s->last_epoch, frame->epoch);
}

static void receive(weft_expert_server *s, weft_server_client *c)
{
    weft_frame frame;
    bool got = false;
    weft_err err = {0};
    if (weft_link_recv(c->link, &frame, &got, &err) != WEFT_OK)
        weft_server_lose(c, &err);
    else if (got)
        take_question(s, c, &frame);
}

/* Moves what waits to leave. */
static void push(weft_server_client *c, uint64_t now_ns)
{
    weft_err err = {0};
    const weft_status st = weft_link_flush(c->link, now_ns, &err);
    if (st != WEFT_OK && st != WEFT_DEADLINE_EXCEEDED)
        weft_server_lose(c, &err);
    /* Rows that have been computed and found no room lie behind those. */
    if (!c->broken && c->n_computed == 0 && weft_link_is_idle(c->link))
        c->n_flying = 0;
}

/* Answers that do not move. Silence is judged only where everything that came
 * has been looked at. */
static void judge(weft_expert_server *s, weft_server_client *c, uint64_t now_ns)
{
    weft_link_stats stats;
    weft_link_get_stats(c->link, &stats);
    if ((c->n_flying == 0 && c->n_computed == 0) ||
        stats.bytes_sent != c->moved) {
        c->moved = stats.bytes_sent;
        c->moved_ns = now_ns;
    }
    if (now_ns - c->moved_ns > s->options.stall_ns) {
        break_client(c, "does not read its answers");
        return;
    }
    weft_err err = {0};
    const uint64_t since = c->question.held ? now_ns : s->looking_since_ns;
    if (weft_link_judge(c->link, now_ns, since, &err) != WEFT_OK)
        weft_server_lose(c, &err);
}

static void reject_closed_epoch(weft_expert_server *s, weft_server_client *c)
{
    (void)pthread_mutex_lock(&s->lock);
    const uint64_t first = s->epoch_first, last = s->epoch_last;
    (void)pthread_mutex_unlock(&s->lock);
    const uint64_t epoch = c->question.frame.epoch;
    if (epoch >= first && epoch <= last && last != 0) return;
    char text[WEFT_REJECT_TEXT_BYTES];
    (void)snprintf(text, sizeof text,
                   "epoch %llu is not open, %llu to %llu are",
                   (unsigned long long)epoch, (unsigned long long)first,
                   (unsigned long long)last);
    weft_server_reject(s, c, WEFT_REJECT_EPOCH, text);
}

/* One look at everything. */
static void look_after(weft_expert_server *s, uint64_t now_ns)
{
    take_links(s);
    if (now_ns - s->looked_ns > WEFT_SILENCE_NS / 3)
        s->looking_since_ns = now_ns;
    s->looked_ns = now_ns;
    for (int32_t i = 0; i < s->n_clients; i++) {
        weft_server_client *const c = &s->clients[i];
        if (c->link == NULL) continue;
        if (!c->broken && c->n_flying > 0) push(c, now_ns);
        if (!c->broken && c->n_computed > 0) weft_server_answer(s, c);
        if (!c->broken && !c->question.held) receive(s, c);
        if (!c->broken && c->question.held && c->question.frame.is_near)
            c->has_room = weft_link_has_near_room(c->link, WEFT_ANSWER_ROWS_MAX,
                                                  c->question.frame.row_bytes);
        if (!c->broken && weft_server_is_ready(c)) reject_closed_epoch(s, c);
        if (!c->broken) judge(s, c, now_ns);
        if (c->broken) end_client(s, c);
    }
}

static void wait_for_more(weft_expert_server *s, uint64_t now_ns)
{
    uint64_t until = now_ns + TICK_NS;
    for (int32_t i = 0; i < s->n_clients; i++) {
        weft_server_client *const c = &s->clients[i];
        if (c->link == NULL) continue;
        set_polled(s, c, !c->question.held);
        if (c->question.held) until = now_ns + HELD_TICK_NS;
    }
    if (s->options.store != NULL)
        weft_expert_store_quiesce(s->options.store, true);
    weft_poller_wait(s->poller, until, SPIN_NS);
    if (s->options.store != NULL)
        weft_expert_store_quiesce(s->options.store, false);
}

static void set_busy(const weft_expert_server *s, bool busy)
{
    if (s->options.pulse != NULL) weft_pulse_set_busy(s->options.pulse, busy);
}

static void bind_device(weft_expert_server *s)
{
    weft_err err = {0};
    if (s->device != NULL &&
        weft_server_device_bind(s->device, &err) != WEFT_OK)
        weft_server_fail(s, &err);
}

static void count_time(weft_expert_server *s, bool busy, uint64_t since_ns)
{
    const uint64_t dt_ns = weft_clock_now_ns() - since_ns;
    atomic_fetch_add(busy ? &s->busy_ns : &s->idle_ns, dt_ns);
    atomic_store(&s->busy_share,
                 weft_recent_share(atomic_load(&s->busy_share), busy, dt_ns));
}

static void *serve(void *arg)
{
    weft_expert_server *const s = arg;
    bind_device(s);
    if (s->options.store != NULL)
        weft_expert_store_quiesce(s->options.store, false);
    while (!atomic_load(&s->stopping)) {
        const uint64_t began = weft_clock_now_ns();
        set_busy(s, true);
        look_after(s, began);
        if (weft_server_round(s, began)) {
            if (s->options.store != NULL)
                weft_expert_store_quiesce(s->options.store, false);
            count_time(s, true, began);
        } else {
            const uint64_t away = weft_clock_now_ns();
            set_busy(s, false);
            wait_for_more(s, away);
            count_time(s, false, away);
        }
        if (s->options.pulse != NULL) weft_pulse_step(s->options.pulse);
    }
    set_busy(s, false);
    if (s->options.store != NULL)
        weft_expert_store_quiesce(s->options.store, true);
    if (s->device != NULL) weft_server_device_unbind(s->device);
    return NULL;
}

/* -- making --------------------------------------------------------------- */

static void *piece(unsigned char *base, size_t *used, size_t n,
                   size_t item_bytes)
{
    void *const at = base == NULL ? NULL : base + *used;
    *used += (n * item_bytes + 63) / 64 * 64;
    return at;
}

/* The buffers of a round out of one block; base NULL: how many bytes. */
static size_t lay_out(weft_expert_server *s, unsigned char *base)
{
    const size_t n = WEFT_ROUND_PAIRS_MAX;
    const size_t hidden = (size_t)s->config->hidden_size;
    const size_t width = (size_t)s->config->moe_intermediate_size;
    const size_t experts = (size_t)s->config->n_expert;
    size_t used = 0;
    s->x = piece(base, &used, n * hidden, sizeof *s->x);
    s->out = piece(base, &used, n * hidden, sizeof *s->out);
    s->gate = piece(base, &used, n * width, sizeof *s->gate);
    s->up = piece(base, &used, n * width, sizeof *s->up);
    s->x_rows = piece(base, &used, n, sizeof *s->x_rows);
    s->picked = piece(base, &used, n, sizeof *s->picked);
    s->gemms = piece(base, &used, 2 * n, sizeof *s->gemms);
    s->held = piece(base, &used, experts, sizeof(weft_mlp_weights *));
    s->sorted = piece(base, &used, WEFT_DISPATCH_PAIRS_MAX, sizeof *s->sorted);
    s->counts = piece(base, &used, experts + 1, sizeof *s->counts);
    return used;
}

static void destroy(weft_expert_server *s)
{
    for (int32_t i = 0; i < s->n_clients; i++)
        if (s->clients[i].link != NULL) end_client(s, &s->clients[i]);
    while (s->n_inbox > 0) close_link(s, s->inbox[--s->n_inbox]);
    weft_poller_destroy(s->poller);
    weft_threads_destroy(s->threads);
    weft_server_device_destroy(s->device);
    weft_mem_free(s->clients);
    weft_mem_free(s->inbox);
    weft_mem_free(s->memory);
    (void)pthread_mutex_destroy(&s->lock);
    weft_mem_free(s);
}

static bool is_on_device(const weft_expert_server_options *o)
{
    return o->memory != NULL && !weft_memory_is_host(o->memory) && !o->echo;
}

static weft_status create(const weft_expert_server_options *options,
                          weft_expert_server **server_out, weft_err *err)
{
    WEFT_ASSERT(options->links_max >= 1 && options->max_rows >= 1);
    WEFT_ASSERT(options->echo || options->store != NULL);
    weft_expert_server *const s = weft_mem_new(1, sizeof *s);
    if (s == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "experts: out of memory");
    s->options = *options;
    if (s->options.stall_ns == 0) s->options.stall_ns = STALL_NS;
    s->config = options->config;
    if (options->profile == WEFT_PROFILE_BF16 && options->ops != NULL &&
        options->ops->bf16_inputs)
        s->round = WEFT_ROUND_BF16;
    (void)pthread_mutex_init(&s->lock, NULL);
    const size_t bytes = lay_out(s, NULL);
    const size_t links = (size_t)options->links_max;
    s->memory = weft_mem_new_aligned(64, bytes);
    s->clients = weft_mem_new(links, sizeof *s->clients);
    s->inbox = weft_mem_new(links, sizeof(weft_link *));
    weft_status st = WEFT_OK;
    if (s->memory == NULL || s->clients == NULL || s->inbox == NULL)
        st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                       "experts: no memory for %zu bytes of buffers", bytes);
    if (st == WEFT_OK) st = weft_poller_create(&s->poller, err);
    if (st == WEFT_OK)
        st = weft_threads_create(options->threads, &s->threads, err);
    if (st == WEFT_OK && is_on_device(options))
        st = weft_server_device_create(options, &s->device, err);
    if (st != WEFT_OK) {
        destroy(s);
        return st;
    }
    (void)lay_out(s, s->memory);
    *server_out = s;
    return WEFT_OK;
}

weft_status weft_expert_server_start(const weft_expert_server_options *options,
                                     weft_expert_server **server_out,
                                     weft_err *err)
{
    weft_expert_server *s = NULL;
    WEFT_TRY(create(options, &s, err));
    WEFT_ASSERT(s != NULL);
    const int failed = pthread_create(&s->thread, NULL, serve, s);
    if (failed != 0) {
        destroy(s);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "experts: no thread: %s",
                         strerror(failed));
    }
    *server_out = s;
    return WEFT_OK;
}

void weft_expert_server_stop(weft_expert_server *s)
{
    if (s == NULL) return;
    atomic_store(&s->stopping, true);
    weft_poller_wake(s->poller);
    (void)pthread_join(s->thread, NULL);
    destroy(s);
}

void weft_expert_server_set_epochs(weft_expert_server *s, uint64_t first,
                                   uint64_t last)
{
    (void)pthread_mutex_lock(&s->lock);
    s->epoch_first = first;
    s->epoch_last = last;
    (void)pthread_mutex_unlock(&s->lock);
}

void weft_expert_server_get_stats(weft_expert_server *s,
                                  weft_expert_server_stats *stats_out)
{
    (void)pthread_mutex_lock(&s->lock);
    const int32_t n_links = s->n_links;
    (void)pthread_mutex_unlock(&s->lock);
    *stats_out = (weft_expert_server_stats){
        .rows = atomic_load(&s->rows),
        .questions = atomic_load(&s->questions),
        .rejected = atomic_load(&s->rejected),
        .busy_ns = atomic_load(&s->busy_ns),
        .idle_ns = atomic_load(&s->idle_ns),
        .busy_share = atomic_load(&s->busy_share),
        .wait_ns = atomic_load(&s->wait_ns),
        .n_waits = atomic_load(&s->n_waits),
        .n_links = n_links,
        .last_epoch = atomic_load(&s->last_epoch),
    };
}
