#include "shard/kv/table.h"

#include "node/base/check.h"
#include "node/base/mem.h"

static int64_t pages_of(const weft_kv_layout *layout, int64_t n_tokens)
{
    return (n_tokens + layout->page_tokens - 1) / layout->page_tokens;
}

weft_status weft_kv_table_init(weft_kv_table *table,
                               const weft_kv_layout *layout, int64_t max_tokens,
                               weft_err *err)
{
    WEFT_ASSERT(max_tokens > 0 && max_tokens <= INT32_MAX);
    weft_kv_table fresh = {.max_pages = (int32_t)pages_of(layout, max_tokens)};
    for (int k = 0; k < WEFT_KINDS; k++) {
        if (layout->page_bytes[k] == 0) continue;
        fresh.offsets[k] =
            weft_mem_new((size_t)fresh.max_pages, sizeof *fresh.offsets[k]);
        if (fresh.offsets[k] == NULL) {
            weft_kv_table_deinit(&fresh);
            return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                             "no memory for a table of %d KV pages",
                             fresh.max_pages);
        }
        for (int32_t p = 0; p < fresh.max_pages; p++) fresh.offsets[k][p] = -1;
    }
    *table = fresh;
    return WEFT_OK;
}

void weft_kv_table_deinit(weft_kv_table *table)
{
    for (int k = 0; k < WEFT_KINDS; k++) {
        WEFT_ASSERT(table->n_pages[k] == 0);
        weft_mem_free(table->offsets[k]);
    }
    *table = (weft_kv_table){0};
}

void weft_kv_table_need(const weft_kv_table *table,
                        const weft_kv_layout *layout, int64_t n_tokens,
                        int64_t need_out[WEFT_KINDS])
{
    const int64_t pages = pages_of(layout, n_tokens);
    for (int k = 0; k < WEFT_KINDS; k++) {
        const int64_t more = pages - table->n_pages[k];
        need_out[k] = table->offsets[k] != NULL && more > 0 ? more : 0;
    }
}

weft_status weft_kv_table_grow(weft_kv_table *table,
                               const weft_kv_layout *layout, weft_kv_pool *pool,
                               int64_t n_tokens)
{
    int64_t need[WEFT_KINDS];
    weft_kv_table_need(table, layout, n_tokens, need);
    if (!weft_kv_pool_can(pool, need)) return WEFT_RESOURCE_EXHAUSTED;
    for (int k = 0; k < WEFT_KINDS; k++) {
        if (need[k] == 0) continue;
        const int32_t n = table->n_pages[k];
        WEFT_ASSERT(n + need[k] <= table->max_pages);
        const weft_status st = weft_kv_pool_alloc(
            pool, (weft_kind)k, (int32_t)need[k], &table->offsets[k][n]);
        WEFT_ASSERT(st == WEFT_OK); /* `can` covered both kinds together */
        table->n_pages[k] = n + (int32_t)need[k];
    }
    return WEFT_OK;
}

/* Release the entries [first_page, end) of a kind. */
static void release_below(weft_kv_table *table, weft_kv_pool *pool,
                          weft_kind kind, int64_t end, weft_kv_page_fn before,
                          void *arg)
{
    int64_t *const offsets = table->offsets[kind];
    int32_t p = table->first_page[kind];
    for (; p < end; p++) {
        if (before != NULL) before(arg, kind, offsets[p]);
        weft_kv_pool_release(pool, kind, offsets[p]);
        offsets[p] = -1;
    }
    table->first_page[kind] = p;
}

void weft_kv_table_trim(weft_kv_table *table, const weft_model_config *config,
                        const weft_kv_layout *layout, weft_kv_pool *pool,
                        int64_t next, weft_kv_page_fn before, void *arg)
{
    if (table->offsets[WEFT_WINDOW] == NULL) return;
    /* The lowest position that a query at `next` sees; its page is the first
     * that stays. */
    const int64_t lowest = next - config->window + 1;
    if (lowest <= 0) return;
    int64_t end = lowest / layout->page_tokens;
    if (end > table->n_pages[WEFT_WINDOW]) end = table->n_pages[WEFT_WINDOW];
    release_below(table, pool, WEFT_WINDOW, end, before, arg);
}

void weft_kv_table_clear(weft_kv_table *table, weft_kv_pool *pool,
                         weft_kv_page_fn before, void *arg)
{
    for (int k = 0; k < WEFT_KINDS; k++) {
        release_below(table, pool, (weft_kind)k, table->n_pages[k], before,
                      arg);
        table->n_pages[k] = 0;
        table->first_page[k] = 0;
    }
}
