// runtime.cc - errors, faults and the device: see runtime.h.
#include "tests/simt/runtime.h"
#include "tests/simt/remote.h"

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace simt
{

// Of simt.h, which has macros with names of the runtime's members.
int allow_shared(const void *kernel, size_t dynamic_bytes);
void set_shared_limit(size_t bytes);

namespace
{

thread_local cudaError_t last_error;
thread_local int current_device;
std::atomic<int> lost_by{0};
std::atomic<int64_t> live[THINGS];

struct ordered {
    std::mutex lock;
    std::string text;
    int64_t asked = 0;
};
ordered &order()
{
    static ordered *const it = new ordered;
    return *it;
}

int64_t number_of(const char *name, int64_t otherwise)
{
    const char *const text = getenv(name);
    return text == nullptr || *text == 0 ? otherwise : atoll(text);
}

// Of "80,90" the second device has 90, and so have those after it.
int capability(int device)
{
    if (fault("old_arch")) return 70;
    const char *text = getenv("WEFT_SIMT_SM");
    if (text == nullptr || *text == 0) return 80;
    for (int i = 0; i < device && strchr(text, ',') != nullptr; i++)
        text = strchr(text, ',') + 1;
    return atoi(text);
}

// CUDA C++ Programming Guide, "Technical Specifications per Compute
// Capability".
int shared_opt_in_max(int sm)
{
    if (sm == 86 || sm == 89 || sm >= 120) return 99 * 1024;
    return sm >= 90 ? 227 * 1024 : 163 * 1024;
}

} // namespace

std::mutex &state()
{
    static std::mutex *const it = new std::mutex;
    return *it;
}

bool fault(const char *kind, bool from)
{
    const char *const env = getenv("WEFT_SIMT_FAULT");
    ordered &o = order();
    const std::lock_guard<std::mutex> hold(o.lock);
    const std::string text = env == nullptr ? "" : env;
    if (text != o.text) {
        o.text = text;
        o.asked = 0;
    }
    const size_t n = strlen(kind);
    if (text.compare(0, n, kind) != 0) return false;
    if (text.size() == n) return true;
    if (text[n] != ':') return false;
    const int64_t at = atoll(text.c_str() + n + 1);
    o.asked++;
    return o.asked == at || (from && o.asked > at);
}

cudaError_t told(cudaError_t error)
{
    if (error != cudaSuccess) last_error = error;
    return error;
}

void refuse(const char *name, int error)
{
    (void)name;
    (void)told(static_cast<cudaError_t>(error));
}

void lose_device(cudaError_t error)
{
    int none = 0;
    (void)lost_by.compare_exchange_strong(none, error);
    const std::lock_guard<std::mutex> hold(state());
    progress().notify_all();
}

cudaError_t lost()
{
    return static_cast<cudaError_t>(lost_by.load());
}

int device_count()
{
    return static_cast<int>(number_of("WEFT_SIMT_DEVICES", 1));
}

int device_here()
{
    return current_device;
}

void count(thing what, int by)
{
    live[what] += by;
}

namespace
{

cudaError_t check_driver()
{
    if (fault("no_driver") || fault("old_driver"))
        return cudaErrorInsufficientDriver;
    if (fault("no_device")) return cudaErrorNoDevice;
    return lost();
}

} // namespace
} // namespace simt

using simt::told;

int64_t weft_simt_live(void)
{
    int64_t sum = 0;
    for (const auto &n : simt::live) sum += n;
    return sum;
}

int weft_simt_fault(const char *kind)
{
    return simt::fault(kind) ? 1 : 0;
}

void weft_simt_count_comm(int by)
{
    simt::count(simt::COMM, by);
}

int weft_simt_device(void)
{
    return simt::device_here();
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error =
        simt::lost() != cudaSuccess ? simt::lost() : simt::last_error;
    simt::last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return simt::lost() != cudaSuccess ? simt::lost() : simt::last_error;
}

namespace
{

struct named {
    cudaError_t error;
    const char *name, *text;
};

#define NAMED(error, text)                                                     \
    {                                                                          \
        error, #error, text                                                    \
    }
const named names[] = {
    NAMED(cudaSuccess, "no error"),
    NAMED(cudaErrorInvalidValue, "invalid argument"),
    NAMED(cudaErrorMemoryAllocation, "out of memory"),
    NAMED(cudaErrorInitializationError, "initialization error"),
    NAMED(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    NAMED(cudaErrorInvalidMemcpyDirection, "invalid copy direction"),
    NAMED(cudaErrorInsufficientDriver,
          "CUDA driver version is insufficient for CUDA runtime version"),
    NAMED(cudaErrorInvalidDeviceFunction, "invalid device function"),
    NAMED(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    NAMED(cudaErrorInvalidDevice, "invalid device ordinal"),
    NAMED(cudaErrorNoKernelImageForDevice,
          "no kernel image is available for execution on the device"),
    NAMED(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    NAMED(cudaErrorIllegalState, "the operation cannot be performed in the "
                                 "present state"),
    NAMED(cudaErrorNotReady, "device not ready"),
    NAMED(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    NAMED(cudaErrorLaunchOutOfResources,
          "too many resources requested for launch"),
    NAMED(cudaErrorLaunchFailure, "unspecified launch failure"),
    NAMED(cudaErrorNotSupported, "operation not supported"),
    NAMED(cudaErrorStreamCaptureUnsupported,
          "operation not permitted when stream is capturing"),
    NAMED(cudaErrorStreamCaptureInvalidated,
          "operation failed due to a previous error during capture"),
    NAMED(cudaErrorStreamCaptureUnmatched,
          "capture was not ended in the stream in which it began"),
    NAMED(cudaErrorStreamCaptureIsolation,
          "dependency created on uncaptured work in another stream"),
    NAMED(cudaErrorStreamCaptureImplicit,
          "operation would make the legacy stream depend on a capturing "
          "blocking stream"),
    NAMED(cudaErrorCapturedEvent,
          "operation not permitted on an event last recorded in a capturing "
          "stream"),
    NAMED(cudaErrorStreamCaptureWrongThread,
          "attempt to terminate a thread-local capture sequence from another "
          "thread"),
};
#undef NAMED

const named *find(cudaError_t error)
{
    for (const named &n : names)
        if (n.error == error) return &n;
    return nullptr;
}

} // namespace

const char *cudaGetErrorName(cudaError_t error)
{
    const named *const n = find(error);
    return n == nullptr ? "unrecognized error code" : n->name;
}

const char *cudaGetErrorString(cudaError_t error)
{
    const named *const n = find(error);
    return n == nullptr ? "unrecognized error code" : n->text;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = simt::fault("no_driver")    ? 0
               : simt::fault("old_driver") ? 12000
                                           : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

// Leaves the count alone where it fails, as the real one does.
cudaError_t cudaGetDeviceCount(int *count)
{
    const cudaError_t error = simt::check_driver();
    if (error == cudaSuccess) *count = simt::device_count();
    return told(error);
}

cudaError_t cudaSetDevice(int device)
{
    const cudaError_t error = simt::check_driver();
    if (error != cudaSuccess) return told(error);
    if (device < 0 || device >= simt::device_count())
        return told(cudaErrorInvalidDevice);
    simt::current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = simt::current_device;
    return told(simt::check_driver());
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int device)
{
    const cudaError_t error = simt::check_driver();
    if (error != cudaSuccess) return told(error);
    if (device < 0 || device >= simt::device_count())
        return told(cudaErrorInvalidDevice);
    const int sm = simt::capability(device);
    const int optin = simt::shared_opt_in_max(sm);
    switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 * 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = 65536; break;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate: *value = 1000000; break;
    case cudaDevAttrMultiProcessorCount: *value = 4; break;
    case cudaDevAttrIntegrated: *value = 0; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 4096; break;
    case cudaDevAttrL2CacheSize: *value = 1 << 20; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 1536; break;
    case cudaDevAttrAsyncEngineCount: *value = 1; break;
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    case cudaDevAttrComputeCapabilityMajor: *value = sm / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = sm % 10; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = optin + 1024;
        break;
    // Blocks run one after the other, so none can wait for another.
    case cudaDevAttrCooperativeLaunch: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = optin; break;
    default: return told(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device)
{
    const cudaError_t error = simt::check_driver();
    if (error != cudaSuccess) return told(error);
    if (device < 0 || device >= simt::device_count())
        return told(cudaErrorInvalidDevice);
    const int sm = simt::capability(device);
    *prop = cudaDeviceProp();
    (void)snprintf(prop->name, sizeof prop->name, "emulated device");
    size_t free_bytes = 0;
    (void)cudaMemGetInfo(&free_bytes, &prop->totalGlobalMem);
    prop->sharedMemPerBlock = 48 * 1024;
    prop->sharedMemPerBlockOptin =
        static_cast<size_t>(simt::shared_opt_in_max(sm));
    prop->sharedMemPerMultiprocessor = prop->sharedMemPerBlockOptin + 1024;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024;
    prop->major = sm / 10;
    prop->minor = sm % 10;
    prop->multiProcessorCount = 4;
    prop->l2CacheSize = 1 << 20;
    prop->maxThreadsPerMultiProcessor = 1536;
    prop->memoryBusWidth = 4096;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attr,
                                 int value)
{
    const cudaError_t error = simt::check_driver();
    if (error != cudaSuccess) return told(error);
    if (kernel == nullptr) return told(cudaErrorInvalidDeviceFunction);
    if (attr == cudaFuncAttributePreferredSharedMemoryCarveout)
        return cudaSuccess;
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0)
        return told(cudaErrorInvalidValue);
    const int limit =
        simt::shared_opt_in_max(simt::capability(simt::current_device));
    simt::set_shared_limit(static_cast<size_t>(limit));
    return told(static_cast<cudaError_t>(
        simt::allow_shared(kernel, static_cast<size_t>(value))));
}
