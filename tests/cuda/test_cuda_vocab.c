/* What sampling needs to know of a row of logits, on a device: the reference's
 * bits, for its sums and their order are the same. Rows are padded with NaN,
 * and blocks end where their data ends. */
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/device_kit.h"
#include "tests/support/kernel_suite.h"

static void vocab_on_device(const weft_vocab *from, int32_t row, int32_t n,
                            weft_vocab_stat *stats_out)
{
    const weft_device_api *const api = device_kit_open();
    const int64_t n_floats = (n - 1) * from->logits_stride + from->vocab;
    float *const logits =
        device_kit_put(from->logits + row * from->logits_stride,
                       (size_t)n_floats * sizeof *logits);
    weft_vocab_stat *const stats =
        device_kit_new((size_t)n * sizeof *stats_out);
    const weft_vocab op = {.logits = logits,
                           .stats_out = stats,
                           .logits_stride = from->logits_stride,
                           .n_row = n,
                           .vocab = from->vocab};
    api->ops->vocab(NULL, &op);
    ck_assert_int_eq(api->sync(NULL), WEFT_OK);
    device_kit_get(stats_out, stats, (size_t)n * sizeof *stats_out);
    device_kit_free(logits);
    device_kit_free(stats);
}

static bool same_bits(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static void assert_stat(const weft_vocab_stat *got,
                        const weft_vocab_stat *expected, const char *what)
{
    ck_assert_msg(got->nan == expected->nan, "%s: nan %d", what, got->nan);
    ck_assert_msg(got->argmax == expected->argmax, "%s: argmax %d, not %d",
                  what, got->argmax, expected->argmax);
    ck_assert_msg(same_bits(got->max, expected->max), "%s: max %.9g, not %.9g",
                  what, (double)got->max, (double)expected->max);
    ck_assert_msg(same_bits(got->log_sum_exp, expected->log_sum_exp),
                  "%s: log %.9g, not %.9g", what, (double)got->log_sum_exp,
                  (double)expected->log_sum_exp);
}

/* All rows at once, then each alone. */
static void assert_as_reference(const weft_vocab *op, const char *what)
{
    weft_vocab_stat expected[8], got[8], one;
    weft_vocab reference = *op;
    ck_assert_int_le(op->n_row, 8);
    reference.stats_out = expected;
    weft_ops_reference()->vocab(NULL, &reference);
    vocab_on_device(op, 0, op->n_row, got);
    for (int32_t r = 0; r < op->n_row; r++) {
        assert_stat(&got[r], &expected[r], what);
        vocab_on_device(op, r, 1, &one);
        assert_stat(&one, &expected[r], "a row alone");
    }
}

/* Case i of a kind of row. */
static void fill_row(weft_kernel_check *c, float *x, int32_t n, int32_t i)
{
    weft_kit_fill(c, x, 1, n, n, i % 2 == 0 ? 20.0f : 0.0f);
    float *const some = &x[weft_kit_int(c, 0, n - 1)];
    switch (i % 9) {
    case 1: *some = NAN; break;
    case 2: *some = -INFINITY; break;
    case 3: *some = INFINITY; break;
    case 4: /* nothing to choose from */
        for (int32_t k = 0; k < n; k++) x[k] = -INFINITY;
        break;
    case 5: /* a log near 0 shows the last bits of the sum */
        for (int32_t k = 0; k < n; k++) x[k] = weft_kit_float(c, 1.0f) - 8.0f;
        *some = 0.0f;
        break;
    case 6: /* the largest twice */ *some = x[n / 2] = x[n / 3] = 30.0f; break;
    case 7: /* zeros of either sign */
        for (int32_t k = 0; k < n; k++)
            x[k] = weft_kit_int(c, 0, 1) == 0 ? 0.0f : -0.0f;
        break;
    default: break;
    }
}

START_TEST(stats_are_the_reference)
{
    static const int32_t sizes[] = {1,    2,     15,    16,   17,
                                    300,  1023,  1024,  1025, 2053,
                                    5000, 16384, 16385, 33000};
    for (int32_t i = 0; i < 28; i++) {
        weft_kernel_check c = {.seed = (uint64_t)i};
        const int32_t n = sizes[i % 14], n_row = n > 5000 ? 3 : 6;
        const int64_t stride = n + i % 3;
        float *const x = weft_kit_nans((n_row - 1) * stride + n);
        for (int32_t r = 0; r < n_row; r++)
            fill_row(&c, x + r * stride, n, i + r);
        const weft_vocab op = {
            .logits = x, .logits_stride = stride, .n_row = n_row, .vocab = n};
        char what[60];
        (void)snprintf(what, sizeof what, "%d logits, case %d", n, i);
        assert_as_reference(&op, what);
        weft_mem_free(x);
    }
}
END_TEST

/* A large vocabulary: the log within what rounding explains. */
START_TEST(stats_are_near_exact)
{
    enum { VOCAB = 40000 };
    weft_kernel_check c = {.seed = 8};
    float *const x = weft_kit_nans(VOCAB);
    weft_kit_fill(&c, x, 1, VOCAB, VOCAB, 15.0f);
    x[777] = x[39999] = 15.5f;
    const weft_vocab op = {
        .logits = x, .logits_stride = VOCAB, .n_row = 1, .vocab = VOCAB};
    weft_vocab_stat stat;
    vocab_on_device(&op, 0, 1, &stat);
    double sum = 0.0;
    for (int32_t i = 0; i < VOCAB; i++) sum += exp((double)x[i] - 15.5);
    ck_assert(!stat.nan);
    ck_assert_int_eq(stat.argmax, 777);
    ck_assert(stat.max == 15.5f);
    /* 64 a lane, 4 levels, 40 blocks, exp, x - max up to 31. */
    const double relative = (64 + 4 + 40 + 2 + 31) * weft_u;
    WEFT_ASSERT_NEAR(stat.log_sum_exp, log(sum) + 15.5,
                     relative + 3 * weft_u * (15.5 + log(sum)));
    weft_mem_free(x);
}
END_TEST

/* Rows come in turns of 2048. */
START_TEST(many_rows_take_turns)
{
    enum { VOCAB = 3, ROWS = 2100 };
    weft_kernel_check c = {.seed = 9};
    float *const x = weft_kit_nans((int64_t)ROWS * VOCAB);
    weft_kit_fill(&c, x, ROWS, VOCAB, VOCAB, 3.0f);
    weft_vocab_stat *const expected = weft_kit_new(ROWS, sizeof *expected);
    weft_vocab_stat *const got = weft_kit_new(ROWS, sizeof *got);
    const weft_vocab op = {.logits = x,
                           .stats_out = expected,
                           .logits_stride = VOCAB,
                           .n_row = ROWS,
                           .vocab = VOCAB};
    weft_ops_reference()->vocab(NULL, &op);
    vocab_on_device(&op, 0, ROWS, got);
    for (int32_t r = 0; r < ROWS; r++)
        assert_stat(&got[r], &expected[r], "one of many rows");
    weft_mem_free(x);
    weft_mem_free(expected);
    weft_mem_free(got);
}
END_TEST

START_TEST(no_rows_do_nothing)
{
    const weft_device_api *const api = device_kit_open();
    const weft_vocab op = {.vocab = 5};
    api->ops->vocab(NULL, &op);
    ck_assert_int_eq(api->sync(NULL), WEFT_OK);
}
END_TEST

int main(void)
{
    device_kit_need();
    const TTest *const tests[] = {stats_are_the_reference, stats_are_near_exact,
                                  many_rows_take_turns, no_rows_do_nothing};
    return WEFT_SUITE_RUN("cuda_vocab", tests);
}
