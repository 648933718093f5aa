#include "kernels/cpu/key.h"

#include <string.h>

#include "kernels/matrix.h"

/* The largest magnitude of x, as bits: those of numbers are in their order,
 * then come infinity and NaN. */
static uint32_t largest_of(const float *x, int32_t width)
{
    uint32_t largest = 0;
    for (int32_t i = 0; i < width; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

/* The power of two with that biased exponent. */
static float power_of(uint32_t exponent)
{
    const uint32_t bits = exponent << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* 448 is 1.75 times 2^8: a scale is 2^-8 of the largest's power of two, or
 * twice that if its mantissa is above that of 1.75. */
static uint32_t scale_exponent(uint32_t largest)
{
    if (largest == 0) return 127;
    const uint32_t exponent = largest >> 23;
    const uint32_t above = (largest & 0x7fffffu) > 0x600000u;
    return exponent + above > 8 ? exponent + above - 8 : 1;
}

void weft_key_store_f8(unsigned char *to, const float *x, int32_t width)
{
    const uint32_t largest = largest_of(x, width);
    if (largest >= 0x7f800000u) {
        const float scale = weft_f32_of_f8(0x7f); /* NaN */
        memset(to, 0, (size_t)width);
        memcpy(to + width, &scale, sizeof scale);
        return;
    }
    const uint32_t exponent = scale_exponent(largest);
    const float scale = power_of(exponent), inverse = power_of(254 - exponent);
    for (int32_t i = 0; i < width; i++) to[i] = weft_f8_of_f32(x[i] * inverse);
    memcpy(to + width, &scale, sizeof scale);
}
