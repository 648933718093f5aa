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
#include <stdio.h>
#include <unistd.h>

#include "node/app/backend.h"
#include "node/app/commands.h"
#include "node/app/inside.h"
#include "node/app/lifecycle.h"
#include "node/app/memory.h"
#include "node/app/model_open.h"
#include "node/app/public_face.h"
#include "node/app/rank_weights.h"
#include "node/app/start.h"
#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/base/str.h"

static const int64_t MIB = INT64_C(1) << 20;
static const uint64_t SECOND_NS = 1000000000U;

typedef struct serve {
    const weft_options *options;
    weft_opened opened;
    weft_engine_options engine_options;
    weft_backend backend;
    weft_memory_plan memory;
    weft_part_of_model part; /* all of it */
    weft_rank_weights weights;
    weft_inside *inside; /* instead of weights: parts of the model apart */
    weft_face face;
    weft_engine *engine;
    weft_engine_view own;
    weft_view view;
} serve;

/* -- what is told on stderr ----------------------------------------------- */

static void tell_memory(const serve *s)
{
    const weft_memory_plan *const m = &s->memory;
    weft_log(WEFT_LOG_INFO, "serve", "memory",
             "available_mib %" PRId64 " weights_mib %" PRId64
             " buffers_mib %" PRId64 " requests_mib %" PRId64
             " reserve_mib %" PRId64 " kv_bytes %" PRId64 " from %s ranks %d",
             m->available_bytes / MIB, m->weights_bytes / MIB,
             m->overhead_bytes / MIB, m->requests_bytes / MIB,
             m->reserve_bytes / MIB, m->kv_bytes,
             m->kv_given ? "kv-bytes" : "free_memory", s->backend.n_ranks);
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

static weft_status resolve_options(serve *s, weft_err *err)
{
    const weft_options *const o = s->options;
    const weft_model_config *const config = &s->opened.config;
    if (o->max_context > config->max_context)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "--max-context %d: this model allows 1 to %d",
                         o->max_context, config->max_context);
    WEFT_TRY(weft_face_check_options(o, err));
    return weft_model_engine_options(o, config, &s->engine_options, err);
}

static weft_status open_backend(serve *s, weft_err *err)
{
    WEFT_TRY(weft_backend_open(s->options, &s->backend, err));
    weft_backend_apply(&s->backend, &s->engine_options);
    return WEFT_OK;
}

static weft_status plan_memory(serve *s, weft_err *err)
{
    weft_rank_sizes sizes;
    const bool on_device = s->backend.opened != NULL;
    s->own.weights_hash =
        weft_checkpoint_get_stats(s->opened.checkpoint)->weights_hash;
    s->part = weft_model_whole(&s->opened.config);
    WEFT_TRY(weft_rank_weights_measure(s->opened.checkpoint, &s->backend,
                                       &s->part, &sizes, err));
    WEFT_TRY(weft_memory_plan_make(&s->opened.config, &s->engine_options,
                                   on_device ? 0 : s->options->kv_bytes,
                                   sizes.host_bytes, &s->memory, err));
    if (on_device)
        WEFT_TRY(weft_backend_plan(
            &s->backend, &s->opened.config, &s->engine_options,
            s->options->kv_bytes, sizes.device_bytes,
            weft_inside_device_bytes(s->options, &s->opened.config,
                                     &s->engine_options),
            &s->memory.kv_bytes, err));
    s->memory.kv_given = s->options->kv_bytes > 0;
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
    const weft_status st = weft_rank_weights_load(
        s->opened.checkpoint, &s->backend, &s->part,
        watched ? tell_progress : NULL, &last_percent, &s->weights, err);
    s->engine_options.ranks = s->weights.others;
    /* What is told next begins a line. */
    if (last_percent >= 0) (void)fputc('\n', stderr);
    if (st != WEFT_OK) return st;
    weft_log(WEFT_LOG_INFO, "serve", "loaded",
             "weights_mib %" PRId64 " seconds %.1f",
             s->memory.weights_bytes / MIB,
             (double)(weft_clock_now_ns() - from_ns) / (double)SECOND_NS);
    return WEFT_OK;
}

static weft_status create_engine(serve *s, weft_err *err)
{
    const weft_event_sink sink = {.take = weft_router_take_event,
                                  .arg = s->face.router};
    const bool apart = s->inside != NULL;
    const weft_status st = weft_engine_create(
        apart ? weft_inside_config(s->inside) : &s->opened.config,
        apart ? weft_inside_weights(s->inside)
              : weft_rank_weights_first(&s->weights),
        &s->engine_options, sink, weft_gauges_count_step, s->face.gauges,
        &s->engine, err);
    if (st == WEFT_RESOURCE_EXHAUSTED)
        return WEFT_WRAP(err, st, "--kv-bytes %" PRId64, s->memory.kv_bytes);
    return st;
}

static weft_status create_parts(serve *s, weft_err *err)
{
    const weft_face_options options = {
        .options = s->options,
        .config = &s->opened.config,
        .tokenizer = s->opened.tokenizer,
        .max_context = s->engine_options.max_context,
        .requests_bytes = s->memory.requests_bytes,
        .reserve_bytes = s->memory.reserve_bytes,
    };
    WEFT_TRY(weft_face_create(&options, &s->face, err));
    WEFT_TRY(create_engine(s, err));
    weft_inside_set_engine(s->inside, s->engine);
    tell_pool(s);
    s->own.engine = s->engine;
    s->view = weft_engine_view_of(&s->own);
    return WEFT_OK;
}

static weft_status start_servers(serve *s, weft_err *err)
{
    WEFT_TRY(weft_engine_start(s->engine, err));
    return weft_face_start(&s->face, weft_service_lead(s->engine), &s->view,
                           err);
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
    return weft_face_check_ports(s->options, err);
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
        {raise_descriptors, WEFT_DOING_START},
        {open_model, WEFT_DOING_LOAD},
        {resolve_options, WEFT_DOING_START},
        {check_ports, WEFT_DOING_START},
        {open_backend, WEFT_DOING_START},
        {plan_memory, WEFT_DOING_START},
        {load_weights, WEFT_DOING_LOAD},
        {close_files, WEFT_DOING_START},
        {create_parts, WEFT_DOING_START},
        {start_servers, WEFT_DOING_START},
    };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        *doing_out = steps[i].doing;
        WEFT_TRY(steps[i].run(s, err));
    }
    return WEFT_OK;
}

/* -- end ------------------------------------------------------------------ */

/* Whatever has been built up, in reverse. */
static void take_down(serve *s)
{
    weft_face_stop(&s->face);
    if (s->engine != NULL) weft_engine_stop(s->engine);
    weft_face_destroy(&s->face);
    weft_inside_set_engine(s->inside, NULL);
    weft_engine_destroy(s->engine);
    weft_inside_destroy(s->inside);
    weft_rank_weights_destroy(&s->weights);
    weft_model_close(&s->opened);
    weft_backend_close(&s->backend);
}

static int run(serve *s)
{
    weft_doing doing = WEFT_DOING_START;
    weft_err err = {0};
    weft_status st = start(s, &doing, &err);
    if (st == WEFT_OK) {
        weft_lifecycle_set_serving();
        doing = WEFT_DOING_START;
        st = weft_face_tell_ready(&s->face, &err);
    }
    if (st == WEFT_OK) {
        weft_lifecycle_wait_for_drain();
        weft_face_drain(&s->face);
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
