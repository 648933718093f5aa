// test_simt.cc - right kernels give right results: every name that
// tests/simt/simt.h offers, against plain loops, in several orders of threads.
#include "tests/simt/test/gemm.h"

#include <float.h>
#include <thread>
#include <vector>

namespace
{

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

const char *const orders[] = {"forward", "reverse", "1", "2", "77"};

// --- Whole kernels ---------------------------------------------------------

template <class T, class F> __device__ T block_fold(T value, T *box, F fold)
{
    const unsigned n = blockDim.x / 32, t = threadIdx.x;
    for (int o = 16; o; o /= 2)
        value = fold(value, __shfl_xor_sync(WEFT_FULL_MASK, value, o));
    if (t % 32 == 0) box[t / 32] = value;
    __syncthreads();
    value = box[0];
    for (unsigned i = 1; i < n; i++) value = fold(value, box[i]);
    __syncthreads();
    return value;
}

__global__ void softmax(const float *x, float *y, int n)
{
    __shared__ float box[32];
    const float *row = x + static_cast<int64_t>(blockIdx.x) * n;
    float *to = y + static_cast<int64_t>(blockIdx.x) * n;
    const int t = static_cast<int>(threadIdx.x);
    const int step = static_cast<int>(blockDim.x);
    float high = -INFINITY, sum = 0;
    for (int i = t; i < n; i += step) high = fmaxf(high, row[i]);
    high = block_fold(high, box, [](float a, float b) { return fmaxf(a, b); });
    for (int i = t; i < n; i += step) sum += expf(row[i] - high);
    sum = block_fold(sum, box, [](float a, float b) { return a + b; });
    for (int i = t; i < n; i += step) to[i] = expf(row[i] - high) / sum;
}

void test_softmax()
{
    const int rows = 3, n = 1003;
    std::vector<float> x(rows * n), y(rows * n), first;
    kit::random r = {3};
    for (float &v : x) v = 10 * r.next();
    for (const char *order : orders) {
        simt::set_order(order);
        y.assign(y.size(), 0);
        WEFT_LAUNCH(softmax, dim3(rows), dim3(128), 0, nullptr, x.data(),
                    y.data(), n);
        for (int i = 0; i < rows; i++) {
            double sum = 0;
            for (int j = 0; j < n; j++) sum += exp(x[i * n + j]);
            for (int j = 0; j < n; j++)
                CHECK_NEAR(y[i * n + j], exp(x[i * n + j]) / sum, 1e-6);
        }
        if (first.empty()) first = y;
        CHECK(first == y);
    }
}

void test_gemm()
{
    // Sums of k products below 1, each rounded to fp32.
    for (const char *order : orders) {
        simt::set_order(order);
        CHECK(gemm::difference<gemm::NONE>(64, 32, 32) < 32 * 32 * FLT_EPSILON);
    }
    CHECK(gemm::difference<gemm::NONE>(70, 40, 104) < 104 * 104 * FLT_EPSILON);
    CHECK(gemm::difference<gemm::NONE>(1, 3, 8) < 64 * FLT_EPSILON);
}

// --- Where a thread is -----------------------------------------------------

__global__ void places(int *seen)
{
    const unsigned block =
        blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread =
        threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned n = blockDim.x * blockDim.y * blockDim.z;
    atomicAdd(&seen[block * n + thread], 1);
}

void test_places()
{
    for (const char *order : orders) {
        simt::set_order(order);
        std::vector<int> seen(4 * 3 * 2 * 5 * 2 * 3, 0);
        WEFT_LAUNCH(places, dim3(4, 3, 2), dim3(5, 2, 3), 0, nullptr,
                    seen.data());
        for (int n : seen) CHECK(n == 1);
    }
}

__global__ void in_turn(int *turn, int *next)
{
    const int me = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    turn[atomicAdd(next, 1)] = me;
    __syncthreads();
}

std::vector<int> turns(const char *order)
{
    std::vector<int> turn(6 * 8);
    int next = 0;
    simt::set_order(order);
    WEFT_LAUNCH(in_turn, dim3(6), dim3(8), 0, nullptr, turn.data(), &next);
    return turn;
}

void test_orders()
{
    const std::vector<int> forward = turns("forward"), one = turns("1");
    for (int i = 0; i < 48; i++) {
        CHECK(forward[static_cast<size_t>(i)] == i);
        CHECK(turns("reverse")[static_cast<size_t>(i)] == 47 - i);
    }
    CHECK(one != forward && one == turns("1") && one != turns("2"));
}

// --- Memory ----------------------------------------------------------------

template <int N> __global__ void begins_as_nan(int *numbers)
{
    WEFT_SHARED(float, named, [3][N]);
    WEFT_SHARED_DYNAMIC(float, dynamic);
    const unsigned t = threadIdx.x;
    for (int i = 0; i < 3; i++)
        if (!isnan(named[i][t])) atomicAdd(numbers, 1);
    if (!isnan(dynamic[t])) atomicAdd(numbers, 1);
    __syncthreads();
    named[0][t] = named[1][t] = named[2][t] = dynamic[t] = 1;
}
__global__ void static_begins_as_nan(int *numbers)
{
    __shared__ float fixed[32], one;
    const unsigned t = threadIdx.x;
    if (!isnan(fixed[t])) atomicAdd(numbers, 1);
    if (!isnan(one)) atomicAdd(numbers, 1);
    __syncthreads();
    fixed[t] = 1;
    if (t == 0) one = 1;
}

void test_shared_begins_as_nan()
{
    int numbers = 0;
    auto kernel = begins_as_nan<32>;
    WEFT_LAUNCH(kernel, dim3(3), dim3(32), 128, nullptr, &numbers);
    WEFT_LAUNCH(kernel, dim3(2), dim3(32), 128, nullptr, &numbers);
    WEFT_LAUNCH(static_begins_as_nan, dim3(3), dim3(32), 0, nullptr, &numbers);
    CHECK(numbers == 0);
}

void test_dynamic_alignment()
{
    launch(1, 100, [](int) {
        WEFT_SHARED_DYNAMIC(double, p);
        CHECK(reinterpret_cast<uintptr_t>(p) % 128 == 0);
        CHECK(reinterpret_cast<uintptr_t>(p) % 256 != 0);
    });
}

void test_copies_land_in_groups()
{
    static float from[12] __attribute__((aligned(16)));
    for (int i = 0; i < 12; i++) from[i] = static_cast<float>(i + 1);
    launch(2, 128, [](int t) {
        WEFT_SHARED_DYNAMIC(float, all);
        float *p = all + 16 * t;
        for (int i = 0; i < 12; i++) p[i] = -1;
        weft::cp_async16(p, from);
        weft::cp_async_commit();
        weft::cp_async16(p + 4, from + 4);
        weft::cp_async_commit();
        weft::cp_async16_zero(p + 8, from + 8, 8);
        CHECK(isnan(p[0]) && isnan(p[4]) && isnan(p[8]));
        weft::cp_async_wait<1>();
        CHECK(p[0] == 1 && p[3] == 4 && isnan(p[4]) && isnan(p[8]));
        weft::cp_async_wait<0>();
        CHECK(p[4] == 5 && p[7] == 8 && isnan(p[8]));
        weft::cp_async_commit();
        weft::cp_async_commit();
        weft::cp_async_wait<1>();
        CHECK(p[8] == 9 && p[9] == 10 && p[10] == 0 && p[11] == 0);
    });
}

void test_ldmatrix()
{
    launch(32, 1024, [](int l) {
        WEFT_SHARED_DYNAMIC(uint16_t, m);
        for (int i = 0; i < 8; i++)
            m[l * 8 + i] = static_cast<uint16_t>(l * 8 + i);
        __syncwarp();
        uint32_t r[4], x[4];
        // Rows in another order than in memory.
        const int row = (l * 5 + 3) % 32;
        weft::ldmatrix_x4(r, m + row * 8);
        weft::ldmatrix_x4_trans(x, m + row * 8);
        for (int i = 0; i < 4; i++) {
            auto at = [i](int y, int k) {
                return static_cast<uint32_t>((((i * 8 + y) * 5 + 3) % 32) * 8 +
                                             k);
            };
            const int y = l / 4, k = l % 4 * 2;
            CHECK(r[i] == (at(y, k) | at(y, k + 1) << 16));
            CHECK(x[i] == (at(k, y) | at(k + 1, y) << 16));
        }
    });
}

// --- Collectives -----------------------------------------------------------

void test_shuffles()
{
    launch(64, 0, [](int t) {
        const int l = t % 32, base = t - l;
        const unsigned all = WEFT_FULL_MASK;
        CHECK(__shfl_sync(all, t, 7) == base + 7);
        CHECK(__shfl_sync(all, t, 37) == base + 5);
        CHECK(__shfl_sync(all, t, l + 3, 8) == base + l / 8 * 8 + (l + 3) % 8);
        CHECK(__shfl_up_sync(all, t, 3) == (l < 3 ? t : t - 3));
        CHECK(__shfl_up_sync(all, t, 3, 16) == (l % 16 < 3 ? t : t - 3));
        CHECK(__shfl_down_sync(all, t, 5) == (l > 26 ? t : t + 5));
        CHECK(__shfl_down_sync(all, t, 5, 8) == (l % 8 > 2 ? t : t + 5));
        CHECK(__shfl_xor_sync(all, t, 9) == (t ^ 9));
        CHECK(__shfl_xor_sync(all, t, 8, 8) == (l & 8 ? t ^ 8 : t));
        CHECK(__shfl_xor_sync(all, 1.5 * t, 1) == 1.5 * (t ^ 1));
        CHECK(__shfl_xor_sync(all, t * 5000000000LL, 2) ==
              (t ^ 2) * 5000000000LL);
    });
}

void test_votes()
{
    launch(64, 0, [](int t) {
        const int l = t % 32;
        const unsigned all = WEFT_FULL_MASK;
        CHECK(__ballot_sync(all, l % 3 == 0) == 0x49249249U);
        CHECK(__any_sync(all, l == 31) && !__any_sync(all, 0));
        CHECK(__all_sync(all, 2) && !__all_sync(all, l != 31));
        CHECK(__match_any_sync(all, l / 8) == 0xffU << (l / 8 * 8));
        CHECK(__activemask() == all);
        if (l < 16) {
            CHECK(__ballot_sync(0xffffU, l & 1) == 0xaaaaU);
            CHECK(__shfl_xor_sync(0xffffU, l, 15) == 15 - l);
        } else {
            CHECK(__ballot_sync(0xffff0000U, l & 1) == 0xaaaa0000U);
        }
        __syncwarp();
        // One half is many collectives ahead of the other.
        const int x = __shfl_xor_sync(all, l, 16);
        for (int i = 0; l < 16 && i < 5; i++) __syncwarp(0xffffU);
        CHECK(x == (l ^ 16));
        CHECK(__shfl_xor_sync(all, x, 16) == l);
    });
    // Lanes that the last warp does not have are not waited for.
    launch(40, 0, [](int t) {
        CHECK(__ballot_sync(WEFT_FULL_MASK, 1) == (t < 32 ? ~0U : 0xffU));
        CHECK(__all_sync(WEFT_FULL_MASK, 1));
        CHECK(__reduce_min_sync(WEFT_FULL_MASK, 5U) == 5U);
        CHECK(__match_any_sync(WEFT_FULL_MASK, 0) == (t < 32 ? ~0U : 0xffU));
        __syncwarp();
    });
}

void test_reductions()
{
    launch(96, 0, [](int t) {
        const int l = t % 32;
        const unsigned all = WEFT_FULL_MASK, u = static_cast<unsigned>(l);
        CHECK(__reduce_add_sync(all, l - 20) == 496 - 640);
        CHECK(__reduce_min_sync(all, l - 20) == -20);
        CHECK(__reduce_max_sync(all, l - 20) == 11);
        CHECK(__reduce_add_sync(all, u) == 496);
        CHECK(__reduce_min_sync(all, u + 3) == 3);
        CHECK(__reduce_max_sync(all, u - 1) == ~0U);
        CHECK(__reduce_and_sync(all, u | 64U) == 64U);
        CHECK(__reduce_or_sync(all, 1U << u) == ~0U);
        CHECK(__reduce_xor_sync(all, u) == 0);
        CHECK(__syncthreads_count(t % 3) == 64);
        CHECK(__syncthreads_or(t == 95) && !__syncthreads_or(0));
        CHECK(__syncthreads_and(1) && !__syncthreads_and(t != 40));
        __syncthreads();
    });
}

// --- Atomics ---------------------------------------------------------------

struct cells {
    int add, sub, low, high, was, claimed;
    unsigned and_, or_, xor_, inc, dec, exchanged;
    float sum, held;
    double wide;
    unsigned long long big;
};

__global__ void atomics(cells *c)
{
    const int me = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    const unsigned u = static_cast<unsigned>(me);
    atomicAdd(&c->add, me);
    atomicSub(&c->sub, 2);
    atomicMin(&c->low, -me);
    atomicMax(&c->high, me);
    atomicAnd(&c->and_, ~(1U << u % 32));
    atomicOr(&c->or_, 1U << u % 32);
    atomicXor(&c->xor_, u);
    atomicInc(&c->inc, 6);
    atomicDec(&c->dec, 6);
    atomicAdd(&c->sum, 0.5F);
    atomicAdd(&c->wide, 0.25);
    atomicAdd(&c->big, 1ULL << 33);
    if (atomicCAS(&c->claimed, -1, me) == -1) atomicAdd(&c->was, 1);
    if (atomicExch(&c->exchanged, 1U) == 0U) atomicExch(&c->held, 7.0F);
    __threadfence();
}

void test_atomics()
{
    for (const char *order : orders) {
        simt::set_order(order);
        cells c = {};
        c.and_ = ~0U;
        c.claimed = -1;
        WEFT_LAUNCH(atomics, dim3(3), dim3(33), 0, nullptr, &c);
        CHECK(c.add == 99 * 98 / 2 && c.sub == -198);
        CHECK(c.low == -98 && c.high == 98);
        CHECK(c.and_ == 0 && c.or_ == ~0U && c.xor_ == 99);
        CHECK(c.inc == 99 % 7 && c.dec == (7 - 99 % 7) % 7);
        CHECK(c.sum == 49.5F && c.wide == 24.75 && c.big == 99ULL << 33);
        CHECK(c.was == 1 && c.claimed >= 0);
        CHECK(c.exchanged == 1 && c.held == 7.0F);
    }
}

// --- Scalars ---------------------------------------------------------------

// The nearest bfloat16 by search: of the two around, the nearer, or the even.
void test_bf16()
{
    kit::random r = {11};
    for (int i = 0; i < 200000; i++) {
        const float x = ldexpf(r.next(), i % 250 - 130);
        const uint32_t down = weft::bits_of(x) & 0xffff0000U;
        const double a = static_cast<double>(weft::float_of(down));
        const double b = static_cast<double>(weft::float_of(down + 0x10000U));
        const double to_a = fabs(static_cast<double>(x) - a);
        const double to_b = fabs(static_cast<double>(x) - b);
        const bool up = to_b < to_a || (to_a == to_b && down & 0x10000U);
        CHECK(weft::bits_of(weft::round_bf16(x)) ==
              down + (up ? 0x10000U : 0U));
    }
    CHECK(weft::to_bf16(1.00390625F).bits == 0x3f80); // a tie: to even
    CHECK(weft::to_bf16(1.01171875F).bits == 0x3f82);
    CHECK(isnan(weft::round_bf16(weft::float_of(0x7f800001U))));
    CHECK(weft::to_bf16(FLT_MAX).bits == 0x7f80);
    CHECK(weft::to_bf16(-INFINITY).bits == 0xff80);
}

void test_scalars()
{
    CHECK(__popc(0xf0f1U) == 9 && __popcll(1ULL << 40 | 1) == 2);
    CHECK(__clz(0) == 32 && __clz(1) == 31 && __clz(-1) == 0);
    CHECK(__clzll(1) == 63 && __ffs(0) == 0 && __ffs(8) == 4);
    CHECK(__ffsll(1LL << 40) == 41 && __brev(0x80000001U) == 0x80000001U);
    CHECK(__brev(6) == 0x60000000U);
    CHECK(__byte_perm(0x33221100U, 0x77665544U, 0x7250U) == 0x77225500U);
    CHECK(__byte_perm(0x80U, 0, 0x8888U) == ~0U);
    CHECK(__umulhi(1U << 31, 6) == 3);
    CHECK(__funnelshift_l(0x80000000U, 1, 1) == 3);
    CHECK(__funnelshift_r(0, 1, 1) == 0x80000000U);
    CHECK(__float_as_uint(1.0F) == 0x3f800000U);
    CHECK(__int_as_float(0x40000000) == 2.0F);
    CHECK(__longlong_as_double(__double_as_longlong(2.5)) == 2.5);
    CHECK(__fmaf_rn(1 + FLT_EPSILON, 1 + FLT_EPSILON, -1 - 2 * FLT_EPSILON) ==
          FLT_EPSILON * FLT_EPSILON);
    CHECK(__frcp_rn(4) == 0.25F && rsqrtf(16) == 0.25F);
    CHECK(__saturatef(2) == 1 && __saturatef(-1) == 0);
    CHECK(__saturatef(NAN) == 0);
    CHECK(__float2int_rn(2.5F) == 2 && __float2int_rz(-2.5F) == -2);
    CHECK(__float2int_rd(-2.5F) == -3 && __float2int_ru(2.5F) == 3);
    CHECK(__float2int_rn(1e20F) == INT32_MAX && __float2int_rn(NAN) == 0);
    CHECK(min(3, 4) == 3 && max(3U, 4U) == 4 && min(1L, 2) == 1);
    CHECK(max(NAN, 1.0F) == 1.0F && __ldg(&orders[1]) == orders[1]);
    const float4 v = make_float4(1, 2, 3, 4);
    CHECK(v.w == 4 && alignof(float4) == 16 && sizeof(int3) == 12);
    CHECK(alignof(float2) == 8 && alignof(double4) == 16);
}

// --- Launches --------------------------------------------------------------

__global__ void stores(int64_t *to, int64_t a, float b)
{
    if (threadIdx.x == 0) *to = a + static_cast<int64_t>(b);
}

int refusal(dim3 grid, dim3 block, size_t bytes)
{
    int64_t x = 0;
    simt::refused = 0;
    WEFT_LAUNCH(stores, grid, block, bytes, nullptr, &x, int32_t{1}, 2);
    CHECK(x == (simt::refused ? 0 : 3));
    return simt::refused;
}

void test_launches()
{
    const int config = simt::BAD_CONFIGURATION, value = simt::BAD_VALUE;
    CHECK(refusal(1, 1, 0) == 0);
    // ThreadSanitizer takes seconds to make that many threads.
    CHECK(HAS_TSAN || refusal(1, 1024, 0) == 0);
    CHECK(refusal(1, 1025, 0) == config && refusal(0, 1, 0) == config);
    CHECK(refusal(1, 0, 0) == config);
    CHECK(refusal(dim3(1, 65536), 1, 0) == config);
    CHECK(refusal(1, dim3(1, 1, 65), 0) == config);
    CHECK(refusal(1, 1, 48 * 1024) == 0);
    CHECK(refusal(1, 1, 48 * 1024 + 1) == value);
    const void *kernel = reinterpret_cast<const void *>(stores);
    CHECK(simt::allow_shared(kernel, 227 * 1024 + 1) == value);
    CHECK(simt::allow_shared(kernel, 100 * 1024) == 0);
    CHECK(refusal(1, 1, 100 * 1024) == 0);
    CHECK(refusal(1, 1, 100 * 1024 + 1) == value);
    simt::set_shared_limit(99 * 1024);
    CHECK(refusal(1, 1, 100 * 1024) == value);
}

__global__ void sums(const int *x, int n, int *to)
{
    __shared__ int box[32];
    int sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < n; i += 64) sum += x[i];
    sum = block_fold(sum, box, [](int a, int b) { return a + b; });
    if (threadIdx.x == 0) *to = sum;
}

void test_several_callers()
{
    std::vector<std::thread> callers;
    for (int c = 0; c < 4; c++)
        callers.emplace_back([c] {
            std::vector<int> x(500, c + 1);
            for (int i = 0; i < 20; i++) {
                int sum = 0;
                WEFT_LAUNCH(sums, dim3(1), dim3(64), 0, nullptr, x.data(), 500,
                            &sum);
                CHECK(sum == 500 * (c + 1));
            }
        });
    for (std::thread &t : callers) t.join();
}

} // namespace

int main(int argc, char **argv)
{
    if (argc > 1) kit::only = argv[1];
    kit::good("softmax", test_softmax);
    kit::good("gemm", test_gemm);
    kit::good("places in block and grid", test_places);
    kit::good("orders", test_orders);
    kit::good("shared memory begins as NaN", test_shared_begins_as_nan);
    kit::good("alignment of dynamic memory", test_dynamic_alignment);
    kit::good("cp.async lands in groups", test_copies_land_in_groups);
    kit::good("ldmatrix", test_ldmatrix);
    kit::good("shuffles", test_shuffles);
    kit::good("votes", test_votes);
    kit::good("reductions", test_reductions);
    kit::good("atomics", test_atomics);
    kit::good("bfloat16", test_bf16);
    kit::good("scalars", test_scalars);
    kit::good("launches", test_launches);
    kit::good("several threads launch", test_several_callers);
    return kit::end();
}
