/* keys.h - who may call: API keys in a file, one a line.
 *
 * Empty lines and lines that begin with # are nothing. A key is 16 to 256
 * visible ASCII characters. The file is read again when it has changed, at most
 * once a second; if it is wrong by then, the old keys stay and a line is
 * logged. Keys are compared in a time that does not depend on where they
 * differ, and are never logged.
 *
 * Threads: create and destroy by one; has by any.
 */
#ifndef WEFT_NODE_RPC_KEYS_H
#define WEFT_NODE_RPC_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "node/base/err.h"

enum {
    WEFT_KEY_BYTES_MIN = 16,
    WEFT_KEY_BYTES_MAX = 256,
    WEFT_KEYS_MAX = 4096,
};

typedef struct weft_keys weft_keys;

/* INVALID_ARGUMENT: no key, or a line that is none: file and line are named,
 * never its text. NOT_FOUND, RESOURCE_EXHAUSTED. */
WEFT_MUST_CHECK weft_status weft_keys_create(const char *path,
                                             weft_keys **keys_out,
                                             weft_err *err);
void weft_keys_destroy(weft_keys *keys); /* NULL is fine */

/* Whether bytes [n] are one of the keys. */
bool weft_keys_has(weft_keys *keys, const void *bytes, size_t n);

/* The first key of such a file, for a client: key_out gets it with its NUL. */
WEFT_MUST_CHECK weft_status weft_keys_read_first(
    const char *path, char key_out[WEFT_KEY_BYTES_MAX + 1], weft_err *err);

#endif
