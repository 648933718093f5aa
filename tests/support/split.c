#include "tests/support/split.h"

#include <check.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/base/rng.h"
#include "tests/support/expect.h"
#include "tests/support/harness.h"

enum { PAGE_TOKENS = 4, LOGITS_ROWS = 3 };

/* -- counting products ----------------------------------------------------- */

static int64_t n_products;
static const weft_ops *plain_ops;

static void counted_gemm(weft_threads *threads, const weft_gemm *list,
                         int32_t n)
{
    n_products++;
    plain_ops->gemm(threads, list, n);
}

int64_t split_products(void)
{
    return n_products;
}

static const weft_ops *counted_ops(void)
{
    static weft_ops ops;
    plain_ops = harness_ops(NULL);
    ops = *plain_ops;
    ops.gemm = counted_gemm;
    return &ops;
}

/* -- experts --------------------------------------------------------------- */

split_experts *split_experts_open(const char *dir, weft_profile profile)
{
    split_experts *const e = weft_mem_new(1, sizeof *e);
    e->fail_at = -1;
    OK(weft_model_config_read(dir, NULL, NULL, &e->config, &err));
    OK(weft_checkpoint_open(dir, &e->config, profile, NULL, NULL,
                            &e->checkpoint, &err));
    OK(weft_expert_store_create(&e->config, e->checkpoint, 0, &e->store, &err));
    OK(weft_threads_create(1, &e->threads, &err));
    for (int32_t l = 0; l < e->config.n_layer; l++)
        for (int32_t x = 0; e->config.moe[l] && x < e->config.n_expert; x++) {
            uint64_t hash = 0;
            OK(weft_expert_store_load(e->store, l, x, &hash, &err));
        }
    weft_expert_store_quiesce(e->store, false);
    ck_assert(!harness_ops(NULL)->bf16_inputs);
    return e;
}

void split_experts_close(split_experts *e)
{
    weft_expert_store_quiesce(e->store, true);
    weft_expert_store_destroy(e->store);
    weft_checkpoint_close(e->checkpoint);
    weft_threads_destroy(e->threads);
    weft_mem_free(e);
}

static void note(split_experts *e, const weft_experts_call *call,
                 bool collected)
{
    ck_assert_int_lt(e->n_events, SPLIT_EVENTS_MAX);
    e->events[e->n_events++] = (split_event){.lane = call->lane,
                                             .layer = call->layer,
                                             .collected = collected,
                                             .products = n_products};
}

static size_t pairs_of(const weft_experts_call *call)
{
    return (size_t)call->n_rows * (size_t)call->top_k;
}

static void *copy_of(const void *src, size_t bytes)
{
    void *const copy = weft_mem_new(bytes, 1);
    memcpy(copy, src, bytes);
    return copy;
}

static size_t out_bytes(const split_experts *e, const weft_experts_call *call)
{
    return pairs_of(call) * (size_t)e->config.hidden_size * sizeof(float);
}

static size_t x_bytes(const split_experts *e, const weft_experts_call *call)
{
    return (size_t)call->n_rows * (size_t)e->config.hidden_size * sizeof(float);
}

static void dispatch(void *arg, const weft_experts_call *call)
{
    split_experts *const e = arg;
    ck_assert(call->lane >= 0 && call->lane < WEFT_STEP_LANES);
    ck_assert(e->config.moe[call->layer]);
    ck_assert_int_eq(call->top_k, e->config.top_k);
    ck_assert(!e->lanes[call->lane].away);
    e->lanes[call->lane].away = true;
    e->lanes[call->lane].call = *call;
    e->lanes[call->lane].x = copy_of(call->x, x_bytes(e, call));
    e->lanes[call->lane].experts =
        copy_of(call->experts, pairs_of(call) * sizeof(int32_t));
    memset(call->out, 0xff, out_bytes(e, call));
    note(e, call, false);
}

static void product(const split_experts *e, const weft_matrix *w,
                    const float *x, float *y)
{
    const weft_gemm gemm = {.w = w,
                            .x = x,
                            .y = y,
                            .x_stride = w->n_in,
                            .y_stride = w->n_out,
                            .n_row = 1};
    harness_ops(NULL)->gemm(e->threads, &gemm, 1);
}

static void compute_pair(const split_experts *e, const weft_experts_call *call,
                         size_t pair)
{
    const int64_t hidden = e->config.hidden_size;
    const int32_t width = e->config.moe_intermediate_size;
    const weft_mlp_weights *const w =
        weft_expert_store_get(e->store, call->layer, call->experts[pair]);
    ck_assert_ptr_nonnull(w);
    const float *const x =
        call->x + (int64_t)(pair / (size_t)call->top_k) * hidden;
    float *const gate = weft_mem_new((size_t)width * 2, sizeof *gate);
    product(e, &w->gate, x, gate);
    product(e, &w->up, x, gate + width);
    const weft_silu_mul act = {.a = gate,
                               .b = gate + width,
                               .y = gate,
                               .a_stride = width,
                               .b_stride = width,
                               .y_stride = width,
                               .n_row = 1,
                               .width = width};
    harness_ops(NULL)->silu_mul(e->threads, &act);
    product(e, &w->down, gate, call->out + (int64_t)pair * hidden);
    weft_mem_free(gate);
}

/* The first n pairs of a random order. */
static void answer(split_experts *e, const weft_experts_call *call, size_t n)
{
    const size_t pairs = pairs_of(call);
    size_t *const order = weft_mem_new(pairs, sizeof *order);
    for (size_t i = 0; i < pairs; i++) order[i] = i;
    for (size_t i = pairs; i > 1; i--) {
        e->seed = weft_rng_u64(e->seed, i);
        const size_t j = (size_t)(e->seed % i), last = order[i - 1];
        order[i - 1] = order[j];
        order[j] = last;
    }
    for (size_t i = 0; i < n; i++) compute_pair(e, call, order[i]);
    weft_mem_free(order);
}

static weft_status collect(void *arg, const weft_experts_call *call,
                           weft_err *err)
{
    split_experts *const e = arg;
    const bool fails = e->n_collects++ == e->fail_at;
    note(e, call, true);
    ck_assert(e->lanes[call->lane].away);
    e->lanes[call->lane].away = false;
    ck_assert_mem_eq(&e->lanes[call->lane].call, call, sizeof *call);
    ck_assert_mem_eq(e->lanes[call->lane].x, call->x, x_bytes(e, call));
    ck_assert_mem_eq(e->lanes[call->lane].experts, call->experts,
                     pairs_of(call) * sizeof(int32_t));
    weft_mem_free(e->lanes[call->lane].x);
    weft_mem_free(e->lanes[call->lane].experts);
    if (fails) {
        answer(e, call, pairs_of(call) / 2);
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "layer %d: experts are gone",
                         call->layer);
    }
    answer(e, call, pairs_of(call));
    memset(call->out, 0xff, out_bytes(e, call));
    answer(e, call, pairs_of(call));
    return WEFT_OK;
}

weft_experts split_experts_seam(split_experts *e)
{
    return (weft_experts){.dispatch = dispatch, .collect = collect, .arg = e};
}

/* -- stages ---------------------------------------------------------------- */

static void load_stage(split_stage *s, const char *dir, weft_profile profile,
                       int32_t n_stages, int32_t stage, bool experts,
                       const weft_memory *memory)
{
    weft_model_config whole;
    weft_checkpoint *checkpoint = NULL;
    OK(weft_model_config_read(dir, NULL, NULL, &whole, &err));
    OK(weft_checkpoint_open(dir, &whole, profile, NULL, NULL, &checkpoint,
                            &err));
    OK(weft_partition_cut(&whole, n_stages, stage, &s->config, &err));
    const weft_part_of_model part = {.first_layer = s->config.first_layer,
                                     .end_layer = s->config.end_layer,
                                     .embed = stage == 0,
                                     .head = stage == 0,
                                     .experts = experts};
    OK(weft_checkpoint_set_part(checkpoint, &part, &err));
    OK(weft_checkpoint_set_memory(checkpoint, memory, &err));
    OK(weft_model_load(checkpoint, NULL, NULL, &s->model, &err));
    weft_checkpoint_close(checkpoint);
}

static void open_cache(split_stage *s, weft_profile profile, int32_t max_rows,
                       const weft_memory *memory)
{
    OK(weft_kv_layout_make(&s->config,
                           profile == WEFT_EXACT ? WEFT_F32 : WEFT_BF16,
                           PAGE_TOKENS, &s->layout, &err));
    s->n_pages = (max_rows + PAGE_TOKENS - 1) / PAGE_TOKENS;
    const int64_t slabs = 2 * (int64_t)s->n_pages;
    OK(weft_kv_pool_create(&s->layout, slabs * s->layout.slab_bytes, &s->pool,
                           &err));
    OK(weft_kv_store_create(&s->layout, slabs * s->layout.slab_bytes, memory,
                            &s->store, &err));
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        if (s->config.n_kind[k] == 0) continue;
        s->pages[k] = weft_mem_new((size_t)s->n_pages, sizeof *s->pages[k]);
        ck_assert_int_eq(
            weft_kv_pool_alloc(s->pool, (weft_kind)k, s->n_pages, s->pages[k]),
            WEFT_OK);
    }
}

split_model *split_open(const char *dir, weft_profile profile, int32_t n_stages,
                        split_experts *experts, int32_t max_rows)
{
    return split_open_on(dir, profile, n_stages, experts, max_rows, NULL);
}

split_model *split_open_on(const char *dir, weft_profile profile,
                           int32_t n_stages, split_experts *experts,
                           int32_t max_rows, const weft_memory *memory)
{
    split_model *const m = weft_mem_new(1, sizeof *m);
    if (memory != NULL) m->memory = *memory;
    const bool on_host = weft_memory_is_host(&m->memory);
    m->n_stages = n_stages;
    m->max_rows = max_rows;
    m->stages = weft_mem_new((size_t)n_stages, sizeof *m->stages);
    OK(weft_threads_create(1, &m->threads, &err));
    if (experts != NULL) m->experts = split_experts_seam(experts);
    for (int32_t i = 0; i < n_stages; i++) {
        split_stage *const s = &m->stages[i];
        load_stage(s, dir, profile, n_stages, i, experts == NULL, &m->memory);
        open_cache(s, profile, max_rows, &m->memory);
        for (int32_t lane = 0; lane < WEFT_STEP_LANES; lane++) {
            const weft_forward_options options = {
                .max_rows = max_rows,
                .max_logits_rows = i == 0 ? LOGITS_ROWS : 0,
                .max_context = max_rows,
                .profile = profile,
                .ops = on_host ? counted_ops() : m->memory.api->ops,
                .memory = &m->memory,
                .max_sequences = 1,
                .page_tokens = PAGE_TOKENS,
                .threads = m->threads,
                .n_threads = 1,
                .experts = experts != NULL ? &m->experts : NULL,
                .lane = lane,
            };
            OK(weft_forward_create(&s->config, weft_model_weights(s->model),
                                   s->store, &options, &s->lanes[lane], &err));
        }
    }
    return m;
}

void split_close(split_model *m)
{
    for (int32_t i = 0; i < m->n_stages; i++) {
        split_stage *const s = &m->stages[i];
        for (int32_t lane = 0; lane < WEFT_STEP_LANES; lane++)
            weft_forward_destroy(s->lanes[lane]);
        for (int32_t k = 0; k < WEFT_KINDS; k++) {
            for (int32_t p = 0; s->pages[k] != NULL && p < s->n_pages; p++)
                weft_kv_pool_release(s->pool, (weft_kind)k, s->pages[k][p]);
            weft_mem_free(s->pages[k]);
        }
        weft_kv_store_destroy(s->store);
        weft_kv_pool_destroy(s->pool);
        weft_model_destroy(s->model);
    }
    weft_threads_destroy(m->threads);
    weft_mem_free(m->stages);
    weft_mem_free(m);
}

void split_forget(split_model *m)
{
    for (int32_t i = 0; i < m->n_stages; i++)
        for (int32_t k = 0; k < WEFT_KINDS; k++)
            for (int32_t p = 0;
                 m->stages[i].pages[k] != NULL && p < m->stages[i].n_pages; p++)
                weft_kv_store_poison(m->stages[i].store, (weft_kind)k,
                                     m->stages[i].pages[k][p]);
}

/* Rows [row, row + n) of the step. `pages` and `positions` are whole. */
static weft_batch batch_of(const int32_t *tokens, const int32_t *positions,
                           const int64_t **const pages[WEFT_KINDS],
                           const float *hidden, int32_t n)
{
    return (weft_batch){.n_rows = n,
                        .tokens = tokens,
                        .positions = positions,
                        .pages = {pages[0], pages[1]},
                        .hidden = hidden};
}

static weft_status stage_step(split_stage *s, const int32_t *tokens,
                              const int32_t *positions, const float *hidden,
                              int32_t n, int32_t cut, float *hidden_out,
                              weft_err *err)
{
    const int64_t width = s->config.hidden_size;
    const int64_t **pages[WEFT_KINDS];
    weft_status st = WEFT_OK;
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        pages[k] = weft_mem_new((size_t)n, sizeof *pages[k]);
        for (int32_t r = 0; r < n; r++) pages[k][r] = s->pages[k];
    }
    const int32_t n_a = cut == 0 ? n : cut;
    const weft_batch a = batch_of(tokens, positions, pages, hidden, n_a);
    const weft_batch b =
        batch_of(tokens + n_a, positions + n_a, pages,
                 hidden != NULL ? hidden + n_a * width : NULL, n - n_a);
    st = cut == 0
             ? weft_forward_step(s->lanes[0], &a, err)
             : weft_forward_step_pair(s->lanes[0], &a, s->lanes[1], &b, err);
    if (st == WEFT_OK) st = weft_forward_fetch_hidden(s->lanes[0], err);
    if (st == WEFT_OK && cut > 0)
        st = weft_forward_fetch_hidden(s->lanes[1], err);
    if (st == WEFT_OK) {
        memcpy(hidden_out, weft_forward_hidden(s->lanes[0]),
               (size_t)(n_a * width) * sizeof *hidden_out);
        if (cut > 0)
            memcpy(hidden_out + n_a * width, weft_forward_hidden(s->lanes[1]),
                   (size_t)((n - n_a) * width) * sizeof *hidden_out);
    }
    weft_mem_free(pages[0]);
    weft_mem_free(pages[1]);
    return st;
}

/* With one stage and no cut, as one process does it; else of foreign rows. */
static void logits_of(split_model *m, const float *hidden, int32_t n,
                      bool foreign, float *logits_out)
{
    const weft_model_config *const c = &m->stages[0].config;
    for (int32_t done = 0; done < n; done += LOGITS_ROWS) {
        const int32_t some = n - done < LOGITS_ROWS ? n - done : LOGITS_ROWS;
        const float *rows[LOGITS_ROWS], *logits = NULL;
        const weft_vocab_stat *stats = NULL;
        const float *const from =
            foreign ? hidden : weft_forward_hidden(m->stages[0].lanes[0]);
        for (int32_t i = 0; i < some; i++)
            rows[i] = from + (int64_t)(done + i) * c->hidden_size;
        OK(weft_forward_logits_of(m->stages[0].lanes[foreign ? 1 : 0], rows,
                                  some, &logits, &stats, &err));
        memcpy(logits_out + (int64_t)done * c->vocab_size, logits,
               (size_t)some * (size_t)c->vocab_size * sizeof *logits);
        for (int32_t i = 0; i < some; i++)
            ck_assert(!stats[i].nan &&
                      logits[(int64_t)i * c->vocab_size + stats[i].argmax] ==
                          stats[i].max);
    }
}

weft_status split_step(split_model *m, const int32_t *ids, int32_t first,
                       int32_t n, int32_t cut, float *hidden_out,
                       float *logits_out, weft_err *err)
{
    const int64_t width = m->stages[0].config.hidden_size;
    float *const between = weft_mem_new((size_t)(n * width), sizeof *between);
    int32_t *const positions = weft_mem_new((size_t)n, sizeof *positions);
    weft_status st = WEFT_OK;
    ck_assert(first >= 0 && n >= 1 && first + n <= m->max_rows && cut < n);
    for (int32_t r = 0; r < n; r++) positions[r] = first + r;
    for (int32_t i = 0; st == WEFT_OK && i < m->n_stages; i++) {
        st = stage_step(&m->stages[i], ids + first, positions,
                        i == 0 ? NULL : between, n, cut, hidden_out, err);
        memcpy(between, hidden_out, (size_t)(n * width) * sizeof *between);
    }
    if (st == WEFT_OK)
        logits_of(m, between, n, m->n_stages > 1 || cut > 0, logits_out);
    weft_mem_free(positions);
    weft_mem_free(between);
    return st;
}
