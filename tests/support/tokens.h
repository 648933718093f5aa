/* tokens.h - small tokenizer.json documents for tests, made in memory. */
#ifndef WEFT_TESTS_SUPPORT_TOKENS_H
#define WEFT_TESTS_SUPPORT_TOKENS_H

#include <jansson.h>
#include <stdint.h>

#include "router/text/tokenizer.h"

enum {
    TOKENS_SPECIAL = 264, /* "<|end|>", special */
    TOKENS_ADDED = 265,   /* "<tool>", not special */
    TOKENS_IDS = 266,
    TOKENS_LIMIT = 270, /* ids up to here are padding */
};

/* A byte-level BPE: ids 0 to 255 are the bytes, then "he", "ll", "hell",
 * "hello", " w", "aa", "aaaa", the word "wor" without a merge, "<|end|>" and
 * "<tool>". GPT-2's pattern. The reference is the caller's. */
json_t *tokens_document(void);

/* Replace what is at `path` ("model.vocab.x", "added_tokens.0.id") by the JSON
 * text `value`; NULL removes it. */
void tokens_set(json_t *document, const char *path, const char *value);

/* Read a document, which must be good. */
weft_tokenizer *tokens_read(const json_t *document, int32_t vocab_limit);

/* Read the file of that name; the reference is the caller's. */
json_t *tokens_load(const char *path);

#endif
