/* shard_experts.c - `weft shard --role experts`: holds what placements give it
 * and answers for it.
 *
 * Start: files are validated; store, loader and server are built up; then the
 * link port opens and the shard registers. It holds nothing until a placement
 * names it. End: it says that it is draining and goes on answering until no
 * epoch that counts names it, then goes.
 */
#include <stdio.h>

#include "node/app/commands.h"
#include "node/app/expert_loader.h"
#include "node/app/lifecycle.h"
#include "node/app/memory.h"
#include "node/app/shard.h"
#include "node/base/clock.h"
#include "node/base/failpoint.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/obs/expert_print.h"
#include "shard/expert/body.h"
#include "shard/expert/server.h"

enum { LINKS_MAX = 1024 };

static const uint64_t SECOND_NS = 1000000000U;
/* A round is a few hundred rows of one layer, a second where a core is slow.
 * One that takes longer than this never ends, and peers hear no more pulses. */
static const uint64_t ROUND_HANGS_NS = 60000000000U;
/* A router that restarts is away for a moment. */
static const uint64_t ROUTER_AWAY_NS = 1000000000U;
/* A network that is away comes back, and leads dial again. */
static const uint64_t CUT_OFF_NS = 3000000000U;

typedef struct experts {
    weft_shard shard;
    weft_expert_store *store;
    weft_expert_loader *loader;
    weft_expert_server *server;
    int64_t budget;
    _Atomic bool holds; /* something was loaded, so it serves */
    /* While draining: no router; neither registry nor links. */
    uint64_t alone_since_ns, cut_off_since_ns, looked_ns;
} experts;

/* -- what the cluster says ------------------------------------------------ */

static void prepare(void *arg, const weft_placement *placement)
{
    weft_err err = {0};
    const experts *const x = arg;
    if (weft_expert_loader_prepare(x->loader, placement, &err) == WEFT_OK)
        return;
    weft_log(WEFT_LOG_ERROR, "experts", "not_loaded",
             "epoch %llu reason \"%s\"", (unsigned long long)placement->epoch,
             err.text);
}

static void epoch(void *arg, const weft_placement *placement)
{
    const experts *const x = arg;
    weft_expert_loader_commit(x->loader, placement->epoch);
    WEFT_FAILPOINT("experts.after_commit");
    weft_log(WEFT_LOG_INFO, "experts", "committed", "epoch %llu",
             (unsigned long long)placement->epoch);
}

static void retire(void *arg, uint64_t retired)
{
    const experts *const x = arg;
    weft_expert_loader_retire(x->loader, retired);
}

static void epochs(void *arg, uint64_t first, uint64_t last)
{
    const experts *const x = arg;
    weft_expert_server_set_epochs(x->server, first, last);
}

static void fenced(void *arg, const char *text)
{
    experts *const x = arg;
    weft_shard_fence(&x->shard, text);
}

static void loaded(void *arg, uint64_t of_epoch, int64_t bytes,
                   const char *text)
{
    experts *const x = arg;
    weft_cluster *const cluster = weft_membership_cluster(&x->shard.member);
    if (text == NULL && !atomic_exchange(&x->holds, true) &&
        !atomic_load(&x->shard.draining))
        weft_cluster_set_state(cluster, WEFT_MEMBER_SERVING);
    weft_cluster_loaded(cluster, of_epoch, bytes, text);
}

static weft_status admit(void *arg, const weft_hello *peer, weft_err *err)
{
    (void)arg;
    if (peer->role == WEFT_ROLE_LAYERS) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                     "an expert shard takes links of layer shards, not of %s",
                     weft_role_name(peer->role));
}

static void take_link(void *arg, weft_link *link, const weft_hello *peer)
{
    weft_err err = {0};
    const experts *const x = arg;
    if (weft_expert_server_add_link(x->server, link, &err) != WEFT_OK)
        weft_log(WEFT_LOG_WARN, "experts", "link_refused",
                 "id \"%s\" reason \"%s\"", peer->id, err.text);
}

/* -- what is asked over HTTP ---------------------------------------------- */

static bool is_ready(weft_shard *shard, char *reason, size_t bytes)
{
    experts *const x = (experts *)shard;
    (void)snprintf(reason, bytes, "no experts yet");
    return atomic_load(&x->holds);
}

static void refresh(weft_shard *shard, weft_metrics *metrics)
{
    experts *const x = (experts *)shard;
    weft_expert_server_stats stats;
    weft_expert_server_get_stats(x->server, &stats);
    weft_metrics_add(metrics, WEFT_EXPERT_ROWS,
                     stats.rows -
                         weft_metrics_counter(metrics, WEFT_EXPERT_ROWS));
}

static weft_status print(weft_shard *shard, weft_buf *out, weft_err *err)
{
    experts *const x = (experts *)shard;
    weft_expert_server_stats server;
    weft_expert_store_stats store;
    weft_expert_server_get_stats(x->server, &server);
    weft_expert_store_get_stats(x->store, &store);
    return weft_expert_print(&server, &store, out, err);
}

/* -- start ---------------------------------------------------------------- */

/* The same share of free memory stays free as with serve. */
static weft_status take_budget(experts *x, weft_err *err)
{
    int64_t available = 0;
    const int64_t least = INT64_C(256) << 20;
    const weft_backend *const backend = &x->shard.backend;
    x->budget = x->shard.options->expert_bytes;
    if (x->budget > 0) return WEFT_OK;
    if (backend->opened != NULL) {
        x->budget = weft_backend_free_bytes(backend) -
                    weft_expert_server_device_bytes(&x->shard.config);
        return WEFT_OK;
    }
    WEFT_TRY(weft_memory_available(&available, err));
    const int64_t reserve = available / 16 > least ? available / 16 : least;
    x->budget = available - reserve;
    if (x->budget > 0) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "memory: %lld bytes are available, a reserve of %lld "
                     "bytes stays free",
                     (long long)available, (long long)reserve);
}

/* One that can hold nothing would be a member for nothing. */
static weft_status check_budget(const experts *x, weft_err *err)
{
    int64_t smallest = INT64_MAX;
    for (int32_t l = 0; l < x->shard.config.n_layer; l++) {
        const int64_t bytes = weft_expert_store_bytes_of(x->store, l);
        if (bytes > 0 && bytes < smallest) smallest = bytes;
    }
    if (x->budget >= smallest) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "%s: %lld bytes for experts, and one takes %lld",
                     x->shard.options->expert_bytes > 0 ? "--expert-bytes"
                                                        : "memory",
                     (long long)x->budget, (long long)smallest);
}

static void hung(void *arg)
{
    (void)arg;
    weft_log(WEFT_LOG_ERROR, "experts", "hung",
             "reason \"a round does not end; peers are told no more\"");
}

/* Of a device the budget is what was taken: whole places. */
static weft_status create_store(experts *x, weft_err *err)
{
    weft_shard *const s = &x->shard;
    weft_expert_store_stats stats;
    WEFT_TRY(take_budget(x, err));
    const int64_t wanted = x->budget > 0 ? x->budget : 1;
    const weft_status st = weft_expert_store_create(&s->config, s->checkpoint,
                                                    wanted, &x->store, err);
    if (st != WEFT_OK)
        return s->options->expert_bytes > 0
                   ? WEFT_WRAP(err, st, "--expert-bytes %lld",
                               (long long)s->options->expert_bytes)
                   : st;
    weft_expert_store_get_stats(x->store, &stats);
    x->budget = stats.budget_bytes;
    return WEFT_OK;
}

static void device_failed(void *arg, const weft_err *why)
{
    experts *const x = arg;
    weft_shard_fail(&x->shard, why);
}

static weft_status start_parts(experts *x, weft_err *err)
{
    weft_shard *const s = &x->shard;
    WEFT_TRY(create_store(x, err));
    WEFT_TRY(check_budget(x, err));
    const weft_expert_loader_options loader = {.store = x->store,
                                               .memory = &s->backend.memory,
                                               .id = s->member.id,
                                               .loaded = loaded,
                                               .failed = device_failed,
                                               .arg = x};
    WEFT_TRY(weft_expert_loader_start(&loader, &x->loader, err));
    const weft_expert_server_options server = {
        .config = &s->config,
        .store = x->store,
        .ops = s->engine.ops,
        .memory = &s->backend.memory,
        .profile = s->options->profile,
        .threads = s->engine.threads,
        .max_rows = WEFT_DISPATCH_ROWS_MAX,
        .links_max = LINKS_MAX,
        .pulse = s->member.pulse,
        .failed = device_failed,
        .failed_arg = x,
    };
    WEFT_TRY(weft_expert_server_start(&server, &x->server, err));
    weft_pulse_watch(s->member.pulse, ROUND_HANGS_NS, hung, NULL);
    return WEFT_OK;
}

static int64_t largest_expert(const experts *x)
{
    int64_t largest = 0;
    for (int32_t l = 0; l < x->shard.config.n_layer; l++) {
        const int64_t bytes = weft_expert_store_bytes_of(x->store, l);
        if (bytes > largest) largest = bytes;
    }
    return largest;
}

static weft_status join(experts *x, weft_doing *doing_out, weft_err *err)
{
    const weft_member self = {.state = WEFT_MEMBER_JOINING,
                              .capacity_bytes = x->budget,
                              .expert_bytes = largest_expert(x)};
    const weft_cluster_ops ops = {.prepare = prepare,
                                  .epoch = epoch,
                                  .retire = retire,
                                  .epochs = epochs,
                                  .fenced = fenced,
                                  .arg = x};
    return weft_shard_join(&x->shard, &self, &ops, doing_out, err);
}

static weft_status start(experts *x, const weft_options *options,
                         weft_doing *doing_out, weft_err *err)
{
    weft_shard *const s = &x->shard;
    s->is_ready = is_ready;
    s->refresh = refresh;
    s->print = print;
    WEFT_TRY(weft_shard_open(s, options, doing_out, err));
    if (s->config.n_expert == 0) {
        *doing_out = WEFT_DOING_LOAD;
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%s: the model has no routed experts", options->model);
    }
    weft_shard_open_near(s);
    WEFT_TRY(start_parts(x, err));
    const weft_frame_limits limits = weft_dispatch_limits(&s->config);
    const weft_shard_door door = {.limits = &limits,
                                  .near = s->near,
                                  .admit = admit,
                                  .take = take_link,
                                  .arg = x};
    WEFT_TRY(weft_shard_listen(s, &door, err));
    WEFT_TRY(join(x, doing_out, err));
    *doing_out = WEFT_DOING_START;
    return weft_shard_tell_ready(s, err);
}

/* -- end ------------------------------------------------------------------ */

/* Whether a state has lasted; *since_ns is 0 while it does not hold. */
static bool lasts(bool holds, uint64_t *since_ns, uint64_t for_ns,
                  uint64_t now_ns)
{
    if (!holds)
        *since_ns = 0;
    else if (*since_ns == 0)
        *since_ns = now_ns;
    return holds && now_ns > *since_ns + for_ns;
}

static bool has_links(experts *x)
{
    weft_expert_server_stats stats;
    weft_expert_server_get_stats(x->server, &stats);
    return stats.n_links > 0;
}

/* Without a router nobody would ever take its experts away; without a registry
 * nobody can, and without links nobody needs them. */
static bool is_alone(experts *x)
{
    weft_shard *const s = &x->shard;
    const uint64_t now_ns = weft_clock_now_ns();
    if (now_ns < x->looked_ns + SECOND_NS / 20) return false;
    x->looked_ns = now_ns;
    const bool cut_off = !weft_shard_is_reachable(s) && !has_links(x);
    const bool alone = lasts(!weft_shard_sees_router(s), &x->alone_since_ns,
                             ROUTER_AWAY_NS, now_ns);
    return lasts(cut_off, &x->cut_off_since_ns, CUT_OFF_NS, now_ns) || alone;
}

static bool may_go(void *arg)
{
    experts *const x = arg;
    return atomic_load(&x->shard.ending) ||
           weft_cluster_is_emptied(x->shard.member.cluster) || is_alone(x);
}

static void drain(experts *x)
{
    const uint64_t until_ns =
        weft_clock_now_ns() +
        (uint64_t)x->shard.options->drain_seconds * SECOND_NS;
    if (x->shard.options->members != NULL) return; /* nothing ever moves */
    weft_cluster_set_state(x->shard.member.cluster, WEFT_MEMBER_DRAINING);
    if (!weft_lifecycle_wait_until(may_go, x, until_ns))
        weft_log(WEFT_LOG_WARN, "experts", "cut",
                 "reason \"experts are still expected here\"");
}

static void take_down(experts *x)
{
    weft_shard_close_links(&x->shard);
    weft_expert_loader_stop(x->loader);
    weft_expert_server_stop(x->server);
    weft_expert_store_destroy(x->store);
    weft_shard_close(&x->shard);
}

int weft_shard_run_experts(const weft_options *options)
{
    weft_doing doing = WEFT_DOING_START;
    weft_err err = {0};
    experts *const x = weft_mem_new(1, sizeof *x);
    if (x == NULL) {
        (void)WEFT_FAIL(&err, WEFT_RESOURCE_EXHAUSTED, "out of memory");
        return weft_fail_with(WEFT_EXIT_RESOURCE, &err);
    }
    weft_status st = start(x, options, &doing, &err);
    if (st == WEFT_OK) st = weft_shard_wait(&x->shard, &err);
    if (st == WEFT_OK) {
        drain(x);
        st = weft_shard_check(&x->shard, &err);
    }
    take_down(x);
    weft_mem_free(x);
    if (st == WEFT_OK) return WEFT_EXIT_DONE;
    return weft_fail_with(weft_exit_of(st, doing), &err);
}
