/* serve.c - `weft serve`: router, layers and experts in one process.
 *
 * Start, in this order: the model folder is validated, ports and memory are
 * looked at, then weights are loaded and everything is built up; the ready
 * line comes last. Whatever fails is told in one line and undone.
 *
 * End: a signal drains (see lifecycle.h), then everything is taken down in
 * reverse. The engine ends after the router's threads, since they talk to it,
 * and the router's memory goes after the engine, which borrows jobs.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node/app/commands.h"
#include "node/app/gauges.h"
#include "node/app/inside.h"
#include "node/app/lifecycle.h"
#include "node/app/memory.h"
#include "node/app/model_open.h"
#include "node/app/service.h"
#include "node/app/start.h"
#include "node/base/clock.h"
#include "node/base/hash.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/base/str.h"
#include "node/rpc/http/http.h"
#include "node/rpc/server.h"

static const int64_t MIB = INT64_C(1) << 20;
static const uint64_t SECOND_NS = 1000000000U;
/* For streams that have their end to reach their clients. */
static const uint64_t LAST_WORDS_NS = 1000000000U;

typedef struct serve {
    const weft_options *options;
    const char *name;
    char folder_name[NAME_MAX + 1];
    weft_opened opened;
    weft_engine_options engine_options;
    weft_memory_plan memory;
    uint64_t weights_hash;
    weft_model *model;
    weft_inside *inside; /* instead of model: parts of the model apart */
    weft_gauges *gauges;
    weft_router *router;
    weft_engine *engine;
    weft_service *service;
    weft_service_ops ops;
    weft_http_server *http;
    weft_rpc_server *rpc;
} serve;

/* -- what is told on stderr ----------------------------------------------- */

static void tell_memory(const serve *s)
{
    const weft_memory_plan *const m = &s->memory;
    weft_log(WEFT_LOG_INFO, "serve", "memory",
             "available_mib %" PRId64 " weights_mib %" PRId64
             " buffers_mib %" PRId64 " requests_mib %" PRId64
             " reserve_mib %" PRId64 " kv_bytes %" PRId64 " from %s",
             m->available_bytes / MIB, m->weights_bytes / MIB,
             m->overhead_bytes / MIB, m->requests_bytes / MIB,
             m->reserve_bytes / MIB, m->kv_bytes,
             m->kv_given ? "kv-bytes" : "free_memory");
}

static void tell_pool(const serve *s)
{
    const weft_kv_layout *const layout = weft_engine_layout(s->engine);
    weft_engine_load load;
    weft_engine_get_load(s->engine, &load);
    weft_log(WEFT_LOG_INFO, "serve", "kv_pool",
             "total_bytes %" PRId64 " slabs %" PRId64 " slab_bytes %" PRId64
             " full_pages_per_slab %d window_pages_per_slab %d "
             "full_page_bytes %" PRId64 " window_page_bytes %" PRId64
             " page_tokens %d waste_percent %.2f",
             load.kv.total_bytes, load.kv.slabs, layout->slab_bytes,
             layout->slab_pages[WEFT_FULL], layout->slab_pages[WEFT_WINDOW],
             layout->page_bytes[WEFT_FULL], layout->page_bytes[WEFT_WINDOW],
             layout->page_tokens, 100.0 * layout->waste);
    const weft_engine_options *const o = &s->engine_options;
    const int64_t one = weft_kv_bytes_for(&s->opened.config, layout,
                                          o->max_context, o->chunk_tokens);
    if (one > load.kv.total_bytes)
        weft_log(WEFT_LOG_WARN, "serve", "kv_pool_small",
                 "max_context %d needs_bytes %" PRId64 " total_bytes %" PRId64
                 " longer_requests \"are refused\"",
                 o->max_context, one, load.kv.total_bytes);
}

/* A line that is written over, for whoever watches a terminal; whoever writes
 * to stderr next ends it. */
static void tell_progress(void *arg, int64_t done_bytes, int64_t total_bytes)
{
    int *const last = arg;
    const int percent =
        total_bytes > 0 ? (int)(100 * done_bytes / total_bytes) : 100;
    if (percent == *last) return;
    *last = percent;
    (void)fprintf(stderr, "\rloading weights: %d %% of %" PRId64 " MiB",
                  percent, total_bytes / MIB);
}

/* -- start ---------------------------------------------------------------- */

/* The folder's own name, also for "." and "model/". */
static void take_name(serve *s)
{
    char path[PATH_MAX];
    s->name = s->options->model_name;
    if (s->name != NULL) return;
    s->name = s->folder_name;
    if (realpath(s->options->model, path) == NULL) return;
    const char *const slash = strrchr(path, '/');
    (void)snprintf(s->folder_name, sizeof s->folder_name, "%.*s", NAME_MAX,
                   slash == NULL ? path : slash + 1);
}

static weft_status resolve_options(serve *s, weft_err *err)
{
    const weft_options *const o = s->options;
    const weft_model_config *const config = &s->opened.config;
    if (o->max_context > config->max_context)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "--max-context %d: this model allows 1 to %d",
                         o->max_context, config->max_context);
    if ((int64_t)o->max_seqs + o->max_queue > WEFT_SLOTS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "--max-queue %d: with --max-seqs %d at most %d",
                         o->max_queue, o->max_seqs,
                         WEFT_SLOTS_MAX - o->max_seqs);
    return weft_model_engine_options(o, config, &s->engine_options, err);
}

static weft_status plan_memory(serve *s, weft_err *err)
{
    const weft_checkpoint_stats *const stats =
        weft_checkpoint_get_stats(s->opened.checkpoint);
    s->weights_hash = stats->weights_hash;
    WEFT_TRY(weft_memory_plan_make(&s->opened.config, &s->engine_options,
                                   s->options->kv_bytes, stats->resident_bytes,
                                   &s->memory, err));
    s->engine_options.kv_bytes = s->memory.kv_bytes;
    tell_memory(s);
    return WEFT_OK;
}

static weft_status load_weights(serve *s, weft_err *err)
{
    int last_percent = -1;
    const bool watched = isatty(STDERR_FILENO) != 0;
    const uint64_t from_ns = weft_clock_now_ns();
    if (weft_inside_is_wanted(s->options))
        return weft_inside_create(s->options, &s->opened, &s->engine_options,
                                  &s->inside, err);
    const weft_status st =
        weft_model_load(s->opened.checkpoint, watched ? tell_progress : NULL,
                        &last_percent, &s->model, err);
    /* What is told next begins a line. */
    if (last_percent >= 0) (void)fputc('\n', stderr);
    if (st != WEFT_OK) return st;
    weft_log(WEFT_LOG_INFO, "serve", "loaded",
             "weights_mib %" PRId64 " seconds %.1f",
             s->memory.weights_bytes / MIB,
             (double)(weft_clock_now_ns() - from_ns) / (double)SECOND_NS);
    return WEFT_OK;
}

static float or_neutral(bool neutral, float value, float otherwise)
{
    /* NaN: generation_config.json does not say. */
    return neutral || value != value ? otherwise : value;
}

static weft_admit_limits admit_limits(const serve *s)
{
    const weft_model_config *const c = &s->opened.config;
    const bool neutral = s->options->neutral_defaults;
    return (weft_admit_limits){
        .vocab_size = c->vocab_size,
        .max_context = s->engine_options.max_context,
        .stop_ids = c->stop_ids,
        .n_stop_ids = c->n_stop_ids,
        .suppressed_ids = c->suppressed_ids,
        .n_suppressed_ids = c->n_suppressed_ids,
        .tokenizer = s->opened.tokenizer,
        .temperature = or_neutral(neutral, c->temperature, 1.0F),
        .top_p = or_neutral(neutral, c->top_p, 1.0F),
        .repetition_penalty = or_neutral(neutral, c->repetition_penalty, 1.0F),
        .top_k =
            neutral || c->top_k_sampling < 0 ? 0 : (uint32_t)c->top_k_sampling,
    };
}

static weft_status create_router(serve *s, weft_err *err)
{
    const uint64_t pid = (uint64_t)getpid();
    const weft_router_options options = {
        .max_seqs = s->options->max_seqs,
        .max_queue = s->options->max_queue,
        .limits = admit_limits(s),
        .tokenizer = s->opened.tokenizer,
        .memory_bytes_max = s->memory.requests_bytes,
        .watch = weft_gauges_watch(s->gauges),
        .start_id = weft_hash_mix(weft_clock_now_ns() ^ pid << 48),
        .is_wanted = weft_service_is_wanted,
    };
    return weft_router_create(&options, &s->router, err);
}

static weft_status create_engine(serve *s, weft_err *err)
{
    const weft_event_sink sink = {.take = weft_router_take_event,
                                  .arg = s->router};
    const bool apart = s->inside != NULL;
    const weft_status st = weft_engine_create(
        apart ? weft_inside_config(s->inside) : &s->opened.config,
        apart ? weft_inside_weights(s->inside) : weft_model_weights(s->model),
        &s->engine_options, sink, weft_gauges_count_step, s->gauges, &s->engine,
        err);
    if (st == WEFT_RESOURCE_EXHAUSTED)
        return WEFT_WRAP(err, st, "--kv-bytes %" PRId64, s->memory.kv_bytes);
    return st;
}

static weft_status create_parts(serve *s, weft_err *err)
{
    WEFT_TRY(weft_gauges_create(&s->gauges, err));
    WEFT_TRY(create_router(s, err));
    WEFT_TRY(create_engine(s, err));
    tell_pool(s);
    weft_gauges_set_sources(s->gauges, s->router, s->engine);
    const weft_service_options options = {
        .router = s->router,
        .engine = s->engine,
        .config = &s->opened.config,
        .name = s->name,
        .max_context = s->engine_options.max_context,
        .weights_hash = s->weights_hash,
        .max_live = s->options->max_seqs + s->options->max_queue,
        .count_end = weft_gauges_count_end,
        .count_arg = s->gauges,
    };
    return weft_service_create(&options, &s->service, err);
}

static weft_status start_http(serve *s, weft_err *err)
{
    const weft_http_ops ops = weft_gauges_http_ops(s->gauges);
    if (s->options->http.off) return WEFT_OK;
    return weft_http_server_start(s->options->http.text, &ops, &s->http, err);
}

static weft_status start_servers(serve *s, weft_err *err)
{
    weft_rpc_options options = weft_rpc_options_default();
    const int32_t live = s->options->max_seqs + s->options->max_queue;
    s->ops = weft_service_get_ops();
    options.listen = s->options->listen.text;
    options.ops = &s->ops;
    options.ops_arg = s->service;
    /* Messages that are arriving live in the reserve. */
    if ((int64_t)options.incoming_bytes_max > s->memory.reserve_bytes)
        options.incoming_bytes_max = (size_t)s->memory.reserve_bytes;
    /* The router refuses with a reason; this is for what it never sees. */
    if (options.calls_max < live + 1024) options.calls_max = live + 1024;
    WEFT_TRY(weft_engine_start(s->engine, err));
    WEFT_TRY(weft_router_start(s->router, weft_service_lead(s->engine), err));
    WEFT_TRY(start_http(s, err));
    WEFT_TRY(weft_rpc_server_start(&options, &s->rpc, err));
    weft_gauges_set_started(s->gauges);
    return WEFT_OK;
}

static weft_status open_model(serve *s, weft_err *err)
{
    weft_buf names = {0};
    const weft_status st =
        weft_model_open(s->options->model, s->options->profile,
                        weft_start_remark, &names, &s->opened, err);
    if (st == WEFT_OK && names.n > 0)
        weft_log(WEFT_LOG_INFO, "model", "ignored", "names \"%s\"", names.data);
    weft_buf_deinit(&names);
    return st;
}

static weft_status raise_descriptors(serve *s, weft_err *err)
{
    (void)s;
    return weft_start_raise_descriptors(err);
}

static weft_status check_ports(serve *s, weft_err *err)
{
    WEFT_TRY(weft_start_check_port("--listen", &s->options->listen, err));
    return weft_start_check_port("--http", &s->options->http, err);
}

static weft_status close_files(serve *s, weft_err *err)
{
    (void)err;
    if (s->inside != NULL) return WEFT_OK; /* whose it is until the end */
    weft_checkpoint_close(s->opened.checkpoint);
    s->opened.checkpoint = NULL;
    return WEFT_OK;
}

/* *doing_out: what a failure means to a user (exit.h). */
static weft_status start(serve *s, weft_doing *doing_out, weft_err *err)
{
    static const struct {
        weft_status (*run)(serve *s, weft_err *err);
        weft_doing doing;
    } steps[] = {
        {raise_descriptors, WEFT_DOING_START}, {open_model, WEFT_DOING_LOAD},
        {resolve_options, WEFT_DOING_START},   {check_ports, WEFT_DOING_START},
        {plan_memory, WEFT_DOING_START},       {load_weights, WEFT_DOING_LOAD},
        {close_files, WEFT_DOING_START},       {create_parts, WEFT_DOING_START},
        {start_servers, WEFT_DOING_START},
    };
    take_name(s);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        *doing_out = steps[i].doing;
        WEFT_TRY(steps[i].run(s, err));
    }
    return WEFT_OK;
}

/* -- end ------------------------------------------------------------------ */

static bool nothing_live(void *arg)
{
    weft_router_load load;
    weft_router_get_load(arg, &load);
    return load.n_live == 0;
}

/* Accepted streams go on, new calls are told to go elsewhere; what is left when
 * the time is up is cut. */
static void drain(serve *s)
{
    const uint64_t from_ns = weft_clock_now_ns();
    const uint64_t until_ns =
        from_ns + (uint64_t)s->options->drain_seconds * SECOND_NS;
    weft_router_drain(s->router);
    weft_rpc_server_set_serving(s->rpc, false);
    if (!weft_lifecycle_wait_until(nothing_live, s->router, until_ns)) {
        weft_router_load load;
        weft_router_get_load(s->router, &load);
        weft_log(WEFT_LOG_WARN, "serve", "cut", "requests %d", load.n_live);
        weft_router_cut(s->router);
        (void)weft_lifecycle_wait_until(nothing_live, s->router,
                                        weft_clock_now_ns() + LAST_WORDS_NS);
    }
    const uint64_t now_ns = weft_clock_now_ns();
    uint64_t grace_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    if (grace_ns < LAST_WORDS_NS) grace_ns = LAST_WORDS_NS;
    weft_rpc_server_stop(s->rpc, grace_ns);
}

/* Whatever has been built up, in reverse. */
static void take_down(serve *s)
{
    weft_rpc_server_destroy(s->rpc);
    weft_http_server_destroy(s->http);
    if (s->router != NULL) weft_router_stop(s->router);
    if (s->engine != NULL) weft_engine_stop(s->engine);
    weft_service_destroy(s->service);
    weft_router_destroy(s->router);
    weft_engine_destroy(s->engine);
    weft_gauges_destroy(s->gauges);
    weft_inside_destroy(s->inside);
    weft_model_destroy(s->model);
    weft_model_close(&s->opened);
}

static weft_status tell_ready(const serve *s, weft_err *err)
{
    const int n =
        printf("ready grpc=%s http=%s\n", weft_rpc_server_address(s->rpc),
               s->http == NULL ? "off" : weft_http_server_address(s->http));
    if (n > 0 && fflush(stdout) == 0) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_UNAVAILABLE, "stdout cannot be written");
}

static int run(serve *s)
{
    weft_doing doing = WEFT_DOING_START;
    weft_err err = {0};
    weft_status st = start(s, &doing, &err);
    if (st == WEFT_OK) {
        weft_lifecycle_set_serving();
        doing = WEFT_DOING_START;
        st = tell_ready(s, &err);
    }
    if (st == WEFT_OK) {
        weft_lifecycle_wait_for_drain();
        drain(s);
    }
    take_down(s);
    if (st == WEFT_OK) return WEFT_EXIT_DONE;
    return weft_fail_with(weft_exit_of(st, doing), &err);
}

int weft_command_serve(const weft_options *options)
{
    weft_err err = {0};
    serve *const s = weft_mem_new(1, sizeof *s);
    if (s == NULL) {
        (void)WEFT_FAIL(&err, WEFT_RESOURCE_EXHAUSTED, "out of memory");
        return weft_fail_with(WEFT_EXIT_RESOURCE, &err);
    }
    s->options = options;
    int code = WEFT_EXIT_DONE;
    if (weft_lifecycle_begin(&err) == WEFT_OK)
        code = run(s);
    else
        code = weft_fail_with(WEFT_EXIT_RESOURCE, &err);
    weft_lifecycle_end();
    weft_mem_free(s);
    return code;
}
