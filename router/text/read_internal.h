/* read_internal.h - the parts of reading a tokenizer.json, by section of the
 * file. Each fills its part of the tokenizer; on failure the tokenizer is fit
 * only for weft_tokenizer_destroy. Errors name the place in the file, and
 * weft_tokenizer_read_bytes puts the file's name before them.
 *
 * Threads: one.
 */
#ifndef WEFT_ROUTER_TEXT_READ_INTERNAL_H
#define WEFT_ROUTER_TEXT_READ_INTERNAL_H

#include <jansson.h>

#include "router/text/tokenizer_internal.h"

/* "model" and "added_tokens": tokens, merges, the sets of added tokens (as
 * written). */
WEFT_MUST_CHECK weft_status weft_read_tokens(weft_tokenizer *t,
                                             const json_t *root, weft_err *err);
WEFT_MUST_CHECK weft_status weft_read_merges(weft_tokenizer *t,
                                             const json_t *model,
                                             weft_err *err);

/* "normalizer", "pre_tokenizer", "post_processor", "decoder". */
WEFT_MUST_CHECK weft_status weft_read_normalizer(weft_tokenizer *t,
                                                 const json_t *root,
                                                 weft_err *err);
WEFT_MUST_CHECK weft_status weft_read_pretokenizer(weft_tokenizer *t,
                                                   const json_t *root,
                                                   weft_err *err);
WEFT_MUST_CHECK weft_status weft_read_post_processor(weft_tokenizer *t,
                                                     const json_t *root,
                                                     weft_err *err);
WEFT_MUST_CHECK weft_status weft_read_decoder(const json_t *root,
                                              weft_err *err);

#endif
