// graph.h - the ops of a step as one launch: what graph_begin and graph_end of
// kernels/device.h do. Of one thread's queue; threads: that one.
//
// A key goes through
//
//   unknown -> run once as it is -> captured and launched -> replayed ...
//                                        |                    |
//                                        +--- refused <-------+
//
// The first run is not captured: it loads kernels and sets limits, which a
// capture may forbid. What is refused runs as it is from then on.
#ifndef WEFT_KERNELS_CUDA_GRAPH_H
#define WEFT_KERNELS_CUDA_GRAPH_H

#include "kernels/cuda/launch.h"

namespace weft
{

enum class graph_state { seen, ready, refused };

struct graph_entry {
    uint64_t key;
    uint64_t used; // when, counted in calls: the oldest gives way
    graph_state state;
    cudaGraphExec_t exec; // of `ready`
};

struct graphs {
    graph_entry entries[WEFT_DEVICE_GRAPHS_MAX];
    int32_t n;
    int32_t last; // entry that was asked for
    uint64_t calls;
    bool open, capturing;
    graph_entry *current; // while open
};

// See kernels/device.h.
bool graph_begin(queue *q, graphs *g, uint64_t key);
bool graph_end(queue *q, graphs *g);
void graph_drop(queue *q, graphs *g);

} // namespace weft

#endif
