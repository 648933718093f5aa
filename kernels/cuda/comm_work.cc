// comm_work.cc - what a comm is given to do, and its order with ops.
//
// A call may say "in progress", and then nothing but an abort is allowed until
// ncclCommGetAsyncError says otherwise. So it is asked until the work is on the
// stream, which takes as long as a launch.
#include <cstdarg>
#include <cstdio>
#include <sched.h>

#include "kernels/cuda/comm_internal.h"
#include "node/base/check.h"
#include "node/base/clock.h"

namespace weft
{

namespace
{

// As long as a launch may take on a device that has much to do. Beyond, NCCL is
// waiting for another process, or its queue of launches is full.
constexpr uint64_t START_NS_MAX = 2000000000;

} // namespace

const nccl_symbols &nccl()
{
    return nccl_load()->call;
}

const char *word_for(ncclResult_t r)
{
    return nccl().error_string != nullptr ? nccl().error_string(r)
                                          : "NCCL gives no word for it";
}

void set_broken(weft_comm *c, const char *format, ...)
{
    if (c->at == phase::broken) return;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(c->why, sizeof c->why, format, args);
    va_end(args);
    for (char *p = c->why; *p != 0; p++)
        if (*p == '\n') *p = ' ';
    c->at = phase::broken;
}

void set_broken_by(weft_comm *c, const char *what, ncclResult_t r)
{
    const char *last = "";
    if (nccl().last_error != nullptr) last = nccl().last_error(c->nccl);
    if (last == nullptr) last = "";
    set_broken(c, "%s: %s (NCCL %d)%s%.80s", what, word_for(r),
               static_cast<int>(r), *last == 0 ? "" : ": ", last);
}

weft_status fail_broken(const weft_comm *c, weft_err *err)
{
    return WEFT_FAIL(err, WEFT_UNAVAILABLE, "comm %s: %s", c->name, c->why);
}

ncclResult_t ask(weft_comm *c)
{
    ncclResult_t r = ncclSuccess;
    const ncclResult_t asked = nccl().comm_error(c->nccl, &r);
    return asked != ncclSuccess ? asked : r;
}

// Work. ---------------------------------------------------------------------

ncclResult_t call_group(weft_comm *c, const piece *pieces, int32_t n,
                        int64_t bytes)
{
    const size_t size = static_cast<size_t>(bytes);
    ncclResult_t r = nccl().group_start();
    if (r != ncclSuccess) return r;
    for (int32_t i = 0; i < n && (r == ncclSuccess || r == ncclInProgress); i++)
        r = pieces[i].from != nullptr
                ? nccl().send(pieces[i].from, size, ncclInt8, pieces[i].peer,
                              c->nccl, c->stream)
                : nccl().recv(pieces[i].to, size, ncclInt8, pieces[i].peer,
                              c->nccl, c->stream);
    const ncclResult_t ended = nccl().group_end();
    return r == ncclSuccess || r == ncclInProgress ? ended : r;
}

namespace
{

// The lock is held. Until the work is on the stream.
void settle(weft_comm *c, const char *what, ncclResult_t r)
{
    const uint64_t begun = weft_clock_now_ns();
    if (r == ncclSuccess || r == ncclInProgress) r = ask(c);
    while (r == ncclInProgress) {
        if (c->aborted) return;
        if (weft_clock_now_ns() - begun > START_NS_MAX) {
            set_broken(c, "%s: NCCL has not begun it for 2 s", what);
            return;
        }
        (void)sched_yield();
        r = ask(c);
    }
    if (r != ncclSuccess) set_broken_by(c, what, r);
}

weft_status begin_work(weft_comm *c, const char *what, const piece *pieces,
                       int32_t n, int64_t bytes, weft_err *err)
{
    WEFT_ASSERT(bytes > 0);
    pthread_mutex_lock(&c->lock);
    WEFT_ASSERT(c->at == phase::ready || c->at == phase::broken);
    if (c->at == phase::ready) settle(c, what, call_group(c, pieces, n, bytes));
    const bool well = c->at == phase::ready && !c->aborted;
    if (!well && c->aborted) set_broken(c, "aborted");
    const weft_status st = well ? WEFT_OK : fail_broken(c, err);
    pthread_mutex_unlock(&c->lock);
    return st;
}

} // namespace

weft_status comm_send(weft_comm *c, const void *from, int64_t bytes,
                      int32_t to_rank, weft_err *err)
{
    const piece one = {static_cast<const unsigned char *>(from), nullptr,
                       to_rank};
    return begin_work(c, "send", &one, 1, bytes, err);
}

weft_status comm_recv(weft_comm *c, void *to, int64_t bytes, int32_t from_rank,
                      weft_err *err)
{
    const piece one = {nullptr, static_cast<unsigned char *>(to), from_rank};
    return begin_work(c, "recv", &one, 1, bytes, err);
}

// What each rank has for itself does not go through NCCL.
static void keep_own(weft_comm *c, void *to, const void *from, int64_t bytes)
{
    if (to == from) return;
    (void)cudaMemcpyAsync(to, from, static_cast<size_t>(bytes),
                          cudaMemcpyDeviceToDevice, c->stream);
    note(&bound_here()->q, "own part of a comm");
}

int32_t list_all(const weft_comm *c, const unsigned char *from, int64_t step,
                 unsigned char *to, int64_t bytes, piece *pieces)
{
    int32_t n = 0;
    for (int32_t i = 1; i < c->n_ranks; i++) {
        // Not all to the same rank first.
        const int32_t out = (c->rank + i) % c->n_ranks;
        const int32_t in = (c->rank + c->n_ranks - i) % c->n_ranks;
        pieces[n++] = {from + out * step, nullptr, out};
        pieces[n++] = {nullptr, to + in * bytes, in};
    }
    return n;
}

weft_status comm_gather(weft_comm *c, const void *from, void *to, int64_t bytes,
                        weft_err *err)
{
    piece pieces[PIECES_MAX];
    unsigned char *const all = static_cast<unsigned char *>(to);
    const int32_t n = list_all(c, static_cast<const unsigned char *>(from), 0,
                               all, bytes, pieces);
    keep_own(c, all + c->rank * bytes, from, bytes);
    return begin_work(c, "gather", pieces, n, bytes, err);
}

weft_status comm_exchange(weft_comm *c, const void *from, void *to,
                          int64_t bytes, weft_err *err)
{
    piece pieces[PIECES_MAX];
    const unsigned char *const parts = static_cast<const unsigned char *>(from);
    unsigned char *const all = static_cast<unsigned char *>(to);
    const int32_t n = list_all(c, parts, bytes, all, bytes, pieces);
    keep_own(c, all + c->rank * bytes, parts + c->rank * bytes, bytes);
    return begin_work(c, "exchange", pieces, n, bytes, err);
}

// Order. --------------------------------------------------------------------

void comm_after_ops(weft_comm *c)
{
    bound *const b = bound_here();
    WEFT_ASSERT(b->device == c->device && !b->graph.open);
    (void)cudaEventRecord(c->ops, b->q.stream);
    (void)cudaStreamWaitEvent(c->stream, c->ops, 0);
    note(&b->q, "a comm after ops");
}

void comm_before_ops(weft_comm *c)
{
    bound *const b = bound_here();
    WEFT_ASSERT(b->device == c->device && !b->graph.open);
    (void)cudaEventRecord(c->work, c->stream);
    (void)cudaStreamWaitEvent(b->q.stream, c->work, 0);
    note(&b->q, "ops after a comm");
}

uint64_t comm_mark(weft_comm *c)
{
    const uint64_t number = ++c->n_marks;
    const uint64_t i = number % COMM_MARKS;
    (void)cudaEventRecord(c->marks[i], c->stream);
    c->mark_of[i] = number;
    note(&bound_here()->q, "mark of a comm");
    return number;
}

// An event that has a later mark by now stands for the earlier, too.
bool comm_is_done(weft_comm *c, uint64_t number)
{
    if (number <= c->done) return true;
    const uint64_t i = number % COMM_MARKS;
    if (cudaEventQuery(c->marks[i]) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    if (c->mark_of[i] > c->done) c->done = c->mark_of[i];
    return true;
}

} // namespace weft
