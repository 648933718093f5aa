/* tokenizer_internal.h - what reading a tokenizer fills and using it reads.
 * Threads: as tokenizer.h. */
#ifndef WEFT_ROUTER_TEXT_TOKENIZER_INTERNAL_H
#define WEFT_ROUTER_TEXT_TOKENIZER_INTERNAL_H

#include "router/text/added.h"
#include "router/text/bpe.h"
#include "router/text/pretokenize.h"
#include "router/text/tokenizer.h"

enum {
    WEFT_TOKEN_PRESENT = 1,
    WEFT_TOKEN_ADDED = 2,
    WEFT_TOKEN_SPECIAL = 4,
    WEFT_TOKEN_MODEL = 8,  /* in the model's vocabulary */
    WEFT_TOKEN_BYTES = 16, /* written in the byte alphabet alone */
};

struct weft_tokenizer {
    int32_t vocab_limit;
    int32_t n_ids;   /* largest id and one; at most vocab_limit */
    uint8_t *kinds;  /* [n_ids], WEFT_TOKEN_ bits */
    uint32_t *start; /* [n_ids + 1] into bytes */
    char *bytes;
    size_t longest_token_bytes;
    size_t longest_text_bytes; /* of one token, U+FFFD included */

    weft_bpe bpe;
    /* With ignore_merges: ids of the model's tokens by their bytes, open
     * addressing, -1 for free. Else NULL. */
    int32_t *words;
    size_t n_word_slots; /* a power of two */

    weft_added_set raw;        /* looked for in the text as written */
    weft_added_set normalized; /* looked for after normalization */
    weft_added_token *added;   /* [n_added], all, content as written */
    size_t n_added;

    bool nfc;
    bool byte_level; /* while reading: the pre_tokenizer has it */
    weft_pretokenizer pretokenizer;
    weft_ids front, after; /* what the post_processor adds */
};

/* The id of a token of the model by its bytes; -1: none. With ignore_merges
 * only. */
int32_t weft_tokenizer_word_id(const weft_tokenizer *tokenizer,
                               const char *bytes, size_t n);

#endif
