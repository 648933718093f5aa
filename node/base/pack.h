/* pack.h - values into bytes and back: the bodies of internal frames.
 *
 * Little-endian, no padding, nothing implied. The writer works in storage of a
 * fixed size and remembers if something did not fit; the reader treats its
 * bytes as hostile: what is not there reads as zero and is remembered, so a
 * decoder reads everything, checks once with weft_unpack_done, and only then
 * believes any of it. Counts must be held against a limit before use.
 *
 * Threads: none of its own. Nothing allocates.
 */
#ifndef WEFT_NODE_BASE_PACK_H
#define WEFT_NODE_BASE_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "node/base/span.h"

typedef struct weft_pack {
    unsigned char *data;
    size_t n, capacity;
    bool full; /* something did not fit; n stays where it was */
} weft_pack;

static inline weft_pack weft_pack_into(void *data, size_t capacity)
{
    return (weft_pack){.data = data, .capacity = capacity};
}
void weft_pack_u8(weft_pack *pack, uint8_t value);
void weft_pack_u16(weft_pack *pack, uint16_t value);
void weft_pack_u32(weft_pack *pack, uint32_t value);
void weft_pack_u64(weft_pack *pack, uint64_t value);
void weft_pack_i32(weft_pack *pack, int32_t value);
void weft_pack_i64(weft_pack *pack, int64_t value);
void weft_pack_f32(weft_pack *pack, float value);
void weft_pack_raw(weft_pack *pack, const void *bytes, size_t n);
/* A length (u32), then the bytes. */
void weft_pack_span(weft_pack *pack, const void *bytes, size_t n);
void weft_pack_text(weft_pack *pack, const char *text);
/* A count (u32), then the values. */
void weft_pack_i32s(weft_pack *pack, const int32_t *values, int32_t n);
void weft_pack_f32s(weft_pack *pack, const float *values, int32_t n);

typedef struct weft_unpack {
    const unsigned char *at, *end;
    bool bad; /* something was not there */
} weft_unpack;

static inline weft_unpack weft_unpack_from(const void *bytes, size_t n)
{
    const unsigned char *const at = bytes;
    return (weft_unpack){.at = at, .end = at + n};
}
uint8_t weft_unpack_u8(weft_unpack *unpack);
uint16_t weft_unpack_u16(weft_unpack *unpack);
uint32_t weft_unpack_u32(weft_unpack *unpack);
uint64_t weft_unpack_u64(weft_unpack *unpack);
int32_t weft_unpack_i32(weft_unpack *unpack);
int64_t weft_unpack_i64(weft_unpack *unpack);
float weft_unpack_f32(weft_unpack *unpack);
/* n bytes where they lie; NULL if they are not there. */
const void *weft_unpack_raw(weft_unpack *unpack, size_t n);
/* Counterparts of span; longer than bytes_max is bad. */
weft_span weft_unpack_span(weft_unpack *unpack, size_t bytes_max);
/* Into text_out, NUL-terminated; one with a NUL inside, or that does not fit
 * text_bytes, is bad. */
void weft_unpack_text(weft_unpack *unpack, char *text_out, size_t text_bytes);
/* The count of an array of items of item_bytes each: bad, and 0, if it is
 * above count_max or more than what is left. */
int32_t weft_unpack_count(weft_unpack *unpack, int32_t count_max,
                          size_t item_bytes);
void weft_unpack_i32s(weft_unpack *unpack, int32_t *values_out, int32_t n);
void weft_unpack_f32s(weft_unpack *unpack, float *values_out, int32_t n);

/* Whether everything was there and nothing is left. */
static inline bool weft_unpack_done(const weft_unpack *unpack)
{
    return !unpack->bad && unpack->at == unpack->end;
}

#endif
