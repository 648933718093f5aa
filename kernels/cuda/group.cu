// group.cu - the pairs of a step by expert, and back.
//
// One block an expert reads the whole list of experts: at most a few hundred
// KiB, which stay in the second-level cache, and no block waits for another. So
// it is one launch, without scratch and without atomics, and its result cannot
// depend on who comes first.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/quad.cuh"
#include "kernels/cuda/reduce.cuh"

namespace weft
{

namespace
{

constexpr int32_t group_warps_max = 32;
// A warp takes at least so many pairs, so that a short step has few warps.
constexpr int32_t group_pairs_min = 128;

struct group_count {
    int32_t before; // pairs of lower experts
    int32_t equal;  // pairs of this expert
};

// Pairs [first, end), counted by the warp.
__device__ __forceinline__ group_count count_pairs(const int32_t *experts,
                                                   int32_t first, int32_t end,
                                                   int32_t expert)
{
    group_count n = {0, 0};
#pragma unroll 4
    for (int32_t i = first + lane_index(); i < end; i += 32) {
        const int32_t e = experts[i];
        n.before += e < expert ? 1 : 0;
        n.equal += e == expert ? 1 : 0;
    }
    return {warp_sum(n.before), warp_sum(n.equal)};
}

// Pairs [first, end) of this expert go to places from `place` on.
__device__ __forceinline__ void place_pairs(const weft_group &op, int32_t first,
                                            int32_t end, int32_t expert,
                                            int32_t place)
{
    const int32_t lane = lane_index();
    const uint32_t lower = (1U << lane) - 1U;
#pragma unroll 4
    for (int32_t i = first; i < end; i += 32) {
        const int32_t pair = i + lane;
        const bool is_ours = pair < end && op.experts[pair] == expert;
        const uint32_t ours = __ballot_sync(WEFT_FULL_MASK, is_ours);
        if (is_ours) {
            const int32_t at = place + __popc(ours & lower);
            op.rows_out[at] = pair / op.top_k;
            op.row_of_out[pair] = at;
        }
        place += __popc(ours);
    }
}

__global__ void __launch_bounds__(32 * group_warps_max)
    group_pairs(weft_group op, int32_t pairs_a_warp)
{
    __shared__ int32_t before[group_warps_max], equal[group_warps_max];
    const int32_t expert = static_cast<int32_t>(blockIdx.x);
    const int32_t n_pairs = op.n_row * op.top_k;
    const int32_t first = warp_index() * pairs_a_warp;
    const int32_t end =
        n_pairs - first < pairs_a_warp ? n_pairs : first + pairs_a_warp;
    const group_count n = count_pairs(op.experts, first, end, expert);
    if (lane_index() == 0) {
        before[warp_index()] = n.before;
        equal[warp_index()] = n.equal;
    }
    __syncthreads();
    int32_t start = 0, place = 0, total = 0;
    const int32_t warps = static_cast<int32_t>(blockDim.x / 32);
    for (int32_t w = 0; w < warps; w++) {
        start += before[w];
        if (w < warp_index()) place += equal[w];
        total += equal[w];
    }
    if (thread_index() == 0) {
        op.first_out[expert] = start;
        if (expert == op.n_expert - 1)
            op.first_out[op.n_expert] = start + total;
    }
    if (n.equal > 0) place_pairs(op, first, end, expert, start + place);
}

// WIDE: rows of the experts are wide, so their width is a multiple of four and
// the loads of several slots can be under way at once.
template <bool WIDE>
__global__ void __launch_bounds__(quad_threads)
    combine_rows(weft_combine op, bool wide)
{
    const int64_t r = quad_row();
    const int32_t first = quad_first(), n = op.width - first;
    if (n <= 0) return;
    const int32_t *const row_of = op.row_of + r * op.top_k;
    const float *const weights = op.weights + r * op.top_k;
    quad sum = {};
#pragma unroll 4
    for (int32_t k = 0; k < op.top_k; k++) {
        const int64_t from = static_cast<int64_t>(row_of[k]) * op.width;
        const float *const at = op.expert_rows + from + first;
        const quad x = load_quad(at, WIDE ? 4 : n, WIDE);
        const float w = weights[k];
#pragma unroll
        for (int32_t i = 0; i < 4; i++) sum.v[i] = fmaf(w, x.v[i], sum.v[i]);
    }
#pragma unroll
    for (int32_t i = 0; i < 4; i++) sum.v[i] = round_to(sum.v[i], op.round);
    if (op.shared != nullptr) {
        const quad x =
            load_quad(op.shared + r * op.shared_stride + first, n, wide);
#pragma unroll
        for (int32_t i = 0; i < 4; i++)
            sum.v[i] = round_to(sum.v[i] + x.v[i], op.round);
    }
    store_quad(op.y + r * op.y_stride + first, sum, n, wide);
}

} // namespace

void launch_group(queue *q, const weft_group *op)
{
    if (op->n_row <= 0) return;
    const int32_t n_pairs = op->n_row * op->top_k;
    int32_t warps = (n_pairs + group_pairs_min - 1) / group_pairs_min;
    if (warps > group_warps_max) warps = group_warps_max;
    const int32_t pairs_a_warp = (n_pairs + warps - 1) / warps;
    WEFT_LAUNCH(group_pairs, dim3(static_cast<uint32_t>(op->n_expert)),
                dim3(static_cast<uint32_t>(32 * warps)), 0, q->stream, *op,
                pairs_a_warp);
    note(q, "group");
}

void launch_combine(queue *q, const weft_combine *op)
{
    if (op->n_row <= 0) return;
    const quad_shape shape = quad_shape_of(op->n_row, op->width);
    const bool wide =
        are_wide(op->y, op->y_stride) &&
        (op->shared == nullptr || are_wide(op->shared, op->shared_stride));
    void (*const kernel)(weft_combine, bool) =
        are_wide(op->expert_rows, op->width) ? combine_rows<true>
                                             : combine_rows<false>;
    WEFT_LAUNCH(kernel, shape.grid, shape.block, 0, q->stream, *op, wide);
    note(q, "combine");
}

} // namespace weft
