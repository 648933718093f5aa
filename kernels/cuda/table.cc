// table.cc - the library's table of ops: each op begins on the queue of the
// thread that calls it.
#include "kernels/cpu/math.h"
#include "kernels/cuda/bound.h"

namespace weft
{

namespace
{

void gemm(weft_threads *, const weft_gemm *list, int32_t n)
{
    launch_gemm(&bound_here()->q, list, n);
}

template <typename T, void (*LAUNCH)(queue *, const T *)>
void begin(weft_threads *, const T *op)
{
    LAUNCH(&bound_here()->q, op);
}

// On the host, of values there: what the sampler uses (kernels/cpu/math.h).
void exp_host(float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) x[i] = weft_math_exp(x[i]);
}

} // namespace

const weft_ops table = {
#if defined(WEFT_SIMT)
    "simt",
#else
    "cuda",
#endif
    true,
    gemm,
    begin<weft_rms_norm, launch_rms_norm>,
    begin<weft_layer_norm, launch_layer_norm>,
    begin<weft_rope_table, launch_rope_table>,
    begin<weft_rope, launch_rope>,
    begin<weft_silu_mul, launch_silu_mul>,
    begin<weft_gate, launch_gate>,
    begin<weft_add, launch_add>,
    begin<weft_embed, launch_embed>,
    begin<weft_store, launch_store>,
    begin<weft_attn, launch_attn>,
    begin<weft_index_select, launch_index_select>,
    begin<weft_route, launch_route>,
    begin<weft_group, launch_group>,
    begin<weft_grouped, launch_grouped>,
    begin<weft_combine, launch_combine>,
    begin<weft_move, launch_move>,
    begin<weft_vocab, launch_vocab>,
    exp_host,
};

} // namespace weft
