/* client.h - a client of weft.v1.Generation that waits for its answers.
 *
 * For commands (`weft generate`, `weft status`) and tests: one call at a time.
 *
 * Failures of create mean that the server cannot be reached. A call's failure
 * is what the server answered, unless weft_client_lost says that the connection
 * broke under it.
 *
 * Threads: one owner.
 */
#ifndef WEFT_NODE_RPC_CLIENT_H
#define WEFT_NODE_RPC_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "node/base/arena.h"
#include "node/base/err.h"
#include "proto/codec.h"

typedef struct weft_client weft_client;

typedef struct weft_client_options {
    const char *address; /* HOST:PORT */
    uint64_t timeout_ns; /* of connecting, from now */
    const char *ca_file; /* PEM: what signs the server's certificate, which has
                            to name its host; NULL: no TLS */
    const char *key;     /* API key; NULL: none */
} weft_client_options;

/* Connect, in two attempts. INVALID_ARGUMENT: `address` is no HOST:PORT, or
 * ca_file is no such file. UNAVAILABLE: nobody answers there, or not as who is
 * wanted; the text names it. */
WEFT_MUST_CHECK weft_status
weft_client_create(const weft_client_options *options, weft_client **client_out,
                   weft_err *err);
void weft_client_destroy(weft_client *client); /* NULL is fine */

/* The message is borrowed until return. false: cancel the call. */
typedef bool (*weft_client_response_fn)(void *arg,
                                        const weft_generate_response *response);

/* Generate to its end. timeout_ns is the call's deadline; UINT64_MAX: none.
 * WEFT_OK: on_response has seen a complete. Else the status of the call, with
 * the server's text; CANCELLED also when on_response returned false. An answer
 * that breaks the rules is INTERNAL. */
WEFT_MUST_CHECK weft_status
weft_client_generate(weft_client *client, const weft_generate_request *request,
                     uint64_t timeout_ns, weft_client_response_fn on_response,
                     void *arg, weft_err *err);

/* Takes one message of an answer, borrowed until return. What it returns, if
 * not OK, cancels the call and is what the call ends with. */
typedef weft_status (*weft_client_message_fn)(void *arg, weft_span message,
                                              weft_err *err);

/* Any method, as bytes: one message to the server, any number back. */
WEFT_MUST_CHECK weft_status weft_client_call(weft_client *client,
                                             const char *path,
                                             weft_span message,
                                             uint64_t timeout_ns,
                                             weft_client_message_fn on_message,
                                             void *arg, weft_err *err);

/* What is answered lies in the arena. */
WEFT_MUST_CHECK weft_status weft_client_get_model(weft_client *client,
                                                  uint64_t timeout_ns,
                                                  weft_arena *arena,
                                                  weft_model_info *model_out,
                                                  weft_err *err);
WEFT_MUST_CHECK weft_status weft_client_get_load(weft_client *client,
                                                 uint64_t timeout_ns,
                                                 weft_arena *arena,
                                                 weft_load_info *load_out,
                                                 weft_err *err);
WEFT_MUST_CHECK weft_status weft_client_get_cluster(
    weft_client *client, uint64_t timeout_ns, weft_arena *arena,
    weft_cluster_info *cluster_out, weft_err *err);

/* Whether the server takes new work, as grpc.health.v1 tells it of the server
 * as a whole: false while it drains. INTERNAL: it tells neither. */
WEFT_MUST_CHECK weft_status weft_client_health(weft_client *client,
                                               uint64_t timeout_ns,
                                               bool *serving_out,
                                               weft_err *err);

/* Of the last call: whether it failed because the connection did. */
bool weft_client_lost(const weft_client *client);
/* Of the last call: the server's hint when to try again; -1: none. */
int64_t weft_client_retry_after_ms(const weft_client *client);

#endif
