/* bench_sched - the policies of router and leads at fleet size.
 *
 *   bench_sched
 *
 * 64 groups, each with a real scheduler over a real page pool of dots3's
 * shape, and nothing computed: a step takes 25 ms of virtual time. Requests
 * come by a Poisson process with lengths by Zipf's law, so a few are a thousand
 * times the work of most; router/place chooses the group. JSON lines: what a
 * choice and a plan cost, and how even the groups' work is, beside a router
 * that goes round in order.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "node/base/rng.h"
#include "router/place.h"
#include "shard/sched/sched.h"

enum {
    GROUPS = 64,
    SEATS = 64,
    WAITING = 1024,
    STEPS = 4000,
    WARM_STEPS = 1000,
    JOBS = 1 << 17,
    PROMPT_MAX = 16384,
    GENERATE_MAX = 2048,
    SAMPLES = GROUPS * STEPS,
};

static const double arrivals_per_step = 12.0;

typedef struct fleet {
    weft_kv_spaces spaces[GROUPS];
    weft_sched *sched[GROUPS];
    weft_place_group groups[GROUPS];
    weft_job *jobs; /* [JOBS] */
    uint8_t *group_of;
    int32_t *left; /* tokens that are still to be computed */
    int32_t n_jobs, n_ended, n_refused;
    double *plan_us, *choice_us;
    int32_t n_plans, n_choices;
} fleet;

static int32_t tokens[PROMPT_MAX]; /* of every prompt */
static uint64_t draws;

static void must(weft_status st, const weft_err *err)
{
    if (st == WEFT_OK) return;
    (void)fprintf(stderr, "bench_sched: %s\n", err->text);
    exit(1);
}

static double draw(void)
{
    return (double)(weft_rng_u64(7, draws++) >> 11) * 0x1p-53;
}

/* 1 to most, P(x) ~ 1 / x. */
static int32_t zipf(int32_t most)
{
    return (int32_t)exp(draw() * log((double)most));
}

static weft_model_config dots3_shape(void)
{
    weft_model_config c = {
        .n_layer = 46,
        .end_layer = 46,
        .hidden_size = 5120,
        .max_context = PROMPT_MAX + GENERATE_MAX,
        .window = 513,
        .dsa = true,
        .index_head_dim = 128,
    };
    for (int32_t i = 0; i < c.n_layer; i++) {
        c.kind[i] = i % 4 == 0 || i == 45 ? WEFT_FULL : WEFT_WINDOW;
        c.n_kind[c.kind[i]]++;
    }
    c.geometry[WEFT_FULL] =
        (weft_geometry){.kv_lora_rank = 512, .qk_rope_head_dim = 64};
    c.geometry[WEFT_WINDOW] =
        (weft_geometry){.kv_lora_rank = 1024, .qk_rope_head_dim = 64};
    return c;
}

static void create(fleet *f, const weft_model_config *config)
{
    weft_err err = {0};
    const int64_t kv_bytes = INT64_C(64) << 30;
    const weft_sched_limits limits = {.max_seqs = SEATS,
                                      .max_waiting = WAITING,
                                      .chunk_tokens = 512,
                                      .max_context = config->max_context};
    for (uint32_t g = 0; g < GROUPS; g++) {
        must(weft_kv_spaces_init(&f->spaces[g], config, WEFT_BF16, 64,
                                 &kv_bytes, 1, &err),
             &err);
        must(weft_sched_create(&limits, config, &f->spaces[g], NULL, NULL,
                               &f->sched[g], &err),
             &err);
        f->groups[g] = (weft_place_group){.number = g,
                                          .usable = true,
                                          .seats = SEATS,
                                          .jobs_max = SEATS + WAITING};
    }
    f->jobs = weft_mem_new(JOBS, sizeof *f->jobs);
    f->group_of = weft_mem_new(JOBS, sizeof *f->group_of);
    f->left = weft_mem_new(JOBS, sizeof *f->left);
    f->plan_us = weft_mem_new(SAMPLES, sizeof *f->plan_us);
    f->choice_us = weft_mem_new(JOBS, sizeof *f->choice_us);
}

static void destroy(fleet *f)
{
    for (int32_t g = 0; g < GROUPS; g++) {
        weft_sched_clear(f->sched[g]);
        weft_sched_destroy(f->sched[g]);
        weft_kv_spaces_deinit(&f->spaces[g]);
    }
    weft_mem_free(f->jobs);
    weft_mem_free(f->group_of);
    weft_mem_free(f->left);
    weft_mem_free(f->plan_us);
    weft_mem_free(f->choice_us);
}

static double us_since(uint64_t from_ns)
{
    return (double)(weft_clock_now_ns() - from_ns) / 1e3;
}

static void submit(fleet *f, int32_t g, int32_t i)
{
    weft_err err = {0};
    if (weft_sched_submit(f->sched[g], &f->jobs[i], &err) != WEFT_OK) {
        f->n_refused++;
        return;
    }
    f->group_of[i] = (uint8_t)g;
    f->groups[g].n_jobs++;
    f->groups[g].n_tokens += f->left[i];
}

static void arrive(fleet *f, bool in_turn)
{
    const int32_t i = f->n_jobs++;
    const int32_t n_prompt = zipf(PROMPT_MAX), n_new = zipf(GENERATE_MAX);
    f->jobs[i] = (weft_job){.handle = (uint64_t)i + 1,
                            .age = (uint64_t)i,
                            .deadline_ns = UINT64_MAX,
                            .tokens = tokens,
                            .n_prompt = n_prompt,
                            .n_tokens = n_prompt,
                            .max_tokens = n_new,
                            .logprobs = -1,
                            .prompt_logprobs = -1};
    f->left[i] = n_prompt + n_new;
    const uint64_t from_ns = weft_clock_now_ns();
    const int32_t g =
        in_turn ? i % GROUPS : weft_place_choose(f->groups, GROUPS, false);
    f->choice_us[f->n_choices++] = us_since(from_ns);
    if (g == WEFT_NO_GROUP)
        f->n_refused++;
    else
        submit(f, g, i);
}

static void take_off(fleet *f, int32_t g, int32_t i, int32_t n)
{
    f->left[i] -= n;
    f->groups[g].n_tokens -= n;
}

static void end(fleet *f, int32_t g, int32_t i)
{
    take_off(f, g, i, f->left[i]);
    f->groups[g].n_jobs--;
    f->n_ended++;
}

static void step(fleet *f, int32_t g, uint64_t now_ns)
{
    weft_plan plan = {0};
    const uint64_t from_ns = weft_clock_now_ns();
    weft_sched_plan(f->sched[g], now_ns, &plan);
    f->plan_us[f->n_plans++] = us_since(from_ns);
    for (int32_t e = 0; e < plan.n_ends; e++) {
        const int32_t i = (int32_t)plan.ends[e].job->handle - 1;
        f->groups[g].n_jobs--;
        f->groups[g].n_tokens -= f->left[i];
        /* Preempted: back at once, as the router does it. */
        submit(f, g, i);
    }
    for (int32_t p = 0; p < plan.n_pieces; p++) {
        const weft_piece *const piece = &plan.pieces[p];
        const int32_t i = (int32_t)piece->job->handle - 1;
        take_off(f, g, i,
                 piece->n_rows < f->left[i] ? piece->n_rows : f->left[i]);
        if (piece->last_of_prompt &&
            weft_sched_commit(f->sched[g], piece->slot, 7) != WEFT_FINISH_NONE)
            end(f, g, i);
    }
    if (plan.n_rows > 0) weft_sched_step_done(f->sched[g]);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double part(double *values, int32_t n, double share)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[(int32_t)(share * (n - 1))];
}

/* The busiest group's outstanding tokens over the mean. */
static double imbalance(const fleet *f)
{
    double sum = 0.0, most = 0.0;
    for (int32_t g = 0; g < GROUPS; g++) {
        const double n = (double)f->groups[g].n_tokens;
        sum += n;
        if (n > most) most = n;
    }
    return sum > 0.0 ? most * GROUPS / sum : 1.0;
}

static void run(const weft_model_config *config, bool in_turn)
{
    static fleet f;
    double uneven = 0.0;
    f = (fleet){0};
    draws = 0;
    create(&f, config);
    double next = 0.0;
    for (int32_t s = 0; s < STEPS; s++) {
        while (next <= s && f.n_jobs < JOBS) {
            arrive(&f, in_turn);
            next -= log(1.0 - draw()) / arrivals_per_step;
        }
        for (int32_t g = 0; g < GROUPS; g++)
            step(&f, g, (uint64_t)s * UINT64_C(25000000));
        if (s >= WARM_STEPS) uneven += imbalance(&f);
    }
    int32_t waiting = 0;
    for (int32_t g = 0; g < GROUPS; g++) {
        weft_sched_stats stats;
        weft_sched_get_stats(f.sched[g], &stats);
        waiting += stats.n_waiting;
    }
    const double p99 = part(f.plan_us, f.n_plans, 0.99);
    (void)printf(
        "{\"bench\": \"fleet_sched\", \"policy\": \"%s\", \"groups\": "
        "%d, \"seats\": %d, \"steps\": %d, \"jobs\": %d, \"ended\": "
        "%d, \"waiting_at_end\": %d, \"refused\": %d, \"choice_us\": "
        "%.2f, \"plan_us\": %.1f, \"plan_us_p99\": %.1f, "
        "\"busiest_over_mean\": %.2f}\n",
        in_turn ? "in_turn" : "place", GROUPS, SEATS, STEPS, f.n_jobs,
        f.n_ended, waiting, f.n_refused, part(f.choice_us, f.n_choices, 0.5),
        part(f.plan_us, f.n_plans, 0.5), p99, uneven / (STEPS - WARM_STEPS));
    destroy(&f);
}

int main(void)
{
    const weft_model_config config = dots3_shape();
    run(&config, true);
    run(&config, false);
    return 0;
}
