/* Products of many rows on compute capability 9.0 (libweft_simt.so plays it),
 * whose weights come by tensor maps: odd sizes, several rounds of the stages,
 * runs of products, and the bits that a row has by other ways. */
#include <stdlib.h>

#include "tests/cuda/product_jobs.h"

static void on_hopper(void)
{
    ck_assert_int_eq(setenv("WEFT_SIMT_SM", "90", 1), 0);
    (void)device_kit_open();
}

/* At least as many tiles of 128 by 128 as the emulator has processors. */
static const struct {
    int32_t n_out, n_row;
} tiles[] = {{129, 129}, {385, 66}, {128, 449}, {257, 130}, {512, 128}};
enum { N_TILES = sizeof tiles / sizeof tiles[0] };

START_TEST(sums_are_near_exact)
{
    /* Rows of whole 16 bytes: a part of a stage, one, all of the stages, and
     * more, whole and ragged. */
    static const int32_t ins[2][6] = {{8, 64, 72, 384, 520, 840},
                                      {16, 128, 144, 512, 656, 1168}};
    on_hopper();
    weft_kernel_check c = {.seed = (uint64_t)(60 + _i)};
    const bool f8 = _i % 2 != 0;
    product_job j;
    int32_t n = 1;
    const product_shape s = {.dtype = f8 ? WEFT_F8_E4M3 : WEFT_BF16,
                             .n_out = tiles[_i % N_TILES].n_out,
                             .n_in = ins[f8][_i / 2],
                             .n_row = tiles[_i % N_TILES].n_row,
                             .form = PRODUCT_BF16,
                             .gather = _i % 3 == 0,
                             .round = (weft_round)(_i % 4 == 1),
                             .x_shift = _i % 5 == 2,
                             .x_pad = _i % 3,
                             .y_pad = _i % 4};
    job_make(&c, &s, &j);
    run_and_check(&j, &n);
}
END_TEST

static float *run_gemm(const product_job *j, const weft_matrix *w,
                       int32_t n_row)
{
    float *const nans = weft_kit_nans(j->n_y + 1);
    weft_gemm g = j->device;
    g.w = w;
    g.n_row = n_row;
    device_kit_set(g.y, nans, (size_t)j->n_y * sizeof *nans);
    weft_mem_free(nans);
    device_kit_open()->ops->gemm(NULL, &g, 1);
    device_kit_sync();
    return job_get(j);
}

/* Weights that begin between two multiples of 16 bytes are none for a map, and
 * neither are few rows. There are tiles for all processors of any device. */
START_TEST(a_row_has_the_same_bits_without_a_map)
{
    static const int32_t counts[] = {1, 8, 20, 33, 64};
    weft_device_info info = {0};
    on_hopper();
    device_kit_api()->get_info(device_kit_device(), &info);
    weft_kernel_check c = {.seed = (uint64_t)(80 + _i)};
    product_job j;
    const product_shape s = {.dtype = _i == 0 ? WEFT_BF16 : WEFT_F8_E4M3,
                             .n_out = 64 * info.n_processors + 72,
                             .n_in = 656,
                             .n_row = 130,
                             .form = PRODUCT_BF16};
    job_make(&c, &s, &j);
    float *const all = run_gemm(&j, &j.w.at_device, s.n_row);
    product_weights shifted = {.packed = j.w.packed};
    weights_put(&shifted, 1);
    float *y = run_gemm(&j, &shifted.at_device, s.n_row);
    ck_assert_mem_eq(y, all, (size_t)j.n_y * sizeof *y);
    weft_mem_free(y);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        y = run_gemm(&j, &j.w.at_device, counts[i]);
        ck_assert_mem_eq(y, all, (size_t)(counts[i] * s.n_out) * sizeof *y);
        weft_mem_free(y);
    }
    device_kit_free((const unsigned char *)shifted.at_device.data -
                    weft_dtype_bytes(s.dtype));
    if (s.dtype == WEFT_F8_E4M3) device_kit_free(shifted.at_device.scales);
    weft_mem_free(all);
    job_free(&j);
}
END_TEST

enum { HEADS = 3, HEAD_OUT = 128 };

/* Heads that lie in one matrix and give its outputs: as one run, and in an
 * order that makes them two or three. */
START_TEST(heads_are_parts_of_a_matrix)
{
    static const int32_t orders[][HEADS] = {{0, 1, 2}, {0, 2, 1}, {2, 1, 0}};
    on_hopper();
    weft_kernel_check c = {.seed = (uint64_t)(90 + _i)};
    const bool f8 = _i % 2 != 0;
    product_job j;
    weft_gemm list[HEADS];
    weft_matrix w[HEADS];
    const product_shape s = {.dtype = f8 ? WEFT_F8_E4M3 : WEFT_BF16,
                             .n_out = HEADS * HEAD_OUT,
                             .n_in = 208,
                             .n_row = 400,
                             .form = PRODUCT_BF16};
    job_make(&c, &s, &j);
    for (int32_t i = 0; i < HEADS; i++) {
        const int32_t h = orders[_i / 2][i];
        const size_t at = (size_t)h * HEAD_OUT * (size_t)s.n_in;
        list[i] = j.device;
        list[i].w = &w[i];
        list[i].y += (int64_t)h * HEAD_OUT;
        w[i] = j.w.at_device;
        w[i].n_out = HEAD_OUT;
        w[i].data =
            (const unsigned char *)w[i].data + at * weft_dtype_bytes(s.dtype);
        if (f8) w[i].scales += h * 2; /* blocks of 208 inputs */
    }
    device_kit_open()->ops->gemm(NULL, list, HEADS);
    device_kit_sync();
    job_check(&j);
    job_free(&j);
}
END_TEST

/* Those that a map takes among those that it does not, of the same kernel else;
 * matrices that are nowhere in one. */
START_TEST(a_list_may_be_of_both)
{
    static const int32_t rows[] = {40, 129, 41, 129, 129, 42};
    enum { N = sizeof rows / sizeof rows[0] };
    on_hopper();
    weft_kernel_check c = {.seed = (uint64_t)(100 + _i)};
    product_job jobs[N];
    int32_t n = 0;
    while (n < N) {
        const product_shape s = {.dtype = _i == 0 ? WEFT_BF16 : WEFT_F8_E4M3,
                                 .n_out = rows[n] < 100 ? 70 : 129,
                                 .n_in = 144,
                                 .n_row = rows[n],
                                 .form = PRODUCT_BF16};
        job_make(&c, &s, &jobs[n++]);
    }
    run_and_check(jobs, &n);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_loop_test(tests, sums_are_near_exact, 0, 12);
    tcase_add_loop_test(tests, a_row_has_the_same_bits_without_a_map, 0, 2);
    tcase_add_loop_test(tests, heads_are_parts_of_a_matrix, 0, 6);
    tcase_add_loop_test(tests, a_list_may_be_of_both, 0, 2);
}

int main(void)
{
    device_kit_need();
    return weft_suite_run_added("cuda_gemm_map", add);
}
