#include <string.h>

#include "node/base/clock.h"
#include "node/base/hash.h"
#include "node/base/rng.h"
#include "tests/support/suite.h"

/* The known answers that the authors of Philox publish with Random123. */
START_TEST(philox_known_answers)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } rows[] = {{{0, 0, 0, 0},
                 {0, 0},
                 {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                 {0xffffffff, 0xffffffff},
                 {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                 {0xa4093822, 0x299f31d0},
                 {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint32_t out[4];
        weft_rng_philox(rows[i].counter, rows[i].key, out);
        for (int k = 0; k < 4; k++) ck_assert_uint_eq(out[k], rows[i].out[k]);
    }
}
END_TEST

START_TEST(words_are_placed_as_told)
{
    const uint64_t seed = 0x0123456789abcdefULL;
    const uint64_t counter = 0xfedcba9876543210ULL;
    uint32_t out[4];
    weft_rng_philox((const uint32_t[4]){0x76543210, 0xfedcba98, 0, 0},
                    (const uint32_t[2]){0x89abcdef, 0x01234567}, out);
    ck_assert_uint_eq(weft_rng_u64(seed, counter),
                      (uint64_t)out[1] << 32 | out[0]);
    ck_assert_uint_eq(weft_rng_u64(0, 0), 0xe169c58d6627e8d5ULL);
    ck_assert(weft_rng_unit(0, 0) ==
              (double)(0xe169c58d6627e8d5ULL >> 11) / 9007199254740992.0);
}
END_TEST

START_TEST(unit_is_uniform)
{
    enum { DRAWS = 100000, BINS = 50 };
    int bins[BINS] = {0};
    for (uint64_t i = 0; i < DRAWS; i++) {
        const double x = weft_rng_unit(42, i);
        ck_assert(x >= 0 && x < 1);
        bins[(int)(x * BINS)]++;
    }
    double chi2 = 0;
    for (int i = 0; i < BINS; i++) {
        const double d = bins[i] - (double)DRAWS / BINS;
        chi2 += d * d / ((double)DRAWS / BINS);
    }
    /* 49 degrees of freedom: mean 49, deviation 9.9; five of them. */
    ck_assert(chi2 < 99);
}
END_TEST

START_TEST(fnv_vectors)
{
    static const struct {
        const char *text;
        uint64_t hash;
    } rows[] = {{"", 0xcbf29ce484222325ULL},
                {"a", 0xaf63dc4c8601ec8cULL},
                {"foobar", 0x85944171f73967e8ULL}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        ck_assert_uint_eq(
            weft_hash_fnv(WEFT_FNV_START, rows[i].text, strlen(rows[i].text)),
            rows[i].hash);
    const uint64_t half = weft_hash_fnv(WEFT_FNV_START, "foo", 3);
    ck_assert_uint_eq(weft_hash_fnv(half, "bar", 3), rows[2].hash);
}
END_TEST

/* The first outputs of splitmix64 from states 0 and 1234567. */
START_TEST(mix_vectors)
{
    ck_assert_uint_eq(weft_hash_mix(0), 0xe220a8397b1dcdafULL);
    ck_assert_uint_eq(weft_hash_mix(0x9e3779b97f4a7c15ULL),
                      0x6e789e6aa1b965f4ULL);
    ck_assert_uint_eq(weft_hash_mix(1234567), 6457827717110365317ULL);
}
END_TEST

START_TEST(clock_goes_forward)
{
    uint64_t last = weft_clock_now_ns();
    ck_assert_uint_gt(last, 0);
    const uint64_t start = last;
    for (int i = 0; i < 100000 || last == start; i++) {
        const uint64_t t = weft_clock_now_ns();
        ck_assert_uint_ge(t, last);
        last = t;
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        philox_known_answers, words_are_placed_as_told,
        unit_is_uniform,      fnv_vectors,
        mix_vectors,          clock_goes_forward};
    return WEFT_SUITE_RUN("base/rng_hash", tests);
}
