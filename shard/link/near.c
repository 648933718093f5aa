/* Rows near the device: memory for links, rows out, rows in. */
#include "shard/link/near.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "shard/link/near_internal.h"

#define READY_NS UINT64_C(10000000000)
#define ROWS_NS  UINT64_C(30000000000)
/* Rows may wait long for an end that computes, and whoever asks it has a limit
 * of its own. */
#define TAKEN_NS_TIMES 4
/* Rows are mostly there at once, and comms take a while to meet. */
#define SOON_NS  UINT64_C(50000)
#define LATER_NS UINT64_C(1000000)
/* What was aborted ends within microseconds. */
#define ENDS_NS UINT64_C(200000000)

struct weft_near {
    weft_memory memory;
    weft_near_options options; /* `memory` is the above */
    const weft_comm_api *api;
    int64_t ring_bytes, place_bytes;
    unsigned char *base;
    _Atomic int32_t n_near;
    pthread_mutex_t lock; /* of taken */
    bool *taken;          /* [links_max] */
};

/* -- memory --------------------------------------------------------------- */

static int64_t bytes_of(const weft_frame_limits *limits)
{
    return (int64_t)weft_frame_capacity(limits->rows_max) *
           limits->row_bytes_max;
}

/* Blocks of links begin where any access is aligned. */
static int64_t round_up(int64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Two of the largest frames: one is packed while the other is taken. */
static int64_t ring_bytes_of(const weft_near_options *options)
{
    return round_up(2 * bytes_of(&options->out));
}

int64_t weft_near_link_bytes(const weft_near_options *options)
{
    return ring_bytes_of(options) + round_up(bytes_of(&options->in));
}

weft_status weft_near_create(const weft_near_options *options,
                             weft_near **near_out, weft_err *err)
{
    WEFT_ASSERT(options->links_max >= 1);
    const weft_memory *const memory = options->memory;
    if (weft_memory_is_host(memory))
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "there is no device");
    const weft_comm_api *const api = memory->api->comm();
    if (api->version == 0)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "%s", api->why);
    weft_near *const near = weft_mem_new(1, sizeof *near);
    bool *const taken = weft_mem_new((size_t)options->links_max, sizeof *taken);
    if (near == NULL || taken == NULL) {
        weft_mem_free(near);
        weft_mem_free(taken);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for near rows");
    }
    *near = (weft_near){.memory = *memory,
                        .options = *options,
                        .api = api,
                        .ring_bytes = ring_bytes_of(options),
                        .place_bytes = round_up(bytes_of(&options->in)),
                        .taken = taken};
    near->options.memory = &near->memory;
    if (near->options.ready_ns == 0) near->options.ready_ns = READY_NS;
    if (near->options.rows_ns == 0) near->options.rows_ns = ROWS_NS;
    void *base = NULL;
    const weft_status st = weft_memory_alloc(
        memory, weft_near_link_bytes(options) * options->links_max,
        "near rows of links", &base, err);
    if (st != WEFT_OK) {
        weft_mem_free(taken);
        weft_mem_free(near);
        return st;
    }
    near->base = base;
    (void)pthread_mutex_init(&near->lock, NULL);
    *near_out = near;
    return WEFT_OK;
}

void weft_near_destroy(weft_near *near)
{
    if (near == NULL) return;
    weft_memory_free(&near->memory, near->base);
    (void)pthread_mutex_destroy(&near->lock);
    weft_mem_free(near->taken);
    weft_mem_free(near);
}

int32_t weft_near_count(const weft_near *near)
{
    return near == NULL ? 0 : atomic_load(&near->n_near);
}

void weft_near_counted(weft_near *pool, int32_t by)
{
    (void)atomic_fetch_add(&pool->n_near, by);
}

const weft_near_options *weft_near_options_of(const weft_near *pool)
{
    return &pool->options;
}

const weft_comm_api *weft_near_api(const weft_near *pool)
{
    return pool->api;
}

bool weft_near_take(weft_near_link *near)
{
    weft_near *const pool = near->pool;
    near->block = -1;
    (void)pthread_mutex_lock(&pool->lock);
    for (int32_t i = 0; i < pool->options.links_max && near->block < 0; i++)
        if (!pool->taken[i]) near->block = i;
    if (near->block >= 0) pool->taken[near->block] = true;
    (void)pthread_mutex_unlock(&pool->lock);
    if (near->block < 0) return false;
    near->ring =
        pool->base + near->block * (pool->ring_bytes + pool->place_bytes);
    near->place = near->ring + pool->ring_bytes;
    return true;
}

static void give_back(weft_near_link *near)
{
    if (near->block < 0) return;
    (void)pthread_mutex_lock(&near->pool->lock);
    near->pool->taken[near->block] = false;
    (void)pthread_mutex_unlock(&near->pool->lock);
    near->block = -1;
}

/* Nothing that was given to them touches the memory any more. */
static bool have_ended(const weft_near_link *near)
{
    return (near->out == NULL ||
            near->api->is_done(near->out, near->last_sent)) &&
           (near->in == NULL || near->api->is_done(near->in, near->mark));
}

void weft_near_end_comms(weft_near_link *near)
{
    const uint64_t until = weft_clock_now_ns() + ENDS_NS;
    if (near->out != NULL) near->api->abort(near->out);
    if (near->in != NULL) near->api->abort(near->in);
    bool ended = have_ended(near);
    while (!ended && weft_clock_now_ns() < until) {
        (void)sched_yield();
        ended = have_ended(near);
    }
    near->api->destroy(near->out);
    near->api->destroy(near->in);
    near->out = near->in = NULL;
    if (ended || near->block < 0) {
        give_back(near);
        return;
    }
    /* Nobody else's rows may lie where it could still write. */
    weft_log(WEFT_LOG_ERROR, "link", "near_memory_lost", "links %d",
             (int)near->pool->options.links_max);
    near->block = -1;
}

/* -- rows out ------------------------------------------------------------- */

bool weft_link_is_near(const weft_link *link)
{
    return link->near != NULL && link->near->state == WEFT_NEAR_READY &&
           !atomic_load_explicit(&link->broken, memory_order_relaxed);
}

static weft_near_sent *oldest(weft_near_link *near)
{
    return &near->sent[near->head];
}

/* Forgets what the other end has taken. */
static void reap(weft_near_link *near)
{
    while (near->n_sent > 0 &&
           near->api->is_done(near->out, oldest(near)->mark)) {
        near->head = (near->head + 1) % WEFT_NEAR_FLYING;
        near->n_sent--;
        near->wants_room = false;
    }
}

/* Where the next `bytes` of the ring go; -1: no room yet. Those that fly lie in
 * one stretch, or in two where the ring has come round. */
static int64_t place_in_ring(weft_near_link *near, int64_t bytes)
{
    const int64_t size = near->pool->ring_bytes;
    if (near->n_sent == WEFT_NEAR_FLYING) return -1;
    if (near->n_sent == 0) return bytes <= size ? 0 : -1;
    const int64_t first = oldest(near)->first;
    const int32_t last = (near->head + near->n_sent - 1) % WEFT_NEAR_FLYING;
    const int64_t end = near->sent[last].end;
    if (end > first) { /* one stretch: behind it, or before it */
        if (size - end >= bytes) return end;
        return first >= bytes ? 0 : -1;
    }
    return first - end >= bytes ? end : -1;
}

bool weft_link_has_near_room(weft_link *link, int32_t n_rows,
                             uint32_t row_bytes)
{
    weft_near_link *const near = link->near;
    if (!weft_link_is_near(link)) return false;
    reap(near);
    near->wants_room =
        place_in_ring(near, (int64_t)weft_frame_capacity(n_rows) * row_bytes) <
        0;
    return !near->wants_room;
}

static weft_status check_rows(const weft_near_link *near,
                              const weft_frame *frame, weft_err *err)
{
    const weft_frame_limits *const out = &near->pool->options.out;
    int64_t rows_max = near->peer_rows_max, bytes_max = near->peer_row_bytes;
    if (rows_max > out->rows_max) rows_max = out->rows_max;
    if (bytes_max > out->row_bytes_max) bytes_max = out->row_bytes_max;
    if (frame->n_rows >= 1 && frame->n_rows <= rows_max &&
        frame->row_bytes > 0 && frame->row_bytes <= bytes_max &&
        frame->row_bytes % sizeof(float) == 0)
        return WEFT_OK;
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "%d near rows of %u bytes: the link takes 1 to %lld, of "
                     "up to %lld bytes in whole floats",
                     (int)frame->n_rows, (unsigned)frame->row_bytes,
                     (long long)rows_max, (long long)bytes_max);
}

/* Packs the rows, and gives them to the comm behind that. */
static weft_status give_rows(weft_link *link, const weft_frame *frame,
                             const weft_near_rows *rows, int64_t first,
                             weft_err *err)
{
    weft_near_link *const near = link->near;
    const weft_memory *const memory = &near->pool->memory;
    const int64_t width = frame->row_bytes / (int64_t)sizeof(float);
    const int64_t bytes =
        (int64_t)weft_frame_capacity(frame->n_rows) * frame->row_bytes;
    void *const to = near->ring + first;
    const weft_move move = {
        .x = rows->x,
        .x_rows = rows->x_rows,
        .y = to,
        .x_stride = width,
        .y_stride = width,
        .n_row = frame->n_rows,
        .width = (int32_t)width,
    };
    memory->api->ops->move(NULL, &move);
    near->api->after_ops(near->out);
    weft_err why = {0};
    if (near->api->send(near->out, to, bytes, 1, &why) != WEFT_OK)
        return weft_link_break(link, err, "%s", why.text);
    near->last_sent = near->api->mark(near->out);
    near->sent[(near->head + near->n_sent) % WEFT_NEAR_FLYING] =
        (weft_near_sent){.first = first,
                         .end = first + bytes,
                         .mark = near->last_sent,
                         .since_ns = weft_clock_now_ns()};
    near->n_sent++;
    near->frames_sent++;
    return WEFT_OK;
}

weft_status weft_link_send_near(weft_link *link, const weft_frame *frame,
                                const weft_near_rows *rows, weft_err *err)
{
    weft_near_link *const near = link->near;
    WEFT_TRY(weft_link_check_unbroken(link, err));
    if (!weft_link_is_near(link))
        return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                         "link to %s: it has no near rows", link->name);
    WEFT_TRY(check_rows(near, frame, err));
    reap(near);
    const int64_t first = place_in_ring(
        near, (int64_t)weft_frame_capacity(frame->n_rows) * frame->row_bytes);
    if (first < 0) {
        near->wants_room = true;
        return WEFT_RESOURCE_EXHAUSTED;
    }
    /* The header before the rows: it is what may find no room. */
    weft_frame header = *frame;
    header.is_near = true;
    header.rows = NULL;
    WEFT_TRY(weft_link_send_checked(link, &header, NULL, err));
    return give_rows(link, frame, rows, first, err);
}

/* -- rows in -------------------------------------------------------------- */

/* A header has come: room for its rows, which may still be on their way. What
 * the owner began on the rows before is done before they are overwritten. */
static weft_status post(weft_link *link, const weft_frame *frame, weft_err *err)
{
    weft_near_link *const near = link->near;
    weft_err why = {0};
    const int64_t bytes =
        (int64_t)weft_frame_capacity(frame->n_rows) * frame->row_bytes;
    if (bytes > near->pool->place_bytes)
        return weft_link_break(link, err,
                               "a frame \"%s\" with near rows of %lld bytes, "
                               "and the limit is %lld",
                               weft_frame_type_name(frame->type),
                               (long long)bytes,
                               (long long)near->pool->place_bytes);
    near->api->after_ops(near->in);
    if (near->api->recv(near->in, near->place, bytes, 0, &why) != WEFT_OK)
        return weft_link_break(link, err, "%s", why.text);
    near->mark = near->api->mark(near->in);
    near->since_ns = weft_clock_now_ns();
    near->frame = *frame;
    near->held = true;
    return WEFT_OK;
}

static weft_status fail_comm(weft_link *link, const weft_err *why,
                             weft_err *err)
{
    return weft_link_break(link, err, "its near rows: %s", why->text);
}

/* What is done of a broken comm says nothing. */
static weft_status give_out(weft_link *link, bool gone, weft_frame *frame_out,
                            bool *got_out, weft_err *err)
{
    weft_near_link *const near = link->near;
    weft_err why = {0};
    const bool done = near->api->is_done(near->in, near->mark);
    if (near->api->state(near->in, &why) != WEFT_COMM_READY)
        return fail_comm(link, &why, err);
    if (!done && gone)
        return weft_link_break(link, err,
                               "closed by the other end before the rows of a "
                               "frame \"%s\" were there",
                               weft_frame_type_name(near->frame.type));
    if (!done) return WEFT_OK;
    near->api->before_ops(near->in);
    near->held = false;
    near->frames_received++;
    *frame_out = near->frame;
    frame_out->rows = near->place;
    *got_out = true;
    return WEFT_OK;
}

weft_status weft_near_recv(weft_link *link, weft_frame *frame_out,
                           bool *got_out, weft_err *err)
{
    weft_near_link *const near = link->near;
    WEFT_TRY(weft_near_turn(link, err));
    if (near->held) {
        const bool gone = !link->ops->pump(link);
        return give_out(link, gone, frame_out, got_out, err);
    }
    WEFT_TRY(link->ops->recv(link, frame_out, got_out, err));
    if (!*got_out || !frame_out->is_near) return WEFT_OK;
    *got_out = false;
    WEFT_TRY(post(link, frame_out, err));
    return give_out(link, false, frame_out, got_out, err);
}

/* -- looking after -------------------------------------------------------- */

void weft_near_reap(weft_near_link *near)
{
    if (near->n_sent > 0) reap(near);
}

bool weft_near_is_ready(const weft_link *link)
{
    const weft_near_link *const near = link->near;
    return near->api->is_done(near->in, near->mark);
}

uint64_t weft_near_tick_ns(const weft_link *link)
{
    const weft_near_link *const near = link->near;
    if (near == NULL) return UINT64_MAX;
    if (near->held || near->wants_room) return SOON_NS;
    const bool moves = near->state == WEFT_NEAR_PENDING || near->n_sent > 0 ||
                       near->due.say != WEFT_SAY_NOTHING;
    return moves ? LATER_NS : UINT64_MAX;
}

weft_status weft_near_judge(weft_link *link, uint64_t now_ns, uint64_t since_ns,
                            weft_err *err)
{
    weft_near_link *const near = link->near;
    weft_err why = {0};
    if (near->state != WEFT_NEAR_SAID && near->state != WEFT_NEAR_READY)
        return WEFT_OK;
    weft_near_reap(near);
    if (near->api->state(near->out, &why) == WEFT_COMM_BROKEN ||
        near->api->state(near->in, &why) == WEFT_COMM_BROKEN)
        return fail_comm(link, &why, err);
    const uint64_t limit = near->pool->options.rows_ns;
    const uint64_t held =
        near->held ? weft_link_age(now_ns, near->since_ns, since_ns) : 0;
    if (held > limit)
        return weft_link_break(link, err,
                               "the rows of a frame \"%s\" were not there "
                               "after %llu ms",
                               weft_frame_type_name(near->frame.type),
                               (unsigned long long)held / 1000000U);
    const uint64_t flown =
        near->n_sent > 0
            ? weft_link_age(now_ns, oldest(near)->since_ns, since_ns)
            : 0;
    if (flown / TAKEN_NS_TIMES > limit)
        return weft_link_break(link, err, "took no near rows for %llu ms",
                               (unsigned long long)flown / 1000000U);
    return WEFT_OK;
}
