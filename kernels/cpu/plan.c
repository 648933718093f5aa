#include "kernels/cpu/plan.h"

#include <string.h>

#include "node/base/check.h"

enum {
    /* Enough for threads to end together, though some run slower. */
    UNITS_PER_THREAD = 12,
    /* Costs are in bytes of weights streamed; rows beyond this many are bound
     * by arithmetic, and cost in proportion. */
    FREE_ROWS = 8,
    UNIT_COST_MIN = 96 * 1024,
    UNIT_COST_MAX = 1024 * 1024,
    /* Rows are cut only where panels do not suffice, and not finely: each cut
     * converts the weights once more. */
    ROWS_MIN = 48,
};

struct cut {
    int32_t n_panel, panels; /* of the product; of a unit */
    int32_t rows;            /* of a unit */
    int32_t n_down, n_across;
};

static int32_t ceil_div(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}

static int64_t panel_cost(const weft_gemm *g, int32_t n_row)
{
    const int64_t bytes = (int64_t)WEFT_PANEL_OUTS * g->w->n_in *
                          (int64_t)weft_dtype_bytes(g->w->dtype);
    return n_row <= FREE_ROWS ? bytes : bytes * n_row / FREE_ROWS;
}

static struct cut cut_product(const weft_gemm *g, int32_t n_threads,
                              int64_t unit_cost)
{
    struct cut c = {.n_panel = ceil_div(g->w->n_out, WEFT_PANEL_OUTS),
                    .rows = g->n_row};
    if (g->n_row <= 0 || c.n_panel == 0) return (struct cut){0};
    const int64_t cost = panel_cost(g, g->n_row);
    int64_t panels = cost < unit_cost ? unit_cost / (cost + 1) : 1;
    if (panels > c.n_panel) panels = c.n_panel;
    c.panels = (int32_t)panels;
    c.n_across = ceil_div(c.n_panel, c.panels);
    if (c.panels == 1 && cost > 2 * unit_cost && g->n_row >= 2 * ROWS_MIN &&
        c.n_across < 4 * n_threads) {
        const int32_t wanted = ceil_div(4 * n_threads, c.n_across);
        const int32_t rows = ceil_div(g->n_row, wanted);
        c.rows = rows < ROWS_MIN ? ROWS_MIN : rows;
    }
    c.n_down = ceil_div(g->n_row, c.rows);
    return c;
}

int32_t weft_gemm_plan_make(weft_gemm_plan *plan, const weft_gemm *list,
                            int32_t n, int32_t n_threads)
{
    int64_t cost = 0;
    for (int32_t i = 0; i < n; i++)
        if (list[i].n_row > 0)
            cost += panel_cost(&list[i], list[i].n_row) *
                    ceil_div(list[i].w->n_out, WEFT_PANEL_OUTS);
    int64_t unit = cost / ((int64_t)n_threads * UNITS_PER_THREAD);
    if (unit < UNIT_COST_MIN) unit = UNIT_COST_MIN;
    if (unit > UNIT_COST_MAX) unit = UNIT_COST_MAX;
    plan->list = list;
    plan->n = n;
    plan->n_threads = n_threads;
    plan->unit_cost = unit;
    memset(plan->cursor, 0, sizeof plan->cursor);

    int64_t n_units = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct cut c = cut_product(&list[i], n_threads, unit);
        n_units += (int64_t)c.n_across * c.n_down;
    }
    WEFT_ASSERT(n_units <= INT32_MAX);
    return (int32_t)n_units;
}

void weft_gemm_plan_unit(weft_gemm_plan *plan, int32_t unit, int32_t thread,
                         weft_gemm_unit *unit_out)
{
    weft_gemm_cursor start = {0, 0};
    weft_gemm_cursor *const kept =
        thread < WEFT_GEMM_PLAN_CURSORS ? &plan->cursor[thread] : &start;
    weft_gemm_cursor at = kept->first_unit <= unit ? *kept : start;
    for (; at.product < plan->n; at.product++) {
        const weft_gemm *const g = &plan->list[at.product];
        const struct cut c = cut_product(g, plan->n_threads, plan->unit_cost);
        const int32_t here = c.n_across * c.n_down;
        if (unit - at.first_unit >= here) {
            at.first_unit += here;
            continue;
        }
        *kept = at;
        WEFT_ASSERT(c.n_across > 0); /* here > unit - at.first_unit >= 0 */
        const int32_t within = unit - at.first_unit;
        const int32_t panel = within % c.n_across * c.panels;
        const int32_t row = within / c.n_across * c.rows;
        const int32_t panels = c.n_panel - panel, rows = g->n_row - row;
        *unit_out =
            (weft_gemm_unit){.g = g,
                             .panel = panel,
                             .n_panel = panels < c.panels ? panels : c.panels,
                             .row = row,
                             .n_row = rows < c.rows ? rows : c.rows};
        return;
    }
    weft_panic(__FILE__, __LINE__, "unit beyond the plan");
}
