// atomic.h - CUDA's atomic functions, relaxed as they are there; they return
// what was there before (CUDA C++ Programming Guide, "Atomic Functions").
#ifndef WEFT_TESTS_SIMT_ATOMIC_H
#define WEFT_TESTS_SIMT_ATOMIC_H

#include "tests/simt/simt.h"

namespace simt
{

template <class T, class F> inline T atomic_change(T *p, F change)
{
    T was, is;
    __atomic_load(p, &was, __ATOMIC_RELAXED);
    do {
        is = change(was);
    } while (!__atomic_compare_exchange(p, &was, &is, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
    return was;
}

template <class T> constexpr bool is_atomic_integer()
{
    return std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);
}

} // namespace simt

// `value` converts to the type of the memory, as in a call of CUDA's overloads.
#define SIMT_ATOMIC(name, condition, result)                                   \
    template <class T> inline T name(T *p, std::common_type_t<T> value)        \
    {                                                                          \
        static_assert(condition, "CUDA has no such atomic");                   \
        return simt::atomic_change(p, [value]([[maybe_unused]] T was) {        \
            return static_cast<T>(result);                                     \
        });                                                                    \
    }
SIMT_ATOMIC(atomicAdd,
            simt::is_atomic_integer<T>() || std::is_floating_point_v<T>,
            was + value)
SIMT_ATOMIC(atomicSub, simt::is_atomic_integer<T>(), was - value)
SIMT_ATOMIC(atomicMax, simt::is_atomic_integer<T>(), was < value ? value : was)
SIMT_ATOMIC(atomicMin, simt::is_atomic_integer<T>(), value < was ? value : was)
SIMT_ATOMIC(atomicAnd, simt::is_atomic_integer<T>(), was &value)
SIMT_ATOMIC(atomicOr, simt::is_atomic_integer<T>(), was | value)
SIMT_ATOMIC(atomicXor, simt::is_atomic_integer<T>(), was ^ value)
SIMT_ATOMIC(atomicExch,
            simt::is_atomic_integer<T>() || (std::is_same_v<T, float>), value)
#undef SIMT_ATOMIC

template <class T>
inline T atomicCAS(T *p, std::common_type_t<T> expected,
                   std::common_type_t<T> value)
{
    static_assert(simt::is_atomic_integer<T>(), "CUDA has no such atomic");
    return simt::atomic_change(
        p, [=](T was) { return was == expected ? value : was; });
}

// Wrap around at `limit`: 0 after it, and it after 0.
inline unsigned atomicInc(unsigned *p, unsigned limit)
{
    return simt::atomic_change(
        p, [=](unsigned was) { return was >= limit ? 0U : was + 1U; });
}
inline unsigned atomicDec(unsigned *p, unsigned limit)
{
    return simt::atomic_change(p, [=](unsigned was) {
        return was == 0 || was > limit ? limit : was - 1U;
    });
}

inline void __threadfence()
{
    simt::fence();
}
inline void __threadfence_block()
{
    simt::fence();
}
inline void __threadfence_system()
{
    simt::fence();
}

#endif
