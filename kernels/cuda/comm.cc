#include "kernels/cuda/comm.h"

namespace weft
{

const weft_comm_api *comm_table()
{
    static const weft_comm_api none = {0,       "this build has no NCCL",
                                       nullptr, nullptr,
                                       nullptr, nullptr,
                                       nullptr, nullptr,
                                       nullptr, nullptr,
                                       nullptr, nullptr,
                                       nullptr, nullptr,
                                       nullptr, nullptr};
    return &none;
}

} // namespace weft
