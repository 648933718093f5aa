#include "node/fleet/fleet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/fleet/fleet_internal.h"

enum {
    GROUPS_MAX = 64,
    TRIES_MAX = 2,
    /* Between two tries to tell the router what it had no room for. */
    SINK_RETRY_NS = 1000 * 1000,
};

/* How long the thread sleeps at most: silence is noticed so much later. */
static const uint64_t NAP_NS = 100000000;
static const uint64_t COMING_NS = 2000000000;

/* -- what others are told ------------------------------------------------- */

static int by_group(const void *a, const void *b)
{
    const weft_group_state *const x = a, *const y = b;
    return x->group < y->group ? -1 : x->group > y->group;
}

static bool serves(const weft_group_state *state)
{
    return state->connected && state->been_whole && !state->draining;
}

/* By its own word or the registry's; not of one that is merely not listed. */
static bool is_told_to_drain(const weft_fleet_group *group)
{
    return group->state.draining || group->want.draining;
}

void weft_fleet_publish(weft_fleet *fleet)
{
    (void)pthread_mutex_lock(&fleet->lock);
    int32_t n = 0;
    fleet->coming_until_ns = 0;
    for (int32_t i = 0; i < fleet->n_groups; i++) {
        const weft_fleet_group *const group = &fleet->groups[i];
        if (!group->wanted && group->link == NULL) continue;
        weft_group_state *const state = &fleet->states[n++];
        *state = group->state;
        state->connected = group->link != NULL && group->told;
        state->draining =
            state->draining || group->want.draining || !group->wanted;
        if (!state->connected)
            (void)snprintf(state->id, sizeof state->id, "%s",
                           group->want.peer.id);
        if (!state->draining && !serves(state) &&
            group->coming_until_ns > fleet->coming_until_ns)
            fleet->coming_until_ns = group->coming_until_ns;
        if (is_told_to_drain(group))
            fleet->renewing_until_ns =
                fleet->turn_ns + fleet->options.renewing_ns;
    }
    fleet->n_states = n;
    qsort(fleet->states, (size_t)n, sizeof *fleet->states, by_group);
    (void)pthread_mutex_unlock(&fleet->lock);
    if (fleet->options.changed != NULL)
        fleet->options.changed(fleet->options.changed_arg);
}

int32_t weft_fleet_get_states(weft_fleet *fleet, weft_group_state *states_out,
                              int32_t n_max)
{
    (void)pthread_mutex_lock(&fleet->lock);
    const int32_t n = fleet->n_states < n_max ? fleet->n_states : n_max;
    memcpy(states_out, fleet->states, (size_t)n * sizeof *states_out);
    (void)pthread_mutex_unlock(&fleet->lock);
    return n;
}

uint64_t weft_fleet_epoch_in_use(weft_fleet *fleet)
{
    uint64_t least = 0;
    (void)pthread_mutex_lock(&fleet->lock);
    for (int32_t i = 0; i < fleet->n_states; i++) {
        const weft_group_state *const state = &fleet->states[i];
        if (!state->connected || state->epoch == 0) continue;
        if (least == 0 || state->epoch < least) least = state->epoch;
    }
    (void)pthread_mutex_unlock(&fleet->lock);
    return least;
}

int32_t weft_fleet_max_context(weft_fleet *fleet)
{
    int32_t least = 0;
    (void)pthread_mutex_lock(&fleet->lock);
    for (int32_t i = 0; i < fleet->n_states; i++) {
        const weft_group_state *const state = &fleet->states[i];
        if (!state->connected || state->max_context == 0) continue;
        if (least == 0 || state->max_context < least)
            least = state->max_context;
    }
    (void)pthread_mutex_unlock(&fleet->lock);
    return least;
}

/* Why this group takes no requests; `dial` is why it is not connected. */
static void explain(const weft_group_state *state, const char *dial, char *out,
                    size_t bytes)
{
    const char *why = state->reason[0] != '\0' ? state->reason : "is not whole";
    if (state->draining)
        why = "is draining";
    else if (!state->connected)
        why = dial[0] != '\0'            ? dial
              : state->reason[0] != '\0' ? state->reason
                                         : "is not connected";
    (void)snprintf(out, bytes, "group %u (%s): %s", state->group, state->id,
                   why);
}

bool weft_fleet_is_serving(weft_fleet *fleet, char *reason_out,
                           size_t reason_bytes)
{
    bool serving = false;
    weft_group_state first = {0};
    (void)pthread_mutex_lock(&fleet->lock);
    const int32_t n = fleet->n_states;
    weft_peers *const peers = fleet->peers;
    if (n > 0) first = fleet->states[0];
    for (int32_t i = 0; i < n && !serving; i++)
        serving = serves(&fleet->states[i]);
    (void)pthread_mutex_unlock(&fleet->lock);
    if (serving) return true;
    char dial[128] = "";
    if (n > 0 && peers != NULL)
        weft_peers_reason(peers, first.id, dial, sizeof dial);
    if (n == 0)
        (void)snprintf(reason_out, reason_bytes,
                       "no group of layer shards is known");
    else
        explain(&first, dial, reason_out, reason_bytes);
    return false;
}

bool weft_fleet_takes_requests(weft_fleet *fleet, char *reason_out,
                               size_t reason_bytes)
{
    if (weft_fleet_is_serving(fleet, reason_out, reason_bytes)) return true;
    (void)pthread_mutex_lock(&fleet->lock);
    const uint64_t coming_until_ns = fleet->coming_until_ns;
    const uint64_t renewing_until_ns = fleet->renewing_until_ns;
    (void)pthread_mutex_unlock(&fleet->lock);
    const uint64_t now_ns = weft_clock_now_ns();
    return now_ns < coming_until_ns || now_ns < renewing_until_ns;
}

/* -- which groups there are ------------------------------------------------ */

static bool is_same_peer(const weft_peer *a, const weft_peer *b)
{
    return strcmp(a->id, b->id) == 0 && a->incarnation == b->incarnation &&
           strcmp(a->address, b->address) == 0;
}

static int32_t find_group(const weft_fleet *fleet, uint32_t number)
{
    for (int32_t i = 0; i < fleet->n_groups; i++)
        if (fleet->groups[i].want.group == number) return i;
    return WEFT_NO_GROUP;
}

/* A place for a group that is not known yet. */
static int32_t make_group(weft_fleet *fleet, uint32_t number)
{
    int32_t at = 0;
    while (at < fleet->n_groups &&
           (fleet->groups[at].wanted || fleet->groups[at].link != NULL))
        at++;
    if (at == fleet->groups_max) return WEFT_NO_GROUP;
    if (at == fleet->n_groups) fleet->n_groups++;
    weft_fleet_group *const group = &fleet->groups[at];
    weft_buf_deinit(&group->cancels);
    *group = (weft_fleet_group){.want = {.group = number},
                                .state = {.group = number},
                                .suspect = WEFT_NO_SLOT};
    weft_fleet_list_init(&group->jobs);
    return at;
}

static void want_group(weft_fleet *fleet, const weft_fleet_lead *lead)
{
    int32_t at = find_group(fleet, lead->group);
    if (at == WEFT_NO_GROUP) at = make_group(fleet, lead->group);
    /* So many links of groups that are not wanted any more: later. */
    if (at == WEFT_NO_GROUP) return;
    weft_fleet_group *const group = &fleet->groups[at];
    if (!is_same_peer(&group->want.peer, &lead->peer)) {
        weft_fleet_break(fleet, at, "another lead has its place");
        group->coming_until_ns = fleet->turn_ns + fleet->options.coming_ns;
    }
    group->want = *lead;
    group->wanted = group->listed = true;
}

/* Who is not in the registry may have lost nothing but its way there: a lead
 * whose link lives is asked for more until it drains. Others keep what they
 * have. */
static void want_these(weft_fleet *fleet, const weft_fleet_lead *leads,
                       int32_t n)
{
    for (int32_t i = 0; i < fleet->n_groups; i++) {
        weft_fleet_group *const group = &fleet->groups[i];
        group->listed = false;
        group->wanted = group->link != NULL && !group->state.draining &&
                        !group->want.draining;
    }
    for (int32_t i = 0; i < n; i++) want_group(fleet, &leads[i]);
}

static void dial_wanted(weft_fleet *fleet, const weft_fleet_lead *leads,
                        weft_peer *peers, int32_t n)
{
    weft_err err = {0};
    if (fleet->options.peers == NULL) return;
    for (int32_t i = 0; i < n; i++) peers[i] = leads[i].peer;
    if (weft_peers_want(fleet->options.peers, peers, n, &err) != WEFT_OK)
        weft_log(WEFT_LOG_ERROR, "fleet", "cannot_dial", "reason \"%s\"",
                 err.text);
}

static void take_want(weft_fleet *fleet)
{
    const size_t n_max = (size_t)fleet->groups_max;
    (void)pthread_mutex_lock(&fleet->lock);
    const bool changed = fleet->want_changed;
    fleet->options.peers = fleet->peers;
    fleet->options.pulse = fleet->pulse;
    (void)pthread_mutex_unlock(&fleet->lock);
    if (!changed) return;
    weft_fleet_lead *const leads = weft_mem_new(n_max, sizeof *leads);
    weft_peer *const peers = weft_mem_new(n_max, sizeof *peers);
    if (leads != NULL && peers != NULL) {
        (void)pthread_mutex_lock(&fleet->lock);
        fleet->want_changed = false;
        const int32_t n = fleet->n_want;
        memcpy(leads, fleet->want, (size_t)n * sizeof *leads);
        (void)pthread_mutex_unlock(&fleet->lock);
        want_these(fleet, leads, n);
        dial_wanted(fleet, leads, peers, n);
        weft_fleet_publish(fleet);
    }
    weft_mem_free(leads);
    weft_mem_free(peers);
}

static int32_t find_peer(const weft_fleet *fleet, const weft_peer *peer)
{
    for (int32_t i = 0; i < fleet->n_groups; i++) {
        const weft_fleet_group *const group = &fleet->groups[i];
        if (group->wanted && group->link == NULL &&
            strcmp(group->want.peer.id, peer->id) == 0 &&
            (group->want.peer.incarnation == 0 ||
             group->want.peer.incarnation == peer->incarnation))
            return i;
    }
    return WEFT_NO_GROUP;
}

static void take_links(weft_fleet *fleet, uint64_t now_ns)
{
    weft_peer peer;
    weft_link *link = NULL;
    while (fleet->options.peers != NULL &&
           weft_peers_take(fleet->options.peers, &peer, &link)) {
        const int32_t at = find_peer(fleet, &peer);
        if (at != WEFT_NO_GROUP) {
            weft_fleet_connect(fleet, at, link, now_ns);
            continue;
        }
        weft_link_close(link);
        weft_peers_lost(fleet->options.peers, peer.id, peer.incarnation);
    }
}

static void take_brought(weft_fleet *fleet, uint64_t now_ns)
{
    for (;;) {
        struct weft_fleet_brought brought = {0};
        (void)pthread_mutex_lock(&fleet->lock);
        /* Its group may be among those that are wanted in a moment. */
        if (fleet->n_brought > 0 && !fleet->want_changed)
            brought = fleet->brought[--fleet->n_brought];
        (void)pthread_mutex_unlock(&fleet->lock);
        if (brought.link == NULL) return;
        const int32_t at = find_group(fleet, brought.group);
        if (at == WEFT_NO_GROUP) {
            weft_link_close(brought.link);
            continue;
        }
        weft_fleet_break(fleet, at, "another link has its place");
        weft_fleet_connect(fleet, at, brought.link, now_ns);
    }
}

/* -- the thread ------------------------------------------------------------ */

/* One round over everything; returns when the next is due at the latest. */
static uint64_t turn(weft_fleet *fleet)
{
    const uint64_t now_ns = weft_clock_now_ns();
    /* After a pause of the whole process nobody's silence is judged at once. */
    if (now_ns - fleet->turn_ns > 3 * NAP_NS) fleet->looking_since_ns = now_ns;
    fleet->turn_ns = now_ns;
    fleet->sink_full = false;
    take_want(fleet);
    take_links(fleet, now_ns);
    take_brought(fleet, now_ns);
    weft_fleet_take_messages(fleet);
    for (int32_t i = 0; i < fleet->n_groups; i++)
        weft_fleet_serve_group(fleet, i, now_ns);
    weft_fleet_place(fleet, now_ns);
    weft_fleet_tell_ends(fleet);
    return now_ns + NAP_NS;
}

static void *run(void *arg)
{
    weft_fleet *const fleet = arg;
    while (!atomic_load(&fleet->stop)) {
        const uint64_t due_ns = turn(fleet);
        if (fleet->sink_full) {
            /* Not a wait for links: what lies there would end it at once. */
            const struct timespec pause = {.tv_nsec = SINK_RETRY_NS};
            (void)nanosleep(&pause, NULL);
        } else {
            weft_poller_wait(fleet->poller, due_ns, 0);
        }
    }
    return NULL;
}

/* -- what other threads call ----------------------------------------------- */

void weft_fleet_set_links(weft_fleet *fleet, weft_peers *peers,
                          weft_pulse *pulse)
{
    (void)pthread_mutex_lock(&fleet->lock);
    fleet->peers = peers;
    fleet->pulse = pulse;
    (void)pthread_mutex_unlock(&fleet->lock);
}

void weft_fleet_wake(weft_fleet *fleet)
{
    weft_poller_wake(fleet->poller);
}

static weft_status bring(weft_fleet *fleet, const weft_job *job,
                         uint64_t handle)
{
    const weft_fleet_message message = {.job = job, .handle = handle};
    if (!weft_ring_push(fleet->inbox, &message)) return WEFT_RESOURCE_EXHAUSTED;
    weft_poller_wake(fleet->poller);
    return WEFT_OK;
}

static weft_status submit(void *arg, const weft_job *job)
{
    weft_fleet *const fleet = arg;
    if (weft_handle_slot(job->handle) >= fleet->options.jobs_max)
        return WEFT_INTERNAL;
    return bring(fleet, job, job->handle);
}

static weft_status cancel(void *arg, uint64_t handle)
{
    return bring(arg, NULL, handle);
}

weft_lead weft_fleet_lead_ops(weft_fleet *fleet)
{
    return (weft_lead){.submit = submit, .cancel = cancel, .arg = fleet};
}

weft_status weft_fleet_want(weft_fleet *fleet, const weft_fleet_lead *leads,
                            int32_t n, weft_err *err)
{
    if (n > fleet->groups_max)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%d groups: a router serves at most %d", n,
                         fleet->groups_max);
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < i; k++)
            if (leads[i].group == leads[k].group)
                return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                                 "group %u has two leads, %s and %s",
                                 leads[i].group, leads[k].peer.id,
                                 leads[i].peer.id);
    (void)pthread_mutex_lock(&fleet->lock);
    for (int32_t i = 0; i < n; i++) fleet->want[i] = leads[i];
    fleet->n_want = n;
    fleet->want_changed = true;
    (void)pthread_mutex_unlock(&fleet->lock);
    weft_poller_wake(fleet->poller);
    return WEFT_OK;
}

weft_status weft_fleet_add_link(weft_fleet *fleet, uint32_t group,
                                weft_link *link, weft_err *err)
{
    bool known = false;
    (void)pthread_mutex_lock(&fleet->lock);
    for (int32_t i = 0; i < fleet->n_want; i++)
        known = known || fleet->want[i].group == group;
    known = known && fleet->n_brought < fleet->groups_max;
    if (known)
        fleet->brought[fleet->n_brought++] =
            (struct weft_fleet_brought){.group = group, .link = link};
    (void)pthread_mutex_unlock(&fleet->lock);
    if (known) {
        weft_poller_wake(fleet->poller);
        return WEFT_OK;
    }
    weft_link_close(link);
    return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                     "no lead of group %u is wanted", group);
}

/* -- life ------------------------------------------------------------------ */

static weft_status create_parts(weft_fleet *fleet, weft_err *err)
{
    const size_t n_jobs = (size_t)fleet->options.jobs_max;
    const size_t n = (size_t)fleet->groups_max;
    fleet->groups = weft_mem_new(n, sizeof *fleet->groups);
    fleet->places = weft_mem_new(n, sizeof *fleet->places);
    fleet->want = weft_mem_new(n, sizeof *fleet->want);
    fleet->states = weft_mem_new(n, sizeof *fleet->states);
    fleet->brought = weft_mem_new(n, sizeof *fleet->brought);
    fleet->jobs = weft_mem_new(n_jobs, sizeof *fleet->jobs);
    fleet->frame_bytes = WEFT_FRAME_BODY_BYTES_MAX;
    fleet->frame = weft_mem_new(fleet->frame_bytes, 1);
    if (fleet->groups == NULL || fleet->places == NULL || fleet->want == NULL ||
        fleet->states == NULL || fleet->brought == NULL ||
        fleet->jobs == NULL || fleet->frame == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %d requests and %d groups",
                         fleet->options.jobs_max, fleet->groups_max);
    weft_fleet_list_init(&fleet->pending);
    weft_fleet_list_init(&fleet->ending);
    WEFT_TRY(weft_poller_create(&fleet->poller, err));
    /* Of each slot at once: a cancel that comes late, a job, its cancel. */
    return weft_ring_create(sizeof(weft_fleet_message), 4 * n_jobs + 16,
                            &fleet->inbox, err);
}

weft_status weft_fleet_start(const weft_fleet_options *options,
                             weft_fleet **fleet_out, weft_err *err)
{
    weft_fleet *const fleet = weft_mem_new(1, sizeof *fleet);
    if (fleet == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the fleet");
    fleet->options = *options;
    fleet->groups_max =
        options->groups_max > 0 ? options->groups_max : GROUPS_MAX;
    if (options->tries_max <= 0) fleet->options.tries_max = TRIES_MAX;
    if (options->coming_ns == 0) fleet->options.coming_ns = COMING_NS;
    (void)pthread_mutex_init(&fleet->lock, NULL);
    fleet->peers = options->peers;
    fleet->pulse = options->pulse;
    fleet->turn_ns = weft_clock_now_ns();
    weft_status st = create_parts(fleet, err);
    if (st == WEFT_OK) {
        const int code = pthread_create(&fleet->thread, NULL, run, fleet);
        fleet->started = code == 0;
        if (code != 0)
            st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                           "cannot start the fleet's thread: %s",
                           strerror(code));
    }
    if (st != WEFT_OK) {
        weft_fleet_destroy(fleet);
        return st;
    }
    *fleet_out = fleet;
    return WEFT_OK;
}

static void drop_links(weft_fleet *fleet)
{
    for (int32_t i = 0; i < fleet->n_groups; i++) {
        fleet->groups[i].wanted = false;
        weft_fleet_break(fleet, i, "the router stops");
    }
    for (int32_t i = 0; i < fleet->n_brought; i++)
        weft_link_close(fleet->brought[i].link);
    fleet->n_brought = 0;
}

void weft_fleet_stop(weft_fleet *fleet)
{
    if (fleet == NULL || !fleet->started) return;
    atomic_store(&fleet->stop, true);
    weft_poller_wake(fleet->poller);
    (void)pthread_join(fleet->thread, NULL);
    fleet->started = false;
    fleet->options.changed = NULL;
    drop_links(fleet);
}

void weft_fleet_destroy(weft_fleet *fleet)
{
    if (fleet == NULL) return;
    weft_fleet_stop(fleet);
    for (int32_t i = 0; i < fleet->n_groups; i++)
        weft_buf_deinit(&fleet->groups[i].cancels);
    weft_ring_destroy(fleet->inbox);
    weft_poller_destroy(fleet->poller);
    (void)pthread_mutex_destroy(&fleet->lock);
    weft_mem_free(fleet->groups);
    weft_mem_free(fleet->places);
    weft_mem_free(fleet->want);
    weft_mem_free(fleet->states);
    weft_mem_free(fleet->brought);
    weft_mem_free(fleet->jobs);
    weft_mem_free(fleet->frame);
    weft_mem_free(fleet);
}
