#include "shard/kv/table.h"

#include "node/base/check.h"
#include "node/base/mem.h"

static int64_t pages_of(const weft_kv_spaces *spaces, int64_t n_tokens)
{
    const int64_t page_tokens = spaces->at[0].layout.page_tokens;
    return (n_tokens + page_tokens - 1) / page_tokens;
}

static weft_status init_space(weft_kv_table *table,
                              const weft_kv_layout *layout,
                              int64_t *offsets[WEFT_KINDS])
{
    for (int k = 0; k < WEFT_KINDS; k++) {
        if (layout->page_bytes[k] == 0) continue;
        offsets[k] = weft_mem_new((size_t)table->max_pages, sizeof *offsets[k]);
        if (offsets[k] == NULL) return WEFT_RESOURCE_EXHAUSTED;
        for (int32_t p = 0; p < table->max_pages; p++) offsets[k][p] = -1;
        table->used[k] = true;
    }
    return WEFT_OK;
}

static weft_status init_spaces(weft_kv_table *table,
                               const weft_kv_spaces *spaces)
{
    WEFT_TRY(init_space(table, &spaces->at[0].layout, table->offsets));
    if (spaces->n == 1) return WEFT_OK;
    table->others = weft_mem_new((size_t)spaces->n - 1, sizeof *table->others);
    if (table->others == NULL) return WEFT_RESOURCE_EXHAUSTED;
    for (int32_t s = 1; s < spaces->n; s++)
        WEFT_TRY(
            init_space(table, &spaces->at[s].layout, table->others[s - 1]));
    return WEFT_OK;
}

weft_status weft_kv_table_init(weft_kv_table *table,
                               const weft_kv_spaces *spaces, int64_t max_tokens,
                               weft_err *err)
{
    WEFT_ASSERT(max_tokens > 0 && max_tokens <= INT32_MAX);
    weft_kv_table fresh = {
        .max_pages = (int32_t)pages_of(spaces, max_tokens),
        .n_spaces = spaces->n,
    };
    if (init_spaces(&fresh, spaces) != WEFT_OK) {
        weft_kv_table_deinit(&fresh);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a table of %d KV pages",
                         fresh.max_pages);
    }
    *table = fresh;
    return WEFT_OK;
}

void weft_kv_table_deinit(weft_kv_table *table)
{
    for (int k = 0; k < WEFT_KINDS; k++) {
        WEFT_ASSERT(table->n_pages[k] == 0);
        weft_mem_free(table->offsets[k]);
        for (int32_t s = 1; table->others != NULL && s < table->n_spaces; s++)
            weft_mem_free(table->others[s - 1][k]);
    }
    weft_mem_free(table->others);
    *table = (weft_kv_table){0};
}

void weft_kv_table_need(const weft_kv_table *table,
                        const weft_kv_spaces *spaces, int64_t n_tokens,
                        int64_t need_out[WEFT_KINDS])
{
    const int64_t pages = pages_of(spaces, n_tokens);
    for (int k = 0; k < WEFT_KINDS; k++) {
        const int64_t more = pages - table->n_pages[k];
        need_out[k] = table->used[k] && more > 0 ? more : 0;
    }
}

weft_status weft_kv_table_grow(weft_kv_table *table,
                               const weft_kv_spaces *spaces, int64_t n_tokens)
{
    int64_t need[WEFT_KINDS];
    weft_kv_table_need(table, spaces, n_tokens, need);
    if (!weft_kv_spaces_can(spaces, need)) return WEFT_RESOURCE_EXHAUSTED;
    for (int k = 0; k < WEFT_KINDS; k++) {
        if (need[k] == 0) continue;
        const int32_t n = table->n_pages[k];
        WEFT_ASSERT(n + need[k] <= table->max_pages);
        for (int32_t s = 0; s < spaces->n; s++) {
            int64_t *const offsets =
                weft_kv_table_offsets(table, s, (weft_kind)k);
            if (offsets == NULL) continue;
            const weft_status st =
                weft_kv_pool_alloc(spaces->at[s].pool, (weft_kind)k,
                                   (int32_t)need[k], &offsets[n]);
            WEFT_ASSERT(st == WEFT_OK); /* `can` covered all of them together */
        }
        table->n_pages[k] = n + (int32_t)need[k];
    }
    return WEFT_OK;
}

/* Release the entries [first_page, end) of a kind. */
static void release_below(weft_kv_table *table, const weft_kv_spaces *spaces,
                          weft_kind kind, int64_t end, weft_kv_page_fn before,
                          void *arg)
{
    for (int32_t s = 0; s < spaces->n; s++) {
        int64_t *const offsets = weft_kv_table_offsets(table, s, kind);
        if (offsets == NULL) continue;
        for (int32_t p = table->first_page[kind]; p < end; p++) {
            if (before != NULL && s == 0) before(arg, kind, offsets[p]);
            weft_kv_pool_release(spaces->at[s].pool, kind, offsets[p]);
            offsets[p] = -1;
        }
    }
    if (end > table->first_page[kind]) table->first_page[kind] = (int32_t)end;
}

void weft_kv_table_trim(weft_kv_table *table, const weft_model_config *config,
                        const weft_kv_spaces *spaces, int64_t next,
                        weft_kv_page_fn before, void *arg)
{
    if (!table->used[WEFT_WINDOW]) return;
    /* The lowest position that a query at `next` sees; its page is the first
     * that stays. */
    const int64_t lowest = next - config->window + 1;
    if (lowest <= 0) return;
    int64_t end = lowest / spaces->at[0].layout.page_tokens;
    if (end > table->n_pages[WEFT_WINDOW]) end = table->n_pages[WEFT_WINDOW];
    release_below(table, spaces, WEFT_WINDOW, end, before, arg);
}

void weft_kv_table_clear(weft_kv_table *table, const weft_kv_spaces *spaces,
                         weft_kv_page_fn before, void *arg)
{
    for (int k = 0; k < WEFT_KINDS; k++) {
        release_below(table, spaces, (weft_kind)k, table->n_pages[k], before,
                      arg);
        table->n_pages[k] = 0;
        table->first_page[k] = 0;
    }
}
