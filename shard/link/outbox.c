#include "shard/link/outbox.h"

#include <string.h>

#include "node/base/mem.h"

enum {
    HEADER = WEFT_FRAME_HEADER_BYTES,
    BODY_BYTES_KEPT = 16 << 10, /* larger copies are freed when they left */
};

weft_status weft_outbox_init(weft_outbox *outbox, int32_t capacity,
                             weft_err *err)
{
    *outbox = (weft_outbox){.capacity = capacity};
    outbox->frames = weft_mem_new((size_t)capacity, sizeof *outbox->frames);
    if (outbox->frames == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a queue of %d frames", (int)capacity);
    return WEFT_OK;
}

void weft_outbox_deinit(weft_outbox *outbox)
{
    for (int32_t i = 0; i < outbox->capacity; i++)
        weft_mem_free(outbox->frames[i].body);
    weft_mem_free(outbox->frames);
    *outbox = (weft_outbox){0};
}

static bool rows_are_one(const weft_frame *frame, const void *const *rows)
{
    const unsigned char *const first = rows[0];
    for (int32_t i = 1; i < frame->n_rows; i++)
        if (rows[i] != first + (size_t)i * frame->row_bytes) return false;
    return true;
}

uint32_t weft_frame_payload_crc(const weft_frame *frame,
                                const void *const *rows)
{
    uint32_t crc = weft_crc32c(0, frame->body, frame->body_bytes);
    if (weft_frame_stream_bytes(frame) == 0) return crc;
    if (rows_are_one(frame, rows))
        return weft_crc32c(crc, rows[0],
                           (size_t)frame->n_rows * frame->row_bytes);
    for (int32_t i = 0; i < frame->n_rows; i++)
        crc = weft_crc32c(crc, rows[i], frame->row_bytes);
    return crc;
}

static bool copy_body(weft_out_frame *out, const weft_frame *frame)
{
    if (frame->body_bytes > out->body_capacity) {
        weft_mem_free(out->body);
        out->body_capacity = 0;
        out->body = weft_mem_new_aligned(64, frame->body_bytes);
        if (out->body == NULL) return false;
        out->body_capacity = frame->body_bytes;
    }
    if (frame->body_bytes > 0)
        memcpy(out->body, frame->body, frame->body_bytes);
    out->body_bytes = frame->body_bytes;
    return true;
}

bool weft_outbox_put(weft_outbox *outbox, const weft_frame *frame,
                     const void *const *rows)
{
    if (outbox->n == outbox->capacity) return false;
    weft_out_frame *const out =
        &outbox->frames[(outbox->head + outbox->n) % outbox->capacity];
    if (!copy_body(out, frame)) return false;
    weft_frame_encode(frame, weft_frame_payload_crc(frame, rows), out->header);
    out->rows = rows;
    out->row_bytes = frame->row_bytes;
    out->total = HEADER + frame->body_bytes + weft_frame_stream_bytes(frame);
    outbox->n++;
    return true;
}

/* Pieces under construction. */
typedef struct gather {
    struct iovec *pieces;
    int n, n_max;
    size_t room;
} gather;

/* false: no more fits. */
static bool add(gather *to, const void *bytes, size_t n)
{
    struct iovec *const last = to->n > 0 ? &to->pieces[to->n - 1] : NULL;
    if (n > to->room) n = to->room;
    if (n == 0) return to->room > 0;
    if (last != NULL &&
        (const char *)last->iov_base + last->iov_len == (const char *)bytes) {
        last->iov_len += n;
    } else if (to->n < to->n_max) {
        union {
            const void *borrowed;
            void *base; /* iovec has no const; it is only read from */
        } as = {.borrowed = bytes};
        to->pieces[to->n++] = (struct iovec){.iov_base = as.base, .iov_len = n};
    } else {
        return false;
    }
    to->room -= n;
    return to->room > 0;
}

static bool add_frame(gather *to, const weft_out_frame *frame, size_t skip)
{
    const size_t rows_at = HEADER + frame->body_bytes;
    if (skip < HEADER && !add(to, frame->header + skip, HEADER - skip))
        return false;
    const size_t in_body = skip > HEADER ? skip - HEADER : 0;
    if (in_body < frame->body_bytes &&
        !add(to, frame->body + in_body, frame->body_bytes - in_body))
        return false;
    size_t at = skip > rows_at ? skip - rows_at : 0;
    while (rows_at + at < frame->total) {
        const size_t inside = at % frame->row_bytes;
        const unsigned char *const row = frame->rows[at / frame->row_bytes];
        if (!add(to, row + inside, frame->row_bytes - inside)) return false;
        at += frame->row_bytes - inside;
    }
    return true;
}

int weft_outbox_gather(const weft_outbox *outbox, struct iovec *pieces,
                       int n_max, size_t bytes_max)
{
    gather to = {.pieces = pieces, .n_max = n_max, .room = bytes_max};
    for (int32_t i = 0; i < outbox->n; i++) {
        const int32_t at = (outbox->head + i) % outbox->capacity;
        if (!add_frame(&to, &outbox->frames[at], i == 0 ? outbox->done : 0))
            break;
    }
    return to.n;
}

void weft_outbox_sent(weft_outbox *outbox, size_t n)
{
    outbox->done += n;
    while (outbox->n > 0) {
        weft_out_frame *const first = &outbox->frames[outbox->head];
        if (outbox->done < first->total) return;
        outbox->done -= first->total;
        if (first->body_capacity > BODY_BYTES_KEPT) {
            weft_mem_free(first->body);
            first->body = NULL;
            first->body_capacity = 0;
        }
        outbox->head = (outbox->head + 1) % outbox->capacity;
        outbox->n--;
    }
}
