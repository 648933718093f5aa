// graph.cc - captures and replays: see graph.h.
#include "kernels/cuda/graph.h"

#include "node/base/check.h"

namespace weft
{

namespace
{

void forget(graph_entry *entry)
{
    if (entry->exec != nullptr) (void)cudaGraphExecDestroy(entry->exec);
    entry->exec = nullptr;
}

void refuse(graph_entry *entry)
{
    forget(entry);
    entry->state = graph_state::refused;
    // What a capture did wrong is nothing that a plain run would.
    (void)cudaGetLastError();
}

// The key's entry; one that is not known takes a free place, or the place of
// the one that was not used for longest.
graph_entry *find(graphs *g, uint64_t key, bool *known_out)
{
    graph_entry *oldest = &g->entries[0];
    // The parts of a step were met one after the other, and come again so.
    for (int32_t i = 0; i < g->n; i++) {
        const int32_t at = (g->last + 1 + i) % g->n;
        graph_entry *const entry = &g->entries[at];
        *known_out = entry->key == key;
        if (*known_out) {
            g->last = at;
            return entry;
        }
        if (entry->used < oldest->used) oldest = entry;
    }
    *known_out = false;
    graph_entry *const place =
        g->n < WEFT_DEVICE_GRAPHS_MAX ? &g->entries[g->n++] : oldest;
    forget(place);
    g->last = static_cast<int32_t>(place - g->entries);
    *place = {key, 0, graph_state::seen, nullptr};
    return place;
}

// Ends the capture under way; its ops did not run. nullptr: it was not whole.
cudaGraphExec_t end_capture(queue *q, graphs *g)
{
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    g->capturing = false;
    const cudaError_t error = cudaStreamEndCapture(q->stream, &graph);
    if (error != cudaSuccess || graph == nullptr) return nullptr;
    if (q->error == cudaSuccess &&
        cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess)
        exec = nullptr;
    (void)cudaGraphDestroy(graph);
    return exec;
}

} // namespace

bool graph_begin(queue *q, graphs *g, uint64_t key)
{
    WEFT_ASSERT(!g->open);
    bool known = false;
    graph_entry *const entry = find(g, key, &known);
    entry->used = ++g->calls;
    // After an error nothing is begun; sync tells it.
    if (known && q->error == cudaSuccess) {
        if (entry->state == graph_state::ready) {
            if (cudaGraphLaunch(entry->exec, q->stream) == cudaSuccess)
                return true;
            refuse(entry);
        } else if (entry->state == graph_state::seen) {
            // Other threads go on as they like meanwhile: thread-local.
            g->capturing =
                cudaStreamBeginCapture(
                    q->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
            if (!g->capturing) refuse(entry);
        }
    }
    g->open = true;
    g->current = entry;
    return false;
}

bool graph_end(queue *q, graphs *g)
{
    WEFT_ASSERT(g->open);
    graph_entry *const entry = g->current;
    g->open = false;
    g->current = nullptr;
    if (!g->capturing) return true;
    entry->exec = end_capture(q, g);
    if (entry->exec != nullptr &&
        cudaGraphLaunch(entry->exec, q->stream) == cudaSuccess) {
        entry->state = graph_state::ready;
        return true;
    }
    // Begin would not have captured after an error, so this one is of an op
    // that a capture does not take, or will come again.
    q->error = cudaSuccess;
    refuse(entry);
    return false;
}

void graph_drop(queue *q, graphs *g)
{
    if (g->capturing) {
        const cudaGraphExec_t exec = end_capture(q, g);
        if (exec != nullptr) (void)cudaGraphExecDestroy(exec);
    }
    for (int32_t i = 0; i < g->n; i++) forget(&g->entries[i]);
    *g = graphs();
}

} // namespace weft
