/* A layer's rows out to the owners of its experts, and one row for each pair
 * back. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "shard/expert/exchange_internal.h"

/* Answers mostly come sooner than a sleep and a wake-up would take. */
#define SPIN_NS UINT64_C(50000)
/* How long dispatch helps bytes out of this process before it lets the caller
 * compute: whatever has not left by then goes when collect is called. */
#define PUSH_NS UINT64_C(2000000)
/* A first rejection holds for this long, each further one twice as long. */
#define REJECT_NS UINT64_C(5000000)
enum { REJECT_DOUBLINGS_MAX = 5, RECEIVE_FRAMES_MAX = 64 };

static_assert(WEFT_STEP_LANES == 2, "a lane is the lowest bit of a tag");

/* -- pieces out ----------------------------------------------------------- */

static void fail_step(weft_exchange *ex, const char *why)
{
    if (!ex->step_failed)
        (void)snprintf(ex->failed_why, sizeof ex->failed_why, "%.*s",
                       (int)sizeof ex->failed_why - 1, why);
    ex->step_failed = true;
    for (int32_t i = 0; i < WEFT_STEP_LANES; i++)
        if (ex->lanes[i].active) ex->lanes[i].failed = true;
}

static uint32_t row_bytes(const weft_exchange *ex)
{
    return (uint32_t)ex->config->hidden_size * (uint32_t)sizeof(float);
}

static void set_piece_over(weft_exchange *ex, weft_exchange_lane *lane,
                           weft_exchange_piece *piece)
{
    if (piece->state == WEFT_PIECE_WAITING) ex->n_waiting--;
    piece->state = WEFT_PIECE_OVER;
    lane->owed[piece->slot].n--;
    ex->slots[piece->slot].n_owed--;
}

/* Rows and pairs of a piece, each row once: pairs are in rising order. */
static int32_t lay_out(weft_exchange *ex, weft_exchange_lane *lane,
                       const weft_exchange_piece *piece)
{
    const weft_experts_call *const call = &lane->call;
    int32_t n_rows = 0, last = -1;
    for (int32_t i = piece->first; i < piece->end; i++) {
        const int32_t pair = lane->order[i];
        const int32_t row = pair / call->top_k;
        if (row != last && piece->is_near)
            lane->x_rows[piece->first + n_rows++] = row;
        else if (row != last)
            lane->rows[piece->first + n_rows++] =
                call->x + (int64_t)row * ex->config->hidden_size;
        last = row;
        ex->body_pairs[i - piece->first] = (weft_dispatch_pair){
            .row = n_rows - 1,
            .expert = call->experts[pair],
            .pair = (uint32_t)pair,
        };
    }
    return n_rows;
}

/* Whether the piece has been sent; a broken link is noted. */
static bool send_piece(weft_exchange *ex, weft_exchange_lane *lane,
                       weft_exchange_piece *piece)
{
    weft_exchange_slot *const slot = &ex->slots[piece->slot];
    if (slot->link == NULL || slot->broken) return false;
    const int32_t n_rows = lay_out(ex, lane, piece);
    const size_t body_bytes = weft_dispatch_encode(
        ex->body_pairs, piece->end - piece->first, ex->body);
    const weft_frame frame = {
        .type = WEFT_FRAME_DISPATCH,
        .epoch = ex->epoch,
        .step = ex->step,
        .layer = lane->call.layer,
        .attempt = piece->attempt,
        .group = ex->options.group,
        .tag = (uint32_t)(piece - lane->pieces) << 1 |
               (uint32_t)(lane - ex->lanes),
        .body = ex->body,
        .body_bytes = body_bytes,
        .n_rows = n_rows,
        .row_bytes = row_bytes(ex),
    };
    weft_err err = {0};
    const weft_status st =
        piece->is_near ? weft_exchange_near_send(ex, lane, piece, &frame, &err)
                       : weft_link_send(slot->link, &frame,
                                        &lane->rows[piece->first], &err);
    if (st == WEFT_RESOURCE_EXHAUSTED) return false;
    if (st != WEFT_OK) {
        weft_exchange_break(ex, piece->slot, false, err.text);
        return false;
    }
    lane->owed[piece->slot].bytes +=
        WEFT_FRAME_HEADER_BYTES + body_bytes + (uint64_t)n_rows * row_bytes(ex);
    piece->state = WEFT_PIECE_SENT;
    ex->n_waiting--;
    return true;
}

static void send_waiting(weft_exchange *ex)
{
    for (int32_t i = 0; i < WEFT_STEP_LANES && ex->n_waiting > 0; i++) {
        weft_exchange_lane *const lane = &ex->lanes[i];
        if (!lane->active || lane->failed) continue;
        for (int32_t p = 0; p < lane->n_pieces; p++)
            if (lane->pieces[p].state == WEFT_PIECE_WAITING)
                (void)send_piece(ex, lane, &lane->pieces[p]);
    }
}

/* One piece of order[first, end), all for slot s, and sends it. */
static void add_piece(weft_exchange *ex, weft_exchange_lane *lane, int32_t s,
                      int32_t first, int32_t end)
{
    if (lane->n_pieces == ex->pieces_max) {
        fail_step(ex, "asked again too often");
        return;
    }
    const int32_t p = lane->n_pieces++;
    lane->pieces[p] = (weft_exchange_piece){
        .state = WEFT_PIECE_WAITING,
        .attempt = ex->attempt,
        .slot = s,
        .first = first,
        .end = end,
        .n_missing = end - first,
        /* In a near step the host has no rows, whatever a link has become. */
        .is_near = ex->is_near ||
                   (ex->on_device && weft_link_is_near(ex->slots[s].link)),
    };
    for (int32_t i = first; i < end; i++) lane->piece_of[lane->order[i]] = p;
    weft_exchange_slot *const slot = &ex->slots[s];
    if (slot->n_owed++ == 0) slot->progress_ns = weft_clock_now_ns();
    lane->owed[s].n++;
    ex->n_waiting++;
    (void)send_piece(ex, lane, &lane->pieces[p]);
}

/* Cuts order[first, end), all for slot s, into what a frame may hold. */
static void cut(weft_exchange *ex, weft_exchange_lane *lane, int32_t s,
                int32_t first, int32_t end)
{
    int32_t begin = first, n_rows = 0, last = -1;
    for (int32_t i = first; i < end && !lane->failed; i++) {
        const int32_t row = lane->order[i] / lane->call.top_k;
        const bool starts = row != last;
        if (i - begin == WEFT_DISPATCH_PAIRS_MAX ||
            (starts && n_rows == WEFT_DISPATCH_ROWS_MAX)) {
            add_piece(ex, lane, s, begin, i);
            begin = i;
            n_rows = 0;
        }
        if (starts || i == begin) n_rows++;
        last = row;
    }
    if (!lane->failed) add_piece(ex, lane, s, begin, end);
}

/* Finds an owner for each pair of order[first, end), in rising order, and asks.
 * Fails the step if one has none. */
static void ask(weft_exchange *ex, weft_exchange_lane *lane, int32_t first,
                int32_t end)
{
    const uint64_t now = weft_clock_now_ns();
    int32_t *const counts = ex->counts;
    memset(counts, 0, ((size_t)ex->n_slots + 1) * sizeof *counts);
    for (int32_t i = first; i < end; i++) {
        const int32_t expert = lane->call.experts[lane->order[i]];
        const int32_t s =
            weft_exchange_owner(ex, lane->call.layer, expert, now);
        if (s == WEFT_NO_SLOT) {
            char why[WEFT_EXCHANGE_WHY_BYTES];
            (void)snprintf(why, sizeof why,
                           "epoch %llu layer %d expert %d: no owner is left",
                           (unsigned long long)ex->epoch, lane->call.layer,
                           expert);
            fail_step(ex, why);
            return;
        }
        ex->targets[i] = (int16_t)s;
        counts[s + 1]++;
    }
    for (int32_t s = 0; s < ex->n_slots; s++) counts[s + 1] += counts[s];
    for (int32_t i = first; i < end; i++)
        ex->sorted[first + counts[ex->targets[i]]++] = lane->order[i];
    memcpy(lane->order + first, ex->sorted + first,
           (size_t)(end - first) * sizeof *lane->order);
    /* counts[s] is where the pairs of s end. */
    int32_t begin = first;
    for (int32_t s = 0; s < ex->n_slots && !lane->failed; s++) {
        const int32_t stop = first + counts[s];
        if (stop > begin) cut(ex, lane, s, begin, stop);
        begin = stop;
    }
}

void weft_exchange_dispatch(void *arg, const weft_experts_call *call)
{
    weft_exchange *const ex = arg;
    WEFT_ASSERT(call->lane >= 0 && call->lane < WEFT_STEP_LANES);
    WEFT_ASSERT(call->n_rows >= 1 && call->top_k >= 1);
    const int64_t n_pairs = (int64_t)call->n_rows * call->top_k;
    WEFT_ASSERT(n_pairs <= ex->pairs_max);
    weft_exchange_lane *const lane = &ex->lanes[call->lane];
    WEFT_ASSERT(!lane->active);
    lane->call = *call;
    lane->active = true;
    ex->attempt++;
    lane->failed = ex->step_failed || ex->current == NULL;
    lane->n_missing = (int32_t)n_pairs;
    lane->n_pieces = 0;
    lane->began_ns = weft_clock_now_ns();
    if (ex->options.watch.routed != NULL)
        ex->options.watch.routed(ex->options.watch.arg, call->layer,
                                 call->experts, (int32_t)n_pairs);
    if (lane->failed) return;
    for (int32_t i = 0; i < n_pairs; i++) lane->order[i] = i;
    memset(lane->owed, 0, (size_t)ex->n_slots * sizeof *lane->owed);
    ask(ex, lane, 0, (int32_t)n_pairs);
    weft_exchange_repair(ex);
    for (bool busy = true; busy && !lane->failed;) {
        busy = false;
        for (int32_t s = 0; s < ex->n_slots; s++) {
            const weft_link *const link = ex->slots[s].link;
            if (link == NULL || weft_link_is_idle(link)) continue;
            (void)weft_exchange_receive(ex, s);
            busy = true;
        }
        send_waiting(ex);
        weft_exchange_repair(ex);
        busy = busy && weft_clock_now_ns() < lane->began_ns + PUSH_NS;
    }
}

/* -- answers in ----------------------------------------------------------- */

/* The piece of ours that the frame answers, and its lane; NULL: stale. */
static weft_exchange_piece *named_piece(weft_exchange *ex, int32_t s,
                                        const weft_frame *frame,
                                        weft_exchange_lane **lane_out)
{
    const uint32_t l = frame->tag & 1, p = frame->tag >> 1;
    weft_exchange_lane *const lane = &ex->lanes[l];
    if (!lane->active || lane->failed || p >= (uint32_t)lane->n_pieces)
        return NULL;
    weft_exchange_piece *const piece = &lane->pieces[p];
    if (frame->epoch != ex->epoch || frame->step != ex->step ||
        frame->group != ex->options.group || frame->layer != lane->call.layer ||
        frame->attempt != piece->attempt)
        return NULL;
    if (piece->slot != s || piece->state != WEFT_PIECE_SENT) return NULL;
    *lane_out = lane;
    return piece;
}

/* Whether all n pairs are of piece p and missing, each named once. Marks those
 * that are as done. */
static bool claim(weft_exchange_lane *lane, int32_t p, const uint32_t *pairs,
                  int32_t n)
{
    const int32_t n_pairs = lane->call.n_rows * lane->call.top_k;
    int32_t i = 0;
    for (; i < n; i++) {
        if (pairs[i] >= (uint32_t)n_pairs || lane->piece_of[pairs[i]] != p)
            break;
        lane->piece_of[pairs[i]] = WEFT_PAIR_DONE;
    }
    if (i == n) return true;
    while (i > 0) lane->piece_of[pairs[--i]] = p;
    return false;
}

static void place(const weft_exchange *ex, weft_exchange_lane *lane,
                  const weft_frame *frame, const uint32_t *pairs)
{
    const float *const rows = frame->rows;
    const int64_t width = ex->config->hidden_size;
    for (int32_t i = 0; i < frame->n_rows; i++)
        memcpy(lane->call.out + (int64_t)pairs[i] * width, rows + i * width,
               row_bytes(ex));
}

static void take_answer(weft_exchange *ex, weft_exchange_lane *lane,
                        weft_exchange_piece *piece, const weft_frame *frame)
{
    weft_err err = {0};
    uint32_t pairs[WEFT_ANSWER_ROWS_MAX];
    if (weft_answer_decode(frame, ex->config, pairs, &err) != WEFT_OK) {
        ex->n_garbage++;
        weft_exchange_break(ex, piece->slot, false, err.text);
        return;
    }
    if (frame->is_near != piece->is_near) {
        ex->n_garbage++;
        weft_exchange_break(ex, piece->slot, false,
                            "ANSWER whose rows came another way than asked");
        return;
    }
    const int32_t n = frame->n_rows;
    if (!claim(lane, (int32_t)(piece - lane->pieces), pairs, n)) {
        ex->n_garbage++;
        weft_exchange_break(ex, piece->slot, false,
                            "ANSWER to pairs that were not asked");
        return;
    }
    if (ex->on_device)
        weft_exchange_near_place(ex, lane, frame, pairs);
    else
        place(ex, lane, frame, pairs);
    lane->n_missing -= n;
    piece->n_missing -= n;
    weft_exchange_slot *const slot = &ex->slots[piece->slot];
    weft_exchange_owed *const owed = &lane->owed[piece->slot];
    slot->progress_ns = weft_clock_now_ns();
    slot->n_rejects = 0;
    owed->bytes += WEFT_FRAME_HEADER_BYTES + frame->body_bytes +
                   (uint64_t)n * row_bytes(ex);
    if (piece->n_missing > 0) return;
    set_piece_over(ex, lane, piece);
    if (owed->n > 0) return;
    if (ex->options.watch.exchanged != NULL)
        ex->options.watch.exchanged(ex->options.watch.arg, slot->peer.id,
                                    slot->progress_ns - lane->began_ns,
                                    owed->bytes);
    owed->bytes = 0;
}

static void take_reject(weft_exchange *ex, weft_exchange_piece *piece,
                        const weft_frame *frame)
{
    weft_err err = {0};
    weft_reject_reason reason;
    char text[WEFT_REJECT_TEXT_BYTES];
    if (weft_reject_decode(frame, &reason, text, &err) != WEFT_OK) {
        ex->n_garbage++;
        weft_exchange_break(ex, piece->slot, false, err.text);
        return;
    }
    weft_exchange_slot *const slot = &ex->slots[piece->slot];
    ex->n_rejected++;
    piece->state = WEFT_PIECE_REFUSED;
    ex->dirty = true;
    if (slot->reject_epoch == ex->epoch) return;
    const uint32_t doublings = slot->n_rejects < REJECT_DOUBLINGS_MAX
                                   ? slot->n_rejects
                                   : REJECT_DOUBLINGS_MAX;
    slot->n_rejects++;
    slot->reject_epoch = ex->epoch;
    slot->reject_until_ns = weft_clock_now_ns() + (REJECT_NS << doublings);
    if (slot->reject_until_ns < ex->expiry_ns)
        ex->expiry_ns = slot->reject_until_ns;
    ex->topology++;
}

static void take_frame(weft_exchange *ex, int32_t s, const weft_frame *frame)
{
    if (frame->type != WEFT_FRAME_ANSWER && frame->type != WEFT_FRAME_REJECT) {
        char why[WEFT_EXCHANGE_WHY_BYTES];
        (void)snprintf(why, sizeof why, "%s from an expert shard",
                       weft_frame_type_name(frame->type));
        ex->n_garbage++;
        weft_exchange_break(ex, s, false, why);
        return;
    }
    weft_exchange_lane *lane = NULL;
    weft_exchange_piece *const piece = named_piece(ex, s, frame, &lane);
    if (piece == NULL)
        ex->n_stale++;
    else if (frame->type == WEFT_FRAME_ANSWER)
        take_answer(ex, lane, piece, frame);
    else
        take_reject(ex, piece, frame);
}

bool weft_exchange_receive(weft_exchange *ex, int32_t s)
{
    weft_exchange_slot *const slot = &ex->slots[s];
    const bool owed = slot->n_owed > 0;
    for (int32_t n = 0; n < RECEIVE_FRAMES_MAX; n++) {
        if (slot->link == NULL || slot->broken) return n > 0;
        /* All is there: the next look is somebody else's time. */
        if (owed && slot->n_owed == 0) return true;
        weft_frame frame;
        bool got = false;
        weft_err err = {0};
        if (weft_link_recv(slot->link, &frame, &got, &err) != WEFT_OK) {
            weft_exchange_break(ex, s, false, err.text);
            return true;
        }
        if (!got) return n > 0;
        take_frame(ex, s, &frame);
    }
    return true;
}

/* -- when something is lost ----------------------------------------------- */

/* What is missing of pieces that were refused or whose link has ended. */
static void ask_again(weft_exchange *ex, weft_exchange_lane *lane)
{
    for (int32_t p = 0; p < lane->n_pieces && !lane->failed; p++) {
        weft_exchange_piece *const piece = &lane->pieces[p];
        if (piece->state == WEFT_PIECE_OVER ||
            (piece->state != WEFT_PIECE_REFUSED &&
             ex->slots[piece->slot].link != NULL))
            continue;
        int32_t end = piece->first;
        for (int32_t i = piece->first; i < piece->end; i++)
            if (lane->piece_of[lane->order[i]] == p)
                lane->order[end++] = lane->order[i];
        set_piece_over(ex, lane, piece);
        if (ex->on_device && !weft_exchange_near_sync(ex)) {
            fail_step(ex, ex->ops_err.text);
            return;
        }
        ex->attempt++;
        ex->n_resent++;
        ask(ex, lane, piece->first, end);
    }
}

void weft_exchange_repair(weft_exchange *ex)
{
    while (ex->dirty) {
        ex->dirty = false;
        for (int32_t s = 0; s < ex->n_slots; s++)
            if (ex->slots[s].broken) weft_exchange_end_link(ex, s);
        for (int32_t i = 0; i < WEFT_STEP_LANES; i++)
            if (ex->lanes[i].active && !ex->lanes[i].failed)
                ask_again(ex, &ex->lanes[i]);
    }
}

void weft_exchange_judge(weft_exchange *ex, int32_t s, uint64_t now_ns,
                         uint64_t since_ns)
{
    weft_exchange_slot *const slot = &ex->slots[s];
    if (slot->link == NULL || slot->broken) return;
    weft_err err = {0};
    if (weft_link_judge(slot->link, now_ns, since_ns, &err) != WEFT_OK) {
        weft_exchange_break(ex, s, false, err.text);
        return;
    }
    weft_link_stats stats;
    weft_link_get_stats(slot->link, &stats);
    const uint64_t heard =
        stats.last_heard_ns > since_ns ? stats.last_heard_ns : since_ns;
    if (now_ns > heard && now_ns - heard > ex->options.silence_ns) {
        char why[WEFT_EXCHANGE_WHY_BYTES];
        (void)snprintf(why, sizeof why, "silent for %llu ms",
                       (unsigned long long)(now_ns - heard) / 1000000U);
        weft_exchange_break(ex, s, false, why);
        return;
    }
    if (slot->n_owed == 0) return;
    /* Time in which nobody looked does not count. */
    const uint64_t from =
        slot->progress_ns > since_ns ? slot->progress_ns : since_ns;
    if (now_ns > from && now_ns - from > ex->options.answer_ns)
        weft_exchange_break(ex, s, true, "lives, and does not answer");
}

/* -- waiting -------------------------------------------------------------- */

/* Those that owe; if they have nothing, everybody else. */
static bool receive_any(weft_exchange *ex)
{
    bool any = false;
    for (int32_t s = 0; s < ex->n_slots; s++)
        if (ex->slots[s].n_owed > 0) any |= weft_exchange_receive(ex, s);
    for (int32_t s = 0; s < ex->n_slots && !any; s++)
        if (ex->slots[s].n_owed == 0) (void)weft_exchange_receive(ex, s);
    return any;
}

static void wait_answers(weft_exchange *ex, const weft_exchange_lane *lane)
{
    const uint64_t since = weft_clock_now_ns();
    for (;;) {
        const bool any = receive_any(ex);
        send_waiting(ex);
        weft_exchange_repair(ex);
        if (lane->failed || lane->n_missing == 0 || atomic_load(&ex->stopped))
            return;
        if (any) continue;
        const uint64_t now = weft_clock_now_ns();
        for (int32_t s = 0; s < ex->n_slots; s++)
            if (ex->slots[s].n_owed > 0) weft_exchange_judge(ex, s, now, since);
        weft_exchange_repair(ex);
        weft_poller_wait(ex->poller, now + WEFT_EXCHANGE_TICK_NS, SPIN_NS);
    }
}

/* Until no link borrows rows of a call any more. */
static void settle(weft_exchange *ex)
{
    const uint64_t since = weft_clock_now_ns();
    for (;;) {
        const uint64_t now = weft_clock_now_ns();
        bool busy = false;
        for (int32_t s = 0; s < ex->n_slots; s++) {
            const weft_link *const link = ex->slots[s].link;
            if (link == NULL || weft_link_is_idle(link)) continue;
            busy = true;
            (void)weft_exchange_receive(ex, s);
            weft_exchange_judge(ex, s, now, since);
            if (atomic_load(&ex->stopped))
                weft_exchange_break(ex, s, false, "the end");
            else if (now - since > ex->options.answer_ns)
                weft_exchange_break(ex, s, true, "lives, and does not read");
        }
        weft_exchange_repair(ex);
        if (!busy) return;
        weft_poller_wait(ex->poller, now + WEFT_EXCHANGE_TICK_NS, SPIN_NS);
    }
}

static void end_lane(weft_exchange *ex, weft_exchange_lane *lane)
{
    for (int32_t p = 0; lane->active && p < lane->n_pieces; p++)
        if (lane->pieces[p].state != WEFT_PIECE_OVER)
            set_piece_over(ex, lane, &lane->pieces[p]);
    lane->n_pieces = 0;
    lane->active = false;
}

void weft_exchange_give_up(weft_exchange *ex, const char *why)
{
    bool any = false;
    for (int32_t i = 0; i < WEFT_STEP_LANES; i++) any |= ex->lanes[i].active;
    if (!any) return;
    fail_step(ex, why);
    settle(ex);
    for (int32_t i = 0; i < WEFT_STEP_LANES; i++) end_lane(ex, &ex->lanes[i]);
}

weft_status weft_exchange_collect(void *arg, const weft_experts_call *call,
                                  weft_err *err)
{
    weft_exchange *const ex = arg;
    weft_exchange_lane *const lane = &ex->lanes[call->lane];
    WEFT_ASSERT(lane->active && lane->call.layer == call->layer);
    wait_answers(ex, lane);
    settle(ex);
    const bool failed = lane->failed || lane->n_missing > 0;
    end_lane(ex, lane);
    if (!failed) return WEFT_OK;
    weft_exchange_publish(ex);
    if (ex->ops_err.status != WEFT_OK) {
        if (err != NULL) *err = ex->ops_err;
        return ex->ops_err.status;
    }
    if (atomic_load(&ex->stopped))
        return WEFT_FAIL(err, WEFT_CANCELLED, "exchange: stopped");
    return WEFT_FAIL(err, WEFT_UNAVAILABLE, "step %llu: %s",
                     (unsigned long long)ex->step,
                     ex->step_failed ? ex->failed_why : "no epoch has begun");
}
