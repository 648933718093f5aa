#include "tests/bench/device/device.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"

enum {
    ROUNDS = 5,
    ROUND_NS = 20000000,
    SCRATCH_MIB = 64, /* of serve */
    BLOCKS_MAX = 64,
};

static void *of_case[2][BLOCKS_MAX]; /* device, host */
static int n_of_case[2];

static void need(weft_status st, const char *what, const weft_err *err)
{
    if (st == WEFT_OK) return;
    (void)fprintf(stderr, "bench_device: %s: %s\n", what, err->text);
    exit(st == WEFT_UNAVAILABLE ? 77 : 1);
}

static void *keep(int where, void *at)
{
    if (at == NULL || n_of_case[where] == BLOCKS_MAX) abort();
    of_case[where][n_of_case[where]++] = at;
    return at;
}

static void *new_device(struct bench *b, int64_t bytes)
{
    void *at = NULL;
    weft_err err = {0};
    need(b->api->alloc(b->device, bytes, &at, &err), "memory", &err);
    return at;
}

void *bench_new_device(struct bench *b, int64_t bytes)
{
    return keep(0, new_device(b, bytes));
}

void *bench_new_host(struct bench *b, int64_t bytes)
{
    (void)b;
    return keep(1, weft_mem_new_aligned(64, (size_t)bytes));
}

static void wait(struct bench *b)
{
    weft_err err = {0};
    need(b->api->sync(&err), "sync", &err);
}

void *bench_put(struct bench *b, const void *host, int64_t bytes)
{
    void *const at = bench_new_device(b, bytes);
    b->api->upload(at, host, bytes);
    wait(b);
    return at;
}

void bench_get(struct bench *b, void *host, const void *device, int64_t bytes)
{
    b->api->download(host, device, bytes);
    wait(b);
}

void bench_end_case(struct bench *b)
{
    while (n_of_case[0] > 0)
        b->api->free(b->device, of_case[0][--n_of_case[0]]);
    while (n_of_case[1] > 0) weft_mem_free(of_case[1][--n_of_case[1]]);
}

/* --- Operands ------------------------------------------------------------ */

/* From 2^-7 to 2 with either sign; of f8 anything below 2. */
static void fill_pattern(unsigned char *to, enum kind kind)
{
    uint64_t x = 1;
    for (size_t i = 0; i < PATTERN_BYTES; i += 8) {
        x = x * 6364136223846793005ULL + 1442695040888963407ULL;
        const uint64_t r = x ^ x >> 29;
        const uint64_t word =
            kind == HALVES ? (r & 0x83ff83ff83ff83ffULL) | 0x3c003c003c003c00ULL
            : kind == BYTES
                ? r & 0xbfbfbfbfbfbfbfbfULL
                : (r & 0x83ff000083ff0000ULL) | 0x3c0000003c000000ULL;
        memcpy(to + i, &word, sizeof word);
    }
}

/* As large as the device has room for, up to what no cache holds. */
static void make_blocks(struct bench *b)
{
    static const int64_t gib[N_KIND] = {5, 3, 1};
    for (int k = 0; k < N_KIND; k++) {
        struct block *const block = &b->blocks[k];
        const int64_t share = b->info.free_bytes / 16 * gib[k];
        block->pattern = weft_mem_new_aligned(64, PATTERN_BYTES);
        if (block->pattern == NULL) abort();
        fill_pattern(block->pattern, (enum kind)k);
        block->bytes = share < gib[k] << 30 ? share : gib[k] << 30;
        if (b->tiny) block->bytes = INT64_C(2) * PATTERN_BYTES;
        block->bytes -= block->bytes % (INT64_C(2) * PATTERN_BYTES);
        block->device = new_device(b, block->bytes);
        for (int64_t i = 0; i < block->bytes; i += PATTERN_BYTES)
            b->api->upload(block->device + i, block->pattern, PATTERN_BYTES);
        wait(b);
    }
    b->out = new_device(b, (int64_t)(b->tiny ? 4 : 256) << 20);
}

int64_t bench_offset(const struct block *block, int64_t bytes, int64_t n)
{
    const int64_t stride = (bytes + 255) / 256 * 256;
    return n % (block->bytes / stride) * stride;
}

double bench_element(const struct bench *b, enum kind kind, int64_t from,
                     int64_t i)
{
    static const weft_dtype types[] = {WEFT_BF16, WEFT_F8_E4M3, WEFT_F32};
    const int64_t size = (int64_t)weft_dtype_bytes(types[kind]);
    const int64_t at = (from + i * size) % PATTERN_BYTES;
    return (double)weft_f32_of(types[kind], b->blocks[kind].pattern + at, 0);
}

const float *bench_floats(const struct bench *b, int64_t bytes, int64_t n)
{
    const struct block *const block = &b->blocks[FLOATS];
    return (const float *)(const void *)(block->device +
                                         bench_offset(block, bytes, n));
}

void bench_open(struct bench *b, const char *library)
{
    const weft_device_options options = {
        .scratch_bytes = (int64_t)SCRATCH_MIB << 20, .threads_max = 1};
    weft_err err = {0};
    void *const opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (opened == NULL) {
        (void)fprintf(stderr, "bench_device: %s\n", dlerror());
        exit(1);
    }
    weft_device_get_fn get_api = NULL;
    void *const symbol = dlsym(opened, WEFT_DEVICE_SYMBOL);
    memcpy(&get_api, &symbol, sizeof get_api);
    b->api = get_api == NULL ? NULL : get_api(WEFT_DEVICE_ABI);
    if (b->api == NULL) {
        (void)fprintf(stderr, "bench_device: %s does not speak ABI %d\n",
                      library, (int)WEFT_DEVICE_ABI);
        exit(1);
    }
    need(b->api->open(&options, &b->device, &err), "open", &err);
    need(b->api->bind(b->device, &err), "bind", &err);
    b->api->get_info(b->device, &b->info);
    make_blocks(b);
}

void bench_close(struct bench *b)
{
    for (int k = 0; k < N_KIND; k++) weft_mem_free(b->blocks[k].pattern);
    b->api->close(b->device);
}

/* --- Times --------------------------------------------------------------- */

static uint64_t time_of(struct bench *b, const struct job *job, int64_t n)
{
    const uint64_t start = weft_clock_now_ns();
    for (int64_t i = 0; i < n; i++)
        job->begin(b, job->op, (int32_t)(i % SETS_MAX));
    wait(b);
    return weft_clock_now_ns() - start;
}

double bench_measure(struct bench *b, const struct job *job)
{
    int64_t n = 1;
    uint64_t best = time_of(b, job, n);
    if (b->tiny) return (double)best * 1e-9;
    while (best < ROUND_NS) {
        n *= 2;
        best = time_of(b, job, n);
    }
    for (int i = 1; i < ROUNDS; i++) {
        const uint64_t ns = time_of(b, job, n);
        if (ns < best) best = ns;
    }
    return (double)best / (double)n * 1e-9;
}

bool bench_wanted(const struct bench *b, const char *name)
{
    for (int i = 0; i < b->n_wanted; i++)
        if (strstr(name, b->wanted[i]) != NULL) return true;
    return b->n_wanted == 0;
}

void bench_report(struct bench *b, const char *name, const struct job *job)
{
    const double seconds = bench_measure(b, job);
    const double bytes = job->bytes / seconds, flops = job->flops / seconds;
    printf("{\"bench\": \"device\", \"device\": \"%s\", \"library\": \"%s\", "
           "\"tiny\": %s, \"case\": \"%s\", \"us\": %.2f, \"gb_per_s\": %.1f, "
           "\"tflop_per_s\": %.3f",
           b->info.name, b->api->name, b->tiny ? "true" : "false", name,
           seconds * 1e6, bytes * 1e-9, flops * 1e-12);
    if (b->copy_rate > 0.0)
        printf(", \"share_of_copy\": %.3f", bytes / b->copy_rate);
    if (b->gemm_rate > 0.0)
        printf(", \"share_of_gemm\": %.3f", flops / b->gemm_rate);
    if (!(job->error < 0.0)) printf(", \"error\": \"%.2g\"", job->error);
    printf("}\n");
    (void)fflush(stdout);
}

/* The first half of a block over the second, which has the same bytes. */
static void begin_copy(struct bench *b, void *op, int32_t i)
{
    const int64_t *const half = op;
    unsigned char *const at = b->blocks[HALVES].device;
    (void)i;
    b->api->copy(at + *half, at, *half);
}

void bench_copy(struct bench *b)
{
    int64_t half = b->blocks[HALVES].bytes / 2;
    struct job job = {begin_copy, &half, 2.0 * (double)half, 0.0, -1.0};
    b->copy_rate = job.bytes / bench_measure(b, &job);
    bench_report(b, "copy", &job);
}

/* --- Errors -------------------------------------------------------------- */

void bench_look(struct distance *d, double got, double want)
{
    const double off = fabs(got - want);
    if (isnan(off) || off > d->most) d->most = off; /* NaN stays */
    if (fabs(want) > d->largest) d->largest = fabs(want);
}

double bench_ratio(const struct distance *d)
{
    return d->largest > 0.0 ? d->most / d->largest : d->most;
}
