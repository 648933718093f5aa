/* Links within the process: frames are copied into the other end's queue.
 *
 * Each end has an event descriptor that is readable while there is something
 * for its owner: a frame, room after a refusal, or the end. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/mem.h"
#include "shard/link/link_internal.h"

enum { ALIGN = 64 };

typedef struct local_frame {
    weft_frame frame; /* body and rows point into memory */
    unsigned char *memory;
} local_frame;

typedef struct local_pair local_pair;

typedef struct local_end {
    weft_link base;
    local_pair *pair;
    struct local_end *other;
    unsigned char *lent; /* memory of the frame that was given out; owner's */

    /* With the pair's lock. */
    local_frame *frames; /* a ring of what came in */
    int32_t capacity, head, n;
    bool closed, signalled, wants_room;
} local_end;

struct local_pair {
    pthread_mutex_t lock;
    local_end ends[2];
};

static local_end *of(weft_link *link)
{
    return (local_end *)(void *)link;
}

/* With the lock. */
static void signal_end(local_end *end)
{
    const uint64_t one = 1;
    if (end->signalled || end->closed) return;
    end->signalled = true;
    const ssize_t n = write(end->base.fd, &one, sizeof one);
    (void)n; /* a counter of one cannot be full */
}

static void unsignal(local_end *end)
{
    uint64_t count = 0;
    if (!end->signalled) return;
    end->signalled = false;
    const ssize_t n = read(end->base.fd, &count, sizeof count);
    (void)n;
}

/* A copy of its own for the other end; false: no memory. */
static bool copy_frame(local_frame *to, const weft_frame *frame,
                       const void *const *rows)
{
    const size_t rows_at = (frame->body_bytes + ALIGN - 1) / ALIGN * ALIGN;
    const size_t bytes = rows_at + (size_t)frame->n_rows * frame->row_bytes;
    unsigned char *const memory = weft_mem_new_aligned(ALIGN, bytes + ALIGN);
    if (memory == NULL) return false;
    if (frame->body_bytes > 0) memcpy(memory, frame->body, frame->body_bytes);
    for (int32_t i = 0; i < frame->n_rows; i++)
        memcpy(memory + rows_at + (size_t)i * frame->row_bytes, rows[i],
               frame->row_bytes);
    *to = (local_frame){.frame = *frame, .memory = memory};
    to->frame.body = memory;
    to->frame.rows = frame->n_rows > 0 ? memory + rows_at : NULL;
    return true;
}

static weft_status local_send(weft_link *link, const weft_frame *frame,
                              const void *const *rows, weft_err *err)
{
    local_end *const end = of(link);
    local_end *const other = end->other;
    (void)pthread_mutex_lock(&end->pair->lock);
    const bool closed = other->closed;
    const bool full = other->n == other->capacity;
    if (full) end->wants_room = true;
    (void)pthread_mutex_unlock(&end->pair->lock);
    if (closed)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE,
                         "link to %s: closed by the other end", link->name);
    local_frame copy;
    if (full || !copy_frame(&copy, frame, rows)) return WEFT_RESOURCE_EXHAUSTED;

    const uint64_t now = weft_clock_now_ns();
    (void)pthread_mutex_lock(&end->pair->lock);
    if (other->closed) {
        weft_mem_free(copy.memory); /* as what a closed socket swallows */
    } else {
        /* Nobody else puts frames there, so there is still room. */
        other->frames[(other->head + other->n) % other->capacity] = copy;
        other->n++;
        atomic_store(&other->base.last_heard_ns, now);
        signal_end(other);
    }
    (void)pthread_mutex_unlock(&end->pair->lock);
    atomic_fetch_add(&link->bytes_sent,
                     WEFT_FRAME_HEADER_BYTES + frame->body_bytes +
                         (size_t)frame->n_rows * frame->row_bytes);
    return WEFT_OK;
}

static bool local_is_idle(const weft_link *link)
{
    (void)link; /* what was sent was copied */
    return true;
}

static weft_status local_flush(weft_link *link, uint64_t deadline_ns,
                               weft_err *err)
{
    (void)link;
    (void)deadline_ns;
    (void)err;
    return WEFT_OK;
}

typedef enum taken { TAKEN, NOTHING, CLOSED } taken;

static taken take(local_end *end, local_frame *frame_out)
{
    taken result = NOTHING;
    (void)pthread_mutex_lock(&end->pair->lock);
    if (end->n > 0) {
        *frame_out = end->frames[end->head];
        end->head = (end->head + 1) % end->capacity;
        end->n--;
        result = TAKEN;
        if (end->other->wants_room) signal_end(end->other);
        end->other->wants_room = false;
    } else if (end->other->closed) {
        result = CLOSED;
    }
    if (end->n == 0 && !end->other->closed) unsignal(end);
    (void)pthread_mutex_unlock(&end->pair->lock);
    return result;
}

/* Whether this end's limits let the frame in; the same judge as for bytes. */
static weft_status check_limits(const weft_link *link, const weft_frame *frame,
                                weft_err *err)
{
    unsigned char header[WEFT_FRAME_HEADER_BYTES];
    weft_frame decoded;
    uint32_t crc = 0;
    weft_frame_encode(frame, 0, header);
    return weft_frame_decode(header, &link->options.limits, &decoded, &crc,
                             err);
}

static weft_status local_recv(weft_link *link, weft_frame *frame_out,
                              bool *got_out, weft_err *err)
{
    local_end *const end = of(link);
    local_frame came;
    weft_err why = {0};
    weft_mem_free(end->lent);
    end->lent = NULL;
    for (;;) {
        switch (take(end, &came)) {
        case NOTHING: return WEFT_OK;
        case CLOSED:
            return weft_link_break(link, err, "closed by the other end");
        case TAKEN: break;
        }
        const weft_frame *const frame = &came.frame;
        weft_mem_free(end->lent);
        end->lent = came.memory;
        link->bytes_received += WEFT_FRAME_HEADER_BYTES + frame->body_bytes +
                                (size_t)frame->n_rows * frame->row_bytes;
        if (check_limits(link, frame, &why) != WEFT_OK)
            return weft_link_break(link, err, "%s", why.text);
        switch (weft_link_meet(link, frame)) {
        case WEFT_MEET_SKIP: continue;
        case WEFT_MEET_END:
            if (err != NULL) *err = link->why;
            return WEFT_UNAVAILABLE;
        case WEFT_MEET_GIVE: break;
        }
        *frame_out = *frame;
        *got_out = true;
        return WEFT_OK;
    }
}

static bool local_is_ready(const weft_link *link)
{
    (void)link; /* the descriptor tells everything */
    return false;
}

/* Beside the queue: a pulse must pass where frames wait. */
static void local_pulse(weft_link *link, uint64_t step)
{
    local_end *const end = of(link);
    (void)pthread_mutex_lock(&end->pair->lock);
    if (!end->other->closed) {
        atomic_store(&end->other->base.pulse_step, step);
        atomic_store(&end->other->base.last_heard_ns, weft_clock_now_ns());
    }
    (void)pthread_mutex_unlock(&end->pair->lock);
}

static void free_pair(local_pair *pair)
{
    (void)pthread_mutex_destroy(&pair->lock);
    for (int i = 0; i < 2; i++) weft_mem_free(pair->ends[i].frames);
    weft_mem_free(pair);
}

static void local_close(weft_link *link)
{
    local_end *const end = of(link);
    local_pair *const pair = end->pair;
    (void)pthread_mutex_lock(&pair->lock);
    end->closed = true;
    signal_end(end->other);
    for (; end->n > 0; end->n--) {
        weft_mem_free(end->frames[end->head].memory);
        end->head = (end->head + 1) % end->capacity;
    }
    (void)close(link->fd);
    weft_mem_free(end->lent);
    const bool last = end->other->closed;
    (void)pthread_mutex_unlock(&pair->lock);
    if (last) free_pair(pair);
}

static const weft_transport_ops local_ops = {
    .name = "local",
    .close = local_close,
    .send = local_send,
    .is_idle = local_is_idle,
    .flush = local_flush,
    .recv = local_recv,
    .is_ready = local_is_ready,
    .pulse = local_pulse,
};

static bool init_end(local_pair *pair, int i, const weft_link_options *own)
{
    local_end *const end = &pair->ends[i];
    const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) return false;
    weft_link_init(&end->base, &local_ops, fd, own);
    end->pair = pair;
    end->other = &pair->ends[1 - i];
    return true;
}

/* What one end may have on its way is the room that the other has. */
static bool init_queue(local_end *end)
{
    end->capacity = end->other->base.options.queue_frames;
    end->frames = weft_mem_new((size_t)end->capacity, sizeof *end->frames);
    return end->frames != NULL;
}

weft_status weft_link_create_local(const weft_link_options *a,
                                   const weft_link_options *b,
                                   weft_link **a_out, weft_link **b_out,
                                   weft_err *err)
{
    local_pair *const pair = weft_mem_new(1, sizeof *pair);
    if (pair == NULL || pthread_mutex_init(&pair->lock, NULL) != 0) {
        weft_mem_free(pair);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory for a link");
    }
    weft_status st = WEFT_OK;
    if (!init_end(pair, 0, a)) {
        st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                       "no descriptor for a link: %s", strerror(errno));
        goto free_pair;
    }
    if (!init_end(pair, 1, b)) {
        st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                       "no descriptor for a link: %s", strerror(errno));
        goto close_first;
    }
    if (!init_queue(&pair->ends[0]) || !init_queue(&pair->ends[1])) {
        st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory for a link");
        goto close_second;
    }
    *a_out = &pair->ends[0].base;
    *b_out = &pair->ends[1].base;
    return WEFT_OK;

close_second:
    (void)close(pair->ends[1].base.fd);
close_first:
    (void)close(pair->ends[0].base.fd);
free_pair:
    free_pair(pair);
    return st;
}
