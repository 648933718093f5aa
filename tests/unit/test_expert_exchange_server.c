/* Layers whose experts are computed by expert shards give the bits that one
 * process gives: all fixtures, 1 to 5 shards, one and two replicas, one and two
 * lanes at once, within the process and over TCP. */
#include <stdio.h>

#include "node/base/clock.h"
#include "tests/support/expect.h"
#include "tests/support/pool.h"
#include "tests/support/suite.h"

#define FIXTURES "tests/data/fixtures/"

static const char *const CASES[] = {
    "dots3-mixed", "dots3-defaults", "dots3-groups", "dots3-dense",
    "dots3-fp8",   "v2-lite",        "v2-mscale",    "v2-groups",
    "v3",          "v3-fp8",         "v32"};
enum { N_CASES = sizeof CASES / sizeof CASES[0] };
static const int32_t SHARDS[] = {1, 2, 3, 5};

static void path_of(const char *name, char path[256])
{
    (void)snprintf(path, 256, FIXTURES "%s", name);
}

static void check_bits(const char *dir, weft_profile profile,
                       const pool_results *want, int32_t n_shards,
                       int32_t n_replicas)
{
    const pool_options options = {.n_shards = n_shards};
    pool *const p = pool_open(dir, profile, &options);
    pool_heard heard = {0};
    weft_exchange *const exchange = pool_exchange(p, NULL, &heard);
    split_model *const m = pool_model(dir, profile, exchange);
    pool_results got = pool_results_make(&p->config);
    weft_expert_map *const map =
        pool_map(p, 1, n_replicas, (1U << n_shards) - 1, 0);
    weft_exchange_set_map(exchange, map);
    weft_expert_map_release(map);
    for (int32_t cut = 0; cut < 8; cut += 7) {
        pool_run run = {.cut = cut, .heard = &heard};
        OK(pool_compute(m, exchange, &run, &got, &err));
        ck_assert_int_eq(run.n_failed + run.n_unavailable, 0);
        pool_expect_same(want, &got, dir, n_shards * 10 + n_replicas);
    }
    weft_exchange_state state;
    weft_exchange_get_state(exchange, &state);
    ck_assert(state.whole && state.epoch == 1 && state.map_epoch == 1);
    ck_assert_uint_eq(
        state.n_stale + state.n_resent + state.n_fenced + state.n_garbage, 0);
    uint64_t served = 0;
    for (int32_t i = 0; i < n_shards; i++) {
        weft_expert_server_stats stats;
        weft_expert_server_get_stats(p->shards[i].server, &stats);
        ck_assert_uint_gt(stats.rows, 0);
        ck_assert_uint_eq(stats.rejected, 0);
        ck_assert_uint_eq(stats.last_epoch, 1);
        served += stats.rows;
    }
    ck_assert_int_eq((int64_t)served, heard.n_routed);
    ck_assert_uint_gt(heard.exchanged_bytes,
                      2 * served * (uint64_t)p->config.hidden_size);
    ck_assert_int_eq(heard.n_switched, 1);
    ck_assert_int_eq(heard.n_suspects, 0);
    pool_results_drop(&got);
    pool_model_close(m);
    weft_exchange_destroy(exchange);
    pool_close(p);
}

START_TEST(all_models)
{
    char dir[256];
    path_of(CASES[_i], dir);
    for (weft_profile profile = WEFT_EXACT; profile <= WEFT_PROFILE_BF16;
         profile++) {
        pool_results want = pool_reference(dir, profile);
        check_bits(dir, profile, &want, 2 + _i % 2, 1 + _i % 2);
        pool_results_drop(&want);
    }
}
END_TEST

START_TEST(any_number_of_shards)
{
    char dir[256];
    path_of("dots3-mixed", dir);
    pool_results want = pool_reference(dir, WEFT_EXACT);
    for (int32_t replicas = 1; replicas <= 2; replicas++)
        check_bits(dir, WEFT_EXACT, &want, SHARDS[_i], replicas);
    pool_results_drop(&want);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_loop_test(tests, all_models, 0, N_CASES);
    tcase_add_loop_test(tests, any_number_of_shards, 0, 4);
}

int main(void)
{
    return weft_suite_run_added("expert exchange and server", add);
}
