#include "router/text/byte_level.h"

enum {
    FIRST_MOVED = 0x100,
    N_MOVED = 68,
};

static bool stands_for_itself(uint32_t c)
{
    return (c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) ||
           (c >= 0xAE && c <= 0xFF);
}

/* The i-th byte that does not stand for itself: 00-20, 7F-A0, AD. */
static uint8_t moved_byte(uint32_t i)
{
    if (i < 0x21) return (uint8_t)i;
    return i < N_MOVED - 1 ? (uint8_t)(0x7F + i - 0x21) : 0xAD;
}

static uint32_t place_of_moved(uint8_t byte)
{
    if (byte < 0x21) return byte;
    return byte == 0xAD ? N_MOVED - 1 : (uint32_t)byte - 0x7F + 0x21;
}

bool weft_byte_level_decode(const char *text, size_t n, char *bytes_out,
                            size_t *n_out)
{
    size_t made = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t c = (uint8_t)text[i];
        if (c >= 0x80) {
            /* Two bytes reach U+07FF, the alphabet ends at U+0143. */
            if (c >= 0xE0 || i + 1 >= n) return false;
            c = (c & 0x1F) << 6 | ((uint8_t)text[++i] & 0x3F);
        }
        if (stands_for_itself(c))
            bytes_out[made++] = (char)c;
        else if (c >= FIRST_MOVED && c < FIRST_MOVED + N_MOVED)
            bytes_out[made++] = (char)moved_byte(c - FIRST_MOVED);
        else
            return false;
    }
    *n_out = made;
    return true;
}

void weft_byte_level_encode(uint8_t byte, char text_out[3])
{
    const uint32_t c =
        stands_for_itself(byte) ? byte : FIRST_MOVED + place_of_moved(byte);
    size_t n = 0;
    if (c < 0x80) {
        text_out[n++] = (char)c;
    } else {
        text_out[n++] = (char)(0xC0 | c >> 6);
        text_out[n++] = (char)(0x80 | (c & 0x3F));
    }
    text_out[n] = '\0';
}
