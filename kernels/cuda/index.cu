// index.cu - the lightning indexer: scores (index_score.cuh), then the top_k
// best in position order (choose.cuh).
//
// Where a row of scores is long, blocks first take the top_k of each segment of
// it, and one block takes the top_k of what they took: the best of all are
// among the best of their segments. Lists stay in position order throughout,
// so that ties go to the lowest position.
//
// Scratch of a row: scores of a span of positions, then the lists. If the
// longest row does not fit, rows come one at a time and in several spans, each
// of which begins with what was taken of those before.
#include <cstdio>

#include "kernels/cuda/choose.cuh"
#include "kernels/cuda/index_score.cuh"
#include "kernels/cuda/launch.h"

namespace weft
{

namespace
{

enum {
    SEGMENT = 16384, // positions, at least; and SEGMENT_TOPS times top_k
    SEGMENT_TOPS = 8,
    ROWS_MAX = 65535, // of a grid's second dimension
    TILES_MAX = 16,   // a block, of the mma form
};

// How the work is cut.
struct index_plan {
    int64_t row_floats;         // of scratch
    int32_t rows;               // at a time
    int32_t span, n_span;       // positions
    int32_t segment, n_segment; // of a span
    int64_t list;               // entries of a list, 0 if there is none
};

// A list's scores and positions.
struct index_list {
    float *scores;
    int32_t *positions;
};

struct select_args {
    weft_row *rows;
    int32_t *keys_out, *n_keys_out;
    float *scratch; // of the first row
    index_plan plan;
    int32_t row, span, top_k;
};

__device__ __forceinline__ int32_t min_of(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

__device__ __forceinline__ float *scores_of(const select_args &a, int64_t row)
{
    return a.scratch + row * a.plan.row_floats;
}

// Of span number `span`; the next one's is another, for it begins with what
// comes out of this one.
__device__ __forceinline__ index_list list_of(const select_args &a, int64_t row,
                                              int32_t span)
{
    float *const at = scores_of(a, row) + a.plan.span +
                      2 * a.plan.list * static_cast<int64_t>(span % 2);
    return {at, reinterpret_cast<int32_t *>(at + a.plan.list)};
}

// Positions of the span that the row sees; 0 if it takes all without scores.
__device__ __forceinline__ int32_t seen_of(const select_args &a,
                                           const weft_row &row)
{
    if (row.position < a.top_k) return 0;
    const int32_t left = row.position - a.span * a.plan.span + 1;
    return left < 0 ? 0 : min_of(left, a.plan.span);
}

// emit(place, i) for the k best of n scores, or all if there are no more.
template <typename EMIT>
__device__ __forceinline__ void choose(const float *scores, int32_t n,
                                       int32_t k, bin_space<uint32_t> *bins,
                                       taken_space *taken, EMIT emit)
{
    if (n <= k) {
        for (int32_t i = thread_index(); i < n; i += CHOOSE_THREADS) emit(i, i);
        return;
    }
    emit_taken(scores, n, find_cut(scores, n, k, bins), taken, emit);
}

// Grid (segment, row): the best of every segment, into the span's list.
__global__ void __launch_bounds__(CHOOSE_THREADS, 2)
    choose_segments(select_args a)
{
    __shared__ bin_space<uint32_t> bins;
    __shared__ taken_space taken;
    const int32_t from = static_cast<int32_t>(blockIdx.x) * a.plan.segment;
    const int32_t seen = seen_of(a, a.rows[a.row + blockIdx.y]);
    if (seen <= from) return;
    const index_list list = list_of(a, blockIdx.y, a.span);
    const int64_t place =
        (static_cast<int64_t>(blockIdx.x) + (a.span > 0 ? 1 : 0)) * a.top_k;
    const float *const scores = scores_of(a, blockIdx.y) + from;
    const int32_t base = a.span * a.plan.span + from;
    choose(scores, min_of(seen - from, a.plan.segment), a.top_k, &bins, &taken,
           [=](int32_t to, int32_t i) {
               list.scores[place + to] = scores[i];
               list.positions[place + to] = base + i;
           });
}

// The row's keys are the best of the span's list, or of its scores where there
// are no lists.
__device__ __forceinline__ void choose_row(const select_args &a, int32_t seen,
                                           int32_t *keys,
                                           bin_space<uint32_t> *bins,
                                           taken_space *taken)
{
    const int64_t row = blockIdx.x;
    if (a.plan.list == 0) {
        choose(scores_of(a, row), seen, a.top_k, bins, taken,
               [=](int32_t to, int32_t i) { keys[to] = i; });
        return;
    }
    // Every segment but the last that is seen is full, and longer than top_k.
    const int32_t whole = seen / a.plan.segment + (a.span > 0 ? 1 : 0);
    const int32_t n = whole * a.top_k + min_of(seen % a.plan.segment, a.top_k);
    const index_list list = list_of(a, row, a.span);
    const index_list next = list_of(a, row, a.span + 1);
    const bool more = a.plan.n_span > 1;
    choose(list.scores, n, a.top_k, bins, taken, [=](int32_t to, int32_t i) {
        keys[to] = list.positions[i];
        if (!more) return;
        next.scores[to] = list.scores[i];
        next.positions[to] = list.positions[i];
    });
}

// Grid (row).
__global__ void __launch_bounds__(CHOOSE_THREADS, 2) choose_rows(select_args a)
{
    __shared__ bin_space<uint32_t> bins;
    __shared__ taken_space taken;
    const int64_t r = a.row + static_cast<int64_t>(blockIdx.x);
    weft_row *const row = &a.rows[r];
    const int32_t position = row->position;
    const bool all = position < a.top_k;
    int32_t *const keys = a.keys_out + r * a.top_k;
    const int32_t seen = seen_of(a, *row);
    if (seen > 0) choose_row(a, seen, keys, &bins, &taken);
    for (int32_t i = thread_index(); all && i <= position; i += CHOOSE_THREADS)
        keys[i] = i;
    if (thread_index() != 0) return;
    row->keys = keys;
    row->n_keys = all ? position + 1 : a.top_k;
    a.n_keys_out[r] = all ? position + 1 : a.top_k;
}

int32_t smaller(int64_t a, int64_t b)
{
    return static_cast<int32_t>(a < b ? a : b);
}

int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

// False: scratch does not hold what one span needs.
bool make_plan(const queue *q, const weft_index_select *op, index_plan *plan)
{
    const int64_t most = op->n_positions_max > 0 ? op->n_positions_max : 1;
    const int64_t floats = q->scratch_bytes / 4;
    const int64_t tops = SEGMENT_TOPS * static_cast<int64_t>(op->top_k);
    // Where top_k takes every position there are no scores, so no lists.
    int64_t segment = tops > SEGMENT ? tops : int64_t{SEGMENT};
    if (op->top_k >= most) segment = most;
    int64_t span = most, spans = 1, n = divide_up(most, segment);
    int64_t list = n > 1 ? n * op->top_k : 0;
    if (span + 2 * list > floats) {
        // Whole segments, each with its part of two lists.
        n = (floats - 4 * op->top_k) / (segment + 4 * op->top_k);
        if (n < 1) return false;
        span = n * segment;
        spans = divide_up(most, span);
        list = (n + 1) * op->top_k;
    }
    plan->segment = smaller(segment, INT32_MAX);
    plan->n_segment = static_cast<int32_t>(n);
    plan->span = static_cast<int32_t>(span);
    plan->n_span = static_cast<int32_t>(spans);
    plan->list = list;
    plan->row_floats = span + (spans > 1 ? 4 : 2) * list;
    plan->rows =
        spans > 1
            ? 1
            : smaller(smaller(floats / plan->row_floats, ROWS_MAX), op->n_row);
    return true;
}

void (*score_kernel(weft_dtype keys, bool mma))(index_score::span)
{
    using namespace index_score;
    if (keys == WEFT_F8_E4M3)
        return mma ? score_mma<f8_code> : score_fma<f8_code>;
    if (keys == WEFT_BF16) return mma ? score_mma<bf16> : score_fma<bf16>;
    return score_fma<float>;
}

void launch_scores(queue *q, const select_args &a, const weft_index_select *op,
                   int32_t n)
{
    using namespace index_score;
    const int64_t first = static_cast<int64_t>(a.span) * a.plan.span;
    const int64_t left = op->n_positions_max - first;
    const int32_t seen = smaller(left, a.plan.span);
    span s = {};
    s.op = *op;
    s.scores = a.scratch;
    s.stride = a.plan.row_floats;
    s.row = a.row;
    s.first = static_cast<int32_t>(first);
    s.end = static_cast<int32_t>(first) + seen;
    const int64_t tiles = divide_up(seen, KEYS);
    const int64_t bytes = mma_bytes(op->n_head, op->head_dim);
    const bool mma = op->keys.dtype != WEFT_F32 && op->q_as_pair &&
                     op->head_dim <= DIMS && bytes <= 48 * 1024;
    // A block of the mma form reads the queries of its row once: it takes
    // several tiles if there are blocks enough all the same.
    s.tiles =
        1 + smaller(tiles * n / (8 * static_cast<int64_t>(q->n_processors + 1)),
                    TILES_MAX - 1);
    const dim3 grid(
        static_cast<uint32_t>(mma ? divide_up(tiles, s.tiles) : tiles),
        static_cast<uint32_t>(n));
    const size_t shared = mma ? static_cast<size_t>(bytes) : sizeof(fma_tile);
    WEFT_LAUNCH(score_kernel(op->keys.dtype, mma), grid, dim3(THREADS), shared,
                q->stream, s);
    note(q, "index_select");
}

// One span of the rows [a.row, a.row + n).
void launch_span(queue *q, const select_args &a, const weft_index_select *op,
                 int32_t n)
{
    if (op->top_k < op->n_positions_max) {
        launch_scores(q, a, op, n);
        if (a.plan.list > 0) {
            const dim3 grid(static_cast<uint32_t>(a.plan.n_segment),
                            static_cast<uint32_t>(n));
            WEFT_LAUNCH(choose_segments, grid, dim3(CHOOSE_THREADS), 0,
                        q->stream, a);
            note(q, "index_select");
        }
    }
    WEFT_LAUNCH(choose_rows, dim3(static_cast<uint32_t>(n)),
                dim3(CHOOSE_THREADS), 0, q->stream, a);
    note(q, "index_select");
}

} // namespace

void launch_index_select(queue *q, const weft_index_select *op)
{
    if (op->n_row <= 0) return;
    select_args a = {};
    a.rows = op->rows;
    a.keys_out = op->keys_out;
    a.n_keys_out = op->n_keys_out;
    a.scratch = reinterpret_cast<float *>(q->scratch);
    a.top_k = op->top_k;
    if (!make_plan(q, op, &a.plan)) {
        if (q->error == cudaSuccess) {
            q->error = cudaErrorMemoryAllocation;
            (void)snprintf(q->failed, sizeof q->failed,
                           "index_select: scratch");
        }
        return;
    }
    for (int64_t r = 0; r < op->n_row; r += a.plan.rows) {
        a.row = static_cast<int32_t>(r);
        const int32_t n = smaller(op->n_row - r, a.plan.rows);
        for (a.span = 0; a.span < a.plan.n_span; a.span++)
            launch_span(q, a, op, n);
    }
}

} // namespace weft
