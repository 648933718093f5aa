/* A backend of several devices: which are opened, who is refused by name, and
 * that a start takes of each what its plan says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/app/model_open.h"
#include "node/app/rank_weights.h"
#include "tests/cuda/comm_kit.h"
#include "tests/support/expect.h"
#include "tests/support/suite.h"

#define FIXTURES "tests/data/fixtures/"

enum { N_DEVICES = 3, KV_BYTES = 4 << 20 };

static weft_options options_of(int32_t n_ranks)
{
    return (weft_options){.command = WEFT_COMMAND_SERVE,
                          .backend = "simt",
                          .cpu_path = "auto",
                          .profile = WEFT_PROFILE_BF16,
                          .page_tokens = 64,
                          .chunk_tokens = 64,
                          .max_seqs = 4,
                          .max_queue = 4,
                          .max_context = 256,
                          .threads = 1,
                          .stages = 1,
                          .expert_shards = 1,
                          .tensor_parallel = n_ranks};
}

static int64_t free_bytes(const weft_backend *b, int32_t rank)
{
    weft_device_info info;
    const weft_memory *const memory = weft_backend_memory(b, rank);
    memory->api->get_info(memory->device, &info);
    return info.free_bytes;
}

START_TEST(each_rank_has_a_device_of_its_own)
{
    weft_backend b;
    char text[WEFT_IDENTITY_BYTES];
    const weft_options o = options_of(N_DEVICES);
    OK(weft_backend_open(&o, &b, &err));
    for (int32_t r = 0; r < N_DEVICES; r++) {
        weft_device_info info;
        const weft_memory *const memory = weft_backend_memory(&b, r);
        memory->api->get_info(memory->device, &info);
        ck_assert_int_eq(info.index, r);
    }
    weft_backend_device(&b, text, sizeof text);
    ck_assert_str_eq(text, "simt:0-2 emulated device");
    /* The thread is at rank 0's: ops begin there. */
    const int64_t before = free_bytes(&b, 0);
    void *at = NULL;
    OK(weft_memory_alloc(&b.memory, 1 << 20, "block", &at, &err));
    weft_memory_fill(&b.memory, at, 0, 1 << 20);
    OK(weft_memory_sync(&b.memory, &err));
    ck_assert_int_eq(before - free_bytes(&b, 0), 1 << 20);
    weft_memory_free(&b.memory, at);
    weft_backend_close(&b);
}
END_TEST

START_TEST(fewer_devices_than_ranks_are_refused)
{
    weft_backend b;
    weft_err why = {0};
    weft_options o = options_of(N_DEVICES + 1);
    ck_assert_int_eq(weft_backend_open(&o, &b, &why), WEFT_UNAVAILABLE);
    ck_assert_str_eq(why.text,
                     "--tensor-parallel 4: --backend simt has 3 devices");
    ck_assert_ptr_null(b.opened);
    o.tensor_parallel = 1;
    OK(weft_backend_open(&o, &b, &err));
    weft_backend_close(&b);
}
END_TEST

START_TEST(devices_of_two_architectures_are_refused)
{
    weft_backend b;
    weft_err why = {0};
    const weft_options o = options_of(N_DEVICES);
    (void)setenv("WEFT_SIMT_SM", "80,80,90", 1);
    ck_assert_int_eq(weft_backend_open(&o, &b, &why), WEFT_FAILED_PRECONDITION);
    ck_assert_str_eq(why.text,
                     "--tensor-parallel 3: device 2 \"emulated device\" is sm "
                     "90, device 0 \"emulated device\" is sm 80");
    ck_assert_ptr_null(b.opened);
    (void)setenv("WEFT_SIMT_SM", "90", 1);
    OK(weft_backend_open(&o, &b, &err));
    weft_backend_close(&b);
}
END_TEST

/* -- what a start takes ---------------------------------------------------- */

typedef struct scene {
    weft_options options;
    weft_opened model;
    weft_engine_options engine_options;
    weft_backend backend;
    weft_part_of_model whole;
    weft_rank_sizes sizes;
    weft_rank_weights weights;
    weft_engine *engine;
} scene;

static bool take_event(void *arg, const weft_event *event)
{
    (void)arg;
    (void)event;
    return true;
}

static void open_scene(scene *s, const char *dir, int32_t n_ranks)
{
    *s = (scene){.options = options_of(n_ranks)};
    OK(weft_model_open(dir, s->options.profile, NULL, NULL, &s->model, &err));
    OK(weft_model_engine_options(&s->options, &s->model.config,
                                 &s->engine_options, &err));
    OK(weft_backend_open(&s->options, &s->backend, &err));
    weft_backend_apply(&s->backend, &s->engine_options);
    s->whole = weft_model_whole(&s->model.config);
    OK(weft_rank_weights_measure(s->model.checkpoint, &s->backend, &s->whole,
                                 &s->sizes, &err));
}

static void start_scene(scene *s)
{
    const weft_event_sink sink = {.take = take_event};
    OK(weft_backend_plan(&s->backend, &s->model.config, &s->engine_options,
                         KV_BYTES, s->sizes.device_bytes, 0,
                         &s->engine_options.kv_bytes, &err));
    OK(weft_rank_weights_load(s->model.checkpoint, &s->backend, &s->whole, NULL,
                              NULL, &s->weights, &err));
    s->engine_options.ranks = s->weights.others;
    OK(weft_engine_create(
        &s->model.config, weft_rank_weights_first(&s->weights),
        &s->engine_options, sink, NULL, NULL, &s->engine, &err));
    OK(weft_engine_start(s->engine, &err));
}

static void close_scene(scene *s)
{
    weft_engine_destroy(s->engine);
    weft_rank_weights_destroy(&s->weights);
    weft_model_close(&s->model);
    weft_backend_close(&s->backend);
}

static const struct {
    const char *dir;
    int32_t n_ranks;
} STARTS[] = {
    {FIXTURES "dots3-mixed", 1},
    {FIXTURES "dots3-mixed", 2},
    {FIXTURES "v32", 2},
    {FIXTURES "v2-lite", 2},
};
enum { N_STARTS = sizeof STARTS / sizeof STARTS[0] };

/* Not a byte more than planned; and not much less of rank 0, of others at least
 * weights and pages. */
START_TEST(a_start_takes_what_was_planned)
{
    scene s;
    int64_t before[N_DEVICES] = {0};
    open_scene(&s, STARTS[_i].dir, STARTS[_i].n_ranks);
    for (int32_t r = 0; r < s.backend.n_ranks; r++)
        before[r] = free_bytes(&s.backend, r);
    const int64_t buffers =
        weft_engine_device_bytes(&s.model.config, &s.engine_options);
    start_scene(&s);
    for (int32_t r = 0; r < s.backend.n_ranks; r++) {
        const int64_t planned = s.sizes.device_bytes[r] + buffers + KV_BYTES;
        const int64_t taken = before[r] - free_bytes(&s.backend, r);
        ck_assert_msg(taken <= planned, "rank %d: %lld bytes, planned %lld", r,
                      (long long)taken, (long long)planned);
        const int64_t least = r == 0 ? planned - KV_BYTES / 16
                                     : s.sizes.device_bytes[r] + KV_BYTES;
        ck_assert_msg(taken >= least, "rank %d: %lld bytes, at least %lld", r,
                      (long long)taken, (long long)least);
    }
    close_scene(&s);
}
END_TEST

static void add(TCase *tests)
{
    tcase_add_test(tests, each_rank_has_a_device_of_its_own);
    tcase_add_test(tests, fewer_devices_than_ranks_are_refused);
    tcase_add_test(tests, devices_of_two_architectures_are_refused);
    tcase_add_loop_test(tests, a_start_takes_what_was_planned, 0, N_STARTS);
}

int main(void)
{
    comm_kit_need(N_DEVICES);
    return weft_suite_run_added("cuda_backend", add);
}
