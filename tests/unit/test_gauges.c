/* What a serving process tells of its health. */
#include "node/app/gauges.h"
#include "tests/support/suite.h"

static const uint64_t START_NS = UINT64_C(5000000000);

START_TEST(a_step_that_takes_long_hangs)
{
    const weft_engine_load load = {.last_progress_ns = START_NS};
    const uint64_t last_ns = START_NS + WEFT_STEP_HANGS_NS;
    ck_assert(!weft_gauges_step_hangs(&load, last_ns));
    ck_assert(weft_gauges_step_hangs(&load, last_ns + 1));
    /* The clock was read before the snapshot was. */
    ck_assert(!weft_gauges_step_hangs(&load, START_NS - 1));
}
END_TEST

/* An engine that was idle publishes nothing before its first step is done. */
START_TEST(the_first_step_after_an_idle_turn_hangs_too)
{
    const weft_engine_load load = {.last_progress_ns = START_NS, .idle = true};
    ck_assert(!weft_gauges_step_hangs(&load, START_NS + WEFT_STEP_HANGS_NS));
    ck_assert(weft_gauges_step_hangs(&load, START_NS + WEFT_STEP_HANGS_NS + 1));
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {a_step_that_takes_long_hangs,
                                  the_first_step_after_an_idle_turn_hangs_too};
    return WEFT_SUITE_RUN("app/gauges", tests);
}
