/* Near rows of links (shard/link/near.h) between two processes, each with a
 * device: the rows as they were, and what becomes of one end when the other
 * dies, freezes, or never comes. The other end is a child, which answers; it is
 * made before anything of the device is there. */
#include <sched.h>

#include "node/base/clock.h"
#include "shard/link/near_internal.h"
#include "tests/cuda/comm_kit.h"
#include "tests/cuda/simt_faults.h"
#include "tests/support/expect.h"
#include "tests/support/link_kit.h"
#include "tests/support/suite.h"

enum { STEPS = 48, ROWS_MAX = 40, WIDTH = 52, WAIT_S = 200 };
#define STEP_VALUES (ROWS_MAX * WIDTH)

typedef struct side {
    comm_end end;
    weft_near *near;
    weft_link *link;
    float *x;      /* device: [STEPS][ROWS_MAX][WIDTH] */
    int32_t *list; /* device: [ROWS_MAX], last row first */
    pid_t peer;    /* 0: this is the child */
    int to, from;  /* pipes */
    uint64_t sent, came;
} side;

/* -- rows ----------------------------------------------------------------- */

static float value_of(uint64_t step, int32_t row, int32_t i, bool child)
{
    return (float)(step * 5000 + (uint64_t)row * WIDTH + (uint64_t)i) +
           (child ? 0.5F : 0.25F);
}

static int32_t rows_of(uint64_t step)
{
    return (int32_t)(1 + step * 17 % ROWS_MAX);
}

/* Every other step picks its rows by the list. */
static bool is_listed(uint64_t step)
{
    return step % 2 == 1;
}

static void put_rows(side *s)
{
    static float host[STEPS * STEP_VALUES];
    int32_t list[ROWS_MAX];
    void *x = NULL;
    void *at = NULL;
    for (int32_t i = 0; i < ROWS_MAX; i++) list[i] = ROWS_MAX - 1 - i;
    for (int32_t i = 0; i < STEPS * STEP_VALUES; i++)
        host[i] = value_of((uint64_t)(i / STEP_VALUES), i % STEP_VALUES / WIDTH,
                           i % WIDTH, s->peer == 0);
    OK(device_kit_api()->alloc(s->end.device, sizeof host, &x, &err));
    OK(device_kit_api()->alloc(s->end.device, sizeof list, &at, &err));
    device_kit_api()->upload(x, host, sizeof host);
    device_kit_api()->upload(at, list, sizeof list);
    OK(device_kit_api()->sync(&err));
    s->x = x;
    s->list = at;
}

static weft_status send_step(side *s, weft_err *err)
{
    const uint64_t step = s->sent;
    const weft_frame frame = {.type = WEFT_FRAME_DISPATCH,
                              .step = step,
                              .body = &step,
                              .body_bytes = sizeof step,
                              .n_rows = rows_of(step),
                              .row_bytes = WIDTH * 4};
    const weft_near_rows rows = {.x = s->x + step % STEPS * STEP_VALUES,
                                 .x_rows = is_listed(step) ? s->list : NULL};
    const weft_status st = weft_link_send_near(s->link, &frame, &rows, err);
    if (st == WEFT_OK) s->sent++;
    return st;
}

static void check_step(side *s, const weft_frame *got)
{
    static float host[STEP_VALUES];
    const uint64_t step = s->came++;
    ck_assert_uint_eq(got->step, step);
    ck_assert(got->is_near && got->n_rows == rows_of(step));
    ck_assert_mem_eq(got->body, &step, sizeof step);
    device_kit_api()->download(host, got->rows,
                               (int64_t)got->n_rows * WIDTH * 4);
    OK(device_kit_api()->sync(&err));
    for (int32_t r = 0; r < got->n_rows; r++)
        for (int32_t i = 0; i < WIDTH; i++) {
            const int32_t row = is_listed(step) ? ROWS_MAX - 1 - r : r;
            const float want = value_of(step % STEPS, row, i, s->peer != 0);
            ck_assert_msg(host[r * WIDTH + i] == want,
                          "step %d row %d: %g, not %g", (int)step, r,
                          (double)host[r * WIDTH + i], (double)want);
        }
}

/* -- two processes -------------------------------------------------------- */

typedef void (*child_fn)(side *s);

static weft_frame_limits limits(void)
{
    return (weft_frame_limits){.body_bytes_max = 4096,
                               .rows_max = ROWS_MAX,
                               .row_bytes_max = WIDTH * 4};
}

static void open_side(side *s, int fd)
{
    comm_kit_open(0, &s->end);
    const weft_memory memory = {.api = device_kit_api(),
                                .device = s->end.device};
    const weft_near_options options = {.memory = &memory,
                                       .in = limits(),
                                       .out = limits(),
                                       .links_max = 1,
                                       .ready_ns = 3000000000U,
                                       .rows_ns = 400000000};
    OK(weft_near_create(&options, &s->near, &err));
    const weft_link_options link = {.limits = limits(),
                                    .near = s->near,
                                    .silence_ns = 0,
                                    .name = s->peer == 0 ? "parent" : "child"};
    OK(weft_link_create_tcp(fd, NULL, false, &link, &s->link, &err));
    weft_near_attach(s->link, s->peer != 0);
    put_rows(s);
}

static void close_side(side *s)
{
    weft_link_close(s->link);
    weft_near_destroy(s->near);
    comm_kit_close(&s->end);
    ck_assert_int_eq(live_things(), 0);
}

/* Makes the child, which does `fn` until its end. */
static void open_pair(side *s, child_fn fn)
{
    int fds[2], to[2], from[2];
    kit_sockets(&fds[0], &fds[1]);
    ck_assert(pipe(to) == 0 && pipe(from) == 0);
    (void)fflush(NULL);
    *s = (side){.peer = fork()};
    ck_assert_int_ge(s->peer, 0);
    (void)alarm(WAIT_S);
    const bool child = s->peer == 0;
    s->to = child ? from[1] : to[1];
    s->from = child ? to[0] : from[0];
    (void)close(child ? to[1] : to[0]);
    (void)close(child ? from[0] : from[1]);
    (void)close(fds[child ? 0 : 1]);
    open_side(s, fds[child ? 1 : 0]);
    if (!child) return;
    fn(s);
    close_side(s);
    _exit(0);
}

static void end_child(const side *s, int expected)
{
    int status = 0;
    (void)close(s->to);
    ck_assert_int_eq(waitpid(s->peer, &status, 0), s->peer);
    (void)close(s->from);
    if (expected != 0)
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == expected);
    else
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0,
                      "the child ended with %d", status);
}

static void say(const side *s)
{
    ck_assert_int_eq(write(s->to, "", 1), 1);
}

/* Until the other process says so, or is gone. */
static void wait_said(const side *s)
{
    char byte;
    const ssize_t n = read(s->from, &byte, 1);
    ck_assert_int_ge(n, 0);
}

static bool recv_one(side *s)
{
    weft_frame got;
    bool is = false;
    OK(weft_link_recv(s->link, &got, &is, &err));
    if (is) check_step(s, &got);
    return is;
}

static void become_near(side *s)
{
    const uint64_t deadline = kit_deadline();
    while (!weft_link_is_near(s->link)) {
        /* The other end may know of it first, and send. */
        (void)recv_one(s);
        ck_assert_int_ne(s->link->near->state, WEFT_NEAR_OVER);
        ck_assert(weft_clock_now_ns() < deadline);
        (void)sched_yield();
    }
}

/* Until it is broken; the reason. */
static const char *until_broken(side *s)
{
    static weft_err told;
    const uint64_t deadline = kit_deadline(), since = weft_clock_now_ns();
    weft_frame got;
    bool is = false;
    while (weft_link_recv(s->link, &got, &is, &told) == WEFT_OK &&
           weft_link_judge(s->link, weft_clock_now_ns(), since, &told) ==
               WEFT_OK) {
        ck_assert(!is);
        ck_assert_msg(weft_clock_now_ns() < deadline, "it does not break");
        (void)sched_yield();
    }
    ck_assert_int_eq(told.status, WEFT_UNAVAILABLE);
    /* Its end frees the device: ops go on. */
    OK(device_kit_api()->sync(&err));
    return told.text;
}

/* -- rows both ways ------------------------------------------------------- */

/* One there for each one back. */
static void answer_each(side *s)
{
    become_near(s);
    while (s->sent < 2 * STEPS) {
        if (s->sent == s->came) (void)recv_one(s);
        if (s->sent < s->came) OK(send_step(s, &err));
    }
    wait_said(s);
}

START_TEST(rows_come_bit_for_bit)
{
    side s;
    open_pair(&s, answer_each);
    become_near(&s);
    while (s.came < 2 * STEPS) {
        OK(send_step(&s, &err));
        const uint64_t deadline = kit_deadline();
        while (!recv_one(&s)) ck_assert(weft_clock_now_ns() < deadline);
    }
    say(&s);
    close_side(&s);
    end_child(&s, 0);
}
END_TEST

/* Sends as much as there is room for, and takes up to `n`, in turns. */
static void flow(side *s, uint64_t frames, uint64_t n)
{
    const uint64_t deadline = kit_deadline();
    become_near(s);
    while (s->sent < frames || s->came < frames) {
        weft_err told = {0};
        weft_status st = WEFT_OK;
        while (s->sent < frames && st == WEFT_OK) st = send_step(s, &told);
        ck_assert_msg(st == WEFT_OK || st == WEFT_RESOURCE_EXHAUSTED, "%s",
                      told.text);
        for (uint64_t i = 0; i < n; i++) (void)recv_one(s);
        ck_assert(weft_clock_now_ns() < deadline);
        (void)sched_yield();
    }
    /* The last ones have been taken when the other end says so. */
    say(s);
    wait_said(s);
}

static int turn;

static void flow_too(side *s)
{
    flow(s, 150, turn % 2 == 0 ? 1 : 7);
}

START_TEST(both_ways_at_full_rate)
{
    side s;
    turn = _i;
    open_pair(&s, flow_too);
    flow(&s, 150, _i / 2 == 0 ? 1 : 7);
    close_side(&s);
    end_child(&s, 0);
}
END_TEST

/* -- what goes wrong ------------------------------------------------------ */

static void stand_by(side *s)
{
    become_near(s);
    say(s);
    wait_said(s);
}

/* Killed with rows on their way to it. */
START_TEST(a_killed_peer_breaks_the_link)
{
    side s;
    open_pair(&s, stand_by);
    become_near(&s);
    wait_said(&s);
    OK(send_step(&s, &err));
    ck_assert_int_eq(kill(s.peer, SIGKILL), 0);
    (void)until_broken(&s);
    close_side(&s);
    end_child(&s, SIGKILL);
}
END_TEST

/* Frozen: nothing of it comes, and what was sent stays. */
START_TEST(a_frozen_peer_is_silent)
{
    side s;
    open_pair(&s, stand_by);
    become_near(&s);
    wait_said(&s);
    ck_assert_int_eq(kill(s.peer, SIGSTOP), 0);
    OK(send_step(&s, &err));
    s.link->options.silence_ns = 300000000;
    ck_assert_ptr_nonnull(strstr(until_broken(&s), "silent for"));
    close_side(&s);
    (void)kill(s.peer, SIGKILL);
    end_child(&s, SIGKILL);
}
END_TEST

/* The header comes, its rows hang. */
static void hang_rows(side *s)
{
    become_near(s);
    wait_said(s);
    order_fault("nccl_hang:1");
    OK(send_step(s, &err));
    (void)until_broken(s);
}

START_TEST(rows_that_hang_break_the_link)
{
    side s;
    open_pair(&s, hang_rows);
    become_near(&s);
    say(&s);
    ck_assert_ptr_nonnull(
        strstr(until_broken(&s), "the rows of a frame \"dispatch\" were not"));
    close_side(&s);
    end_child(&s, 0);
}
END_TEST

/* Its comm is gone in the middle of a frame. */
static void abort_rows(side *s)
{
    become_near(s);
    wait_said(s);
    order_fault("nccl_hang:1");
    OK(send_step(s, &err));
    for (int i = 0; i < 50; i++) ck_assert(!recv_one(s));
    (void)weft_link_break(s->link, NULL, "as the test wants it");
}

START_TEST(an_abort_in_the_middle_breaks_the_link)
{
    side s;
    open_pair(&s, abort_rows);
    become_near(&s);
    say(&s);
    (void)until_broken(&s);
    ck_assert_uint_eq(s.came, 0);
    close_side(&s);
    end_child(&s, 0);
}
END_TEST

/* It agrees, and then does nothing for a while. */
static void come_late(side *s)
{
    const uint64_t deadline = kit_deadline();
    while (s->link->near->state != WEFT_NEAR_PENDING) {
        ck_assert(!recv_one(s));
        ck_assert(weft_clock_now_ns() < deadline);
    }
    wait_said(s);
    while (s->link->near->state != WEFT_NEAR_OVER) {
        ck_assert(!recv_one(s));
        ck_assert(weft_clock_now_ns() < deadline);
    }
    const weft_frame frame = {.type = WEFT_FRAME_PLAN};
    OK(weft_link_send(s->link, &frame, NULL, &err));
    wait_said(s);
}

START_TEST(who_is_never_ready_stays_on_tcp)
{
    side s;
    open_pair(&s, come_late);
    const uint64_t deadline = kit_deadline();
    while (s.link->near->state != WEFT_NEAR_OVER) {
        ck_assert(!recv_one(&s));
        ck_assert(weft_clock_now_ns() < deadline);
        (void)sched_yield();
    }
    say(&s);
    const weft_frame got = kit_recv(s.link, NULL);
    ck_assert_int_eq(got.type, WEFT_FRAME_PLAN);
    ck_assert(!weft_link_is_near(s.link));
    say(&s);
    close_side(&s);
    end_child(&s, 0);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_test(tests, rows_come_bit_for_bit);
    tcase_add_loop_test(tests, both_ways_at_full_rate, 0, 4);
    tcase_add_test(tests, a_killed_peer_breaks_the_link);
    tcase_add_test(tests, a_frozen_peer_is_silent);
    tcase_add_test(tests, rows_that_hang_break_the_link);
    tcase_add_test(tests, an_abort_in_the_middle_breaks_the_link);
    tcase_add_test(tests, who_is_never_ready_stays_on_tcp);
    tcase_set_timeout(tests, 240);
}

int main(void)
{
    comm_kit_need(1);
    return weft_suite_run_added("cuda_link", add);
}
