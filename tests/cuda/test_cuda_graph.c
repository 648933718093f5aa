/* Steps that are kept as one launch (kernels/device.h, graph_begin): what runs
 * when, what is kept, and that a step that cannot be kept runs all the same. */
#include <pthread.h>

#include "tests/cuda/simt_faults.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

enum { WIDTH = 37 };

/* How a step came about. */
enum how { RAN, RAN_TWICE, REPLAYED };

static float *x, *y; /* on the device */

static void begin_add(void)
{
    const weft_add add = {.x = x, .y = y, .n_row = 1, .width = WIDTH};
    device_kit_api()->ops->add(NULL, &add);
}

/* x += y; y += y, under a key. */
static enum how step(uint64_t key)
{
    const weft_device_api *const api = device_kit_api();
    int n = 0;
    do {
        if (api->graph_begin(key)) {
            ck_assert_int_eq(n, 0);
            return REPLAYED;
        }
        begin_add();
        const weft_add twice = {.x = y, .y = y, .n_row = 1, .width = WIDTH};
        api->ops->add(NULL, &twice);
        n++;
        ck_assert_int_le(n, 2);
    } while (!api->graph_end());
    return n == 1 ? RAN : RAN_TWICE;
}

static void start(void)
{
    float ones[WIDTH];
    for (int i = 0; i < WIDTH; i++) ones[i] = 1.0f;
    (void)device_kit_open();
    x = device_kit_put(ones, sizeof ones);
    y = device_kit_put(ones, sizeof ones);
}

/* x is the sum of the powers of two so far: 2^steps. */
static void expect_steps(int steps)
{
    float got[WIDTH];
    device_kit_get(got, x, sizeof got);
    for (int i = 0; i < WIDTH; i++)
        ck_assert_msg(got[i] == (float)(1 << steps), "%d: %g after %d steps", i,
                      (double)got[i], steps);
}

static void finish(void)
{
    device_kit_close();
    ck_assert_int_eq(live_things(), 0);
}

START_TEST(a_step_is_kept_and_replayed)
{
    start();
    ck_assert_int_eq(step(5), RAN); /* as it is */
    expect_steps(1);
    ck_assert_int_eq(step(5), RAN); /* kept */
    expect_steps(2);
    for (int i = 3; i < 9; i++) {
        ck_assert_int_eq(step(5), REPLAYED);
        if (i % 2 == 0) expect_steps(i);
    }
    expect_steps(8);
    const uint64_t other = 5 + ((uint64_t)1 << 32);
    ck_assert_int_eq(step(other), RAN);
    ck_assert_int_eq(step(5), REPLAYED);
    ck_assert_int_eq(step(other), RAN);
    ck_assert_int_eq(step(other), REPLAYED);
    expect_steps(12);
    finish();
}
END_TEST

START_TEST(a_replay_reads_what_memory_holds_then)
{
    start();
    for (int i = 0; i < 3; i++) (void)step(1);
    float threes[WIDTH], got[WIDTH];
    for (int i = 0; i < WIDTH; i++) threes[i] = 3.0f;
    device_kit_set(x, threes, sizeof threes);
    device_kit_set(y, threes, sizeof threes);
    ck_assert_int_eq(step(1), REPLAYED);
    device_kit_get(got, x, sizeof got);
    for (int i = 0; i < WIDTH; i++) ck_assert(got[i] == 6.0f);
    device_kit_get(got, y, sizeof got);
    for (int i = 0; i < WIDTH; i++) ck_assert(got[i] == 6.0f);
    finish();
}
END_TEST

START_TEST(drop_forgets_all)
{
    start();
    for (int i = 0; i < 3; i++) (void)step(1);
    const int64_t before = live_things();
    device_kit_api()->graph_drop();
    if (is_simt()) ck_assert_int_eq(live_things(), before - 1);
    ck_assert_int_eq(step(1), RAN);
    ck_assert_int_eq(step(1), RAN);
    ck_assert_int_eq(step(1), REPLAYED);
    expect_steps(6);
    /* A capture that is under way is given up. */
    ck_assert_int_eq(step(2), RAN);
    ck_assert(!device_kit_api()->graph_begin(2));
    begin_add();
    device_kit_api()->graph_drop();
    expect_steps(7);
    finish();
}
END_TEST

START_TEST(the_key_that_rested_longest_gives_way)
{
    start();
    const int32_t n = WEFT_DEVICE_GRAPHS_MAX;
    const uint64_t other = WEFT_DEVICE_GRAPHS_MAX;
    for (int32_t round = 0; round < 2; round++)
        for (int32_t key = 0; key < n; key++) {
            ck_assert_int_eq(step((uint64_t)key), RAN);
            device_kit_api()->fill(y, 0, WIDTH * sizeof *y);
        }
    const int64_t full = live_things();
    ck_assert_int_eq(step(0), REPLAYED);
    ck_assert_int_eq(step(other), RAN); /* in the place of 1 */
    ck_assert_int_eq(step(other), RAN);
    ck_assert_int_eq(step(other), REPLAYED);
    ck_assert_int_eq(live_things(), full);
    ck_assert_int_eq(step(0), REPLAYED);
    ck_assert_int_eq(step(3), REPLAYED);
    ck_assert_int_eq(step(1), RAN); /* in the place of 2 */
    ck_assert_int_eq(step(3), REPLAYED);
    ck_assert_int_eq(step(2), RAN);
    device_kit_sync();
    finish();
}
END_TEST

START_TEST(what_cannot_be_kept_runs_as_it_is)
{
    if (!has_faults(__func__)) return;
    static const char *const faults[] = {"capture", "instantiate", "replay",
                                         "launch:1", "launch:2"};
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        start();
        ck_assert_int_eq(step(1), RAN);
        order_fault(faults[i]);
        ck_assert_msg(step(1) == RAN_TWICE, "%s", faults[i]);
        expect_steps(2);
        order_fault(NULL);
        ck_assert_int_eq(step(1), RAN); /* and is not tried again */
        ck_assert_int_eq(step(1), RAN);
        expect_steps(4);
        ck_assert_int_eq(step(2), RAN); /* other keys are */
        ck_assert_int_eq(step(2), RAN);
        ck_assert_int_eq(step(2), REPLAYED);
        expect_steps(7);
        finish();
    }
}
END_TEST

START_TEST(a_replay_that_is_refused_runs_as_it_is)
{
    if (!has_faults(__func__)) return;
    start();
    for (int i = 0; i < 3; i++) (void)step(1);
    order_fault("replay");
    ck_assert_int_eq(step(1), RAN);
    order_fault(NULL);
    ck_assert_int_eq(step(1), RAN);
    expect_steps(5);
    finish();
}
END_TEST

START_TEST(after_an_error_nothing_is_kept)
{
    if (!has_faults(__func__)) return;
    start();
    for (int i = 0; i < 3; i++) (void)step(1);
    order_fault("launch:1");
    begin_add();
    order_fault(NULL);
    ck_assert_int_eq(step(1), RAN);
    ck_assert_int_eq(step(2), RAN);
    ck_assert_int_eq(step(2), RAN);
    ck_assert_int_eq(step(2), RAN);
    weft_err err = {0};
    ck_assert_int_eq(device_kit_api()->sync(&err), WEFT_INTERNAL);
    ck_assert_ptr_nonnull(strstr(err.text, "add: "));
    finish();
}
END_TEST

/* A capture of one thread does not hinder another, not even in alloc. */
static void *be_busy(void *arg)
{
    const weft_device_api *const api = device_kit_api();
    weft_device *const device = device_kit_device();
    weft_status *const st = arg;
    void *at = NULL;
    *st = api->bind(device, NULL);
    if (*st == WEFT_OK) *st = api->alloc(device, 100, &at, NULL);
    if (*st != WEFT_OK) return NULL;
    api->fill(at, 1, 100);
    *st = api->sync(NULL);
    api->free(device, at);
    if (*st == WEFT_OK) *st = api->bind(NULL, NULL);
    return NULL;
}

START_TEST(other_threads_go_on_during_a_capture)
{
    start();
    const weft_device_api *const api = device_kit_api();
    ck_assert(!api->graph_begin(1));
    begin_add();
    ck_assert(api->graph_end());
    ck_assert(!api->graph_begin(1));
    begin_add();
    pthread_t thread;
    weft_status st = WEFT_INTERNAL;
    ck_assert_int_eq(pthread_create(&thread, NULL, be_busy, &st), 0);
    (void)pthread_join(thread, NULL);
    ck_assert_int_eq(st, WEFT_OK);
    ck_assert(api->graph_end());
    ck_assert(api->graph_begin(1));
    float got[WIDTH];
    device_kit_get(got, x, sizeof got);
    for (int i = 0; i < WIDTH; i++) ck_assert(got[i] == 4.0f);
    finish();
}
END_TEST

/* Alloc inside is a mistake of the caller; the step runs, and is not kept. */
START_TEST(what_a_capture_forbids_ends_it)
{
    if (!has_faults(__func__)) return;
    start();
    const weft_device_api *const api = device_kit_api();
    ck_assert_int_eq(step(1), RAN);
    ck_assert(!api->graph_begin(1));
    void *at = NULL;
    weft_err err = {0};
    ck_assert_int_eq(api->alloc(device_kit_device(), 8, &at, &err),
                     WEFT_INTERNAL);
    ck_assert_ptr_nonnull(
        strstr(err.text, "cudaErrorStreamCaptureUnsupported"));
    ck_assert(!api->graph_end());
    ck_assert_int_eq(step(1), RAN);
    expect_steps(2);
    finish();
}
END_TEST

static void begin_in_begin(void)
{
    (void)device_kit_api()->graph_begin(2);
}

static void end_twice(void)
{
    (void)device_kit_api()->graph_end();
    (void)device_kit_api()->graph_end();
}

static void upload_inside(void)
{
    const float one = 1.0f;
    device_kit_api()->upload(x, &one, sizeof one);
}

static void download_inside(void)
{
    float one;
    device_kit_api()->download(&one, x, sizeof one);
}

static void sync_inside(void)
{
    (void)device_kit_api()->sync(NULL);
}

START_TEST(misuse_between_begin_and_end_panics)
{
    if (!has_faults(__func__)) return;
    start();
    ck_assert(!device_kit_api()->graph_begin(1));
    expect_panic(begin_in_begin);
    expect_panic(end_twice);
    expect_panic(upload_inside);
    expect_panic(download_inside);
    expect_panic(sync_inside);
    device_kit_api()->copy(x, y, 4);
    device_kit_api()->fill(x, 0, 4);
    ck_assert(device_kit_api()->graph_end());
    finish();
}
END_TEST

START_TEST(a_thread_that_leaves_takes_its_steps_along)
{
    start();
    const weft_device_api *const api = device_kit_api();
    for (int i = 0; i < 3; i++) (void)step(1);
    OK(api->bind(NULL, &err));
    OK(api->bind(device_kit_device(), &err));
    ck_assert_int_eq(step(1), RAN);
    expect_steps(4);
    finish();
}
END_TEST

int main(void)
{
    device_kit_need();
    const TTest *const tests[] = {
        a_step_is_kept_and_replayed,
        a_replay_reads_what_memory_holds_then,
        drop_forgets_all,
        the_key_that_rested_longest_gives_way,
        what_cannot_be_kept_runs_as_it_is,
        a_replay_that_is_refused_runs_as_it_is,
        after_an_error_nothing_is_kept,
        other_threads_go_on_during_a_capture,
        what_a_capture_forbids_ends_it,
        misuse_between_begin_and_end_panics,
        a_thread_that_leaves_takes_its_steps_along,
    };
    return WEFT_SUITE_RUN("cuda_graph", tests);
}
