/* index.h - model.safetensors.index.json: which file holds which tensor.
 *
 * Untrusted: a file name may only name a plain file of the model's own folder.
 * Threads: any. Errors are DATA_LOSS or RESOURCE_EXHAUSTED and name the index.
 */
#ifndef WEFT_SHARD_LOAD_INDEX_H
#define WEFT_SHARD_LOAD_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "node/base/err.h"
#include "shard/load/safetensors.h"

#define WEFT_INDEX_FILE "model.safetensors.index.json"

enum { WEFT_INDEX_BYTES_MAX = 64 << 20, WEFT_INDEX_FILES_MAX = 4096 };

typedef struct weft_index_entry {
    const char *tensor;
    int32_t file;
} weft_index_entry;

typedef struct weft_index {
    const char **files; /* [n_files], in name order */
    int32_t n_files;
    weft_index_entry *entries; /* [n], in name order */
    size_t n;
    char *names; /* what tensor and file names point into */
    char indexer_rope_layout[WEFT_LAYOUT_BYTES]; /* metadata; "" if absent */
} weft_index;

/* *out is to be ended with weft_index_deinit. */
WEFT_MUST_CHECK weft_status weft_index_parse(const char *json, size_t n,
                                             weft_index *out, weft_err *err);
void weft_index_deinit(weft_index *index); /* {0} is fine */

/* The file of a tensor; -1: the index does not list it. */
int32_t weft_index_find(const weft_index *index, const char *tensor);

#endif
