/* bpe.h - byte pair encoding of one word.
 *
 * A word begins as one token for each byte; then the pair of neighbours whose
 * merge comes first in the list is joined, the leftmost of equals, until none
 * is left. Source: Sennrich et al., "Neural machine translation of rare words
 * with subword units", ACL 2016, section 3.2, over bytes.
 *
 * A heap over a linked list makes a word of n bytes O(n log n): 100 kB of one
 * letter are one word and must not take 100 kB squared.
 *
 * Threads: a model is read-only once filled; scratch has one owner.
 */
#ifndef WEFT_ROUTER_TEXT_BPE_H
#define WEFT_ROUTER_TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "node/base/err.h"

typedef struct weft_merge {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank; /* place in the list; lower first */
    int32_t id;    /* of the joined token; negative: an empty slot */
} weft_merge;

/* {0} with byte_ids filled merges nothing. */
typedef struct weft_bpe {
    int32_t byte_ids[256]; /* -1: no token, for bytes that UTF-8 never has */
    weft_merge *merges;    /* [n_slots], a hash table, half empty */
    size_t n_slots;        /* a power of two, or 0 */
} weft_bpe;

/* Room for n merges. RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status weft_bpe_reserve(weft_bpe *bpe, size_t n,
                                             weft_err *err);
void weft_bpe_deinit(weft_bpe *bpe);

/* Say that left and right join to `id`, with this rank; of one pair said twice
 * the last counts. No more pairs than reserved. */
void weft_bpe_add(weft_bpe *bpe, int32_t left, int32_t right, uint32_t rank,
                  int32_t id);

/* NULL: the pair does not join. */
const weft_merge *weft_bpe_find(const weft_bpe *bpe, int32_t left,
                                int32_t right);

typedef struct weft_ids {
    int32_t *data;
    size_t n, capacity;
} weft_ids;

WEFT_MUST_CHECK weft_status weft_ids_add(weft_ids *ids, const int32_t *more,
                                         size_t n, weft_err *err);
void weft_ids_deinit(weft_ids *ids);

/* {0} is empty. About 12 bytes a byte of the longest word, and up to 32 where
 * everything joins. */
typedef struct weft_bpe_scratch {
    struct weft_bpe_symbol *symbols;
    struct weft_bpe_candidate *heap;
    size_t symbols_capacity, heap_capacity, heap_n;
} weft_bpe_scratch;

void weft_bpe_scratch_deinit(weft_bpe_scratch *scratch);

/* Append the tokens of the word [bytes, bytes + n), n at most INT32_MAX. Each
 * byte has a token. RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status weft_bpe_encode(const weft_bpe *bpe,
                                            weft_bpe_scratch *scratch,
                                            const char *bytes, size_t n,
                                            weft_ids *ids, weft_err *err);

#endif
