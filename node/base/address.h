/* address.h - HOST:PORT, as flags and messages give it. Threads: any. */
#ifndef WEFT_NODE_BASE_ADDRESS_H
#define WEFT_NODE_BASE_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "node/base/err.h"

enum { WEFT_HOST_BYTES = 256 };

typedef struct weft_address {
    char host[WEFT_HOST_BYTES]; /* without brackets */
    uint16_t port;
} weft_address;

/* "HOST:PORT" or "[HOST]:PORT". INVALID_ARGUMENT: no host, no port, a port
 * that is no number up to 65535; the text names `text`. */
WEFT_MUST_CHECK weft_status weft_address_parse(const char *text,
                                               weft_address *address_out,
                                               weft_err *err);

/* The form that parse reads; brackets where the host has colons. */
enum { WEFT_ADDRESS_TEXT_BYTES = WEFT_HOST_BYTES + 16 };
void weft_address_print(const weft_address *address,
                        char out[WEFT_ADDRESS_TEXT_BYTES]);

/* A listening TCP socket, close-on-exec; the caller's to close. *port_out is
 * the port bound, which for port 0 is a free one. UNAVAILABLE: it cannot be
 * had; the text names the address and says why, such as "Address already in
 * use". */
WEFT_MUST_CHECK weft_status weft_address_listen(const weft_address *address,
                                                int *fd_out, uint16_t *port_out,
                                                weft_err *err);

#endif
