#include "node/base/mem.h"
#include "tests/support/kernel_suite.h"

WEFT_PATHS_TEST(packing_is_as_written, "pack")
WEFT_PATHS_TEST(paths_agree, "gemm")

/* One row of a product in double. */
static void assert_row(const weft_matrix *w, const float *x, const float *y)
{
    for (int32_t o = 0; o < w->n_out; o++) {
        double exact = 0.0, size = 0.0;
        for (int32_t i = 0; i < w->n_in; i++) {
            const double term = (double)weft_matrix_at(w, o, i) * x[i];
            exact += term;
            size += fabs(term);
        }
        WEFT_ASSERT_NEAR(y[o], exact, w->n_in * weft_u * size + 0x1p-140);
    }
}

START_TEST(reference_is_near_the_exact_product)
{
    weft_kernel_check c = {.seed = 1};
    for (int32_t d = WEFT_F32; d <= WEFT_F8_E4M3; d++) {
        weft_matrix w;
        weft_kit_matrix(&c, (weft_dtype)d, 150, 300, &w);
        float *const x = weft_kit_nans(900), *const y = weft_kit_nans(450);
        weft_kit_fill(&c, x, 3, 300, 300, 2.0f);
        const weft_gemm g = {.w = &w,
                             .x = x,
                             .y = y,
                             .x_stride = 300,
                             .y_stride = 150,
                             .n_row = 3};
        weft_ops_reference()->gemm(NULL, &g, 1);
        for (int64_t r = 0; r < 3; r++)
            assert_row(&w, x + r * 300, y + r * 150);
        weft_mem_free(x);
        weft_mem_free(y);
        weft_kit_matrix_free(&w);
    }
}
END_TEST

START_TEST(f8_scales_are_powers_of_two_then_bf16_is_the_same)
{
    /* F8 values are bf16 values; with scales of a power of two the products are
     * too, so both matrices must give the same bits. */
    enum { OUT = 200, IN = 300 };
    weft_kernel_check c = {.seed = 2};
    weft_matrix f8, bf16 = {.dtype = WEFT_BF16, .n_out = OUT, .n_in = IN};
    weft_kit_matrix(&c, WEFT_F8_E4M3, OUT, IN, &f8);
    float scales[6];
    for (int32_t i = 0; i < 6; i++) scales[i] = ldexpf(1.0f, 3 - 2 * i);
    const weft_matrix scaled = {f8.data, scales, WEFT_F8_E4M3, OUT, IN};
    uint16_t *const rows = weft_kit_new((size_t)OUT * IN, sizeof *rows);
    for (int32_t o = 0; o < OUT; o++)
        for (int32_t i = 0; i < IN; i++) {
            const float value = weft_matrix_at(&scaled, o, i);
            rows[o * IN + i] = weft_bf16_of_f32(value);
            ck_assert(weft_f32_of_bf16(rows[o * IN + i]) == value);
        }
    uint16_t *const packed =
        weft_kit_new(weft_matrix_bytes(WEFT_BF16, OUT, IN), 1);
    weft_matrix_pack_rows(packed, WEFT_BF16, OUT, IN, rows, 0, OUT);
    bf16.data = packed;
    float x[IN], y[2][OUT];
    weft_kit_fill(&c, x, 1, IN, IN, 1.0f);
    weft_threads *threads = NULL;
    ck_assert_int_eq(weft_threads_create(2, &threads, NULL), WEFT_OK);
    for (int32_t p = 0; weft_ops_cpu_nth(p) != NULL; p++) {
        const weft_gemm list[2] = {
            {.w = &scaled, .x = x, .y = y[0], .n_row = 1},
            {.w = &bf16, .x = x, .y = y[1], .n_row = 1}};
        weft_ops_cpu_nth(p)->gemm(threads, list, 2);
        ck_assert_mem_eq(y[0], y[1], sizeof y[0]);
    }
    weft_threads_destroy(threads);
    weft_mem_free(rows);
    weft_mem_free(packed);
    weft_kit_matrix_free(&f8);
}
END_TEST

START_TEST(rows_do_not_depend_on_the_batch)
{
    enum { OUT = 150, IN = 333, ROWS = 40 };
    weft_kernel_check c = {.seed = 3};
    static float x[ROWS * IN], y[ROWS * OUT], alone[OUT];
    weft_kit_fill(&c, x, ROWS, IN, IN, 1.0f);
    weft_threads *threads = NULL;
    ck_assert_int_eq(weft_threads_create(2, &threads, NULL), WEFT_OK);
    for (int32_t d = WEFT_F32; d <= WEFT_F8_E4M3; d++) {
        weft_matrix w;
        weft_kit_matrix(&c, (weft_dtype)d, OUT, IN, &w);
        for (int32_t p = 0; weft_ops_cpu_nth(p) != NULL; p++) {
            weft_gemm g = {.w = &w,
                           .x = x,
                           .y = y,
                           .x_stride = IN,
                           .y_stride = OUT,
                           .n_row = ROWS};
            weft_ops_cpu_nth(p)->gemm(threads, &g, 1);
            g.n_row = 1;
            g.y = alone;
            for (int64_t r = 0; r < ROWS; r++) {
                g.x = x + r * IN;
                weft_ops_cpu_nth(p)->gemm(threads, &g, 1);
                ck_assert_mem_eq(alone, y + r * OUT, sizeof alone);
            }
        }
        weft_kit_matrix_free(&w);
    }
    weft_threads_destroy(threads);
}
END_TEST

START_TEST(numbers_convert)
{
    /* Codes of F8 by their definition. */
    for (int32_t b = 0; b < 256; b++) {
        const float got = weft_f32_of_f8((uint8_t)b);
        const int32_t e = (b >> 3) & 15, m = b & 7;
        const double size = e == 0 ? m * 0x1p-9 : (8 + m) * ldexp(1.0, e - 10);
        if ((b & 127) == 127)
            ck_assert(isnan(got));
        else
            ck_assert(got == (b < 128 ? size : -size) &&
                      !signbit(got) == (b < 128));
    }
    ck_assert(weft_f32_of_f8(0x7e) == 448.0f);
    for (int32_t b = 0; b < 65536; b++) {
        const float got = weft_f32_of_f16((uint16_t)b);
        const int32_t e = (b >> 10) & 31, m = b & 1023;
        const double size = e == 0    ? m * 0x1p-24
                            : e == 31 ? INFINITY
                                      : (1024 + m) * ldexp(1.0, e - 25);
        if (e == 31 && m != 0)
            ck_assert(isnan(got));
        else
            ck_assert(got == (b < 32768 ? size : -size));
        const float wide = weft_f32_of_bf16((uint16_t)b);
        if (isnan(wide))
            ck_assert(isnan(weft_f32_of_bf16(weft_bf16_of_f32(wide))));
        else
            ck_assert_uint_eq(weft_bf16_of_f32(wide), (uint32_t)b);
    }
    ck_assert_uint_eq(weft_bf16_of_f32(1.00390625f), 0x3f80); /* tie: even */
    ck_assert_uint_eq(weft_bf16_of_f32(1.01171875f), 0x3f82);
    ck_assert_uint_eq(weft_bf16_of_f32(1.00390637f), 0x3f81);
    ck_assert_uint_eq(weft_bf16_of_f32(3.4e38f), 0x7f80); /* to infinity */
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        packing_is_as_written,
        paths_agree,
        reference_is_near_the_exact_product,
        f8_scales_are_powers_of_two_then_bf16_is_the_same,
        rows_do_not_depend_on_the_batch,
        numbers_convert};
    return WEFT_SUITE_RUN("gemm", tests);
}
