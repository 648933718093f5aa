/* The ops that choose: index_select, route, vocab. */
#include "kernels/cpu/select.h"
#include "node/base/mem.h"
#include "tests/support/kernel_suite.h"

WEFT_PATHS_TEST(index_paths_agree, "index_select")
WEFT_PATHS_TEST(route_paths_agree, "route")
WEFT_PATHS_TEST(group_paths_agree, "group")
WEFT_PATHS_TEST(vocab_paths_agree, "vocab")

enum { TOKENS = 500, DIM = 24, HEADS = 3, TOP = 40 };

static double score_of(const weft_kit_pages *p, int32_t position,
                       const float *q, const float *w)
{
    const int32_t page = position / p->paged.page_tokens;
    const unsigned char *const row =
        p->paged.base + p->pages[page] + p->paged.layer_offset +
        position % p->paged.page_tokens * p->paged.row_bytes;
    double score = 0.0;
    for (int32_t h = 0; h < HEADS; h++) {
        double dot = 0.0;
        for (int32_t i = 0; i < DIM; i++)
            dot += (double)q[h * DIM + i] * weft_f32_of(p->paged.dtype, row, i);
        score += w[h] * fmax(dot, 0.0);
    }
    return score;
}

/* Nothing that was left out is clearly better than something taken. */
START_TEST(index_takes_the_best)
{
    weft_kernel_check c = {.seed = 6};
    weft_kit_pages pages;
    weft_kit_pages_make(&c, WEFT_BF16, TOKENS, 16, DIM, &pages);
    weft_row row = {.pages = pages.pages, .position = TOKENS - 1};
    float q[HEADS * DIM], w[HEADS] = {0.5f, -0.3f, 0.9f}, scratch[TOKENS];
    int32_t keys[TOP], n_keys = 0;
    weft_kit_fill(&c, q, 1, HEADS * DIM, (int64_t)HEADS * DIM, 1.0f);
    const weft_index_select op = {.keys = pages.paged,
                                  .rows = &row,
                                  .q = q,
                                  .w = w,
                                  .keys_out = keys,
                                  .n_keys_out = &n_keys,
                                  .scratch = scratch,
                                  .scratch_stride = TOKENS,
                                  .n_row = 1,
                                  .n_head = HEADS,
                                  .head_dim = DIM,
                                  .top_k = TOP};
    weft_ops_reference()->index_select(NULL, &op);
    ck_assert_int_eq(n_keys, TOP);
    bool taken[TOKENS] = {false};
    double worst = INFINITY, best_left = -INFINITY;
    for (int32_t i = 0; i < TOP; i++) {
        ck_assert(i == 0 || keys[i] > keys[i - 1]);
        taken[keys[i]] = true;
        worst = fmin(worst, score_of(&pages, keys[i], q, w));
    }
    for (int32_t j = 0; j < TOKENS; j++)
        if (!taken[j]) best_left = fmax(best_left, score_of(&pages, j, q, w));
    /* Dots of 24 terms below 1, heads weighed below 1. */
    const double error = HEADS * DIM * (2 + 4 + HEADS) * weft_u;
    ck_assert_msg(worst >= best_left - 2 * error, "took %g, left %g", worst,
                  best_left);
    weft_kit_pages_free(&pages);
}
END_TEST

START_TEST(index_breaks_ties_by_position)
{
    weft_kernel_check c = {.seed = 7};
    weft_kit_pages pages;
    weft_kit_pages_make(&c, WEFT_F32, TOKENS, 16, DIM, &pages);
    weft_row row = {.pages = pages.pages, .position = TOKENS - 1};
    /* Negative dots all: every score is a zero, of either sign. */
    for (int32_t t = 0; t < TOKENS; t++) {
        float *const key =
            (float *)(void *)(pages.paged.base + pages.pages[t / 16] +
                              pages.paged.layer_offset +
                              t % 16 * pages.paged.row_bytes);
        for (int32_t i = 0; i < DIM; i++) key[i] = t % 3 == 0 ? -1.0f : -0.0f;
    }
    float q[DIM], w = 1.0f, scratch[TOKENS];
    for (int32_t i = 0; i < DIM; i++) q[i] = 1.0f;
    int32_t keys[TOP], n_keys = 0;
    const weft_index_select op = {.keys = pages.paged,
                                  .rows = &row,
                                  .q = q,
                                  .w = &w,
                                  .keys_out = keys,
                                  .n_keys_out = &n_keys,
                                  .scratch = scratch,
                                  .scratch_stride = TOKENS,
                                  .n_row = 1,
                                  .n_head = 1,
                                  .head_dim = DIM,
                                  .top_k = TOP};
    weft_threads *threads = NULL;
    ck_assert_int_eq(weft_threads_create(1, &threads, NULL), WEFT_OK);
    for (int32_t p = 0; weft_ops_cpu_nth(p) != NULL; p++) {
        weft_ops_cpu_nth(p)->index_select(threads, &op);
        for (int32_t i = 0; i < TOP; i++) ck_assert_int_eq(keys[i], i);
    }
    weft_threads_destroy(threads);
    weft_kit_pages_free(&pages);
}
END_TEST

static void assert_best(const float *scores, int32_t n, int32_t k,
                        const int32_t *expected)
{
    int32_t got[8];
    weft_select_best(scores, n, k, got);
    for (int32_t i = 0; i < k; i++) ck_assert_int_eq(got[i], expected[i]);
}

START_TEST(select_orders_all_numbers)
{
    const float scores[8] = {-0.0f,     NAN,  0.0f,    -INFINITY,
                             0x1p-149f, 3.0f, -1e-40f, INFINITY};
    assert_best(scores, 8, 1, (const int32_t[]){7});
    assert_best(scores, 8, 2, (const int32_t[]){5, 7});
    assert_best(scores, 8, 3, (const int32_t[]){4, 5, 7});
    assert_best(scores, 8, 4, (const int32_t[]){0, 4, 5, 7});
    assert_best(scores, 8, 5, (const int32_t[]){0, 2, 4, 5, 7});
    assert_best(scores, 8, 6, (const int32_t[]){0, 2, 4, 5, 6, 7});
    assert_best(scores, 8, 7, (const int32_t[]){0, 2, 3, 4, 5, 6, 7});
    assert_best(scores, 8, 8, (const int32_t[]){0, 1, 2, 3, 4, 5, 6, 7});
}
END_TEST

/* Each expert is worth what the text of model-spec 2.6 says. */
START_TEST(route_by_hand)
{
    /* Groups {0 1} {2 3} {4 5}; biased scores are all negative, so closed
     * groups must not win as zeros would. */
    const float logits[6] = {0.0f, 0.0f, 2.0f, -9.0f, 1.0f, 0.5f};
    const float bias[6] = {-2.0f, -2.0f, -2.0f, -2.0f, -2.0f, -2.0f};
    int32_t experts[3];
    float weights[3];
    weft_route op = {.logits = logits,
                     .bias = bias,
                     .experts_out = experts,
                     .weights_out = weights,
                     .n_row = 1,
                     .n_expert = 6,
                     .top_k = 3,
                     .n_group = 3,
                     .topk_group = 2,
                     .scoring = WEFT_SIGMOID,
                     .group_score = WEFT_GROUP_TOP2,
                     .norm_topk = true,
                     .scale = 2.5f};
    weft_threads *threads = NULL;
    ck_assert_int_eq(weft_threads_create(1, &threads, NULL), WEFT_OK);
    weft_ops_cpu_nth(0)->route(threads, &op);
    /* Top-2 sums: 1.0, 0.88, 1.35 (less 4): groups 2 and 0 are open. */
    ck_assert_int_eq(experts[0], 4);
    ck_assert_int_eq(experts[1], 5);
    ck_assert_int_eq(experts[2], 0);
    const double s4 = 1 / (1 + exp(-1.0)), s5 = 1 / (1 + exp(-0.5)), s0 = 0.5;
    const double total = s4 + s5 + s0;
    WEFT_ASSERT_NEAR(weights[0], 2.5 * s4 / total, 12 * weft_u);
    WEFT_ASSERT_NEAR(weights[1], 2.5 * s5 / total, 12 * weft_u);
    WEFT_ASSERT_NEAR(weights[2], 2.5 * s0 / total, 12 * weft_u);

    /* By the largest: 0.5, 0.88, 0.73; unbiased softmax weights, as they are.
     */
    op.group_score = WEFT_GROUP_MAX;
    op.scoring = WEFT_SOFTMAX;
    op.norm_topk = false;
    op.scale = 1.0f;
    weft_ops_cpu_nth(0)->route(threads, &op);
    double sum = 0.0;
    for (int32_t i = 0; i < 6; i++) sum += exp((double)logits[i]);
    ck_assert_int_eq(experts[0], 2);
    ck_assert_int_eq(experts[1], 4);
    ck_assert_int_eq(experts[2], 5);
    WEFT_ASSERT_NEAR(weights[0], exp(2.0) / sum, 12 * weft_u);
    WEFT_ASSERT_NEAR(weights[2], exp(0.5) / sum, 12 * weft_u);

    op.dynamic_rsf = true;
    weft_ops_cpu_nth(0)->route(threads, &op);
    double square = 0.0;
    for (int32_t k = 0; k < 3; k++) square += (double)weights[k] * weights[k];
    WEFT_ASSERT_NEAR(square, 1.0, 20 * weft_u);
    weft_threads_destroy(threads);
}
END_TEST

START_TEST(vocab_is_near_exact)
{
    enum { VOCAB = 30000 };
    weft_kernel_check c = {.seed = 8};
    float *const x = weft_kit_nans(VOCAB);
    weft_kit_fill(&c, x, 1, VOCAB, VOCAB, 15.0f);
    x[777] = x[29999] = 15.5f;
    weft_vocab_stat stat;
    const weft_vocab op = {x, &stat, VOCAB, 1, VOCAB};
    weft_ops_reference()->vocab(NULL, &op);
    double sum = 0.0;
    for (int32_t i = 0; i < VOCAB; i++) sum += exp((double)x[i] - 15.5);
    ck_assert(!stat.nan);
    ck_assert_int_eq(stat.argmax, 777);
    ck_assert(stat.max == 15.5f);
    /* A relative error of the sum (64 a lane, 30 blocks, exp, x - max up to
     * 30) is an absolute one of its log. */
    const double relative = (64 + 4 + 30 + 2 + 30) * weft_u;
    WEFT_ASSERT_NEAR(stat.log_sum_exp, log(sum) + 15.5,
                     relative + 3 * weft_u * (15.5 + log(sum)));
    weft_mem_free(x);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {index_paths_agree,
                                  route_paths_agree,
                                  group_paths_agree,
                                  vocab_paths_agree,
                                  index_takes_the_best,
                                  select_orders_all_numbers,
                                  index_breaks_ties_by_position,
                                  route_by_hand,
                                  vocab_is_near_exact};
    return WEFT_SUITE_RUN("choice", tests);
}
