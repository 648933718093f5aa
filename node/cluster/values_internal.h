/* values_internal.h - what the files of values.h share. */
#ifndef WEFT_NODE_CLUSTER_VALUES_INTERNAL_H
#define WEFT_NODE_CLUSTER_VALUES_INTERNAL_H

#include <protobuf-c/protobuf-c.h>

#include "node/base/arena.h"
#include "node/cluster/values.h"

ProtobufCBinaryData weft_value_text(const char *text);
weft_status weft_value_pack(const ProtobufCMessage *message, size_t bytes_max,
                            weft_buf *out, weft_err *err);
/* A validated message in an arena that is made for it and is the caller's to
 * end; on failure there is none. */
weft_status weft_value_unpack(const ProtobufCMessageDescriptor *type,
                              weft_span value, size_t bytes_max,
                              size_t arena_bytes, weft_arena **arena_out,
                              ProtobufCMessage **message_out, weft_err *err);
weft_status weft_value_check_version(uint32_t version, weft_err *err);
/* Text without control characters that fits out [bytes] with its NUL. */
weft_status weft_value_copy_text(const char *field, ProtobufCBinaryData text,
                                 char *out, size_t bytes, weft_err *err);
weft_status weft_value_copy_id(const char *field, ProtobufCBinaryData text,
                               char out[WEFT_ID_BYTES], weft_err *err);
weft_status weft_value_check_range(const char *field, uint64_t value,
                                   uint64_t min, uint64_t max, weft_err *err);

#endif
