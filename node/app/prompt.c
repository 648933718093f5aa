#include "node/app/prompt.h"

#include <errno.h>
#include <string.h>

#include "node/base/mem.h"

enum { DIGITS_MAX = 20 }; /* leading zeros may make a small number this long */

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Bytes up to the next white space. */
static size_t word_bytes(const char *text, size_t n)
{
    size_t bytes = 0;
    while (bytes < n && !is_space(text[bytes])) bytes++;
    return bytes;
}

static weft_status parse_one(const char *word, size_t n, size_t number,
                             uint32_t *id_out, weft_err *err)
{
    char digits[DIGITS_MAX + 1] = {0};
    const size_t kept = n < DIGITS_MAX ? n : DIGITS_MAX;
    memcpy(digits, word, kept);
    int64_t id = 0;
    if (n > DIGITS_MAX || strlen(digits) != n || digits[0] == '-' ||
        !weft_parse_i64(digits, 0, UINT32_MAX, &id))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "token id %zu is \"%.*s\"; it takes a whole number "
                         "from 0 to %u",
                         number, (int)kept, digits, UINT32_MAX);
    *id_out = (uint32_t)id;
    return WEFT_OK;
}

weft_status weft_prompt_ids_parse(const char *text, size_t n,
                                  weft_prompt_ids *ids_out, weft_err *err)
{
    *ids_out = (weft_prompt_ids){0};
    /* Each id takes a byte and, but for the last, a blank. */
    weft_prompt_ids ids = {.ids = weft_mem_new(n / 2 + 1, sizeof *ids.ids)};
    if (ids.ids == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %zu token ids", n / 2 + 1);
    for (size_t at = 0; at < n;) {
        if (is_space(text[at])) {
            at++;
            continue;
        }
        const size_t bytes = word_bytes(text + at, n - at);
        const weft_status st =
            parse_one(text + at, bytes, ids.n + 1, &ids.ids[ids.n], err);
        if (st != WEFT_OK) {
            weft_prompt_ids_deinit(&ids);
            return st;
        }
        ids.n++;
        at += bytes;
    }
    *ids_out = ids;
    return WEFT_OK;
}

void weft_prompt_ids_deinit(weft_prompt_ids *ids)
{
    weft_mem_free(ids->ids);
    *ids = (weft_prompt_ids){0};
}

static weft_status read_all(FILE *in, weft_buf *prompt, weft_err *err)
{
    char piece[4096];
    for (;;) {
        const size_t n = fread(piece, 1, sizeof piece, in);
        if (n == 0) break;
        if (prompt->n + n > WEFT_PROMPT_BYTES_MAX)
            return WEFT_FAIL(err, WEFT_DATA_LOSS,
                             "the prompt on stdin is longer than %d bytes",
                             WEFT_PROMPT_BYTES_MAX);
        WEFT_TRY(weft_buf_add(prompt, piece, n, err));
    }
    if (ferror(in))
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "the prompt on stdin: %s",
                         strerror(errno));
    return WEFT_OK;
}

weft_status weft_prompt_read(const weft_options *options, FILE *in,
                             weft_buf *prompt, weft_err *err)
{
    if (options->n_words == 0) return read_all(in, prompt, err);
    for (int32_t i = 0; i < options->n_words; i++) {
        if (i > 0) WEFT_TRY(weft_buf_add(prompt, " ", 1, err));
        WEFT_TRY(weft_buf_add(prompt, options->words[i],
                              strlen(options->words[i]), err));
    }
    return WEFT_OK;
}
