#include "node/base/pack.h"

#include <string.h>

void weft_pack_raw(weft_pack *pack, const void *bytes, size_t n)
{
    if (pack->full || n > pack->capacity - pack->n) {
        pack->full = true;
        return;
    }
    if (n > 0) memcpy(pack->data + pack->n, bytes, n);
    pack->n += n;
}

static void put(weft_pack *pack, uint64_t value, size_t n)
{
    unsigned char bytes[8];
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)(value >> (8 * i) & 0xff);
    weft_pack_raw(pack, bytes, n);
}

void weft_pack_u8(weft_pack *pack, uint8_t value)
{
    put(pack, value, 1);
}

void weft_pack_u16(weft_pack *pack, uint16_t value)
{
    put(pack, value, 2);
}

void weft_pack_u32(weft_pack *pack, uint32_t value)
{
    put(pack, value, 4);
}

void weft_pack_u64(weft_pack *pack, uint64_t value)
{
    put(pack, value, 8);
}

void weft_pack_i32(weft_pack *pack, int32_t value)
{
    put(pack, (uint32_t)value, 4);
}

void weft_pack_i64(weft_pack *pack, int64_t value)
{
    put(pack, (uint64_t)value, 8);
}

void weft_pack_f32(weft_pack *pack, float value)
{
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    put(pack, bits, 4);
}

void weft_pack_span(weft_pack *pack, const void *bytes, size_t n)
{
    if (n > UINT32_MAX) {
        pack->full = true;
        return;
    }
    weft_pack_u32(pack, (uint32_t)n);
    weft_pack_raw(pack, bytes, n);
}

void weft_pack_text(weft_pack *pack, const char *text)
{
    weft_pack_span(pack, text, strlen(text));
}

void weft_pack_i32s(weft_pack *pack, const int32_t *values, int32_t n)
{
    weft_pack_u32(pack, (uint32_t)n);
    for (int32_t i = 0; i < n && !pack->full; i++)
        weft_pack_i32(pack, values[i]);
}

void weft_pack_f32s(weft_pack *pack, const float *values, int32_t n)
{
    weft_pack_u32(pack, (uint32_t)n);
    for (int32_t i = 0; i < n && !pack->full; i++)
        weft_pack_f32(pack, values[i]);
}

const void *weft_unpack_raw(weft_unpack *unpack, size_t n)
{
    if (unpack->bad || n > (size_t)(unpack->end - unpack->at)) {
        unpack->bad = true;
        return NULL;
    }
    const unsigned char *const at = unpack->at;
    unpack->at += n;
    return at;
}

static uint64_t get(weft_unpack *unpack, size_t n)
{
    const unsigned char *const at = weft_unpack_raw(unpack, n);
    uint64_t value = 0;
    if (at == NULL) return 0;
    for (size_t i = 0; i < n; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

uint8_t weft_unpack_u8(weft_unpack *unpack)
{
    return (uint8_t)get(unpack, 1);
}

uint16_t weft_unpack_u16(weft_unpack *unpack)
{
    return (uint16_t)get(unpack, 2);
}

uint32_t weft_unpack_u32(weft_unpack *unpack)
{
    return (uint32_t)get(unpack, 4);
}

uint64_t weft_unpack_u64(weft_unpack *unpack)
{
    return get(unpack, 8);
}

int32_t weft_unpack_i32(weft_unpack *unpack)
{
    return (int32_t)(uint32_t)get(unpack, 4);
}

int64_t weft_unpack_i64(weft_unpack *unpack)
{
    return (int64_t)get(unpack, 8);
}

float weft_unpack_f32(weft_unpack *unpack)
{
    const uint32_t bits = weft_unpack_u32(unpack);
    float value = 0;
    memcpy(&value, &bits, sizeof value);
    return value;
}

weft_span weft_unpack_span(weft_unpack *unpack, size_t bytes_max)
{
    const size_t n = weft_unpack_u32(unpack);
    if (n > bytes_max) unpack->bad = true;
    const char *const at = weft_unpack_raw(unpack, n);
    return (weft_span){.data = at, .n = at == NULL ? 0 : n};
}

void weft_unpack_text(weft_unpack *unpack, char *text_out, size_t text_bytes)
{
    const weft_span span = weft_unpack_span(unpack, text_bytes - 1);
    if (span.n > 0 && memchr(span.data, '\0', span.n) != NULL)
        unpack->bad = true;
    const size_t n = unpack->bad ? 0 : span.n;
    if (n > 0) memcpy(text_out, span.data, n);
    text_out[n] = '\0';
}

int32_t weft_unpack_count(weft_unpack *unpack, int32_t count_max,
                          size_t item_bytes)
{
    const uint32_t n = weft_unpack_u32(unpack);
    const size_t left = (size_t)(unpack->end - unpack->at);
    if (n > (uint32_t)count_max || n > left / item_bytes) unpack->bad = true;
    return unpack->bad ? 0 : (int32_t)n;
}

void weft_unpack_i32s(weft_unpack *unpack, int32_t *values_out, int32_t n)
{
    for (int32_t i = 0; i < n; i++) values_out[i] = weft_unpack_i32(unpack);
}

void weft_unpack_f32s(weft_unpack *unpack, float *values_out, int32_t n)
{
    for (int32_t i = 0; i < n; i++) values_out[i] = weft_unpack_f32(unpack);
}
