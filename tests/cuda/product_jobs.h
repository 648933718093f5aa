/* product_jobs.h - whole products for the tests of gemm: what the host has of
 * one and what the device has, run in lists and checked row by row. */
#ifndef WEFT_TESTS_CUDA_PRODUCT_JOBS_H
#define WEFT_TESTS_CUDA_PRODUCT_JOBS_H

#include <stdio.h>

#include "tests/cuda/products.h"

enum { LIST_MAX = 80 };

typedef struct product_shape {
    weft_dtype dtype;
    int32_t n_out, n_in, n_row;
    bool gather;
    product_form form;
    weft_round round;
    int32_t w_shift, x_shift, x_pad, y_pad;
} product_shape;

/* One product: what the host has of it and what the device has. */
typedef struct product_job {
    product_shape s;
    product_weights w;
    float *x;
    int32_t *x_rows;
    weft_gemm device, host;
    int64_t n_x, n_y;
    char what[120];
} product_job;

static inline void job_x(weft_kernel_check *c, product_job *j)
{
    const product_shape *const s = &j->s;
    const int32_t from_rows = s->gather ? 2 * s->n_row + 1 : s->n_row;
    const int64_t stride = s->n_in + s->x_pad;
    /* Rows that nothing gathers are NaN, so is what lies between rows. */
    j->n_x = span_of(from_rows, stride, s->n_in);
    j->x = weft_kit_nans(j->n_x + 1);
    j->x_rows = weft_kit_new((size_t)s->n_row + 1, sizeof(int32_t));
    for (int32_t r = 0; r < s->n_row; r++) {
        j->x_rows[r] = 2 * (s->n_row - 1 - r) + 1;
        const int32_t at = s->gather ? j->x_rows[r] : r;
        weft_kit_fill(c, j->x + at * stride, 1, s->n_in, stride, 2.0f);
        if (s->form == PRODUCT_BF16) round_rows(j->x + at * stride, s->n_in);
    }
}

static inline void job_make(weft_kernel_check *c, const product_shape *s,
                            product_job *j)
{
    *j = (product_job){.s = *s};
    (void)snprintf(j->what, sizeof j->what,
                   "%s %d x %d, %d rows, gather %d, form %d, shifts %d %d",
                   weft_dtype_name(s->dtype), (int)s->n_out, (int)s->n_in,
                   (int)s->n_row, s->gather, (int)s->form, (int)s->w_shift,
                   (int)s->x_shift);
    weights_make(c, s->dtype, s->n_out, s->n_in, s->w_shift, &j->w);
    job_x(c, j);
    j->host = (weft_gemm){.w = &j->w.packed,
                          .x = j->x,
                          .x_rows = s->gather ? j->x_rows : NULL,
                          .x_stride = s->n_in + s->x_pad,
                          .y_stride = s->n_out + s->y_pad,
                          .n_row = s->n_row,
                          .x_is_bf16 = s->form == PRODUCT_BF16,
                          .x_as_pair = s->form == PRODUCT_PAIR,
                          .round = s->round};
    j->n_y = span_of(s->n_row, j->host.y_stride, s->n_out);
    j->device = j->host;
    j->device.w = &j->w.at_device;
    j->device.x = floats_put(j->x, j->n_x, s->x_shift);
    j->device.x_rows =
        s->gather
            ? device_kit_put(j->x_rows, (size_t)s->n_row * sizeof(int32_t))
            : NULL;
    float *const nans = weft_kit_nans(j->n_y + 1);
    j->device.y = device_kit_put(nans, (size_t)j->n_y * sizeof(float));
    j->host.y = nans;
}

static inline void job_free(product_job *j)
{
    weights_free(&j->w);
    device_kit_free(j->device.x - j->s.x_shift);
    if (j->s.gather) device_kit_free(j->device.x_rows);
    device_kit_free(j->device.y);
    weft_mem_free(j->x);
    weft_mem_free(j->x_rows);
    weft_mem_free(j->host.y);
}

/* The y of the device, in a host block. */
static inline float *job_get(const product_job *j)
{
    float *const got = weft_kit_nans(j->n_y + 1);
    device_kit_get(got, j->device.y, (size_t)j->n_y * sizeof *got);
    return got;
}

static inline const float *job_x_row(const product_job *j, int32_t r)
{
    return j->x + (j->s.gather ? j->x_rows[r] : r) * j->host.x_stride;
}

static inline void job_check(product_job *j)
{
    weft_ops_reference()->gemm(NULL, &j->host, 1);
    float *const got = job_get(j);
    const int64_t stride = j->host.y_stride;
    for (int32_t r = 0; r < j->s.n_row; r++) {
        assert_row(&j->w.packed, job_x_row(j, r), got + r * stride,
                   j->host.y + r * stride, j->s.form, j->s.round, j->what);
        for (int64_t i = r * stride + j->s.n_out;
             i < (r + 1) * stride && i < j->n_y; i++)
            ck_assert_msg(isnan(got[i]), "%s: wrote past row %d", j->what,
                          (int)r);
    }
    weft_mem_free(got);
}

static inline void run_list(product_job *jobs, int32_t n)
{
    const weft_device_api *const api = device_kit_open();
    weft_gemm list[LIST_MAX];
    for (int32_t i = 0; i < n; i++) list[i] = jobs[i].device;
    api->ops->gemm(NULL, list, n);
    device_kit_sync();
}

static inline void run_and_check(product_job *jobs, int32_t *n)
{
    run_list(jobs, *n);
    for (int32_t i = 0; i < *n; i++) {
        job_check(&jobs[i]);
        job_free(&jobs[i]);
    }
    *n = 0;
}

#endif
