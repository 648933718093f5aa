/* Expert shards on a device: what a store puts there is what a whole model has
 * there, within its budget; a server's answers have the bits of a model that
 * computes its experts itself, of whatever profile, type and company; a step in
 * two halves gives the same logits; and a device that fails ends all links and
 * nothing else. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "shard/expert/body.h"
#include "shard/step/layers.h"
#include "tests/cuda/simt_faults.h"
#include "tests/support/device_kit.h"
#include "tests/support/expect.h"
#include "tests/support/harness.h"
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

/* -- a step whose experts are elsewhere ------------------------------------ */

enum { STEP_ROWS = 11 };

/* Logits of every row of one step of `pair_rows` (layers.h). */
static void compute_step(const harness *h, const weft_experts *experts,
                         int32_t pair_rows, uint64_t step, float *logits_out)
{
    const weft_engine_options o = {.page_tokens = 16,
                                   .chunk_tokens = STEP_ROWS,
                                   .max_seqs = 1,
                                   .max_context = 16,
                                   .threads = 1,
                                   .profile = h->profile,
                                   .ops = h->ops,
                                   .memory = &h->memory,
                                   .experts = experts,
                                   .pair_rows = pair_rows};
    const int64_t kv_bytes = 4 << 20;
    weft_kv_spaces spaces = {0};
    weft_layers l = {0};
    int64_t page[WEFT_KINDS] = {0};
    uint64_t epoch = 0;
    OK(weft_kv_spaces_init(&spaces, &h->config, WEFT_BF16, 16, &kv_bytes, 1,
                           &err));
    OK(weft_layers_init(&l, &h->config, weft_model_weights(h->model), &o,
                        &spaces.at[0], experts, &err));
    for (int32_t k = 0; k < WEFT_KINDS; k++)
        if (h->config.n_kind[k] > 0)
            OK(weft_kv_pool_alloc(spaces.at[0].pool, (weft_kind)k, 1,
                                  &page[k]));
    for (int32_t r = 0; r < STEP_ROWS; r++) {
        l.tokens[r] = (5 * r + 2) % h->config.vocab_size;
        l.positions[r] = r;
        for (int32_t k = 0; k < WEFT_KINDS; k++) l.pages[k][r] = &page[k];
    }
    OK(experts->begin(experts->arg, step, 0, 0, &epoch, &err));
    OK(weft_layers_compute(&l, 0, STEP_ROWS, NULL, &err));
    /* Of both halves at once, as of several sequences. */
    for (int32_t r = 0; r < STEP_ROWS; r += 8) {
        const int32_t n = STEP_ROWS - r < 8 ? STEP_ROWS - r : 8;
        const float *rows[8], *logits = NULL;
        const weft_vocab_stat *stats = NULL;
        for (int32_t i = 0; i < n; i++) rows[i] = weft_layers_row(&l, r + i);
        OK(weft_forward_logits_of(l.forward, rows, n, &logits, &stats, &err));
        memcpy(logits_out + (int64_t)r * h->config.vocab_size, logits,
               (size_t)n * (size_t)h->config.vocab_size * sizeof *logits);
    }
    for (int32_t k = 0; k < WEFT_KINDS; k++)
        if (h->config.n_kind[k] > 0)
            weft_kv_pool_release(spaces.at[0].pool, (weft_kind)k, page[k]);
    weft_layers_deinit(&l);
    weft_kv_spaces_deinit(&spaces);
}

START_TEST(halves_that_take_turns_give_the_same_logits)
{
    const weft_memory memory = device();
    const pool_options options = {.n_shards = 1, .memory = &memory};
    pool *const p = pool_open(MODELS[0], WEFT_PROFILE_BF16, &options);
    pool_heard heard = {0};
    weft_exchange *const exchange = pool_exchange(p, NULL, &heard);
    weft_expert_map *const map = pool_map(p, 1, 1, 1, 0);
    weft_exchange_set_map(exchange, map);
    weft_expert_map_release(map);
    const weft_experts experts = weft_exchange_experts(exchange);
    harness h = harness_open_on(MODELS[0], WEFT_PROFILE_BF16, &memory);
    const size_t n = (size_t)STEP_ROWS * (size_t)h.config.vocab_size;
    float *const whole = weft_mem_new(n, sizeof *whole);
    float *const halves = weft_mem_new(n, sizeof *halves);
    compute_step(&h, &experts, STEP_ROWS + 1, 1, whole);
    compute_step(&h, &experts, 2, 2, halves);
    ck_assert(memcmp(whole, halves, n * sizeof *whole) == 0);
    weft_mem_free(whole);
    weft_mem_free(halves);
    harness_close(&h);
    weft_exchange_destroy(exchange);
    pool_close(p);
    device_kit_close();
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

typedef struct failure {
    atomic_int n;
    weft_status status;
} failure;

static void hear_failure(void *arg, const weft_err *why)
{
    failure *const f = arg;
    f->status = why->status;
    atomic_fetch_add(&f->n, 1);
}

static weft_status wait_for_end(weft_link *link, weft_err *why)
{
    const uint64_t deadline = weft_clock_now_ns() + UINT64_C(20000000000);
    weft_status ended = WEFT_OK;
    weft_poller *poller = NULL;
    weft_frame frame;
    bool got = false;
    OK(weft_poller_create(&poller, &err));
    OK(weft_poller_add(poller, link, &err));
    for (;;) {
        ended = weft_link_recv(link, &frame, &got, why);
        if (ended != WEFT_OK || weft_clock_now_ns() > deadline) break;
        if (!got) weft_poller_wait(poller, deadline, 0);
    }
    weft_poller_remove(poller, link);
    weft_poller_destroy(poller);
    return ended;
}

START_TEST(a_device_that_fails_ends_all_links_and_no_more)
{
    if (!has_faults(__func__)) return;
    const weft_memory memory = device();
    const pool_options options = {
        .n_shards = 1, .holds_all = true, .memory = &memory};
    pool *const p = pool_open(MODELS[0], WEFT_EXACT, &options);
    pool_shard *const shard = &p->shards[0];
    failure f = {0};
    weft_expert_server_stop(shard->server);
    const weft_expert_server_options server = {.config = &shard->config,
                                               .store = shard->store,
                                               .ops = memory.api->ops,
                                               .memory = &memory,
                                               .threads = 1,
                                               .max_rows = 8,
                                               .links_max = 4,
                                               .failed = hear_failure,
                                               .failed_arg = &f};
    OK(weft_expert_server_start(&server, &shard->server, &err));
    weft_expert_server_set_epochs(shard->server, 1, 1);
    const weft_link_options a = pool_asker_link(p), b = pool_server_link(p);
    weft_link *here[3] = {NULL}, *there = NULL;
    for (int32_t i = 0; i < 3; i++) {
        if (i == 2) {
            /* One that asks, one that waits; the third comes too late. */
            float row[512] = {0};
            const void *const rows[] = {row};
            unsigned char body[64];
            const weft_dispatch_pair pair = {.row = 0, .expert = 1, .pair = 0};
            const weft_frame question = {
                .type = WEFT_FRAME_DISPATCH,
                .epoch = 1,
                .layer = moe_layer(&shard->config),
                .body = body,
                .body_bytes = weft_dispatch_encode(&pair, 1, body),
                .n_rows = 1,
                .row_bytes = (uint32_t)shard->config.hidden_size * 4};
            ck_assert_int_le(shard->config.hidden_size, 512);
            order_fault("async:1");
            OK(weft_link_send(here[0], &question, rows, &err));
            for (int32_t k = 0; k < 2; k++) {
                weft_err why = {0};
                ck_assert_int_eq(wait_for_end(here[k], &why), WEFT_UNAVAILABLE);
            }
        }
        OK(weft_link_create_local(&a, &b, &here[i], &there, &err));
        OK(weft_expert_server_add_link(shard->server, there, &err));
    }
    weft_err late = {0};
    ck_assert_int_eq(wait_for_end(here[2], &late), WEFT_UNAVAILABLE);
    ck_assert_int_eq(atomic_load(&f.n), 1);
    ck_assert_int_eq(f.status, WEFT_INTERNAL);
    for (int32_t i = 0; i < 3; i++) weft_link_close(here[i]);
    pool_close(p);
    order_fault(NULL);
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
    tcase_add_test(t, halves_that_take_turns_give_the_same_logits);
    tcase_add_test(t, a_device_that_fails_ends_all_links_and_no_more);
    tcase_set_timeout(t, 600);
}

int main(void)
{
    device_kit_need();
    return weft_suite_run_added("cuda_experts", add);
}
