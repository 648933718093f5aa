/* relay.h - a wire that can be cut: bytes of any number of connections pass
 * from a port of its own to another, until somebody cuts them all. */
#ifndef WEFT_TESTS_SUPPORT_RELAY_H
#define WEFT_TESTS_SUPPORT_RELAY_H

#include <stdint.h>

typedef struct relay relay;

/* target: HOST:PORT on loopback. A thread of its own. */
relay *relay_open(const char *target);
void relay_close(relay *r);
const char *relay_address(const relay *r);
/* Ends the connections that there are; new ones pass. Any thread. */
void relay_cut(relay *r);
/* Ends them when so many more bytes have passed, either way. Any thread. */
void relay_cut_after(relay *r, int64_t n_bytes);

#endif
