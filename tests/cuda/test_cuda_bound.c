/* Places of a device's threads when devices and threads go (kernels/device.h):
 * a place that was left, or whose device is closed, is nobody's. */
#include <pthread.h>
#include <stdlib.h>

#include "node/base/mem.h"
#include "tests/cuda/simt_faults.h"
#include "tests/support/expect.h"
#include "tests/support/kernel_suite.h"
#include "tests/support/suite.h"

enum { MIB = 1 << 20, WIDTH = 5000 };

static const weft_device_options one = {0, MIB, 1};

/* Both threads come here before either goes on. */
static pthread_barrier_t meeting;
static weft_device *opened; /* that the other thread is to bind */
static weft_status bound[3];

static void meet(void)
{
    (void)pthread_barrier_wait(&meeting);
}

static void *bind_and_outlive(void *arg)
{
    const weft_device_api *const api = device_kit_api();
    bound[0] = api->bind(opened, NULL);
    meet(); /* it is closed, and the next one is bound by the test */
    meet();
    bound[1] = api->bind(opened, NULL);
    meet(); /* the test has left it */
    meet();
    bound[2] = api->bind(opened, NULL);
    (void)api->bind(NULL, NULL);
    return arg;
}

START_TEST(a_place_ends_with_its_device)
{
    const weft_device_api *const api = device_kit_api();
    ck_assert_int_eq(pthread_barrier_init(&meeting, NULL, 2), 0);
    OK(api->open(&one, &opened, &err));
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, bind_and_outlive, NULL), 0);
    meet();
    /* Most often at the same address. */
    api->close(opened);
    OK(api->open(&one, &opened, &err));
    OK(api->bind(opened, &err));
    meet();
    meet();
    OK(api->bind(NULL, &err));
    meet();
    (void)pthread_join(thread, NULL);
    ck_assert_int_eq(bound[0], WEFT_OK);
    ck_assert_int_eq(bound[1], WEFT_RESOURCE_EXHAUSTED);
    ck_assert_int_eq(bound[2], WEFT_OK);
    api->close(opened);
    ck_assert_int_eq(live_things(), 0);
    (void)pthread_barrier_destroy(&meeting);
}
END_TEST

START_TEST(who_leaves_a_place_has_done_what_it_began)
{
    const weft_device_api *const api = device_kit_open();
    float *const ones = weft_kit_new(WIDTH, sizeof *ones);
    float *const got = weft_kit_nans(WIDTH);
    for (int i = 0; i < WIDTH; i++) ones[i] = 1.0f;
    float *const x = device_kit_put(ones, WIDTH * sizeof *ones);
    const weft_add twice = {.x = x, .y = x, .n_row = 1, .width = WIDTH};
    for (int i = 0; i < 5; i++) api->ops->add(NULL, &twice);
    api->download(got, x, WIDTH * sizeof *got);
    OK(api->bind(NULL, &err));
    for (int i = 0; i < WIDTH; i++) ck_assert(got[i] == 32.0f);
    weft_mem_free(ones);
    weft_mem_free(got);
    device_kit_close();
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

static void *block; /* of the host or the device */

static void free_as_device(void)
{
    device_kit_api()->free(device_kit_device(), block);
}

static void free_as_host(void)
{
    device_kit_api()->free_host(device_kit_device(), block);
}

START_TEST(a_block_is_freed_as_what_it_is)
{
    const weft_device_api *const api = device_kit_open();
    OK(api->alloc_host(device_kit_device(), 64, &block, &err));
    expect_panic(free_as_device);
    free_as_host();
    OK(api->alloc(device_kit_device(), 64, &block, &err));
    expect_panic(free_as_host);
    free_as_device();
    device_kit_close();
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

static void add_at_home(float *x)
{
    const weft_add add = {.x = x, .y = x, .n_row = 1, .width = WIDTH};
    device_kit_api()->ops->add(NULL, &add);
    OK(device_kit_api()->sync(&err));
}

/* What is done for another device leaves the thread at its own. */
START_TEST(a_thread_stays_at_its_device)
{
    if (!has_faults(__func__)) return;
    (void)setenv("WEFT_SIMT_DEVICES", "2", 1);
    const weft_device_api *const api = device_kit_open();
    const weft_device_options second = {1, MIB, 1};
    weft_device *other = NULL;
    weft_device_info info;
    void *there = NULL;
    OK(api->open(&second, &other, &err));
    float *const x = device_kit_new(WIDTH * sizeof *x);
    add_at_home(x);
    OK(api->alloc(other, 64, &there, &err));
    add_at_home(x);
    api->get_info(other, &info);
    add_at_home(x);
    api->free(other, there);
    add_at_home(x);
    api->close(other);
    add_at_home(x);
    device_kit_close();
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

int main(void)
{
    device_kit_need();
    const TTest *const tests[] = {
        a_place_ends_with_its_device,
        who_leaves_a_place_has_done_what_it_began,
        a_block_is_freed_as_what_it_is,
        a_thread_stays_at_its_device,
    };
    return WEFT_SUITE_RUN("cuda_bound", tests);
}
