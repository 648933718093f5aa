#include "shard/expert/body.h"

#include <string.h>

#include "node/base/check.h"
#include "node/base/pack.h"
#include "node/base/str.h"

static uint32_t row_bytes_of(const weft_model_config *config)
{
    return (uint32_t)config->hidden_size * (uint32_t)sizeof(float);
}

weft_frame_limits weft_dispatch_limits(const weft_model_config *config)
{
    return (weft_frame_limits){
        .body_bytes_max = WEFT_DISPATCH_BODY_BYTES_MAX,
        .rows_max = WEFT_DISPATCH_ROWS_MAX,
        .row_bytes_max = row_bytes_of(config),
    };
}

weft_frame_limits weft_answer_limits(const weft_model_config *config)
{
    return (weft_frame_limits){
        .body_bytes_max = WEFT_ANSWER_BODY_BYTES_MAX,
        .rows_max = WEFT_ANSWER_ROWS_MAX,
        .row_bytes_max = row_bytes_of(config),
    };
}

size_t weft_dispatch_encode(const weft_dispatch_pair *pairs, int32_t n,
                            void *bytes_out)
{
    WEFT_ASSERT(n >= 1 && n <= WEFT_DISPATCH_PAIRS_MAX);
    weft_pack p = weft_pack_into(bytes_out, WEFT_DISPATCH_BODY_BYTES_MAX);
    weft_pack_i32(&p, n);
    weft_pack_u32(&p, 0);
    for (int32_t i = 0; i < n; i++) {
        weft_pack_i32(&p, pairs[i].row);
        weft_pack_i32(&p, pairs[i].expert);
        weft_pack_u32(&p, pairs[i].pair);
    }
    WEFT_ASSERT(!p.full);
    return p.n;
}

/* Whether a frame's rows are rows of this model. */
static weft_status check_rows(const weft_frame *frame,
                              const weft_model_config *config, int32_t rows_max,
                              weft_err *err)
{
    if (frame->n_rows < 1 || frame->n_rows > rows_max)
        return WEFT_FAIL(
            err, WEFT_INVALID_ARGUMENT, "%s with %d rows, at most %d",
            weft_frame_type_name(frame->type), frame->n_rows, rows_max);
    if (frame->row_bytes != row_bytes_of(config))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%s with rows of %u bytes, not %u",
                         weft_frame_type_name(frame->type), frame->row_bytes,
                         row_bytes_of(config));
    if (frame->layer < 0 || frame->layer >= config->n_layer ||
        !config->moe[frame->layer])
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%s for layer %d, which has no experts",
                         weft_frame_type_name(frame->type), frame->layer);
    return WEFT_OK;
}

weft_status weft_dispatch_decode(const weft_frame *frame,
                                 const weft_model_config *config,
                                 weft_dispatch_pair *pairs_out, int32_t *n_out,
                                 weft_err *err)
{
    WEFT_TRY(check_rows(frame, config, WEFT_DISPATCH_ROWS_MAX, err));
    weft_unpack u = weft_unpack_from(frame->body, frame->body_bytes);
    const uint32_t n = weft_unpack_u32(&u);
    const uint32_t flags = weft_unpack_u32(&u);
    if (u.bad || n < 1 || n > WEFT_DISPATCH_PAIRS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "DISPATCH with %u pairs in %zu bytes", n,
                         frame->body_bytes);
    if (flags != 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "DISPATCH with unknown flags %#x", flags);
    if (frame->body_bytes !=
        WEFT_DISPATCH_HEAD_BYTES + (size_t)n * WEFT_DISPATCH_PAIR_BYTES)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "DISPATCH of %u pairs with a body of %zu bytes", n,
                         frame->body_bytes);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t row = weft_unpack_u32(&u);
        const uint32_t expert = weft_unpack_u32(&u);
        const uint32_t pair = weft_unpack_u32(&u);
        if (row >= (uint32_t)frame->n_rows ||
            expert >= (uint32_t)config->n_expert)
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "DISPATCH asks row %u of %d, expert %u of %d", row,
                             frame->n_rows, expert, config->n_expert);
        pairs_out[i] = (weft_dispatch_pair){
            .row = (int32_t)row, .expert = (int32_t)expert, .pair = pair};
    }
    *n_out = (int32_t)n;
    return WEFT_OK;
}

size_t weft_answer_encode(const uint32_t *pairs, int32_t n, void *bytes_out)
{
    WEFT_ASSERT(n >= 1 && n <= WEFT_ANSWER_ROWS_MAX);
    weft_pack p = weft_pack_into(bytes_out, WEFT_ANSWER_BODY_BYTES_MAX);
    weft_pack_i32(&p, n);
    for (int32_t i = 0; i < n; i++) weft_pack_u32(&p, pairs[i]);
    WEFT_ASSERT(!p.full);
    return p.n;
}

weft_status weft_answer_decode(const weft_frame *frame,
                               const weft_model_config *config,
                               uint32_t pairs_out[WEFT_ANSWER_ROWS_MAX],
                               weft_err *err)
{
    WEFT_TRY(check_rows(frame, config, WEFT_ANSWER_ROWS_MAX, err));
    weft_unpack u = weft_unpack_from(frame->body, frame->body_bytes);
    const uint32_t n = weft_unpack_u32(&u);
    if (u.bad || n != (uint32_t)frame->n_rows ||
        frame->body_bytes != 4 + (size_t)n * 4)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "ANSWER of %d rows names %u pairs in %zu bytes",
                         frame->n_rows, n, frame->body_bytes);
    for (uint32_t i = 0; i < n; i++) pairs_out[i] = weft_unpack_u32(&u);
    return WEFT_OK;
}

size_t weft_reject_encode(weft_reject_reason reason, const char *text,
                          void *bytes_out)
{
    weft_pack p = weft_pack_into(bytes_out, WEFT_REJECT_TEXT_BYTES);
    weft_pack_u8(&p, (uint8_t)reason);
    weft_pack_raw(&p, text, strnlen(text, WEFT_REJECT_TEXT_BYTES - 1));
    return p.n;
}

weft_status weft_reject_decode(const weft_frame *frame,
                               weft_reject_reason *reason_out,
                               char text_out[WEFT_REJECT_TEXT_BYTES],
                               weft_err *err)
{
    weft_unpack u = weft_unpack_from(frame->body, frame->body_bytes);
    const uint8_t reason = weft_unpack_u8(&u);
    if (u.bad || frame->body_bytes > WEFT_REJECT_TEXT_BYTES ||
        frame->n_rows != 0 ||
        (reason != WEFT_REJECT_EPOCH && reason != WEFT_REJECT_EXPERT))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "REJECT with reason %u, %zu bytes and %d rows", reason,
                         frame->body_bytes, frame->n_rows);
    char raw[WEFT_REJECT_TEXT_BYTES] = {0};
    const size_t n = frame->body_bytes - 1;
    const void *const text = weft_unpack_raw(&u, n);
    if (n > 0 && text != NULL) memcpy(raw, text, n);
    (void)weft_text_line(raw, text_out, WEFT_REJECT_TEXT_BYTES);
    *reason_out = (weft_reject_reason)reason;
    return WEFT_OK;
}
