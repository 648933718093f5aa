// cublas.cc - dense products for the stand-in of cuBLASLt: D = alpha op(A)
// op(B) + beta C in fp32, k rising. Algorithms differ in the order of sums, as
// real ones do, so that a caller who lets the heuristic choose for every shape
// is seen by tests of invariance:
//   6    one chain; A, B, C, D and their leading dimensions 16-byte aligned
//   0    one chain; no alignment
//   21   four chains over quarters of k, in a workspace; aligned
#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/simt/runtime.h"

struct cublasLtContext {
    uint32_t live;
};

struct cublasLtMatmulDescOpaque_t {
    int32_t compute, scale, pointer_mode, trans_a, trans_b, invariance;
};

struct cublasLtMatrixLayoutOpaque_t {
    uint64_t rows, cols;
    int64_t ld, batch_stride;
    int32_t type, order, batch;
};

struct cublasLtMatmulPreferenceOpaque_t {
    uint64_t workspace_bytes;
    uint32_t schemes, align[4];
};

namespace
{

constexpr uint32_t LIVE = 0x6c617662;
enum { ID, SPLITS, SCHEME, TILE, STAGES }; // of an algo's data
enum { ALIGNED = 6, UNALIGNED = 0, SPLIT = 21 };
constexpr int32_t N_SPLIT = 4;

using layout = cublasLtMatrixLayoutOpaque_t;

// What a product is, after everything was checked.
struct product {
    layout a, b, c, d;
    bool trans_a, trans_b;
    int64_t m, n, k;
};

size_t bytes_of(int32_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

float load_half(uint16_t bits)
{
    const int32_t e = bits >> 10 & 31, m = bits & 1023;
    const float size = e == 0 ? std::ldexp(static_cast<float>(m), -24)
                       : e == 31
                           ? (m == 0 ? INFINITY : NAN)
                           : std::ldexp(static_cast<float>(m + 1024), e - 25);
    return (bits & 0x8000) != 0 ? -size : size;
}

float load(const unsigned char *from, int32_t type, int64_t at)
{
    if (type == CUDA_R_32F) {
        float value;
        memcpy(&value, from + 4 * at, 4);
        return value;
    }
    uint16_t half;
    memcpy(&half, from + 2 * at, 2);
    if (type == CUDA_R_16F) return load_half(half);
    const uint32_t wide = static_cast<uint32_t>(half) << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

void store(unsigned char *to, int32_t type, int64_t at, float value)
{
    if (type == CUDA_R_32F) {
        memcpy(to + 4 * at, &value, 4);
        return;
    }
    uint32_t u;
    memcpy(&u, &value, 4);
    const uint32_t rounded = value != value
                                 ? (u >> 16) | 64U
                                 : (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
    const uint16_t half = static_cast<uint16_t>(rounded);
    memcpy(to + 2 * at, &half, 2);
}

int64_t index_of(const layout &l, int64_t row, int64_t col)
{
    return l.order == CUBLASLT_ORDER_ROW ? row * l.ld + col : col * l.ld + row;
}

float chain(const product &p, const unsigned char *a, const unsigned char *b,
            int64_t i, int64_t j, int64_t from, int64_t to)
{
    float sum = 0;
    for (int64_t k = from; k < to; k++) {
        const int64_t at_a =
            p.trans_a ? index_of(p.a, k, i) : index_of(p.a, i, k);
        const int64_t at_b =
            p.trans_b ? index_of(p.b, j, k) : index_of(p.b, k, j);
        sum = fmaf(load(a, p.a.type, at_a), load(b, p.b.type, at_b), sum);
    }
    return sum;
}

void run(const product &p, float alpha, float beta, const unsigned char *a,
         const unsigned char *b, const unsigned char *c, unsigned char *d,
         int32_t splits)
{
    for (int64_t j = 0; j < p.n; j++) {
        for (int64_t i = 0; i < p.m; i++) {
            float sum = 0;
            for (int64_t s = 0; s < splits; s++)
                sum += chain(p, a, b, i, j, p.k * s / splits,
                             p.k * (s + 1) / splits);
            float value = alpha * sum;
            if (beta != 0.0F)
                value =
                    fmaf(beta, load(c, p.c.type, index_of(p.c, i, j)), value);
            store(d, p.d.type, index_of(p.d, i, j), value);
        }
    }
}

bool fits(const layout &l)
{
    const uint64_t inner = l.order == CUBLASLT_ORDER_ROW ? l.cols : l.rows;
    return l.rows > 0 && l.cols > 0 && l.ld >= static_cast<int64_t>(inner) &&
           l.batch >= 1;
}

cublasStatus_t check(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                     const layout *a, const layout *b, const layout *c,
                     const layout *d, product *out)
{
    if (handle == nullptr || handle->live != LIVE)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (desc == nullptr || a == nullptr || b == nullptr || c == nullptr ||
        d == nullptr)
        return CUBLAS_STATUS_INVALID_VALUE;
    product p = {*a,
                 *b,
                 *c,
                 *d,
                 desc->trans_a == CUBLAS_OP_T,
                 desc->trans_b == CUBLAS_OP_T,
                 static_cast<int64_t>(d->rows),
                 static_cast<int64_t>(d->cols),
                 0};
    const uint64_t a_rows = p.trans_a ? a->cols : a->rows;
    const uint64_t a_cols = p.trans_a ? a->rows : a->cols;
    const uint64_t b_rows = p.trans_b ? b->cols : b->rows;
    const uint64_t b_cols = p.trans_b ? b->rows : b->cols;
    if (!fits(*a) || !fits(*b) || !fits(*c) || !fits(*d) || a_cols != b_rows ||
        a_rows != d->rows || b_cols != d->cols || c->rows != d->rows ||
        c->cols != d->cols || a->batch != d->batch || b->batch != d->batch ||
        c->batch != d->batch)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (a->type != b->type || c->type != d->type ||
        (d->type != CUDA_R_32F && d->type != a->type) ||
        desc->scale != CUDA_R_32F ||
        desc->pointer_mode != CUBLASLT_POINTER_MODE_HOST ||
        (d->type == CUDA_R_16F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    p.k = static_cast<int64_t>(a_cols);
    *out = p;
    return CUBLAS_STATUS_SUCCESS;
}

bool is_aligned(const layout &l)
{
    const size_t bytes = bytes_of(l.type);
    return static_cast<size_t>(l.ld) * bytes % 16 == 0 &&
           (l.batch == 1 ||
            static_cast<size_t>(l.batch_stride) * bytes % 16 == 0);
}

bool is_aligned(const product &p)
{
    return is_aligned(p.a) && is_aligned(p.b) && is_aligned(p.c) &&
           is_aligned(p.d);
}

bool is_aligned(const void *at)
{
    return reinterpret_cast<uintptr_t>(at) % 16 == 0;
}

size_t workspace_of(const product &p, int32_t splits)
{
    return splits == 1 ? 0
                       : static_cast<size_t>(p.m * p.n) * 4 *
                             static_cast<size_t>(splits * p.d.batch);
}

template <typename T> cublasStatus_t take(T *to, const void *from, size_t bytes)
{
    if (from == nullptr || bytes != sizeof *to)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

void set_algo(cublasLtMatmulAlgo_t *algo, int32_t id)
{
    *algo = cublasLtMatmulAlgo_t();
    algo->data[ID] = static_cast<uint64_t>(id);
    algo->data[SPLITS] = id == SPLIT ? N_SPLIT : 1;
    algo->data[SCHEME] = id == SPLIT ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                     : CUBLASLT_REDUCTION_SCHEME_NONE;
}

template <typename T> cublasStatus_t create(T **out, const T &from)
{
    if (out == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    *out = new T(from);
    simt::count(simt::BLAS, 1);
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T> cublasStatus_t destroy(T *what)
{
    if (what != nullptr) simt::count(simt::BLAS, -1);
    delete what;
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "CUBLAS_STATUS_UNKNOWN";
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return cublasLtGetStatusName(status);
}

size_t cublasLtGetVersion(void)
{
    return 130500;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || simt::fault("blas"))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    return create(handle, cublasLtContext{LIVE});
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    if (handle == nullptr || handle->live != LIVE)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->live = 0;
    return destroy(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc,
                                        cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    return create(desc,
                  cublasLtMatmulDescOpaque_t{
                      compute, scale, CUBLASLT_POINTER_MODE_HOST, CUBLAS_OP_N,
                      CUBLAS_OP_N, CUBLASLT_BATCH_INVARIANCE_UNSET});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return destroy(desc);
}

cublasStatus_t
cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                               cublasLtMatmulDescAttributes_t attr,
                               const void *from, size_t bytes)
{
    switch (attr) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
        return take(&desc->compute, from, bytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
        return take(&desc->scale, from, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        return take(&desc->pointer_mode, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA: return take(&desc->trans_a, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return take(&desc->trans_b, from, bytes);
    case CUBLASLT_MATMUL_DESC_BATCH_INVARIANCE_FLAGS:
        return take(&desc->invariance, from, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out,
                                          cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld)
{
    return create(out, layout{rows, cols, ld, 0, type, CUBLASLT_ORDER_COL, 1});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    return destroy(l);
}

cublasStatus_t
cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                 cublasLtMatrixLayoutAttribute_t attr,
                                 const void *from, size_t bytes)
{
    switch (attr) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE: return take(&l->type, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER: return take(&l->order, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS: return take(&l->rows, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS: return take(&l->cols, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD: return take(&l->ld, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return take(&l->batch, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return take(&l->batch_stride, from, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref)
{
    return create(pref,
                  cublasLtMatmulPreferenceOpaque_t{
                      0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref)
{
    return destroy(pref);
}

cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                     cublasLtMatmulPreferenceAttributes_t attr,
                                     const void *from, size_t bytes)
{
    switch (attr) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return take(&pref->workspace_bytes, from, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return take(&pref->schemes, from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return take(
            &pref->align[attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
            from, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
    cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t pref, int wanted,
    cublasLtMatmulHeuristicResult_t results[], int *found)
{
    *found = 0;
    if (wanted <= 0 || pref == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    product p;
    const cublasStatus_t status = check(handle, desc, a, b, c, d, &p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const bool wide = is_aligned(p) &&
                      std::all_of(pref->align, pref->align + 4,
                                  [](uint32_t bytes) { return bytes >= 16; });
    const bool unset = desc->invariance == CUBLASLT_BATCH_INVARIANCE_UNSET ||
                       desc->invariance == CUBLASLT_BATCH_INVARIANCE_DISABLED;
    const bool split =
        wide && unset && p.n <= 16 &&
        (pref->schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0 &&
        workspace_of(p, N_SPLIT) <= pref->workspace_bytes;
    int32_t ids[3];
    int32_t n = 0;
    if (split) ids[n++] = SPLIT;
    if (wide) ids[n++] = ALIGNED;
    ids[n++] = UNALIGNED;
    for (int32_t i = 0; i < n && i < wanted; i++) {
        results[i] = cublasLtMatmulHeuristicResult_t();
        set_algo(&results[i].algo, ids[i]);
        results[i].workspaceSize =
            workspace_of(p, ids[i] == SPLIT ? N_SPLIT : 1);
        results[i].state = CUBLAS_STATUS_SUCCESS;
        results[i].wavesCount = 1.0F;
        *found = i + 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle,
                                      cublasComputeType_t compute,
                                      cudaDataType_t scale, cudaDataType_t a,
                                      cudaDataType_t b, cudaDataType_t c,
                                      cudaDataType_t d, int id,
                                      cublasLtMatmulAlgo_t *algo)
{
    if (handle == nullptr || handle->live != LIVE)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (algo == nullptr || (id != ALIGNED && id != UNALIGNED && id != SPLIT))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (compute < CUBLAS_COMPUTE_32F || scale != CUDA_R_32F || a != b || c != d)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    set_algo(algo, id);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                        cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                        cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                        const cublasLtMatmulAlgo_t *algo,
                        cublasLtMatmulHeuristicResult_t *result)
{
    product p;
    const cublasStatus_t status = check(handle, desc, a, b, c, d, &p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (algo == nullptr || result == nullptr)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (algo->data[ID] != UNALIGNED && !is_aligned(p))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    result->workspaceSize =
        workspace_of(p, static_cast<int32_t>(algo->data[SPLITS]));
    result->state = CUBLAS_STATUS_SUCCESS;
    result->wavesCount = 1.0F;
    return CUBLAS_STATUS_SUCCESS;
}

namespace
{

int32_t place_of(cublasLtMatmulAlgoConfigAttributes_t attr)
{
    switch (attr) {
    case CUBLASLT_ALGO_CONFIG_ID: return ID;
    case CUBLASLT_ALGO_CONFIG_TILE_ID: return TILE;
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM: return SPLITS;
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: return SCHEME;
    case CUBLASLT_ALGO_CONFIG_STAGES_ID: return STAGES;
    }
    return -1;
}

} // namespace

cublasStatus_t
cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algo,
                                     cublasLtMatmulAlgoConfigAttributes_t attr,
                                     const void *from, size_t bytes)
{
    const int32_t place = place_of(attr);
    uint32_t value = 0;
    if (place < 0 || place == ID) return CUBLAS_STATUS_INVALID_VALUE;
    const cublasStatus_t status = take(&value, from, bytes);
    if (status == CUBLAS_STATUS_SUCCESS) algo->data[place] = value;
    return status;
}

cublasStatus_t
cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                     cublasLtMatmulAlgoConfigAttributes_t attr,
                                     void *to, size_t bytes, size_t *written)
{
    const int32_t place = place_of(attr);
    if (place < 0 || to == nullptr || bytes != sizeof(uint32_t))
        return CUBLAS_STATUS_INVALID_VALUE;
    const uint32_t value = static_cast<uint32_t>(algo->data[place]);
    memcpy(to, &value, sizeof value);
    if (written != nullptr) *written = sizeof value;
    return CUBLAS_STATUS_SUCCESS;
}

namespace
{

// Everything that an op reads or writes lies in device memory.
bool in_memory(const layout &l, const void *at)
{
    const int64_t outer =
        static_cast<int64_t>(l.order == CUBLASLT_ORDER_ROW ? l.rows : l.cols);
    const int64_t inner =
        static_cast<int64_t>(l.order == CUBLASLT_ORDER_ROW ? l.cols : l.rows);
    const int64_t elements =
        (l.batch - 1) * l.batch_stride + (outer - 1) * l.ld + inner;
    return simt::on_device(at,
                           static_cast<size_t>(elements) * bytes_of(l.type));
}

void run_batches(const product &p, float alpha, float beta, const void *a,
                 const void *b, const void *c, void *d, int32_t splits)
{
    for (int64_t i = 0; i < p.d.batch; i++) {
        const auto at = [i](const layout &l) {
            return i * l.batch_stride * static_cast<int64_t>(bytes_of(l.type));
        };
        run(p, alpha, beta, static_cast<const unsigned char *>(a) + at(p.a),
            static_cast<const unsigned char *>(b) + at(p.b),
            static_cast<const unsigned char *>(c) + at(p.c),
            static_cast<unsigned char *>(d) + at(p.d), splits);
    }
}

} // namespace

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle,
                              cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    product p;
    const cublasStatus_t status =
        check(handle, desc, a_layout, b_layout, c_layout, d_layout, &p);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (alpha == nullptr || beta == nullptr || a == nullptr || b == nullptr ||
        d == nullptr)
        return CUBLAS_STATUS_INVALID_VALUE;
    cublasLtMatmulAlgo_t chosen;
    if (algo == nullptr)
        set_algo(&chosen, UNALIGNED);
    else
        chosen = *algo;
    float scale_ab, scale_c;
    memcpy(&scale_ab, alpha, sizeof scale_ab);
    memcpy(&scale_c, beta, sizeof scale_c);
    if (scale_c != 0.0F && c == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    if (c == nullptr) c = d;
    if (chosen.data[ID] != UNALIGNED &&
        !(is_aligned(p) && is_aligned(a) && is_aligned(b) && is_aligned(c) &&
          is_aligned(d)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const int32_t splits = static_cast<int32_t>(chosen.data[SPLITS]);
    const size_t needed = workspace_of(p, splits);
    if (needed > workspace_bytes || (needed > 0 && workspace == nullptr))
        return CUBLAS_STATUS_INVALID_VALUE;
    {
        const std::lock_guard<std::mutex> hold(simt::state());
        if (!in_memory(p.a, a) || !in_memory(p.b, b) || !in_memory(p.d, d) ||
            (needed > 0 && !simt::on_device(workspace, needed)))
            return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    const cudaError_t error = simt::push(
        stream, {"matmul", true, [=] {
                     run_batches(p, scale_ab, scale_c, a, b, c, d, splits);
                 }});
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                : CUBLAS_STATUS_EXECUTION_FAILED;
}
