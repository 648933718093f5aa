// test_dense.cc - large products by cuBLASLt (kernels/cuda/dense.h) over the
// stand-in: near sums in double, the same bits in any company, in pieces that
// fit the scratch, and which products are left alone. Linked with
// kernels/cuda/dense.cu.
#include <check.h>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/cuda/dense.h"
#include "tests/simt/runtime.h"

namespace weft
{

void note(queue *q, const char *op)
{
    const cudaError_t error = cudaGetLastError();
    if (q->error != cudaSuccess || error == cudaSuccess) return;
    q->error = error;
    (void)snprintf(q->failed, sizeof q->failed, "%s", op);
}

} // namespace weft

namespace
{

constexpr int32_t OUT = 1028, IN = 1032, ROWS = 20, X = IN + 3, Y = OUT + 4;
constexpr int64_t SCRATCH = 1 << 20;

uint64_t seed = 3;
float next_bf16()
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    const uint32_t u = static_cast<uint32_t>((seed >> 33 & 0x83ff) | 0x3c00)
                       << 16;
    float value;
    memcpy(&value, &u, sizeof value);
    return value;
}

template <class T> T *device_new(size_t n)
{
    void *at = nullptr;
    ck_assert_int_eq(cudaMalloc(&at, n * sizeof(T)), cudaSuccess);
    return static_cast<T *>(at);
}

struct bench {
    weft::queue q = {};
    weft::dense_plans plans = {};
    std::vector<uint16_t> w;
    std::vector<float> x;
    uint16_t *at_w = device_new<uint16_t>(OUT * IN);
    float *at_x = device_new<float>(ROWS * X), *at_y;
    weft_matrix m = {};
    weft_gemm g = {};

    bench() : w(OUT * IN), x(ROWS * X, NAN), at_y(device_new<float>(ROWS * Y))
    {
        ck_assert_int_eq(cublasLtCreate(&q.blas), CUBLAS_STATUS_SUCCESS);
        ck_assert_int_eq(cudaStreamCreate(&q.stream), cudaSuccess);
        q.scratch = device_new<unsigned char>(SCRATCH);
        q.scratch_bytes = SCRATCH;
        q.sm = 80;
        q.n_processors = 4;
        for (auto &e : w) {
            const float value = next_bf16();
            uint32_t u;
            memcpy(&u, &value, sizeof u);
            e = static_cast<uint16_t>(u >> 16);
        }
        for (int32_t r = 0; r < ROWS; r++)
            for (int32_t i = 0; i < IN; i++) x[r * X + i] = next_bf16();
        (void)cudaMemcpy(at_w, w.data(), w.size() * 2, cudaMemcpyHostToDevice);
        (void)cudaMemcpy(at_x, x.data(), x.size() * 4, cudaMemcpyHostToDevice);
        m = {at_w, nullptr, WEFT_BF16, OUT, IN};
        g.w = &m;
        g.x = at_x;
        g.y = at_y;
        g.x_stride = X;
        g.y_stride = Y;
        g.n_row = ROWS;
        g.x_is_bf16 = true;
    }
    ~bench()
    {
        (void)cublasLtDestroy(q.blas);
        (void)cudaStreamDestroy(q.stream);
        (void)cudaFree(q.scratch);
        (void)cudaFree(at_w);
        (void)cudaFree(at_x);
        (void)cudaFree(at_y);
    }
    bench(const bench &) = delete;
    bench &operator=(const bench &) = delete;

    // y of the first rows; what is not written is NaN.
    std::vector<float> run(int32_t n_row)
    {
        std::vector<float> y(ROWS * Y);
        (void)cudaMemset(at_y, 0xff, y.size() * 4);
        g.n_row = n_row;
        ck_assert(weft::launch_dense(&q, &plans, g));
        ck_assert_int_eq(cudaStreamSynchronize(q.stream), cudaSuccess);
        ck_assert_int_eq(q.error, cudaSuccess);
        (void)cudaMemcpy(y.data(), at_y, y.size() * 4, cudaMemcpyDeviceToHost);
        return y;
    }
    // Whether it is taken at all; nothing is begun if not.
    bool takes()
    {
        const bool taken = weft::launch_dense(&q, &plans, g);
        ck_assert_int_eq(cudaStreamSynchronize(q.stream), cudaSuccess);
        ck_assert_int_eq(q.error, cudaSuccess);
        return taken;
    }
};

float of_bf16(uint16_t bits)
{
    const uint32_t u = static_cast<uint32_t>(bits) << 16;
    float value;
    memcpy(&value, &u, sizeof value);
    return value;
}

bool is_bf16(float value)
{
    uint32_t u;
    memcpy(&u, &value, sizeof u);
    return (u & 0xffffU) == 0;
}

} // namespace

START_TEST(near_exact)
{
    bench b;
    for (int32_t round = 0; round < 2; round++) {
        b.g.round = static_cast<weft_round>(round);
        const std::vector<float> y = b.run(ROWS);
        for (int32_t r = 0; r < ROWS; r += 7)
            for (int32_t o = 0; o < Y; o++) {
                const float got = y[static_cast<size_t>(r * Y + o)];
                if (o >= OUT) {
                    ck_assert(std::isnan(got));
                    continue;
                }
                double exact = 0.0, size = 0.0;
                for (int32_t i = 0; i < IN; i++) {
                    const double term =
                        static_cast<double>(
                            of_bf16(b.w[static_cast<size_t>(o * IN + i)])) *
                        static_cast<double>(
                            b.x[static_cast<size_t>(r * X + i)]);
                    exact += term;
                    size += std::fabs(term);
                }
                double bound = 2 * IN * 0x1p-24 * size;
                if (round != 0) bound += 0x1p-8 * (std::fabs(exact) + bound);
                ck_assert(std::fabs(static_cast<double>(got) - exact) <= bound);
                ck_assert(round == 0 || is_bf16(got));
            }
    }
}
END_TEST

START_TEST(a_row_has_the_same_bits_in_any_company)
{
    bench b;
    const std::vector<float> all = b.run(ROWS);
    for (int32_t n = 1; n < ROWS; n += 5) {
        const std::vector<float> y = b.run(n);
        for (int32_t r = 0; r < n; r++)
            ck_assert_mem_eq(y.data() + r * Y, all.data() + r * Y, OUT * 4);
        ck_assert(std::isnan(y[static_cast<size_t>(n * Y)]));
    }
    // In pieces of three rows.
    b.q.scratch_bytes = 3 * IN * 2 + 100;
    const std::vector<float> y = b.run(ROWS);
    for (int32_t r = 0; r < ROWS; r++)
        ck_assert_mem_eq(y.data() + r * Y, all.data() + r * Y, OUT * 4);
    ck_assert_int_eq(b.plans.n, 1);
}
END_TEST

START_TEST(others_are_left_alone)
{
    bench b;
    const weft_gemm good = b.g;
    const weft_matrix matrix = b.m;
    int32_t rows[ROWS] = {};
    ck_assert(b.takes());
    b.g.x_is_bf16 = false;
    ck_assert(!b.takes());
    b.g = good;
    b.g.x_rows = rows;
    ck_assert(!b.takes());
    b.g = good;
    b.g.y_stride = Y + 1;
    ck_assert(!b.takes());
    b.g = good;
    b.m.dtype = WEFT_F16;
    ck_assert(!b.takes());
    b.m = matrix;
    b.m.n_out = 1020;
    ck_assert(!b.takes());
    b.m = matrix;
    b.m.n_in = 1016;
    ck_assert(!b.takes());
    b.m.n_in = 1028; // not in 16-byte rows
    ck_assert(!b.takes());
    b.m = matrix;
    b.q.scratch_bytes = IN * 2 - 1;
    ck_assert(!b.takes());
    b.q.scratch_bytes = SCRATCH;
    ck_assert(b.takes());
    ck_assert_int_eq(b.plans.n, 1);
    // No room for plans: others keep theirs.
    b.plans.n = weft::DENSE_PLANS_MAX;
    ck_assert(b.takes());
    b.m.n_out = 1024;
    ck_assert(!b.takes());
    // A shape that was refused stays so.
    b.m = matrix;
    b.plans.plans[0].is_refused = true;
    ck_assert(!b.takes());
}
END_TEST

int main(void)
{
    Suite *const suite = suite_create("dense");
    TCase *const tests = tcase_create("all");
    tcase_add_test(tests, near_exact);
    tcase_add_test(tests, a_row_has_the_same_bits_in_any_company);
    tcase_add_test(tests, others_are_left_alone);
    tcase_set_timeout(tests, 60);
    suite_add_tcase(suite, tests);
    SRunner *const runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
