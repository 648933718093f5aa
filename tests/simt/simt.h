// simt.h - CUDA kernels on a CPU: CUDA's names for kernels/cuda/device.cuh.
//
// A thread of a block is a fiber; one block runs at a time, and one kernel at
// a time in a process. A fiber runs until it waits: at a barrier, a warp's
// collective, an asynchronous copy. What is wrong with a kernel ends the
// process with one line that names kernel, block, thread, file and line
// (README.md lists what is found, and what is not).
//
// Compile kernels with -DWEFT_SIMT; with AddressSanitizer add
// -fsanitize-sections=simt_shared, so that arrays in __shared__ have red
// zones. The .cc files of this folder are compiled without
// -fsanitize=thread: they tell the sanitizer themselves who waits for whom.
#ifndef WEFT_TESTS_SIMT_SIMT_H
#define WEFT_TESTS_SIMT_SIMT_H

#include <functional>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// One section, so that it can be filled with NaN before each block. The
// attribute is lost in templates (and cannot be had in inline functions):
// there WEFT_SHARED does it.
#if defined(__clang__)
#define __shared__ static
#else
#define __shared__ static __attribute__((section("simt_shared")))
#endif

#define WEFT_FULL_MASK 0xffffffffU

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1)
        : x(x_), y(y_), z(z_)
    {
    }
};

namespace simt
{

// Where a kernel calls: the last parameters of what waits, filled in by the
// compiler at the call.
#define SIMT_AT const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define SIMT_SITE                                                              \
    ::simt::site                                                               \
    {                                                                          \
        file, line                                                             \
    }

struct site {
    const char *file;
    int line;
};

// What the running thread sees.
struct view {
    dim3 thread, block, block_dim, grid_dim;
    unsigned linear; // of the thread in its block
    void *dynamic;
};
extern view now;

// --- Running ---------------------------------------------------------------

enum : int {
    THREADS_MAX = 1024,
    WARP = 32,
    SHARED_MAX = 227 * 1024,    // of a block, on the largest
    SHARED_DEFAULT = 48 * 1024, // without being asked for
    PARAMETERS_MAX = 4096,      // bytes
    BAD_CONFIGURATION = 9,      // cudaErrorInvalidConfiguration
    BAD_VALUE = 1,              // cudaErrorInvalidValue
};

// 0, or the number of CUDA's error: no thread, too many, a grid out of bounds,
// too much dynamic shared memory.
int check_launch(dim3 grid, dim3 block, size_t dynamic_bytes);
// The same of a kernel, which may have been allowed more than SHARED_DEFAULT.
int check_kernel(const void *kernel, dim3 grid, dim3 block,
                 size_t dynamic_bytes);
// cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize).
// Returns 0 or BAD_VALUE.
int allow_shared(const void *kernel, size_t dynamic_bytes);
// What a block can have on the device that is played; SHARED_MAX at first.
void set_shared_limit(size_t bytes);

// Every block of the grid, one after another, here and to the end.
void run(const char *name, dim3 grid, dim3 block, size_t dynamic_bytes,
         void (*body)(const void *), const void *arg);

// In the order of the stream (tests/simt/runtime.cc).
void submit(void *stream, const char *name, std::function<void()> work);
// A launch that check_kernel refuses (tests/simt/runtime.cc).
void refuse(const char *name, int error);

// The order in which threads, and blocks, get their turn: "forward",
// "reverse" or a number, the seed of a random one. At first as the environment
// says in WEFT_SIMT_ORDER. Results must be the same in any.
void set_order(const char *order);

// Called with the line of a failure before the process ends by abort.
void set_failure_hook(void (*hook)(const char *text));
[[noreturn]] void fail(site at, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

struct counts {
    uint64_t switches, barriers, collectives, copies;
};
counts counted(); // since the start of the process

template <class... P, class... A>
void launch(const char *name, dim3 grid, dim3 block, size_t bytes, void *stream,
            void (*kernel)(P...), A &&...a)
{
    static_assert((std::is_trivially_copyable_v<P> && ...),
                  "parameters are copied as bytes");
    static_assert((!std::is_reference_v<P> && ...), "no references");
    static_assert((sizeof(P) + ... + 0) <= PARAMETERS_MAX, "4 KiB at most");
    const int error = check_kernel(reinterpret_cast<const void *>(kernel), grid,
                                   block, bytes);
    if (error) {
        refuse(name, error);
        return;
    }
    using closure = std::pair<void (*)(P...), std::tuple<P...>>;
    closure call(kernel, std::tuple<P...>(std::forward<A>(a)...));
    submit(stream, name, [=] {
        run(
            name, grid, block, bytes,
            [](const void *p) {
                const closure *c = static_cast<const closure *>(p);
                std::apply(c->first, c->second);
            },
            &call);
    });
}

// --- Shared memory ---------------------------------------------------------

// One WEFT_SHARED: a block of its exact size.
struct shared_block {
    size_t bytes, align;
    void *at;
    shared_block *next;
    bool used; // since it was filled
};
void *shared_at(shared_block *b);

// --- Waiting together ------------------------------------------------------

// What a lane tells the others of its warp.
struct alignas(8) slot {
    uint32_t word[8];
};

// Until all lanes of `mask` are here; then the slots of the warp's lanes, to be
// read before this lane's next. `orders`: what the lanes wrote before is seen
// after (__syncwarp); CUDA's other collectives do not promise that.
const slot *meet(uint32_t mask, const slot &mine, bool orders, site at);

// A barrier of the block, 0 to 15, for `n` threads. The sum and bits of what
// they bring.
struct tally {
    int sum, all, any;
};
tally barrier(unsigned id, unsigned n, bool waits, int brings, site at);
void block_barrier(site at);

void copy_begin(void *shared, const uint32_t data[4], site at);
void copy_commit();
void copy_wait(unsigned groups_left, site at);
// `p` is in the block's shared memory, whole and aligned.
void check_shared(const void *p, size_t bytes, size_t align, const char *what,
                  site at);
void mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2],
                       site at);
void fence();

inline unsigned lane()
{
    return now.linear % WARP;
}

// Accesses that the sanitizers see, whatever the type of the memory.
typedef uint32_t any_word __attribute__((may_alias));
inline void read_words(uint32_t to[4], const void *from)
{
    const any_word *p = static_cast<const any_word *>(from);
    for (int i = 0; i < 4; i++) to[i] = p[i];
}
inline void poison_words(void *at)
{
    any_word *p = static_cast<any_word *>(at);
    for (int i = 0; i < 4; i++) p[i] = ~0U;
}

} // namespace simt

// No macro: cudaDeviceProp has a member of that name.
static const int warpSize = 32;

#define threadIdx (::simt::now.thread)
#define blockIdx  (::simt::now.block)
#define blockDim  (::simt::now.block_dim)
#define gridDim   (::simt::now.grid_dim)

#define WEFT_LAUNCH(kernel, grid, block, bytes, stream, ...)                   \
    ::simt::launch(#kernel, (grid), (block), (bytes), (stream), kernel,        \
                   __VA_ARGS__)

#define WEFT_SHARED_DYNAMIC(T, name)                                           \
    T *const name = static_cast<T *>(::simt::now.dynamic)

// WEFT_SHARED(float, sum, [8][32]): a static array in shared memory that is
// filled with NaN before each block also where __shared__ is not (templates).
#define WEFT_SHARED(T, name, dims)                                             \
    using name##_type_ = T dims;                                               \
    static ::simt::shared_block name##_block_ = {                              \
        sizeof(name##_type_), alignof(name##_type_), nullptr, nullptr, false}; \
    name##_type_ &name =                                                       \
        *static_cast<name##_type_ *>(::simt::shared_at(&name##_block_))

#include "tests/simt/atomic.h"
#include "tests/simt/collective.h"
#include "tests/simt/scalar.h"
#include "tests/simt/vector.h"

namespace weft
{

inline void cp_async16(void *shared, const void *global, SIMT_AT)
{
    if (reinterpret_cast<uintptr_t>(global) % 16)
        simt::fail(SIMT_SITE, "cp.async from a misaligned address");
    uint32_t data[4];
    simt::read_words(data, global);
    simt::check_shared(shared, 16, 16, "cp.async", SIMT_SITE);
    simt::poison_words(shared);
    simt::copy_begin(shared, data, SIMT_SITE);
}

inline void cp_async16_zero(void *shared, const void *global, int32_t bytes,
                            SIMT_AT)
{
    if (bytes < 0 || bytes > 16)
        simt::fail(SIMT_SITE, "cp.async of %d bytes", bytes);
    if (reinterpret_cast<uintptr_t>(global) % 16)
        simt::fail(SIMT_SITE, "cp.async from a misaligned address");
    uint32_t data[4] = {0, 0, 0, 0};
    const unsigned char *from = static_cast<const unsigned char *>(global);
    unsigned char *to = reinterpret_cast<unsigned char *>(data);
    for (int32_t i = 0; i < bytes; i++) to[i] = from[i];
    simt::check_shared(shared, 16, 16, "cp.async", SIMT_SITE);
    simt::poison_words(shared);
    simt::copy_begin(shared, data, SIMT_SITE);
}

inline void cp_async_commit()
{
    simt::copy_commit();
}

template <int N> inline void cp_async_wait(SIMT_AT)
{
    static_assert(N >= 0, "groups that may be under way");
    simt::copy_wait(N, SIMT_SITE);
}

// PTX ISA, ldmatrix: thread l gives the address of row l % 8 of matrix l / 8
// and gets of matrix i the elements 2 (l % 4) and + 1 of row l / 4; with
// .trans of the transposed matrix.
inline void ldmatrix_x4(uint32_t r[4], const void *row, SIMT_AT)
{
    simt::check_shared(row, 16, 16, "ldmatrix", SIMT_SITE);
    simt::slot mine = {};
    simt::read_words(mine.word, row);
    const simt::slot *s = simt::meet(WEFT_FULL_MASK, mine, false, SIMT_SITE);
    const unsigned l = simt::lane();
    for (unsigned i = 0; i < 4; i++) r[i] = s[i * 8 + l / 4].word[l % 4];
}

inline void ldmatrix_x4_trans(uint32_t r[4], const void *row, SIMT_AT)
{
    simt::check_shared(row, 16, 16, "ldmatrix", SIMT_SITE);
    simt::slot mine = {};
    simt::read_words(mine.word, row);
    const simt::slot *s = simt::meet(WEFT_FULL_MASK, mine, false, SIMT_SITE);
    const unsigned l = simt::lane(), column = l / 4;
    for (unsigned i = 0; i < 4; i++) {
        const simt::slot *pair = s + i * 8 + 2 * (l % 4);
        const unsigned shift = 16 * (column % 2);
        const uint32_t low = pair[0].word[column / 2] >> shift & 0xffffU;
        r[i] = low | (pair[1].word[column / 2] >> shift & 0xffffU) << 16;
    }
}

inline void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2],
                     SIMT_AT)
{
    simt::mma_m16n8k16_bf16(d, a, b, SIMT_SITE);
}

inline float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
inline uint32_t bits_of(float value)
{
    uint32_t u;
    memcpy(&u, &value, sizeof u);
    return u;
}

} // namespace weft

#endif
