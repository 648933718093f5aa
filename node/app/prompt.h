/* prompt.h - token ids written as text, and the prompt of `weft generate`.
 *
 * Threads: any; a weft_prompt_ids has one owner.
 */
#ifndef WEFT_NODE_APP_PROMPT_H
#define WEFT_NODE_APP_PROMPT_H

#include <stdio.h>

#include "node/app/options.h"
#include "node/base/str.h"

enum { WEFT_PROMPT_BYTES_MAX = 16 << 20 }; /* the server takes no more */

typedef struct weft_prompt_ids {
    uint32_t *ids; /* [n]; NULL if n is 0 */
    size_t n;
} weft_prompt_ids;

/* Decimal numbers up to 2^32 - 1 with white space between; may be none.
 * INVALID_ARGUMENT: something else, which the text shows with its place (the
 * first is number 1). RESOURCE_EXHAUSTED: no memory. End with
 * weft_prompt_ids_deinit. */
WEFT_MUST_CHECK weft_status weft_prompt_ids_parse(const char *text, size_t n,
                                                  weft_prompt_ids *ids_out,
                                                  weft_err *err);
void weft_prompt_ids_deinit(weft_prompt_ids *ids);

/* The words of the command line with one blank between, or, if there are none,
 * all of `in` as it is. Appends to *prompt. DATA_LOSS: more than
 * WEFT_PROMPT_BYTES_MAX. UNAVAILABLE: `in` cannot be read. */
WEFT_MUST_CHECK weft_status weft_prompt_read(const weft_options *options,
                                             FILE *in, weft_buf *prompt,
                                             weft_err *err);

#endif
