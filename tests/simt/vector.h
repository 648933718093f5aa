// vector.h - CUDA's small vectors (int2, float4, ...), with CUDA's alignment.
#ifndef WEFT_TESTS_SIMT_VECTOR_H
#define WEFT_TESTS_SIMT_VECTOR_H

#define SIMT_VECTOR(type, name)                                                \
    struct alignas(2 * sizeof(type)) name##2                                   \
    {                                                                          \
        type x, y;                                                             \
    };                                                                         \
    struct name##3                                                             \
    {                                                                          \
        type x, y, z;                                                          \
    };                                                                         \
    struct alignas(4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16) name##4      \
    {                                                                          \
        type x, y, z, w;                                                       \
    };                                                                         \
    inline name##2 make_##name##2(type x, type y)                              \
    {                                                                          \
        return {x, y};                                                         \
    }                                                                          \
    inline name##3 make_##name##3(type x, type y, type z)                      \
    {                                                                          \
        return {x, y, z};                                                      \
    }                                                                          \
    inline name##4 make_##name##4(type x, type y, type z, type w)              \
    {                                                                          \
        return {x, y, z, w};                                                   \
    }
SIMT_VECTOR(signed char, char)
SIMT_VECTOR(unsigned char, uchar)
SIMT_VECTOR(short, short)
SIMT_VECTOR(unsigned short, ushort)
SIMT_VECTOR(int, int)
SIMT_VECTOR(unsigned, uint)
SIMT_VECTOR(float, float)
SIMT_VECTOR(double, double)
SIMT_VECTOR(long long, longlong)
SIMT_VECTOR(unsigned long long, ulonglong)
#undef SIMT_VECTOR

#endif
