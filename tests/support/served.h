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

#endif
