// bound.h - what the library keeps of a device and of each thread that is bound
// to it; kernels see only the queue (launch.h).
#ifndef WEFT_KERNELS_CUDA_BOUND_H
#define WEFT_KERNELS_CUDA_BOUND_H

#include "kernels/cuda/graph.h"
#include "kernels/cuda/launch.h"

namespace weft
{

// One thread's place: everything in it is made by open and ended by close, so
// that to bind takes nothing that might not be there.
struct bound {
    queue q;
    graphs graph;
    weft_device *device;
    bool taken;
};

// The calling thread's; a thread that is not bound has none, and no business
// here: it panics.
bound *bound_here();

// As the runtime counts devices.
int device_index(const weft_device *device);
int32_t device_processors(const weft_device *device);

// Calls of the runtime and of NCCL are for the device of the calling thread,
// which may be bound to another one: it gets its own back.
class on_device
{
  public:
    explicit on_device(int index)
    {
        (void)cudaGetDevice(&before);
        error = cudaSetDevice(index);
    }
    ~on_device()
    {
        (void)cudaSetDevice(before);
    }
    on_device(const on_device &) = delete;
    on_device &operator=(const on_device &) = delete;

    cudaError_t error; // of turning to it

  private:
    int before = 0;
};

// launch.h's ops as the library's table.
extern const weft_ops table;

// The smallest kernel: whether this build has any for the device.
void launch_probe(queue *q);

} // namespace weft

// The library's one symbol (kernels/device.h).
extern "C" __attribute__((visibility("default"))) const weft_device_api *
weft_device_get(uint32_t abi);

#endif
