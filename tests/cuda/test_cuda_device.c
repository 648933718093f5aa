/* The border of a device's library (kernels/device.h): what open says where it
 * cannot, memory, copies, order, threads, and what sync tells. */
#include <math.h>
#include <pthread.h>

#include "tests/cuda/simt_faults.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

enum { MIB = 1 << 20, N = 1003 };

static const weft_device_options good = {0, MIB, 2};

static void expect_refusal(const weft_device_options *options, weft_status st,
                           const char *text)
{
    const weft_device_api *const api = device_kit_api();
    weft_device *device = NULL;
    weft_err err = {0};
    const weft_status got = api->open(options, &device, &err);
    ck_assert_msg(got == st, "%s: %s", weft_status_name(got), err.text);
    ck_assert_msg(strstr(err.text, text) != NULL, "\"%s\" lacks \"%s\"",
                  err.text, text);
    ck_assert(strchr(err.text, '\n') == NULL);
    ck_assert_ptr_null(device);
    ck_assert_int_eq(live_things(), 0);
}

START_TEST(open_says_what_is_missing)
{
    if (!has_faults(__func__)) return;
    static const struct {
        const char *fault, *text;
        weft_status st;
    } cases[] = {
        {"no_driver", "no NVIDIA driver", WEFT_UNAVAILABLE},
        {"old_driver", "is for CUDA 12.0, and 13.0 or later is needed",
         WEFT_UNAVAILABLE},
        {"no_device", "no NVIDIA device", WEFT_UNAVAILABLE},
        {"old_arch", "is sm_70: this build has kernels for", WEFT_UNAVAILABLE},
        {"launch:1", "the first kernel", WEFT_UNAVAILABLE},
        {"memory", "scratch: 1048576 bytes wanted", WEFT_RESOURCE_EXHAUSTED},
        /* The second thread's. */
        {"memory:2", "scratch: 1048576 bytes wanted", WEFT_RESOURCE_EXHAUSTED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        order_fault(cases[i].fault);
        expect_refusal(&good, cases[i].st, cases[i].text);
    }
    order_fault(NULL);
    weft_device *device = NULL;
    OK(device_kit_api()->open(&good, &device, &err));
    device_kit_api()->close(device);
}
END_TEST

static int32_t count_devices(void)
{
    weft_device_info info;
    device_kit_open()->get_info(device_kit_device(), &info);
    device_kit_close();
    return info.n_devices;
}

START_TEST(open_refuses_options_that_cannot_be)
{
    const int32_t n = count_devices();
    const struct {
        weft_device_options options;
        const char *text;
    } cases[] = {
        {{-1, MIB, 1}, "device -1: this machine has"},
        {{n, MIB, 1}, "this machine has"},
        {{99, MIB, 1}, "device 99: this machine has"},
        {{0, MIB - 1, 1}, "scratch of 1048575 bytes"},
        {{0, -1, 1}, "scratch of -1 bytes"},
        {{0, MIB, 0}, "0 threads"},
        {{0, MIB, 65}, "65 threads"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_refusal(&cases[i].options, WEFT_INVALID_ARGUMENT, cases[i].text);
}
END_TEST

START_TEST(scratch_must_fit)
{
    if (!has_faults(__func__)) return;
    (void)setenv("WEFT_SIMT_MEMORY_BYTES", "3000000", 1);
    const weft_device_options options = {0, 2 * MIB, 2};
    expect_refusal(&options, WEFT_RESOURCE_EXHAUSTED,
                   "2097152 bytes wanted, 902848 of 3000000 free");
}
END_TEST

START_TEST(another_abi_is_not_spoken)
{
    weft_device_get_fn get = NULL;
    void *const symbol = device_kit_symbol(WEFT_DEVICE_SYMBOL);
    memcpy(&get, &symbol, sizeof get);
    ck_assert(get != NULL);
    ck_assert_ptr_null(get(WEFT_DEVICE_ABI + 1));
    ck_assert_ptr_null(get(0));
    ck_assert_ptr_eq(get(WEFT_DEVICE_ABI), device_kit_api());
}
END_TEST

START_TEST(every_place_of_the_table_is_filled)
{
    const weft_device_api *const api = device_kit_open();
    ck_assert_uint_eq(api->abi, WEFT_DEVICE_ABI);
    ck_assert_ptr_nonnull(api->identity);
    ck_assert_str_eq(api->ops->name, api->name);
    ck_assert(api->ops->bf16_inputs);
    /* Function pointers from gemm to exp, without a gap. */
    void (*places[19])(void) = {0};
    const size_t bytes = sizeof places;
    ck_assert_uint_eq(offsetof(weft_ops, exp) - offsetof(weft_ops, gemm),
                      bytes - sizeof places[0]);
    memcpy(places, (const char *)api->ops + offsetof(weft_ops, gemm), bytes);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        ck_assert_msg(places[i] != NULL, "place %zu", i);
        for (size_t j = 0; j < i; j++)
            ck_assert_msg(places[i] != places[j], "%zu is %zu", i, j);
    }
    device_kit_close();
}
END_TEST

START_TEST(exp_is_that_of_the_scalar_path)
{
    const weft_ops *scalar = NULL;
    OK(weft_ops_cpu("scalar", &scalar, &err));
    float a[N] = {0.0f, -0.0f, 1.0f, -1.0f, 88.9f, -103.0f, 200.0f, NAN};
    float b[N];
    for (int i = 8; i < N; i++) a[i] = 0.193f * (float)(i - 550);
    memcpy(b, a, sizeof b);
    scalar->exp(a, N);
    device_kit_api()->ops->exp(b, N);
    ck_assert_mem_eq(a, b, sizeof a);
}
END_TEST

START_TEST(info_tells_of_the_device)
{
    const weft_device_api *const api = device_kit_open();
    weft_device_info info;
    memset(&info, 0xff, sizeof info);
    api->get_info(device_kit_device(), &info);
    ck_assert_int_gt((int)strlen(info.name), 0);
    ck_assert_int_eq(info.index, 0);
    ck_assert_int_ge(info.n_devices, 1);
    ck_assert_int_ge(info.sm, 80);
    ck_assert_int_gt(info.n_processors, 0);
    ck_assert_int_ge(info.driver, 13000);
    ck_assert_int_ge(info.runtime, 13000);
    ck_assert_int_gt(info.free_bytes, 0);
    ck_assert_int_gt(info.total_bytes, info.free_bytes);
    if (is_simt()) {
        ck_assert_int_eq(info.total_bytes, 8LL << 30);
        ck_assert_int_eq(info.total_bytes - info.free_bytes, 4 * MIB);
    }
    device_kit_close();
}
END_TEST

START_TEST(memory_is_aligned_and_close_frees_what_is_left)
{
    const weft_device_api *const api = device_kit_open();
    weft_device *const device = device_kit_device();
    void *at = &at, *host = NULL;
    OK(api->alloc(device, 0, &at, &err));
    ck_assert_ptr_null(at);
    OK(api->alloc_host(device, 0, &at, &err));
    ck_assert_ptr_null(at);
    api->free(device, NULL);
    api->free_host(device, NULL);
    for (int64_t bytes = 1; bytes < 40000; bytes = bytes * 3 + 1) {
        OK(api->alloc(device, bytes, &at, &err));
        ck_assert_uint_eq((uintptr_t)at % 256, 0);
        if (bytes % 2 == 0) api->free(device, at);
        OK(api->alloc_host(device, bytes, &host, &err));
        memset(host, 1, (size_t)bytes);
        if (bytes % 2 == 0) api->free_host(device, host);
    }
    api->fill(at, 0, 1);
    device_kit_close(); /* with work that nobody waited for */
    ck_assert_int_eq(live_things(), 0);
    api->close(NULL);
}
END_TEST

START_TEST(memory_ends_with_a_clear_line)
{
    if (!has_faults(__func__)) return;
    (void)setenv("WEFT_SIMT_MEMORY_BYTES", "5000000", 1);
    const weft_device_api *const api = device_kit_open();
    weft_device *const device = device_kit_device();
    void *at = NULL, *other = NULL;
    weft_err why = {0};
    OK(api->alloc(device, 500000, &at, &err));
    ck_assert_int_eq(api->alloc(device, 400000, &other, &why),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(why.text, "device 0: memory: 400000 bytes wanted, 305472 "
                               "of 5000000 free");
    ck_assert_ptr_null(other);
    api->free(device, at);
    OK(api->alloc(device, 400000, &other, &err));
    ck_assert_int_eq(api->alloc(device, INT64_MAX, &at, &why),
                     WEFT_RESOURCE_EXHAUSTED);
    api->fill(other, 0, 400000);
    device_kit_sync(); /* none of it is an error of the queue */
    device_kit_close();
}
END_TEST

START_TEST(copies_go_where_they_should)
{
    const weft_device_api *const api = device_kit_open();
    unsigned char from[N], to[N];
    for (int i = 0; i < N; i++) from[i] = (unsigned char)(i * 7);
    unsigned char *const a = device_kit_put(from, N);
    unsigned char *const b = device_kit_new(N);
    api->copy(b + 1, a + 3, N - 5);
    api->fill(b, 0x5a, 1);
    api->fill(b + N - 4, 0xa5, 4);
    api->upload(b + 10, from, 7);
    api->upload(b, from, 0);
    api->copy(b, a, 0);
    api->fill(b, 1, 0);
    api->download(to, b, 0);
    device_kit_get(to, b, N);
    unsigned char expected[N];
    memcpy(expected + 1, from + 3, N - 5);
    memset(expected, 0x5a, 1);
    memset(expected + N - 4, 0xa5, 4);
    memcpy(expected + 10, from, 7);
    ck_assert_mem_eq(to, expected, N);
    device_kit_close();
}
END_TEST

/* Host memory is read and written some time before sync returns, not before
 * upload and download do. */
START_TEST(host_memory_must_stay_until_sync)
{
    if (!has_faults(__func__)) return;
    const weft_device_api *const api = device_kit_open();
    int32_t from = 1, to = 7;
    int32_t *const at = device_kit_new(sizeof from);
    api->upload(at, &from, sizeof from);
    from = 2;
    api->download(&to, at, sizeof to);
    ck_assert_int_eq(to, 7);
    device_kit_sync();
    ck_assert_int_eq(to, 2);
    device_kit_close();
}
END_TEST

static void begin_add(float *x, const float *y, int32_t n)
{
    const weft_add add = {.x = x, .y = y, .n_row = 1, .width = n};
    device_kit_api()->ops->add(NULL, &add);
}

#if defined(__SANITIZE_ADDRESS__)
static float *three; /* on the device */

static void touch(void)
{
    *(volatile float *)three = 1.0f;
}

static void add_four(void)
{
    begin_add(three, three, 4);
    device_kit_sync();
}

static void add_three(void)
{
    begin_add(three, three, 3);
    device_kit_sync();
}

START_TEST(memory_is_the_device_s_and_exact)
{
    if (!has_faults(__func__)) return;
    (void)device_kit_open();
    three = device_kit_new(3 * sizeof *three);
    ck_assert_int_ne(end_of_child(touch), 0);
    ck_assert_int_ne(end_of_child(add_four), 0);
    ck_assert_int_eq(end_of_child(add_three), 0);
    device_kit_close();
}
END_TEST
#endif

static void fill_unbound(void)
{
    device_kit_api()->fill(NULL, 0, 1);
}

/* Whoever is not bound has no business in an op; a device that was closed
 * binds nobody. */
START_TEST(a_thread_that_is_not_bound_panics)
{
    if (!has_faults(__func__)) return;
    expect_panic(fill_unbound);
    (void)device_kit_open();
    device_kit_close();
    expect_panic(fill_unbound);
}
END_TEST

static void expect_sync(weft_status st, const char *text)
{
    weft_err err = {0};
    const weft_status got = device_kit_api()->sync(&err);
    ck_assert_msg(got == st && strncmp(err.text, text, strlen(text)) == 0,
                  "%s: \"%s\"", weft_status_name(got), err.text);
}

START_TEST(sync_names_the_op_that_was_refused)
{
    if (!has_faults(__func__)) return;
    const weft_device_api *const api = device_kit_open();
    const float ones[4] = {1, 1, 1, 1};
    float *const x = device_kit_put(ones, sizeof ones);
    float *const y = device_kit_put(ones, sizeof ones);
    order_fault("launch:2");
    begin_add(x, y, 4);
    begin_add(x, y, 4);
    api->copy(y, x, sizeof ones);
    expect_sync(WEFT_INTERNAL, "add: too many resources requested for launch "
                               "(cudaErrorLaunchOutOfResources)");
    order_fault(NULL);
    /* For good: what came after may have used what was not there. */
    begin_add(x, y, 4);
    expect_sync(WEFT_INTERNAL, "add: too many resources");
    device_kit_close();
    ck_assert_int_eq(live_things(), 0);
    /* Another one knows nothing of it. */
    (void)device_kit_open();
    device_kit_sync();
    device_kit_close();
}
END_TEST

START_TEST(another_device_of_the_thread_is_not_concerned)
{
    if (!has_faults(__func__)) return;
    const weft_device_api *const api = device_kit_open();
    const weft_device_options one = {0, MIB, 1};
    weft_device *other = NULL;
    OK(api->open(&one, &other, &err));
    float *const x = device_kit_new(sizeof *x);
    order_fault("launch:1");
    begin_add(x, x, 1);
    order_fault(NULL);
    OK(api->bind(other, &err));
    begin_add(x, x, 1);
    OK(api->sync(&err));
    api->close(other);
    device_kit_close();
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

START_TEST(sync_tells_that_the_device_was_lost)
{
    if (!has_faults(__func__)) return;
    const weft_device_api *const api = device_kit_open();
    const float ones[4] = {1, 1, 1, 1};
    float *const x = device_kit_put(ones, sizeof ones);
    float *const y = device_kit_put(ones, sizeof ones);
    order_fault("async:1");
    begin_add(x, y, 4);
    api->fill(y, 0, 4);
    expect_sync(WEFT_INTERNAL, "an op up to fill: an illegal memory access was "
                               "encountered (cudaErrorIllegalAddress)");
    expect_sync(WEFT_INTERNAL, "an op up to fill");
    void *at = NULL;
    weft_err err = {0};
    ck_assert_int_eq(api->alloc(device_kit_device(), 8, &at, &err),
                     WEFT_INTERNAL);
    api->free(device_kit_device(), x);
    device_kit_close(); /* ends all the same */
    ck_assert_int_eq(live_things(), 0);
    order_fault(NULL);
    expect_refusal(&good, WEFT_UNAVAILABLE, "illegal memory access");
}
END_TEST

START_TEST(copies_beyond_a_block_are_named)
{
    if (!has_faults(__func__)) return;
    unsigned char host[16] = {0};
    for (int i = 0; i < 5; i++) {
        const weft_device_api *const api = device_kit_open();
        unsigned char *const a = device_kit_new(15);
        unsigned char *const b = device_kit_new(15);
        static const char *const names[] = {
            "upload: invalid argument", "download: invalid argument",
            "copy: invalid argument", "fill: invalid argument",
            "upload: invalid argument"};
        switch (i) {
        case 0: api->upload(a, host, 16); break;
        case 1: api->download(host, a + 1, 15); break;
        case 2: api->copy(a, b + 8, 8); break;
        case 3: api->fill(a + 15, 0, 1); break;
        default: api->upload(a, b, 15); break; /* from no host memory */
        }
        expect_sync(WEFT_INTERNAL, names[i]);
        device_kit_close();
    }
}
END_TEST

/* Threads. ----------------------------------------------------------------- */

START_TEST(as_many_threads_bind_as_were_said)
{
    const weft_device_api *const api = device_kit_api();
    weft_device *device = NULL, *other = NULL;
    const weft_device_options one = {0, MIB, 1};
    OK(api->open(&one, &device, &err));
    OK(api->open(&one, &other, &err));
    OK(api->bind(NULL, &err));
    OK(api->bind(device, &err));
    OK(api->bind(device, &err)); /* is already */
    OK(api->bind(other, &err));
    OK(api->bind(device, &err)); /* the place was given back */
    OK(api->sync(&err));
    api->close(device);
    OK(api->bind(other, &err));
    OK(api->sync(&err));
    OK(api->bind(NULL, &err));
    api->close(other);
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

static void *bind_one_more(void *arg)
{
    weft_err *const err = arg;
    (void)device_kit_api()->bind(device_kit_device(), err);
    return NULL;
}

START_TEST(one_thread_more_is_refused)
{
    const weft_device_api *const api = device_kit_open();
    pthread_t thread;
    weft_err errs[4] = {{0}, {0}, {0}, {0}};
    /* The kit's four: this thread, and three that keep their places. */
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_create(&thread, NULL, bind_one_more, &errs[i]),
                         0);
        (void)pthread_join(thread, NULL);
    }
    for (int i = 0; i < 3; i++) ck_assert_int_eq(errs[i].status, WEFT_OK);
    ck_assert_int_eq(errs[3].status, WEFT_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(errs[3].text,
                     "device 0: 4 threads are bound, and no more can be");
    OK(api->sync(&err));
    device_kit_close();
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

enum { ROUNDS = 40, WIDTH = 67 };

struct worker {
    pthread_t thread;
    float start, got[WIDTH];
    weft_status st;
};

/* Its own memory, its own order: x += y, ROUNDS times. */
static void *work(void *arg)
{
    struct worker *const w = arg;
    const weft_device_api *const api = device_kit_api();
    weft_device *const device = device_kit_device();
    float x[WIDTH], y[WIDTH];
    void *on[2] = {NULL, NULL};
    for (int i = 0; i < WIDTH; i++) {
        x[i] = w->start + (float)i;
        y[i] = 2.0f;
    }
    w->st = api->bind(device, NULL);
    for (int i = 0; i < 2 && w->st == WEFT_OK; i++)
        w->st = api->alloc(device, sizeof x, &on[i], NULL);
    if (w->st != WEFT_OK) return NULL;
    api->upload(on[0], x, sizeof x);
    api->upload(on[1], y, sizeof y);
    for (int i = 0; i < ROUNDS; i++) {
        begin_add(on[0], on[1], WIDTH);
        if (i % 7 == 0) w->st = api->sync(NULL);
    }
    api->download(w->got, on[0], sizeof w->got);
    w->st = w->st == WEFT_OK ? api->sync(NULL) : w->st;
    for (int i = 0; i < 2; i++) api->free(device, on[i]);
    if (w->st == WEFT_OK) w->st = api->bind(NULL, NULL);
    return NULL;
}

START_TEST(each_thread_has_its_own_order)
{
    (void)device_kit_open();
    struct worker workers[3];
    for (int i = 0; i < 3; i++) {
        workers[i] = (struct worker){.start = (float)(1000 * i)};
        ck_assert_int_eq(
            pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        (void)pthread_join(workers[i].thread, NULL);
        ck_assert_int_eq(workers[i].st, WEFT_OK);
        for (int j = 0; j < WIDTH; j++)
            ck_assert(workers[i].got[j] ==
                      workers[i].start + (float)j + 2.0f * ROUNDS);
    }
    device_kit_close();
    ck_assert_int_eq(live_things(), 0);
}
END_TEST

int main(void)
{
    device_kit_need();
    const TTest *const tests[] = {
        open_says_what_is_missing,
        open_refuses_options_that_cannot_be,
        scratch_must_fit,
        another_abi_is_not_spoken,
        every_place_of_the_table_is_filled,
        exp_is_that_of_the_scalar_path,
        info_tells_of_the_device,
        memory_is_aligned_and_close_frees_what_is_left,
        memory_ends_with_a_clear_line,
        copies_go_where_they_should,
        host_memory_must_stay_until_sync,
        a_thread_that_is_not_bound_panics,
#if defined(__SANITIZE_ADDRESS__)
        memory_is_the_device_s_and_exact,
#endif
        sync_names_the_op_that_was_refused,
        another_device_of_the_thread_is_not_concerned,
        sync_tells_that_the_device_was_lost,
        copies_beyond_a_block_are_named,
        as_many_threads_bind_as_were_said,
        one_thread_more_is_refused,
        each_thread_has_its_own_order,
    };
    return WEFT_SUITE_RUN("cuda_device", tests);
}
