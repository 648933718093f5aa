// gemm_hopper.cuh - the products of gemm_mma.cuh on compute capability 9.0a, by
// wgmma. Weights are its side of 64 rows, activations that of N columns, so few
// rows waste little: a tile is 64 outputs a warpgroup by 8, 16, 64 or 128 rows.
//
// A block has as many warpgroups that fetch as that multiply. One warp fetches
// weights. In most tiles that is a bulk copy of S::seg bytes a row of the
// matrix, which needs no map, for what experts there are and where is known on
// the device alone. Many rows of a matrix that the host knows have one load a
// stage by a tensor map. The other warps fetch activations, gathered and in
// fp32 as they lie in memory, and store them as bfloat16. Stages go round:
// `full` counts the bytes and the warps that filled one, `empty` the warps that
// are done with it.
//
// Rows of weights in shared memory are S::pitch bytes apart, 16 more than they
// are long, so that the eight rows of an ldmatrix lie in different banks; those
// of a map are swizzled to the same end. They are the A of wgmma out of
// registers, where F8 is widened on the way (gemm_mma.cuh says how; the order
// of inputs in 16 is the same). Activations are its B: tiles of 64 inputs,
// swizzled by 128 bytes.
//
// Order of a sum: that of gemm_mma.cuh, of wgmma's 16 inputs in place of mma's.
// Whether a device adds up these 16 alike in both is not known, so which of the
// two a product takes depends on its types and the device alone; in all tiles
// here the order is one.
#ifndef WEFT_KERNELS_CUDA_GEMM_HOPPER_CUH
#define WEFT_KERNELS_CUDA_GEMM_HOPPER_CUH

#include "kernels/cuda/gemm_mma.cuh"
#include "kernels/cuda/hopper.cuh"

namespace weft
{

// N rows, GROUPS warpgroups that multiply; SEG bytes of a row of weights in a
// stage. MAP: bytes of an element of weights that come by a map; 0: by copies
// of rows, and either type.
template <int N, int GROUPS, int SEG, int STAGES, int MAP = 0>
struct hopper_shape {
    static constexpr bool by_map = MAP != 0;
    static constexpr int rows = N, groups = GROUPS, outs = 64 * GROUPS;
    static constexpr int threads = 2 * GROUPS * WARPGROUP;
    // Registers of a thread that fetches for a map's products, and of one that
    // multiplies.
    static constexpr int fetch_registers = MAP == 2 ? 88 : 72;
    static constexpr int multiply_registers = 256 - fetch_registers;
    static constexpr int seg = SEG, stages = STAGES;
    static constexpr int pitch = by_map ? SEG : SEG + 16;
    static constexpr int x_warps = 4 * GROUPS - 1;
    static constexpr int w_bytes = outs * pitch;
    static constexpr int x_bytes = rows * (SEG / (by_map ? MAP : 1)) * 2;
    static constexpr int W_AT = STAGES * x_bytes;
    static constexpr int BARRIER_AT = W_AT + STAGES * w_bytes;
    // 1024 beside them to align the tiles.
    static constexpr int bytes = 1024 + BARRIER_AT + stage_ring<STAGES>::BYTES;
    static_assert(SEG == 128 || SEG == 256, "a stage is 64 to 256 inputs");
    static_assert(!by_map || SEG == 128, "a map swizzles rows of 128 bytes");
    static_assert(MMA_BLOCK % outs == 0, "a tile lies in one row of scales");
    static_assert(x_bytes % 1024 == 0 && BARRIER_AT % 8 == 0, "aligned");
    static_assert(bytes <= 227 << 10, "what a block can have");
};

// narrow: 2 blocks a processor, for few outputs and rows.
enum hopper_size { HOPPER_NARROW, HOPPER_WIDE, HOPPER_LARGE, N_HOPPER_SIZE };
using hopper_narrow = hopper_shape<8, 1, 256, 5>; //  64 x  8, 105 KiB
using hopper_wide = hopper_shape<16, 2, 256, 5>;  // 128 x 16, 211 KiB
using hopper_large = hopper_shape<64, 2, 128, 6>; // 128 x 64, 205 KiB
// 128 x 128, 193 KiB.
using hopper_map_bf16 = hopper_shape<128, 2, 128, 6, 2>;
using hopper_map_f8 = hopper_shape<128, 2, 128, 4, 1>;

// Products of these types go to wgmma on such a device, whatever their sizes.
constexpr bool hopper_takes(int32_t sm, bool x_is_bf16, int32_t dtype)
{
    return sm == 90 && x_is_bf16 &&
           (dtype == WEFT_BF16 || dtype == WEFT_F8_E4M3);
}

// The tile for `n_row` rows of a matrix, of which a launch has `count`. Few
// rows are bound by the reading of weights: there the processors want blocks.
constexpr hopper_size hopper_size_of(int64_t n_row, int32_t n_out,
                                     int64_t count, int32_t n_processors)
{
    if (n_row > 32) return HOPPER_LARGE;
    const int64_t wide = (n_out + hopper_wide::outs - 1) / hopper_wide::outs;
    return n_row <= 8 && wide * count < 2 * static_cast<int64_t>(n_processors)
               ? HOPPER_NARROW
               : HOPPER_WIDE;
}

// The parts of a block's shared memory.
template <class S> struct hopper_ring : stage_ring<S::stages> {
    unsigned char *base;

    __device__ __forceinline__ explicit hopper_ring(unsigned char *shared)
        : base(tile_aligned(shared))
    {
        this->barriers = reinterpret_cast<mbarrier *>(base + S::BARRIER_AT);
    }
    __device__ __forceinline__ unsigned char *x(int32_t s) const
    {
        return base + s % S::stages * S::x_bytes;
    }
    __device__ __forceinline__ unsigned char *w(int32_t s) const
    {
        return base + S::W_AT + s % S::stages * S::w_bytes;
    }
    __device__ __forceinline__ void begin() const
    {
        this->init(1 + S::x_warps, 4 * S::groups);
        __syncthreads();
    }
};

// --- Weights -----------------------------------------------------------------

// By one warp. What is not whole, or not where a bulk copy may begin, is put
// together by loads; past the inputs there are zeros.
template <class S, class T>
__device__ __forceinline__ void hopper_fetch_weights(const hopper_ring<S> &ring,
                                                     const product &p, place at)
{
    constexpr int32_t ELEM = sizeof(T), CHUNKS = S::seg / 16;
    const staged w = staged_weights(p, ELEM);
    const int32_t lane = lane_index();
    const int32_t left = p.n_out - at.out;
    const int32_t rows = left < S::outs ? left : S::outs;
    const unsigned char *const first = w.at + at.out * w.pitch;
    const int32_t steps = tiles_of(w.bytes, S::seg);
#pragma unroll 1
    for (int32_t s = 0; s < steps; s++) {
        const int32_t byte = s * S::seg;
        unsigned char *const to = ring.w(s);
        ring.wait_empty(s);
        if (w.aligned && byte + S::seg <= w.bytes) {
            if (lane == 0)
                mbarrier_arrive_expect(ring.full(s),
                                       static_cast<uint32_t>(rows * S::seg));
            for (int32_t r = lane; r < rows; r += 32)
                bulk_load(to + r * S::pitch, first + r * w.pitch + byte, S::seg,
                          ring.full(s));
            continue;
        }
        for (int32_t i = lane; i < rows * CHUNKS; i += 32) {
            const int32_t r = i / CHUNKS, c = i % CHUNKS * 16;
            const int32_t n = w.bytes - byte - c;
            copy_chunk<ELEM>(to + r * S::pitch + c,
                             first + r * w.pitch + byte + c, n < 16 ? n : 16);
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(ring.full(s));
    }
}

// The same by one thread: product number `which` of the map's. Past the inputs
// and outputs there are zeros.
template <class S, class T>
__device__ __forceinline__ void
hopper_load_weights(const hopper_ring<S> &ring, const product &p, place at,
                    const tensor_map &map, int32_t which)
{
    constexpr int32_t SPAN = S::seg / static_cast<int32_t>(sizeof(T));
    const int32_t steps = tiles_of(p.n_in, SPAN);
    tma_prefetch(&map);
#pragma unroll 1
    for (int32_t s = 0; s < steps; s++) {
        ring.wait_empty(s);
        mbarrier_arrive_expect(ring.full(s), S::w_bytes);
        tma_load_3d(ring.w(s), &map, s * SPAN, at.out, which, ring.full(s));
    }
}

// --- Activations -------------------------------------------------------------

// What one of the warps fetches of a stage: rows in turn, a lane 8 inputs.
template <class S, class T> struct hopper_x {
    static constexpr int32_t SPAN = S::seg / static_cast<int32_t>(sizeof(T));
    static constexpr int32_t CHUNKS = SPAN / 8;     // of a row
    static constexpr int32_t AT_ONCE = 32 / CHUNKS; // rows
    static constexpr int32_t TURNS =
        (S::rows + S::x_warps * AT_ONCE - 1) / (S::x_warps * AT_ONCE);
    // So many loads of a thread are under way. All that it has: then they are
    // begun a stage ahead.
    static constexpr int32_t BATCH = TURNS <= 6 ? TURNS : 4;
    static constexpr bool AHEAD = BATCH == TURNS;

    const product &p;
    int32_t row0, rows, warp, chunk;
    bool wide;
    quad v[BATCH][2];

    __device__ __forceinline__ hopper_x(const product &p_, place at,
                                        int32_t warp_)
        : p(p_), row0(at.row), warp(warp_)
    {
        rows = p.n_row - row0 < S::rows ? p.n_row - row0 : S::rows;
        chunk = lane_index() % CHUNKS;
        wide = rows_aligned(p.x, p.x_stride * 4);
    }
    __device__ __forceinline__ int32_t row_of(int32_t turn) const
    {
        return (turn * S::x_warps + warp) * AT_ONCE + lane_index() / CHUNKS;
    }
    __device__ __forceinline__ void load(int32_t s, int32_t first)
    {
        const int32_t k = s * SPAN + chunk * 8, left = p.n_in - k;
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++) {
            const int32_t r = row_of(first + i);
            if (r >= rows) continue;
            int64_t which = row0 + r;
            if (p.x_rows != nullptr) which = p.x_rows[which];
            const float *const from = p.x + which * p.x_stride + k;
            v[i][0] = load_quad(from, left, wide);
            v[i][1] = load_quad(from + 4, left - 4, wide);
        }
    }
    // Columns of rows that are not there stay what they are: no other column
    // takes part of them. Chunks of rows of 128 bytes lie as the swizzle has
    // them.
    __device__ __forceinline__ void store(unsigned char *stage,
                                          int32_t first) const
    {
        unsigned char *const tile = stage + chunk / 8 * (S::rows * 128);
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++) {
            const int32_t r = row_of(first + i);
            if (r < rows)
                store_chunk<T, 128>(tile, r, chunk % 8, v[i][0], v[i][1]);
        }
    }
};

template <class S, class T>
__device__ __forceinline__ void hopper_fetch_x(const hopper_ring<S> &ring,
                                               const product &p, place at,
                                               int32_t warp)
{
    using share = hopper_x<S, T>;
    share x(p, at, warp);
    const int32_t steps = tiles_of(p.n_in, share::SPAN);
    if (share::AHEAD) x.load(0, 0);
#pragma unroll 1
    for (int32_t s = 0; s < steps; s++) {
        ring.wait_empty(s);
#pragma unroll 1
        for (int32_t i = 0; i < share::TURNS; i += share::BATCH) {
            if (!share::AHEAD) x.load(s, i);
            x.store(ring.x(s), i);
        }
        fence_async();
        __syncwarp();
        if (lane_index() == 0) mbarrier_arrive(ring.full(s));
        if (share::AHEAD && s + 1 < steps) x.load(s + 1, 0);
    }
}

// --- Products ----------------------------------------------------------------

// Where a lane's part of 16 rows of weights begins in a tile, from row `row`
// on.
template <class S>
__device__ __forceinline__ int32_t hopper_lane_at(int32_t row)
{
    const int32_t lane = lane_index();
    const int32_t at = (row + lane % 16) * S::pitch + lane / 16 * 16;
    return S::by_map ? static_cast<int32_t>(swizzled(at)) : at;
}

// `bytes` after it, a multiple of 32 inside a row, in a tile of a map: there
// the swizzle is in the address, as tiles begin at multiples of 1024.
__device__ __forceinline__ const unsigned char *
hopper_after(const unsigned char *at, int32_t bytes)
{
    return reinterpret_cast<const unsigned char *>(
        reinterpret_cast<uintptr_t>(at) ^ static_cast<uintptr_t>(bytes));
}

// Weights of 16 outputs and 32 inputs as the A of two products, from `byte` of
// the lane's part on.
template <class S, class T>
__device__ __forceinline__ void
hopper_weights(uint32_t (&a)[2][4], const unsigned char *w, int32_t byte)
{
    const unsigned char *at = w + byte, *next = at + 32;
    if constexpr (S::by_map) {
        at = hopper_after(w, byte);
        next = hopper_after(w, byte + 32);
    }
    if constexpr (sizeof(T) == 2) {
        ldmatrix_x4(a[0], at);
        ldmatrix_x4(a[1], next);
    } else {
        uint32_t q[4];
        ldmatrix_x4(q, at);
#pragma unroll
        for (int32_t i = 0; i < 4; i++)
            widen_f8(q[i], &a[i / 2][i % 2], &a[i / 2][i % 2 + 2]);
    }
}

// part = or += the products of a piece of inputs, which are under way then.
template <class S, class T>
__device__ __forceinline__ void
hopper_piece(float (&part)[S::rows / 2], uint32_t (&a)[2][4],
             const unsigned char *w, const unsigned char *x, int32_t k,
             bool accumulate)
{
    hopper_weights<S, T>(a, w, k * static_cast<int32_t>(sizeof(T)));
    const unsigned char *const b = x + k / 64 * (S::rows * 128) + k % 64 * 2;
    wgmma_fence();
    wgmma_bf16<S::rows>(part, a[0], k_major(b), accumulate);
    wgmma_bf16<S::rows>(part, a[1], k_major(b + 32), true);
}

// Inputs [k, k + STEP) of a stage, n of them inside the matrix.
template <class S, class T, int STEP>
__device__ __forceinline__ void
hopper_block(float (&part)[S::rows / 2], const unsigned char *w,
             const unsigned char *x, int32_t k, int32_t n, bool accumulate)
{
    uint32_t a[STEP / MMA_PIECE][2][4];
    if (n >= STEP) {
#pragma unroll
        for (int32_t i = 0; i < STEP / MMA_PIECE; i++)
            hopper_piece<S, T>(part, a[i], w, x, k + i * MMA_PIECE,
                               accumulate || i > 0);
        wgmma_commit();
        wgmma_wait<0>();
        return;
    }
#pragma unroll 1
    for (int32_t i = 0; i * MMA_PIECE < n; i++) {
        hopper_piece<S, T>(part, a[0], w, x, k + i * MMA_PIECE,
                           accumulate || i > 0);
        wgmma_commit();
        wgmma_wait<0>();
    }
}

template <class S>
__device__ __forceinline__ void hopper_store(const product &p, place at,
                                             const float (&sum)[S::rows / 2])
{
    const int32_t thread = static_cast<int32_t>(threadIdx.x) - S::threads / 2;
    const int32_t out = at.out + thread / 32 * 16 + lane_index() / 4;
    const int32_t row = at.row + lane_index() % 4 * 2;
#pragma unroll
    for (int32_t i = 0; i < S::rows / 2; i++)
        store_y(p, row + i / 4 * 8 + i % 2, out + i / 2 % 2 * 8, sum[i]);
}

template <class S, class T>
__device__ __forceinline__ void hopper_multiply(const hopper_ring<S> &ring,
                                                const product &p, place at)
{
    constexpr int32_t ELEM = sizeof(T), SPAN = S::seg / ELEM;
    constexpr int32_t STEP = SPAN < MMA_BLOCK ? SPAN : MMA_BLOCK;
    const int32_t steps = tiles_of(p.n_in, SPAN), lane = lane_index();
    const int32_t w_at = hopper_lane_at<S>(
        (static_cast<int32_t>(threadIdx.x) - S::threads / 2) / 32 * 16);
    float sum[S::rows / 2], part[S::rows / 2];
#pragma unroll
    for (int32_t i = 0; i < S::rows / 2; i++) sum[i] = part[i] = 0.0F;
#pragma unroll 1
    for (int32_t s = 0; s < steps; s++) {
        ring.wait_full(s);
#pragma unroll
        for (int32_t b = 0; b < SPAN; b += STEP) {
            const int32_t k = s * SPAN + b;
            if (k >= p.n_in) break;
            const float scale = scale_of<T>(p, at.out, k);
            hopper_block<S, T, STEP>(part, ring.w(s) + w_at, ring.x(s), b,
                                     p.n_in - k, k % MMA_BLOCK != 0);
            if ((k + STEP) % MMA_BLOCK != 0 && k + STEP < p.n_in) continue;
#pragma unroll
            for (int32_t i = 0; i < S::rows / 2; i++)
                sum[i] = fold<T>(sum[i], part[i], scale);
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(ring.empty(s));
    }
    hopper_store<S>(p, at, sum);
}

// One tile; every thread of the block, once: barriers begin anew in the next
// block alone.
template <class S, class T>
__device__ __forceinline__ void hopper_tile(const product &p, place at,
                                            unsigned char *shared)
{
    const hopper_ring<S> ring(shared);
    ring.begin();
    const int32_t warp = warp_number();
    if (warp == 0)
        hopper_fetch_weights<S, T>(ring, p, at);
    else if (warp <= S::x_warps)
        hopper_fetch_x<S, T>(ring, p, at, warp - 1);
    else
        hopper_multiply<S, T>(ring, p, at);
}

// The same with weights by a map. Who multiplies needs the registers of who
// fetches.
template <class S, class T>
__device__ __forceinline__ void
hopper_map_tile(const product &p, place at, const tensor_map &map,
                int32_t which, unsigned char *shared)
{
    static_assert(S::threads == 4 * WARPGROUP && S::by_map,
                  "512 threads of 128");
    const hopper_ring<S> ring(shared);
    ring.begin();
    const int32_t warp = warp_number();
    if (warp > S::x_warps) {
        registers_take<S::multiply_registers>();
        hopper_multiply<S, T>(ring, p, at);
        return;
    }
    registers_give<S::fetch_registers>();
    if (warp > 0)
        hopper_fetch_x<S, T>(ring, p, at, warp - 1);
    else if (lane_index() == 0)
        hopper_load_weights<S, T>(ring, p, at, map, which);
}

} // namespace weft

#endif
