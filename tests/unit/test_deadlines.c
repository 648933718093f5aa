/* The heap of deadlines against a search through all entries. */
#include "router/deadlines.h"
#include "tests/support/suite.h"

enum { N = 64, ROUNDS = 20000 };

static weft_entry entries[N];

static uint64_t earliest(void)
{
    uint64_t least_ns = UINT64_MAX;
    for (int i = 0; i < N; i++) {
        const uint64_t at_ns = entries[i].ask.job.deadline_ns;
        if (entries[i].deadline_place > 0 && at_ns < least_ns) least_ns = at_ns;
    }
    return least_ns;
}

START_TEST(the_earliest_is_first_in_any_course)
{
    weft_deadlines deadlines = {0};
    uint64_t random = 7;
    int n_in = 0;
    ck_assert_int_eq(weft_deadlines_init(&deadlines, N, NULL), WEFT_OK);
    for (int round = 0; round < ROUNDS; round++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        weft_entry *const entry = &entries[random >> 32 & (N - 1)];
        if (entry->deadline_place > 0) {
            weft_deadlines_remove(&deadlines, entry);
            n_in--;
        } else {
            entry->ask.job.deadline_ns = random >> 56; /* many are equal */
            weft_deadlines_add(&deadlines, entry);
            n_in++;
        }
        ck_assert_int_eq(deadlines.n, n_in);
        ck_assert_uint_eq(weft_deadlines_next_ns(&deadlines), earliest());
    }
    uint64_t last_ns = 0;
    for (; n_in > 0; n_in--) {
        weft_entry *const first = weft_deadlines_first(&deadlines);
        ck_assert_uint_ge(first->ask.job.deadline_ns, last_ns);
        last_ns = first->ask.job.deadline_ns;
        weft_deadlines_remove(&deadlines, first);
    }
    ck_assert_ptr_null(weft_deadlines_first(&deadlines));
    weft_deadlines_deinit(&deadlines);
}
END_TEST

START_TEST(what_has_no_deadline_is_left_out)
{
    weft_deadlines deadlines = {0};
    weft_entry entry = {.ask = {.job = {.deadline_ns = UINT64_MAX}}};
    ck_assert_int_eq(weft_deadlines_init(&deadlines, 1, NULL), WEFT_OK);
    weft_deadlines_add(&deadlines, &entry);
    ck_assert_ptr_null(weft_deadlines_first(&deadlines));
    ck_assert_uint_eq(weft_deadlines_next_ns(&deadlines), UINT64_MAX);
    weft_deadlines_remove(&deadlines, &entry);
    weft_deadlines_deinit(&deadlines);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {the_earliest_is_first_in_any_course,
                                  what_has_no_deadline_is_left_out};
    return WEFT_SUITE_RUN("router/deadlines", tests);
}
