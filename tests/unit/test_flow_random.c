/* The router without its threads in a random course of everything at once:
 * requests, cancels, aborts, deadlines, preemptions, a lead that is full. */
#include "node/base/rng.h"
#include "tests/support/flow_fake.h"
#include "tests/support/suite.h"

enum { OPS = 6000, REQUESTS_MAX = 400, SEEDS = 12 };

static const weft_span R = {"r", 1};

static uint64_t draw(uint64_t seed, uint64_t *counter, uint64_t below)
{
    return weft_rng_u64(seed, (*counter)++) % below;
}

/* The lead does something with one of its jobs: what it may at that point. */
static void lead_step(uint64_t seed, uint64_t *counter)
{
    if (weft_fake_lead.n_jobs == 0) return;
    weft_fake_job *const held =
        &weft_fake_lead
             .jobs[draw(seed, counter, (uint64_t)weft_fake_lead.n_jobs)];
    const uint64_t handle = held->handle;
    const weft_job *const job = held->job;
    /* The borrowed job is as it was, and holds what was told. */
    ck_assert_int_eq(job->n_tokens, held->n_tokens);
    for (int32_t i = job->n_prompt; i < job->n_tokens; i++)
        ck_assert_int_eq(job->tokens[i], weft_fake_token_at(handle, i));
    const int32_t position = held->n_tokens + held->n_sent;
    const int32_t left = job->max_tokens - (position - job->n_prompt);
    const uint64_t what = draw(seed, counter, 20);
    if (held->cancelled && what < 10) {
        weft_fake_send_end(handle, WEFT_FINISH_FAILED, WEFT_CANCELLED, "");
    } else if (what == 0) {
        weft_fake_send_end(handle, WEFT_FINISH_PREEMPTED, WEFT_OK, "");
    } else if (what == 1) {
        weft_fake_send(handle, WEFT_EVENT_STARTED, WEFT_FINISH_NONE, 0);
    } else {
        held->n_sent++;
        weft_fake_send(handle, WEFT_EVENT_TOKEN,
                       left == 1 ? WEFT_FINISH_LENGTH : WEFT_FINISH_NONE,
                       weft_fake_token_at(handle, position));
    }
}

static void check_client(const weft_fake_client *c)
{
    ck_assert_int_eq(c->n_completes + c->n_fails, 1);
    for (int32_t i = 0; i < c->n_ids; i++)
        ck_assert_int_eq(c->ids[i], weft_fake_token_at(c->handle, 3 + i));
}

START_TEST(order_and_one_end_in_any_course)
{
    const uint64_t seed = (uint64_t)_i;
    uint64_t counter = 0;
    int32_t n_open = 0;
    weft_fake_begin(false);
    for (int op = 0; op < OPS || weft_fake_lead.n_jobs > 0; op++) {
        const uint64_t what = draw(seed, &counter, 100);
        const bool over = op >= OPS;
        weft_fake_client *const some =
            n_open == 0
                ? NULL
                : &weft_fake.clients[draw(seed, &counter, (uint64_t)n_open)];
        if (!over && what < 12 && weft_fake_free_slot() >= 0 &&
            n_open < REQUESTS_MAX) {
            weft_request r =
                weft_fake_request((uint32_t)draw(seed, &counter, 20) + 1);
            if (draw(seed, &counter, 8) == 0)
                r.deadline_ns = weft_fake.now_ns + draw(seed, &counter, 300);
            (void)weft_fake_open(&r);
            n_open++;
        } else if (what < 14 && some != NULL) {
            weft_flow_cancel(weft_fake.flow, some->handle, WEFT_CANCELLED,
                             "left");
        } else if (what < 15 && draw(seed, &counter, 20) == 0) {
            (void)weft_flow_abort(weft_fake.flow, &R, 1);
        } else if (what < 30) {
            weft_fake_lead.room = (int32_t)draw(seed, &counter, 3) - 1;
            weft_fake_tick();
        } else {
            lead_step(seed, &counter);
        }
        if (over) {
            weft_fake_lead.room = -1;
            weft_fake_tick();
        }
    }
    weft_fake_check_load(0, 0, 0);
    for (int32_t i = 0; i < n_open; i++) check_client(&weft_fake.clients[i]);
    for (int32_t i = 0; i < WEFT_FAKE_SLOTS; i++)
        ck_assert(!weft_fake.slot_used[i]);
    ck_assert_int_gt(n_open, 50);
    ck_assert_int_gt(weft_fake.n_preempted, 10);
    weft_fake_end();
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, order_and_one_end_in_any_course, 0, SEEDS);
}

int main(void)
{
    return weft_suite_run_added("flow_random", add_tests);
}
