/* spread.h - cutting an op over rows and columns into units for the threads.
 *
 * Threads: as ops.h says. How work is cut never shows in a result, since a
 * unit computes whole outputs.
 */
#ifndef WEFT_KERNELS_CPU_SPREAD_H
#define WEFT_KERNELS_CPU_SPREAD_H

#include <stdint.h>

#include "kernels/ops.h"

/* Computes columns [first, first + n) of row `row`. */
typedef void (*weft_span_fn)(const void *op, int32_t row, int32_t first,
                             int32_t n);

/* Rows of `width` columns that cost `cost` nanoseconds each (roughly: of one
 * column, times 16). Columns are cut at multiples of 16, or not at all if
 * whole_rows. */
typedef struct weft_spread {
    weft_span_fn fn;
    const void *op;
    int32_t n_row, width;
    int32_t cost;
    int whole_rows;
} weft_spread;

void weft_spread_run(weft_threads *threads, const weft_spread *spread);

/* As weft_threads_run, but one unit runs on the caller without waking anyone.
 */
static inline void weft_spread_units(weft_threads *threads, int32_t n_units,
                                     weft_unit_fn fn, void *arg)
{
    if (n_units == 1)
        fn(arg, 0, 0);
    else
        weft_threads_run(threads, n_units, fn, arg);
}

/* Where row `position` of a sequence starts in paged memory. */
static inline unsigned char *
weft_paged_row(const weft_paged *paged, const int64_t *pages, int32_t position)
{
    const int32_t page = position / paged->page_tokens;
    const int32_t in_page = position - page * paged->page_tokens;
    return paged->base +
           (pages[page] + paged->layer_offset + in_page * paged->row_bytes);
}

#endif
