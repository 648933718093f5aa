/* answer.h - how `weft generate` shows a stream: text, ids or JSON lines.
 *
 * Text: each chunk's text at once, at the end a newline if the text has none.
 * Ids: the chunks' token ids, a blank between, at the end a newline.
 * JSON: one object a line, {"chunk": {...}} or {"complete": {...}}, with the
 * field names of weft.proto; fields that are empty or not set are left out.
 *
 * Threads: one. Everything is flushed before a call returns, so that a reader
 * at the other end of a pipe sees each chunk when it comes.
 */
#ifndef WEFT_NODE_APP_ANSWER_H
#define WEFT_NODE_APP_ANSWER_H

#include <stdio.h>

#include "node/base/err.h"
#include "proto/codec.h"

typedef enum weft_answer_form {
    WEFT_ANSWER_TEXT,
    WEFT_ANSWER_IDS,
    WEFT_ANSWER_JSON,
} weft_answer_form;

typedef struct weft_answer {
    FILE *out;
    weft_answer_form form;
    bool any;         /* an id was written */
    char last_byte;   /* of the text */
    bool is_complete; /* the closing message was shown */
} weft_answer;

/* Show one message. UNAVAILABLE: `out` cannot be written (its reader left, a
 * full disk). RESOURCE_EXHAUSTED: no memory for the JSON text. */
WEFT_MUST_CHECK weft_status weft_answer_show(
    weft_answer *answer, const weft_generate_response *message, weft_err *err);

#endif
