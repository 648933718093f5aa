#include "tests/support/kernel_suite.h"

WEFT_PATHS_TEST(table_paths_agree, "rope_table")
WEFT_PATHS_TEST(rope_paths_agree, "rope")

START_TEST(table_is_near_exact)
{
    enum { N_FREQ = 32, N_ROW = 6 };
    const int32_t positions[N_ROW] = {0, 1, 4096, 131071, 1048577, 16777215};
    float freq[N_FREQ], cosines[N_FREQ * N_ROW], sines[N_FREQ * N_ROW];
    for (int32_t i = 0; i < N_FREQ; i++)
        freq[i] = (float)pow(8e7, -2.0 * i / 64.0);
    const weft_rope_table op = {positions, freq,   cosines, sines,
                                N_ROW,     N_FREQ, 1.0f};
    weft_ops_reference()->rope_table(NULL, &op);
    for (int32_t r = 0; r < N_ROW; r++)
        for (int32_t i = 0; i < N_FREQ; i++) {
            const float angle = (float)positions[r] * freq[i];
            const double c = cos((double)angle), s = sin((double)angle);
            const double one = 1.01 * weft_u; /* a rounding, to double's own */
            WEFT_ASSERT_NEAR(cosines[r * N_FREQ + i], c, one * fabs(c));
            WEFT_ASSERT_NEAR(sines[r * N_FREQ + i], s, one * fabs(s));
        }
}
END_TEST

START_TEST(turning_is_near_exact)
{
    enum { N_FREQ = 20 };
    weft_kernel_check c = {.seed = 2};
    for (int32_t interleave = 0; interleave < 2; interleave++) {
        float x[2 * N_FREQ], y[2 * N_FREQ], cs[N_FREQ], sn[N_FREQ];
        weft_kit_fill(&c, x, 1, 2 * N_FREQ, (int64_t)2 * N_FREQ, 3.0f);
        weft_kit_fill(&c, cs, 1, N_FREQ, N_FREQ, 1.0f);
        weft_kit_fill(&c, sn, 1, N_FREQ, N_FREQ, 1.0f);
        const weft_rope op = {.x = x,
                              .y = y,
                              .cos = cs,
                              .sin = sn,
                              .n_row = 1,
                              .n_head = 1,
                              .n_freq = N_FREQ,
                              .interleave = interleave == 1};
        weft_ops_reference()->rope(NULL, &op);
        for (int32_t i = 0; i < N_FREQ; i++) {
            const int32_t first = interleave == 1 ? 2 * i : i;
            const int32_t second = interleave == 1 ? 2 * i + 1 : i + N_FREQ;
            const double a = x[first], b = x[second];
            const double size = fabs(a) + fabs(b);
            WEFT_ASSERT_NEAR(y[first], a * cs[i] - b * sn[i],
                             3 * weft_u * size);
            WEFT_ASSERT_NEAR(y[second], a * sn[i] + b * cs[i],
                             3 * weft_u * size);
        }
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {table_paths_agree, rope_paths_agree,
                                  table_is_near_exact, turning_is_near_exact};
    return WEFT_SUITE_RUN("rope", tests);
}
