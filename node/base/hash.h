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

/* The splitmix64 step: mixes 64 bits. */
uint64_t weft_hash_mix(uint64_t x);

#endif
