/* fake_experts.h - routed experts beside the forward pass, computed in this
 * process from the model's own weights, that can be taken away. One for each
 * stage: it is called by that stage's thread. */
#ifndef WEFT_TESTS_SUPPORT_FAKE_EXPERTS_H
#define WEFT_TESTS_SUPPORT_FAKE_EXPERTS_H

#include <stdatomic.h>

#include "shard/model/experts.h"
#include "tests/support/harness.h"

typedef struct fake_experts {
    const harness *h;
    weft_threads *threads;
    float *scratch;
    weft_experts seam;
    bool away[WEFT_STEP_LANES];
    atomic_bool gone;         /* begin says UNAVAILABLE */
    atomic_bool broken;       /* collect says INTERNAL */
    atomic_int fail_begins;   /* so many of the next begins fail */
    atomic_int fail_collects; /* and of the next collects */
    /* Every n-th collect fails; 0: none. */
    atomic_int fail_every;
    atomic_int n_begins, n_collects, n_failed, n_idles;
    atomic_int two_at_once; /* calls that began while another was away */
} fake_experts;

fake_experts *fake_experts_open(const harness *h);
void fake_experts_close(fake_experts *f);

#endif
