/* Products of experts with their rows, grouped: against the reference or sums
 * in double, expert by expert; and each row has the bits that gemm gives it
 * alone. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda/products.h"

enum { EXPERTS_MAX = 1200 };

/* counts[e] pairs for expert e, whose type is types[e % n_type]. */
typedef struct grouped_shape {
    const int32_t *counts;
    int32_t n_expert, n_out, n_in;
    weft_dtype types[4];
    int32_t n_type;
    bool gather, x_is_bf16;
    weft_round round;
    int32_t x_pad, y_pad;
} grouped_shape;

typedef struct grouped_job {
    grouped_shape s;
    product_weights w[EXPERTS_MAX];
    int32_t first[EXPERTS_MAX + 1];
    float *x;
    int32_t *x_rows;
    void *device_w;
    weft_grouped op;
    int64_t n_y;
    char what[120];
} grouped_job;

/* As an engine keeps them: several matrices an expert in one array. Of experts
 * without pairs nothing may be read. */
enum { MATRICES = 3 };

static void put_weights(weft_kernel_check *c, grouped_job *j)
{
    const grouped_shape *const s = &j->s;
    const size_t n = (size_t)s->n_expert * MATRICES;
    weft_matrix *const all = weft_kit_new(n, sizeof *all);
    for (int32_t e = 0; e < s->n_expert; e++) {
        if (s->counts[e] == 0) continue;
        weights_make(c, s->types[e % s->n_type], s->n_out, s->n_in, 0,
                     &j->w[e]);
        all[e * MATRICES + 1] = j->w[e].at_device;
    }
    j->device_w = device_kit_put(all, n * sizeof *all);
    j->op.w = (const weft_matrix *)j->device_w + 1;
    j->op.w_stride = MATRICES * sizeof *all;
    weft_mem_free(all);
}

static void put_x(weft_kernel_check *c, grouped_job *j)
{
    const grouped_shape *const s = &j->s;
    const int32_t n_pairs = j->op.n_pairs;
    const int32_t from = s->gather ? n_pairs / 3 + 1 : n_pairs;
    const int64_t n_x = span_of(from, j->op.x_stride, s->n_in);
    j->x = weft_kit_nans(n_x + 1);
    j->x_rows = weft_kit_new((size_t)n_pairs + 1, sizeof(int32_t));
    for (int32_t r = 0; r < from; r++)
        weft_kit_fill(c, j->x + r * j->op.x_stride, 1, s->n_in, 0, 2.0f);
    if (s->x_is_bf16) round_rows(j->x, n_x);
    for (int32_t i = 0; i < n_pairs; i++)
        j->x_rows[i] = s->gather ? weft_kit_int(c, 0, from - 1) : i;
    j->op.x = device_kit_put(j->x, (size_t)n_x * sizeof(float));
    if (s->gather)
        j->op.x_rows =
            device_kit_put(j->x_rows, (size_t)n_pairs * sizeof(int32_t));
}

static grouped_job *job_make(weft_kernel_check *c, const grouped_shape *s)
{
    (void)device_kit_open();
    grouped_job *const j = weft_kit_new(1, sizeof *j);
    j->s = *s;
    for (int32_t e = 0; e < s->n_expert; e++)
        j->first[e + 1] = j->first[e] + s->counts[e];
    j->op = (weft_grouped){.x_stride = s->n_in + s->x_pad,
                           .y_stride = s->n_out + s->y_pad,
                           .n_pairs = j->first[s->n_expert],
                           .n_expert = s->n_expert,
                           .n_out = s->n_out,
                           .n_in = s->n_in,
                           .x_is_bf16 = s->x_is_bf16,
                           .round = s->round};
    (void)snprintf(j->what, sizeof j->what,
                   "%d experts, %d pairs, %d x %d, gather %d, bf16 %d",
                   (int)s->n_expert, (int)j->op.n_pairs, (int)s->n_out,
                   (int)s->n_in, s->gather, s->x_is_bf16);
    put_weights(c, j);
    put_x(c, j);
    j->op.first =
        device_kit_put(j->first, (size_t)(s->n_expert + 1) * sizeof(int32_t));
    j->n_y = span_of(j->op.n_pairs, j->op.y_stride, s->n_out);
    float *const nans = weft_kit_nans(j->n_y + 1);
    j->op.y = device_kit_put(nans, (size_t)j->n_y * sizeof(float));
    weft_mem_free(nans);
    return j;
}

static void job_free(grouped_job *j)
{
    for (int32_t e = 0; e < j->s.n_expert; e++)
        if (j->s.counts[e] != 0) weights_free(&j->w[e]);
    device_kit_free(j->device_w);
    device_kit_free(j->op.x);
    if (j->s.gather) device_kit_free(j->op.x_rows);
    device_kit_free(j->op.first);
    device_kit_free(j->op.y);
    weft_mem_free(j->x);
    weft_mem_free(j->x_rows);
    weft_mem_free(j);
}

/* What the device makes of it, in a host block. */
static float *job_run(const grouped_job *j)
{
    float *const got = weft_kit_nans(j->n_y + 1);
    device_kit_open()->ops->grouped(NULL, &j->op);
    device_kit_sync();
    device_kit_get(got, j->op.y, (size_t)j->n_y * sizeof *got);
    return got;
}

static weft_gemm expert_gemm(const grouped_job *j, int32_t e)
{
    return (weft_gemm){.x = j->x,
                       .x_rows = j->x_rows + j->first[e],
                       .x_stride = j->op.x_stride,
                       .y_stride = j->op.y_stride,
                       .n_row = j->s.counts[e],
                       .w = &j->w[e].packed,
                       .x_is_bf16 = j->op.x_is_bf16,
                       .round = j->op.round};
}

static void check_expert(const grouped_job *j, int32_t e, const float *got,
                         float *expected)
{
    weft_gemm g = expert_gemm(j, e);
    g.y = expected;
    weft_ops_reference()->gemm(NULL, &g, 1);
    for (int32_t r = 0; r < g.n_row; r++) {
        const float *const y = got + (j->first[e] + r) * g.y_stride;
        assert_row(
            g.w, j->x + g.x_rows[r] * g.x_stride, y, expected + r * g.y_stride,
            g.x_is_bf16 ? PRODUCT_BF16 : PRODUCT_EXACT, g.round, j->what);
        if (j->first[e] + r + 1 == j->op.n_pairs) continue;
        for (int64_t i = j->s.n_out; i < g.y_stride; i++)
            ck_assert_msg(isnan(y[i]), "%s: wrote past a row", j->what);
    }
}

/* Every row again, with gemm of the device. */
static void check_gemm(const grouped_job *j, int32_t e, const float *got)
{
    weft_gemm g = expert_gemm(j, e);
    float alone[256] = {0};
    float *const y = device_kit_put(alone, sizeof alone);
    for (int32_t r = 0; r < g.n_row; r += 1 + g.n_row / 8) {
        weft_gemm one = g;
        one.w = &j->w[e].at_device;
        one.x = j->op.x + g.x_rows[r] * g.x_stride;
        one.x_rows = NULL;
        one.n_row = 1;
        one.y = y;
        device_kit_open()->ops->gemm(NULL, &one, 1);
        device_kit_sync();
        const size_t bytes = (size_t)j->s.n_out * sizeof(float);
        device_kit_get(alone, y, bytes);
        ck_assert_msg(
            same_bytes(alone, got + (j->first[e] + r) * g.y_stride, bytes),
            "%s: row %d of expert %d differs from gemm", j->what, (int)r,
            (int)e);
    }
    device_kit_free(y);
}

static void run_and_check(weft_kernel_check *c, const grouped_shape *s)
{
    grouped_job *const j = job_make(c, s);
    float *const got = job_run(j);
    float *const expected = weft_kit_nans(j->n_y + 1);
    for (int32_t e = 0; e < s->n_expert; e++) {
        if (s->counts[e] == 0) continue;
        check_expert(j, e, got, expected);
        check_gemm(j, e, got);
    }
    weft_mem_free(got);
    weft_mem_free(expected);
    job_free(j);
}

static grouped_shape shape_of(weft_kernel_check *c, const int32_t *counts,
                              int32_t n_expert, int32_t n_out, int32_t n_in)
{
    return (grouped_shape){
        .counts = counts,
        .n_expert = n_expert,
        .n_out = n_out,
        .n_in = n_in,
        .types = {WEFT_BF16, WEFT_F8_E4M3, WEFT_F32, WEFT_F16},
        .n_type = 4,
        .gather = (weft_kit_bits(c) & 1) != 0,
        .x_is_bf16 = true,
        .round = (weft_round)weft_kit_int(c, 0, 1),
        .x_pad = weft_kit_int(c, 0, 4),
        .y_pad = weft_kit_int(c, 0, 2)};
}

START_TEST(experts_have_their_rows)
{
    /* Few pairs, in slots by pair; some experts with none, first, last and
     * between. */
    static const int32_t counts[][8] = {
        {1, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 1},
        {0, 3, 0, 0, 2, 1, 0, 0}, {1, 1, 1, 1, 1, 1, 1, 1},
        {0, 0, 0, 0, 7, 0, 0, 0}, {2, 0, 17, 0, 0, 16, 1, 0},
    };
    weft_kernel_check c = {.seed = 21};
    for (int32_t i = 0; i < 12; i++) {
        grouped_shape s =
            shape_of(&c, counts[i % 6], 8, i % 2 ? 65 : 24, 40 + 13 * i);
        s.x_is_bf16 = i % 4 != 3;
        run_and_check(&c, &s);
    }
}
END_TEST

START_TEST(few_pairs_take_narrow_tiles)
{
    static const int32_t counts[] = {0, 4, 0, 9, 0, 0, 1, 0, 1};
    weft_kernel_check c = {.seed = 22};
    for (int32_t i = 0; i < 4; i++) {
        grouped_shape s = shape_of(&c, counts, 9, 40, 512 + 80 * i);
        s.n_type = i < 2 ? 2 : 4;
        run_and_check(&c, &s);
    }
}
END_TEST

START_TEST(many_pairs_take_slots_by_tile)
{
    /* Around the ends of tiles of 16, 64 and 128 rows; all in one expert. */
    static const int32_t counts[][5] = {
        {16, 15, 17, 0, 32}, {0, 0, 90, 0, 0},    {31, 0, 1, 48, 0},
        {0, 0, 0, 0, 130},   {64, 1, 129, 0, 63}, {0, 127, 65, 1, 0},
    };
    weft_kernel_check c = {.seed = 23};
    for (int32_t i = 0; i < 6; i++) {
        grouped_shape s = shape_of(&c, counts[i], 5, 70, 48 + i);
        s.n_type = 2;
        run_and_check(&c, &s);
    }
    static const int32_t large[] = {200, 128, 257};
    for (int32_t i = 0; i < 2; i++) {
        grouped_shape s = shape_of(&c, large + i, 1 + i, 130, 33);
        s.types[0] = i == 0 ? WEFT_F8_E4M3 : WEFT_BF16;
        s.types[1] = WEFT_F32;
        s.n_type = 2;
        run_and_check(&c, &s);
    }
}
END_TEST

START_TEST(many_experts_are_found)
{
    /* More than one round of the search, and more than two. */
    static int32_t counts[EXPERTS_MAX];
    weft_kernel_check c = {.seed = 24};
    static const int32_t n_experts[] = {31, 32, 33, 70, 256, 1100};
    for (int32_t i = 0; i < 6; i++) {
        const int32_t n = n_experts[i];
        memset(counts, 0, sizeof counts);
        for (int32_t k = 0; k < 24; k++) counts[weft_kit_int(&c, 0, n - 1)]++;
        counts[0]++;
        counts[n - 1]++;
        grouped_shape s = shape_of(&c, counts, n, 5, 16 + i);
        run_and_check(&c, &s);
        /* The same by tile. */
        if (n > 70) continue;
        for (int32_t e = 0; e < n; e++)
            counts[e] = e % 3 == 0 ? 7 : 2 * (e % 2);
        run_and_check(&c, &s);
    }
}
END_TEST

/* The tiles of compute capability 9.0 (libweft_simt.so plays it): few rows and
 * outputs, few rows, many; several rounds of the stages, whole and ragged. */
START_TEST(hopper_takes_the_same)
{
    static const int32_t counts[][6] = {
        {0, 1, 0, 3, 0, 1}, {9, 0, 17, 1, 0, 16}, {0, 64, 0, 150, 33, 0}};
    static const int32_t sizes[][2] = {
        {70, 1792}, {70, 200}, {140, 1552}, {140, 40}};
    ck_assert_int_eq(setenv("WEFT_SIMT_SM", "90", 1), 0);
    weft_kernel_check c = {.seed = (uint64_t)(26 + _i)};
    const int32_t *const size = sizes[_i % 4];
    for (int32_t i = 0; i < 2; i++) {
        grouped_shape s =
            shape_of(&c, counts[_i / 4], 6, size[0], size[1] + 3 * i);
        s.n_type = 2;
        s.types[i] = WEFT_BF16;
        s.types[1 - i] = WEFT_F8_E4M3;
        if (_i == 2) s.types[i] = WEFT_F16;
        s.gather = i == 1;
        if (i == 0) s.x_pad = 0;
        run_and_check(&c, &s);
    }
}
END_TEST

START_TEST(no_pairs_is_no_work)
{
    static const int32_t counts[3] = {0, 0, 0};
    weft_kernel_check c = {.seed = 25};
    const grouped_shape s = shape_of(&c, counts, 3, 16, 16);
    grouped_job *const j = job_make(&c, &s);
    float *const got = job_run(j);
    weft_mem_free(got);
    job_free(j);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_test(tests, experts_have_their_rows);
    tcase_add_test(tests, few_pairs_take_narrow_tiles);
    tcase_add_test(tests, many_pairs_take_slots_by_tile);
    tcase_add_test(tests, many_experts_are_found);
    tcase_add_loop_test(tests, hopper_takes_the_same, 0, 12);
    tcase_add_test(tests, no_pairs_is_no_work);
}

int main(void)
{
    device_kit_need();
    return weft_suite_run_added("cuda grouped", add);
}
