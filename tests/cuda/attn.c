#include "tests/cuda/attn.h"

#include <check.h>
#include <math.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/device_kit.h"
#include "tests/support/kernel_kit.h"

/* Not a page: an access through it is far outside of every block. */
static const int64_t unheld = -((int64_t)1 << 40);
/* Half the distance of 1 to the next float, and to the next bfloat16. */
static const double u32 = 0x1p-24, u16 = 0x1p-8;

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
}

/* About uniform in (-1, 1). */
static float number(uint64_t seed, int32_t a, int32_t b, int32_t c)
{
    const uint64_t x =
        mix(mix(mix(mix(seed) + (uint64_t)a) + (uint64_t)b) + (uint64_t)c);
    return (float)((double)(x >> 40) * 0x1p-23 - 1.0);
}

int32_t attn_n_keys(const struct attn_spec *row)
{
    const int32_t n = row->position - row->first + 1;
    if (n <= 0) return 0;
    return row->step > 1 ? (n + row->step - 1) / row->step : n;
}

int32_t attn_position(const struct attn_spec *row, int32_t j)
{
    return row->first + j * (row->step > 1 ? row->step : 1);
}

float attn_cached(const struct attn_scene *s, int32_t seq, int32_t position,
                  int32_t i)
{
    const float x = number(s->seed, seq, position, i);
    return s->dtype == WEFT_BF16 ? weft_f32_of_bf16(weft_bf16_of_f32(x)) : x;
}

float attn_query(const struct attn_scene *s, int32_t tag, int32_t head,
                 int32_t i)
{
    const float x = number(s->seed + 1, tag, head, i);
    return s->round == WEFT_ROUND_BF16 ? weft_f32_of_bf16(weft_bf16_of_f32(x))
                                       : x;
}

/* Everything of a scene in host memory. */
struct memory {
    unsigned char *base;
    size_t bytes;
    int64_t row_bytes, layer_offset, page_bytes;
    int32_t n_page; /* of a sequence */
    int64_t *pages; /* [ATTN_SEQS, n_page] */
    int32_t *keys;  /* lists, one after another */
    int32_t n_keys, at[ATTN_ROWS];
    float *q, *out;
    int64_t q_stride, out_stride, n_q, n_out;
    int32_t longest;
};

/* Slots of all pages in a random order, and a slot that nobody has. */
static void place_pages(const struct attn_scene *s, struct memory *m)
{
    const int32_t n = ATTN_SEQS * m->n_page;
    m->pages = weft_kit_new((size_t)n, sizeof *m->pages);
    for (int32_t i = 0; i < n; i++) {
        const int32_t j =
            (int32_t)(mix(s->page_seed + (uint64_t)i) % (uint64_t)(i + 1));
        m->pages[i] = m->pages[j];
        m->pages[j] = (i + 1) * m->page_bytes;
    }
    m->bytes = (size_t)(n * m->page_bytes + m->layer_offset +
                        (s->page_tokens - 1) * m->row_bytes +
                        s->width * (int64_t)weft_dtype_bytes(s->dtype));
    m->base = weft_kit_new(m->bytes + (size_t)m->page_bytes, 1);
    m->bytes += (size_t)m->page_bytes;
    memset(m->base, 0xff, m->bytes);
}

static void put_cached(const struct attn_scene *s, const struct memory *m,
                       int32_t seq, int32_t position)
{
    const int32_t page = seq * m->n_page + position / s->page_tokens;
    unsigned char *const at = m->base + m->pages[page] + m->layer_offset +
                              position % s->page_tokens * m->row_bytes;
    for (int32_t i = 0; i < s->width; i++) {
        const float x = attn_cached(s, seq, position, i);
        const uint16_t half = weft_bf16_of_f32(x);
        if (s->dtype == WEFT_BF16)
            memcpy(at + (int64_t)2 * i, &half, sizeof half);
        else
            memcpy(at + (int64_t)4 * i, &x, sizeof x);
    }
}

/* Visible rows, lists, and away with the pages that nobody sees. */
static void fill_keys(const struct attn_scene *s, struct memory *m)
{
    const int32_t n_page = ATTN_SEQS * m->n_page;
    bool *const seen = weft_kit_new((size_t)n_page, sizeof *seen);
    m->keys = weft_kit_new((size_t)s->n_row *
                               (size_t)(m->longest > 0 ? m->longest : 1),
                           sizeof *m->keys);
    for (int32_t r = 0; r < s->n_row; r++) {
        const struct attn_spec *const row = &s->rows[r];
        m->at[r] = m->n_keys;
        for (int32_t j = 0; j < attn_n_keys(row); j++) {
            const int32_t position = attn_position(row, j);
            put_cached(s, m, row->seq, position);
            seen[row->seq * m->n_page + position / s->page_tokens] = true;
            if (row->step > 0) m->keys[m->n_keys++] = position;
        }
    }
    for (int32_t i = 0; i < n_page; i++)
        if (!seen[i]) m->pages[i] = unheld;
    weft_mem_free(seen);
}

static void fill_queries(const struct attn_scene *s, struct memory *m)
{
    m->q_stride = (int64_t)s->n_head * s->width + 3;
    m->out_stride = (int64_t)s->n_head * s->value_width + 2;
    m->n_q = s->n_row * m->q_stride - 3;
    m->n_out = s->n_row * m->out_stride - 2;
    m->q = weft_kit_nans(m->n_q);
    m->out = weft_kit_nans(m->n_out);
    for (int32_t r = 0; r < s->n_row; r++)
        for (int32_t h = 0; h < s->n_head; h++)
            for (int32_t i = 0; i < s->width; i++)
                m->q[r * m->q_stride + (int64_t)h * s->width + i] =
                    attn_query(s, s->rows[r].tag, h, i);
}

static void make_memory(const struct attn_scene *s, struct memory *m)
{
    const int64_t elem = (int64_t)weft_dtype_bytes(s->dtype);
    int32_t last = 0;
    *m = (struct memory){.row_bytes = (s->width + s->row_pad) * elem};
    for (int32_t r = 0; r < s->n_row; r++) {
        const int32_t n = attn_n_keys(&s->rows[r]);
        if (n > m->longest) m->longest = n;
        if (n > 0 && s->rows[r].position > last) last = s->rows[r].position;
    }
    m->layer_offset = 2 * m->row_bytes;
    m->page_bytes = m->layer_offset + s->page_tokens * m->row_bytes;
    m->n_page = last / s->page_tokens + 1;
    place_pages(s, m);
    fill_keys(s, m);
    fill_queries(s, m);
}

static void free_memory(struct memory *m)
{
    weft_mem_free(m->base);
    weft_mem_free(m->pages);
    weft_mem_free(m->keys);
    weft_mem_free(m->q);
    weft_mem_free(m->out);
}

/* The op over memory that may be elsewhere; rows are on the host. */
static weft_attn make_op(const struct attn_scene *s, const struct memory *m,
                         weft_row *rows)
{
    for (int32_t r = 0; r < s->n_row; r++) {
        const struct attn_spec *const row = &s->rows[r];
        rows[r] = (weft_row){.pages = m->pages + row->seq * m->n_page,
                             .position = row->position,
                             .first = row->first};
        if (row->step == 0) continue;
        /* What is not of a list is not looked at. */
        rows[r].first = -1000;
        rows[r].keys = m->keys + m->at[r];
        rows[r].n_keys = attn_n_keys(row);
    }
    return (weft_attn){.kv = {.base = m->base,
                              .layer_offset = m->layer_offset,
                              .row_bytes = m->row_bytes,
                              .page_tokens = s->page_tokens,
                              .dtype = s->dtype},
                       .rows = rows,
                       .q = m->q,
                       .out = m->out,
                       .q_stride = m->q_stride,
                       .out_stride = m->out_stride,
                       .n_row = s->n_row,
                       .n_head = s->n_head,
                       .width = s->width,
                       .value_width = s->value_width,
                       .n_keys_max =
                           s->n_keys_max > 0 ? s->n_keys_max : m->longest,
                       .scale = s->scale,
                       .round = s->round};
}

/* Results without the gaps, in which nothing may have been written. */
static float *close_up(const struct attn_scene *s, const struct memory *m)
{
    const int64_t width = (int64_t)s->n_head * s->value_width;
    float *const to = weft_kit_nans(s->n_row * width);
    for (int32_t r = 0; r < s->n_row; r++) {
        const float *const from = m->out + r * m->out_stride;
        memcpy(to + r * width, from, (size_t)width * sizeof *to);
        for (int64_t i = width; i < m->out_stride && r + 1 < s->n_row; i++)
            ck_assert_msg(isnan(from[i]), "written past row %d", r);
    }
    return to;
}

float *attn_by_reference(const struct attn_scene *s)
{
    struct memory m;
    weft_row rows[ATTN_ROWS];
    make_memory(s, &m);
    const weft_attn op = make_op(s, &m, rows);
    weft_ops_reference()->attn(NULL, &op);
    float *const got = close_up(s, &m);
    free_memory(&m);
    return got;
}

float *attn_on_device(const struct attn_scene *s)
{
    const weft_device_api *const api = device_kit_open();
    struct memory m;
    weft_row rows[ATTN_ROWS];
    make_memory(s, &m);
    struct memory d = m;
    d.base = device_kit_put(m.base, m.bytes);
    d.pages =
        device_kit_put(m.pages, (size_t)m.n_page * ATTN_SEQS * sizeof *m.pages);
    /* A list begins where the one before ends: only the last has a red zone. */
    d.keys = device_kit_put(m.keys, (size_t)(m.n_keys > 0 ? m.n_keys : 1) *
                                        sizeof *m.keys);
    d.q = device_kit_put(m.q, (size_t)m.n_q * sizeof *m.q);
    d.out = device_kit_put(m.out, (size_t)m.n_out * sizeof *m.out);
    weft_attn op = make_op(s, &d, rows);
    weft_row *const at = device_kit_put(rows, (size_t)s->n_row * sizeof *rows);
    op.rows = at;
    api->ops->attn(NULL, &op);
    device_kit_get(m.out, d.out, (size_t)m.n_out * sizeof *m.out);
    float *const got = close_up(s, &m);
    void *const blocks[] = {d.base, d.pages, d.keys, d.q, d.out, at};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        device_kit_free(blocks[i]);
    free_memory(&m);
    return got;
}

/* One head of one row in double precision: out, and per channel the sum of
 * |p c|, to which errors are relative. Returns the largest error that a score
 * may have. */
static double head_exactly(const struct attn_scene *s,
                           const struct attn_spec *row, int32_t h, double *out,
                           double *size)
{
    const int32_t n = attn_n_keys(row);
    double *const p = weft_kit_new((size_t)n, sizeof *p);
    double most = -INFINITY, total = 0.0, wrong = 0.0;
    for (int32_t j = 0; j < n; j++) {
        double sum = 0.0, sizes = 0.0;
        for (int32_t i = 0; i < s->width; i++) {
            const double term =
                (double)attn_query(s, row->tag, h, i) *
                (double)attn_cached(s, row->seq, attn_position(row, j), i);
            sum += term;
            sizes += fabs(term);
        }
        p[j] = (double)s->scale * sum;
        /* A chain of fused multiply-adds, a matrix unit that may cut off
         * instead of rounding, the sum of parts, the scale, s - m. */
        wrong = fmax(wrong, 2 * (s->width + 12) * u32 * fabs(s->scale) * sizes);
        most = fmax(most, p[j]);
    }
    for (int32_t d = 0; d < s->value_width; d++) out[d] = size[d] = 0.0;
    for (int32_t j = 0; j < n; j++) {
        p[j] = exp(p[j] - most);
        total += p[j];
    }
    for (int32_t j = 0; j < n; j++)
        for (int32_t d = 0; d < s->value_width; d++) {
            const double c =
                (double)attn_cached(s, row->seq, attn_position(row, j), d);
            out[d] += p[j] / total * c;
            size[d] += p[j] / total * fabs(c);
        }
    weft_mem_free(p);
    return wrong;
}

/* The bound of a result, relative to the sum of |p c|. */
static double bound_of(const struct attn_scene *s, int32_t n_keys, double wrong)
{
    const bool tensor = s->round == WEFT_ROUND_BF16 && s->dtype == WEFT_BF16;
    const int32_t in_split = n_keys < 256 ? n_keys : 256;
    /* A weight is two bfloat16, that is 2^-16 off, unless it is below 2^-110.
     * A term is added in its split, is rescaled in tiles, folded, divided. */
    return 2 * wrong + (tensor ? 0x1p-16 : 0.0) +
           2 * (2 * in_split + 4 * (n_keys / 256 + 1) + 16) * u32;
}

void attn_assert_exact(const struct attn_scene *s, const float *got,
                       const char *what)
{
    double *const out = weft_kit_new((size_t)s->value_width, sizeof *out);
    double *const size = weft_kit_new((size_t)s->value_width, sizeof *size);
    for (int32_t r = 0; r < s->n_row; r++)
        for (int32_t h = 0; h < s->n_head; h++) {
            const int32_t n = attn_n_keys(&s->rows[r]);
            const double wrong =
                n > 0 ? head_exactly(s, &s->rows[r], h, out, size) : 0.0;
            const double bound = bound_of(s, n, wrong);
            for (int32_t d = 0; d < s->value_width; d++) {
                const double x = (double)
                    got[((int64_t)r * s->n_head + h) * s->value_width + d];
                double tol = bound * size[d];
                if (s->round == WEFT_ROUND_BF16)
                    tol += u16 * (fabs(out[d]) + tol);
                ck_assert_msg(n == 0 ? x == 0.0 : fabs(x - out[d]) <= tol,
                              "%s: row %d of %d keys, head %d, channel %d is "
                              "%.9g, exactly %.9g, bound %.3g",
                              what, r, n, h, d, x, n == 0 ? 0.0 : out[d], tol);
            }
        }
    weft_mem_free(out);
    weft_mem_free(size);
}

void attn_assert_reference(const struct attn_scene *s, const float *got,
                           const char *what)
{
    float *const expected = attn_by_reference(s);
    const int64_t width = (int64_t)s->n_head * s->value_width;
    for (int64_t i = 0; i < s->n_row * width; i++) {
        const int32_t n = attn_n_keys(&s->rows[i / width]);
        /* |q k| <= 1 a channel, and so is |c|. */
        const double wrong =
            2 * (s->width + 12) * u32 * fabs(s->scale) * s->width;
        double tol = 2 * bound_of(s, n, wrong);
        if (s->round == WEFT_ROUND_BF16)
            tol += 2 * u16 * (fabs(expected[i]) + tol);
        ck_assert_msg(n == 0 ? got[i] == 0.0f
                             : fabs((double)got[i] - expected[i]) <= tol,
                      "%s: element %lld of row %lld is %.9g, reference %.9g",
                      what, (long long)(i % width), (long long)(i / width),
                      (double)got[i], (double)expected[i]);
    }
    weft_mem_free(expected);
}
