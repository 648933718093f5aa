#include "node/base/hash.h"

#include <string.h>

#define FNV_PRIME 0x100000001b3ULL

uint64_t weft_hash_fnv(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *const at = bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ at[i]) * FNV_PRIME;
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

void weft_hash_wide_begin(weft_hash_wide *hash)
{
    memset(hash, 0, sizeof *hash);
    for (uint64_t i = 0; i < WEFT_HASH_LANES; i++)
        hash->lanes[i] = WEFT_FNV_START ^ i;
}

/* Words are read as they lie: the tree is for little-endian machines. */
static void add_blocks(weft_hash_wide *hash, const unsigned char *at, size_t n)
{
    uint64_t lanes[WEFT_HASH_LANES], words[WEFT_HASH_LANES];
    memcpy(lanes, hash->lanes, sizeof lanes);
    for (size_t i = 0; i < n; i++, at += WEFT_HASH_BLOCK_BYTES) {
        memcpy(words, at, sizeof words);
        for (int k = 0; k < WEFT_HASH_LANES; k++)
            lanes[k] = (lanes[k] ^ words[k]) * FNV_PRIME;
    }
    memcpy(hash->lanes, lanes, sizeof lanes);
}

void weft_hash_wide_add(weft_hash_wide *hash, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    const size_t held = hash->n % WEFT_HASH_BLOCK_BYTES;
    hash->n += n;
    if (held > 0) {
        const size_t room = WEFT_HASH_BLOCK_BYTES - held;
        const size_t some = n < room ? n : room;
        memcpy(hash->tail + held, at, some);
        at += some;
        n -= some;
        if (some < room) return;
        add_blocks(hash, hash->tail, 1);
    }
    add_blocks(hash, at, n / WEFT_HASH_BLOCK_BYTES);
    at += n / WEFT_HASH_BLOCK_BYTES * WEFT_HASH_BLOCK_BYTES;
    if (n % WEFT_HASH_BLOCK_BYTES > 0)
        memcpy(hash->tail, at, n % WEFT_HASH_BLOCK_BYTES);
}

uint64_t weft_hash_wide_end(const weft_hash_wide *hash)
{
    uint64_t all = weft_hash_mix(hash->n);
    for (int k = 0; k < WEFT_HASH_LANES; k++)
        all = weft_hash_mix(all ^ hash->lanes[k]);
    return weft_hash_fnv(all, hash->tail, hash->n % WEFT_HASH_BLOCK_BYTES);
}

uint64_t weft_hash_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}
