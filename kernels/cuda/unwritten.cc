// unwritten.cc - ops without a kernel, so that the library links; sync names
// them. A kernel's own definition takes the place of the one here.
#include <cstdio>

#include "kernels/cuda/launch.h"

namespace weft
{

namespace
{

void unwritten(queue *q, const char *op)
{
    if (q->error != cudaSuccess) return;
    q->error = cudaErrorInvalidDeviceFunction;
    (void)snprintf(q->failed, sizeof q->failed, "%s has no kernel", op);
}

} // namespace

#define UNWRITTEN(op)                                                          \
    __attribute__((weak)) void launch_##op(queue *q, const weft_##op *)        \
    {                                                                          \
        unwritten(q, #op);                                                     \
    }

__attribute__((weak)) void launch_gemm(queue *q, const weft_gemm *, int32_t)
{
    unwritten(q, "gemm");
}
UNWRITTEN(grouped)
UNWRITTEN(rms_norm)
UNWRITTEN(layer_norm)
UNWRITTEN(rope_table)
UNWRITTEN(rope)
UNWRITTEN(silu_mul)
UNWRITTEN(gate)
UNWRITTEN(add)
UNWRITTEN(embed)
UNWRITTEN(store)
UNWRITTEN(attn)
UNWRITTEN(index_select)
UNWRITTEN(route)
UNWRITTEN(group)
UNWRITTEN(combine)
UNWRITTEN(vocab)

} // namespace weft
