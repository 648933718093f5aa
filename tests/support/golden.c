#include "tests/support/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

golden golden_open(const char *path)
{
    golden g = {0};
    (void)snprintf(g.path, sizeof g.path, "%s", path);
    FILE *const f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "cannot open %s", path);
    ck_assert(fseek(f, 0, SEEK_END) == 0);
    const long size = ftell(f);
    ck_assert(size > 8 && fseek(f, 0, SEEK_SET) == 0);
    g.bytes = malloc((size_t)size);
    ck_assert_ptr_nonnull(g.bytes);
    ck_assert(fread(g.bytes, 1, (size_t)size, f) == (size_t)size);
    (void)fclose(f);
    uint64_t n = 0;
    memcpy(&n, g.bytes, 8);
    json_error_t error;
    g.header = json_loadb((char *)g.bytes + 8, (size_t)n, 0, &error);
    ck_assert_msg(g.header != NULL, "%s: %s", path, error.text);
    g.data_first = (int64_t)n + 8;
    return g;
}

void golden_close(golden *g)
{
    json_decref(g->header);
    free(g->bytes);
    *g = (golden){0};
}

bool golden_has(const golden *g, const char *name)
{
    return json_object_get(g->header, name) != NULL;
}

static double element(const char *dtype, const unsigned char *at, int64_t i)
{
    if (strcmp(dtype, "F32") == 0) {
        float v;
        memcpy(&v, at + i * 4, 4);
        return (double)v;
    }
    if (strcmp(dtype, "F64") == 0) {
        double v;
        memcpy(&v, at + i * 8, 8);
        return v;
    }
    if (strcmp(dtype, "I32") == 0) {
        int32_t v;
        memcpy(&v, at + i * 4, 4);
        return v;
    }
    ck_assert_msg(strcmp(dtype, "BF16") == 0, "golden dtype %s", dtype);
    uint16_t half;
    memcpy(&half, at + i * 2, 2);
    const uint32_t bits = (uint32_t)half << 16;
    float v;
    memcpy(&v, &bits, 4);
    return (double)v;
}

golden_tensor golden_get(const golden *g, const char *name)
{
    json_t *const entry = json_object_get(g->header, name);
    ck_assert_msg(entry != NULL, "%s has no tensor %s", g->path, name);
    json_t *const shape = json_object_get(entry, "shape");
    golden_tensor t = {.n = 1, .cols = 1};
    for (size_t i = 0; i < json_array_size(shape); i++) {
        t.cols = json_integer_value(json_array_get(shape, i));
        t.n *= t.cols;
    }
    t.rows = t.cols == 0 ? 0 : t.n / t.cols;
    const char *const dtype =
        json_string_value(json_object_get(entry, "dtype"));
    const int64_t begin = json_integer_value(
        json_array_get(json_object_get(entry, "data_offsets"), 0));
    t.values = malloc((size_t)(t.n == 0 ? 1 : t.n) * sizeof *t.values);
    ck_assert_ptr_nonnull(t.values);
    for (int64_t i = 0; i < t.n; i++)
        t.values[i] = element(dtype, g->bytes + g->data_first + begin, i);
    return t;
}

double golden_distance(const float *a, const double *b, int64_t n,
                       double *largest_out)
{
    double difference = 0.0, size = 0.0, largest = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)a[i] - b[i];
        difference += d * d;
        size += b[i] * b[i];
        if (!(fabs(d) <= largest)) largest = fabs(d);
    }
    *largest_out = largest;
    return sqrt(difference / size);
}
