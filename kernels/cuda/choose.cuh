// choose.cuh - the first few of a list in an order, by a block: digits of the
// keys are counted from the highest down, and each round keeps the one bin in
// which the count reaches its target (radix select). Counts are integers, so
// the order in which threads add to them changes nothing.
#ifndef WEFT_KERNELS_CUDA_CHOOSE_CUH
#define WEFT_KERNELS_CUDA_CHOOSE_CUH

#include "kernels/cuda/reduce.cuh"

namespace weft
{

enum { CHOOSE_THREADS = 512, CHOOSE_WARPS = CHOOSE_THREADS / 32 };
enum { CHOOSE_BINS = 2048 }; // 11 bits

// The bin in which the sum from the top reaches the target, and the sum of the
// bins above it.
template <typename T> struct bin_found {
    T above;
    int32_t bin;
};

template <typename T> struct bin_space {
    T bins[CHOOSE_BINS];
    T partial[CHOOSE_WARPS];
    bin_found<T> found;
};

template <typename T> __device__ __forceinline__ void clear_bins(T *bins)
{
    for (int32_t i = thread_index(); i < CHOOSE_BINS; i += CHOOSE_THREADS)
        bins[i] = 0;
    __syncthreads();
}

// After a barrier that follows the counting. The target is at least 1 and at
// most the sum of all bins.
template <typename T>
__device__ __forceinline__ bin_found<T> find_bin(bin_space<T> *space, T target)
{
    constexpr int32_t share = CHOOSE_BINS / CHOOSE_THREADS;
    const int32_t top = CHOOSE_BINS - 1 - share * thread_index();
    T mine = 0;
#pragma unroll
    for (int32_t i = 0; i < share; i++) mine += space->bins[top - i];
    T run = mine;
#pragma unroll
    for (int32_t d = 1; d < 32; d *= 2) {
        const T other = __shfl_up_sync(WEFT_FULL_MASK, run, d);
        if (lane_index() >= d) run += other;
    }
    if (lane_index() == 31) space->partial[warp_index()] = run;
    __syncthreads();
    T above = run - mine;
    for (int32_t w = 0; w < warp_index(); w++) above += space->partial[w];
    if (above < target && target - above <= mine) {
        int32_t bin = top;
        while (above + space->bins[bin] < target) above += space->bins[bin--];
        space->found.above = above;
        space->found.bin = bin;
    }
    __syncthreads();
    return space->found;
}

// Larger keys come first: -0 is +0, and NaN is below everything.
__device__ __forceinline__ uint32_t score_key(float score)
{
    if (score != score) return 0;
    const uint32_t bits = bits_of(score + 0.0f);
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}

// Of a list those with a larger key are taken, and of those with this key the
// first `equal`.
struct score_cut {
    uint32_t key, equal;
};

// The cut that takes k of n scores, 0 < k < n.
__device__ __forceinline__ score_cut find_cut(const float *scores, int32_t n,
                                              int32_t k,
                                              bin_space<uint32_t> *space)
{
    score_cut cut = {0, static_cast<uint32_t>(k)};
    uint32_t fixed = 0; // the bits that are known
#pragma unroll
    for (int32_t round = 0; round < 3; round++) {
        const int32_t shift = round == 0 ? 21 : round == 1 ? 10 : 0;
        const uint32_t mask = round == 2 ? 1023U : 2047U;
        clear_bins(space->bins);
#pragma unroll 4
        for (int32_t i = thread_index(); i < n; i += CHOOSE_THREADS) {
            const uint32_t key = score_key(scores[i]);
            if (((key ^ cut.key) & fixed) == 0)
                atomicAdd(&space->bins[(key >> shift) & mask], 1U);
        }
        __syncthreads();
        const bin_found<uint32_t> found = find_bin(space, cut.equal);
        cut.key |= static_cast<uint32_t>(found.bin) << shift;
        cut.equal -= found.above;
        fixed |= mask << shift;
    }
    return cut;
}

struct taken_space {
    int32_t larger[CHOOSE_WARPS], equal[CHOOSE_WARPS];
};

// What is taken, in the order of the list: emit(place, i). A warp has a run of
// the list; what comes before it is counted first.
template <typename EMIT>
__device__ __forceinline__ void emit_taken(const float *scores, int32_t n,
                                           score_cut cut, taken_space *space,
                                           EMIT emit)
{
    const int32_t steps = (n + CHOOSE_THREADS - 1) / CHOOSE_THREADS;
    const int32_t first = warp_index() * steps * 32;
    const int32_t end = first + steps * 32 < n ? first + steps * 32 : n;
    int32_t larger = 0, equal = 0;
    for (int32_t i = first + lane_index(); i < end; i += 32) {
        const uint32_t key = score_key(scores[i]);
        larger += key > cut.key;
        equal += key == cut.key;
    }
    larger = warp_sum(larger);
    equal = warp_sum(equal);
    if (lane_index() == 0) {
        space->larger[warp_index()] = larger;
        space->equal[warp_index()] = equal;
    }
    __syncthreads();
    larger = equal = 0;
    for (int32_t w = 0; w < warp_index(); w++) {
        larger += space->larger[w];
        equal += space->equal[w];
    }
    const uint32_t before = (1U << lane_index()) - 1;
    const int32_t most = static_cast<int32_t>(cut.equal);
    for (int32_t at = first; at < end; at += 32) {
        const int32_t i = at + lane_index();
        const uint32_t key = i < end ? score_key(scores[i]) : 0;
        const bool is_larger = i < end && key > cut.key;
        const bool is_equal = i < end && key == cut.key;
        const uint32_t all_larger = __ballot_sync(WEFT_FULL_MASK, is_larger);
        const uint32_t all_equal = __ballot_sync(WEFT_FULL_MASK, is_equal);
        const int32_t rank = equal + __popc(all_equal & before);
        if (is_larger || (is_equal && rank < most))
            emit(larger + __popc(all_larger & before) +
                     (rank < most ? rank : most),
                 i);
        larger += __popc(all_larger);
        equal += __popc(all_equal);
    }
}

} // namespace weft

#endif
