/* The lightning indexer of a device against the reference.
 *
 * In fp32 arithmetic the device adds in the reference's order, so that choices
 * are equal, whatever the numbers. On matrix units only dots have an order of
 * their own: where those are exact (small whole numbers) choices are equal too,
 * with any weights of heads; else nothing that was left out is better than
 * something taken by more than the rounding of dots. Pages are shuffled; what
 * lies between rows, pages and layers is NaN. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/cuda/index.h"

static const char *describe(const index_shape *s)
{
    static char text[128];
    (void)snprintf(text, sizeof text,
                   "%s keys%s, %d tokens, pages of %d, %d heads of %d, top %d",
                   weft_dtype_name(s->dtype),
                   s->pair ? ", queries in pairs" : "", s->n_tokens,
                   s->page_tokens, s->n_head, s->dim, s->top_k);
    return text;
}

/* All rows at once, then each alone. */
static void assert_as_reference(index_bench *b, const index_shape *s)
{
    const int32_t top_k = s->top_k;
    int32_t *const keys =
        weft_kit_new((size_t)s->n_row * (size_t)top_k, sizeof *keys);
    int32_t n_keys[INDEX_ROWS];
    index_by_reference(b);
    index_on_device(b, 0, s->n_row, keys, n_keys);
    index_assert_same(b, keys, n_keys, describe(s));
    for (int32_t r = 0; r < s->n_row; r++)
        index_on_device(b, r, 1, keys + (int64_t)r * top_k, n_keys + r);
    index_assert_same(b, keys, n_keys, "each row alone");
    weft_mem_free(keys);
}

static index_shape shape_of(int32_t i)
{
    static const int32_t lengths[] = {1, 17, 63, 64, 65, 130, 200, 97, 33};
    static const int32_t dims[] = {8, 40, 1, 24, 128, 17, 130, 64};
    static const int32_t heads[] = {1, 3, 8, 9, 2, 17, 64, 5, 70, 16, 33};
    static const int32_t tops[] = {7, 1, 16, 64, 31};
    static const int32_t pages[] = {16, 1, 3, 64};
    return (index_shape){.dtype = i % 2 == 0 ? WEFT_BF16 : WEFT_F32,
                         .n_tokens = lengths[i % 9],
                         .page_tokens = pages[i % 4],
                         .dim = dims[i / 2 % 8],
                         .n_head = heads[i % 11],
                         .top_k = tops[i % 5],
                         .n_row = 1 + i % 7};
}

/* The same with F8_E4M3 keys, which have a multiple of 4 elements. */
static index_shape f8_shape_of(int32_t i)
{
    index_shape s = shape_of(i);
    s.dtype = WEFT_F8_E4M3;
    s.dim = (s.dim + 3) / 4 * 4;
    return s;
}

START_TEST(fp32_is_the_reference)
{
    for (int32_t i = 0; i < 60; i++) {
        index_shape s = i < 36 ? shape_of(i) : f8_shape_of(i);
        s.whole = i % 3 == 2; /* many ties */
        index_bench b;
        index_make(&b, 100 + (uint64_t)i, &s);
        assert_as_reference(&b, &s);
        index_free(&b);
    }
}
END_TEST

/* Key 5 is 2^-24 above zero, if the second product is not rounded. */
START_TEST(products_are_fused)
{
    const index_shape s = {WEFT_F32, 9, 4, 32, 1, 1, 1, true, false};
    const float q[32] = {-1.0f, [16] = 0x1.001p0f}, one = 1.0f;
    const float key[32] = {0x1.002p0f, [16] = 0x1.001p0f};
    index_bench b;
    index_make(&b, 300, &s);
    memcpy((float *)(uintptr_t)b.op.q, q, sizeof q);
    memcpy((float *)(uintptr_t)b.op.w, &one, sizeof one);
    for (int32_t i = 0; i < 9 * 32; i++)
        index_set_key(&b, i / 32, i % 32, i / 32 == 5 ? key[i % 32] : 0.0f);
    assert_as_reference(&b, &s);
    index_free(&b);
}
END_TEST

/* Two heads in a row cancel exactly, and what is added between them is lost: so
 * a score shows the order of heads. */
static void cancel_heads(index_bench *b)
{
    float *const q = (float *)(uintptr_t)b->op.q;
    float *const w = (float *)(uintptr_t)b->op.w;
    const int64_t dim = b->op.head_dim;
    for (int32_t r = 0; r < b->op.n_row; r++)
        for (int32_t h = 1; h < b->op.n_head; h += 3) {
            float *const to = q + r * b->op.q_stride + h * dim;
            memcpy(to, to - dim, (size_t)dim * sizeof *to);
            w[r * b->op.w_stride + h - 1] = 1e12f;
            w[r * b->op.w_stride + h] = -1e12f;
        }
}

START_TEST(matrix_units_are_exact_on_whole_numbers)
{
    for (int32_t i = 0; i < 80; i++) {
        index_shape s = i < 40 ? shape_of(i) : f8_shape_of(i);
        if (i < 40) s.dtype = WEFT_BF16;
        s.whole = s.pair = true;
        index_bench b;
        index_make(&b, 200 + (uint64_t)i, &s);
        if (i % 2 == 1) cancel_heads(&b);
        assert_as_reference(&b, &s);
        index_free(&b);
    }
}
END_TEST

/* A score in double, and by how much rounding may have moved it. */
static double score_of(const index_bench *b, int32_t r, int32_t t,
                       double *error_out)
{
    const weft_index_select *const op = &b->op;
    double score = 0.0, error = 0.0;
    for (int32_t h = 0; h < op->n_head; h++) {
        double dot = 0.0, size = 0.0;
        for (int32_t i = 0; i < op->head_dim; i++) {
            const double term =
                (double)
                    op->q[r * op->q_stride + (int64_t)h * op->head_dim + i] *
                (double)index_get_key(b, t, i);
            dot += term;
            size += fabs(term);
        }
        const double w = (double)op->w[r * op->w_stride + h];
        score += w * fmax(dot, 0.0);
        /* Sums on matrix units may truncate: twice the bound of rounding; each
         * product is two there, and what they leave out of q is 2^-16. */
        error += fabs(w) * size *
                 ((4.0 * op->head_dim + op->n_head) * weft_u + 0x1p-16);
    }
    *error_out = error;
    return score;
}

static void assert_best(const index_bench *b, int32_t r, const int32_t *keys)
{
    const int32_t n = b->rows[r].position + 1, top_k = b->op.top_k;
    double worst = INFINITY, worst_error = 0.0;
    bool taken[256] = {false};
    for (int32_t i = 0; i < top_k; i++) {
        double error;
        ck_assert_int_lt(keys[i], n);
        ck_assert(i == 0 || keys[i] > keys[i - 1]);
        taken[keys[i]] = true;
        const double score = score_of(b, r, keys[i], &error);
        if (score + error >= worst + worst_error) continue;
        worst = score;
        worst_error = error;
    }
    for (int32_t t = 0; t < n; t++) {
        double error;
        const double score = taken[t] ? -INFINITY : score_of(b, r, t, &error);
        ck_assert_msg(taken[t] || score - error <= worst + worst_error,
                      "row %d leaves %d out, %.9g, and takes %.9g", r, t, score,
                      worst);
    }
}

START_TEST(matrix_units_take_the_best)
{
    for (int32_t i = 0; i < 40; i++) {
        index_shape s = i < 20 ? shape_of(i) : f8_shape_of(i);
        if (i < 20) s.dtype = WEFT_BF16;
        s.pair = true;
        index_bench b;
        index_make(&b, 300 + (uint64_t)i, &s);
        int32_t *const keys =
            weft_kit_new((size_t)s.n_row * (size_t)s.top_k, sizeof *keys);
        int32_t *const one = weft_kit_new((size_t)s.top_k, sizeof *one);
        int32_t n_keys[INDEX_ROWS], n_one;
        index_on_device(&b, 0, s.n_row, keys, n_keys);
        for (int32_t r = 0; r < s.n_row; r++) {
            const int32_t *const mine = keys + (int64_t)r * s.top_k;
            const bool all = b.rows[r].position < s.top_k;
            ck_assert_int_eq(n_keys[r], all ? b.rows[r].position + 1 : s.top_k);
            if (!all) assert_best(&b, r, mine);
            index_on_device(&b, r, 1, one, &n_one);
            ck_assert_int_eq(memcmp(one, mine, (size_t)s.top_k * sizeof *one),
                             0);
        }
        weft_mem_free(keys);
        weft_mem_free(one);
        index_free(&b);
    }
}
END_TEST

/* Scores so small that most are rounded to zeros, of either sign. */
static void shrink_scores(index_bench *b)
{
    float *const q = (float *)(uintptr_t)b->op.q;
    float *const w = (float *)(uintptr_t)b->op.w;
    for (int64_t i = 0; i < b->op.n_row * b->op.q_stride; i++) q[i] *= 0x1p-5f;
    for (int64_t i = 0; i < b->op.n_row * b->op.w_stride; i++)
        w[i] = weft_kit_int(&b->c, 0, 2) == 0 ? 0x1p-149f : -0x1p-149f;
}

/* A key of that kind: NaN, far above or below all others, zeros. */
static void set_kind(index_bench *b, int32_t t, int32_t kind, float largest)
{
    const bool f8 = b->op.keys.dtype == WEFT_F8_E4M3;
    const float far = f8 ? 448.0f : largest;
    if (kind == 0 && f8) index_set_scale(b, t, NAN);
    if (kind == 0 && !f8) index_set_key(b, t, t % 8, NAN);
    if (kind == 1) index_set_key(b, t, t % 8, far);
    if (kind == 2) index_set_key(b, t, t % 8, -far);
    if (kind == 1 && f8) index_set_scale(b, t, 0x1p120f);
    for (int32_t k = 0; kind == 3 && k < 8; k++) index_set_key(b, t, k, 0);
}

/* Zeros of both signs, NaN, infinities, and scores that are equal. */
START_TEST(order_is_that_of_all_numbers)
{
    for (int32_t i = 0; i < 48; i++) {
        const index_shape s = {.dtype = i >= 24      ? WEFT_F8_E4M3
                                        : i % 3 == 0 ? WEFT_F32
                                                     : WEFT_BF16,
                               .n_tokens = 150,
                               .page_tokens = 16,
                               .dim = 8,
                               .n_head = 1 + i % 4,
                               .top_k = 20 + i % 24,
                               .n_row = 3,
                               .whole = true,
                               .pair = i % 3 == 1};
        index_bench b;
        index_make(&b, 400 + (uint64_t)i, &s);
        for (int32_t t = 0; t < s.n_tokens; t++) {
            const int32_t kind = weft_kit_int(&b.c, 0, i % 24 < 12 ? 9 : 3);
            set_kind(&b, t, kind, s.pair ? 0x1p126f : INFINITY);
        }
        if (i % 4 == 0) shrink_scores(&b);
        assert_as_reference(&b, &s);
        index_free(&b);
    }
}
END_TEST

/* The same keys on other pages give the same choice. */
START_TEST(pages_do_not_matter)
{
    for (int32_t i = 0; i < 16; i++) {
        index_shape s = i < 8 ? shape_of(2 * i + 6) : f8_shape_of(2 * i);
        s.n_tokens = 150;
        s.pair = i % 2 == 0;
        const size_t key_bytes = (size_t)s.dim * weft_dtype_bytes(s.dtype) +
                                 (s.dtype == WEFT_F8_E4M3 ? 4 : 0);
        index_bench b, other;
        index_make(&b, 500 + (uint64_t)i, &s);
        s.page_tokens = 1 + i % 8 * 5;
        index_make(&other, 600 + (uint64_t)i, &s);
        for (int32_t t = 0; t < s.n_tokens; t++)
            memcpy(index_key_at(&other, t), index_key_at(&b, t), key_bytes);
        memcpy((float *)(uintptr_t)other.op.q, b.op.q,
               sizeof(float) * (size_t)(b.op.q_stride * s.n_row));
        memcpy((float *)(uintptr_t)other.op.w, b.op.w,
               sizeof(float) * (size_t)(b.op.w_stride * s.n_row));
        for (int32_t r = 0; r < s.n_row; r++)
            other.rows[r].position = b.rows[r].position;
        int32_t n_keys[INDEX_ROWS];
        index_on_device(&b, 0, s.n_row, b.keys, b.n_keys);
        index_on_device(&other, 0, s.n_row, other.keys, n_keys);
        index_assert_same(&b, other.keys, n_keys, "other pages");
        index_free(&b);
        index_free(&other);
    }
}
END_TEST

/* ---- rows longer than a segment, and than scratch ----------------------- */

typedef struct scored {
    float score;
    int32_t position;
} scored;

static int by_score(const void *x, const void *y)
{
    const scored *const a = x, *const b = y;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->position < b->position ? -1 : 1;
}

static int by_position(const void *x, const void *y)
{
    return ((const scored *)x)->position < ((const scored *)y)->position ? -1
                                                                         : 1;
}

/* By sorting; numbers are small and whole, so that any sum is exact. */
static void select_by_sorting(index_bench *b, int32_t r)
{
    const weft_index_select *const op = &b->op;
    const int32_t n = b->rows[r].position + 1,
                  k = n < op->top_k ? n : op->top_k;
    scored *const list = weft_kit_new((size_t)n, sizeof *list);
    for (int32_t t = 0; t < n; t++) {
        list[t].position = t;
        for (int32_t h = 0; h < op->n_head; h++) {
            float dot = 0.0f;
            for (int32_t i = 0; i < op->head_dim; i++)
                dot += op->q[r * op->q_stride + h * op->head_dim + i] *
                       index_get_key(b, t, i);
            list[t].score += op->w[r * op->w_stride + h] * fmaxf(dot, 0.0f);
        }
    }
    qsort(list, (size_t)n, sizeof *list, by_score);
    qsort(list, (size_t)k, sizeof *list, by_position);
    for (int32_t i = 0; i < k; i++)
        b->keys[r * op->top_k + i] = list[i].position;
    b->n_keys[r] = k;
    weft_mem_free(list);
}

static void assert_long(const index_shape *s, const int32_t *positions,
                        int32_t n_positions_max)
{
    index_bench b;
    index_make(&b, 700 + (uint64_t)s->n_tokens, s);
    float *const w = (float *)(uintptr_t)b.op.w;
    b.op.n_positions_max = n_positions_max;
    for (int32_t i = 0; i < s->n_row * (s->n_head + INDEX_PAD); i++)
        w[i] = (float)(1 + i % 3);
    memset(b.keys, 0xa5, (size_t)s->n_row * (size_t)s->top_k * sizeof *b.keys);
    for (int32_t r = 0; r < s->n_row; r++) {
        b.rows[r].position = positions[r];
        select_by_sorting(&b, r);
    }
    int32_t *const keys =
        weft_kit_new((size_t)s->n_row * (size_t)s->top_k, sizeof *keys);
    int32_t n_keys[INDEX_ROWS];
    index_on_device(&b, 0, s->n_row, keys, n_keys);
    index_assert_same(&b, keys, n_keys, describe(s));
    weft_mem_free(keys);
    index_free(&b);
}

START_TEST(long_rows_are_chosen_in_segments)
{
    (void)device_kit_open_scratch(8 << 20);
    index_shape s = {.dtype = WEFT_BF16,
                     .n_tokens = 33500,
                     .page_tokens = 64,
                     .dim = 4,
                     .n_head = 2,
                     .top_k = 100,
                     .n_row = 7,
                     .whole = true,
                     .pair = true};
    const int32_t positions[] = {33499, 16383, 16384, 99, 16483, 32768, 5000};
    assert_long(&s, positions, s.n_tokens);
    s.dtype = WEFT_F8_E4M3;
    s.n_row = 3;
    assert_long(&s, positions, s.n_tokens);
    s.pair = false;
    s.dtype = WEFT_F32;
    s.n_row = 2;
    assert_long(&s, positions, s.n_tokens);
    s.top_k = 5000; /* segments of 40000 */
    s.n_row = 1;
    s.n_tokens = 45100;
    const int32_t late[] = {45099};
    assert_long(&s, late, s.n_tokens);
}
END_TEST

/* Scratch holds the scores of one row, and then not even those: a row comes in
 * spans of 245760 positions, or, of 10000 keys, of 80000. */
START_TEST(small_scratch_cuts_rows_and_spans)
{
    (void)device_kit_open_scratch(1 << 20);
    index_shape s = {.dtype = WEFT_BF16,
                     .n_tokens = 300,
                     .page_tokens = 16,
                     .dim = 4,
                     .n_head = 2,
                     .top_k = 10,
                     .n_row = 5,
                     .whole = true,
                     .pair = true};
    const int32_t positions[] = {299, 5, 150, 10, 298};
    assert_long(&s, positions, 100000);  /* two rows */
    assert_long(&s, positions, 240000);  /* one */
    assert_long(&s, positions, 1000000); /* one in spans, all but one empty */
    s.n_tokens = 170000;
    s.top_k = 10000;
    s.n_row = 4;
    s.page_tokens = 1000;
    const int32_t late[] = {169999, 79999, 80000, 159999};
    assert_long(&s, late, 500000);
}
END_TEST

START_TEST(no_rows_do_nothing)
{
    const weft_device_api *const api = device_kit_open();
    const weft_index_select op = {.top_k = 4, .n_head = 1, .head_dim = 8};
    api->ops->index_select(NULL, &op);
    ck_assert_int_eq(api->sync(NULL), WEFT_OK);
}
END_TEST

int main(void)
{
    device_kit_need();
    const TTest *const tests[] = {fp32_is_the_reference,
                                  products_are_fused,
                                  matrix_units_are_exact_on_whole_numbers,
                                  matrix_units_take_the_best,
                                  order_is_that_of_all_numbers,
                                  pages_do_not_matter,
                                  long_rows_are_chosen_in_segments,
                                  small_scratch_cuts_rows_and_spans,
                                  no_rows_do_nothing};
    return WEFT_SUITE_RUN("cuda_index", tests);
}
