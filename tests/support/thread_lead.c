#include "tests/support/thread_lead.h"

#include <check.h>

thread_lead lead;

weft_status thread_lead_submit(void *arg, const weft_job *job)
{
    (void)arg;
    if (weft_ring_push(lead.submits, &job)) return WEFT_OK;
    atomic_fetch_add(&lead.n_refused, 1);
    return WEFT_RESOURCE_EXHAUSTED;
}

weft_status thread_lead_cancel(void *arg, uint64_t handle)
{
    (void)arg;
    if (!weft_ring_push(lead.cancels, &handle)) return WEFT_RESOURCE_EXHAUSTED;
    weft_ring_wake(lead.submits);
    return WEFT_OK;
}

int32_t thread_lead_token(const weft_job *job, int32_t position)
{
    return (int32_t)((job->sampling.seed * 131 + (uint64_t)position * 17) % 90 +
                     5);
}

static void tell(const weft_event *event)
{
    while (!weft_router_take_event(lead.router, event))
        if (atomic_load(&lead.stopping)) return;
}

/* One token, or the end, for one job. */
static void advance(thread_lead_job *held)
{
    const weft_job *const job = held->job;
    weft_event event = {.handle = job->handle};
    lead.n_rounds++;
    if (held->cancelled) {
        event.kind = WEFT_EVENT_END;
        event.finish = WEFT_FINISH_FAILED;
        event.status = WEFT_CANCELLED;
    } else if (lead.n_rounds % 23 == 0) {
        atomic_fetch_add(&lead.n_preempted, 1);
        event.kind = WEFT_EVENT_END;
        event.finish = WEFT_FINISH_PREEMPTED;
    } else {
        event.kind = WEFT_EVENT_TOKEN;
        event.token = thread_lead_token(job, held->at++);
        if (held->at - job->n_prompt == job->max_tokens)
            event.finish = WEFT_FINISH_LENGTH;
    }
    /* Not to be read once the last event is told. */
    if (event.finish != WEFT_FINISH_NONE) held->job = NULL;
    tell(&event);
}

static bool take_in(void)
{
    const weft_job *job = NULL;
    uint64_t handle = 0;
    bool any = false;
    while (weft_ring_pop(lead.submits, &job)) {
        int32_t i = 0;
        while (i < THREAD_LEAD_HELD_MAX && lead.held[i].job != NULL) i++;
        ck_assert_int_lt(i, THREAD_LEAD_HELD_MAX);
        lead.held[i] = (thread_lead_job){.job = job, .at = job->n_tokens};
        for (int32_t p = job->n_prompt; p < job->n_tokens; p++)
            ck_assert_int_eq(job->tokens[p], thread_lead_token(job, p));
        tell(&(weft_event){.handle = job->handle, .kind = WEFT_EVENT_STARTED});
        any = true;
    }
    while (weft_ring_pop(lead.cancels, &handle)) {
        atomic_fetch_add(&lead.n_cancels, 1);
        for (int32_t i = 0; i < THREAD_LEAD_HELD_MAX; i++)
            if (lead.held[i].job != NULL && lead.held[i].job->handle == handle)
                lead.held[i].cancelled = true;
        any = true;
    }
    return any;
}

void *thread_lead_run(void *arg)
{
    (void)arg;
    while (!atomic_load(&lead.stopping)) {
        bool any = take_in();
        for (int32_t i = 0; i < THREAD_LEAD_HELD_MAX; i++) {
            thread_lead_job *const held = &lead.held[i];
            if (held->job == NULL) continue;
            if (atomic_load(&lead.paused) && !held->cancelled) continue;
            advance(held);
            any = true;
        }
        if (!any) weft_ring_wait(lead.submits, UINT64_MAX);
    }
    return NULL;
}
