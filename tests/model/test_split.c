/* A model in pieces computes what it computes whole, to the bit: cut into
 * stages whose hidden rows are handed on, with routed experts that are computed
 * elsewhere in any order and more than once, as two micro-batches that
 * interleave, and again after a step that lost its experts. */
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "tests/support/bytes.h"
#include "tests/support/expect.h"
#include "tests/support/split.h"
#include "tests/support/suite.h"

#define FIXTURES "tests/data/fixtures/"

static const char *const CASES[] = {
    "dots3-mixed", "dots3-defaults", "dots3-groups", "dots3-dense",
    "dots3-fp8",   "v2-lite",        "v2-mscale",    "v2-groups",
    "v3",          "v3-fp8",         "v32"};
enum { N_CASES = sizeof CASES / sizeof CASES[0] };
static const weft_profile PROFILES[] = {WEFT_EXACT, WEFT_PROFILE_BF16};

/* One sequence: two prefills, the second against a cache, then decode. */
static const int32_t STEPS[] = {14, 6, 1, 1, 1};
enum { N_STEPS = 5, N_IDS = 23, LARGEST = 14 };

typedef struct results {
    float *hidden, *logits; /* of all positions */
    int64_t n_hidden, n_logits;
} results;

static void path_of(const char *name, char path[256])
{
    (void)snprintf(path, 256, FIXTURES "%s", name);
}

static void make_ids(int32_t *ids, int32_t vocab)
{
    for (int32_t i = 0; i < N_IDS; i++) ids[i] = (7 * i * i + 3 * i + 11) % 97;
    for (int32_t i = 0; i < N_IDS; i++) ck_assert_int_lt(ids[i], vocab);
}

static results make_results(const weft_model_config *c)
{
    results r = {.n_hidden = (int64_t)N_IDS * c->hidden_size,
                 .n_logits = (int64_t)N_IDS * c->vocab_size};
    r.hidden = weft_mem_new((size_t)r.n_hidden, sizeof *r.hidden);
    r.logits = weft_mem_new((size_t)r.n_logits, sizeof *r.logits);
    return r;
}

static void drop_results(results *r)
{
    weft_mem_free(r->hidden);
    weft_mem_free(r->logits);
}

/* cut: of the first step; of later ones what is left of it there. */
static int32_t cut_of(int32_t cut, int32_t n)
{
    if (cut == 0 || n == 1) return 0;
    return (cut - 1) % (n - 1) + 1;
}

/* Where `experts` fail, the step is computed again. */
static int32_t run(split_model *m, int32_t cut, results *out)
{
    const weft_model_config *const c = &m->stages[0].config;
    int32_t ids[N_IDS], first = 0, n_failed = 0;
    make_ids(ids, c->vocab_size);
    split_forget(m);
    memset(out->hidden, 0xff, (size_t)out->n_hidden * sizeof *out->hidden);
    memset(out->logits, 0xff, (size_t)out->n_logits * sizeof *out->logits);
    for (int32_t i = 0; i < N_STEPS; first += STEPS[i++]) {
        weft_status st = WEFT_UNAVAILABLE;
        for (int32_t attempt = 0; st == WEFT_UNAVAILABLE; attempt++) {
            weft_err err = {0};
            ck_assert_int_lt(attempt, 2);
            st = split_step(m, ids, first, STEPS[i], cut_of(cut, STEPS[i]),
                            out->hidden + (int64_t)first * c->hidden_size,
                            out->logits + (int64_t)first * c->vocab_size, &err);
            n_failed += st == WEFT_UNAVAILABLE;
            if (st != WEFT_OK) ck_assert_ptr_nonnull(strstr(err.text, "gone"));
        }
        ck_assert_int_eq(st, WEFT_OK);
    }
    return n_failed;
}

static void expect_same(const results *a, const results *b, const char *what,
                        int number)
{
    for (int64_t i = 0; i < a->n_hidden; i++)
        if (!same_bytes(&a->hidden[i], &b->hidden[i], sizeof(float)))
            ck_abort_msg("%s %d: hidden value %lld differs: %g, %g", what,
                         number, (long long)i, (double)a->hidden[i],
                         (double)b->hidden[i]);
    ck_assert_msg(
        same_bytes(a->logits, b->logits, (size_t)a->n_logits * sizeof(float)),
        "%s %d: logits differ", what, number);
}

typedef struct whole {
    char path[256];
    weft_profile profile;
    weft_model_config config;
    results want;
} whole;

/* The case as one process computes it. */
static whole open_whole(int i)
{
    whole w = {.profile = PROFILES[i % 2]};
    path_of(CASES[i / 2], w.path);
    split_model *const m = split_open(w.path, w.profile, 1, NULL, N_IDS);
    w.config = m->stages[0].config;
    w.want = make_results(&w.config);
    ck_assert_int_eq(run(m, 0, &w.want), 0);
    for (int64_t k = 0; k < w.want.n_logits; k++)
        ck_assert(w.want.logits[k] == w.want.logits[k]);
    split_close(m);
    return w;
}

START_TEST(stages_compute_what_one_process_does)
{
    whole w = open_whole(_i);
    results got = make_results(&w.config);
    for (int32_t n = 1; n <= w.config.n_layer; n++) {
        split_model *const m = split_open(w.path, w.profile, n, NULL, N_IDS);
        (void)run(m, 0, &got);
        expect_same(&w.want, &got, "stages", n);
        (void)run(m, 5, &got);
        expect_same(&w.want, &got, "stages, in two", n);
        split_close(m);
    }
    drop_results(&got);
    drop_results(&w.want);
}
END_TEST

START_TEST(experts_elsewhere_change_no_bit)
{
    whole w = open_whole(_i);
    results got = make_results(&w.config);
    split_experts *const e = split_experts_open(w.path, w.profile);
    const int32_t most = w.config.n_layer < 3 ? w.config.n_layer : 3;
    for (int32_t n = 1; n <= most; n++) {
        split_model *const m = split_open(w.path, w.profile, n, e, N_IDS);
        /* Every cut of one stage, a few of more. */
        for (int32_t cut = 0; cut < LARGEST; cut += n == 1 ? 1 : 6) {
            e->n_events = 0;
            (void)run(m, cut, &got);
            expect_same(&w.want, &got, "cut", cut);
            ck_assert_int_gt(e->n_events, 0);
        }
        split_close(m);
    }
    split_experts_close(e);
    drop_results(&got);
    drop_results(&w.want);
}
END_TEST

/* At every collect there is, in one step and in two micro-batches. */
START_TEST(a_lost_step_is_computed_again)
{
    whole w = open_whole(_i);
    results got = make_results(&w.config);
    split_experts *const e = split_experts_open(w.path, w.profile);
    split_model *const m = split_open(w.path, w.profile, 1, e, N_IDS);
    for (int32_t cut = 0; cut <= 4; cut += 4)
        for (int32_t at = 0;; at++) {
            e->n_events = e->n_collects = 0;
            e->fail_at = at;
            const int32_t n_failed = run(m, cut, &got);
            expect_same(&w.want, &got, "failed collect", at);
            for (int32_t lane = 0; lane < WEFT_STEP_LANES; lane++)
                ck_assert(!e->lanes[lane].away);
            ck_assert_int_eq(n_failed, e->n_collects > at);
            if (n_failed == 0) break;
        }
    split_close(m);
    split_experts_close(e);
    drop_results(&got);
    drop_results(&w.want);
}
END_TEST

/* Something is computed between dispatch and collect: the shared expert, and
 * in two micro-batches the attention of the other. */
START_TEST(work_fits_between_dispatch_and_collect)
{
    char path[256];
    int32_t ids[N_IDS];
    path_of("dots3-mixed", path);
    split_experts *const e = split_experts_open(path, WEFT_EXACT);
    split_model *const m = split_open(path, WEFT_EXACT, 1, e, N_IDS);
    ck_assert_int_gt(e->config.shared_intermediate_size, 0);
    make_ids(ids, e->config.vocab_size);
    results got = make_results(&e->config);
    OK(split_step(m, ids, 0, 8, 0, got.hidden, got.logits, &err));
    int32_t n_moe = 0;
    for (int32_t l = 0; l < e->config.n_layer; l++) n_moe += e->config.moe[l];
    ck_assert_int_eq(e->n_events, 2 * (int64_t)n_moe);
    for (int32_t i = 0; i < e->n_events; i += 2) {
        ck_assert(!e->events[i].collected && e->events[i + 1].collected);
        ck_assert_int_eq(e->events[i + 1].products - e->events[i].products, 2);
    }
    e->n_events = 0;
    OK(split_step(m, ids, 0, 8, 3, got.hidden, got.logits, &err));
    ck_assert_int_eq(e->n_events, 4 * (int64_t)n_moe);
    int32_t away = 0;
    for (int32_t i = 0; i < e->n_events; i++) {
        const split_event *const at = &e->events[i];
        away += at->collected ? -1 : 1;
        if (!at->collected) continue;
        /* Who waits has the other's question under way, but for the last. */
        ck_assert_int_eq(away, i < e->n_events - 1 ? 1 : 0);
        int32_t asked = i;
        while (e->events[asked].collected || e->events[asked].lane != at->lane)
            asked--;
        ck_assert_int_eq(e->events[asked].layer, at->layer);
        if (i < e->n_events - 1)
            ck_assert_int_gt(at->products - e->events[asked].products, 4);
    }
    drop_results(&got);
    split_close(m);
    split_experts_close(e);
}
END_TEST

static int64_t forward_bytes(const weft_model_config *c,
                             const weft_experts *experts)
{
    const weft_forward_options options = {.max_rows = 64,
                                          .max_logits_rows = 4,
                                          .max_context = 256,
                                          .n_threads = 1,
                                          .experts = experts};
    return weft_forward_bytes(c, &options, NULL);
}

START_TEST(step_buffers_follow_what_is_computed_here)
{
    char path[256];
    weft_model_config c, dense;
    path_of("v3", path); /* layers 0 and 1 are dense */
    OK(weft_model_config_read(path, NULL, NULL, &c, &err));
    const weft_experts elsewhere = {0};
    const int64_t here = forward_bytes(&c, NULL);
    const int64_t away = forward_bytes(&c, &elsewhere);
    const int64_t pairs = 64 * (int64_t)c.top_k;
    ck_assert_int_ge(here - away,
                     2 * pairs * c.moe_intermediate_size * 4 + pairs * 4);
    dense = c;
    dense.end_layer = 2;
    dense.n_kind[WEFT_FULL] = 2;
    ck_assert_int_ge(away - forward_bytes(&dense, &elsewhere),
                     pairs * c.hidden_size * 4);
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, stages_compute_what_one_process_does, 0,
                        2 * N_CASES);
    tcase_add_loop_test(tests, experts_elsewhere_change_no_bit, 0, 2 * N_CASES);
    tcase_add_loop_test(tests, a_lost_step_is_computed_again, 0, 2 * N_CASES);
    tcase_add_test(tests, work_fits_between_dispatch_and_collect);
    tcase_add_test(tests, step_buffers_follow_what_is_computed_here);
}

int main(void)
{
    return weft_suite_run_added("split", add_tests);
}
