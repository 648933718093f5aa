#include "tests/support/harness.h"

#include <check.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/base/ring.h"
#include "tests/support/expect.h"

harness harness_open(const char *dir, weft_profile profile)
{
    const weft_memory host = {0};
    return harness_open_on(dir, profile, &host);
}

harness harness_open_on(const char *dir, weft_profile profile,
                        const weft_memory *memory)
{
    harness h = {.profile = profile, .memory = *memory};
    weft_checkpoint *checkpoint = NULL;
    if (memory->api != NULL) h.ops = memory->api->ops;
    OK(weft_model_config_read(dir, NULL, NULL, &h.config, &err));
    OK(weft_checkpoint_open(dir, &h.config, profile, NULL, NULL, &checkpoint,
                            &err));
    OK(weft_checkpoint_set_memory(checkpoint, memory, &err));
    OK(weft_model_load(checkpoint, NULL, NULL, &h.model, &err));
    weft_checkpoint_close(checkpoint);
    return h;
}

/* The thread is bound to rank 0's memory again. */
static weft_model *load_rank(weft_checkpoint *checkpoint, harness *h, int32_t i,
                             bool experts)
{
    weft_model *model = NULL;
    const weft_memory *const memory = i == 0 ? &h->memory : &h->memories[i - 1];
    const weft_part_of_model part = {.end_layer = h->config.n_layer,
                                     .embed = i == 0,
                                     .head = i == 0,
                                     .experts = experts,
                                     .n_ranks = h->n_ranks,
                                     .rank = i};
    OK(weft_checkpoint_set_memory(checkpoint, memory, &err));
    OK(weft_checkpoint_set_part(checkpoint, &part, &err));
    OK(weft_memory_bind(memory, &err));
    OK(weft_model_load(checkpoint, NULL, NULL, &model, &err));
    weft_memory_unbind(memory);
    OK(weft_memory_bind(&h->memory, &err));
    return model;
}

harness harness_open_ranks(const char *dir, weft_profile profile,
                           int32_t n_ranks, const weft_memory *memories,
                           bool experts)
{
    harness h = {.profile = profile, .n_ranks = n_ranks};
    weft_checkpoint *checkpoint = NULL;
    if (memories != NULL) {
        h.memory = memories[0];
        h.ops = memories[0].api->ops;
        memcpy(h.memories, memories + 1,
               (size_t)(n_ranks - 1) * sizeof *memories);
    }
    OK(weft_model_config_read(dir, NULL, NULL, &h.config, &err));
    OK(weft_checkpoint_open(dir, &h.config, profile, NULL, NULL, &checkpoint,
                            &err));
    h.model = load_rank(checkpoint, &h, 0, experts);
    for (int32_t i = 1; i < n_ranks; i++)
        h.others[i - 1] = load_rank(checkpoint, &h, i, experts);
    weft_checkpoint_close(checkpoint);
    return h;
}

void harness_add_ranks(const harness *h, weft_rank_parts *parts,
                       weft_engine_options *options)
{
    if (h->n_ranks < 2) return;
    for (int32_t i = 0; i < h->n_ranks - 1; i++)
        parts[i] = (weft_rank_parts){
            .weights = weft_model_weights(h->others[i]),
            .memory = h->ops != NULL ? &h->memories[i] : NULL,
        };
    options->n_ranks = h->n_ranks;
    options->ranks = parts;
}

void harness_close(harness *h)
{
    for (int32_t i = 0; i < h->n_ranks - 1; i++)
        weft_model_destroy(h->others[i]);
    weft_model_destroy(h->model);
    h->model = NULL;
}

const weft_ops *harness_ops(const char *name)
{
    if (name != NULL && strcmp(name, "reference") == 0)
        return weft_ops_reference();
    const weft_ops *ops = NULL;
    OK(weft_ops_cpu(name == NULL ? "auto" : name, &ops, &err));
    return ops;
}

static weft_dtype kv_dtype(const harness *h)
{
    return h->profile == WEFT_EXACT ? WEFT_F32 : WEFT_BF16;
}

/* Bytes of a pool that one sequence of n tokens fits into with room. */
static int64_t pool_bytes(const harness *h, const weft_kv_layout *layout,
                          int32_t n, int32_t chunk)
{
    int64_t slabs = 2;
    for (int32_t k = 0; k < WEFT_KINDS; k++)
        if (h->config.n_kind[k] > 0)
            slabs +=
                weft_kv_pages_for(&h->config, layout, (weft_kind)k, n, chunk) /
                    layout->slab_pages[k] +
                2;
    return slabs * layout->slab_bytes;
}

static weft_engine_options options_of(const harness *h, const harness_run *run,
                                      int32_t n, weft_rank_parts *parts)
{
    weft_engine_options o = {
        .kv_bytes = run->kv_bytes,
        .page_tokens = run->page_tokens > 0 ? run->page_tokens : 64,
        .chunk_tokens = run->chunk_tokens > 0 ? run->chunk_tokens : 512,
        .max_seqs = 1,
        .max_waiting = 1,
        .max_context = n + 1,
        .threads = run->threads > 0 ? run->threads : 1,
        .profile = h->profile,
        .ops = h->ops != NULL ? h->ops : harness_ops(run->cpu_path),
        .memory = h->ops != NULL ? &h->memory : NULL,
        .experts = run->experts,
        .pair_rows = run->pair_rows,
    };
    harness_add_ranks(h, parts, &o);
    if (o.kv_bytes == 0) {
        weft_kv_layout layout;
        OK(weft_kv_layout_make(&h->config, kv_dtype(h), o.page_tokens, &layout,
                               &err));
        o.kv_bytes = pool_bytes(h, &layout, o.max_context, o.chunk_tokens);
    }
    return o;
}

typedef struct collected {
    weft_ring *ring;
    float *logits;
    int32_t vocab, n;
} collected;

static void keep_row(void *arg, int32_t position, const float *logits)
{
    collected *const c = arg;
    if (position >= c->n) return;
    memcpy(c->logits + (int64_t)position * c->vocab, logits,
           (size_t)c->vocab * sizeof *logits);
}

static bool keep_event(void *arg, const weft_event *event)
{
    collected *const c = arg;
    return weft_ring_push(c->ring, event);
}

/* Runs one job to its end; tokens it gives go to out (may be NULL). */
static void run_job(const harness *h, const weft_engine_options *options,
                    const weft_job *job, collected *c, int32_t *out)
{
    weft_engine *engine = NULL;
    OK(weft_ring_create(sizeof(weft_event), 64, &c->ring, &err));
    const weft_event_sink sink = {.take = keep_event, .arg = c};
    OK(weft_engine_create(&h->config, weft_model_weights(h->model), options,
                          sink, NULL, NULL, &engine, &err));
    OK(weft_engine_start(engine, &err));
    OK(weft_engine_submit(engine, job));
    int32_t n = 0;
    for (bool done = false; !done;) {
        weft_event event;
        weft_ring_wait(c->ring, UINT64_MAX);
        while (!done && weft_ring_pop(c->ring, &event)) {
            weft_mem_free(event.top);
            if (event.kind == WEFT_EVENT_TOKEN && out != NULL)
                out[n++] = event.token;
            ck_assert_msg(event.finish != WEFT_FINISH_FAILED &&
                              event.finish != WEFT_FINISH_PREEMPTED,
                          "job failed: %s", event.text);
            done = event.finish != WEFT_FINISH_NONE;
        }
    }
    weft_engine_destroy(engine);
    weft_ring_destroy(c->ring);
}

float *harness_logits(const harness *h, const int32_t *ids, int32_t n,
                      const harness_run *run)
{
    weft_rank_parts parts[WEFT_COMM_GROUP_RANKS_MAX - 1];
    const weft_engine_options options = options_of(h, run, n, parts);
    const int32_t n_prompt =
        run->decode_from > 0 && run->decode_from < n ? run->decode_from : n;
    collected c = {.vocab = h->config.vocab_size, .n = n};
    c.logits = weft_mem_new((size_t)n * (size_t)c.vocab, sizeof *c.logits);
    int32_t *const forced = weft_mem_new((size_t)n + 1, sizeof *forced);
    memcpy(forced, ids, (size_t)n * sizeof *ids);
    const weft_job job = {
        .handle = 1,
        .deadline_ns = UINT64_MAX,
        .tokens = forced,
        .n_prompt = n_prompt,
        .n_tokens = n_prompt,
        .max_tokens = n - n_prompt + 1,
        .logprobs = -1,
        .prompt_logprobs = -1,
        .forced = forced + n_prompt,
        .on_logits = keep_row,
        .on_logits_arg = &c,
    };
    run_job(h, &options, &job, &c, NULL);
    weft_mem_free(forced);
    return c.logits;
}

void harness_expect_same(const harness *h, const int32_t *ids, int32_t n,
                         const float *want, const harness_run *run,
                         const char *what)
{
    float *const got = harness_logits(h, ids, n, run);
    const int64_t vocab = h->config.vocab_size;
    for (int32_t r = 0; r < n; r++)
        ck_assert_msg(memcmp(got + r * vocab, want + r * vocab,
                             (size_t)vocab * sizeof *got) == 0,
                      "%s: logits of position %d differ", what, r);
    weft_mem_free(got);
}

void harness_greedy(const harness *h, const int32_t *ids, int32_t n_prompt,
                    int32_t n, int32_t *out, const harness_run *run)
{
    weft_rank_parts parts[WEFT_COMM_GROUP_RANKS_MAX - 1];
    const weft_engine_options options = options_of(h, run, n_prompt + n, parts);
    const weft_job job = {
        .handle = 1,
        .deadline_ns = UINT64_MAX,
        .tokens = ids,
        .n_prompt = n_prompt,
        .n_tokens = n_prompt,
        .max_tokens = n,
        .sampling = {.top_p = 1.0F, .repetition_penalty = 1.0F},
        .logprobs = -1,
        .prompt_logprobs = -1,
    };
    collected c = {.vocab = h->config.vocab_size};
    run_job(h, &options, &job, &c, out);
}

float *harness_forward(const harness *h, const int32_t *ids, int32_t n,
                       const weft_forward_hooks *hooks)
{
    weft_kv_space space = {0};
    const weft_kv_spaces spaces = {.n = 1, .at = &space};
    weft_kv_store *store = NULL;
    weft_kv_table table = {0};
    weft_threads *threads = NULL;
    weft_forward *forward = NULL;
    OK(weft_kv_layout_make(&h->config, kv_dtype(h), 8, &space.layout, &err));
    OK(weft_kv_pool_create(&space.layout, pool_bytes(h, &space.layout, n, n),
                           &space.pool, &err));
    weft_kv_stats stats;
    weft_kv_pool_get_stats(space.pool, &stats);
    OK(weft_kv_store_create(&space.layout, stats.total_bytes, &h->memory,
                            &store, &err));
    OK(weft_kv_table_init(&table, &spaces, n, &err));
    OK(weft_kv_table_grow(&table, &spaces, n));
    OK(weft_threads_create(1, &threads, &err));
    const weft_forward_options options = {
        .max_rows = n,
        .max_logits_rows = n,
        .max_context = n,
        .profile = h->profile,
        .ops = h->ops != NULL ? h->ops : harness_ops(NULL),
        .memory = &h->memory,
        .max_sequences = 1,
        .page_tokens = 8,
        .threads = threads,
        .n_threads = 1,
    };
    OK(weft_forward_create(&h->config, weft_model_weights(h->model), store,
                           &options, &forward, &err));
    weft_forward_set_hooks(forward, hooks);
    int32_t *const positions = weft_mem_new((size_t)n, sizeof *positions);
    const int64_t **pages[WEFT_KINDS];
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        pages[k] = weft_mem_new((size_t)n, sizeof *pages[k]);
        for (int32_t r = 0; r < n; r++) pages[k][r] = table.offsets[k];
    }
    for (int32_t r = 0; r < n; r++) positions[r] = r;
    const weft_batch batch = {.n_rows = n,
                              .tokens = ids,
                              .positions = positions,
                              .pages = {pages[0], pages[1]}};
    OK(weft_forward_step(forward, &batch, &err));
    const weft_vocab_stat *row_stats = NULL;
    const float *logits = NULL;
    const float **const rows = weft_mem_new((size_t)n, sizeof *rows);
    for (int32_t r = 0; r < n; r++)
        rows[r] =
            weft_forward_hidden(forward) + (int64_t)r * h->config.hidden_size;
    OK(weft_forward_logits_of(forward, rows, n, &logits, &row_stats, &err));
    weft_mem_free(rows);
    const size_t count = (size_t)n * (size_t)h->config.vocab_size;
    float *const copy = weft_mem_new(count, sizeof *copy);
    memcpy(copy, logits, count * sizeof *copy);
    weft_mem_free(positions);
    weft_mem_free(pages[0]);
    weft_mem_free(pages[1]);
    weft_forward_destroy(forward);
    weft_threads_destroy(threads);
    weft_kv_table_clear(&table, &spaces, NULL, NULL);
    weft_kv_table_deinit(&table);
    weft_kv_store_destroy(store);
    weft_kv_pool_destroy(space.pool);
    return copy;
}
