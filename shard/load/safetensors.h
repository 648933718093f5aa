/* safetensors.h - the table of contents of one safetensors file.
 *
 *   | n: u64, little-endian | n bytes of JSON | data, to the end of the file |
 *
 * The JSON says of every tensor its dtype, shape and where in the data it
 * lies. It is untrusted: a table comes out of here only if every byte of the
 * data belongs to exactly one tensor, every size follows from dtype and shape,
 * and no product wraps. The order of names in the JSON means nothing.
 * Source: the format's description (huggingface/safetensors, README).
 *
 * No data is read here. Threads: any. Errors name the file, and the tensor
 * where there is one; all are DATA_LOSS, or RESOURCE_EXHAUSTED.
 */
#ifndef WEFT_SHARD_LOAD_SAFETENSORS_H
#define WEFT_SHARD_LOAD_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "node/base/err.h"

enum {
    WEFT_TENSOR_DIMS_MAX = 8,
    WEFT_TENSOR_NAME_MAX = 256,
    WEFT_HEADER_LENGTH_BYTES = 8,
    /* The largest known, a 671 B model in one file, would have 14 MB. */
    WEFT_HEADER_BYTES_MAX = 32 << 20,
    WEFT_LAYOUT_BYTES = 16,
};

/* The first four are those of weft_dtype, in its order. */
typedef enum weft_stored_dtype {
    WEFT_STORED_F32,
    WEFT_STORED_BF16,
    WEFT_STORED_F16,
    WEFT_STORED_F8_E4M3,
    WEFT_STORED_F8_E8M0,
    WEFT_STORED_F8_E5M2,
    WEFT_STORED_U8,
    WEFT_STORED_I8,
    WEFT_STORED_BOOL,
    WEFT_STORED_I16,
    WEFT_STORED_U16,
    WEFT_STORED_I32,
    WEFT_STORED_U32,
    WEFT_STORED_I64,
    WEFT_STORED_U64,
    WEFT_STORED_F64,
    WEFT_STORED_COUNT,
} weft_stored_dtype;

size_t weft_stored_bytes(weft_stored_dtype dtype);
const char *weft_stored_name(weft_stored_dtype dtype);

typedef struct weft_tensor {
    const char *stored_name; /* as in the file; borrowed from the table */
    const char *name;        /* without a wrapper's prefix (tensors.h) */
    weft_stored_dtype dtype;
    int32_t file; /* which file of the folder; set by its owner */
    int32_t n_dims;
    bool used;
    int64_t dims[WEFT_TENSOR_DIMS_MAX];
    int64_t offset, bytes; /* in the file */
} weft_tensor;

typedef struct weft_safetensors {
    weft_tensor *tensors; /* [n], by rising offset */
    size_t n;
    char *names; /* what the stored names point into */
    char indexer_rope_layout[WEFT_LAYOUT_BYTES]; /* metadata; "" if absent */
} weft_safetensors;

/* Length of the JSON, from the first bytes of a file of file_bytes bytes. */
WEFT_MUST_CHECK weft_status weft_safetensors_header_bytes(
    const char *file, const unsigned char raw[WEFT_HEADER_LENGTH_BYTES],
    int64_t file_bytes, size_t *bytes_out, weft_err *err);

/* The table, from the JSON and the size of the whole file. *out is to be ended
 * with weft_safetensors_deinit. */
WEFT_MUST_CHECK weft_status weft_safetensors_parse(const char *file,
                                                   const char *json, size_t n,
                                                   int64_t file_bytes,
                                                   weft_safetensors *out,
                                                   weft_err *err);
void weft_safetensors_deinit(weft_safetensors *table); /* {0} is fine */

/* "[3, 4]" into text, for errors. */
void weft_dims_show(const int64_t *dims, int32_t n_dims, char text[96]);

#endif
