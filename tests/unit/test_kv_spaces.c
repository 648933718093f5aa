/* The pages of all stages are taken and given back together. */
#include <string.h>

#include "node/base/mem.h"
#include "node/base/rng.h"
#include "shard/kv/table.h"
#include "tests/support/expect.h"
#include "tests/support/sched_sim.h"
#include "tests/support/suite.h"

enum { POSITIONS_MAX = 200, PAGE = 4, WINDOW = 9 };

/* Six layers that may be cut: f f w w w f, with rows of different widths. */
static weft_model_config whole_model(void)
{
    weft_model_config c = {.n_layer = 6,
                           .end_layer = 6,
                           .n_kind = {3, 3},
                           .window = WINDOW,
                           .hidden_size = 8,
                           .vocab_size = 8,
                           .intermediate_size = 16};
    for (int32_t l = 2; l < 5; l++) c.kind[l] = WEFT_WINDOW;
    for (int k = 0; k < WEFT_KINDS; k++)
        c.geometry[k] = (weft_geometry){.n_head = 2,
                                        .kv_lora_rank = 6 + 8 * k,
                                        .qk_nope_head_dim = 4,
                                        .qk_rope_head_dim = 2,
                                        .v_head_dim = 4};
    return c;
}

/* Three stages: of one kind, of both, of the other. */
typedef struct group {
    weft_model_config config;
    weft_kv_space at[3];
    weft_kv_spaces spaces;
} group;

static void open_group(group *g, const int64_t slabs[3])
{
    static const int32_t kinds[3][WEFT_KINDS] = {{2, 0}, {1, 2}, {0, 1}};
    *g = (group){.spaces = {.n = 3, .at = g->at}};
    for (int32_t s = 0; s < 3; s++) {
        weft_model_config config;
        weft_sim_model(kinds[s][0], kinds[s][1], WINDOW, PAGE, &config,
                       &g->at[s].layout);
        if (s == 1) g->config = config;
        OK(weft_kv_pool_create(&g->at[s].layout,
                               slabs[s] * g->at[s].layout.slab_bytes,
                               &g->at[s].pool, &err));
    }
}

static void close_group(group *g)
{
    for (int32_t s = 0; s < 3; s++) weft_kv_pool_destroy(g->at[s].pool);
}

static int64_t pages_used(const group *g, int32_t s, int k)
{
    weft_kv_stats stats;
    weft_kv_pool_get_stats(g->at[s].pool, &stats);
    return stats.pages_used[k];
}

/* Every stage that has the kind holds as many pages as the table says. */
static void check_group(const group *g, const weft_kv_table *table)
{
    for (int32_t s = 0; s < 3; s++)
        for (int k = 0; k < WEFT_KINDS; k++) {
            const int64_t *const offsets =
                weft_kv_table_offsets(table, s, (weft_kind)k);
            ck_assert_int_eq(offsets != NULL,
                             g->at[s].layout.page_bytes[k] > 0);
            if (offsets == NULL) continue;
            const int32_t held = table->n_pages[k] - table->first_page[k];
            ck_assert_int_eq(pages_used(g, s, k), held);
            for (int32_t p = 0; p < table->max_pages; p++)
                ck_assert_int_eq(offsets[p] >= 0, p >= table->first_page[k] &&
                                                      p < table->n_pages[k]);
        }
    weft_kv_spaces_check(&g->spaces);
}

START_TEST(a_table_is_the_same_in_all_stages)
{
    group g;
    open_group(&g, (const int64_t[]){90, 90, 90});
    weft_kv_table table;
    OK(weft_kv_table_init(&table, &g.spaces, POSITIONS_MAX, &err));
    for (int64_t n = 3; n <= POSITIONS_MAX; n += 7) {
        OK(weft_kv_table_grow(&table, &g.spaces, n));
        check_group(&g, &table);
        weft_kv_table_trim(&table, &g.config, &g.spaces, n, NULL, NULL);
        check_group(&g, &table);
        ck_assert_int_eq(table.first_page[WEFT_WINDOW],
                         n > WINDOW ? (n - WINDOW + 1) / PAGE : 0);
    }
    weft_kv_stats sum;
    weft_kv_spaces_get_stats(&g.spaces, &sum);
    ck_assert_int_eq(sum.pages_used[WEFT_FULL],
                     INT64_C(2) * table.n_pages[WEFT_FULL]);
    ck_assert_int_eq(sum.slabs, INT64_C(3) * 90);
    weft_kv_table_clear(&table, &g.spaces, NULL, NULL);
    check_group(&g, &table);
    weft_kv_spaces_get_stats(&g.spaces, &sum);
    ck_assert_int_eq(sum.slabs_free, sum.slabs);
    ck_assert_int_eq(sum.free_bytes, sum.total_bytes);
    weft_kv_table_deinit(&table);
    close_group(&g);
}
END_TEST

/* Whichever stage is the one that has no more. */
START_TEST(grow_takes_in_all_stages_or_none)
{
    for (int32_t tight = 0; tight < 3; tight++) {
        int64_t slabs[3] = {90, 90, 90};
        slabs[tight] = 5;
        group g;
        open_group(&g, slabs);
        weft_kv_table table;
        OK(weft_kv_table_init(&table, &g.spaces, POSITIONS_MAX, &err));
        int64_t n = 0;
        while (weft_kv_table_grow(&table, &g.spaces, n + 1) == WEFT_OK) n++;
        ck_assert_int_gt(n, 0);
        ck_assert_int_lt(n, POSITIONS_MAX);
        check_group(&g, &table);
        const weft_kv_table before = table;
        ck_assert_int_eq(weft_kv_table_grow(&table, &g.spaces, n + 9),
                         WEFT_RESOURCE_EXHAUSTED);
        ck_assert_mem_eq(&before, &table, sizeof table);
        check_group(&g, &table);
        int64_t pages[WEFT_KINDS] = {(n + PAGE - 1) / PAGE,
                                     (n + PAGE - 1) / PAGE};
        ck_assert_int_eq(weft_kv_spaces_cannot(&g.spaces, pages), -1);
        pages[0] = pages[1] = (n + PAGE) / PAGE + (n + PAGE) % PAGE;
        ck_assert_int_eq(weft_kv_spaces_cannot(&g.spaces, pages), tight);
        weft_kv_table_clear(&table, &g.spaces, NULL, NULL);
        weft_kv_table_deinit(&table);
        close_group(&g);
    }
}
END_TEST

/* A model is cut; each stage has the layout of its own layers. */
START_TEST(spaces_of_a_model)
{
    const weft_model_config whole = whole_model();
    const int64_t bytes[] = {100000, 200000, 300000};
    weft_kv_spaces spaces = {0};
    weft_model_config cut;
    OK(weft_partition_cut(&whole, 3, 0, &cut, &err));
    OK(weft_kv_spaces_init(&spaces, &cut, WEFT_F32, PAGE, bytes, 3, &err));
    int64_t token_bytes = 0;
    for (int32_t s = 0; s < 3; s++) {
        OK(weft_partition_cut(&whole, 3, s, &cut, &err));
        weft_kv_layout layout;
        OK(weft_kv_layout_make(&cut, WEFT_F32, PAGE, &layout, &err));
        ck_assert_mem_eq(&layout, &spaces.at[s].layout, sizeof layout);
        weft_kv_stats stats;
        weft_kv_pool_get_stats(spaces.at[s].pool, &stats);
        ck_assert_int_eq(stats.slabs, bytes[s] / layout.slab_bytes);
        token_bytes += layout.token_bytes[0] + layout.token_bytes[1];
    }
    weft_kv_layout layout;
    OK(weft_kv_layout_make(&whole, WEFT_F32, PAGE, &layout, &err));
    ck_assert_int_eq(token_bytes,
                     layout.token_bytes[0] + layout.token_bytes[1]);
    weft_kv_spaces_deinit(&spaces);
    weft_kv_spaces_deinit(&spaces);
}
END_TEST

START_TEST(errors_name_the_stage)
{
    const weft_model_config whole = whole_model();
    weft_kv_spaces spaces = {0};
    weft_err err = {0};
    const int64_t bytes[] = {100000, 10, 300000};
    ck_assert_int_eq(
        weft_kv_spaces_init(&spaces, &whole, WEFT_F32, PAGE, bytes, 3, &err),
        WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.text, "stage 1 of 3"));
    ck_assert_int_eq(
        weft_kv_spaces_init(&spaces, &whole, WEFT_F32, PAGE, bytes, 0, &err),
        WEFT_INVALID_ARGUMENT);
    ck_assert_int_eq(
        weft_kv_spaces_init(&spaces, &whole, WEFT_F32, 0, bytes, 1, &err),
        WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_null(spaces.at);
    long n = 0;
    for (;; n++) {
        const int64_t much[] = {100000, 100000, 100000};
        weft_mem_fail_after(n);
        const weft_status st =
            weft_kv_spaces_init(&spaces, &whole, WEFT_F32, PAGE, much, 3, &err);
        weft_mem_fail_after(-1);
        if (st == WEFT_OK) break;
        ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
        ck_assert_int_eq(weft_mem_live(), 0);
    }
    ck_assert_int_gt(n, 6);
    weft_kv_spaces_deinit(&spaces);
}
END_TEST

/* The scheduler over several stages, each of which may be the tight one and may
 * lack a kind: it moves, ends, and every page is back. */
START_TEST(the_scheduler_over_stages)
{
    static const int32_t layers[][2] = {{1, 0}, {0, 2}, {2, 1}, {1, 3}};
    int64_t n_preempted = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        weft_sim_options o = {
            .seed = seed,
            .n_full = layers[seed % 4][0],
            .n_window = layers[seed % 4][1],
            .window = 1 + (int32_t)(seed % 11),
            .page_tokens = 1 + (int32_t)(seed / 3 % 4),
            .n_others = 1 + (int32_t)(seed % 2),
            .limits = {.max_seqs = 2 + (int32_t)(seed % 5),
                       .max_waiting = 40,
                       .chunk_tokens = 1 + (int32_t)(seed % 9),
                       .max_context = 60},
            .n_jobs = 30,
            .prompt_max = 40,
            .generate_max = 24,
            .spare_slabs = (int32_t)(seed % 3) * 6,
            .limbo_steps_max = (int32_t)(seed % 4) * 4,
            .arrive_every = (int32_t)(seed / 4 % 3),
            .cancels = seed % 3 == 0,
        };
        for (int32_t i = 0; i < o.n_others; i++) {
            const uint64_t r = weft_rng_u64(seed, (uint64_t)i);
            o.others[i].n_full = layers[r % 4][0];
            o.others[i].n_window = layers[r % 4][1];
            o.others[i].spare_slabs = (int32_t)(r >> 8 & 7);
        }
        weft_sim_result one;
        weft_sim_run(&o, &one);
        ck_assert_int_eq(one.n_stop + one.n_length + one.n_cancelled, o.n_jobs);
        n_preempted += one.n_preempted;
    }
    ck_assert_int_gt(n_preempted, 100);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_table_is_the_same_in_all_stages, grow_takes_in_all_stages_or_none,
        spaces_of_a_model, errors_name_the_stage, the_scheduler_over_stages};
    return WEFT_SUITE_RUN("kv/spaces", tests);
}
