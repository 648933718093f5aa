/* device.h - what the parts of bench_device share: a device, large blocks of
 * operands, times, and distances to sums on the host. What fails is printed,
 * and ends the program.
 */
#ifndef WEFT_TESTS_BENCH_DEVICE_DEVICE_H
#define WEFT_TESTS_BENCH_DEVICE_DEVICE_H

#include "kernels/device.h"

enum {
    PATTERN_BYTES = 16 << 20, /* a block is this over and over */
    PAGE_TOKENS = 64,
    SETS_MAX = 16,
    SAMPLES = 64,
};

/* Blocks of operands, by what their bytes are read as. */
enum kind { HALVES, BYTES, FLOATS, N_KIND }; /* bf16, f8, fp32 of bf16 values */

struct block {
    unsigned char *device, *pattern;
    int64_t bytes;
};

struct bench {
    const weft_device_api *api;
    weft_device *device;
    weft_device_info info;
    struct block blocks[N_KIND];
    float *out; /* device, where results go */
    bool tiny;
    double copy_rate, gemm_rate; /* bytes and operations a second */
    char **wanted;
    int n_wanted;
};

/* What a case is made of. */
struct job {
    /* Starts the op, on operands of set i of SETS_MAX. */
    void (*begin)(struct bench *, void *op, int32_t i);
    void *op;
    double bytes, flops;
    double error; /* negative: not looked at */
};

/* Memory that is there until the end of the case (bench_end_case). */
void *bench_new_device(struct bench *b, int64_t bytes);
void *bench_new_host(struct bench *b, int64_t bytes);
void *bench_put(struct bench *b, const void *host, int64_t bytes);
void bench_get(struct bench *b, void *host, const void *device, int64_t bytes);
void bench_end_case(struct bench *b);

void bench_open(struct bench *b, const char *library);
void bench_close(struct bench *b);

/* Where the n-th operand of so many bytes lies in a block. */
int64_t bench_offset(const struct block *block, int64_t bytes, int64_t n);
/* Element i from a byte of a block on, on the host. */
double bench_element(const struct bench *b, enum kind kind, int64_t from,
                     int64_t i);
/* The n-th operand of so many bytes, on the device. */
const float *bench_floats(const struct bench *b, int64_t bytes, int64_t n);

bool bench_wanted(const struct bench *b, const char *name);
double bench_measure(struct bench *b, const struct job *job); /* seconds */
void bench_report(struct bench *b, const char *name, const struct job *job);

struct distance {
    double most, largest; /* difference, value */
};
void bench_look(struct distance *d, double got, double want);
double bench_ratio(const struct distance *d);

/* The cases. */
void bench_copy(struct bench *b);
void bench_products(struct bench *b);
void bench_attention(struct bench *b);
void bench_index(struct bench *b);
void bench_rows(struct bench *b);

#endif
