// test_hopper.cc - the emulator's Hopper half: loads, barriers and products
// against plain loops, and faults that are found.
#include "tests/simt/test/kit.h"

#include "tests/simt/test/hopper_kernels.cuh"

#include <float.h>
#include <vector>

namespace
{

using weft::bf16;
using weft::mbarrier;
using weft::tensor_map;
using weft::tensor_shape;

const char *const orders[] = {"forward", "reverse", "1", "2", "9"};

template <class F> __global__ void each(F body)
{
    body(static_cast<int>(threadIdx.x));
}
template <class F> void launch(int threads, size_t bytes, F body)
{
    auto kernel = each<F>;
    WEFT_LAUNCH(kernel, dim3(1), dim3(static_cast<unsigned>(threads)), bytes,
                nullptr, body);
}

std::vector<bf16> numbers(int n, uint32_t seed)
{
    kit::random r = {seed};
    std::vector<bf16> v(static_cast<size_t>(n));
    for (bf16 &x : v) x = weft::to_bf16(r.next());
    return v;
}

tensor_map map_of(const bf16 *base, int columns, int rows, int pitch,
                  int box_rows)
{
    tensor_shape s = {};
    s.base = base;
    s.element_bytes = 2;
    s.rank = 2;
    s.dim[0] = columns;
    s.dim[1] = rows;
    s.stride[1] = pitch * 2;
    s.box[0] = 64;
    s.box[1] = box_rows;
    s.swizzle = true;
    tensor_map m;
    CHECK(weft::encode_tensor_map(&m, &s) == cudaSuccess);
    return m;
}

// --- Whole kernels ---------------------------------------------------------

template <int FAULT> float gemm(int m, int n, int k, int pitch)
{
    std::vector<bf16> a = numbers(m * pitch, 3), b = numbers(n * pitch, 4);
    for (int i = 0; i < m * pitch; i++) // what is between rows does not matter
        if (i % pitch >= k) a[static_cast<size_t>(i)].bits = 0x7fff;
    std::vector<float> c(static_cast<size_t>(m * n), NAN);
    const tensor_map ma = map_of(a.data(), k, m, pitch, 64);
    const tensor_map mb = map_of(b.data(), k, n, pitch, 64);
    auto kernel = hopper::gemm_kernel<FAULT>;
    simt::allow_shared(reinterpret_cast<const void *>(kernel),
                       hopper::GEMM_BYTES);
    WEFT_LAUNCH(kernel,
                dim3(static_cast<unsigned>((n + 63) / 64),
                     static_cast<unsigned>((m + 63) / 64)),
                dim3(hopper::GEMM_THREADS), hopper::GEMM_BYTES, nullptr, ma, mb,
                c.data(), m, n, k);
    CHECK(simt::refused == 0);
    float worst = 0;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int x = 0; x < k; x++)
                sum +=
                    static_cast<double>(
                        weft::to_float(a[static_cast<size_t>(i * pitch + x)])) *
                    static_cast<double>(
                        weft::to_float(b[static_cast<size_t>(j * pitch + x)]));
            const float d = fabsf(static_cast<float>(sum) -
                                  c[static_cast<size_t>(i * n + j)]);
            if (isnan(d)) return d;
            if (d > worst) worst = d;
        }
    return worst;
}

void test_gemm()
{
    for (const char *order : orders) {
        simt::set_order(order);
        const float d = gemm<hopper::NONE>(64, 64, 64 * 8, 64 * 8);
        CHECK(d < 512 * 512 * FLT_EPSILON / 4);
    }
    CHECK(gemm<hopper::NONE>(70, 33, 136, 144) < 136 * 136 * FLT_EPSILON);
    CHECK(gemm<hopper::NONE>(1, 1, 8, 8) < 64 * FLT_EPSILON);
}

template <int N> void test_attend()
{
    const int n_pages = 3;
    const std::vector<bf16> q = numbers(64 * N, 5);
    const std::vector<bf16> keys = numbers(5 * 64 * N, 6);
    const int32_t pages[n_pages] = {4, 0, 2};
    std::vector<float> out(64 * N);
    const tensor_map mq = map_of(q.data(), N, 64, N, 64);
    tensor_shape s = {};
    s.base = keys.data();
    s.element_bytes = 2;
    s.rank = 3;
    s.dim[0] = N;
    s.dim[1] = 64;
    s.dim[2] = 5;
    s.stride[1] = N * 2;
    s.stride[2] = 64 * N * 2;
    s.box[0] = s.box[1] = 64;
    s.box[2] = 1;
    s.swizzle = true;
    tensor_map mk;
    CHECK(weft::encode_tensor_map(&mk, &s) == cudaSuccess);
    auto kernel = hopper::attend_kernel<N>;
    const size_t bytes = hopper::attend_bytes<N>::ALL;
    simt::allow_shared(reinterpret_cast<const void *>(kernel), bytes);
    WEFT_LAUNCH(kernel, dim3(1), dim3(128), bytes, nullptr, mq, mk, pages,
                n_pages, out.data());
    auto value = [](bf16 v) { return static_cast<double>(weft::to_float(v)); };
    for (int i = 0; i < 64; i++) {
        std::vector<double> sum(N, 0.0);
        for (int key = 0; key < n_pages * 64; key++) {
            const bf16 *row = &keys[static_cast<size_t>(
                (pages[key / 64] * 64 + key % 64) * N)];
            double score = 0;
            for (int x = 0; x < N; x++)
                score +=
                    value(q[static_cast<size_t>(i * N + x)]) * value(row[x]);
            // The kernel's scores are rounded to bfloat16: with their errors
            // before it, to a neighbour at worst.
            for (int x = 0; x < N; x++)
                sum[static_cast<size_t>(x)] += score * value(row[x]);
        }
        for (int x = 0; x < N; x++)
            CHECK_NEAR(static_cast<double>(out[static_cast<size_t>(i * N + x)]),
                       sum[static_cast<size_t>(x)], 0.004 * sqrt(N) * 192);
    }
}

// Every shape, exactly: small integers. b by columns and by rows.
template <int N, bool MN, bool WORDS> void shape(int t)
{
    WEFT_SHARED_DYNAMIC(unsigned char, raw);
    bf16 *a = hopper::align_tiles(raw), *b = a + 64 * 64;
    auto av = [](int m, int k) { return (m * 3 + k * 5) % 7 - 3; };
    auto bv = [](int n, int k) { return (n * 2 + k * 11) % 9 - 4; };
    auto put = [](bf16 *tile, int row, int column, int v) {
        const uint32_t at = static_cast<uint32_t>(row * 128 + column * 2);
        tile[weft::swizzled(at) / 2] = weft::to_bf16(static_cast<float>(v));
    };
    for (int i = t; i < 64 * 16; i += 128)
        put(a, i / 16, 32 + i % 16, av(i / 16, i % 16));
    for (int i = t; i < N * 16; i += 128) {
        const int n = i / 16, k = i % 16;
        if (MN)
            put(b + n / 64 * 32 * 64, 8 + k, n % 64, bv(n, k));
        else
            put(b, n, 16 + k, bv(n, k));
    }
    weft::fence_async();
    weft::named_barrier_sync(1, 128);
    float d[N / 2];
    for (int i = 0; i < N / 2; i++) d[i] = 1000;
    const int l = t % 32, row = t / 32 * 16 + l / 4, k = l % 4 * 2;
    auto pair = [&](int m, int x) {
        auto bits = [&](int y) {
            return static_cast<uint32_t>(
                weft::to_bf16(static_cast<float>(av(m, y))).bits);
        };
        return bits(x) | bits(x + 1) << 16;
    };
    const uint32_t words[4] = {pair(row, k), pair(row + 8, k), pair(row, k + 8),
                               pair(row + 8, k + 8)};
    const weft::matrix_desc mb =
        MN ? weft::mn_major(b + 8 * 64, 32 * 128) : weft::k_major(b + 16);
    weft::wgmma_fence();
    for (int round = 0; round < 3; round++) {
        if (WORDS)
            weft::wgmma_bf16<N, MN>(d, words, mb, round != 1);
        else
            weft::wgmma_bf16<N, MN>(d, weft::k_major(a + 32), mb, round != 1);
    }
    CHECK(isnan(d[0]) && isnan(d[N / 2 - 1]));
    weft::wgmma_commit();
    weft::wgmma_wait<1>();
    CHECK(isnan(d[0]));
    weft::wgmma_wait<0>();
    for (int i = 0; i < N / 2; i++) {
        const int m = row + i / 2 % 2 * 8, n = i / 4 * 8 + k + i % 2;
        int sum = 0;
        for (int x = 0; x < 16; x++) sum += av(m, x) * bv(n, x);
        CHECK(d[i] == static_cast<float>(2 * sum));
    }
}

template <int N> void test_shapes()
{
    const size_t bytes = 1024 + 64 * 128 + 256 * 128;
    launch(128, bytes, shape<N, false, false>);
    launch(128, bytes, shape<N, true, false>);
    launch(128, bytes, shape<N, false, true>);
    launch(256, bytes, [](int t) {
        if (t >= 128) shape<N, true, true>(t - 128);
    });
}

// --- Loads -----------------------------------------------------------------

// Boxes that leave the tensor on every side, swizzled or not.
template <bool SWIZZLE> void test_box()
{
    static float from[3][5][40] __attribute__((aligned(16)));
    for (int z = 0; z < 3; z++)
        for (int y = 0; y < 5; y++)
            for (int x = 0; x < 40; x++)
                from[z][y][x] = static_cast<float>(z * 1000 + y * 100 + x);
    tensor_shape s = {};
    s.base = from;
    s.element_bytes = 4;
    s.rank = 3;
    s.dim[0] = 37;
    s.dim[1] = 5;
    s.dim[2] = 3;
    s.stride[1] = 160;
    s.stride[2] = 800;
    s.box[0] = 32;
    s.box[1] = 4;
    s.box[2] = 2;
    s.swizzle = SWIZZLE;
    tensor_map m;
    CHECK(weft::encode_tensor_map(&m, &s) == cudaSuccess);
    launch(32, 3072, [map = &m](int t) {
        WEFT_SHARED_DYNAMIC(unsigned char, raw);
        WEFT_SHARED(mbarrier, full, [1]);
        float *to = reinterpret_cast<float *>(hopper::align_tiles(raw));
        const int corners[4][3] = {
            {0, 0, 0}, {6, 3, 1}, {-5, -1, -1}, {37, 0, 0}};
        if (t == 0) weft::mbarrier_init(full, 1);
        __syncthreads();
        for (uint32_t i = 0; i < 4; i++) {
            const int *c = corners[i];
            if (t == 0) {
                weft::mbarrier_arrive_expect(full, 1024);
                weft::tma_load_3d(to, map, c[0], c[1], c[2], full);
                CHECK(isnan(to[0]) && isnan(to[255]));
            }
            weft::mbarrier_wait(full, i & 1U);
            for (int j = t; j < 256; j += 32) {
                const int x = c[0] + j % 32, y = c[1] + j / 32 % 4;
                const int z = c[2] + j / 128;
                const bool in =
                    x >= 0 && x < 37 && y >= 0 && y < 5 && z >= 0 && z < 3;
                const uint32_t at = static_cast<uint32_t>(j) * 4;
                const float got = to[(SWIZZLE ? weft::swizzled(at) : at) / 4];
                CHECK(got == (in ? from[z][y][x] : 0.0F));
            }
            __syncthreads();
        }
    });
}

void test_bulk_and_1d()
{
    static float from[100] __attribute__((aligned(16)));
    for (int i = 0; i < 100; i++) from[i] = static_cast<float>(i + 1);
    tensor_shape s = {};
    s.base = from;
    s.element_bytes = 4;
    s.rank = 1;
    s.dim[0] = 98;
    s.box[0] = 8;
    tensor_map m;
    CHECK(weft::encode_tensor_map(&m, &s) == cudaSuccess);
    launch(1, 128 + 256, [map = &m](int) {
        WEFT_SHARED_DYNAMIC(float, to);
        WEFT_SHARED(mbarrier, full, [1]);
        weft::mbarrier_init(full, 1);
        weft::mbarrier_arrive_expect(full, 32 + 128);
        weft::tma_load_1d(to, map, 92, full);
        weft::bulk_load(to + 32, from + 4, 128, full);
        weft::mbarrier_wait(full, 0);
        for (int i = 0; i < 8; i++)
            CHECK(to[i] == (i < 6 ? static_cast<float>(93 + i) : 0.0F));
        CHECK(isnan(to[8]));
        for (int i = 0; i < 32; i++)
            CHECK(to[32 + i] == static_cast<float>(5 + i));
    });
}

void test_maps()
{
    alignas(16) static float base[64];
    tensor_shape good = {};
    good.base = base;
    good.element_bytes = 4;
    good.rank = 2;
    good.dim[0] = 4;
    good.dim[1] = 4;
    good.stride[1] = 16;
    good.box[0] = 32;
    good.box[1] = 256;
    good.swizzle = true;
    auto refused = [](tensor_shape s) {
        tensor_map m;
        return weft::encode_tensor_map(&m, &s) == cudaErrorInvalidValue;
    };
    CHECK(!refused(good));
    tensor_shape s = good;
    s.base = base + 1;
    CHECK(refused(s));
    s = good;
    s.stride[1] = 20;
    CHECK(refused(s));
    s = good;
    s.box[1] = 257;
    CHECK(refused(s));
    s = good;
    s.box[0] = 64;
    CHECK(refused(s));
    s = good;
    s.dim[1] = 0;
    CHECK(refused(s));
    s = good;
    s.element_bytes = 3;
    CHECK(refused(s));
}

void test_named_barriers()
{
    for (const char *order : orders) {
        simt::set_order(order);
        // Two warps hand a box to two others and get it back, five times.
        launch(128, 64 * 4, [](int t) {
            WEFT_SHARED_DYNAMIC(int, box);
            for (int i = 0; i < 5; i++) {
                if (t < 64) {
                    box[t] = i * 100 + t;
                    weft::named_barrier_arrive(1, 128);
                    weft::named_barrier_sync(2, 128);
                } else {
                    weft::named_barrier_sync(1, 128);
                    CHECK(box[127 - t] == i * 100 + 127 - t);
                    weft::named_barrier_arrive(2, 128);
                }
            }
        });
    }
}

// --- Faults ----------------------------------------------------------------

template <int FAULT> void faulty()
{
    gemm<FAULT>(64, 64, 64 * 8, 64 * 8);
}

void before_init()
{
    launch(1, 0, [](int) {
        WEFT_SHARED(mbarrier, b, [1]);
        weft::mbarrier_arrive(b);
    });
}
void never_comes()
{
    launch(2, 0, [](int t) {
        WEFT_SHARED(mbarrier, b, [1]);
        if (t == 0) weft::mbarrier_init(b, 2);
        __syncthreads();
        if (t == 0) weft::mbarrier_arrive(b);
        weft::mbarrier_wait(b, 0);
    });
}
void misaligned_tile()
{
    alignas(16) static bf16 from[64 * 64];
    const tensor_map m = map_of(from, 64, 64, 64, 64);
    launch(1, 16384, [map = &m](int) {
        WEFT_SHARED_DYNAMIC(unsigned char, raw); // 128-byte aligned, no more
        WEFT_SHARED(mbarrier, b, [1]);
        weft::mbarrier_init(b, 1);
        weft::mbarrier_arrive_expect(b, 8192);
        weft::tma_load_2d(raw, map, 0, 0, b);
        weft::mbarrier_wait(b, 0);
    });
}
void half_a_warpgroup()
{
    launch(64, 0, [](int) { weft::wgmma_fence(); });
}
void row_of_a_tile()
{
    launch(128, 20480, [](int) {
        WEFT_SHARED_DYNAMIC(unsigned char, raw);
        bf16 *a = hopper::align_tiles(raw);
        float d[4] = {};
        weft::wgmma_fence();
        weft::wgmma_bf16<8>(d, weft::k_major(a + 64), weft::k_major(a), true);
    });
}
void touches_accumulators()
{
    launch(128, 20480, [](int t) {
        WEFT_SHARED_DYNAMIC(unsigned char, raw);
        bf16 *a = hopper::align_tiles(raw);
        float d[4] = {};
        weft::wgmma_fence();
        weft::wgmma_bf16<8>(d, weft::k_major(a), weft::k_major(a), true);
        weft::wgmma_commit();
        d[t % 4] = 0;
        weft::wgmma_wait<0>();
    });
}
// wait<1> says nothing of the second group's operands.
void changes_an_operand()
{
    launch(128, 20480, [](int t) {
        WEFT_SHARED_DYNAMIC(unsigned char, raw);
        bf16 *a = hopper::align_tiles(raw);
        for (int i = t; i < 64 * 64; i += 128) a[i].bits = 0;
        __syncthreads();
        float d[2][4] = {};
        weft::wgmma_fence();
        for (int i = 0; i < 2; i++) {
            weft::wgmma_bf16<8>(d[i], weft::k_major(a), weft::k_major(a), true);
            weft::wgmma_commit();
        }
        weft::wgmma_wait<1>();
        CHECK(d[0][0] == 0 && isnan(d[1][0]));
        __syncthreads();
        if (t == 0) a[0].bits = 1;
        __syncthreads();
        weft::wgmma_wait<0>();
    });
}
void two_counts()
{
    launch(128, 0,
           [](int t) { weft::named_barrier_sync(3, t < 64 ? 128 : 64); });
}
void load_past_the_end()
{
    bf16 *from = static_cast<bf16 *>(aligned_alloc(16, 4096));
    const tensor_map m = map_of(from, 64, 33, 64, 64);
    launch(1, 16384, [map = &m](int) {
        WEFT_SHARED_DYNAMIC(unsigned char, raw);
        WEFT_SHARED(mbarrier, b, [1]);
        weft::mbarrier_init(b, 1);
        weft::mbarrier_arrive_expect(b, 8192);
        weft::tma_load_2d(hopper::align_tiles(raw), map, 0, 0, b);
        weft::mbarrier_wait(b, 0);
    });
}
template <bool WAITS> void barrier_hands_on()
{
    launch(64, 256, [](int t) {
        WEFT_SHARED_DYNAMIC(int, box);
        WEFT_SHARED(mbarrier, b, [1]);
        if (t == 0) weft::mbarrier_init(b, 64);
        __syncthreads();
        box[t] = t;
        weft::mbarrier_arrive(b);
        if (WAITS) weft::mbarrier_wait(b, 0);
        CHECK(!WAITS || box[63 - t] == 63 - t);
        if (box[63 - t] < -1) __trap();
    });
}

void faults()
{
    using namespace hopper;
    const char *early = HAS_TSAN ? "data race" : "too many arrivals";
    kit::bad("products before the tiles are there", faulty<NO_WAIT_FULL>, early,
             nullptr);
    kit::bad(
        "products of a tile that never mattered",
        [] { gemm<NO_WAIT_FULL>(64, 64, 64, 64); },
        HAS_TSAN ? "data race" : "loads under way", nullptr);
    kit::bad("the wrong parity", faulty<WRONG_PARITY>, early, nullptr);
    kit::bad("a fetch over tiles in use", faulty<NO_WAIT_EMPTY>,
             "too many arrivals", "hopper_kernels.cuh", nullptr);
    kit::bad(
        "a tile given back too early",
        [] {
            simt::set_order("reverse");
            faulty<EARLY_EMPTY>();
        },
        HAS_TSAN ? "data race" : "changed before it was done", nullptr);
    // Operands are read at the wait, if one comes: the next load is in the way.
    kit::bad("accumulators not waited for", faulty<NO_WAIT_WGMMA>,
             HAS_TSAN ? "data race" : "wgmma not waited for", nullptr);
    kit::bad("groups not committed", faulty<NO_COMMIT>, "wgmma not waited for",
             nullptr);
    kit::bad("no fence before wgmma", faulty<NO_FENCE>,
             "wgmma without a wgmma_fence", "hopper_kernels.cuh", nullptr);
    kit::bad("more bytes expected than come", faulty<WRONG_BYTES>, "deadlock",
             "at the mbarrier", nullptr);
    kit::bad("two arrivals for one", faulty<TWO_ARRIVALS>, "too many arrivals",
             nullptr);
    kit::bad("a block ends with loads under way", faulty<LEAVES_LOADS>,
             "loads under way", nullptr);
    kit::bad("an mbarrier before its init", before_init, "before its init",
             nullptr);
    kit::bad("an arrival that never comes", never_comes, "deadlock",
             "at the mbarrier", nullptr);
    kit::bad("a tile that is not aligned", misaligned_tile,
             "not 1024-byte aligned", nullptr);
    kit::bad("half a warpgroup", half_a_warpgroup, "fewer than 128", nullptr);
    kit::bad("an operand within a tile's 8 rows", row_of_a_tile, "at row 1",
             nullptr);
    kit::bad("accumulators written too early", touches_accumulators,
             "written before its wait", nullptr);
    kit::bad("an operand written too early", changes_an_operand,
             "changed before it was done", nullptr);
    kit::bad("a barrier of two counts", two_counts, "barrier 3 is for 128",
             nullptr);
    kit::good("an mbarrier between", barrier_hands_on<true>);
    if (HAS_TSAN)
        kit::bad("an mbarrier not waited for", barrier_hands_on<false>,
                 "data race", nullptr);
    if (HAS_ASAN)
        kit::bad("a map larger than its memory", load_past_the_end,
                 "heap-buffer-overflow", "tma_load", nullptr);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc > 1) kit::only = argv[1];
    kit::good("gemm", test_gemm);
    kit::good("attend, 64 columns", test_attend<64>);
    kit::good("attend, 128 columns", test_attend<128>);
    kit::good("attend, 256 columns", test_attend<256>);
    kit::good("products, 8 columns", test_shapes<8>);
    kit::good("products, 16 columns", test_shapes<16>);
    kit::good("products, 32 columns", test_shapes<32>);
    kit::good("products, 64 columns", test_shapes<64>);
    kit::good("products, 128 columns", test_shapes<128>);
    kit::good("products, 256 columns", test_shapes<256>);
    kit::good("boxes in rows", test_box<false>);
    kit::good("boxes swizzled", test_box<true>);
    kit::good("loads in one dimension", test_bulk_and_1d);
    kit::good("maps", test_maps);
    kit::good("named barriers", test_named_barriers);
    faults();
    return kit::end();
}
