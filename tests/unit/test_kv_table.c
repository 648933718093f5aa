#include <string.h>

#include "node/base/mem.h"
#include "node/base/rng.h"
#include "shard/kv/table.h"
#include "tests/support/suite.h"

enum { POSITIONS_MAX = 600 };

/* One full and one window layer; a row of either is `width` values. */
static weft_model_config model_of(int32_t window)
{
    weft_model_config config = {.n_layer = 2, .end_layer = 2, .window = window};
    config.kind[1] = WEFT_WINDOW;
    for (int k = 0; k < WEFT_KINDS; k++) {
        config.n_kind[k] = 1;
        config.geometry[k].kv_lora_rank = 6 + 8 * k;
        config.geometry[k].qk_rope_head_dim = 2;
    }
    return config;
}

static weft_kv_layout layout_of(const weft_model_config *config,
                                int32_t page_tokens)
{
    weft_kv_layout layout;
    ck_assert_int_eq(
        weft_kv_layout_make(config, WEFT_F32, page_tokens, &layout, NULL),
        WEFT_OK);
    return layout;
}

static weft_kv_pool *pool_of(const weft_kv_layout *layout, int64_t slabs)
{
    weft_kv_pool *pool = NULL;
    ck_assert_int_eq(
        weft_kv_pool_create(layout, slabs * layout->slab_bytes, &pool, NULL),
        WEFT_OK);
    return pool;
}

static weft_kv_space space_of(const weft_kv_layout *layout, weft_kv_pool *pool)
{
    return (weft_kv_space){.layout = *layout, .pool = pool};
}

static weft_kv_table table_of(const weft_kv_spaces *spaces)
{
    weft_kv_table table;
    ck_assert_int_eq(weft_kv_table_init(&table, spaces, POSITIONS_MAX, NULL),
                     WEFT_OK);
    return table;
}

static int64_t pages_of(int64_t tokens, int32_t page_tokens)
{
    return (tokens + page_tokens - 1) / page_tokens;
}

/* The pages that the callback hears of, which must be held at that moment. */
typedef struct heard {
    const weft_kv_table *table;
    int n[WEFT_KINDS];
} heard;

static void note(void *arg, weft_kind kind, int64_t offset)
{
    heard *const it = arg;
    it->n[kind]++;
    bool held = false;
    for (int32_t p = 0; p < it->table->n_pages[kind]; p++)
        held |= it->table->offsets[kind][p] == offset;
    ck_assert(held);
}

/* Every entry against the definition: a full page is held if it has a position
 * below n_tokens; a window page if moreover some query from `next` on sees one
 * of its positions. */
static void check_table(const weft_kv_table *table, int32_t window,
                        int32_t page_tokens, int64_t n_tokens, int64_t next)
{
    int wrong = 0; /* one assertion a page would take minutes */
    for (int32_t p = 0; p < table->max_pages; p++) {
        const bool written = (int64_t)p * page_tokens < n_tokens;
        const int64_t last = (int64_t)(p + 1) * page_tokens - 1;
        const bool seen = written && last >= next - window + 1;
        wrong += (table->offsets[WEFT_FULL][p] >= 0) != written;
        wrong += (table->offsets[WEFT_WINDOW][p] >= 0) != seen;
    }
    ck_assert_int_eq(wrong, 0);
}

static void roll(int32_t window, int32_t page_tokens, int32_t chunk)
{
    const weft_model_config config = model_of(window);
    const weft_kv_layout layout = layout_of(&config, page_tokens);
    weft_kv_pool *const pool = pool_of(&layout, 2000);
    weft_kv_space space = space_of(&layout, pool);
    const weft_kv_spaces spaces = {.n = 1, .at = &space};
    weft_kv_table table = table_of(&spaces);
    heard seen = {.table = &table};
    const int64_t cap =
        weft_kv_pages_for(&config, &layout, WEFT_WINDOW, POSITIONS_MAX, chunk);
    for (int64_t next = 0; next < POSITIONS_MAX; next += chunk) {
        int64_t end = next + chunk;
        if (end > POSITIONS_MAX) end = POSITIONS_MAX;
        ck_assert_int_eq(weft_kv_table_grow(&table, &spaces, end), WEFT_OK);
        check_table(&table, window, page_tokens, end, next);
        weft_kv_stats stats;
        weft_kv_pool_get_stats(pool, &stats);
        ck_assert_int_le(stats.pages_used[WEFT_WINDOW], cap);
        ck_assert_int_eq(stats.pages_used[WEFT_FULL],
                         pages_of(end, page_tokens));
        weft_kv_table_trim(&table, &config, &spaces, end, note, &seen);
        check_table(&table, window, page_tokens, end, end);
    }
    weft_kv_pool_check(pool);
    ck_assert_int_eq(seen.n[WEFT_FULL], 0);
    weft_kv_table_clear(&table, &spaces, note, &seen);
    const int64_t all = pages_of(POSITIONS_MAX, page_tokens);
    ck_assert_int_eq(seen.n[WEFT_FULL], all);
    ck_assert_int_eq(seen.n[WEFT_WINDOW], all);
    check_table(&table, window, page_tokens, 0, 0);
    weft_kv_table_deinit(&table);
    weft_kv_pool_destroy(pool); /* panics unless all pages are back */
}

START_TEST(window_pages_leave_at_the_border)
{
    static const int32_t pages[] = {1, 4, 64};
    static const int32_t windows[] = {1,  2,  3,  4,  5,   7,   8,   9,
                                      63, 64, 65, 66, 127, 128, 129, 513};
    static const int32_t chunks[] = {1, 3, 4, 5, 16, 64, 65, 600};
    for (size_t p = 0; p < sizeof pages / sizeof *pages; p++)
        for (size_t w = 0; w < sizeof windows / sizeof *windows; w++)
            for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++)
                roll(windows[w], pages[p], chunks[c]);
}
END_TEST

/* Page 4, window 5: the query at 8 sees 4 to 8, so page 0 goes at 8 and not at
 * 7, when position 3 is still seen. */
START_TEST(one_border_by_hand)
{
    const weft_model_config config = model_of(5);
    const weft_kv_layout layout = layout_of(&config, 4);
    weft_kv_pool *const pool = pool_of(&layout, 40);
    weft_kv_space space = space_of(&layout, pool);
    const weft_kv_spaces spaces = {.n = 1, .at = &space};
    weft_kv_table table = table_of(&spaces);
    ck_assert_int_eq(weft_kv_table_grow(&table, &spaces, 12), WEFT_OK);
    weft_kv_table_trim(&table, &config, &spaces, 7, NULL, NULL);
    ck_assert_int_ge(table.offsets[WEFT_WINDOW][0], 0);
    weft_kv_table_trim(&table, &config, &spaces, 8, NULL, NULL);
    ck_assert_int_eq(table.offsets[WEFT_WINDOW][0], -1);
    ck_assert_int_ge(table.offsets[WEFT_WINDOW][1], 0);
    ck_assert_int_eq(table.first_page[WEFT_WINDOW], 1);
    ck_assert_int_eq(table.n_pages[WEFT_WINDOW], 3);
    /* Trimming backwards, or again, changes nothing. */
    weft_kv_table_trim(&table, &config, &spaces, 3, NULL, NULL);
    weft_kv_table_trim(&table, &config, &spaces, 8, NULL, NULL);
    ck_assert_int_eq(table.first_page[WEFT_WINDOW], 1);
    /* Far past the end: pages that were never had are not released. */
    weft_kv_table_trim(&table, &config, &spaces, 590, NULL, NULL);
    ck_assert_int_eq(table.first_page[WEFT_WINDOW], 3);
    ck_assert_int_eq(table.first_page[WEFT_FULL], 0);
    weft_kv_table_clear(&table, &spaces, NULL, NULL);
    weft_kv_table_deinit(&table);
    weft_kv_pool_destroy(pool);
}
END_TEST

START_TEST(need_counts_what_is_missing)
{
    const weft_model_config config = model_of(5);
    const weft_kv_layout layout = layout_of(&config, 4);
    weft_kv_pool *const pool = pool_of(&layout, 40);
    weft_kv_space space = space_of(&layout, pool);
    const weft_kv_spaces spaces = {.n = 1, .at = &space};
    weft_kv_table table = table_of(&spaces);
    int64_t need[WEFT_KINDS];
    static const int64_t golden[][2] = {{0, 0}, {1, 1}, {4, 1},
                                        {5, 2}, {8, 2}, {9, 3}};
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        weft_kv_table_need(&table, &spaces, golden[i][0], need);
        ck_assert_int_eq(need[WEFT_FULL], golden[i][1]);
        ck_assert_int_eq(need[WEFT_WINDOW], golden[i][1]);
    }
    ck_assert_int_eq(weft_kv_table_grow(&table, &spaces, 6), WEFT_OK);
    weft_kv_table_need(&table, &spaces, 8, need);
    ck_assert_int_eq(need[WEFT_FULL] + need[WEFT_WINDOW], 0);
    weft_kv_table_need(&table, &spaces, 9, need);
    ck_assert_int_eq(need[WEFT_FULL], 1);
    weft_kv_table_need(&table, &spaces, 2, need);
    ck_assert_int_eq(need[WEFT_FULL], 0);
    weft_kv_table_clear(&table, &spaces, NULL, NULL);
    weft_kv_table_deinit(&table);
    weft_kv_pool_destroy(pool);
}
END_TEST

/* The full pages could be had, the window pages not: none is taken. */
START_TEST(grow_takes_both_kinds_or_none)
{
    const weft_model_config config = model_of(600);
    const weft_kv_layout layout = layout_of(&config, 4);
    for (int64_t slabs = 2; slabs < 60; slabs++) {
        weft_kv_pool *const pool = pool_of(&layout, slabs);
        weft_kv_space space = space_of(&layout, pool);
        const weft_kv_spaces spaces = {.n = 1, .at = &space};
        weft_kv_table table = table_of(&spaces);
        int64_t n = 0;
        while (weft_kv_table_grow(&table, &spaces, n + 1) == WEFT_OK) n++;
        ck_assert_int_gt(n, 0);
        check_table(&table, 600, 4, n, n);
        int64_t pages[WEFT_KINDS] = {pages_of(n, 4), pages_of(n, 4)};
        ck_assert(weft_kv_pool_could(pool, pages));
        pages[0] = pages[1] = pages_of(n + 1, 4);
        ck_assert(!weft_kv_pool_could(pool, pages));
        /* A jump past what is left takes nothing either. */
        ck_assert_int_eq(weft_kv_table_grow(&table, &spaces, n + 9),
                         WEFT_RESOURCE_EXHAUSTED);
        check_table(&table, 600, 4, n, n);
        weft_kv_pool_check(pool);
        weft_kv_table_clear(&table, &spaces, NULL, NULL);
        weft_kv_table_deinit(&table);
        weft_kv_pool_destroy(pool);
    }
}
END_TEST

/* Two sequences take turns in a pool that window pages pass through many
 * times; no page is ever in both tables. */
START_TEST(pages_go_round)
{
    const weft_model_config config = model_of(16);
    const weft_kv_layout layout = layout_of(&config, 4);
    for (uint64_t seed = 0; seed < 10; seed++) {
        weft_kv_pool *const pool = pool_of(&layout, 150);
        weft_kv_space space = space_of(&layout, pool);
        const weft_kv_spaces spaces = {.n = 1, .at = &space};
        weft_kv_table tables[2] = {table_of(&spaces), table_of(&spaces)};
        int64_t n[2] = {0, 0}, total = 0;
        for (uint64_t step = 0; total < INT64_C(4) * POSITIONS_MAX; step++) {
            const uint64_t r = weft_rng_u64(seed, step);
            weft_kv_table *const table = &tables[r & 1];
            int64_t *const at = &n[r & 1];
            const int64_t end = *at + 1 + (int64_t)(r >> 8 & 7);
            if (end > POSITIONS_MAX || (r >> 16) % 100 == 0 ||
                weft_kv_table_grow(table, &spaces, end) != WEFT_OK) {
                weft_kv_table_clear(table, &spaces, NULL, NULL);
                *at = 0;
                continue;
            }
            total += end - *at;
            *at = end;
            weft_kv_table_trim(table, &config, &spaces, end, NULL, NULL);
            check_table(table, 16, 4, end, end);
            if (step % 16 == 0) weft_kv_pool_check(pool);
        }
        for (int i = 0; i < 2; i++) {
            weft_kv_table_clear(&tables[i], &spaces, NULL, NULL);
            weft_kv_table_deinit(&tables[i]);
        }
        weft_kv_pool_destroy(pool);
    }
}
END_TEST

START_TEST(a_model_may_lack_a_kind)
{
    for (int k = 0; k < WEFT_KINDS; k++) {
        weft_model_config config = model_of(k == WEFT_WINDOW ? 5 : 0);
        config.n_layer = config.end_layer = 1;
        config.kind[0] = (weft_kind)k;
        config.n_kind[1 - k] = 0;
        const weft_kv_layout layout = layout_of(&config, 4);
        weft_kv_pool *const pool = pool_of(&layout, 40);
        weft_kv_space space = space_of(&layout, pool);
        const weft_kv_spaces spaces = {.n = 1, .at = &space};
        weft_kv_table table = table_of(&spaces);
        ck_assert_ptr_null(table.offsets[1 - k]);
        int64_t need[WEFT_KINDS];
        weft_kv_table_need(&table, &spaces, 30, need);
        ck_assert_int_eq(need[k], 8);
        ck_assert_int_eq(need[1 - k], 0);
        ck_assert_int_eq(weft_kv_table_grow(&table, &spaces, 30), WEFT_OK);
        weft_kv_table_trim(&table, &config, &spaces, 30, NULL, NULL);
        ck_assert_int_eq(table.first_page[k], k == WEFT_WINDOW ? 6 : 0);
        weft_kv_table_clear(&table, &spaces, NULL, NULL);
        weft_kv_table_deinit(&table);
        weft_kv_pool_destroy(pool);
    }
}
END_TEST

START_TEST(no_memory_is_an_error)
{
    const weft_model_config config = model_of(5);
    const weft_kv_layout layout = layout_of(&config, 4);
    weft_kv_pool *const pool = pool_of(&layout, 60);
    weft_kv_space space = space_of(&layout, pool);
    const weft_kv_spaces spaces = {.n = 1, .at = &space};
    weft_kv_table table;
    const long live = weft_mem_live();
    weft_err err = {0};
    long n = 0;
    for (;; n++) {
        weft_mem_fail_after(n);
        const weft_status st = weft_kv_table_init(&table, &spaces, 99, &err);
        weft_mem_fail_after(-1);
        if (st == WEFT_OK) break;
        ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
        ck_assert_int_eq(weft_mem_live(), live);
        ck_assert_uint_gt(strlen(err.text), 0);
    }
    ck_assert_int_eq(n, 2);
    weft_mem_fail_after(0); /* after init nothing allocates */
    ck_assert_int_eq(weft_kv_table_grow(&table, &spaces, 99), WEFT_OK);
    weft_kv_table_trim(&table, &config, &spaces, 99, NULL, NULL);
    weft_kv_table_clear(&table, &spaces, NULL, NULL);
    weft_mem_fail_after(-1);
    weft_kv_table_deinit(&table);
    weft_kv_pool_destroy(pool);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {window_pages_leave_at_the_border,
                                  one_border_by_hand,
                                  need_counts_what_is_missing,
                                  grow_takes_both_kinds_or_none,
                                  pages_go_round,
                                  a_model_may_lack_a_kind,
                                  no_memory_is_an_error};
    return WEFT_SUITE_RUN("kv/table", tests);
}
