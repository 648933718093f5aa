/* Matrix products of a device, gemm: by type, shape and layout against the
 * reference or sums in double, in lists, and that a row has the same bits
 * whatever its company. */
#include "tests/cuda/product_jobs.h"

static const int32_t widths[] = {1,  3,  15, 16, 17,  31,  32,  33,  47, 48,
                                 49, 63, 64, 65, 127, 128, 129, 191, 193};
enum { N_WIDTH = sizeof widths / sizeof widths[0] };

static product_shape any_shape(weft_kernel_check *c, weft_dtype dtype,
                               int32_t n_out, int32_t n_in, int32_t n_row)
{
    static const int32_t pads[] = {0, 1, 4, 5};
    return (product_shape){.dtype = dtype,
                           .n_out = n_out,
                           .n_in = n_in,
                           .n_row = n_row,
                           .gather = (weft_kit_bits(c) & 1) != 0,
                           .round = (weft_round)weft_kit_int(c, 0, 1),
                           .w_shift = weft_kit_int(c, 0, 3) == 0,
                           .x_shift = weft_kit_int(c, 0, 3) == 0,
                           .x_pad = weft_kit_pick(c, pads, 4),
                           .y_pad = weft_kit_int(c, 0, 3)};
}

START_TEST(exact_products_have_the_bits_of_the_reference)
{
    weft_kernel_check c = {.seed = 5};
    product_job jobs[6];
    int32_t n = 0, rows = 0;
    for (int32_t d = WEFT_F32; d <= WEFT_F8_E4M3; d++)
        for (int32_t o = 0; o < N_WIDTH; o++) {
            const int32_t n_in = weft_kit_pick(&c, widths, N_WIDTH);
            product_shape s =
                any_shape(&c, (weft_dtype)d, widths[o], n_in, rows);
            rows = (rows + 7) % 41;
            /* These keep their exact form. */
            if (d == WEFT_F32 || d == WEFT_F16)
                s.form = (product_form)(o % N_PRODUCT_FORM);
            job_make(&c, &s, &jobs[n++]);
            if (n >= 1 + (o + d) % 6) run_and_check(jobs, &n);
        }
    run_and_check(jobs, &n);
    /* Several blocks of scales both ways, more than one tile of rows. */
    product_shape s = any_shape(&c, WEFT_F8_E4M3, 140, 272, 67);
    job_make(&c, &s, &jobs[n++]);
    run_and_check(jobs, &n);
}
END_TEST

START_TEST(sums_of_tiny_terms_keep_their_sign)
{
    /* Products that round to -0: a sum is -0 then, and no zero that fills up a
     * tile may turn it. */
    weft_kernel_check c = {.seed = 6};
    for (int32_t n_row = 1; n_row <= 20; n_row += 19) {
        product_job j;
        const product_shape s = {
            .dtype = WEFT_F32, .n_out = 5, .n_in = 3, .n_row = n_row};
        job_make(&c, &s, &j);
        float *const w = weft_kit_nans(15);
        for (int32_t i = 0; i < 15; i++) w[i] = -0x1p-100f;
        for (int32_t o = 0; o < 5; o++)
            for (int32_t i = 0; i < 3; i++)
                memcpy(packed_place(&j.w.packed, o, i), w, sizeof *w);
        for (int64_t i = 0; i < j.n_x; i++) j.x[i] = 0x1p-100f;
        device_kit_free(j.device.x);
        device_kit_free(j.w.at_device.data);
        j.device.x = floats_put(j.x, j.n_x, 0);
        j.w.at_device.data = device_kit_put(w, 15 * sizeof *w);
        weft_mem_free(w);
        run_list(&j, 1);
        job_check(&j);
        ck_assert(signbit(j.host.y[0]));
        job_free(&j);
    }
}
END_TEST

START_TEST(tensor_products_are_near_exact)
{
    /* Every tile shape: rows up to 8, 32, and more; outputs in more than one
     * tile; inputs around pieces of 32 and blocks of 128, and many. */
    static const int32_t rows[] = {1, 2, 7, 8, 9, 16, 17, 33, 65};
    static const int32_t outs[] = {1, 8, 15, 16, 17, 40, 64, 65, 130};
    static const int32_t ins[] = {1,   8,   15,  16,  24,  31,  32,  33,
                                  40,  64,  96,  127, 128, 129, 160, 255,
                                  256, 272, 511, 512, 513, 520, 640, 645};
    enum { N_IN = sizeof ins / sizeof ins[0] };
    weft_kernel_check c = {.seed = 7};
    product_job jobs[6];
    int32_t n = 0;
    for (int32_t k = 0; k < 2 * 2 * 9 * 6; k++) {
        const int32_t i = k / 2;
        const weft_dtype type = i % 2 == 0 ? WEFT_BF16 : WEFT_F8_E4M3;
        product_shape s =
            any_shape(&c, type, weft_kit_pick(&c, outs, 9), ins[i / 2 % N_IN],
                      rows[(i / 2 + i / 18) % 9]);
        s.form = k % 2 == 0 ? PRODUCT_BF16 : PRODUCT_PAIR;
        job_make(&c, &s, &jobs[n++]);
        if (n >= 1 + i % 6) run_and_check(jobs, &n);
    }
    run_and_check(jobs, &n);
}
END_TEST

START_TEST(large_tiles_are_near_exact)
{
    weft_kernel_check c = {.seed = 8};
    for (int32_t k = 0; k < 2 * 4; k++) {
        const int32_t i = k % 4;
        product_job j;
        int32_t n = 1;
        product_shape s =
            any_shape(&c, i % 2 == 0 ? WEFT_BF16 : WEFT_F8_E4M3,
                      i < 2 ? 130 : 500, i < 2 ? 176 : 33, i < 2 ? 129 : 128);
        s.form = k < 4 ? PRODUCT_BF16 : PRODUCT_PAIR;
        s.w_shift = s.x_shift = 0;
        job_make(&c, &s, &j);
        run_and_check(&j, &n);
    }
}
END_TEST

/* Of values that bfloat16 holds the lower part is 0. With wgmma (compute
 * capability 9.0) the plain form is another, whose sums may differ. */
START_TEST(pairs_of_bfloat16_have_the_bits_of_the_plain_form)
{
    static const int32_t rows[] = {5, 20, 40, 129};
    weft_kernel_check c = {.seed = 17};
    weft_device_info info = {0};
    (void)device_kit_open();
    device_kit_api()->get_info(device_kit_device(), &info);
    if (info.sm == 90) {
        printf("SKIP %s: here the plain form is by wgmma\n", __func__);
        return;
    }
    for (int32_t i = 0; i < 2 * 4; i++) {
        product_job j;
        const product_shape s = {.dtype = i % 2 ? WEFT_F8_E4M3 : WEFT_BF16,
                                 .n_out = 130,
                                 .n_in = 521 + i,
                                 .n_row = rows[i / 2],
                                 .form = PRODUCT_BF16};
        job_make(&c, &s, &j);
        run_list(&j, 1);
        float *const plain = job_get(&j);
        j.device.x_is_bf16 = false;
        j.device.x_as_pair = true;
        run_list(&j, 1);
        float *const pairs = job_get(&j);
        ck_assert_msg(same_bytes(plain, pairs, (size_t)j.n_y * sizeof *plain),
                      "%s", j.what);
        weft_mem_free(plain);
        weft_mem_free(pairs);
        job_free(&j);
    }
}
END_TEST

/* One input with weight 1 shows the pair itself. */
START_TEST(a_pair_is_near_its_value)
{
    static const float values[] = {
        1.0f,          1.00390625f,      0x1.01fffep0f,   -0x1.02fffep0f,
        0x1.fffffep0f, 3.1415927f,       0x1.fffffep126f, -0x1.234566p-100f,
        0x1p-149f,     0x1.fffffep-118f, -0x1.8p-130f,    0.0f};
    enum { N = sizeof values / sizeof values[0] };
    weft_kernel_check c = {.seed = 18};
    product_job j;
    const product_shape s = {.dtype = WEFT_BF16,
                             .n_out = 1,
                             .n_in = 1,
                             .n_row = N,
                             .form = PRODUCT_PAIR};
    job_make(&c, &s, &j);
    const uint16_t one = weft_bf16_of_f32(1.0f);
    memcpy(packed_place(&j.w.packed, 0, 0), &one, sizeof one);
    device_kit_free(j.w.at_device.data);
    j.w.at_device.data = device_kit_put(&one, sizeof one);
    device_kit_free(j.device.x);
    j.device.x = floats_put(values, N, 0);
    run_list(&j, 1);
    float *const got = job_get(&j);
    for (int32_t i = 0; i < N; i++) {
        const double x = (double)values[i];
        const double bound = fmax(0x1p-16 * fabs(x), 0x1p-134);
        ck_assert_msg(fabs((double)got[i] - x) <= bound, "%a became %a", x,
                      (double)got[i]);
    }
    weft_mem_free(got);
    job_free(&j);
}
END_TEST

START_TEST(every_code_of_f8_is_read)
{
    /* Rows of x with a single 1 pick the elements out one by one. */
    weft_kernel_check c = {.seed = 9};
    product_job j;
    product_shape s = {.dtype = WEFT_F8_E4M3,
                       .n_out = 16,
                       .n_in = 16,
                       .n_row = 16,
                       .form = PRODUCT_BF16};
    job_make(&c, &s, &j);
    for (int32_t o = 0; o < 16; o++)
        for (int32_t i = 0; i < 16; i++) {
            const int32_t code = o * 16 + i;
            *packed_place(&j.w.packed, o, i) =
                (unsigned char)((code & 127) == 127 ? 0 : code);
        }
    product_weights old = {.at_device = j.w.at_device};
    weights_put(&j.w, 0);
    device_kit_free(old.at_device.data);
    device_kit_free(old.at_device.scales);
    for (int32_t r = 0; r < 16; r++)
        for (int32_t i = 0; i < 16; i++) j.x[r * 16 + i] = r == i ? 1.0f : 0.0f;
    device_kit_free(j.device.x);
    j.device.x = floats_put(j.x, j.n_x, 0);
    run_list(&j, 1);
    weft_ops_reference()->gemm(NULL, &j.host, 1);
    float *const got = job_get(&j);
    for (int32_t i = 0; i < 256; i++)
        ck_assert_msg(got[i] == j.host.y[i], "code 0x%02x is %.9g, not %.9g",
                      (unsigned)((i % 16) * 16 + i / 16), (double)got[i],
                      (double)j.host.y[i]);
    weft_mem_free(got);
    job_free(&j);
}
END_TEST

START_TEST(every_code_of_f16_is_read)
{
    /* One input, so that infinities and NaN stay with their output. */
    enum { CODES = 65536 };
    weft_kernel_check c = {.seed = 15};
    product_job j;
    const product_shape s = {
        .dtype = WEFT_F16, .n_out = CODES, .n_in = 1, .n_row = 1};
    job_make(&c, &s, &j);
    for (int32_t o = 0; o < CODES; o++) {
        const uint16_t code = (uint16_t)o;
        memcpy(packed_place(&j.w.packed, o, 0), &code, sizeof code);
    }
    device_kit_free(j.w.at_device.data);
    weights_put(&j.w, 0);
    run_list(&j, 1);
    weft_ops_reference()->gemm(NULL, &j.host, 1);
    float *const got = job_get(&j);
    for (int32_t o = 0; o < CODES; o++)
        ck_assert_msg(same_bytes(&got[o], &j.host.y[o], sizeof *got) ||
                          (isnan(got[o]) && isnan(j.host.y[o])),
                      "code 0x%04x is %.9g, not %.9g", (unsigned)o,
                      (double)got[o], (double)j.host.y[o]);
    weft_mem_free(got);
    job_free(&j);
}
END_TEST

/* The first n rows of a job, alone, into y; back to front if `turned`. */
static void run_first(const product_job *j, int32_t n, bool turned, float *y)
{
    weft_gemm g = j->device;
    int32_t rows[256] = {0};
    for (int32_t r = 0; r < n; r++) rows[r] = turned ? n - 1 - r : r;
    int32_t *const at = device_kit_put(rows, (size_t)n * sizeof *rows);
    g.n_row = n;
    g.x_rows = turned ? at : NULL;
    device_kit_open()->ops->gemm(NULL, &g, 1);
    device_kit_sync();
    device_kit_get(y, g.y,
                   (size_t)span_of(n, g.y_stride, j->s.n_out) * sizeof *y);
    device_kit_free(at);
}

static void assert_rows_same(const product_job *j, const float *all,
                             const float *y, int32_t n, bool turned)
{
    const int64_t stride = j->host.y_stride;
    for (int32_t r = 0; r < n; r++)
        ck_assert_msg(same_bytes(all + r * stride,
                                 y + (turned ? n - 1 - r : r) * stride,
                                 (size_t)j->s.n_out * sizeof *y),
                      "%s: row %d differs among %d", j->what, (int)r, (int)n);
}

START_TEST(a_row_has_the_same_bits_in_any_company)
{
    /* 130 rows of 136 outputs take the largest tiles, fewer the others. */
    static const int32_t ins[] = {656, 645};
    weft_kernel_check c = {.seed = 10};
    for (int32_t i = 0; i < 5; i++) {
        product_job j;
        const product_shape s = {.dtype = i % 2 == 1 ? WEFT_F8_E4M3 : WEFT_BF16,
                                 .n_out = 136,
                                 .n_in = ins[i / 2 % 2],
                                 .n_row = 130,
                                 .form = i < 3 ? PRODUCT_BF16 : PRODUCT_PAIR};
        job_make(&c, &s, &j);
        float *const all = weft_kit_nans(j.n_y);
        float *const y = weft_kit_nans(j.n_y);
        run_first(&j, 130, false, all);
        for (int32_t n = 1; n <= 40; n += i == 0 ? 1 : 7) {
            run_first(&j, n, n % 2 == 0, y);
            assert_rows_same(&j, all, y, n, n % 2 == 0);
        }
        run_first(&j, 130, true, y);
        assert_rows_same(&j, all, y, 130, true);
        weft_mem_free(all);
        weft_mem_free(y);
        job_free(&j);
    }
}
END_TEST

START_TEST(rows_of_a_large_matrix_have_the_same_bits_in_any_company)
{
    /* Large enough for a library of matrix products, where one is used. */
    static const int32_t counts[] = {1, 9, 33};
    weft_kernel_check c = {.seed = 14};
    product_job j;
    const product_shape s = {.dtype = WEFT_BF16,
                             .n_out = 1028,
                             .n_in = 1032,
                             .n_row = 66,
                             .form = PRODUCT_BF16};
    job_make(&c, &s, &j);
    float *const all = weft_kit_nans(j.n_y), *const y = weft_kit_nans(j.n_y);
    run_first(&j, s.n_row, false, all);
    for (int32_t i = 0; i < 3; i++) {
        run_first(&j, counts[i], false, y);
        assert_rows_same(&j, all, y, counts[i], false);
    }
    weft_mem_free(all);
    weft_mem_free(y);
    job_free(&j);
}
END_TEST

START_TEST(a_row_keeps_its_nan)
{
    weft_kernel_check c = {.seed = 11};
    for (int32_t i = 0; i < 3; i++) {
        product_job j;
        product_shape s = {.dtype = i == 2 ? WEFT_F32 : WEFT_BF16,
                           .n_out = 70,
                           .n_in = 130,
                           .n_row = 7 + 30 * i,
                           .form = i == 0   ? PRODUCT_BF16
                                   : i == 1 ? PRODUCT_PAIR
                                            : PRODUCT_EXACT};
        job_make(&c, &s, &j);
        float *const y = weft_kit_nans(j.n_y), *const all =
                                                   weft_kit_nans(j.n_y);
        run_first(&j, s.n_row, false, all);
        j.x[3 * s.n_in + 129] = NAN;
        j.x[4 * s.n_in + 1] = INFINITY;
        device_kit_free(j.device.x);
        j.device.x = floats_put(j.x, j.n_x, 0);
        run_first(&j, s.n_row, false, y);
        for (int32_t r = 0; r < s.n_row; r++)
            for (int32_t o = 0; o < s.n_out; o++) {
                const float v = y[r * s.n_out + o];
                ck_assert(r == 3   ? isnan(v)
                          : r == 4 ? !isfinite(v)
                                   : v == all[r * s.n_out + o]);
            }
        weft_mem_free(y);
        weft_mem_free(all);
        job_free(&j);
    }
}
END_TEST

enum { HEADS = 7, HEAD_OUT = 24, HEAD_IN = 40, HEAD_ROWS = 9 };

/* Heads that lie at even distances in one matrix, x and y, as k_up and v_up
 * do; of what `swapped` has set, two have changed places. */
static void list_heads(const product_job *j, int32_t swapped,
                       weft_gemm list[HEADS], weft_matrix w[HEADS])
{
    const size_t elem = weft_dtype_bytes(j->s.dtype);
    for (int32_t h = 0; h < HEADS; h++) {
        const int32_t other = h == 4 ? 6 : h == 6 ? 4 : h;
        const int32_t at_w = swapped & 1 ? other : h;
        const int32_t at_x = swapped & 2 ? other : h;
        const int32_t at_y = swapped & 4 ? other : h;
        w[h] = j->w.at_device;
        w[h].n_out = HEAD_OUT;
        w[h].data = (const unsigned char *)w[h].data +
                    (size_t)at_w * HEAD_OUT * HEAD_IN * elem;
        list[h] = j->device;
        list[h].w = &w[h];
        list[h].n_row = HEAD_ROWS;
        list[h].x = j->device.x + (int64_t)at_x * HEAD_IN;
        list[h].x_stride = HEADS * HEAD_IN;
        list[h].y = j->device.y + (int64_t)at_y * HEAD_OUT;
        list[h].y_stride = HEADS * HEAD_OUT;
    }
}

START_TEST(heads_are_what_each_is_alone)
{
    const weft_device_api *const api = device_kit_open();
    const int32_t n = HEADS * HEAD_OUT * HEAD_ROWS;
    const size_t bytes = (size_t)n * sizeof(float);
    weft_kernel_check c = {.seed = 12};
    for (int32_t i = 0; i < 2 * 8; i++) {
        product_job j;
        weft_gemm list[HEADS];
        weft_matrix w[HEADS];
        const product_shape s = {.dtype = i % 2 ? WEFT_F32 : WEFT_BF16,
                                 .n_out = HEADS * HEAD_OUT,
                                 .n_in = HEAD_IN,
                                 .n_row = HEADS * HEAD_ROWS,
                                 .form = PRODUCT_BF16};
        job_make(&c, &s, &j);
        list_heads(&j, i / 2, list, w);
        float *const y = weft_kit_nans(n), *const alone = weft_kit_nans(n);
        api->ops->gemm(NULL, list, HEADS);
        device_kit_sync();
        device_kit_get(y, j.device.y, bytes);
        api->upload(j.device.y, alone, (int64_t)bytes);
        for (int32_t h = 0; h < HEADS; h++) api->ops->gemm(NULL, &list[h], 1);
        device_kit_sync();
        device_kit_get(alone, j.device.y, bytes);
        ck_assert_mem_eq(y, alone, bytes);
        for (int32_t k = 0; k < n; k++) ck_assert(!isnan(y[k]));
        weft_mem_free(y);
        weft_mem_free(alone);
        job_free(&j);
    }
}
END_TEST

START_TEST(products_of_one_shape_keep_their_scales)
{
    weft_kernel_check c = {.seed = 16};
    product_job jobs[4];
    int32_t n = 0;
    for (int32_t i = 0; i < 4; i++) {
        const product_shape s = {.dtype = WEFT_F8_E4M3,
                                 .n_out = 20,
                                 .n_in = 144,
                                 .n_row = 3,
                                 .form = PRODUCT_BF16};
        job_make(&c, &s, &jobs[n++]);
        if (n == 2) run_and_check(jobs, &n);
    }
}
END_TEST

START_TEST(a_list_may_be_long)
{
    weft_kernel_check c = {.seed = 13};
    product_job jobs[LIST_MAX];
    int32_t n = 0;
    for (int32_t i = 0; i < LIST_MAX; i++) {
        product_shape s =
            any_shape(&c, i % 5 == 4 ? WEFT_F8_E4M3 : WEFT_BF16, 1 + i % 9,
                      16 + i, i % 7 == 6 ? 0 : 1 + i % 3);
        s.form = i % 11 == 10 ? PRODUCT_EXACT
                 : i % 3 == 1 ? PRODUCT_PAIR
                              : PRODUCT_BF16;
        job_make(&c, &s, &jobs[n++]);
    }
    run_and_check(jobs, &n);
    device_kit_open()->ops->gemm(NULL, NULL, 0);
    device_kit_sync();
}
END_TEST

int main(void)
{
    device_kit_need();
    const TTest *const tests[] = {
        exact_products_have_the_bits_of_the_reference,
        sums_of_tiny_terms_keep_their_sign,
        tensor_products_are_near_exact,
        large_tiles_are_near_exact,
        pairs_of_bfloat16_have_the_bits_of_the_plain_form,
        a_pair_is_near_its_value,
        every_code_of_f8_is_read,
        every_code_of_f16_is_read,
        a_row_has_the_same_bits_in_any_company,
        rows_of_a_large_matrix_have_the_same_bits_in_any_company,
        a_row_keeps_its_nan,
        heads_are_what_each_is_alone,
        products_of_one_shape_keep_their_scales,
        a_list_may_be_long};
    return WEFT_SUITE_RUN("cuda_gemm", tests);
}
