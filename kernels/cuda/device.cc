// device.cc - the border of the library (kernels/device.h): a device, its
// memory, the threads that are bound to it, and what went wrong.
//
// Everything that ops need is taken by open: a stream, scratch and, where
// dense.h has a say, a cuBLASLt handle for each thread that will bind. Blocks
// that alloc gives are in a list, so that close can free them. Errors of
// launches and copies stay in the queue until sync; the first one stays for
// good, as the device is of no use then.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>

#include "kernels/cuda/bound.h"
#include "kernels/cuda/comm.h"
#include "node/base/check.h"
#include "node/base/err.h"
#include "node/base/mem.h"

// What kernels were compiled for; the build says it.
#if !defined(WEFT_CUDA_ARCHITECTURES)
#define WEFT_CUDA_ARCHITECTURES "sm_80 and up"
#endif

namespace
{

struct block {
    void *at;
    block *next;
    bool on_host;
};

} // namespace

struct weft_device {
    weft_device *next; // of the open ones
    uint64_t serial;
    int32_t index, n_devices, n_threads;
    int32_t sm, n_processors;
    pthread_mutex_t lock; // of blocks
    block *blocks;
    weft::bound threads[1]; // n_threads
};

namespace weft
{

namespace
{

// Smaller is no use to any op.
constexpr int64_t SCRATCH_BYTES_MIN = 1 << 20;
constexpr int32_t THREADS_MAX = 64;
// The toolkit's minor versions run with any driver of the same major one.
constexpr int32_t DRIVER_MIN = CUDART_VERSION / 1000 * 1000;
constexpr int32_t SM_MIN = 80;

// Under `open_lock`: the open devices, and who is bound. A thread's place may
// be gone with its device: the serial tells.
pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
weft_device *open_devices;
uint64_t serials;

struct place {
    weft_device *device;
    uint64_t serial;
    bound *at;
};
thread_local place here;

weft_status fail_cuda(weft_err *err, weft_status st, const char *what,
                      cudaError_t error)
{
    return WEFT_FAIL(err, st, "%s: %s (%s)", what, cudaGetErrorString(error),
                     cudaGetErrorName(error));
}

// In words, and what is needed.
weft_status count_devices(int *n_out, weft_err *err)
{
    int driver = 0;
    *n_out = 0; // stays where the call fails
    (void)cudaDriverGetVersion(&driver);
    const cudaError_t error = cudaGetDeviceCount(n_out);
    (void)cudaGetLastError();
    if (error == cudaErrorInsufficientDriver && driver == 0)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE,
                         "no NVIDIA driver on this machine (CUDA %d.0 or later "
                         "is needed)",
                         (int)(DRIVER_MIN / 1000));
    if (error == cudaErrorInsufficientDriver)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE,
                         "the NVIDIA driver is for CUDA %d.%d, and %d.0 or "
                         "later is needed",
                         driver / 1000, driver % 1000 / 10,
                         (int)(DRIVER_MIN / 1000));
    if (error == cudaErrorNoDevice || (error == cudaSuccess && *n_out == 0))
        return WEFT_FAIL(err, WEFT_UNAVAILABLE,
                         "no NVIDIA device on this machine");
    if (error != cudaSuccess)
        return fail_cuda(err, WEFT_UNAVAILABLE, "counting devices", error);
    return WEFT_OK;
}

weft_status check_options(const weft_device_options *o, int n_devices,
                          weft_err *err)
{
    if (o->index < 0 || o->index >= n_devices)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "device %d: this machine has %d, counted from 0",
                         (int)o->index, n_devices);
    if (o->scratch_bytes < SCRATCH_BYTES_MIN)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "scratch of %lld bytes: at least %lld are needed",
                         (long long)o->scratch_bytes,
                         (long long)SCRATCH_BYTES_MIN);
    if (o->threads_max < 1 || o->threads_max > THREADS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%d threads: 1 to %d can be bound",
                         (int)o->threads_max, (int)THREADS_MAX);
    return WEFT_OK;
}

int attribute(cudaDeviceAttr attr, int index)
{
    int value = 0;
    (void)cudaDeviceGetAttribute(&value, attr, index);
    return value;
}

weft_status fail_memory(weft_device *d, const char *what, int64_t bytes,
                        cudaError_t error, weft_err *err)
{
    (void)cudaGetLastError();
    if (error != cudaErrorMemoryAllocation)
        return fail_cuda(err, WEFT_INTERNAL, what, error);
    size_t free_bytes = 0, total = 0;
    (void)cudaMemGetInfo(&free_bytes, &total);
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "device %d: %s: %lld bytes wanted, %lld of %lld free",
                     (int)d->index, what, (long long)bytes,
                     (long long)free_bytes, (long long)total);
}

weft_status open_thread(weft_device *d, bound *b, int64_t scratch_bytes,
                        weft_err *err)
{
    b->device = d;
    b->q.sm = d->sm;
    b->q.n_processors = d->n_processors;
    cudaError_t error =
        cudaStreamCreateWithFlags(&b->q.stream, cudaStreamNonBlocking);
    if (error != cudaSuccess)
        return fail_cuda(err, WEFT_UNAVAILABLE, "making a stream", error);
    void *scratch = nullptr;
    error = cudaMalloc(&scratch, static_cast<size_t>(scratch_bytes));
    if (error != cudaSuccess)
        return fail_memory(d, "scratch", scratch_bytes, error, err);
    b->q.scratch = static_cast<unsigned char *>(scratch);
    b->q.scratch_bytes = scratch_bytes;
#if defined(WEFT_CUDA_DENSE)
    const cublasStatus_t status = cublasLtCreate(&b->q.blas);
    if (status != CUBLAS_STATUS_SUCCESS)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "making a cuBLASLt handle: %s",
                         cublasLtGetStatusName(status));
#endif
    return WEFT_OK;
}

void close_thread(bound *b)
{
    if (b->q.stream != nullptr) {
        graph_drop(&b->q, &b->graph);
        (void)cudaStreamSynchronize(b->q.stream);
    }
#if defined(WEFT_CUDA_DENSE)
    if (b->q.blas != nullptr) (void)cublasLtDestroy(b->q.blas);
#endif
    (void)cudaFree(b->q.scratch);
    if (b->q.stream != nullptr) (void)cudaStreamDestroy(b->q.stream);
}

// A device is usable when the smallest kernel ran on it.
weft_status check_kernels(weft_device *d, weft_err *err)
{
    queue *const q = &d->threads[0].q;
    cudaError_t error = cudaSuccess;
    if (d->sm >= SM_MIN) {
        launch_probe(q);
        error = q->error != cudaSuccess ? q->error
                                        : cudaStreamSynchronize(q->stream);
    }
    if (d->sm < SM_MIN || error == cudaErrorNoKernelImageForDevice)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE,
                         "device %d is sm_%d: this build has kernels for %s",
                         (int)d->index, (int)d->sm, WEFT_CUDA_ARCHITECTURES);
    if (error != cudaSuccess)
        return fail_cuda(err, WEFT_UNAVAILABLE, "the first kernel", error);
    return WEFT_OK;
}

void close(weft_device *device)
{
    if (device == nullptr) return;
    comm_forget(device);
    pthread_mutex_lock(&open_lock);
    for (weft_device **at = &open_devices; *at != nullptr; at = &(*at)->next) {
        if (*at != device) continue;
        *at = device->next;
        break;
    }
    pthread_mutex_unlock(&open_lock);
    if (here.device == device) here = place();
    const on_device turn(device->index);
    for (int32_t i = 0; i < device->n_threads; i++)
        close_thread(&device->threads[i]);
    while (device->blocks != nullptr) {
        block *const b = device->blocks;
        device->blocks = b->next;
        (void)(b->on_host ? cudaFreeHost(b->at) : cudaFree(b->at));
        weft_mem_free(b);
    }
    // What happened to it is not the next device's.
    (void)cudaGetLastError();
    pthread_mutex_destroy(&device->lock);
    weft_mem_free(device);
}

weft_status open(const weft_device_options *options, weft_device **device_out,
                 weft_err *err)
{
    int n_devices = 0;
    // As many queues as there are, or comms wait in those of others
    // (node/docs/adr/0011). Read by the driver's first call.
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    WEFT_TRY(count_devices(&n_devices, err));
    WEFT_TRY(check_options(options, n_devices, err));
    const on_device turn(options->index);
    if (turn.error != cudaSuccess)
        return fail_cuda(err, WEFT_UNAVAILABLE, "taking the device",
                         turn.error);
    const size_t n = static_cast<size_t>(options->threads_max);
    weft_device *const d = static_cast<weft_device *>(
        weft_mem_new(1, sizeof(weft_device) + (n - 1) * sizeof(bound)));
    if (d == nullptr)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory");
    pthread_mutex_init(&d->lock, nullptr);
    d->index = options->index;
    d->n_devices = n_devices;
    d->sm = attribute(cudaDevAttrComputeCapabilityMajor, d->index) * 10 +
            attribute(cudaDevAttrComputeCapabilityMinor, d->index);
    d->n_processors = attribute(cudaDevAttrMultiProcessorCount, d->index);
    d->n_threads = options->threads_max;
    weft_status st = WEFT_OK;
    for (int32_t i = 0; i < d->n_threads && st == WEFT_OK; i++)
        st = open_thread(d, &d->threads[i], options->scratch_bytes, err);
    if (st == WEFT_OK) st = check_kernels(d, err);
    if (st != WEFT_OK) {
        close(d);
        return st;
    }
    pthread_mutex_lock(&open_lock);
    d->serial = ++serials;
    d->next = open_devices;
    open_devices = d;
    pthread_mutex_unlock(&open_lock);
    *device_out = d;
    return WEFT_OK;
}

void get_info(weft_device *d, weft_device_info *out)
{
    weft_device_info info = {};
    cudaDeviceProp prop;
    int driver = 0, runtime = 0;
    size_t free_bytes = 0, total = 0;
    const on_device turn(d->index);
    if (cudaGetDeviceProperties(&prop, d->index) == cudaSuccess)
        (void)snprintf(info.name, sizeof info.name, "%.63s", prop.name);
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    (void)cudaMemGetInfo(&free_bytes, &total);
    info.index = d->index;
    info.n_devices = d->n_devices;
    info.sm = d->sm;
    info.n_processors = d->n_processors;
    info.total_bytes = static_cast<int64_t>(total);
    info.free_bytes = static_cast<int64_t>(free_bytes);
    info.driver = driver;
    info.runtime = runtime;
    *out = info;
}

// Memory. -------------------------------------------------------------------

weft_status take(weft_device *d, int64_t bytes, bool on_host, void **at_out,
                 weft_err *err)
{
    WEFT_ASSERT(bytes >= 0);
    block *const b = static_cast<block *>(weft_mem_new(1, sizeof(block)));
    if (b == nullptr)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory");
    const on_device turn(d->index);
    const size_t n = static_cast<size_t>(bytes);
    const cudaError_t error =
        on_host ? cudaMallocHost(&b->at, n) : cudaMalloc(&b->at, n);
    if (error != cudaSuccess) {
        weft_mem_free(b);
        if (!on_host) return fail_memory(d, "memory", bytes, error, err);
        (void)cudaGetLastError();
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "pinned host memory: %lld bytes wanted: %s",
                         (long long)bytes, cudaGetErrorString(error));
    }
    void *const at = b->at;
    if (at == nullptr) { // of no bytes
        weft_mem_free(b);
    } else {
        pthread_mutex_lock(&d->lock);
        b->on_host = on_host;
        b->next = d->blocks;
        d->blocks = b;
        pthread_mutex_unlock(&d->lock);
    }
    *at_out = at;
    return WEFT_OK;
}

void give(weft_device *d, bool on_host, void *at)
{
    if (at == nullptr) return;
    block *found = nullptr;
    pthread_mutex_lock(&d->lock);
    for (block **b = &d->blocks; *b != nullptr; b = &(*b)->next) {
        if ((*b)->at != at || (*b)->on_host != on_host) continue;
        found = *b;
        *b = found->next;
        break;
    }
    pthread_mutex_unlock(&d->lock);
    WEFT_ASSERT(found != nullptr);
    weft_mem_free(found);
    const on_device turn(d->index);
    (void)(on_host ? cudaFreeHost(at) : cudaFree(at));
}

weft_status alloc(weft_device *d, int64_t bytes, void **at_out, weft_err *err)
{
    return take(d, bytes, false, at_out, err);
}

void free_device(weft_device *d, void *at)
{
    give(d, false, at);
}

weft_status alloc_host(weft_device *d, int64_t bytes, void **at_out,
                       weft_err *err)
{
    return take(d, bytes, true, at_out, err);
}

void free_host(weft_device *d, void *at)
{
    give(d, true, at);
}

// Threads. ------------------------------------------------------------------

// Under open_lock.
bool is_open(const weft_device *device, uint64_t serial)
{
    for (const weft_device *d = open_devices; d != nullptr; d = d->next)
        if (d == device && d->serial == serial) return true;
    return false;
}

// What the thread began is done before another thread can have the place.
void unbind()
{
    if (here.at == nullptr) return;
    pthread_mutex_lock(&open_lock);
    const bool open = is_open(here.device, here.serial);
    pthread_mutex_unlock(&open_lock);
    if (open) {
        graph_drop(&here.at->q, &here.at->graph);
        (void)cudaStreamSynchronize(here.at->q.stream);
        pthread_mutex_lock(&open_lock);
        here.at->taken = false;
        pthread_mutex_unlock(&open_lock);
    }
    here = place();
}

weft_status bind(weft_device *d, weft_err *err)
{
    if (d != nullptr && here.device == d && here.serial == d->serial)
        return WEFT_OK;
    unbind();
    if (d == nullptr) return WEFT_OK;
    const cudaError_t error = cudaSetDevice(d->index);
    if (error != cudaSuccess)
        return fail_cuda(err, WEFT_INTERNAL, "binding a thread", error);
    bound *at = nullptr;
    pthread_mutex_lock(&open_lock);
    for (int32_t i = 0; i < d->n_threads && at == nullptr; i++)
        if (!d->threads[i].taken) at = &d->threads[i];
    if (at != nullptr) at->taken = true;
    pthread_mutex_unlock(&open_lock);
    if (at == nullptr)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "device %d: %d threads are bound, and no more can be",
                         (int)d->index, (int)d->n_threads);
    here = {d, d->serial, at};
    return WEFT_OK;
}

// Copies and waiting. -------------------------------------------------------

void copy_kind(void *to, const void *from, int64_t bytes, cudaMemcpyKind kind,
               const char *what)
{
    bound *const b = bound_here();
    queue *const q = &b->q;
    // A replay would look at host memory that may be gone by then.
    WEFT_ASSERT(kind == cudaMemcpyDeviceToDevice || !b->graph.open);
    if (bytes == 0) return;
    (void)cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind,
                          q->stream);
    note(q, what);
}

void upload(void *to, const void *from, int64_t bytes)
{
    copy_kind(to, from, bytes, cudaMemcpyHostToDevice, "upload");
}

void download(void *to, const void *from, int64_t bytes)
{
    copy_kind(to, from, bytes, cudaMemcpyDeviceToHost, "download");
}

void copy(void *to, const void *from, int64_t bytes)
{
    copy_kind(to, from, bytes, cudaMemcpyDeviceToDevice, "copy");
}

void fill(void *to, int byte, int64_t bytes)
{
    queue *const q = &bound_here()->q;
    if (bytes == 0) return;
    (void)cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), q->stream);
    note(q, "fill");
}

weft_status sync(weft_err *err)
{
    bound *const b = bound_here();
    WEFT_ASSERT(!b->graph.open);
    queue *const q = &b->q;
    const cudaError_t error = cudaStreamSynchronize(q->stream);
    if (q->error == cudaSuccess && error != cudaSuccess) {
        // Which op it was, nobody can say; `failed` has the last.
        char last[sizeof q->failed];
        (void)snprintf(last, sizeof last, "%s", q->failed);
        (void)snprintf(q->failed, sizeof q->failed, "an op up to %.40s", last);
        q->error = error;
    }
    if (q->error == cudaSuccess) return WEFT_OK;
    return fail_cuda(err, WEFT_INTERNAL, q->failed, q->error);
}

bool begin_graph(uint64_t key)
{
    bound *const b = bound_here();
    return graph_begin(&b->q, &b->graph, key);
}

bool end_graph(void)
{
    bound *const b = bound_here();
    return graph_end(&b->q, &b->graph);
}

void drop_graphs(void)
{
    bound *const b = bound_here();
    graph_drop(&b->q, &b->graph);
}

} // namespace

int device_index(const weft_device *device)
{
    return device->index;
}

int32_t device_processors(const weft_device *device)
{
    return device->n_processors;
}

bound *bound_here()
{
    WEFT_ASSERT(here.at != nullptr);
    return here.at;
}

// Of a queue without an error `failed` has the op that came last.
void note(queue *q, const char *op)
{
    const cudaError_t error = cudaGetLastError();
    if (q->error != cudaSuccess) return;
    q->error = error;
    // Once for each op of a step, so without printf.
    (void)memccpy(q->failed, op, 0, sizeof q->failed - 1);
}

} // namespace weft

static const weft_device_api api = {
    WEFT_DEVICE_ABI,
#if defined(WEFT_SIMT)
    "simt",
    "simt-1",
#else
    "cuda",
#if defined(WEFT_CUDA_DENSE)
    "cuda-1-blas",
#else
    "cuda-1",
#endif
#endif
    weft::open,
    weft::close,
    weft::get_info,
    weft::alloc,
    weft::free_device,
    weft::alloc_host,
    weft::free_host,
    weft::bind,
    weft::upload,
    weft::download,
    weft::copy,
    weft::fill,
    weft::sync,
    weft::begin_graph,
    weft::end_graph,
    weft::drop_graphs,
    weft::comm_table,
    &weft::table,
};

extern "C" __attribute__((visibility("default"))) const weft_device_api *
weft_device_get(uint32_t abi)
{
    return abi == WEFT_DEVICE_ABI ? &api : nullptr;
}
