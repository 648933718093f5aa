// launch.cc - which launches a device would refuse.
#include "tests/simt/simt.h"

#include <pthread.h>

namespace simt
{

namespace
{

struct kernel_limit {
    const void *kernel;
    size_t bytes;
};

struct {
    pthread_mutex_t lock;
    size_t shared; // 0: SHARED_MAX
    kernel_limit of[256];
    unsigned n;
} limits = {};

} // namespace

int check_launch(dim3 grid, dim3 block, size_t dynamic_bytes)
{
    const uint64_t n = static_cast<uint64_t>(block.x) * block.y * block.z;
    if (n < 1 || n > THREADS_MAX || block.z > 64) return BAD_CONFIGURATION;
    if (!grid.x || !grid.y || !grid.z) return BAD_CONFIGURATION;
    if (grid.x > INT32_MAX || grid.y > 65535 || grid.z > 65535)
        return BAD_CONFIGURATION;
    const size_t limit = limits.shared ? limits.shared : size_t{SHARED_MAX};
    return dynamic_bytes > limit ? BAD_VALUE : 0;
}

int check_kernel(const void *kernel, dim3 grid, dim3 block,
                 size_t dynamic_bytes)
{
    const int error = check_launch(grid, block, dynamic_bytes);
    if (error || dynamic_bytes <= SHARED_DEFAULT) return error;
    size_t allowed = SHARED_DEFAULT;
    pthread_mutex_lock(&limits.lock);
    for (unsigned i = 0; i < limits.n; i++)
        if (limits.of[i].kernel == kernel) allowed = limits.of[i].bytes;
    pthread_mutex_unlock(&limits.lock);
    return dynamic_bytes > allowed ? BAD_VALUE : 0;
}

int allow_shared(const void *kernel, size_t dynamic_bytes)
{
    const size_t limit = limits.shared ? limits.shared : size_t{SHARED_MAX};
    if (dynamic_bytes > limit) return BAD_VALUE;
    pthread_mutex_lock(&limits.lock);
    unsigned i = 0;
    while (i < limits.n && limits.of[i].kernel != kernel) i++;
    const unsigned room = sizeof limits.of / sizeof limits.of[0];
    if (i < room) limits.of[i] = {kernel, dynamic_bytes};
    if (i == limits.n && i < room) limits.n++;
    pthread_mutex_unlock(&limits.lock);
    return i < room ? 0 : BAD_VALUE;
}

void set_shared_limit(size_t bytes)
{
    limits.shared = bytes;
}

} // namespace simt
