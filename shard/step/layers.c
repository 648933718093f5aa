#include "shard/step/layers.h"

#include <inttypes.h>

#include "node/base/log.h"
#include "node/base/mem.h"
#include "shard/model/partition.h"

enum {
    /* Rows of one logits call: lm_head is read once for so many decodes. */
    LOGITS_ROWS_MAX = 64,
    LOGITS_ROWS_MIN = 8,
    /* Each half reads all weights of its layers, which pays only where there
     * are rows enough for that to be the smaller part. */
    PAIR_ROWS = 64,
};

static weft_forward_options forward_options(const weft_engine_options *o,
                                            weft_threads *threads)
{
    const int32_t logits =
        o->max_seqs < LOGITS_ROWS_MAX ? o->max_seqs : LOGITS_ROWS_MAX;
    return (weft_forward_options){
        .max_rows = o->chunk_tokens + o->max_seqs,
        .max_logits_rows = logits < LOGITS_ROWS_MIN ? LOGITS_ROWS_MIN : logits,
        .max_context = o->max_context,
        .profile = o->profile,
        .ops = o->ops,
        .memory = o->memory,
        .max_sequences = o->max_seqs,
        .page_tokens = o->page_tokens,
        .threads = threads,
        .n_threads = o->threads,
    };
}

/* Of the second half: half of the rows, and nobody asks it for logits. */
static weft_forward_options second_options(weft_forward_options first)
{
    first.lane = 1;
    first.max_rows = (first.max_rows + 1) / 2;
    first.max_logits_rows = 1;
    return first;
}

/* What sizes and ranks are made from. */
typedef struct shape {
    weft_model_config config; /* as a rank sees it */
    weft_forward_options first, second;
    bool pairs;
} shape;

static weft_status make_shape(const weft_model_config *config,
                              const weft_engine_options *o,
                              weft_threads *threads,
                              const weft_experts *experts, shape *out,
                              weft_err *err)
{
    out->first = forward_options(o, threads);
    out->first.experts = experts;
    out->second = second_options(out->first);
    out->pairs = experts != NULL;
    return weft_partition_rank(config, o->n_ranks > 1 ? o->n_ranks : 1,
                               &out->config, err);
}

static weft_ranks_options ranks_options(const shape *s,
                                        const weft_engine_options *o)
{
    return (weft_ranks_options){
        .name = "stage",
        .n_ranks = o->n_ranks,
        .others = o->ranks,
        .config = &s->config,
        .forward = &s->first,
        .second = s->pairs ? &s->second : NULL,
    };
}

static bool has_experts_elsewhere(const weft_engine_options *o)
{
    return o->exchange != NULL || o->experts != NULL || o->experts_elsewhere;
}

int64_t weft_layers_bytes(const weft_model_config *config,
                          const weft_engine_options *options,
                          int64_t *device_bytes_out)
{
    int64_t device = 0, device_second = 0, device_sums = 0;
    /* Which experts they are does not matter for a size; that they are
     * elsewhere does. */
    const weft_experts elsewhere = {0};
    shape s;
    /* A degree that cannot be is said when the stage is made. */
    if (make_shape(config, options, NULL,
                   has_experts_elsewhere(options) ? &elsewhere : NULL, &s,
                   NULL) != WEFT_OK)
        s.config = *config;
    int64_t bytes = weft_forward_bytes(&s.config, &s.first, &device);
    if (s.pairs)
        bytes += weft_forward_bytes(&s.config, &s.second, &device_second);
    if (options->n_ranks > 1) {
        const weft_ranks_options ranks = ranks_options(&s, options);
        bytes += weft_ranks_bytes(&ranks, &device_sums);
    }
    if (device_bytes_out != NULL)
        *device_bytes_out = device + device_second + device_sums;
    return bytes;
}

static weft_status init_rows(weft_layers *l, weft_err *err)
{
    const size_t n = (size_t)l->max_rows;
    l->tokens = weft_mem_new(n, sizeof *l->tokens);
    l->positions = weft_mem_new(n, sizeof *l->positions);
    for (int32_t k = 0; k < WEFT_KINDS; k++)
        l->pages[k] = weft_mem_new(n, sizeof *l->pages[k]);
    if (l->tokens == NULL || l->positions == NULL || l->pages[0] == NULL ||
        l->pages[1] == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "step: no memory for %d rows", l->max_rows);
    return WEFT_OK;
}

/* The other ranks, which are met before anything is summed. */
static weft_status init_ranks(weft_layers *l, shape *s,
                              const weft_engine_options *o,
                              const weft_kv_space *space, int64_t kv_bytes,
                              weft_err *err)
{
    weft_ranks_options ranks = ranks_options(s, o);
    if (o->n_ranks <= 1) return WEFT_OK;
    ranks.config = &l->config; /* which stays */
    ranks.layout = &space->layout;
    ranks.kv_bytes = kv_bytes;
    WEFT_TRY(weft_ranks_create(&ranks, &l->ranks, err));
    s->first.rank = s->second.rank = weft_ranks_own(l->ranks);
    return WEFT_OK;
}

weft_status weft_layers_init(weft_layers *l, const weft_model_config *config,
                             const weft_weights *weights,
                             const weft_engine_options *options,
                             const weft_kv_space *space,
                             const weft_experts *experts, weft_err *err)
{
    shape s;
    *l = (weft_layers){0};
    WEFT_TRY(weft_threads_create(options->threads, &l->threads, err));
    WEFT_TRY(make_shape(config, options, l->threads, experts, &s, err));
    l->config = s.config;
    l->max_rows = s.first.max_rows;
    l->max_logits_rows = s.first.max_logits_rows;
    l->pair_rows = options->pair_rows > 0 ? options->pair_rows : PAIR_ROWS;
    WEFT_TRY(init_rows(l, err));
    weft_kv_stats stats;
    weft_kv_pool_get_stats(space->pool, &stats);
    WEFT_TRY(weft_kv_store_create(&space->layout, stats.total_bytes,
                                  options->memory, &l->store, err));
    /* Who sends hidden rows on to another stage reads them on the host. */
    l->fetches = options->memory != NULL &&
                 config->end_layer - config->first_layer < config->n_layer;
    WEFT_TRY(init_ranks(l, &s, options, space, stats.total_bytes, err));
    WEFT_TRY(weft_forward_create(&l->config, weights, l->store, &s.first,
                                 &l->forward, err));
    if (!s.pairs) return WEFT_OK;
    return weft_forward_create(&l->config, weights, l->store, &s.second,
                               &l->second, err);
}

static void log_graphs(const weft_layers *l)
{
    weft_forward_graphs g = {0};
    if (l->forward != NULL) weft_forward_get_graphs(l->forward, &g);
    if (g.n_replayed + g.n_computed == 0) return;
    weft_log(WEFT_LOG_DEBUG, "step", "graphs_used",
             "replayed %" PRId64 " computed %" PRId64, g.n_replayed,
             g.n_computed);
}

void weft_layers_deinit(weft_layers *l)
{
    log_graphs(l);
    weft_ranks_destroy(l->ranks);
    weft_forward_destroy(l->forward);
    weft_forward_destroy(l->second);
    weft_kv_store_destroy(l->store);
    weft_threads_destroy(l->threads);
    weft_mem_free(l->tokens);
    weft_mem_free(l->positions);
    for (int32_t k = 0; k < WEFT_KINDS; k++) weft_mem_free(l->pages[k]);
    *l = (weft_layers){0};
}

static weft_batch batch_of(const weft_layers *l, int32_t first, int32_t n,
                           const float *hidden)
{
    return (weft_batch){
        .n_rows = n,
        .tokens = l->tokens + first,
        .positions = l->positions + first,
        .pages = {l->pages[WEFT_FULL] + first, l->pages[WEFT_WINDOW] + first},
        .hidden = hidden,
    };
}

/* Rows that the whole stage takes at once; b NULL: not in halves. */
static weft_status step(weft_layers *l, const weft_batch *a,
                        const weft_batch *b, weft_err *err)
{
    if (l->ranks != NULL) weft_ranks_begin(l->ranks, a, b);
    const weft_status st =
        b == NULL ? weft_forward_step(l->forward, a, err)
                  : weft_forward_step_pair(l->forward, a, l->second, b, err);
    return l->ranks == NULL ? st : weft_ranks_end(l->ranks, st, err);
}

weft_status weft_layers_compute(weft_layers *l, int32_t first, int32_t n,
                                const float *hidden, weft_err *err)
{
    if (l->second == NULL || n < 2 || n < l->pair_rows) {
        const weft_batch batch = batch_of(l, first, n, hidden);
        l->split = n;
        WEFT_TRY(step(l, &batch, NULL, err));
        return l->fetches ? weft_forward_fetch_hidden(l->forward, err)
                          : WEFT_OK;
    }
    const int32_t half = (n + 1) / 2;
    const float *const rest =
        hidden == NULL ? NULL : hidden + (int64_t)half * l->config.hidden_size;
    const weft_batch a = batch_of(l, first, half, hidden);
    const weft_batch b = batch_of(l, first + half, n - half, rest);
    l->split = half;
    WEFT_TRY(step(l, &a, &b, err));
    /* Logits are asked of `forward` for rows of both, and those of the other
     * are read on the host. */
    WEFT_TRY(weft_forward_fetch_hidden(l->forward, err));
    return weft_forward_fetch_hidden(l->second, err);
}

const float *weft_layers_row(const weft_layers *l, int32_t r)
{
    const int64_t width = l->config.hidden_size;
    return r < l->split
               ? weft_forward_hidden(l->forward) + r * width
               : weft_forward_hidden(l->second) + (r - l->split) * width;
}
