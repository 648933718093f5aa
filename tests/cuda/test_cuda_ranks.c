/* A stage whose ranks are devices (shard/model/ranks.h): the golden logits, in
 * a prefill, in graphs token by token and in chunks; the same bits in every way
 * and in halves that take turns; what a stage takes of its devices; and one
 * device that fails ends the jobs of the stage and leaves nothing behind. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/base/ring.h"
#include "tests/cuda/comm_kit.h"
#include "tests/cuda/simt_faults.h"
#include "tests/support/expect.h"
#include "tests/support/fake_experts.h"
#include "tests/support/golden.h"
#include "tests/support/suite.h"

#define FIXTURES "tests/data/fixtures/"

enum { DEVICES_MAX = 4, N_IDS = 21, SCRATCH_BYTES = 4 << 20 };

static weft_memory devices[DEVICES_MAX];
static int32_t n_open;

/* The calling thread, the engine's or a rank's, each with its scratch. */
static void open_devices(int32_t n)
{
    const weft_device_api *const api = device_kit_api();
    for (n_open = 0; n_open < n; n_open++) {
        const weft_device_options options = {n_open, SCRATCH_BYTES, 3};
        devices[n_open].api = api;
        OK(api->open(&options, &devices[n_open].device, &err));
    }
    OK(weft_memory_bind(&devices[0], &err));
}

static void close_devices(void)
{
    weft_memory_unbind(&devices[0]);
    for (int32_t i = 0; i < n_open; i++)
        device_kit_api()->close(devices[i].device);
    if (is_simt()) ck_assert_int_eq(live_things(), 0);
}

typedef struct degree {
    const char *model;
    int32_t n_ranks;
} degree;

static const degree DEGREES[] = {
    {"dots3-mixed", 2}, {"v2-lite", 4}, {"v3-fp8", 2}, {"v32", 2}};
enum { N_DEGREES = sizeof DEGREES / sizeof DEGREES[0] };

static harness open_ranks(const degree *d, weft_profile profile, bool experts)
{
    char path[256];
    (void)snprintf(path, sizeof path, FIXTURES "%s", d->model);
    open_devices(d->n_ranks);
    return harness_open_ranks(path, profile, d->n_ranks, devices, experts);
}

/* Bounds of one device in fp32: tests/cuda/test_cuda_model.c. */
static const double REL_MAX = 2e-5, ABS_MAX = 3e-4;

static void expect_golden(const harness *h, const golden *g,
                          const harness_run *run, const char *what)
{
    const golden_tensor ids = golden_get(g, "prompt0.ids");
    const golden_tensor want = golden_get(g, "prompt0.logits");
    const int32_t n = (int32_t)ids.n;
    int32_t *const tokens = weft_mem_new((size_t)n, sizeof *tokens);
    for (int32_t i = 0; i < n; i++) tokens[i] = (int32_t)ids.values[i];
    float *const logits = harness_logits(h, tokens, n, run);
    double largest = 0.0;
    const double rel =
        golden_distance(logits + (n - want.rows) * h->config.vocab_size,
                        want.values, want.n, &largest);
    ck_assert_msg(rel <= REL_MAX && largest <= ABS_MAX,
                  "%s, %s: relative L2 %.3g, largest %.3g", g->path, what, rel,
                  largest);
    weft_mem_free(logits);
    weft_mem_free(tokens);
    free(ids.values);
    free(want.values);
}

START_TEST(golden_logits)
{
    static const harness_run prefill = {0}, decode = {.decode_from = 1},
                             chunks = {.chunk_tokens = 3, .page_tokens = 4};
    const degree *const d = &DEGREES[_i];
    char path[256];
    (void)snprintf(path, sizeof path, FIXTURES "%s/golden.safetensors",
                   d->model);
    golden g = golden_open(path);
    harness h = open_ranks(d, WEFT_EXACT, true);
    expect_golden(&h, &g, &prefill, "one prefill");
    expect_golden(&h, &g, &decode, "token by token");
    expect_golden(&h, &g, &chunks, "chunks of 3");
    harness_close(&h);
    golden_close(&g);
    close_devices();
}
END_TEST

static void make_ids(int32_t *ids)
{
    for (int32_t i = 0; i < N_IDS; i++) ids[i] = (7 * i * i + 3 * i + 11) % 90;
}

static const weft_profile PROFILES[] = {WEFT_EXACT, WEFT_PROFILE_BF16};

START_TEST(one_sequence_in_every_way)
{
    int32_t ids[N_IDS];
    static const degree d = {"v32", 2};
    static const harness_run plain = {0}, chunks = {.chunk_tokens = 7},
                             decode = {.decode_from = 5, .page_tokens = 4};
    harness h = open_ranks(&d, PROFILES[_i], true);
    make_ids(ids);
    float *const want = harness_logits(&h, ids, N_IDS, &plain);
    harness_expect_same(&h, ids, N_IDS, want, &chunks, "chunks");
    harness_expect_same(&h, ids, N_IDS, want, &decode, "token by token");
    weft_mem_free(want);
    harness_close(&h);
    close_devices();
}
END_TEST

/* Whole and in halves; and again where experts were gone. */
START_TEST(experts_elsewhere)
{
    int32_t ids[N_IDS];
    static const degree d = {"v32", 2};
    harness whole = harness_open(FIXTURES "v32", WEFT_EXACT);
    harness h = open_ranks(&d, WEFT_EXACT, false);
    fake_experts *const experts = fake_experts_open(&whole);
    const harness_run plain = {.experts = &experts->seam},
                      halves = {.experts = &experts->seam, .pair_rows = 2};
    make_ids(ids);
    float *const want = harness_logits(&h, ids, N_IDS, &plain);
    harness_expect_same(&h, ids, N_IDS, want, &halves, "halves");
    ck_assert_int_gt(atomic_load(&experts->two_at_once), 0);
    atomic_store(&experts->fail_every, 9);
    const harness_run again = {
        .experts = &experts->seam, .pair_rows = 2, .chunk_tokens = 4};
    harness_expect_same(&h, ids, N_IDS, want, &again,
                        "given up and taken again");
    ck_assert_int_gt(atomic_load(&experts->n_failed), 0);
    weft_mem_free(want);
    fake_experts_close(experts);
    harness_close(&h);
    harness_close(&whole);
    close_devices();
}
END_TEST

/* -- a device that fails --------------------------------------------------- */

static bool keep_event(void *ring, const weft_event *event)
{
    return weft_ring_push(ring, event);
}

static weft_event last_event(weft_ring *ring)
{
    weft_event event;
    for (;;) {
        weft_ring_wait(ring, UINT64_MAX);
        while (weft_ring_pop(ring, &event)) {
            weft_mem_free(event.top);
            if (event.finish != WEFT_FINISH_NONE) return event;
        }
    }
}

static int64_t free_bytes(int32_t device)
{
    weft_device_info info;
    devices[device].api->get_info(devices[device].device, &info);
    return info.free_bytes;
}

typedef struct stage {
    harness whole, h; /* whole: of the experts elsewhere */
    fake_experts *experts;
    weft_rank_parts parts[WEFT_COMM_GROUP_RANKS_MAX - 1];
    weft_ring *ring;
    weft_engine *engine;
    int64_t taken[2], planned; /* bytes of each device, but for KV pages */
} stage;

static void open_stage(stage *s, bool elsewhere)
{
    static const degree d = {"v2-lite", 2};
    *s = (stage){.h = open_ranks(&d, WEFT_EXACT, !elsewhere)};
    weft_engine_options options = {.kv_bytes = 8 << 20,
                                   .page_tokens = 16,
                                   .chunk_tokens = 16,
                                   .max_seqs = 1,
                                   .max_waiting = 1,
                                   .max_context = 64,
                                   .threads = 1,
                                   .ops = s->h.ops,
                                   .memory = &s->h.memory};
    if (elsewhere) {
        s->whole = harness_open(FIXTURES "v2-lite", WEFT_EXACT);
        s->experts = fake_experts_open(&s->whole);
        options.experts = &s->experts->seam;
    }
    harness_add_ranks(&s->h, s->parts, &options);
    OK(weft_ring_create(sizeof(weft_event), 64, &s->ring, &err));
    const weft_event_sink sink = {.take = keep_event, .arg = s->ring};
    for (int32_t i = 0; i < 2; i++) s->taken[i] = free_bytes(i);
    OK(weft_engine_create(&s->h.config, weft_model_weights(s->h.model),
                          &options, sink, NULL, NULL, &s->engine, &err));
    weft_engine_load load;
    weft_engine_get_load(s->engine, &load);
    for (int32_t i = 0; i < 2; i++)
        s->taken[i] -= free_bytes(i) + load.kv.total_bytes;
    s->planned = weft_engine_device_bytes(&s->h.config, &options);
}

static void close_stage(stage *s)
{
    weft_engine_destroy(s->engine);
    weft_ring_destroy(s->ring);
    fake_experts_close(s->experts);
    if (s->experts != NULL) harness_close(&s->whole);
    harness_close(&s->h);
    close_devices();
}

/* Launches of both ranks are counted together: where in the step it happens,
 * and whose device it is, differs from one number to the next. */
START_TEST(one_device_that_fails_ends_the_stage)
{
    int32_t ids[N_IDS];
    char fault[32];
    stage s;
    if (!has_faults("one_device_that_fails_ends_the_stage")) return;
    open_stage(&s, _i % 2 == 1);
    make_ids(ids);
    OK(weft_engine_start(s.engine, &err));
    (void)snprintf(fault, sizeof fault, "async:%d", 20 + 37 * (_i / 2));
    order_fault(fault);
    const weft_job job = {
        .handle = 1,
        .deadline_ns = UINT64_MAX,
        .tokens = ids,
        .n_prompt = N_IDS,
        .n_tokens = N_IDS,
        .max_tokens = 30,
        .sampling = {.top_p = 1.0F, .repetition_penalty = 1.0F},
        .logprobs = -1,
        .prompt_logprobs = -1};
    OK(weft_engine_submit(s.engine, &job));
    const weft_event event = last_event(s.ring);
    ck_assert_int_eq(event.finish, WEFT_FINISH_FAILED);
    ck_assert_msg(event.status == WEFT_INTERNAL, "%d: %s", (int)event.status,
                  event.text);
    order_fault(NULL);
    close_stage(&s);
}
END_TEST

/* But for what a comm keeps for itself, and what blocks are rounded up to;
 * another rank's thread has scratch as well. */
START_TEST(a_stage_takes_what_was_planned)
{
    enum { MORE = 4096 };
    stage s;
    if (!is_simt()) return;
    open_stage(&s, _i == 1);
    ck_assert_int_ge(s.taken[0], s.planned);
    ck_assert_int_le(s.taken[0], s.planned + MORE);
    ck_assert_int_le(s.taken[1], s.planned + SCRATCH_BYTES + MORE);
    close_stage(&s);
}
END_TEST

static void add(TCase *tests)
{
    tcase_set_timeout(tests, 300.0);
    tcase_add_loop_test(tests, golden_logits, 0, N_DEGREES);
    tcase_add_loop_test(tests, one_sequence_in_every_way, 0, 2);
    tcase_add_test(tests, experts_elsewhere);
    tcase_add_loop_test(tests, one_device_that_fails_ends_the_stage, 0, 8);
    tcase_add_loop_test(tests, a_stage_takes_what_was_planned, 0, 2);
}

int main(void)
{
    comm_kit_need(DEVICES_MAX);
    return weft_suite_run_added("cuda_ranks", add);
}
