/* bytes.h - gRPC byte buffers as memory, and memory as byte buffers.
 *
 * Threads: any.
 */
#ifndef WEFT_NODE_RPC_BYTES_H
#define WEFT_NODE_RPC_BYTES_H

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>

#include "proto/codec.h"

/* The bytes of a received message in one piece. */
typedef struct weft_bytes {
    grpc_slice slice;
    weft_span span; /* of slice */
} weft_bytes;

/* `buffer` may be NULL: no message, an empty span. End with deinit. */
void weft_bytes_init(weft_bytes *bytes, grpc_byte_buffer *buffer);
void weft_bytes_deinit(weft_bytes *bytes);

/* A place for an encoder (codec.h) to pack into, and the buffer of it. */
weft_place weft_bytes_place(grpc_slice *slice);
/* Takes *slice. */
grpc_byte_buffer *weft_bytes_buffer(grpc_slice *slice);

#endif
