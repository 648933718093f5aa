// wgmma.cc - products of a warpgroup.
//
// Operands are read when a product begins, by the last of the 128 threads to
// come; a sum of them is kept, and at the wait the operands must still be what
// they were. The sums are kept too, and the accumulators hold NaN until the
// wait: a kernel that reads, or writes, either too early is found.
//
// PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": the fragments,
// the canonical layouts with a swizzle of 128 bytes.
#include "tests/simt/hopper.h"
#include "tests/simt/scheduler.h"

namespace simt
{

using weft::matrix_desc;

namespace
{

enum : unsigned {
    GROUP = 128,
    GROUPS = THREADS_MAX / GROUP,
    N_MAX = 256,
    K = 16,
    ACCUMULATORS = 8, // of a thread, under way
    PRODUCTS = 128,   // of a warpgroup, under way
};

struct accumulator {
    float *d; // null: free
    unsigned n;
    int64_t group;
    float sum[N_MAX / 2];
};

struct thread_state {
    accumulator of[ACCUMULATORS];
    int64_t groups; // committed
    bool fenced;
};

struct operands {
    matrix_desc a, b;
    unsigned n;
    bool a_in_registers, b_is_mn;
};

struct product {
    operands x;
    uint64_t sum; // of their bytes
    int64_t group;
    site at;
};

struct warpgroup {
    unsigned arrived;
    site at;
    operands first; // of who came first
    uint32_t words[GROUP][4];
    float a[64][K], b[N_MAX][K];
    product under_way[PRODUCTS];
    unsigned n_under_way;
    char reads; // a tag: operands were read before
};

thread_state threads[THREADS_MAX];
warpgroup groups[GROUPS];

const char *thread_ends(const fiber *f)
{
    for (const accumulator &a : threads[f->linear].of)
        if (a.d) return "a thread ends with wgmma not waited for";
    return nullptr;
}

void reset()
{
    for (unsigned i = 0; i < n_threads; i++) {
        threads[i].groups = 0;
        threads[i].fenced = false;
    }
    for (warpgroup &g : groups) g.arrived = g.n_under_way = 0;
}

// The first use of anything here is of a block that reset has not seen, but
// that begins as it leaves things.
void known()
{
    thread_undone = thread_ends;
    begin_block = reset;
}

warpgroup *group_of(const fiber *f, site at)
{
    if ((f->linear / GROUP + 1) * GROUP > n_threads)
        fail(at, "a warpgroup of fewer than 128 threads");
    return &groups[f->linear / GROUP];
}

// --- Operands --------------------------------------------------------------

// Address of 16 bytes: rows are 128 bytes, the swizzle goes by the address.
const unsigned char *piece(const void *base, uint64_t offset)
{
    uintptr_t u = reinterpret_cast<uintptr_t>(base) + offset;
    u ^= (u >> 7 & 7U) << 4;
    return reinterpret_cast<const unsigned char *>(u);
}

void read_piece(uint16_t to[8], const void *base, uint64_t offset, bool is_told,
                site at)
{
    const unsigned char *p = piece(base, offset);
    check_shared(p, 16, 16, "an operand of wgmma", at);
    memcpy(to, p, 16);
    if (is_told) told_read16(p);
}

void mix(uint64_t *sum, const uint16_t part[8])
{
    for (int i = 0; i < 8; i++) *sum = (*sum ^ part[i]) * 1099511628211U;
}

float value(uint16_t bits)
{
    return weft::float_of(static_cast<uint32_t>(bits) << 16);
}

// Row or column r, elements k: in row r of a tile, 8 rows are 1024 bytes.
void read_k_major(float (*to)[K], unsigned n, const void *base, uint64_t *sum,
                  site at)
{
    for (unsigned r = 0; r < n; r++)
        for (unsigned k = 0; k < K; k += 8) {
            uint16_t part[8];
            read_piece(part, base, uint64_t{r} * 128 + k * 2, to != nullptr,
                       at);
            mix(sum, part);
            for (unsigned i = 0; to && i < 8; i++)
                to[r][k + i] = value(part[i]);
        }
}

// Column c of k: in row k of a tile of 64 columns, tiles `leading` apart.
void read_mn_major(float (*to)[K], unsigned n, const matrix_desc &b,
                   uint64_t *sum, site at)
{
    for (unsigned k = 0; k < K; k++)
        for (unsigned c = 0; c < n; c += 8) {
            uint16_t part[8];
            const uint64_t tile = uint64_t{c / 64} * b.leading;
            read_piece(part, b.at, tile + k * 128 + c % 64 * 2, to != nullptr,
                       at);
            mix(sum, part);
            for (unsigned i = 0; to && i < 8; i++)
                to[c + i][k] = value(part[i]);
        }
}

// Reads them, to g or (g null) only for their sum: ThreadSanitizer hears of
// the first reading alone.
uint64_t read_operands(warpgroup *g, const operands &x, site at)
{
    uint64_t sum = 14695981039346656037U;
    if (!x.a_in_registers)
        read_k_major(g ? g->a : nullptr, 64, x.a.at, &sum, at);
    if (x.b_is_mn)
        read_mn_major(g ? g->b : nullptr, x.n, x.b, &sum, at);
    else
        read_k_major(g ? g->b : nullptr, x.n, x.b.at, &sum, at);
    return sum;
}

void check_desc(const matrix_desc &m, bool is_mn, unsigned n, site at)
{
    const uintptr_t u = reinterpret_cast<uintptr_t>(m.at);
    if (m.is_mn != is_mn)
        fail(at, "an operand is described as %s-major", m.is_mn ? "mn" : "k");
    if (u & 0x380U)
        fail(at, "an operand of wgmma begins at row %u of a tile's 8",
             static_cast<unsigned>(u >> 7 & 7U));
    if (u % (is_mn ? 128 : 32))
        fail(at, "an operand of wgmma begins at byte %u of a tile's row",
             static_cast<unsigned>(u & 127U));
    if (is_mn && n > 64 && m.leading % 1024)
        fail(at, "tiles of an operand are %u bytes apart", m.leading);
}

bool are_same(const operands &x, const operands &y)
{
    return x.n == y.n && x.a_in_registers == y.a_in_registers &&
           (x.a_in_registers || x.a.at == y.a.at) && x.b.at == y.b.at &&
           x.b.leading == y.b.leading && x.b_is_mn == y.b_is_mn;
}

// PTX ISA, "Register Fragments": as of mma.m16n8k16, warp w has rows 16 w on.
void spread_words(warpgroup *g)
{
    for (unsigned t = 0; t < GROUP; t++)
        for (unsigned i = 0; i < 4; i++) {
            const unsigned row = t / 32 * 16 + t % 32 / 4 + i % 2 * 8;
            const unsigned k = t % 4 * 2 + i / 2 * 8;
            g->a[row][k] = value(static_cast<uint16_t>(g->words[t][i]));
            g->a[row][k + 1] =
                value(static_cast<uint16_t>(g->words[t][i] >> 16));
        }
}

// All 128 come; the last one reads.
void meet_group(warpgroup *g, const operands &x, site at)
{
    if (!g->arrived) {
        g->at = at;
        g->first = x;
    }
    if (g->at.line != at.line || strcmp(g->at.file, at.file) != 0)
        fail(at, "divergent wgmma: other threads are at %s:%d", g->at.file,
             g->at.line);
    if (!are_same(g->first, x))
        fail(at, "threads of a warpgroup give different operands");
    if (++g->arrived < GROUP) {
        block(AT_WARPGROUP, at);
        return;
    }
    g->arrived = 0;
    current->where = at;
    if (g->n_under_way == PRODUCTS)
        fail(at, "%u wgmma under way", g->n_under_way);
    const uint64_t sum = read_operands(g, x, at);
    happens_release(&g->reads);
    if (x.a_in_registers) spread_words(g);
    g->under_way[g->n_under_way++] = {x, sum, threads[current->linear].groups,
                                      at};
    wake(
        AT_WARPGROUP,
        [](const fiber *f, const void *p) {
            return &groups[f->linear / GROUP] == p;
        },
        g);
}

accumulator *accumulator_of(thread_state *t, float *d, unsigned n,
                            bool accumulate, site at)
{
    accumulator *spare = nullptr;
    for (accumulator &a : t->of) {
        if (a.d == d) {
            if (a.n != n) fail(at, "wgmma of two shapes into one accumulator");
            return &a;
        }
        if (!a.d) spare = &a;
    }
    if (!spare) fail(at, "more than %u accumulators", ACCUMULATORS + 0U);
    spare->d = d;
    spare->n = n;
    for (unsigned i = 0; i < n / 2; i++) {
        spare->sum[i] = accumulate ? d[i] : 0.0F;
        d[i] = weft::float_of(~0U);
    }
    return spare;
}

void multiply(float *sum, const warpgroup *g, unsigned n)
{
    const unsigned l = current->linear % WARP;
    const unsigned w = current->linear % GROUP / WARP;
    for (unsigned i = 0; i < n / 2; i++) {
        const float *a = g->a[w * 16 + l / 4 + i / 2 % 2 * 8];
        const float *b = g->b[i / 4 * 8 + l % 4 * 2 + i % 2];
        for (unsigned k = 0; k < K; k++) sum[i] += a[k] * b[k];
    }
}

} // namespace

void wgmma(float *d, unsigned n, const matrix_desc *a,
           const uint32_t a_words[4], const matrix_desc *b, bool b_is_mn,
           bool accumulate, site at)
{
    known();
    thread_state *const t = &threads[current->linear];
    warpgroup *const g = group_of(current, at);
    count()->collectives++;
    if (!t->fenced) fail(at, "wgmma without a wgmma_fence before");
    operands x = {};
    x.n = n;
    x.b = *b;
    x.b_is_mn = b_is_mn;
    x.a_in_registers = a == nullptr;
    if (a) x.a = *a;
    if (a) check_desc(*a, false, 64, at);
    check_desc(*b, b_is_mn, n, at);
    if (!a) memcpy(g->words[current->linear % GROUP], a_words, 16);
    meet_group(g, x, at);
    accumulator *acc = accumulator_of(t, d, n, accumulate, at);
    acc->group = t->groups;
    if (!accumulate)
        for (unsigned i = 0; i < n / 2; i++) acc->sum[i] = 0;
    multiply(acc->sum, g, n);
}

void wgmma_fence(site at)
{
    known();
    group_of(current, at);
    threads[current->linear].fenced = true;
}

void wgmma_commit(site at)
{
    group_of(current, at);
    threads[current->linear].groups++;
}

// Accumulators come to their owner. Who waits first looks whether operands are
// still there: from then on one thread may say, for all, that they are free.
void wgmma_wait(unsigned groups_left, site at)
{
    warpgroup *const g = group_of(current, at);
    thread_state *const t = &threads[current->linear];
    current->where = at;
    const int64_t before = t->groups - static_cast<int64_t>(groups_left);
    unsigned left = 0;
    for (unsigned i = 0; i < g->n_under_way; i++) {
        const product &p = g->under_way[i];
        if (p.group >= before)
            g->under_way[left++] = p;
        else if (read_operands(nullptr, p.x, at) != p.sum)
            fail(p.at, "operands of a wgmma changed before it was done");
    }
    g->n_under_way = left;
    happens_acquire(&g->reads);
    for (accumulator &a : t->of) {
        if (!a.d || a.group >= before) continue;
        for (unsigned i = 0; i < a.n / 2; i++) {
            if (weft::bits_of(a.d[i]) != ~0U)
                fail(at, "accumulators of a wgmma written before its wait");
            a.d[i] = a.sum[i];
        }
        a.d = nullptr;
        t->fenced = false;
    }
}

void check_registers(int n, site at)
{
    (void)n;
    group_of(current, at);
}

} // namespace simt
