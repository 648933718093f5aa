// comm.cc - comms over NCCL: see kernels/comm.h.
//
// All communicators are non-blocking: each call may say "in progress", and then
// nothing but an abort is allowed until ncclCommGetAsyncError says otherwise.
// While a comm joins, `state` asks; for work that it is given later, the call
// asks until the work is on the stream, which takes as long as a launch.
//
// An abort of NCCL's may wait for what else is on the comm's stream, which may
// wait for ops, which may wait for another comm that will be aborted next. So
// each abort has a thread of its own.
#include "kernels/cuda/comm.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <pthread.h>
#include <sched.h>

#include "kernels/cuda/bound.h"
#include "kernels/cuda/nccl_load.h"
#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/mem.h"

namespace
{

enum class phase {
    joining, // until all ranks have met
    warming, // until the first message of each is on the stream
    hearing, // until it has come
    ready,
    broken,
};

constexpr int32_t MARKS = 16;
constexpr int64_t WARM_BYTES = 16;

} // namespace

struct weft_comm {
    weft_device *device;
    char name[64];
    int32_t n_ranks, rank;
    cudaStream_t stream;
    cudaEvent_t ops, work;
    // A mark is the number of a record; an event stands for its last one.
    cudaEvent_t marks[MARKS];
    uint64_t mark_of[MARKS], n_marks, done;
    unsigned char *warm; // [2][n_ranks][WARM_BYTES] of device memory
    std::atomic<bool> aborted;
    pthread_mutex_t lock; // of what follows
    ncclComm_t nccl;
    phase at;
    char why[192];
};

namespace weft
{

namespace
{

// As long as a launch may take on a device that has much to do. Beyond, NCCL is
// waiting for another process, or its queue of launches is full.
constexpr uint64_t START_NS_MAX = 2000000000;

// Device memory of comms that are gone, and aborts that are under way. To free
// memory would wait for work of other comms, whose peers may be frozen.
struct spare {
    void *at;
    weft_device *device;
    spare *next;
};
pthread_mutex_t book_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t book_changed = PTHREAD_COND_INITIALIZER;
spare *spares;
int32_t n_aborting;

const nccl_symbols &nccl()
{
    return nccl_load()->call;
}

const char *word_for(ncclResult_t r)
{
    return nccl().error_string != nullptr ? nccl().error_string(r)
                                          : "NCCL gives no word for it";
}

// The lock is held. The first reason stays.
void set_broken(weft_comm *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
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

// The lock is held. What NCCL says of the comm now.
ncclResult_t ask(weft_comm *c)
{
    ncclResult_t r = ncclSuccess;
    const ncclResult_t asked = nccl().comm_error(c->nccl, &r);
    return asked != ncclSuccess ? asked : r;
}

// Work. ---------------------------------------------------------------------

struct piece {
    const unsigned char *from; // to send, or nullptr
    unsigned char *to;         // to receive
    int32_t peer;
};

// The lock is held. All pieces at once; in progress or begun, else broken.
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

weft_status send(weft_comm *c, const void *from, int64_t bytes, int32_t to_rank,
                 weft_err *err)
{
    const piece one = {static_cast<const unsigned char *>(from), nullptr,
                       to_rank};
    return begin_work(c, "send", &one, 1, bytes, err);
}

weft_status recv(weft_comm *c, void *to, int64_t bytes, int32_t from_rank,
                 weft_err *err)
{
    const piece one = {nullptr, static_cast<unsigned char *>(to), from_rank};
    return begin_work(c, "recv", &one, 1, bytes, err);
}

// What each rank has for itself does not go through NCCL.
void keep_own(weft_comm *c, void *to, const void *from, int64_t bytes)
{
    if (to == from) return;
    (void)cudaMemcpyAsync(to, from, static_cast<size_t>(bytes),
                          cudaMemcpyDeviceToDevice, c->stream);
    note(&bound_here()->q, "own part of a comm");
}

// step: from one rank's part of `from` to the next's; 0 is the same for all.
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

weft_status gather(weft_comm *c, const void *from, void *to, int64_t bytes,
                   weft_err *err)
{
    piece pieces[2 * WEFT_COMM_RANKS_MAX];
    unsigned char *const all = static_cast<unsigned char *>(to);
    const int32_t n = list_all(c, static_cast<const unsigned char *>(from), 0,
                               all, bytes, pieces);
    keep_own(c, all + c->rank * bytes, from, bytes);
    return begin_work(c, "gather", pieces, n, bytes, err);
}

weft_status exchange(weft_comm *c, const void *from, void *to, int64_t bytes,
                     weft_err *err)
{
    piece pieces[2 * WEFT_COMM_RANKS_MAX];
    const unsigned char *const parts = static_cast<const unsigned char *>(from);
    unsigned char *const all = static_cast<unsigned char *>(to);
    const int32_t n = list_all(c, parts, bytes, all, bytes, pieces);
    keep_own(c, all + c->rank * bytes, parts + c->rank * bytes, bytes);
    return begin_work(c, "exchange", pieces, n, bytes, err);
}

// Order. --------------------------------------------------------------------

void after_ops(weft_comm *c)
{
    bound *const b = bound_here();
    WEFT_ASSERT(b->device == c->device && !b->graph.open);
    (void)cudaEventRecord(c->ops, b->q.stream);
    (void)cudaStreamWaitEvent(c->stream, c->ops, 0);
    note(&b->q, "a comm after ops");
}

void before_ops(weft_comm *c)
{
    bound *const b = bound_here();
    WEFT_ASSERT(b->device == c->device && !b->graph.open);
    (void)cudaEventRecord(c->work, c->stream);
    (void)cudaStreamWaitEvent(b->q.stream, c->work, 0);
    note(&b->q, "ops after a comm");
}

uint64_t mark(weft_comm *c)
{
    const uint64_t number = ++c->n_marks;
    const uint64_t i = number % MARKS;
    (void)cudaEventRecord(c->marks[i], c->stream);
    c->mark_of[i] = number;
    note(&bound_here()->q, "mark of a comm");
    return number;
}

// An event that has a later mark by now stands for the earlier, too.
bool is_done(weft_comm *c, uint64_t number)
{
    if (number <= c->done) return true;
    const uint64_t i = number % MARKS;
    if (cudaEventQuery(c->marks[i]) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    if (c->mark_of[i] > c->done) c->done = c->mark_of[i];
    return true;
}

// Life. -----------------------------------------------------------------------

// The lock is held. Each step may have to be asked for again.
void advance(weft_comm *c)
{
    if (c->at == phase::hearing) {
        const cudaError_t error = cudaEventQuery(c->work);
        if (error != cudaSuccess) (void)cudaGetLastError();
        if (error == cudaSuccess)
            c->at = phase::ready;
        else if (error != cudaErrorNotReady)
            set_broken(c, "the first message: %s", cudaGetErrorString(error));
    }
    const ncclResult_t r = ask(c);
    if (r != ncclSuccess) {
        const bool expected =
            c->at == phase::joining || c->at == phase::warming;
        if (r != ncclInProgress || !expected)
            set_broken_by(c, c->at == phase::joining ? "joining" : "work", r);
        return;
    }
    if (c->at == phase::joining) {
        piece pieces[2 * WEFT_COMM_RANKS_MAX];
        const int32_t n =
            list_all(c, c->warm, WARM_BYTES, c->warm + WARM_BYTES * c->n_ranks,
                     WARM_BYTES, pieces);
        const ncclResult_t begun = call_group(c, pieces, n, WARM_BYTES);
        if (begun == ncclSuccess || begun == ncclInProgress)
            c->at = phase::warming;
        else
            set_broken_by(c, "the first message", begun);
    } else if (c->at == phase::warming) {
        const cudaError_t error = cudaEventRecord(c->work, c->stream);
        c->at = phase::hearing;
        if (error != cudaSuccess)
            set_broken(c, "the first message: %s", cudaGetErrorString(error));
    }
}

// NCCL's calls are for the device of the calling thread.
class on_device
{
  public:
    explicit on_device(const weft_device *device)
    {
        (void)cudaGetDevice(&before);
        (void)cudaSetDevice(device_index(device));
    }
    ~on_device()
    {
        (void)cudaSetDevice(before);
    }
    on_device(const on_device &) = delete;
    on_device &operator=(const on_device &) = delete;

  private:
    int before = 0;
};

weft_comm_state state(weft_comm *c, weft_err *err)
{
    const on_device here(c->device);
    pthread_mutex_lock(&c->lock);
    if (c->at != phase::broken && !c->aborted) advance(c);
    if (c->aborted) set_broken(c, "aborted");
    const phase at = c->at;
    if (at == phase::broken) (void)fail_broken(c, err);
    pthread_mutex_unlock(&c->lock);
    return at == phase::broken  ? WEFT_COMM_BROKEN
           : at == phase::ready ? WEFT_COMM_READY
                                : WEFT_COMM_PENDING;
}

void *abort_one(void *arg)
{
    (void)nccl().comm_abort(static_cast<ncclComm_t>(arg));
    pthread_mutex_lock(&book_lock);
    n_aborting--;
    (void)pthread_cond_broadcast(&book_changed);
    pthread_mutex_unlock(&book_lock);
    return nullptr;
}

void abort(weft_comm *c)
{
    c->aborted = true; // who waits for a launch gives up
    pthread_mutex_lock(&c->lock);
    set_broken(c, "aborted");
    const ncclComm_t handle = c->nccl;
    c->nccl = nullptr;
    pthread_mutex_unlock(&c->lock);
    if (handle == nullptr) return;
    pthread_mutex_lock(&book_lock);
    n_aborting++;
    pthread_mutex_unlock(&book_lock);
    pthread_t thread;
    if (pthread_create(&thread, nullptr, abort_one, handle) == 0)
        (void)pthread_detach(thread);
    else
        (void)abort_one(handle); // may wait, and is better than to hang
}

void give_memory(const weft_comm *c)
{
    spare *const s = static_cast<spare *>(weft_mem_new(1, sizeof(spare)));
    if (s == nullptr) return; // the device frees it
    s->at = c->warm;
    s->device = c->device;
    pthread_mutex_lock(&book_lock);
    s->next = spares;
    spares = s;
    pthread_mutex_unlock(&book_lock);
}

weft_status take_memory(weft_comm *c, weft_err *err)
{
    spare *found = nullptr;
    pthread_mutex_lock(&book_lock);
    for (spare **s = &spares; *s != nullptr; s = &(*s)->next) {
        if ((*s)->device != c->device) continue;
        found = *s;
        *s = found->next;
        break;
    }
    pthread_mutex_unlock(&book_lock);
    void *at = nullptr;
    if (found != nullptr)
        at = found->at;
    else
        WEFT_TRY(weft_device_get(WEFT_DEVICE_ABI)
                     ->alloc(c->device, 2 * WARM_BYTES * WEFT_COMM_RANKS_MAX,
                             &at, err));
    weft_mem_free(found);
    c->warm = static_cast<unsigned char *>(at);
    return WEFT_OK;
}

void destroy(weft_comm *c)
{
    if (c == nullptr) return;
    const on_device here(c->device);
    abort(c);
    if (c->stream != nullptr) (void)cudaStreamDestroy(c->stream);
    if (c->ops != nullptr) (void)cudaEventDestroy(c->ops);
    if (c->work != nullptr) (void)cudaEventDestroy(c->work);
    for (const cudaEvent_t event : c->marks)
        if (event != nullptr) (void)cudaEventDestroy(event);
    (void)cudaGetLastError();
    if (c->warm != nullptr) give_memory(c);
    pthread_mutex_destroy(&c->lock);
    weft_mem_free(c);
}

weft_status check_options(const weft_comm_options *o, weft_err *err)
{
    if (o->n_ranks < 2 || o->n_ranks > WEFT_COMM_RANKS_MAX || o->rank < 0 ||
        o->rank >= o->n_ranks)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "comm %s: rank %d of %d: 2 to %d are joined, counted "
                         "from 0",
                         o->name, o->rank, o->n_ranks,
                         static_cast<int>(WEFT_COMM_RANKS_MAX));
    if (o->ctas_max < 0 || o->ctas_max > WEFT_COMM_CTAS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "comm %s: ctas_max %d: 0 to %d", o->name, o->ctas_max,
                         static_cast<int>(WEFT_COMM_CTAS_MAX));
    return WEFT_OK;
}

// Before those that compute: a message is short, and others wait for it.
constexpr int FIRST = -5;

cudaError_t make_order(weft_comm *c)
{
    cudaError_t error =
        cudaStreamCreateWithPriority(&c->stream, cudaStreamNonBlocking, FIRST);
    cudaEvent_t *const events[] = {&c->ops, &c->work};
    for (cudaEvent_t *const event : events)
        if (error == cudaSuccess)
            error = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    for (cudaEvent_t &event : c->marks)
        if (error == cudaSuccess)
            error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    return error;
}

weft_status join(weft_comm *c, const weft_comm_options *o, weft_err *err)
{
    WEFT_TRY(take_memory(c, err));
    const cudaError_t error = make_order(c);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "comm %s: a stream: %s",
                         c->name, cudaGetErrorString(error));
    }
    (void)cudaMemsetAsync(c->warm, 0, 2 * WARM_BYTES * WEFT_COMM_RANKS_MAX,
                          c->stream);
    ncclConfig_t config;
    config.size = sizeof config;
    config.magic = WEFT_NCCL_MAGIC;
    config.version = WEFT_NCCL_CONFIG_VERSION;
    config.blocking = 0;
    // No clusters: they must find room together.
    config.cgaClusterSize = 0;
    config.minCTAs = 1;
    config.maxCTAs = o->ctas_max == 0 ? 1 : o->ctas_max;
    config.netName = nullptr;
    ncclUniqueId id;
    static_assert(sizeof id == WEFT_COMM_ID_BYTES, "an id as NCCL's");
    memcpy(&id, o->id, sizeof id);
    const ncclResult_t r =
        nccl().comm_init(&c->nccl, o->n_ranks, id, o->rank, &config);
    if ((r == ncclSuccess || r == ncclInProgress) && c->nccl != nullptr)
        return WEFT_OK;
    set_broken_by(c, "joining", r);
    return fail_broken(c, err);
}

weft_status begin(weft_device *device, const weft_comm_options *o,
                  weft_comm **comm_out, weft_err *err)
{
    WEFT_TRY(check_options(o, err));
    weft_comm *const c =
        static_cast<weft_comm *>(weft_mem_new(1, sizeof(weft_comm)));
    if (c == nullptr)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory");
    const on_device here(device);
    pthread_mutex_init(&c->lock, nullptr);
    c->device = device;
    c->n_ranks = o->n_ranks;
    c->rank = o->rank;
    (void)snprintf(c->name, sizeof c->name, "%.63s", o->name);
    const weft_status st = join(c, o, err);
    if (st != WEFT_OK) {
        destroy(c);
        return st;
    }
    *comm_out = c;
    return WEFT_OK;
}

weft_status make_id(unsigned char id_out[WEFT_COMM_ID_BYTES], weft_err *err)
{
    ncclUniqueId id;
    const ncclResult_t r = nccl().get_unique_id(&id);
    if (r != ncclSuccess)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "an id of NCCL: %s",
                         word_for(r));
    memcpy(id_out, &id, sizeof id);
    return WEFT_OK;
}

pthread_once_t made = PTHREAD_ONCE_INIT;
weft_comm_api table_of_comms;

void make_table()
{
    const nccl_library *const library = nccl_load();
    weft_comm_api *const t = &table_of_comms;
    t->version = library->version;
    t->why = library->why;
    if (t->version == 0) return;
    t->make_id = make_id;
    t->begin = begin;
    t->state = state;
    t->abort = abort;
    t->destroy = destroy;
    t->after_ops = after_ops;
    t->before_ops = before_ops;
    t->mark = mark;
    t->is_done = is_done;
    t->send = send;
    t->recv = recv;
    t->gather = gather;
    t->exchange = exchange;
}

} // namespace

const weft_comm_api *comm_table()
{
    (void)pthread_once(&made, make_table);
    return &table_of_comms;
}

void comm_forget(weft_device *device)
{
    pthread_mutex_lock(&book_lock);
    while (n_aborting > 0) (void)pthread_cond_wait(&book_changed, &book_lock);
    for (spare **s = &spares; *s != nullptr;) {
        spare *const one = *s;
        if (one->device != device) {
            s = &one->next;
            continue;
        }
        *s = one->next;
        weft_mem_free(one);
    }
    pthread_mutex_unlock(&book_lock);
}

} // namespace weft
