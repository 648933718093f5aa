// dense.cu - see dense.h. Row-major y = x W^T is column-major y^T = W x^T: W is
// op(A) with A its transpose, x is B, a row of y is a column of D.
#include "kernels/cuda/dense.h"

#include <cstdio>

#include "kernels/cuda/quad.cuh"

namespace weft
{

namespace
{

constexpr int32_t THREADS = 128;

struct alignas(8) quad_bf16 {
    bf16 v[4];
};

// Rows of x as bfloat16, packed; x holds such values.
__global__ void __launch_bounds__(THREADS)
    dense_pack(const float *x, int64_t stride, int32_t width, bf16 *to)
{
    const int32_t i =
        4 * static_cast<int32_t>(blockIdx.x * THREADS + threadIdx.x);
    if (i >= width) return;
    const int64_t row = blockIdx.y;
    const quad q = load_quad(x + row * stride + i, width - i, false);
    quad_bf16 packed;
#pragma unroll
    for (int32_t k = 0; k < 4; k++) packed.v[k] = to_bf16(q.v[k]);
    *reinterpret_cast<quad_bf16 *>(to + row * width + i) = packed;
}

__global__ void __launch_bounds__(THREADS)
    dense_round(float *y, int64_t stride, int32_t width)
{
    const int32_t i = static_cast<int32_t>(blockIdx.x * THREADS + threadIdx.x);
    if (i >= width) return;
    float *const at = y + blockIdx.y * stride + i;
    *at = round_bf16(*at);
}

// By what does not change with the rows.
bool is_candidate(const weft_gemm &g)
{
    const uintptr_t w = reinterpret_cast<uintptr_t>(g.w->data);
    return g.x_is_bf16 && g.w->dtype == WEFT_BF16 && g.x_rows == nullptr &&
           g.w->n_out >= DENSE_SIDE_MIN && g.w->n_in >= DENSE_SIDE_MIN &&
           g.w->n_in % 8 == 0 && w % 16 == 0 && g.y_stride % 4 == 0 &&
           reinterpret_cast<uintptr_t>(g.y) % 16 == 0;
}

// The objects that describe a product to cuBLASLt.
struct dense_call {
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
    bool is_good = true;

    void keep(cublasStatus_t status)
    {
        is_good = is_good && status == CUBLAS_STATUS_SUCCESS;
    }
    dense_call(int32_t n_out, int32_t n_in, int64_t n_row, int64_t y_stride)
    {
        const cublasOperation_t t = CUBLAS_OP_T;
        const int32_t invariance = CUBLASLT_BATCH_INVARIANCE_ALIGN_16B;
        const auto out = static_cast<uint64_t>(n_out);
        const auto in = static_cast<uint64_t>(n_in);
        const auto rows = static_cast<uint64_t>(n_row);
        keep(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        keep(cublasLtMatrixLayoutCreate(&w, CUDA_R_16BF, in, out, n_in));
        keep(cublasLtMatrixLayoutCreate(&x, CUDA_R_16BF, in, rows, n_in));
        keep(cublasLtMatrixLayoutCreate(&y, CUDA_R_32F, out, rows, y_stride));
        if (!is_good) return;
        keep(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA,
                                            &t, sizeof t));
        // Libraries that do not know it are left to the pinned algorithm.
        (void)cublasLtMatmulDescSetAttribute(
            desc, CUBLASLT_MATMUL_DESC_BATCH_INVARIANCE_FLAGS, &invariance,
            sizeof invariance);
    }
    ~dense_call()
    {
        if (desc != nullptr) (void)cublasLtMatmulDescDestroy(desc);
        if (w != nullptr) (void)cublasLtMatrixLayoutDestroy(w);
        if (x != nullptr) (void)cublasLtMatrixLayoutDestroy(x);
        if (y != nullptr) (void)cublasLtMatrixLayoutDestroy(y);
    }
    dense_call(const dense_call &) = delete;
    dense_call &operator=(const dense_call &) = delete;

    bool takes(cublasLtHandle_t blas, const cublasLtMatmulAlgo_t &algo) const
    {
        cublasLtMatmulHeuristicResult_t result = {};
        return is_good &&
               cublasLtMatmulAlgoCheck(blas, desc, w, x, y, y, &algo,
                                       &result) == CUBLAS_STATUS_SUCCESS &&
               result.state == CUBLAS_STATUS_SUCCESS &&
               result.workspaceSize == 0;
    }
};

// Sums in one piece.
bool is_whole(const cublasLtMatmulAlgo_t &algo)
{
    int32_t splits = 0;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_MASK;
    size_t n = 0;
    return cublasLtMatmulAlgoConfigGetAttribute(
               &algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof splits,
               &n) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoConfigGetAttribute(
               &algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
               sizeof scheme, &n) == CUBLAS_STATUS_SUCCESS &&
           splits <= 1 && scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

// Whether the algorithm is there for steps of any size.
bool takes_any_rows(cublasLtHandle_t blas, const dense_plan &plan)
{
    static const int64_t rows[] = {1, 2, 7, 16, 33, 100, 512, 4096};
    for (const int64_t n_row : rows) {
        const dense_call call(plan.n_out, plan.n_in, n_row,
                              (plan.n_out + 3) / 4 * 4);
        if (!call.takes(blas, plan.algo)) return false;
    }
    return true;
}

cublasLtMatmulPreference_t preference()
{
    cublasLtMatmulPreference_t pref = nullptr;
    if (cublasLtMatmulPreferenceCreate(&pref) != CUBLAS_STATUS_SUCCESS)
        return nullptr;
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE, align = 16;
    const uint64_t workspace = 0;
    (void)cublasLtMatmulPreferenceSetAttribute(
        pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme,
        sizeof scheme);
    (void)cublasLtMatmulPreferenceSetAttribute(
        pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
        sizeof workspace);
    const cublasLtMatmulPreferenceAttributes_t sides[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (const auto side : sides)
        (void)cublasLtMatmulPreferenceSetAttribute(pref, side, &align,
                                                   sizeof align);
    return pref;
}

void choose(cublasLtHandle_t blas, dense_plan *plan)
{
    constexpr int32_t WANTED = 8;
    cublasLtMatmulHeuristicResult_t found[WANTED] = {};
    int n = 0;
    plan->is_refused = true;
    cublasLtMatmulPreference_t pref = preference();
    if (pref == nullptr) return;
    const dense_call call(plan->n_out, plan->n_in, DENSE_ROWS,
                          (plan->n_out + 3) / 4 * 4);
    if (!call.is_good || cublasLtMatmulAlgoGetHeuristic(
                             blas, call.desc, call.w, call.x, call.y, call.y,
                             pref, WANTED, found, &n) != CUBLAS_STATUS_SUCCESS)
        n = 0;
    (void)cublasLtMatmulPreferenceDestroy(pref);
    for (int32_t i = 0; i < n && plan->is_refused; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS || !is_whole(found[i].algo))
            continue;
        plan->algo = found[i].algo;
        plan->is_refused = !takes_any_rows(blas, *plan);
    }
}

// NULL: there is no room for another.
const dense_plan *plan_of(queue *q, dense_plans *plans, int32_t n_out,
                          int32_t n_in)
{
    for (int32_t i = 0; i < plans->n; i++) {
        const dense_plan *const p = &plans->plans[i];
        if (p->n_out == n_out && p->n_in == n_in && p->sm == q->sm &&
            p->n_processors == q->n_processors)
            return p;
    }
    if (plans->n == DENSE_PLANS_MAX) return nullptr;
    dense_plan *const p = &plans->plans[plans->n++];
    *p = {};
    p->sm = q->sm;
    p->n_processors = q->n_processors;
    p->n_out = n_out;
    p->n_in = n_in;
    choose(q->blas, p);
    return p;
}

void fail(queue *q, cublasStatus_t status)
{
    if (q->error != cudaSuccess) return;
    q->error = cudaErrorUnknown;
    (void)snprintf(q->failed, sizeof q->failed, "gemm, cuBLASLt %d",
                   static_cast<int>(status));
}

dim3 grid_of(int64_t width, int64_t a_block, int64_t rows)
{
    return dim3(static_cast<unsigned>((width + a_block - 1) / a_block),
                static_cast<unsigned>(rows));
}

// n rows, which fit the scratch.
void launch_rows(queue *q, const dense_plan &plan, const weft_gemm &g,
                 const float *x, float *y, int64_t n)
{
    bf16 *const packed = reinterpret_cast<bf16 *>(q->scratch);
    const float one = 1.0F, zero = 0.0F;
    WEFT_LAUNCH(dense_pack, grid_of(plan.n_in, 4 * THREADS, n), dim3(THREADS),
                0, q->stream, x, g.x_stride, plan.n_in, packed);
    note(q, "gemm");
    const dense_call call(plan.n_out, plan.n_in, n, g.y_stride);
    const cublasStatus_t status =
        call.is_good
            ? cublasLtMatmul(q->blas, call.desc, &one, g.w->data, call.w,
                             packed, call.x, &zero, y, call.y, y, call.y,
                             &plan.algo, nullptr, 0, q->stream)
            : CUBLAS_STATUS_ALLOC_FAILED;
    if (status != CUBLAS_STATUS_SUCCESS) fail(q, status);
    if (g.round != WEFT_ROUND_BF16) return;
    WEFT_LAUNCH(dense_round, grid_of(plan.n_out, THREADS, n), dim3(THREADS), 0,
                q->stream, y, g.y_stride, plan.n_out);
    note(q, "gemm");
}

} // namespace

bool launch_dense(queue *q, dense_plans *plans, const weft_gemm &g)
{
    if (!is_candidate(g)) return false;
    const int64_t row_bytes = static_cast<int64_t>(g.w->n_in) * 2;
    if (q->scratch_bytes < row_bytes) return false;
    const dense_plan *const plan = plan_of(q, plans, g.w->n_out, g.w->n_in);
    if (plan == nullptr || plan->is_refused) return false;
    constexpr int64_t GRID_ROWS_MAX = 32768;
    int64_t at_once = q->scratch_bytes / row_bytes;
    if (at_once > GRID_ROWS_MAX) at_once = GRID_ROWS_MAX;
    for (int64_t r = 0; r < g.n_row; r += at_once) {
        const int64_t left = g.n_row - r;
        launch_rows(q, *plan, g, g.x + r * g.x_stride, g.y + r * g.y_stride,
                    left < at_once ? left : at_once);
    }
    return true;
}

} // namespace weft
