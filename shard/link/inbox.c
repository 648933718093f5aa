#include "shard/link/inbox.h"

#include <string.h>

#include "node/base/check.h"
#include "node/base/mem.h"

enum {
    ALIGN = 64,
    HEADER = WEFT_FRAME_HEADER_BYTES,
    /* A frame up to this size gets its memory at once. */
    EAGER_BYTES = 1 << 20,
    /* Behind a frame, for the headers and small frames that follow it. */
    SLACK_BYTES = 4096,
    /* Of one read, so that what it brings is still near when it is summed. */
    READ_BYTES = 512 << 10,
};

void weft_inbox_init(weft_inbox *inbox, size_t least_bytes)
{
    *inbox = (weft_inbox){.least_bytes = least_bytes};
}

void weft_inbox_deinit(weft_inbox *inbox)
{
    weft_mem_free(inbox->data);
    weft_mem_free(inbox->lent_data);
    *inbox = (weft_inbox){0};
}

/* Where a frame begins whose rows follow a body of that size. The first ALIGN
 * bytes stay free, so that a frame can be moved down to align its rows. */
static size_t start_for(size_t body_bytes)
{
    return ALIGN + (ALIGN - (HEADER + body_bytes) % ALIGN) % ALIGN;
}

static size_t total_of(const weft_frame *frame)
{
    return HEADER + frame->body_bytes + weft_frame_stream_bytes(frame);
}

static size_t skew_of(const weft_frame *frame, size_t at)
{
    if (weft_frame_stream_bytes(frame) == 0) return 0;
    return (at + HEADER + frame->body_bytes) % ALIGN;
}

/* What has come of the frame at `at`, to `start` of a buffer of at least
 * `capacity` bytes. */
static weft_status move_to(weft_inbox *inbox, size_t start, size_t capacity,
                           weft_err *err)
{
    const size_t have = inbox->end - inbox->at;
    unsigned char *data = inbox->data;
    WEFT_ASSERT(have == 0 || data != NULL);
    if (inbox->lent || capacity > inbox->capacity) {
        if (capacity < inbox->least_bytes) capacity = inbox->least_bytes;
        data = weft_mem_new_aligned(ALIGN, capacity);
        if (data == NULL)
            return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                             "no memory for a frame of %zu bytes", capacity);
        if (have > 0) memcpy(data + start, inbox->data + inbox->at, have);
        /* Only one frame is lent at a time, so one of the two is free. */
        if (inbox->lent)
            inbox->lent_data = inbox->data;
        else
            weft_mem_free(inbox->data);
        inbox->lent = false;
        inbox->capacity = capacity;
    } else if (have > 0) {
        memmove(data + start, data + inbox->at, have);
    }
    inbox->data = data;
    inbox->at = start;
    inbox->end = start + have;
    return WEFT_OK;
}

static weft_status know(weft_inbox *inbox, const weft_frame_limits *limits,
                        weft_err *err)
{
    if (inbox->known || inbox->end - inbox->at < HEADER) return WEFT_OK;
    WEFT_TRY(weft_frame_decode(inbox->data + inbox->at, limits, &inbox->next,
                               &inbox->next_crc, err));
    inbox->known = true;
    inbox->crc = 0;
    inbox->crc_bytes = 0;
    return WEFT_OK;
}

/* What has come of the payload goes into its checksum while it is in the cache,
 * and while the rest is on its way. */
static void sum_up(weft_inbox *inbox, size_t total)
{
    const size_t have = inbox->end - inbox->at;
    const size_t there = (have < total ? have : total) - HEADER;
    inbox->crc = weft_crc32c(
        inbox->crc, inbox->data + inbox->at + HEADER + inbox->crc_bytes,
        there - inbox->crc_bytes);
    inbox->crc_bytes = there;
}

/* Room for more of a frame whose header is not there yet. */
static weft_status room_for_header(weft_inbox *inbox, weft_err *err)
{
    const size_t start = start_for(inbox->last_body_bytes);
    if (inbox->at == inbox->end && !inbox->lent && inbox->data != NULL) {
        inbox->at = start;
        inbox->end = start;
    }
    const bool cramped =
        inbox->capacity - inbox->at < HEADER + 1 ||
        (!inbox->lent && inbox->at > start &&
         inbox->capacity - inbox->end < inbox->least_bytes / 4);
    if (inbox->data == NULL || inbox->capacity < inbox->least_bytes || cramped)
        return move_to(inbox, start, inbox->least_bytes, err);
    return WEFT_OK;
}

static weft_status room_for_rest(weft_inbox *inbox, weft_err *err)
{
    const weft_frame *const next = &inbox->next;
    const size_t total = total_of(next);
    const size_t have = inbox->end - inbox->at;
    if (have >= total) return WEFT_OK; /* room for what follows it, if any */
    size_t want = total;
    if (want > EAGER_BYTES) {
        want = 2 * have > EAGER_BYTES ? 2 * have : EAGER_BYTES;
        if (want > total) want = total;
    }
    if (inbox->capacity - inbox->at >= want && skew_of(next, inbox->at) == 0)
        return WEFT_OK;
    const size_t start = start_for(next->body_bytes);
    return move_to(inbox, start, start + want + SLACK_BYTES, err);
}

weft_status weft_inbox_room(weft_inbox *inbox, const weft_frame_limits *limits,
                            unsigned char **at_out, size_t *n_out,
                            weft_err *err)
{
    WEFT_TRY(know(inbox, limits, err));
    WEFT_TRY(inbox->known ? room_for_rest(inbox, err)
                          : room_for_header(inbox, err));
    *at_out = inbox->data + inbox->end;
    *n_out = inbox->capacity - inbox->end;
    if (*n_out > READ_BYTES) *n_out = READ_BYTES;
    return WEFT_OK;
}

void weft_inbox_filled(weft_inbox *inbox, size_t n)
{
    inbox->end += n;
}

weft_status weft_inbox_next(weft_inbox *inbox, const weft_frame_limits *limits,
                            weft_frame *frame_out, bool *got_out, weft_err *err)
{
    *got_out = false;
    WEFT_TRY(know(inbox, limits, err));
    if (!inbox->known) return WEFT_OK;
    const size_t total = total_of(&inbox->next);
    sum_up(inbox, total);
    if (inbox->end - inbox->at < total) return WEFT_OK;

    unsigned char *at = inbox->data + inbox->at;
    const size_t skew = skew_of(&inbox->next, inbox->at);
    if (skew > 0) {
        memmove(at - skew, at, total);
        at -= skew;
    }
    inbox->at += total;
    inbox->known = false;
    inbox->lent = true;
    if (inbox->crc != inbox->next_crc)
        return WEFT_FAIL(err, WEFT_DATA_LOSS,
                         "a frame \"%s\" is damaged: the checksum of its "
                         "payload is %08x, its header says %08x",
                         weft_frame_type_name(inbox->next.type),
                         (unsigned)inbox->crc, (unsigned)inbox->next_crc);
    inbox->last_body_bytes = inbox->next.body_bytes;
    *frame_out = inbox->next;
    frame_out->body = at + HEADER;
    frame_out->rows = weft_frame_stream_bytes(&inbox->next) > 0
                          ? at + HEADER + inbox->next.body_bytes
                          : NULL;
    *got_out = true;
    return WEFT_OK;
}

void weft_inbox_give_back(weft_inbox *inbox)
{
    inbox->lent = false;
    weft_mem_free(inbox->lent_data);
    inbox->lent_data = NULL;
}

bool weft_inbox_is_ready(const weft_inbox *inbox,
                         const weft_frame_limits *limits)
{
    const size_t have = inbox->end - inbox->at;
    weft_frame frame = inbox->next;
    uint32_t crc = 0;
    if (have < HEADER) return false;
    if (!inbox->known && weft_frame_decode(inbox->data + inbox->at, limits,
                                           &frame, &crc, NULL) != WEFT_OK)
        return true;
    return have >= total_of(&frame);
}

size_t weft_inbox_rest(const weft_inbox *inbox)
{
    return inbox->end - inbox->at;
}
