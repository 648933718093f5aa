/* Latent attention on a device: against softmax in double precision and the
 * reference of the CPU backend, and byte for byte against itself in other
 * company. Which kernel runs is decided by types, rounding, widths, heads and
 * the device; every one of them is reached here. */
#include "tests/cuda/attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/device_kit.h"
#include "tests/support/suite.h"

/* What goes into the cache, and what comes out. */
static const struct {
    weft_dtype dtype;
    weft_round round;
    const char *name;
} forms[] = {
    {WEFT_F32, WEFT_ROUND_NONE, "fp32"},
    {WEFT_BF16, WEFT_ROUND_NONE, "bf16 cache"},
    {WEFT_F32, WEFT_ROUND_BF16, "fp32 rounded"},
    {WEFT_BF16, WEFT_ROUND_BF16, "bf16"},
};
enum { N_FORM = sizeof forms / sizeof forms[0] };

static struct attn_scene scene_of(int32_t form, int32_t n_head, int32_t width,
                                  int32_t value_width)
{
    return (struct attn_scene){.seed = 77,
                               .dtype = forms[form].dtype,
                               .round = forms[form].round,
                               .width = width,
                               .value_width = value_width,
                               .n_head = n_head,
                               .scale = 0.6f,
                               .page_tokens = 16,
                               .row_pad = width % 8 == 0 ? 8 : 5};
}

static void add_row(struct attn_scene *s, int32_t seq, int32_t position,
                    int32_t first, int32_t step)
{
    s->rows[s->n_row] = (struct attn_spec){.tag = s->n_row,
                                           .seq = seq,
                                           .position = position,
                                           .first = first,
                                           .step = step};
    s->n_row++;
}

static void check(const struct attn_scene *s, const char *what)
{
    float *const got = attn_on_device(s);
    attn_assert_exact(s, got, what);
    attn_assert_reference(s, got, what);
    weft_mem_free(got);
}

/* Row r of one scene has the bytes of row k of another. */
static void assert_same(const struct attn_scene *s, const float *a, int32_t r,
                        const float *b, int32_t k, const char *what)
{
    const size_t width = (size_t)s->n_head * (size_t)s->value_width;
    ck_assert_msg(memcmp(a + (size_t)r * width, b + (size_t)k * width,
                         width * sizeof *a) == 0,
                  "%s: row %d is not as row %d", what, r, k);
}

static const int32_t lengths[] = {1,   2,   15,  16,  17,  31,  32, 33,
                                  255, 256, 257, 300, 511, 512, 513};
enum { N_LENGTH = sizeof lengths / sizeof lengths[0] };

/* Lengths around tiles, splits and pages, whole and after a window's start. */
START_TEST(agrees_with_reference)
{
    static const int32_t heads[] = {1, 2, 5, 8, 9, 16, 17, 24};
    static const int32_t widths[][2] = {{24, 16}, {40, 24}, {72, 64},
                                        {80, 80}, {25, 7},  {64, 33}};
    static const int32_t pages[] = {1, 4, 16, 64};
    const int32_t n = lengths[_i / N_FORM], form = _i % N_FORM;
    struct attn_scene s =
        scene_of(form, n > 256 ? heads[_i % 5] : heads[_i % 8],
                 widths[_i % 6][0], widths[_i % 6][1]);
    s.page_tokens = pages[(_i / 3) % 4];
    add_row(&s, 0, n - 1, 0, 0);
    add_row(&s, 1, n + 40, 41, 0);
    char what[80];
    (void)snprintf(what, sizeof what, "%s, %d keys, %d heads of %d, %d",
                   forms[form].name, n, s.n_head, s.width, s.value_width);
    check(&s, what);
}
END_TEST

/* Rows of two sequences: whole, windows, lists, and nothing to see. */
static void add_mixed(struct attn_scene *s)
{
    add_row(s, 0, 299, 0, 0);
    add_row(s, 1, 3, 4, 0);    /* none */
    add_row(s, 0, 550, 38, 0); /* a window of 513 */
    add_row(s, 1, 700, 0, 7);  /* a list */
    add_row(s, 1, 30, 0, 0);
    add_row(s, 0, 5, 6, 2);     /* an empty list */
    add_row(s, 0, 640, 384, 0); /* 257 keys */
}

START_TEST(mixed_rows)
{
    struct attn_scene s = scene_of(_i, 3, 40, 24);
    add_mixed(&s);
    check(&s, forms[_i].name);
}
END_TEST

/* The rows of a scene again, one by one and all together, after something
 * about it differs that must not matter. */
static void check_same(const struct attn_scene *s, const float *whole,
                       const char *what)
{
    float *got = attn_on_device(s);
    for (int32_t r = 0; r < s->n_row; r++)
        assert_same(s, got, r, whole, r, what);
    weft_mem_free(got);
}

START_TEST(company_does_not_matter)
{
    struct attn_scene s = scene_of(_i, 5, 72, 40);
    add_mixed(&s);
    float *const whole = attn_on_device(&s);
    for (int32_t r = 0; r < s.n_row; r++) {
        struct attn_scene alone = s;
        alone.n_row = 1;
        alone.rows[0] = s.rows[r];
        alone.page_seed = (uint64_t)r;
        float *const got = attn_on_device(&alone);
        assert_same(&s, got, 0, whole, r, "alone");
        weft_mem_free(got);
    }
    struct attn_scene many = s;
    for (int32_t r = 0; r < 3 * s.n_row; r++)
        many.rows[r] = s.rows[s.n_row - 1 - r % s.n_row];
    many.n_row = 3 * s.n_row;
    float *const got = attn_on_device(&many);
    for (int32_t r = 0; r < many.n_row; r++)
        assert_same(&s, got, r, whole, s.n_row - 1 - r % s.n_row, "in a crowd");
    weft_mem_free(got);
    weft_mem_free(whole);
}
END_TEST

START_TEST(memory_does_not_matter)
{
    struct attn_scene s = scene_of(_i, 4, 72, 40);
    add_mixed(&s);
    float *const whole = attn_on_device(&s);
    s.page_seed = 99;
    check_same(&s, whole, "other places of pages");
    s.page_tokens = 5;
    check_same(&s, whole, "other pages");
    s.row_pad = 3;
    check_same(&s, whole, "rows that are not aligned");
    s.n_keys_max = 3000;
    check_same(&s, whole, "room for more keys");
    weft_mem_free(whole);
}
END_TEST

/* Scratch has room for some rows at a time, for one, and for none. */
START_TEST(scratch_does_not_matter)
{
    static const int32_t splits[] = {130, 200, 400};
    struct attn_scene s = scene_of(_i, 8, 40, 80);
    s.width = 80;
    s.row_pad = 0;
    add_row(&s, 0, 299, 0, 0);
    add_row(&s, 1, 519, 1, 3);
    add_row(&s, 0, 513, 0, 0);
    add_row(&s, 1, 12, 0, 0);
    add_row(&s, 0, 400, 145, 0); /* one split, and not a key less */
    float *const whole = attn_on_device(&s);
    attn_assert_exact(&s, whole, "all at a time");
    for (int32_t i = 0; i < 3; i++) {
        s.n_keys_max = 256 * splits[i];
        check_same(&s, whole, "as scratch has room");
    }
    weft_mem_free(whole);
}
END_TEST

/* A window is what a list of its keys is, and one as long as the sequence is
 * none. */
START_TEST(window_is_a_list)
{
    struct attn_scene s = scene_of(_i, 3, 40, 32);
    static const int32_t firsts[] = {0, 1, 15, 16, 17, 255, 256, 257, 300};
    for (int32_t i = 0; i < 9; i++) {
        add_row(&s, 0, 300, firsts[i], 0);
        add_row(&s, 0, 300, firsts[i], 1);
        s.rows[s.n_row - 1].tag = s.rows[s.n_row - 2].tag = 5;
    }
    float *const got = attn_on_device(&s);
    for (int32_t r = 0; r < s.n_row; r += 2)
        assert_same(&s, got, r, got, r + 1, "window and list");
    attn_assert_exact(&s, got, "windows");
    weft_mem_free(got);
}
END_TEST

/* Scores far apart, rising and falling: maxima change in every tile. */
START_TEST(scores_far_apart)
{
    for (int32_t sign = -1; sign <= 1; sign += 2) {
        struct attn_scene s = scene_of(_i, 16, 48, 48);
        s.scale = (float)sign * 9.0f;
        add_row(&s, 0, 280, 0, 0);
        check(&s, forms[_i].name);
    }
}
END_TEST

/* The sizes of models, on devices with little and much shared memory
 * (libweft_simt.so plays the one that is named). */
static const struct {
    const char *sm;
    int32_t width, values, heads;
} sizes[] = {
    {"80", 576, 512, 3},    {"80", 576, 512, 37},   {"90", 576, 512, 33},
    {"90", 576, 512, 66},   {"86", 576, 512, 34},   {"80", 1088, 1024, 5},
    {"80", 1088, 1024, 18}, {"90", 1088, 1024, 33}, {"86", 1088, 1024, 17},
    {"90", 560, 500, 35},   {"90", 200, 150, 20},   {"86", 700, 600, 3},
    {"90", 1100, 1040, 2},  {"100", 576, 512, 66},  {"100", 1088, 1024, 33},
    {"90", 573, 511, 40},   {"90", 700, 600, 34},   {"90", 1085, 1023, 65},
};
enum { N_SIZE = sizeof sizes / sizeof sizes[0] };

START_TEST(sizes_of_models)
{
    ck_assert_int_eq(setenv("WEFT_SIMT_SM", sizes[_i].sm, 1), 0);
    struct attn_scene s =
        scene_of(3, sizes[_i].heads, sizes[_i].width, sizes[_i].values);
    s.scale = 0.1f;
    add_row(&s, 0, 36, 0, 0);
    add_row(&s, 0, 300, 290, 0);
    add_row(&s, 1, 3, 4, 0); /* none */
    char what[80];
    (void)snprintf(what, sizeof what, "sm_%s, %d heads of %d, %d", sizes[_i].sm,
                   s.n_head, s.width, s.value_width);
    float *const got = attn_on_device(&s);
    attn_assert_exact(&s, got, what);
    weft_mem_free(got);
}
END_TEST

/* Two splits of a model's size: what is folded in registers and by scratch. */
START_TEST(splits_of_models)
{
    ck_assert_int_eq(setenv("WEFT_SIMT_SM", "90", 1), 0);
    struct attn_scene s =
        scene_of(3, 2, _i == 0 ? 576 : 1088, _i == 0 ? 512 : 1024);
    s.scale = 0.1f;
    add_row(&s, 0, 260, 0, 0);
    float *const alone = attn_on_device(&s);
    attn_assert_exact(&s, alone, "two splits");
    for (int32_t r = 1; r < 8; r++) add_row(&s, 0, r == 3 ? 260 : 0, 0, 0);
    s.rows[3].tag = 0;
    float *const got = attn_on_device(&s);
    assert_same(&s, got, 0, alone, 0, "in a crowd");
    assert_same(&s, got, 3, alone, 0, "in a crowd");
    weft_mem_free(got);
    weft_mem_free(alone);
}
END_TEST

/* The kernels of compute capability 9.0 at the ends of tiles, splits, windows
 * and pages: in scratch and whole, wherever rows lie. */
START_TEST(hopper_at_edges)
{
    ck_assert_int_eq(setenv("WEFT_SIMT_SM", "90", 1), 0);
    struct attn_scene s =
        scene_of(3, 33, _i == 0 ? 576 : 1088, _i == 0 ? 512 : 1024);
    s.scale = 0.1f;
    add_row(&s, 0, 256, 0, 0);
    add_row(&s, 1, 3, 4, 0); /* none */
    add_row(&s, 0, 255, 0, 0);
    add_row(&s, 1, 62, 0, 0);
    add_row(&s, 0, 300, 37, 0);
    add_row(&s, 0, 300, 37, 1); /* the same as a list */
    s.rows[5].tag = s.rows[4].tag;
    float *const whole = attn_on_device(&s);
    attn_assert_exact(&s, whole, "at edges");
    assert_same(&s, whole, 4, whole, 5, "window and list");
    struct attn_scene alone = s;
    alone.n_row = 1;
    float *const got = attn_on_device(&alone);
    assert_same(&s, got, 0, whole, 0, "alone");
    weft_mem_free(got);
    s.page_seed = 99;
    s.page_tokens = 5;
    check_same(&s, whole, "other pages");
    s.row_pad = 3;
    s.n_keys_max = 3000;
    check_same(&s, whole, "rows that are not aligned, room for more keys");
    weft_mem_free(whole);
}
END_TEST

START_TEST(no_rows_is_nothing)
{
    const weft_device_api *const api = device_kit_open();
    const weft_attn op = {
        .n_row = 0, .n_head = 4, .width = 8, .value_width = 8};
    api->ops->attn(NULL, &op);
    device_kit_sync();
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_checked_fixture(tests, NULL, device_kit_close);
    tcase_add_loop_test(tests, agrees_with_reference, 0, N_LENGTH * N_FORM);
    tcase_add_loop_test(tests, mixed_rows, 0, N_FORM);
    tcase_add_loop_test(tests, company_does_not_matter, 0, N_FORM);
    tcase_add_loop_test(tests, memory_does_not_matter, 0, N_FORM);
    tcase_add_loop_test(tests, scratch_does_not_matter, 0, N_FORM);
    tcase_add_loop_test(tests, window_is_a_list, 0, N_FORM);
    tcase_add_loop_test(tests, scores_far_apart, 0, N_FORM);
    tcase_add_loop_test(tests, sizes_of_models, 0, N_SIZE);
    tcase_add_loop_test(tests, splits_of_models, 0, 2);
    tcase_add_loop_test(tests, hopper_at_edges, 0, 2);
    tcase_add_test(tests, no_rows_is_nothing);
}

int main(void)
{
    device_kit_need();
    return weft_suite_run_added("cuda attn", add);
}
