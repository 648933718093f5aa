/* detok.h - token ids to text, one at a time, for streams.
 *
 * Guarantee: the pieces of a stream, concatenated, are what
 * weft_tokenizer_decode makes of all its ids, for every sequence of ids and
 * however it is cut. A piece is well-formed UTF-8 by itself: at most 3 bytes,
 * of a character that is not complete, are held back, and what can not
 * become a character any more is told as U+FFFD at once.
 *
 * Plain data without memory of its own; it borrows the tokenizer. Threads: one
 * owner.
 */
#ifndef WEFT_ROUTER_TEXT_DETOK_H
#define WEFT_ROUTER_TEXT_DETOK_H

#include "router/text/tokenizer.h"
#include "router/text/utf8_lossy.h"

typedef struct weft_detok {
    const weft_tokenizer *tokenizer;
    bool skip_special;
    weft_utf8_lossy decoder;
} weft_detok;

void weft_detok_init(weft_detok *detok, const weft_tokenizer *tokenizer,
                     bool skip_special);

/* Append the text that is final with this id.
 * INVALID_ARGUMENT: the id is not in the vocabulary; nothing has changed.
 * RESOURCE_EXHAUSTED: no memory; the stream cannot go on. */
WEFT_MUST_CHECK weft_status weft_detok_push(weft_detok *detok, int32_t id,
                                            weft_buf *out, weft_err *err);

/* The stream ends: append what was held back, as U+FFFD. */
WEFT_MUST_CHECK weft_status weft_detok_finish(weft_detok *detok, weft_buf *out,
                                              weft_err *err);

#endif
