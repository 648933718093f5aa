#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node/base/mem.h"
#include "node/base/rng.h"
#include "shard/kv/kv.h"
#include "tests/support/suite.h"

/* A model of n_full and n_window layers, alternating as long as both last. */
static weft_model_config model_of(int32_t n_full, int32_t n_window)
{
    weft_model_config config = {.n_layer = n_full + n_window,
                                .end_layer = n_full + n_window,
                                .window = 513};
    config.n_kind[WEFT_FULL] = n_full;
    config.n_kind[WEFT_WINDOW] = n_window;
    int32_t full = 0, window = 0;
    for (int32_t l = 0; l < config.n_layer; l++) {
        const bool pick =
            full < n_full && (full <= window || window == n_window);
        config.kind[l] = pick ? WEFT_FULL : WEFT_WINDOW;
        full += pick;
        window += !pick;
    }
    config.geometry[WEFT_FULL].kv_lora_rank = 512;
    config.geometry[WEFT_FULL].qk_rope_head_dim = 64;
    config.geometry[WEFT_WINDOW].kv_lora_rank = 1024;
    config.geometry[WEFT_WINDOW].qk_rope_head_dim = 64;
    return config;
}

static weft_model_config dots3(void)
{
    weft_model_config config = model_of(13, 33);
    config.dsa = true;
    config.index_head_dim = 128;
    return config;
}

static weft_kv_layout layout_of(const weft_model_config *config,
                                weft_dtype dtype, int32_t page_tokens)
{
    weft_kv_layout layout;
    ck_assert_int_eq(
        weft_kv_layout_make(config, dtype, page_tokens, &layout, NULL),
        WEFT_OK);
    return layout;
}

/* 13 layers of 1152 + 256 bytes for every token, 33 of 2176 for the last 513:
 * bf16 rows at their own width, index keys in bf16. */
START_TEST(bytes_of_a_sequence_are_exact)
{
    static const int64_t golden[][2] = {{8192, 186783872},
                                        {32768, 636622976},
                                        {131072, 2435979392},
                                        {524288, 9633405056}};
    const weft_model_config config = dots3();
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        const int64_t tokens = golden[i][0], want = golden[i][1];
        for (int32_t page = 1; page <= 64; page *= 4) {
            const weft_kv_layout layout = layout_of(&config, WEFT_BF16, page);
            const int64_t rows = layout.token_bytes[WEFT_FULL] * tokens +
                                 layout.token_bytes[WEFT_WINDOW] * 513;
            ck_assert_int_eq(rows, want);
            /* Pages add what a window needs to roll: less than 2 pages. */
            const int64_t bytes =
                weft_kv_bytes_for(&config, &layout, tokens, 1);
            ck_assert_int_ge(bytes, want);
            ck_assert_int_le(bytes, want + 2 * layout.page_bytes[WEFT_WINDOW]);
        }
        const weft_kv_layout exact = layout_of(&config, WEFT_F32, 64);
        ck_assert_int_eq(exact.token_bytes[WEFT_FULL] * tokens +
                             exact.token_bytes[WEFT_WINDOW] * 513,
                         2 * want);
    }
    const weft_kv_layout layout = layout_of(&config, WEFT_BF16, 64);
    ck_assert_int_eq(layout.row_bytes[WEFT_FULL], 1152);
    ck_assert_int_eq(layout.row_bytes[WEFT_WINDOW], 2176);
    ck_assert_int_eq(layout.index_row_bytes, 256);
    ck_assert_int_eq(layout.index_token_bytes, INT64_C(13) * 256);
}
END_TEST

START_TEST(pages_of_a_window_are_capped)
{
    const weft_model_config config = dots3();
    const weft_kv_layout layout = layout_of(&config, WEFT_BF16, 64);
    const weft_kind w = WEFT_WINDOW;
    ck_assert_int_eq(weft_kv_pages_for(&config, &layout, w, 0, 512), 0);
    ck_assert_int_eq(weft_kv_pages_for(&config, &layout, w, 64, 512), 1);
    ck_assert_int_eq(weft_kv_pages_for(&config, &layout, w, 65, 512), 2);
    /* (513 - 1 + 512) / 64 + 1 */
    ck_assert_int_eq(weft_kv_pages_for(&config, &layout, w, 1088, 512), 17);
    ck_assert_int_eq(weft_kv_pages_for(&config, &layout, w, 1089, 512), 17);
    ck_assert_int_eq(weft_kv_pages_for(&config, &layout, w, 500000, 512), 17);
    ck_assert_int_eq(weft_kv_pages_for(&config, &layout, w, 500000, 1), 10);
    ck_assert_int_eq(
        weft_kv_pages_for(&config, &layout, WEFT_FULL, 500001, 512), 7813);
    const weft_model_config only = model_of(5, 0);
    const weft_kv_layout one = layout_of(&only, WEFT_BF16, 64);
    ck_assert_int_eq(weft_kv_pages_for(&only, &one, w, 1000, 512), 0);
    ck_assert_int_eq(weft_kv_bytes_for(&only, &one, 65, 512),
                     2 * one.page_bytes[WEFT_FULL]);
}
END_TEST

/* Against every smaller slab there is. */
START_TEST(slab_is_the_smallest_below_the_waste_limit)
{
    for (uint64_t seed = 0; seed < 300; seed++) {
        weft_model_config config =
            model_of((int32_t)(weft_rng_u64(seed, 0) % 5) + 1,
                     (int32_t)(weft_rng_u64(seed, 1) % 9) + 1);
        for (int k = 0; k < WEFT_KINDS; k++) {
            const uint64_t at = 2 + (uint64_t)k;
            config.geometry[k].kv_lora_rank =
                (int32_t)(weft_rng_u64(seed, at) % 60) + 1;
            config.geometry[k].qk_rope_head_dim = 2;
        }
        const weft_kv_layout layout = layout_of(&config, WEFT_BF16, 1);
        const int64_t a = layout.page_bytes[0], b = layout.page_bytes[1];
        int64_t slab = 1;
        double waste = 1.0;
        for (;; slab++) {
            const int64_t tail = slab % a > slab % b ? slab % a : slab % b;
            waste = (double)tail / (double)slab;
            if (waste < 0.025) break;
        }
        ck_assert_int_eq(layout.slab_bytes, slab);
        ck_assert_double_eq_tol(layout.waste, waste, 1e-12);
        for (int k = 0; k < WEFT_KINDS; k++)
            ck_assert_int_eq(layout.slab_pages[k], slab / layout.page_bytes[k]);
    }
    const weft_model_config real = dots3();
    const weft_kv_layout layout = layout_of(&real, WEFT_BF16, 64);
    ck_assert_int_eq(layout.slab_pages[WEFT_FULL], 4);
    ck_assert_int_eq(layout.slab_pages[WEFT_WINDOW], 1);
}
END_TEST

START_TEST(one_kind_takes_one_page_a_slab)
{
    for (int k = 0; k < WEFT_KINDS; k++) {
        const weft_model_config config =
            model_of(k == 0 ? 7 : 0, k == 0 ? 0 : 7);
        const weft_kv_layout layout = layout_of(&config, WEFT_F32, 16);
        ck_assert_int_eq(layout.slab_bytes, layout.page_bytes[k]);
        ck_assert_int_eq(layout.slab_pages[k], 1);
        ck_assert_int_eq(layout.slab_pages[1 - k], 0);
        ck_assert_int_eq(layout.page_bytes[1 - k], 0);
        ck_assert_double_eq(layout.waste, 0.0);
    }
}
END_TEST

static void mark(unsigned char *page, int64_t from, int64_t bytes)
{
    for (int64_t i = from; i < from + bytes; i++) {
        ck_assert_int_eq(page[i], 0);
        page[i] = 1;
    }
}

/* Every byte of a page belongs to exactly one row. */
START_TEST(layers_tile_a_page)
{
    weft_model_config config = dots3();
    for (int k = 0; k < WEFT_KINDS; k++) {
        config.geometry[k].kv_lora_rank = 5 + k;
        config.geometry[k].qk_rope_head_dim = 2;
    }
    config.index_head_dim = 3;
    for (int32_t tokens = 1; tokens <= 64; tokens *= 4) {
        const weft_kv_layout layout = layout_of(&config, WEFT_BF16, tokens);
        for (int k = 0; k < WEFT_KINDS; k++) {
            const int64_t bytes = layout.page_bytes[k];
            unsigned char *const page = weft_mem_new((size_t)bytes, 1);
            for (int32_t l = 0; l < config.n_layer; l++) {
                if (config.kind[l] != (weft_kind)k) continue;
                mark(page, layout.layer_offset[l],
                     tokens * layout.row_bytes[k]);
                ck_assert((layout.index_offset[l] >= 0) == (k == WEFT_FULL));
                if (k == WEFT_FULL)
                    mark(page, layout.index_offset[l],
                         tokens * layout.index_row_bytes);
            }
            for (int64_t i = 0; i < bytes; i++) ck_assert_int_eq(page[i], 1);
            weft_mem_free(page);
        }
    }
}
END_TEST

START_TEST(bad_layouts_are_refused)
{
    weft_model_config config = dots3();
    weft_kv_layout layout;
    weft_err err = {0};
    static const int32_t pages[] = {INT32_MIN, -1, 0, 65537, INT32_MAX};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        ck_assert_int_eq(
            weft_kv_layout_make(&config, WEFT_BF16, pages[i], &layout, &err),
            WEFT_INVALID_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(err.text, "page_tokens"));
        ck_assert_ptr_nonnull(strstr(err.text, "65536"));
    }
    ck_assert_int_eq(weft_kv_layout_make(&config, WEFT_F16, 64, &layout, &err),
                     WEFT_INVALID_ARGUMENT);
    config.n_kind[WEFT_FULL]++;
    ck_assert_int_eq(weft_kv_layout_make(&config, WEFT_BF16, 64, &layout, &err),
                     WEFT_INVALID_ARGUMENT);
    /* 512 layers of the widest rows fit in pages of 1024, not of 65536. */
    config = model_of(256, 256);
    for (int k = 0; k < WEFT_KINDS; k++)
        config.geometry[k].kv_lora_rank = INT32_MAX - 64 * (k + 1);
    config.dsa = true;
    config.index_head_dim = INT32_MAX;
    ck_assert_int_eq(
        weft_kv_layout_make(&config, WEFT_F32, 65536, &layout, &err),
        WEFT_INVALID_ARGUMENT);
    layout = layout_of(&config, WEFT_F32, 1024);
    ck_assert_int_eq(layout.token_bytes[WEFT_FULL],
                     256LL * 4 * (INT32_MAX - 64LL + 64 + INT32_MAX));
    ck_assert_int_eq(weft_kv_bytes_for(&config, &layout, INT64_MAX, 1),
                     INT64_MAX);
}
END_TEST

/* ---- the pool ----------------------------------------------------------- */

static weft_kv_layout small_layout(int32_t full_pages, int32_t window_pages)
{
    weft_kv_layout layout = {.page_tokens = 4, .slab_bytes = 840};
    layout.slab_pages[WEFT_FULL] = full_pages;
    layout.slab_pages[WEFT_WINDOW] = window_pages;
    if (full_pages > 0) layout.page_bytes[WEFT_FULL] = 840 / full_pages;
    if (window_pages > 0) layout.page_bytes[WEFT_WINDOW] = 840 / window_pages;
    layout.index_token_bytes = 3;
    return layout;
}

static weft_kv_pool *pool_of(const weft_kv_layout *layout, int64_t slabs)
{
    weft_kv_pool *pool = NULL;
    ck_assert_int_eq(
        weft_kv_pool_create(layout, slabs * 840 + 839, &pool, NULL), WEFT_OK);
    return pool;
}

/* What is in use, as a plain list, and every answer by looking through it. */
enum { ORACLE_MAX = 4096, SLABS_MAX = 16 };
typedef struct oracle {
    const weft_kv_layout *layout;
    int64_t slabs;
    int n;
    weft_kind kind[ORACLE_MAX];
    int64_t offset[ORACLE_MAX];
} oracle;

static int64_t oracle_pages(const oracle *o, int64_t slab, int k)
{
    int64_t n = 0;
    for (int i = 0; i < o->n; i++)
        n += o->kind[i] == (weft_kind)k && o->offset[i] / 840 == slab;
    return n;
}

/* Give slabs of nobody out, one after the other, until it is enough or all. */
static bool oracle_can(const oracle *o, const int64_t n[WEFT_KINDS])
{
    int64_t left[WEFT_KINDS] = {n[0], n[1]}, empty = 0;
    for (int64_t s = 0; s < o->slabs; s++) {
        bool used = false;
        for (int k = 0; k < WEFT_KINDS; k++) {
            const int64_t pages = oracle_pages(o, s, k);
            if (pages == 0) continue;
            used = true;
            left[k] -= o->layout->slab_pages[k] - pages;
        }
        empty += !used;
    }
    for (int k = 0; k < WEFT_KINDS; k++)
        for (; left[k] > 0 && empty > 0 && o->layout->slab_pages[k] > 0;
             empty--)
            left[k] -= o->layout->slab_pages[k];
    return left[0] <= 0 && left[1] <= 0;
}

static void oracle_add(oracle *o, weft_kind kind, int64_t offset)
{
    const int64_t bytes = o->layout->page_bytes[kind];
    ck_assert_int_ge(offset, 0);
    ck_assert_int_lt(offset / 840, o->slabs);
    ck_assert_int_eq(offset % 840 % bytes, 0);
    ck_assert_int_le(offset % 840 + bytes, 840);
    for (int i = 0; i < o->n; i++) {
        const int64_t end = o->offset[i] + o->layout->page_bytes[o->kind[i]];
        ck_assert(offset + bytes <= o->offset[i] || end <= offset);
        ck_assert(o->kind[i] == kind || o->offset[i] / 840 != offset / 840);
    }
    o->kind[o->n] = kind;
    o->offset[o->n++] = offset;
}

static void oracle_compare(const oracle *o, const weft_kv_pool *pool)
{
    weft_kv_stats stats;
    weft_kv_pool_get_stats(pool, &stats);
    int64_t n[WEFT_KINDS] = {0}, held[WEFT_KINDS] = {0}, empty = 0;
    for (int64_t s = 0; s < o->slabs; s++) {
        bool used = false;
        for (int k = 0; k < WEFT_KINDS; k++) {
            const int64_t pages = oracle_pages(o, s, k);
            n[k] += pages;
            held[k] += pages > 0 ? o->layout->slab_pages[k] - pages : 0;
            used |= pages > 0;
        }
        empty += !used;
    }
    const int64_t *const bytes = o->layout->page_bytes;
    ck_assert_int_eq(stats.slabs, o->slabs);
    ck_assert_int_eq(stats.slabs_free, empty);
    for (int k = 0; k < WEFT_KINDS; k++) {
        ck_assert_int_eq(stats.pages_used[k], n[k]);
        ck_assert_int_eq(stats.pages_free[k], held[k]);
    }
    ck_assert_int_eq(stats.index_used_bytes, n[0] * 4 * 3);
    ck_assert_int_eq(stats.used_bytes[0], n[0] * (bytes[0] - INT64_C(4) * 3));
    ck_assert_int_eq(stats.used_bytes[1], n[1] * bytes[1]);
    ck_assert_int_eq(stats.total_bytes, o->slabs * 840);
    ck_assert_int_eq(stats.free_bytes,
                     stats.total_bytes - n[0] * bytes[0] - n[1] * bytes[1]);
    weft_kv_pool_check(pool);
}

static void oracle_alloc(oracle *o, weft_kv_pool *pool, weft_kind kind,
                         int32_t n)
{
    int64_t offsets[ORACLE_MAX], want[WEFT_KINDS] = {0};
    want[kind] = n;
    const bool can = oracle_can(o, want);
    ck_assert_int_eq(weft_kv_pool_can(pool, want), can);
    ck_assert_int_eq(weft_kv_pool_alloc(pool, kind, n, offsets),
                     can ? WEFT_OK : WEFT_RESOURCE_EXHAUSTED);
    for (int32_t i = 0; can && i < n; i++) oracle_add(o, kind, offsets[i]);
}

static void oracle_release(oracle *o, weft_kv_pool *pool, int i)
{
    weft_kv_pool_release(pool, o->kind[i], o->offset[i]);
    o->kind[i] = o->kind[--o->n];
    o->offset[i] = o->offset[o->n];
}

static void walk(uint64_t seed)
{
    static oracle o;
    static const int32_t shapes[][2] = {{1, 1}, {4, 1}, {7, 3},  {1, 6},
                                        {5, 0}, {0, 4}, {14, 15}};
    const int32_t *const shape =
        shapes[seed % (sizeof shapes / sizeof *shapes)];
    const weft_kv_layout layout = small_layout(shape[0], shape[1]);
    memset(&o, 0, sizeof o);
    o.layout = &layout;
    o.slabs = 2 + (int64_t)(weft_rng_u64(seed, 0) % (SLABS_MAX - 2));
    weft_kv_pool *const pool = pool_of(&layout, o.slabs);
    for (uint64_t step = 1; step < 300; step++) {
        const uint64_t r = weft_rng_u64(seed, step);
        const weft_kind kind = (weft_kind)(r >> 8 & 1);
        const int64_t both[WEFT_KINDS] = {(int64_t)(r >> 16 & 31),
                                          (int64_t)(r >> 24 & 31)};
        ck_assert_int_eq(weft_kv_pool_can(pool, both), oracle_can(&o, both));
        /* Phases that fill and phases that drain. */
        const bool fill = r % 10 < (step / 40 % 2 == 0 ? 7U : 3U);
        if (fill && layout.slab_pages[kind] > 0)
            oracle_alloc(&o, pool, kind, (int32_t)(r >> 32 & 7));
        else if (!fill && o.n > 0)
            oracle_release(&o, pool, (int)((r >> 32) % (uint64_t)o.n));
        oracle_compare(&o, pool);
    }
    while (o.n > 0) oracle_release(&o, pool, o.n / 2);
    oracle_compare(&o, pool);
    weft_kv_pool_destroy(pool);
}

START_TEST(pool_agrees_with_an_oracle)
{
    for (uint64_t seed = 0; seed < 70; seed++) walk(seed);
}
END_TEST

START_TEST(could_is_about_an_empty_pool)
{
    const weft_kv_layout layout = small_layout(7, 3);
    weft_kv_pool *const pool = pool_of(&layout, 5);
    oracle o = {.layout = &layout, .slabs = 5};
    int64_t offsets[20];
    ck_assert_int_eq(weft_kv_pool_alloc(pool, WEFT_FULL, 20, offsets), WEFT_OK);
    for (int64_t a = 0; a < 40; a++)
        for (int64_t b = 0; b < 20; b++) {
            const int64_t n[WEFT_KINDS] = {a, b};
            ck_assert_int_eq(weft_kv_pool_could(pool, n), oracle_can(&o, n));
        }
    const int64_t huge[WEFT_KINDS] = {INT64_MAX, INT64_MAX};
    ck_assert(!weft_kv_pool_could(pool, huge));
    ck_assert(!weft_kv_pool_can(pool, huge));
    for (int i = 0; i < 20; i++)
        weft_kv_pool_release(pool, WEFT_FULL, offsets[i]);
    weft_kv_pool_destroy(pool);
}
END_TEST

/* Every second page free, and a request for half the pool is served. */
START_TEST(scattered_pages_serve)
{
    const weft_kv_layout layout = small_layout(7, 3);
    weft_kv_pool *const pool = pool_of(&layout, 10);
    int64_t offsets[70], more[35];
    ck_assert_int_eq(weft_kv_pool_alloc(pool, WEFT_FULL, 70, offsets), WEFT_OK);
    for (int i = 0; i < 70; i += 2)
        weft_kv_pool_release(pool, WEFT_FULL, offsets[i]);
    const int64_t one[WEFT_KINDS] = {0, 1};
    ck_assert(!weft_kv_pool_can(pool, one));
    ck_assert_int_eq(weft_kv_pool_alloc(pool, WEFT_FULL, 36, more),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_int_eq(weft_kv_pool_alloc(pool, WEFT_FULL, 35, more), WEFT_OK);
    weft_kv_pool_check(pool);
    for (int i = 0; i < 35; i++) weft_kv_pool_release(pool, WEFT_FULL, more[i]);
    for (int i = 1; i < 70; i += 2)
        weft_kv_pool_release(pool, WEFT_FULL, offsets[i]);
    weft_kv_pool_destroy(pool);
}
END_TEST

/* Offsets past 2^31 and 2^32 stay whole. */
START_TEST(offsets_are_64_bits_wide)
{
    const weft_model_config config = dots3();
    const weft_kv_layout layout = layout_of(&config, WEFT_BF16, 64);
    weft_kv_pool *pool = NULL;
    const int64_t slabs = 4000;
    ck_assert_int_eq(
        weft_kv_pool_create(&layout, slabs * layout.slab_bytes, &pool, NULL),
        WEFT_OK);
    static int64_t offsets[16000];
    ck_assert_int_eq(weft_kv_pool_alloc(pool, WEFT_FULL, 16000, offsets),
                     WEFT_OK);
    int64_t largest = 0;
    for (int i = 0; i < 16000; i++)
        largest = offsets[i] > largest ? offsets[i] : largest;
    ck_assert_int_eq(largest, (slabs - 1) * layout.slab_bytes +
                                  3 * layout.page_bytes[WEFT_FULL]);
    ck_assert_int_gt(largest, 1LL << 34);
    for (int i = 0; i < 16000; i++)
        weft_kv_pool_release(pool, WEFT_FULL, offsets[i]);
    weft_kv_pool_check(pool);
    weft_kv_pool_destroy(pool);
}
END_TEST

/* True if `act` ends its process by abort. */
static bool panics(void (*act)(weft_kv_pool *pool, int64_t page),
                   weft_kv_pool *pool, int64_t page)
{
    const pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        (void)!freopen("/dev/null", "w", stderr);
        act(pool, page);
        _exit(0);
    }
    int state = 0;
    ck_assert_int_eq(waitpid(pid, &state, 0), pid);
    return WIFSIGNALED(state) && WTERMSIG(state) == SIGABRT;
}

static void release_once(weft_kv_pool *pool, int64_t page)
{
    weft_kv_pool_release(pool, WEFT_FULL, page);
}
static void release_twice(weft_kv_pool *pool, int64_t page)
{
    weft_kv_pool_release(pool, WEFT_FULL, page);
    weft_kv_pool_release(pool, WEFT_FULL, page);
}
static void release_as_window(weft_kv_pool *pool, int64_t page)
{
    weft_kv_pool_release(pool, WEFT_WINDOW, page);
}
static void destroy_used(weft_kv_pool *pool, int64_t page)
{
    (void)page;
    weft_kv_pool_destroy(pool);
}

START_TEST(double_release_panics)
{
    const weft_kv_layout layout = small_layout(7, 3);
    weft_kv_pool *const pool = pool_of(&layout, 4);
    int64_t pages[2];
    ck_assert_int_eq(weft_kv_pool_alloc(pool, WEFT_FULL, 2, pages), WEFT_OK);
    ck_assert(!panics(release_once, pool, pages[0]));
    ck_assert(panics(release_twice, pool, pages[0]));
    ck_assert(panics(release_as_window, pool, pages[0]));
    ck_assert(panics(destroy_used, pool, 0));
    ck_assert(panics(release_once, pool, pages[0] + 1));
    ck_assert(panics(release_once, pool, -840));
    ck_assert(panics(release_once, pool, INT64_C(4) * 840));
    /* Neither a page of a slab that nobody has, nor one never handed out. */
    ck_assert(panics(release_once, pool, INT64_C(3) * 840));
    ck_assert(panics(release_once, pool, pages[0] + INT64_C(3) * 120));
    for (int i = 0; i < 2; i++) weft_kv_pool_release(pool, WEFT_FULL, pages[i]);
    ck_assert(panics(release_once, pool, pages[0]));
    weft_kv_pool_destroy(pool);
    weft_kv_pool_destroy(NULL);
}
END_TEST

START_TEST(too_small_a_budget_is_refused)
{
    const weft_kv_layout both = small_layout(7, 3), one = small_layout(1, 0);
    weft_kv_pool *pool = NULL;
    weft_err err = {0};
    static const int64_t small[] = {INT64_MIN, -1, 0, 839, 1679};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        ck_assert_int_eq(weft_kv_pool_create(&both, small[i], &pool, &err),
                         WEFT_RESOURCE_EXHAUSTED);
        char given[32];
        (void)snprintf(given, sizeof given, "%lld", (long long)small[i]);
        ck_assert_ptr_nonnull(strstr(err.text, "1680"));
        ck_assert_ptr_nonnull(strstr(err.text, given));
        ck_assert_ptr_null(pool);
    }
    ck_assert_int_eq(weft_kv_pool_create(&one, 839, &pool, &err),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_int_eq(weft_kv_pool_create(&one, 840, &pool, &err), WEFT_OK);
    weft_kv_pool_destroy(pool);
}
END_TEST

START_TEST(no_memory_is_an_error)
{
    const weft_kv_layout layout = small_layout(7, 3);
    weft_kv_pool *pool = NULL;
    weft_err err = {0};
    long n = 0;
    for (;; n++) {
        weft_mem_fail_after(n);
        const weft_status st = weft_kv_pool_create(&layout, 8400, &pool, &err);
        weft_mem_fail_after(-1);
        if (st == WEFT_OK) break;
        ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
        ck_assert_int_eq(weft_mem_live(), 0);
        ck_assert_ptr_null(pool);
    }
    ck_assert_int_gt(n, 1);
    /* After create nothing allocates. */
    weft_mem_fail_after(0);
    int64_t pages[30];
    ck_assert_int_eq(weft_kv_pool_alloc(pool, WEFT_WINDOW, 30, pages), WEFT_OK);
    for (int i = 0; i < 30; i++)
        weft_kv_pool_release(pool, WEFT_WINDOW, pages[i]);
    weft_mem_fail_after(-1);
    weft_kv_pool_destroy(pool);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {bytes_of_a_sequence_are_exact,
                                  pages_of_a_window_are_capped,
                                  slab_is_the_smallest_below_the_waste_limit,
                                  one_kind_takes_one_page_a_slab,
                                  layers_tile_a_page,
                                  bad_layouts_are_refused,
                                  pool_agrees_with_an_oracle,
                                  could_is_about_an_empty_pool,
                                  scattered_pages_serve,
                                  offsets_are_64_bits_wide,
                                  double_release_panics,
                                  too_small_a_budget_is_refused,
                                  no_memory_is_an_error};
    return WEFT_SUITE_RUN("kv", tests);
}
