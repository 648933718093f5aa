/* Expert shards on a device: what a store puts there is what a whole model has
 * there, within its budget; a server's answers have the bits of a model that
 * computes its experts itself, of whatever profile, type and company; and a
 * device that fails ends all links and nothing else. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "tests/cuda/simt_faults.h"
#include "tests/support/device_kit.h"
#include "tests/support/expect.h"
#include "tests/support/pool.h"
#include "tests/support/suite.h"

#define FIXTURES "tests/data/fixtures/"

static const char *const MODELS[] = {FIXTURES "dots3-mixed",
                                     FIXTURES "dots3-fp8", FIXTURES "v2-lite"};
static const weft_profile PROFILES[] = {WEFT_EXACT, WEFT_PROFILE_BF16};
enum { N_MODELS = sizeof MODELS / sizeof MODELS[0], N_PROFILES = 2 };

static weft_memory device(void)
{
    const weft_device_api *const api = device_kit_open_scratch(8 << 20);
    return (weft_memory){.api = api, .device = device_kit_device()};
}

/* -- the store ------------------------------------------------------------ */

typedef struct desk {
    weft_memory memory;
    weft_model_config config;
    weft_checkpoint *checkpoint;
    weft_expert_store *store;
} desk;

static desk open_desk(const char *dir, int64_t budget_bytes)
{
    desk d;
    memset(&d, 0, sizeof d);
    d.memory = device();
    OK(weft_model_config_read(dir, NULL, NULL, &d.config, &err));
    OK(weft_checkpoint_open(dir, &d.config, WEFT_PROFILE_BF16, NULL, NULL,
                            &d.checkpoint, &err));
    OK(weft_checkpoint_set_memory(d.checkpoint, &d.memory, &err));
    OK(weft_expert_store_create(&d.config, d.checkpoint, budget_bytes, &d.store,
                                &err));
    return d;
}

static void close_desk(desk *d)
{
    weft_expert_store_destroy(d->store);
    weft_checkpoint_close(d->checkpoint);
    device_kit_close();
}

static int32_t moe_layer(const weft_model_config *c)
{
    int32_t l = 0;
    while (!c->moe[l]) l++;
    return l;
}

static bool same_bytes(const void *a, const void *b, size_t n)
{
    unsigned char *const here = weft_mem_new(n, 2);
    device_kit_get(here, a, n);
    device_kit_get(here + n, b, n);
    const bool same = memcmp(here, here + n, n) == 0;
    weft_mem_free(here);
    return same;
}

static void expect_same_matrix(const weft_matrix *a, const weft_matrix *b)
{
    const size_t n = (size_t)a->n_out * (size_t)a->n_in;
    const size_t blocks =
        (size_t)((a->n_out + 127) / 128) * (size_t)((a->n_in + 127) / 128);
    ck_assert(a->dtype == b->dtype && a->n_out == b->n_out &&
              a->n_in == b->n_in);
    ck_assert(same_bytes(a->data, b->data, n * weft_dtype_bytes(a->dtype)));
    ck_assert((a->scales == NULL) == (b->scales == NULL));
    if (a->scales != NULL)
        ck_assert(same_bytes(a->scales, b->scales, blocks * sizeof(float)));
}

START_TEST(experts_there_are_those_of_a_whole_model)
{
    desk d = open_desk(MODELS[_i], 0);
    weft_model *model = NULL;
    OK(weft_model_load(d.checkpoint, NULL, NULL, &model, &err));
    weft_expert_store_quiesce(d.store, false);
    int64_t n = 0, place = 0;
    for (int32_t l = 0; l < d.config.n_layer; l++) {
        const weft_mlp_weights *const whole =
            weft_model_weights(model)->layers[l].experts;
        for (int32_t e = 0; d.config.moe[l] && e < d.config.n_expert; e++) {
            uint64_t hash = 0;
            OK(weft_expert_store_load(d.store, l, e, &hash, &err));
            const weft_mlp_weights *const w =
                weft_expert_store_get(d.store, l, e);
            expect_same_matrix(&w->gate, &whole[e].gate);
            expect_same_matrix(&w->up, &whole[e].up);
            expect_same_matrix(&w->down, &whole[e].down);
            place = weft_expert_store_bytes_of(d.store, l);
            n++;
        }
    }
    weft_expert_store_stats stats;
    weft_expert_store_get_stats(d.store, &stats);
    ck_assert_int_eq(stats.used_bytes, n * place);
    ck_assert_int_eq(stats.budget_bytes, n * place);
    ck_assert_int_eq(place % 256, 0);
    weft_expert_store_quiesce(d.store, true);
    weft_model_destroy(model);
    close_desk(&d);
}
END_TEST

/* The hash is of the bytes as stored, whatever they are read into. */
START_TEST(a_hash_is_the_same_on_the_host)
{
    desk d = open_desk(MODELS[_i], 0);
    const int32_t l = moe_layer(&d.config);
    const weft_memory host = {0};
    weft_expert_store *on_host = NULL;
    uint64_t there = 0, here = 1;
    OK(weft_expert_store_load(d.store, l, 1, &there, &err));
    OK(weft_checkpoint_set_memory(d.checkpoint, &host, &err));
    OK(weft_expert_store_create(&d.config, d.checkpoint, 0, &on_host, &err));
    OK(weft_expert_store_load(on_host, l, 1, &here, &err));
    ck_assert(here == there);
    weft_expert_store_destroy(on_host);
    close_desk(&d);
}
END_TEST

START_TEST(a_budget_is_whole_places_that_are_used_again)
{
    desk d = open_desk(MODELS[0], 0);
    const int32_t l = moe_layer(&d.config);
    const int64_t place = weft_expert_store_bytes_of(d.store, l);
    weft_expert_store_destroy(d.store);
    weft_device_info before, after;
    d.memory.api->get_info(d.memory.device, &before);
    OK(weft_expert_store_create(&d.config, d.checkpoint, 3 * place - 1,
                                &d.store, &err));
    uint64_t hash = 0;
    weft_err full = {0};
    OK(weft_expert_store_load(d.store, l, 0, &hash, &err));
    OK(weft_expert_store_load(d.store, l, 1, &hash, &err));
    ck_assert_int_eq(weft_expert_store_load(d.store, l, 2, &hash, &full),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(full.text, "free 0"));
    d.memory.api->get_info(d.memory.device, &after);
    /* Blocks take whole 512 bytes. */
    ck_assert_int_le(before.free_bytes - after.free_bytes, 2 * place + 511);
    weft_expert_store_quiesce(d.store, false);
    const void *const at = weft_expert_store_get(d.store, l, 0)->gate.data;
    weft_expert_store_quiesce(d.store, true);
    weft_expert_store_drop(d.store, l, 0);
    OK(weft_expert_store_load(d.store, l, 2, &hash, &err));
    weft_expert_store_quiesce(d.store, false);
    ck_assert_ptr_eq(weft_expert_store_get(d.store, l, 2)->gate.data, at);
    weft_expert_store_quiesce(d.store, true);
    close_desk(&d);
}
END_TEST

START_TEST(a_budget_beyond_the_device_is_refused)
{
    desk d = open_desk(MODELS[0], 0);
    const int64_t place =
        weft_expert_store_bytes_of(d.store, moe_layer(&d.config));
    weft_expert_store *none = NULL;
    weft_err full = {0};
    if (is_simt()) {
        order_fault("memory");
        ck_assert_int_eq(weft_expert_store_create(&d.config, d.checkpoint,
                                                  2 * place, &none, &full),
                         WEFT_RESOURCE_EXHAUSTED);
        order_fault(NULL);
        ck_assert_ptr_nonnull(strstr(full.text, "experts: device 0"));
    }
    /* Of less than a place nothing is taken. */
    OK(weft_expert_store_create(&d.config, d.checkpoint, place - 1, &none,
                                &err));
    weft_expert_store_stats stats;
    weft_expert_store_get_stats(none, &stats);
    ck_assert_int_eq(stats.budget_bytes, 0);
    weft_expert_store_destroy(none);
    close_desk(&d);
}
END_TEST

/* -- the server ----------------------------------------------------------- */

/* Two shards that share the experts, each step cut in two or not. */
START_TEST(answers_have_the_bits_of_experts_at_home)
{
    const weft_memory memory = device();
    const char *const dir = MODELS[_i / N_PROFILES];
    const weft_profile profile = PROFILES[_i % N_PROFILES];
    pool_results want = pool_reference_on(dir, profile, &memory);
    const pool_options options = {.n_shards = 2, .memory = &memory};
    pool *const p = pool_open(dir, profile, &options);
    pool_heard heard = {0};
    weft_exchange *const exchange = pool_exchange(p, NULL, &heard);
    split_model *const m = pool_model_on(dir, profile, exchange, &memory);
    pool_results got = pool_results_make(&p->config);
    for (int32_t cut = 0; cut < 6; cut += 5) {
        weft_expert_map *const map = pool_map(p, 1 + (uint64_t)cut, 1, 3, cut);
        weft_exchange_set_map(exchange, map);
        weft_expert_map_release(map);
        pool_run run = {.cut = cut};
        OK(pool_compute(m, exchange, &run, &got, &err));
        pool_expect_same(&want, &got, dir, cut);
    }
    ck_assert_int_gt(heard.n_routed, 0);
    pool_results_drop(&got);
    pool_results_drop(&want);
    pool_model_close(m);
    weft_exchange_destroy(exchange);
    pool_close(p);
    device_kit_close();
}
END_TEST

static void add(TCase *t)
{
    tcase_add_loop_test(t, experts_there_are_those_of_a_whole_model, 0,
                        N_MODELS);
    tcase_add_loop_test(t, a_hash_is_the_same_on_the_host, 0, N_MODELS);
    tcase_add_test(t, a_budget_is_whole_places_that_are_used_again);
    tcase_add_test(t, a_budget_beyond_the_device_is_refused);
    tcase_add_loop_test(t, answers_have_the_bits_of_experts_at_home, 0,
                        N_MODELS * N_PROFILES);
    tcase_set_timeout(t, 600);
}

int main(void)
{
    device_kit_need();
    return weft_suite_run_added("cuda_experts", add);
}
