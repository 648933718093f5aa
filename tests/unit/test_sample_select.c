#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/rng.h"
#include "shard/sample/select.h"
#include "tests/support/suite.h"

enum { N_MAX = 400 };

/* Values with many ties, both zeros, infinities and wide ranges. */
static int32_t fill(uint64_t seed, float *values)
{
    const int32_t n = 1 + (int32_t)(weft_rng_u64(seed, 0) % N_MAX);
    for (int32_t i = 0; i < n; i++) {
        const uint64_t r = weft_rng_u64(seed, (uint64_t)i + 1);
        const float x = (float)((double)(r >> 40) / 16777216.0 * 8.0 - 4.0);
        switch (seed % 5) {
        case 0: values[i] = x; break;
        case 1: values[i] = truncf(x); break; /* -0 among them */
        case 2: values[i] = 1.0F; break;
        case 3: values[i] = r % 3 == 0 ? -INFINITY : expf(20.0F * x); break;
        default: values[i] = (float)(seed % 2 == 0 ? i : -i); break;
        }
    }
    return n;
}

static const float *sorted_values;

static int goes_before(const void *a, const void *b)
{
    const int32_t i = *(const int32_t *)a, k = *(const int32_t *)b;
    if (sorted_values[i] != sorted_values[k])
        return sorted_values[i] > sorted_values[k] ? -1 : 1;
    return i < k ? -1 : 1;
}

static void sort_ids(const float *values, int32_t n, int32_t *ids)
{
    for (int32_t i = 0; i < n; i++) ids[i] = i;
    sorted_values = values;
    qsort(ids, (size_t)n, sizeof *ids, goes_before);
}

START_TEST(keys_order_as_values_and_ids_do)
{
    static const float rising[] = {-INFINITY, -3e38F, -1.0F,   -1e-45F,
                                   0.0F,      1e-45F, 1e-30F,  1.0F,
                                   1.5F,      3e38F,  INFINITY};
    for (size_t i = 1; i < sizeof rising / sizeof *rising; i++) {
        ck_assert(weft_key(rising[i], 9) > weft_key(rising[i - 1], 2));
        ck_assert(weft_key(rising[i], 8) > weft_key(rising[i], 9));
        ck_assert_int_eq(weft_key_id(weft_key(rising[i], 151999)), 151999);
    }
    ck_assert_uint_eq(weft_key(-0.0F, 4), weft_key(0.0F, 4));
}
END_TEST

START_TEST(top_agrees_with_sorting)
{
    float values[N_MAX];
    int32_t ids[N_MAX];
    uint64_t keys[N_MAX];
    for (uint64_t seed = 0; seed < 2000; seed++) {
        const int32_t n = fill(seed, values);
        sort_ids(values, n, ids);
        const int32_t k = (int32_t)(weft_rng_u64(seed, 5000) % (N_MAX + 20));
        const int32_t m = weft_select_top(values, n, k, keys);
        ck_assert_int_eq(m, k < n ? k : n);
        int32_t wrong = 0;
        for (int32_t i = 0; i < m; i++) wrong += weft_key_id(keys[i]) != ids[i];
        ck_assert_int_eq(wrong, 0);
    }
    ck_assert_int_eq(weft_select_top(values, 5, -1, keys), 0);
}
END_TEST

/* The first m of the sorted order, whatever their order among themselves. */
static void check_cut(const uint64_t *keys, const int32_t *ids, int32_t m)
{
    bool in[N_MAX] = {false};
    int32_t wrong = 0;
    for (int32_t i = 0; i < m; i++) in[ids[i]] = true;
    for (int32_t i = 0; i < m; i++) wrong += !in[weft_key_id(keys[i])];
    ck_assert_int_eq(wrong, 0);
}

START_TEST(cut_agrees_with_sorting)
{
    float values[N_MAX], weights[N_MAX];
    int32_t ids[N_MAX];
    uint64_t keys[N_MAX];
    for (uint64_t seed = 0; seed < 4000; seed++) {
        const int32_t n = fill(seed, values);
        sort_ids(values, n, ids);
        /* Small whole weights: their sums are exact in any order. */
        double sum = 0.0;
        for (int32_t i = 0; i < n; i++) {
            keys[i] = weft_key(values[i], i);
            weights[i] = (float)(weft_rng_u64(seed, 7000 + (uint64_t)i) % 4);
            sum += (double)weights[i];
        }
        const double target = floor(weft_rng_unit(seed, 6000) * (sum + 3.0));
        double run = 0.0;
        int32_t want = 0;
        while (want < n && (want == 0 || run < target))
            run += (double)weights[ids[want++]];
        const int32_t m = weft_select_cut(keys, n, weights, target);
        ck_assert_int_eq(m, want);
        check_cut(keys, ids, m);

        const int32_t k = 1 + (int32_t)(weft_rng_u64(seed, 6001) % 500);
        const int32_t c = weft_select_cut(keys, n, NULL, k);
        ck_assert_int_eq(c, k < n ? k : n);
        check_cut(keys, ids, c);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {keys_order_as_values_and_ids_do,
                                  top_agrees_with_sorting,
                                  cut_agrees_with_sorting};
    return WEFT_SUITE_RUN("sample/select", tests);
}
