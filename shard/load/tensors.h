/* tensors.h - all tensors of a model folder, by name.
 *
 * The folder has an index with shards, or one model.safetensors; where it has
 * both, the index holds. Files are opened once, read-only, and stay open until
 * deinit, so what was checked is what is read.
 *
 * Names are told without the prefixes that wrappers insert, so that the same
 * model has the same names in all its packings:
 * model.language_model.X and language_model.model.X are model.X.
 *
 * Threads: one owner. Errors name the file, and the tensor where there is one.
 */
#ifndef WEFT_SHARD_LOAD_TENSORS_H
#define WEFT_SHARD_LOAD_TENSORS_H

#include "shard/load/index.h"
#include "shard/load/safetensors.h"
#include "shard/model/config.h" /* weft_remark_fn */

#define WEFT_SINGLE_FILE "model.safetensors"

typedef struct weft_tensor_file {
    const char *name; /* inside the folder; borrowed */
    int fd;
    int64_t bytes;
    weft_safetensors table;
} weft_tensor_file;

typedef struct weft_tensor_set {
    weft_tensor_file *files;
    int32_t n_files;
    weft_tensor **tensors; /* [n], in name order; into the files' tables */
    size_t n;
    char *names; /* names without prefix, where there was one */
    weft_index index;
    char indexer_rope_layout[WEFT_LAYOUT_BYTES]; /* "" if nobody says */
} weft_tensor_set;

/* NOT_FOUND: no such folder or file. DATA_LOSS: malformed, or a tensor twice.
 * *set_out is to be ended with deinit. */
WEFT_MUST_CHECK weft_status weft_tensor_set_open(const char *dir,
                                                 weft_remark_fn remark,
                                                 void *arg,
                                                 weft_tensor_set *set_out,
                                                 weft_err *err);
void weft_tensor_set_deinit(weft_tensor_set *set); /* {0} is fine */

weft_tensor *weft_tensor_set_find(const weft_tensor_set *set, const char *name);
const char *weft_tensor_set_file(const weft_tensor_set *set,
                                 const weft_tensor *tensor);

/* Bytes [begin, begin + n) of a tensor. DATA_LOSS: the file has become shorter;
 * UNAVAILABLE: it cannot be read. */
WEFT_MUST_CHECK weft_status weft_tensor_set_read(const weft_tensor_set *set,
                                                 const weft_tensor *tensor,
                                                 int64_t begin, void *bytes_out,
                                                 size_t n, weft_err *err);

#endif
