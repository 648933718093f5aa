/* Same request, same tokens, to the bit: whatever the chunk, the page, the
 * number of threads, the CPU path, the company and the preemptions.
 *
 * The small trained model has a window of 65 and a top-k of 64; the sequences
 * here run past both, and past the wrap of the smallest pools. */
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/crowd.h"
#include "tests/support/suite.h"

#define MODEL "tests/data/tiny-model"

enum { N_IDS = 150, N_JOBS = 16, NEW_MAX = 40 };

static const weft_profile PROFILES[] = {WEFT_EXACT, WEFT_PROFILE_BF16};

static void make_ids(int32_t *ids, int32_t n, int32_t salt)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = (7 * i * i + 31 * salt * i + 3 * i + 11 + 101 * salt) % 4000;
}

/* -- one sequence, computed in every way ---------------------------------- */

static void expect_same(const harness *h, const int32_t *ids, int32_t n,
                        const float *want, const harness_run *run,
                        const char *what, int value)
{
    char told[64];
    (void)snprintf(told, sizeof told, "%s %d", what, value);
    harness_expect_same(h, ids, n, want, run, told);
}

START_TEST(one_sequence_in_every_way)
{
    int32_t ids[N_IDS];
    make_ids(ids, N_IDS, 1);
    harness h = harness_open(MODEL, PROFILES[_i]);
    const harness_run plain = {0};
    float *const want = harness_logits(&h, ids, N_IDS, &plain);
    static const int32_t chunks[] = {1, 3, 16, 149};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        const harness_run run = {.chunk_tokens = chunks[i]};
        expect_same(&h, ids, N_IDS, want, &run, "chunk", chunks[i]);
    }
    static const int32_t pages[] = {1, 4, 65};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        const harness_run run = {.page_tokens = pages[i], .chunk_tokens = 16};
        expect_same(&h, ids, N_IDS, want, &run, "page", pages[i]);
    }
    for (int32_t threads = 2; threads <= 4; threads += 2) {
        const harness_run run = {.threads = threads};
        expect_same(&h, ids, N_IDS, want, &run, "threads", threads);
    }
    const harness_run decode = {.decode_from = 60, .page_tokens = 4};
    expect_same(&h, ids, N_IDS, want, &decode, "decode from", 60);
    weft_mem_free(want);
    harness_close(&h);
}
END_TEST

START_TEST(every_cpu_path)
{
    int32_t ids[N_IDS];
    make_ids(ids, N_IDS, 2);
    harness h = harness_open(MODEL, PROFILES[_i]);
    const harness_run plain = {.cpu_path = "scalar"};
    float *const want = harness_logits(&h, ids, N_IDS, &plain);
    int32_t n_compared = 0;
    for (int32_t p = 0; weft_ops_cpu_nth(p) != NULL; p++) {
        const char *const path = weft_ops_cpu_nth(p)->name;
        const harness_run run = {.cpu_path = path, .chunk_tokens = 50};
        expect_same(&h, ids, N_IDS, want, &run, path, p);
        n_compared++;
    }
    const harness_run oracle = {.cpu_path = "reference"};
    expect_same(&h, ids, N_IDS, want, &oracle, "reference", 0);
    ck_assert_int_gt(n_compared, 0);
    weft_mem_free(want);
    harness_close(&h);
}
END_TEST

/* -- many sequences -------------------------------------------------------- */

typedef struct party {
    harness h;
    int32_t prompts[N_JOBS][N_IDS];
    crowd_job alone[N_JOBS];
} party;

static crowd_job job_of(party *p, int32_t i)
{
    /* Short and long prompts, greedy and sampled; twins share a prompt. */
    crowd_job j =
        crowd_make(p->prompts[i / 2], 5 + (i / 2) * 17, NEW_MAX - (i / 2) * 2);
    j.temperature = i % 4 < 2 ? 0.0F : 1.0F;
    j.seed = 40 + (uint64_t)(i / 2);
    return j;
}

static party party_open(weft_profile profile)
{
    party p = {.h = harness_open(MODEL, profile)};
    for (int32_t i = 0; i < N_JOBS; i++) make_ids(p.prompts[i], N_IDS, i + 3);
    const harness_run run = {0};
    for (int32_t i = 0; i < N_JOBS; i++) {
        p.alone[i] = job_of(&p, i);
        ck_assert_int_eq(crowd_run(&p.h, &p.alone[i], 1, &run, 1), 0);
        ck_assert_int_eq(p.alone[i].finish, WEFT_FINISH_LENGTH);
    }
    return p;
}

static void party_close(party *p)
{
    for (int32_t i = 0; i < N_JOBS; i++) crowd_free(&p->alone[i]);
    harness_close(&p->h);
}

static void expect_as_alone(const party *p, const crowd_job *jobs,
                            const char *what)
{
    for (int32_t i = 0; i < N_JOBS; i++) {
        const crowd_job *const a = &p->alone[i], *const b = &jobs[i];
        ck_assert_int_eq(b->finish, WEFT_FINISH_LENGTH);
        ck_assert_int_eq(a->n_tokens, b->n_tokens);
        for (int32_t t = a->n_prompt; t < a->n_tokens; t++)
            ck_assert_msg(a->tokens[t] == b->tokens[t],
                          "%s: job %d token %d is %d, alone %d", what, i,
                          t - a->n_prompt, b->tokens[t], a->tokens[t]);
        ck_assert_msg(memcmp(a->logprobs, b->logprobs,
                             (size_t)a->n_new * sizeof(float)) == 0,
                      "%s: logprobs of job %d differ from those alone", what,
                      i);
    }
}

static int32_t run_party(party *p, const harness_run *run, int32_t max_seqs,
                         const char *what)
{
    crowd_job jobs[N_JOBS];
    for (int32_t i = 0; i < N_JOBS; i++) jobs[i] = job_of(p, i);
    const int32_t n_preempted = crowd_run(&p->h, jobs, N_JOBS, run, max_seqs);
    expect_as_alone(p, jobs, what);
    for (int32_t i = 0; i < N_JOBS; i++) crowd_free(&jobs[i]);
    return n_preempted;
}

START_TEST(among_fifteen_others)
{
    party p = party_open(PROFILES[_i]);
    const harness_run runs[] = {
        {0},
        {.chunk_tokens = 1, .page_tokens = 1},
        {.chunk_tokens = 3, .page_tokens = 4, .threads = 2},
        {.chunk_tokens = 16, .threads = 4},
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char what[64];
        (void)snprintf(what, sizeof what, "company, run %zu", i);
        (void)run_party(&p, &runs[i], N_JOBS, what);
    }
    const harness_run narrow = {.chunk_tokens = 16};
    (void)run_party(&p, &narrow, 3, "three at a time");
    party_close(&p);
}
END_TEST

/* Pools from barely one sequence up: some of these must preempt. */
START_TEST(small_pools_preempt)
{
    party p = party_open(PROFILES[_i]);
    int64_t largest = 0;
    const harness_run shape = {.page_tokens = 4, .chunk_tokens = 16};
    for (int32_t i = 0; i < N_JOBS; i++) {
        const int64_t bytes = crowd_bytes(&p.h, &p.alone[i], &shape);
        if (bytes > largest) largest = bytes;
    }
    int32_t n_preempted = 0;
    for (int32_t tenths = 11; tenths <= 41; tenths += 15) {
        harness_run run = shape;
        run.kv_bytes = largest * tenths / 10;
        char what[64];
        (void)snprintf(what, sizeof what, "pool of %d.%d sequences",
                       tenths / 10, tenths % 10);
        n_preempted += run_party(&p, &run, N_JOBS, what);
    }
    ck_assert_msg(n_preempted > 0, "no pool was small enough to preempt");
    party_close(&p);
}
END_TEST

/* -- ends that the client brings ------------------------------------------ */

START_TEST(cancelled_jobs_leave_others_alone)
{
    party p = party_open(WEFT_EXACT);
    crowd_job jobs[N_JOBS];
    for (int32_t i = 0; i < N_JOBS; i++) {
        jobs[i] = job_of(&p, i);
        if (i % 3 == 0) jobs[i].cancel_after = 1 + i;
    }
    const harness_run run = {.page_tokens = 4, .chunk_tokens = 16};
    (void)crowd_run(&p.h, jobs, N_JOBS, &run, 8);
    for (int32_t i = 0; i < N_JOBS; i++) {
        ck_assert_int_eq(jobs[i].n_last_events, 1);
        const bool ended = jobs[i].finish == WEFT_FINISH_LENGTH;
        if (i % 3 != 0) ck_assert(ended);
        if (!ended) ck_assert_int_eq(jobs[i].status, WEFT_CANCELLED);
        ck_assert(memcmp(jobs[i].tokens, p.alone[i].tokens,
                         (size_t)jobs[i].n_tokens * sizeof(int32_t)) == 0);
        crowd_free(&jobs[i]);
    }
    party_close(&p);
}
END_TEST

START_TEST(deadlines_end_running_and_waiting_jobs)
{
    party p = party_open(WEFT_EXACT);
    crowd_job jobs[N_JOBS];
    for (int32_t i = 0; i < N_JOBS; i++) {
        jobs[i] = job_of(&p, i);
        if (i % 2 == 0) jobs[i].timeout_ns = 1;
    }
    const harness_run run = {0};
    (void)crowd_run(&p.h, jobs, N_JOBS, &run, 2);
    for (int32_t i = 0; i < N_JOBS; i++) {
        ck_assert_int_eq(jobs[i].n_last_events, 1);
        if (i % 2 == 0)
            ck_assert_int_eq(jobs[i].status, WEFT_DEADLINE_EXCEEDED);
        else
            ck_assert_int_eq(jobs[i].finish, WEFT_FINISH_LENGTH);
        crowd_free(&jobs[i]);
    }
    party_close(&p);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_set_timeout(tests, 500.0);
    tcase_add_loop_test(tests, one_sequence_in_every_way, 0, 2);
    tcase_add_loop_test(tests, every_cpu_path, 0, 2);
    tcase_add_loop_test(tests, among_fifteen_others, 0, 2);
    tcase_add_loop_test(tests, small_pools_preempt, 0, 2);
    tcase_add_test(tests, cancelled_jobs_leave_others_alone);
    tcase_add_test(tests, deadlines_end_running_and_waiting_jobs);
}

int main(void)
{
    return weft_suite_run_added("invariance", add_tests);
}
