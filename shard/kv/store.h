/* store.h - the bytes behind the page numbers of kv.h.
 *
 * One arena for all slabs, taken once at start and never touched before it is
 * used, so that resident memory follows use up to the budget. Debug builds fill
 * free pages with NaN (all bits set), so that a stray read shows in the result.
 *
 * Threads: the engine's.
 */
#ifndef WEFT_SHARD_KV_STORE_H
#define WEFT_SHARD_KV_STORE_H

#include "kernels/memory.h"
#include "shard/kv/kv.h"

typedef struct weft_kv_store weft_kv_store;

/* Room for `bytes` bytes (slabs * slab_bytes) in that memory, NULL: the host's.
 * UNIMPLEMENTED: a layout in F8_E4M3, whose rows no attention reads.
 * RESOURCE_EXHAUSTED: the system does not give that much. */
WEFT_MUST_CHECK weft_status weft_kv_store_create(const weft_kv_layout *layout,
                                                 int64_t bytes,
                                                 const weft_memory *memory,
                                                 weft_kv_store **store_out,
                                                 weft_err *err);
void weft_kv_store_destroy(weft_kv_store *store); /* NULL is fine */

/* Rows of a layer, and its index keys, as the kernels address them. */
weft_paged weft_kv_store_rows(const weft_kv_store *store, weft_kind kind,
                              int32_t layer);
weft_paged weft_kv_store_index(const weft_kv_store *store, int32_t layer);

/* A weft_kv_page_fn: poison the page in debug builds. arg is the store. */
void weft_kv_store_poison(void *arg, weft_kind kind, int64_t offset);

#endif
