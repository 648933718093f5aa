// sample.cu - one block a row: the row after bias and penalties, its first in
// the order, the last that top_k and top_p let through, the draw.
//
// The order (logit desc, id asc) is that of 64-bit keys, and a filter is one
// key: what is below it weighs nothing. top_k and top_p find theirs in the same
// way, by radix selection (choose.cuh), one counting tokens and the other their
// weights.
#include <cfloat>
#include <cstdio>

#include "kernels/cuda/bound.h"
#include "kernels/cuda/choose.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/sample.h"

namespace weft
{

namespace
{

using wide = unsigned long long; // what atomics take

// As in shard/sample/sample.c.
__device__ constexpr float GREEDY_BELOW = 1e-5f;
__device__ constexpr float EXPONENT_MIN = -87.0f;
__device__ constexpr float WEIGHT_MIN = 2e-38f;

struct sample_args {
    weft_sample op;
    float *work;     // [rows, vocab] the row after bias and penalties
    int32_t *counts; // [rows, vocab] written before read where it is used
    int32_t row;
};

struct sample_space {
    bin_space<wide> bins;
    wide partial[CHOOSE_WARPS];
};

// A row whose weights are exp((x - max) scale), in units of 2^-shift.
struct sample_view {
    const float *row;
    int32_t n, shift;
    float max, scale;
    // What is left: keys from here on, weights from here on.
    wide last;
    float least;
};

__device__ __forceinline__ float minus_infinity()
{
    return float_of(0xff800000U);
}

__device__ __forceinline__ wide key_of(float value, int32_t id)
{
    return static_cast<wide>(score_key(value)) << 32 |
           (0xffffffffU - static_cast<uint32_t>(id));
}
__device__ __forceinline__ int32_t id_of(wide key)
{
    return static_cast<int32_t>(0xffffffffU - static_cast<uint32_t>(key));
}

// ---- the row after bias, penalties and exclusions ---------------------------

__device__ __forceinline__ void put(float *work, int32_t id, double value)
{
    if (work[id] == minus_infinity()) return;
    const double most = static_cast<double>(FLT_MAX);
    if (value > most) value = most;
    if (value < -most) value = -most;
    work[id] = static_cast<float>(value);
}

__device__ __forceinline__ void add_bias(const weft_sample_row &r,
                                         int32_t vocab, float *work)
{
    for (int32_t i = thread_index(); i < r.sampling.n_bias;
         i += CHOOSE_THREADS) {
        const int32_t id = r.sampling.bias_ids[i];
        if (id >= 0 && id < vocab)
            put(work, id,
                static_cast<double>(work[id]) +
                    static_cast<double>(r.sampling.bias[i]));
    }
    __syncthreads();
}

// do_it(id) by one thread for each token of the list that is in the vocabulary;
// as often as it is there.
template <typename F>
__device__ __forceinline__ void for_tokens(const int32_t *tokens, int32_t n,
                                           int32_t vocab, F do_it)
{
    for (int32_t i = thread_index(); i < n; i += CHOOSE_THREADS)
        if (tokens[i] >= 0 && tokens[i] < vocab) do_it(tokens[i]);
    __syncthreads();
}

// Of the threads that meet a token the one that finds it uncounted applies the
// penalty: which one that is makes no difference.
__device__ __forceinline__ void add_repetition(const weft_sample_row &r,
                                               int32_t vocab, float *work,
                                               int32_t *counts)
{
    const double penalty = static_cast<double>(r.sampling.repetition_penalty);
    for_tokens(r.tokens, r.n_tokens, vocab,
               [=](int32_t id) { atomicExch(&counts[id], 0); });
    for_tokens(r.tokens, r.n_tokens, vocab, [=](int32_t id) {
        if (atomicExch(&counts[id], 1) != 0) return;
        const double x = static_cast<double>(work[id]);
        put(work, id, x > 0.0 ? x / penalty : x * penalty);
    });
}

__device__ __forceinline__ void add_frequency(const weft_sample_row &r,
                                              int32_t vocab, float *work,
                                              int32_t *counts)
{
    const double frequency = static_cast<double>(r.sampling.frequency_penalty);
    const double presence = static_cast<double>(r.sampling.presence_penalty);
    const int32_t *const tokens = r.tokens + r.n_prompt;
    const int32_t n = r.n_tokens - r.n_prompt;
    for_tokens(tokens, n, vocab,
               [=](int32_t id) { atomicExch(&counts[id], 0); });
    for_tokens(tokens, n, vocab,
               [=](int32_t id) { atomicAdd(&counts[id], 1); });
    for_tokens(tokens, n, vocab, [=](int32_t id) {
        const int32_t count = atomicExch(&counts[id], 0);
        if (count == 0) return;
        // The product is exact: contraction changes nothing.
        put(work, id,
            static_cast<double>(work[id]) -
                frequency * static_cast<double>(count) - presence);
    });
}

__device__ __forceinline__ bool changes_logits(const weft_sample_row &r)
{
    return r.sampling.n_bias > 0 || r.sampling.repetition_penalty != 1.0f ||
           r.sampling.frequency_penalty != 0.0f ||
           r.sampling.presence_penalty != 0.0f;
}

// The logits, or what bias, penalties and exclusions make of them in `work`.
__device__ __forceinline__ const float *prepare(const weft_sample &op,
                                                const weft_sample_row &r,
                                                const float *logits,
                                                float *work, int32_t *counts)
{
    if (!changes_logits(r) && r.n_stop_ids + op.n_suppressed == 0)
        return logits;
    for (int32_t i = thread_index(); i < op.vocab; i += CHOOSE_THREADS)
        work[i] = logits[i];
    __syncthreads();
    add_bias(r, op.vocab, work);
    if (r.sampling.repetition_penalty != 1.0f)
        add_repetition(r, op.vocab, work, counts);
    if (r.sampling.frequency_penalty != 0.0f ||
        r.sampling.presence_penalty != 0.0f)
        add_frequency(r, op.vocab, work, counts);
    const auto exclude = [=](int32_t id) {
        // Several threads may: they store the same.
        atomicExch(&work[id], minus_infinity());
    };
    for_tokens(op.suppressed, op.n_suppressed, op.vocab, exclude);
    for_tokens(r.stop_ids, r.n_stop_ids, op.vocab, exclude);
    return work;
}

// ---- sums and choices
// ---------------------------------------------------------

__device__ __forceinline__ wide warp_total(wide v)
{
#pragma unroll
    for (int32_t d = 16; d >= 1; d /= 2)
        v += __shfl_xor_sync(WEFT_FULL_MASK, v, d);
    return v;
}

// Over the block; `partial` is nobody else's until the barrier after.
__device__ __forceinline__ wide block_total(wide v, wide *partial)
{
    v = warp_total(v);
    if (lane_index() == 0) partial[warp_index()] = v;
    __syncthreads();
    wide sum = 0;
    for (int32_t w = 0; w < CHOOSE_WARPS; w++) sum += partial[w];
    __syncthreads();
    return sum;
}

__device__ __forceinline__ int32_t find_first(const float *row, int32_t n,
                                              wide *partial)
{
    wide most = 0;
#pragma unroll 4
    for (int32_t i = thread_index(); i < n; i += CHOOSE_THREADS) {
        const wide key = key_of(row[i], i);
        most = key > most ? key : most;
    }
    most = warp_max(most);
    if (lane_index() == 0) partial[warp_index()] = most;
    __syncthreads();
    most = warp_max(partial[lane_index() % CHOOSE_WARPS]);
    __syncthreads();
    return id_of(most);
}

__device__ __forceinline__ float weight_of(const sample_view &v, float value)
{
    const float x = product(value - v.max, v.scale);
    const float w = exp_of(x > EXPONENT_MIN ? x : EXPONENT_MIN);
    return w < WEIGHT_MIN ? 0.0f : w;
}

// What element i counts, after the filters so far.
__device__ __forceinline__ wide units_of(const sample_view &v, int32_t i)
{
    const float value = v.row[i];
    if (key_of(value, i) < v.last) return 0;
    const float w = weight_of(v, value);
    if (w < v.least) return 0;
    return static_cast<wide>(
        product(w, static_cast<float>(static_cast<wide>(1) << v.shift)));
}

__device__ __forceinline__ wide sum_of(const sample_view &v, int32_t from,
                                       int32_t end, int32_t step)
{
    wide sum = 0;
    for (int32_t i = from; i < end; i += step) sum += units_of(v, i);
    return sum;
}

// The key that ends the shortest run in the order whose units reach the target,
// which is at least 1 and at most what all have.
template <typename UNITS>
__device__ __forceinline__ wide find_last(const sample_view &v, wide target,
                                          bin_space<wide> *bins, UNITS units)
{
    // 32 bits of the value; those of the id only as far as ids have them: the
    // others are ones.
    constexpr int32_t shifts[6] = {53, 42, 32, 22, 11, 0};
    constexpr int32_t widths[6] = {11, 11, 10, 10, 11, 11};
    wide last = 0, fixed = 0;
#pragma unroll
    for (int32_t round = 0; round < 6; round++) {
        const int32_t shift = shifts[round];
        const wide mask = (static_cast<wide>(1) << widths[round]) - 1;
        if ((round == 3 || round == 4) && v.n <= 1 << shift) {
            last |= mask << shift;
            fixed |= mask << shift;
            continue;
        }
        clear_bins(bins->bins);
        for (int32_t i = thread_index(); i < v.n; i += CHOOSE_THREADS) {
            const wide key = key_of(v.row[i], i);
            const wide n = ((key ^ last) & fixed) == 0 ? units(i) : 0;
            if (n != 0) atomicAdd(&bins->bins[(key >> shift) & mask], n);
        }
        __syncthreads();
        const bin_found<wide> found = find_bin(bins, target);
        target -= found.above;
        last |= static_cast<wide>(found.bin) << shift;
        fixed |= mask << shift;
    }
    return last;
}

__device__ __forceinline__ void
apply_filters(const weft_sampling &p, sample_view *v, sample_space *space)
{
    if (p.top_k > 0 && p.top_k < static_cast<uint32_t>(v->n))
        v->last = find_last(*v, p.top_k, &space->bins,
                            [](int32_t) { return wide{1}; });
    if (p.top_p < 1.0f) {
        const wide mass = block_total(
            sum_of(*v, thread_index(), v->n, CHOOSE_THREADS), space->partial);
        wide target = static_cast<wide>(
            ceil(static_cast<double>(p.top_p) * static_cast<double>(mass)));
        if (target < 1) target = 1;
        if (target > mass) target = mass;
        const sample_view kept = *v;
        v->last = find_last(kept, target, &space->bins,
                            [=](int32_t i) { return units_of(kept, i); });
    }
    v->least = p.min_p; // of the first one's weight, which is 1
}

// ---- the draw
// -------------------------------------------------------------------

// The high half of a product.
__device__ __forceinline__ wide multiply_high(wide a, wide b)
{
    const wide a0 = a & 0xffffffffU, a1 = a >> 32;
    const wide b0 = b & 0xffffffffU, b1 = b >> 32;
    const wide middle = a1 * b0 + (a0 * b0 >> 32);
    const wide other = a0 * b1 + (middle & 0xffffffffU);
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

// 53 bits of node/base/rng.h's block for (seed, counter), by Philox 4x32-10
// (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
__device__ __forceinline__ wide random_bits(uint64_t seed, uint64_t counter)
{
    uint32_t x0 = static_cast<uint32_t>(counter);
    uint32_t x1 = static_cast<uint32_t>(counter >> 32), x2 = 0, x3 = 0;
    uint32_t k0 = static_cast<uint32_t>(seed);
    uint32_t k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
    for (int32_t round = 0; round < 10; round++) {
        const uint64_t a = static_cast<uint64_t>(0xD2511F53U) * x0;
        const uint64_t b = static_cast<uint64_t>(0xCD9E8D57U) * x2;
        x0 = static_cast<uint32_t>(b >> 32) ^ x1 ^ k0;
        x2 = static_cast<uint32_t>(a >> 32) ^ x3 ^ k1;
        x1 = static_cast<uint32_t>(b);
        x3 = static_cast<uint32_t>(a);
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    return (static_cast<wide>(x1) << 32 | x0) >> 11;
}

// The first element at which the running sum exceeds bits 2^-53 of the whole:
// the run in which it lies is cut in as many parts as there are warps, until a
// warp can look at it at once.
__device__ __forceinline__ int32_t draw(const sample_view &v, wide bits,
                                        wide *partial)
{
    const wide whole =
        block_total(sum_of(v, thread_index(), v.n, CHOOSE_THREADS), partial);
    // The point need not be whole; a sum that exceeds it exceeds its floor.
    const wide point = multiply_high(bits, whole) << 11 | (bits * whole) >> 53;
    int32_t first = 0, end = v.n;
    wide before = 0;
    while (end - first > 32) {
        const int32_t steps =
            (end - first + CHOOSE_THREADS - 1) / CHOOSE_THREADS;
        const int32_t part = steps * 32, from = first + warp_index() * part;
        const int32_t to = from + part < end ? from + part : end;
        const wide sum = warp_total(sum_of(v, from + lane_index(), to, 32));
        if (lane_index() == 0) partial[warp_index()] = sum;
        __syncthreads();
        int32_t w = 0;
        while (before + partial[w] <= point) before += partial[w++];
        __syncthreads();
        first += w * part;
        end = first + part < end ? first + part : end;
    }
    const int32_t i = first + lane_index();
    wide run = i < end ? units_of(v, i) : 0;
#pragma unroll
    for (int32_t d = 1; d < 32; d *= 2) {
        const wide other = __shfl_up_sync(WEFT_FULL_MASK, run, d);
        if (lane_index() >= d) run += other;
    }
    const uint32_t past = __ballot_sync(WEFT_FULL_MASK, before + run > point);
    return first + __ffs(static_cast<int>(past)) - 1;
}

__device__ __forceinline__ bool is_greedy(const weft_sampling &p)
{
    return p.temperature < GREEDY_BELOW || p.top_k == 1 || p.top_p <= 0.0f ||
           p.min_p >= 1.0f;
}

// The token, or why there is none.
__device__ __forceinline__ int32_t choose_token(const sample_args &a,
                                                const weft_sample_row &r,
                                                const weft_vocab_stat &stat,
                                                sample_space *space)
{
    const int64_t at = static_cast<int64_t>(blockIdx.x) * a.op.vocab;
    const float *const logits =
        a.op.logits +
        (a.row + static_cast<int64_t>(blockIdx.x)) * a.op.logits_stride;
    if (stat.nan || stat.max == -minus_infinity())
        return WEFT_SAMPLE_NOT_FINITE;
    if (stat.max == minus_infinity()) return WEFT_SAMPLE_NO_TOKEN;
    const float *const row =
        prepare(a.op, r, logits, a.work + at, a.counts + at);
    const int32_t first = row == logits
                              ? stat.argmax
                              : find_first(row, a.op.vocab, space->partial);
    if (row[first] == minus_infinity()) return WEFT_SAMPLE_NO_TOKEN;
    const weft_sampling &p = r.sampling;
    if (is_greedy(p)) return first;

    sample_view v = {row, a.op.vocab, 63, row[first], 1.0f / p.temperature,
                     0,   0.0f};
    while (static_cast<wide>(v.n) > static_cast<wide>(1) << (63 - v.shift))
        v.shift--;
    apply_filters(p, &v, space);
    const wide bits = random_bits(p.seed, static_cast<uint64_t>(r.n_tokens));
    return draw(v, bits, space->partial);
}

// Grid (row).
__global__ void __launch_bounds__(CHOOSE_THREADS, 2) sample_rows(sample_args a)
{
    __shared__ sample_space space;
    const int64_t r = a.row + static_cast<int64_t>(blockIdx.x);
    const int32_t token = choose_token(a, a.op.rows[r], a.op.stats[r], &space);
    if (thread_index() == 0) a.op.tokens_out[r] = token;
}

} // namespace

void launch_sample(queue *q, const weft_sample *op)
{
    if (op->n_row <= 0) return;
    sample_args a = {};
    a.op = *op;
    int64_t rows = q->scratch_bytes / (8 * static_cast<int64_t>(op->vocab));
    if (rows > op->n_row) rows = op->n_row;
    if (rows < 1) {
        if (q->error == cudaSuccess) {
            q->error = cudaErrorMemoryAllocation;
            (void)snprintf(q->failed, sizeof q->failed, "sample: scratch");
        }
        return;
    }
    a.work = reinterpret_cast<float *>(q->scratch);
    a.counts = reinterpret_cast<int32_t *>(a.work + rows * op->vocab);
    for (int64_t r = 0; r < op->n_row; r += rows) {
        const int64_t left = op->n_row - r;
        a.row = static_cast<int32_t>(r);
        WEFT_LAUNCH(sample_rows,
                    dim3(static_cast<uint32_t>(left < rows ? left : rows)),
                    dim3(CHOOSE_THREADS), 0, q->stream, a);
        note(q, "sample");
    }
}

} // namespace weft

extern "C" __attribute__((visibility("default"))) void
weft_device_sample(const weft_sample *op);
void weft_device_sample(const weft_sample *op)
{
    weft::launch_sample(&weft::bound_here()->q, op);
}
