/* A round on a device. What it reads goes there in one piece, so that a round
 * costs one copy each way, however many experts it has:
 *
 *   weights [n_stretches], first [n_stretches + 1], x_rows [n_pairs],
 *   near_from [n_pairs], near_out [n_pairs], rows
 *
 * The table of experts is told with every round: it is small beside the rows,
 * and what the loader does to the store can never be half seen. A row that
 * several pairs ask for goes there once.
 *
 * Rows that came near are there already; they are moved behind those that were
 * uploaded, by near_from, client by client. near_out lists each near client's
 * rows of the result, which its link packs when all is done. */
#include <string.h>

#include "node/base/check.h"
#include "node/base/mem.h"
#include "shard/expert/server_internal.h"
#include "shard/link/near.h"

enum { PIECE_BYTES = 256 };

struct weft_server_device {
    weft_memory memory; /* of the ops */
    void *block, *host; /* all of the following: there, and pinned here */
    unsigned char *asked, *asked_host;
    float *gate, *up;      /* [ROUND_PAIRS_MAX, moe width] */
    float *out, *out_host; /* [ROUND_PAIRS_MAX, hidden] */
    size_t near_out;       /* of the last round */
};

static size_t rounded(size_t bytes)
{
    return (bytes + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
}

/* Where the parts of `asked` begin. */
typedef struct parts {
    size_t first, x_rows, near_from, near_out, x;
} parts;

static parts parts_of(int32_t n_stretches, int32_t n_pairs)
{
    parts p;
    p.first = (size_t)n_stretches * sizeof(weft_mlp_weights);
    p.x_rows = p.first + ((size_t)n_stretches + 1) * sizeof(int32_t);
    p.near_from = p.x_rows + (size_t)n_pairs * sizeof(int32_t);
    p.near_out = p.near_from + (size_t)n_pairs * sizeof(int32_t);
    p.x = rounded(p.near_out + (size_t)n_pairs * sizeof(int32_t));
    return p;
}

typedef struct sizes {
    size_t asked, hidden, wide;
} sizes;

static sizes sizes_of(const weft_model_config *c)
{
    const size_t n = WEFT_ROUND_PAIRS_MAX;
    sizes s;
    s.hidden = rounded(n * (size_t)c->hidden_size * sizeof(float));
    s.wide = rounded(n * (size_t)c->moe_intermediate_size * sizeof(float));
    s.asked = parts_of((int32_t)n, (int32_t)n).x + s.hidden;
    return s;
}

static int64_t bytes_of(const sizes *s)
{
    return (int64_t)(s->asked + 2 * s->wide + s->hidden);
}

int64_t weft_expert_server_device_bytes(const weft_model_config *config)
{
    const sizes s = sizes_of(config);
    return bytes_of(&s);
}

weft_status weft_server_device_create(const weft_expert_server_options *options,
                                      weft_server_device **device_out,
                                      weft_err *err)
{
    const sizes n = sizes_of(options->config);
    WEFT_ASSERT(options->ops->grouped != NULL);
    weft_server_device *const d = weft_mem_new(1, sizeof *d);
    if (d == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "experts: out of memory");
    d->memory = *options->memory;
    weft_status st = weft_memory_alloc(&d->memory, bytes_of(&n),
                                       "experts' rows", &d->block, err);
    if (st == WEFT_OK)
        st = d->memory.api->alloc_host(
            d->memory.device, (int64_t)(n.asked + n.hidden), &d->host, err);
    if (st != WEFT_OK) {
        weft_server_device_destroy(d);
        return st;
    }
    unsigned char *const there = d->block, *const here = d->host;
    d->asked = there;
    d->gate = (float *)(void *)(there + n.asked);
    d->up = (float *)(void *)(there + n.asked + n.wide);
    d->out = (float *)(void *)(there + n.asked + 2 * n.wide);
    d->asked_host = here;
    d->out_host = (float *)(void *)(here + n.asked);
    *device_out = d;
    return WEFT_OK;
}

void weft_server_device_destroy(weft_server_device *d)
{
    if (d == NULL) return;
    weft_memory_free(&d->memory, d->block);
    if (d->host != NULL) d->memory.api->free_host(d->memory.device, d->host);
    weft_mem_free(d);
}

weft_status weft_server_device_bind(const weft_server_device *d, weft_err *err)
{
    return weft_memory_bind(&d->memory, err);
}

void weft_server_device_unbind(const weft_server_device *d)
{
    weft_memory_unbind(&d->memory);
}

/* The experts, and which pairs are whose. */
static void lay_out_experts(const weft_expert_server *s,
                            const weft_server_plan *plan, const parts *p)
{
    unsigned char *const at = s->device->asked_host;
    weft_mlp_weights *const weights = (weft_mlp_weights *)(void *)at;
    int32_t *const first = (int32_t *)(void *)(at + p->first);
    for (int32_t i = 0; i < plan->n_stretches; i++) {
        const weft_server_stretch *const t = &plan->stretches[i];
        weights[i] = *s->held[t->expert];
        first[i] = t->first;
    }
    first[plan->n_stretches] = plan->n_pairs;
}

static void forget_places(weft_expert_server *s)
{
    for (int32_t i = 0; i < s->n_clients; i++) {
        weft_server_question *const q = &s->clients[i].question;
        if (s->clients[i].n_taken > 0)
            memset(q->places, 0xff,
                   (size_t)q->frame.n_rows * sizeof *q->places);
    }
}

/* The rows of the host that are asked for, once each, and which one each pair
 * has. How many there are. */
static int32_t lay_out_rows(weft_expert_server *s, const weft_server_plan *plan,
                            const parts *p)
{
    const size_t hidden = (size_t)s->config->hidden_size;
    unsigned char *const at = s->device->asked_host;
    int32_t *const x_rows = (int32_t *)(void *)(at + p->x_rows);
    float *const x = (float *)(void *)(at + p->x);
    int32_t n = 0;
    for (int32_t i = 0; i < plan->n_pairs; i++) {
        const weft_server_picked *const picked = &s->picked[i];
        weft_server_question *const q = &s->clients[picked->client].question;
        int32_t *const place = &q->places[q->pairs[picked->pair].row];
        if (q->frame.is_near) continue;
        if (*place < 0) {
            *place = n++;
            memcpy(x + (size_t)*place * hidden,
                   weft_server_asked_row(s, picked), hidden * sizeof *x);
        }
        x_rows[i] = *place;
    }
    return n;
}

static bool is_near(const weft_server_client *c)
{
    return c->n_taken > 0 && c->question.frame.is_near;
}

/* The near rows of a client behind n others, and its results behind those of
 * n_out pairs. */
static void list_near(weft_expert_server *s, const weft_server_plan *plan,
                      const parts *p, int32_t client, int32_t n, int32_t n_out)
{
    unsigned char *const at = s->device->asked_host;
    int32_t *const x_rows = (int32_t *)(void *)(at + p->x_rows);
    int32_t *const from = (int32_t *)(void *)(at + p->near_from);
    int32_t *const out = (int32_t *)(void *)(at + p->near_out);
    weft_server_client *const c = &s->clients[client];
    c->near_first = n;
    c->near_at = n_out;
    for (int32_t i = 0; i < plan->n_pairs; i++) {
        if (s->picked[i].client != client) continue;
        const int32_t row = c->question.pairs[s->picked[i].pair].row;
        if (c->question.places[row] < 0) {
            from[n] = row;
            c->question.places[row] = n++;
        }
        x_rows[i] = c->question.places[row];
        out[n_out++] = i;
    }
    c->near_rows = n - c->near_first;
}

static void move_near(weft_expert_server *s, const parts *p,
                      const weft_server_client *c)
{
    unsigned char *const at = s->device->asked;
    const int64_t hidden = s->config->hidden_size;
    const weft_move move = {
        .x = c->question.frame.rows,
        .x_rows =
            (const int32_t *)(const void *)(at + p->near_from) + c->near_first,
        .y = (float *)(void *)(at + p->x) + c->near_first * hidden,
        .x_stride = hidden,
        .y_stride = hidden,
        .n_row = c->near_rows,
        .width = (int32_t)hidden,
    };
    s->options.ops->move(NULL, &move);
}

/* Lists and the host's rows go there in one piece, then near rows behind them.
 * Whether any result is for the host. */
static bool put_round(weft_expert_server *s, const weft_server_plan *plan,
                      const parts *p)
{
    weft_server_device *const d = s->device;
    lay_out_experts(s, plan, p);
    forget_places(s);
    const int32_t n_host = lay_out_rows(s, plan, p);
    int32_t n = n_host, n_out = 0;
    for (int32_t i = 0; i < s->n_clients; i++) {
        if (!is_near(&s->clients[i])) continue;
        list_near(s, plan, p, i, n, n_out);
        n += s->clients[i].near_rows;
        n_out += s->clients[i].n_taken;
    }
    weft_memory_put(&d->memory, d->asked, d->asked_host,
                    (int64_t)p->x +
                        n_host * (int64_t)s->config->hidden_size * 4);
    for (int32_t i = 0; i < s->n_clients; i++)
        if (is_near(&s->clients[i])) move_near(s, p, &s->clients[i]);
    d->near_out = p->near_out;
    return n_out < plan->n_pairs;
}

static weft_grouped product(const weft_expert_server *s,
                            const weft_server_plan *plan, const parts *p,
                            const weft_matrix *shape, const weft_matrix *w)
{
    unsigned char *const at = s->device->asked;
    return (weft_grouped){
        .w = w,
        .w_stride = sizeof(weft_mlp_weights),
        .first = (const int32_t *)(const void *)(at + p->first),
        .x_stride = shape->n_in,
        .y_stride = shape->n_out,
        .n_pairs = plan->n_pairs,
        .n_expert = plan->n_stretches,
        .n_out = shape->n_out,
        .n_in = shape->n_in,
        .x_is_bf16 = s->round == WEFT_ROUND_BF16,
        .round = s->round,
    };
}

static void begin_products(weft_expert_server *s, const weft_server_plan *plan,
                           const parts *p)
{
    weft_server_device *const d = s->device;
    const weft_ops *const ops = s->options.ops;
    const weft_mlp_weights *const shape = s->held[plan->stretches[0].expert];
    const weft_mlp_weights *const there =
        (const weft_mlp_weights *)(const void *)d->asked;
    weft_grouped op = product(s, plan, p, &shape->gate, &there->gate);
    op.x = (const float *)(const void *)(d->asked + p->x);
    op.x_rows = (const int32_t *)(const void *)(d->asked + p->x_rows);
    op.y = d->gate;
    ops->grouped(s->threads, &op);
    op.w = &there->up;
    op.y = d->up;
    ops->grouped(s->threads, &op);
    const weft_silu_mul act = {
        .a = d->gate,
        .b = d->up,
        .y = d->gate,
        .a_stride = shape->gate.n_out,
        .b_stride = shape->gate.n_out,
        .y_stride = shape->gate.n_out,
        .n_row = plan->n_pairs,
        .width = shape->gate.n_out,
        .round = s->round,
    };
    ops->silu_mul(s->threads, &act);
    op = product(s, plan, p, &shape->down, &there->down);
    op.x = d->gate;
    op.y = d->out;
    ops->grouped(s->threads, &op);
}

weft_status weft_server_device_compute(weft_expert_server *s,
                                       const weft_server_plan *plan,
                                       const float **out, weft_err *err)
{
    weft_server_device *const d = s->device;
    const int64_t hidden = s->config->hidden_size;
    const parts p = parts_of(plan->n_stretches, plan->n_pairs);
    const bool to_host = put_round(s, plan, &p);
    begin_products(s, plan, &p);
    if (to_host)
        weft_memory_get(&d->memory, d->out_host, d->out,
                        plan->n_pairs * hidden * 4);
    *out = d->out_host;
    /* Near answers wait for this, too: what has failed is not answered. */
    return weft_memory_sync(&d->memory, err);
}

weft_status weft_server_device_send(const weft_expert_server *s,
                                    const weft_server_client *c,
                                    const weft_frame *frame, weft_err *err)
{
    const weft_server_device *const d = s->device;
    const weft_near_rows rows = {
        .x = d->out,
        .x_rows = (const int32_t *)(const void *)(d->asked + d->near_out) +
                  c->near_at,
    };
    return weft_link_send_near(c->link, frame, &rows, err);
}
