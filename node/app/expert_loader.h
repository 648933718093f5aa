/* expert_loader.h - the thread of an expert shard that brings its store to what
 * the placements ask for: loads for the one that is prepared, lets go of what
 * none that still counts asks for.
 *
 * A placement counts from its prepare until an epoch at or above it is retired.
 * One that was never committed counts until a later one is committed, it could
 * not be loaded, or its room is needed.
 *
 * Threads: one of its own; all functions by any.
 */
#ifndef WEFT_NODE_APP_EXPERT_LOADER_H
#define WEFT_NODE_APP_EXPERT_LOADER_H

#include "node/cluster/placement.h"
#include "shard/expert/store.h"

typedef struct weft_expert_loader weft_expert_loader;

typedef struct weft_expert_loader_options {
    weft_expert_store *store;  /* borrowed; the loader alone changes it */
    const weft_memory *memory; /* of the store's experts, borrowed; NULL: the
                                  host's */
    const char *id;            /* whose part of placements is loaded; copied */
    /* Loading for that epoch has ended; text NULL: all of it is held. Loader's
     * thread. Not told of an epoch that counts no more. */
    void (*loaded)(void *arg, uint64_t epoch, int64_t loaded_bytes,
                   const char *text);
    /* The device is of no use any more; loader's thread, before `loaded`. May
     * be NULL. */
    void (*failed)(void *arg, const weft_err *why);
    void *arg;
} weft_expert_loader_options;

WEFT_MUST_CHECK weft_status
weft_expert_loader_start(const weft_expert_loader_options *options,
                         weft_expert_loader **loader_out, weft_err *err);
/* After the expert in hand; joins. NULL is fine. */
void weft_expert_loader_stop(weft_expert_loader *loader);

/* Copied. RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status weft_expert_loader_prepare(
    weft_expert_loader *loader, const weft_placement *placement, weft_err *err);
/* That epoch is committed: it counts until it is retired. */
void weft_expert_loader_commit(weft_expert_loader *loader, uint64_t epoch);
/* Epochs up to it are over. */
void weft_expert_loader_retire(weft_expert_loader *loader, uint64_t epoch);

#endif
