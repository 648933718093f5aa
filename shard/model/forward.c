#include "shard/model/forward.h"

#include <stdatomic.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/failpoint.h"
#include "node/base/mem.h"
#include "shard/model/forward_internal.h"

static const int64_t SIZE_OF_FLOAT = sizeof(float);

static atomic_uint next_id = 1;

/* What no step changes. */
static weft_status put_constants(weft_forward *f, weft_err *err)
{
    const weft_model_config *const c = f->config;
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        if (c->n_kind[k] == 0) continue;
        const int64_t n = c->geometry[k].qk_rope_head_dim / 2;
        weft_config_inv_freq(c, (weft_kind)k, f->host.inv_freq[k]);
        weft_memory_put(&f->memory, f->inv_freq[k], f->host.inv_freq[k],
                        n * (int64_t)sizeof *f->inv_freq[k]);
    }
    if (f->options.experts != NULL && f->row_of != NULL) {
        const int32_t n = f->options.max_rows * c->top_k;
        for (int32_t i = 0; i < n; i++) f->host.row_of[i] = i;
        weft_memory_put(&f->memory, f->row_of, f->host.row_of,
                        n * (int64_t)sizeof *f->row_of);
    }
    return weft_memory_sync(&f->memory, err);
}

weft_status weft_forward_create(const weft_model_config *config,
                                const weft_weights *weights,
                                const weft_kv_store *store,
                                const weft_forward_options *options,
                                weft_forward **forward_out, weft_err *err)
{
    weft_forward *const f = weft_mem_new(1, sizeof *f);
    if (f == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "step: out of memory");
    f->config = config;
    f->weights = weights;
    f->store = store;
    f->options = *options;
    f->id = atomic_fetch_add(&next_id, 1);
    f->ops = options->ops;
    f->threads = options->threads;
    f->round =
        options->profile == WEFT_PROFILE_BF16 && options->ops->bf16_inputs
            ? WEFT_ROUND_BF16
            : WEFT_ROUND_NONE;
    weft_status st = weft_forward_take_memory(f, err);
    if (st == WEFT_OK) st = put_constants(f, err);
    if (st != WEFT_OK) {
        weft_forward_destroy(f);
        return st;
    }
    *forward_out = f;
    return WEFT_OK;
}

void weft_forward_destroy(weft_forward *forward)
{
    if (forward == NULL) return;
    weft_forward_free_memory(forward);
    weft_mem_free(forward);
}

void weft_forward_get_graphs(const weft_forward *forward,
                             weft_forward_graphs *out)
{
    *out = forward->graphs;
}

void weft_forward_set_hooks(weft_forward *forward,
                            const weft_forward_hooks *hooks)
{
    WEFT_ASSERT(hooks == NULL || forward->options.rank == NULL);
    forward->hooks = hooks == NULL ? (weft_forward_hooks){0} : *hooks;
}

/* The angles of the rows' positions, by kind. */
static void compute_angles(weft_forward *f)
{
    const weft_model_config *const c = f->config;
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        if (c->n_kind[k] == 0) continue;
        const weft_rope_table table = {
            .positions = f->positions,
            .inv_freq = f->inv_freq[k],
            .cos_out = f->cos[k],
            .sin_out = f->sin[k],
            .n_row = f->n_filled,
            .n_freq = c->geometry[k].qk_rope_head_dim / 2,
            .factor = c->yarn.on ? c->yarn.cos_sin_factor : 1.0F,
        };
        f->ops->rope_table(f->threads, &table);
    }
}

static void norm_rows(weft_forward *f, const float *w, int32_t n_rows,
                      weft_round round)
{
    const weft_rms_norm norm = {
        .x = f->h,
        .w = w,
        .y = f->x,
        .x_stride = f->config->hidden_size,
        .y_stride = f->config->hidden_size,
        .n_row = n_rows,
        .width = f->config->hidden_size,
        .eps = f->config->rms_norm_eps,
        .scale = 1.0F,
        .round = round,
    };
    f->ops->rms_norm(f->threads, &norm);
}

static void add_rows(weft_forward *f, int32_t n_rows)
{
    const weft_add add = {
        .x = f->h,
        .y = f->y,
        .x_stride = f->config->hidden_size,
        .y_stride = f->config->hidden_size,
        .n_row = n_rows,
        .width = f->config->hidden_size,
        .round = f->round,
    };
    f->ops->add(f->threads, &add);
}

/* Hidden rows of the stage before; rows that fill up are zeros. */
static void put_hidden(weft_forward *f, const weft_batch *batch)
{
    const int64_t width = f->config->hidden_size;
    const int64_t n = batch->n_rows * width, all = f->n_filled * width;
    WEFT_ASSERT(batch->hidden != NULL);
    memcpy(f->host.h, batch->hidden, (size_t)(n * SIZE_OF_FLOAT));
    memset(f->host.h + n, 0, (size_t)((all - n) * SIZE_OF_FLOAT));
    weft_memory_put(&f->memory, f->h, f->host.h, all * SIZE_OF_FLOAT);
}

/* All that comes from the host, before the first op. */
static void put_inputs(weft_forward *f, const weft_batch *batch)
{
    WEFT_ASSERT(f->n_rows >= 1 && f->n_filled <= f->options.max_rows &&
                !f->is_away);
    f->embeds = batch->hidden == NULL;
    weft_forward_put_step(f, batch);
    if (!f->embeds) put_hidden(f, batch);
}

/* What fails on a device is told at the end of the step. */
static void show_layer(weft_forward *f, int32_t l)
{
    const weft_status st = weft_forward_fetch_hidden(f, NULL);
    (void)st;
    f->hooks.layer_out(f->hooks.arg, l, f->host.h, f->n_rows);
}

/* The rows as the first layer here takes them. Of several ranks the first one
 * embeds, and the others hear of it in a sum. */
static void begin_rows(weft_forward *f)
{
    const weft_model_config *const c = f->config;
    compute_angles(f);
    if (!f->embeds) return;
    if (!weft_forward_leads(f)) {
        weft_memory_fill(&f->memory, f->h, 0,
                         (int64_t)f->n_filled * c->hidden_size * SIZE_OF_FLOAT);
        return;
    }
    WEFT_ASSERT(f->weights->embed != NULL);
    const weft_embed embed = {
        .table = f->weights->embed,
        .ids = f->ids,
        .y = f->h,
        .dtype = f->weights->embed_dtype,
        .y_stride = c->hidden_size,
        .n_row = f->n_filled,
        .width = c->hidden_size,
    };
    f->ops->embed(f->threads, &embed);
}

/* -- acts ----------------------------------------------------------------- */

/* What a layer does between places where something has to come from elsewhere:
 * ops alone, and what a test looks at. A place in a step is layer * ACTS + act;
 * that before the first is where rows begin. */
enum { ATTEND, MIX, COMBINE, ADD, ACTS };

static void do_act(weft_forward *f, int32_t at)
{
    const int32_t l = at / ACTS, n = f->n_filled;
    switch (at % ACTS) {
    case ATTEND: {
        const weft_layer_weights *const w = &f->weights->layers[l];
        if (l > f->config->first_layer) WEFT_FAILPOINT("layers.mid_step");
        norm_rows(f, w->input_norm, n, weft_forward_input_round(f, w));
        weft_forward_attention(f, l, n);
        break;
    }
    case MIX:
        add_rows(f, n);
        norm_rows(f, f->weights->layers[l].post_norm, n, f->round);
        weft_forward_ffn_begin(f, l, n);
        break;
    case COMBINE: weft_forward_ffn_end(f, l, n); break;
    default:
        add_rows(f, n);
        if (f->hooks.layer_out != NULL) show_layer(f, l);
    }
}

static void run_acts(weft_forward *f, int32_t from, int32_t to)
{
    for (int32_t at = from; at < to; at++) {
        if (at < f->config->first_layer * ACTS)
            begin_rows(f);
        else
            do_act(f, at);
    }
}

/* The sum over ranks of what comes before that place. */
static weft_status sum(weft_forward *f, int32_t at, weft_err *err)
{
    const bool begins = at == f->config->first_layer * ACTS;
    if (f->options.rank == NULL) return WEFT_OK;
    return weft_comm_sum_rows(f->options.rank, f->threads, begins ? f->h : f->y,
                              f->n_filled, f->config->hidden_size,
                              begins ? WEFT_ROUND_NONE : f->round, err);
}

/* Whether something has to come from elsewhere before that place. */
static bool is_stop(const weft_forward *f, int32_t at)
{
    switch (at % ACTS) {
    case ATTEND:
        return f->options.rank != NULL && f->embeds &&
               at == f->config->first_layer * ACTS;
    case COMBINE: return weft_forward_asks(f, at / ACTS);
    default: return f->options.rank != NULL;
    }
}

static weft_status wait_at(weft_forward *f, int32_t at, weft_err *err)
{
    if (at % ACTS != COMBINE) return sum(f, at, err);
    weft_forward_ffn_ask(f, at / ACTS, f->n_filled);
    return weft_forward_ffn_collect(f, err);
}

static weft_status end_step(const weft_forward *f, weft_err *err)
{
    weft_comm_rank *const rank = f->options.rank;
    weft_err own = {0};
    if (rank == NULL) return weft_memory_sync(&f->memory, err);
    if (weft_memory_sync(&f->memory, &own) != WEFT_OK)
        return weft_comm_rank_fail(rank, &own, err);
    return weft_comm_rank_check(rank, err);
}

weft_status weft_forward_step(weft_forward *f, const weft_batch *batch,
                              weft_err *err)
{
    const int32_t first = f->config->first_layer * ACTS;
    const int32_t end = f->config->end_layer * ACTS;
    weft_forward_begin_graph(f, batch);
    put_inputs(f, batch);
    for (int32_t at = first - 1, to;; at = to) {
        for (to = at + 1; to < end && !is_stop(f, to);) to++;
        do {
            if (weft_forward_replay(f, at + 1)) break;
            run_acts(f, at, to);
        } while (!weft_forward_keep(f));
        if (to == end) return end_step(f, err);
        WEFT_TRY(wait_at(f, to, err));
    }
}

/* -- pairs ---------------------------------------------------------------- */

static weft_status begin_plain(weft_forward *f, const weft_batch *batch,
                               weft_err *err)
{
    weft_forward_begin_plain(f, batch);
    put_inputs(f, batch);
    begin_rows(f);
    const int32_t first = f->config->first_layer * ACTS;
    return is_stop(f, first) ? sum(f, first, err) : WEFT_OK;
}

static weft_status start_layer(weft_forward *f, int32_t l, weft_err *err)
{
    do_act(f, l * ACTS + ATTEND);
    WEFT_TRY(sum(f, l * ACTS + MIX, err));
    do_act(f, l * ACTS + MIX);
    weft_forward_ffn_ask(f, l, f->n_filled);
    return WEFT_OK;
}

static weft_status finish_layer(weft_forward *f, int32_t l, weft_err *err)
{
    WEFT_TRY(weft_forward_ffn_collect(f, err));
    do_act(f, l * ACTS + COMBINE);
    WEFT_TRY(sum(f, l * ACTS + ADD, err));
    do_act(f, l * ACTS + ADD);
    return WEFT_OK;
}

/* While the experts of one are away, the other ends its layer and begins the
 * next: a begins l, b ends l - 1 and begins l, a ends l. So the rows of a are
 * in the cache of a layer before b attends there, and whoever waits does so
 * while something of the other is under way as well. */
static weft_status take_turns(weft_forward *a, weft_forward *b, weft_err *err)
{
    const weft_model_config *const c = a->config;
    for (int32_t l = c->first_layer; l < c->end_layer; l++) {
        WEFT_TRY(start_layer(a, l, err));
        if (l > c->first_layer) WEFT_TRY(finish_layer(b, l - 1, err));
        WEFT_TRY(start_layer(b, l, err));
        WEFT_TRY(finish_layer(a, l, err));
    }
    return finish_layer(b, c->end_layer - 1, err);
}

weft_status weft_forward_step_pair(weft_forward *a, const weft_batch *batch_a,
                                   weft_forward *b, const weft_batch *batch_b,
                                   weft_err *err)
{
    weft_status st = begin_plain(a, batch_a, err);
    if (st == WEFT_OK) st = begin_plain(b, batch_b, err);
    if (st == WEFT_OK) st = take_turns(a, b, err);
    if (st == WEFT_OK) return end_step(a, err);
    /* What one has asked is borrowed until it is collected, whether or not the
     * other has failed. */
    weft_forward_ffn_abandon(a);
    weft_forward_ffn_abandon(b);
    return st;
}

const float *weft_forward_hidden(const weft_forward *forward)
{
    return forward->host.h;
}

weft_status weft_forward_fetch_hidden(weft_forward *f, weft_err *err)
{
    weft_memory_get(&f->memory, f->host.h, f->h,
                    (int64_t)f->n_rows * f->config->hidden_size *
                        SIZE_OF_FLOAT);
    return weft_memory_sync(&f->memory, err);
}

/* n rows that lie side by side into `final`. */
static void norm_final(weft_forward *f, const float *h, int32_t to, int32_t n)
{
    const weft_model_config *const c = f->config;
    const weft_rms_norm norm = {
        .x = h,
        .w = f->weights->final_norm,
        .y = f->final + (int64_t)to * c->hidden_size,
        .x_stride = c->hidden_size,
        .y_stride = c->hidden_size,
        .n_row = n,
        .width = c->hidden_size,
        .eps = c->rms_norm_eps,
        .scale = 1.0F,
        .round = f->round,
    };
    f->ops->rms_norm(f->threads, &norm);
}

/* Rows of the last step are on the device already. */
static bool are_own(const weft_forward *f, const float *const *hidden,
                    int32_t n)
{
    const float *const end =
        f->host.h + (int64_t)f->n_rows * f->config->hidden_size;
    for (int32_t i = 0; i < n; i++)
        if (hidden[i] < f->host.h || hidden[i] >= end) return false;
    return true;
}

static void gather_own(weft_forward *f, const float *const *hidden, int32_t n)
{
    const int64_t width = f->config->hidden_size;
    for (int32_t i = 0; i < n; i++)
        f->host.ids[i] = (int32_t)((hidden[i] - f->host.h) / width);
    weft_memory_put(&f->memory, f->ids, f->host.ids,
                    n * (int64_t)sizeof *f->ids);
    const weft_embed gather = {
        .table = f->h,
        .ids = f->ids,
        .y = f->final,
        .dtype = WEFT_F32,
        .y_stride = width,
        .n_row = n,
        .width = f->config->hidden_size,
    };
    f->ops->embed(f->threads, &gather);
}

static void put_foreign(weft_forward *f, const float *const *hidden, int32_t n)
{
    const int64_t width = f->config->hidden_size;
    for (int32_t i = 0; i < n; i++)
        memcpy(f->host.final + i * width, hidden[i],
               (size_t)(width * SIZE_OF_FLOAT));
    weft_memory_put(&f->memory, f->final, f->host.final,
                    n * width * SIZE_OF_FLOAT);
}

/* The chosen rows, normed, into `final`. */
static void take_final(weft_forward *f, const float *const *hidden, int32_t n)
{
    if (weft_memory_is_host(&f->memory)) {
        for (int32_t i = 0; i < n; i++) norm_final(f, hidden[i], i, 1);
        return;
    }
    if (are_own(f, hidden, n))
        gather_own(f, hidden, n);
    else
        put_foreign(f, hidden, n);
    norm_final(f, f->final, 0, n);
}

weft_status weft_forward_logits_of(weft_forward *f, const float *const *hidden,
                                   int32_t n, const float **logits_out,
                                   const weft_vocab_stat **stats_out,
                                   weft_err *err)
{
    const weft_model_config *const c = f->config;
    WEFT_ASSERT(n >= 1 && n <= f->options.max_logits_rows);
    take_final(f, hidden, n);
    const weft_gemm gemm = {
        .w = &f->weights->lm_head,
        .x = f->final,
        .y = f->logits,
        .x_stride = c->hidden_size,
        .y_stride = c->vocab_size,
        .n_row = n,
        .x_is_bf16 = f->round == WEFT_ROUND_BF16,
        .round = WEFT_ROUND_NONE,
    };
    f->ops->gemm(f->threads, &gemm, 1);
    const weft_vocab vocab = {
        .logits = f->logits,
        .stats_out = f->stats,
        .logits_stride = c->vocab_size,
        .n_row = n,
        .vocab = c->vocab_size,
    };
    f->ops->vocab(f->threads, &vocab);
    weft_memory_get(&f->memory, f->host.logits, f->logits,
                    (int64_t)n * c->vocab_size * SIZE_OF_FLOAT);
    weft_memory_get(&f->memory, f->host.stats, f->stats,
                    n * (int64_t)sizeof *f->stats);
    *logits_out = f->host.logits;
    *stats_out = f->host.stats;
    return weft_memory_sync(&f->memory, err);
}
