#include <string.h>

#include "node/fleet/fleet_internal.h"

/* -- lists ---------------------------------------------------------------- */

void weft_fleet_list_init(weft_fleet_list *list)
{
    *list = (weft_fleet_list){.first = WEFT_NO_SLOT, .last = WEFT_NO_SLOT};
}

/* Behind `before`; WEFT_NO_SLOT: first. */
static void insert(weft_fleet *fleet, weft_fleet_list *list, int32_t before,
                   int32_t slot)
{
    weft_fleet_job *const jobs = fleet->jobs;
    const int32_t after =
        before == WEFT_NO_SLOT ? list->first : jobs[before].after;
    jobs[slot].before = before;
    jobs[slot].after = after;
    if (before == WEFT_NO_SLOT)
        list->first = slot;
    else
        jobs[before].after = slot;
    if (after == WEFT_NO_SLOT)
        list->last = slot;
    else
        jobs[after].before = slot;
    list->n++;
}

void weft_fleet_list_push(weft_fleet *fleet, weft_fleet_list *list,
                          int32_t slot)
{
    insert(fleet, list, list->last, slot);
}

void weft_fleet_list_remove(weft_fleet *fleet, weft_fleet_list *list,
                            int32_t slot)
{
    weft_fleet_job *const jobs = fleet->jobs;
    const int32_t before = jobs[slot].before, after = jobs[slot].after;
    if (before == WEFT_NO_SLOT)
        list->first = after;
    else
        jobs[before].after = after;
    if (after == WEFT_NO_SLOT)
        list->last = before;
    else
        jobs[after].before = before;
    list->n--;
}

/* -- what the router brings ----------------------------------------------- */

static bool goes_before(const weft_job *a, const weft_job *b)
{
    if (a->priority != b->priority) return a->priority > b->priority;
    return a->age < b->age;
}

void weft_fleet_wait_for_group(weft_fleet *fleet, int32_t slot)
{
    int32_t before = fleet->pending.last;
    while (before != WEFT_NO_SLOT &&
           goes_before(fleet->jobs[slot].job, fleet->jobs[before].job))
        before = fleet->jobs[before].before;
    fleet->jobs[slot].state = WEFT_FLEET_PENDING;
    insert(fleet, &fleet->pending, before, slot);
}

static void take_job(weft_fleet *fleet, const weft_job *job)
{
    const int32_t slot = weft_handle_slot(job->handle);
    weft_fleet_job *const at = &fleet->jobs[slot];
    if (at->handle != job->handle)
        *at = (weft_fleet_job){.handle = job->handle};
    at->job = job;
    weft_fleet_wait_for_group(fleet, slot);
}

static void cancel_sent(weft_fleet *fleet, int32_t slot)
{
    weft_fleet_job *const at = &fleet->jobs[slot];
    const int32_t group = at->group;
    weft_fleet_unsend(fleet, slot);
    weft_fleet_end(fleet, slot, WEFT_FINISH_FAILED, WEFT_CANCELLED,
                   "cancelled");
    if (weft_buf_add(&fleet->groups[group].cancels, &at->handle,
                     sizeof at->handle, NULL) != WEFT_OK)
        weft_fleet_break(fleet, group, "no memory for a cancel");
}

static void take_cancel(weft_fleet *fleet, uint64_t handle)
{
    const int32_t slot = weft_handle_slot(handle);
    if (slot >= fleet->options.jobs_max) return;
    weft_fleet_job *const at = &fleet->jobs[slot];
    if (at->handle != handle) return;
    if (at->state == WEFT_FLEET_SENT) cancel_sent(fleet, slot);
    if (at->state != WEFT_FLEET_PENDING) return;
    weft_fleet_list_remove(fleet, &fleet->pending, slot);
    weft_fleet_end(fleet, slot, WEFT_FINISH_FAILED, WEFT_CANCELLED,
                   "cancelled");
}

void weft_fleet_take_messages(weft_fleet *fleet)
{
    weft_fleet_message message;
    while (weft_ring_pop(fleet->inbox, &message)) {
        if (message.job != NULL)
            take_job(fleet, message.job);
        else
            take_cancel(fleet, message.handle);
    }
}

/* -- ends ----------------------------------------------------------------- */

int32_t weft_fleet_find_sent(const weft_fleet *fleet, uint64_t handle,
                             int32_t group)
{
    const int32_t slot = weft_handle_slot(handle);
    if (slot >= fleet->options.jobs_max) return WEFT_NO_SLOT;
    const weft_fleet_job *const at = &fleet->jobs[slot];
    return at->handle == handle && at->state == WEFT_FLEET_SENT &&
                   at->group == group
               ? slot
               : WEFT_NO_SLOT;
}

void weft_fleet_unsend(weft_fleet *fleet, int32_t slot)
{
    weft_fleet_job *const at = &fleet->jobs[slot];
    weft_fleet_group *const group = &fleet->groups[at->group];
    weft_fleet_list_remove(fleet, &group->jobs, slot);
    group->n_tokens -= at->n_tokens;
    if (group->suspect == slot) group->suspect = WEFT_NO_SLOT;
    at->state = WEFT_FLEET_FREE;
}

void weft_fleet_end(weft_fleet *fleet, int32_t slot, weft_finish finish,
                    weft_status status, const char *text)
{
    weft_fleet_job *const at = &fleet->jobs[slot];
    at->state = WEFT_FLEET_ENDING;
    at->finish = finish;
    at->status = status;
    at->text = text;
    weft_fleet_list_push(fleet, &fleet->ending, slot);
}

void weft_fleet_give_back(weft_fleet *fleet, int32_t slot)
{
    weft_fleet_job *const at = &fleet->jobs[slot];
    /* A lead that drains is about to go: no job of it is to blame. */
    const bool was_to_go = fleet->groups[at->group].state.draining;
    weft_fleet_unsend(fleet, slot);
    if (was_to_go || weft_place_broke(&at->tries, fleet->options.tries_max))
        weft_fleet_end(fleet, slot, WEFT_FINISH_PREEMPTED, WEFT_OK, "");
    else
        weft_fleet_end(fleet, slot, WEFT_FINISH_FAILED, WEFT_INTERNAL,
                       "every group of layer shards that this request was "
                       "given to broke off before it gave a token");
}

void weft_fleet_tell_ends(weft_fleet *fleet)
{
    while (fleet->ending.first != WEFT_NO_SLOT) {
        const int32_t slot = fleet->ending.first;
        weft_fleet_job *const at = &fleet->jobs[slot];
        weft_event event = {.handle = at->handle,
                            .kind = WEFT_EVENT_END,
                            .finish = at->finish,
                            .status = at->status};
        const size_t n = strlen(at->text);
        memcpy(event.text, at->text,
               n < sizeof event.text ? n : sizeof event.text - 1);
        if (!fleet->options.take(fleet->options.take_arg, &event)) {
            fleet->sink_full = true;
            return;
        }
        weft_fleet_list_remove(fleet, &fleet->ending, slot);
        at->state = WEFT_FLEET_FREE;
    }
}

/* -- placing -------------------------------------------------------------- */

static void look_at_groups(weft_fleet *fleet)
{
    for (int32_t i = 0; i < fleet->n_groups; i++) {
        const weft_fleet_group *const group = &fleet->groups[i];
        const weft_group_state *const state = &group->state;
        fleet->places[i] = (weft_place_group){
            .number = group->want.group,
            .usable = group->link != NULL && group->told && !group->full &&
                      group->wanted && !group->want.draining &&
                      !state->draining && state->whole,
            .suspect = group->suspect != WEFT_NO_SLOT,
            .seats = state->max_seqs,
            .jobs_max = state->jobs_max,
            .n_jobs = group->jobs.n,
            .n_tokens = group->n_tokens,
        };
    }
}

static void note_sent(weft_fleet *fleet, int32_t slot, int32_t group_at)
{
    weft_fleet_job *const at = &fleet->jobs[slot];
    weft_fleet_group *const group = &fleet->groups[group_at];
    const weft_job *const job = at->job;
    weft_fleet_list_remove(fleet, &fleet->pending, slot);
    weft_fleet_list_push(fleet, &group->jobs, slot);
    at->state = WEFT_FLEET_SENT;
    at->group = group_at;
    at->first_position = job->n_tokens;
    at->position = job->n_tokens;
    at->n_tokens = (int64_t)job->n_prompt + job->max_tokens;
    group->n_tokens += at->n_tokens;
    if (weft_place_is_suspect(&at->tries)) group->suspect = slot;
    fleet->places[group_at].n_jobs++;
    fleet->places[group_at].n_tokens = group->n_tokens;
    fleet->places[group_at].suspect = group->suspect != WEFT_NO_SLOT;
}

/* The job goes to that group, ends, or (its link is full) stays. */
static void send_job(weft_fleet *fleet, int32_t slot, int32_t group,
                     uint64_t now_ns)
{
    const weft_fleet_job *const at = &fleet->jobs[slot];
    weft_pack pack = weft_pack_into(fleet->frame, fleet->frame_bytes);
    weft_err err = {0};
    if (weft_job_encode(at->job, now_ns, &pack, &err) != WEFT_OK) {
        weft_fleet_list_remove(fleet, &fleet->pending, slot);
        weft_fleet_end(fleet, slot, WEFT_FINISH_FAILED, WEFT_RESOURCE_EXHAUSTED,
                       "the request is longer than a frame to a shard may be");
        return;
    }
    const weft_frame frame = {.type = WEFT_FRAME_SUBMIT,
                              .group = fleet->groups[group].want.group,
                              .body = pack.data,
                              .body_bytes = pack.n};
    const weft_status st =
        weft_link_send(fleet->groups[group].link, &frame, NULL, &err);
    if (st == WEFT_OK)
        note_sent(fleet, slot, group);
    else
        fleet->places[group].usable = false;
    if (st != WEFT_OK && st != WEFT_RESOURCE_EXHAUSTED)
        weft_fleet_break(fleet, group, err.text);
}

void weft_fleet_place(weft_fleet *fleet, uint64_t now_ns)
{
    if (fleet->pending.first == WEFT_NO_SLOT) return;
    look_at_groups(fleet);
    for (int32_t slot = fleet->pending.first, next; slot != WEFT_NO_SLOT;
         slot = next) {
        next = fleet->jobs[slot].after;
        const bool suspect = weft_place_is_suspect(&fleet->jobs[slot].tries);
        const int32_t group =
            weft_place_choose(fleet->places, fleet->n_groups, suspect);
        if (group == WEFT_NO_GROUP && !suspect)
            return; /* none for those behind it either */
        if (group == WEFT_NO_GROUP) continue;
        send_job(fleet, slot, group, now_ns);
        /* That group had no room for the frame: to another one, if any. */
        if (fleet->jobs[slot].state == WEFT_FLEET_PENDING) next = slot;
    }
}
