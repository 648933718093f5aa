/* Steps as graphs (shard/model/forward_graph.c): a few sequences are computed
 * in steps of many sizes, filled up and replayed, and every hidden row has the
 * bits that it has in one step of its sequence alone, op by op. */
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/cuda/simt_faults.h"
#include "tests/support/expect.h"
#include "tests/support/harness.h"
#include "tests/support/suite.h"

enum { SEQS = 5, ROWS = 70, PAGE = 4 };

/* Some sequences in a store of their own, and the forward that computes them.
 * hidden [n_tokens, width]: of the positions done. */
typedef struct party {
    const harness *h;
    weft_kv_space space;
    weft_kv_store *store;
    weft_threads *threads;
    weft_experts experts;
    weft_forward *forward;
    weft_kv_table tables[SEQS];
    int32_t n_tokens, done[SEQS];
    float *hidden[SEQS];
} party;

static weft_kv_spaces spaces_of(party *p)
{
    return (weft_kv_spaces){.n = 1, .at = &p->space};
}

static int64_t pool_bytes(const party *p)
{
    const weft_model_config *const c = &p->h->config;
    const weft_kv_layout *const layout = &p->space.layout;
    int64_t slabs = 2;
    for (int32_t k = 0; k < WEFT_KINDS; k++)
        if (c->n_kind[k] > 0)
            slabs += SEQS * (weft_kv_pages_for(c, layout, (weft_kind)k,
                                               p->n_tokens, p->n_tokens) /
                                 layout->slab_pages[k] +
                             2);
    return slabs * layout->slab_bytes;
}

static void take_pages(party *p)
{
    weft_kv_stats stats;
    OK(weft_kv_layout_make(&p->h->config,
                           p->h->profile == WEFT_EXACT ? WEFT_F32 : WEFT_BF16,
                           PAGE, &p->space.layout, &err));
    OK(weft_kv_pool_create(&p->space.layout, pool_bytes(p), &p->space.pool,
                           &err));
    weft_kv_pool_get_stats(p->space.pool, &stats);
    OK(weft_kv_store_create(&p->space.layout, stats.total_bytes, &p->h->memory,
                            &p->store, &err));
    const weft_kv_spaces spaces = spaces_of(p);
    for (int32_t s = 0; s < SEQS; s++) {
        OK(weft_kv_table_init(&p->tables[s], &spaces, p->n_tokens, &err));
        OK(weft_kv_table_grow(&p->tables[s], &spaces, p->n_tokens));
    }
}

/* Experts elsewhere: each gives the row it is asked, times a number of its own.
 */
static void ask_nobody(void *arg, const weft_experts_call *call)
{
    (void)arg, (void)call;
}

static weft_status answer(void *arg, const weft_experts_call *call,
                          weft_err *err)
{
    const party *const p = arg;
    const weft_model_config *const c = &p->h->config;
    const int64_t width = c->hidden_size;
    (void)err;
    for (int32_t i = 0; i < call->n_rows * call->top_k; i++) {
        const float *const x = call->x + i / call->top_k * width;
        const float factor = 0.25F + (float)call->experts[i] * 0.125F;
        ck_assert(call->experts[i] >= 0 && call->experts[i] < c->n_expert);
        for (int64_t j = 0; j < width; j++)
            call->out[i * width + j] = x[j] * factor;
    }
    return WEFT_OK;
}

static void party_open(party *p, const harness *h, int32_t n_tokens,
                       int32_t max_rows, bool elsewhere)
{
    *p = (party){.h = h, .n_tokens = n_tokens};
    p->experts =
        (weft_experts){.dispatch = ask_nobody, .collect = answer, .arg = p};
    take_pages(p);
    OK(weft_threads_create(1, &p->threads, &err));
    const weft_forward_options options = {
        .max_rows = max_rows,
        .max_logits_rows = 1,
        .max_context = n_tokens,
        .profile = h->profile,
        .ops = h->ops,
        .memory = &h->memory,
        .max_sequences = SEQS,
        .page_tokens = PAGE,
        .threads = p->threads,
        .n_threads = 1,
        .experts = elsewhere ? &p->experts : NULL,
    };
    OK(weft_forward_create(&h->config, weft_model_weights(h->model), p->store,
                           &options, &p->forward, &err));
    const size_t n = (size_t)n_tokens * (size_t)h->config.hidden_size;
    for (int32_t s = 0; s < SEQS; s++)
        p->hidden[s] = weft_mem_new(n, sizeof(float));
}

static void party_close(party *p)
{
    const weft_kv_spaces spaces = spaces_of(p);
    weft_forward_destroy(p->forward);
    weft_threads_destroy(p->threads);
    for (int32_t s = 0; s < SEQS; s++) {
        weft_mem_free(p->hidden[s]);
        weft_kv_table_clear(&p->tables[s], &spaces, NULL, NULL);
        weft_kv_table_deinit(&p->tables[s]);
    }
    weft_kv_store_destroy(p->store);
    weft_kv_pool_destroy(p->space.pool);
}

/* Any token, but always the same. */
static int32_t token_of(const party *p, int32_t s, int32_t position)
{
    const uint32_t mixed = (uint32_t)(position * 7 + s * 131 + 3) * 2654435761U;
    return (int32_t)(mixed >> 8) % p->h->config.vocab_size;
}

/* The next n[s] tokens of each sequence, as one step. */
static void step(party *p, const int32_t n[SEQS])
{
    const int64_t width = p->h->config.hidden_size;
    int32_t tokens[512], positions[512], rows = 0;
    const int64_t *pages[WEFT_KINDS][512];
    for (int32_t s = 0; s < SEQS; s++)
        for (int32_t i = 0; i < n[s]; i++, rows++) {
            ck_assert_int_lt(rows, 512);
            positions[rows] = p->done[s] + i;
            tokens[rows] = token_of(p, s, positions[rows]);
            for (int32_t k = 0; k < WEFT_KINDS; k++)
                pages[k][rows] = p->tables[s].offsets[k];
        }
    const weft_batch batch = {.n_rows = rows,
                              .tokens = tokens,
                              .positions = positions,
                              .pages = {pages[0], pages[1]}};
    OK(weft_forward_step(p->forward, &batch, &err));
    OK(weft_forward_fetch_hidden(p->forward, &err));
    const float *from = weft_forward_hidden(p->forward);
    for (int32_t s = 0; s < SEQS; s++) {
        memcpy(p->hidden[s] + p->done[s] * width, from,
               (size_t)(n[s] * width) * sizeof *from);
        from += n[s] * width;
        p->done[s] += n[s];
    }
}

static void see_nothing(void *arg, int32_t layer, const float *h,
                        int32_t n_rows)
{
    (void)arg, (void)layer, (void)h, (void)n_rows;
}

/* Each sequence in a step of its own. Who looks on gets no graphs. */
static void compute_plain(party *p)
{
    const weft_forward_hooks hooks = {.layer_out = see_nothing};
    weft_forward_graphs graphs;
    weft_forward_set_hooks(p->forward, &hooks);
    for (int32_t s = 0; s < SEQS; s++) {
        int32_t n[SEQS] = {0};
        n[s] = p->n_tokens;
        step(p, n);
    }
    weft_forward_get_graphs(p->forward, &graphs);
    ck_assert_int_eq(graphs.n_replayed + graphs.n_computed, 0);
}

static void assert_same(const party *got, const party *want, const char *what)
{
    const int64_t width = got->h->config.hidden_size;
    for (int32_t s = 0; s < SEQS; s++)
        for (int32_t t = 0; t < got->done[s]; t++)
            ck_assert_msg(
                memcmp(got->hidden[s] + t * width, want->hidden[s] + t * width,
                       (size_t)width * sizeof(float)) == 0,
                "%s: sequence %d differs at %d", what, (int)s, (int)t);
}

/* Steps from 1 row to more than graphs are for: chunks of prefill among
 * decodes, and all of the sequences or some, until all tokens are done. */
static void compute_mixed(party *p, uint64_t seed)
{
    weft_kernel_check c = {.seed = seed};
    for (int32_t left = 1; left > 0;) {
        const int32_t most = weft_kit_int(&c, 0, 5) == 0 ? 14 : 1;
        int32_t n[SEQS], rows = 0;
        left = 0;
        for (int32_t s = 0; s < SEQS; s++) {
            const int32_t rest = p->n_tokens - p->done[s];
            n[s] = weft_kit_int(&c, 0, 2) == 0 ? 0 : weft_kit_int(&c, 1, most);
            if (n[s] > rest) n[s] = rest;
            rows += n[s];
            left += rest - n[s];
        }
        if (rows > 0) step(p, n);
    }
}

static harness open_model(const char *name, weft_profile profile)
{
    char path[256];
    const weft_memory memory = {.api = device_kit_open_scratch(8 << 20),
                                .device = device_kit_device()};
    (void)snprintf(path, sizeof path, "tests/data/fixtures/%s", name);
    return harness_open_on(path, profile, &memory);
}

static const char *const CASES[] = {"dots3-mixed", "v32", "v2-lite", "v3-fp8"};
enum { N_CASES = sizeof CASES / sizeof CASES[0], TOKENS = 37 };

START_TEST(rows_that_fill_up_and_replays_change_nothing)
{
    harness h =
        open_model(CASES[_i / 2], _i % 2 == 0 ? WEFT_PROFILE_BF16 : WEFT_EXACT);
    party plain, mixed;
    weft_forward_graphs graphs;
    party_open(&plain, &h, TOKENS, TOKENS, false);
    compute_plain(&plain);
    party_open(&mixed, &h, TOKENS, ROWS, false);
    compute_mixed(&mixed, 40 + (uint64_t)_i);
    assert_same(&mixed, &plain, CASES[_i / 2]);
    weft_forward_get_graphs(mixed.forward, &graphs);
    ck_assert_int_gt(graphs.n_replayed, 10);
    /* Twice a size at most: as it is, and kept. */
    ck_assert_int_le(graphs.n_computed, 2 * 9);
    party_close(&mixed);
    party_close(&plain);
    harness_close(&h);
    device_kit_close();
}
END_TEST

/* Each part between two questions is kept and replayed. */
START_TEST(so_with_experts_elsewhere)
{
    static const char *const cases[] = {"dots3-mixed", "v3"};
    harness h = open_model(cases[_i], WEFT_PROFILE_BF16);
    party plain, mixed;
    weft_forward_graphs graphs;
    int32_t parts = 1;
    for (int32_t l = 0; l < h.config.n_layer; l++) parts += h.config.moe[l];
    party_open(&plain, &h, TOKENS, TOKENS, true);
    compute_plain(&plain);
    party_open(&mixed, &h, TOKENS, ROWS, true);
    compute_mixed(&mixed, 70 + (uint64_t)_i);
    assert_same(&mixed, &plain, cases[_i]);
    weft_forward_get_graphs(mixed.forward, &graphs);
    ck_assert_int_gt(parts, 2);
    ck_assert_int_gt(graphs.n_replayed, 10 * parts);
    ck_assert_int_le(graphs.n_computed, 2 * 9 * parts);
    ck_assert_int_eq((graphs.n_replayed + graphs.n_computed) % parts, 0);
    party_close(&mixed);
    party_close(&plain);
    harness_close(&h);
    device_kit_close();
}
END_TEST

/* Keys of somebody else take the places of the graphs, which are made again. */
START_TEST(graphs_that_had_to_go_are_made_again)
{
    harness h = open_model("dots3-mixed", WEFT_PROFILE_BF16);
    const weft_device_api *const api = h.memory.api;
    const int32_t one[SEQS] = {1, 1, 0, 1, 0};
    party plain, kept;
    weft_forward_graphs graphs;
    party_open(&plain, &h, TOKENS, TOKENS, false);
    compute_plain(&plain);
    party_open(&kept, &h, TOKENS, ROWS, false);
    for (int32_t i = 0; i < 4; i++) step(&kept, one);
    weft_forward_get_graphs(kept.forward, &graphs);
    ck_assert_int_eq(graphs.n_computed, 2);
    ck_assert_int_eq(graphs.n_replayed, 2);
    for (uint64_t key = 1; key <= WEFT_DEVICE_GRAPHS_MAX + 3; key++)
        while (!api->graph_begin(key) && !api->graph_end()) continue;
    for (int32_t i = 0; i < 4; i++) step(&kept, one);
    weft_forward_get_graphs(kept.forward, &graphs);
    ck_assert_int_eq(graphs.n_computed, 4);
    ck_assert_int_eq(graphs.n_replayed, 4);
    api->graph_drop();
    for (int32_t i = 0; i < 4; i++) step(&kept, one);
    weft_forward_get_graphs(kept.forward, &graphs);
    ck_assert_int_eq(graphs.n_computed, 6);
    ck_assert_int_eq(graphs.n_replayed, 6);
    assert_same(&kept, &plain, "made again");
    party_close(&kept);
    party_close(&plain);
    harness_close(&h);
    device_kit_close();
}
END_TEST

/* The bound of positions goes from one value to the next while a short sequence
 * is among the long ones, and back when it is alone. */
START_TEST(positions_pass_their_bounds)
{
    enum { LONG = 262 };
    harness h = open_model("dots3-mixed", WEFT_PROFILE_BF16);
    party plain, kept;
    weft_forward_graphs graphs;
    party_open(&plain, &h, LONG, LONG, false);
    compute_plain(&plain);
    party_open(&kept, &h, LONG, ROWS, false);
    for (int32_t i = 0; i < 4; i++)
        step(&kept, (const int32_t[SEQS]){63, 0, 0, 0, 0});
    for (int32_t i = 0; i < 10; i++) {
        step(&kept, (const int32_t[SEQS]){1, 1, 1, 0, 0});
        step(&kept, (const int32_t[SEQS]){0, 1, 1, 1, 0});
    }
    weft_forward_get_graphs(kept.forward, &graphs);
    /* 63 rows; 3 rows below and above 256 positions. */
    ck_assert_int_eq(graphs.n_computed, 3 * 2);
    ck_assert_int_eq(graphs.n_replayed, 4 + 20 - 3 * 2);
    assert_same(&kept, &plain, "bounds of positions");
    party_close(&kept);
    party_close(&plain);
    harness_close(&h);
    device_kit_close();
}
END_TEST

START_TEST(a_device_that_keeps_no_graphs_computes_the_same)
{
    static const char *const faults[] = {"capture", "instantiate", "replay"};
    if (!has_faults(__func__)) return;
    harness h = open_model("v32", WEFT_PROFILE_BF16);
    party plain;
    party_open(&plain, &h, TOKENS, TOKENS, false);
    compute_plain(&plain);
    for (int32_t i = 0; i < 3; i++) {
        party kept;
        weft_forward_graphs graphs;
        party_open(&kept, &h, TOKENS, ROWS, false);
        order_fault(faults[i]);
        compute_mixed(&kept, 60);
        order_fault(NULL);
        assert_same(&kept, &plain, faults[i]);
        weft_forward_get_graphs(kept.forward, &graphs);
        ck_assert_int_eq(graphs.n_replayed, 0);
        ck_assert_int_gt(graphs.n_computed, 20);
        party_close(&kept);
    }
    party_close(&plain);
    harness_close(&h);
    device_kit_close();
}
END_TEST

static void add(TCase *t)
{
    tcase_add_loop_test(t, rows_that_fill_up_and_replays_change_nothing, 0,
                        2 * N_CASES);
    tcase_add_loop_test(t, so_with_experts_elsewhere, 0, 2);
    tcase_add_test(t, graphs_that_had_to_go_are_made_again);
    tcase_add_test(t, positions_pass_their_bounds);
    tcase_add_test(t, a_device_that_keeps_no_graphs_computes_the_same);
    tcase_set_timeout(t, 600);
}

int main(void)
{
    device_kit_need();
    return weft_suite_run_added("cuda_steps", add);
}
