#include "tests/support/spec.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/bytes.h"

#define GOLDENS "tests/data/spec/goldens.safetensors"

harness spec_open_text(const char *config, const synth_options *options,
                       weft_profile profile)
{
    char dir[64];
    synth_folder_make(dir);
    synth_write(dir, config, options);
    harness h = harness_open(dir, profile);
    synth_folder_remove(dir);
    return h;
}

harness spec_open(const char *id, const char *more,
                  const synth_options *options, weft_profile profile)
{
    char dir[64];
    synth_folder_make(dir);
    synth_case_write(dir, id, more, options);
    harness h = harness_open(dir, profile);
    synth_folder_remove(dir);
    return h;
}

float *spec_logits(const char *id, const char *more,
                   const synth_options *options, const harness_run *run)
{
    int32_t ids[SPEC_TOKENS];
    synth_prompt(ids, SPEC_TOKENS);
    harness h = spec_open(id, more, options, WEFT_EXACT);
    ck_assert_int_eq(h.config.vocab_size, SPEC_VOCAB);
    float *const logits = harness_logits(&h, ids, SPEC_TOKENS, run);
    harness_close(&h);
    return logits;
}

int32_t spec_largest(const double *row)
{
    int32_t best = 0;
    for (int32_t i = 1; i < SPEC_VOCAB; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

static int32_t largest_of_floats(const float *row)
{
    double wide[SPEC_VOCAB];
    for (int32_t i = 0; i < SPEC_VOCAB; i++) wide[i] = (double)row[i];
    return spec_largest(wide);
}

golden_tensor spec_golden(const char *name)
{
    golden g = golden_open(GOLDENS);
    const golden_tensor want = golden_get(&g, name);
    golden_close(&g);
    ck_assert_int_eq(want.n, (int64_t)SPEC_TOKENS * SPEC_VOCAB);
    return want;
}

void spec_expect_golden(const char *name, const float *logits, const char *what)
{
    const golden_tensor want = spec_golden(name);
    double largest = 0.0;
    const double rel = golden_distance(logits, want.values, want.n, &largest);
    ck_assert_msg(rel <= SPEC_REL_MAX && largest <= SPEC_ABS_MAX,
                  "%s, %s: relative L2 %.3g, largest %.3g", name, what, rel,
                  largest);
    for (int32_t r = 0; r < SPEC_TOKENS; r++)
        ck_assert_int_eq(largest_of_floats(logits + (int64_t)r * SPEC_VOCAB),
                         spec_largest(want.values + (int64_t)r * SPEC_VOCAB));
    free(want.values);
}

int32_t spec_rows_that_differ(const float *a, const float *b)
{
    int32_t n = 0;
    for (int32_t r = 0; r < SPEC_TOKENS; r++)
        n += !same_bytes(a + (int64_t)r * SPEC_VOCAB,
                         b + (int64_t)r * SPEC_VOCAB, SPEC_VOCAB * sizeof *a);
    return n;
}

void spec_expect_same(const float *a, const float *b, const char *what)
{
    const int32_t n = spec_rows_that_differ(a, b);
    ck_assert_msg(n == 0, "%s: %d rows of logits differ", what, n);
}

bool spec_key_ends(const char *key, const char *with)
{
    const size_t n = strlen(key), tail = strlen(with);
    return n >= tail && strcmp(key + n - tail, with) == 0;
}
