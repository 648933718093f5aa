// test_runtime.cc - the stand-in for the CUDA runtime does what the manual says
// of the real one: order of streams, events, what a capture forbids, errors.
#include <check.h>
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>
#include <thread>

#include "tests/simt/runtime.h"

namespace
{

constexpr int N = 64;

int *new_block()
{
    int *at = nullptr;
    ck_assert_int_eq(cudaMalloc(&at, N * sizeof(int)), cudaSuccess);
    return at;
}

cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking)
{
    cudaStream_t s = nullptr;
    ck_assert_int_eq(cudaStreamCreateWithFlags(&s, flags), cudaSuccess);
    return s;
}

cudaEvent_t new_event(unsigned flags = cudaEventDisableTiming)
{
    cudaEvent_t e = nullptr;
    ck_assert_int_eq(cudaEventCreateWithFlags(&e, flags), cudaSuccess);
    return e;
}

void set_first(int *device, const int *value, cudaStream_t s)
{
    ck_assert_int_eq(cudaMemcpyAsync(device, value, sizeof *value,
                                     cudaMemcpyHostToDevice, s),
                     cudaSuccess);
}

void get_first(int *value, const int *device, cudaStream_t s)
{
    ck_assert_int_eq(cudaMemcpyAsync(value, device, sizeof *value,
                                     cudaMemcpyDeviceToHost, s),
                     cudaSuccess);
}

void expect_last(cudaError_t error)
{
    ck_assert_int_eq(cudaPeekAtLastError(), error);
    ck_assert_int_eq(cudaGetLastError(), error);
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
}

void all_is_given_back()
{
    ck_assert_int_eq(weft_simt_live(), 0);
}

} // namespace

START_TEST(errors_stay_until_they_are_asked_for)
{
    expect_last(cudaSuccess);
    ck_assert_int_eq(cudaSetDevice(1), cudaErrorInvalidDevice);
    int n = 7;
    ck_assert_int_eq(cudaGetDeviceCount(&n), cudaSuccess);
    ck_assert_int_eq(n, 1);
    expect_last(cudaErrorInvalidDevice);
    ck_assert_str_eq(cudaGetErrorName(cudaErrorInvalidDevice),
                     "cudaErrorInvalidDevice");
    ck_assert_str_eq(cudaGetErrorString(cudaSuccess), "no error");
    // Another thread has its own.
    (void)cudaSetDevice(1);
    std::thread([] { expect_last(cudaSuccess); }).join();
    expect_last(cudaErrorInvalidDevice);
}
END_TEST

START_TEST(a_count_that_fails_leaves_the_number)
{
    setenv("WEFT_SIMT_FAULT", "no_driver", 1);
    int n = 7, version = 7;
    ck_assert_int_eq(cudaGetDeviceCount(&n), cudaErrorInsufficientDriver);
    ck_assert_int_eq(n, 7);
    ck_assert_int_eq(cudaDriverGetVersion(&version), cudaSuccess);
    ck_assert_int_eq(version, 0);
    void *at = nullptr;
    ck_assert_int_eq(cudaMalloc(&at, 8), cudaErrorInsufficientDriver);
}
END_TEST

START_TEST(copies_know_their_direction)
{
    int *const a = new_block(), *const b = new_block();
    int host[N] = {0};
    const struct {
        void *to;
        const void *from;
        size_t bytes;
        cudaMemcpyKind kind;
        cudaError_t error;
    } cases[] = {
        {a, host, sizeof host, cudaMemcpyHostToDevice, cudaSuccess},
        {a, b, sizeof host, cudaMemcpyDeviceToDevice, cudaSuccess},
        {host, b, sizeof host, cudaMemcpyDefault, cudaSuccess},
        {a, host, 1 + sizeof host, cudaMemcpyHostToDevice,
         cudaErrorInvalidValue},
        {a, b, sizeof host, cudaMemcpyHostToDevice, cudaErrorInvalidValue},
        {host, b, sizeof host, cudaMemcpyDeviceToDevice, cudaErrorInvalidValue},
        {host, b, sizeof host, cudaMemcpyHostToHost, cudaErrorInvalidValue},
        {a + 1, b, sizeof host, cudaMemcpyDefault, cudaErrorInvalidValue},
    };
    for (const auto &c : cases) {
        ck_assert_int_eq(cudaMemcpyAsync(c.to, c.from, c.bytes, c.kind),
                         c.error);
        expect_last(c.error);
    }
    ck_assert_int_eq(cudaMemsetAsync(a + N - 1, 0, 5), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaFree(a + 1), cudaErrorInvalidValue);
    (void)cudaFree(a);
    (void)cudaFree(b);
    all_is_given_back();
}
END_TEST

START_TEST(a_pitched_copy_keeps_what_lies_between)
{
    int *const a = new_block();
    int host[N], got[N];
    for (int i = 0; i < N; i++) host[i] = i;
    ck_assert_int_eq(cudaMemset(a, 0, sizeof host), cudaSuccess);
    ck_assert_int_eq(
        cudaMemcpy2DAsync(a, 32, host, 24, 12, 5, cudaMemcpyHostToDevice),
        cudaSuccess);
    ck_assert_int_eq(cudaMemcpy(got, a, sizeof got, cudaMemcpyDeviceToHost),
                     cudaSuccess);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(got[i],
                         i / 8 < 5 && i % 8 < 3 ? i / 8 * 6 + i % 8 : 0);
    ck_assert_int_eq(
        cudaMemcpy2DAsync(a, 8, host, 24, 12, 2, cudaMemcpyHostToDevice),
        cudaErrorInvalidValue);
    (void)cudaFree(a);
}
END_TEST

START_TEST(a_stream_runs_when_it_is_waited_for)
{
    const cudaStream_t s = new_stream();
    int *const a = new_block();
    int in = 1, out = 7;
    set_first(a, &in, s);
    get_first(&out, a, s);
    ck_assert_int_eq(out, 7);
    ck_assert_int_eq(cudaStreamQuery(s), cudaErrorNotReady);
    ck_assert_int_eq(cudaStreamQuery(s), cudaSuccess);
    ck_assert_int_eq(out, 1);
    expect_last(cudaSuccess); // "not ready" is none
    in = 2;
    set_first(a, &in, s);
    get_first(&out, a, s);
    in = 3; // too early
    ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
    ck_assert_int_eq(out, 3);
    setenv("WEFT_SIMT_LAZY", "0", 1);
    set_first(a, &in, s);
    in = 4;
    get_first(&out, a, s);
    ck_assert_int_eq(out, 3);
    ck_assert_int_eq(cudaStreamDestroy(s), cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(s), cudaErrorInvalidResourceHandle);
    (void)cudaFree(a);
    all_is_given_back();
}
END_TEST

START_TEST(streams_are_not_in_order_but_by_events)
{
    const cudaStream_t one = new_stream(), two = new_stream();
    const cudaEvent_t e = new_event();
    int *const a = new_block();
    const int five = 5;
    int out = 7;
    ck_assert_int_eq(cudaMemsetAsync(a, 0, 4, one), cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(one), cudaSuccess);
    set_first(a, &five, one);
    get_first(&out, a, two);
    ck_assert_int_eq(cudaStreamSynchronize(two), cudaSuccess);
    ck_assert_int_eq(out, 0);
    ck_assert_int_eq(cudaEventRecord(e, one), cudaSuccess);
    ck_assert_int_eq(cudaStreamWaitEvent(two, e), cudaSuccess);
    get_first(&out, a, two);
    // After the record: not waited for.
    const int nine = 9;
    set_first(a, &nine, one);
    ck_assert_int_eq(cudaStreamSynchronize(two), cudaSuccess);
    ck_assert_int_eq(out, 5);
    ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess);
    ck_assert_int_eq(cudaMemcpy(&out, a, 4, cudaMemcpyDeviceToHost),
                     cudaSuccess);
    ck_assert_int_eq(out, 9);
    (void)cudaEventDestroy(e);
    (void)cudaStreamDestroy(one);
    (void)cudaStreamDestroy(two);
    (void)cudaFree(a);
    all_is_given_back();
}
END_TEST

// Two streams that wait for each other's events all the time, each waited for
// by its own thread.
START_TEST(threads_may_wait_for_streams_that_wait_for_each_other)
{
    const cudaStream_t s[2] = {new_stream(), new_stream()};
    cudaEvent_t e[2] = {new_event(), new_event()};
    int *const a = new_block();
    int ones[2] = {0, 0}, order = 0;
    ck_assert_int_eq(cudaMemset(a, 0, 4), cudaSuccess);
    for (int i = 0; i < 100; i++) {
        simt::submit(s[i % 2], "k", [&order, &ones, i] {
            ones[i % 2] += order == i ? 1 : 0;
            order++;
        });
        (void)cudaEventRecord(e[i % 2], s[i % 2]);
        (void)cudaStreamWaitEvent(s[1 - i % 2], e[i % 2]);
    }
    cudaError_t got[2];
    std::thread other([&] { got[1] = cudaStreamSynchronize(s[1]); });
    got[0] = cudaStreamSynchronize(s[0]);
    other.join();
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(got[i], cudaSuccess);
        ck_assert_int_eq(ones[i], 50);
        (void)cudaEventDestroy(e[i]);
        (void)cudaStreamDestroy(s[i]);
    }
    (void)cudaFree(a);
    all_is_given_back();
}
END_TEST

START_TEST(the_stream_of_no_name_is_in_order_with_blocking_ones)
{
    const cudaStream_t blocking = new_stream(cudaStreamDefault);
    const cudaStream_t free_one = new_stream();
    int *const a = new_block();
    const int five = 5;
    int out = 7;
    ck_assert_int_eq(cudaMemset(a, 0, 4), cudaSuccess);
    set_first(a, &five, blocking);
    get_first(&out, a, nullptr);
    ck_assert_int_eq(cudaStreamSynchronize(nullptr), cudaSuccess);
    ck_assert_int_eq(out, 5);
    const int six = 6;
    set_first(a, &six, nullptr);
    get_first(&out, a, free_one);
    ck_assert_int_eq(cudaStreamSynchronize(free_one), cudaSuccess);
    ck_assert_int_eq(out, 5);
    get_first(&out, a, blocking);
    ck_assert_int_eq(cudaStreamSynchronize(blocking), cudaSuccess);
    ck_assert_int_eq(out, 6);
    (void)cudaStreamDestroy(blocking);
    (void)cudaStreamDestroy(free_one);
    (void)cudaFree(a);
}
END_TEST

START_TEST(events_tell_when_and_whether)
{
    const cudaStream_t s = new_stream();
    const cudaEvent_t from = new_event(cudaEventDefault);
    const cudaEvent_t to = new_event(cudaEventDefault);
    const cudaEvent_t untimed = new_event();
    float ms = -1;
    ck_assert_int_eq(cudaEventQuery(from), cudaSuccess); // never recorded
    ck_assert_int_eq(cudaEventElapsedTime(&ms, from, to),
                     cudaErrorInvalidResourceHandle);
    (void)cudaEventRecord(from, s);
    (void)cudaEventRecord(to, s);
    ck_assert_int_eq(cudaEventElapsedTime(&ms, from, to), cudaErrorNotReady);
    ck_assert_int_eq(cudaEventQuery(to), cudaErrorNotReady);
    ck_assert_int_eq(cudaEventQuery(to), cudaSuccess);
    ck_assert_int_eq(cudaEventElapsedTime(&ms, from, to), cudaSuccess);
    ck_assert(ms >= 0);
    ck_assert_int_eq(cudaEventElapsedTime(&ms, from, untimed),
                     cudaErrorInvalidResourceHandle);
    (void)cudaEventRecord(to, s);
    (void)cudaEventDestroy(to); // the record is still to come
    ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
    (void)cudaEventDestroy(from);
    (void)cudaEventDestroy(untimed);
    (void)cudaStreamDestroy(s);
    all_is_given_back();
}
END_TEST

namespace
{

void begin(cudaStream_t s,
           cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal)
{
    ck_assert_int_eq(cudaStreamBeginCapture(s, mode), cudaSuccess);
}

void expect_end(cudaStream_t s, cudaError_t error)
{
    cudaGraph_t graph = nullptr;
    ck_assert_int_eq(cudaStreamEndCapture(s, &graph), error);
    ck_assert_int_eq(graph == nullptr, error != cudaSuccess);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    cudaStreamCaptureStatus status;
    (void)cudaStreamIsCapturing(s, &status);
    ck_assert_int_eq(status, cudaStreamCaptureStatusNone);
    (void)cudaGetLastError();
}

} // namespace

START_TEST(a_graph_is_what_was_captured)
{
    const cudaStream_t s = new_stream();
    int *const a = new_block(), *const b = new_block();
    const int five = 5;
    int out = 7;
    size_t n = 0;
    ck_assert_int_eq(cudaMemset(a, 0, N), cudaSuccess);
    ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess);
    begin(s);
    (void)cudaMemcpyAsync(b, a, 4, cudaMemcpyDeviceToDevice, s);
    (void)cudaMemsetAsync(a, 1, 4, s);
    cudaGraph_t graph = nullptr;
    ck_assert_int_eq(cudaStreamEndCapture(s, &graph), cudaSuccess);
    ck_assert_int_eq(cudaGraphGetNodes(graph, nullptr, &n), cudaSuccess);
    ck_assert_uint_eq(n, 2);
    cudaGraphExec_t exec = nullptr;
    ck_assert_int_eq(cudaGraphInstantiate(&exec, graph), cudaSuccess);
    ck_assert_int_eq(cudaGraphDestroy(graph), cudaSuccess);
    set_first(a, &five, s);
    ck_assert_int_eq(cudaGraphLaunch(exec, s), cudaSuccess);
    ck_assert_int_eq(cudaGraphExecDestroy(exec), cudaSuccess); // still to run
    get_first(&out, b, s);
    ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
    ck_assert_int_eq(out, 5);
    (void)cudaMemcpy(&out, a, 4, cudaMemcpyDeviceToHost);
    ck_assert_int_eq(out, 0x01010101);
    (void)cudaStreamDestroy(s);
    (void)cudaFree(a);
    (void)cudaFree(b);
    all_is_given_back();
}
END_TEST

START_TEST(a_capture_ends_by_what_it_forbids)
{
    const cudaStream_t s = new_stream(), other = new_stream();
    const cudaEvent_t e = new_event(), outer = new_event();
    void *at = nullptr;
    for (int i = 0; i < 7; i++) {
        (void)cudaEventRecord(outer, other);
        begin(s);
        (void)cudaEventRecord(e, s);
        cudaError_t got = cudaSuccess,
                    wanted = cudaErrorStreamCaptureUnsupported;
        switch (i) {
        case 0: got = cudaStreamSynchronize(s); break;
        case 1: got = cudaStreamQuery(s); break;
        case 2: got = cudaMalloc(&at, 8); break;
        case 3: got = cudaDeviceSynchronize(); break;
        case 4: got = cudaMallocHost(&at, 8); break;
        case 5: got = cudaStreamSynchronize(other); break;
        default:
            got = cudaStreamWaitEvent(s, outer);
            wanted = cudaErrorStreamCaptureIsolation;
            break;
        }
        ck_assert_msg(got == wanted, "case %d: %s", i, cudaGetErrorName(got));
        int none = 0;
        if (i != 6)
            ck_assert_int_eq(cudaLaunchHostFunc(
                                 s, [](void *) {}, &none),
                             cudaErrorStreamCaptureInvalidated);
        expect_end(s, cudaErrorStreamCaptureInvalidated);
    }
    begin(s);
    (void)cudaEventRecord(e, s);
    ck_assert_int_eq(cudaEventSynchronize(e), cudaErrorCapturedEvent);
    ck_assert_int_eq(cudaStreamWaitEvent(s, e), cudaSuccess);
    ck_assert_int_eq(
        cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal),
        cudaErrorIllegalState);
    expect_end(s, cudaSuccess);
    ck_assert_int_eq(
        cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal),
        cudaErrorStreamCaptureUnsupported);
    cudaGraph_t graph = nullptr;
    ck_assert_int_eq(cudaStreamEndCapture(s, &graph), cudaErrorIllegalState);
    (void)cudaEventDestroy(e);
    (void)cudaEventDestroy(outer);
    (void)cudaStreamDestroy(s);
    (void)cudaStreamDestroy(other);
    all_is_given_back();
}
END_TEST

START_TEST(modes_say_whom_a_capture_hinders)
{
    const cudaStream_t s = new_stream();
    const auto take = [] {
        void *at = nullptr;
        const cudaError_t error = cudaMalloc(&at, 8);
        (void)cudaFree(at);
        return error;
    };
    cudaError_t got = cudaErrorUnknown;
    begin(s, cudaStreamCaptureModeThreadLocal);
    std::thread([&] { got = take(); }).join();
    ck_assert_int_eq(got, cudaSuccess);
    expect_end(s, cudaSuccess);

    begin(s, cudaStreamCaptureModeGlobal);
    std::thread([&] { got = take(); }).join();
    ck_assert_int_eq(got, cudaErrorStreamCaptureUnsupported);
    expect_end(s, cudaErrorStreamCaptureInvalidated);

    begin(s, cudaStreamCaptureModeGlobal);
    std::thread([&] {
        cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
        got = take();
    }).join();
    ck_assert_int_eq(got, cudaSuccess);
    std::thread([&] {
        cudaGraph_t graph;
        got = cudaStreamEndCapture(s, &graph);
    }).join();
    ck_assert_int_eq(got, cudaErrorStreamCaptureWrongThread);
    expect_end(s, cudaSuccess);

    begin(s, cudaStreamCaptureModeRelaxed);
    ck_assert_int_eq(take(), cudaSuccess);
    expect_end(s, cudaSuccess);
    (void)cudaStreamDestroy(s);
    all_is_given_back();
}
END_TEST

START_TEST(a_kernel_that_fails_takes_the_device_along)
{
    const cudaStream_t s = new_stream();
    setenv("WEFT_SIMT_FAULT", "async:2", 1);
    int ran = 0;
    for (int i = 0; i < 3; i++) simt::submit(s, "k", [&ran] { ran++; });
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
    ck_assert_int_eq(ran, 1);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorIllegalAddress);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorIllegalAddress);
    void *at = nullptr;
    ck_assert_int_eq(cudaMalloc(&at, 8), cudaErrorIllegalAddress);
    ck_assert_int_eq(cudaStreamDestroy(s), cudaErrorIllegalAddress);
    all_is_given_back();
}
END_TEST

START_TEST(a_launch_that_is_refused_is_an_error_and_nothing_else)
{
    const cudaStream_t s = new_stream();
    setenv("WEFT_SIMT_FAULT", "launch:2", 1);
    int ran = 0;
    simt::submit(s, "k", [&ran] { ran++; });
    expect_last(cudaSuccess);
    simt::submit(s, "k", [&ran] { ran += 10; });
    expect_last(cudaErrorLaunchOutOfResources);
    simt::submit(s, "k", [&ran] { ran++; });
    expect_last(cudaSuccess);
    ck_assert_int_eq(cudaStreamSynchronize(s), cudaSuccess);
    ck_assert_int_eq(ran, 2);
    (void)cudaStreamDestroy(s);
}
END_TEST

START_TEST(shared_memory_is_opted_in_up_to_the_device)
{
    const auto kernel = [](void) {};
    void (*const f)() = kernel;
    const auto set = [&](int bytes) {
        return cudaFuncSetAttribute(
            f, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    };
    ck_assert_int_eq(set(163 * 1024), cudaSuccess);
    ck_assert_int_eq(set(163 * 1024 + 1), cudaErrorInvalidValue);
    setenv("WEFT_SIMT_SM", "89", 1);
    ck_assert_int_eq(set(99 * 1024), cudaSuccess);
    ck_assert_int_eq(set(99 * 1024 + 1), cudaErrorInvalidValue);
    setenv("WEFT_SIMT_SM", "90", 1);
    ck_assert_int_eq(set(227 * 1024), cudaSuccess);
    ck_assert_int_eq(set(-1), cudaErrorInvalidValue);
    int value = 0;
    ck_assert_int_eq(
        cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0),
        cudaSuccess);
    ck_assert_int_eq(value, 9);
}
END_TEST

int main()
{
    Suite *const suite = suite_create("simt_runtime");
    TCase *const group = tcase_create("all");
    const TTest *const tests[] = {
        errors_stay_until_they_are_asked_for,
        a_count_that_fails_leaves_the_number,
        copies_know_their_direction,
        a_pitched_copy_keeps_what_lies_between,
        a_stream_runs_when_it_is_waited_for,
        streams_are_not_in_order_but_by_events,
        threads_may_wait_for_streams_that_wait_for_each_other,
        the_stream_of_no_name_is_in_order_with_blocking_ones,
        events_tell_when_and_whether,
        a_graph_is_what_was_captured,
        a_capture_ends_by_what_it_forbids,
        modes_say_whom_a_capture_hinders,
        a_kernel_that_fails_takes_the_device_along,
        a_launch_that_is_refused_is_an_error_and_nothing_else,
        shared_memory_is_opted_in_up_to_the_device,
    };
    for (const TTest *test : tests) tcase_add_test(group, test);
    suite_add_tcase(suite, group);
    SRunner *const runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
