/* tokenizer.h - text to token ids and back, as tokenizer.json says.
 *
 * Byte-level BPE as Hugging Face tokenizers does it, to the id:
 *
 *   text -> added tokens -> NFC -> added tokens -> splits -> words -> BPE
 *           (as written)           (normalized)    (patterns)
 *
 * What a tokenizer.json may hold: model BPE (no dropout, unknown token, affixes
 * or byte fallback); normalizer null, NFC, or a Sequence of these;
 * pre_tokenizer Split, Digits, and ByteLevel once, at the end, or a Sequence
 * of these; post_processor null, ByteLevel, TemplateProcessing (its "single"),
 * or a Sequence of these; decoder ByteLevel. Anything else is refused by name,
 * with the file's. "truncation" and "padding" are not applied: they are
 * settings of a training script's calls.
 *
 * Patterns run on PCRE2's Unicode 14 tables, normalization on utf8proc's
 * Unicode 15: a character of a later version counts as unassigned.
 *
 * Threads: a tokenizer is read-only once read; any number of threads may use
 * it. Every call has its own scratch memory.
 *
 * Cost of encoding n bytes: O(n log n); memory up to 60 bytes a byte for a text
 * that is a single word, usually under 10 (bpe.h, pretokenize.h).
 */
#ifndef WEFT_ROUTER_TEXT_TOKENIZER_H
#define WEFT_ROUTER_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "node/base/err.h"
#include "node/base/str.h"
#include "router/text/bpe.h"

typedef struct weft_tokenizer weft_tokenizer;

/* Read a tokenizer.json. Every id in it must be below vocab_limit, the number
 * of rows of the model's embedding. On success the tokenizer is the caller's,
 * to end with weft_tokenizer_destroy.
 * NOT_FOUND: no such file. INVALID_ARGUMENT: refused; the error names the file
 * and what it refuses. RESOURCE_EXHAUSTED: no memory. Else as
 * weft_file_read_all. */
WEFT_MUST_CHECK weft_status weft_tokenizer_read(const char *path,
                                                int32_t vocab_limit,
                                                weft_tokenizer **tokenizer_out,
                                                weft_err *err);

/* The same from memory; `name` stands for the file in errors. */
WEFT_MUST_CHECK weft_status weft_tokenizer_read_bytes(
    const char *name, const char *json, size_t n, int32_t vocab_limit,
    weft_tokenizer **tokenizer_out, weft_err *err);

/* NULL is fine. */
void weft_tokenizer_destroy(weft_tokenizer *tokenizer);

typedef struct weft_encode_options {
    /* Put what the file's post_processor adds around the text. */
    bool add_special;
    /* Take the literal text of a special token for that token. False is for
     * text from users: its control tokens stay ordinary text. Added tokens that
     * are not special are found either way. */
    bool parse_special;
} weft_encode_options;

/* Append the ids of [text, text + n) to *ids. On failure *ids holds what it
 * held before.
 * INVALID_ARGUMENT: the text is not UTF-8, is longer than 256 MiB, or is more
 * than a pattern can be matched against. RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status weft_tokenizer_encode(
    const weft_tokenizer *tokenizer, const char *text, size_t n,
    weft_encode_options options, weft_ids *ids, weft_err *err);

/* Append the text of the ids to *out, as a whole: bytes that are not UTF-8
 * become U+FFFD (utf8_lossy.h). Ids without a token (rows that only pad the
 * embedding) have no text; with skip_special special tokens have none either.
 * On failure *out holds what it held before.
 * INVALID_ARGUMENT: an id is negative or not below the vocabulary limit; the
 * error names it, its place and the limit. RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status weft_tokenizer_decode(
    const weft_tokenizer *tokenizer, const int32_t *ids, size_t n,
    bool skip_special, weft_buf *out, weft_err *err);

/* The bytes of one token, not NUL-terminated, borrowed from the tokenizer.
 * An id out of range or without a token has none: *n_out is 0. */
const char *weft_tokenizer_token_bytes(const weft_tokenizer *tokenizer,
                                       int32_t id, size_t *n_out);

int32_t weft_tokenizer_vocab_limit(const weft_tokenizer *tokenizer);

/* Whether `id` is a token, and whether it is a special one. */
bool weft_tokenizer_has(const weft_tokenizer *tokenizer, int32_t id);
bool weft_tokenizer_is_special(const weft_tokenizer *tokenizer, int32_t id);

/* The id of the added token with this content (text as written); -1: none. */
int32_t weft_tokenizer_added_id(const weft_tokenizer *tokenizer,
                                const char *content);

/* The most bytes by which one token can make a text longer: bytes that are no
 * character become U+FFFD, which is longer than they are. */
size_t weft_tokenizer_longest_text_bytes(const weft_tokenizer *tokenizer);

/* A number of tokens that any text of n bytes has at least, known without a
 * look at the text, the added ones at its ends included: a prompt for which
 * this exceeds the context need not be tokenized. 0 where the tokenizer can
 * drop text. */
size_t weft_tokenizer_tokens_at_least(const weft_tokenizer *tokenizer,
                                      size_t n);

/* The id of "eos_token" (a string, or an object with "content") of a
 * tokenizer_config.json; -1 if it has none or null.
 * NOT_FOUND: no such file. INVALID_ARGUMENT: malformed, or the token is not
 * one of the tokenizer's added tokens; the error names the file. */
WEFT_MUST_CHECK weft_status
weft_tokenizer_eos_read(const weft_tokenizer *tokenizer, const char *path,
                        int32_t *id_out, weft_err *err);

#endif
