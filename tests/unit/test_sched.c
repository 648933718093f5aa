#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "shard/sched/sched.h"
#include "tests/support/sched_sim.h"
#include "tests/support/suite.h"

typedef struct bench {
    weft_model_config config;
    weft_kv_space space;
    weft_kv_spaces spaces;
    weft_sched *sched;
    weft_plan plan;
} bench;

static const int32_t some_tokens[512];

static void open_bench(bench *b, const weft_sched_limits *limits, int64_t slabs)
{
    memset(b, 0, sizeof *b);
    b->spaces = (weft_kv_spaces){.n = 1, .at = &b->space};
    weft_sim_model(1, 0, 0, 4, &b->config, &b->space.layout);
    ck_assert_int_eq(weft_kv_pool_create(&b->space.layout,
                                         slabs * b->space.layout.slab_bytes,
                                         &b->space.pool, NULL),
                     WEFT_OK);
    ck_assert_int_eq(weft_sched_create(limits, &b->config, &b->spaces, NULL,
                                       NULL, &b->sched, NULL),
                     WEFT_OK);
}

static void close_bench(bench *b)
{
    weft_sched_destroy(b->sched);
    weft_kv_pool_destroy(b->space.pool); /* panics unless all pages are back */
}

static weft_job job_of(uint64_t age, int32_t n_prompt, int32_t max_tokens)
{
    return (weft_job){.handle = age,
                      .age = age,
                      .deadline_ns = UINT64_MAX,
                      .tokens = some_tokens,
                      .n_prompt = n_prompt,
                      .n_tokens = n_prompt,
                      .max_tokens = max_tokens};
}

static void submit(bench *b, const weft_job *job)
{
    ck_assert_int_eq(weft_sched_submit(b->sched, job, NULL), WEFT_OK);
}

static void plan(bench *b)
{
    weft_sched_plan(b->sched, 0, &b->plan);
}

/* Compute what is planned; every token is 1. */
static void finish_step(bench *b)
{
    for (int32_t i = 0; i < b->plan.n_pieces; i++)
        if (b->plan.pieces[i].last_of_prompt)
            (void)weft_sched_commit(b->sched, b->plan.pieces[i].slot, 1);
    weft_sched_step_done(b->sched);
}

static void run_until_idle(bench *b)
{
    do {
        plan(b);
        finish_step(b);
    } while (b->plan.n_pieces > 0);
}

static int64_t pages_used(const bench *b)
{
    weft_kv_stats stats;
    weft_kv_pool_get_stats(b->space.pool, &stats);
    return stats.pages_used[WEFT_FULL];
}

/* Prompts of 10 and 9 in chunks of 8: rows of both share the second step. */
START_TEST(budget)
{
    bench b;
    open_bench(&b, &(weft_sched_limits){4, 9, 8, 64}, 100);
    const weft_job one = job_of(1, 10, 3), two = job_of(2, 9, 3);
    submit(&b, &one);
    submit(&b, &two);
    static const int32_t golden[][2][2] = {
        {{0, 8}, {0, 0}},  /* first and n_rows of the two */
        {{8, 2}, {0, 6}},  /* 2 + 6 = 8 */
        {{10, 1}, {6, 3}}, /* a decode comes on top */
        {{11, 1}, {9, 1}},
    };
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        plan(&b);
        ck_assert_int_eq(b.plan.n_pieces, golden[i][1][1] > 0 ? 2 : 1);
        for (int32_t k = 0; k < b.plan.n_pieces; k++) {
            ck_assert_int_eq(b.plan.pieces[k].first, golden[i][k][0]);
            ck_assert_int_eq(b.plan.pieces[k].n_rows, golden[i][k][1]);
        }
        finish_step(&b);
    }
    run_until_idle(&b);
    close_bench(&b);
}
END_TEST

START_TEST(decode_first)
{
    bench b;
    open_bench(&b, &(weft_sched_limits){4, 9, 8, 64}, 100);
    const weft_job old = job_of(1, 30, 9), young = job_of(2, 2, 9);
    submit(&b, &young);
    plan(&b);
    finish_step(&b);
    submit(&b, &old); /* goes before, but is in prefill */
    plan(&b);
    ck_assert_int_eq(b.plan.n_pieces, 2);
    ck_assert_ptr_eq(b.plan.pieces[0].job, &young);
    ck_assert_int_eq(b.plan.pieces[0].n_rows, 1);
    ck_assert(b.plan.pieces[0].last_of_prompt && !b.plan.pieces[0].started);
    ck_assert_ptr_eq(b.plan.pieces[1].job, &old);
    ck_assert_int_eq(b.plan.pieces[1].n_rows, 8);
    ck_assert(!b.plan.pieces[1].last_of_prompt && b.plan.pieces[1].started);
    finish_step(&b);
    run_until_idle(&b);
    close_bench(&b);
}
END_TEST

/* A large job behind which small ones keep coming: none of them passes it, and
 * it runs as soon as those before it are through. */
START_TEST(no_starvation)
{
    enum { SMALL = 60 };
    bench b;
    open_bench(&b, &(weft_sched_limits){4, SMALL, 64, 64}, 10);
    weft_job small[SMALL];
    for (int32_t i = 0; i < SMALL; i++)
        small[i] = job_of(i < 3 ? (uint64_t)i + 1 : (uint64_t)i + 2, 8, 6);
    const weft_job large = job_of(4, 30, 8);
    for (int32_t i = 0; i < 3; i++) submit(&b, &small[i]);
    plan(&b);
    finish_step(&b);
    submit(&b, &large);
    int32_t next = 3;
    bool runs = false;
    for (int32_t step = 0; step < 30 && !runs; step++) {
        submit(&b, &small[next++]);
        plan(&b);
        for (int32_t i = 0; i < b.plan.n_pieces; i++) {
            runs |= b.plan.pieces[i].job == &large;
            ck_assert_uint_le(b.plan.pieces[i].job->age, 4);
        }
        finish_step(&b);
    }
    ck_assert(runs);
    run_until_idle(&b);
    close_bench(&b);
}
END_TEST

/* Pages of 4; the last token of a job is never computed. */
START_TEST(could_never_fit_is_refused)
{
    bench b;
    open_bench(&b, &(weft_sched_limits){2, 9, 8, 500}, 10);
    weft_err err = {0};
    const weft_job fits = job_of(1, 20, 21), over = job_of(2, 20, 22);
    submit(&b, &fits);
    ck_assert_int_eq(weft_sched_submit(b.sched, &over, &err),
                     WEFT_RESOURCE_EXHAUSTED);
    char text[3][32];
    const long long slab = b.space.layout.slab_bytes;
    (void)snprintf(text[0], sizeof text[0], "%lld", 11 * slab);
    (void)snprintf(text[1], sizeof text[1], "%lld are free", 10 * slab);
    (void)snprintf(text[2], sizeof text[2], "%lld in total", 10 * slab);
    for (int i = 0; i < 3; i++)
        ck_assert_ptr_nonnull(strstr(err.text, text[i]));
    run_until_idle(&b);
    close_bench(&b);
}
END_TEST

START_TEST(all_pages_back)
{
    bench b;
    open_bench(&b, &(weft_sched_limits){4, 9, 16, 64}, 40);
    weft_job jobs[6];
    for (int32_t i = 0; i < 6; i++) jobs[i] = job_of((uint64_t)i + 1, 20, 9);
    for (int32_t i = 0; i < 6; i++) submit(&b, &jobs[i]);
    for (int32_t i = 0; i < 4; i++) {
        plan(&b);
        finish_step(&b);
    }
    ck_assert_int_gt(pages_used(&b), 9);
    plan(&b);
    for (int32_t i = 5; i >= 0; i--)
        ck_assert_int_eq(weft_sched_cancel(b.sched, (uint64_t)i + 1), WEFT_OK);
    ck_assert_int_eq(pages_used(&b), 0);
    ck_assert_int_eq(weft_sched_cancel(b.sched, 1), WEFT_NOT_FOUND);
    weft_sched_step_done(b.sched);
    plan(&b);
    ck_assert_int_eq(b.plan.n_pieces, 0);
    close_bench(&b);
}
END_TEST

/* ---- the rest ----------------------------------------------------------- */

/* While a prompt of 6 pages is prefilled, the free pages are its own: a younger
 * sequence that needs one more is sent away, though some are free. */
START_TEST(reserved_pages_are_not_taken)
{
    bench b;
    open_bench(&b, &(weft_sched_limits){4, 9, 2, 64}, 9);
    const weft_job old = job_of(1, 23, 2), young = job_of(2, 4, 30);
    submit(&b, &young);
    for (int32_t i = 0; i < 3; i++) {
        plan(&b);
        finish_step(&b);
    }
    submit(&b, &old);
    do {
        plan(&b);
        finish_step(&b);
    } while (b.plan.n_ends == 0);
    ck_assert_ptr_eq(b.plan.ends[0].job, &young);
    ck_assert_int_eq(b.plan.ends[0].finish, WEFT_FINISH_PREEMPTED);
    ck_assert_int_lt(b.plan.pieces[0].first, 20);
    ck_assert_int_lt(pages_used(&b), 6);
    run_until_idle(&b);
    close_bench(&b);
}
END_TEST

/* Of 10 pages 4 are in use. A prompt of 5 needs one more for its first decode,
 * and the one that runs needs one soon. */
START_TEST(admission_leaves_room_to_go_on)
{
    bench b;
    open_bench(&b, &(weft_sched_limits){4, 9, 64, 64}, 10);
    const weft_job runs = job_of(1, 13, 3), next = job_of(2, 20, 5);
    submit(&b, &runs);
    plan(&b);
    finish_step(&b);
    ck_assert_int_eq(pages_used(&b), 4);
    submit(&b, &next);
    for (int32_t i = 0; i < 2; i++) {
        plan(&b);
        ck_assert_int_eq(b.plan.n_pieces, 1);
        finish_step(&b);
    }
    plan(&b);
    ck_assert_ptr_eq(b.plan.pieces[0].job, &next);
    finish_step(&b);
    run_until_idle(&b);
    close_bench(&b);
}
END_TEST

START_TEST(last_in_order_is_preempted)
{
    bench b;
    open_bench(&b, &(weft_sched_limits){4, 9, 64, 64}, 11);
    weft_job jobs[3] = {job_of(1, 4, 9), job_of(2, 16, 9), job_of(3, 4, 9)};
    jobs[2].priority = 1; /* the youngest, and first in the order */
    for (int32_t i = 0; i < 3; i++) submit(&b, &jobs[i]);
    do {
        plan(&b);
        finish_step(&b);
    } while (b.plan.n_ends == 0);
    ck_assert_int_eq(b.plan.n_ends, 1);
    ck_assert_ptr_eq(b.plan.ends[0].job, &jobs[1]);
    ck_assert_int_eq(b.plan.ends[0].finish, WEFT_FINISH_PREEMPTED);
    ck_assert_int_eq(b.plan.n_pieces, 2);
    ck_assert_ptr_eq(b.plan.pieces[0].job, &jobs[2]);
    /* Nobody behind it is let in, though there is room. */
    const weft_job late = job_of(9, 1, 1);
    submit(&b, &late);
    plan(&b);
    ck_assert_int_eq(b.plan.n_pieces, 2);
    ck_assert_int_lt(pages_used(&b), 7);
    finish_step(&b);
    /* It comes back with what it has told, and is prefilled as a whole. */
    weft_job again = jobs[1];
    again.n_tokens = 18;
    submit(&b, &again);
    do {
        plan(&b);
        finish_step(&b);
        ck_assert_int_gt(b.plan.n_pieces, 0);
    } while (b.plan.pieces[0].job == &jobs[0] ||
             b.plan.pieces[0].job == &jobs[2]);
    const weft_piece *const piece = &b.plan.pieces[0];
    ck_assert_ptr_eq(piece->job, &again);
    ck_assert_int_eq(piece->first, 0);
    ck_assert_int_eq(piece->n_rows, 18);
    ck_assert(piece->last_of_prompt && piece->started);
    run_until_idle(&b);
    close_bench(&b);
}
END_TEST

START_TEST(bad_jobs_are_refused)
{
    bench b;
    open_bench(&b, &(weft_sched_limits){4, 2, 8, 16}, 40);
    weft_err err = {0};
    weft_job jobs[] = {job_of(1, 0, 1), job_of(1, -1, 1), job_of(1, 17, 1),
                       job_of(1, 4, 0), job_of(1, 4, -1), job_of(1, 4, 2),
                       job_of(1, 4, 2)};
    jobs[5].n_tokens = 3;
    jobs[6].n_tokens = 6; /* two generated already */
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        ck_assert_int_eq(weft_sched_submit(b.sched, &jobs[i], &err),
                         WEFT_INVALID_ARGUMENT);
        ck_assert_uint_gt(strlen(err.text), 0);
    }
    const weft_job good[] = {job_of(1, 4, 1), job_of(2, 4, 1), job_of(3, 4, 1)};
    submit(&b, &good[0]);
    submit(&b, &good[1]);
    ck_assert_int_eq(weft_sched_submit(b.sched, &good[2], &err),
                     WEFT_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(err.text, "queue"));
    run_until_idle(&b);
    close_bench(&b);
}
END_TEST

/* A prompt that fills the context gives the one token of its last row; and a
 * job that may go on ends where the context does. */
START_TEST(context_is_used_to_its_end)
{
    bench b;
    open_bench(&b, &(weft_sched_limits){4, 2, 64, 16}, 40);
    const weft_job whole = job_of(1, 16, 5), most = job_of(2, 15, INT32_MAX);
    submit(&b, &whole);
    submit(&b, &most);
    plan(&b);
    ck_assert_int_eq(b.plan.n_pieces, 2);
    ck_assert_int_eq(b.plan.n_rows, 31);
    for (int32_t i = 0; i < 2; i++)
        ck_assert_int_eq(weft_sched_commit(b.sched, b.plan.pieces[i].slot, 1),
                         WEFT_FINISH_LENGTH);
    weft_sched_step_done(b.sched);
    ck_assert_int_eq(pages_used(&b), 0);
    close_bench(&b);
}
END_TEST

START_TEST(stop_ids_wait_for_min_tokens)
{
    static const int32_t stops[] = {5, 1};
    bench b;
    open_bench(&b, &(weft_sched_limits){4, 2, 64, 64}, 40);
    weft_job job = job_of(1, 3, 9);
    job.stop_ids = stops;
    job.n_stop_ids = 2;
    job.min_tokens = 2;
    submit(&b, &job);
    static const weft_finish golden[] = {WEFT_FINISH_NONE, WEFT_FINISH_NONE,
                                         WEFT_FINISH_STOP};
    for (int i = 0; i < 3; i++) {
        plan(&b);
        ck_assert_int_eq(weft_sched_commit(b.sched, b.plan.pieces[0].slot, 1),
                         golden[i]);
        weft_sched_step_done(b.sched);
    }
    /* The last token may be a stop token too. */
    job.max_tokens = 1;
    job.min_tokens = 0;
    submit(&b, &job);
    plan(&b);
    ck_assert_int_eq(weft_sched_commit(b.sched, b.plan.pieces[0].slot, 5),
                     WEFT_FINISH_STOP);
    weft_sched_step_done(b.sched);
    close_bench(&b);
}
END_TEST

START_TEST(deadlines_end_running_and_waiting)
{
    bench b;
    open_bench(&b, &(weft_sched_limits){1, 9, 4, 64}, 40);
    weft_job jobs[3] = {job_of(1, 20, 9), job_of(2, 20, 9), job_of(3, 20, 9)};
    jobs[0].deadline_ns = 500;
    jobs[1].deadline_ns = 400;
    ck_assert_uint_eq(weft_sched_next_deadline(b.sched), UINT64_MAX);
    for (int32_t i = 0; i < 3; i++) submit(&b, &jobs[i]);
    ck_assert_uint_eq(weft_sched_next_deadline(b.sched), 400);
    static const uint64_t times[] = {0, 399, 400, 499, 500, 501};
    static const int golden[] = {-1, -1, 1, -1, 0, -1};
    for (int i = 0; i < 6; i++) {
        weft_sched_plan(b.sched, times[i], &b.plan);
        ck_assert_int_eq(b.plan.n_ends, golden[i] >= 0);
        if (golden[i] >= 0) {
            ck_assert_ptr_eq(b.plan.ends[0].job, &jobs[golden[i]]);
            ck_assert_int_eq(b.plan.ends[0].finish, WEFT_FINISH_FAILED);
            ck_assert_int_eq(b.plan.ends[0].status, WEFT_DEADLINE_EXCEEDED);
        }
        finish_step(&b);
    }
    ck_assert_uint_eq(weft_sched_next_deadline(b.sched), UINT64_MAX);
    run_until_idle(&b);
    close_bench(&b);
}
END_TEST

START_TEST(a_step_allocates_nothing)
{
    bench b;
    open_bench(&b, &(weft_sched_limits){4, 9, 8, 64}, 40);
    const weft_job one = job_of(1, 30, 20), two = job_of(2, 30, 20);
    submit(&b, &one);
    submit(&b, &two);
    for (int32_t i = 0; i < 5; i++) { /* both are admitted by then */
        plan(&b);
        finish_step(&b);
    }
    weft_mem_fail_after(0);
    ck_assert_int_eq(b.plan.n_pieces, 2);
    run_until_idle(&b);
    weft_mem_fail_after(-1);
    close_bench(&b);
}
END_TEST

START_TEST(no_memory_at_create_is_an_error)
{
    bench b;
    const weft_sched_limits limits = {4, 9, 8, 64};
    open_bench(&b, &limits, 40);
    const long live = weft_mem_live();
    weft_sched *sched = NULL;
    weft_err err = {0};
    long n = 0;
    for (;; n++) {
        weft_mem_fail_after(n);
        const weft_status st = weft_sched_create(&limits, &b.config, &b.spaces,
                                                 NULL, NULL, &sched, &err);
        weft_mem_fail_after(-1);
        if (st == WEFT_OK) break;
        ck_assert_int_eq(st, WEFT_RESOURCE_EXHAUSTED);
        ck_assert_int_eq(weft_mem_live(), live);
        ck_assert_ptr_null(sched);
    }
    ck_assert_int_gt(n, 5);
    weft_sched_destroy(sched);
    weft_sched_destroy(NULL);
    const weft_sched_limits bad[] = {
        {0, 9, 8, 64}, {4, 0, 8, 64}, {4, 9, -1, 64}, {4, 9, 8, INT32_MAX}};
    static const char *const names[] = {"max_seqs", "max_waiting",
                                        "chunk_tokens", "max_context"};
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(weft_sched_create(&bad[i], &b.config, &b.spaces, NULL,
                                           NULL, &sched, &err),
                         WEFT_INVALID_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(err.text, names[i]));
    }
    close_bench(&b);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {budget,
                                  decode_first,
                                  no_starvation,
                                  could_never_fit_is_refused,
                                  all_pages_back,
                                  reserved_pages_are_not_taken,
                                  admission_leaves_room_to_go_on,
                                  last_in_order_is_preempted,
                                  bad_jobs_are_refused,
                                  context_is_used_to_its_end,
                                  stop_ids_wait_for_min_tokens,
                                  deadlines_end_running_and_waiting,
                                  a_step_allocates_nothing,
                                  no_memory_at_create_is_an_error};
    return WEFT_SUITE_RUN("sched", tests);
}
