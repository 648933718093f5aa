// attn_hopper.cu - the kernels of attn_hopper.cuh.
#include "kernels/cuda/attn_hopper.cuh"
#include "kernels/cuda/attn_hopper.h"

namespace weft
{

namespace
{

template <class S> attn_form form_of()
{
    return {attn_hopper<S>, S::M, S::BYTES, S::THREADS, S::PARTS};
}

// dots3-note and DeepSeek, and what is next to them.
static_assert(attn_hopper_size_of(90, 128, 576, 512) == ATTN_HOPPER_FULL &&
                  attn_hopper_size_of(90, 64, 1088, 1024) ==
                      ATTN_HOPPER_WINDOW &&
                  attn_hopper_size_of(90, 33, 577, 512) == ATTN_HOPPER_WINDOW &&
                  attn_hopper_size_of(90, 33, 576, 513) == ATTN_HOPPER_WINDOW,
              "many heads of known widths");
static_assert(attn_hopper_size_of(90, 32, 576, 512) == ATTN_HOPPER_NONE &&
                  attn_hopper_size_of(90, 64, 128, 128) == ATTN_HOPPER_NONE &&
                  attn_hopper_size_of(90, 64, 1089, 1024) == ATTN_HOPPER_NONE &&
                  attn_hopper_size_of(90, 64, 1088, 1025) == ATTN_HOPPER_NONE &&
                  attn_hopper_size_of(80, 64, 576, 512) == ATTN_HOPPER_NONE &&
                  attn_hopper_size_of(100, 64, 576, 512) == ATTN_HOPPER_NONE,
              "all else is for attn_tensor.cuh");

} // namespace

attn_form attn_hopper_form(attn_hopper_size size)
{
    return size == ATTN_HOPPER_FULL ? form_of<attn_hopper_full>()
                                    : form_of<attn_hopper_window>();
}

} // namespace weft
