/* spec.h - the configs of model-spec 8.4 on synthetic checkpoints, and the fp64
 * logits of their standard prompt (tests/data/spec). */
#ifndef WEFT_TESTS_SUPPORT_SPEC_H
#define WEFT_TESTS_SUPPORT_SPEC_H

#include <check.h>

#include "tests/support/golden.h"
#include "tests/support/harness.h"
#include "tests/support/synth.h"

enum { SPEC_TOKENS = 21, SPEC_VOCAB = 97 };

/* model-spec 8.6: of the profile exact; relative L2 and the largest. */
#define SPEC_REL_MAX 2e-5
#define SPEC_ABS_MAX 3e-4

/* Written, loaded, and the folder removed. The first takes a config's text. */
harness spec_open_text(const char *config, const synth_options *options,
                       weft_profile profile);
harness spec_open(const char *id, const char *more,
                  const synth_options *options, weft_profile profile);

/* Logits of the standard prompt, [21, 97]; end with weft_mem_free. */
float *spec_logits(const char *id, const char *more,
                   const synth_options *options, const harness_run *run);

/* The caller frees values. */
golden_tensor spec_golden(const char *name);
/* All logits within bounds, and the same largest in each row. */
void spec_expect_golden(const char *name, const float *logits,
                        const char *what);

int32_t spec_largest(const double *row);
int32_t spec_rows_that_differ(const float *a, const float *b);
void spec_expect_same(const float *a, const float *b, const char *what);

/* Whether the synthetic key ends so. */
bool spec_key_ends(const char *key, const char *with);

#endif
