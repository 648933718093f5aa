#include <stdio.h>
#include <string.h>

#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/fleet/fleet_internal.h"

enum {
    /* Frames of one group in a turn, so that one does not hold up others. */
    FRAMES_A_TURN = 64,
    CANCELS_A_FRAME = 1024,
};

/* -- connected and not ---------------------------------------------------- */

void weft_fleet_connect(weft_fleet *fleet, int32_t at, weft_link *link,
                        uint64_t now_ns)
{
    weft_fleet_group *const group = &fleet->groups[at];
    weft_err err = {0};
    weft_status st = weft_poller_add(fleet->poller, link, &err);
    if (st == WEFT_OK && fleet->options.pulse != NULL) {
        st = weft_pulse_add(fleet->options.pulse, link, &err);
        if (st != WEFT_OK) weft_poller_remove(fleet->poller, link);
    }
    if (st != WEFT_OK) {
        weft_log(WEFT_LOG_WARN, "fleet", "not_connected",
                 "group %u reason \"%s\"", group->want.group, err.text);
        weft_link_close(link);
        if (fleet->options.peers != NULL)
            weft_peers_lost(fleet->options.peers, group->want.peer.id,
                            group->want.peer.incarnation);
        return;
    }
    group->link = link;
    group->told = false;
    group->full = false;
    group->looked_at_ns = now_ns;
    group->state = (weft_group_state){.group = group->want.group};
    weft_log(WEFT_LOG_INFO, "fleet", "connected", "group %u id %s",
             group->want.group, group->want.peer.id);
    weft_fleet_publish(fleet);
}

static void forget_frame(weft_fleet_group *group)
{
    if (group->has_held) weft_mem_free(group->held.top);
    group->has_held = false;
    group->n_rest = 0;
    group->rest = (weft_unpack){0};
    weft_buf_clear(&group->cancels);
}

void weft_fleet_break(weft_fleet *fleet, int32_t at, const char *why)
{
    weft_fleet_group *const group = &fleet->groups[at];
    if (group->link == NULL) return;
    weft_log(group->wanted ? WEFT_LOG_WARN : WEFT_LOG_INFO, "fleet", "lost",
             "group %u id %s requests %d reason \"%s\"", group->want.group,
             group->want.peer.id, group->jobs.n, why);
    if (fleet->options.pulse != NULL)
        weft_pulse_remove(fleet->options.pulse, group->link);
    weft_poller_remove(fleet->poller, group->link);
    weft_link_close(group->link);
    group->link = NULL;
    group->wanted = group->listed;
    forget_frame(group);
    while (group->jobs.first != WEFT_NO_SLOT)
        weft_fleet_give_back(fleet, group->jobs.first);
    group->state = (weft_group_state){.group = group->want.group};
    (void)snprintf(group->state.reason, sizeof group->state.reason, "%.*s",
                   (int)sizeof group->state.reason - 1, why);
    if (fleet->options.peers != NULL)
        weft_peers_lost(fleet->options.peers, group->want.peer.id,
                        group->want.peer.incarnation);
    weft_fleet_publish(fleet);
}

/* -- events --------------------------------------------------------------- */

/* What the job asked for bounds what its answer may hold. NULL: sound. */
static const char *unsound(const weft_fleet_job *at, const weft_event *event)
{
    const weft_job *const job = at->job;
    const int32_t top = event->kind == WEFT_EVENT_TOKEN ? job->logprobs
                        : event->kind == WEFT_EVENT_PROMPT
                            ? job->prompt_logprobs
                            : 0;
    if (event->n_top > 0 && event->n_top > top)
        return "more logprobs than were asked for";
    if (event->kind == WEFT_EVENT_TOKEN &&
        (event->position != at->position ||
         event->position >= job->n_prompt + job->max_tokens))
        return "a token out of order";
    if (event->kind == WEFT_EVENT_PROMPT &&
        (job->prompt_logprobs < 0 || event->position >= job->n_prompt))
        return "a logprob that nobody asked for";
    return NULL;
}

/* A job that a lead gave back because it had no room. */
static bool is_refusal(const weft_event *event)
{
    return event->finish == WEFT_FINISH_PREEMPTED &&
           event->status == WEFT_RESOURCE_EXHAUSTED;
}

static void note_token(weft_fleet *fleet, weft_fleet_group *group, int32_t slot)
{
    weft_fleet_job *const at = &fleet->jobs[slot];
    const bool first = at->position == at->first_position;
    const int64_t done = first ? (int64_t)at->first_position + 1 : 1;
    at->position++;
    at->n_tokens -= done;
    group->n_tokens -= done;
    weft_place_progressed(&at->tries);
    if (group->suspect == slot) group->suspect = WEFT_NO_SLOT;
}

/* The event of a job that this group has. false: the sink is full. */
static bool pass_event(weft_fleet *fleet, weft_fleet_group *group, int32_t slot,
                       const weft_event *event)
{
    const weft_fleet_options *const o = &fleet->options;
    if (is_refusal(event)) {
        group->full = true;
        weft_fleet_unsend(fleet, slot);
        weft_fleet_wait_for_group(fleet, slot);
        return true;
    }
    /* The job may be gone once its last event is told. */
    if (!o->take(o->take_arg, event)) return false;
    if (event->kind == WEFT_EVENT_TOKEN) note_token(fleet, group, slot);
    if (event->finish != WEFT_FINISH_NONE) weft_fleet_unsend(fleet, slot);
    return true;
}

/* Tells what the group's frame still holds. false: the sink is full, or the
 * link was broken off. */
static bool take_rest(weft_fleet *fleet, int32_t group_at)
{
    weft_fleet_group *const group = &fleet->groups[group_at];
    weft_err err = {0};
    while (group->has_held || group->n_rest > 0) {
        if (!group->has_held) {
            if (weft_event_decode(&group->rest, fleet->options.vocab_size,
                                  &group->held, &err) != WEFT_OK) {
                weft_fleet_break(fleet, group_at, err.text);
                return false;
            }
            group->has_held = true;
            group->n_rest--;
        }
        const weft_event *const event = &group->held;
        const int32_t slot =
            weft_fleet_find_sent(fleet, event->handle, group_at);
        const char *const why =
            slot == WEFT_NO_SLOT ? NULL : unsound(&fleet->jobs[slot], event);
        if (why != NULL) {
            weft_fleet_break(fleet, group_at, why);
            return false;
        }
        if (slot == WEFT_NO_SLOT) {
            group->n_stray++;
            weft_mem_free(event->top);
        } else if (!pass_event(fleet, group, slot, event)) {
            fleet->sink_full = true;
            return false;
        }
        group->has_held = false;
    }
    if (!weft_unpack_done(&group->rest)) {
        weft_fleet_break(fleet, group_at, "an EVENTS frame is malformed");
        return false;
    }
    return true;
}

static weft_status take_state(weft_fleet *fleet, weft_fleet_group *group,
                              const weft_frame *frame, weft_err *err)
{
    weft_group_state state;
    WEFT_TRY(weft_state_decode(frame->body, frame->body_bytes, &state, err));
    if (state.group != group->want.group)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "it says that it is group %u", state.group);
    state.connected = true;
    if (state.jobs_live < state.jobs_max) group->full = false;
    group->told = true;
    group->state = state;
    if (state.been_whole) group->coming_until_ns = 0; /* it has come */
    weft_fleet_publish(fleet);
    return WEFT_OK;
}

static weft_status take_frame(weft_fleet *fleet, weft_fleet_group *group,
                              const weft_frame *frame, weft_err *err)
{
    switch (frame->type) {
    case WEFT_FRAME_STATE: return take_state(fleet, group, frame, err);
    case WEFT_FRAME_EVENTS:
        group->rest = weft_unpack_from(frame->body, frame->body_bytes);
        group->n_rest = weft_unpack_u32(&group->rest);
        if (!group->rest.bad) return WEFT_OK;
        group->n_rest = 0;
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "an EVENTS frame is malformed");
    default:
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a lead does not send %s frames",
                         weft_frame_type_name(frame->type));
    }
}

/* -- a turn --------------------------------------------------------------- */

/* What does not leave now stays. */
static weft_status send_cancels(weft_fleet_group *group, weft_err *err)
{
    uint64_t handles[CANCELS_A_FRAME];
    unsigned char body[4 + sizeof handles];
    while (group->cancels.n > 0) {
        const size_t n_all = group->cancels.n / sizeof handles[0];
        const size_t n = n_all < CANCELS_A_FRAME ? n_all : CANCELS_A_FRAME;
        const size_t n_bytes = n * sizeof handles[0];
        weft_pack pack = weft_pack_into(body, sizeof body);
        memcpy(handles, group->cancels.data, n_bytes);
        weft_pack_u32(&pack, (uint32_t)n);
        for (size_t i = 0; i < n; i++) weft_pack_u64(&pack, handles[i]);
        const weft_frame frame = {.type = WEFT_FRAME_CANCEL,
                                  .group = group->want.group,
                                  .body = body,
                                  .body_bytes = pack.n};
        const weft_status st = weft_link_send(group->link, &frame, NULL, err);
        if (st == WEFT_RESOURCE_EXHAUSTED) return WEFT_OK;
        WEFT_TRY(st);
        group->cancels.n -= n_bytes;
        memmove(group->cancels.data, group->cancels.data + n_bytes,
                group->cancels.n);
    }
    return WEFT_OK;
}

static void take_frames(weft_fleet *fleet, int32_t at, uint64_t now_ns)
{
    weft_fleet_group *const group = &fleet->groups[at];
    for (int32_t i = 0; i < FRAMES_A_TURN; i++) {
        weft_frame frame;
        bool got = false;
        weft_err err = {0};
        if (!take_rest(fleet, at)) return;
        weft_status st = weft_link_recv(group->link, &frame, &got, &err);
        if (st == WEFT_OK && got) st = take_frame(fleet, group, &frame, &err);
        if (st == WEFT_OK && !got) {
            const uint64_t since_ns =
                group->looked_at_ns > fleet->looking_since_ns
                    ? group->looked_at_ns
                    : fleet->looking_since_ns;
            st = weft_link_judge(group->link, now_ns, since_ns, &err);
        }
        if (st != WEFT_OK) weft_fleet_break(fleet, at, err.text);
        if (st != WEFT_OK || !got) return;
    }
}

void weft_fleet_serve_group(weft_fleet *fleet, int32_t at, uint64_t now_ns)
{
    weft_fleet_group *const group = &fleet->groups[at];
    weft_err err = {0};
    if (!group->wanted && group->jobs.n == 0)
        weft_fleet_break(fleet, at, "it is not wanted any more");
    if (group->link == NULL) return;
    if (send_cancels(group, &err) != WEFT_OK) {
        weft_fleet_break(fleet, at, err.text);
        return;
    }
    take_frames(fleet, at, now_ns);
    /* Time in which it was not asked for frames is not its silence. */
    if (group->link != NULL && (group->has_held || group->n_rest > 0))
        group->looked_at_ns = now_ns;
}
