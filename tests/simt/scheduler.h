// scheduler.h - what the files of the emulator know of each other: fibers, who
// waits for what, and what the sanitizers are told.
//
// One kernel runs at a time (a lock in run), so all of this is the process's.
// Nothing here uses containers: fibers share this state without locks, which
// instrumented code of a library would be blamed for.
#ifndef WEFT_TESTS_SIMT_SCHEDULER_H
#define WEFT_TESTS_SIMT_SCHEDULER_H

#include "tests/simt/simt.h"

// There where the process has ThreadSanitizer, else null.
extern "C" {
#define SIMT_WEAK __attribute__((weak))
SIMT_WEAK void *__tsan_get_current_fiber();
SIMT_WEAK void *__tsan_create_fiber(unsigned flags);
SIMT_WEAK void __tsan_switch_to_fiber(void *fiber, unsigned flags);
SIMT_WEAK void __tsan_write16(void *p);
SIMT_WEAK void __tsan_read16(void *p);
SIMT_WEAK void __tsan_write8(void *p);
SIMT_WEAK void __tsan_read8(void *p);
SIMT_WEAK void __tsan_acquire(void *p);
SIMT_WEAK void __tsan_release(void *p);
}

namespace simt
{

enum waiting : int {
    DONE,
    READY,
    AT_BARRIER,
    AT_COLLECTIVE,
    AT_WARPGROUP,
    AT_MBARRIER,
};

struct copy {
    void *to;
    uint32_t data[4];
    int64_t group;
};

enum : unsigned { COPIES_MAX = 512 }; // under way, of a thread

struct table;

struct fiber {
    void *sp;
    unsigned char *stack; // the lowest byte
    size_t stack_bytes;
    void *fake, *tsan; // AddressSanitizer's stack, ThreadSanitizer's context
    waiting state;
    site where; // it last waited, or waits
    unsigned linear;
    dim3 thread;
    unsigned barrier_id;  // AT_BARRIER
    const void *mbarrier; // AT_MBARRIER
    table *held;          // whose slots it reads
    copy *copies;         // a ring
    unsigned first, n_copies;
    int64_t groups; // committed
};

extern fiber *current;     // null outside of a kernel
extern unsigned n_threads; // of the block
extern void *main_tsan;    // the context of who called run
fiber *thread_of(unsigned linear);

// Gives way until somebody makes it READY.
void block(waiting state, site at);
void wake(waiting state, bool (*which)(const fiber *, const void *),
          const void *arg);

// What lands last: called when nobody can run. False: there is nothing.
extern bool (*land_something)();
// Before a block, and at its end: null, or what has been left undone.
extern void (*begin_block)();
extern const char *(*left_undone)();
// The same at the end of a thread.
extern const char *(*thread_undone)(const fiber *);

counts *count();

// Dynamic memory of a kernel's blocks; before each block, all that is shared.
void *shared_begin(size_t dynamic_bytes);
void shared_end();
void shared_fill();

void reset_barriers();         // before a block
void thread_leaves(fiber *me); // its last act

uint64_t random_bits(); // 0 in the fixed orders
bool is_random();

inline void happens_release(void *tag)
{
    if (__tsan_release) __tsan_release(tag);
}
inline void happens_acquire(void *tag)
{
    if (__tsan_acquire) __tsan_acquire(tag);
}
inline void told_write16(void *p)
{
    if (__tsan_write16) __tsan_write16(p);
}

inline void told_read16(const void *p)
{
    if (__tsan_read16) __tsan_read16(const_cast<void *>(p));
}
inline void told_write8(void *p)
{
    if (__tsan_write8) __tsan_write8(p);
}
inline void told_read8(const void *p)
{
    if (__tsan_read8) __tsan_read8(const_cast<void *>(p));
}

} // namespace simt

#endif
