// comm.cc - comms over NCCL: see kernels/comm.h.
//
// All communicators are non-blocking: NCCL may say "in progress", and then
// nothing but an abort is allowed until ncclCommGetAsyncError says otherwise.
// While a comm joins, `state` asks; later comm_work.cc does.
//
// An abort of NCCL's may wait for what else is on the comm's stream, which may
// wait for ops, which may wait for another comm that will be aborted next. So
// each abort has a thread of its own.
#include "kernels/cuda/comm_internal.h"

#include <cstdio>
#include <cstring>

#include "node/base/check.h"
#include "node/base/mem.h"

namespace weft
{

namespace
{

constexpr int64_t WARM_BYTES = 16;

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
// Of each device: comms, and the blocks that they may take.
constexpr int32_t DEVICES_MAX = 64;
int32_t comms_of[DEVICES_MAX], blocks_of[DEVICES_MAX];

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
        piece pieces[PIECES_MAX];
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

weft_comm_state state(weft_comm *c, weft_err *err)
{
    const on_device here(device_index(c->device));
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

// What can be resident at once, beside ops (node/docs/adr/0011).
weft_status take_room(weft_comm *c, int32_t ctas, weft_err *err)
{
    const int32_t i = device_index(c->device);
#if defined(WEFT_SIMT)
    const int32_t blocks_max =
        2 * WEFT_COMM_CTAS_MAX; // its blocks need no room
#else
    const int32_t blocks_max = device_processors(c->device) / 2;
#endif
    WEFT_ASSERT(i < DEVICES_MAX);
    pthread_mutex_lock(&book_lock);
    const int32_t comms = comms_of[i], blocks = blocks_of[i];
    const bool fits =
        comms < WEFT_COMM_DEVICE_MAX && blocks + ctas <= blocks_max;
    if (fits) {
        comms_of[i]++;
        blocks_of[i] += ctas;
        c->ctas = ctas;
    }
    pthread_mutex_unlock(&book_lock);
    if (fits) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "comm %s: device %d has %d comms of %d, %d blocks of %d, "
                     "and this one takes %d",
                     c->name, i, comms, static_cast<int>(WEFT_COMM_DEVICE_MAX),
                     blocks, blocks_max, ctas);
}

void give_room(const weft_comm *c)
{
    if (c->ctas == 0) return;
    const int32_t i = device_index(c->device);
    pthread_mutex_lock(&book_lock);
    comms_of[i]--;
    blocks_of[i] -= c->ctas;
    pthread_mutex_unlock(&book_lock);
}

void destroy(weft_comm *c)
{
    if (c == nullptr) return;
    const on_device here(device_index(c->device));
    abort(c);
    if (c->stream != nullptr) (void)cudaStreamDestroy(c->stream);
    if (c->ops != nullptr) (void)cudaEventDestroy(c->ops);
    if (c->work != nullptr) (void)cudaEventDestroy(c->work);
    for (const cudaEvent_t event : c->marks)
        if (event != nullptr) (void)cudaEventDestroy(event);
    (void)cudaGetLastError();
    if (c->warm != nullptr) give_memory(c);
    give_room(c);
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
    WEFT_TRY(take_room(c, o->ctas_max == 0 ? 1 : o->ctas_max, err));
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
    config.maxCTAs = c->ctas;
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
    const on_device here(device_index(device));
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
    t->after_ops = comm_after_ops;
    t->before_ops = comm_before_ops;
    t->mark = comm_mark;
    t->is_done = comm_is_done;
    t->send = comm_send;
    t->recv = comm_recv;
    t->gather = comm_gather;
    t->exchange = comm_exchange;
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
