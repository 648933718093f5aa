/* hash.h - non-cryptographic hashes. Threads: any. */
#ifndef WEFT_NODE_BASE_HASH_H
#define WEFT_NODE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define WEFT_FNV_START 0xcbf29ce484222325ULL

/* FNV-1a, 64 bits, continued from `hash` (WEFT_FNV_START to begin). */
uint64_t weft_hash_fnv(uint64_t hash, const void *bytes, size_t n);

/* The same of one number, whatever the machine's byte order. */
uint64_t weft_hash_int(uint64_t hash, int64_t value);
uint64_t weft_hash_real(uint64_t hash, double value);

/* A hash of many bytes at the speed of memory: FNV-1a of 64-bit words in eight
 * lanes, which a machine computes side by side, folded at the end. In whatever
 * pieces the bytes come, and on every machine, it is the same. */
enum { WEFT_HASH_LANES = 8, WEFT_HASH_BLOCK_BYTES = 64 };

typedef struct weft_hash_wide {
    uint64_t lanes[WEFT_HASH_LANES];
    uint64_t n;                                /* bytes so far */
    unsigned char tail[WEFT_HASH_BLOCK_BYTES]; /* of an unfinished block */
} weft_hash_wide;

void weft_hash_wide_begin(weft_hash_wide *hash);
void weft_hash_wide_add(weft_hash_wide *hash, const void *bytes, size_t n);
uint64_t weft_hash_wide_end(const weft_hash_wide *hash);

/* The splitmix64 step: mixes 64 bits. */
uint64_t weft_hash_mix(uint64_t x);

#endif
