/* client_open.h - a client as the flags --addr, --tls-ca and --api-key-file
 * say.
 */
#ifndef WEFT_NODE_APP_CLIENT_OPEN_H
#define WEFT_NODE_APP_CLIENT_OPEN_H

#include "node/app/options.h"
#include "node/rpc/client.h"

/* Errors: as weft_client_create; of the key's file, as weft_keys_read_first. */
WEFT_MUST_CHECK weft_status weft_client_open(const weft_options *options,
                                             uint64_t timeout_ns,
                                             weft_client **client_out,
                                             weft_err *err);

#endif
