// gemm.cu - products with weights that lie in memory as [n_out, n_in].
//
// A list is at most one launch a kernel: products are sorted by the kernel that
// takes them, those of one shape at even distances (heads of a layer) become
// one run, and blocks find their product by the number of their tile. Many rows
// on compute capability 9.0 are a launch a run, whose weights a tensor map
// describes.
//
// What a kernel is chosen by never shows in the numbers: exact ones are the
// chain of kernels/ops.h, those of the tensor cores share one order of sums
// (gemm_mma.cuh), and between the forms decide the types, and what the caller
// says of x, alone.
#include "kernels/cuda/dense.h"
#include "kernels/cuda/gemm_exact.cuh"
#include "kernels/cuda/gemm_hopper.cuh"
#include "kernels/cuda/gemm_mma.cuh"
#include "kernels/cuda/launch.h"

namespace weft
{

namespace
{

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    gemm_exact_kernel(const __grid_constant__ product_list list)
{
    WEFT_SHARED_DYNAMIC(unsigned char, shared);
    place at;
    const product p = find_product(list, static_cast<int32_t>(blockIdx.x),
                                   S::outs, S::rows, &at);
    exact_any<S>(p, at, shared);
}

template <class S, class T>
__global__ void __launch_bounds__(S::threads, 1)
    gemm_mma_kernel(const __grid_constant__ product_list list)
{
    WEFT_SHARED_DYNAMIC(unsigned char, shared);
    place at;
    const product p = find_product(list, static_cast<int32_t>(blockIdx.x),
                                   S::outs, S::rows, &at);
    mma_tile<S, T>(p, at, shared);
}

template <class S, class T>
__global__ void __launch_bounds__(S::threads, 1)
    gemm_hopper_kernel(const __grid_constant__ product_list list)
{
#if WEFT_HOPPER
    WEFT_SHARED_DYNAMIC(unsigned char, shared);
    place at;
    const product p = find_product(list, static_cast<int32_t>(blockIdx.x),
                                   S::outs, S::rows, &at);
    hopper_tile<S, T>(p, at, shared);
#else
    refuse_device();
#endif
}

// One run, whose weights are what the map describes: inputs, outputs, products.
template <class S, class T>
__global__ void __launch_bounds__(S::threads, 1)
    gemm_map_kernel(const __grid_constant__ product_run run,
                    const __grid_constant__ tensor_map map)
{
#if WEFT_HOPPER
    WEFT_SHARED_DYNAMIC(unsigned char, shared);
    place at;
    int32_t which;
    const product p = product_of_run(run, static_cast<int32_t>(blockIdx.x),
                                     S::outs, S::rows, &at, &which);
    hopper_map_tile<S, T>(p, at, map, which, shared);
#else
    refuse_device();
#endif
}

struct map_kernel {
    void (*kernel)(product_run, tensor_map);
    int32_t outs, rows, threads, bytes, element_bytes;
};

// The kernels, by number.
struct gemm_kernel {
    void (*kernel)(product_list);
    int32_t outs, rows, threads, bytes;
    // What takes such runs in its place, where it can; NULL: nothing.
    const map_kernel *by_map;
};

template <class S> constexpr gemm_kernel exact_of()
{
    return {gemm_exact_kernel<S>, S::outs,  S::rows,
            S::threads,           S::bytes, nullptr};
}
template <class S, class T> constexpr gemm_kernel mma_of()
{
    return {gemm_mma_kernel<S, T>, S::outs, S::rows, S::threads,
            S::bytes(sizeof(T)),   nullptr};
}
template <class S, class T>
constexpr gemm_kernel hopper_of(const map_kernel *by_map = nullptr)
{
    return {gemm_hopper_kernel<S, T>,
            S::outs,
            S::rows,
            S::threads,
            S::bytes,
            by_map};
}
template <class S, class T> constexpr map_kernel map_of()
{
    return {gemm_map_kernel<S, T>,
            S::outs,
            S::rows,
            S::threads,
            S::bytes,
            sizeof(T)};
}
const map_kernel map_bf16 = map_of<hopper_map_bf16, bf16>();
const map_kernel map_f8 = map_of<hopper_map_f8, f8_e4m3>();

enum kernel_number {
    EXACT_FEW,
    EXACT_MANY,
    // The tensor cores', in the order of mma_size: by weights, then with x of
    // bfloat16 and with x in pairs.
    MMA_BF16,
    MMA_F8 = MMA_BF16 + N_MMA_SIZE,
    MMA_PAIR = N_MMA_SIZE + MMA_F8 - MMA_BF16, // further on
    // The same of bfloat16 by wgmma, in the order of hopper_size.
    HOPPER_BF16 = MMA_BF16 + 2 * MMA_PAIR,
    HOPPER_F8 = HOPPER_BF16 + N_HOPPER_SIZE,
    N_KERNEL = HOPPER_F8 + N_HOPPER_SIZE
};
const gemm_kernel kernels[N_KERNEL] = {
    exact_of<exact_few>(),
    exact_of<exact_many>(),
    mma_of<mma_narrow, bf16>(),
    mma_of<mma_wide, bf16>(),
    mma_of<mma_middle, bf16>(),
    mma_of<mma_large, bf16>(),
    mma_of<mma_narrow, f8_e4m3>(),
    mma_of<mma_wide, f8_e4m3>(),
    mma_of<mma_middle, f8_e4m3>(),
    mma_of<mma_large, f8_e4m3>(),
    mma_of<mma_narrow_pair, bf16>(),
    mma_of<mma_wide_pair, bf16>(),
    mma_of<mma_middle_pair, bf16>(),
    mma_of<mma_large_pair, bf16>(),
    mma_of<mma_narrow_pair, f8_e4m3>(),
    mma_of<mma_wide_pair, f8_e4m3>(),
    mma_of<mma_middle_pair, f8_e4m3>(),
    mma_of<mma_large_pair, f8_e4m3>(),
    hopper_of<hopper_narrow, bf16>(),
    hopper_of<hopper_wide, bf16>(),
    hopper_of<hopper_large, bf16>(&map_bf16),
    hopper_of<hopper_narrow, f8_e4m3>(),
    hopper_of<hopper_wide, f8_e4m3>(),
    hopper_of<hopper_large, f8_e4m3>(&map_f8),
};

// By what keeps the processors busy: few rows are bound by the reading of
// weights, so small tiles and many of them; many by arithmetic and by what
// shared memory is read for, so large ones.
mma_size size_of(const queue &q, const weft_gemm &g)
{
    const int32_t n_out = g.w->n_out;
    if (g.n_row <= 8 && g.w->n_in >= 512 &&
        tiles_of(n_out, mma_wide::outs) < 2 * q.n_processors)
        return MMA_NARROW;
    if (g.n_row <= 32) return MMA_WIDE;
    const int64_t large =
        static_cast<int64_t>(tiles_of(n_out, 128)) * tiles_of(g.n_row, 128);
    return large < q.n_processors ? MMA_MIDDLE : MMA_LARGE;
}

kernel_number kernel_of(const queue &q, const weft_gemm &g)
{
    const weft_dtype type = g.w->dtype;
    const bool is_mma = g.x_is_bf16 || g.x_as_pair;
    if (!is_mma || type == WEFT_F32 || type == WEFT_F16)
        return g.n_row <= 16 ? EXACT_FEW : EXACT_MANY;
    if (hopper_takes(q.sm, g.x_is_bf16, type)) {
        const hopper_size size =
            hopper_size_of(g.n_row, g.w->n_out, 1, q.n_processors);
        return static_cast<kernel_number>(
            (type == WEFT_BF16 ? HOPPER_BF16 : HOPPER_F8) + size);
    }
    return static_cast<kernel_number>((type == WEFT_BF16 ? MMA_BF16 : MMA_F8) +
                                      (g.x_is_bf16 ? 0 : int{MMA_PAIR}) +
                                      size_of(q, g));
}

product product_of(const weft_gemm &g)
{
    product p = {};
    p.w = static_cast<const unsigned char *>(g.w->data);
    p.scales = g.w->scales;
    p.x = g.x;
    p.x_rows = g.x_rows;
    p.y = g.y;
    p.x_stride = g.x_stride;
    p.y_stride = g.y_stride;
    p.n_row = g.n_row;
    p.n_out = g.w->n_out;
    p.n_in = g.w->n_in;
    p.dtype = static_cast<uint8_t>(g.w->dtype);
    p.round_bf16 = g.round == WEFT_ROUND_BF16;
    return p;
}

bool is_alike(const product &a, const product &b)
{
    return a.x_rows == b.x_rows && a.x_stride == b.x_stride &&
           a.y_stride == b.y_stride && a.n_row == b.n_row &&
           a.n_out == b.n_out && a.n_in == b.n_in && a.dtype == b.dtype &&
           a.round_bf16 == b.round_bf16;
}

// In elements; the two need not be of one array.
template <class T> int64_t distance(const T *from, const T *to)
{
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) -
                                reinterpret_cast<uintptr_t>(from)) /
           static_cast<int64_t>(sizeof(T));
}

// Whether p is the next of the run; the second of a run says how far apart its
// products are, which is a multiple of `apart` bytes of weights.
bool extend(product_run *run, const product &p, int64_t apart)
{
    if (!is_alike(run->p, p)) return false;
    const int64_t w = distance(run->p.w, p.w);
    if (w % apart != 0) return false;
    const int64_t scales = distance(run->p.scales, p.scales);
    const int64_t x = distance(run->p.x, p.x), y = distance(run->p.y, p.y);
    if (run->count == 1) {
        run->w_step = w;
        run->scales_step = scales;
        run->x_step = x;
        run->y_step = y;
    }
    const int64_t n = run->count;
    if (w != n * run->w_step || scales != n * run->scales_step ||
        x != n * run->x_step || y != n * run->y_step)
        return false;
    run->count++;
    return true;
}

template <class K> void allow_shared(const K &k)
{
    if (k.bytes > 48 * 1024)
        cudaFuncSetAttribute(reinterpret_cast<const void *>(k.kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             k.bytes);
}

template <class K> int32_t tiles_of_run(const K &k, const product_run &run)
{
    return tiles_of(run.p.n_out, k.outs) * tiles_of(run.p.n_row, k.rows) *
           run.count;
}

// Whether the run has begun: not if its tiles would leave processors idle, or
// the copy engine does not take weights as they lie. The map is of the launch,
// so nothing is kept of where weights are.
bool launch_by_map(queue *q, const map_kernel &k, const product_run &run)
{
    const product &p = run.p;
    const int32_t n_tile = tiles_of_run(k, run);
    if (p.n_row <= k.rows / 2 || n_tile < q->n_processors) return false;
    const int64_t row_bytes = static_cast<int64_t>(p.n_in) * k.element_bytes;
    const tensor_shape shape = {
        p.w,
        k.element_bytes,
        3,
        {p.n_in, p.n_out, run.count},
        {0, row_bytes, run.count > 1 ? run.w_step : p.n_out * row_bytes},
        {128 / k.element_bytes, k.outs, 1},
        true};
    tensor_map map;
    if (encode_tensor_map(&map, &shape) != cudaSuccess) return false;
    allow_shared(k);
    WEFT_LAUNCH(k.kernel, dim3(static_cast<unsigned>(n_tile)),
                dim3(static_cast<unsigned>(k.threads)),
                static_cast<size_t>(k.bytes), q->stream, run, map);
    note(q, "gemm");
    return true;
}

void launch_runs(queue *q, const gemm_kernel &k, product_list *runs)
{
    int32_t n_tile = 0, n = 0;
    for (int32_t i = 0; i < runs->n; i++) {
        const product_run &run = runs->runs[i];
        if (k.by_map != nullptr && launch_by_map(q, *k.by_map, run)) continue;
        runs->runs[n] = run;
        runs->runs[n++].first = n_tile;
        n_tile += tiles_of_run(k, run);
    }
    runs->n = n;
    if (n > 0) {
        allow_shared(k);
        WEFT_LAUNCH(k.kernel, dim3(static_cast<unsigned>(n_tile)),
                    dim3(static_cast<unsigned>(k.threads)),
                    static_cast<size_t>(k.bytes), q->stream, *runs);
        note(q, "gemm");
    }
    runs->n = 0;
}

bool is_empty(const weft_gemm &g)
{
    return g.n_row <= 0 || g.w->n_out <= 0;
}

// All products of the list that kernel `number` takes.
void launch_number(queue *q, kernel_number number, const weft_gemm *list,
                   int32_t n)
{
    const gemm_kernel &k = kernels[number];
    product_list runs = {};
    for (int32_t i = 0; i < n; i++) {
        if (is_empty(list[i]) || kernel_of(*q, list[i]) != number) continue;
        const product p = product_of(list[i]);
        // A map's products are whole rows apart.
        const int64_t apart =
            k.by_map == nullptr
                ? 1
                : static_cast<int64_t>(p.n_in) * k.by_map->element_bytes;
        if (runs.n > 0 && extend(&runs.runs[runs.n - 1], p, apart)) continue;
        if (runs.n == RUNS_MAX) launch_runs(q, k, &runs);
        product_run *const run = &runs.runs[runs.n++];
        *run = {};
        run->p = p;
        run->count = 1;
    }
    launch_runs(q, k, &runs);
}

// By our own kernels.
void launch_ours(queue *q, const weft_gemm *list, int32_t n)
{
    uint32_t wanted = 0;
    for (int32_t i = 0; i < n; i++)
        if (!is_empty(list[i])) wanted |= 1U << kernel_of(*q, list[i]);
    for (int32_t k = 0; k < N_KERNEL; k++)
        if (wanted & (1U << k))
            launch_number(q, static_cast<kernel_number>(k), list, n);
}

#if defined(WEFT_CUDA_DENSE)
// The plans of cuBLASLt belong to the thread, as its queue does.
thread_local dense_plans plans;
#endif

} // namespace

void launch_gemm(queue *q, const weft_gemm *list, int32_t n)
{
    int32_t first = 0;
#if defined(WEFT_CUDA_DENSE)
    // Ours in the stretches between those of cuBLASLt.
    for (int32_t i = 0; i < n; i++) {
        if (is_empty(list[i]) || !launch_dense(q, &plans, list[i])) continue;
        launch_ours(q, list + first, i - first);
        first = i + 1;
    }
#endif
    launch_ours(q, list + first, n - first);
}

} // namespace weft
