/* model_open.h - what serve, eval and check do first with a model folder:
 * config, tensors and tokenizer validated, nothing large allocated.
 *
 * Threads: one.
 */
#ifndef WEFT_NODE_APP_MODEL_OPEN_H
#define WEFT_NODE_APP_MODEL_OPEN_H

#include "node/app/options.h"
#include "router/text/tokenizer.h"
#include "shard/load/weights.h"
#include "shard/step/engine.h"

typedef struct weft_opened {
    weft_model_config config;
    weft_checkpoint *checkpoint;
    weft_tokenizer *tokenizer; /* NULL: the folder has no tokenizer.json */
} weft_opened;

/* NOT_FOUND (no such folder, file or tensor), INVALID_ARGUMENT, DATA_LOSS: the
 * text names folder, file, key or tensor. End with weft_model_close. */
WEFT_MUST_CHECK weft_status weft_model_open(const char *dir,
                                            weft_profile profile,
                                            weft_remark_fn remark, void *arg,
                                            weft_opened *opened_out,
                                            weft_err *err);
/* Config and tokenizer alone: no tensor is looked at, and there need not be
 * any. opened_out has no checkpoint. */
WEFT_MUST_CHECK weft_status weft_model_open_texts(const char *dir,
                                                  weft_remark_fn remark,
                                                  void *arg,
                                                  weft_opened *opened_out,
                                                  weft_err *err);
void weft_model_close(weft_opened *opened); /* {0} is fine */

/* A process that holds all of it. */
weft_part_of_model weft_model_whole(const weft_model_config *config);

/* Engine options out of flags: defaults resolved (threads, of each rank, and
 * max_context), the CPU path chosen. INVALID_ARGUMENT or UNAVAILABLE:
 * --cpu-path. */
WEFT_MUST_CHECK weft_status weft_model_engine_options(
    const weft_options *options, const weft_model_config *config,
    weft_engine_options *engine_out, weft_err *err);

#endif
