// shared.cc - the memory of a block: static arrays in a section of their own,
// static arrays of templates, dynamic memory. All are filled with NaN before
// each block.
#include "tests/simt/scheduler.h"

#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_ASAN 1
#endif
#endif
#if defined(SIMT_ASAN)
#include <sanitizer/asan_interface.h>
#endif

extern "C" {
extern unsigned char __start_simt_shared[]
    __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_simt_shared[]
    __attribute__((weak, visibility("hidden")));
}

namespace simt
{

namespace
{

enum : size_t {
    DYNAMIC_OFFSET = 128, // all that WEFT_SHARED_DYNAMIC promises
    DYNAMIC_ALIGN = 1024,
};

struct {
    unsigned char *dynamic;
    size_t dynamic_bytes;
    shared_block *blocks;
} g = {};

// Stores that no sanitizer sees: red zones between the arrays are overwritten
// too. (Without the barrier the compiler makes a call of memset of it.)
__attribute__((no_sanitize_address)) void fill(unsigned char *at, size_t bytes)
{
    const uint64_t ones = ~0ULL;
    size_t i = 0;
    for (; i + sizeof ones <= bytes; i += sizeof ones) {
        memcpy(at + i, &ones, sizeof ones);
        asm volatile("" ::"r"(at) : "memory");
    }
    for (; i < bytes; i++) {
        at[i] = 0xff;
        asm volatile("" ::"r"(at) : "memory");
    }
}

bool is_within(const void *p, size_t bytes, const void *at, size_t n)
{
    const uintptr_t a = reinterpret_cast<uintptr_t>(p);
    const uintptr_t b = reinterpret_cast<uintptr_t>(at);
    return a >= b && a + bytes <= b + n;
}

bool is_shared(const void *p, size_t bytes)
{
    if (is_within(p, bytes, g.dynamic, g.dynamic_bytes)) return true;
    if (__start_simt_shared &&
        is_within(
            p, bytes, __start_simt_shared,
            static_cast<size_t>(__stop_simt_shared - __start_simt_shared)))
        return true;
    for (const shared_block *b = g.blocks; b; b = b->next)
        if (is_within(p, bytes, b->at, b->bytes)) return true;
    return false;
}

} // namespace

void shared_fill()
{
    if (g.dynamic) fill(g.dynamic, g.dynamic_bytes);
    if (__start_simt_shared)
        fill(__start_simt_shared,
             static_cast<size_t>(__stop_simt_shared - __start_simt_shared));
    for (shared_block *b = g.blocks; b; b = b->next) {
        if (b->used) fill(static_cast<unsigned char *>(b->at), b->bytes);
        b->used = false;
    }
}

void *shared_begin(size_t bytes)
{
    void *at = nullptr;
    if (!bytes) return nullptr;
    if (posix_memalign(&at, DYNAMIC_ALIGN, DYNAMIC_OFFSET + bytes)) abort();
#if defined(SIMT_ASAN)
    __asan_poison_memory_region(at, DYNAMIC_OFFSET);
#endif
    g.dynamic = static_cast<unsigned char *>(at) + DYNAMIC_OFFSET;
    g.dynamic_bytes = bytes;
    return g.dynamic;
}

void shared_end()
{
    if (!g.dynamic) return;
#if defined(SIMT_ASAN)
    __asan_unpoison_memory_region(g.dynamic - DYNAMIC_OFFSET, DYNAMIC_OFFSET);
#endif
    free(g.dynamic - DYNAMIC_OFFSET);
    g.dynamic = nullptr;
    g.dynamic_bytes = 0;
}

void *shared_at(shared_block *b)
{
    if (!b->at) {
        // As if before the kernel: nobody races with the birth of a block.
        if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(main_tsan, 1);
        const size_t align = b->align < 16 ? 16 : b->align;
        if (posix_memalign(&b->at, align, b->bytes)) abort();
        fill(static_cast<unsigned char *>(b->at), b->bytes);
        b->next = g.blocks;
        g.blocks = b;
        happens_release(b);
        if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(current->tsan, 1);
    }
    b->used = true;
    happens_acquire(b);
    return b->at;
}

void check_shared(const void *p, size_t bytes, size_t align, const char *what,
                  site at)
{
    if (reinterpret_cast<uintptr_t>(p) % align)
        fail(at, "%s: the address in shared memory is not %zu-byte aligned",
             what, align);
#if defined(__clang__)
    (void)bytes; // static arrays are not in a section of their own
    (void)is_shared;
#else
    if (!is_shared(p, bytes))
        fail(at, "%s: the address is not in shared memory", what);
#endif
}

} // namespace simt
