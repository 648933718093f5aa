/* kernel_kit.h - every path of the cpu backend against the reference.
 *
 * A check makes inputs from a seed, runs the reference, then every path that
 * this machine has with 1, 2 and 3 threads, and compares whole output buffers,
 * padding included, byte for byte. What must not be read is NaN; buffers end
 * where their data ends, for the address sanitizer. A hash of all results is
 * kept: it must be the same on every architecture.
 *
 * Plain C without a test library, so that portable_main.c can run it under an
 * emulator. Threads: one.
 */
#ifndef WEFT_TESTS_SUPPORT_KERNEL_KIT_H
#define WEFT_TESTS_SUPPORT_KERNEL_KIT_H

#include "kernels/ops.h"

typedef struct weft_kernel_check {
    const char *name; /* of the op */
    void (*fn)(struct weft_kernel_check *);
    int32_t n_case, n_failed;
    uint64_t hash, seed; /* seed moves with every number drawn */
} weft_kernel_check;

/* In a fixed order; a name of NULL ends the list. */
extern const weft_kernel_check weft_kernel_checks[];

/* Run the check of that name and fill *check_out; failures are printed. */
void weft_kernel_check_run(const char *name, weft_kernel_check *check_out);

/* For the checks. */

/* Zeroed memory of exactly that many bytes; aborts if there is none. */
void *weft_kit_new(size_t n, size_t item_bytes);
/* n floats, all NaN. */
float *weft_kit_nans(int64_t n);

uint64_t weft_kit_bits(weft_kernel_check *check);
int32_t weft_kit_int(weft_kernel_check *check, int32_t low, int32_t high);
int32_t weft_kit_pick(weft_kernel_check *check, const int32_t *list, int32_t n);
/* About uniform in (-size, size), now and then a zero of either sign or a
 * subnormal. */
float weft_kit_float(weft_kernel_check *check, float size);
/* rows of width floats, stride apart; the padding stays. */
void weft_kit_fill(weft_kernel_check *check, float *to, int32_t rows,
                   int32_t width, int64_t stride, float size);

/* Called with each table and pool in turn; first with the reference and a pool
 * of one. */
typedef void (*weft_kit_run_fn)(const weft_ops *ops, weft_threads *threads,
                                void *arg);

/* A buffer that an op writes; it has the same bytes before every run. */
typedef struct weft_kit_output {
    void *data;
    size_t bytes;
} weft_kit_output;

/* Run everywhere and compare; `what` describes the case in a failure. */
void weft_kit_compare(weft_kernel_check *check, weft_kit_run_fn run, void *arg,
                      const weft_kit_output *outputs, int32_t n,
                      const char *what);

/* A random matrix in packed form. `data` ends where the matrix ends. */
void weft_kit_matrix(weft_kernel_check *check, weft_dtype dtype, int32_t n_out,
                     int32_t n_in, weft_matrix *matrix_out);
void weft_kit_matrix_free(weft_matrix *matrix);

/* Paged memory for one sequence of n_tokens rows, random values (in F8_E4M3:
 * index keys), everything else NaN: between rows, between layers, unused pages.
 */
typedef struct weft_kit_pages {
    weft_paged paged;
    int64_t *pages;
    int32_t n_page, width;
    size_t bytes;
} weft_kit_pages;

void weft_kit_pages_make(weft_kernel_check *check, weft_dtype dtype,
                         int32_t n_tokens, int32_t page_tokens, int32_t width,
                         weft_kit_pages *pages_out);
void weft_kit_pages_free(weft_kit_pages *pages);

/* Makes an index key, of numbers below 2, one that a scale has to be right for:
 * zeros, the smallest and the largest numbers, what 448 divides and what is
 * just above, no numbers. */
void weft_kit_key_edge(float *x, int32_t width, int32_t kind);

void weft_check_gemm(weft_kernel_check *check);
void weft_check_pack(weft_kernel_check *check);
void weft_check_rms_norm(weft_kernel_check *check);
void weft_check_layer_norm(weft_kernel_check *check);
void weft_check_rope_table(weft_kernel_check *check);
void weft_check_rope(weft_kernel_check *check);
void weft_check_silu_mul(weft_kernel_check *check);
void weft_check_gate(weft_kernel_check *check);
void weft_check_add(weft_kernel_check *check);
void weft_check_embed(weft_kernel_check *check);
void weft_check_store(weft_kernel_check *check);
void weft_check_attn(weft_kernel_check *check);
void weft_check_index(weft_kernel_check *check);
void weft_check_route(weft_kernel_check *check);
void weft_check_group(weft_kernel_check *check);
void weft_check_combine(weft_kernel_check *check);
void weft_check_move(weft_kernel_check *check);
void weft_check_vocab(weft_kernel_check *check);
void weft_check_exp(weft_kernel_check *check);

#endif
