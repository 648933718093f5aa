// comm_internal.h - a comm over NCCL as its two parts see it: comm.cc makes and
// ends it, comm_work.cc gives it work.
#ifndef WEFT_KERNELS_CUDA_COMM_INTERNAL_H
#define WEFT_KERNELS_CUDA_COMM_INTERNAL_H

#include <atomic>
#include <pthread.h>

#include "kernels/cuda/bound.h"
#include "kernels/cuda/comm.h"
#include "kernels/cuda/nccl_load.h"

namespace weft
{

enum class phase {
    joining, // until all ranks have met
    warming, // until the first message of each is on the stream
    hearing, // until it has come
    ready,
    broken,
};

constexpr int32_t COMM_MARKS = 16;

} // namespace weft

struct weft_comm {
    weft_device *device;
    char name[64];
    int32_t n_ranks, rank, ctas; // ctas 0: no room is taken
    cudaStream_t stream;
    cudaEvent_t ops, work;
    // A mark is the number of a record; an event stands for its last one.
    cudaEvent_t marks[weft::COMM_MARKS];
    uint64_t mark_of[weft::COMM_MARKS], n_marks, done;
    unsigned char *warm; // [2][n_ranks][WARM_BYTES] of device memory
    std::atomic<bool> aborted;
    pthread_mutex_t lock; // of what follows
    ncclComm_t nccl;
    weft::phase at;
    char why[192];
};

namespace weft
{

const nccl_symbols &nccl();
const char *word_for(ncclResult_t r);

// What follows is for who holds the comm's lock.

// The first reason stays.
void set_broken(weft_comm *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void set_broken_by(weft_comm *c, const char *what, ncclResult_t r);
weft_status fail_broken(const weft_comm *c, weft_err *err);
// What NCCL says of the comm now.
ncclResult_t ask(weft_comm *c);

struct piece {
    const unsigned char *from; // to send, or nullptr
    unsigned char *to;         // to receive
    int32_t peer;
};
constexpr int32_t PIECES_MAX = 2 * WEFT_COMM_RANKS_MAX;

// What goes from and to all others. step: from one rank's part of `from` to the
// next's; 0 is the same for all. How many pieces.
int32_t list_all(const weft_comm *c, const unsigned char *from, int64_t step,
                 unsigned char *to, int64_t bytes, piece *pieces);
// All pieces at once: in progress or begun, else an error.
ncclResult_t call_group(weft_comm *c, const piece *pieces, int32_t n,
                        int64_t bytes);

// Entries of the table (kernels/comm.h).
weft_status comm_send(weft_comm *c, const void *from, int64_t bytes,
                      int32_t to_rank, weft_err *err);
weft_status comm_recv(weft_comm *c, void *to, int64_t bytes, int32_t from_rank,
                      weft_err *err);
weft_status comm_gather(weft_comm *c, const void *from, void *to, int64_t bytes,
                        weft_err *err);
weft_status comm_exchange(weft_comm *c, const void *from, void *to,
                          int64_t bytes, weft_err *err);
void comm_after_ops(weft_comm *c);
void comm_before_ops(weft_comm *c);
uint64_t comm_mark(weft_comm *c);
bool comm_is_done(weft_comm *c, uint64_t number);

} // namespace weft

#endif
