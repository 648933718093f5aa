// test_cublas.cc - the stand-in for cuBLASLt: products near those in double
// precision, for every layout that it takes, and the errors of the real one.
#include <check.h>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <vector>

#include "tests/simt/runtime.h"

namespace
{

float to_float(uint16_t bits)
{
    const uint32_t u = static_cast<uint32_t>(bits) << 16;
    float value;
    memcpy(&value, &u, sizeof value);
    return value;
}

uint64_t seed = 1;
uint16_t next_bf16()
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    // 2^-7 to 2, either sign: so wide that sums round.
    return static_cast<uint16_t>((seed >> 33 & 0x83ff) | 0x3c00);
}

// y = x W^T as callers of a row-major world ask for it: column-major, W is
// A^T with `in` its leading dimension, x is B.
struct dense {
    int64_t out, in, rows, x_stride, y_stride, batch;
    std::vector<uint16_t> w, x;
    std::vector<float> y;
    void *at_w = nullptr, *at_x = nullptr, *at_y = nullptr;
    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
    cublasLtMatmulPreference_t pref = nullptr;
    cudaStream_t stream = nullptr;
};

template <typename T> void *put(const std::vector<T> &from)
{
    void *at = nullptr;
    const size_t bytes = from.size() * sizeof(T);
    ck_assert_int_eq(cudaMalloc(&at, bytes), cudaSuccess);
    ck_assert_int_eq(cudaMemcpy(at, from.data(), bytes, cudaMemcpyHostToDevice),
                     cudaSuccess);
    return at;
}

void set_batch(cublasLtMatrixLayout_t l, int32_t n, int64_t stride)
{
    ck_assert_int_eq(cublasLtMatrixLayoutSetAttribute(
                         l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n),
                     CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(cublasLtMatrixLayoutSetAttribute(
                         l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                         &stride, sizeof stride),
                     CUBLAS_STATUS_SUCCESS);
}

void make(dense *p, int64_t out, int64_t in, int64_t rows, int64_t batch = 1)
{
    p->out = out;
    p->in = in;
    p->rows = rows;
    p->batch = batch;
    p->x_stride = in + 8;
    p->y_stride = out + 4;
    p->w.resize(static_cast<size_t>(batch * out * in));
    p->x.resize(static_cast<size_t>(batch * rows * p->x_stride));
    p->y.resize(static_cast<size_t>(batch * rows * p->y_stride), NAN);
    for (auto &v : p->w) v = next_bf16();
    for (auto &v : p->x) v = next_bf16();
    p->at_w = put(p->w);
    p->at_x = put(p->x);
    p->at_y = put(p->y);
    const cublasOperation_t t = CUBLAS_OP_T;
    const auto u = [](int64_t n) { return static_cast<uint64_t>(n); };
    ck_assert_int_eq(cudaStreamCreateWithFlags(&p->stream, 1), cudaSuccess);
    ck_assert_int_eq(cublasLtCreate(&p->handle), CUBLAS_STATUS_SUCCESS);
    (void)cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    ck_assert_int_eq(cublasLtMatmulDescSetAttribute(
                         p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t),
                     CUBLAS_STATUS_SUCCESS);
    (void)cublasLtMatrixLayoutCreate(&p->a, CUDA_R_16BF, u(in), u(out), in);
    (void)cublasLtMatrixLayoutCreate(&p->b, CUDA_R_16BF, u(in), u(rows),
                                     p->x_stride);
    (void)cublasLtMatrixLayoutCreate(&p->d, CUDA_R_32F, u(out), u(rows),
                                     p->y_stride);
    set_batch(p->a, static_cast<int32_t>(batch), out * in);
    set_batch(p->b, static_cast<int32_t>(batch), rows * p->x_stride);
    set_batch(p->d, static_cast<int32_t>(batch), rows * p->y_stride);
    (void)cublasLtMatmulPreferenceCreate(&p->pref);
}

void end(dense *p)
{
    (void)cublasLtMatmulPreferenceDestroy(p->pref);
    (void)cublasLtMatrixLayoutDestroy(p->a);
    (void)cublasLtMatrixLayoutDestroy(p->b);
    (void)cublasLtMatrixLayoutDestroy(p->d);
    (void)cublasLtMatmulDescDestroy(p->desc);
    (void)cublasLtDestroy(p->handle);
    (void)cudaStreamDestroy(p->stream);
    (void)cudaFree(p->at_w);
    (void)cudaFree(p->at_x);
    (void)cudaFree(p->at_y);
    ck_assert_int_eq(weft_simt_live(), 0);
}

cublasStatus_t multiply(dense *p, const cublasLtMatmulAlgo_t *algo,
                        void *workspace = nullptr, size_t bytes = 0)
{
    const float one = 1, zero = 0;
    return cublasLtMatmul(p->handle, p->desc, &one, p->at_w, p->a, p->at_x,
                          p->b, &zero, p->at_y, p->d, p->at_y, p->d, algo,
                          workspace, bytes, p->stream);
}

void get(dense *p)
{
    ck_assert_int_eq(cudaMemcpyAsync(p->y.data(), p->at_y,
                                     p->y.size() * sizeof(float),
                                     cudaMemcpyDeviceToHost, p->stream),
                     cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(p->stream), cudaSuccess);
}

double exact(const dense &p, int64_t i, int64_t r, int64_t o, double *size)
{
    double sum = 0;
    *size = 0;
    for (int64_t k = 0; k < p.in; k++) {
        const size_t at_w = static_cast<size_t>((i * p.out + o) * p.in + k);
        const size_t at_x =
            static_cast<size_t>((i * p.rows + r) * p.x_stride + k);
        const double term = static_cast<double>(to_float(p.w[at_w])) *
                            static_cast<double>(to_float(p.x[at_x]));
        sum += term;
        *size += std::fabs(term);
    }
    return sum;
}

void expect_near(const dense &p)
{
    for (int64_t i = 0; i < p.batch; i++)
        for (int64_t r = 0; r < p.rows; r++)
            for (int64_t o = 0; o < p.y_stride; o++) {
                const double got = static_cast<double>(p.y[static_cast<size_t>(
                    (i * p.rows + r) * p.y_stride + o)]);
                if (o >= p.out) {
                    ck_assert(std::isnan(got));
                    continue;
                }
                double size;
                const double sum = exact(p, i, r, o, &size);
                const double bound = static_cast<double>(p.in) * size * 0x1p-24;
                ck_assert(std::fabs(got - sum) <= bound);
            }
}

int heuristics(dense *p, cublasLtMatmulHeuristicResult_t results[4])
{
    int n = 0;
    ck_assert_int_eq(cublasLtMatmulAlgoGetHeuristic(p->handle, p->desc, p->a,
                                                    p->b, p->d, p->d, p->pref,
                                                    4, results, &n),
                     CUBLAS_STATUS_SUCCESS);
    return n;
}

} // namespace

START_TEST(products_are_near_exact)
{
    const int64_t shapes[][4] = {
        {24, 40, 3, 1}, {1, 1, 1, 1}, {17, 33, 5, 1}, {16, 8, 2, 3}};
    for (const auto &s : shapes) {
        dense p;
        make(&p, s[0], s[1], s[2], s[3]);
        ck_assert_int_eq(multiply(&p, nullptr), CUBLAS_STATUS_SUCCESS);
        get(&p);
        expect_near(p);
        end(&p);
    }
}
END_TEST

START_TEST(row_major_layouts_and_beta)
{
    dense p;
    make(&p, 24, 40, 3);
    ck_assert_int_eq(multiply(&p, nullptr), CUBLAS_STATUS_SUCCESS);
    get(&p);
    const std::vector<float> before = p.y;
    // D [rows, out] by rows = x [rows, in] W^T, and D added to itself.
    const int32_t row = CUBLASLT_ORDER_ROW;
    const cublasOperation_t t = CUBLAS_OP_T, n = CUBLAS_OP_N;
    (void)cublasLtMatmulDescSetAttribute(p.desc, CUBLASLT_MATMUL_DESC_TRANSA,
                                         &n, sizeof n);
    (void)cublasLtMatmulDescSetAttribute(p.desc, CUBLASLT_MATMUL_DESC_TRANSB,
                                         &t, sizeof t);
    cublasLtMatrixLayout_t x, w, y;
    (void)cublasLtMatrixLayoutCreate(&x, CUDA_R_16BF, 3, 40, p.x_stride);
    (void)cublasLtMatrixLayoutCreate(&w, CUDA_R_16BF, 24, 40, 40);
    (void)cublasLtMatrixLayoutCreate(&y, CUDA_R_32F, 3, 24, p.y_stride);
    for (const cublasLtMatrixLayout_t l : {x, w, y})
        (void)cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_ORDER,
                                               &row, sizeof row);
    const float two = 2, half = 0.5F;
    ck_assert_int_eq(cublasLtMatmul(p.handle, p.desc, &half, p.at_x, x, p.at_w,
                                    w, &two, p.at_y, y, p.at_y, y, nullptr,
                                    nullptr, 0, p.stream),
                     CUBLAS_STATUS_SUCCESS);
    get(&p);
    for (size_t i = 0; i < before.size(); i++)
        ck_assert(std::isnan(before[i])
                      ? std::isnan(p.y[i])
                      : p.y[i] == 2.5F * before[i] ||
                            std::fabs(p.y[i] / before[i] - 2.5F) < 1e-6F);
    for (const cublasLtMatrixLayout_t l : {x, w, y})
        (void)cublasLtMatrixLayoutDestroy(l);
    end(&p);
}
END_TEST

START_TEST(algorithms_differ_in_their_order_of_sums)
{
    dense p;
    make(&p, 64, 256, 8);
    cublasLtMatmulHeuristicResult_t results[4];
    const uint64_t workspace_bytes = 1 << 20;
    void *workspace = nullptr;
    ck_assert_int_eq(cudaMalloc(&workspace, workspace_bytes), cudaSuccess);
    (void)cublasLtMatmulPreferenceSetAttribute(
        p.pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
        sizeof workspace_bytes);
    ck_assert_int_eq(heuristics(&p, results), 3);
    std::vector<float> got[3];
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(
            multiply(&p, &results[i].algo, workspace, results[i].workspaceSize),
            CUBLAS_STATUS_SUCCESS);
        get(&p);
        expect_near(p);
        got[i] = p.y;
    }
    const size_t bytes = p.y.size() * sizeof(float);
    ck_assert(memcmp(got[0].data(), got[1].data(), bytes) != 0);
    ck_assert(memcmp(got[1].data(), got[2].data(), bytes) == 0);
    // Too small a workspace, or none of the device's.
    ck_assert_int_eq(
        multiply(&p, &results[0].algo, workspace, results[0].workspaceSize - 1),
        CUBLAS_STATUS_INVALID_VALUE);
    ck_assert_int_eq(multiply(&p, &results[0].algo, p.y.data(), 1 << 20),
                     CUBLAS_STATUS_EXECUTION_FAILED);
    // Where sums may not be split, they are not.
    const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    (void)cublasLtMatmulPreferenceSetAttribute(
        p.pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof none);
    ck_assert_int_eq(heuristics(&p, results), 2);
    ck_assert_uint_eq(results[0].workspaceSize, 0);
    uint32_t splits = 0;
    size_t written = 0;
    ck_assert_int_eq(cublasLtMatmulAlgoConfigGetAttribute(
                         &results[0].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                         &splits, sizeof splits, &written),
                     CUBLAS_STATUS_SUCCESS);
    ck_assert_uint_eq(splits, 1);
    (void)cudaFree(workspace);
    end(&p);
}
END_TEST

START_TEST(an_algorithm_wants_its_alignment)
{
    dense p;
    make(&p, 24, 36, 3); // rows of 72 bytes
    cublasLtMatmulHeuristicResult_t results[4];
    ck_assert_int_eq(heuristics(&p, results), 1);
    cublasLtMatmulAlgo_t aligned;
    ck_assert_int_eq(cublasLtMatmulAlgoInit(
                         p.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16BF,
                         CUDA_R_16BF, CUDA_R_32F, CUDA_R_32F, 6, &aligned),
                     CUBLAS_STATUS_SUCCESS);
    ck_assert_int_eq(multiply(&p, &aligned), CUBLAS_STATUS_NOT_SUPPORTED);
    ck_assert_int_eq(cublasLtMatmulAlgoCheck(p.handle, p.desc, p.a, p.b, p.d,
                                             p.d, &aligned, results),
                     CUBLAS_STATUS_NOT_SUPPORTED);
    end(&p);
}
END_TEST

START_TEST(what_does_not_fit_is_refused)
{
    dense p;
    make(&p, 24, 40, 3);
    const float one = 1;
    void *const y = p.at_y;
    p.at_y = nullptr;
    ck_assert_int_eq(multiply(&p, nullptr), CUBLAS_STATUS_INVALID_VALUE);
    p.at_y = p.y.data(); // the host's
    ck_assert_int_eq(multiply(&p, nullptr), CUBLAS_STATUS_EXECUTION_FAILED);
    p.at_y = y;
    ck_assert_int_eq(cublasLtMatmul(p.handle, p.desc, &one, p.at_w, p.b, p.at_x,
                                    p.a, &one, y, p.d, y, p.d, nullptr, nullptr,
                                    0, p.stream),
                     CUBLAS_STATUS_INVALID_VALUE);
    ck_assert_int_eq(cublasLtMatmul(nullptr, p.desc, &one, p.at_w, p.a, p.at_x,
                                    p.b, &one, y, p.d, y, p.d, nullptr, nullptr,
                                    0, p.stream),
                     CUBLAS_STATUS_NOT_INITIALIZED);
    const int64_t ld = 39;
    ck_assert_int_eq(cublasLtMatrixLayoutSetAttribute(
                         p.a, CUBLASLT_MATRIX_LAYOUT_LD, &ld, 4),
                     CUBLAS_STATUS_INVALID_VALUE);
    (void)cublasLtMatrixLayoutSetAttribute(p.a, CUBLASLT_MATRIX_LAYOUT_LD, &ld,
                                           sizeof ld);
    ck_assert_int_eq(multiply(&p, nullptr), CUBLAS_STATUS_INVALID_VALUE);
    const int64_t long_ld = 41; // beyond the block
    (void)cublasLtMatrixLayoutSetAttribute(p.a, CUBLASLT_MATRIX_LAYOUT_LD,
                                           &long_ld, sizeof long_ld);
    ck_assert_int_eq(multiply(&p, nullptr), CUBLAS_STATUS_EXECUTION_FAILED);
    setenv("WEFT_SIMT_FAULT", "no_driver", 1);
    cublasLtHandle_t other = nullptr;
    ck_assert_int_eq(cublasLtCreate(&other), CUBLAS_STATUS_NOT_INITIALIZED);
    unsetenv("WEFT_SIMT_FAULT");
    end(&p);
}
END_TEST

int main()
{
    Suite *const suite = suite_create("simt_cublas");
    TCase *const group = tcase_create("all");
    const TTest *const tests[] = {
        products_are_near_exact,
        row_major_layouts_and_beta,
        algorithms_differ_in_their_order_of_sums,
        an_algorithm_wants_its_alignment,
        what_does_not_fit_is_refused,
    };
    for (const TTest *test : tests) tcase_add_test(group, test);
    suite_add_tcase(suite, group);
    SRunner *const runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
