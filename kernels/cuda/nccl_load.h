// nccl_load.h - NCCL as this machine has it: opened once, symbol by symbol.
#ifndef WEFT_KERNELS_CUDA_NCCL_LOAD_H
#define WEFT_KERNELS_CUDA_NCCL_LOAD_H

#include "kernels/cuda/nccl.h"

namespace weft
{

struct nccl_symbols {
    decltype(&ncclGetVersion) get_version;
    decltype(&ncclGetUniqueId) get_unique_id;
    decltype(&ncclCommInitRankConfig) comm_init;
    decltype(&ncclCommGetAsyncError) comm_error;
    decltype(&ncclCommAbort) comm_abort;
    decltype(&ncclSend) send;
    decltype(&ncclRecv) recv;
    decltype(&ncclGroupStart) group_start;
    decltype(&ncclGroupEnd) group_end;
    // Words alone, so a version may lack them (nullptr).
    decltype(&ncclGetErrorString) error_string;
    decltype(&ncclGetLastError) last_error;
};

struct nccl_library {
    nccl_symbols call;
    int version;   // 0: none of use
    char why[256]; // one line, then
};

// Opens it on the first call, for good. Any thread.
const nccl_library *nccl_load();

} // namespace weft

#endif
