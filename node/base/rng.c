#include "node/base/rng.h"

/* Table 2 of the paper: multipliers and Weyl increments of 4x32. */
#define MULTIPLIER_0 0xD2511F53U
#define MULTIPLIER_1 0xCD9E8D57U
#define WEYL_0       0x9E3779B9U
#define WEYL_1       0xBB67AE85U

enum { ROUNDS = 10 };

void weft_rng_philox(const uint32_t counter[4], const uint32_t key[2],
                     uint32_t out[4])
{
    uint32_t x0 = counter[0];
    uint32_t x1 = counter[1];
    uint32_t x2 = counter[2];
    uint32_t x3 = counter[3];
    uint32_t k0 = key[0];
    uint32_t k1 = key[1];
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t a = (uint64_t)MULTIPLIER_0 * x0;
        const uint64_t b = (uint64_t)MULTIPLIER_1 * x2;
        x0 = (uint32_t)(b >> 32) ^ x1 ^ k0;
        x2 = (uint32_t)(a >> 32) ^ x3 ^ k1;
        x1 = (uint32_t)b;
        x3 = (uint32_t)a;
        k0 += WEYL_0;
        k1 += WEYL_1;
    }
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

uint64_t weft_rng_u64(uint64_t seed, uint64_t counter)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t at[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
    uint32_t out[4];
    weft_rng_philox(at, key, out);
    return (uint64_t)out[1] << 32 | out[0];
}

double weft_rng_unit(uint64_t seed, uint64_t counter)
{
    return (double)(weft_rng_u64(seed, counter) >> 11) * 0x1p-53;
}
