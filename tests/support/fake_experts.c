#include "tests/support/fake_experts.h"

#include <check.h>
#include <string.h>
#include <time.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "tests/support/expect.h"

static void dispatch(void *arg, const weft_experts_call *call)
{
    fake_experts *const f = arg;
    ck_assert(!f->away[call->lane]);
    for (int i = 0; i < WEFT_STEP_LANES; i++)
        if (f->away[i]) (void)atomic_fetch_add(&f->two_at_once, 1);
    f->away[call->lane] = true;
    memset(call->out, 0xff,
           (size_t)call->n_rows * (size_t)call->top_k *
               (size_t)f->h->config.hidden_size * sizeof(float));
}

static void product(const fake_experts *f, const weft_matrix *w, const float *x,
                    float *y)
{
    const weft_gemm gemm = {.w = w,
                            .x = x,
                            .y = y,
                            .x_stride = w->n_in,
                            .y_stride = w->n_out,
                            .n_row = 1};
    harness_ops(NULL)->gemm(f->threads, &gemm, 1);
}

static void compute_pair(const fake_experts *f, const weft_experts_call *call,
                         int32_t pair)
{
    const int64_t hidden = f->h->config.hidden_size;
    const int32_t width = f->h->config.moe_intermediate_size;
    const weft_mlp_weights *const w = &weft_model_weights(f->h->model)
                                           ->layers[call->layer]
                                           .experts[call->experts[pair]];
    const float *const x = call->x + (int64_t)(pair / call->top_k) * hidden;
    product(f, &w->gate, x, f->scratch);
    product(f, &w->up, x, f->scratch + width);
    const weft_silu_mul act = {.a = f->scratch,
                               .b = f->scratch + width,
                               .y = f->scratch,
                               .a_stride = width,
                               .b_stride = width,
                               .y_stride = width,
                               .n_row = 1,
                               .width = width};
    harness_ops(NULL)->silu_mul(f->threads, &act);
    product(f, &w->down, f->scratch, call->out + (int64_t)pair * hidden);
}

static bool take_one(atomic_int *left)
{
    int n = atomic_load(left);
    while (n > 0)
        if (atomic_compare_exchange_weak(left, &n, n - 1)) return true;
    return false;
}

static weft_status collect(void *arg, const weft_experts_call *call,
                           weft_err *err)
{
    fake_experts *const f = arg;
    const int n = atomic_fetch_add(&f->n_collects, 1) + 1;
    const int every = atomic_load(&f->fail_every);
    ck_assert(f->away[call->lane]);
    f->away[call->lane] = false;
    if (atomic_load(&f->broken))
        return WEFT_FAIL(err, WEFT_INTERNAL, "layer %d: experts are broken",
                         call->layer);
    if (take_one(&f->fail_collects) || (every > 0 && n % every == 0)) {
        (void)atomic_fetch_add(&f->n_failed, 1);
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "layer %d: experts are gone",
                         call->layer);
    }
    for (int32_t p = 0; p < call->n_rows * call->top_k; p++)
        compute_pair(f, call, p);
    return WEFT_OK;
}

static weft_status begin(void *arg, uint64_t step, uint32_t attempt,
                         uint64_t epoch, uint64_t *epoch_out, weft_err *err)
{
    fake_experts *const f = arg;
    (void)atomic_fetch_add(&f->n_begins, 1);
    for (int i = 0; i < WEFT_STEP_LANES; i++) f->away[i] = false;
    if (atomic_load(&f->gone) || take_one(&f->fail_begins)) {
        (void)atomic_fetch_add(&f->n_failed, 1);
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "step %d, try %u: no experts",
                         (int)step, attempt);
    }
    ck_assert(epoch == 0 || epoch == 7);
    *epoch_out = 7;
    return WEFT_OK;
}

static void idle(void *arg, uint64_t deadline_ns)
{
    fake_experts *const f = arg;
    (void)atomic_fetch_add(&f->n_idles, 1);
    const struct timespec pause = {.tv_nsec = 1000000};
    if (weft_clock_now_ns() < deadline_ns) (void)nanosleep(&pause, NULL);
}

fake_experts *fake_experts_open(const harness *h)
{
    fake_experts *const f = weft_mem_new(1, sizeof *f);
    f->h = h;
    OK(weft_threads_create(1, &f->threads, &err));
    f->scratch = weft_mem_new(2 * (size_t)h->config.moe_intermediate_size,
                              sizeof *f->scratch);
    f->seam = (weft_experts){.dispatch = dispatch,
                             .collect = collect,
                             .begin = begin,
                             .idle = idle,
                             .arg = f};
    return f;
}

void fake_experts_close(fake_experts *f)
{
    if (f == NULL) return;
    weft_threads_destroy(f->threads);
    weft_mem_free(f->scratch);
    weft_mem_free(f);
}
