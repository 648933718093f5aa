#include "node/app/shard.h"

#include <stdio.h>
#include <string.h>

#include "node/app/gauges.h"
#include "node/app/lifecycle.h"
#include "node/app/model_open.h"
#include "node/app/start.h"
#include "node/base/clock.h"
#include "node/base/log.h"

static weft_status open_files(weft_shard *s, weft_err *err)
{
    weft_buf names = {0};
    const weft_options *const o = s->options;
    weft_status st = weft_model_config_read(o->model, weft_start_remark, &names,
                                            &s->config, err);
    if (st == WEFT_OK)
        st = weft_checkpoint_open(o->model, &s->config, o->profile,
                                  weft_start_remark, &names, &s->checkpoint,
                                  err);
    if (st == WEFT_OK && names.n > 0)
        weft_log(WEFT_LOG_INFO, "model", "ignored", "names \"%s\"", names.data);
    weft_buf_deinit(&names);
    return st;
}

static weft_status open_backend(weft_shard *s, weft_err *err)
{
    WEFT_TRY(weft_backend_open(s->options, &s->backend, err));
    weft_backend_apply(&s->backend, &s->engine);
    return weft_checkpoint_set_memory(s->checkpoint, &s->backend.memory, err);
}

weft_status weft_shard_open(weft_shard *s, const weft_options *options,
                            weft_doing *doing_out, weft_err *err)
{
    s->options = options;
    (void)pthread_mutex_init(&s->joined_lock, NULL);
    (void)pthread_mutex_init(&s->ending_lock, NULL);
    *doing_out = WEFT_DOING_START;
    WEFT_TRY(weft_start_raise_descriptors(err));
    *doing_out = WEFT_DOING_LOAD;
    WEFT_TRY(open_files(s, err));
    *doing_out = WEFT_DOING_START;
    if (options->max_context > s->config.max_context)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "--max-context %d: this model allows 1 to %d",
                         options->max_context, s->config.max_context);
    WEFT_TRY(weft_start_check_port("--listen", &options->listen, err));
    WEFT_TRY(weft_start_check_port("--http", &options->http, err));
    WEFT_TRY(weft_metrics_create(&s->metrics, err));
    WEFT_TRY(weft_model_engine_options(options, &s->config, &s->engine, err));
    WEFT_TRY(open_backend(s, err));
    char identity[WEFT_IDENTITY_BYTES];
    weft_backend_identity(&s->backend, options->profile, identity);
    return weft_membership_begin(&s->member, options, &s->config, s->checkpoint,
                                 options->listen.text, identity, err);
}

static void set_joined(weft_shard *s, bool joined)
{
    (void)pthread_mutex_lock(&s->joined_lock);
    s->joined = joined;
    (void)pthread_mutex_unlock(&s->joined_lock);
}

/* Whether the registry has that incarnation of it. */
static bool is_registered(void *arg, const weft_hello *peer)
{
    weft_shard *const s = arg;
    weft_cluster_view view = {0};
    bool is = false;
    (void)pthread_mutex_lock(&s->joined_lock);
    if (s->joined &&
        weft_cluster_get_view(s->member.cluster, &view, NULL) == WEFT_OK) {
        for (int32_t i = 0; i < view.n_members; i++)
            is = is || (view.members[i].role == peer->role &&
                        view.members[i].incarnation == peer->incarnation &&
                        strcmp(view.members[i].id, peer->id) == 0);
        weft_cluster_view_deinit(&view);
    }
    (void)pthread_mutex_unlock(&s->joined_lock);
    return is;
}

weft_status weft_shard_listen(weft_shard *s, const weft_shard_door *door,
                              weft_err *err)
{
    weft_link_options link = weft_membership_link(door->limits);
    link.near = door->near;
    const weft_link_server_options options = {
        .listen = s->options->listen.text,
        .own = &s->member.hello,
        .own_later = true,
        .tls = s->member.tls,
        .link = link,
        .admit = door->admit,
        .take = door->take,
        .arg = door->arg,
        .vouch = is_registered,
        .vouch_arg = s,
    };
    WEFT_TRY(weft_link_server_start(&options, &s->links, err));
    return weft_membership_address(
        &s->member, weft_link_server_address(s->links), s->address, err);
}

weft_status weft_shard_join(weft_shard *s, const weft_member *self,
                            const weft_cluster_ops *ops, weft_doing *doing_out,
                            weft_err *err)
{
    weft_member member = *self;
    memcpy(member.address, s->address, sizeof member.address);
    weft_backend_device(&s->backend, member.device, sizeof member.device);
    WEFT_TRY(weft_membership_join(&s->member, &member, ops, doing_out, err));
    weft_link_server_set_own(s->links, &s->member.hello);
    set_joined(s, true);
    return WEFT_OK;
}

/* -- HTTP ----------------------------------------------------------------- */

static int answer(weft_buf *body, const char *reason)
{
    /* A body that finds no memory is left out; the code says enough. */
    const weft_status st =
        weft_buf_printf(body, NULL, "%s\n", reason == NULL ? "ok" : reason);
    (void)st;
    return reason == NULL ? 200 : 503;
}

static int healthz(void *arg, weft_buf *body)
{
    weft_shard *const s = arg;
    const uint64_t now_ns = weft_clock_now_ns();
    const uint64_t at_ns = s->progress_ns == NULL ? 0 : s->progress_ns(s);
    const bool hangs = at_ns > 0 && now_ns > at_ns + WEFT_STEP_HANGS_NS;
    return answer(body, hangs ? "a step hangs" : NULL);
}

static int readyz(void *arg, weft_buf *body)
{
    char reason[160] = "";
    weft_shard *const s = arg;
    if (atomic_load(&s->ending)) return answer(body, "it ends");
    if (atomic_load(&s->draining)) return answer(body, "draining");
    if (!s->is_ready(s, reason, sizeof reason)) return answer(body, reason);
    return healthz(arg, body);
}

/* Those that serve, as routers count them. */
static uint64_t count_serving(const weft_cluster_view *view, weft_role role)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < view->n_members; i++)
        n += view->members[i].role == role &&
             view->members[i].state == WEFT_MEMBER_SERVING;
    return n;
}

/* Of one device there is no need to say which. */
static weft_status print_device_bytes(const weft_backend *b, int32_t rank,
                                      weft_buf *out, weft_err *err)
{
    weft_device_info info;
    char which[32] = "";
    const weft_memory *const memory = weft_backend_memory(b, rank);
    memory->api->get_info(memory->device, &info);
    if (b->n_ranks > 1)
        (void)snprintf(which, sizeof which, "device=\"%d\",", info.index);
    return weft_buf_printf(out, err,
                           "weft_device_bytes{%sstate=\"free\"} %lld\n"
                           "weft_device_bytes{%sstate=\"used\"} %lld\n",
                           which, (long long)info.free_bytes, which,
                           (long long)(info.total_bytes - info.free_bytes));
}

static weft_status print_backend(const weft_shard *s, weft_buf *out,
                                 weft_err *err)
{
    char device[WEFT_IDENTITY_BYTES];
    const weft_backend *const b = &s->backend;
    weft_backend_device(b, device, sizeof device);
    WEFT_TRY(
        weft_buf_printf(out, err,
                        "# HELP weft_backend_info What computes here.\n"
                        "# TYPE weft_backend_info gauge\n"
                        "weft_backend_info{device=\"%s\",identity=\"%s\"} 1\n",
                        device, s->member.hello.identity));
    if (b->opened == NULL) return WEFT_OK;
    WEFT_TRY(weft_buf_printf(out, err,
                             "# HELP weft_device_bytes Memory of the device.\n"
                             "# TYPE weft_device_bytes gauge\n"));
    for (int32_t r = 0; r < b->n_ranks; r++)
        WEFT_TRY(print_device_bytes(b, r, out, err));
    return WEFT_OK;
}

static int metrics(void *arg, weft_buf *body)
{
    weft_shard *const s = arg;
    weft_cluster_view view = {0};
    if (weft_cluster_get_view(s->member.cluster, &view, NULL) == WEFT_OK) {
        weft_metrics_set(s->metrics, WEFT_EPOCH, view.epoch);
        weft_metrics_set(s->metrics, WEFT_MEMBERS_LAYERS,
                         count_serving(&view, WEFT_ROLE_LAYERS));
        weft_metrics_set(s->metrics, WEFT_MEMBERS_EXPERTS,
                         count_serving(&view, WEFT_ROLE_EXPERTS));
        weft_metrics_set(s->metrics, WEFT_MEMBERS_ROUTER,
                         count_serving(&view, WEFT_ROLE_ROUTER));
        weft_cluster_view_deinit(&view);
    }
    s->refresh(s, s->metrics);
    weft_status st = weft_metrics_print(s->metrics, body, NULL);
    if (st == WEFT_OK) st = print_backend(s, body, NULL);
    if (st == WEFT_OK) st = weft_shard_print_near(s, body, NULL);
    if (st == WEFT_OK && s->print != NULL) st = s->print(s, body, NULL);
    return st == WEFT_OK ? 200 : 500;
}

static weft_status start_http(weft_shard *s, weft_err *err)
{
    const weft_http_ops ops = {
        .healthz = healthz, .readyz = readyz, .metrics = metrics, .arg = s};
    if (s->options->http.off) return WEFT_OK;
    return weft_http_server_start(s->options->http.text, &ops, &s->http, err);
}

/* -- running -------------------------------------------------------------- */

weft_status weft_shard_tell_ready(weft_shard *s, weft_err *err)
{
    WEFT_TRY(start_http(s, err));
    weft_lifecycle_set_serving();
    const int n =
        printf("ready link=%s http=%s\n", weft_link_server_address(s->links),
               s->http == NULL ? "off" : weft_http_server_address(s->http));
    if (n > 0 && fflush(stdout) == 0) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_UNAVAILABLE, "stdout cannot be written");
}

/* The first reason stays. */
static void end_by_itself(weft_shard *s, const char *event, const weft_err *why)
{
    (void)pthread_mutex_lock(&s->ending_lock);
    const bool first = !atomic_load(&s->ending);
    if (first) s->why = *why;
    atomic_store(&s->ending, true);
    (void)pthread_mutex_unlock(&s->ending_lock);
    if (!first) return;
    weft_log(WEFT_LOG_ERROR, "shard", event, "reason \"%s\"", why->text);
    weft_lifecycle_drain(event);
}

void weft_shard_fence(weft_shard *s, const char *text)
{
    weft_err why = {0};
    (void)WEFT_FAIL(&why, WEFT_FAILED_PRECONDITION, "fenced: %s", text);
    end_by_itself(s, "fenced", &why);
}

void weft_shard_fail(void *arg, const weft_err *device)
{
    weft_err why = {0};
    (void)WEFT_FAIL(&why, WEFT_UNAVAILABLE, "the device failed: %s",
                    device->text);
    end_by_itself(arg, "device_failed", &why);
}

weft_status weft_shard_check(weft_shard *s, weft_err *err)
{
    if (!atomic_load(&s->ending)) return WEFT_OK;
    *err = s->why;
    return s->why.status;
}

weft_status weft_shard_wait(weft_shard *s, weft_err *err)
{
    WEFT_TRY(weft_shard_check(s, err));
    weft_lifecycle_wait_for_drain();
    atomic_store(&s->draining, true);
    return weft_shard_check(s, err);
}

bool weft_shard_sees_router(weft_shard *s)
{
    weft_cluster_view view = {0};
    if (weft_cluster_get_view(s->member.cluster, &view, NULL) != WEFT_OK)
        return true;
    bool sees = false;
    for (int32_t i = 0; i < view.n_members; i++)
        sees = sees || view.members[i].role == WEFT_ROLE_ROUTER;
    weft_cluster_view_deinit(&view);
    return sees;
}

bool weft_shard_is_reachable(weft_shard *s)
{
    weft_cluster_view view = {0};
    if (weft_cluster_get_view(s->member.cluster, &view, NULL) != WEFT_OK)
        return true;
    const bool is = view.reachable;
    weft_cluster_view_deinit(&view);
    return is;
}

void weft_shard_close_links(weft_shard *s)
{
    weft_http_server_destroy(s->http);
    s->http = NULL;
    set_joined(s, false);
    weft_membership_leave(&s->member);
    weft_link_server_stop(s->links);
    s->links = NULL;
}

void weft_shard_close(weft_shard *s)
{
    weft_shard_close_links(s);
    weft_membership_end(&s->member);
    weft_checkpoint_close(s->checkpoint);
    weft_near_destroy(s->near);
    weft_backend_close(&s->backend);
    weft_metrics_destroy(s->metrics);
    (void)pthread_mutex_destroy(&s->joined_lock);
    (void)pthread_mutex_destroy(&s->ending_lock);
}
