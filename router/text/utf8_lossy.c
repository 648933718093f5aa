#include "router/text/utf8_lossy.h"

static const char REPLACEMENT[] = "\xEF\xBF\xBD"; /* U+FFFD */

static weft_status replace(weft_utf8_lossy *decoder, weft_buf *out,
                           weft_err *err)
{
    *decoder = (weft_utf8_lossy){0};
    return weft_buf_add(out, REPLACEMENT, sizeof REPLACEMENT - 1, err);
}

/* Bounds of the second byte, by the first: Unicode 15, table 3-7. False: no
 * character begins with this byte. */
static bool begin(weft_utf8_lossy *decoder, uint8_t byte)
{
    *decoder = (weft_utf8_lossy){
        .held = {byte}, .n_held = 1, .next_min = 0x80, .next_max = 0xBF};
    if (byte >= 0xC2 && byte <= 0xDF) {
        decoder->n_needed = 2;
    } else if (byte >= 0xE0 && byte <= 0xEF) {
        decoder->n_needed = 3;
        if (byte == 0xE0) decoder->next_min = 0xA0;
        if (byte == 0xED) decoder->next_max = 0x9F;
    } else if (byte >= 0xF0 && byte <= 0xF4) {
        decoder->n_needed = 4;
        if (byte == 0xF0) decoder->next_min = 0x90;
        if (byte == 0xF4) decoder->next_max = 0x8F;
    } else {
        *decoder = (weft_utf8_lossy){0};
        return false;
    }
    return true;
}

/* One byte while a sequence is open. */
static weft_status go_on(weft_utf8_lossy *decoder, uint8_t byte, weft_buf *out,
                         weft_err *err)
{
    decoder->held[decoder->n_held++] = byte;
    decoder->next_min = 0x80;
    decoder->next_max = 0xBF;
    if (decoder->n_held < decoder->n_needed) return WEFT_OK;
    const weft_utf8_lossy whole = *decoder;
    *decoder = (weft_utf8_lossy){0};
    return weft_buf_add(out, whole.held, whole.n_held, err);
}

weft_status weft_utf8_lossy_push(weft_utf8_lossy *decoder, const void *bytes,
                                 size_t n, weft_buf *out, weft_err *err)
{
    const uint8_t *const in = bytes;
    size_t i = 0;
    while (i < n) {
        if (decoder->n_held > 0) {
            if (in[i] >= decoder->next_min && in[i] <= decoder->next_max)
                WEFT_TRY(go_on(decoder, in[i++], out, err));
            else /* the byte itself may begin a character: look again */
                WEFT_TRY(replace(decoder, out, err));
            continue;
        }
        size_t plain = 0;
        while (i + plain < n && in[i + plain] < 0x80) plain++;
        if (plain > 0) WEFT_TRY(weft_buf_add(out, in + i, plain, err));
        i += plain;
        if (i < n && !begin(decoder, in[i++]))
            WEFT_TRY(replace(decoder, out, err));
    }
    return WEFT_OK;
}

weft_status weft_utf8_lossy_finish(weft_utf8_lossy *decoder, weft_buf *out,
                                   weft_err *err)
{
    if (decoder->n_held == 0) return WEFT_OK;
    return replace(decoder, out, err);
}

/* A character that is whole here stays so behind any other bytes, since its
 * first byte goes on with nothing. Every other byte becomes at most one U+FFFD,
 * or its part of a character, which is shorter. */
size_t weft_utf8_lossy_bytes_max(const char *bytes, size_t n)
{
    size_t most = 0;
    for (size_t at = 0;;) {
        bool broken = false;
        const size_t whole = weft_utf8_prefix(bytes + at, n - at, &broken);
        most += whole;
        at += whole;
        if (at == n) return most;
        most += sizeof REPLACEMENT - 1;
        at++;
    }
}
