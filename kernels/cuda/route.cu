// route.cu - which experts a token goes to: one warp a row, the row's scores in
// shared memory. The bits are those of the CPU's paths: sums go over the 16
// virtual lanes of kernels/ops.h, which are the warp's first 16.
//
// Where scores order experts or groups, NaN is below everything, so the choice
// is always top_k different experts; equal scores leave it to the lower index.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/reduce.cuh"

namespace weft
{

namespace
{

constexpr int32_t route_rows_max = 4; // rows, so warps, of a block

// What a warp has of its row, in shared memory.
struct route_row {
    float *score;    // [n_expert]
    uint32_t *rank;  // [n_expert]: of the choice score; 0 is taken or closed
    uint32_t *group; // [n_group]: of the group score; 0 is taken
};

// Larger for what is chosen first; 1 for NaN, never 0. There is no -0 to rank:
// scores are not negative, so not even with a bias of -0.
__device__ __forceinline__ uint32_t rank_of(float value)
{
    if (value != value) return 1;
    const uint32_t bits = bits_of(value);
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}

// The entry of ranks[0, n) that is chosen next, the same in all lanes. `mine`
// is the best of this lane's entries lane, lane + 32, ...: a rank over an
// inverted index, so that the larger one is also the lower index.
__device__ __forceinline__ unsigned long long best_of(const uint32_t *ranks,
                                                      int32_t n)
{
    unsigned long long best = 0;
    for (int32_t i = lane_index(); i < n; i += 32) {
        const unsigned long long key = static_cast<unsigned long long>(ranks[i])
                                           << 32 |
                                       (0xffffffffU - static_cast<uint32_t>(i));
        if (key > best) best = key;
    }
    return best;
}

__device__ __forceinline__ int32_t take_best(uint32_t *ranks, int32_t n,
                                             unsigned long long *mine)
{
    const unsigned long long key = warp_max(*mine);
    const int32_t index =
        static_cast<int32_t>(0xffffffffU - static_cast<uint32_t>(key));
    if ((index & 31) == lane_index()) {
        ranks[index] = 0;
        *mine = best_of(ranks, n);
    }
    return index;
}

__device__ __forceinline__ void softmax_scores(const float *x, int32_t n,
                                               float *score)
{
    const int32_t lane = lane_index();
    float most = x[0];
    for (int32_t i = lane; i < n; i += 32) most = fmaxf(most, x[i]);
    most = warp_max(most);
    for (int32_t i = lane; i < n; i += 32) score[i] = exp_of(x[i] - most);
    __syncwarp(); // lanes of the sum read what others wrote
    float sum = 0.0f;
    for (int32_t i = lane; lane < 16 && i < n; i += 16) sum += score[i];
    sum = tree_sum(sum);
    __syncwarp(); // everybody has read
    for (int32_t i = lane; i < n; i += 32) score[i] /= sum;
}

// Scores, and ranks of choice scores. A lane reads no entries of others after.
__device__ __forceinline__ void score_experts(const weft_route &op, int64_t r,
                                              const route_row &row)
{
    const float *const x = op.logits + r * op.logits_stride;
    if (op.scoring == WEFT_SOFTMAX) softmax_scores(x, op.n_expert, row.score);
    for (int32_t i = lane_index(); i < op.n_expert; i += 32) {
        if (op.scoring == WEFT_SIGMOID)
            row.score[i] = 1.0f / (1.0f + exp_of(-x[i]));
        const float s = row.score[i];
        row.rank[i] = rank_of(op.bias != nullptr ? s + op.bias[i] : s);
    }
}

// By which a group is chosen.
__device__ __forceinline__ float group_score(const weft_route &op, int32_t g,
                                             const float *score)
{
    const int32_t size = op.n_expert / op.n_group, first = g * size;
    const float none = float_of(0xff800000U);
    float best = none, second = none;
    // From another place in each group: lanes next to each other would meet in
    // one bank of shared memory.
    int32_t i = first + g % size;
    for (int32_t k = 0; k < size; k++) {
        const float s = score[i];
        const float t = op.bias != nullptr ? s + op.bias[i] : s;
        if (t > best) {
            second = best;
            best = t;
        } else if (t > second) {
            second = t;
        }
        if (++i == first + size) i = first;
    }
    return op.group_score == WEFT_GROUP_MAX || size == 1 ? best : best + second;
}

// Experts outside of the topk_group best groups get rank 0.
__device__ __forceinline__ void close_groups(const weft_route &op,
                                             const route_row &row)
{
    const int32_t lane = lane_index();
    for (int32_t g = lane; g < op.n_group; g += 32)
        row.group[g] = rank_of(group_score(op, g, row.score));
    unsigned long long mine = best_of(row.group, op.n_group);
    for (int32_t k = 0; k < op.topk_group; k++)
        (void)take_best(row.group, op.n_group, &mine);
    __syncwarp(); // all groups are ranked or taken
    const int32_t size = op.n_expert / op.n_group;
    for (int32_t i = lane; i < op.n_expert; i += 32)
        if (row.group[i / size] != 0) row.rank[i] = 0;
}

// Slot k belongs to lane k % 16, which is its lane in sums: that lane writes
// the weight and reads it again.
__device__ __forceinline__ float choose_experts(const weft_route &op, int64_t r,
                                                const route_row &row,
                                                float *weights)
{
    int32_t *const experts = op.experts_out + r * op.top_k;
    float sum = 0.0f;
    unsigned long long mine = best_of(row.rank, op.n_expert);
    for (int32_t k = 0; k < op.top_k; k++) {
        const int32_t expert = take_best(row.rank, op.n_expert, &mine);
        if (lane_index() != k % 16) continue;
        const float s = row.score[expert];
        experts[k] = expert;
        weights[k] = s;
        sum += s;
    }
    return tree_sum(sum);
}

__device__ __forceinline__ void weigh_experts(const weft_route &op, float sum,
                                              float *weights)
{
    const int32_t lane = lane_index();
    const int32_t n = lane < 16 ? op.top_k : 0;
    const float total = sum + 1e-20f;
    float square = 0.0f;
    for (int32_t k = lane; k < n; k += 16) {
        const float w = op.norm_topk ? weights[k] / total : weights[k];
        square = fmaf(w, w, square);
        weights[k] = w;
    }
    const float length = sqrtf(tree_sum(square)) + 1e-20f;
    for (int32_t k = lane; k < n; k += 16) {
        const float w = op.dynamic_rsf ? weights[k] / length : weights[k];
        weights[k] = w * op.scale;
    }
}

__global__ void __launch_bounds__(32 * route_rows_max) route_rows(weft_route op)
{
    WEFT_SHARED_DYNAMIC(uint32_t, words);
    const int64_t r =
        static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp_index();
    if (r >= op.n_row) return;
    const int32_t n = op.n_expert;
    uint32_t *const own = words + warp_index() * (2 * n + op.n_group);
    const route_row row = {reinterpret_cast<float *>(own), own + n,
                           own + 2 * n};
    float *const weights = op.weights_out + r * op.top_k;
    score_experts(op, r, row);
    __syncwarp(); // all experts have scores
    if (op.topk_group < op.n_group) close_groups(op, row);
    weigh_experts(op, choose_experts(op, r, row, weights), weights);
}

} // namespace

void launch_route(queue *q, const weft_route *op)
{
    if (op->n_row <= 0) return;
    // Rows of 4096 experts in groups of one fill 48 KiB, which every device has
    // without asking; the usual few hundred experts leave room for four.
    const int64_t bytes =
        4 * (2 * static_cast<int64_t>(op->n_expert) + op->n_group);
    const int32_t rows = bytes <= 8192 ? route_rows_max : 1;
    WEFT_LAUNCH(route_rows,
                dim3(static_cast<uint32_t>((op->n_row + rows - 1) / rows)),
                dim3(static_cast<uint32_t>(32 * rows)),
                static_cast<size_t>(rows * bytes), q->stream, *op);
    note(q, "route");
}

} // namespace weft
