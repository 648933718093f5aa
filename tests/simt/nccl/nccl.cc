// nccl.cc - a stand-in for the part of NCCL that the backend uses
// (kernels/cuda/nccl.h), over sockets of this machine, for streams of the
// stand-in of the CUDA runtime. It is a library of its own, libweft_simt_nccl,
// that is opened as the real one is.
//
// Communicators are non-blocking, others are refused. What a group was given
// gets to its streams when somebody asks ncclCommGetAsyncError until it says
// ncclSuccess, and not before: so a caller that does not ask is seen.
//
// A send or receive without counterpart blocks its stream until the abort. A
// peer that dies is told by ncclRemoteError, and the work stays undone; one
// that is frozen is told by nothing.
//
// WEFT_SIMT_FAULT (tests/simt/runtime.h), beside those of the runtime:
//   nccl_old      a version from before the configuration's
//   nccl_id       no id is made
//   nccl_begin    a communicator is refused at once
//   nccl_init     ... is refused later: ncclSystemError
//   nccl_send:N, nccl_recv:N   the N-th call is refused
//   nccl_hang:N   the N-th message, either way, never ends
//   nccl_busy:N   the N-th group and what follows never gets to its streams
//   nccl_silent   peers that die are not told
// Built with WEFT_SIMT_NCCL_BARE it lacks what the product can do without, with
// WEFT_SIMT_NCCL_PART also something that it needs.
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <poll.h>
#include <string>
#include <thread>

#include "kernels/cuda/nccl.h"
#include "tests/simt/nccl/wire.h"
#include "tests/simt/remote.h"

#define SHOWN __attribute__((visibility("default")))

namespace
{

constexpr int VERSION = 23203;
constexpr int POLLS = 2; // until a group is on its streams

struct state {
    wire::cancel stop;
    wire::identity id;
    wire::mesh mesh;
    int n_ranks = 0, rank = 0, device = 0;
    std::mutex lock; // of what follows
    ncclResult_t result = ncclInProgress;
    std::deque<std::vector<struct call>> groups;
    int polls = 0, launched = 0;
    bool stuck = false;
    std::condition_variable ended; // something that was launched

    void fail(ncclResult_t why)
    {
        const std::lock_guard<std::mutex> hold(lock);
        if (result == ncclSuccess || result == ncclInProgress) result = why;
    }
};

struct call {
    std::shared_ptr<state> comm;
    unsigned char *at;
    size_t bytes;
    int peer;
    bool send, hangs;
    cudaStream_t stream;
};

thread_local int depth;
thread_local ncclResult_t group_result; // the first refusal inside of it
thread_local std::vector<call> grouped;

std::string &last_error()
{
    thread_local std::string it;
    return it;
}

ncclResult_t refuse(ncclResult_t why, const char *text)
{
    last_error() = text;
    return why;
}

void wait_for_cancel(const state &s)
{
    pollfd one = {s.stop.fd(), POLLIN, 0};
    while (!s.stop.is()) (void)poll(&one, 1, -1);
}

// On the stream's thread: device memory is touched only before and after.
void run_calls(state &s, const std::vector<call> *calls)
{
    if (s.stop.is()) return;
    std::vector<std::vector<unsigned char>> staged;
    std::vector<wire::message> messages;
    bool hangs = false;
    for (const call &c : *calls) {
        staged.emplace_back(c.bytes);
        // A lost device sends nothing.
        if (c.send &&
            weft_simt_copy(staged.back().data(), c.at, c.bytes) != cudaSuccess)
            return s.fail(ncclUnhandledCudaError);
        messages.push_back({staged.back().data(), c.bytes, c.peer, c.send});
        hangs |= c.hangs;
    }
    const wire::result r =
        hangs ? wire::CANCELLED : wire::exchange(s.mesh, &messages, s.stop);
    if (r == wire::LOST && weft_simt_fault("nccl_silent") == 0)
        s.fail(ncclRemoteError);
    if (r != wire::DONE) {
        wait_for_cancel(s);
        return;
    }
    for (size_t i = 0; i < calls->size(); i++) {
        const call &c = (*calls)[i];
        if (!c.send) (void)weft_simt_copy(c.at, staged[i].data(), c.bytes);
    }
}

void run_group(void *arg)
{
    const std::unique_ptr<std::vector<call>> calls(
        static_cast<std::vector<call> *>(arg));
    const std::shared_ptr<state> s = calls->front().comm;
    run_calls(*s, calls.get());
    const std::lock_guard<std::mutex> hold(s->lock);
    s->launched--;
    s->ended.notify_all();
}

// The lock is held.
ncclResult_t start_groups(state *s)
{
    while (!s->groups.empty()) {
        std::vector<call> *const calls =
            new std::vector<call>(std::move(s->groups.front()));
        s->groups.pop_front();
        const cudaStream_t stream = calls->front().stream;
        s->launched++;
        if (weft_simt_push(stream, "nccl", run_group, calls) != cudaSuccess) {
            s->launched--;
            delete calls;
            return ncclUnhandledCudaError;
        }
    }
    return ncclSuccess;
}

// What one group says of one communicator and stream is one piece of work.
ncclResult_t end_group()
{
    while (!grouped.empty()) {
        std::vector<call> one, rest;
        for (const call &c : grouped) {
            const bool same = c.comm == grouped.front().comm &&
                              c.stream == grouped.front().stream;
            (same ? one : rest).push_back(c);
        }
        grouped = rest;
        state &s = *one.front().comm;
        const std::lock_guard<std::mutex> hold(s.lock);
        if (s.result != ncclSuccess && s.result != ncclInProgress)
            return s.result;
        s.stuck |= weft_simt_fault("nccl_busy") != 0;
        s.groups.push_back(one);
        s.result = ncclInProgress;
        s.polls = 0;
    }
    return ncclInProgress;
}

void join(const std::shared_ptr<state> &s)
{
    const wire::result r =
        wire::join(s->id, s->n_ranks, s->rank, s->device, s->stop, &s->mesh);
    const bool refused = weft_simt_fault("nccl_init") != 0;
    if (r == wire::DONE && !refused) {
        const std::lock_guard<std::mutex> hold(s->lock);
        s->result = ncclSuccess;
    } else if (refused || r == wire::LOST) {
        s->fail(refused ? ncclSystemError : ncclRemoteError);
    } else if (r == wire::REFUSED) {
        s->fail(ncclInvalidUsage);
    }
}

} // namespace

struct ncclComm {
    std::shared_ptr<state> s;
    std::thread joining;
};

extern "C" {

SHOWN ncclResult_t ncclGetVersion(int *version)
{
    *version = weft_simt_fault("nccl_old") != 0 ? 21003 : VERSION;
    return ncclSuccess;
}

SHOWN ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    wire::identity mine;
    if (weft_simt_fault("nccl_id") != 0 || !wire::make_root(&mine))
        return refuse(ncclSystemError, "no socket for the id");
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &mine, sizeof mine);
    return ncclSuccess;
}

SHOWN ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n_ranks,
                                          ncclUniqueId id, int rank,
                                          ncclConfig_t *config)
{
    *comm = nullptr;
    if (config == nullptr || config->magic != WEFT_NCCL_MAGIC ||
        config->size < sizeof(ncclConfig_t) || rank < 0 || rank >= n_ranks)
        return refuse(ncclInvalidArgument, "a configuration or rank is wrong");
    if (config->blocking != 0)
        return refuse(ncclInvalidUsage, "blocking is not provided here");
    if (config->minCTAs > config->maxCTAs || config->maxCTAs < 1)
        return refuse(ncclInvalidArgument, "minCTAs is above maxCTAs");
    if (weft_simt_fault("nccl_begin") != 0)
        return refuse(ncclUnhandledCudaError, "begin was ordered to fail");
    ncclComm *const c = new ncclComm;
    c->s = std::make_shared<state>();
    memcpy(&c->s->id, id.internal, sizeof c->s->id);
    c->s->n_ranks = n_ranks;
    c->s->rank = rank;
    c->s->device = weft_simt_device();
    c->joining = std::thread(join, c->s);
    weft_simt_count_comm(1);
    *comm = c;
    return ncclInProgress;
}

SHOWN ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    state &s = *comm->s;
    const std::lock_guard<std::mutex> hold(s.lock);
    if (s.result == ncclInProgress && !s.groups.empty() && !s.stuck &&
        ++s.polls > POLLS)
        s.result = start_groups(&s);
    *error = s.result;
    return ncclSuccess;
}

// Ends what is under way, and the handle; but waits until what was launched has
// had its turn on its stream, where other work may be before it. So does NCCL.
SHOWN ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    comm->s->stop.now();
    wire::stop_root(comm->s->id.nonce);
    comm->joining.join();
    {
        // Calls that never got to a stream hold the state, as it holds them.
        std::unique_lock<std::mutex> hold(comm->s->lock);
        comm->s->groups.clear();
        comm->s->ended.wait(hold, [&] { return comm->s->launched == 0; });
    }
    delete comm;
    weft_simt_count_comm(-1);
    return ncclSuccess;
}

static ncclResult_t check(const state &s, ncclResult_t now, const void *at,
                          size_t n, int peer, bool send)
{
    if (now == ncclInProgress)
        return refuse(ncclInvalidArgument, "something is in progress");
    if (now != ncclSuccess) return now;
    if (peer < 0 || peer >= s.n_ranks || peer == s.rank || n == 0)
        return refuse(ncclInvalidArgument, "a peer or size is wrong");
    if (weft_simt_on_device(at, n) == 0)
        return refuse(ncclInvalidArgument, "memory is not a device's");
    if (weft_simt_fault(send ? "nccl_send" : "nccl_recv") != 0)
        return refuse(ncclInternalError, "ordered to fail");
    return ncclSuccess;
}

static ncclResult_t add(ncclComm_t comm, const void *at, size_t n, int peer,
                        bool send, cudaStream_t stream)
{
    const std::shared_ptr<state> s = comm->s;
    ncclResult_t r = ncclSuccess;
    {
        const std::lock_guard<std::mutex> hold(s->lock);
        r = s->result;
    }
    r = check(*s, r, at, n, peer, send);
    if (r != ncclSuccess) {
        if (depth > 0 && group_result == ncclSuccess) group_result = r;
        return r;
    }
    const bool hangs = weft_simt_fault("nccl_hang") != 0;
    unsigned char *bytes;
    memcpy(&bytes, &at, sizeof bytes);
    grouped.push_back({s, bytes, n, peer, send, hangs, stream});
    return depth > 0 ? ncclSuccess : end_group();
}

SHOWN ncclResult_t ncclSend(const void *from, size_t n, ncclDataType_t type,
                            int peer, ncclComm_t comm, cudaStream_t stream)
{
    if (type != ncclInt8) return ncclInvalidArgument;
    return add(comm, from, n, peer, true, stream);
}

#if !defined(WEFT_SIMT_NCCL_PART)
SHOWN ncclResult_t ncclRecv(void *to, size_t n, ncclDataType_t type, int peer,
                            ncclComm_t comm, cudaStream_t stream)
{
    if (type != ncclInt8) return ncclInvalidArgument;
    return add(comm, to, n, peer, false, stream);
}
#endif

SHOWN ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

SHOWN ncclResult_t ncclGroupEnd(void)
{
    if (depth == 0) return refuse(ncclInvalidUsage, "no group is open");
    if (--depth > 0) return ncclSuccess;
    const ncclResult_t refused = group_result;
    group_result = ncclSuccess;
    if (refused != ncclSuccess) grouped.clear();
    return grouped.empty() ? refused : end_group();
}

#if !defined(WEFT_SIMT_NCCL_BARE) && !defined(WEFT_SIMT_NCCL_PART)
SHOWN const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or network error";
    case ncclInProgress: return "operation in progress";
    }
    return "unknown result code";
}

SHOWN const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return last_error().c_str();
}
#endif
}
