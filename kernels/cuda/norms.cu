// norms.cu - RMS and layer norms: one block a row, which it keeps in registers
// between the sums and the output.
//
// Order of a sum: thread t of THREADS takes elements 4 (t + THREADS j) + i, j
// rising, i from 0 to 3, in one chain; then the butterflies of reduce.cuh. The
// width alone decides on THREADS.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/quad.cuh"
#include "kernels/cuda/reduce.cuh"

namespace weft
{

namespace
{

// A thread's share of a row: QUADS quads in registers, or, if QUADS is 0, as
// many as the width needs, read again by every pass.
template <int THREADS, int QUADS> struct row_share {
    const float *x;
    int32_t width;
    bool wide;
    quad kept[QUADS > 0 ? QUADS : 1] = {};

    __device__ __forceinline__ int32_t count() const
    {
        return QUADS > 0 ? QUADS : (width + 4 * THREADS - 1) / (4 * THREADS);
    }
    __device__ __forceinline__ int32_t first(int32_t j) const
    {
        return 4 * (thread_index() + THREADS * j);
    }
    __device__ __forceinline__ int32_t left(int32_t j) const
    {
        return width - first(j);
    }
    __device__ __forceinline__ quad read(int32_t j) const
    {
        return load_quad(x + first(j), left(j), wide);
    }
    __device__ __forceinline__ void fetch()
    {
#pragma unroll
        for (int32_t j = 0; j < QUADS; j++) kept[j] = read(j);
    }
    __device__ __forceinline__ quad at(int32_t j) const
    {
        return QUADS > 0 ? kept[j] : read(j);
    }
};

__device__ __forceinline__ quad rms_quad(const weft_rms_norm &op, const quad &x,
                                         const quad &w, float inverse)
{
    quad y;
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        y.v[i] = round_to(x.v[i] * inverse * w.v[i], op.round);
        if (op.scale != 1.0f) y.v[i] = round_to(y.v[i] * op.scale, op.round);
    }
    return y;
}

template <int THREADS, int QUADS>
__global__ void __launch_bounds__(THREADS)
    rms_norm_rows(weft_rms_norm op, bool wide)
{
    WEFT_SHARED(float, partial, [32]);
    const int64_t r = quad_row();
    row_share<THREADS, QUADS> row = {op.x + r * op.x_stride, op.width, wide};
    row_share<THREADS, QUADS> weight = {op.w, op.width, wide};
    row.fetch();
    weight.fetch(); // it arrives while the sum is made
    float sum = 0.0f;
#pragma unroll
    for (int32_t j = 0; j < row.count(); j++) {
        const quad x = row.at(j);
#pragma unroll
        for (int32_t i = 0; i < 4; i++) sum = fmaf(x.v[i], x.v[i], sum);
    }
    const float mean =
        block_sum<THREADS>(sum, partial) / static_cast<float>(op.width);
    const float inverse = 1.0f / sqrtf(mean + op.eps);
    float *const y = op.y + r * op.y_stride;
#pragma unroll
    for (int32_t j = 0; j < row.count(); j++)
        store_quad(y + row.first(j),
                   rms_quad(op, row.at(j), weight.at(j), inverse), row.left(j),
                   wide);
}

// Squared deviations of a quad's first n elements, added to sum.
__device__ __forceinline__ float deviation(const quad &x, float mean, int32_t n,
                                           float sum)
{
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        const float d = x.v[i] - mean;
        if (i < n) sum = fmaf(d, d, sum);
    }
    return sum;
}

__device__ __forceinline__ quad layer_quad(const weft_layer_norm &op,
                                           const quad &x, const quad &w,
                                           const quad &b, float mean,
                                           float inverse)
{
    quad y;
#pragma unroll
    for (int32_t i = 0; i < 4; i++)
        y.v[i] = round_to(fmaf(product(x.v[i] - mean, inverse), w.v[i], b.v[i]),
                          op.round);
    return y;
}

template <int THREADS, int QUADS>
__global__ void __launch_bounds__(THREADS)
    layer_norm_rows(weft_layer_norm op, bool wide)
{
    WEFT_SHARED(float, sums, [32]);
    WEFT_SHARED(float, squares, [32]);
    const int64_t r = quad_row();
    row_share<THREADS, QUADS> row = {op.x + r * op.x_stride, op.width, wide};
    row_share<THREADS, QUADS> weight = {op.w, op.width, wide};
    row_share<THREADS, QUADS> bias = {op.b, op.width, wide};
    row.fetch();
    weight.fetch();
    bias.fetch();
    float sum = 0.0f, square = 0.0f;
#pragma unroll
    for (int32_t j = 0; j < row.count(); j++) {
        const quad x = row.at(j);
#pragma unroll
        for (int32_t i = 0; i < 4; i++) sum += x.v[i];
    }
    const float width = static_cast<float>(op.width);
    const float mean = block_sum<THREADS>(sum, sums) / width;
#pragma unroll
    for (int32_t j = 0; j < row.count(); j++)
        square = deviation(row.at(j), mean, row.left(j), square);
    const float var = block_sum<THREADS>(square, squares) / width;
    const float inverse = 1.0f / sqrtf(var + op.eps);
    float *const y = op.y + r * op.y_stride;
#pragma unroll
    for (int32_t j = 0; j < row.count(); j++)
        store_quad(
            y + row.first(j),
            layer_quad(op, row.at(j), weight.at(j), bias.at(j), mean, inverse),
            row.left(j), wide);
}

template <class Op> using norm_kernel = void (*)(Op, bool);

// One entry a width class; the last reads rows from memory again.
enum { NORM_CLASSES = 5 };
struct norm_class {
    int32_t width_max;
    uint32_t threads;
};
constexpr norm_class norm_classes[NORM_CLASSES] = {
    {128, 32}, {512, 128}, {2048, 256}, {8192, 1024}, {INT32_MAX, 1024}};

template <class Op>
void begin_norm(queue *q, const Op *op, bool wide, const char *name,
                const norm_kernel<Op> kernels[NORM_CLASSES])
{
    if (op->n_row <= 0) return;
    int32_t c = 0;
    while (op->width > norm_classes[c].width_max) c++;
    const norm_kernel<Op> kernel = kernels[c];
    WEFT_LAUNCH(kernel, dim3(static_cast<uint32_t>(op->n_row)),
                dim3(norm_classes[c].threads), 0, q->stream, *op, wide);
    note(q, name);
}

} // namespace

void launch_rms_norm(queue *q, const weft_rms_norm *op)
{
    static const norm_kernel<weft_rms_norm> kernels[NORM_CLASSES] = {
        rms_norm_rows<32, 1>, rms_norm_rows<128, 1>, rms_norm_rows<256, 2>,
        rms_norm_rows<1024, 2>, rms_norm_rows<1024, 0>};
    const bool wide = are_wide(op->x, op->x_stride) &&
                      are_wide(op->y, op->y_stride) && are_wide(op->w, 0);
    begin_norm(q, op, wide, "rms_norm", kernels);
}

void launch_layer_norm(queue *q, const weft_layer_norm *op)
{
    static const norm_kernel<weft_layer_norm> kernels[NORM_CLASSES] = {
        layer_norm_rows<32, 1>, layer_norm_rows<128, 1>,
        layer_norm_rows<256, 2>, layer_norm_rows<1024, 2>,
        layer_norm_rows<1024, 0>};
    const bool wide = are_wide(op->x, op->x_stride) &&
                      are_wide(op->y, op->y_stride) && are_wide(op->w, 0) &&
                      are_wide(op->b, 0);
    begin_norm(q, op, wide, "layer_norm", kernels);
}

} // namespace weft
