/* select.h - the first few of a row of floats, without sorting the row.
 *
 * A key stands for one element and its place in the order (value desc, id asc):
 * the larger key comes first. Keys of a row are all different, so every
 * selection has one answer.
 *
 * Pure. Threads: any. Nothing allocates.
 */
#ifndef WEFT_SHARD_SAMPLE_SELECT_H
#define WEFT_SHARD_SAMPLE_SELECT_H

#include <stdint.h>
#include <string.h>

/* value must not be NaN; -0 and +0 are the same value. */
static inline uint64_t weft_key(float value, int32_t id)
{
    const float plain = value + 0.0F; /* -0 becomes +0 */
    uint32_t bits = 0;
    memcpy(&bits, &plain, sizeof bits);
    /* Negative floats fall as their bits rise. */
    bits = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
    return (uint64_t)bits << 32 | (0xFFFFFFFFU - (uint32_t)id);
}

static inline int32_t weft_key_id(uint64_t key)
{
    return (int32_t)(0xFFFFFFFFU - (uint32_t)key);
}

/* Rearrange keys[0, n) so that the first m of them are the shortest run, in
 * falling order, whose weight is `target` or more; return m. At least 1, if n
 * is; n if the target is not reached. weights NULL: each weighs 1; else
 * weights[id]. Sums are taken in an order that depends on the keys alone.
 * Time: linear, as quickselect is. */
int32_t weft_select_cut(uint64_t *keys, int32_t n, const float *weights,
                        double target);

/* Keys of the min(k, n) first of values[0, n) into keys_out, in falling order;
 * return their number. Time: n plus log k for each that is among the first k
 * of those before it, so it is for k much smaller than n. */
int32_t weft_select_top(const float *values, int32_t n, int32_t k,
                        uint64_t *keys_out);

#endif
