#include <string.h>

#include "node/base/mem.h"
#include "tests/support/kernel_suite.h"

WEFT_PATHS_TEST(silu_mul_paths_agree, "silu_mul")
WEFT_PATHS_TEST(gate_paths_agree, "gate")
WEFT_PATHS_TEST(add_paths_agree, "add")
WEFT_PATHS_TEST(embed_paths_agree, "embed")
WEFT_PATHS_TEST(combine_paths_agree, "combine")
WEFT_PATHS_TEST(move_paths_agree, "move")

enum { WIDTH = 300 };

START_TEST(silu_mul_is_near_exact)
{
    weft_kernel_check c = {.seed = 1};
    float a[WIDTH], b[WIDTH], y[WIDTH];
    weft_kit_fill(&c, a, 1, WIDTH, WIDTH, 40.0f);
    weft_kit_fill(&c, b, 1, WIDTH, WIDTH, 2.0f);
    const weft_silu_mul op = {
        .a = a, .b = b, .y = y, .n_row = 1, .width = WIDTH};
    weft_ops_reference()->silu_mul(NULL, &op);
    for (int32_t i = 0; i < WIDTH; i++) {
        const double exact = a[i] / (1.0 + exp(-(double)a[i])) * b[i];
        WEFT_ASSERT_NEAR(y[i], exact, 6 * weft_u * fabs(exact) + 0x1p-148);
    }
}
END_TEST

START_TEST(gate_is_near_exact)
{
    enum { HEADS = 12, HEAD = 5 };
    weft_kernel_check c = {.seed = 2};
    float x[HEADS * HEAD], before[HEADS * HEAD], g[HEADS];
    weft_kit_fill(&c, x, 1, HEADS * HEAD, (int64_t)HEADS * HEAD, 2.0f);
    weft_kit_fill(&c, g, 1, HEADS, HEADS, 9.0f);
    for (int32_t i = 0; i < HEADS * HEAD; i++) before[i] = x[i];
    const weft_gate op = {
        .x = x, .g = g, .n_row = 1, .n_head = HEADS, .head_width = HEAD};
    weft_ops_reference()->gate(NULL, &op);
    for (int32_t i = 0; i < HEADS * HEAD; i++) {
        const double exact = before[i] / (1.0 + exp(-(double)g[i / HEAD]));
        WEFT_ASSERT_NEAR(x[i], exact, 6 * weft_u * fabs(exact) + 0x1p-148);
    }
}
END_TEST

START_TEST(combine_is_near_exact)
{
    enum { TOP = 6 };
    weft_kernel_check c = {.seed = 3};
    static float rows[TOP * WIDTH];
    float shared[WIDTH], y[WIDTH], weights[TOP];
    const int32_t row_of[TOP] = {3, 1, 5, 0, 2, 4};
    weft_kit_fill(&c, rows, TOP, WIDTH, WIDTH, 2.0f);
    weft_kit_fill(&c, shared, 1, WIDTH, WIDTH, 2.0f);
    weft_kit_fill(&c, weights, 1, TOP, TOP, 1.0f);
    weft_combine op = {.expert_rows = rows,
                       .row_of = row_of,
                       .weights = weights,
                       .shared = shared,
                       .y = y,
                       .n_row = 1,
                       .top_k = TOP,
                       .width = WIDTH};
    for (int32_t rounded = 0; rounded < 2; rounded++) {
        op.round = rounded == 1 ? WEFT_ROUND_BF16 : WEFT_ROUND_NONE;
        weft_ops_reference()->combine(NULL, &op);
        for (int32_t i = 0; i < WIDTH; i++) {
            double exact = shared[i], size = fabs(exact);
            for (int32_t k = 0; k < TOP; k++) {
                const double term =
                    (double)weights[k] * rows[row_of[k] * WIDTH + i];
                exact += term;
                size += fabs(term);
            }
            /* bf16: the sum and the result are off by 2^-8 each. */
            const double step = rounded == 1 ? 2.1 * 0x1p-8 : 0.0;
            WEFT_ASSERT_NEAR(y[i], exact, (7 * weft_u + step) * size);
            if (rounded == 1)
                ck_assert(weft_f32_of_bf16(weft_bf16_of_f32(y[i])) == y[i]);
        }
    }
}
END_TEST

START_TEST(add_and_embed_are_exact)
{
    float x[3] = {1.0f, -2.0f, 0x1p24f}, y[3] = {0.5f, 2.0f, 1.0f};
    weft_add add = {.x = x, .y = y, .n_row = 1, .width = 3};
    weft_ops_reference()->add(NULL, &add);
    ck_assert(x[0] == 1.5f && x[1] == 0.0f && x[2] == 0x1p24f);
    add.round = WEFT_ROUND_BF16;
    x[0] = 256.0f;
    weft_ops_reference()->add(NULL, &add);
    ck_assert(x[0] == 256.0f);

    const uint16_t table[6] = {0x3f80, 0xbf80, 0x4000, 0x4040, 0x8000, 0x3f00};
    const int32_t ids[2] = {2, 0};
    float rows[4];
    const weft_embed embed = {.table = table,
                              .ids = ids,
                              .y = rows,
                              .dtype = WEFT_BF16,
                              .y_stride = 2,
                              .n_row = 2,
                              .width = 2};
    weft_ops_reference()->embed(NULL, &embed);
    ck_assert(rows[0] == 0.0f && signbit(rows[0]) && rows[1] == 0.5f);
    ck_assert(rows[2] == 1.0f && rows[3] == -1.0f);
}
END_TEST

START_TEST(move_puts_rows_where_the_lists_say)
{
    const float x[6] = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f};
    const int32_t from[3] = {2, 0, 2}, to[3] = {1, 2, 0};
    float y[6];
    weft_move op = {.x = x,
                    .x_rows = from,
                    .y = y,
                    .y_rows = to,
                    .x_stride = 2,
                    .y_stride = 2,
                    .n_row = 3,
                    .width = 2};
    weft_ops_reference()->move(NULL, &op);
    ck_assert(y[0] == 5.0f && y[1] == 6.0f && y[2] == 5.0f && y[3] == 6.0f);
    ck_assert(y[4] == 1.0f && y[5] == 2.0f);
    op.x_rows = op.y_rows = NULL;
    weft_ops_reference()->move(NULL, &op);
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++) ck_assert(x[i] == y[i]);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {silu_mul_paths_agree,
                                  gate_paths_agree,
                                  add_paths_agree,
                                  embed_paths_agree,
                                  combine_paths_agree,
                                  move_paths_agree,
                                  silu_mul_is_near_exact,
                                  gate_is_near_exact,
                                  combine_is_near_exact,
                                  add_and_embed_are_exact,
                                  move_puts_rows_where_the_lists_say};
    return WEFT_SUITE_RUN("elementwise", tests);
}
