#include "tests/support/puppet.h"

#include <check.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "shard/expert/body.h"
#include "tests/support/expect.h"
#include "tests/support/harness.h"

typedef struct work {
    puppet *p;
    weft_poller *poller;
    weft_threads *threads;
    weft_dispatch_pair *pairs;
    float *out, *gate;
} work;

static const weft_model_config *config_of(const work *w)
{
    return &w->p->pool->shards[w->p->shard].config;
}

static void product(const work *w, const weft_matrix *m, const float *x,
                    float *y)
{
    const weft_gemm gemm = {.w = m,
                            .x = x,
                            .y = y,
                            .x_stride = m->n_in,
                            .y_stride = m->n_out,
                            .n_row = 1};
    harness_ops(NULL)->gemm(w->threads, &gemm, 1);
}

static void compute(const work *w, const weft_frame *asked,
                    const weft_dispatch_pair *pair, float *out)
{
    const weft_model_config *const c = config_of(w);
    const weft_mlp_weights *const e = weft_expert_store_get(
        w->p->pool->shards[w->p->shard].store, asked->layer, pair->expert);
    ck_assert_ptr_nonnull(e);
    const int32_t width = c->moe_intermediate_size;
    const float *const rows = asked->rows;
    const float *const x = rows + (int64_t)pair->row * c->hidden_size;
    product(w, &e->gate, x, w->gate);
    product(w, &e->up, x, w->gate + width);
    const weft_silu_mul act = {.a = w->gate,
                               .b = w->gate + width,
                               .y = w->gate,
                               .a_stride = width,
                               .b_stride = width,
                               .y_stride = width,
                               .n_row = 1,
                               .width = width};
    harness_ops(NULL)->silu_mul(w->threads, &act);
    product(w, &e->down, w->gate, out);
}

static weft_frame named(const weft_frame *asked, weft_frame_type type)
{
    weft_frame f = *asked;
    f.type = type;
    f.body = f.rows = NULL;
    f.body_bytes = 0;
    f.n_rows = 0;
    f.row_bytes = 0;
    return f;
}

/* False: the link is gone. */
static bool send(work *w, const weft_frame *frame, const void *const *rows)
{
    for (;;) {
        weft_frame dropped;
        bool got = false;
        const weft_status st = weft_link_send(w->p->link, frame, rows, NULL);
        if (st != WEFT_RESOURCE_EXHAUSTED) return st == WEFT_OK;
        if (atomic_load(&w->p->ends)) return false;
        weft_poller_wait(w->poller, weft_clock_now_ns() + 1000000U, 0);
        (void)dropped;
        (void)got;
    }
}

/* Wrong rows under each name that is not quite the one that is waited for. */
static bool send_stale(work *w, const weft_frame *right,
                       const void *const *rows)
{
    float *const wrong = weft_mem_new(right->row_bytes, 1);
    const void *all[WEFT_ANSWER_ROWS_MAX];
    bool ok = true;
    (void)rows;
    for (int32_t i = 0; i < right->n_rows; i++) all[i] = wrong;
    for (int32_t i = 0; i < PUPPET_STALE_NAMES && ok; i++) {
        weft_frame f = *right;
        switch (i) {
        case 0: f.epoch++; break;
        case 1: f.step++; break;
        case 2: f.step--; break;
        case 3: f.layer++; break;
        case 4: f.attempt++; break;
        case 5: f.attempt--; break;
        case 6: f.group++; break;
        case 7: f.tag ^= 1; break;
        default: f.tag += 2000; break;
        }
        ok = send(w, &f, all);
        atomic_fetch_add(&w->p->n_stale, ok);
    }
    weft_mem_free(wrong);
    return ok;
}

/* What is wrong with the answer of these pairs, by what it is told. */
static bool send_garbage(work *w, const weft_frame *right, uint32_t *pairs,
                         const void *const *rows)
{
    weft_frame f = *right;
    uint32_t body[WEFT_ANSWER_ROWS_MAX + 2] = {0};
    const size_t n = (size_t)right->n_rows;
    switch (w->p->act) {
    case PUPPET_PAIR_BEYOND: pairs[n - 1] = 1U << 30; break;
    case PUPPET_PAIR_TWICE: pairs[n - 1] = pairs[0]; break;
    /* The one before was answered; or, at a start, nobody asked it here. */
    case PUPPET_PAIR_AGAIN: pairs[n - 1] = 0; break;
    case PUPPET_FOREIGN_PAIR: pairs[n - 1] ^= 1; break;
    default: break;
    }
    body[0] = (uint32_t)n;
    memcpy(body + 1, pairs, n * sizeof *pairs);
    f.body = body;
    f.body_bytes = (n + 1) * sizeof *body;
    switch (w->p->act) {
    case PUPPET_FEW_PAIRS:
        body[0]--;
        f.body_bytes -= 4;
        break;
    case PUPPET_HUGE_COUNT: body[0] = UINT32_MAX; break;
    case PUPPET_LONG_BODY: f.body_bytes += 4; break;
    case PUPPET_SHORT_ROWS: f.row_bytes -= 4; break;
    case PUPPET_NO_ROWS:
        body[0] = 0;
        f.body_bytes = 4;
        f.n_rows = 0;
        f.row_bytes = 0;
        break;
    case PUPPET_ODD_TYPE: f.type = WEFT_FRAME_PLAN; break;
    case PUPPET_ODD_REJECT:
        f = named(right, WEFT_FRAME_REJECT);
        body[0] = 77;
        f.body = body;
        f.body_bytes = 1;
        break;
    default: break;
    }
    return send(w, &f, rows);
}

static void stand_still(work *w)
{
    const bool pulses = w->p->act == PUPPET_DAWDLES;
    while (!atomic_load(&w->p->ends)) {
        if (pulses) weft_link_pulse(w->p->link, 1);
        weft_poller_wait(w->poller, weft_clock_now_ns() + 5000000U, 0);
    }
}

/* One frame of rows. False: its part is over. */
static bool answer(work *w, const weft_frame *asked, int32_t first, int32_t n)
{
    const int64_t hidden = config_of(w)->hidden_size;
    uint32_t pairs[WEFT_ANSWER_ROWS_MAX];
    const void *rows[WEFT_ANSWER_ROWS_MAX];
    unsigned char body[WEFT_ANSWER_BODY_BYTES_MAX];
    for (int32_t i = 0; i < n; i++) {
        pairs[i] = w->pairs[first + i].pair;
        rows[i] = w->out + i * hidden;
        compute(w, asked, &w->pairs[first + i], w->out + i * hidden);
    }
    weft_frame f = named(asked, WEFT_FRAME_ANSWER);
    f.body = body;
    f.body_bytes = weft_answer_encode(pairs, n, body);
    f.n_rows = n;
    f.row_bytes = (uint32_t)hidden * (uint32_t)sizeof(float);
    const bool acts = atomic_load(&w->p->n_frames) == w->p->at &&
                      w->p->act != PUPPET_GOOD && w->p->act != PUPPET_STALE &&
                      w->p->act != PUPPET_REJECTS;
    if (w->p->act == PUPPET_STALE && !send_stale(w, &f, rows)) return false;
    if (acts) {
        atomic_store(&w->p->acted_ns, weft_clock_now_ns());
        if (w->p->act >= PUPPET_FEW_PAIRS)
            (void)send_garbage(w, &f, pairs, rows);
        if (w->p->act == PUPPET_CLOSES) return false;
        stand_still(w);
        return false;
    }
    if (!send(w, &f, rows)) return false;
    atomic_fetch_add(&w->p->n_frames, 1);
    return true;
}

static bool serve_one(work *w, const weft_frame *asked)
{
    int32_t n = 0;
    OK(weft_dispatch_decode(asked, config_of(w), w->pairs, &n, &err));
    if (w->p->act == PUPPET_REJECTS && w->p->n_rejects > 0) {
        unsigned char body[WEFT_REJECT_TEXT_BYTES];
        weft_frame f = named(asked, WEFT_FRAME_REJECT);
        f.body = body;
        f.body_bytes = weft_reject_encode(WEFT_REJECT_EPOCH, "not yet", body);
        w->p->n_rejects--;
        return send(w, &f, NULL);
    }
    const int32_t rows = w->p->rows > 0 ? w->p->rows : WEFT_ANSWER_ROWS_MAX;
    for (int32_t i = 0; i < n; i += rows)
        if (!answer(w, asked, i, n - i < rows ? n - i : rows)) return false;
    return true;
}

static void *play(void *arg)
{
    puppet *const p = arg;
    work w = {.p = p};
    const weft_model_config *const c = config_of(&w);
    OK(weft_poller_create(&w.poller, &err));
    OK(weft_poller_add(w.poller, p->link, &err));
    OK(weft_threads_create(1, &w.threads, &err));
    w.pairs = weft_mem_new(WEFT_DISPATCH_PAIRS_MAX, sizeof *w.pairs);
    w.out = weft_mem_new((size_t)WEFT_ANSWER_ROWS_MAX * (size_t)c->hidden_size,
                         sizeof *w.out);
    w.gate = weft_mem_new(2 * (size_t)c->moe_intermediate_size, sizeof *w.gate);
    for (bool on = true; on && !atomic_load(&p->ends);) {
        weft_frame asked;
        bool got = false;
        if (weft_link_recv(p->link, &asked, &got, NULL) != WEFT_OK) break;
        if (got)
            on = serve_one(&w, &asked);
        else
            weft_poller_wait(w.poller, weft_clock_now_ns() + 10000000U, 0);
    }
    weft_poller_remove(w.poller, p->link);
    weft_link_close(p->link);
    weft_poller_destroy(w.poller);
    weft_threads_destroy(w.threads);
    weft_mem_free(w.pairs);
    weft_mem_free(w.out);
    weft_mem_free(w.gate);
    return NULL;
}

void puppet_start(puppet *p, weft_exchange *exchange)
{
    pool_shard *const shard = &p->pool->shards[p->shard];
    const weft_link_options a = pool_asker_link(p->pool),
                            b = pool_server_link(p->pool);
    weft_link *here = NULL;
    ck_assert_ptr_null(shard->server);
    OK(weft_link_create_local(&a, &b, &here, &p->link, &err));
    OK(weft_exchange_add_link(exchange, &shard->peer, here, &err));
    atomic_store(&p->ends, false);
    weft_expert_store_quiesce(shard->store, false);
    ck_assert_int_eq(pthread_create(&p->thread, NULL, play, p), 0);
}

void puppet_stop(puppet *p)
{
    atomic_store(&p->ends, true);
    ck_assert_int_eq(pthread_join(p->thread, NULL), 0);
    weft_expert_store_quiesce(p->pool->shards[p->shard].store, true);
}
