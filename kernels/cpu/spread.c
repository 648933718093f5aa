#include "kernels/cpu/spread.h"

/* A unit that costs less than this is not worth handing out: taking one is a
 * compare-and-swap on a line that another core holds. */
enum { UNIT_NS = 2000, UNITS_PER_THREAD = 4 };

struct cut {
    const weft_spread *spread;
    int32_t rows, cols; /* of a unit */
    int32_t n_col;      /* units beside each other */
};

static void run_cut(void *arg, int32_t unit, int32_t thread)
{
    const struct cut *const cut = arg;
    const weft_spread *const s = cut->spread;
    (void)thread;
    const int32_t first = unit % cut->n_col * cut->cols;
    const int32_t row = unit / cut->n_col * cut->rows;
    const int32_t left = s->width - first;
    const int32_t n = left < cut->cols ? left : cut->cols;
    for (int32_t r = row; r < row + cut->rows && r < s->n_row; r++)
        s->fn(s->op, r, first, n);
}

void weft_spread_run(weft_threads *threads, const weft_spread *spread)
{
    const int32_t n_row = spread->n_row, width = spread->width;
    if (n_row <= 0 || width <= 0) return;
    const int64_t row_ns = (int64_t)width * spread->cost / 16 + 1;
    const int64_t most =
        (int64_t)UNITS_PER_THREAD * weft_threads_count(threads);
    int64_t unit_ns = row_ns * n_row / most;
    if (unit_ns < UNIT_NS) unit_ns = UNIT_NS;

    struct cut cut = {spread, 1, width, 1};
    if (row_ns <= unit_ns) {
        const int64_t rows = unit_ns / row_ns;
        cut.rows = rows < n_row ? (int32_t)rows : n_row;
    } else if (!spread->whole_rows) {
        const int64_t cols = unit_ns * 16 / spread->cost;
        cut.cols = (int32_t)((cols + 15) / 16 * 16);
        cut.n_col = (width + cut.cols - 1) / cut.cols;
    }
    const int32_t n_down = (n_row + cut.rows - 1) / cut.rows;
    weft_spread_units(threads, n_down * cut.n_col, run_cut, &cut);
}
