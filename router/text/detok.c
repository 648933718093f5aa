#include "router/text/detok.h"

void weft_detok_init(weft_detok *detok, const weft_tokenizer *tokenizer,
                     bool skip_special)
{
    *detok = (weft_detok){.tokenizer = tokenizer, .skip_special = skip_special};
}

weft_status weft_detok_push(weft_detok *detok, int32_t id, weft_buf *out,
                            weft_err *err)
{
    const int32_t limit = weft_tokenizer_vocab_limit(detok->tokenizer);
    if (id < 0 || id >= limit)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "token id %d, limit %d",
                         id, limit);
    if (detok->skip_special && weft_tokenizer_is_special(detok->tokenizer, id))
        return WEFT_OK;
    size_t n = 0;
    const char *const bytes =
        weft_tokenizer_token_bytes(detok->tokenizer, id, &n);
    return weft_utf8_lossy_push(&detok->decoder, bytes, n, out, err);
}

weft_status weft_detok_finish(weft_detok *detok, weft_buf *out, weft_err *err)
{
    return weft_utf8_lossy_finish(&detok->decoder, out, err);
}
