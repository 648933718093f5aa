#include "node/app/public_face.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node/app/lifecycle.h"
#include "node/app/start.h"
#include "node/base/clock.h"
#include "node/base/hash.h"
#include "node/base/log.h"

static const uint64_t SECOND_NS = 1000000000U;
/* For streams that have their end to reach their clients. */
static const uint64_t LAST_WORDS_NS = 1000000000U;

/* -- start ------------------------------------------------------------------
 */

weft_status weft_face_check_options(const weft_options *o, weft_err *err)
{
    if ((int64_t)o->max_seqs + o->max_queue > WEFT_SLOTS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "--max-queue %d: with --max-seqs %d at most %d",
                         o->max_queue, o->max_seqs,
                         WEFT_SLOTS_MAX - o->max_seqs);
    if ((o->tls_cert == NULL) != (o->tls_key == NULL))
        return WEFT_FAIL(
            err, WEFT_INVALID_ARGUMENT,
            "--%s is missing: --tls-cert and --tls-key go together",
            o->tls_cert == NULL ? "tls-cert" : "tls-key");
    if (o->tls_client_ca != NULL && o->tls_cert == NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "--tls-client-ca has no meaning without --tls-cert");
    return WEFT_OK;
}

weft_status weft_face_check_ports(const weft_options *o, weft_err *err)
{
    WEFT_TRY(weft_start_check_port("--listen", &o->listen, err));
    return weft_start_check_port("--http", &o->http, err);
}

/* The folder's own name, also for "." and "model/". */
static void take_name(weft_face *f)
{
    char path[PATH_MAX];
    const weft_options *const o = f->options.options;
    f->name = o->model_name;
    if (f->name != NULL) return;
    f->name = f->folder_name;
    if (realpath(o->model, path) == NULL) return;
    const char *const slash = strrchr(path, '/');
    (void)snprintf(f->folder_name, sizeof f->folder_name, "%.*s", NAME_MAX,
                   slash == NULL ? path : slash + 1);
}

static float or_neutral(bool neutral, float value, float otherwise)
{
    /* NaN: generation_config.json does not say. */
    return neutral || value != value ? otherwise : value;
}

static weft_admit_limits admit_limits(const weft_face *f)
{
    const weft_model_config *const c = f->options.config;
    const bool neutral = f->options.options->neutral_defaults;
    return (weft_admit_limits){
        .vocab_size = c->vocab_size,
        .max_context = f->options.max_context,
        .max_context_now = f->options.max_context_now,
        .stop_ids = c->stop_ids,
        .n_stop_ids = c->n_stop_ids,
        .suppressed_ids = c->suppressed_ids,
        .n_suppressed_ids = c->n_suppressed_ids,
        .tokenizer = f->options.tokenizer,
        .temperature = or_neutral(neutral, c->temperature, 1.0F),
        .top_p = or_neutral(neutral, c->top_p, 1.0F),
        .repetition_penalty = or_neutral(neutral, c->repetition_penalty, 1.0F),
        .top_k =
            neutral || c->top_k_sampling < 0 ? 0 : (uint32_t)c->top_k_sampling,
    };
}

weft_status weft_face_create(const weft_face_options *options,
                             weft_face *face_out, weft_err *err)
{
    const uint64_t pid = (uint64_t)getpid();
    weft_face *const f = face_out;
    *f = (weft_face){.options = *options};
    take_name(f);
    WEFT_TRY(weft_gauges_create(&f->gauges, err));
    const weft_router_options router = {
        .max_seqs = options->options->max_seqs,
        .max_queue = options->options->max_queue,
        .limits = admit_limits(f),
        .tokenizer = options->tokenizer,
        .memory_bytes_max = options->requests_bytes,
        .watch = weft_gauges_watch(f->gauges),
        .start_id = weft_hash_mix(weft_clock_now_ns() ^ pid << 48),
        .is_wanted = weft_service_is_wanted,
        .can_serve = options->can_serve,
        .can_serve_arg = options->can_serve_arg,
    };
    return weft_router_create(&router, &f->router, err);
}

static int32_t live_max(const weft_face *f)
{
    return f->options.options->max_seqs + f->options.options->max_queue;
}

static weft_status create_service(weft_face *f, const weft_view *view,
                                  weft_err *err)
{
    const weft_service_options options = {
        .router = f->router,
        .view = view,
        .config = f->options.config,
        .name = f->name,
        .max_context = f->options.max_context,
        .max_context_now = f->options.max_context_now,
        .max_live = live_max(f),
        .count_end = weft_gauges_count_end,
        .count_arg = f->gauges,
    };
    weft_gauges_set_sources(f->gauges, f->router, view);
    return weft_service_create(&options, &f->service, err);
}

static weft_status start_http(weft_face *f, weft_err *err)
{
    const weft_http_ops ops = weft_gauges_http_ops(f->gauges);
    const weft_flag_address *const at = &f->options.options->http;
    if (at->off) return WEFT_OK;
    return weft_http_server_start(at->text, &ops, &f->http, err);
}

static weft_status take_secrets(weft_face *f, weft_err *err)
{
    const weft_options *const o = f->options.options;
    const weft_tls_files files = {.cert_file = o->tls_cert,
                                  .key_file = o->tls_key,
                                  .ca_file = o->tls_client_ca,
                                  .faces_clients = true};
    WEFT_TRY(weft_tls_create(&files, &f->tls, err));
    if (o->api_keys == NULL) return WEFT_OK;
    return weft_keys_create(o->api_keys, &f->keys, err);
}

static weft_status start_rpc(weft_face *f, weft_err *err)
{
    weft_rpc_options options = weft_rpc_options_default();
    WEFT_TRY(take_secrets(f, err));
    options.tls = f->tls;
    options.keys = f->keys;
    f->ops = weft_service_get_ops();
    options.listen = f->options.options->listen.text;
    options.ops = &f->ops;
    options.ops_arg = f->service;
    /* Messages that are arriving live in the reserve. */
    if ((int64_t)options.incoming_bytes_max > f->options.reserve_bytes)
        options.incoming_bytes_max = (size_t)f->options.reserve_bytes;
    /* The router refuses with a reason; this is for what it never sees. */
    if (options.calls_max < live_max(f) + 1024)
        options.calls_max = live_max(f) + 1024;
    return weft_rpc_server_start(&options, &f->rpc, err);
}

weft_status weft_face_start(weft_face *f, weft_lead lead, const weft_view *view,
                            weft_err *err)
{
    WEFT_TRY(create_service(f, view, err));
    WEFT_TRY(weft_router_start(f->router, lead, err));
    WEFT_TRY(start_http(f, err));
    WEFT_TRY(start_rpc(f, err));
    weft_gauges_set_started(f->gauges);
    return WEFT_OK;
}

weft_status weft_face_tell_ready(const weft_face *f, weft_err *err)
{
    const int n =
        printf("ready grpc=%s http=%s\n", weft_rpc_server_address(f->rpc),
               f->http == NULL ? "off" : weft_http_server_address(f->http));
    if (n > 0 && fflush(stdout) == 0) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_UNAVAILABLE, "stdout cannot be written");
}

/* -- end --------------------------------------------------------------------
 */

static bool nothing_live(void *arg)
{
    weft_router_load load;
    weft_router_get_load(arg, &load);
    return load.n_live == 0;
}

void weft_face_drain(weft_face *f)
{
    const uint64_t from_ns = weft_clock_now_ns();
    const uint64_t until_ns =
        from_ns + (uint64_t)f->options.options->drain_seconds * SECOND_NS;
    weft_router_drain(f->router);
    weft_rpc_server_set_serving(f->rpc, false);
    if (!weft_lifecycle_wait_until(nothing_live, f->router, until_ns)) {
        weft_router_load load;
        weft_router_get_load(f->router, &load);
        weft_log(WEFT_LOG_WARN, "serve", "cut", "requests %d", load.n_live);
        weft_router_cut(f->router);
        (void)weft_lifecycle_wait_until(nothing_live, f->router,
                                        weft_clock_now_ns() + LAST_WORDS_NS);
    }
    const uint64_t now_ns = weft_clock_now_ns();
    uint64_t grace_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    if (grace_ns < LAST_WORDS_NS) grace_ns = LAST_WORDS_NS;
    weft_rpc_server_stop(f->rpc, grace_ns);
}

void weft_face_stop(weft_face *f)
{
    weft_rpc_server_destroy(f->rpc);
    weft_tls_destroy(f->tls);
    weft_keys_destroy(f->keys);
    f->tls = NULL;
    f->keys = NULL;
    weft_http_server_destroy(f->http);
    f->rpc = NULL;
    f->http = NULL;
    if (f->router != NULL) weft_router_stop(f->router);
}

void weft_face_destroy(weft_face *f)
{
    weft_face_stop(f);
    weft_service_destroy(f->service);
    weft_router_destroy(f->router);
    weft_gauges_destroy(f->gauges);
    *f = (weft_face){0};
}
