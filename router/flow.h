/* flow.h - what happens to a request, and when its client hears of it: the
 * router without its threads.
 *
 * Requests, events of the lead, cancels and the passing of time go in; calls of
 * the lead (lead.h), of the client (client.h) and of `watch` come out.
 *
 * Guarantees, each with a test of its name in tests/unit/test_flow.c:
 *   one_end          every opened request gets exactly one complete or fail
 *   order            tokens reach the client in the order the lead sent them,
 *                    none twice, also across preemptions
 *   resubmit         a preempted request is submitted again as prompt + told
 *                    tokens, with its age and sampling
 *   borrowed         an entry lives until the lead's last event for it
 *   late_events      events of a request that has ended change nothing
 *   full_lead        a lead without room loses no submission and no cancel
 *
 * No clock, thread or socket of its own: now_ns is passed in.
 * Threads: the router's thread alone.
 */
#ifndef WEFT_ROUTER_FLOW_H
#define WEFT_ROUTER_FLOW_H

#include "router/journal.h"
#include "router/lead.h"
#include "router/text/tokenizer.h"

/* Who wants to know, for metrics. Any of these may be NULL. Called on the
 * router's thread. */
typedef struct weft_watch {
    void (*queued)(void *arg, uint64_t ns); /* from waiting to the first step */
    void (*first_token)(void *arg, uint64_t ns); /* since acceptance */
    void (*between_tokens)(void *arg, uint64_t ns);
    void (*tokens)(void *arg, int32_t n_prompt, int32_t n_generated);
    void (*preempted)(void *arg);
    void *arg;
} weft_watch;

typedef struct weft_flow_hooks {
    weft_watch watch;
    /* Makes ids of entry->prompt_text and hands it back to
     * weft_flow_text_done; cannot refuse. */
    void (*to_text)(void *arg, weft_entry *entry);
    /* The entry is about to be freed. */
    void (*release)(void *arg, const weft_entry *entry);
    void *arg; /* of to_text and release */
} weft_flow_hooks;

typedef struct weft_flow weft_flow;

/* `tokenizer` may be NULL: ids only. It and the lead are borrowed. */
WEFT_MUST_CHECK weft_status weft_flow_create(int32_t n_slots,
                                             const weft_tokenizer *tokenizer,
                                             const weft_flow_hooks *hooks,
                                             weft_flow **flow_out,
                                             weft_err *err);
/* Frees all entries; their clients hear nothing. The lead must have ended. */
void weft_flow_destroy(weft_flow *flow); /* NULL is fine */

/* Before the first open. */
void weft_flow_set_lead(weft_flow *flow, weft_lead lead);

/* Takes the entry. */
void weft_flow_open(weft_flow *flow, weft_entry *entry);
/* text_err says whether its ids could be made; ask.tokens holds them then. */
void weft_flow_text_done(weft_flow *flow, weft_entry *entry);
/* Takes event->top. */
void weft_flow_event(weft_flow *flow, const weft_event *event, uint64_t now_ns);

/* End a request with `status`, wherever it is. An unknown handle: nothing. */
void weft_flow_cancel(weft_flow *flow, uint64_t handle, weft_status status,
                      const char *text);
/* End all with one of these ids as aborted: complete, finish abort. Their
 * number. ids [n] are in the order of sort_ids. */
int32_t weft_flow_abort(weft_flow *flow, const weft_span *ids, size_t n);
void weft_flow_sort_ids(weft_span *ids, size_t n);
void weft_flow_cancel_all(weft_flow *flow, weft_status status, const char *text,
                          int32_t retry_after_ms);

/* Submissions and cancels that are due, deadlines that have passed. Returns
 * when to call again at the latest: now_ns if the lead had no room,
 * UINT64_MAX if nothing is due. */
uint64_t weft_flow_tick(weft_flow *flow, uint64_t now_ns);

typedef struct weft_flow_load {
    int32_t n_running; /* computed by the lead */
    int32_t n_waiting; /* accepted, and not (or not any more) computed */
    int32_t n_closing; /* told to the client, not yet let go by the lead */
} weft_flow_load;

void weft_flow_get_load(const weft_flow *flow, weft_flow_load *load_out);

#endif
