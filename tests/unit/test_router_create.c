/* What weft_router_create refuses, and that a failed one leaves nothing. */
#include "node/base/mem.h"
#include "router/router.h"
#include "tests/support/suite.h"

START_TEST(create_survives_every_allocation_failure)
{
    const weft_router_options options = {.max_seqs = 2, .max_queue = 2};
    weft_status st = WEFT_RESOURCE_EXHAUSTED;
    int failures = 0;
    for (; st != WEFT_OK; failures += st != WEFT_OK) {
        weft_router *router = NULL;
        ck_assert_int_lt(failures, 100);
        const long live = weft_mem_live();
        weft_mem_fail_after(failures);
        st = weft_router_create(&options, &router, NULL);
        weft_mem_fail_after(-1);
        if (st == WEFT_OK)
            weft_router_destroy(router);
        else
            ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
        ck_assert_int_eq(weft_mem_live(), live);
    }
    ck_assert_int_gt(failures, 5);
    const weft_router_options wrong[] = {
        {.max_seqs = 0, .max_queue = 2},
        {.max_seqs = 1, .max_queue = -1},
        {.max_seqs = INT32_MAX, .max_queue = INT32_MAX},
    };
    for (int i = 0; i < 3; i++) {
        weft_router *router = NULL;
        ck_assert_int_eq(weft_router_create(&wrong[i], &router, NULL),
                         WEFT_INVALID_ARGUMENT);
    }
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {create_survives_every_allocation_failure};
    return WEFT_SUITE_RUN("router_create", tests);
}
