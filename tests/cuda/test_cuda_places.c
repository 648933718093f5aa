/* Ops of a device that know where a row stands: its position (rope), its token
 * (embedding), its page (store). All give the bits of the reference. */
#include "tests/cuda/rows.h"

/* Heads of a row: [n_row, n_head, 2 n_freq]; y is x in place. */
struct heads {
    float *x, *y, *cos, *sin;
    int64_t x_stride, x_head_stride, y_stride, y_head_stride;
    int32_t n_row, n_head, n_freq;
    int32_t shift; /* of all bases on the device, in floats */
    weft_round round;
    bool interleave, in_place;
};

static void run_rope(const weft_ops *ops, const struct heads *h)
{
    const weft_rope op = {.x = h->x,
                          .y = h->y,
                          .cos = h->cos,
                          .sin = h->sin,
                          .x_stride = h->x_stride,
                          .x_head_stride = h->x_head_stride,
                          .y_stride = h->y_stride,
                          .y_head_stride = h->y_head_stride,
                          .n_row = h->n_row,
                          .n_head = h->n_head,
                          .n_freq = h->n_freq,
                          .interleave = h->interleave,
                          .round = h->round};
    ops->rope(NULL, &op);
}

static int64_t span_x(const struct heads *h)
{
    return rows_span(
        h->n_row, h->x_stride,
        rows_span(h->n_head, h->x_head_stride, (int64_t)2 * h->n_freq));
}

static int64_t span_y(const struct heads *h)
{
    return rows_span(
        h->n_row, h->y_stride,
        rows_span(h->n_head, h->y_head_stride, (int64_t)2 * h->n_freq));
}

static void make_heads(weft_kernel_check *c, int32_t i, int32_t n_freq,
                       struct heads *h)
{
    *h = (struct heads){.n_row = weft_kit_int(c, 1, 4),
                        .n_head = weft_kit_int(c, 1, 9),
                        .n_freq = n_freq,
                        .shift = i % 5 == 0 ? 1 : 0,
                        .round = (weft_round)(i & 1),
                        .interleave = (i & 2) != 0,
                        .in_place = (i & 4) != 0};
    const int32_t width = 2 * n_freq, wide = (width + 3) / 4 * 4;
    const bool odd = i % 3 == 0;
    h->x_head_stride = odd ? width + 5 : wide + 4;
    h->x_stride = h->n_head * h->x_head_stride + (odd ? 1 : 8);
    h->y_head_stride = h->in_place ? h->x_head_stride : odd ? width + 3 : wide;
    h->y_stride = h->in_place ? h->x_stride
                              : h->n_head * h->y_head_stride + (odd ? 3 : 4);
    h->x = weft_kit_nans(span_x(h));
    h->y = h->in_place ? h->x : weft_kit_nans(span_y(h));
    for (int32_t r = 0; r < h->n_row; r++)
        weft_kit_fill(c, h->x + r * h->x_stride, h->n_head, width,
                      h->x_head_stride, 2.0f);
    const int32_t n = h->n_row * n_freq;
    h->cos = weft_kit_nans(n);
    h->sin = weft_kit_nans(n);
    weft_kit_fill(c, h->cos, 1, n, n, 1.0f);
    weft_kit_fill(c, h->sin, 1, n, n, 1.0f);
}

static void free_heads(struct heads *h)
{
    if (!h->in_place) weft_mem_free(h->y);
    weft_mem_free(h->x);
    weft_mem_free(h->cos);
    weft_mem_free(h->sin);
}

static float *rope_on_device(const struct heads *h)
{
    const int64_t n_table = (int64_t)h->n_row * h->n_freq;
    struct heads d = *h;
    d.x = rows_put(h->x, span_x(h), h->shift);
    d.y = h->in_place ? d.x : rows_put(h->y, span_y(h), h->shift);
    d.cos = rows_put(h->cos, n_table, h->shift);
    d.sin = rows_put(h->sin, n_table, h->shift);
    run_rope(device_kit_api()->ops, &d);
    float *const got = rows_get(d.y, span_y(h));
    if (!h->in_place) rows_free(d.y, h->shift);
    rows_free(d.x, h->shift);
    rows_free(d.cos, h->shift);
    rows_free(d.sin, h->shift);
    return got;
}

START_TEST(rope_has_the_reference_bits)
{
    (void)device_kit_open();
    static const int32_t freqs[] = {1, 2, 3, 4, 8, 12, 15, 16, 17, 32, 37, 64};
    weft_kernel_check c = {.seed = 21};
    for (int32_t i = 0; i < 96; i++) {
        struct heads h;
        make_heads(&c, i, freqs[i % 12], &h);
        float *const got = rope_on_device(&h);
        /* The last row by itself, and elsewhere. */
        const int32_t last = h.n_row - 1;
        struct heads one = h;
        one.n_row = 1;
        one.x += last * h.x_stride;
        one.y += last * h.y_stride;
        one.cos += (int64_t)last * h.n_freq;
        one.sin += (int64_t)last * h.n_freq;
        one.shift = h.shift == 0 ? 2 : 0;
        float *const alone = rope_on_device(&one);
        rows_assert_same(alone, got + last * h.y_stride, span_y(&one),
                         "rope, alone");
        run_rope(weft_ops_reference(), &h);
        rows_assert_same(got, h.y, span_y(&h), "rope");
        weft_mem_free(got);
        weft_mem_free(alone);
        free_heads(&h);
    }
}
END_TEST

/* cos and sin of rows x freqs angles, one after the other. */
static float *table_on_device(const int32_t *positions, int32_t n_row,
                              const float *freq, int32_t n_freq, float factor)
{
    const int64_t n = (int64_t)n_row * n_freq;
    float *const nans = weft_kit_nans(2 * n);
    float *const table = rows_put(nans, 2 * n, 0);
    float *const d_freq = rows_put(freq, n_freq, 0);
    int32_t *const d_positions =
        device_kit_put(positions, (size_t)n_row * sizeof *positions);
    const weft_rope_table op = {.positions = d_positions,
                                .inv_freq = d_freq,
                                .cos_out = table,
                                .sin_out = table + n,
                                .n_row = n_row,
                                .n_freq = n_freq,
                                .factor = factor};
    device_kit_api()->ops->rope_table(NULL, &op);
    float *const got = rows_get(table, 2 * n);
    weft_mem_free(nans);
    rows_free(table, 0);
    rows_free(d_freq, 0);
    device_kit_free(d_positions);
    return got;
}

START_TEST(rope_table_has_the_reference_bits)
{
    (void)device_kit_open();
    static const int32_t positions[] = {0,      1,       2,       1000,
                                        131071, 1048575, 9999999, 16777215};
    weft_kernel_check c = {.seed = 22};
    for (int32_t n_freq = 1; n_freq <= 67; n_freq += 11) {
        const int64_t n = (int64_t)8 * n_freq;
        float *const freq = weft_kit_nans(n_freq);
        for (int32_t i = 0; i < n_freq; i++)
            freq[i] = i == 0 ? 1.0f
                             : fabsf(weft_kit_float(&c, 1.0f)) /
                                   (float)(1 << (i % 20));
        const float factor = n_freq % 2 == 0 ? 1.0f : 1.19f;
        float *const expected = weft_kit_nans(2 * n);
        const weft_rope_table op = {.positions = positions,
                                    .inv_freq = freq,
                                    .cos_out = expected,
                                    .sin_out = expected + n,
                                    .n_row = 8,
                                    .n_freq = n_freq,
                                    .factor = factor};
        weft_ops_reference()->rope_table(NULL, &op);
        float *const got = table_on_device(positions, 8, freq, n_freq, factor);
        rows_assert_same(got, expected, 2 * n, "table");
        for (int32_t r = 0; r < 8; r++)
            for (int32_t i = 0; i < n_freq; i++) {
                const int64_t at = (int64_t)r * n_freq + i;
                const double angle = (float)positions[r] * freq[i];
                WEFT_ASSERT_NEAR(got[at], cos(angle) * factor, 2.5 * weft_u);
                WEFT_ASSERT_NEAR(got[n + at], sin(angle) * factor,
                                 2.5 * weft_u);
            }
        weft_mem_free(freq);
        weft_mem_free(expected);
        weft_mem_free(got);
    }
}
END_TEST

/* From 2^30 on a float does not say which angle is meant. */
START_TEST(rope_table_ends_with_the_angles)
{
    (void)device_kit_open();
    static const int32_t positions[] = {1073741760, 1073741824, INT32_MAX};
    static const float freq[] = {1.0f, 0.5f, 0.25f};
    float *const got = table_on_device(positions, 3, freq, 3, 1.0f);
    for (int32_t r = 0; r < 3; r++)
        for (int32_t i = 0; i < 3; i++) {
            const float angle = (float)positions[r] * freq[i];
            const bool ends = angle >= 0x1p30f;
            ck_assert_int_eq(isnan(got[3 * r + i]) != 0, ends);
            ck_assert_int_eq(isnan(got[9 + 3 * r + i]) != 0, ends);
        }
    weft_mem_free(got);
}
END_TEST

static void embed_case(weft_kernel_check *c, weft_dtype dtype, int32_t width,
                       int32_t y_stride)
{
    static const int32_t ids[] = {0, 6, 3, 3, 1};
    const size_t bytes = 7 * (size_t)width * weft_dtype_bytes(dtype);
    const int64_t n = rows_span(5, y_stride, width);
    unsigned char *const table = weft_kit_new(bytes, 1);
    for (size_t k = 0; k < bytes; k++)
        table[k] = (unsigned char)weft_kit_bits(c);
    float *const y = weft_kit_nans(n);
    weft_embed op = {.table = table,
                     .ids = ids,
                     .y = y,
                     .dtype = dtype,
                     .y_stride = y_stride,
                     .n_row = 5,
                     .width = width};
    weft_embed d = op;
    void *const d_table = device_kit_put(table, bytes);
    void *const d_ids = device_kit_put(ids, sizeof ids);
    float *const d_y = rows_put(y, n, 0);
    d.table = d_table;
    d.ids = d_ids;
    d.y = d_y;
    device_kit_api()->ops->embed(NULL, &d);
    float *const got = rows_get(d_y, n);
    weft_ops_reference()->embed(NULL, &op);
    rows_assert_same(got, y, n, weft_dtype_name(dtype));
    device_kit_free(d_table);
    device_kit_free(d_ids);
    rows_free(d_y, 0);
    weft_mem_free(table);
    weft_mem_free(y);
    weft_mem_free(got);
}

START_TEST(embed_has_the_reference_bits)
{
    (void)device_kit_open();
    static const int32_t widths[] = {1,   2,   3,   4,    24,   40,   127,
                                     128, 129, 257, 1023, 1024, 1025, 2100};
    weft_kernel_check c = {.seed = 23};
    for (int32_t d = WEFT_F32; d <= WEFT_F8_E4M3; d++)
        for (int32_t i = 0; i < 14; i++)
            embed_case(&c, (weft_dtype)d, widths[i], widths[i] + i % 3);
}
END_TEST

/* What a store writes on the device, as a host copy of all pages. */
static unsigned char *store_on_device(const weft_store *op,
                                      const weft_kit_pages *pages,
                                      int32_t shift)
{
    weft_store d = *op;
    int64_t *const table =
        device_kit_put(pages->pages, (size_t)pages->n_page * sizeof *table);
    weft_row *const rows = weft_kit_new((size_t)op->n_row, sizeof *rows);
    for (int32_t r = 0; r < op->n_row; r++) {
        rows[r] = op->rows[r];
        if (rows[r].position >= 0) rows[r].pages = table;
    }
    weft_row *const d_rows =
        device_kit_put(rows, (size_t)op->n_row * sizeof *rows);
    float *const x =
        rows_put(op->x, rows_span(op->n_row, op->x_stride, op->width), shift);
    d.to.base = device_kit_put(pages->paged.base, pages->bytes);
    d.rows = d_rows;
    d.x = x;
    device_kit_api()->ops->store(NULL, &d);
    unsigned char *const got = weft_kit_new(pages->bytes, 1);
    device_kit_get(got, d.to.base, pages->bytes);
    weft_mem_free(rows);
    device_kit_free(table);
    device_kit_free(d_rows);
    device_kit_free(d.to.base);
    rows_free(x, shift);
    return got;
}

static void store_case(weft_kernel_check *c, int32_t i, bool lost, bool f8)
{
    static const int32_t widths[] = {1, 4, 15, 16, 17, 33, 64, 130, 576};
    static const int32_t page_sizes[] = {1, 3, 4, 16, 64};
    const int32_t n_tokens = 70;
    const int32_t width = f8 ? (widths[i % 9] + 3) / 4 * 4 : widths[i % 9];
    const weft_dtype dtype = f8             ? WEFT_F8_E4M3
                             : (i & 8) != 0 ? WEFT_F32
                                            : WEFT_BF16;
    weft_kit_pages pages;
    weft_kit_pages_make(c, dtype, n_tokens, page_sizes[i % 5], width, &pages);
    const int32_t n_row = weft_kit_int(c, 1, 20);
    const int32_t first = weft_kit_int(c, 0, n_tokens - n_row);
    const int64_t stride = i % 3 == 0 ? width + 1 : (width + 3) / 4 * 4 + 4;
    weft_row *const rows = weft_kit_new((size_t)n_row, sizeof *rows);
    for (int32_t r = 0; r < n_row; r++)
        rows[r] = (weft_row){.pages = pages.pages, .position = first + r};
    if (!lost && i % 4 == 1) rows[n_row / 2] = (weft_row){.position = -1};
    float *const x = weft_kit_nans(rows_span(n_row, stride, width));
    weft_kit_fill(c, x, n_row, width, stride, 2.0f);
    x[0] = NAN;
    for (int32_t r = 0; r < n_row && f8; r += 2)
        weft_kit_key_edge(x + r * stride, width, i + r / 2);
    weft_store op = {.to = pages.paged,
                     .rows = rows,
                     .x = x,
                     .x_stride = stride,
                     .n_row = n_row,
                     .width = width};
    const int32_t page = first / page_sizes[i % 5];
    const int64_t held = pages.pages[page];
    if (lost) pages.pages[page] = -1;
    unsigned char *const got = store_on_device(&op, &pages, i % 2);
    /* The reference writes the rows of the page that is not held nowhere. */
    while (lost && op.n_row > 0 &&
           op.rows[0].position / page_sizes[i % 5] == page) {
        op.rows++;
        op.x += stride;
        op.n_row--;
    }
    weft_ops_reference()->store(NULL, &op);
    ck_assert_mem_eq(got, pages.paged.base, pages.bytes);
    pages.pages[page] = held;
    weft_mem_free(got);
    weft_mem_free(x);
    weft_mem_free(rows);
    weft_kit_pages_free(&pages);
}

START_TEST(store_writes_what_the_reference_does)
{
    (void)device_kit_open();
    weft_kernel_check c = {.seed = 24};
    for (int32_t i = 0; i < 90; i++) store_case(&c, i, false, false);
    for (int32_t i = 0; i < 90; i++) store_case(&c, i, false, true);
}
END_TEST

/* All codes, what is halfway between two, and to either side of that, in a key
 * whose scale is 1; and in one whose scale is 2^-30. */
START_TEST(codes_are_the_nearest)
{
    enum { CODES = 0x7e, WIDTH = 8 * CODES };
    (void)device_kit_open();
    weft_kernel_check c = {.seed = 26};
    weft_kit_pages pages;
    weft_kit_pages_make(&c, WEFT_F8_E4M3, 2, 4, WIDTH, &pages);
    const weft_row rows[2] = {{.pages = pages.pages},
                              {.pages = pages.pages, .position = 1}};
    float x[2 * WIDTH];
    for (int32_t b = 0; b < CODES; b++) {
        const float low = weft_f32_of_f8((uint8_t)b);
        const float high = weft_f32_of_f8((uint8_t)(b + 1));
        const float middle = low + (high - low) / 2.0f;
        const float four[] = {high, middle, nextafterf(middle, 0.0f),
                              nextafterf(middle, high)};
        for (int32_t k = 0; k < 8; k++) {
            const float value = k < 4 ? four[k] : -four[k - 4];
            x[8 * b + k] = value;
            x[WIDTH + 8 * b + k] = value * 0x1p-30f;
        }
    }
    const weft_store op = {.to = pages.paged,
                           .rows = rows,
                           .x = x,
                           .x_stride = WIDTH,
                           .n_row = 2,
                           .width = WIDTH};
    unsigned char *const got = store_on_device(&op, &pages, 0);
    weft_ops_reference()->store(NULL, &op);
    ck_assert_mem_eq(got, pages.paged.base, pages.bytes);
    weft_mem_free(got);
    weft_kit_pages_free(&pages);
}
END_TEST

START_TEST(store_skips_pages_that_are_not_held)
{
    (void)device_kit_open();
    weft_kernel_check c = {.seed = 25};
    for (int32_t i = 0; i < 60; i++) store_case(&c, i, true, i >= 30);
}
END_TEST

int main(void)
{
    device_kit_need();
    const TTest *const tests[] = {
        rope_has_the_reference_bits,          rope_table_has_the_reference_bits,
        rope_table_ends_with_the_angles,      embed_has_the_reference_bits,
        store_writes_what_the_reference_does, codes_are_the_nearest,
        store_skips_pages_that_are_not_held};
    return WEFT_SUITE_RUN("cuda_places", tests);
}
