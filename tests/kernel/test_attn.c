#include "node/base/mem.h"
#include "tests/support/kernel_suite.h"

WEFT_PATHS_TEST(store_paths_agree, "store")
WEFT_PATHS_TEST(attn_paths_agree, "attn")

enum {
    WIDTH = 40,
    VALUES = 24,
    HEADS = 3,
    Q_ROW = HEADS * WIDTH,
    OUT_ROW = HEADS * VALUES
};

static float element(const weft_kit_pages *p, int32_t position, int32_t i)
{
    const int32_t page = position / p->paged.page_tokens;
    const unsigned char *const row =
        p->paged.base + p->pages[page] + p->paged.layer_offset +
        position % p->paged.page_tokens * p->paged.row_bytes;
    return weft_f32_of(p->paged.dtype, row, i);
}

/* Softmax attention of one head over keys [first, n) in double. */
static void assert_head(const weft_kit_pages *p, const float *q, int32_t first,
                        int32_t n, double scale, const float *out)
{
    static double s[2000];
    double most = -INFINITY, total = 0.0, score_error = 0.0;
    for (int32_t j = first; j < n; j++) {
        double size = 0.0;
        s[j] = 0.0;
        for (int32_t i = 0; i < WIDTH; i++) {
            const double term = (double)q[i] * element(p, j, i);
            s[j] += scale * term;
            size += scale * fabs(term);
        }
        most = fmax(most, s[j]);
        /* 3 terms a lane, 4 levels, the scale, s - m. */
        score_error = fmax(score_error, 10 * weft_u * size);
    }
    for (int32_t j = first; j < n; j++) total += s[j] = exp(s[j] - most);
    for (int32_t d = 0; d < VALUES; d++) {
        double exact = 0.0, size = 0.0;
        for (int32_t j = first; j < n; j++) {
            exact += s[j] / total * element(p, j, d);
            size += s[j] / total * fabs((double)element(p, j, d));
        }
        /* Scores enter p and L; 256 terms a split, 4 roundings a fold. */
        const double folds = 4.0 * (n - first) / 256 + 4;
        const double bound = 2 * score_error + (256 + 16 + folds + 12) * weft_u;
        WEFT_ASSERT_NEAR(out[d], exact, bound * size);
    }
}

START_TEST(reference_is_near_exact_softmax)
{
    weft_kernel_check c = {.seed = 4};
    static const int32_t counts[] = {1, 16, 255, 256, 257, 513, 1100};
    for (int32_t i = 0; i < 7; i++) {
        weft_kit_pages pages;
        weft_kit_pages_make(&c, i % 2 == 0 ? WEFT_BF16 : WEFT_F32, counts[i],
                            16, WIDTH, &pages);
        const weft_row rows[2] = {
            {.pages = pages.pages, .position = counts[i] - 1},
            {.pages = pages.pages,
             .position = counts[i] - 1,
             .first = counts[i] / 2}};
        float q[2 * Q_ROW], out[2 * OUT_ROW];
        weft_kit_fill(&c, q, 2, Q_ROW, Q_ROW, 4.0f);
        const weft_attn op = {.kv = pages.paged,
                              .rows = rows,
                              .q = q,
                              .out = out,
                              .q_stride = Q_ROW,
                              .out_stride = OUT_ROW,
                              .n_row = 2,
                              .n_head = HEADS,
                              .width = WIDTH,
                              .value_width = VALUES,
                              .scale = 0.25f};
        weft_ops_reference()->attn(NULL, &op);
        for (int32_t h = 0; h < 2 * HEADS; h++)
            assert_head(&pages, q + (int64_t)h * WIDTH, rows[h / HEADS].first,
                        counts[i], 0.25, out + (int64_t)h * VALUES);
        weft_kit_pages_free(&pages);
    }
}
END_TEST

START_TEST(a_window_as_long_as_the_context_changes_nothing)
{
    weft_kernel_check c = {.seed = 5};
    weft_kit_pages pages;
    weft_kit_pages_make(&c, WEFT_BF16, 300, 4, WIDTH, &pages);
    int32_t keys[300];
    for (int32_t i = 0; i < 300; i++) keys[i] = i;
    const weft_row rows[2] = {
        {.pages = pages.pages, .position = 299},
        {.pages = pages.pages, .position = 299, .keys = keys, .n_keys = 300}};
    float q[2 * WIDTH], out[2 * VALUES];
    weft_kit_fill(&c, q, 1, WIDTH, WIDTH, 4.0f);
    for (int32_t i = 0; i < WIDTH; i++) q[WIDTH + i] = q[i];
    const weft_attn op = {.kv = pages.paged,
                          .rows = rows,
                          .q = q,
                          .out = out,
                          .q_stride = WIDTH,
                          .out_stride = VALUES,
                          .n_row = 2,
                          .n_head = 1,
                          .width = WIDTH,
                          .value_width = VALUES,
                          .scale = 0.25f};
    weft_threads *threads = NULL;
    ck_assert_int_eq(weft_threads_create(2, &threads, NULL), WEFT_OK);
    for (int32_t p = 0; weft_ops_cpu_nth(p) != NULL; p++) {
        weft_ops_cpu_nth(p)->attn(threads, &op);
        ck_assert_mem_eq(out, out + VALUES, VALUES * sizeof *out);
    }
    weft_threads_destroy(threads);
    weft_kit_pages_free(&pages);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        store_paths_agree, attn_paths_agree, reference_is_near_exact_softmax,
        a_window_as_long_as_the_context_changes_nothing};
    return WEFT_SUITE_RUN("attn", tests);
}
