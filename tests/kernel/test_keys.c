/* Index keys in F8_E4M3: codes, scales, scores. */
#include <float.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/kernel_suite.h"

/* Paths against the reference, these keys among others: test_choice.c and
 * test_elementwise.c. */

static float at_code(int32_t code)
{
    return weft_f32_of_f8((uint8_t)code);
}

START_TEST(every_code_comes_back)
{
    for (int32_t b = 0; b < 256; b++) {
        const bool nan = (b & 0x7f) == 0x7f;
        ck_assert_int_eq(weft_f8_of_f32(at_code(b)), nan ? 0 : b);
    }
}
END_TEST

/* Halfway between two codes the one with an even mantissa is nearest; a float
 * to either side of it is not halfway. */
START_TEST(midpoints_go_to_even)
{
    for (int32_t b = 0; b < 0x7e; b++) {
        const float low = at_code(b), high = at_code(b + 1);
        const float middle = low + (high - low) / 2.0f; /* exact */
        const int32_t even = b % 2 == 0 ? b : b + 1;
        for (int32_t sign = 0; sign < 256; sign += 128) {
            const float s = sign != 0 ? -1.0f : 1.0f;
            ck_assert_int_eq(weft_f8_of_f32(s * middle), sign + even);
            ck_assert_int_eq(weft_f8_of_f32(s * nextafterf(middle, 0.0f)),
                             sign + b);
            ck_assert_int_eq(weft_f8_of_f32(s * nextafterf(middle, 1e3f)),
                             sign + b + 1);
            ck_assert_int_eq(weft_f8_of_f32(s * nextafterf(high, 0.0f)),
                             sign + b + 1);
        }
    }
}
END_TEST

START_TEST(what_is_above_saturates)
{
    const float above[] = {448.0f, 448.5f, 464.0f, 480.0f, FLT_MAX, INFINITY};
    for (size_t i = 0; i < sizeof above / sizeof *above; i++) {
        ck_assert_int_eq(weft_f8_of_f32(above[i]), 0x7e);
        ck_assert_int_eq(weft_f8_of_f32(-above[i]), 0xfe);
    }
    ck_assert_int_eq(weft_f8_of_f32(NAN), 0);
    ck_assert_int_eq(weft_f8_of_f32(0x1p-149f), 0);
    ck_assert_int_eq(weft_f8_of_f32(-0x1p-149f), 0x80);
    ck_assert_int_eq(weft_f8_of_f32(-0.0f), 0x80);
}
END_TEST

enum { WIDTH_MAX = 132 };

/* By the words of ops.h, in double: x is what was stored. */
static void assert_key(const unsigned char *key, const float *x, int32_t width)
{
    double largest = 0.0, scale = 0x1p-126;
    for (int32_t i = 0; i < width; i++)
        largest = fmax(largest, fabs((double)x[i]));
    if (largest == 0.0) scale = 1.0;
    while (largest > 448.0 * scale) scale *= 2.0;
    float stored;
    memcpy(&stored, key + width, sizeof stored);
    ck_assert_msg(stored == scale, "scale %g, not %g", (double)stored, scale);
    for (int32_t i = 0; i < width; i++) {
        const double value = x[i] / scale;
        const double off = fabs((double)at_code(key[i]) - value);
        ck_assert_int_ne(key[i] & 0x7f, 0x7f);
        ck_assert(signbit(at_code(key[i])) == signbit(x[i]));
        for (int32_t b = 0; b < 256; b++) {
            if ((b & 0x7f) == 0x7f) continue;
            const double other = fabs((double)at_code(b) - value);
            ck_assert_msg(off <= other, "%g is %g, nearer is %g", value,
                          (double)at_code(key[i]), (double)at_code(b));
            ck_assert_msg(off < other || (key[i] & 1) == 0 ||
                              at_code(b) == at_code(key[i]),
                          "%g is halfway, and not even", value);
        }
    }
}

static void store_key(const weft_ops *ops, weft_threads *threads,
                      unsigned char *to, const float *x, int32_t width)
{
    const int64_t page = 0;
    const weft_row row = {.pages = &page};
    const weft_store op = {.to = {.base = to,
                                  .row_bytes = width + 4,
                                  .page_tokens = 1,
                                  .dtype = WEFT_F8_E4M3},
                           .rows = &row,
                           .x = x,
                           .x_stride = width,
                           .n_row = 1,
                           .width = width};
    memset(to, 0xff, (size_t)width + 4);
    ops->store(threads, &op);
}

/* Numbers of all sizes that a scale can have, and edges of it. */
START_TEST(a_stored_key_is_the_nearest)
{
    static const float edges[] = {0.0f,        -0.0f,       0x1p-149f,
                                  0x1.cp-119f, 0x1.cp-118f, 0x1.c00002p-118f,
                                  0x1.cp8f,    448.00003f,  0x1.fffffep8f,
                                  FLT_MAX,     -FLT_MAX,    0x1.cp127f};
    weft_kernel_check c = {.seed = 91};
    weft_threads *threads = NULL;
    ck_assert_int_eq(weft_threads_create(1, &threads, NULL), WEFT_OK);
    for (int32_t i = 0; i < 120; i++) {
        const int32_t width = i % 3 == 0 ? 4 : i % 3 == 1 ? 128 : WIDTH_MAX;
        const int32_t power = weft_kit_int(&c, -149, 126);
        const int32_t n_edge = sizeof edges / sizeof *edges;
        float x[WIDTH_MAX];
        unsigned char key[WIDTH_MAX + 4], other[WIDTH_MAX + 4];
        for (int32_t k = 0; k < width; k++)
            x[k] = i < n_edge ? edges[i] * (float)weft_kit_int(&c, 0, 1)
                              : ldexpf(weft_kit_float(&c, 1.0f), power);
        if (i < n_edge) x[i % width] = edges[i];
        store_key(weft_ops_reference(), NULL, key, x, width);
        assert_key(key, x, width);
        for (int32_t p = 0; weft_ops_cpu_nth(p) != NULL; p++) {
            store_key(weft_ops_cpu_nth(p), threads, other, x, width);
            ck_assert_mem_eq(other, key, (size_t)width + 4);
        }
    }
    weft_threads_destroy(threads);
}
END_TEST

START_TEST(a_key_that_is_no_number_has_no_score)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (int32_t i = 0; i < 12; i++) {
        float x[8] = {1.0f, -3.0f, 448.0f, 0.5f, 1e9f, 0.0f, 2.0f, 1.0f};
        unsigned char key[12];
        float scale;
        x[i % 8] = bad[i % 3];
        store_key(weft_ops_reference(), NULL, key, x, 8);
        memcpy(&scale, key + 8, sizeof scale);
        ck_assert(isnan(scale));
        for (int32_t k = 0; k < 8; k++) ck_assert_int_eq(key[k], 0);
    }
}
END_TEST

/* ---- scores ------------------------------------------------------------- */

enum { TOKENS = 500, DIM = 24, HEADS = 3, TOP = 40, PAGE = 16 };

static unsigned char *key_at(const weft_kit_pages *p, int32_t position)
{
    return p->paged.base + p->pages[position / PAGE] + p->paged.layer_offset +
           position % PAGE * p->paged.row_bytes;
}

static void set_scale(const weft_kit_pages *p, int32_t position, float scale)
{
    memcpy(key_at(p, position) + DIM, &scale, sizeof scale);
}

/* Keys of one row by every path and the reference; all are the same. */
static void select_everywhere(const weft_kit_pages *pages, const float *q,
                              const float *w, int32_t n_head, int32_t *keys_out)
{
    weft_row row = {.pages = pages->pages, .position = TOKENS - 1};
    float scratch[TOKENS];
    int32_t n_keys = 0, keys[TOP];
    weft_index_select op = {.keys = pages->paged,
                            .rows = &row,
                            .q = q,
                            .w = w,
                            .keys_out = keys_out,
                            .n_keys_out = &n_keys,
                            .scratch = scratch,
                            .scratch_stride = TOKENS,
                            .n_row = 1,
                            .n_head = n_head,
                            .head_dim = DIM,
                            .top_k = TOP};
    weft_ops_reference()->index_select(NULL, &op);
    ck_assert_int_eq(n_keys, TOP);
    op.keys_out = keys;
    weft_threads *threads = NULL;
    ck_assert_int_eq(weft_threads_create(1, &threads, NULL), WEFT_OK);
    for (int32_t p = 0; weft_ops_cpu_nth(p) != NULL; p++) {
        weft_ops_cpu_nth(p)->index_select(threads, &op);
        ck_assert_mem_eq(keys, keys_out, sizeof keys);
    }
    weft_threads_destroy(threads);
}

static double score_of(const weft_kit_pages *p, int32_t position,
                       const float *q, const float *w, double *error_out)
{
    const unsigned char *const key = key_at(p, position);
    float scale;
    memcpy(&scale, key + DIM, sizeof scale);
    double score = 0.0, size = 0.0;
    for (int32_t h = 0; h < HEADS; h++) {
        double dot = 0.0;
        for (int32_t i = 0; i < DIM; i++) {
            const double term = (double)q[h * DIM + i] * at_code(key[i]);
            dot += term;
            size += fabs(w[h] * term) * scale;
        }
        score += w[h] * fmax(dot, 0.0);
    }
    *error_out = (DIM + HEADS + 2) * weft_u * size;
    return score * scale;
}

/* Nothing that was left out is clearly better than something taken. Scales
 * differ so much that without them others are the best. */
START_TEST(scaled_scores_decide)
{
    weft_kernel_check c = {.seed = 92};
    weft_kit_pages pages;
    weft_kit_pages_make(&c, WEFT_F8_E4M3, TOKENS, PAGE, DIM, &pages);
    float q[HEADS * DIM];
    const float w[HEADS] = {0.5f, -0.3f, 0.9f};
    int32_t keys[TOP];
    weft_kit_fill(&c, q, 1, HEADS * DIM, (int64_t)HEADS * DIM, 1.0f);
    select_everywhere(&pages, q, w, HEADS, keys);
    bool taken[TOKENS] = {false};
    double worst = INFINITY, best_left = -INFINITY;
    for (int32_t i = 0; i < TOP; i++) {
        double error;
        ck_assert(i == 0 || keys[i] > keys[i - 1]);
        taken[keys[i]] = true;
        const double score = score_of(&pages, keys[i], q, w, &error);
        worst = fmin(worst, score + error);
    }
    for (int32_t j = 0; j < TOKENS; j++) {
        double error;
        const double score = score_of(&pages, j, q, w, &error);
        if (!taken[j]) best_left = fmax(best_left, score - error);
    }
    ck_assert_msg(worst >= best_left, "took %g, left %g", worst, best_left);
    weft_kit_pages_free(&pages);
}
END_TEST

/* The same values by other codes and scales are ties, and go by position; keys
 * without a number are taken by nobody. */
START_TEST(ties_of_other_scales_go_by_position)
{
    weft_kernel_check c = {.seed = 93};
    weft_kit_pages pages;
    weft_kit_pages_make(&c, WEFT_F8_E4M3, TOKENS, PAGE, DIM, &pages);
    for (int32_t t = 0; t < TOKENS; t++) {
        const int32_t up = t % 5; /* codes 2^up as large */
        for (int32_t i = 0; i < DIM; i++)
            key_at(&pages, t)[i] =
                weft_f8_of_f32(ldexpf((float)(1 + i % 7), up));
        set_scale(&pages, t, t % 11 == 3 ? NAN : ldexpf(0.25f, -up));
    }
    float q[DIM];
    const float w = 1.0f;
    int32_t keys[TOP];
    for (int32_t i = 0; i < DIM; i++) q[i] = 1.0f;
    select_everywhere(&pages, q, &w, 1, keys);
    for (int32_t i = 0, t = 0; i < TOP; i++, t++) {
        if (t % 11 == 3) t++;
        ck_assert_int_eq(keys[i], t);
    }
    /* A better one, by its scale alone. */
    set_scale(&pages, TOKENS - 1, 64.0f);
    select_everywhere(&pages, q, &w, 1, keys);
    ck_assert_int_eq(keys[TOP - 1], TOKENS - 1);
    ck_assert_int_eq(keys[0], 0);
    weft_kit_pages_free(&pages);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {every_code_comes_back,
                                  midpoints_go_to_even,
                                  what_is_above_saturates,
                                  a_stored_key_is_the_nearest,
                                  a_key_that_is_no_number_has_no_score,
                                  scaled_scores_decide,
                                  ties_of_other_scales_go_by_position};
    return WEFT_SUITE_RUN("keys", tests);
}
