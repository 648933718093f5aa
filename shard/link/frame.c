#include "shard/link/frame.h"

#include "node/base/pack.h"

enum {
    MAGIC = 0x54464557, /* "WEFT" in memory */
    CRC_AT = 60,
    NEAR = 1, /* of the flags */
    CAPACITY_MIN = 8,
};

const char *weft_frame_type_name(weft_frame_type type)
{
    switch (type) {
    case WEFT_FRAME_HELLO: return "hello";
    case WEFT_FRAME_WELCOME: return "welcome";
    case WEFT_FRAME_REFUSE: return "refuse";
    case WEFT_FRAME_PULSE: return "pulse";
    case WEFT_FRAME_COMM: return "comm";
    case WEFT_FRAME_DISPATCH: return "dispatch";
    case WEFT_FRAME_ANSWER: return "answer";
    case WEFT_FRAME_REJECT: return "reject";
    case WEFT_FRAME_MAP: return "map";
    case WEFT_FRAME_PLAN: return "plan";
    case WEFT_FRAME_HIDDEN: return "hidden";
    case WEFT_FRAME_STUCK: return "stuck";
    case WEFT_FRAME_RESET: return "reset";
    case WEFT_FRAME_SUBMIT: return "submit";
    case WEFT_FRAME_CANCEL: return "cancel";
    case WEFT_FRAME_EVENTS: return "events";
    case WEFT_FRAME_STATE: return "state";
    }
    return NULL;
}

void weft_frame_encode(const weft_frame *frame, uint32_t payload_crc,
                       unsigned char header_out[WEFT_FRAME_HEADER_BYTES])
{
    weft_pack pack = weft_pack_into(header_out, WEFT_FRAME_HEADER_BYTES);
    weft_pack_u32(&pack, MAGIC);
    weft_pack_u16(&pack, WEFT_FRAME_VERSION);
    weft_pack_u16(&pack, (uint16_t)frame->type);
    weft_pack_u32(&pack, (uint32_t)frame->body_bytes);
    weft_pack_u32(&pack, (uint32_t)frame->n_rows);
    weft_pack_u32(&pack, frame->row_bytes);
    weft_pack_u32(&pack, payload_crc);
    weft_pack_u64(&pack, frame->epoch);
    weft_pack_u64(&pack, frame->step);
    weft_pack_i32(&pack, frame->layer);
    weft_pack_u32(&pack, frame->attempt);
    weft_pack_u32(&pack, frame->group);
    weft_pack_u32(&pack, frame->tag);
    weft_pack_u32(&pack, frame->is_near ? NEAR : 0);
    weft_pack_u32(&pack, weft_crc32c(0, header_out, CRC_AT));
}

/* An alert or a handshake record: the other end expects TLS. */
static bool is_tls(const unsigned char *header)
{
    return (header[0] == 0x15 || header[0] == 0x16) && header[1] == 3;
}

/* What can be judged without knowing the version: that a header of whatever
 * version stands here whole. *pack_out is behind the version. */
static weft_status check_whole(const unsigned char *header,
                               weft_unpack *unpack_out, weft_err *err)
{
    weft_unpack tail = weft_unpack_from(header + CRC_AT, 4);
    weft_unpack unpack = weft_unpack_from(header, CRC_AT);
    const uint32_t magic = weft_unpack_u32(&unpack);
    if (magic != MAGIC)
        return WEFT_FAIL(err, WEFT_DATA_LOSS,
                         "no frame begins with %02x %02x %02x %02x%s",
                         header[0], header[1], header[2], header[3],
                         is_tls(header) ? " (TLS, on a plain link)" : "");
    const uint32_t said = weft_unpack_u32(&tail);
    const uint32_t is = weft_crc32c(0, header, CRC_AT);
    if (said != is)
        return WEFT_FAIL(err, WEFT_DATA_LOSS,
                         "a frame's header is damaged: its checksum is %08x, "
                         "it says %08x",
                         (unsigned)is, (unsigned)said);
    const uint16_t version = weft_unpack_u16(&unpack);
    if (version != WEFT_FRAME_VERSION)
        return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                         "a frame of version %u, and version %d is spoken here",
                         (unsigned)version, WEFT_FRAME_VERSION);
    *unpack_out = unpack;
    return WEFT_OK;
}

static weft_status check_size(const char *type, const char *what, uint64_t is,
                              uint64_t limit, weft_err *err)
{
    if (is <= limit) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "a frame \"%s\" with %s %llu, and the limit is %llu", type,
                     what, (unsigned long long)is, (unsigned long long)limit);
}

static weft_status check_flags(const char *type, uint32_t flags,
                               const weft_frame *frame,
                               const weft_frame_limits *limits, weft_err *err)
{
    if ((flags & ~(uint32_t)NEAR) != 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a frame \"%s\" with unknown flags %#x", type,
                         (unsigned)flags);
    if (flags == 0) return WEFT_OK;
    if (!limits->near)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a frame \"%s\" with near rows on a link that has "
                         "none",
                         type);
    if (frame->n_rows == 0 || frame->row_bytes % sizeof(float) != 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a frame \"%s\" with %d near rows of %u bytes", type,
                         (int)frame->n_rows, (unsigned)frame->row_bytes);
    return WEFT_OK;
}

weft_status
weft_frame_decode(const unsigned char header[WEFT_FRAME_HEADER_BYTES],
                  const weft_frame_limits *limits, weft_frame *frame_out,
                  uint32_t *payload_crc_out, weft_err *err)
{
    weft_unpack unpack;
    WEFT_TRY(check_whole(header, &unpack, err));

    const uint16_t type = weft_unpack_u16(&unpack);
    const char *const name = weft_frame_type_name((weft_frame_type)type);
    if (name == NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a frame of type %u, which nobody knows",
                         (unsigned)type);
    const uint32_t body_bytes = weft_unpack_u32(&unpack);
    const uint32_t n_rows = weft_unpack_u32(&unpack);
    const uint32_t row_bytes = weft_unpack_u32(&unpack);
    WEFT_TRY(check_size(name, "body bytes", body_bytes, limits->body_bytes_max,
                        err));
    WEFT_TRY(check_size(name, "rows", n_rows, (uint64_t)limits->rows_max, err));
    WEFT_TRY(
        check_size(name, "row bytes", row_bytes, limits->row_bytes_max, err));
    if (n_rows > 0 && row_bytes == 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a frame \"%s\" with %u rows of no bytes", name,
                         (unsigned)n_rows);

    weft_frame frame = {.type = (weft_frame_type)type,
                        .body_bytes = body_bytes,
                        .n_rows = (int32_t)n_rows,
                        .row_bytes = row_bytes};
    const uint32_t payload_crc = weft_unpack_u32(&unpack);
    frame.epoch = weft_unpack_u64(&unpack);
    frame.step = weft_unpack_u64(&unpack);
    frame.layer = weft_unpack_i32(&unpack);
    frame.attempt = weft_unpack_u32(&unpack);
    frame.group = weft_unpack_u32(&unpack);
    frame.tag = weft_unpack_u32(&unpack);
    const uint32_t flags = weft_unpack_u32(&unpack);
    WEFT_TRY(check_flags(name, flags, &frame, limits, err));
    frame.is_near = flags != 0;
    *frame_out = frame;
    *payload_crc_out = payload_crc;
    return WEFT_OK;
}

int32_t weft_frame_capacity(int32_t n_rows)
{
    int32_t capacity = CAPACITY_MIN;
    while (capacity < n_rows && capacity <= INT32_MAX / 2) capacity *= 2;
    return capacity;
}
