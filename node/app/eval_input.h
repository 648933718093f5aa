/* eval_input.h - the tokens that `weft eval` scores, from --ids or --text. */
#ifndef WEFT_NODE_APP_EVAL_INPUT_H
#define WEFT_NODE_APP_EVAL_INPUT_H

#include "node/app/exit.h"
#include "node/app/model_open.h"

typedef struct weft_eval_input {
    /* [n_ids + 1]: the last is spare. End with weft_mem_free. */
    int32_t *ids;
    int32_t n_ids;
    int64_t scored_bytes; /* of the text behind tokens 1...; 0 with --ids */
} weft_eval_input;

/* code_out tells apart a file that cannot be read (4) from one that is
 * malformed (2); set on failure only. */
WEFT_MUST_CHECK weft_status weft_eval_input_read(const weft_options *options,
                                                 const weft_opened *opened,
                                                 weft_eval_input *input_out,
                                                 weft_exit *code_out,
                                                 weft_err *err);

/* How many of n_ids tokens are prefilled: what --decode-from says, but at least
 * one, since a sequence begins with a token, and at most all. */
int32_t weft_eval_prefilled(const weft_options *options, int32_t n_ids);

#endif
