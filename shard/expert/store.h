/* store.h - the experts that an expert shard holds, each on its own.
 *
 * An expert is loaded with ranged reads of its three matrices alone, hashed
 * while it is read, and kept in one block; so a shard's memory follows its
 * placement, and letting go of an expert gives its bytes back at once. It holds
 * what the current and the next epoch need, within one budget.
 *
 * Experts lie where the checkpoint's weights go (weft_checkpoint_set_memory).
 * On a device the whole budget is taken by create and cut into equal places,
 * each large enough for any expert: nothing is allocated or freed there while
 * steps run, either of which could wait for all work of the device.
 *
 * Threads: load and drop by one thread (the loader, which is bound to the
 * device); get by the serving thread
 * at any time; holds and get_stats by any. An expert that is got stays whole
 * until weft_expert_store_quiesce has been passed by the serving thread: drop
 * waits for that. Who serves from a device passes it only when the work that
 * it began there is done.
 */
#ifndef WEFT_SHARD_EXPERT_STORE_H
#define WEFT_SHARD_EXPERT_STORE_H

#include "shard/load/weights.h"

typedef struct weft_expert_store weft_expert_store;

/* The budget that n experts take, of whatever layers. Errors as of create. */
WEFT_MUST_CHECK weft_status weft_expert_store_budget(
    const weft_model_config *config, weft_checkpoint *checkpoint, int64_t n,
    int64_t *bytes_out, weft_err *err);

/* budget_bytes 0: no limit; of a device: every expert of the model. The
 * checkpoint is borrowed until destroy and may be shared by nobody else
 * meanwhile. RESOURCE_EXHAUSTED: the device has not so much. */
WEFT_MUST_CHECK weft_status weft_expert_store_create(
    const weft_model_config *config, weft_checkpoint *checkpoint,
    int64_t budget_bytes, weft_expert_store **store_out, weft_err *err);
void weft_expert_store_destroy(weft_expert_store *store); /* NULL is fine */

/* Bytes that one expert of that layer takes of the budget (of a device: a
 * place); 0: it has none. */
int64_t weft_expert_store_bytes_of(const weft_expert_store *store,
                                   int32_t layer);

/* Load it unless it is there. INVALID_ARGUMENT: no such expert.
 * RESOURCE_EXHAUSTED: the budget or the machine's memory (needed, free, total
 * in the text). DATA_LOSS, UNAVAILABLE: the file. *hash_out: of the bytes as
 * stored, the same on every machine. */
WEFT_MUST_CHECK weft_status weft_expert_store_load(weft_expert_store *store,
                                                   int32_t layer,
                                                   int32_t expert,
                                                   uint64_t *hash_out,
                                                   weft_err *err);
/* Waits for the serving thread to pass a quiesce (or for no serving thread).
 * Not there: nothing. */
void weft_expert_store_drop(weft_expert_store *store, int32_t layer,
                            int32_t expert);
bool weft_expert_store_holds(const weft_expert_store *store, int32_t layer,
                             int32_t expert);

/* NULL: not held, or there is no such expert. Serving thread, not while it is
 * away. */
const weft_mlp_weights *weft_expert_store_get(const weft_expert_store *store,
                                              int32_t layer, int32_t expert);
/* "I hold none of what I got": between two batches, and before it sleeps
 * (is_away true) and after (false). At first it is away, so the serving thread
 * begins with (false) and ends with (true). Serving thread. */
void weft_expert_store_quiesce(weft_expert_store *store, bool is_away);

typedef struct weft_expert_store_stats {
    int64_t n_experts, used_bytes;
    int64_t budget_bytes; /* of a device: whole places, no more than could be
                             used */
    int64_t loaded_bytes; /* ever read from files */
    int64_t n_loaded, n_dropped;
} weft_expert_store_stats;

void weft_expert_store_get_stats(const weft_expert_store *store,
                                 weft_expert_store_stats *stats_out);

#endif
