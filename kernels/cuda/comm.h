// comm.h - what kernels/comm.h says, over NCCL. One table for the process.
#ifndef WEFT_KERNELS_CUDA_COMM_H
#define WEFT_KERNELS_CUDA_COMM_H

#include "kernels/comm.h"

namespace weft
{

// Opens NCCL on the first call. Never NULL: version 0 says that there is none.
const weft_comm_api *comm_table();

} // namespace weft

#endif
