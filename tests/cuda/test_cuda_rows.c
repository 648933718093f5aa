/* Ops of a device that go row by row over activations: norms, gates, the
 * residual stream.
 *
 * All but the norms give the bits of the reference; the sums of a norm have an
 * order of their own, so those are within a bound of the formula in double
 * precision, and have the bits of the reference where every sum is exact. Rows
 * are tried with strides and bases that allow 16-byte accesses and with others;
 * what lies between them is NaN, and blocks end where their data ends. */
#include "tests/cuda/rows.h"

static const int32_t widths[] = {1,   2,   3,   4,    5,    24,   40,
                                 127, 128, 129, 257,  512,  513,  1021,
                                 64,  576, 36,  1028, 2048, 2052, 16};
enum { N_WIDTH = sizeof widths / sizeof widths[0] };

/* How rows lie in memory. */
enum layout { WIDE, ODD_STRIDE, ODD_BASE, N_LAYOUT };

struct rows {
    float *x, *y, *z, *w, *b; /* y is x in place */
    int64_t x_stride, y_stride, z_stride;
    int32_t n_row, width;
    int32_t shift; /* of all bases on the device, in floats */
    weft_round round;
    float scale;
    bool in_place;
};
typedef void (*run_fn)(const weft_ops *ops, const struct rows *r);

static float *new_rows(weft_kernel_check *c, int32_t n_row, int64_t stride,
                       int32_t width, float size)
{
    float *const to = weft_kit_nans(rows_span(n_row, stride, width));
    weft_kit_fill(c, to, n_row, width, stride, size);
    return to;
}

static void set_strides(struct rows *r, enum layout layout)
{
    const int64_t wide = (r->width + 3) / 4 * 4;
    const bool odd = layout == ODD_STRIDE;
    r->shift = layout == ODD_BASE ? 1 : 0;
    r->x_stride = odd ? r->width + 1 + r->width % 2 : wide + 4;
    r->y_stride = r->in_place ? r->x_stride : odd ? r->width + 3 : wide + 8;
    r->z_stride = odd ? r->width + 2 : wide;
}

static void make_rows(weft_kernel_check *c, int32_t i, int32_t width,
                      struct rows *r)
{
    *r = (struct rows){.n_row = weft_kit_int(c, 1, width > 500 ? 3 : 6),
                       .width = width,
                       .round = (weft_round)(i & 1),
                       .scale = i % 3 == 0 ? 1.0f : 2.3f,
                       .in_place = (weft_kit_bits(c) & 1) != 0};
    set_strides(r, (enum layout)weft_kit_int(c, 0, N_LAYOUT - 1));
    r->x = new_rows(c, r->n_row, r->x_stride, width, 3.0f);
    r->z = new_rows(c, r->n_row, r->z_stride, width, 3.0f);
    r->w = new_rows(c, 1, width, width, 2.0f);
    r->b = new_rows(c, 1, width, width, 1.0f);
    r->y = r->in_place ? r->x : new_rows(c, r->n_row, r->y_stride, width, 3.0f);
}

static void free_rows(struct rows *r)
{
    if (!r->in_place) weft_mem_free(r->y);
    weft_mem_free(r->x);
    weft_mem_free(r->z);
    weft_mem_free(r->w);
    weft_mem_free(r->b);
}

/* What the device makes of r->y, in a host block like r->y. */
static float *run_on_device(run_fn run, const struct rows *r)
{
    const int64_t n_x = rows_span(r->n_row, r->x_stride, r->width);
    const int64_t n_y = rows_span(r->n_row, r->y_stride, r->width);
    /* Weights lie where they lie: sometimes they alone are off. */
    const int32_t w_shift = r->width % 8 == 0 && r->shift == 0 ? 1 : r->shift;
    struct rows d = *r;
    d.x = rows_put(r->x, n_x, r->shift);
    d.y = r->in_place ? d.x : rows_put(r->y, n_y, r->shift);
    d.z = rows_put(r->z, rows_span(r->n_row, r->z_stride, r->width), r->shift);
    d.w = rows_put(r->w, r->width, w_shift);
    d.b = rows_put(r->b, r->width, w_shift);
    run(device_kit_api()->ops, &d);
    float *const got = rows_get(d.y, n_y);
    if (!r->in_place) rows_free(d.y, r->shift);
    rows_free(d.x, r->shift);
    rows_free(d.z, r->shift);
    rows_free(d.w, w_shift);
    rows_free(d.b, w_shift);
    return got;
}

/* Row `row` of r by itself, in other memory: the bytes that `all` has of it. */
static void assert_alone(run_fn run, const struct rows *r, int32_t row,
                         const float *all)
{
    struct rows one = *r;
    one.n_row = 1;
    one.x = r->x + row * r->x_stride;
    one.y = r->y + row * r->y_stride;
    one.z = r->z + row * r->z_stride;
    one.shift = r->shift == 0 && r->x_stride % 4 == 0 ? 3 : 0;
    float *const got = run_on_device(run, &one);
    ck_assert_mem_eq(got, all + row * r->y_stride,
                     (size_t)r->width * sizeof *got);
    weft_mem_free(got);
}

/* Device and reference, which runs on r itself; the bits must agree. */
static void compare(run_fn run, struct rows *r, const char *what)
{
    float *const got = run_on_device(run, r);
    const int32_t row = r->n_row / 2;
    assert_alone(run, r, row, got);
    run(weft_ops_reference(), r);
    rows_assert_same(got, r->y, rows_span(r->n_row, r->y_stride, r->width),
                     what);
    weft_mem_free(got);
}

static void run_rms_norm(const weft_ops *ops, const struct rows *r)
{
    const weft_rms_norm op = {.x = r->x,
                              .w = r->w,
                              .y = r->y,
                              .x_stride = r->x_stride,
                              .y_stride = r->y_stride,
                              .n_row = r->n_row,
                              .width = r->width,
                              .eps = 1e-5f,
                              .scale = r->scale,
                              .round = r->round};
    ops->rms_norm(NULL, &op);
}

static void run_layer_norm(const weft_ops *ops, const struct rows *r)
{
    const weft_layer_norm op = {.x = r->x,
                                .w = r->w,
                                .b = r->b,
                                .y = r->y,
                                .x_stride = r->x_stride,
                                .y_stride = r->y_stride,
                                .n_row = r->n_row,
                                .width = r->width,
                                .eps = 1e-6f,
                                .round = r->round};
    ops->layer_norm(NULL, &op);
}

/* Terms that one thread adds, and the levels of the trees after it. */
static double sum_error(int32_t width)
{
    return (width > 8192 ? (double)(width / 1024 + 4) : 8.0) + 10.0;
}

/* A result of that size, rounded as the case says: half an ulp of bfloat16 for
 * each of two roundings, and what a subnormal has of it. */
static double rounding(const struct rows *r, double exact)
{
    return r->round == WEFT_ROUND_BF16 ? 0x1.02p-7 * fabs(exact) + 0x1p-132
                                       : 0x1p-147;
}

static void assert_rounded(const struct rows *r, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    ck_assert(r->round != WEFT_ROUND_BF16 || (bits & 0xffffU) == 0);
}

static void assert_rms(const struct rows *r, int32_t row, const float *y)
{
    const float *const x = r->x + row * r->x_stride;
    double square = 0.0;
    for (int32_t i = 0; i < r->width; i++) square += (double)x[i] * x[i];
    const double inverse = 1.0 / sqrt(square / r->width + 1e-5);
    for (int32_t i = 0; i < r->width; i++) {
        const double exact = x[i] * inverse * r->w[i] * r->scale;
        const double bound = (sum_error(r->width) / 2 + 6) * weft_u;
        WEFT_ASSERT_NEAR(y[i], exact, bound * fabs(exact) + rounding(r, exact));
        assert_rounded(r, y[i]);
    }
}

static void assert_layer(const struct rows *r, int32_t row, const float *y)
{
    const float *const x = r->x + row * r->x_stride;
    double sum = 0.0, size = 0.0, square = 0.0;
    for (int32_t i = 0; i < r->width; i++) {
        sum += x[i];
        size += fabs((double)x[i]);
    }
    const double mean = sum / r->width;
    for (int32_t i = 0; i < r->width; i++)
        square += (x[i] - mean) * (x[i] - mean);
    const double inverse = 1.0 / sqrt(square / r->width + 1e-6);
    const double terms = sum_error(r->width);
    /* Of the mean; it shifts every deviation alike. */
    const double off = (terms + 1) * weft_u * size / r->width;
    for (int32_t i = 0; i < r->width; i++) {
        const double part = (x[i] - mean) * inverse * r->w[i];
        const double exact = part + r->b[i];
        const double bound =
            (terms / 2 + 6) * weft_u * fabs(part) +
            off * inverse * fabs((double)r->w[i]) * (1 + 2 * off * inverse) +
            weft_u * (fabs(exact) + fabs(part));
        WEFT_ASSERT_NEAR(y[i], exact, bound + rounding(r, exact));
        assert_rounded(r, y[i]);
    }
}

static void norm_case(weft_kernel_check *c, int32_t i, int32_t width,
                      bool layer)
{
    const run_fn run = layer ? run_layer_norm : run_rms_norm;
    struct rows r;
    make_rows(c, i, width, &r);
    if (width == 1) r.x[0] = 1.5f; /* a deviation of 0 needs no bound */
    float *const got = run_on_device(run, &r);
    assert_alone(run, &r, r.n_row - 1, got);
    for (int32_t row = 0; row < r.n_row; row++) {
        const float *const y = got + row * r.y_stride;
        if (layer)
            assert_layer(&r, row, y);
        else
            assert_rms(&r, row, y);
        for (int64_t k = r.width; row < r.n_row - 1 && k < r.y_stride; k++)
            ck_assert(isnan(y[k]));
    }
    weft_mem_free(got);
    free_rows(&r);
}

static const int32_t big_widths[] = {7168, 8192, 8193, 9001};

START_TEST(rms_norm_is_near_exact)
{
    (void)device_kit_open();
    weft_kernel_check c = {.seed = 11};
    for (int32_t i = 0; i < 3 * N_WIDTH; i++)
        norm_case(&c, i, widths[i % N_WIDTH], false);
    for (int32_t i = 0; i < 8; i++) norm_case(&c, i, big_widths[i % 4], false);
}
END_TEST

START_TEST(layer_norm_is_near_exact)
{
    (void)device_kit_open();
    weft_kernel_check c = {.seed = 12};
    for (int32_t i = 0; i < 3 * N_WIDTH; i++)
        norm_case(&c, i, widths[i % N_WIDTH], true);
    for (int32_t i = 0; i < 8; i++) norm_case(&c, i, big_widths[i % 4], true);
}
END_TEST

/* Small integers, whose mean is 0: all sums are exact, whatever their order, so
 * what is left are the formula's own roundings, and where they stand. */
START_TEST(norms_have_the_bits_of_exact_sums)
{
    (void)device_kit_open();
    weft_kernel_check c = {.seed = 13};
    for (int32_t i = 0; i < 2 * N_WIDTH; i++) {
        struct rows r;
        make_rows(&c, i, widths[i % N_WIDTH], &r);
        for (int32_t row = 0; row < r.n_row; row++) {
            float *const x = r.x + row * r.x_stride;
            for (int32_t k = 0; k < r.width; k++)
                x[k] = 2 * k + 1 == r.width  ? 0.0f
                       : 2 * k < r.width - 1 ? (float)weft_kit_int(&c, -9, 9)
                                             : -x[r.width - 1 - k];
        }
        compare(i % 4 < 2 ? run_rms_norm : run_layer_norm, &r, "exact norm");
        free_rows(&r);
    }
}
END_TEST

START_TEST(a_norm_keeps_nan_in_its_row)
{
    (void)device_kit_open();
    weft_kernel_check c = {.seed = 14};
    for (int32_t i = 0; i < 12; i++) {
        const run_fn run = i % 2 == 0 ? run_rms_norm : run_layer_norm;
        struct rows r;
        make_rows(&c, i, widths[i + 4], &r);
        float *const clean = run_on_device(run, &r);
        const int32_t bad = r.n_row / 2;
        r.x[bad * r.x_stride + r.width - 1] = NAN;
        float *const got = run_on_device(run, &r);
        for (int32_t row = 0; row < r.n_row; row++)
            for (int32_t k = 0; k < r.width; k++) {
                const int64_t at = row * r.y_stride + k;
                ck_assert(row == bad ? isnan(got[at]) != 0
                                     : got[at] == clean[at]);
            }
        weft_mem_free(clean);
        weft_mem_free(got);
        free_rows(&r);
    }
}
END_TEST

static void run_silu_mul(const weft_ops *ops, const struct rows *r)
{
    const weft_silu_mul op = {.a = r->x,
                              .b = r->z,
                              .y = r->y,
                              .a_stride = r->x_stride,
                              .b_stride = r->z_stride,
                              .y_stride = r->y_stride,
                              .n_row = r->n_row,
                              .width = r->width,
                              .round = r->round};
    ops->silu_mul(NULL, &op);
}

START_TEST(silu_mul_has_the_reference_bits)
{
    (void)device_kit_open();
    static const float special[] = {-120.0f,   95.0f, 0.0f,      -0.0f,
                                    INFINITY,  NAN,   -88.0f,    88.5f,
                                    -INFINITY, 1e30f, 0x1p-149f, -1e30f};
    weft_kernel_check c = {.seed = 15};
    for (int32_t i = 0; i < 2 * N_WIDTH; i++) {
        struct rows r;
        make_rows(&c, i, widths[i % N_WIDTH], &r);
        for (int32_t k = 0; k < r.width && k < 12; k++)
            r.x[k] = special[(i + k) % 12];
        compare(run_silu_mul, &r, "silu_mul");
        free_rows(&r);
    }
}
END_TEST

/* x of the op is y of the case. */
static void run_add(const weft_ops *ops, const struct rows *r)
{
    const weft_add op = {.x = r->y,
                         .y = r->z,
                         .x_stride = r->y_stride,
                         .y_stride = r->z_stride,
                         .n_row = r->n_row,
                         .width = r->width,
                         .round = r->round};
    ops->add(NULL, &op);
}

START_TEST(add_has_the_reference_bits)
{
    (void)device_kit_open();
    weft_kernel_check c = {.seed = 16};
    for (int32_t i = 0; i < 2 * N_WIDTH; i++) {
        struct rows r;
        make_rows(&c, i, widths[i % N_WIDTH], &r);
        r.y[0] = i % 2 == 0 ? NAN : INFINITY;
        compare(run_add, &r, "add");
        free_rows(&r);
    }
}
END_TEST

/* Heads of `width` / heads channels; z has the gates. */
static int32_t gate_heads;
static void run_gate(const weft_ops *ops, const struct rows *r)
{
    const weft_gate op = {.x = r->y,
                          .g = r->z,
                          .x_stride = r->y_stride,
                          .g_stride = r->z_stride,
                          .n_row = r->n_row,
                          .n_head = gate_heads,
                          .head_width = r->width / gate_heads,
                          .round = r->round};
    ops->gate(NULL, &op);
}

START_TEST(gate_has_the_reference_bits)
{
    (void)device_kit_open();
    static const int32_t heads[] = {1, 3, 16, 17, 40};
    static const int32_t head_widths[] = {1, 2, 3, 4, 5, 16, 67};
    weft_kernel_check c = {.seed = 17};
    for (int32_t i = 0; i < 35; i++) {
        struct rows r;
        gate_heads = heads[i % 5];
        make_rows(&c, i, gate_heads * head_widths[i / 5], &r);
        for (int32_t row = 0; row < r.n_row; row++)
            for (int32_t h = 0; h < r.width; h++)
                r.z[row * r.z_stride + h] =
                    h < gate_heads ? weft_kit_float(&c, 12.0f) : NAN;
        compare(run_gate, &r, "gate");
        free_rows(&r);
    }
}
END_TEST

static void free_case(struct rows *r, float *x, float *z, float *got)
{
    weft_mem_free(got);
    rows_free(x, r->shift);
    rows_free(z, r->shift);
    free_rows(r);
}

static void move_case(weft_kernel_check *c, int32_t i)
{
    struct rows r;
    int32_t from[6], to[6];
    make_rows(c, i, widths[i % N_WIDTH], &r);
    for (int32_t k = 0; k < r.n_row; k++) {
        from[k] = weft_kit_int(c, 0, r.n_row - 1);
        to[k] = (k + i) % r.n_row;
    }
    const uint32_t odd = 0x7f812345U;
    memcpy(&r.x[from[0] * r.x_stride], &odd, sizeof odd);
    const int64_t z_span = rows_span(r.n_row, r.z_stride, r.width);
    int32_t *const x_rows =
        device_kit_put(from, (size_t)r.n_row * sizeof *from);
    int32_t *const y_rows = device_kit_put(to, (size_t)r.n_row * sizeof *to);
    float *const x =
        rows_put(r.x, rows_span(r.n_row, r.x_stride, r.width), r.shift);
    float *const z = rows_put(r.z, z_span, r.shift);
    weft_move op = {.x = x,
                    .x_rows = i % 3 == 0 ? NULL : x_rows,
                    .y = z,
                    .y_rows = i % 4 == 0 ? NULL : y_rows,
                    .x_stride = r.x_stride,
                    .y_stride = r.z_stride,
                    .n_row = r.n_row,
                    .width = r.width};
    device_kit_api()->ops->move(NULL, &op);
    float *const got = rows_get(z, z_span);
    op.x = r.x;
    op.y = r.z;
    if (op.x_rows != NULL) op.x_rows = from;
    if (op.y_rows != NULL) op.y_rows = to;
    weft_ops_reference()->move(NULL, &op);
    ck_assert_mem_eq(got, r.z, (size_t)z_span * sizeof *got);
    device_kit_free(x_rows);
    device_kit_free(y_rows);
    free_case(&r, x, z, got);
}

/* Bits of a row stay what they are, also those of a NaN, and what lies between
 * rows stays, too. */
START_TEST(move_puts_rows_where_the_lists_say)
{
    (void)device_kit_open();
    weft_kernel_check c = {.seed = 18};
    for (int32_t i = 0; i < 3 * N_WIDTH; i++) move_case(&c, i);
}
END_TEST

int main(void)
{
    device_kit_need();
    const TTest *const tests[] = {rms_norm_is_near_exact,
                                  layer_norm_is_near_exact,
                                  norms_have_the_bits_of_exact_sums,
                                  a_norm_keeps_nan_in_its_row,
                                  silu_mul_has_the_reference_bits,
                                  add_has_the_reference_bits,
                                  gate_has_the_reference_bits,
                                  move_puts_rows_where_the_lists_say};
    return WEFT_SUITE_RUN("cuda_rows", tests);
}
