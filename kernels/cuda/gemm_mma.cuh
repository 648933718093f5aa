// gemm_mma.cuh - products on tensor cores: bfloat16 activations with weights of
// bfloat16 or of F8_E4M3, which bfloat16 holds exactly.
//
// Order of a sum, the same in every tile shape. Inputs go in blocks of 128 (an
// F8 block of scales). In a block one fp32 accumulator starts at 0 and takes
// mma.m16n8k16 in rising inputs; then
//     sum = sum + part (BF16),   sum = fma(part, scale, sum) (F8),
// blocks in rising order from 0. Blocks are cut into pieces of 32 inputs, and
// pieces wholly past n_in are left out. So warps may take different blocks of
// one output, as long as one thread adds their parts in order.
//
// Weights are the 16-row operand, activations the 8-column one. Weights are
// staged as they lie in memory through a ring of cp.async stages; activations
// are fp32 in memory, read one stage ahead into registers and stored to shared
// memory as bfloat16, which is exact by the contract of x_is_bf16.
//
// Activations that are not bfloat16 come as pairs: hi = bfloat16(x) and lo =
// bfloat16(x - hi), two planes of a stage, and each k16 step is one mma with hi
// and one with lo in the same accumulator. x - hi is exact and at most 2^-8 of
// x, so hi + lo is within 2^-16 of x, and within 2^-134 where that is less. Of
// bfloat16 values lo is 0 and the sums are those of the plain form.
//
// F8: ldmatrix moves bytes in pairs, so lane t of a row gets inputs 4 t .. 4 t
// + 3 of 16. It takes them for the inputs 2 t, 2 t + 8, 2 t + 1 and 2 t + 9
// that the mma wants of it, and activations are stored in shared memory in that
// order.
#ifndef WEFT_KERNELS_CUDA_GEMM_MMA_CUH
#define WEFT_KERNELS_CUDA_GEMM_MMA_CUH

#include "kernels/cuda/gemm_tile.cuh"
#include "kernels/cuda/quad.cuh"

namespace weft
{

enum : int32_t { MMA_BLOCK = WEFT_SCALE_BLOCK, MMA_PIECE = 32 };

// Warps: WO along outputs, WR along rows, WK along inputs; a warp has FO
// fragments of 16 outputs and FR of 8 rows. STEP inputs of each of the WK in a
// stage. PLANES: 2 of pairs, else 1.
template <int WO, int WR, int WK, int FO, int FR, int STEP, int STAGES,
          int PLANES = 1>
struct mma_shape {
    static constexpr int wo = WO, wr = WR, wk = WK, fo = FO, fr = FR;
    static constexpr int outs = WO * FO * 16, rows = WR * FR * 8;
    static constexpr int threads = 32 * WO * WR * WK;
    static constexpr int step = STEP, span = WK * STEP;
    static constexpr int planes = PLANES;
    static constexpr int x_tile = rows * STEP * 2; // bytes
    static constexpr int x_plane = WK * x_tile;
    static constexpr int x_bytes = PLANES * x_plane;
    static constexpr int x_chunks = rows * span / 8 / threads; // of a thread
    static constexpr int part_words = outs * rows;
    static constexpr int part_bytes = WK > 1 ? 2 * WK *part_words * 4 : 0;
    // Of weights whose elements have `elem` bytes. Of small elements there are
    // more stages, so that as many bytes are under way.
    __host__ __device__ static constexpr int stages(int elem)
    {
        return elem == 1 ? 2 * STAGES - 1 : STAGES;
    }
    __host__ __device__ static constexpr int w_tile(int elem)
    {
        return outs * STEP * elem;
    }
    __host__ __device__ static constexpr int bytes(int elem)
    {
        return stages(elem) * WK * w_tile(elem) + 2 * x_bytes + part_bytes;
    }
    static_assert(MMA_BLOCK % STEP == 0 && STEP % MMA_PIECE == 0, "pieces");
    static_assert(WK == 1 || (STEP == MMA_BLOCK && WO * WR * FO * FR == 1 &&
                              part_words == threads),
                  "warps along inputs take whole blocks of one fragment");
    static_assert(rows * span / 8 % threads == 0, "threads share x evenly");
    static_assert(MMA_BLOCK % outs == 0, "a tile lies in one row of scales");
};

// narrow: few rows, and few outputs for the number of processors.
enum mma_size { MMA_NARROW, MMA_WIDE, MMA_MIDDLE, MMA_LARGE, N_MMA_SIZE };
using mma_narrow = mma_shape<1, 1, 4, 1, 1, 128, 3>; //  16 x   8, 512
using mma_wide = mma_shape<4, 1, 1, 1, 2, 128, 3>;   //  64 x  16, 128
using mma_middle = mma_shape<2, 2, 1, 2, 4, 64, 3>;  //  64 x  64,  64
using mma_large = mma_shape<4, 2, 1, 2, 8, 32, 4>;   // 128 x 128,  32
using mma_narrow_pair = mma_shape<1, 1, 4, 1, 1, 128, 3, 2>;
using mma_wide_pair = mma_shape<4, 1, 1, 1, 2, 128, 3, 2>;
using mma_middle_pair = mma_shape<2, 2, 1, 2, 4, 64, 3, 2>;
using mma_large_pair = mma_shape<4, 2, 1, 2, 8, 32, 4, 2>;

__device__ __forceinline__ int32_t lane_index()
{
    return static_cast<int32_t>(threadIdx.x) % 32;
}
__device__ __forceinline__ int32_t warp_number()
{
    return static_cast<int32_t>(threadIdx.x) / 32;
}

// --- Activations -------------------------------------------------------------

// Both are bfloat16 values, so their upper halves are all of them.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    return bits_of(low) >> 16 | (bits_of(high) & 0xffff0000U);
}

// A thread's share of a stage of activations: chunks of 8 inputs.
template <class S> struct x_share {
    const float *row[S::x_chunks];
    quad v[S::x_chunks][2];
    int32_t n_in, rows; // rows that there are, from the first of the tile
    bool wide;

    static constexpr int32_t A_ROW = S::span / 8; // chunks

    __device__ __forceinline__ int32_t chunk(int32_t i) const
    {
        return i * S::threads + static_cast<int32_t>(threadIdx.x);
    }
    __device__ __forceinline__ void begin(const product &p, int32_t row0)
    {
        n_in = p.n_in;
        rows = p.n_row - row0;
        wide = rows_aligned(p.x, p.x_stride * 4);
#pragma unroll
        for (int32_t i = 0; i < S::x_chunks; i++) {
            const int32_t r = chunk(i) / A_ROW;
            int64_t at = r < rows ? row0 + r : row0;
            if (p.x_rows != nullptr) at = p.x_rows[at];
            row[i] = p.x + at * p.x_stride;
        }
    }
    __device__ __forceinline__ void load(int32_t k0)
    {
#pragma unroll
        for (int32_t i = 0; i < S::x_chunks; i++) {
            const int32_t k = k0 + chunk(i) % A_ROW * 8;
            const int32_t left = chunk(i) / A_ROW < rows ? n_in - k : 0;
            v[i][0] = load_quad(row[i] + k, left, wide);
            v[i][1] = load_quad(row[i] + k + 4, left - 4, wide);
        }
    }
    template <class T> __device__ __forceinline__ void store(unsigned char *to);
};

struct alignas(16) words4 {
    uint32_t w[4];
};
struct alignas(8) words2 {
    uint32_t w[2];
};

// Chunk c of row r of a tile whose rows are PITCH bytes, for weights T.
template <class T, int PITCH>
__device__ __forceinline__ void store_chunk(unsigned char *tile, int32_t r,
                                            int32_t c, const quad &low,
                                            const quad &high)
{
    const float *const a = low.v, *const b = high.v;
    if (sizeof(T) == 2) {
        *reinterpret_cast<words4 *>(tile + chunk_at<PITCH>(r, c)) = {
            {pack_bf16(a[0], a[1]), pack_bf16(a[2], a[3]),
             pack_bf16(b[0], b[1]), pack_bf16(b[2], b[3])}};
        return;
    }
    const int32_t first = c & ~1, half = c % 2 * 8;
    *reinterpret_cast<words2 *>(tile + chunk_at<PITCH>(r, first) + half) = {
        {pack_bf16(a[0], a[2]), pack_bf16(b[0], b[2])}};
    *reinterpret_cast<words2 *>(tile + chunk_at<PITCH>(r, first + 1) + half) = {
        {pack_bf16(a[1], a[3]), pack_bf16(b[1], b[3])}};
}

template <class S>
template <class T>
__device__ __forceinline__ void x_share<S>::store(unsigned char *to)
{
    constexpr int32_t PITCH = S::step * 2;
#pragma unroll
    for (int32_t i = 0; i < S::x_chunks; i++) {
        const int32_t r = chunk(i) / A_ROW, k = chunk(i) % A_ROW * 8;
        const int32_t c = k % S::step / 8;
        unsigned char *const tile = to + k / S::step * S::x_tile;
        if constexpr (S::planes == 2) {
            quad hi[2], lo[2];
#pragma unroll
            for (int32_t e = 0; e < 8; e++)
                split_pair(v[i][e / 4].v[e % 4], &hi[e / 4].v[e % 4],
                           &lo[e / 4].v[e % 4]);
            store_chunk<T, PITCH>(tile, r, c, hi[0], hi[1]);
            store_chunk<T, PITCH>(tile + S::x_plane, r, c, lo[0], lo[1]);
        } else {
            store_chunk<T, PITCH>(tile, r, c, v[i][0], v[i][1]);
        }
    }
}

// --- Fragments ---------------------------------------------------------------

// Bytes 0 and 2 of q as bfloat16 in `even`, 1 and 3 in `odd`: sign, exponent
// and mantissa are put where bfloat16 has them and moved to its range by 2^120,
// exact for subnormals too.
__device__ __forceinline__ void widen_f8(uint32_t q, uint32_t *even,
                                         uint32_t *odd)
{
    const uint32_t e = (q & 0x00800080U) << 8 | (q & 0x007f007fU) << 4;
    const uint32_t o = (q & 0x80008000U) | (q & 0x7f007f00U) >> 4;
    constexpr uint32_t RANGE = 0x7b807b80U; // 2^120, twice
    *even = multiply_bf16x2(e, RANGE);
    *odd = multiply_bf16x2(o, RANGE);
}

// a[f][h]: outputs 16 f on from `out`, inputs 16 h on from k.
template <class S, class T>
__device__ __forceinline__ void load_weights(uint32_t a[S::fo][2][4],
                                             const unsigned char *tile,
                                             int32_t out, int32_t k)
{
    constexpr int32_t PITCH = S::step * static_cast<int32_t>(sizeof(T));
    const int32_t lane = lane_index();
#pragma unroll
    for (int32_t f = 0; f < S::fo; f++) {
        const int32_t row = out + f * 16 + lane % 16;
        if (sizeof(T) == 2) {
            ldmatrix_x4(a[f][0],
                        tile + chunk_at<PITCH>(row, k / 8 + lane / 16));
            ldmatrix_x4(a[f][1],
                        tile + chunk_at<PITCH>(row, k / 8 + 2 + lane / 16));
            continue;
        }
        uint32_t q[4];
        ldmatrix_x4(q, tile + chunk_at<PITCH>(row, k / 16 + lane / 16));
#pragma unroll
        for (int32_t i = 0; i < 4; i++)
            widen_f8(q[i], &a[f][i / 2][i % 2], &a[f][i / 2][i % 2 + 2]);
    }
}

// b[f][h]: rows 8 f on from `row`, inputs 16 h on from k.
template <class S>
__device__ __forceinline__ void load_x(uint32_t b[S::fr][2][2],
                                       const unsigned char *tile, int32_t row,
                                       int32_t k)
{
    constexpr int32_t PITCH = S::step * 2;
    const int32_t lane = lane_index();
    uint32_t q[4];
    if constexpr (S::fr == 1) {
        ldmatrix_x4(q,
                    tile + chunk_at<PITCH>(row + lane % 8, k / 8 + lane / 8));
        b[0][0][0] = q[0], b[0][0][1] = q[1];
        b[0][1][0] = q[2], b[0][1][1] = q[3];
    } else {
#pragma unroll
        for (int32_t i = 0; i < S::fr; i++) {
            const int32_t f = i / 2 * 2, h = i % 2;
            const int32_t at = row + f * 8 + lane / 16 * 8 + lane % 8;
            ldmatrix_x4(
                q, tile + chunk_at<PITCH>(at, k / 8 + h * 2 + lane / 8 % 2));
            b[f][h][0] = q[0], b[f][h][1] = q[1];
            b[f + 1][h][0] = q[2], b[f + 1][h][1] = q[3];
        }
    }
}

template <class S> struct fragments {
    float d[S::fo][S::fr][4];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int32_t o = 0; o < S::fo; o++)
#pragma unroll
            for (int32_t r = 0; r < S::fr; r++)
#pragma unroll
                for (int32_t i = 0; i < 4; i++) d[o][r][i] = 0.0F;
    }
};

// Adds `step` inputs of a stage, n of them inside the matrix.
template <class S, class T>
__device__ __forceinline__ void
multiply(fragments<S> *part, const unsigned char *w, const unsigned char *x,
         int32_t out, int32_t row, int32_t n)
{
#pragma unroll
    for (int32_t k = 0; k < S::step; k += MMA_PIECE) {
        if (k >= n) break;
        uint32_t a[S::fo][2][4], b[S::planes][S::fr][2][2];
        load_weights<S, T>(a, w, out, k);
#pragma unroll
        for (int32_t p = 0; p < S::planes; p++)
            load_x<S>(b[p], x + p * S::x_plane, row, k);
#pragma unroll
        for (int32_t h = 0; h < 2; h++)
#pragma unroll
            for (int32_t p = 0; p < S::planes; p++)
#pragma unroll
                for (int32_t o = 0; o < S::fo; o++)
#pragma unroll
                    for (int32_t r = 0; r < S::fr; r++)
                        mma_bf16(part->d[o][r], a[o][h], b[p][r][h]);
    }
}

template <class T>
__device__ __forceinline__ float fold(float sum, float part, float scale)
{
    return sizeof(T) == 1 ? fmaf(part, scale, sum) : sum + part;
}

// Scale of the block that has output `out` and input k.
template <class T>
__device__ __forceinline__ float scale_of(const product &p, int32_t out,
                                          int32_t k)
{
    if (sizeof(T) == 2) return 1.0F;
    return p
        .scales[out / MMA_BLOCK * tiles_of(p.n_in, MMA_BLOCK) + k / MMA_BLOCK];
}

// --- A tile ------------------------------------------------------------------

// The staging of a tile, whatever adds it up.
template <class S, class T> struct mma_pipe {
    static constexpr int32_t ELEM = sizeof(T);
    static constexpr int32_t W_BYTES = S::wk * S::w_tile(ELEM);
    static constexpr int32_t STAGES = S::stages(ELEM);

    const product &p;
    place at;
    unsigned char *w, *x, *parts;
    int32_t steps;
    x_share<S> share;

    __device__ __forceinline__ mma_pipe(const product &p_, place at_,
                                        unsigned char *shared)
        : p(p_), at(at_), w(shared), x(shared + STAGES * W_BYTES),
          parts(x + 2 * S::x_bytes), steps(tiles_of(p_.n_in, S::span))
    {
        share.begin(p, at.row);
    }

    __device__ __forceinline__ unsigned char *w_stage(int32_t s) const
    {
        return w + s % STAGES * W_BYTES;
    }
    __device__ __forceinline__ unsigned char *x_stage(int32_t s) const
    {
        return x + s % 2 * S::x_bytes;
    }

    __device__ __forceinline__ void copy(int32_t s)
    {
        if (s < steps)
#pragma unroll
            for (int32_t j = 0; j < S::wk; j++)
                stage<S::outs, S::step * ELEM, S::threads, ELEM>(
                    w_stage(s) + j * S::w_tile(ELEM), staged_weights(p, ELEM),
                    at.out, (s * S::span + j * S::step) * ELEM);
        cp_async_commit();
    }

    __device__ __forceinline__ void start()
    {
#pragma unroll 1
        for (int32_t s = 0; s < STAGES - 1; s++) copy(s);
        share.load(0);
        share.template store<T>(x_stage(0));
    }
    // Stage s is there and those before it are done with; the next ones are
    // under way.
    __device__ __forceinline__ void enter(int32_t s)
    {
        cp_async_wait<STAGES - 2>();
        __syncthreads(); // for stage s, and after s - 1
        copy(s + STAGES - 1);
        if (s + 1 < steps) share.load((s + 1) * S::span);
    }
    __device__ __forceinline__ void leave(int32_t s)
    {
        if (s + 1 < steps) share.template store<T>(x_stage(s + 1));
    }
    // All copies have landed and shared memory is free.
    __device__ __forceinline__ void finish()
    {
        cp_async_wait<0>();
        __syncthreads();
    }
};

// Element i of a lane's fragment whose corner is (out, row): PTX ISA, "Matrix
// fragments for mma.m16n8k16".
__device__ __forceinline__ void store_element(const product &p, int32_t out,
                                              int32_t row, int32_t lane,
                                              int32_t i, float value)
{
    store_y(p, row + lane % 4 * 2 + i % 2, out + lane / 4 + i / 2 * 8, value);
}

// A warp adds all inputs of its fragments.
template <class S, class T>
__device__ __forceinline__ void mma_tile_whole(const product &p, place at,
                                               unsigned char *shared)
{
    mma_pipe<S, T> pipe(p, at, shared);
    const int32_t out = warp_number() % S::wo * S::fo * 16;
    const int32_t row = warp_number() / S::wo * S::fr * 8;
    fragments<S> sum, part;
    sum.clear();
    part.clear();
    float scale = 1.0F;
    pipe.start();
#pragma unroll 1
    for (int32_t s = 0; s < pipe.steps; s++) {
        const int32_t k = s * S::step;
        pipe.enter(s);
        if (k % MMA_BLOCK == 0) scale = scale_of<T>(p, at.out, k);
        multiply<S, T>(&part, pipe.w_stage(s), pipe.x_stage(s), out, row,
                       p.n_in - k);
        if ((k + S::step) % MMA_BLOCK == 0 || s + 1 == pipe.steps) {
#pragma unroll
            for (int32_t i = 0; i < S::fo * S::fr * 4; i++) {
                float *const d = &sum.d[i / 4 / S::fr][i / 4 % S::fr][i % 4];
                *d = fold<T>(*d, part.d[i / 4 / S::fr][i / 4 % S::fr][i % 4],
                             scale);
            }
            part.clear();
        }
        pipe.leave(s);
    }
    pipe.finish();
#pragma unroll
    for (int32_t i = 0; i < S::fo * S::fr * 4; i++)
        store_element(p, at.out + out + i / 4 / S::fr * 16,
                      at.row + row + i / 4 % S::fr * 8, lane_index(), i % 4,
                      sum.d[i / 4 / S::fr][i / 4 % S::fr][i % 4]);
}

// Folds the parts of stage s into the element that this thread owns: element
// thread / 32 of lane thread % 32.
template <class S, class T>
__device__ __forceinline__ float fold_parts(const mma_pipe<S, T> &pipe,
                                            int32_t s, float sum)
{
    const float *const parts = reinterpret_cast<const float *>(pipe.parts) +
                               s % 2 * S::wk * S::part_words;
#pragma unroll
    for (int32_t j = 0; j < S::wk; j++) {
        const int32_t k = s * S::span + j * S::step;
        if (k >= pipe.p.n_in) break;
        sum = fold<T>(
            sum, parts[j * S::part_words + static_cast<int32_t>(threadIdx.x)],
            scale_of<T>(pipe.p, pipe.at.out, k));
    }
    return sum;
}

// Every warp adds its own blocks of inputs of one fragment; their parts are
// told by shared memory one stage later.
template <class S, class T>
__device__ __forceinline__ void mma_tile_split(const product &p, place at,
                                               unsigned char *shared)
{
    mma_pipe<S, T> pipe(p, at, shared);
    const int32_t warp = warp_number(), lane = lane_index();
    float sum = 0.0F;
    pipe.start();
#pragma unroll 1
    for (int32_t s = 0; s < pipe.steps; s++) {
        pipe.enter(s);
        if (s > 0) sum = fold_parts<S, T>(pipe, s - 1, sum);
        fragments<S> part;
        part.clear();
        multiply<S, T>(&part, pipe.w_stage(s) + warp * S::w_tile(sizeof(T)),
                       pipe.x_stage(s) + warp * S::x_tile, 0, 0,
                       p.n_in - s * S::span - warp * S::step);
        float *const told = reinterpret_cast<float *>(pipe.parts) +
                            (s % 2 * S::wk + warp) * S::part_words;
#pragma unroll
        for (int32_t i = 0; i < 4; i++) told[i * 32 + lane] = part.d[0][0][i];
        pipe.leave(s);
    }
    pipe.finish();
    sum = fold_parts<S, T>(pipe, pipe.steps - 1, sum);
    store_element(p, at.out, at.row, lane, warp, sum);
}

// One tile; every thread of the block, `shared` has S::bytes(sizeof(T)).
template <class S, class T>
__device__ __forceinline__ void mma_tile(const product &p, place at,
                                         unsigned char *shared)
{
    if constexpr (S::wk > 1)
        mma_tile_split<S, T>(p, at, shared);
    else
        mma_tile_whole<S, T>(p, at, shared);
}

} // namespace weft

#endif
