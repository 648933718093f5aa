// runtime_graph.cc - captures of one stream and their replay: the rules of
// cudaStreamBeginCapture and cudaThreadExchangeStreamCaptureMode as the manual
// of the CUDA runtime has them.
#include "tests/simt/runtime.h"

#include <algorithm>

namespace simt
{

namespace
{

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// Under way. Under state().
std::vector<std::shared_ptr<capture>> &captures()
{
    static std::vector<std::shared_ptr<capture>> it;
    return it;
}

} // namespace

cudaError_t check_safe()
{
    if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    const std::lock_guard<std::mutex> hold(state());
    bool safe = true;
    for (const auto &c : captures()) {
        const bool own = c->thread == std::this_thread::get_id() &&
                         c->mode != cudaStreamCaptureModeRelaxed;
        const bool everywhere = c->mode == cudaStreamCaptureModeGlobal &&
                                thread_mode == cudaStreamCaptureModeGlobal;
        if (!own && !everywhere) continue;
        c->valid = false;
        safe = false;
    }
    return safe ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
}

} // namespace simt

using simt::told;

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
    std::swap(*mode, simt::thread_mode);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                   cudaStreamCaptureMode mode)
{
    if (simt::lost() != cudaSuccess) return simt::lost();
    if (stream == nullptr) return told(cudaErrorStreamCaptureUnsupported);
    const std::lock_guard<std::mutex> hold(simt::state());
    if (simt::find_stream(stream) == nullptr)
        return told(cudaErrorInvalidResourceHandle);
    if (stream->capture != nullptr) return told(cudaErrorIllegalState);
    stream->capture = std::make_shared<simt::capture>();
    stream->capture->mode = mode;
    stream->capture->thread = std::this_thread::get_id();
    stream->capture->valid = true;
    simt::captures().push_back(stream->capture);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = nullptr;
    if (simt::lost() != cudaSuccess) return simt::lost();
    const bool broken = simt::fault("capture");
    const std::lock_guard<std::mutex> hold(simt::state());
    if (stream == nullptr || simt::find_stream(stream) == nullptr)
        return told(cudaErrorInvalidResourceHandle);
    const std::shared_ptr<simt::capture> c = stream->capture;
    if (c == nullptr) return told(cudaErrorIllegalState);
    if (c->mode != cudaStreamCaptureModeRelaxed &&
        c->thread != std::this_thread::get_id())
        return told(cudaErrorStreamCaptureWrongThread);
    auto &all = simt::captures();
    all.erase(std::find(all.begin(), all.end(), c));
    stream->capture = nullptr;
    if (!c->valid || broken) return told(cudaErrorStreamCaptureInvalidated);
    *graph = new CUgraph_st{c};
    simt::count(simt::GRAPH, 1);
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                  cudaStreamCaptureStatus *status)
{
    const std::lock_guard<std::mutex> hold(simt::state());
    const cudaStream_t at = simt::find_stream(stream);
    if (at == nullptr) return told(cudaErrorInvalidResourceHandle);
    *status = at->capture == nullptr ? cudaStreamCaptureStatusNone
              : at->capture->valid   ? cudaStreamCaptureStatusActive
                                     : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
}

// Their number alone: nodes cannot be looked at.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes,
                              size_t *n)
{
    if (graph == nullptr || nodes != nullptr)
        return told(cudaErrorInvalidValue);
    *n = graph->recorded->ops.size();
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    if (graph == nullptr) return told(cudaErrorInvalidValue);
    simt::count(simt::GRAPH, -1);
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags)
{
    if (simt::lost() != cudaSuccess) return simt::lost();
    if (graph == nullptr || flags != 0) return told(cudaErrorInvalidValue);
    *exec = nullptr;
    if (simt::fault("instantiate")) return told(cudaErrorMemoryAllocation);
    *exec = new CUgraphExec_st{graph->recorded};
    simt::count(simt::EXEC, 1);
    return cudaSuccess;
}

// Ops go on the stream one by one, each with its own look at faults.
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    if (exec == nullptr) return told(cudaErrorInvalidValue);
    if (simt::fault("replay")) return told(cudaErrorLaunchOutOfResources);
    const std::shared_ptr<simt::capture> recorded = exec->recorded;
    for (const simt::op &one : recorded->ops) {
        const cudaError_t error = simt::push(stream, one);
        if (error != cudaSuccess) return told(error);
    }
    return told(simt::lost());
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    if (exec == nullptr) return told(cudaErrorInvalidValue);
    simt::count(simt::EXEC, -1);
    delete exec;
    return cudaSuccess;
}
