/* plan.h - cutting a list of matrix products into units of work.
 *
 * A unit is a range of panels times a range of rows of one product. Its size
 * follows from the list and the number of threads alone and never shows in a
 * result. Threads: making a plan, one; asking it, each under its own number.
 */
#ifndef WEFT_KERNELS_CPU_PLAN_H
#define WEFT_KERNELS_CPU_PLAN_H

#include "kernels/ops.h"

/* Units are found by walking the list. A thread asks for rising units, so it
 * goes on from where it last was; threads beyond these start over. */
enum { WEFT_GEMM_PLAN_CURSORS = 128 };

typedef struct weft_gemm_cursor {
    int32_t product, first_unit;
} weft_gemm_cursor;

typedef struct weft_gemm_plan {
    const weft_gemm *list;
    int32_t n, n_threads;
    int64_t unit_cost;
    weft_gemm_cursor cursor[WEFT_GEMM_PLAN_CURSORS]; /* [thread] */
} weft_gemm_plan;

typedef struct weft_gemm_unit {
    const weft_gemm *g;
    int32_t panel, n_panel, row, n_row;
} weft_gemm_unit;

/* The number of units. Products without rows have none. */
int32_t weft_gemm_plan_make(weft_gemm_plan *plan, const weft_gemm *list,
                            int32_t n, int32_t n_threads);

/* Unit `unit` of them, for thread `thread`. */
void weft_gemm_plan_unit(weft_gemm_plan *plan, int32_t unit, int32_t thread,
                         weft_gemm_unit *unit_out);

#endif
