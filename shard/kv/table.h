/* table.h - the page table of one sequence: position -> byte offset, by kind
 * and by stage (spaces.h).
 *
 * Full pages are held from position 0 on. Window pages are released as soon as
 * no future query can see them, so the table of a long sequence has -1 at its
 * start; entries stay where they are (index = position / page_tokens), which
 * keeps the kernels' addressing free of a base.
 *
 * Threads: the engine's thread. Guarantees: grow is all-or-nothing over both
 * kinds and all stages; nothing allocates after init.
 */
#ifndef WEFT_SHARD_KV_TABLE_H
#define WEFT_SHARD_KV_TABLE_H

#include "shard/kv/spaces.h"

typedef struct weft_kv_table {
    /* [max_pages] of the lead's own space; -1: not held. NULL: no such layers
     * there. */
    int64_t *offsets[WEFT_KINDS];
    /* [n_spaces - 1]: the same of the other stages; NULL with one. */
    int64_t *(*others)[WEFT_KINDS];
    int32_t n_spaces;
    bool used[WEFT_KINDS];          /* some stage has the kind */
    int32_t n_pages[WEFT_KINDS];    /* entries below this are or were held */
    int32_t first_page[WEFT_KINDS]; /* entries below this are released */
    int32_t max_pages;
} weft_kv_table;

/* Room for max_tokens positions. End with weft_kv_table_deinit. */
WEFT_MUST_CHECK weft_status weft_kv_table_init(weft_kv_table *table,
                                               const weft_kv_spaces *spaces,
                                               int64_t max_tokens,
                                               weft_err *err);
void weft_kv_table_deinit(weft_kv_table *table); /* holds no page by then */

/* What `offsets` holds for space 0, of any space. */
static inline int64_t *weft_kv_table_offsets(const weft_kv_table *table,
                                             int32_t space, weft_kind kind)
{
    return space == 0 ? table->offsets[kind] : table->others[space - 1][kind];
}

/* Pages that must be added, in each stage that has the kind, so that positions
 * [0, n_tokens) can be written. */
void weft_kv_table_need(const weft_kv_table *table,
                        const weft_kv_spaces *spaces, int64_t n_tokens,
                        int64_t need_out[WEFT_KINDS]);

/* Add them. RESOURCE_EXHAUSTED: nothing was taken. */
WEFT_MUST_CHECK weft_status weft_kv_table_grow(weft_kv_table *table,
                                               const weft_kv_spaces *spaces,
                                               int64_t n_tokens);

/* Called with every page of space 0 before it goes back (debug builds poison
 * it). */
typedef void (*weft_kv_page_fn)(void *arg, weft_kind kind, int64_t offset);

/* Release window pages that no query at position >= next can see: those whose
 * last position is below next - window + 1. */
void weft_kv_table_trim(weft_kv_table *table, const weft_model_config *config,
                        const weft_kv_spaces *spaces, int64_t next,
                        weft_kv_page_fn before, void *arg);

/* Release everything; the table is empty afterwards. */
void weft_kv_table_clear(weft_kv_table *table, const weft_kv_spaces *spaces,
                         weft_kv_page_fn before, void *arg);

#endif
