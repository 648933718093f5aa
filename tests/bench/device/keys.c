/* Attention over cached rows, and the indexer's choice of keys. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/device/device.h"

/* One batch of sequences: where their pages are. Page p of sequence r is cut
 * from the block at a place of its own. */
struct context {
    int32_t n_row, n_position, n_page; /* pages of a sequence */
    int64_t page_bytes, row_bytes;
    int64_t *pages;      /* host, [n_row, n_page] */
    weft_row *rows_host; /* as on the device */
    weft_row *rows;      /* device */
    int32_t *keys;       /* host: those of every row; NULL: all of them */
    int32_t first, n_keys;
};

static struct context make_context(struct bench *b, int32_t n_row,
                                   int32_t n_position, int32_t width)
{
    const struct block *const block = &b->blocks[HALVES];
    struct context c = {.n_row = n_row, .n_position = n_position};
    c.n_page = (n_position + PAGE_TOKENS - 1) / PAGE_TOKENS;
    c.row_bytes = (int64_t)width * 2;
    c.page_bytes = c.row_bytes * PAGE_TOKENS;
    c.n_keys = n_position;
    const int64_t n = (int64_t)n_row * c.n_page;
    const int64_t places = block->bytes / c.page_bytes;
    c.pages = bench_new_host(b, (int64_t)n * 8);
    /* All places, in an order that is not theirs. */
    for (int64_t i = 0; i < n; i++)
        c.pages[i] = i * 7919 % places * c.page_bytes;
    const int64_t *const pages = bench_put(b, c.pages, n * 8);
    const int64_t bytes = n_row * (int64_t)sizeof(weft_row);
    c.rows_host = bench_new_host(b, bytes);
    for (int32_t r = 0; r < n_row; r++)
        c.rows_host[r] = (weft_row){.pages = pages + (int64_t)r * c.n_page,
                                    .position = n_position - 1};
    c.rows = bench_put(b, c.rows_host, bytes);
    return c;
}

static void put_rows(struct bench *b, struct context *c)
{
    c->rows = bench_put(b, c->rows_host, c->n_row * (int64_t)sizeof(weft_row));
}

/* The last n positions. */
static void see_window(struct bench *b, struct context *c, int32_t n)
{
    c->n_keys = n < c->n_position ? n : c->n_position;
    c->first = c->n_position - c->n_keys;
    for (int32_t r = 0; r < c->n_row; r++) c->rows_host[r].first = c->first;
    put_rows(b, c);
}

/* n positions, evenly chosen. */
static void see_chosen(struct bench *b, struct context *c, int32_t n)
{
    c->n_keys = n < c->n_position ? n : c->n_position;
    c->keys = bench_new_host(b, (int64_t)c->n_keys * 4);
    for (int32_t i = 0; i < c->n_keys; i++)
        c->keys[i] = (int32_t)((int64_t)i * c->n_position / c->n_keys);
    const int32_t *const keys = bench_put(b, c->keys, (int64_t)c->n_keys * 4);
    for (int32_t r = 0; r < c->n_row; r++) {
        c->rows_host[r].keys = keys;
        c->rows_host[r].n_keys = c->n_keys;
    }
    put_rows(b, c);
}

/* Byte of the block where a position of sequence 0 is. */
static int64_t place_of(const struct context *c, int32_t position)
{
    return c->pages[position / PAGE_TOKENS] +
           position % PAGE_TOKENS * c->row_bytes;
}

static weft_paged paged_of(const struct bench *b, const struct context *c)
{
    return (weft_paged){.base = b->blocks[HALVES].device,
                        .row_bytes = c->row_bytes,
                        .page_tokens = PAGE_TOKENS,
                        .dtype = WEFT_BF16};
}

static double dot(const struct bench *b, int64_t q_from, int64_t at, int32_t n)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += bench_element(b, FLOATS, q_from, i) *
               bench_element(b, HALVES, at, i);
    return sum;
}

/* --- Attention ----------------------------------------------------------- */

struct attention {
    struct context c;
    weft_attn op;
};

static void begin_attn(struct bench *b, void *op, int32_t i)
{
    struct attention *const a = op;
    (void)i;
    b->api->ops->attn(NULL, &a->op);
}

/* Head 0 of row 0. */
static double error_of_attn(struct bench *b, const struct attention *a)
{
    const struct context *const c = &a->c;
    const int32_t value_width = a->op.value_width;
    double *const p = bench_new_host(b, (int64_t)c->n_keys * 8);
    float *const got = bench_new_host(b, (int64_t)value_width * 4);
    double most = -HUGE_VAL, sum = 0.0;
    for (int32_t j = 0; j < c->n_keys; j++) {
        const int32_t key = c->keys != NULL ? c->keys[j] : c->first + j;
        p[j] = (double)a->op.scale * dot(b, 0, place_of(c, key), a->op.width);
        if (p[j] > most) most = p[j];
    }
    for (int32_t j = 0; j < c->n_keys; j++) {
        p[j] = exp(p[j] - most);
        sum += p[j];
    }
    struct distance d = {0};
    bench_get(b, got, b->out, (int64_t)value_width * 4);
    for (int32_t s = 0; s < SAMPLES; s++) {
        const int32_t channel = (int32_t)((int64_t)s * value_width / SAMPLES);
        double want = 0.0;
        for (int32_t j = 0; j < c->n_keys; j++) {
            const int32_t key = c->keys != NULL ? c->keys[j] : c->first + j;
            want += p[j] * bench_element(b, HALVES, place_of(c, key), channel);
        }
        bench_look(&d, (double)got[channel], want / sum);
    }
    return bench_ratio(&d);
}

struct form {
    const char *name;
    int32_t n_head, width, value_width;
    int32_t window, chosen; /* keys; 0: all */
};

static void bench_attn(struct bench *b, const struct form *f, int32_t n_row,
                       int32_t n_position)
{
    char name[96];
    (void)snprintf(name, sizeof name, "attn %s %d rows %d", f->name,
                   (int)n_position, (int)n_row);
    if (!bench_wanted(b, name)) return;
    struct attention a = {.c = make_context(b, n_row, n_position, f->width)};
    if (f->window > 0) see_window(b, &a.c, f->window);
    if (f->chosen > 0) see_chosen(b, &a.c, f->chosen);
    const int64_t q_row = (int64_t)f->n_head * f->width;
    a.op = (weft_attn){.kv = paged_of(b, &a.c),
                       .rows = a.c.rows,
                       .q = bench_floats(b, 256, 0),
                       .out = b->out,
                       .q_stride = q_row,
                       .out_stride = (int64_t)f->n_head * f->value_width,
                       .n_row = n_row,
                       .n_head = f->n_head,
                       .width = f->width,
                       .value_width = f->value_width,
                       .n_keys_max = a.c.n_keys,
                       /* Weights that differ by some powers of e. */
                       .scale = 0.5F,
                       .round = WEFT_ROUND_BF16};
    begin_attn(b, &a, 0);
    struct job job = {.begin = begin_attn, .op = &a};
    job.error = error_of_attn(b, &a);
    const double keys = (double)n_row * a.c.n_keys;
    const double heads = (double)n_row * f->n_head;
    job.bytes = keys * (double)a.c.row_bytes +
                4.0 * heads * (f->width + f->value_width);
    job.flops = 2.0 * keys * f->n_head * (f->width + f->value_width);
    bench_report(b, name, &job);
    bench_end_case(b);
}

void bench_attention(struct bench *b)
{
    static const struct form forms[] = {
        {"full", 128, 576, 512, 0, 0},
        {"chosen", 128, 576, 512, 0, 2048},
        {"window", 64, 1088, 1024, 513, 0},
    };
    static const struct form tiny[] = {
        {"full", 4, 72, 64, 0, 0},
        {"chosen", 4, 72, 64, 0, 32},
        {"window", 2, 136, 128, 33, 0},
    };
    static const int32_t rows[] = {1, 16, 64}, keys[] = {8192, 32768};
    for (int f = 0; f < 3; f++)
        for (int r = 0; r < (b->tiny ? 2 : 3); r++) {
            if (b->tiny) {
                bench_attn(b, &tiny[f], r + 1, 300);
                continue;
            }
            bench_attn(b, &forms[f], rows[r], keys[0]);
            if (f < 2) bench_attn(b, &forms[f], rows[r], keys[1]);
        }
}

/* --- The indexer --------------------------------------------------------- */

struct selection {
    struct context c;
    weft_index_select op;
};

static void begin_select(struct bench *b, void *op, int32_t i)
{
    struct selection *const s = op;
    (void)i;
    b->api->ops->index_select(NULL, &s->op);
}

static int falling(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* The share of row 0's keys that are not among the best on the host. */
static double error_of_select(struct bench *b, const struct selection *s)
{
    const weft_index_select *const op = &s->op;
    const int32_t n = s->c.n_position;
    double *const score = bench_new_host(b, (int64_t)n * 8);
    double *const sorted = bench_new_host(b, (int64_t)n * 8);
    int32_t *const got = bench_new_host(b, (int64_t)op->top_k * 4);
    for (int32_t j = 0; j < n; j++) {
        score[j] = 0.0;
        for (int32_t h = 0; h < op->n_head; h++) {
            const double d = dot(b, (int64_t)h * op->head_dim * 4,
                                 place_of(&s->c, j), op->head_dim);
            if (d > 0.0) score[j] += d * bench_element(b, FLOATS, 0, h);
        }
    }
    memcpy(sorted, score, (size_t)n * sizeof *score);
    qsort(sorted, (size_t)n, sizeof *sorted, falling);
    bench_get(b, got, op->keys_out, (int64_t)op->top_k * 4);
    int32_t off = 0;
    for (int32_t i = 0; i < op->top_k; i++)
        off +=
            got[i] < 0 || got[i] >= n || score[got[i]] < sorted[op->top_k - 1];
    return (double)off / op->top_k;
}

static void bench_select(struct bench *b, int32_t n_row, int32_t n_position,
                         int32_t n_head, int32_t head_dim, int32_t top_k)
{
    char name[96];
    (void)snprintf(name, sizeof name, "index_select %d of %d rows %d",
                   (int)top_k, (int)n_position, (int)n_row);
    if (!bench_wanted(b, name)) return;
    struct selection s = {.c = make_context(b, n_row, n_position, head_dim)};
    const int64_t stride = ((int64_t)n_position + 63) / 64 * 64;
    s.op = (weft_index_select){
        .keys = paged_of(b, &s.c),
        .rows = s.c.rows,
        .q = bench_floats(b, 256, 0),
        .w = bench_floats(b, 256, 0),
        .keys_out = bench_new_device(b, (int64_t)n_row * top_k * 4),
        .n_keys_out = bench_new_device(b, (int64_t)n_row * 4),
        .scratch = bench_new_device(b, stride * 4),
        .q_stride = (int64_t)n_head * head_dim,
        .w_stride = n_head,
        .scratch_stride = stride,
        .n_row = n_row,
        .n_head = n_head,
        .head_dim = head_dim,
        .top_k = top_k,
        .n_positions_max = n_position,
        .q_as_pair = true};
    begin_select(b, &s, 0);
    struct job job = {.begin = begin_select, .op = &s};
    job.error = error_of_select(b, &s);
    const double keys = (double)n_row * n_position;
    job.bytes = keys * (double)s.c.row_bytes;
    job.flops = 2.0 * keys * n_head * head_dim;
    bench_report(b, name, &job);
    bench_end_case(b);
}

void bench_index(struct bench *b)
{
    static const int32_t rows[] = {1, 16, 64};
    if (b->tiny) {
        bench_select(b, 1, 300, 4, 32, 64);
        bench_select(b, 2, 300, 4, 32, 64);
        return;
    }
    for (int r = 0; r < 3; r++) {
        bench_select(b, rows[r], 8192, 64, 128, 2048);
        bench_select(b, rows[r], 32768, 64, 128, 2048);
    }
}
