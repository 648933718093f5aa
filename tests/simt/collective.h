// collective.h - CUDA's barriers, votes, shuffles and reductions of a warp.
//
// CUDA C++ Programming Guide, "Warp Vote Functions", "Warp Shuffle Functions",
// "Warp Reduce Functions", "Synchronization Functions"; the lanes that a
// shuffle reads as PTX ISA, "shfl.sync" has them.
#ifndef WEFT_TESTS_SIMT_COLLECTIVE_H
#define WEFT_TESTS_SIMT_COLLECTIVE_H

#include "tests/simt/simt.h"

inline void __syncthreads(SIMT_AT)
{
    simt::block_barrier(SIMT_SITE);
}
inline int __syncthreads_count(int p, SIMT_AT)
{
    const unsigned n = blockDim.x * blockDim.y * blockDim.z;
    return simt::barrier(0, n, true, p, SIMT_SITE).sum;
}
inline int __syncthreads_or(int p, SIMT_AT)
{
    const unsigned n = blockDim.x * blockDim.y * blockDim.z;
    return simt::barrier(0, n, true, p, SIMT_SITE).any;
}
inline int __syncthreads_and(int p, SIMT_AT)
{
    const unsigned n = blockDim.x * blockDim.y * blockDim.z;
    return simt::barrier(0, n, true, p, SIMT_SITE).all;
}

inline void __syncwarp(unsigned mask = WEFT_FULL_MASK, SIMT_AT)
{
    simt::meet(mask, simt::slot{}, true, SIMT_SITE);
}

// Kernels here ask only where all lanes are together.
inline unsigned __activemask()
{
    return WEFT_FULL_MASK;
}

namespace simt
{

template <class T>
inline T shuffle(unsigned mask, T value, unsigned from, site at)
{
    static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8),
                  "CUDA shuffles 4 or 8 bytes");
    slot mine = {};
    memcpy(mine.word, &value, sizeof value);
    const slot *s = meet(mask, mine, false, at);
    const unsigned n = now.block_dim.x * now.block_dim.y * now.block_dim.z;
    if (!(mask >> from & 1) || now.linear - lane() + from >= n)
        fail(at, "a shuffle reads lane %u, which takes no part", from);
    T got;
    memcpy(&got, s[from].word, sizeof got);
    return got;
}

inline uint32_t vote(unsigned mask, bool mine_is, site at)
{
    slot mine = {};
    mine.word[0] = mine_is;
    const slot *s = meet(mask, mine, false, at);
    uint32_t bits = 0;
    for (unsigned l = 0; l < WARP; l++)
        if (mask >> l & 1) bits |= s[l].word[0] << l;
    return bits;
}

template <class T, class F>
inline T reduce(unsigned mask, T value, F fold, site at)
{
    slot mine = {};
    memcpy(mine.word, &value, sizeof value);
    const slot *s = meet(mask, mine, false, at);
    T sum = value;
    for (unsigned l = 0; l < WARP; l++) {
        if (l == lane() || !(mask >> l & 1)) continue;
        T other;
        memcpy(&other, s[l].word, sizeof other);
        sum = fold(sum, other);
    }
    return sum;
}

// Of lanes that a warp has: meet leaves the slots of the others zero.
inline uint32_t present(unsigned mask)
{
    const unsigned n = now.block_dim.x * now.block_dim.y * now.block_dim.z;
    const unsigned left = n - (now.linear - lane());
    return left >= WARP ? mask : mask & ((1U << left) - 1U);
}

} // namespace simt

template <class T>
inline T __shfl_sync(unsigned mask, T value, int from, int width = 32, SIMT_AT)
{
    const unsigned w = static_cast<unsigned>(width);
    const unsigned base = simt::lane() & ~(w - 1);
    return simt::shuffle(
        mask, value, base | (static_cast<unsigned>(from) & (w - 1)), SIMT_SITE);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                        SIMT_AT)
{
    const unsigned l = simt::lane(), w = static_cast<unsigned>(width);
    const unsigned in = l & (w - 1);
    return simt::shuffle(mask, value, delta > in ? l : l - delta, SIMT_SITE);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta,
                          int width = 32, SIMT_AT)
{
    const unsigned l = simt::lane(), w = static_cast<unsigned>(width);
    const unsigned in = l & (w - 1);
    return simt::shuffle(mask, value, in + delta >= w ? l : l + delta,
                         SIMT_SITE);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32,
                         SIMT_AT)
{
    const unsigned l = simt::lane(), w = static_cast<unsigned>(width);
    const unsigned from = l ^ static_cast<unsigned>(with);
    return simt::shuffle(mask, value, from > (l | (w - 1)) ? l : from,
                         SIMT_SITE);
}

inline unsigned __ballot_sync(unsigned mask, int p, SIMT_AT)
{
    return simt::vote(mask, p != 0, SIMT_SITE);
}
inline int __any_sync(unsigned mask, int p, SIMT_AT)
{
    return simt::vote(mask, p != 0, SIMT_SITE) != 0;
}
inline int __all_sync(unsigned mask, int p, SIMT_AT)
{
    return simt::vote(mask, p == 0, SIMT_SITE) == 0;
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value, SIMT_AT)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "4 or 8 bytes");
    simt::slot mine = {};
    memcpy(mine.word, &value, sizeof value);
    const simt::slot *s = simt::meet(mask, mine, false, SIMT_SITE);
    unsigned same = 0;
    for (unsigned l = 0; l < 32; l++)
        if ((simt::present(mask) >> l & 1) &&
            !memcmp(s[l].word, mine.word, sizeof value))
            same |= 1U << l;
    return same;
}

// Integers only, as in CUDA.
#define SIMT_REDUCE(name, type, fold)                                          \
    inline type name(unsigned mask, type value, SIMT_AT)                       \
    {                                                                          \
        return simt::reduce(                                                   \
            simt::present(mask), value,                                        \
            [](type a, type b) -> type { return static_cast<type>(fold); },    \
            SIMT_SITE);                                                        \
    }
SIMT_REDUCE(__reduce_add_sync, unsigned, a + b)
SIMT_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
SIMT_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
SIMT_REDUCE(__reduce_and_sync, unsigned, a &b)
SIMT_REDUCE(__reduce_or_sync, unsigned, a | b)
SIMT_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
SIMT_REDUCE(__reduce_add_sync, int,
            static_cast<unsigned>(a) + static_cast<unsigned>(b))
SIMT_REDUCE(__reduce_min_sync, int, a < b ? a : b)
SIMT_REDUCE(__reduce_max_sync, int, a > b ? a : b)
#undef SIMT_REDUCE

#endif
