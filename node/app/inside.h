/* inside.h - stages and expert shards inside one process: the same parts as in
 * a cluster, as threads over local links. For tests of the split, and to see
 * what it costs without a network.
 *
 * Threads: create and destroy by one thread, the engine between.
 */
#ifndef WEFT_NODE_APP_INSIDE_H
#define WEFT_NODE_APP_INSIDE_H

#include "node/app/model_open.h"

typedef struct weft_inside weft_inside;

/* With one stage and one expert shard everything is in the engine itself. */
bool weft_inside_is_wanted(const weft_options *options);

/* Bytes of a device that the parts take beside the weights and the engine. */
int64_t weft_inside_device_bytes(const weft_options *options,
                                 const weft_model_config *config,
                                 const weft_engine_options *engine);

/* Loads the weights of all parts and starts them. engine_io: options of an
 * engine for the whole model, with kv_bytes resolved; made into those of stage
 * 0, with its share of KV bytes and threads. opened stays as it is and open
 * until destroy. Errors are those of loading and of the parts. */
WEFT_MUST_CHECK weft_status weft_inside_create(const weft_options *options,
                                               const weft_opened *opened,
                                               weft_engine_options *engine_io,
                                               weft_inside **inside_out,
                                               weft_err *err);
/* The engine that all this is for, which hears when a part's device fails; NULL
 * before it is destroyed. inside NULL is fine. */
void weft_inside_set_engine(weft_inside *inside, weft_engine *engine);
/* After the engine. NULL is fine. */
void weft_inside_destroy(weft_inside *inside);

/* What the engine is created with: of stage 0. */
const weft_model_config *weft_inside_config(const weft_inside *inside);
const weft_weights *weft_inside_weights(const weft_inside *inside);

#endif
