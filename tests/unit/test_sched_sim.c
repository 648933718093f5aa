#include "tests/support/sched_sim.h"
#include "tests/support/suite.h"

/* Everything at once, in a pool that hardly holds one sequence. */
static weft_sim_options hard_times(uint64_t seed)
{
    static const int32_t pages[] = {1, 2, 4};
    static const int32_t windows[] = {1, 3, 4, 9, 100};
    static const int32_t chunks[] = {1, 3, 7, 16};
    static const int32_t layers[][2] = {{1, 1}, {2, 5}, {1, 0}, {0, 1}, {5, 3}};
    weft_sim_options options = {
        .seed = seed,
        .n_full = layers[seed % 5][0],
        .n_window = layers[seed % 5][1],
        .window = windows[seed / 5 % 5],
        .page_tokens = pages[seed / 3 % 3],
        .limits = {.max_seqs = 1 + (int32_t)(seed % 7),
                   .max_waiting = 40,
                   .chunk_tokens = chunks[seed / 2 % 4],
                   .max_context = 60},
        .n_jobs = 40,
        .prompt_max = 40,
        .generate_max = 24,
        .spare_slabs = (int32_t)(seed / 7 % 4) * (int32_t)(seed / 11 % 5),
        .limbo_steps_max = (int32_t)(seed % 4) * 4,
        .arrive_every = (int32_t)(seed / 4 % 3),
        .priorities = seed % 2 == 0,
    };
    return options;
}

static void add(weft_sim_result *sum, const weft_sim_result *one)
{
    sum->n_steps += one->n_steps;
    sum->n_rows += one->n_rows;
    sum->n_preempted += one->n_preempted;
    sum->n_stop += one->n_stop;
    sum->n_length += one->n_length;
    sum->n_cancelled += one->n_cancelled;
    sum->n_late += one->n_late;
    sum->n_no_memory += one->n_no_memory;
    sum->n_refused += one->n_refused;
    if (one->most_lives > sum->most_lives) sum->most_lives = one->most_lives;
}

/* The simulation fails if a plan is empty while jobs are there, if the first of
 * those that run is not in it, or if it does not come to an end. */
START_TEST(progress)
{
    weft_sim_result sum = {0}, one;
    for (uint64_t seed = 0; seed < 600; seed++) {
        const weft_sim_options options = hard_times(seed);
        weft_sim_run(&options, &one);
        ck_assert_int_eq(one.n_stop + one.n_length, options.n_jobs);
        add(&sum, &one);
    }
    ck_assert_int_gt(sum.n_preempted, 1000);
    ck_assert_int_gt(sum.n_stop, 100);
    ck_assert_int_gt(sum.n_length, 100);
    ck_assert_int_gt(sum.most_lives, 3);
}
END_TEST

START_TEST(one_end_per_job)
{
    weft_sim_result sum = {0}, one;
    for (uint64_t seed = 1000; seed < 1400; seed++) {
        weft_sim_options options = hard_times(seed);
        options.cancels = options.deadlines = options.no_memory = true;
        weft_sim_run(&options, &one);
        ck_assert_int_eq(one.n_stop + one.n_length + one.n_cancelled +
                             one.n_late + one.n_no_memory + one.n_refused,
                         options.n_jobs);
        add(&sum, &one);
    }
    ck_assert_int_gt(sum.n_preempted, 100);
    ck_assert_int_gt(sum.n_cancelled, 100);
    ck_assert_int_gt(sum.n_late, 100);
    ck_assert_int_gt(sum.n_no_memory, 20);
}
END_TEST

START_TEST(determinism)
{
    weft_sim_result a, b, other;
    for (uint64_t seed = 2000; seed < 2030; seed++) {
        weft_sim_options options = hard_times(seed);
        options.cancels = options.deadlines = true;
        weft_sim_run(&options, &a);
        weft_sim_run(&options, &b);
        ck_assert_mem_eq(&a, &b, sizeof a);
        options.seed++;
        weft_sim_run(&options, &other);
        ck_assert_uint_ne(a.trace, other.trace);
    }
}
END_TEST

/* Jobs that come back find a place in a queue that is full of others. */
START_TEST(full_queue_refuses_only_new_ones)
{
    weft_sim_result sum = {0}, one;
    for (uint64_t seed = 3000; seed < 3300; seed++) {
        weft_sim_options options = hard_times(seed);
        options.limits.max_waiting = 3;
        options.arrive_every = 2;
        options.n_jobs = 60;
        weft_sim_run(&options, &one);
        add(&sum, &one);
    }
    ck_assert_int_gt(sum.n_refused, 100);
    ck_assert_int_gt(sum.n_preempted, 100);
}
END_TEST

/* Slabs of several pages of both kinds and sequences that need nearly all of
 * them: at times the one that is left finds its window pages spread over so
 * many slabs that its full pages lack some. It must come to its end all the
 * same. */
START_TEST(scattered_pages_do_not_stop_the_last_one)
{
    weft_sim_result sum = {0}, one;
    for (uint64_t seed = 4000; seed < 4300; seed++) {
        weft_sim_options options = hard_times(seed);
        options.n_full = 2;
        options.n_window = 5;
        options.window = 5 + (int32_t)(seed % 30);
        options.page_tokens = 1;
        options.limits.chunk_tokens = 1 + (int32_t)(seed % 3);
        options.limits.max_seqs = 2 + (int32_t)(seed % 5);
        options.spare_slabs = (int32_t)(seed % 3);
        options.n_jobs = 12;
        options.prompt_max = 1 + (int32_t)(seed % 20);
        options.generate_max = 40;
        options.all_large = true;
        weft_sim_run(&options, &one);
        ck_assert_int_eq(one.n_length, options.n_jobs);
        sum.n_alone += one.n_alone;
        add(&sum, &one);
    }
    ck_assert_int_gt(sum.n_alone, 10);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {progress, one_end_per_job, determinism,
                                  full_queue_refuses_only_new_ones,
                                  scattered_pages_do_not_stop_the_last_one};
    return WEFT_SUITE_RUN("sched/sim", tests);
}
