// runtime_stream.cc - streams and events of the stand-in: ops wait in lists
// until somebody waits for them (runtime.h).
#include "tests/simt/remote.h"
#include "tests/simt/runtime.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace simt
{

namespace
{

struct streams {
    std::vector<cudaStream_t> all;
    CUstream_st unnamed;
    std::mutex kernels; // one runs at a time
};
streams &list()
{
    // Never ended: threads of streams may outlive main.
    static streams *const it = new streams;
    return *it;
}

bool is_lazy()
{
    const char *const text = getenv("WEFT_SIMT_LAZY");
    return text == nullptr || strcmp(text, "0") != 0;
}

int64_t clock_ns()
{
    timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// What failed before leaves nothing more to run.
void run_one(const op &what)
{
    if (lost() != cudaSuccess) return;
    if (!what.kernel) {
        what.work();
        return;
    }
    const std::lock_guard<std::mutex> hold(list().kernels);
    if (fault("async"))
        lose_device(cudaErrorIllegalAddress);
    else
        what.work();
}

// Runs ops until `enough`, or none is left. Another thread may be at it: then
// this one waits for it.
template <typename F> void run_until(cudaStream_t stream, const F &enough)
{
    std::unique_lock<std::mutex> hold(state());
    memory_open();
    for (;;) {
        stream->idle.wait(hold, [&] { return !stream->busy || enough(); });
        if (enough() || stream->ops.empty()) break;
        const op what = std::move(stream->ops.front());
        stream->ops.pop_front();
        stream->busy = true;
        hold.unlock();
        run_one(what);
        hold.lock();
        stream->busy = false;
        stream->idle.notify_all();
    }
    memory_close();
}

// The thread of a stream that has one; it outlives the stream until what was
// queued is done, as work on a device does.
void run_forever(cudaStream_t stream)
{
    std::unique_lock<std::mutex> hold(state());
    for (;;) {
        stream->wake.wait(
            hold, [&] { return stream->ended || !stream->ops.empty(); });
        if (stream->ops.empty()) break;
        {
            const op what = std::move(stream->ops.front());
            stream->ops.pop_front();
            stream->busy = true;
            if (!what.remote) memory_open();
            hold.unlock();
            if (what.remote)
                what.work(); // ends by itself where the device was lost
            else
                run_one(what);
            hold.lock();
            if (!what.remote) memory_close();
        }
        stream->busy = false;
        progress().notify_all();
    }
    progress().wait(hold, [stream] { return stream->n_waiting == 0; });
    hold.unlock();
    delete stream;
}

// Nothing of it is left to run. state() is held.
bool is_drained(cudaStream_t stream)
{
    return stream->ops.empty() && !stream->busy;
}

// Whether the op at the front waits for what no thread here can bring about.
// state() is held.
bool is_stuck(cudaStream_t stream)
{
    if (stream->ops.empty()) return false;
    const op &front = stream->ops.front();
    return front.awaited != nullptr && front.awaited->alone &&
           front.awaited->done < front.which;
}

// Runs what can be without waiting for others; `event` too, up to its record.
void run_some(cudaStream_t stream, const std::shared_ptr<event_state> &event)
{
    {
        const std::lock_guard<std::mutex> hold(state());
        if (stream->alone || stream->busy) return;
    }
    run_until(stream, [&] {
        return is_stuck(stream) ||
               (event != nullptr && event->done >= event->recorded);
    });
}

// Streams that must be done before an op of `stream` may run: the stream of no
// name and blocking ones are in one order.
std::vector<cudaStream_t> before(cudaStream_t stream)
{
    std::vector<cudaStream_t> out;
    streams &s = list();
    if (stream != &s.unnamed) {
        if (stream->blocking && !s.unnamed.ops.empty())
            out.push_back(&s.unnamed);
        return out;
    }
    for (const cudaStream_t other : s.all)
        if (other->blocking && !other->ops.empty()) out.push_back(other);
    return out;
}

} // namespace

cudaStream_t find_stream(cudaStream_t stream)
{
    streams &s = list();
    if (stream == nullptr) return &s.unnamed;
    return std::find(s.all.begin(), s.all.end(), stream) == s.all.end()
               ? nullptr
               : stream;
}

std::condition_variable &progress()
{
    static std::condition_variable *const it = new std::condition_variable;
    return *it;
}

void run(cudaStream_t stream)
{
    {
        std::unique_lock<std::mutex> hold(state());
        if (stream->alone) {
            progress().wait(hold, [stream] {
                return is_drained(stream) || lost() != cudaSuccess;
            });
            return;
        }
    }
    run_until(stream, [] { return false; });
}

void run_all(int device)
{
    std::vector<cudaStream_t> all;
    {
        const std::lock_guard<std::mutex> hold(state());
        for (const cudaStream_t stream : list().all)
            if (stream->device == device) all.push_back(stream);
        all.push_back(&list().unnamed);
        // Another thread may destroy one meanwhile.
        for (const cudaStream_t stream : all) stream->n_waiting++;
    }
    for (const cudaStream_t stream : all) run(stream);
    const std::lock_guard<std::mutex> hold(state());
    for (const cudaStream_t stream : all) stream->n_waiting--;
    progress().notify_all();
}

cudaError_t run_alone(cudaStream_t stream)
{
    const std::lock_guard<std::mutex> hold(state());
    const cudaStream_t found = find_stream(stream);
    if (found == nullptr || found == &list().unnamed || found->blocking)
        return cudaErrorInvalidResourceHandle;
    if (found->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    if (found->alone) return cudaSuccess;
    found->alone = true;
    std::thread(run_forever, found).detach();
    return cudaSuccess;
}

cudaError_t push(cudaStream_t stream, op what)
{
    if (lost() != cudaSuccess) return lost();
    std::vector<cudaStream_t> first;
    {
        const std::lock_guard<std::mutex> hold(state());
        stream = find_stream(stream);
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        if (stream->capture != nullptr) {
            if (!stream->capture->valid)
                return cudaErrorStreamCaptureInvalidated;
            stream->capture->ops.push_back(std::move(what));
            return cudaSuccess;
        }
        first = before(stream);
    }
    for (const cudaStream_t other : first) run(other);
    {
        const std::lock_guard<std::mutex> hold(state());
        stream->ops.push_back(std::move(what));
        stream->asked = false;
        stream->wake.notify_one();
        if (stream->alone) return cudaSuccess;
    }
    if (!is_lazy()) run(stream);
    return cudaSuccess;
}

void submit(void *stream, const char *name, std::function<void()> work)
{
    int n = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error == cudaSuccess && fault("old_arch"))
        error = cudaErrorNoKernelImageForDevice;
    if (error == cudaSuccess && fault("launch"))
        error = cudaErrorLaunchOutOfResources;
    if (error == cudaSuccess && stream != nullptr) {
        const std::lock_guard<std::mutex> hold(state());
        const cudaStream_t at = find_stream(static_cast<cudaStream_t>(stream));
        if (at != nullptr && at->device != device_here())
            error = cudaErrorInvalidResourceHandle;
    }
    if (error == cudaSuccess)
        error = push(static_cast<cudaStream_t>(stream),
                     {name, true, std::move(work)});
    (void)told(error);
}

namespace
{

cudaError_t stream_create(cudaStream_t *stream, bool blocking)
{
    int n = 0;
    const cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess) return error;
    *stream = new CUstream_st;
    (*stream)->blocking = blocking;
    (*stream)->device = device_here();
    const std::lock_guard<std::mutex> hold(state());
    list().all.push_back(*stream);
    count(STREAM, 1);
    return cudaSuccess;
}

// The stream, if it may be waited for: a wait inside of a capture ends it.
cudaError_t waitable(cudaStream_t *stream)
{
    if (lost() != cudaSuccess) return lost();
    {
        const std::lock_guard<std::mutex> hold(state());
        *stream = find_stream(*stream);
        if (*stream == nullptr) return cudaErrorInvalidResourceHandle;
        if ((*stream)->capture != nullptr) {
            (*stream)->capture->valid = false;
            return cudaErrorStreamCaptureUnsupported;
        }
    }
    return check_safe();
}

} // namespace
} // namespace simt

using simt::told;

cudaError_t cudaDeviceSynchronize(void)
{
    if (simt::lost() != cudaSuccess) return simt::lost();
    const cudaError_t unsafe = simt::check_safe();
    if (unsafe != cudaSuccess) return told(unsafe);
    simt::run_all(simt::device_here());
    return told(simt::lost());
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return told(simt::stream_create(stream, true));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    if (flags > cudaStreamNonBlocking) return told(cudaErrorInvalidValue);
    return told(simt::stream_create(stream, flags != cudaStreamNonBlocking));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags,
                                         int priority)
{
    (void)priority;
    return cudaStreamCreateWithFlags(stream, flags);
}

// What is queued is done before the stream goes; one with a thread of its own
// goes when that has done it.
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    {
        const std::lock_guard<std::mutex> hold(simt::state());
        if (stream == nullptr || simt::find_stream(stream) == nullptr)
            return told(cudaErrorInvalidResourceHandle);
        if (stream->alone) {
            auto &all = simt::list().all;
            all.erase(std::find(all.begin(), all.end(), stream));
            simt::count(simt::STREAM, -1);
            stream->ended = true;
            stream->wake.notify_one();
            return told(simt::lost());
        }
    }
    simt::run(stream);
    {
        std::unique_lock<std::mutex> hold(simt::state());
        auto &all = simt::list().all;
        all.erase(std::find(all.begin(), all.end(), stream));
        simt::count(simt::STREAM, -1);
        simt::progress().wait(hold,
                              [stream] { return stream->n_waiting == 0; });
    }
    delete stream;
    return told(simt::lost());
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    const cudaError_t error = simt::waitable(&stream);
    if (error != cudaSuccess) return told(error);
    simt::run(stream);
    return told(simt::lost());
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    const cudaError_t error = simt::waitable(&stream);
    if (error != cudaSuccess) return told(error);
    bool first = false;
    {
        const std::lock_guard<std::mutex> hold(simt::state());
        first = !stream->ops.empty() && !stream->asked;
        stream->asked = true;
    }
    simt::run_some(stream, nullptr);
    if (simt::lost() != cudaSuccess) return simt::lost();
    const std::lock_guard<std::mutex> hold(simt::state());
    return first || !simt::is_drained(stream) ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg)
{
    return told(
        simt::push(stream, {"host function", false, [fn, arg] { fn(arg); }}));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    int n = 0;
    const cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess) return error;
    if ((flags & ~(cudaEventBlockingSync | cudaEventDisableTiming)) != 0)
        return told(cudaErrorInvalidValue);
    *event = new CUevent_st{std::make_shared<simt::event_state>(),
                            (flags & cudaEventDisableTiming) == 0};
    simt::count(simt::EVENT, 1);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

// Ops hold the state that they need.
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (event == nullptr) return told(cudaErrorInvalidResourceHandle);
    simt::count(simt::EVENT, -1);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    if (event == nullptr) return told(cudaErrorInvalidResourceHandle);
    const std::shared_ptr<simt::event_state> state = event->state;
    uint64_t which = 0;
    {
        const std::lock_guard<std::mutex> hold(simt::state());
        stream = simt::find_stream(stream);
        if (stream == nullptr) return told(cudaErrorInvalidResourceHandle);
        state->captured = stream->capture != nullptr;
        state->asked = false;
        if (state->captured)
            return told(stream->capture->valid
                            ? cudaSuccess
                            : cudaErrorStreamCaptureInvalidated);
        state->stream = stream;
        state->alone = stream->alone;
        which = ++state->recorded;
    }
    return told(simt::push(stream == &simt::list().unnamed ? nullptr : stream,
                           {"event", false, [state, which] {
                                const std::lock_guard<std::mutex> hold(
                                    simt::state());
                                state->done = which;
                                state->time_ns = simt::clock_ns();
                            }}));
}

namespace simt
{

namespace
{

// Until the record of that number was run.
void run_to(const std::shared_ptr<event_state> &event, uint64_t which)
{
    cudaStream_t stream = nullptr;
    {
        std::unique_lock<std::mutex> hold(state());
        if (event->stream == nullptr) return;
        stream = find_stream(event->stream);
        if (stream != nullptr) event->alone |= stream->alone;
        if (event->alone)
            progress().wait(hold, [&] {
                return event->done >= which || lost() != cudaSuccess;
            });
        if (event->alone || event->done >= which || stream == nullptr) return;
    }
    run_until(stream, [&] { return event->done >= which; });
}

} // namespace
} // namespace simt

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned flags)
{
    if (event == nullptr || flags != 0) return told(cudaErrorInvalidValue);
    const std::shared_ptr<simt::event_state> state = event->state;
    uint64_t which = 0;
    {
        const std::lock_guard<std::mutex> hold(simt::state());
        const cudaStream_t at = simt::find_stream(stream);
        if (at == nullptr) return told(cudaErrorInvalidResourceHandle);
        // A capture of one stream: waiting for itself is nothing, and joining
        // others to it is not provided.
        if (at->capture != nullptr && state->captured) return cudaSuccess;
        if (at->capture != nullptr) {
            at->capture->valid = false;
            return told(cudaErrorStreamCaptureIsolation);
        }
        if (state->captured) return told(cudaErrorNotSupported);
        which = state->recorded;
    }
    const auto wait = [state, which] { simt::run_to(state, which); };
    return told(simt::push(stream, {"wait", false, wait, false, state, which}));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (simt::lost() != cudaSuccess) return simt::lost();
    if (event == nullptr) return told(cudaErrorInvalidResourceHandle);
    if (event->state->captured) return told(cudaErrorCapturedEvent);
    const cudaError_t unsafe = simt::check_safe();
    if (unsafe != cudaSuccess) return told(unsafe);
    simt::run_to(event->state, event->state->recorded);
    return told(simt::lost());
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (simt::lost() != cudaSuccess) return simt::lost();
    if (event == nullptr) return told(cudaErrorInvalidResourceHandle);
    if (event->state->captured) return told(cudaErrorCapturedEvent);
    const cudaError_t unsafe = simt::check_safe();
    if (unsafe != cudaSuccess) return told(unsafe);
    bool first = false;
    cudaStream_t stream = nullptr;
    simt::event_state &state = *event->state;
    {
        const std::lock_guard<std::mutex> hold(simt::state());
        first = state.done < state.recorded && !state.asked;
        state.asked = true;
        if (state.stream != nullptr) stream = simt::find_stream(state.stream);
    }
    if (stream != nullptr) simt::run_some(stream, event->state);
    if (simt::lost() != cudaSuccess) return simt::lost();
    const std::lock_guard<std::mutex> hold(simt::state());
    return first || state.done < state.recorded ? cudaErrorNotReady
                                                : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    if (start == nullptr || end == nullptr || !start->timing || !end->timing)
        return told(cudaErrorInvalidResourceHandle);
    const std::lock_guard<std::mutex> hold(simt::state());
    const simt::event_state &a = *start->state, &b = *end->state;
    if (a.recorded == 0 || b.recorded == 0)
        return told(cudaErrorInvalidResourceHandle);
    if (a.done < a.recorded || b.done < b.recorded) return cudaErrorNotReady;
    *ms = static_cast<float>(b.time_ns - a.time_ns) * 1e-6F;
    return cudaSuccess;
}

int weft_simt_push(void *stream, const char *name, void (*work)(void *),
                   void *arg)
{
    const cudaStream_t on = static_cast<cudaStream_t>(stream);
    const cudaError_t error = simt::run_alone(on);
    if (error != cudaSuccess) return error;
    return simt::push(on, {name, false, [work, arg] { work(arg); }, true});
}
