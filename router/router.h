/* router.h - the router: takes requests, hands them to a lead, answers.
 *
 * Two threads. The router's thread owns the journal: requests, cancels and
 * aborts of any thread and events of the lead reach it through bounded rings,
 * and it alone calls clients. The text thread makes ids of text prompts and
 * serves tokenize and detokenize, so that a long text holds up nobody's tokens.
 *
 *   generate --> opens ring --+            +--> lead.submit, lead.cancel
 *   cancel ----> slot marks --+--> router -+--> client.chunk, complete, fail
 *   lead ------> events ring -+    thread  +--> text ring --> text thread
 *                                  ^                              |
 *                                  +------- opens ring <----------+
 *
 * Limits: max_seqs + max_queue live requests; more are refused with
 * RESOURCE_EXHAUSTED and a hint when to try again. A live request has a slot
 * from acceptance until the lead has let go of it, so no ring between the two
 * threads can overflow and no cancel can be lost.
 *
 * Threads: create, start, stop and destroy by one thread; all else by any.
 */
#ifndef WEFT_ROUTER_ROUTER_H
#define WEFT_ROUTER_ROUTER_H

#include "router/client.h"
#include "router/flow.h"
#include "router/lead.h"
#include "router/text/tokenizer.h"

enum {
    WEFT_ABORT_IDS_MAX = 4096, /* of one Abort */
};

typedef struct weft_router weft_router;

typedef struct weft_router_options {
    int32_t max_seqs, max_queue;
    weft_admit_limits limits;        /* its arrays are borrowed until destroy */
    const weft_tokenizer *tokenizer; /* NULL: ids only; borrowed */
    int64_t memory_bytes_max; /* what live requests may grow to together */
    weft_watch watch;
    uint64_t start_id; /* differs from start to start: names requests */
    /* Whether anybody waits for the answer to a tokenize or detokenize with
     * that arg; asked on the text thread before the work. NULL: always. */
    bool (*is_wanted)(void *arg);
    /* Whether anything can compute a request that comes now; if not, reason_out
     * says why, and it is refused with UNAVAILABLE and a hint when to try
     * again. Any thread. NULL: always. */
    bool (*can_serve)(void *arg, char *reason_out, size_t reason_bytes);
    void *can_serve_arg;
} weft_router_options;

/* INVALID_ARGUMENT: a limit is out of range. RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status
weft_router_create(const weft_router_options *options, weft_router **router_out,
                   weft_err *err);

/* Starts both threads. */
WEFT_MUST_CHECK weft_status weft_router_start(weft_router *router,
                                              weft_lead lead, weft_err *err);

/* Ends what is live with UNAVAILABLE, then both threads; no client is called
 * after it returns. */
void weft_router_stop(weft_router *router);

/* After stop, and after the lead has ended (it borrows jobs until then). */
void weft_router_destroy(weft_router *router); /* NULL is fine */

/* Takes an event of the lead; false: no room, nothing taken. `router` is a
 * weft_router. */
bool weft_router_take_event(void *router, const weft_event *event);

/* Accept a request, or say why not. On WEFT_OK `client` will be told the end
 * (client.h), even before this returns, and *handle_out names the request for
 * cancel. On failure the client is never called; *retry_after_ms_out is when
 * trying again may help, -1 where it cannot. */
WEFT_MUST_CHECK weft_status weft_router_generate(
    weft_router *router, const weft_request *request,
    const weft_client_ops *client, void *client_arg, uint64_t *handle_out,
    int32_t *retry_after_ms_out, weft_err *err);

/* The client has left: its request ends with CANCELLED, if it has not ended
 * yet. Never fails, never blocks. */
void weft_router_cancel(weft_router *router, uint64_t handle);

/* `done` is called on the router's thread with the number of requests that
 * were ended; what ids [n] point to is borrowed until then.
 * RESOURCE_EXHAUSTED: too many aborts at once, or no memory. INVALID_ARGUMENT:
 * too many ids. UNAVAILABLE: stopping. On failure `done` is not called. */
typedef void (*weft_abort_fn)(void *arg, int32_t n_aborted);
WEFT_MUST_CHECK weft_status weft_router_abort(weft_router *router,
                                              const weft_span *ids, size_t n,
                                              weft_abort_fn done, void *arg,
                                              weft_err *err);

/* `text` and `ids` are borrowed until `done` is called, on the text thread;
 * its `err` is NULL on success, and what it is given lives for the call.
 * INVALID_ARGUMENT: no tokenizer, not UTF-8, an id out of range, too long.
 * RESOURCE_EXHAUSTED: too many at once. UNAVAILABLE: stopping. On failure here
 * `done` is not called. CANCELLED, told to `done` only: not wanted any more. */
typedef void (*weft_tokenize_fn)(void *arg, const weft_err *err,
                                 const int32_t *ids, size_t n);
WEFT_MUST_CHECK weft_status weft_router_tokenize(
    weft_router *router, weft_span text, bool add_special, bool parse_special,
    weft_tokenize_fn done, void *arg, weft_err *err);
typedef void (*weft_detokenize_fn)(void *arg, const weft_err *err,
                                   weft_span text);
WEFT_MUST_CHECK weft_status weft_router_detokenize(weft_router *router,
                                                   const uint32_t *ids,
                                                   size_t n, bool skip_special,
                                                   weft_detokenize_fn done,
                                                   void *arg, weft_err *err);

/* From here on generate answers UNAVAILABLE; what is live goes on. */
void weft_router_drain(weft_router *router);
bool weft_router_is_draining(const weft_router *router);
/* Ends what is live with UNAVAILABLE. */
void weft_router_cut(weft_router *router);

typedef struct weft_router_load {
    int32_t n_running; /* computed by the lead */
    int32_t n_waiting; /* accepted, and not (or not any more) computed */
    int32_t n_live;    /* these, and ended ones that the lead still holds */
} weft_router_load;

void weft_router_get_load(const weft_router *router,
                          weft_router_load *load_out);

#endif
