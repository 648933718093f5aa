/* bench_kernels.c - how fast the ops are, beside what the machine can do.
 *
 *     bench_kernels [--threads N] [--path NAME] [case ...]
 *
 * Measures the read bandwidth and the fp32 multiply-add rate first, then prints
 * one JSON line for each case: the best time, bytes and operations a second,
 * and both as a share of what was measured. Matrices are well beyond the last
 * level cache, so that reading them is reading memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels/ops.h"
#include "node/base/clock.h"
#include "node/base/hash.h"
#include "node/base/mem.h"

enum { REPEATS = 7, LEAST_NS = 200000000, CHUNKS = 512 };

struct bench {
    const weft_ops *ops;
    weft_threads *threads;
    double read_bytes_per_s, flops_per_s;
    char **wanted;
    int n_wanted;
};

static void *new_block(size_t bytes)
{
    void *const mem = weft_mem_new_aligned(64, bytes);
    if (mem == NULL) {
        (void)fprintf(stderr, "bench_kernels: no memory for %zu bytes\n",
                      bytes);
        exit(1);
    }
    return mem;
}

/* bf16 or f8 elements near 1 with either sign, whatever the type's width. */
static void fill_elements(unsigned char *to, size_t bytes, weft_dtype dtype)
{
    uint64_t x = 1;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        x = x * 6364136223846793005ULL + 1442695040888963407ULL;
        const uint64_t word =
            dtype == WEFT_BF16
                ? (x & 0x807f807f807f807fULL) | 0x3c003c003c003c00ULL
            : dtype == WEFT_F32
                ? (x & 0x807fffff807fffffULL) | 0x3c0000003c000000ULL
                : x & 0xbfbfbfbfbfbfbfbfULL;
        memcpy(to + i, &word, sizeof word);
    }
}

static float *new_floats(size_t n)
{
    float *const to = new_block(n * sizeof *to);
    fill_elements((unsigned char *)to, n * sizeof *to, WEFT_F32);
    return to;
}

/* Seconds of the fastest of some calls: what other programs on the machine take
 * away is not the op's. */
static double time_of(void (*fn)(struct bench *, void *), struct bench *bench,
                      void *arg)
{
    uint64_t best = UINT64_MAX;
    fn(bench, arg); /* warm: pages, threads, code */
    const uint64_t begin = weft_clock_now_ns();
    for (int i = 0; i < REPEATS || weft_clock_now_ns() - begin < LEAST_NS;
         i++) {
        const uint64_t start = weft_clock_now_ns();
        fn(bench, arg);
        const uint64_t ns = weft_clock_now_ns() - start;
        if (ns < best) best = ns;
    }
    return (double)best * 1e-9;
}

/* --- the machine ------------------------------------------------------- */

struct region {
    const unsigned char *data;
    size_t bytes;
    uint64_t sum[CHUNKS];
};

/* The sum of all words, so that nothing is left out. */
#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t
read_lines(const unsigned char *at, size_t bytes)
{
    __m256i a = _mm256_setzero_si256(), b = a;
    for (size_t i = 0; i < bytes; i += 64) {
        const __m256i *const line = (const __m256i *)(const void *)(at + i);
        _mm_prefetch((const char *)line + 4096, _MM_HINT_T0);
        a = _mm256_add_epi64(a, _mm256_loadu_si256(line));
        b = _mm256_add_epi64(b, _mm256_loadu_si256(line + 1));
    }
    a = _mm256_add_epi64(a, b);
    return (uint64_t)_mm256_extract_epi64(a, 0) +
           (uint64_t)_mm256_extract_epi64(a, 3);
}
#else
static uint64_t read_lines(const unsigned char *at, size_t bytes)
{
    uint64_t sum[4] = {0};
    for (size_t i = 0; i < bytes; i += 32) {
        uint64_t word[4];
        memcpy(word, at + i, sizeof word);
        for (int k = 0; k < 4; k++) sum[k] += word[k];
    }
    return sum[0] + sum[1] + sum[2] + sum[3];
}
#endif

static void read_unit(void *arg, int32_t unit, int32_t thread)
{
    struct region *const region = arg;
    const size_t bytes = region->bytes / CHUNKS;
    (void)thread;
    region->sum[unit] = read_lines(region->data + (size_t)unit * bytes, bytes);
}

static void read_all(struct bench *bench, void *arg)
{
    weft_threads_run(bench->threads, CHUNKS, read_unit, arg);
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static float chains_512(int n)
{
    __m512 a[16];
    for (int i = 0; i < 16; i++) a[i] = _mm512_set1_ps((float)i);
    const __m512 x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(1.0f);
    for (int k = 0; k < n; k++) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) a[i] = _mm512_fmadd_ps(a[i], x, y);
    }
    for (int i = 1; i < 16; i++) a[0] = _mm512_add_ps(a[0], a[i]);
    return _mm512_reduce_add_ps(a[0]);
}
__attribute__((target("avx2,fma"))) static float chains_256(int n)
{
    __m256 a[12];
    for (int i = 0; i < 12; i++) a[i] = _mm256_set1_ps((float)i);
    const __m256 x = _mm256_set1_ps(0.5f), y = _mm256_set1_ps(1.0f);
    for (int k = 0; k < n; k++) {
#pragma GCC unroll 16
        for (int i = 0; i < 12; i++) a[i] = _mm256_fmadd_ps(a[i], x, y);
    }
    for (int i = 1; i < 12; i++) a[0] = _mm256_add_ps(a[0], a[i]);
    return _mm256_cvtss_f32(a[0]);
}
/* Multiply-adds of one step of the loop; 0: none known here. */
static int chain_width(void)
{
    if (__builtin_cpu_supports("avx512f")) return 256;
    return __builtin_cpu_supports("fma") ? 96 : 0;
}
static float chains(int n)
{
    return chain_width() == 256 ? chains_512(n) : chains_256(n);
}
#elif defined(__aarch64__)
static int chain_width(void)
{
    return 64;
}
static float chains(int n)
{
    float32x4_t a[16];
    for (int i = 0; i < 16; i++) a[i] = vdupq_n_f32((float)i);
    const float32x4_t x = vdupq_n_f32(0.5f);
    for (int k = 0; k < n; k++) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) a[i] = vfmaq_f32(x, a[i], x);
    }
    for (int i = 1; i < 16; i++) a[0] = vaddq_f32(a[0], a[i]);
    return vaddvq_f32(a[0]);
}
#else
static int chain_width(void)
{
    return 0;
}
static float chains(int n)
{
    return (float)n;
}
#endif

enum { CHAIN_STEPS = 1 << 20 };

static void chain_unit(void *arg, int32_t unit, int32_t thread)
{
    float *const sums = arg;
    (void)thread;
    sums[16 * (int64_t)unit] = chains(CHAIN_STEPS);
}

static void chain_all(struct bench *bench, void *arg)
{
    const int32_t n = weft_threads_count(bench->threads);
    weft_threads_run(bench->threads, n, chain_unit, arg);
}

static void measure_machine(struct bench *bench)
{
    struct region *const region = new_block(sizeof *region);
    region->bytes = (size_t)1 << 30;
    unsigned char *const data = new_block(region->bytes);
    memset(data, 1, region->bytes);
    region->data = data;
    bench->read_bytes_per_s =
        (double)region->bytes / time_of(read_all, bench, region);
    weft_mem_free(data);
    weft_mem_free(region);

    const int32_t n = weft_threads_count(bench->threads);
    float *const sums = new_block((size_t)n * 64);
    const double ops = 2.0 * chain_width() * CHAIN_STEPS * n;
    bench->flops_per_s = ops / time_of(chain_all, bench, sums);
    weft_mem_free(sums);
    printf("{\"case\": \"machine\", \"threads\": %d, \"read_gb_per_s\": %.2f, "
           "\"fma_gflop_per_s\": %.1f}\n",
           n, bench->read_bytes_per_s * 1e-9, bench->flops_per_s * 1e-9);
}

/* --- cases ------------------------------------------------------------- */

static void report(struct bench *bench, const char *name, double seconds,
                   double bytes, double flops)
{
    printf("{\"case\": \"%s\", \"path\": \"%s\", \"threads\": %d, "
           "\"us\": %.1f, \"gb_per_s\": %.2f, \"of_read\": %.3f, "
           "\"gflop_per_s\": %.1f, \"of_fma\": %.3f}\n",
           name, bench->ops->name, weft_threads_count(bench->threads),
           seconds * 1e6, bytes / seconds * 1e-9,
           bytes / seconds / bench->read_bytes_per_s, flops / seconds * 1e-9,
           flops / seconds / bench->flops_per_s);
    (void)fflush(stdout);
}

static bool wanted(const struct bench *bench, const char *name)
{
    if (bench->n_wanted == 0) return true;
    for (int i = 0; i < bench->n_wanted; i++)
        if (strstr(name, bench->wanted[i]) != NULL) return true;
    return false;
}

struct products {
    weft_gemm *list;
    int32_t n;
};

static void run_products(struct bench *bench, void *arg)
{
    const struct products *const p = arg;
    bench->ops->gemm(bench->threads, p->list, p->n);
}

/* n matrices of n_out x n_in in one call, n_row rows each. */
static void bench_gemm(struct bench *bench, weft_dtype dtype, int32_t n_row,
                       int32_t n, int32_t n_out, int32_t n_in)
{
    char name[80];
    (void)snprintf(name, sizeof name, "gemm %s rows %d, %d of %d x %d",
                   weft_dtype_name(dtype), n_row, n, n_out, n_in);
    if (!wanted(bench, name)) return;
    const size_t bytes = weft_matrix_bytes(dtype, n_out, n_in);
    unsigned char *const data = new_block(bytes * (size_t)n);
    fill_elements(data, bytes * (size_t)n, dtype);
    const int32_t n_scale = (n_out + 127) / 128 * ((n_in + 127) / 128);
    float *const scales = new_floats((size_t)n_scale);
    float *const x = new_floats((size_t)n_row * (size_t)n_in);
    float *const y = new_floats((size_t)n_row * (size_t)n_out * (size_t)n);
    weft_matrix *const w = new_block((size_t)n * sizeof *w);
    struct products p = {new_block((size_t)n * sizeof *p.list), n};
    for (int32_t i = 0; i < n; i++) {
        w[i] =
            (weft_matrix){data + bytes * (size_t)i, scales, dtype, n_out, n_in};
        p.list[i] = (weft_gemm){.w = &w[i],
                                .x = x,
                                .y = y + (int64_t)i * n_row * n_out,
                                .x_stride = n_in,
                                .y_stride = n_out,
                                .n_row = n_row,
                                .round = WEFT_ROUND_BF16};
    }
    const double seconds = time_of(run_products, bench, &p);
    report(bench, name, seconds, (double)bytes * n,
           2.0 * n_row * n * n_out * n_in);
    weft_mem_free(data);
    weft_mem_free(scales);
    weft_mem_free(x);
    weft_mem_free(y);
    weft_mem_free(w);
    weft_mem_free(p.list);
}

/* Rows of one sequence in pages of 64. */
struct context {
    weft_paged paged;
    int64_t *pages;
    weft_row *rows;
};

static void make_context(struct context *c, int32_t n_tokens, int32_t width,
                         int32_t n_row, int32_t window)
{
    const int64_t row_bytes = 2 * (int64_t)width, page_bytes = 64 * row_bytes;
    const int32_t n_page = (n_tokens + 63) / 64;
    c->paged = (weft_paged){.base = new_block((size_t)(n_page * page_bytes)),
                            .row_bytes = row_bytes,
                            .page_tokens = 64,
                            .dtype = WEFT_BF16};
    fill_elements(c->paged.base, (size_t)(n_page * page_bytes), WEFT_BF16);
    c->pages = new_block((size_t)n_page * sizeof *c->pages);
    for (int32_t i = 0; i < n_page; i++)
        c->pages[i] = (n_page - 1 - i) * page_bytes;
    c->rows = new_block((size_t)n_row * sizeof *c->rows);
    for (int32_t r = 0; r < n_row; r++) {
        const int32_t position = n_tokens - n_row + r;
        const int32_t first = position + 1 - window;
        c->rows[r] = (weft_row){.pages = c->pages,
                                .position = position,
                                .first = first > 0 ? first : 0};
    }
}

static void free_context(struct context *c)
{
    weft_mem_free(c->paged.base);
    weft_mem_free(c->pages);
    weft_mem_free(c->rows);
}

static void run_attn(struct bench *bench, void *arg)
{
    bench->ops->attn(bench->threads, arg);
}

static void bench_attn(struct bench *bench, int32_t n_row, int32_t n_keys,
                       int32_t n_head, int32_t width, int32_t value_width)
{
    char name[80];
    (void)snprintf(name, sizeof name, "attn rows %d keys %d heads %d width %d",
                   n_row, n_keys, n_head, width);
    if (!wanted(bench, name)) return;
    struct context c;
    make_context(&c, n_keys + n_row - 1, width, n_row, n_keys);
    const size_t q_width = (size_t)n_head * (size_t)width;
    const size_t out_width = (size_t)n_head * (size_t)value_width;
    float *const q = new_floats((size_t)n_row * q_width);
    float *const out = new_floats((size_t)n_row * out_width);
    weft_attn op = {.kv = c.paged,
                    .rows = c.rows,
                    .q = q,
                    .out = out,
                    .q_stride = (int64_t)q_width,
                    .out_stride = (int64_t)out_width,
                    .n_row = n_row,
                    .n_head = n_head,
                    .width = width,
                    .value_width = value_width,
                    .scale = 0.05f,
                    .round = WEFT_ROUND_BF16};
    const double seconds = time_of(run_attn, bench, &op);
    report(bench, name, seconds, 2.0 * n_keys * width,
           2.0 * n_row * n_keys * n_head * (width + value_width));
    weft_mem_free(q);
    weft_mem_free(out);
    free_context(&c);
}

static void run_index(struct bench *bench, void *arg)
{
    bench->ops->index_select(bench->threads, arg);
}

static void bench_index(struct bench *bench, int32_t n_row, int32_t n_keys)
{
    enum { N_HEAD = 32, DIM = 128, TOP = 2048 };
    char name[80];
    (void)snprintf(name, sizeof name,
                   "index_select rows %d keys %d heads %d x %d", n_row, n_keys,
                   N_HEAD, DIM);
    if (!wanted(bench, name)) return;
    struct context c;
    make_context(&c, n_keys, DIM, n_row, n_keys);
    const int32_t n_thread = weft_threads_count(bench->threads);
    const size_t scratch = (size_t)n_thread * (size_t)n_keys;
    float *const q = new_floats((size_t)n_row * N_HEAD * DIM);
    float *const w = new_floats((size_t)n_row * N_HEAD);
    weft_index_select op = {.keys = c.paged,
                            .rows = c.rows,
                            .q = q,
                            .w = w,
                            .scratch = new_floats(scratch),
                            .keys_out = new_block((size_t)n_row * TOP * 4),
                            .n_keys_out = new_block((size_t)n_row * 4),
                            .q_stride = (int64_t)N_HEAD * DIM,
                            .w_stride = N_HEAD,
                            .scratch_stride = n_keys,
                            .n_row = n_row,
                            .n_head = N_HEAD,
                            .head_dim = DIM,
                            .top_k = TOP};
    const double seconds = time_of(run_index, bench, &op);
    report(bench, name, seconds, 2.0 * n_keys * DIM,
           2.0 * n_row * n_keys * N_HEAD * DIM);
    weft_mem_free(q);
    weft_mem_free(w);
    weft_mem_free(op.scratch);
    weft_mem_free(op.keys_out);
    weft_mem_free(op.n_keys_out);
    free_context(&c);
}

static void run_vocab(struct bench *bench, void *arg)
{
    bench->ops->vocab(bench->threads, arg);
}

static void bench_vocab(struct bench *bench, int32_t n_row, int32_t n)
{
    char name[80];
    (void)snprintf(name, sizeof name, "vocab rows %d of %d", n_row, n);
    if (!wanted(bench, name)) return;
    float *const logits = new_floats((size_t)n_row * (size_t)n);
    weft_vocab_stat *const stats = new_block((size_t)n_row * sizeof *stats);
    weft_vocab op = {logits, stats, n, n_row, n};
    const double seconds = time_of(run_vocab, bench, &op);
    report(bench, name, seconds, 4.0 * n_row * n, 0.0);
    weft_mem_free(logits);
    weft_mem_free(stats);
}

struct pack {
    unsigned char *data, *rows;
    weft_dtype dtype;
    int32_t n_out, n_in;
};

static void run_pack(struct bench *bench, void *arg)
{
    const struct pack *const p = arg;
    (void)bench;
    weft_matrix_pack_rows(p->data, p->dtype, p->n_out, p->n_in, p->rows, 0,
                          p->n_out);
}

static void bench_pack(struct bench *bench, weft_dtype dtype)
{
    struct pack p = {.dtype = dtype, .n_out = 4096, .n_in = 7168};
    char name[80];
    (void)snprintf(name, sizeof name, "pack %s, one thread",
                   weft_dtype_name(dtype));
    if (!wanted(bench, name)) return;
    const size_t bytes = weft_matrix_bytes(dtype, p.n_out, p.n_in);
    p.data = new_block(bytes);
    p.rows = new_block(bytes);
    fill_elements(p.rows, bytes, dtype);
    report(bench, name, time_of(run_pack, bench, &p), (double)bytes, 0.0);
    weft_mem_free(p.data);
    weft_mem_free(p.rows);
}

static void run_cases(struct bench *bench)
{
    for (int d = WEFT_BF16; d <= WEFT_F8_E4M3; d += 2) {
        const weft_dtype dtype = (weft_dtype)d;
        bench_gemm(bench, dtype, 1, 1, 16384, 16384);
        bench_gemm(bench, dtype, 8, 1, 16384, 16384);
        bench_gemm(bench, dtype, 256, 1, 4096, 7168);
        bench_gemm(bench, dtype, 1, 256, 384, 1536);
        bench_gemm(bench, dtype, 4, 256, 384, 1536);
    }
    bench_gemm(bench, WEFT_F32, 1, 1, 8192, 8192);
    bench_gemm(bench, WEFT_BF16, 256, 1, 64, 7168);
    bench_attn(bench, 1, 2048, 128, 576, 512);
    bench_attn(bench, 1, 513, 64, 1088, 1024);
    bench_attn(bench, 64, 513, 64, 1088, 1024);
    bench_index(bench, 1, 8192);
    bench_index(bench, 16, 8192);
    bench_vocab(bench, 1, 152064);
    bench_pack(bench, WEFT_BF16);
    bench_pack(bench, WEFT_F8_E4M3);
}

int main(int argc, char **argv)
{
    const char *path = "auto";
    int32_t n_threads = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    int at = 1;
    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        if (strcmp(argv[at], "--path") == 0)
            path = argv[at + 1];
        else if (strcmp(argv[at], "--threads") == 0)
            n_threads = (int32_t)strtol(argv[at + 1], NULL, 10);
    }
    struct bench bench = {.wanted = argv + at, .n_wanted = argc - at};
    weft_err err = {0};
    if (weft_ops_cpu(path, &bench.ops, &err) != WEFT_OK ||
        weft_threads_create(n_threads, &bench.threads, &err) != WEFT_OK) {
        (void)fprintf(stderr, "bench_kernels: %s\n", err.text);
        return 1;
    }
    measure_machine(&bench);
    run_cases(&bench);
    weft_threads_destroy(bench.threads);
    return 0;
}
