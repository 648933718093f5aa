// simt.cc - the scheduler: fibers, their order, blocks.
//
// A fiber switches right to the next that can run, in the order of the launch;
// the last one of a block switches back to the thread that called run. Fibers
// live as long as the process: each runs thread after thread, so a sanitizer
// sees their stacks wind and unwind as usual.
#include "tests/simt/scheduler.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_ASAN 1
#endif
#endif
#if defined(SIMT_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" {
// Saves the callee's registers and its stack pointer at *save, and goes on
// where `load` was saved.
void simt_switch(void **save, void *load);
}

#if defined(__x86_64__)
asm(R"(
.text
.globl simt_switch
.hidden simt_switch
.type simt_switch,@function
simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size simt_switch, .-simt_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl simt_switch
.hidden simt_switch
.type simt_switch,@function
simt_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size simt_switch, .-simt_switch
)");
#else
#error "a switch of fibers for this processor"
#endif

namespace simt
{

view now;
fiber *current;
unsigned n_threads;
void *main_tsan;
bool (*land_something)();
const char *(*left_undone)();
const char *(*thread_undone)(const fiber *);
void (*begin_block)();

namespace
{

enum : size_t {
    GUARD = 4096,
    // Frames are larger with a sanitizer's red zones.
    STACK = (256U << 10) + GUARD,
    // Stacks begin at different lines of a page: else all threads' hot frames
    // would share one set of the cache.
    COLOURS = 61,
};

struct {
    pthread_mutex_t lock;
    fiber fibers[THREADS_MAX];
    unsigned n_fibers; // that have a stack
    unsigned live, cursor;
    const char *name;
    void (*body)(const void *);
    const void *arg;
    // The thread that called run.
    void *main_sp, *main_fake;
    const void *main_bottom;
    size_t main_bytes;
    bool from_main;
    char begins, ends; // tags of what happens before what
    uint64_t seed;     // 0: a fixed order
    bool reverse, order_known;
    void (*hook)(const char *);
    counts n;
} g = {};

void read_order(const char *order)
{
    g.order_known = true;
    g.reverse = false;
    g.seed = 0;
    if (!order || !*order || !strcmp(order, "forward")) return;
    if (!strcmp(order, "reverse")) {
        g.reverse = true;
        return;
    }
    g.seed = strtoull(order, nullptr, 0) * 2654435761U + 88172645463325252U;
}

// --- Switching -------------------------------------------------------------

void note_arrival(fiber *me)
{
    (void)me;
#if defined(SIMT_ASAN)
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(me->fake, &bottom, &bytes);
    if (g.from_main) {
        g.main_bottom = bottom;
        g.main_bytes = bytes;
    }
#endif
    g.from_main = false;
}

void become(fiber *f)
{
    current = f;
    now.linear = f->linear;
    now.thread = f->thread;
    g.n.switches++;
}

void switch_to(fiber *f)
{
    fiber *const me = current;
    if (f == me) return;
    become(f);
#if defined(SIMT_ASAN)
    __sanitizer_start_switch_fiber(&me->fake, f->stack, f->stack_bytes);
#endif
    if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(f->tsan, 1);
    simt_switch(&me->sp, f->sp);
    note_arrival(me);
}

void switch_to_main()
{
    fiber *const me = current;
    current = nullptr;
#if defined(SIMT_ASAN)
    __sanitizer_start_switch_fiber(&me->fake, g.main_bottom, g.main_bytes);
#endif
    if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(main_tsan, 1);
    simt_switch(&me->sp, g.main_sp);
    note_arrival(me);
}

void switch_from_main(fiber *f)
{
    become(f);
    g.from_main = true;
#if defined(SIMT_ASAN)
    __sanitizer_start_switch_fiber(&g.main_fake, f->stack, f->stack_bytes);
#endif
    if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(f->tsan, 1);
    simt_switch(&g.main_sp, f->sp);
#if defined(SIMT_ASAN)
    __sanitizer_finish_switch_fiber(g.main_fake, nullptr, nullptr);
#endif
}

// The next that can run, or null.
fiber *pick()
{
    if (g.seed && land_something && random_bits() % 16 == 0) land_something();
    do {
        unsigned at = g.cursor;
        if (g.seed) at = static_cast<unsigned>(random_bits() % n_threads);
        for (unsigned k = 0; k < n_threads; k++) {
            if (++at >= n_threads) at = 0;
            fiber *f = &g.fibers[g.reverse ? n_threads - 1 - at : at];
            if (f->state != READY) continue;
            g.cursor = at;
            return f;
        }
    } while (g.live && land_something && land_something());
    return nullptr;
}

// --- Fibers ----------------------------------------------------------------

void leave()
{
    fiber *const me = current;
    if (me->n_copies)
        fail(me->where, "a thread ends with %u cp.async not waited for",
             me->n_copies);
    const char *undone = thread_undone ? thread_undone(me) : nullptr;
    if (undone) fail(me->where, "%s", undone);
    me->state = DONE;
    g.live--;
    happens_release(&g.ends);
    thread_leaves(me);
    if (!g.live) {
        switch_to_main();
        return;
    }
    fiber *f = pick();
    if (!f) fail(me->where, "deadlock: every thread that is left waits");
    switch_to(f);
}

void fiber_main()
{
    note_arrival(current);
    for (;;) {
        happens_acquire(&g.begins);
        g.body(g.arg);
        leave();
    }
}

void *prepare(unsigned char *top)
{
    void (*entry)() = fiber_main;
    uintptr_t address;
    memcpy(&address, &entry, sizeof address);
#if defined(__x86_64__)
    // Registers, where to go, and no return from there; at entry the stack is
    // 8 off from a multiple of 16, as after a call.
    uintptr_t *sp = reinterpret_cast<uintptr_t *>(top) - 8;
    memset(sp, 0, 8 * sizeof *sp);
    sp[6] = address;
    return sp;
#else
    unsigned char *sp = top - 160;
    memset(sp, 0, 160);
    memcpy(sp + 88, &address, sizeof address); // x30
    return sp;
#endif
}

void grow(unsigned n)
{
    for (unsigned i = g.n_fibers; i < n; i++) {
        fiber *f = &g.fibers[i];
        const size_t copies = COPIES_MAX * sizeof(copy);
        void *at = mmap(nullptr, STACK + copies, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED || mprotect(at, GUARD, PROT_NONE)) {
            perror("simt: stacks");
            abort();
        }
        f->stack = static_cast<unsigned char *>(at) + GUARD;
        f->stack_bytes = STACK - GUARD;
        f->copies =
            reinterpret_cast<copy *>(static_cast<unsigned char *>(at) + STACK);
        f->sp = prepare(f->stack + f->stack_bytes - i % COLOURS * 192);
        if (__tsan_create_fiber) f->tsan = __tsan_create_fiber(0);
    }
    if (n > g.n_fibers) g.n_fibers = n;
}

// --- Blocks ----------------------------------------------------------------

void run_block()
{
    const dim3 d = now.block_dim;
    shared_fill();
    for (unsigned i = 0; i < n_threads; i++) {
        fiber *f = &g.fibers[i];
        f->state = READY;
        f->where = {"its beginning", 0};
        f->linear = i;
        f->thread = dim3(i % d.x, i / d.x % d.y, i / (d.x * d.y));
        f->first = f->n_copies = 0;
        f->groups = 0;
        f->held = nullptr;
    }
    g.live = n_threads;
    g.cursor = n_threads - 1;
    reset_barriers();
    if (begin_block) begin_block();
    happens_release(&g.begins);
    switch_from_main(pick());
    happens_acquire(&g.ends);
    const char *undone = left_undone ? left_undone() : nullptr;
    if (undone) fail({"its end", 0}, "%s", undone);
}

uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        const uint64_t c = a % b;
        a = b;
        b = c;
    }
    return a;
}

// All blocks, by a step that is prime to their number.
void run_blocks()
{
    const dim3 d = now.grid_dim;
    const uint64_t n = static_cast<uint64_t>(d.x) * d.y * d.z;
    uint64_t step = 1, at = 0;
    if (g.reverse) {
        step = n - 1 ? n - 1 : 1;
        at = n - 1;
    } else if (g.seed) {
        at = random_bits() % n;
        do {
            step = random_bits() % n;
        } while (common_divisor(step, n) != 1);
    }
    for (uint64_t i = 0; i < n; i++, at = (at + step) % n) {
        const uint64_t rows = at / d.x;
        now.block = dim3(static_cast<unsigned>(at % d.x),
                         static_cast<unsigned>(rows % d.y),
                         static_cast<unsigned>(rows / d.y));
        run_block();
    }
}

void print_threads()
{
    static const char *const names[] = {
        "has ended; last at", "can run; last at",   "at the barrier",
        "at the collective",  "at the warpgroup's", "at the mbarrier"};
    unsigned lines = 0;
    for (unsigned i = 0; i < n_threads && lines < 16; i++) {
        const fiber *f = &g.fibers[i], *before = i ? f - 1 : nullptr;
        if (before && before->state == f->state &&
            before->where.line == f->where.line &&
            before->where.file == f->where.file)
            continue;
        fprintf(stderr, "  thread %u and on: %s %s:%d\n", i, names[f->state],
                f->where.file, f->where.line);
        lines++;
    }
}

} // namespace

// --- For the other files ---------------------------------------------------

uint64_t random_bits()
{
    if (!g.seed) return 0;
    g.seed ^= g.seed << 13;
    g.seed ^= g.seed >> 7;
    g.seed ^= g.seed << 17;
    return g.seed >> 11;
}

bool is_random()
{
    return g.seed != 0;
}

fiber *thread_of(unsigned linear)
{
    return &g.fibers[linear];
}

void block(waiting state, site at)
{
    current->state = state;
    current->where = at;
    fiber *f = pick();
    if (!f) fail(at, "deadlock: every thread that is left waits");
    switch_to(f);
}

void wake(waiting state, bool (*which)(const fiber *, const void *),
          const void *arg)
{
    for (unsigned i = 0; i < n_threads; i++) {
        fiber *f = &g.fibers[i];
        if (f->state == state && which(f, arg)) f->state = READY;
    }
}

// --- For kernels and hosts -------------------------------------------------

void run(const char *name, dim3 grid, dim3 block, size_t dynamic_bytes,
         void (*body)(const void *), const void *arg)
{
    pthread_mutex_lock(&g.lock);
    if (!g.order_known) read_order(getenv("WEFT_SIMT_ORDER"));
    if (check_launch(grid, block, dynamic_bytes)) {
        fprintf(stderr, "simt: kernel %s: a launch that cannot be\n", name);
        abort();
    }
    g.name = name;
    g.body = body;
    g.arg = arg;
    n_threads = block.x * block.y * block.z;
    grow(n_threads);
    if (__tsan_get_current_fiber) main_tsan = __tsan_get_current_fiber();
    now.grid_dim = grid;
    now.block_dim = block;
    now.dynamic = shared_begin(dynamic_bytes);
    run_blocks();
    shared_end();
    now.dynamic = nullptr;
    pthread_mutex_unlock(&g.lock);
}

void set_order(const char *order)
{
    pthread_mutex_lock(&g.lock);
    read_order(order);
    pthread_mutex_unlock(&g.lock);
}

void set_failure_hook(void (*hook)(const char *text))
{
    g.hook = hook;
}

counts counted()
{
    return g.n;
}

counts *count()
{
    return &g.n;
}

void fail(site at, const char *format, ...)
{
    char what[256], line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    const dim3 b = now.block, t = now.thread;
    snprintf(line, sizeof line,
             "simt: kernel %s, block (%u,%u,%u), thread (%u,%u,%u), %s:%d: %s",
             g.name, b.x, b.y, b.z, t.x, t.y, t.z, at.file, at.line, what);
    fprintf(stderr, "%s\n", line);
    print_threads();
    if (g.hook) g.hook(line);
    abort();
}

} // namespace simt
