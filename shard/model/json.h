/* json.h - a file's JSON object, from untrusted bytes.
 *
 * A key that comes twice is refused, since readers do not agree on which one
 * counts; depth is limited by the parser. Threads: any.
 */
#ifndef WEFT_SHARD_MODEL_JSON_H
#define WEFT_SHARD_MODEL_JSON_H

#include <jansson.h>
#include <stddef.h>

#include "node/base/err.h"

/* Parse bytes [0, n), which must be one object. `what` begins the errors and
 * names the file. *out is the caller's, to end with json_decref.
 * DATA_LOSS: not JSON, or not an object. RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status weft_json_read(const char *what, const char *bytes,
                                           size_t n, json_t **out,
                                           weft_err *err);

#endif
