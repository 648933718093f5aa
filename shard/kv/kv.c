#include "shard/kv/kv.h"

#include <string.h>

#include "node/base/check.h"
#include "node/base/mem.h"

enum {
    PAGE_TOKENS_MAX = 65536,
    /* A slab wastes less than one part in this many, in either kind: 2.5 %. */
    WASTE_PARTS = 40,
    NO_KIND = -1,
    F8_ROW_ALIGN = 16, /* bytes */
};

/* ---- layout ------------------------------------------------------------- */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static int64_t round_up(int64_t bytes, int64_t step)
{
    return ceil_div(bytes, step) * step;
}

/* A row of a kind and where its parts begin; false: overflow. */
static bool fill_row(const weft_model_config *config, int k,
                     weft_kv_layout *layout)
{
    const int64_t rank = config->geometry[k].kv_lora_rank;
    const int64_t rope = config->geometry[k].qk_rope_head_dim;
    if (layout->dtype == WEFT_F8_E4M3) {
        /* Of 32-bit numbers none of this overflows. */
        const int64_t scales = round_up(rank, 4);
        layout->scale_offset[k] = scales;
        layout->rope_offset[k] =
            scales + ceil_div(rank, WEFT_SCALE_BLOCK) * (int64_t)sizeof(float);
        layout->row_bytes[k] =
            round_up(layout->rope_offset[k] + rope * 2, F8_ROW_ALIGN);
        return true;
    }
    const int64_t elem = (int64_t)weft_dtype_bytes(layout->dtype);
    layout->rope_offset[k] = rank * elem;
    return !__builtin_mul_overflow(weft_config_row_width(config, (weft_kind)k),
                                   elem, &layout->row_bytes[k]);
}

/* Row and token bytes of both kinds, and of index keys; false: overflow. */
static bool fill_token_bytes(const weft_model_config *config,
                             weft_kv_layout *layout)
{
    const bool f8 = layout->dtype == WEFT_F8_E4M3;
    bool over = false;
    layout->index_scale_offset = -1;
    for (int k = 0; k < WEFT_KINDS; k++) {
        layout->scale_offset[k] = -1;
        if (config->n_kind[k] == 0) continue;
        over |= !fill_row(config, k, layout);
        over |= __builtin_mul_overflow(layout->row_bytes[k],
                                       (int64_t)config->n_kind[k],
                                       &layout->token_bytes[k]);
    }
    if (config->dsa && config->n_kind[WEFT_FULL] > 0) {
        layout->index_row_bytes =
            config->index_head_dim * (int64_t)weft_dtype_bytes(layout->dtype);
        if (f8) {
            layout->index_scale_offset = layout->index_row_bytes;
            layout->index_row_bytes += (int64_t)sizeof(float);
        }
        layout->index_token_bytes =
            layout->index_row_bytes * config->n_kind[WEFT_FULL];
        over |= __builtin_add_overflow(layout->token_bytes[WEFT_FULL],
                                       layout->index_token_bytes,
                                       &layout->token_bytes[WEFT_FULL]);
    }
    return !over;
}

/* Of a kind; false: overflow. */
static bool fill_page_bytes(int k, weft_kv_layout *layout)
{
    int64_t *const bytes = &layout->page_bytes[k];
    if (__builtin_mul_overflow(layout->token_bytes[k],
                               (int64_t)layout->page_tokens, bytes) ||
        *bytes > INT64_MAX - F8_ROW_ALIGN)
        return false;
    if (layout->dtype == WEFT_F8_E4M3) *bytes = round_up(*bytes, F8_ROW_ALIGN);
    return true;
}

static void fill_offsets(const weft_model_config *config,
                         weft_kv_layout *layout)
{
    const int64_t tokens = layout->page_tokens;
    const int64_t index_start =
        tokens * layout->row_bytes[WEFT_FULL] * config->n_kind[WEFT_FULL];
    int64_t seen[WEFT_KINDS] = {0};
    for (int32_t l = 0; l < config->n_layer; l++) {
        const weft_kind k = config->kind[l];
        layout->layer_offset[l] = layout->index_offset[l] = -1;
        if (l < config->first_layer || l >= config->end_layer) continue;
        layout->layer_offset[l] = seen[k] * tokens * layout->row_bytes[k];
        layout->index_offset[l] =
            k == WEFT_FULL && layout->index_row_bytes > 0
                ? index_start + seen[k] * tokens * layout->index_row_bytes
                : -1;
        seen[k]++;
    }
    for (int k = 0; k < WEFT_KINDS; k++)
        WEFT_ASSERT(seen[k] == config->n_kind[k]);
}

/* The smallest slab in which the tail that no page uses is below 1 part in
 * WASTE_PARTS for both kinds. Shrinking a slab until it is a multiple of one of
 * the pages shrinks both tails, so multiples are all that need be tried; and
 * WASTE_PARTS + 1 of the larger page always do, so the search ends. False: a
 * size overflows. */
static bool choose_slab(weft_kv_layout *layout)
{
    const int64_t a = layout->page_bytes[WEFT_FULL];
    const int64_t b = layout->page_bytes[WEFT_WINDOW];
    if (a == 0 || b == 0) {
        layout->slab_bytes = a + b;
        return true;
    }
    const int64_t larger = a > b ? a : b;
    if (larger > INT64_MAX / ((int64_t)2 * WASTE_PARTS)) return false;
    int64_t next_a = ceil_div(larger, a) * a;
    int64_t next_b = ceil_div(larger, b) * b;
    for (;;) {
        const int64_t slab = next_a < next_b ? next_a : next_b;
        const int64_t tail_a = slab % a, tail_b = slab % b;
        const int64_t tail = tail_a > tail_b ? tail_a : tail_b;
        if (tail < ceil_div(slab, WASTE_PARTS)) {
            layout->slab_bytes = slab;
            layout->waste = (double)tail / (double)slab;
            return true;
        }
        if (next_a == slab) next_a += a;
        if (next_b == slab) next_b += b;
    }
}

static weft_status check_layout_input(const weft_model_config *config,
                                      weft_dtype dtype, int32_t page_tokens,
                                      weft_err *err)
{
    if (dtype != WEFT_F32 && dtype != WEFT_BF16 && dtype != WEFT_F8_E4M3)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "KV rows of dtype %d are not supported: F32, BF16 and "
                         "F8_E4M3 are",
                         (int)dtype);
    if (dtype == WEFT_F8_E4M3 && config->dsa && config->index_head_dim % 4 != 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "index_head_dim is %d, F8_E4M3 index keys take "
                         "multiples of 4",
                         config->index_head_dim);
    if (page_tokens < 1 || page_tokens > PAGE_TOKENS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "page_tokens is %d, allowed is 1 to %d", page_tokens,
                         PAGE_TOKENS_MAX);
    const int64_t layers =
        (int64_t)config->n_kind[WEFT_FULL] + config->n_kind[WEFT_WINDOW];
    const int32_t first = config->first_layer, end = config->end_layer;
    if (first < 0 || first >= end || end > config->n_layer ||
        config->n_layer > WEFT_LAYERS_MAX || layers != (int64_t)end - first)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "KV layout of %d full and %d window layers, but "
                         "layers %d to %d of %d are computed here (of 1 to %d)",
                         config->n_kind[WEFT_FULL], config->n_kind[WEFT_WINDOW],
                         first, end, config->n_layer, WEFT_LAYERS_MAX);
    return WEFT_OK;
}

weft_status weft_kv_layout_make(const weft_model_config *config,
                                weft_dtype dtype, int32_t page_tokens,
                                weft_kv_layout *layout_out, weft_err *err)
{
    WEFT_TRY(check_layout_input(config, dtype, page_tokens, err));

    weft_kv_layout layout = {.dtype = dtype, .page_tokens = page_tokens};
    bool fits = fill_token_bytes(config, &layout);
    for (int k = 0; fits && k < WEFT_KINDS; k++)
        fits = fill_page_bytes(k, &layout);
    fits = fits && choose_slab(&layout);
    for (int k = 0; fits && k < WEFT_KINDS; k++) {
        if (layout.page_bytes[k] == 0) continue;
        const int64_t pages = layout.slab_bytes / layout.page_bytes[k];
        layout.slab_pages[k] = (int32_t)pages;
        fits = pages <= INT32_MAX;
    }
    if (!fits)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "KV pages of %d tokens over %d layers do not fit in "
                         "63 bits",
                         page_tokens, config->n_layer);
    fill_offsets(config, &layout);
    *layout_out = layout;
    return WEFT_OK;
}

int64_t weft_kv_pages_for(const weft_model_config *config,
                          const weft_kv_layout *layout, weft_kind kind,
                          int64_t n_tokens, int32_t chunk_tokens)
{
    if (layout->page_bytes[kind] == 0 || n_tokens <= 0) return 0;
    const int64_t all = ceil_div(n_tokens, layout->page_tokens);
    if (kind == WEFT_FULL) return all;
    const int64_t seen = (int64_t)config->window - 1 + chunk_tokens;
    const int64_t cap = ceil_div(seen, layout->page_tokens) + 1;
    return all < cap ? all : cap;
}

int64_t weft_kv_bytes_for(const weft_model_config *config,
                          const weft_kv_layout *layout, int64_t n_tokens,
                          int32_t chunk_tokens)
{
    int64_t bytes = 0;
    for (int k = 0; k < WEFT_KINDS; k++) {
        const int64_t pages = weft_kv_pages_for(config, layout, (weft_kind)k,
                                                n_tokens, chunk_tokens);
        int64_t part = 0;
        if (__builtin_mul_overflow(pages, layout->page_bytes[k], &part) ||
            __builtin_add_overflow(bytes, part, &bytes))
            return INT64_MAX;
    }
    return bytes;
}

/* ---- pool ---------------------------------------------------------------
 *
 * A slab is in exactly one place: on the stack of free slabs (no kind), in its
 * kind's list of partial slabs (some page used, some free), or in no list (all
 * pages used). Links are slab numbers, NO_SLAB ends a list.
 *
 * Free pages of a slab: those below `fresh` that were given back, chained
 * through next_page, and all from `fresh` on, which were never handed out since
 * the slab was taken. So taking a slab costs nothing per page. */

enum { NO_SLAB = -1, NO_PAGE = -1, PAGE_USED = -2 };

typedef struct slab {
    int64_t prev, next;
    int32_t kind; /* NO_KIND: free */
    int32_t n_used, fresh;
    int32_t first_free; /* page number in the slab, or NO_PAGE */
} slab;

struct weft_kv_pool {
    int64_t slab_bytes, page_bytes[WEFT_KINDS], index_page_bytes;
    int32_t slab_pages[WEFT_KINDS];
    int32_t pages_max; /* the larger of slab_pages */
    int64_t n_slabs, n_free_slabs;
    int64_t free_slab;           /* top of the stack */
    int64_t partial[WEFT_KINDS]; /* heads of the lists */
    int64_t n_used[WEFT_KINDS];  /* pages */
    int64_t n_free[WEFT_KINDS];  /* pages, in slabs that the kind holds */
    slab *slabs;                 /* [n_slabs] */
    int32_t *next_page;          /* [n_slabs][pages_max]; PAGE_USED: in use */
};

static int32_t *page_link(const weft_kv_pool *pool, int64_t s, int32_t page)
{
    return &pool->next_page[s * pool->pages_max + page];
}

static void list_remove(weft_kv_pool *pool, int64_t s)
{
    slab *const it = &pool->slabs[s];
    if (it->prev == NO_SLAB)
        pool->partial[it->kind] = it->next;
    else
        pool->slabs[it->prev].next = it->next;
    if (it->next != NO_SLAB) pool->slabs[it->next].prev = it->prev;
    it->prev = it->next = NO_SLAB;
}

/* At the head: a slab that has just lost one page of many is the fullest, and
 * filling the fullest first lets the others drain. */
static void list_push(weft_kv_pool *pool, int64_t s)
{
    slab *const it = &pool->slabs[s];
    it->prev = NO_SLAB;
    it->next = pool->partial[it->kind];
    if (it->next != NO_SLAB) pool->slabs[it->next].prev = s;
    pool->partial[it->kind] = s;
}

static void take_slab(weft_kv_pool *pool, weft_kind kind)
{
    const int64_t s = pool->free_slab;
    slab *const it = &pool->slabs[s];
    pool->free_slab = it->next;
    pool->n_free_slabs--;
    *it = (slab){.kind = (int32_t)kind, .first_free = NO_PAGE};
    list_push(pool, s);
    pool->n_free[kind] += pool->slab_pages[kind];
}

static void give_slab(weft_kv_pool *pool, int64_t s)
{
    slab *const it = &pool->slabs[s];
    pool->n_free[it->kind] -= pool->slab_pages[it->kind];
    *it = (slab){.kind = NO_KIND, .prev = NO_SLAB, .next = pool->free_slab};
    pool->free_slab = s;
    pool->n_free_slabs++;
}

weft_status weft_kv_pool_create(const weft_kv_layout *layout,
                                int64_t budget_bytes, weft_kv_pool **pool_out,
                                weft_err *err)
{
    int64_t kinds = 0;
    int32_t pages_max = 0;
    for (int k = 0; k < WEFT_KINDS; k++) {
        kinds += layout->page_bytes[k] > 0;
        if (layout->slab_pages[k] > pages_max)
            pages_max = layout->slab_pages[k];
    }
    const int64_t n = budget_bytes < 0 ? 0 : budget_bytes / layout->slab_bytes;
    if (n < kinds)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "KV memory needs at least %lld bytes (%lld slabs of "
                         "%lld), %lld are given",
                         (long long)(kinds * layout->slab_bytes),
                         (long long)kinds, (long long)layout->slab_bytes,
                         (long long)budget_bytes);

    weft_kv_pool *const pool = weft_mem_new(1, sizeof *pool);
    if (pool == NULL) goto no_memory;
    pool->slabs = weft_mem_new((size_t)n, sizeof *pool->slabs);
    int64_t links = 0;
    if (!__builtin_mul_overflow(n, (int64_t)pages_max, &links))
        pool->next_page = weft_mem_new((size_t)links, sizeof *pool->next_page);
    if (pool->slabs == NULL || pool->next_page == NULL) goto free_pool;

    pool->slab_bytes = layout->slab_bytes;
    pool->index_page_bytes = layout->index_token_bytes * layout->page_tokens;
    pool->pages_max = pages_max;
    pool->n_slabs = n;
    pool->free_slab = NO_SLAB;
    for (int k = 0; k < WEFT_KINDS; k++) {
        pool->page_bytes[k] = layout->page_bytes[k];
        pool->slab_pages[k] = layout->slab_pages[k];
        pool->partial[k] = NO_SLAB;
    }
    for (int64_t s = n - 1; s >= 0; s--) {
        pool->slabs[s] =
            (slab){.kind = NO_KIND, .prev = NO_SLAB, .next = pool->free_slab};
        pool->free_slab = s;
    }
    pool->n_free_slabs = n;
    *pool_out = pool;
    return WEFT_OK;

free_pool:
    weft_mem_free(pool->slabs);
    weft_mem_free(pool->next_page);
    weft_mem_free(pool);
no_memory:
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "no memory to keep account of %lld KV slabs",
                     (long long)n);
}

void weft_kv_pool_destroy(weft_kv_pool *pool)
{
    if (pool == NULL) return;
    WEFT_ASSERT(pool->n_free_slabs == pool->n_slabs);
    weft_mem_free(pool->slabs);
    weft_mem_free(pool->next_page);
    weft_mem_free(pool);
}

static int64_t take_page(weft_kv_pool *pool, weft_kind kind)
{
    if (pool->partial[kind] == NO_SLAB) take_slab(pool, kind);
    const int64_t s = pool->partial[kind];
    slab *const it = &pool->slabs[s];
    int32_t page = it->first_free;
    if (page == NO_PAGE)
        page = it->fresh++;
    else
        it->first_free = *page_link(pool, s, page);
    *page_link(pool, s, page) = PAGE_USED;
    it->n_used++;
    pool->n_used[kind]++;
    pool->n_free[kind]--;
    if (it->n_used == pool->slab_pages[kind]) list_remove(pool, s);
    return s * pool->slab_bytes + page * pool->page_bytes[kind];
}

weft_status weft_kv_pool_alloc(weft_kv_pool *pool, weft_kind kind, int32_t n,
                               int64_t *offsets_out)
{
    WEFT_ASSERT(n >= 0);
    int64_t wanted[WEFT_KINDS] = {0};
    wanted[kind] = n;
    if (!weft_kv_pool_can(pool, wanted)) return WEFT_RESOURCE_EXHAUSTED;
    for (int32_t i = 0; i < n; i++) offsets_out[i] = take_page(pool, kind);
    return WEFT_OK;
}

void weft_kv_pool_release(weft_kv_pool *pool, weft_kind kind, int64_t offset)
{
    const int64_t s = offset / pool->slab_bytes;
    WEFT_ASSERT(offset >= 0 && s < pool->n_slabs);
    slab *const it = &pool->slabs[s];
    WEFT_ASSERT(it->kind == (int32_t)kind);
    const int64_t inside = offset % pool->slab_bytes;
    WEFT_ASSERT(inside % pool->page_bytes[kind] == 0);
    const int64_t number = inside / pool->page_bytes[kind];
    WEFT_ASSERT(number < it->fresh);
    const int32_t page = (int32_t)number;
    WEFT_ASSERT(*page_link(pool, s, page) == PAGE_USED);

    if (it->n_used == pool->slab_pages[kind]) list_push(pool, s);
    *page_link(pool, s, page) = it->first_free;
    it->first_free = page;
    it->n_used--;
    pool->n_used[kind]--;
    pool->n_free[kind]++;
    if (it->n_used > 0) return;
    list_remove(pool, s);
    give_slab(pool, s);
}

/* Whether the pages fit when the kinds hold free[k] free pages in slabs of
 * their own and `slabs` slabs belong to nobody. */
static bool fits(const weft_kv_pool *pool, const int64_t n[WEFT_KINDS],
                 const int64_t free[WEFT_KINDS], int64_t slabs)
{
    for (int k = 0; k < WEFT_KINDS; k++) {
        WEFT_ASSERT(n[k] >= 0);
        if (n[k] <= free[k]) continue;
        if (pool->slab_pages[k] == 0) return false;
        slabs -= ceil_div(n[k] - free[k], pool->slab_pages[k]);
        if (slabs < 0) return false;
    }
    return true;
}

bool weft_kv_pool_can(const weft_kv_pool *pool, const int64_t n[WEFT_KINDS])
{
    return fits(pool, n, pool->n_free, pool->n_free_slabs);
}

bool weft_kv_pool_could(const weft_kv_pool *pool, const int64_t n[WEFT_KINDS])
{
    static const int64_t none[WEFT_KINDS];
    return fits(pool, n, none, pool->n_slabs);
}

void weft_kv_pool_get_stats(const weft_kv_pool *pool, weft_kv_stats *stats_out)
{
    weft_kv_stats stats = {.slabs = pool->n_slabs,
                           .slabs_free = pool->n_free_slabs};
    stats.total_bytes = pool->n_slabs * pool->slab_bytes;
    stats.free_bytes = stats.total_bytes;
    for (int k = 0; k < WEFT_KINDS; k++) {
        stats.pages_used[k] = pool->n_used[k];
        stats.pages_free[k] = pool->n_free[k];
        stats.used_bytes[k] = pool->n_used[k] * pool->page_bytes[k];
        stats.free_bytes -= stats.used_bytes[k];
    }
    stats.index_used_bytes = pool->n_used[WEFT_FULL] * pool->index_page_bytes;
    stats.used_bytes[WEFT_FULL] -= stats.index_used_bytes;
    *stats_out = stats;
}

/* Recount one slab that belongs to a kind. */
static void check_slab(const weft_kv_pool *pool, int64_t s)
{
    const slab *const it = &pool->slabs[s];
    const int32_t pages = pool->slab_pages[it->kind];
    WEFT_ASSERT(it->n_used > 0 && it->n_used <= pages);
    WEFT_ASSERT(it->fresh >= it->n_used && it->fresh <= pages);
    int32_t used = 0, chained = 0;
    for (int32_t p = 0; p < it->fresh; p++)
        used += *page_link(pool, s, p) == PAGE_USED;
    for (int32_t p = it->first_free; p != NO_PAGE; p = *page_link(pool, s, p)) {
        WEFT_ASSERT(p >= 0 && p < it->fresh);
        WEFT_ASSERT(++chained <= pages);
    }
    WEFT_ASSERT(used == it->n_used);
    WEFT_ASSERT(used + chained == it->fresh);
}

/* Slabs on a list, each of them checked to belong there. */
static int64_t check_list(const weft_kv_pool *pool, int64_t head, int32_t kind)
{
    int64_t n = 0, before = NO_SLAB;
    for (int64_t s = head; s != NO_SLAB; s = pool->slabs[s].next) {
        const slab *const it = &pool->slabs[s];
        WEFT_ASSERT(it->kind == kind);
        WEFT_ASSERT(kind == NO_KIND || it->prev == before);
        WEFT_ASSERT(kind == NO_KIND || it->n_used < pool->slab_pages[kind]);
        WEFT_ASSERT(++n <= pool->n_slabs);
        before = s;
    }
    return n;
}

void weft_kv_pool_check(const weft_kv_pool *pool)
{
    int64_t used[WEFT_KINDS] = {0}, free[WEFT_KINDS] = {0};
    int64_t partial[WEFT_KINDS] = {0}, free_slabs = 0;
    for (int64_t s = 0; s < pool->n_slabs; s++) {
        const slab *const it = &pool->slabs[s];
        if (it->kind == NO_KIND) {
            free_slabs++;
            continue;
        }
        check_slab(pool, s);
        const int32_t pages = pool->slab_pages[it->kind];
        used[it->kind] += it->n_used;
        free[it->kind] += pages - it->n_used;
        partial[it->kind] += it->n_used < pages;
    }
    WEFT_ASSERT(free_slabs == pool->n_free_slabs);
    WEFT_ASSERT(check_list(pool, pool->free_slab, NO_KIND) == free_slabs);
    for (int k = 0; k < WEFT_KINDS; k++) {
        WEFT_ASSERT(used[k] == pool->n_used[k]);
        WEFT_ASSERT(free[k] == pool->n_free[k]);
        WEFT_ASSERT(check_list(pool, pool->partial[k], k) == partial[k]);
    }
    weft_kv_stats stats;
    weft_kv_pool_get_stats(pool, &stats);
    WEFT_ASSERT(stats.used_bytes[WEFT_FULL] + stats.used_bytes[WEFT_WINDOW] +
                    stats.index_used_bytes + stats.free_bytes ==
                stats.total_bytes);
}
