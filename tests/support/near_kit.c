#include "tests/support/near_kit.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "tests/support/expect.h"

enum { WORK_MAX = 256, VERSION = 23203 };

struct weft_device {
    int32_t index;
};

/* A send or a receive. */
typedef struct work {
    const void *from;
    void *to;
    int64_t bytes;
} work;

struct weft_comm {
    struct weft_comm *next;
    int32_t device;
    unsigned char id[WEFT_COMM_ID_BYTES];
    int32_t rank;
    bool met, aborted;
    work given[WORK_MAX]; /* a ring: number n is at n % WORK_MAX */
    uint64_t n_given, n_done;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static near_kit_script scripts[NEAR_KIT_DEVICES];
static weft_device devices[NEAR_KIT_DEVICES] = {{0}, {1}};
static weft_comm *comms;
static int32_t n_comms, n_aborted, n_blocks;
static uint64_t ids;

/* -- the device ----------------------------------------------------------- */

static weft_status take(weft_device *device, int64_t bytes, void **at_out,
                        weft_err *err)
{
    if (scripts[device->index].no_memory)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no such memory");
    *at_out = weft_mem_new_aligned(256, (size_t)bytes);
    ck_assert_ptr_nonnull(*at_out);
    memset(*at_out, 0xff, (size_t)bytes);
    n_blocks++;
    return WEFT_OK;
}

static void give(weft_device *device, void *at)
{
    (void)device;
    if (at != NULL) n_blocks--;
    weft_mem_free(at);
}

static weft_status bind_thread(weft_device *device, weft_err *err)
{
    (void)device;
    (void)err;
    return WEFT_OK;
}

static void put(void *to, const void *from, int64_t bytes)
{
    memcpy(to, from, (size_t)bytes);
}

static weft_status sync_ops(weft_err *err)
{
    (void)err;
    return WEFT_OK;
}

static void move_rows(weft_threads *threads, const weft_move *op)
{
    (void)threads;
    for (int32_t i = 0; i < op->n_row; i++) {
        const int64_t from = op->x_rows == NULL ? i : op->x_rows[i];
        const int64_t to = op->y_rows == NULL ? i : op->y_rows[i];
        memcpy(op->y + to * op->y_stride, op->x + from * op->x_stride,
               (size_t)op->width * sizeof *op->y);
    }
}

/* -- comms ---------------------------------------------------------------- */

static weft_status make_id(unsigned char *id_out, weft_err *err)
{
    if (scripts[0].no_id)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "no socket for an id");
    memset(id_out, 0, WEFT_COMM_ID_BYTES);
    ids++;
    memcpy(id_out, &ids, sizeof ids);
    return WEFT_OK;
}

static weft_status begin(weft_device *device, const weft_comm_options *options,
                         weft_comm **comm_out, weft_err *err)
{
    if (scripts[device->index].no_begin)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "comm \"%s\": no way to begin",
                         options->name);
    ck_assert_int_eq(options->n_ranks, 2);
    ck_assert_int_eq(options->ctas_max, 1);
    weft_comm *const comm = weft_mem_new(1, sizeof *comm);
    ck_assert_ptr_nonnull(comm);
    comm->device = device->index;
    comm->rank = options->rank;
    memcpy(comm->id, options->id, sizeof comm->id);
    (void)pthread_mutex_lock(&lock);
    comm->next = comms;
    comms = comm;
    n_comms++;
    (void)pthread_mutex_unlock(&lock);
    *comm_out = comm;
    return WEFT_OK;
}

/* With the lock. */
static weft_comm *other_of(const weft_comm *comm)
{
    for (weft_comm *one = comms; one != NULL; one = one->next)
        if (one != comm && one->rank != comm->rank &&
            memcmp(one->id, comm->id, sizeof one->id) == 0)
            return one;
    return NULL;
}

static weft_comm_state state_of(weft_comm *comm)
{
    const near_kit_script *const script = &scripts[comm->device];
    if (script->breaks || comm->aborted) return WEFT_COMM_BROKEN;
    if (script->pends || (script->out_pends && comm->rank == 0))
        return WEFT_COMM_PENDING;
    /* Who was READY stays so when the other one goes. */
    comm->met = comm->met || other_of(comm) != NULL;
    return comm->met ? WEFT_COMM_READY : WEFT_COMM_PENDING;
}

static weft_comm_state state(weft_comm *comm, weft_err *err)
{
    (void)pthread_mutex_lock(&lock);
    const weft_comm_state is = state_of(comm);
    (void)pthread_mutex_unlock(&lock);
    if (is == WEFT_COMM_BROKEN)
        (void)WEFT_FAIL(err, WEFT_UNAVAILABLE, "comm broken as was said");
    return is;
}

/* With the lock. */
static void run(weft_comm *comm)
{
    weft_comm *const other = other_of(comm);
    if (other == NULL || comm->aborted || other->aborted) return;
    if (scripts[comm->device].holds || scripts[other->device].holds) return;
    weft_comm *const from = comm->rank == 0 ? comm : other;
    weft_comm *const to = comm->rank == 0 ? other : comm;
    while (from->n_done < from->n_given && to->n_done < to->n_given) {
        const work *const out = &from->given[from->n_done++ % WORK_MAX];
        const work *const in = &to->given[to->n_done++ % WORK_MAX];
        ck_assert_int_eq(out->bytes, in->bytes);
        memcpy(in->to, out->from, (size_t)out->bytes);
    }
}

static weft_status give_work(weft_comm *comm, work what, bool refused,
                             weft_err *err)
{
    if (refused)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "comm refuses the work");
    (void)pthread_mutex_lock(&lock);
    ck_assert_int_ne(state_of(comm), WEFT_COMM_PENDING);
    ck_assert_uint_lt(comm->n_given - comm->n_done, WORK_MAX);
    comm->given[comm->n_given++ % WORK_MAX] = what;
    (void)pthread_mutex_unlock(&lock);
    return WEFT_OK;
}

static weft_status send_bytes(weft_comm *comm, const void *from, int64_t bytes,
                              int32_t to_rank, weft_err *err)
{
    ck_assert(to_rank == 1 && comm->rank == 0);
    return give_work(comm, (work){.from = from, .bytes = bytes},
                     scripts[comm->device].no_send, err);
}

static weft_status recv_bytes(weft_comm *comm, void *to, int64_t bytes,
                              int32_t from_rank, weft_err *err)
{
    ck_assert(from_rank == 0 && comm->rank == 1);
    return give_work(comm, (work){.to = to, .bytes = bytes},
                     scripts[comm->device].no_recv, err);
}

static void abort_comm(weft_comm *comm)
{
    (void)pthread_mutex_lock(&lock);
    if (!comm->aborted) n_aborted++;
    comm->aborted = true;
    (void)pthread_mutex_unlock(&lock);
}

static void destroy(weft_comm *comm)
{
    if (comm == NULL) return;
    (void)pthread_mutex_lock(&lock);
    weft_comm **at = &comms;
    while (*at != comm) at = &(*at)->next;
    *at = comm->next;
    n_comms--;
    (void)pthread_mutex_unlock(&lock);
    weft_mem_free(comm);
}

static void fence(weft_comm *comm)
{
    (void)comm;
}

static uint64_t mark(weft_comm *comm)
{
    return comm->n_given;
}

/* As a real one: what was aborted is over, too. */
static bool is_done(weft_comm *comm, uint64_t at)
{
    (void)pthread_mutex_lock(&lock);
    run(comm);
    const bool done = comm->aborted || comm->n_done >= at;
    (void)pthread_mutex_unlock(&lock);
    return done;
}

#define COMM_API                                                               \
    {                                                                          \
        .version = VERSION, .why = "no NCCL on this device",                   \
        .make_id = make_id, .begin = begin, .state = state,                    \
        .abort = abort_comm, .destroy = destroy, .after_ops = fence,           \
        .before_ops = fence, .mark = mark, .is_done = is_done,                 \
        .send = send_bytes, .recv = recv_bytes                                 \
    }
static weft_comm_api comm_apis[NEAR_KIT_DEVICES] = {COMM_API, COMM_API};

static const weft_comm_api *comm_0(void)
{
    return &comm_apis[0];
}

static const weft_comm_api *comm_1(void)
{
    return &comm_apis[1];
}

/* -- for tests ------------------------------------------------------------ */

static const weft_ops ops = {.name = "near kit", .move = move_rows};

#define DEVICE_API(COMM)                                                       \
    {                                                                          \
        .abi = WEFT_DEVICE_ABI, .name = "near kit", .identity = "near kit",    \
        .alloc = take, .free = give, .alloc_host = take, .free_host = give,    \
        .bind = bind_thread, .upload = put, .download = put, .copy = put,      \
        .sync = sync_ops, .comm = (COMM), .ops = &ops                          \
    }
static const weft_device_api apis[NEAR_KIT_DEVICES] = {DEVICE_API(comm_0),
                                                       DEVICE_API(comm_1)};
static const weft_memory memories[NEAR_KIT_DEVICES] = {
    {.api = &apis[0], .device = &devices[0]},
    {.api = &apis[1], .device = &devices[1]}};

void near_kit_reset(void)
{
    memset(scripts, 0, sizeof scripts);
    for (int32_t i = 0; i < NEAR_KIT_DEVICES; i++)
        comm_apis[i].version = VERSION;
    n_aborted = 0;
}

near_kit_script *near_kit_script_of(int32_t device)
{
    return &scripts[device];
}

void near_kit_set_version(int32_t device, int32_t version)
{
    comm_apis[device].version = version;
}

const weft_memory *near_kit_memory(int32_t device)
{
    return &memories[device];
}

int32_t near_kit_n_comms(void)
{
    return n_comms;
}

int32_t near_kit_n_aborted(void)
{
    return n_aborted;
}

int32_t near_kit_n_blocks(void)
{
    return n_blocks;
}

weft_frame_limits near_kit_limits(void)
{
    return (weft_frame_limits){.body_bytes_max = 4096,
                               .rows_max = NEAR_KIT_ROWS_MAX,
                               .row_bytes_max = 4 * NEAR_KIT_WIDTH_MAX};
}

weft_near *near_kit_create(int32_t device, int32_t links_max)
{
    weft_near *near = NULL;
    const weft_near_options options = {.memory = near_kit_memory(device),
                                       .in = near_kit_limits(),
                                       .out = near_kit_limits(),
                                       .links_max = links_max};
    OK(weft_near_create(&options, &near, &err));
    return near;
}

void near_kit_open(kit_transport transport, weft_near *a_near,
                   weft_near *b_near, weft_link **a_out, weft_link **b_out)
{
    weft_link_options a = kit_options(), b = kit_options();
    a.limits = b.limits = near_kit_limits();
    a.near = a_near;
    b.near = b_near;
    kit_open(transport, &a, &b, a_out, b_out);
    weft_near_attach(*a_out, true);
    weft_near_attach(*b_out, false);
}

static bool is_settled(const weft_link *link)
{
    const weft_near_link *const near = link->near;
    return near == NULL || near->state == WEFT_NEAR_READY ||
           near->state == WEFT_NEAR_OVER;
}

static void recv_nothing(weft_link *link)
{
    weft_frame frame;
    bool got = false;
    OK(weft_link_recv(link, &frame, &got, &err));
    ck_assert(!got);
}

void near_kit_settle(weft_link *a, weft_link *b)
{
    const uint64_t deadline = kit_deadline();
    do {
        recv_nothing(a);
        recv_nothing(b);
        ck_assert(weft_clock_now_ns() < deadline);
        (void)sched_yield();
    } while (!is_settled(a) || !is_settled(b));
    /* What was said last is heard, too. */
    for (int32_t i = 0; i < 3; i++) {
        recv_nothing(a);
        recv_nothing(b);
    }
}

/* -- a pair that is tried ------------------------------------------------- */

void near_kit_scene_open(near_kit_scene *s)
{
    near_kit_reset();
    s->a_near = near_kit_create(0, 1);
    s->b_near = near_kit_create(1, 1);
    near_kit_open(KIT_TCP, s->a_near, s->b_near, &s->a, &s->b);
}

void near_kit_scene_close(near_kit_scene *s)
{
    weft_link_close(s->a);
    weft_link_close(s->b);
    ck_assert_int_eq(near_kit_n_comms(), 0);
    ck_assert_int_eq(weft_near_count(s->a_near), 0);
    ck_assert_int_eq(weft_near_count(s->b_near), 0);
    weft_near_destroy(s->a_near);
    weft_near_destroy(s->b_near);
    ck_assert_int_eq(near_kit_n_blocks(), 0);
}

void near_kit_scene_open_near(near_kit_scene *s)
{
    near_kit_scene_open(s);
    near_kit_settle(s->a, s->b);
    ck_assert(weft_link_is_near(s->a) && weft_link_is_near(s->b));
}

weft_link_stats near_kit_stats(const weft_link *link)
{
    weft_link_stats stats;
    weft_link_get_stats(link, &stats);
    return stats;
}

/* A value that says whose row it is. */
static float value_of(uint64_t step, int32_t row, int32_t i)
{
    return (float)(step * 10000 + (uint64_t)row * 100 + (uint64_t)i);
}

weft_frame near_kit_frame(uint64_t step, int32_t n_rows, int32_t width)
{
    return (weft_frame){.type = WEFT_FRAME_DISPATCH,
                        .step = step,
                        .n_rows = n_rows,
                        .row_bytes = (uint32_t)width * 4,
                        .body = "body",
                        .body_bytes = 4};
}

/* Rows 0, 1, ... of `step`; `back`: their list is turned round. The rows are
 * gone when it returns. */
weft_status near_kit_send(weft_link *link, uint64_t step, int32_t n_rows,
                          int32_t width, bool back, weft_err *err)
{
    static float x[NEAR_KIT_ROWS_MAX * NEAR_KIT_WIDTH_MAX];
    int32_t list[NEAR_KIT_ROWS_MAX];
    for (int32_t r = 0; r < n_rows; r++) {
        const int32_t at = back ? n_rows - 1 - r : r;
        list[r] = at;
        for (int32_t i = 0; i < width; i++)
            x[at * width + i] = value_of(step, r, i);
    }
    const weft_frame frame = near_kit_frame(step, n_rows, width);
    const weft_near_rows rows = {.x = x, .x_rows = back ? list : NULL};
    const weft_status st = weft_link_send_near(link, &frame, &rows, err);
    memset(x, 0xff, sizeof x);
    return st;
}

void near_kit_check(const weft_frame *got, uint64_t step, int32_t n_rows,
                    int32_t width)
{
    const float *const x = got->rows;
    ck_assert(got->is_near && got->type == WEFT_FRAME_DISPATCH);
    ck_assert_uint_eq(got->step, step);
    ck_assert_int_eq(got->n_rows, n_rows);
    ck_assert_uint_eq(got->row_bytes, (uint64_t)width * 4);
    ck_assert_uint_eq(got->body_bytes, 4);
    ck_assert_mem_eq(got->body, "body", 4);
    for (int32_t r = 0; r < n_rows; r++)
        for (int32_t i = 0; i < width; i++)
            ck_assert(x[r * width + i] == value_of(step, r, i));
}
