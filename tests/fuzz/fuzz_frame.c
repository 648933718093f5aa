/* Any bytes as what a link receives, in pieces whose sizes the bytes choose:
 * the buffer gives whole frames within its limits or one error, the same as
 * when all comes at once, and never more memory than has come. Payloads of
 * hellos and of what is said of near rows go to their decoders. */
#include <stdint.h>
#include <string.h>

#include "node/base/check.h"
#include "shard/link/hello.h"
#include "shard/link/inbox.h"
#include "shard/link/near_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BODY_MAX = 4096, ROWS_MAX = 64, ROW_BYTES_MAX = 1024, SLACK = 16384 };

static const weft_frame_limits limits = {.body_bytes_max = BODY_MAX,
                                         .rows_max = ROWS_MAX,
                                         .row_bytes_max = ROW_BYTES_MAX,
                                         .near = true};

/* What came out, so that two ways of feeding can be compared. */
typedef struct outcome {
    uint32_t n_frames, crc;
    weft_status status;
} outcome;

static void see_hello(const weft_frame *frame)
{
    unsigned char bytes[WEFT_HELLO_BYTES_MAX];
    weft_hello hello, again;
    weft_err err = {0};
    if (weft_hello_decode(frame->body, frame->body_bytes, &hello, &err) !=
        WEFT_OK) {
        WEFT_ASSERT(err.text[0] != '\0' && strchr(err.text, '\n') == NULL);
        return;
    }
    const size_t n = weft_hello_encode(&hello, bytes);
    WEFT_ASSERT(weft_hello_decode(bytes, n, &again, NULL) == WEFT_OK);
    WEFT_ASSERT(strcmp(hello.id, again.id) == 0);
    (void)weft_hello_check(&hello, &again, &err);
}

static void see_comm(const weft_frame *frame)
{
    unsigned char bytes[WEFT_NEAR_BODY_BYTES_MAX];
    weft_near_said said, again;
    if (weft_near_decode(frame, &said, NULL) != WEFT_OK) return;
    const weft_frame other = {.type = WEFT_FRAME_COMM,
                              .body = bytes,
                              .body_bytes = weft_near_encode(&said, bytes)};
    WEFT_ASSERT(weft_near_decode(&other, &again, NULL) == WEFT_OK);
    WEFT_ASSERT(said.say == again.say && said.version == again.version);
    WEFT_ASSERT(said.rows_max == again.rows_max &&
                said.row_bytes == again.row_bytes);
    WEFT_ASSERT(memcmp(said.ids, again.ids, sizeof said.ids) == 0);
    /* What is behind a text's end says nothing. */
    WEFT_ASSERT(strcmp(said.why, again.why) == 0);
}

static void see(const weft_frame *frame, outcome *seen)
{
    WEFT_ASSERT(frame->body_bytes <= BODY_MAX && frame->n_rows >= 0 &&
                frame->n_rows <= ROWS_MAX && frame->row_bytes <= ROW_BYTES_MAX);
    WEFT_ASSERT(frame->rows == NULL || (uintptr_t)frame->rows % 64 == 0);
    seen->n_frames++;
    seen->crc = weft_crc32c(seen->crc, frame->body, frame->body_bytes);
    if (frame->rows != NULL)
        seen->crc = weft_crc32c(seen->crc, frame->rows,
                                (size_t)frame->n_rows * frame->row_bytes);
    WEFT_ASSERT(!frame->is_near || (frame->n_rows > 0 && frame->rows == NULL));
    if (frame->type == WEFT_FRAME_HELLO) see_hello(frame);
    if (frame->type == WEFT_FRAME_COMM) see_comm(frame);
}

/* piece 0: sizes from the data. */
static outcome feed(const uint8_t *data, size_t size, size_t piece)
{
    outcome seen = {0};
    weft_inbox inbox;
    weft_inbox_init(&inbox, 2048);
    size_t at = 0;
    while (seen.status == WEFT_OK) {
        weft_frame frame;
        weft_err err = {0};
        bool got = false;
        unsigned char *to = NULL;
        size_t n = 0;
        const bool ready = weft_inbox_is_ready(&inbox, &limits);
        seen.status = weft_inbox_next(&inbox, &limits, &frame, &got, &err);
        WEFT_ASSERT(ready == (got || seen.status != WEFT_OK));
        if (seen.status == WEFT_OK && got) {
            see(&frame, &seen);
            if (at % 3 != 0) weft_inbox_give_back(&inbox);
            continue;
        }
        if (seen.status == WEFT_OK && at < size)
            seen.status = weft_inbox_room(&inbox, &limits, &to, &n, &err);
        WEFT_ASSERT((seen.status == WEFT_OK) == (err.text[0] == '\0'));
        if (seen.status != WEFT_OK || at == size) break;
        WEFT_ASSERT(n > 0);
        const size_t wish = piece > 0 ? piece : 1 + (size_t)data[at] % 97;
        if (n > wish) n = wish;
        if (n > size - at) n = size - at;
        memcpy(to, data + at, n);
        weft_inbox_filled(&inbox, n);
        weft_inbox_give_back(&inbox);
        at += n;
        WEFT_ASSERT(inbox.capacity <=
                    BODY_MAX + ROWS_MAX * ROW_BYTES_MAX + SLACK);
    }
    weft_inbox_deinit(&inbox);
    return seen;
}

static void put32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> (8 * i));
}

static uint32_t get32(const uint8_t *at)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) value |= (uint32_t)at[i] << (8 * i);
    return value;
}

/* With magic numbers, versions and checksums that are right, which no mutation
 * hits: what is behind them is reached, too. */
static void mend(uint8_t *data, size_t size)
{
    size_t at = 0;
    while (size - at >= WEFT_FRAME_HEADER_BYTES) {
        uint8_t *const header = data + at;
        memcpy(header, "WEFT\1\0", 6);
        const uint64_t body = get32(header + 8);
        const bool near = get32(header + 56) == 1;
        const uint64_t rows =
            near ? 0 : (uint64_t)get32(header + 12) * get32(header + 16);
        at += WEFT_FRAME_HEADER_BYTES;
        const uint64_t payload = body + rows;
        const bool whole = rows <= size && payload <= size - at;
        if (whole)
            put32(header + 20, weft_crc32c(0, data + at, (size_t)payload));
        put32(header + 60, weft_crc32c(0, header, 60));
        if (!whole) return;
        at += (size_t)payload;
    }
}

static void compare(const uint8_t *data, size_t size)
{
    const outcome whole = feed(data, size, SIZE_MAX);
    const outcome pieces = feed(data, size, 0);
    WEFT_ASSERT(whole.n_frames == pieces.n_frames && whole.crc == pieces.crc &&
                whole.status == pieces.status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t mended[1 << 16];
    compare(data, size);
    if (size > sizeof mended) return 0;
    memcpy(mended, data, size);
    mend(mended, size);
    compare(mended, size);
    return 0;
}
