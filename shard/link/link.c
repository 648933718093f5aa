/* What all transports of links share. */
#include "shard/link/link.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/str.h"
#include "shard/link/dial_internal.h"
#include "shard/link/link_internal.h"
#include "shard/link/near_internal.h"

void weft_link_init(weft_link *link, const weft_transport_ops *ops, int fd,
                    const weft_link_options *options)
{
    const uint64_t now = weft_clock_now_ns();
    link->ops = ops;
    link->fd = fd;
    link->options = *options;
    link->options.name = NULL;
    if (link->options.queue_frames == 0)
        link->options.queue_frames = WEFT_LINK_QUEUE_FRAMES;
    atomic_init(&link->broken, false);
    atomic_init(&link->last_heard_ns, now);
    atomic_init(&link->last_progress_ns, now);
    weft_link_set_name(link, options->name != NULL ? options->name : "peer");
}

void weft_link_set_name(weft_link *link, const char *name)
{
    (void)weft_text_line(name, link->name, sizeof link->name);
}

weft_status weft_link_break(weft_link *link, weft_err *err, const char *format,
                            ...)
{
    char text[WEFT_ERR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)WEFT_FAIL(&link->why, WEFT_UNAVAILABLE, "link to %s: %.240s",
                    link->name, text);
    atomic_store(&link->broken, true);
    if (link->near != NULL) weft_near_abort(link->near);
    if (err != NULL) *err = link->why;
    return WEFT_UNAVAILABLE;
}

weft_status weft_link_check_unbroken(const weft_link *link, weft_err *err)
{
    if (!atomic_load_explicit(&link->broken, memory_order_relaxed))
        return WEFT_OK;
    if (err != NULL) *err = link->why;
    return WEFT_UNAVAILABLE;
}

static weft_meeting too_early(weft_link *link, const weft_frame *frame)
{
    (void)weft_link_break(link, NULL, "sent \"%s\" before the handshake",
                          weft_frame_type_name(frame->type));
    return WEFT_MEET_END;
}

weft_meeting weft_link_meet(weft_link *link, const weft_frame *frame)
{
    char text[WEFT_ERR_TEXT_BYTES];
    switch (frame->type) {
    case WEFT_FRAME_PULSE:
        /* Nobody pulses so early, and a stream of them would hold up whoever
         * shakes hands for as long as it lasts. */
        if (link->shaking) return too_early(link, frame);
        atomic_store(&link->pulse_step, frame->step);
        break;
    case WEFT_FRAME_HELLO:
    case WEFT_FRAME_WELCOME:
        if (link->shaking) return WEFT_MEET_GIVE;
        (void)weft_link_break(link, NULL, "sent \"%s\" after the handshake",
                              weft_frame_type_name(frame->type));
        return WEFT_MEET_END;
    case WEFT_FRAME_REFUSE:
        if (link->shaking) return WEFT_MEET_GIVE;
        weft_refuse_text(frame, text, sizeof text);
        (void)weft_link_break(link, NULL, "refused: %s", text);
        return WEFT_MEET_END;
    case WEFT_FRAME_COMM:
        if (link->shaking) return too_early(link, frame);
        return weft_near_meet(link, frame);
    default:
        if (!link->shaking) {
            link->frames_received++;
            return WEFT_MEET_GIVE;
        }
        return too_early(link, frame);
    }
    return WEFT_MEET_SKIP;
}

void weft_link_close(weft_link *link)
{
    if (link == NULL) return;
    weft_near_detach(link);
    link->ops->close(link);
}

/* What no receiver could take. */
static weft_status check_frame(const weft_frame *frame, const void *const *rows,
                               weft_err *err)
{
    if (weft_frame_type_name(frame->type) == NULL ||
        frame->body_bytes > WEFT_FRAME_BODY_BYTES_MAX || frame->n_rows < 0 ||
        frame->n_rows > WEFT_FRAME_ROWS_MAX ||
        frame->row_bytes > WEFT_FRAME_ROW_BYTES_MAX || frame->is_near ||
        (frame->n_rows > 0 && (rows == NULL || frame->row_bytes == 0)))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "no frame: type %d, %zu body bytes, %d rows of %u "
                         "bytes",
                         (int)frame->type, frame->body_bytes,
                         (int)frame->n_rows, (unsigned)frame->row_bytes);
    return WEFT_OK;
}

weft_status weft_link_send(weft_link *link, const weft_frame *frame,
                           const void *const *rows, weft_err *err)
{
    WEFT_TRY(weft_link_check_unbroken(link, err));
    WEFT_TRY(check_frame(frame, rows, err));
    return weft_link_send_checked(link, frame, rows, err);
}

weft_status weft_link_send_checked(weft_link *link, const weft_frame *frame,
                                   const void *const *rows, weft_err *err)
{
    const weft_status st = link->ops->send(link, frame, rows, err);
    if (st == WEFT_OK && frame->type != WEFT_FRAME_COMM) link->frames_sent++;
    return st;
}

bool weft_link_is_idle(const weft_link *link)
{
    return link->ops->is_idle(link);
}

weft_status weft_link_flush(weft_link *link, uint64_t deadline_ns,
                            weft_err *err)
{
    WEFT_TRY(weft_link_check_unbroken(link, err));
    return link->ops->flush(link, deadline_ns, err);
}

weft_status weft_link_recv(weft_link *link, weft_frame *frame_out,
                           bool *got_out, weft_err *err)
{
    *got_out = false;
    WEFT_TRY(weft_link_check_unbroken(link, err));
    return link->near != NULL ? weft_near_recv(link, frame_out, got_out, err)
                              : link->ops->recv(link, frame_out, got_out, err);
}

bool weft_link_is_ready(const weft_link *link)
{
    /* What lies behind a frame that is held is not for recv yet. */
    return link->near != NULL && link->near->held ? weft_near_is_ready(link)
                                                  : link->ops->is_ready(link);
}

uint64_t weft_link_age(uint64_t now_ns, uint64_t at_ns, uint64_t since_ns)
{
    const uint64_t from = at_ns > since_ns ? at_ns : since_ns;
    return now_ns > from ? now_ns - from : 0;
}

weft_status weft_link_judge(weft_link *link, uint64_t now_ns,
                            uint64_t waiting_since_ns, weft_err *err)
{
    WEFT_TRY(weft_link_check_unbroken(link, err));
    const weft_link_options *const options = &link->options;
    const uint64_t silent = weft_link_age(
        now_ns, atomic_load(&link->last_heard_ns), waiting_since_ns);
    if (options->silence_ns > 0 && silent > options->silence_ns)
        return weft_link_break(link, err, "silent for %llu ms",
                               (unsigned long long)silent / 1000000U);
    const uint64_t stalled = weft_link_age(
        now_ns, atomic_load(&link->last_progress_ns), waiting_since_ns);
    if (options->stall_ns > 0 && stalled > options->stall_ns &&
        !link->ops->is_idle(link))
        return weft_link_break(link, err, "took nothing for %llu ms",
                               (unsigned long long)stalled / 1000000U);
    return link->near == NULL
               ? WEFT_OK
               : weft_near_judge(link, now_ns, waiting_since_ns, err);
}

const char *weft_link_name(const weft_link *link)
{
    return link->name;
}

void weft_link_get_stats(const weft_link *link, weft_link_stats *stats_out)
{
    *stats_out = (weft_link_stats){
        .frames_sent = link->frames_sent,
        .frames_received = link->frames_received,
        .bytes_sent = atomic_load(&link->bytes_sent),
        .bytes_received = link->bytes_received,
        .pulse_step = atomic_load(&link->pulse_step),
        .last_heard_ns = atomic_load(&link->last_heard_ns),
    };
    if (link->near == NULL) return;
    stats_out->near_sent = link->near->frames_sent;
    stats_out->near_received = link->near->frames_received;
    stats_out->near_failed = link->near->n_failed;
}

void weft_link_pulse(weft_link *link, uint64_t step)
{
    if (!atomic_load(&link->broken)) link->ops->pulse(link, step);
}
