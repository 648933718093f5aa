/* spaces.h - the KV memory of a whole group as its lead accounts for it: one
 * pool for each stage.
 *
 * Each stage has an arena of its own with the layout that follows from its own
 * layers and its own budget. The lead holds the pools of all of them, since it
 * alone decides; a page of a sequence is a page in every stage that has layers
 * of the kind, each at its own offset. Taking pages is all or nothing over all
 * stages. With one stage this is one pool and costs nothing.
 *
 * Threads: the engine's alone. Pure.
 */
#ifndef WEFT_SHARD_KV_SPACES_H
#define WEFT_SHARD_KV_SPACES_H

#include "shard/kv/kv.h"
#include "shard/model/partition.h"

typedef struct weft_kv_space {
    weft_kv_layout layout;
    weft_kv_pool *pool;
} weft_kv_space;

typedef struct weft_kv_spaces {
    int32_t n;
    weft_kv_space *at; /* [n]; at[0] is the lead's own */
} weft_kv_spaces;

/* kv_bytes [n_stages]: the budget of each stage; the whole model is cut for
 * each, whichever part of it config is. INVALID_ARGUMENT, RESOURCE_EXHAUSTED:
 * as the layout and the pool say, with the stage named. */
WEFT_MUST_CHECK weft_status
weft_kv_spaces_init(weft_kv_spaces *spaces, const weft_model_config *config,
                    weft_dtype dtype, int32_t page_tokens,
                    const int64_t *kv_bytes, int32_t n_stages, weft_err *err);
void weft_kv_spaces_deinit(weft_kv_spaces *spaces); /* {0} is fine */

/* Whether some stage has layers of the kind. */
bool weft_kv_spaces_have(const weft_kv_spaces *spaces, weft_kind kind);

/* weft_kv_pages_for of any stage that has the kind: they agree. */
int64_t weft_kv_spaces_pages_for(const weft_kv_spaces *spaces,
                                 const weft_model_config *config,
                                 weft_kind kind, int64_t n_tokens,
                                 int32_t chunk_tokens);

/* Whether n[kind] pages of every kind can be had together, in every stage that
 * has the kind. */
bool weft_kv_spaces_can(const weft_kv_spaces *spaces,
                        const int64_t n[WEFT_KINDS]);
/* The first stage that could not give them even if it was empty; -1: none. */
int32_t weft_kv_spaces_cannot(const weft_kv_spaces *spaces,
                              const int64_t n[WEFT_KINDS]);

/* Sums over all stages. */
void weft_kv_spaces_get_stats(const weft_kv_spaces *spaces,
                              weft_kv_stats *stats_out);

/* weft_kv_pool_check of each. */
void weft_kv_spaces_check(const weft_kv_spaces *spaces);

#endif
