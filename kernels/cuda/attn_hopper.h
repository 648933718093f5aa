// attn_hopper.h - how attn.cu gets at the kernels of attn_hopper.cuh, which are
// compiled in a file of their own: no other architecture has them.
#ifndef WEFT_KERNELS_CUDA_ATTN_HOPPER_H
#define WEFT_KERNELS_CUDA_ATTN_HOPPER_H

#include <cstdint>

namespace weft
{

struct attn_work;

// A kernel of attention, and what it is to be launched with.
struct attn_form {
    void (*kernel)(const attn_work);
    int32_t heads; // of a block
    int32_t shared_bytes;
    int32_t threads, parts; // of a block; of the values, the grid's z
};

enum attn_hopper_size {
    ATTN_HOPPER_NONE,
    ATTN_HOPPER_FULL,   // 576 wide, values of 512
    ATTN_HOPPER_WINDOW, // 1088 wide, values of 1024
};

// Which of them attention of such a model takes, if any. With fewer heads most
// of a product would be of heads that are not there.
constexpr attn_hopper_size attn_hopper_size_of(int32_t sm, int32_t n_head,
                                               int32_t width,
                                               int32_t value_width)
{
    if (sm != 90 || n_head <= 32 || width <= 128) return ATTN_HOPPER_NONE;
    if (width <= 576 && value_width <= 512) return ATTN_HOPPER_FULL;
    return width <= 1088 && value_width <= 1024 ? ATTN_HOPPER_WINDOW
                                                : ATTN_HOPPER_NONE;
}

// Not of ATTN_HOPPER_NONE.
attn_form attn_hopper_form(attn_hopper_size size);

} // namespace weft

#endif
