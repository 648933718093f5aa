/* flow_fake.h - a lead and clients that follow a script, around a weft_flow.
 *
 * The lead keeps what it was given and does what a test tells it; clients write
 * down what they hear and check on the way that nothing comes after the end.
 * One of everything a process: the state is global, begin resets it.
 */
#ifndef WEFT_TESTS_SUPPORT_FLOW_FAKE_H
#define WEFT_TESTS_SUPPORT_FLOW_FAKE_H

#include <check.h>

#include "router/flow.h"

enum {
    WEFT_FAKE_SLOTS = 8,
    WEFT_FAKE_VOCAB = 256,
    WEFT_FAKE_CONTEXT = 200,
    WEFT_FAKE_CALLS_MAX = 512,
    WEFT_FAKE_IDS_MAX = 128
};

typedef struct weft_fake_job {
    const weft_job *job; /* borrowed from the flow until the last event */
    uint64_t handle;
    int32_t n_prompt, n_tokens, n_sent;
    bool cancelled;
} weft_fake_job;

typedef struct weft_fake_lead_state {
    weft_fake_job jobs[WEFT_FAKE_SLOTS * 2];
    int32_t n_jobs, n_submits, n_cancels;
    int32_t room; /* submits and cancels that are taken; -1: all */
    weft_status refusal;
    weft_job last; /* as submitted */
} weft_fake_lead_state;
extern weft_fake_lead_state weft_fake_lead;

typedef struct weft_fake_client {
    uint64_t handle;
    int32_t n_chunks, n_ids, n_completes, n_fails, n_logprobs;
    int32_t ids[WEFT_FAKE_IDS_MAX];
    char text[4096], whole[4096];
    weft_status status;
    char why[256];
    int32_t retry_after_ms;
    weft_stream_end end;
    int32_t n_all, n_prompt;
    bool matched_token;
    char matched[64];
} weft_fake_client;

typedef struct weft_fake_state {
    weft_flow *flow;
    const weft_client_ops *ops;
    weft_tokenizer *tokenizer;
    weft_admit_limits limits;
    weft_fake_client clients[WEFT_FAKE_CALLS_MAX];
    int32_t n_clients;
    bool slot_used[WEFT_FAKE_SLOTS];
    weft_entry *at_text[WEFT_FAKE_SLOTS]; /* the text thread has these */
    int32_t n_at_text;
    int32_t n_prompt_counted, n_generated_counted, n_preempted, n_queued;
    int32_t n_first, n_between;
    uint64_t now_ns, serial;
} weft_fake_state;
extern weft_fake_state weft_fake;

extern const uint32_t WEFT_FAKE_PROMPT[3];

/* NULL: the lead does not have it. */
weft_fake_job *weft_fake_lead_find(uint64_t handle);
/* The token of a request at a position: what every lead would compute. */
int32_t weft_fake_token_at(uint64_t handle, int32_t position);
/* The ordinary client; its argument is a weft_fake_client. */
void weft_fake_heard_chunk(void *arg, const weft_stream_chunk *chunk);
void weft_fake_heard_complete(void *arg, const weft_stream_complete *done);
void weft_fake_heard_fail(void *arg, weft_status status, const char *text,
                          int32_t retry_after_ms);
/* A fresh flow; end frees it. */
void weft_fake_begin(bool with_tokenizer);
void weft_fake_end(void);
weft_request weft_fake_request(uint32_t max_tokens);
/* -1: all are taken. */
int32_t weft_fake_free_slot(void);
/* Opens a request for a client of its own. */
weft_fake_client *weft_fake_open(const weft_request *request);
weft_fake_client *weft_fake_open_plain(uint32_t max_tokens);
/* A moment passes. */
void weft_fake_tick(void);
/* The lead lets go of a job before it tells its last event. */
void weft_fake_send_event(const weft_event *event);
void weft_fake_send(uint64_t handle, weft_event_kind kind, weft_finish finish,
                    int32_t token);
void weft_fake_send_tokens(const weft_fake_client *c, const int32_t *ids,
                           int32_t n);
void weft_fake_send_end(uint64_t handle, weft_finish finish, weft_status status,
                        const char *text);
void weft_fake_check_load(int32_t running, int32_t waiting, int32_t closing);

#endif
