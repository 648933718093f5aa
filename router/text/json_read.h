/* json_read.h - typed reads of a JSON object, with errors that name the key.
 *
 * `where` is the path of the object for errors, such as "model" or
 * "pre_tokenizer[2]". All failures are INVALID_ARGUMENT. Threads: any.
 */
#ifndef WEFT_ROUTER_TEXT_JSON_READ_H
#define WEFT_ROUTER_TEXT_JSON_READ_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "node/base/err.h"

enum { WEFT_JSON_WHERE_BYTES = 96, WEFT_JSON_QUOTED_BYTES = 64 };

/* Parse a document whose root is an object; keys given twice are refused. The
 * reference is the caller's. */
WEFT_MUST_CHECK weft_status weft_json_parse(const char *json, size_t n,
                                            json_t **root_out, weft_err *err);

/* "an object", "a string", ..., "missing" for NULL. */
const char *weft_json_kind(const json_t *value);

/* Text for an error line: control characters as '?', cut with "..." when
 * long. */
typedef struct weft_quoted {
    char text[WEFT_JSON_QUOTED_BYTES + 4];
} weft_quoted;
weft_quoted weft_json_quote(const char *text);

/* Refuse any key that is not in the NULL-terminated list. */
WEFT_MUST_CHECK weft_status weft_json_only(json_t *object, const char *where,
                                           const char *const *keys,
                                           weft_err *err);

/* Absent and null give `absent`. */
WEFT_MUST_CHECK weft_status weft_json_bool(const json_t *object,
                                           const char *where, const char *key,
                                           bool absent, bool *value_out,
                                           weft_err *err);

/* Required; borrowed from the object. */
WEFT_MUST_CHECK weft_status weft_json_string(const json_t *object,
                                             const char *where, const char *key,
                                             const char **value_out,
                                             weft_err *err);
WEFT_MUST_CHECK weft_status weft_json_array(const json_t *object,
                                            const char *where, const char *key,
                                            json_t **value_out, weft_err *err);

/* The "type" of a step of the pipeline, which must be an object. */
WEFT_MUST_CHECK weft_status weft_json_type(const json_t *step,
                                           const char *where,
                                           const char **type_out,
                                           weft_err *err);

#endif
