/* router.c - `weft router`: takes clients' requests and hands them to the
 * groups of a cluster.
 *
 * Of the model it reads config and tokenizer alone. Ports are opened first,
 * since its name may follow from one of them; then it joins the cluster, learns
 * of the leads, and the ready line comes, whether there are shards or not.
 *
 * End: a signal drains (see lifecycle.h), then everything is taken down in
 * reverse. The fleet ends after the router's threads, since they talk to it,
 * and the router's memory goes after the fleet's thread, which borrows jobs.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "node/app/commands.h"
#include "node/app/lifecycle.h"
#include "node/app/membership.h"
#include "node/app/memory.h"
#include "node/app/model_open.h"
#include "node/app/public_face.h"
#include "node/app/router_view.h"
#include "node/app/start.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/base/str.h"

static const uint64_t SECOND_NS = 1000000000U;
static const int64_t RESERVE_BYTES_MIN = INT64_C(256) << 20;

typedef struct process {
    const weft_options *options;
    weft_opened opened; /* no checkpoint */
    weft_membership member;
    bool member_begun;
    weft_peers *peers;
    _Atomic(weft_fleet *) fleet;
    weft_face face;
    weft_router_view own;
    weft_view view;
    _Atomic int32_t max_context; /* that all leads allow; 0: none is known */
    uint64_t refused; /* the cluster's thread: a lead's incarnation; 0: none */
    _Atomic bool fenced;
    char fenced_text[160];
} process;

/* -- what the cluster tells -------------------------------------------------
 */

/* Once for each that comes. */
static void tell_refused(process *p, const weft_router_refusal *r)
{
    const uint64_t now = r->lead == NULL ? 0 : r->lead->incarnation;
    if (now != 0 && now != p->refused)
        weft_log(WEFT_LOG_WARN, "router", "group_refused",
                 "group %d reason \"%s computes as %s, %s as %s\"",
                 r->lead->group, r->lead->id, r->lead->identity, r->first->id,
                 r->first->identity);
    p->refused = now;
}

static void on_members(void *arg, const weft_member *members, int32_t n)
{
    process *const p = arg;
    weft_err err = {0};
    weft_fleet_lead *const leads = weft_mem_new(WEFT_GROUPS_MAX, sizeof *leads);
    if (leads == NULL) return; /* the next change tells all of them again */
    weft_router_refusal refused;
    const int32_t n_leads = weft_router_view_leads(members, n, leads, &refused);
    tell_refused(p, &refused);
    if (weft_fleet_want(p->fleet, leads, n_leads, &err) != WEFT_OK)
        weft_log(WEFT_LOG_ERROR, "router", "leads", "reason \"%s\"", err.text);
    weft_mem_free(leads);
}

/* Of groups that have gone the last word holds. */
static void on_groups(void *arg)
{
    process *const p = arg;
    weft_fleet *const fleet = atomic_load(&p->fleet);
    const int32_t least = fleet == NULL ? 0 : weft_fleet_max_context(fleet);
    if (least > 0) atomic_store(&p->max_context, least);
}

static uint64_t epoch_in_use(void *arg)
{
    process *const p = arg;
    return weft_fleet_epoch_in_use(p->fleet);
}

static void on_fenced(void *arg, const char *text)
{
    process *const p = arg;
    if (atomic_load(&p->fenced)) return;
    weft_log(WEFT_LOG_ERROR, "router", "fenced", "reason \"%s\"", text);
    (void)snprintf(p->fenced_text, sizeof p->fenced_text, "%s", text);
    atomic_store(&p->fenced, true);
    weft_lifecycle_drain("fenced");
}

static weft_status check_fenced(const process *p, weft_err *err)
{
    if (!atomic_load(&p->fenced)) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION, "fenced: %s",
                     p->fenced_text);
}

/* -- start ------------------------------------------------------------------
 */

static bool can_serve(void *arg, char *reason_out, size_t reason_bytes)
{
    process *const p = arg;
    return weft_fleet_takes_requests(p->fleet, reason_out, reason_bytes);
}

static weft_status create_face(process *p, weft_err *err)
{
    int64_t available_bytes = 0;
    WEFT_TRY(weft_memory_available(&available_bytes, err));
    int64_t requests_bytes = available_bytes / 16;
    if (requests_bytes < WEFT_REQUESTS_BYTES_MIN)
        requests_bytes = WEFT_REQUESTS_BYTES_MIN;
    if (requests_bytes > WEFT_REQUESTS_BYTES_MAX)
        requests_bytes = WEFT_REQUESTS_BYTES_MAX;
    int64_t reserve_bytes = available_bytes / 16;
    if (reserve_bytes < RESERVE_BYTES_MIN) reserve_bytes = RESERVE_BYTES_MIN;
    const weft_face_options options = {
        .options = p->options,
        .config = &p->opened.config,
        .tokenizer = p->opened.tokenizer,
        .max_context = p->opened.config.max_context,
        .max_context_now = &p->max_context,
        .requests_bytes = requests_bytes,
        .reserve_bytes = reserve_bytes,
        .can_serve = can_serve,
        .can_serve_arg = p,
    };
    return weft_face_create(&options, &p->face, err);
}

static weft_status start_fleet(process *p, weft_err *err)
{
    const weft_fleet_options options = {
        .groups_max = WEFT_GROUPS_MAX,
        .jobs_max = p->options->max_seqs + p->options->max_queue,
        /* One number: what a part may take to go, its successor may take to
         * come. */
        .renewing_ns = (uint64_t)p->options->drain_seconds * SECOND_NS,
        .vocab_size = p->opened.config.vocab_size,
        .take = weft_router_take_event,
        .take_arg = p->face.router,
        .changed = on_groups,
        .changed_arg = p,
    };
    weft_fleet *fleet = NULL;
    WEFT_TRY(weft_fleet_start(&options, &fleet, err));
    atomic_store(&p->fleet, fleet);
    p->own.fleet = fleet;
    p->own.replicas = p->options->expert_replicas;
    p->view = weft_router_view_of(&p->own);
    return WEFT_OK;
}

static void on_link(void *arg)
{
    process *const p = arg;
    weft_fleet_wake(p->fleet);
}

static weft_status create_peers(process *p, weft_err *err)
{
    const weft_frame_limits limits = {.body_bytes_max =
                                          WEFT_FRAME_BODY_BYTES_MAX};
    const weft_peers_options options = {
        .own = &p->member.hello,
        .own_later = true,
        .tls = p->member.tls,
        .link = weft_membership_link(&limits),
        .peers_max = WEFT_GROUPS_MAX,
        .pulse = p->member.pulse,
        .ready = on_link,
        .arg = p,
    };
    WEFT_TRY(weft_peers_create(&options, &p->peers, err));
    weft_fleet_set_links(p->fleet, p->peers, p->member.pulse);
    return WEFT_OK;
}

static weft_status join(process *p, weft_doing *doing_out, weft_err *err)
{
    const weft_cluster_ops ops = {.members = on_members,
                                  .fenced = on_fenced,
                                  .in_use = epoch_in_use,
                                  .arg = p};
    const char *const bound = weft_rpc_server_address(p->face.rpc);
    weft_member self = {.state = WEFT_MEMBER_SERVING};
    p->member_begun = true;
    WEFT_TRY(weft_membership_begin(&p->member, p->options, &p->opened.config,
                                   NULL, bound, NULL, err));
    WEFT_TRY(create_peers(p, err));
    WEFT_TRY(weft_membership_address(&p->member, bound, self.address, err));
    WEFT_TRY(weft_membership_join(&p->member, &self, &ops, doing_out, err));
    weft_peers_set_own(p->peers, &p->member.hello);
    atomic_store(&p->own.cluster, p->member.cluster);
    return WEFT_OK;
}

static weft_status open_texts(process *p, weft_err *err)
{
    weft_buf names = {0};
    const weft_status st = weft_model_open_texts(
        p->options->model, weft_start_remark, &names, &p->opened, err);
    if (st == WEFT_OK && names.n > 0)
        weft_log(WEFT_LOG_INFO, "model", "ignored", "names \"%s\"", names.data);
    weft_buf_deinit(&names);
    return st;
}

/* *doing_out: what a failure means to a user (exit.h). */
static weft_status start(process *p, weft_doing *doing_out, weft_err *err)
{
    *doing_out = WEFT_DOING_START;
    WEFT_TRY(weft_start_raise_descriptors(err));
    *doing_out = WEFT_DOING_LOAD;
    WEFT_TRY(open_texts(p, err));
    *doing_out = WEFT_DOING_START;
    WEFT_TRY(weft_face_check_options(p->options, err));
    WEFT_TRY(weft_face_check_ports(p->options, err));
    WEFT_TRY(create_face(p, err));
    WEFT_TRY(start_fleet(p, err));
    WEFT_TRY(weft_face_start(&p->face, weft_fleet_lead_ops(p->fleet), &p->view,
                             err));
    return join(p, doing_out, err);
}

/* -- end --------------------------------------------------------------------
 */

static void take_down(process *p)
{
    weft_face_stop(&p->face);
    if (p->member_begun) weft_membership_leave(&p->member);
    weft_fleet_stop(p->fleet);
    weft_peers_destroy(p->peers); /* whose threads wake the fleet */
    weft_face_destroy(&p->face);
    weft_fleet_destroy(p->fleet);
    if (p->member_begun) weft_membership_end(&p->member);
    weft_model_close(&p->opened);
}

static void drain(process *p)
{
    weft_cluster_set_state(p->member.cluster, WEFT_MEMBER_DRAINING);
    weft_face_drain(&p->face);
}

static int run(process *p)
{
    weft_doing doing = WEFT_DOING_START;
    weft_err err = {0};
    weft_status st = start(p, &doing, &err);
    if (st == WEFT_OK) {
        weft_lifecycle_set_serving();
        doing = WEFT_DOING_START;
        st = check_fenced(p, &err);
    }
    if (st == WEFT_OK) st = weft_face_tell_ready(&p->face, &err);
    if (st == WEFT_OK) {
        weft_lifecycle_wait_for_drain();
        drain(p);
        st = check_fenced(p, &err);
    }
    take_down(p);
    if (st == WEFT_OK) return WEFT_EXIT_DONE;
    return weft_fail_with(weft_exit_of(st, doing), &err);
}

int weft_command_router(const weft_options *options)
{
    weft_err err = {0};
    process *const p = weft_mem_new(1, sizeof *p);
    if (p == NULL) {
        (void)WEFT_FAIL(&err, WEFT_RESOURCE_EXHAUSTED, "out of memory");
        return weft_fail_with(WEFT_EXIT_RESOURCE, &err);
    }
    p->options = options;
    int code = WEFT_EXIT_DONE;
    if (weft_lifecycle_begin(&err) == WEFT_OK)
        code = run(p);
    else
        code = weft_fail_with(WEFT_EXIT_RESOURCE, &err);
    weft_lifecycle_end();
    weft_mem_free(p);
    return code;
}
