#include "shard/step/stages_lead.h"

#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/mem.h"

enum {
    MICRO_ROWS = 16, /* fewer rows are not worth another micro-batch */
    WAIT_SLICE_NS = 20 * 1000 * 1000,
};

/* ---- create and destroy ------------------------------------------------- */

static weft_status check_options(const weft_stages_options *o, weft_err *err)
{
    if (o->n_stages < 2 || o->n_stages > WEFT_STAGES_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%d stages have a lead, allowed is 2 to %d",
                         o->n_stages, (int)WEFT_STAGES_MAX);
    if (o->micro_batches < 0 || o->micro_batches > WEFT_MICRO_MAX ||
        o->micro_rows < 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%d micro-batches of at least %d rows, allowed are 0 "
                         "to %d",
                         o->micro_batches, o->micro_rows, (int)WEFT_MICRO_MAX);
    return WEFT_OK;
}

weft_status weft_stages_create(const weft_stages_options *options,
                               weft_stages **stages_out, weft_err *err)
{
    WEFT_TRY(check_options(options, err));
    weft_stages *const s = weft_mem_new(1, sizeof *s);
    if (s == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "stages: no memory");
    s->options = *options;
    if (s->options.micro_batches == 0)
        s->options.micro_batches = options->n_stages < WEFT_MICRO_MAX
                                       ? options->n_stages
                                       : WEFT_MICRO_MAX;
    if (s->options.micro_rows == 0) s->options.micro_rows = MICRO_ROWS;
    (void)pthread_mutex_init(&s->lock, NULL);
    /* Not the number of a run of an earlier lead, whose frames may still be on
     * their way between stages. */
    s->run = weft_clock_now_ns();
    s->at = weft_mem_new((size_t)options->n_stages, sizeof *s->at);
    weft_status st =
        s->at == NULL
            ? WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                        "stages: no memory for %d of them", options->n_stages)
            : weft_poller_create(&s->poller, err);
    if (st != WEFT_OK) {
        weft_stages_destroy(s);
        return st;
    }
    *stages_out = s;
    return WEFT_OK;
}

static void drop_link(weft_stages *s, int32_t stage)
{
    weft_follower *const f = &s->at[stage];
    if (f->link == NULL) return;
    if (s->options.pulse != NULL) weft_pulse_remove(s->options.pulse, f->link);
    weft_poller_remove(s->poller, f->link);
    weft_link_close(f->link);
    f->link = NULL;
    if (f->dialled)
        weft_peers_lost(s->options.peers, f->peer.id, f->peer.incarnation);
    f->dialled = f->hailed = f->refused = false;
    f->run = f->asked = f->map_epoch = 0;
}

void weft_stages_destroy(weft_stages *s)
{
    if (s == NULL) return;
    for (int32_t i = 1; s->at != NULL && i < s->options.n_stages; i++)
        drop_link(s, i);
    weft_poller_destroy(s->poller);
    (void)pthread_mutex_destroy(&s->lock);
    weft_mem_free(s->at);
    weft_mem_free(s->body);
    weft_mem_free(s->got);
    weft_mem_free(s->rows);
    weft_mem_free(s);
}

weft_status weft_stages_bind(weft_stages *s, const weft_engine_options *options,
                             int32_t hidden_size, const weft_kv_spaces *spaces,
                             weft_err *err)
{
    const size_t rows =
        (size_t)options->chunk_tokens + (size_t)options->max_seqs;
    const size_t row_bytes = (size_t)hidden_size * sizeof(float);
    if (rows > WEFT_FRAME_ROWS_MAX || row_bytes > WEFT_FRAME_ROW_BYTES_MAX ||
        weft_plan_bytes_max(options) > WEFT_FRAME_BODY_BYTES_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "stages: steps of %zu rows of %zu bytes, allowed are "
                         "%d rows of %d bytes",
                         rows, row_bytes, (int)WEFT_FRAME_ROWS_MAX,
                         (int)WEFT_FRAME_ROW_BYTES_MAX);
    s->engine = *options;
    s->hidden_size = hidden_size;
    s->max_rows = (int32_t)rows;
    s->spaces = spaces;
    s->body_bytes = weft_plan_bytes_max(options);
    s->body = weft_mem_new(s->body_bytes, 1);
    s->got = weft_mem_new(rows * (size_t)hidden_size, sizeof *s->got);
    s->rows = weft_mem_new(rows, sizeof *s->rows);
    if (s->body == NULL || s->got == NULL || s->rows == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "stages: no memory for %zu rows", rows);
    s->bound = true;
    return WEFT_OK;
}

int64_t weft_stages_bytes(const weft_model_config *config,
                          const weft_engine_options *o)
{
    const int64_t rows = (int64_t)o->chunk_tokens + o->max_seqs;
    return rows * config->hidden_size * (int64_t)sizeof(float) +
           (int64_t)weft_plan_bytes_max(o) * (WEFT_MICRO_MAX + 1);
}

weft_frame_limits weft_stages_limits(const weft_model_config *config,
                                     const weft_engine_options *o)
{
    const int64_t rows = (int64_t)o->chunk_tokens + o->max_seqs;
    /* Maps have no smaller bound than any body has. */
    return (weft_frame_limits){
        .body_bytes_max = WEFT_FRAME_BODY_BYTES_MAX,
        .rows_max = rows < WEFT_FRAME_ROWS_MAX ? (int32_t)rows
                                               : (int32_t)WEFT_FRAME_ROWS_MAX,
        .row_bytes_max = (uint32_t)config->hidden_size * sizeof(float),
    };
}

int32_t weft_stages_count(const weft_stages *s)
{
    return s->options.n_stages;
}

/* ---- links -------------------------------------------------------------- */

static weft_status take_link(weft_stages *s, int32_t stage, weft_link *link,
                             weft_err *err)
{
    const weft_status st = weft_poller_add(s->poller, link, err);
    if (st != WEFT_OK) {
        weft_link_close(link);
        return st;
    }
    s->at[stage].link = link;
    /* A link without pulses is one that the peer takes as dead after a while,
     * and then comes again. */
    weft_err pulse_err = {0};
    if (s->options.pulse != NULL &&
        weft_pulse_add(s->options.pulse, link, &pulse_err) != WEFT_OK)
        weft_log(WEFT_LOG_WARN, "stages", "no_pulse", "stage %d reason \"%s\"",
                 stage, pulse_err.text);
    return WEFT_OK;
}

weft_status weft_stages_add_link(weft_stages *s, int32_t stage, weft_link *link,
                                 weft_err *err)
{
    if (stage < 1 || stage >= s->options.n_stages) {
        weft_link_close(link);
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "stage %d of %d", stage,
                         s->options.n_stages);
    }
    weft_follower_break(s, stage, "another link");
    return take_link(s, stage, link, err);
}

/* With the lock, so that nobody's later word is overtaken. */
static weft_status dial_wanted(weft_stages *s, weft_err *err)
{
    weft_peer peers[WEFT_STAGES_MAX];
    int32_t n = 0;
    for (int32_t i = 1; i < s->options.n_stages; i++)
        if (s->at[i].wanted.id[0] != '\0') peers[n++] = s->at[i].wanted;
    const weft_status st = weft_peers_want(s->options.peers, peers, n, err);
    s->want_ns = st == WEFT_RESOURCE_EXHAUSTED
                     ? weft_clock_now_ns() + WEFT_PEERS_AGAIN_NS
                     : 0;
    return st;
}

weft_status weft_stages_want(weft_stages *s, const weft_peer *peers,
                             weft_err *err)
{
    weft_status st = WEFT_OK;
    (void)pthread_mutex_lock(&s->lock);
    for (int32_t i = 1; i < s->options.n_stages; i++)
        s->at[i].wanted = peers != NULL ? peers[i - 1] : (weft_peer){0};
    if (s->options.peers != NULL) st = dial_wanted(s, err);
    (void)pthread_mutex_unlock(&s->lock);
    return st;
}

/* For those who could not be dialled. */
static void want_again(weft_stages *s)
{
    weft_err err = {0};
    weft_status st = WEFT_OK;
    (void)pthread_mutex_lock(&s->lock);
    if (s->want_ns != 0 && weft_clock_now_ns() >= s->want_ns)
        st = dial_wanted(s, &err);
    (void)pthread_mutex_unlock(&s->lock);
    if (st != WEFT_OK)
        weft_log(WEFT_LOG_ERROR, "stages", "cannot_dial", "reason \"%s\"",
                 err.text);
}

static bool is_same(const weft_peer *a, const weft_peer *b)
{
    return strcmp(a->id, b->id) == 0 && a->incarnation == b->incarnation;
}

/* The stage that this peer is wanted for; 0: none. */
static int32_t stage_of(weft_stages *s, const weft_peer *peer)
{
    int32_t stage = 0;
    (void)pthread_mutex_lock(&s->lock);
    for (int32_t i = 1; i < s->options.n_stages; i++)
        if (is_same(&s->at[i].wanted, peer)) stage = i;
    (void)pthread_mutex_unlock(&s->lock);
    return stage;
}

static void drop_unwanted(weft_stages *s)
{
    for (int32_t i = 1; i < s->options.n_stages; i++) {
        weft_follower *const f = &s->at[i];
        if (f->link != NULL && f->dialled && stage_of(s, &f->peer) != i)
            weft_follower_break(s, i, "another shard is this stage");
    }
}

static void take_links(weft_stages *s)
{
    weft_peer peer;
    weft_link *link = NULL;
    if (s->options.peers == NULL) return;
    want_again(s);
    drop_unwanted(s);
    while (weft_peers_take(s->options.peers, &peer, &link)) {
        const int32_t stage = stage_of(s, &peer);
        if (stage == 0) {
            weft_link_close(link);
            weft_peers_lost(s->options.peers, peer.id, peer.incarnation);
            continue;
        }
        weft_follower_break(s, stage, "another link");
        weft_err err = {0};
        if (take_link(s, stage, link, &err) != WEFT_OK) {
            weft_log(WEFT_LOG_WARN, "stages", "link_lost",
                     "stage %d reason \"%s\"", stage, err.text);
            weft_peers_lost(s->options.peers, peer.id, peer.incarnation);
            continue;
        }
        s->at[stage].peer = peer;
        s->at[stage].dialled = true;
    }
}

/* ---- runs --------------------------------------------------------------- */

void weft_stages_end_run(weft_stages *s, const char *why)
{
    s->run++;
    if (!atomic_load(&s->whole)) return;
    atomic_store(&s->whole, false);
    s->lost = true;
    weft_log(WEFT_LOG_WARN, "stages", "run_ended", "group %u reason \"%s\"",
             s->options.group, why);
}

void weft_follower_break(weft_stages *s, int32_t stage, const char *why)
{
    if (s->at[stage].link == NULL) return;
    drop_link(s, stage);
    weft_stages_end_run(s, why);
}

static void refuse(weft_stages *s, int32_t stage, const char *why)
{
    if (s->at[stage].refused) return;
    s->at[stage].refused = true;
    (void)snprintf(s->at[stage].refusal, sizeof s->at[stage].refusal, "%s",
                   why);
    weft_log(WEFT_LOG_ERROR, "stages", "stage_refused",
             "group %u stage %d reason \"%s\"", s->options.group, stage, why);
}

static bool take_hail(weft_stages *s, int32_t stage, const weft_frame *frame)
{
    weft_follower *const f = &s->at[stage];
    weft_stages_hail hail;
    if (!weft_stages_hail_decode(frame, &hail)) return false;
    f->hailed = true;
    f->kv_bytes = hail.kv_bytes;
    f->run = hail.run;
    weft_kv_stats stats;
    if (!s->bound) return true;
    weft_kv_pool_get_stats(s->spaces->at[stage].pool, &stats);
    if (hail.kv_bytes >= stats.total_bytes) return true;
    char text[128];
    (void)snprintf(text, sizeof text,
                   "it has %lld bytes of KV memory, its pages take %lld",
                   (long long)hail.kv_bytes, (long long)stats.total_bytes);
    refuse(s, stage, text);
    atomic_store(&s->must_restart, true);
    return true;
}

static bool take_stuck(weft_stages *s, int32_t stage, const weft_frame *frame)
{
    weft_stuck stuck;
    if (!weft_stuck_decode(frame, &stuck)) return false;
    if (stuck.run != s->run) return true;
    if (stuck.why == WEFT_STUCK_REFUSED) {
        refuse(s, stage, stuck.text);
        weft_stages_end_run(s, stuck.text);
    } else if (stuck.why == WEFT_STUCK_BROKEN) {
        weft_stages_end_run(s, stuck.text);
    } else if (s->step != NULL && frame->step == s->step->step &&
               frame->attempt == s->step->attempt) {
        s->stuck = true;
        (void)snprintf(s->stuck_text, sizeof s->stuck_text, "stage %d: %.140s",
                       stage, stuck.text);
    }
    return true;
}

static bool take_frame(weft_stages *s, int32_t stage, const weft_frame *frame)
{
    if (frame->group != s->options.group) return false;
    switch (frame->type) {
    case WEFT_FRAME_RESET: return take_hail(s, stage, frame);
    case WEFT_FRAME_STUCK: return take_stuck(s, stage, frame);
    case WEFT_FRAME_HIDDEN:
        return stage == s->options.n_stages - 1 &&
               weft_stages_take_rows(s, frame);
    default: return false;
    }
}

static void pump_link(weft_stages *s, int32_t stage)
{
    while (s->at[stage].link != NULL) {
        weft_frame frame;
        bool got = false;
        weft_err err = {0};
        if (weft_link_recv(s->at[stage].link, &frame, &got, &err) != WEFT_OK) {
            weft_follower_break(s, stage, err.text);
        } else if (!got) {
            return;
        } else if (!take_frame(s, stage, &frame)) {
            char text[96];
            (void)snprintf(text, sizeof text,
                           "stage %d sent a wrong \"%s\" frame", stage,
                           weft_frame_type_name(frame.type));
            weft_follower_break(s, stage, text);
        }
    }
}

void weft_stages_pump(weft_stages *s)
{
    for (int32_t i = 1; i < s->options.n_stages; i++) pump_link(s, i);
}

void weft_stages_judge(weft_stages *s)
{
    const uint64_t now_ns = weft_clock_now_ns();
    /* Looks that lie further apart than pulses say nothing about silence. */
    if (now_ns - s->looked_ns > WEFT_SILENCE_NS / 3)
        s->looking_since_ns = now_ns;
    s->looked_ns = now_ns;
    for (int32_t i = 1; i < s->options.n_stages; i++) {
        weft_err err = {0};
        if (s->at[i].link != NULL &&
            weft_link_judge(s->at[i].link, now_ns, s->looking_since_ns, &err) !=
                WEFT_OK)
            weft_follower_break(s, i, err.text);
    }
}

static void send_reset(weft_stages *s, int32_t stage)
{
    const weft_engine_options *const o = &s->engine;
    weft_kv_stats stats;
    weft_kv_pool_get_stats(s->spaces->at[stage].pool, &stats);
    const weft_stages_values values = {
        .run = s->run,
        .n_stages = s->options.n_stages,
        .stage = stage,
        .page_tokens = o->page_tokens,
        .chunk_tokens = o->chunk_tokens,
        .max_seqs = o->max_seqs,
        .max_context = o->max_context,
        .profile = (int32_t)o->profile,
        .hidden_size = s->hidden_size,
        .kv_bytes = stats.total_bytes,
    };
    unsigned char body[WEFT_STAGES_BODY_BYTES];
    const weft_frame frame = {
        .type = WEFT_FRAME_RESET,
        .group = s->options.group,
        .body = body,
        .body_bytes = weft_stages_values_encode(&values, body),
    };
    weft_err err = {0};
    if (weft_link_send(s->at[stage].link, &frame, NULL, &err) == WEFT_OK)
        s->at[stage].asked = s->run;
}

/* Tell everybody the run once everybody is there; it stands when all have
 * answered. */
static void settle_run(weft_stages *s)
{
    if (!s->bound || atomic_load(&s->whole)) return;
    bool answered = true;
    for (int32_t i = 1; i < s->options.n_stages; i++) {
        const weft_follower *const f = &s->at[i];
        if (f->link == NULL || !f->hailed || f->refused) return;
        answered = answered && f->run == s->run;
    }
    if (answered) {
        weft_log(WEFT_LOG_INFO, "stages", "run_began", "group %u stages %d",
                 s->options.group, s->options.n_stages);
        atomic_store(&s->whole, true);
        return;
    }
    for (int32_t i = 1; i < s->options.n_stages; i++)
        if (s->at[i].asked != s->run) send_reset(s, i);
}

/* For whoever asks why it is not whole. */
static void note_missing(weft_stages *s)
{
    char text[sizeof s->missing] = "";
    if (atomic_load(&s->whole)) return;
    for (int32_t i = s->options.n_stages - 1; i >= 1; i--) {
        const weft_follower *const f = &s->at[i];
        if (f->link == NULL || !f->hailed)
            (void)snprintf(text, sizeof text, "stage %d is not connected", i);
        else if (f->refused)
            (void)snprintf(text, sizeof text, "stage %d: %s", i, f->refusal);
    }
    (void)pthread_mutex_lock(&s->lock);
    memcpy(s->missing, text, sizeof s->missing);
    (void)pthread_mutex_unlock(&s->lock);
}

bool weft_stages_must_restart(const weft_stages *s)
{
    return atomic_load(&s->must_restart);
}

void weft_stages_get_missing(weft_stages *s, char *text_out, size_t bytes)
{
    (void)pthread_mutex_lock(&s->lock);
    (void)snprintf(text_out, bytes, "%s",
                   s->missing[0] != '\0' ? s->missing
                                         : "its stages are being told its run");
    (void)pthread_mutex_unlock(&s->lock);
}

void weft_stages_turn(weft_stages *s)
{
    take_links(s);
    weft_stages_pump(s);
    weft_stages_judge(s);
    settle_run(s);
    note_missing(s);
    weft_stages_tell_maps(s);
    weft_stages_pump(s); /* what was sent is on its way */
}

void weft_stages_idle(weft_stages *s, uint64_t deadline_ns)
{
    if (deadline_ns > 0) weft_poller_wait(s->poller, deadline_ns, 0);
}

bool weft_stages_is_whole(const weft_stages *s)
{
    return atomic_load(&s->whole);
}

bool weft_stages_take_lost(weft_stages *s)
{
    const bool lost = s->lost;
    s->lost = false;
    return lost;
}

void weft_stages_stop(weft_stages *s)
{
    atomic_store(&s->stop, true);
    weft_poller_wake(s->poller);
}

void weft_stages_let_go(weft_stages *s)
{
    for (int32_t i = 1; i < s->options.n_stages; i++)
        if (s->at[i].link != NULL && !weft_link_is_idle(s->at[i].link))
            weft_follower_break(s, i, "the end");
}

weft_status weft_stages_wait(weft_stages *s, uint64_t deadline_ns,
                             int64_t *kv_bytes_out, weft_err *err)
{
    for (;;) {
        int32_t missing = 0;
        weft_stages_turn(s);
        for (int32_t i = s->options.n_stages - 1; i >= 1; i--) {
            if (!s->at[i].hailed) missing = i;
            kv_bytes_out[i - 1] = s->at[i].kv_bytes;
        }
        if (missing == 0) return WEFT_OK;
        const uint64_t now_ns = weft_clock_now_ns();
        if (atomic_load(&s->stop))
            return WEFT_FAIL(err, WEFT_CANCELLED,
                             "stopped while waiting for "
                             "stages");
        if (now_ns >= deadline_ns)
            return WEFT_FAIL(
                err, WEFT_DEADLINE_EXCEEDED,
                "stage %d of %d of group %u has not been connected", missing,
                s->options.n_stages, s->options.group);
        const uint64_t slice_ns = now_ns + WAIT_SLICE_NS;
        weft_poller_wait(s->poller,
                         slice_ns < deadline_ns ? slice_ns : deadline_ns, 0);
    }
}
