/* The calls of weft.v1.Generation from a client to the router and back: what is
 * translated on the way, and that a cancel finds its request. */
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "node/app/service.h"
#include "node/base/clock.h"
#include "tests/support/desk.h"
#include "tests/support/expect.h"
#include "tests/support/served.h"
#include "tests/support/suite.h"

enum { SEQS = 4, QUEUE = 1, CONTEXT = 64, VOCAB = 5000, TOKEN = 300 };

static const char TOKENIZER[] = "tests/data/tiny-model/tokenizer.json";

/* One token for each job, which then waits for its cancel. */
static struct {
    weft_router *router;
    weft_tokenizer *tokenizer;
    desk *desk;
    weft_service *service;
    weft_engine_view own;
    weft_view view;
    weft_service_ops ops;
    weft_rpc_server *server;
    weft_model_config config;
    _Atomic int n_ended, last_status;
} node;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static weft_job last; /* as submitted; under the lock */

static weft_job last_job(void)
{
    (void)pthread_mutex_lock(&lock);
    const weft_job job = last;
    (void)pthread_mutex_unlock(&lock);
    return job;
}

static void tell(const weft_event *event)
{
    ck_assert(weft_router_take_event(node.router, event));
}

static weft_status lead_submit(void *arg, const weft_job *job)
{
    (void)arg;
    (void)pthread_mutex_lock(&lock);
    last = *job;
    (void)pthread_mutex_unlock(&lock);
    tell(&(weft_event){.handle = job->handle, .kind = WEFT_EVENT_STARTED});
    tell(&(weft_event){
        .handle = job->handle,
        .kind = WEFT_EVENT_TOKEN,
        .token = TOKEN,
        .finish = job->max_tokens == 1 ? WEFT_FINISH_LENGTH : WEFT_FINISH_NONE,
    });
    return WEFT_OK;
}

static weft_status lead_cancel(void *arg, uint64_t handle)
{
    (void)arg;
    tell(&(weft_event){.handle = handle,
                       .kind = WEFT_EVENT_END,
                       .finish = WEFT_FINISH_FAILED,
                       .status = WEFT_CANCELLED});
    return WEFT_OK;
}

static void count_end(void *arg, weft_status status)
{
    (void)arg;
    atomic_store(&node.last_status, (int)status);
    atomic_fetch_add(&node.n_ended, 1);
}

static void open_router(void)
{
    const weft_router_options options = {
        .max_seqs = SEQS,
        .max_queue = QUEUE,
        .limits = {.vocab_size = VOCAB,
                   .max_context = CONTEXT,
                   .tokenizer = node.tokenizer,
                   .temperature = 1.0F,
                   .top_p = 1.0F,
                   .repetition_penalty = 1.0F},
        .tokenizer = node.tokenizer,
        .memory_bytes_max = 1 << 30,
        .is_wanted = weft_service_is_wanted,
    };
    const weft_lead lead = {.submit = lead_submit, .cancel = lead_cancel};
    ck_assert_int_eq(weft_router_create(&options, &node.router, NULL), WEFT_OK);
    ck_assert_int_eq(weft_router_start(node.router, lead, NULL), WEFT_OK);
}

static weft_client *open_node(void)
{
    memset(&node, 0, sizeof node);
    ck_assert_int_eq(
        weft_tokenizer_read(TOKENIZER, 1 << 20, &node.tokenizer, NULL),
        WEFT_OK);
    node.desk = desk_open((weft_engine_options){0});
    open_router();
    node.config = node.desk->model.config;
    node.config.stop_ids[0] = 7;
    node.config.stop_ids[1] = 8;
    node.config.n_stop_ids = 2;
    node.own =
        (weft_engine_view){.engine = node.desk->engine, .weights_hash = 0xABC};
    node.view = weft_engine_view_of(&node.own);
    const weft_service_options options = {
        .router = node.router,
        .view = &node.view,
        .config = &node.config,
        .name = "a-name",
        .max_context = CONTEXT,
        .max_live = SEQS + QUEUE,
        .count_end = count_end,
    };
    ck_assert_int_eq(weft_service_create(&options, &node.service, NULL),
                     WEFT_OK);
    node.ops = weft_service_get_ops();
    weft_rpc_options rpc = weft_rpc_options_default();
    rpc.listen = "127.0.0.1:0";
    rpc.ops = &node.ops;
    rpc.ops_arg = node.service;
    ck_assert_int_eq(weft_rpc_server_start(&rpc, &node.server, NULL), WEFT_OK);
    return serve_client(&(served){.server = node.server});
}

static void close_node(weft_client *client)
{
    weft_client_destroy(client);
    weft_rpc_server_destroy(node.server);
    weft_router_stop(node.router);
    weft_service_destroy(node.service);
    weft_router_destroy(node.router);
    desk_close(node.desk);
    weft_tokenizer_destroy(node.tokenizer);
}

static weft_generate_request request(uint32_t max_tokens)
{
    weft_generate_request r = request_of("once upon a time", max_tokens);
    r.request_id = (weft_span){"r", 1};
    return r;
}

/* What the last answer of a Generate was. */
typedef struct answer {
    uint32_t prompt_tokens, completion_tokens;
    int32_t id;
    char reason[16];
    bool leaves; /* at the first chunk */
} answer;

static bool take(void *arg, const weft_generate_response *response)
{
    answer *const a = arg;
    const weft_complete *const done = &response->complete;
    if (!response->is_complete) return !a->leaves;
    a->prompt_tokens = done->prompt_tokens;
    a->completion_tokens = done->completion_tokens;
    a->id = done->n_ids > 0 ? done->ids[0] : -1;
    ck_assert_uint_lt(done->finish_reason.n, sizeof a->reason);
    memcpy(a->reason, done->finish_reason.data, done->finish_reason.n);
    return true;
}

static void wait_idle(void)
{
    const uint64_t until_ns = weft_clock_now_ns() + SECONDS(60);
    weft_router_load load;
    do {
        weft_router_get_load(node.router, &load);
        ck_assert_msg(weft_clock_now_ns() < until_ns, "%d are live",
                      load.n_live);
        (void)sched_yield();
    } while (load.n_live > 0);
}

START_TEST(generate_is_translated_both_ways)
{
    weft_client *const client = open_node();
    weft_generate_request r = request(1);
    r.priority = -3;
    r.sampling.top_k = (weft_opt_u32){true, 5};
    r.sampling.seed = (weft_opt_u64){true, 99};
    r.sampling.min_p = (weft_opt_f32){true, 0.25F};
    answer a = {0};
    weft_err err = {0};
    const weft_status st =
        weft_client_generate(client, &r, SECONDS(60), take, &a, &err);
    ck_assert_msg(st == WEFT_OK, "%s", err.text);
    const weft_job job = last_job();
    ck_assert_str_eq(a.reason, "length");
    ck_assert_int_eq(a.id, TOKEN);
    ck_assert_uint_eq(a.completion_tokens, 1);
    ck_assert_int_eq((int32_t)a.prompt_tokens, job.n_prompt);
    ck_assert_int_eq(job.priority, -3);
    ck_assert_uint_eq(job.sampling.top_k, 5);
    ck_assert_uint_eq(job.sampling.seed, 99);
    ck_assert(job.sampling.min_p == 0.25F);
    ck_assert_uint_lt(job.deadline_ns, UINT64_MAX);
    r.sampling.min_p.value = 2.0F;
    ck_assert_int_eq(
        weft_client_generate(client, &r, SECONDS(60), take, &a, &err),
        WEFT_INVALID_ARGUMENT);
    ck_assert_int_eq(weft_client_retry_after_ms(client), -1);
    ck_assert_int_eq(atomic_load(&node.last_status), WEFT_INVALID_ARGUMENT);
    ck_assert_int_eq(atomic_load(&node.n_ended), 2);
    weft_router_drain(node.router);
    ck_assert_int_eq(
        weft_client_generate(client, &r, SECONDS(60), take, &a, &err),
        WEFT_UNAVAILABLE);
    ck_assert_int_gt(weft_client_retry_after_ms(client), 0);
    close_node(client);
}
END_TEST

enum { LEAVERS = 3, ROUNDS = 40 };

static void *leave_often(void *arg)
{
    (void)arg;
    weft_client *const client = serve_client(&(served){.server = node.server});
    const weft_generate_request r = request(9);
    const uint64_t until_ns = weft_clock_now_ns() + SECONDS(60);
    for (int left = ROUNDS; left > 0;) {
        ck_assert_uint_lt(weft_clock_now_ns(), until_ns);
        answer a = {.leaves = true};
        const weft_status st =
            weft_client_generate(client, &r, UINT64_MAX, take, &a, NULL);
        /* Those that have left may still have their slots. */
        if (st == WEFT_RESOURCE_EXHAUSTED) continue;
        ck_assert_int_eq(st, WEFT_CANCELLED);
        left--;
    }
    weft_client_destroy(client);
    return NULL;
}

/* No job ends by itself, and each slot is used many times: a cancel that missed
 * its request would leave it live. */
START_TEST(each_cancel_finds_its_request)
{
    pthread_t threads[LEAVERS];
    weft_client *const client = open_node();
    for (int i = 0; i < LEAVERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, leave_often, NULL),
                         0);
    for (int i = 0; i < LEAVERS; i++) (void)pthread_join(threads[i], NULL);
    wait_idle();
    ck_assert_int_ge(atomic_load(&node.n_ended), (int64_t)LEAVERS * ROUNDS);
    node.ops.cancel(node.service, UINT64_MAX, WEFT_CANCELLED); /* unknown */
    close_node(client);
}
END_TEST

START_TEST(model_and_load_are_told)
{
    weft_arena *arena;
    weft_model_info model;
    weft_load_info load;
    weft_client *const client = open_node();
    ck_assert_int_eq(weft_arena_create(1 << 16, &arena, NULL), WEFT_OK);
    ck_assert_int_eq(
        weft_client_get_model(client, SECONDS(60), arena, &model, NULL),
        WEFT_OK);
    ck_assert_uint_eq(model.name.n, 6);
    ck_assert_mem_eq(model.name.data, "a-name", 6);
    ck_assert_uint_eq(model.weights_hash.n, 16);
    ck_assert_mem_eq(model.weights_hash.data, "0000000000000abc", 16);
    ck_assert_uint_eq(model.max_context, CONTEXT);
    ck_assert_uint_eq(model.vocab_size, DESK_VOCAB);
    ck_assert_uint_eq(model.n_eos_ids, 2);
    ck_assert_int_eq(model.eos_ids[1], 8);
    ck_assert_int_eq(
        weft_client_get_load(client, SECONDS(60), arena, &load, NULL), WEFT_OK);
    weft_engine_load engine;
    weft_engine_get_load(node.desk->engine, &engine);
    ck_assert_uint_eq(load.running + load.waiting, 0);
    ck_assert_uint_eq(load.kv_bytes_used, 0);
    ck_assert_int_eq((int64_t)load.kv_bytes_total, engine.kv.total_bytes);
    weft_cluster_info cluster;
    OK(weft_client_get_cluster(client, SECONDS(20), arena, &cluster, &err));
    ck_assert_uint_eq(cluster.n_members, 1);
    ck_assert_uint_eq(cluster.members[0].id.n, 0);
    ck_assert_uint_eq(cluster.load.kv_bytes_total, load.kv_bytes_total);
    ck_assert_uint_eq(load.n_kinds, 2);
    weft_arena_destroy(arena);
    close_node(client);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {generate_is_translated_both_ways,
                                  each_cancel_finds_its_request,
                                  model_and_load_are_told};
    return WEFT_SUITE_RUN("app/service", tests);
}
