// test_faults.cc - every kind of fault that the emulator is there for, planted
// and found: by itself, by AddressSanitizer or by ThreadSanitizer, as far as
// the program is built with them.
#include "tests/simt/test/gemm.h"

namespace
{

// Runs `body(threadIdx.x)` by every thread of a block.
template <class F> __global__ void each(F body)
{
    body(static_cast<int>(threadIdx.x));
}
template <class F> void launch(int threads, size_t bytes, F body)
{
    auto kernel = each<F>;
    WEFT_LAUNCH(kernel, dim3(1), dim3(static_cast<unsigned>(threads)), bytes,
                nullptr, body);
}

float sink[1024];

// --- Barriers --------------------------------------------------------------

// Thread t writes, thread t + 1 reads.
template <bool WAITS> __global__ void hand_on(float *out)
{
    __shared__ float box[64];
    const int t = static_cast<int>(threadIdx.x);
    box[t] = static_cast<float>(t);
    if (WAITS) __syncthreads();
    out[t] = box[(t + 1) % 64];
}
template <bool WAITS> void run_hand_on(const char *order)
{
    simt::set_order(order);
    auto kernel = hand_on<WAITS>;
    WEFT_LAUNCH(kernel, dim3(2), dim3(64), 0, nullptr, sink);
    for (int t = 0; t < 64; t++)
        if (WAITS) CHECK_NEAR(sink[t], (t + 1) % 64, 0);
}

void missing_barrier(const char *name, void (*body)())
{
    if (HAS_TSAN) kit::bad(name, body, "data race", "hand_on", nullptr);
}

// Lanes of one warp, with a shuffle between: it orders no memory.
template <bool WAITS> void lanes_hand_on()
{
    launch(32, 128, [](int t) {
        WEFT_SHARED_DYNAMIC(int, box);
        box[t] = t;
        if (WAITS) __syncwarp();
        const int x = __shfl_xor_sync(WEFT_FULL_MASK, t, 1);
        sink[t] = static_cast<float>(box[(t + 1) % 32] + x);
    });
}

void two_barriers()
{
    launch(64, 0, [](int t) {
        if (t < 32)
            __syncthreads();
        else
            __syncthreads();
    });
}
void barrier_of_some()
{
    launch(64, 0, [](int t) {
        if (t < 32) __syncthreads();
    });
}
void early_return()
{
    launch(64, 0, [](int t) {
        if (t == 40) return;
        __syncthreads();
    });
}
void late_barrier()
{
    simt::set_order("reverse");
    launch(64, 0, [](int t) {
        if (t == 63) return;
        if (t == 0) sink[0] = 1;
        __syncthreads();
    });
}

// --- Bounds ----------------------------------------------------------------

// Red zones have to tell: UndefinedBehaviorSanitizer, where it is built in,
// knows the sizes of these arrays by itself and would be first.
#define BY_RED_ZONES __attribute__((no_sanitize("bounds,object-size")))

BY_RED_ZONES __global__ void past_static(int at)
{
    __shared__ float a[24];
    __shared__ float b[24];
    a[at] = b[23 - at % 24] = 1;
    sink[0] = a[0];
}
template <int N> BY_RED_ZONES __global__ void past_static_of_template(int at)
{
    __shared__ float a[N];
    a[at] = 1;
    sink[0] = a[0];
}
template <int N> BY_RED_ZONES __global__ void past_named(int at)
{
    WEFT_SHARED(float, a, [N]);
    a[at] = 1;
    sink[0] = a[0];
}
__global__ void past_dynamic(int at)
{
    WEFT_SHARED_DYNAMIC(float, a);
    a[at] = 1;
}
__global__ void past_global(float *to, int at)
{
    to[at] = 1;
}
__global__ void copy_past_global(const float *from, int at)
{
    WEFT_SHARED_DYNAMIC(float, a);
    weft::cp_async16(a, from + at);
    weft::cp_async_commit();
    weft::cp_async_wait<0>();
}
__global__ void part_past_global(const float *from, int bytes)
{
    WEFT_SHARED_DYNAMIC(float, a);
    weft::cp_async16_zero(a, from, bytes);
    weft::cp_async_commit();
    weft::cp_async_wait<0>();
}

template <int AT> void run_past_static()
{
    WEFT_LAUNCH(past_static, dim3(1), dim3(1), 0, nullptr, AT);
}
template <int AT> void run_past_static_of_template()
{
    auto kernel = past_static_of_template<24>;
    WEFT_LAUNCH(kernel, dim3(1), dim3(1), 0, nullptr, AT);
}
template <int AT> void run_past_named()
{
    auto kernel = past_named<24>;
    WEFT_LAUNCH(kernel, dim3(1), dim3(1), 0, nullptr, AT);
}
template <int AT> void run_past_dynamic()
{
    WEFT_LAUNCH(past_dynamic, dim3(1), dim3(1), 24 * 4, nullptr, AT);
}
template <int AT> void run_past_global()
{
    float *to = static_cast<float *>(malloc(24 * 4));
    WEFT_LAUNCH(past_global, dim3(1), dim3(1), 0, nullptr, to, AT);
    free(to);
}
template <int AT> void run_copy_past_global()
{
    float *from = static_cast<float *>(aligned_alloc(16, 32 * 4));
    memset(from, 0, 32 * 4);
    WEFT_LAUNCH(copy_past_global, dim3(1), dim3(1), 16, nullptr, from, AT);
    free(from);
}
template <int BYTES> void run_part_past_global()
{
    void *from = nullptr;
    if (posix_memalign(&from, 16, 4)) abort();
    memset(from, 0, 4);
    WEFT_LAUNCH(part_past_global, dim3(1), dim3(1), 16, nullptr,
                static_cast<float *>(from), BYTES);
    free(from);
}

void bounds()
{
    kit::good("static array, last element", run_past_static<23>);
    kit::good("static array of a template, last",
              run_past_static_of_template<23>);
    kit::good("named array, last element", run_past_named<23>);
    kit::good("dynamic array, last element", run_past_dynamic<23>);
    kit::good("global array, last element", run_past_global<23>);
    kit::good("cp.async of the last bytes", run_copy_past_global<28>);
    kit::good("cp.async of a part, to the end", run_part_past_global<4>);
    if (!HAS_ASAN) return;
    const char *global = "global-buffer-overflow",
               *heap = "heap-buffer-overflow";
    kit::bad("past a static array", run_past_static<24>, global, "past_static",
             "test_faults.cc", nullptr);
    kit::bad("past a static array of a template",
             run_past_static_of_template<24>, global, "test_faults.cc",
             nullptr);
    kit::bad("past a named array", run_past_named<24>, heap, "past_named",
             nullptr);
    kit::bad("past dynamic shared memory", run_past_dynamic<24>, heap,
             "past_dynamic", nullptr);
    kit::bad("before dynamic shared memory", run_past_dynamic<-1>,
             "use-after-poison", "past_dynamic", nullptr);
    kit::bad("past a global array", run_past_global<24>, heap, "past_global",
             nullptr);
    kit::bad("cp.async past a global array", run_copy_past_global<32>, heap,
             "copy_past_global", nullptr);
    kit::bad("cp.async of a byte too many", run_part_past_global<5>, heap,
             "part_past_global", nullptr);
}

// --- Asynchronous copies ---------------------------------------------------

alignas(16) float source[64];

void copies_without_waiting()
{
    launch(1, 16, [](int) {
        WEFT_SHARED_DYNAMIC(float, a);
        weft::cp_async16(a, source);
        weft::cp_async_commit();
        sink[0] = a[0];
        weft::cp_async_wait<0>();
        sink[1] = a[0];
    });
    CHECK(isnan(sink[0]));
    CHECK(sink[1] == 0);
}
void waits_for_the_other_group()
{
    CHECK(isnan(gemm::difference<gemm::WAITS_TOO_LITTLE>(64, 32, 96)));
}
void ends_with_copies()
{
    gemm::difference<gemm::LEAVES_PENDING>(64, 32, 32);
}
void ends_uncommitted()
{
    launch(1, 16, [](int) {
        WEFT_SHARED_DYNAMIC(float, a);
        weft::cp_async16(a, source);
        weft::cp_async_wait<0>();
    });
}
template <int FROM, int TO> void misaligned_copy()
{
    launch(1, 64, [](int) {
        WEFT_SHARED_DYNAMIC(float, a);
        weft::cp_async16(a + TO, source + FROM);
        weft::cp_async_commit();
        weft::cp_async_wait<0>();
    });
}
void copy_to_global()
{
    launch(1, 0, [](int) {
        static float to[16] __attribute__((aligned(16)));
        weft::cp_async16(to, source);
    });
}
void misaligned_ldmatrix()
{
    launch(32, 1024, [](int t) {
        WEFT_SHARED_DYNAMIC(float, a);
        uint32_t r[4];
        weft::ldmatrix_x4(r, a + 4 * t + (t == 9));
    });
}
void ldmatrix_of_global()
{
    launch(32, 0, [](int) {
        uint32_t r[4];
        weft::ldmatrix_x4(r, source);
    });
}

void copies()
{
    kit::good("cp.async not waited for: NaN", copies_without_waiting);
    kit::good("wait leaves a group too many: NaN", waits_for_the_other_group);
    kit::bad("a thread ends with cp.async under way", ends_with_copies,
             "cp.async not waited for", "gemm.h", nullptr);
    kit::bad("a thread ends with cp.async not committed", ends_uncommitted,
             "1 cp.async not waited for", nullptr);
    kit::bad("cp.async from a misaligned address", misaligned_copy<1, 0>,
             "cp.async from a misaligned", "test_faults.cc", nullptr);
    kit::bad("cp.async to a misaligned address", misaligned_copy<0, 2>,
             "cp.async: the address in shared memory is not 16-byte aligned",
             nullptr);
    kit::bad("ldmatrix of a misaligned row", misaligned_ldmatrix,
             "thread (9,0,0)", "ldmatrix: the address", "not 16-byte", nullptr);
#if !defined(__clang__) // has no section for shared memory
    kit::bad("cp.async to global memory", copy_to_global,
             "cp.async: the address is not in shared memory", nullptr);
    kit::bad("ldmatrix of global memory", ldmatrix_of_global,
             "ldmatrix: the address is not in shared memory", nullptr);
#endif
    if (!HAS_TSAN) return;
    kit::bad(
        "gemm: no barrier before use",
        [] { gemm::difference<gemm::NO_BARRIER_BEFORE_USE>(64, 32, 96); },
        "data race", "gemm.h", nullptr);
    kit::bad(
        "gemm: no barrier after use",
        [] { gemm::difference<gemm::NO_BARRIER_AFTER_USE>(64, 32, 96); },
        "data race", "gemm.h", nullptr);
    kit::bad(
        "gemm: no barrier after use, reverse",
        [] {
            simt::set_order("reverse");
            gemm::difference<gemm::NO_BARRIER_AFTER_USE>(64, 32, 96);
        },
        "data race", "gemm.h", nullptr);
}

// --- Collectives -----------------------------------------------------------

void lane_left_out()
{
    launch(32, 0, [](int t) {
        if (t != 5) __shfl_xor_sync(WEFT_FULL_MASK, t, 1);
        __syncthreads();
    });
}
void lane_ends()
{
    launch(32, 0, [](int t) {
        if (t != 5) __shfl_xor_sync(WEFT_FULL_MASK, t, 1);
    });
}
void lane_has_ended()
{
    launch(32, 0, [](int t) {
        if (t == 0) return;
        __ballot_sync(WEFT_FULL_MASK, t);
    });
}
void divergent_collective()
{
    launch(32, 0, [](int t) {
        if (t < 16)
            __syncwarp();
        else
            __syncwarp();
    });
}
void two_collectives()
{
    launch(32, 0, [](int t) {
        const int x = __shfl_xor_sync(WEFT_FULL_MASK, t, 1);
        if (t >= 16) __syncthreads();
        __any_sync(WEFT_FULL_MASK, x);
        if (t < 16) __syncthreads();
    });
}
void absent_lane()
{
    launch(16, 0, [](int t) { __shfl_xor_sync(WEFT_FULL_MASK, t, 16); });
}
void lane_outside_the_mask()
{
    launch(32, 0, [](int t) {
        if (t < 16) __shfl_sync(0xffffU, t, 20);
    });
}
void not_in_its_mask()
{
    launch(32, 0, [](int t) { __ballot_sync(0xffffU, t); });
}
void mask_too_large()
{
    launch(32, 0, [](int t) {
        if (t < 16) __ballot_sync(WEFT_FULL_MASK, t);
        __syncthreads();
    });
}

void collectives()
{
    kit::bad("a lane left out of a collective", lane_left_out, "deadlock",
             "at the collective", nullptr);
    kit::bad("a lane ends and others wait", lane_ends,
             "a lane ends while others wait", nullptr);
    kit::bad("a lane has ended before", lane_has_ended,
             "names lane 0, which has ended", nullptr);
    kit::bad("a collective at two places", divergent_collective,
             "divergent collective", nullptr);
    kit::bad("a barrier and a collective", two_collectives, "deadlock",
             "at the barrier", nullptr);
    kit::bad("a shuffle reads an absent lane", absent_lane,
             "which takes no part", nullptr);
    kit::bad("a shuffle reads outside its mask", lane_outside_the_mask,
             "reads lane 20", nullptr);
    kit::bad("a lane outside its own mask", not_in_its_mask,
             "not in its own mask", nullptr);
    kit::bad("a mask of lanes that do not come", mask_too_large, "deadlock",
             nullptr);
}

void traps()
{
    launch(4, 0, [](int t) {
        if (t == 2) __trap();
    });
}

int depth(int n)
{
    volatile char frame[4096];
    frame[n % 4096] = 1;
    return n ? depth(n - 1) + frame[n % 4096] : 0;
}
void overflows()
{
    launch(4, 0, [](int t) { sink[t] = static_cast<float>(depth(400)); });
}

} // namespace

int main(int argc, char **argv)
{
    if (argc > 1) kit::only = argv[1];
    kit::good("a barrier between", [] { run_hand_on<true>("forward"); });
    missing_barrier("no barrier, forward",
                    [] { run_hand_on<false>("forward"); });
    missing_barrier("no barrier, reverse",
                    [] { run_hand_on<false>("reverse"); });
    missing_barrier("no barrier, seed 1", [] { run_hand_on<false>("1"); });
    missing_barrier("no barrier, seed 2", [] { run_hand_on<false>("2"); });
    kit::good("__syncwarp between lanes", lanes_hand_on<true>);
    if (HAS_TSAN)
        kit::bad("no __syncwarp between lanes", lanes_hand_on<false>,
                 "data race", "test_faults.cc", nullptr);
    kit::bad("a barrier at two places", two_barriers, "divergent barrier",
             "kernel kernel, block (0,0,0), thread (32,0,0)", nullptr);
    kit::bad("a barrier that some skip", barrier_of_some,
             "a thread ends while others wait at a barrier", nullptr);
    kit::bad("an early return", early_return,
             "a thread ends while others wait at a barrier", nullptr);
    kit::bad("a barrier after a thread has ended", late_barrier,
             "a barrier after thread 63", nullptr);
    bounds();
    copies();
    collectives();
    kit::bad("__trap", traps, "thread (2,0,0)", "__trap", nullptr);
    kit::bad("a stack that overflows", overflows, nullptr);
    return kit::end();
}
