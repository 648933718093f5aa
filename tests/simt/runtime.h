// runtime.h - how the stand-in for the CUDA runtime works inside, and what the
// emulator and other stand-ins call.
//
// Streams are lists of ops. An op runs on the thread that waits for it: at a
// synchronize (of its stream, an event, the device), at a query (which answers
// "not ready" once), before memory is freed. So host memory that changes too
// early, or is read too early, gives wrong data as it does on a device.
// WEFT_SIMT_LAZY=0 runs ops at once.
//
// Under the address sanitizer device memory is poisoned while nothing runs:
// host code that touches it is reported. Blocks have exactly the bytes asked
// for and begin as 0xff, which is NaN in every float type.
//
// WEFT_SIMT_FAULT orders one fault; counts start when the text changes:
//   no_driver, no_device, old_driver   what the first calls answer
//   old_arch      a device of compute capability 7.0, without kernels for it
//   memory[:N]    device allocations fail, from the N-th on
//   launch:N      the N-th launch is refused
//   async:N       the N-th kernel to run fails; the device is lost
//   capture, instantiate, replay       that step of graphs fails
//   blas          no cuBLASLt handle
// and those of the stand-in of NCCL (tests/simt/nccl/nccl.cc).
//
// WEFT_SIMT_MEMORY_BYTES (8 GiB), WEFT_SIMT_SM (80; 80,90: of two): a device.
// WEFT_SIMT_DEVICES (1): how many alike; what one of them loses is lost by all.
// Threads: any.
//
// A stream that talks to other processes (tests/simt/remote.h) has a thread of
// its own from then on, which runs its ops as they come, and queries of it only
// look: what it waits for may never happen.
#ifndef WEFT_TESTS_SIMT_RUNTIME_H
#define WEFT_TESTS_SIMT_RUNTIME_H

#include <cuda_runtime.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace simt
{

// For the emulator: queue a kernel. One that its configuration refuses makes
// the calling thread's last error (a cudaError_t).
void submit(void *stream, const char *name, std::function<void()> work);
void refuse(const char *name, int error);

struct op {
    const char *name;
    bool kernel; // one at a time in the process: shared memory is static
    std::function<void()> work;
    bool remote = false; // opens device memory by itself, as it waits long
    // Of a wait: for which record.
    std::shared_ptr<struct event_state> awaited = nullptr;
    uint64_t which = 0;
};
// Queue, capture or refuse; kernels and everything else alike.
cudaError_t push(cudaStream_t stream, op what);

// The fault that is ordered, if it is `kind` and, where it has a count, this is
// the N-th time of asking (`from`: or a later one).
bool fault(const char *kind, bool from = false);

// Sets the calling thread's last error and gives it back.
cudaError_t told(cudaError_t error);
// No API works after such an error; it is told by every call.
void lose_device(cudaError_t error);
cudaError_t lost();

// How many there are, and the calling thread's.
int device_count();
int device_here();

// Everything that exists and must be ended by whoever made it.
enum thing {
    BLOCK,
    HOST_BLOCK,
    STREAM,
    EVENT,
    GRAPH,
    EXEC,
    BLAS,
    COMM,
    THINGS
};
void count(thing what, int by);

// Under which the lists of streams and blocks are.
std::mutex &state();

// Whether [at, at + bytes) is inside one device block. state() is held.
bool on_device(const void *at, size_t bytes);
bool touches_device(const void *at);
// Between the two, device memory may be touched. state() is held.
void memory_open();
void memory_close();

// A call that may not be made while a capture of this thread (or a global one
// of another) goes on; such captures end as invalid. state() is not held.
cudaError_t check_safe();

// Runs everything that was queued on a device, or in one stream. Streams with a
// thread of their own are waited for.
void run_all(int device);
void run(cudaStream_t stream);
// From here on the stream has a thread of its own.
cudaError_t run_alone(cudaStream_t stream);
// Notified, under state(), when such a thread gets on or the device is lost.
std::condition_variable &progress();
// The stream itself, for nullptr the one of no name; nullptr: no such stream.
// state() is held.
cudaStream_t find_stream(cudaStream_t stream);

struct capture {
    std::vector<op> ops;
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    bool valid;
};

struct event_state {
    cudaStream_t stream = nullptr; // of the last record
    uint64_t recorded = 0, done = 0;
    int64_t time_ns = 0;
    bool captured = false, asked = false;
    bool alone = false; // of a stream with a thread of its own
};

} // namespace simt

struct CUstream_st {
    std::deque<simt::op> ops;
    std::shared_ptr<simt::capture> capture;
    std::condition_variable idle;
    bool busy = false; // a thread runs its ops
    int n_waiting = 0; // who waits for all streams, and has it in a list
    bool asked = false;
    bool blocking = true; // in order with the stream of no name
    int device = 0;
    // With a thread of its own, which ends with the stream.
    bool alone = false, ended = false;
    std::condition_variable wake;
};

struct CUevent_st {
    std::shared_ptr<simt::event_state> state;
    bool timing;
};

struct CUgraph_st {
    std::shared_ptr<simt::capture> recorded;
};

struct CUgraphExec_st {
    std::shared_ptr<simt::capture> recorded;
};

// Live things, for tests that look for leaks.
extern "C" __attribute__((visibility("default"))) int64_t weft_simt_live(void);

#endif
