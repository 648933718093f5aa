// attn.cu - latent attention: which form runs, and how the work is cut.
//
// Three forms. Exact: fp32 arithmetic, any size; of the profile `exact` and of
// fp32 caches. Tensor: bfloat16 products, of rounded results over a bfloat16
// cache (q then holds bfloat16 values). Hopper: the same, of many heads on
// compute capability 9.0. Which one runs, and its shape, depends on the model
// and the device, never on the batch.
//
// Two cuts. A step with enough rows to fill the device gives a block all keys
// of its heads, which needs no scratch; else every split of 256 keys is a block
// and a second kernel folds them. Both give the same bits.
#include "kernels/cuda/attn_exact.cuh"
#include "kernels/cuda/attn_hopper.h"
#include "kernels/cuda/attn_tensor.cuh"
#include "kernels/cuda/launch.h"

namespace weft
{

namespace
{

attn_form exact_form(weft_dtype cache)
{
    const int32_t bytes = static_cast<int32_t>(sizeof(exact_shared));
    if (cache == WEFT_BF16)
        return {attn_exact<bf16>, EXACT_HEADS, bytes, ATTN_THREADS, 1};
    return {attn_exact<float>, EXACT_HEADS, bytes, ATTN_THREADS, 1};
}

template <class S> attn_form tensor_form()
{
    return {attn_tensor<S>, S::M, S::BYTES, ATTN_THREADS, 1};
}

// Width (padded), values, heads / 16, keys of a tile, and whether q is held.
// More heads a block read a row of the cache less often; there are as many as
// registers (values) and shared memory (q and two tiles) have room for.
using small_16 = tensor_shape<128, 128, 1, 32, true>;
using full_16 = tensor_shape<576, 512, 1, 32, true>;
using full_32 = tensor_shape<576, 512, 2, 32, true>;
using full_64 = tensor_shape<576, 512, 4, 32, false>;
using window_16 = tensor_shape<1088, 1024, 1, 16, true>;
using window_32 = tensor_shape<1088, 1024, 2, 16, false>;
using window_32_wide = tensor_shape<1088, 1024, 2, 32, false>;
static_assert(full_32::BYTES <= 99 << 10 && window_16::BYTES <= 99 << 10,
              "these run everywhere");

attn_form choose_form(const queue *q, const weft_attn *op)
{
    const int32_t width = op->width, values = op->value_width;
    const int32_t room = tensor_room(q->sm), heads = op->n_head;
    if (op->round != WEFT_ROUND_BF16 || op->kv.dtype != WEFT_BF16)
        return exact_form(op->kv.dtype);
    const attn_hopper_size hopper =
        attn_hopper_size_of(q->sm, heads, width, values);
    if (hopper != ATTN_HOPPER_NONE) return attn_hopper_form(hopper);
    if (width <= 128 && values <= 128) return tensor_form<small_16>();
    if (width <= 576 && values <= 512) {
        if (heads <= 16) return tensor_form<full_16>();
        if (heads > 32 && full_64::BYTES <= room) return tensor_form<full_64>();
        return tensor_form<full_32>();
    }
    if (width <= 1088 && values <= 1024) {
        if (heads > 16 && window_32_wide::BYTES <= room)
            return tensor_form<window_32_wide>();
        if (heads > 16 && window_32::BYTES <= room)
            return tensor_form<window_32>();
        return tensor_form<window_16>();
    }
    return exact_form(op->kv.dtype);
}

// Bytes of scratch that the splits of one row take.
int64_t scratch_row(const weft_attn *op, int32_t n_split)
{
    const int64_t head = static_cast<int64_t>(op->value_width) *
                             static_cast<int64_t>(sizeof(float)) +
                         static_cast<int64_t>(sizeof(attn_sum));
    return static_cast<int64_t>(n_split) * op->n_head * head;
}

void launch_whole(queue *q, const attn_form &form, attn_work work)
{
    const uint32_t blocks = static_cast<uint32_t>(work.op.n_row) *
                            static_cast<uint32_t>(work.n_head_block);
    const uint32_t splits =
        work.acc != nullptr ? static_cast<uint32_t>(work.n_split) : 1;
    WEFT_LAUNCH(form.kernel,
                dim3(blocks, splits, static_cast<uint32_t>(form.parts)),
                dim3(static_cast<uint32_t>(form.threads)),
                static_cast<size_t>(form.shared_bytes), q->stream, work);
    note(q, "attn");
}

// As many rows at a time as scratch has room for.
void launch_splits(queue *q, const attn_form &form, const attn_work &all,
                   int64_t rows)
{
    for (int64_t r = 0; r < all.op.n_row; r += rows) {
        attn_work work = all;
        const int64_t n = all.op.n_row - r < rows ? all.op.n_row - r : rows;
        work.op.rows += r;
        work.op.q += r * all.op.q_stride;
        work.op.out += r * all.op.out_stride;
        work.op.n_row = static_cast<int32_t>(n);
        work.sum = reinterpret_cast<attn_sum *>(q->scratch);
        work.acc = reinterpret_cast<float *>(work.sum +
                                             n * all.n_split * all.op.n_head);
        launch_whole(q, form, work);
        WEFT_LAUNCH(attn_fold,
                    dim3(static_cast<uint32_t>(n) *
                         static_cast<uint32_t>(all.op.n_head)),
                    dim3(ATTN_THREADS), 0, q->stream, work);
        note(q, "attn");
    }
}

} // namespace

void launch_attn(queue *q, const weft_attn *op)
{
    if (op->n_row <= 0 || op->n_head <= 0 || op->value_width <= 0) return;
    const attn_form form = choose_form(q, op);
    // More than 48 KiB have to be asked for; a refusal shows at the launch.
    (void)cudaFuncSetAttribute(form.kernel,
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               form.shared_bytes);
    attn_work work = {};
    work.op = *op;
    work.n_split = (op->n_keys_max + ATTN_SPLIT - 1) / ATTN_SPLIT;
    work.n_head_block = (op->n_head + form.heads - 1) / form.heads;
    const int64_t blocks =
        static_cast<int64_t>(op->n_row) * work.n_head_block * form.parts;
    // Two blocks a processor keep it busy enough.
    const int64_t enough = 2 * static_cast<int64_t>(q->n_processors);
    // The grid has at most 65535 splits.
    const bool fits = work.n_split > 1 && work.n_split < 65536;
    const int64_t rows =
        fits ? q->scratch_bytes / scratch_row(op, work.n_split) : 0;
    if (rows > 0 && blocks < enough)
        launch_splits(q, form, work, rows);
    else
        launch_whole(q, form, work);
}

} // namespace weft
