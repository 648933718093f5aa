/* tokenizer.c - a token for each byte, in the place of router/text/tokenizer.c,
 * which needs libraries: for tests of what uses a tokenizer and not of what it
 * makes of a text. It reads no file. */
#include "router/text/tokenizer.h"

#include "node/base/mem.h"

enum { VOCAB = 256 };

struct weft_tokenizer {
    char bytes[VOCAB];
};

weft_status weft_tokenizer_read(const char *path, int32_t vocab_limit,
                                weft_tokenizer **tokenizer_out, weft_err *err)
{
    weft_tokenizer *const made = weft_mem_new(1, sizeof(*made));
    if (made == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "%s: no memory", path);
    for (int i = 0; i < VOCAB; i++) made->bytes[i] = (char)i;
    (void)vocab_limit;
    *tokenizer_out = made;
    return WEFT_OK;
}

void weft_tokenizer_destroy(weft_tokenizer *tokenizer)
{
    weft_mem_free(tokenizer);
}

weft_status weft_tokenizer_encode(const weft_tokenizer *tokenizer,
                                  const char *text, size_t n,
                                  weft_encode_options options, weft_ids *ids,
                                  weft_err *err)
{
    (void)tokenizer, (void)options;
    for (size_t i = 0; i < n; i++) {
        const int32_t id = (unsigned char)text[i];
        const weft_status st = weft_ids_add(ids, &id, 1, err);
        if (st != WEFT_OK) return st;
    }
    return WEFT_OK;
}

const char *weft_tokenizer_token_bytes(const weft_tokenizer *tokenizer,
                                       int32_t id, size_t *n_out)
{
    *n_out = id >= 0 && id < VOCAB;
    return &tokenizer->bytes[*n_out ? id : 0];
}

int32_t weft_tokenizer_vocab_limit(const weft_tokenizer *tokenizer)
{
    (void)tokenizer;
    return VOCAB;
}

bool weft_tokenizer_is_special(const weft_tokenizer *tokenizer, int32_t id)
{
    (void)tokenizer, (void)id;
    return false;
}

size_t weft_tokenizer_tokens_at_least(const weft_tokenizer *tokenizer, size_t n)
{
    (void)tokenizer;
    return n;
}

size_t weft_tokenizer_longest_text_bytes(const weft_tokenizer *tokenizer)
{
    (void)tokenizer;
    return 3; /* U+FFFD in the place of a byte that is no character */
}
