/* Admission where what computes allows less than the model, and that changes:
 * refused by the numbers that hold, never clipped. */
#include <stdatomic.h>
#include <string.h>

#include "router/admit.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

static const uint32_t PROMPT[20] = {1};

/* What a prompt of n ids becomes; max_tokens 0: not set. */
static weft_status ask(const weft_admit_limits *limits, size_t n,
                       uint32_t max_tokens, int32_t *max_tokens_out,
                       weft_err *why)
{
    const weft_request request = {.has_ids = true,
                                  .ids = PROMPT,
                                  .n_ids = n,
                                  .deadline_ns = UINT64_MAX,
                                  .max_tokens = {max_tokens > 0, max_tokens}};
    weft_arena *arena = NULL;
    weft_admitted admitted;
    OK(weft_arena_create(1 << 20, &arena, &err));
    const weft_status st =
        weft_admit_request(limits, &request, arena, &admitted, why);
    if (st == WEFT_OK) *max_tokens_out = admitted.job.max_tokens;
    weft_arena_destroy(arena);
    return st;
}

START_TEST(the_context_that_holds_now)
{
    _Atomic int32_t now = 0;
    const weft_admit_limits limits = {.vocab_size = 300,
                                      .max_context = 64,
                                      .max_context_now = &now,
                                      .temperature = 1.0F,
                                      .top_p = 1.0F,
                                      .repetition_penalty = 1.0F};
    static const struct {
        int32_t now, left;
    } cases[] = {{0, 54}, {100, 54}, {64, 54}, {32, 22}, {0, 54}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t most = 0;
        weft_err why = {0};
        atomic_store(&now, cases[i].now);
        const uint32_t left = (uint32_t)cases[i].left;
        ck_assert_int_eq(ask(&limits, 10, 0, &most, &why), WEFT_OK);
        ck_assert_int_eq(most, cases[i].left);
        ck_assert_int_eq(ask(&limits, 10, left, &most, &why), WEFT_OK);
        ck_assert_int_eq(ask(&limits, 10, left + 1, &most, &why),
                         WEFT_INVALID_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(why.text, "max_tokens"));
    }
    int32_t most = 0;
    weft_err why = {0};
    atomic_store(&now, 16);
    ck_assert_int_eq(ask(&limits, 20, 0, &most, &why), WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(why.text, "max_context 16"));
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {the_context_that_holds_now};
    return WEFT_SUITE_RUN("admit_context", tests);
}
