/* service.h - what the RPC server asks of the node, and how it is answered.
 *
 * The server knows nothing of models: it decodes a call, hands it to one of the
 * ops below and sends what comes back. No gRPC or protobuf type is here.
 *
 *   op(arg, call, request)          the service holds `call` from here ...
 *     weft_call_send_chunk(call)    ... any number of times, Generate only ...
 *     weft_call_complete(call)      ... to exactly one of complete, reply_*,
 *     weft_call_fail(call)          fail and release. After that `call` may not
 *     weft_call_release(call)       be used.
 *
 * When the client is gone (it cancelled, disconnected, its deadline passed, or
 * it does not read what it asked for), the server calls `cancel` once, if the
 * service still holds the call. The service may go on sending, which does
 * nothing, until it ends the call in one of the ways above; release is for
 * this. Because a call may end while a cancel is on its way, cancel carries the
 * id, which is never used twice, and not the call.
 *
 * Threads: ops are called on the server's one thread and must not block. The
 * weft_call_* functions may be called from any thread, also inside an op; for
 * one call by one thread at a time. They never block on the network: what the
 * client does not take is merged into one waiting chunk, up to a limit at which
 * the call fails with RESOURCE_EXHAUSTED.
 */
#ifndef WEFT_NODE_RPC_SERVICE_H
#define WEFT_NODE_RPC_SERVICE_H

#include <stdbool.h>

#include "node/base/err.h"
#include "proto/messages.h"

typedef struct weft_call weft_call;

typedef struct weft_service_ops {
    /* `request` is borrowed until generate returns, by the others until the
     * service ends the call. Ranges are not checked; text is UTF-8. */
    void (*generate)(void *arg, weft_call *call,
                     const weft_generate_request *request);
    void (*tokenize)(void *arg, weft_call *call,
                     const weft_tokenize_request *request);
    void (*detokenize)(void *arg, weft_call *call,
                       const weft_detokenize_request *request);
    void (*abort)(void *arg, weft_call *call,
                  const weft_abort_request *request);
    void (*get_model)(void *arg, weft_call *call);
    void (*get_load)(void *arg, weft_call *call);
    /* weft.v1.Cluster. NULL: UNIMPLEMENTED. */
    void (*get_cluster)(void *arg, weft_call *call);

    /* `why` is CANCELLED, DEADLINE_EXCEEDED or RESOURCE_EXHAUSTED (the client
     * does not read). Unknown ids are calls that have just ended. */
    void (*cancel)(void *arg, uint64_t call_id, weft_status why);

    /* Each Generate call, with the status that it ends with, just before the
     * client is told; refused ones too. It may only count: no weft_call_*
     * function. NULL: nobody wants it. */
    void (*generate_ended)(void *arg, weft_status status);
} weft_service_ops;

uint64_t weft_call_id(const weft_call *call); /* never 0 */
/* CLOCK_MONOTONIC; UINT64_MAX: none. */
uint64_t weft_call_deadline_ns(const weft_call *call);

/* Whether the client still waits, for whoever is about to work for long. */
bool weft_call_is_wanted(weft_call *call);

/* Generate. Dropped if the request has stream false. Chunks that wait for the
 * client are merged. The arrays are copied. */
void weft_call_send_chunk(weft_call *call, const weft_chunk *chunk);
void weft_call_complete(weft_call *call, const weft_complete *complete);

/* The answers of the other methods, each of its own only. */
void weft_call_reply_tokens(weft_call *call, const int32_t *ids, size_t n_ids);
void weft_call_reply_text(weft_call *call, weft_span text);
void weft_call_reply_aborted(weft_call *call, uint32_t aborted);
void weft_call_reply_model(weft_call *call, const weft_model_info *model);
void weft_call_reply_load(weft_call *call, const weft_load_info *load);
void weft_call_reply_cluster(weft_call *call, const weft_cluster_info *cluster);

/* What was sent before still arrives first. `text` is copied; control
 * characters in it become spaces. retry_after_ms, if not negative, goes into
 * the trailing metadata `retry-after-ms`. */
void weft_call_fail(weft_call *call, weft_status status, const char *text,
                    int64_t retry_after_ms);

/* End a call whose client is gone. On any other it is a fault of the service,
 * and the client is told INTERNAL. */
void weft_call_release(weft_call *call);

#endif
