/* kv.h - which pages of the KV memory are in use, by kind.
 *
 * One arena of bytes is cut into equal slabs. A slab serves one kind while any
 * of its pages is used and goes back to the common free list when the last one
 * is released, so the split between kinds follows the load. A page holds
 * page_tokens consecutive positions of one sequence for all layers of its kind,
 * laid out [layer][token][row]; full pages then hold [layer][token][index key].
 * Rows are never padded to another kind's width.
 *
 *   arena  | slab 0        | slab 1        | ...
 *   slab   | page | page | ... | tail waste (< 2.5 %, printed at start) |
 *
 * This is arithmetic and numbers only: no cache byte is touched here (see
 * store.h). Pure: no clock, thread or device.
 *
 * Threads: none of this locks; the engine's thread is the only caller.
 * Guarantees: alloc is all-or-nothing; a page is never handed out twice;
 * free + used = total is checked after every step in debug builds.
 */
#ifndef WEFT_SHARD_KV_KV_H
#define WEFT_SHARD_KV_KV_H

#include <stdint.h>

#include "shard/model/config.h"

/* Sizes that follow from config, page and dtype; all in bytes.
 *
 * A row is the latent, then the rotated part. In F32 and BF16 both are of that
 * dtype and lie side by side. In F8_E4M3:
 *
 *   row   kv_lora_rank e4m3, a scale in fp32 for each 128, rope in bf16
 *   key   index_head_dim e4m3, one scale in fp32 (kernels/ops.h)
 *
 * with scales aligned to 4 bytes and rows, so pages too, to 16; index keys to
 * 4. No attention reads such rows yet: weft_kv_store_create refuses them. */
typedef struct weft_kv_layout {
    weft_dtype dtype; /* F32, BF16 or F8_E4M3 */
    int32_t page_tokens;
    int64_t row_bytes[WEFT_KINDS];
    /* Where the parts of a row begin, the latent being at 0; -1: no scales. */
    int64_t scale_offset[WEFT_KINDS], rope_offset[WEFT_KINDS];
    int64_t index_row_bytes;         /* 0 without indexer */
    int64_t index_scale_offset;      /* in an index key; -1: no scale */
    int64_t token_bytes[WEFT_KINDS]; /* all layers; full includes index keys */
    int64_t index_token_bytes;       /* the index part of token_bytes[FULL] */
    int64_t page_bytes[WEFT_KINDS];  /* 0: the model has no such layer */
    int64_t slab_bytes;
    int32_t slab_pages[WEFT_KINDS]; /* pages in a slab of that kind */
    double waste; /* worst share of a slab that no page uses */
    /* Byte offset inside a page of layer l's rows, and of its index keys; -1:
     * another stage has the layer, or it has no index keys. */
    int64_t layer_offset[WEFT_LAYERS_MAX];
    int64_t index_offset[WEFT_LAYERS_MAX];
} weft_kv_layout;

/* Of the layers [first_layer, end_layer) that n_kind counts.
 * INVALID_ARGUMENT: page_tokens out of [1, 65536], another dtype, F8_E4M3 and
 * an index_head_dim that is no multiple of 4, or a size overflows. */
WEFT_MUST_CHECK weft_status weft_kv_layout_make(const weft_model_config *config,
                                                weft_dtype dtype,
                                                int32_t page_tokens,
                                                weft_kv_layout *layout_out,
                                                weft_err *err);

/* Pages one sequence of n_tokens needs at its largest: full pages for all of
 * them; window pages for what a step of `chunk` rows can still see
 * (design 5: ceil((W - 1 + chunk) / page) + 1, never more than all). */
int64_t weft_kv_pages_for(const weft_model_config *config,
                          const weft_kv_layout *layout, weft_kind kind,
                          int64_t n_tokens, int32_t chunk_tokens);

/* Bytes of those pages, slabs not counted. */
int64_t weft_kv_bytes_for(const weft_model_config *config,
                          const weft_kv_layout *layout, int64_t n_tokens,
                          int32_t chunk_tokens);

typedef struct weft_kv_pool weft_kv_pool;

/* A pool over budget_bytes / slab_bytes slabs. RESOURCE_EXHAUSTED: no memory
 * for the book-keeping, or the budget holds less than one slab of each kind
 * that the model has (the text gives needed and given bytes). */
WEFT_MUST_CHECK weft_status weft_kv_pool_create(const weft_kv_layout *layout,
                                                int64_t budget_bytes,
                                                weft_kv_pool **pool_out,
                                                weft_err *err);
void weft_kv_pool_destroy(
    weft_kv_pool *pool); /* NULL is fine; panics if used */

/* Take n pages of a kind: byte offsets into the arena, into offsets_out[0, n).
 * RESOURCE_EXHAUSTED: not that many can be had; nothing was taken. A signal to
 * preempt, not a fault; no text is made. */
WEFT_MUST_CHECK weft_status weft_kv_pool_alloc(weft_kv_pool *pool,
                                               weft_kind kind, int32_t n,
                                               int64_t *offsets_out);
/* A page that is not in use is a double release, and panics. */
void weft_kv_pool_release(weft_kv_pool *pool, weft_kind kind, int64_t offset);

/* Whether n[kind] pages of every kind can be had together. */
bool weft_kv_pool_can(const weft_kv_pool *pool, const int64_t n[WEFT_KINDS]);
/* Whether they could be had of an empty pool. */
bool weft_kv_pool_could(const weft_kv_pool *pool, const int64_t n[WEFT_KINDS]);

typedef struct weft_kv_stats {
    int64_t slabs, slabs_free;
    int64_t pages_used[WEFT_KINDS];
    int64_t pages_free[WEFT_KINDS]; /* inside slabs that the kind holds */
    int64_t used_bytes[WEFT_KINDS]; /* full: index keys not counted */
    int64_t index_used_bytes;
    int64_t free_bytes, total_bytes; /* total: slabs * slab_bytes */
} weft_kv_stats;

void weft_kv_pool_get_stats(const weft_kv_pool *pool, weft_kv_stats *stats_out);

/* Recounts everything; panics if free + used = total does not hold. */
void weft_kv_pool_check(const weft_kv_pool *pool);

#endif
