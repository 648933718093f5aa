// tma.cc - barriers that count bytes, and the copies that they wait for.
//
// PTX ISA, "mbarrier", "cp.async.bulk.tensor"; CUDA Driver API,
// cuTensorMapEncodeTiled.
#include "tests/simt/hopper.h"
#include "tests/simt/scheduler.h"

namespace weft
{

static bool is_shape(const tensor_shape *s)
{
    const int32_t e = s->element_bytes;
    if (e != 1 && e != 2 && e != 4) return false;
    if (s->rank < 1 || s->rank > 3) return false;
    if (reinterpret_cast<uintptr_t>(s->base) % 16) return false;
    for (int32_t i = 0; i < s->rank; i++) {
        if (s->dim[i] < 1 || s->dim[i] > INT64_C(1) << 32) return false;
        if (s->box[i] < 1 || s->box[i] > 256) return false;
        if (i && (s->stride[i] % 16 || s->stride[i] < 1 ||
                  s->stride[i] >= INT64_C(1) << 40))
            return false;
    }
    const int32_t inner = s->box[0] * e;
    return s->swizzle ? inner == 128 : inner % 16 == 0;
}

cudaError_t encode_tensor_map(tensor_map *map_out, const tensor_shape *shape)
{
    if (!is_shape(shape)) return cudaErrorInvalidValue;
    map_out->shape = *shape;
    map_out->is_map = 0x7a11;
    uint32_t bytes = static_cast<uint32_t>(shape->element_bytes);
    for (int32_t i = 0; i < shape->rank; i++)
        bytes *= static_cast<uint32_t>(shape->box[i]);
    map_out->box_bytes = bytes;
    return cudaSuccess;
}

} // namespace weft

namespace simt
{

using weft::mbarrier;
using weft::tensor_map;
using weft::tensor_shape;

namespace
{

// The eight bytes of a barrier. What shared memory begins with, all ones, is
// none.
struct state {
    uint16_t expected, pending;
    uint16_t phase, magic;
};
static_assert(sizeof(state) == sizeof(mbarrier), "8 bytes");
enum : uint16_t { MAGIC = 0x6ba2 };

// Bytes under way are kept beside: a transaction count has its own 20 bits in
// the real one.
struct waiting_bytes {
    const mbarrier *b;
    int64_t bytes;
};

enum : unsigned {
    BARRIERS_MAX = 256,
    LOADS_MAX = 1024,
    LOAD_BYTES_MAX = 64 << 10,
};

// A load under way, its bytes read when it began.
struct load {
    unsigned char *to;
    uint32_t bytes;
    bool swizzle;
    mbarrier *b;
    unsigned data; // which of `pool`
};

waiting_bytes counts_of[BARRIERS_MAX];
unsigned n_counts;
load loads[LOADS_MAX];
unsigned n_loads;
// Static, not from malloc: whoever switches lands a load, and would be blamed
// for freeing what another thread wrote.
unsigned char pool[LOADS_MAX][LOAD_BYTES_MAX];
bool pool_used[LOADS_MAX];

// Of the pool only the reading is told to ThreadSanitizer.
void copy_in(unsigned char *to, const unsigned char *from, size_t bytes)
{
    size_t i = 0;
    for (; i + 16 <= bytes; i += 16) {
        memcpy(to + i, from + i, 16);
        told_read16(from + i);
    }
    for (; i < bytes; i++) {
        to[i] = from[i];
        asm volatile("" ::"r"(to) : "memory");
    }
}

int64_t *bytes_of(const mbarrier *b, site at)
{
    for (unsigned i = 0; i < n_counts; i++)
        if (counts_of[i].b == b) return &counts_of[i].bytes;
    if (n_counts == BARRIERS_MAX) fail(at, "more than %u mbarriers", n_counts);
    counts_of[n_counts] = {b, 0};
    return &counts_of[n_counts++].bytes;
}

state read_state(const mbarrier *b, site at)
{
    check_shared(b, sizeof *b, 8, "mbarrier", at);
    state s;
    memcpy(&s, b, sizeof s);
    told_read8(b);
    if (s.magic != MAGIC) fail(at, "an mbarrier before its init");
    return s;
}

// For ThreadSanitizer, of one phase.
void *tag_of(mbarrier *b, const state &s)
{
    return reinterpret_cast<char *>(b) + s.phase % 2;
}

void put_state(mbarrier *b, state s, site at)
{
    if (!s.pending && !*bytes_of(b, at)) {
        s.phase++;
        s.pending = s.expected;
        wake(
            AT_MBARRIER,
            [](const fiber *f, const void *p) { return f->mbarrier == p; }, b);
    }
    memcpy(b, &s, sizeof s);
}

uint32_t place(const load &l, uint32_t offset)
{
    return l.swizzle ? offset ^ ((offset >> 7 & 7U) << 4) : offset;
}

void land(const load &l)
{
    const site here = {"a landing load", 0};
    for (uint32_t i = 0; i < l.bytes; i += 16)
        memcpy(l.to + place(l, i), pool[l.data] + i, 16);
    pool_used[l.data] = false;
    *bytes_of(l.b, here) -= l.bytes;
    state s;
    memcpy(&s, l.b, sizeof s);
    put_state(l.b, s, here);
}

// The oldest; in random orders any.
bool land_one()
{
    if (!n_loads) return false;
    const unsigned i = static_cast<unsigned>(random_bits() % n_loads);
    const load l = loads[i];
    n_loads--;
    for (unsigned k = i; k < n_loads; k++) loads[k] = loads[k + 1];
    land(l);
    return true;
}

// A place for the bytes of a load.
unsigned take_pool(uint32_t bytes, site at)
{
    if (n_loads == LOADS_MAX || bytes > LOAD_BYTES_MAX)
        fail(at, "a load of %u bytes, %u loads under way", bytes, n_loads);
    unsigned i = 0;
    while (pool_used[i]) i++;
    pool_used[i] = true;
    return i;
}

void begin(const load &l, site at)
{
    count()->copies++;
    const state s = read_state(l.b, at);
    for (uint32_t i = 0; i < l.bytes; i += 16) {
        unsigned char *to = l.to + place(l, i);
        memset(to, 0xff, 16);
        told_write16(to);
    }
    // Who waits sees at least what the one that began it did.
    happens_release(tag_of(l.b, s));
    loads[n_loads++] = l;
    land_something = land_one;
}

const char *undone()
{
    n_counts = 0;
    return n_loads ? "a block ends with loads under way" : nullptr;
}

// One row of the box, from coordinates that may be outside of the tensor.
void read_row(unsigned char *to, const tensor_shape *s, int64_t x, int64_t y,
              int64_t z)
{
    const int64_t e = s->element_bytes;
    for (int64_t i = 0; i < s->box[0] * e; i += 16) memset(to + i, 0, 16);
    if (s->rank > 1 && (y < 0 || y >= s->dim[1])) return;
    if (s->rank > 2 && (z < 0 || z >= s->dim[2])) return;
    int64_t first = x < 0 ? -x : 0, end = s->box[0];
    if (x + end > s->dim[0]) end = s->dim[0] - x;
    if (first >= end) return;
    const unsigned char *row = static_cast<const unsigned char *>(s->base);
    if (s->rank > 1) row += y * s->stride[1];
    if (s->rank > 2) row += z * s->stride[2];
    copy_in(to + first * e, row + (x + first) * e,
            static_cast<size_t>((end - first) * e));
}

} // namespace

void mbarrier_init(mbarrier *b, uint32_t arrivals, site at)
{
    check_shared(b, sizeof *b, 8, "mbarrier", at);
    if (!arrivals || arrivals > 4095)
        fail(at, "an mbarrier of %u arrivals", arrivals);
    const uint16_t n = static_cast<uint16_t>(arrivals);
    const state s = {n, n, 0, MAGIC};
    memcpy(b, &s, sizeof s);
    told_write8(b);
    *bytes_of(b, at) = 0;
    left_undone = undone;
}

void mbarrier_arrive(mbarrier *b, bool expects, uint32_t bytes, site at)
{
    state s = read_state(b, at);
    if (!s.pending)
        fail(at, "too many arrivals at an mbarrier: %u in a phase",
             s.expected + 1U);
    happens_release(tag_of(b, s));
    int64_t *under_way = bytes_of(b, at);
    if (expects) *under_way += bytes;
    if (*under_way >= 1 << 20)
        fail(at, "an mbarrier counts to 2^20 - 1 bytes, not %lld",
             static_cast<long long>(*under_way));
    current->where = at;
    s.pending--;
    put_state(b, s, at);
}

void mbarrier_wait(mbarrier *b, uint32_t parity, site at)
{
    if (parity > 1) fail(at, "an mbarrier's parity is 0 or 1, not %u", parity);
    const state s = read_state(b, at);
    current->where = at;
    if (s.phase % 2 == parity) {
        current->mbarrier = b;
        block(AT_MBARRIER, at);
        if (read_state(b, at).phase != static_cast<uint16_t>(s.phase + 1))
            fail(at, "an mbarrier was two phases ahead of who waits");
    }
    happens_acquire(reinterpret_cast<char *>(b) + parity);
}

void tma_load(void *shared, const tensor_map *map, int32_t rank,
              const int32_t at_element[3], mbarrier *b, site at)
{
    const tensor_shape *s = &map->shape;
    if (map->is_map != 0x7a11) fail(at, "a map that was not encoded");
    if (s->rank != rank)
        fail(at, "a load of rank %d by a map of rank %d", rank, s->rank);
    check_shared(shared, map->box_bytes, s->swizzle ? 1024 : 128, "a load", at);
    const size_t row = static_cast<size_t>(s->box[0] * s->element_bytes);
    const unsigned data = take_pool(map->box_bytes, at);
    unsigned char *to = pool[data];
    for (int32_t z = 0; z < (rank > 2 ? s->box[2] : 1); z++)
        for (int32_t y = 0; y < (rank > 1 ? s->box[1] : 1); y++, to += row)
            read_row(to, s, at_element[0], int64_t{at_element[1]} + y,
                     int64_t{at_element[2]} + z);
    begin({static_cast<unsigned char *>(shared), map->box_bytes, s->swizzle, b,
           data},
          at);
}

void bulk_load(void *shared, const void *global, uint32_t bytes, mbarrier *b,
               site at)
{
    if (!bytes || bytes % 16 || reinterpret_cast<uintptr_t>(global) % 16)
        fail(at, "a bulk load of %u bytes, or from a misaligned address",
             bytes);
    check_shared(shared, bytes, 16, "a load", at);
    const unsigned data = take_pool(bytes, at);
    copy_in(pool[data], static_cast<const unsigned char *>(global), bytes);
    begin({static_cast<unsigned char *>(shared), bytes, false, b, data}, at);
}

} // namespace simt
