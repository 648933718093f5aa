#include "tests/support/kernel_kit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/hash.h"
#include "node/base/mem.h"

const weft_kernel_check weft_kernel_checks[] = {
    {.name = "pack", .fn = weft_check_pack},
    {.name = "gemm", .fn = weft_check_gemm},
    {.name = "rms_norm", .fn = weft_check_rms_norm},
    {.name = "layer_norm", .fn = weft_check_layer_norm},
    {.name = "rope_table", .fn = weft_check_rope_table},
    {.name = "rope", .fn = weft_check_rope},
    {.name = "silu_mul", .fn = weft_check_silu_mul},
    {.name = "gate", .fn = weft_check_gate},
    {.name = "add", .fn = weft_check_add},
    {.name = "embed", .fn = weft_check_embed},
    {.name = "store", .fn = weft_check_store},
    {.name = "attn", .fn = weft_check_attn},
    {.name = "index_select", .fn = weft_check_index},
    {.name = "route", .fn = weft_check_route},
    {.name = "group", .fn = weft_check_group},
    {.name = "combine", .fn = weft_check_combine},
    {.name = "move", .fn = weft_check_move},
    {.name = "vocab", .fn = weft_check_vocab},
    {.name = "exp", .fn = weft_check_exp},
    {.name = NULL},
};

enum { POOLS = 3 };
static weft_threads *pools[POOLS];

static void need(bool there, const char *what)
{
    if (there) return;
    (void)fprintf(stderr, "kernel kit: no %s\n", what);
    abort();
}

void weft_kernel_check_run(const char *name, weft_kernel_check *check_out)
{
    const weft_kernel_check *from = weft_kernel_checks;
    while (from->name != NULL && strcmp(from->name, name) != 0) from++;
    need(from->name != NULL, name);
    *check_out = *from;
    check_out->hash = WEFT_FNV_START;
    check_out->seed = weft_hash_fnv(WEFT_FNV_START, name, strlen(name));
    for (int32_t i = 0; i < POOLS; i++)
        need(weft_threads_create(i + 1, &pools[i], NULL) == WEFT_OK, "threads");
    check_out->fn(check_out);
    for (int32_t i = 0; i < POOLS; i++) weft_threads_destroy(pools[i]);
}

void *weft_kit_new(size_t n, size_t item_bytes)
{
    void *const mem = weft_mem_new(n, item_bytes);
    need(mem != NULL, "memory");
    return mem;
}

float *weft_kit_nans(int64_t n)
{
    float *const to = weft_kit_new((size_t)n, sizeof *to);
    for (int64_t i = 0; i < n; i++) to[i] = NAN;
    return to;
}

uint64_t weft_kit_bits(weft_kernel_check *check)
{
    check->seed += 0x9e3779b97f4a7c15ULL;
    return weft_hash_mix(check->seed);
}

int32_t weft_kit_int(weft_kernel_check *check, int32_t low, int32_t high)
{
    const uint64_t span = (uint64_t)(high - low) + 1;
    return low + (int32_t)(weft_kit_bits(check) % span);
}

int32_t weft_kit_pick(weft_kernel_check *check, const int32_t *list, int32_t n)
{
    return list[weft_kit_int(check, 0, n - 1)];
}

float weft_kit_float(weft_kernel_check *check, float size)
{
    const uint64_t bits = weft_kit_bits(check);
    switch (bits & 127) {
    case 0: return 0.0f;
    case 1: return -0.0f;
    case 2: return 0x1p-140f;
    case 3: return -0x1.8p-133f;
    default: break;
    }
    const float unit = (float)(bits >> 40) * 0x1p-24f;
    return size * (2.0f * unit - 1.0f);
}

void weft_kit_fill(weft_kernel_check *check, float *to, int32_t rows,
                   int32_t width, int64_t stride, float size)
{
    for (int32_t r = 0; r < rows; r++)
        for (int32_t i = 0; i < width; i++)
            to[r * stride + i] = weft_kit_float(check, size);
}

/* Bytes of all outputs end to end, into or out of `flat`. */
static void copy_out(const weft_kit_output *outputs, int32_t n,
                     unsigned char *flat, bool restore)
{
    for (int32_t i = 0; i < n; i++) {
        if (restore)
            memcpy(outputs[i].data, flat, outputs[i].bytes);
        else
            memcpy(flat, outputs[i].data, outputs[i].bytes);
        flat += outputs[i].bytes;
    }
}

void weft_kit_compare(weft_kernel_check *check, weft_kit_run_fn run, void *arg,
                      const weft_kit_output *outputs, int32_t n,
                      const char *what)
{
    size_t bytes = 0;
    for (int32_t i = 0; i < n; i++) bytes += outputs[i].bytes;
    unsigned char *const before = weft_kit_new(bytes + 1, 1);
    unsigned char *const expected = weft_kit_new(bytes + 1, 1);
    unsigned char *const got = weft_kit_new(bytes + 1, 1);
    copy_out(outputs, n, before, false);
    run(weft_ops_reference(), pools[0], arg);
    copy_out(outputs, n, expected, false);
    check->hash = weft_hash_fnv(check->hash, expected, bytes);
    check->n_case++;

    for (int32_t p = 0; weft_ops_cpu_nth(p) != NULL; p++) {
        for (int32_t t = 0; t < POOLS; t++) {
            copy_out(outputs, n, before, true);
            run(weft_ops_cpu_nth(p), pools[t], arg);
            copy_out(outputs, n, got, false);
            if (memcmp(expected, got, bytes) == 0) continue;
            size_t at = 0;
            while (expected[at] == got[at]) at++;
            check->n_failed++;
            printf("%s, %s, %d threads: %s: differs from the reference at "
                   "byte %zu of %zu\n",
                   check->name, weft_ops_cpu_nth(p)->name, (int)t + 1, what, at,
                   bytes);
        }
    }
    copy_out(outputs, n, expected, true);
    weft_mem_free(before);
    weft_mem_free(expected);
    weft_mem_free(got);
}

/* Row-major elements that are finite numbers. */
static void random_elements(weft_kernel_check *check, weft_dtype dtype,
                            unsigned char *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float value = weft_kit_float(check, 1.0f);
        uint16_t half = (uint16_t)weft_kit_bits(check);
        uint8_t byte = (uint8_t)half;
        if ((half & 0x7c00) == 0x7c00) half &= 0x83ff;
        if ((byte & 0x7f) == 0x7f) byte &= 0x80;
        if (dtype == WEFT_BF16) half = weft_bf16_of_f32(value);
        const size_t bytes = weft_dtype_bytes(dtype);
        const void *const from = bytes == 4   ? (const void *)&value
                                 : bytes == 2 ? (const void *)&half
                                              : (const void *)&byte;
        memcpy(to + i * (int64_t)bytes, from, bytes);
    }
}

void weft_kit_matrix(weft_kernel_check *check, weft_dtype dtype, int32_t n_out,
                     int32_t n_in, weft_matrix *matrix_out)
{
    const size_t bytes = weft_matrix_bytes(dtype, n_out, n_in);
    unsigned char *const data = weft_mem_new_aligned(64, bytes);
    need(data != NULL, "memory");
    memset(data, 0, bytes);
    unsigned char *const rows =
        weft_kit_new((size_t)n_out * (size_t)n_in, weft_dtype_bytes(dtype));
    random_elements(check, dtype, rows, (int64_t)n_out * n_in);
    weft_matrix_pack_rows(data, dtype, n_out, n_in, rows, 0, n_out);
    weft_mem_free(rows);

    float *scales = NULL;
    if (dtype == WEFT_F8_E4M3) {
        const int32_t n = (n_out + 127) / 128 * ((n_in + 127) / 128);
        scales = weft_kit_new((size_t)n, sizeof *scales);
        for (int32_t i = 0; i < n; i++)
            scales[i] = (1.5f + weft_kit_float(check, 1.0f)) * 0x1p-9f;
    }
    *matrix_out = (weft_matrix){data, scales, dtype, n_out, n_in};
}

/* The tests' own memory, whatever the matrix says of it. */
static void *unconst(const void *mem)
{
    void *plain;
    memcpy(&plain, &mem, sizeof plain);
    return plain;
}

void weft_kit_matrix_free(weft_matrix *matrix)
{
    weft_mem_free(unconst(matrix->data));
    weft_mem_free(unconst(matrix->scales));
}

/* Any codes but those of NaN, and a scale that brings them near 1. */
static void make_key(weft_kernel_check *check, unsigned char *row,
                     int32_t width)
{
    const float scale = ldexpf(1.0f, weft_kit_int(check, -10, -6));
    for (int32_t i = 0; i < width; i++) {
        const uint8_t code = (uint8_t)weft_kit_bits(check);
        row[i] = (code & 0x7fu) == 0x7fu ? 0x38u : code;
    }
    memcpy(row + width, &scale, sizeof scale);
}

void weft_kit_pages_make(weft_kernel_check *check, weft_dtype dtype,
                         int32_t n_tokens, int32_t page_tokens, int32_t width,
                         weft_kit_pages *pages_out)
{
    weft_kit_pages *const p = pages_out;
    const int64_t elem = (int64_t)weft_dtype_bytes(dtype);
    /* A scale in fp32 behind codes, and 4 bytes that are nobody's. */
    const int64_t row_bytes =
        dtype == WEFT_F8_E4M3 ? width + 8 : (width + 3) * elem;
    const int64_t layer_bytes = row_bytes * page_tokens;
    p->n_page = (n_tokens + page_tokens - 1) / page_tokens + 2;
    p->width = width;
    p->bytes = (size_t)(2 * layer_bytes * p->n_page);
    p->paged = (weft_paged){.base = weft_kit_new(p->bytes, 1),
                            .layer_offset = layer_bytes,
                            .row_bytes = row_bytes,
                            .page_tokens = page_tokens,
                            .dtype = dtype};
    memset(p->paged.base, 0xff, p->bytes); /* NaN in both types */
    p->pages = weft_kit_new((size_t)p->n_page, sizeof *p->pages);
    /* Backwards, the first and the last unused. */
    for (int32_t i = 0; i < p->n_page; i++)
        p->pages[i] =
            i < p->n_page - 2 ? 2 * layer_bytes * (p->n_page - 2 - i) : -1;
    for (int32_t t = 0; t < n_tokens; t++) {
        unsigned char *const row = p->paged.base + p->pages[t / page_tokens] +
                                   layer_bytes + t % page_tokens * row_bytes;
        if (dtype == WEFT_F8_E4M3) make_key(check, row, width);
        for (int32_t i = 0; i < width && dtype != WEFT_F8_E4M3; i++) {
            const float value = weft_kit_float(check, 1.0f);
            const uint16_t half = weft_bf16_of_f32(value);
            if (dtype == WEFT_F32)
                memcpy(row + i * elem, &value, sizeof value);
            else
                memcpy(row + i * elem, &half, sizeof half);
        }
    }
}

void weft_kit_pages_free(weft_kit_pages *pages)
{
    weft_mem_free(pages->paged.base);
    weft_mem_free(pages->pages);
}
