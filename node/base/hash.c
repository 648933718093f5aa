#include "node/base/hash.h"

#include <string.h>

uint64_t weft_hash_fnv(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *const at = bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ at[i]) * 0x100000001b3ULL;
    return hash;
}

uint64_t weft_hash_int(uint64_t hash, int64_t value)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)((uint64_t)value >> (8 * i));
    return weft_hash_fnv(hash, bytes, sizeof bytes);
}

uint64_t weft_hash_real(uint64_t hash, double value)
{
    int64_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    return weft_hash_int(hash, bits);
}

uint64_t weft_hash_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}
