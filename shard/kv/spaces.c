#include "shard/kv/spaces.h"

#include <string.h>

#include "node/base/mem.h"

static weft_status init_space(weft_kv_space *space,
                              const weft_model_config *config, weft_dtype dtype,
                              int32_t page_tokens, int64_t kv_bytes,
                              weft_err *err)
{
    WEFT_TRY(
        weft_kv_layout_make(config, dtype, page_tokens, &space->layout, err));
    return weft_kv_pool_create(&space->layout, kv_bytes, &space->pool, err);
}

/* `cut` is room for the config of one stage. */
static weft_status init_spaces(weft_kv_spaces *spaces,
                               const weft_model_config *config,
                               weft_dtype dtype, int32_t page_tokens,
                               const int64_t *kv_bytes, weft_model_config *cut,
                               weft_err *err)
{
    for (int32_t s = 0; s < spaces->n; s++) {
        weft_status st = WEFT_OK;
        *cut = *config;
        if (spaces->n > 1)
            st = weft_partition_cut(config, spaces->n, s, cut, err);
        if (st == WEFT_OK)
            st = init_space(&spaces->at[s], cut, dtype, page_tokens,
                            kv_bytes[s], err);
        if (st != WEFT_OK)
            return spaces->n > 1
                       ? WEFT_WRAP(err, st, "stage %d of %d", s, spaces->n)
                       : st;
    }
    return WEFT_OK;
}

weft_status weft_kv_spaces_init(weft_kv_spaces *spaces,
                                const weft_model_config *config,
                                weft_dtype dtype, int32_t page_tokens,
                                const int64_t *kv_bytes, int32_t n_stages,
                                weft_err *err)
{
    if (n_stages < 1 || n_stages > WEFT_STAGES_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%d stages, allowed is 1 to %d", n_stages,
                         (int)WEFT_STAGES_MAX);
    weft_kv_spaces fresh = {.n = n_stages};
    fresh.at = weft_mem_new((size_t)n_stages, sizeof *fresh.at);
    weft_model_config *const cut = weft_mem_new(1, sizeof *cut);
    weft_status st = WEFT_OK;
    if (fresh.at == NULL || cut == NULL)
        st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                       "no memory for the KV accounts of %d stages", n_stages);
    else
        st =
            init_spaces(&fresh, config, dtype, page_tokens, kv_bytes, cut, err);
    weft_mem_free(cut);
    if (st != WEFT_OK) {
        weft_kv_spaces_deinit(&fresh);
        return st;
    }
    *spaces = fresh;
    return WEFT_OK;
}

void weft_kv_spaces_deinit(weft_kv_spaces *spaces)
{
    for (int32_t s = 0; spaces->at != NULL && s < spaces->n; s++)
        weft_kv_pool_destroy(spaces->at[s].pool);
    weft_mem_free(spaces->at);
    *spaces = (weft_kv_spaces){0};
}

static bool has(const weft_kv_space *space, int k)
{
    return space->layout.page_bytes[k] > 0;
}

bool weft_kv_spaces_have(const weft_kv_spaces *spaces, weft_kind kind)
{
    for (int32_t s = 0; s < spaces->n; s++)
        if (has(&spaces->at[s], (int)kind)) return true;
    return false;
}

int64_t weft_kv_spaces_pages_for(const weft_kv_spaces *spaces,
                                 const weft_model_config *config,
                                 weft_kind kind, int64_t n_tokens,
                                 int32_t chunk_tokens)
{
    for (int32_t s = 0; s < spaces->n; s++)
        if (has(&spaces->at[s], (int)kind))
            return weft_kv_pages_for(config, &spaces->at[s].layout, kind,
                                     n_tokens, chunk_tokens);
    return 0;
}

static void of_space(const weft_kv_space *space, const int64_t n[WEFT_KINDS],
                     int64_t n_out[WEFT_KINDS])
{
    for (int k = 0; k < WEFT_KINDS; k++) n_out[k] = has(space, k) ? n[k] : 0;
}

bool weft_kv_spaces_can(const weft_kv_spaces *spaces,
                        const int64_t n[WEFT_KINDS])
{
    for (int32_t s = 0; s < spaces->n; s++) {
        int64_t own[WEFT_KINDS];
        of_space(&spaces->at[s], n, own);
        if (!weft_kv_pool_can(spaces->at[s].pool, own)) return false;
    }
    return true;
}

int32_t weft_kv_spaces_cannot(const weft_kv_spaces *spaces,
                              const int64_t n[WEFT_KINDS])
{
    for (int32_t s = 0; s < spaces->n; s++) {
        int64_t own[WEFT_KINDS];
        of_space(&spaces->at[s], n, own);
        if (!weft_kv_pool_could(spaces->at[s].pool, own)) return s;
    }
    return -1;
}

void weft_kv_spaces_get_stats(const weft_kv_spaces *spaces,
                              weft_kv_stats *stats_out)
{
    weft_kv_stats sum = {0};
    for (int32_t s = 0; s < spaces->n; s++) {
        weft_kv_stats one;
        weft_kv_pool_get_stats(spaces->at[s].pool, &one);
        sum.slabs += one.slabs;
        sum.slabs_free += one.slabs_free;
        for (int k = 0; k < WEFT_KINDS; k++) {
            sum.pages_used[k] += one.pages_used[k];
            sum.pages_free[k] += one.pages_free[k];
            sum.used_bytes[k] += one.used_bytes[k];
        }
        sum.index_used_bytes += one.index_used_bytes;
        sum.free_bytes += one.free_bytes;
        sum.total_bytes += one.total_bytes;
    }
    *stats_out = sum;
}

void weft_kv_spaces_check(const weft_kv_spaces *spaces)
{
    for (int32_t s = 0; s < spaces->n; s++)
        weft_kv_pool_check(spaces->at[s].pool);
}
