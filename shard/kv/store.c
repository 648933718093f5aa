#include "shard/kv/store.h"

#include <string.h>
#include <sys/mman.h>

#include "node/base/check.h"
#include "node/base/mem.h"

struct weft_kv_store {
    const weft_kv_layout *layout;
    unsigned char *base;
    size_t bytes;
};

weft_status weft_kv_store_create(const weft_kv_layout *layout, int64_t bytes,
                                 weft_kv_store **store_out, weft_err *err)
{
    weft_kv_store *const store = weft_mem_new(1, sizeof *store);
    if (store == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "kv store: out of memory");
    store->layout = layout;
    store->bytes = (size_t)bytes;
    store->base = weft_mem_new_aligned(64, store->bytes);
    if (store->base == NULL) {
        weft_mem_free(store);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "kv-bytes: no memory for %lld bytes of KV pages",
                         (long long)bytes);
    }
#ifndef NDEBUG
    memset(store->base, 0xff, store->bytes);
#else
    /* Small pages here: with huge ones the first row of a page would make
     * 2 MiB resident, and resident memory would run ahead of use. */
    (void)madvise(store->base, store->bytes / 4096 * 4096, MADV_NOHUGEPAGE);
#endif
    *store_out = store;
    return WEFT_OK;
}

void weft_kv_store_destroy(weft_kv_store *store)
{
    if (store == NULL) return;
    weft_mem_free(store->base);
    weft_mem_free(store);
}

weft_paged weft_kv_store_rows(const weft_kv_store *store, weft_kind kind,
                              int32_t layer)
{
    const weft_kv_layout *const l = store->layout;
    return (weft_paged){
        .base = store->base,
        .layer_offset = l->layer_offset[layer],
        .row_bytes = l->row_bytes[kind],
        .page_tokens = l->page_tokens,
        .dtype = l->dtype,
    };
}

weft_paged weft_kv_store_index(const weft_kv_store *store, int32_t layer)
{
    const weft_kv_layout *const l = store->layout;
    return (weft_paged){
        .base = store->base,
        .layer_offset = l->index_offset[layer],
        .row_bytes = l->index_row_bytes,
        .page_tokens = l->page_tokens,
        .dtype = l->dtype,
    };
}

void weft_kv_store_poison(void *arg, weft_kind kind, int64_t offset)
{
#ifndef NDEBUG
    weft_kv_store *const store = arg;
    const int64_t bytes = store->layout->page_bytes[kind];
    WEFT_ASSERT(offset >= 0 && (size_t)(offset + bytes) <= store->bytes);
    memset(store->base + offset, 0xff, (size_t)bytes);
#else
    (void)arg;
    (void)kind;
    (void)offset;
#endif
}
