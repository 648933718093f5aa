// runtime_memory.cc - device and pinned memory of the stand-in: exact blocks,
// a budget, and poison while nothing runs.
#include "tests/simt/remote.h"
#include "tests/simt/runtime.h"

#include <cstdlib>
#include <cstring>
#include <map>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(at, bytes)   ASAN_POISON_MEMORY_REGION(at, bytes)
#define UNPOISON(at, bytes) ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#else
#define POISON(at, bytes)   ((void)(at), (void)(bytes))
#define UNPOISON(at, bytes) ((void)(at), (void)(bytes))
#endif

namespace simt
{

namespace
{

// Beyond this the shadow of all blocks would take longer than what runs.
constexpr int64_t POISONED_BYTES_MAX = 256LL << 20;

// Keys are complements of addresses, so that the leak sanitizer does not take
// this list for an owner; they also sort such that lower_bound finds the block
// that begins at or before an address.
struct blocks {
    std::map<uintptr_t, size_t> device, host;
    std::map<uintptr_t, int> device_of;
    std::map<int, int64_t> used_on;
    int64_t used_bytes = 0;
    int open = 0;
};
blocks &all()
{
    // Never ended: threads of streams may outlive main.
    static blocks *const it = new blocks;
    return *it;
}

uintptr_t key_of(const void *at)
{
    return ~reinterpret_cast<uintptr_t>(at);
}
void *block_of(uintptr_t key)
{
    return reinterpret_cast<void *>(~key);
}

int64_t budget_bytes()
{
    const char *const text = getenv("WEFT_SIMT_MEMORY_BYTES");
    return text == nullptr || *text == 0 ? 8LL << 30 : atoll(text);
}

// What a block takes of the budget.
int64_t rounded(size_t bytes)
{
    return static_cast<int64_t>((bytes + 511) / 512 * 512);
}

void set_poison(bool poisoned)
{
    if (all().used_bytes > POISONED_BYTES_MAX && poisoned) return;
    for (const auto &block : all().device) {
        if (poisoned)
            POISON(block_of(block.first), block.second);
        else
            UNPOISON(block_of(block.first), block.second);
    }
}

} // namespace

void memory_open()
{
    if (all().open++ == 0) set_poison(false);
}

void memory_close()
{
    if (--all().open == 0) set_poison(true);
}

bool on_device(const void *at, size_t bytes)
{
    const uintptr_t from = reinterpret_cast<uintptr_t>(at);
    const auto block = all().device.lower_bound(~from);
    if (block == all().device.end()) return false;
    const uintptr_t begin = ~block->first;
    return from - begin <= block->second &&
           bytes <= block->second - (from - begin);
}

bool touches_device(const void *at)
{
    const uintptr_t from = reinterpret_cast<uintptr_t>(at);
    const auto block = all().device.lower_bound(~from);
    return block != all().device.end() && from - ~block->first < block->second;
}

namespace
{

// Of the block that begins there; else the calling thread's.
int device_of(const void *at)
{
    const std::lock_guard<std::mutex> hold(state());
    const auto found = all().device_of.find(key_of(at));
    return found == all().device_of.end() ? device_here() : found->second;
}

cudaError_t check_ready()
{
    int n = 0;
    const cudaError_t error = cudaGetDeviceCount(&n);
    return error != cudaSuccess ? error : check_safe();
}

cudaError_t host_alloc(void **at, size_t bytes)
{
    const cudaError_t error = check_ready();
    if (error != cudaSuccess) return told(error);
    if (at == nullptr) return told(cudaErrorInvalidValue);
    *at = nullptr;
    if (bytes == 0) return cudaSuccess;
    void *block = nullptr;
    if (posix_memalign(&block, 256, bytes) != 0)
        return told(cudaErrorMemoryAllocation);
    memset(block, 0xff, bytes);
    const std::lock_guard<std::mutex> hold(state());
    all().host[key_of(block)] = bytes;
    count(HOST_BLOCK, 1);
    *at = block;
    return cudaSuccess;
}

// Which of the two ends must be device memory; the other must not be.
cudaError_t check_direction(const void *to, const void *from, size_t bytes,
                            cudaMemcpyKind kind)
{
    if (kind == cudaMemcpyDefault)
        return (touches_device(to) && !on_device(to, bytes)) ||
                       (touches_device(from) && !on_device(from, bytes))
                   ? cudaErrorInvalidValue
                   : cudaSuccess;
    const bool to_device =
        kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device =
        kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    const bool to_fits = to_device ? on_device(to, bytes) : !touches_device(to);
    const bool from_fits =
        from_device ? on_device(from, bytes) : !touches_device(from);
    return to_fits && from_fits ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t copy_on(void *to, const void *from, size_t bytes,
                    cudaMemcpyKind kind, cudaStream_t stream)
{
    if (lost() != cudaSuccess) return lost();
    if (bytes == 0) return cudaSuccess;
    {
        const std::lock_guard<std::mutex> hold(state());
        const cudaError_t error = check_direction(to, from, bytes, kind);
        if (error != cudaSuccess) return error;
    }
    return push(stream, {"copy", false,
                         [to, from, bytes] { memmove(to, from, bytes); }});
}

cudaError_t fill_on(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    if (lost() != cudaSuccess) return lost();
    if (bytes == 0) return cudaSuccess;
    {
        const std::lock_guard<std::mutex> hold(state());
        if (!on_device(to, bytes)) return cudaErrorInvalidValue;
    }
    return push(stream, {"fill", false,
                         [to, byte, bytes] { memset(to, byte, bytes); }});
}

} // namespace
} // namespace simt

using simt::told;

cudaError_t cudaMalloc(void **at, size_t bytes)
{
    const cudaError_t error = simt::check_ready();
    if (error != cudaSuccess) return told(error);
    if (at == nullptr) return told(cudaErrorInvalidValue);
    *at = nullptr;
    if (bytes == 0) return cudaSuccess;
    const std::lock_guard<std::mutex> hold(simt::state());
    simt::blocks &b = simt::all();
    const bool fits = bytes < static_cast<size_t>(INT64_MAX) - 512 &&
                      simt::rounded(bytes) <=
                          simt::budget_bytes() - b.used_on[simt::device_here()];
    if (!fits || simt::fault("memory", true))
        return told(cudaErrorMemoryAllocation);
    void *block = nullptr;
    if (posix_memalign(&block, 256, bytes) != 0)
        return told(cudaErrorMemoryAllocation);
    memset(block, 0xff, bytes);
    b.used_bytes += simt::rounded(bytes);
    b.used_on[simt::device_here()] += simt::rounded(bytes);
    b.device[simt::key_of(block)] = bytes;
    b.device_of[simt::key_of(block)] = simt::device_here();
    if (b.open == 0 && b.used_bytes <= simt::POISONED_BYTES_MAX)
        POISON(block, bytes);
    simt::count(simt::BLOCK, 1);
    *at = block;
    return cudaSuccess;
}

cudaError_t cudaFree(void *at)
{
    if (at == nullptr) return cudaSuccess;
    const cudaError_t unsafe = simt::check_safe();
    if (unsafe != cudaSuccess) return told(unsafe);
    simt::run_all(simt::device_of(at));
    const std::lock_guard<std::mutex> hold(simt::state());
    simt::blocks &b = simt::all();
    const auto block = b.device.find(simt::key_of(at));
    if (block == b.device.end()) return told(cudaErrorInvalidValue);
    UNPOISON(at, block->second);
    b.used_bytes -= simt::rounded(block->second);
    b.used_on[b.device_of[block->first]] -= simt::rounded(block->second);
    b.device_of.erase(block->first);
    b.device.erase(block);
    simt::count(simt::BLOCK, -1);
    free(at);
    return told(simt::lost());
}

cudaError_t cudaMallocHost(void **at, size_t bytes)
{
    return simt::host_alloc(at, bytes);
}

cudaError_t cudaHostAlloc(void **at, size_t bytes, unsigned flags)
{
    (void)flags;
    return simt::host_alloc(at, bytes);
}

cudaError_t cudaFreeHost(void *at)
{
    if (at == nullptr) return cudaSuccess;
    const cudaError_t unsafe = simt::check_safe();
    if (unsafe != cudaSuccess) return told(unsafe);
    simt::run_all(simt::device_here());
    const std::lock_guard<std::mutex> hold(simt::state());
    if (simt::all().host.erase(simt::key_of(at)) == 0)
        return told(cudaErrorInvalidValue);
    simt::count(simt::HOST_BLOCK, -1);
    free(at);
    return told(simt::lost());
}

// Pinned memory has the same address on both sides.
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    if (flags != 0) return told(cudaErrorInvalidValue);
    const std::lock_guard<std::mutex> hold(simt::state());
    if (simt::all().host.count(simt::key_of(host)) == 0)
        return told(cudaErrorInvalidValue);
    *device = host;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    int n = 0;
    const cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess) return error;
    const std::lock_guard<std::mutex> hold(simt::state());
    const int64_t budget = simt::budget_bytes();
    const int64_t used = simt::all().used_on[simt::device_here()];
    *total = static_cast<size_t>(budget);
    *free = static_cast<size_t>(used < budget ? budget - used : 0);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream)
{
    return told(simt::copy_on(to, from, bytes, kind, stream));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from,
                              size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream)
{
    if (width > to_pitch || width > from_pitch)
        return told(cudaErrorInvalidValue);
    for (size_t row = 0; row < height; row++) {
        const cudaError_t error =
            simt::copy_on(static_cast<char *>(to) + row * to_pitch,
                          static_cast<const char *>(from) + row * from_pitch,
                          width, kind, stream);
        if (error != cudaSuccess) return told(error);
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes,
                       cudaMemcpyKind kind)
{
    const cudaError_t unsafe = simt::check_safe();
    if (unsafe != cudaSuccess) return told(cudaErrorStreamCaptureImplicit);
    const cudaError_t error = simt::copy_on(to, from, bytes, kind, nullptr);
    if (error != cudaSuccess) return told(error);
    return cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes,
                            cudaStream_t stream)
{
    return told(simt::fill_on(to, byte, bytes, stream));
}

cudaError_t cudaMemset(void *to, int byte, size_t bytes)
{
    return told(simt::fill_on(to, byte, bytes, nullptr));
}

int weft_simt_on_device(const void *at, size_t bytes)
{
    const std::lock_guard<std::mutex> hold(simt::state());
    return simt::on_device(at, bytes) ? 1 : 0;
}

int weft_simt_copy(void *to, const void *from, size_t bytes)
{
    const std::lock_guard<std::mutex> hold(simt::state());
    // To free memory waits for no stream of a lost device: what is there may be
    // gone, or go as soon as the lock does.
    if (simt::lost() != cudaSuccess) return simt::lost();
    simt::memory_open();
    memmove(to, from, bytes);
    simt::memory_close();
    return cudaSuccess;
}
