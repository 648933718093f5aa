/* Products of a list against each by itself: what looks like the next head of
 * a layer, and differs in one number. */
#include "tests/cuda/product_jobs.h"

enum { OUT = 16, IN = 32, ROWS = 5, HEADS = 35 };

/* Parts of one matrix, x and y at even distances. */
typedef struct heads {
    product_job job;
    weft_gemm list[HEADS];
    weft_matrix w[HEADS];
} heads;

static void heads_make(weft_kernel_check *c, weft_dtype dtype, heads *h)
{
    const product_shape shape = {.dtype = dtype,
                                 .n_out = HEADS * OUT,
                                 .n_in = IN,
                                 .n_row = HEADS * ROWS,
                                 .form = PRODUCT_BF16};
    job_make(c, &shape, &h->job);
    const size_t bytes = (size_t)OUT * IN * weft_dtype_bytes(dtype);
    for (int32_t i = 0; i < HEADS; i++) {
        h->w[i] = h->job.w.at_device;
        h->w[i].n_out = OUT;
        h->w[i].data = (const unsigned char *)h->w[i].data + (size_t)i * bytes;
        h->list[i] = h->job.device;
        h->list[i].w = &h->w[i];
        h->list[i].n_row = ROWS;
        h->list[i].x = h->job.device.x + (int64_t)i * ROWS * IN;
        h->list[i].y = h->job.device.y + (int64_t)i * ROWS * HEADS * OUT;
    }
}

/* The first n in one list, and one after the other. */
static void heads_compare(heads *h, int32_t n)
{
    const weft_device_api *const api = device_kit_api();
    api->ops->gemm(NULL, h->list, n);
    device_kit_sync();
    float *const y = job_get(&h->job);
    const size_t bytes = (size_t)h->job.n_y * sizeof *y;
    float *const nans = weft_kit_nans(h->job.n_y);
    device_kit_set(h->job.device.y, nans, bytes);
    for (int32_t i = 0; i < n; i++) api->ops->gemm(NULL, &h->list[i], 1);
    device_kit_sync();
    float *const alone = job_get(&h->job);
    ck_assert_mem_eq(y, alone, bytes);
    for (int32_t i = 0; i < n; i++)
        for (int32_t o = 0; o < h->list[i].n_row * OUT; o++)
            ck_assert(!isnan(
                y[(i * ROWS + o / OUT) * (int64_t)HEADS * OUT + o % OUT]));
    weft_mem_free(nans);
    weft_mem_free(y);
    weft_mem_free(alone);
    job_free(&h->job);
}

START_TEST(one_has_more_rows)
{
    (void)device_kit_open();
    weft_kernel_check c = {.seed = 51};
    heads h;
    heads_make(&c, WEFT_BF16, &h);
    h.list[0].n_row = 3;
    h.list[2].n_row = 4;
    heads_compare(&h, 4);
}
END_TEST

START_TEST(scales_lie_unevenly)
{
    (void)device_kit_open();
    static const float scales[] = {1.0f, 2.0f, 3.0f, 5.0f, 7.0f};
    static const int32_t at[] = {0, 1, 3, 4};
    float *const d_scales = device_kit_put(scales, sizeof scales);
    weft_kernel_check c = {.seed = 52};
    heads h;
    heads_make(&c, WEFT_F8_E4M3, &h);
    for (int32_t i = 0; i < 4; i++) h.w[i].scales = d_scales + at[i];
    heads_compare(&h, 4);
    device_kit_free(d_scales);
}
END_TEST

/* A launch holds 32; those after it have their first tile at 0 again. */
START_TEST(the_second_launch_begins_with_heads)
{
    (void)device_kit_open();
    weft_kernel_check c = {.seed = 53};
    heads h;
    heads_make(&c, WEFT_BF16, &h);
    for (int32_t i = 0; i < 32; i++) h.list[i].n_row = i % 2 == 0 ? 3 : 5;
    for (int32_t i = 32; i < HEADS; i++) h.list[i].n_row = 4;
    heads_compare(&h, HEADS);
}
END_TEST

int main(void)
{
    device_kit_need();
    const TTest *const tests[] = {one_has_more_rows, scales_lie_unevenly,
                                  the_second_launch_begins_with_heads};
    return WEFT_SUITE_RUN("cuda_lists", tests);
}
