/* Where the step's buffers lie. The ops' memory holds what they read and write;
 * what the host reads or writes as well has a namesake in host memory, which is
 * the same place if the ops' memory is the host's. */
#include <string.h>

#include "node/base/mem.h"
#include "shard/model/forward_internal.h"

/* Hands out pieces of one block; with base NULL it only adds up. */
typedef struct bump {
    unsigned char *base;
    size_t used;
} bump;

typedef struct blocks {
    bump ops, host;
    bool apart; /* two memories */
} blocks;

enum { PIECE_BYTES = 256 };

static void *take_from(bump *b, int64_t n, size_t item_bytes)
{
    const size_t bytes =
        ((size_t)n * item_bytes + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
    void *const at = b->base == NULL ? NULL : b->base + b->used;
    b->used += bytes;
    return at;
}

static void *take(blocks *b, int64_t n, size_t item_bytes)
{
    return take_from(&b->ops, n, item_bytes);
}

static float *take_floats(blocks *b, int64_t rows, int64_t width)
{
    return take(b, rows * width, sizeof(float));
}

/* A piece of the ops' memory, and its namesake. */
static void *take_both(blocks *b, int64_t n, size_t item_bytes, void **host_out)
{
    void *const at = take(b, n, item_bytes);
    *host_out = b->apart ? take_from(&b->host, n, item_bytes) : at;
    return at;
}

static float *take_floats_both(blocks *b, int64_t rows, int64_t width,
                               float **host_out)
{
    void *host = NULL;
    float *const at = take_both(b, rows * width, sizeof(float), &host);
    *host_out = host;
    return at;
}

static int32_t *take_ints_both(blocks *b, int64_t n, int32_t **host_out)
{
    void *host = NULL;
    int32_t *const at = take_both(b, n, sizeof(int32_t), &host);
    *host_out = host;
    return at;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Widths that must hold for the wider of both geometries. */
typedef struct widths {
    int64_t q_latent, kv, gate, q, absorbed, latent_out, heads_out, rope;
} widths;

static widths attention_widths(const weft_model_config *c)
{
    widths w = {0};
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        const weft_geometry *const g = &c->geometry[k];
        if (c->n_kind[k] == 0) continue;
        const int64_t n_head = g->n_head;
        const int64_t row = weft_config_row_width(c, (weft_kind)k);
        w.q_latent = larger(w.q_latent, g->q_lora_rank);
        w.kv = larger(w.kv, row);
        w.gate = larger(w.gate, g->gate == WEFT_GATE_ELEMENTWISE
                                    ? n_head * g->v_head_dim
                                    : n_head);
        w.q = larger(w.q, n_head * (g->qk_nope_head_dim + g->qk_rope_head_dim));
        w.absorbed = larger(w.absorbed, n_head * row);
        w.latent_out = larger(w.latent_out, n_head * g->kv_lora_rank);
        w.heads_out = larger(w.heads_out, n_head * g->v_head_dim);
        w.rope = larger(w.rope, g->qk_rope_head_dim / 2);
    }
    return w;
}

/* Nothing else of the two blocks lies between these, so that one copy brings
 * them over: page tables, which are used in part, come last. */
static void plan_step(weft_forward *f, blocks *b)
{
    const int64_t rows = f->options.max_rows;
    void *host = NULL;
    f->positions = take_ints_both(b, rows, &f->host.positions);
    f->ids = take_ints_both(b, rows, &f->host.ids);
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        f->rows[k] = take_both(b, rows, sizeof *f->rows[k], &host);
        f->host.rows[k] = host;
    }
    if (!b->apart) return;
    f->pages = take_both(b, f->pages_max, sizeof *f->pages, &host);
    f->host.pages = host;
}

static void plan_angles(weft_forward *f, blocks *b, int64_t rope_width)
{
    const int64_t rows = f->options.max_rows;
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        f->inv_freq[k] =
            take_floats_both(b, 1, rope_width, &f->host.inv_freq[k]);
        f->cos[k] = take_floats(b, rows, rope_width);
        f->sin[k] = take_floats(b, rows, rope_width);
    }
}

static void plan_index(weft_forward *f, blocks *b)
{
    const weft_model_config *const c = f->config;
    const int64_t rows = f->options.max_rows;
    if (!c->dsa || c->n_kind[WEFT_FULL] == 0) return;
    f->index_q =
        take_floats(b, rows, (int64_t)c->index_n_head * c->index_head_dim);
    f->index_k = take_floats(b, rows, c->index_head_dim);
    f->index_w = take_floats(b, rows, c->index_n_head);
    f->index_keys =
        take_ints_both(b, rows * c->index_topk, &f->host.index_keys);
    f->index_n_keys = take_ints_both(b, rows, &f->host.index_n_keys);
    if (b->apart) return; /* a device has scratch of its own */
    const int64_t scratch =
        (int64_t)f->options.n_threads * f->options.max_context;
    f->index_scores = take_floats(b, scratch, 1);
}

static void plan_attention(weft_forward *f, blocks *b)
{
    const int64_t rows = f->options.max_rows;
    const int64_t tile =
        rows < WEFT_ATTN_TILE_ROWS ? rows : WEFT_ATTN_TILE_ROWS;
    const widths w = attention_widths(f->config);
    plan_angles(f, b, w.rope);
    f->q_latent = take_floats(b, rows, w.q_latent);
    f->kv = take_floats(b, rows, w.kv);
    f->gate = take_floats(b, rows, w.gate);
    f->q = take_floats(b, rows, w.q);
    f->q_absorbed = take_floats(b, tile, w.absorbed);
    f->latent_out = take_floats(b, tile, w.latent_out);
    f->heads_out = take_floats(b, rows, w.heads_out);
    plan_index(f, b);
}

static bool has_moe(const weft_model_config *c)
{
    for (int32_t l = c->first_layer; l < c->end_layer; l++)
        if (c->moe[l]) return true;
    return false;
}

static void plan_ffn(weft_forward *f, blocks *b)
{
    const weft_model_config *const c = f->config;
    const int64_t rows = f->options.max_rows;
    const int64_t width =
        larger(c->intermediate_size, c->shared_intermediate_size);
    f->mlp_gate = take_floats(b, rows, width);
    f->mlp_up = take_floats(b, rows, width);
    /* Where experts are elsewhere they are rank 0's alone. */
    if (!has_moe(c) || (f->options.follows && f->options.experts != NULL))
        return;
    const int64_t slots = rows * c->top_k;
    f->shared_out = take_floats(b, rows, c->hidden_size);
    f->router_logits = take_floats(b, rows, c->n_expert);
    f->route_weights = take_floats_both(b, slots, 1, &f->host.route_weights);
    f->route_experts = take_ints_both(b, slots, &f->host.route_experts);
    f->row_of = take_ints_both(b, slots, &f->host.row_of);
    f->expert_out =
        take_floats_both(b, slots, c->hidden_size, &f->host.expert_out);
    if (f->options.experts != NULL) return;
    f->expert_rows = take(b, slots, sizeof(int32_t));
    f->expert_first = take(b, c->n_expert + 1, sizeof(int32_t));
    f->expert_gate = take_floats(b, slots, c->moe_intermediate_size);
    f->expert_up = take_floats(b, slots, c->moe_intermediate_size);
}

/* The longest list of products of one run: one for each head, or two for each
 * expert, and the few of the shared parts. */
static int64_t gemms_max(const weft_model_config *c, bool experts_here)
{
    int64_t n = experts_here ? 2 * (int64_t)c->n_expert : 0;
    for (int32_t k = 0; k < WEFT_KINDS; k++)
        if (c->n_kind[k] > 0) n = larger(n, c->geometry[k].n_head);
    return n + 8;
}

static void plan(weft_forward *f, blocks *b)
{
    const weft_model_config *const c = f->config;
    const int64_t rows = f->options.max_rows;
    const int64_t n = f->options.max_logits_rows;
    void *stats = NULL;
    f->gemms =
        take_from(b->apart ? &b->host : &b->ops,
                  gemms_max(c, f->options.experts == NULL), sizeof *f->gemms);
    plan_step(f, b);
    f->h = take_floats_both(b, rows, c->hidden_size, &f->host.h);
    f->x = take_floats_both(b, rows, c->hidden_size, &f->host.x);
    f->y = take_floats(b, rows, c->hidden_size);
    plan_attention(f, b);
    plan_ffn(f, b);
    f->final = take_floats_both(b, n, c->hidden_size, &f->host.final);
    f->logits = take_floats_both(b, n, c->vocab_size, &f->host.logits);
    f->stats = take_both(b, n, sizeof *f->stats, &stats);
    f->host.stats = stats;
}

static void set_limits(weft_forward *f)
{
    const weft_forward_options *const o = &f->options;
    const int32_t page = o->page_tokens > 0 ? o->page_tokens : 1;
    f->memory = o->memory != NULL ? *o->memory : (weft_memory){0};
    f->pages_max = (int64_t)o->max_sequences * WEFT_KINDS *
                   ((o->max_context + page - 1) / page);
}

int64_t weft_forward_bytes(const weft_model_config *config,
                           const weft_forward_options *options,
                           int64_t *device_bytes_out)
{
    weft_forward f = {.config = config, .options = *options};
    set_limits(&f);
    blocks b = {.apart = !weft_memory_is_host(&f.memory)};
    plan(&f, &b);
    const int64_t ops = (int64_t)b.ops.used, host = (int64_t)b.host.used;
    if (device_bytes_out != NULL) *device_bytes_out = b.apart ? ops : 0;
    return (b.apart ? host : ops) + (int64_t)sizeof f;
}

static weft_status alloc_blocks(weft_forward *f, blocks *b, weft_err *err)
{
    const int64_t ops = (int64_t)b->ops.used, host = (int64_t)b->host.used;
    WEFT_TRY(
        weft_memory_alloc(&f->memory, ops, "step buffers", &f->ops_block, err));
#ifndef NDEBUG
    weft_memory_fill(&f->memory, f->ops_block, 0xff, ops);
#endif
    b->ops = (bump){.base = f->ops_block};
    if (!b->apart) return WEFT_OK;
    WEFT_TRY(
        f->memory.api->alloc_host(f->memory.device, host, &f->host_block, err));
    b->host = (bump){.base = f->host_block};
    return WEFT_OK;
}

weft_status weft_forward_take_memory(weft_forward *f, weft_err *err)
{
    set_limits(f);
    blocks b = {.apart = !weft_memory_is_host(&f->memory)};
    plan(f, &b);
    WEFT_TRY(alloc_blocks(f, &b, err));
    plan(f, &b);
    return WEFT_OK;
}

void weft_forward_free_memory(weft_forward *f)
{
    weft_memory_free(&f->memory, f->ops_block);
    if (f->host_block != NULL)
        f->memory.api->free_host(f->memory.device, f->host_block);
}

/* The page tables of the rows, one behind the other from entry `used` on, as
 * far as they are used; rows of one sequence are neighbours and share one.
 * Gives the first entry behind them. */
static int64_t lay_out_pages(weft_forward *f, const weft_batch *batch,
                             int32_t k, int64_t used)
{
    const int64_t page = f->options.page_tokens;
    for (int32_t r = 0; r < batch->n_rows;) {
        int32_t end = r + 1;
        while (end < batch->n_rows &&
               batch->pages[k][end] == batch->pages[k][r])
            end++;
        const int64_t n = batch->positions[end - 1] / page + 1;
        WEFT_ASSERT(used + n <= f->pages_max);
        memcpy(f->host.pages + used, batch->pages[k][r],
               (size_t)n * sizeof *f->host.pages);
        for (; r < end; r++) f->host.rows[k][r].pages = f->pages + used;
        used += n;
    }
    return used;
}

static void set_rows(weft_forward *f, const weft_batch *batch, int32_t k)
{
    const int32_t window = k == WEFT_WINDOW ? f->config->window : 0;
    weft_row *const rows = f->host.rows[k];
    for (int32_t r = 0; r < batch->n_rows; r++) {
        const int32_t p = batch->positions[r];
        rows[r] = (weft_row){
            .pages = batch->pages[k][r],
            .position = p,
            .first = window > 0 && p >= window ? p - window + 1 : 0,
        };
    }
    for (int32_t r = batch->n_rows; r < f->n_filled; r++)
        rows[r] = (weft_row){.position = -1};
}

void weft_forward_put_step(weft_forward *f, const weft_batch *batch)
{
    const int32_t n = batch->n_rows, more = f->n_filled - n;
    const bool is_host = weft_memory_is_host(&f->memory);
    int64_t n_pages = 0;
    memcpy(f->host.positions, batch->positions,
           (size_t)n * sizeof *f->host.positions);
    memset(f->host.positions + n, 0, (size_t)more * sizeof *f->host.positions);
    if (batch->hidden == NULL) {
        memcpy(f->host.ids, batch->tokens, (size_t)n * sizeof *f->host.ids);
        memset(f->host.ids + n, 0, (size_t)more * sizeof *f->host.ids);
    }
    for (int32_t k = 0; k < WEFT_KINDS; k++) {
        if (f->config->n_kind[k] == 0) continue;
        set_rows(f, batch, k);
        if (!is_host) n_pages = lay_out_pages(f, batch, k, n_pages);
    }
    if (is_host) return;
    const int64_t bytes = (const char *)(f->host.pages + n_pages) -
                          (const char *)f->host.positions;
    weft_memory_put(&f->memory, f->positions, f->host.positions, bytes);
}
