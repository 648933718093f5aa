#include "shard/kv/store.h"

#include <sys/mman.h>

#include "node/base/check.h"
#include "node/base/mem.h"

struct weft_kv_store {
    const weft_kv_layout *layout;
    weft_memory memory;
    unsigned char *base;
    int64_t bytes;
};

weft_status weft_kv_store_create(const weft_kv_layout *layout, int64_t bytes,
                                 const weft_memory *memory,
                                 weft_kv_store **store_out, weft_err *err)
{
    void *base = NULL;
    if (layout->dtype != WEFT_F32 && layout->dtype != WEFT_BF16)
        return WEFT_FAIL(err, WEFT_UNIMPLEMENTED,
                         "kv store: rows of %s are not supported, attention "
                         "reads F32 and BF16",
                         weft_dtype_name(layout->dtype));
    weft_kv_store *const store = weft_mem_new(1, sizeof *store);
    if (store == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "kv store: out of memory");
    store->layout = layout;
    if (memory != NULL) store->memory = *memory;
    store->bytes = bytes;
    const weft_status st = weft_memory_alloc(&store->memory, bytes,
                                             "kv-bytes: KV pages", &base, err);
    if (st != WEFT_OK) {
        weft_mem_free(store);
        return st;
    }
    store->base = base;
#ifndef NDEBUG
    weft_memory_fill(&store->memory, store->base, 0xff, bytes);
#else
    /* Small pages here: with huge ones the first row of a page would make
     * 2 MiB resident, and resident memory would run ahead of use. */
    if (weft_memory_is_host(&store->memory))
        (void)madvise(store->base, (size_t)bytes / 4096 * 4096,
                      MADV_NOHUGEPAGE);
#endif
    *store_out = store;
    return WEFT_OK;
}

void weft_kv_store_destroy(weft_kv_store *store)
{
    if (store == NULL) return;
    weft_memory_free(&store->memory, store->base);
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
    WEFT_ASSERT(offset >= 0 && offset + bytes <= store->bytes);
    weft_memory_fill(&store->memory, store->base + offset, 0xff, bytes);
#else
    (void)arg;
    (void)kind;
    (void)offset;
#endif
}
