/* golden.h - reads the golden files of tests/data: a plain safetensors reader
 * of its own, so that the loader under test is not its own witness.
 *
 * Anything wrong with a golden file ends the test with a message. */
#ifndef WEFT_TESTS_SUPPORT_GOLDEN_H
#define WEFT_TESTS_SUPPORT_GOLDEN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct golden {
    char path[512];
    unsigned char *bytes;
    json_t *header;
    int64_t data_first;
} golden;

typedef struct golden_tensor {
    int64_t n;          /* elements */
    int64_t rows, cols; /* of a matrix; cols = n for a vector */
    double *values;     /* the golden's caller frees with free() */
} golden_tensor;

golden golden_open(const char *path);
void golden_close(golden *g);
bool golden_has(const golden *g, const char *name);
/* F32, F64, I32, BF16 as doubles. */
golden_tensor golden_get(const golden *g, const char *name);

/* sqrt(sum (a - b)^2 / sum b^2); *largest_out: max |a - b|. NaN anywhere gives
 * NaN. */
double golden_distance(const float *a, const double *b, int64_t n,
                       double *largest_out);

#endif
