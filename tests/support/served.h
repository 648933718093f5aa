/* served.h - an RPC server with a fake node behind, and clients of it.
 *
 * One in a test; what cannot be done ends the test.
 */
#ifndef WEFT_TESTS_SUPPORT_SERVED_H
#define WEFT_TESTS_SUPPORT_SERVED_H

#include "node/rpc/client.h"
#include "node/rpc/server.h"
#include "tests/support/fake_service.h"

#define SECONDS(n) ((uint64_t)(n)*1000000000U)

typedef struct served {
    weft_fake_service *fake;
    weft_rpc_server *server;
} served;

/* listen, ops and ops_arg of the options are filled in. */
served serve(weft_rpc_options options);
/* Stop within 20 seconds; nothing may be left. */
void serve_end(served *served);
weft_client *serve_client(const served *served);

/* What a stream brought, checked as it comes. */
struct seen {
    int32_t tokens, chunks, completes;
    int32_t n_top;     /* expected in each chunk; -1: no logprobs */
    int32_t stop_at;   /* cancel when so many tokens have come; 0: never */
    size_t text_bytes; /* of the chunks */
    void (*on_first)(void);
};

/* For weft_client_generate; arg: a struct seen. Tokens are those of the fake,
 * in order, and the complete is their sum. */
bool on_response(void *arg, const weft_generate_response *response);

/* A streaming request for a text prompt. */
weft_generate_request request_of(const char *text, uint32_t max_tokens);

/* For weft_fake_wait. */
bool is_idle(const weft_fake_counts *counts, int value);      /* so many live */
bool is_cancelled(const weft_fake_counts *counts, int value); /* at least */
bool is_started(const weft_fake_counts *counts, int value);
bool has_made(const weft_fake_counts *counts, int value); /* tokens */

#endif
