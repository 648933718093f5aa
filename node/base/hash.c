#include "node/base/hash.h"

uint64_t weft_hash_fnv(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *const at = bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ at[i]) * 0x100000001b3ULL;
    return hash;
}

uint64_t weft_hash_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}
