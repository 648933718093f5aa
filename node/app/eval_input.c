#include "node/app/eval_input.h"

#include <ctype.h>
#include <string.h>

#include "node/base/file.h"
#include "node/base/mem.h"

enum { WORD_BYTES = 32 };

/* The largest file that is read: at a few bytes a token more than any context
 * holds. */
static const size_t FILE_BYTES_MAX = (size_t)1 << 30;

/* The next word of text from *at on; false at the end. A word that is too long
 * to be a token id is cut, and will not parse; nor does one with a NUL. */
static bool next_word(const weft_buf *text, size_t *at, char word[WORD_BYTES])
{
    while (*at < text->n && isspace((unsigned char)text->data[*at])) (*at)++;
    size_t n = 0;
    for (; *at < text->n && !isspace((unsigned char)text->data[*at]); (*at)++) {
        if (n == WORD_BYTES - 1) continue;
        word[n] = text->data[*at];
        if (word[n] == '\0') word[n] = '?';
        n++;
    }
    word[n] = '\0';
    return n > 0;
}

static weft_status parse_ids(const char *path, const weft_buf *text,
                             int32_t vocab, weft_eval_input *in, weft_err *err)
{
    char word[WORD_BYTES];
    size_t n = 0;
    for (size_t at = 0; next_word(text, &at, word);) n++;
    in->ids = weft_mem_new(n + 1, sizeof *in->ids);
    if (in->ids == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "ids %s: no memory for %zu ids", path, n);
    for (size_t at = 0; next_word(text, &at, word);) {
        int64_t id = 0;
        if (!weft_parse_i64(word, 0, (int64_t)vocab - 1, &id))
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "ids %s: '%s' (number %d) is no token id, allowed "
                             "are 0 to %d",
                             path, word, in->n_ids + 1, vocab - 1);
        in->ids[in->n_ids++] = (int32_t)id;
    }
    return WEFT_OK;
}

static weft_status encode_text(const char *path, const weft_buf *text,
                               const weft_opened *opened, weft_eval_input *in,
                               weft_err *err)
{
    if (opened->tokenizer == NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "text %s: the model folder has no tokenizer.json",
                         path);
    weft_ids ids = {0};
    const weft_encode_options how = {.add_special = true};
    weft_status st = weft_tokenizer_encode(opened->tokenizer, text->data,
                                           text->n, how, &ids, err);
    if (st != WEFT_OK) {
        weft_mem_free(ids.data);
        return WEFT_WRAP(err, st, "text %s", path);
    }
    in->n_ids = (int32_t)ids.n;
    in->ids = weft_mem_new(ids.n + 1, sizeof *in->ids);
    if (in->ids == NULL)
        st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "text %s: out of memory",
                       path);
    else if (ids.n > 0)
        memcpy(in->ids, ids.data, ids.n * sizeof *in->ids);
    /* The first token is not scored, nor are its bytes, if it has any of the
     * text (a token that the post-processor adds has none). */
    size_t first = 0;
    if (ids.n > 0 && !weft_tokenizer_is_special(opened->tokenizer, ids.data[0]))
        (void)weft_tokenizer_token_bytes(opened->tokenizer, ids.data[0],
                                         &first);
    in->scored_bytes = (int64_t)(text->n - (first < text->n ? first : text->n));
    weft_mem_free(ids.data);
    return st;
}

weft_status weft_eval_input_read(const weft_options *options,
                                 const weft_opened *opened,
                                 weft_eval_input *input_out,
                                 weft_exit *code_out, weft_err *err)
{
    const bool is_text = options->text != NULL;
    const char *const path = is_text ? options->text : options->ids_file;
    weft_eval_input in = {0};
    weft_buf text = {0};
    weft_status st = weft_file_read_all(path, FILE_BYTES_MAX, &text, err);
    if (st != WEFT_OK) {
        *code_out = WEFT_EXIT_RESOURCE;
        return WEFT_WRAP(err, st, is_text ? "text" : "ids");
    }
    st = is_text ? encode_text(path, &text, opened, &in, err)
                 : parse_ids(path, &text, opened->config.vocab_size, &in, err);
    weft_buf_deinit(&text);
    if (st == WEFT_OK && in.n_ids == 0)
        st = WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "%s: it holds no tokens",
                       path);
    if (st == WEFT_OK && in.n_ids > opened->config.max_context)
        st = WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                       "%s: %d tokens, the model's context is %d", path,
                       in.n_ids, opened->config.max_context);
    if (st != WEFT_OK) {
        *code_out = st == WEFT_RESOURCE_EXHAUSTED ? WEFT_EXIT_RESOURCE
                                                  : WEFT_EXIT_USAGE;
        weft_mem_free(in.ids);
        return st;
    }
    *input_out = in;
    return WEFT_OK;
}

int32_t weft_eval_prefilled(const weft_options *options, int32_t n_ids)
{
    if (options->decode_from < 0 || options->decode_from > n_ids) return n_ids;
    return options->decode_from < 1 ? 1 : options->decode_from;
}
