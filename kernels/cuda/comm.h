// comm.h - what kernels/comm.h says, over NCCL. One table for the process.
#ifndef WEFT_KERNELS_CUDA_COMM_H
#define WEFT_KERNELS_CUDA_COMM_H

#include "kernels/comm.h"

namespace weft
{

// Opens NCCL on the first call. Never NULL: version 0 says that there is none.
const weft_comm_api *comm_table();

// Before the device is closed: waits for comms of it that were aborted and are
// not yet gone, and forgets their memory, which is the device's.
void comm_forget(weft_device *device);

} // namespace weft

#endif
