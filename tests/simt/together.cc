// together.cc - what threads of a block do together: barriers, the warp's
// collectives, asynchronous copies, the tensor core's product.
#include "tests/simt/scheduler.h"

namespace simt
{

// One meeting of a warp. It is taken by the first lane that comes, and given
// back when the last has read.
struct table {
    slot slots[WARP];
    uint32_t mask, arrived;
    unsigned readers;
    site at;
};

namespace
{

// Each lane reads at most one and waits at one more.
enum : unsigned { TABLES = 64, BARRIERS = 16 };

struct warp {
    table tables[TABLES];
    uint64_t used, open;
    uint32_t gone; // lanes that have ended
};

struct block_wide {
    unsigned arrived, expected;
    site at;
    tally sum, result;
    unsigned phase;
    char tags[2];
};

warp warps[THREADS_MAX / WARP];
block_wide barriers[BARRIERS];

unsigned warp_lanes(unsigned linear)
{
    const unsigned left = n_threads - linear / WARP * WARP;
    return left < WARP ? left : unsigned{WARP};
}

void give_back(warp *w, fiber *f)
{
    table *t = f->held;
    if (t && !--t->readers) w->used &= ~(1ULL << (t - w->tables));
    f->held = nullptr;
}

table *open_table(warp *w, uint32_t mask, site at)
{
    const int i = __builtin_ctzll(~w->used);
    table *t = &w->tables[i];
    w->used |= 1ULL << i;
    w->open |= 1ULL << i;
    t->mask = mask;
    t->arrived = 0;
    t->at = at;
    if (mask != WEFT_FULL_MASK) memset(t->slots, 0, sizeof t->slots);
    return t;
}

table *find_table(warp *w, uint32_t mask, site at)
{
    for (uint64_t open = w->open; open; open &= open - 1) {
        table *t = &w->tables[__builtin_ctzll(open)];
        if (t->mask != mask) continue;
        if (t->at.line != at.line || strcmp(t->at.file, at.file) != 0)
            fail(at, "divergent collective: other lanes are at %s:%d",
                 t->at.file, t->at.line);
        return t;
    }
    return open_table(w, mask, at);
}

void complete(warp *w, table *t, unsigned base)
{
    w->open &= ~(1ULL << (t - w->tables));
    t->readers = static_cast<unsigned>(__builtin_popcount(t->mask));
    for (uint32_t left = t->mask; left; left &= left - 1) {
        fiber *f = thread_of(base + static_cast<unsigned>(__builtin_ctz(left)));
        f->held = t;
        f->state = READY;
    }
}

} // namespace

const slot *meet(uint32_t mask, const slot &mine, bool orders, site at)
{
    fiber *const me = current;
    warp *const w = &warps[me->linear / WARP];
    const unsigned l = me->linear % WARP, n = warp_lanes(me->linear);
    count()->collectives++;
    if (!(mask >> l & 1))
        fail(at, "lane %u is not in its own mask %08x", l, mask);
    if (n < WARP) mask &= (1U << n) - 1U;
    if (mask & w->gone)
        fail(at, "a collective names lane %d, which has ended",
             __builtin_ctz(mask & w->gone));
    give_back(w, me);
    table *t = find_table(w, mask, at);
    t->slots[l] = mine;
    t->arrived |= 1U << l;
    if (orders) happens_release(t);
    if (t->arrived == mask) {
        me->where = at;
        complete(w, t, me->linear - l);
    } else {
        block(AT_COLLECTIVE, at);
    }
    if (orders) happens_acquire(t);
    return t->slots;
}

tally barrier(unsigned id, unsigned n, bool waits, int brings, site at)
{
    fiber *const me = current;
    if (id >= BARRIERS) fail(at, "no barrier %u", id);
    block_wide *const b = &barriers[id];
    count()->barriers++;
    if (n > n_threads || (n % WARP && n != n_threads))
        fail(at, "barrier %u for %u threads of %u", id, n, n_threads);
    if (b->arrived && b->expected != n)
        fail(at, "barrier %u is for %u threads at %s:%d, for %u here", id,
             b->expected, b->at.file, b->at.line, n);
    b->expected = n;
    if (!b->arrived) b->sum = {0, 1, 0};
    b->sum.sum += brings != 0;
    b->sum.all &= brings != 0;
    b->sum.any |= brings != 0;
    const unsigned phase = b->phase;
    happens_release(&b->tags[phase % 2]);
    if (++b->arrived == n) {
        b->result = b->sum;
        b->arrived = 0;
        b->phase++;
        me->where = at;
        wake(
            AT_BARRIER,
            [](const fiber *f, const void *p) {
                return f->barrier_id == *static_cast<const unsigned *>(p);
            },
            &id);
    } else if (waits) {
        if (b->arrived == 1) b->at = at;
        me->barrier_id = id;
        block(AT_BARRIER, at);
    }
    if (waits) happens_acquire(&b->tags[phase % 2]);
    return b->result;
}

void block_barrier(site at)
{
    const block_wide *b = &barriers[0];
    if (b->arrived && (b->at.line != at.line || strcmp(b->at.file, at.file)))
        fail(at, "divergent barrier: other threads are at %s:%d", b->at.file,
             b->at.line);
    for (unsigned i = 0; i < n_threads; i += WARP)
        if (warps[i / WARP].gone)
            fail(at, "a barrier after thread %d of the block has ended",
                 static_cast<int>(i) + __builtin_ctz(warps[i / WARP].gone));
    barrier(0, n_threads, true, 0, at);
}

void thread_leaves(fiber *me)
{
    warp *const w = &warps[me->linear / WARP];
    const uint32_t bit = 1U << me->linear % WARP;
    give_back(w, me);
    w->gone |= bit;
    for (uint64_t open = w->open; open; open &= open - 1) {
        const table *t = &w->tables[__builtin_ctzll(open)];
        if (t->mask & bit) fail(t->at, "a lane ends while others wait for it");
    }
    if (barriers[0].arrived && barriers[0].expected == n_threads)
        fail(barriers[0].at, "a thread ends while others wait at a barrier");
}

void reset_barriers()
{
    for (unsigned i = 0; i < (n_threads + WARP - 1) / WARP; i++) {
        warps[i].used = warps[i].open = 0;
        warps[i].gone = 0;
    }
    for (block_wide &b : barriers) b.arrived = 0;
}

// --- cp.async --------------------------------------------------------------

// The bytes are read at once and written as late as can be: who does not wait
// finds the NaN that the destination holds meanwhile.
void copy_begin(void *shared, const uint32_t data[4], site at)
{
    fiber *const me = current;
    count()->copies++;
    me->where = at;
    if (me->n_copies == COPIES_MAX)
        fail(at, "%u cp.async of a thread under way", me->n_copies);
    copy *c = &me->copies[(me->first + me->n_copies++) % COPIES_MAX];
    c->to = shared;
    memcpy(c->data, data, sizeof c->data);
    c->group = me->groups;
}

void copy_commit()
{
    current->groups++;
}

void copy_wait(unsigned groups_left, site at)
{
    fiber *const me = current;
    me->where = at;
    while (me->n_copies) {
        const copy *c = &me->copies[me->first];
        if (c->group + groups_left >= me->groups) break;
        memcpy(c->to, c->data, sizeof c->data);
        told_write16(c->to);
        me->first = (me->first + 1) % COPIES_MAX;
        me->n_copies--;
    }
}

void fence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

// --- mma -------------------------------------------------------------------

namespace
{

float low_of(uint32_t pair)
{
    return weft::float_of(pair << 16);
}
float high_of(uint32_t pair)
{
    return weft::float_of(pair & 0xffff0000U);
}

} // namespace

// PTX ISA, "Matrix fragments for mma.m16n8k16": thread l has of a the rows
// l / 4 and + 8, of each the elements 2 (l % 4), + 1 (words 0 and 1) and + 8
// (words 2 and 3); of b the column l / 4, the same elements; of d the rows
// l / 4 (two) and + 8 (two), columns 2 (l % 4) and + 1. Products are exact,
// sums rounded one after another in the order of k.
void mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2],
                       site at)
{
    slot mine = {{a[0], a[1], a[2], a[3], b[0], b[1], 0, 0}};
    const slot *s = meet(WEFT_FULL_MASK, mine, false, at);
    const unsigned l = lane();
    for (unsigned half = 0; half < 2; half++)
        for (unsigned q = 0; q < 4; q++) {
            const slot *row = s + l / 4 * 4 + q;
            const slot *left = s + l % 4 * 8 + q, *right = left + 4;
            const uint32_t b0 = left->word[4 + half];
            const uint32_t b1 = right->word[4 + half];
            for (unsigned i = 0; i < 2; i++) {
                const uint32_t x = row->word[2 * half + i];
                d[2 * i] += low_of(x) * low_of(b0);
                d[2 * i] += high_of(x) * high_of(b0);
                d[2 * i + 1] += low_of(x) * low_of(b1);
                d[2 * i + 1] += high_of(x) * high_of(b1);
            }
        }
}

} // namespace simt
