#include "tests/support/kernel_suite.h"

WEFT_PATHS_TEST(rms_norm_paths_agree, "rms_norm")
WEFT_PATHS_TEST(layer_norm_paths_agree, "layer_norm")

enum { WIDTH = 700 };

START_TEST(rms_norm_is_near_exact)
{
    weft_kernel_check c = {.seed = 1};
    float x[WIDTH], w[WIDTH], y[WIDTH];
    weft_kit_fill(&c, x, 1, WIDTH, WIDTH, 3.0f);
    weft_kit_fill(&c, w, 1, WIDTH, WIDTH, 3.0f);
    const weft_rms_norm op = {.x = x,
                              .w = w,
                              .y = y,
                              .n_row = 1,
                              .width = WIDTH,
                              .eps = 1e-3f,
                              .scale = 1.7f};
    weft_ops_reference()->rms_norm(NULL, &op);
    double square = 0.0;
    for (int32_t i = 0; i < WIDTH; i++) square += (double)x[i] * x[i];
    const double r = 1.0 / sqrt(square / WIDTH + (double)op.eps);
    /* The sum's relative error halves under the root; eight roundings more. */
    const double bound = (WIDTH / 32.0 + 3.0 + 8.0) * weft_u;
    for (int32_t i = 0; i < WIDTH; i++) {
        const double exact = x[i] * r * w[i] * (double)op.scale;
        /* Subnormal steps are absolute, and later factors make them larger. */
        WEFT_ASSERT_NEAR(y[i], exact, bound * fabs(exact) + 8 * 0x1p-149);
    }
}
END_TEST

START_TEST(layer_norm_is_near_exact)
{
    weft_kernel_check c = {.seed = 2};
    float x[WIDTH], w[WIDTH], b[WIDTH], y[WIDTH];
    weft_kit_fill(&c, x, 1, WIDTH, WIDTH, 3.0f);
    weft_kit_fill(&c, w, 1, WIDTH, WIDTH, 3.0f);
    weft_kit_fill(&c, b, 1, WIDTH, WIDTH, 3.0f);
    for (int32_t i = 0; i < WIDTH; i++) x[i] += 0.5f;
    const weft_layer_norm op = {.x = x,
                                .w = w,
                                .b = b,
                                .y = y,
                                .n_row = 1,
                                .width = WIDTH,
                                .eps = 1e-6f};
    weft_ops_reference()->layer_norm(NULL, &op);
    double sum = 0.0, square = 0.0, size = 0.0, most = 0.0;
    for (int32_t i = 0; i < WIDTH; i++) {
        sum += x[i];
        size += fabs((double)x[i]);
        most = fmax(most, fabs((double)x[i]));
    }
    const double mean = sum / WIDTH;
    for (int32_t i = 0; i < WIDTH; i++) square += (x[i] - mean) * (x[i] - mean);
    const double r = 1.0 / sqrt(square / WIDTH + (double)op.eps);
    const double steps = WIDTH / 16.0 + 6.0;
    /* Each deviation is off by as much as the mean, and a rounding. */
    const double off = steps * weft_u * size / WIDTH + 2.0 * most * weft_u;
    const double relative = r * off + steps * weft_u;
    for (int32_t i = 0; i < WIDTH; i++) {
        const double d = (x[i] - mean) * r;
        const double exact = d * w[i] + b[i];
        const double bound =
            fabs((double)w[i]) * (r * off + fabs(d) * relative) +
            2.0 * weft_u * (fabs(d * w[i]) + fabs(exact));
        WEFT_ASSERT_NEAR(y[i], exact, bound + 0x1p-148);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {rms_norm_paths_agree, layer_norm_paths_agree,
                                  rms_norm_is_near_exact,
                                  layer_norm_is_near_exact};
    return WEFT_SUITE_RUN("norms", tests);
}
