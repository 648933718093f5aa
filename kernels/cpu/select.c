#include "kernels/cpu/select.h"

#include <stdbool.h>
#include <string.h>

/* Scores as integers of the same order, NaN as 0. */
static uint32_t key_of(float score)
{
    const float plain = score + 0.0f; /* -0 becomes +0 */
    uint32_t bits;
    memcpy(&bits, &plain, sizeof bits);
    const uint32_t sign = 0u - (bits >> 31);
    const uint32_t number = 0u - (uint32_t)(score == score);
    return (bits ^ (sign | 0x80000000u)) & number;
}

enum { DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS };

/* The k-th largest key (k >= 1), digit by digit from the top; *above_out is how
 * many are larger. */
static uint32_t find_threshold(const float *scores, int32_t n, int32_t k,
                               int32_t *above_out)
{
    uint32_t prefix = 0, mask = 0;
    int32_t above = 0;
    for (int32_t shift = 32 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        int32_t count[DIGITS] = {0};
        for (int32_t i = 0; i < n; i++) {
            /* Without branches: which keys count is as good as random. */
            const uint32_t key = key_of(scores[i]);
            count[(key >> shift) % DIGITS] += (key & mask) == prefix;
        }
        int32_t digit = DIGITS - 1;
        while (above + count[digit] < k) above += count[digit--];
        prefix |= (uint32_t)digit << shift;
        mask |= (uint32_t)(DIGITS - 1) << shift;
    }
    *above_out = above;
    return prefix;
}

void weft_select_best(const float *scores, int32_t n, int32_t k,
                      int32_t *positions_out)
{
    if (k <= 0) return;
    int32_t above = 0;
    const uint32_t threshold = find_threshold(scores, n, k, &above);
    int32_t ties = k - above;
    int32_t taken = 0;
    for (int32_t i = 0; i < n && taken < k; i++) {
        const uint32_t key = key_of(scores[i]);
        const bool tie = key == threshold;
        positions_out[taken] = i;
        taken += (key > threshold) | (tie & (ties > 0));
        ties -= tie;
    }
}
