/* file.h - whole files into memory, with errors that name them.
 *
 * For files that are read once, at start. Each error names the path. Threads:
 * any.
 */
#ifndef WEFT_NODE_BASE_FILE_H
#define WEFT_NODE_BASE_FILE_H

#include <stddef.h>

#include "node/base/err.h"
#include "node/base/str.h"

/* Append the whole of a regular file to *buf, which the caller ends with
 * weft_buf_deinit; on failure *buf holds what it held before.
 * NOT_FOUND: no such file. INVALID_ARGUMENT: `path` is a directory or a
 * device. UNAVAILABLE: it cannot be opened or read. DATA_LOSS: more than
 * bytes_max bytes. RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status weft_file_read_all(const char *path,
                                               size_t bytes_max, weft_buf *buf,
                                               weft_err *err);

#endif
