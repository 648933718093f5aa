#include "node/rpc/bytes.h"

#include <grpc/byte_buffer_reader.h>

void weft_bytes_init(weft_bytes *bytes, grpc_byte_buffer *buffer)
{
    grpc_byte_buffer_reader reader;
    bytes->slice = grpc_empty_slice();
    if (buffer != NULL && grpc_byte_buffer_reader_init(&reader, buffer) != 0) {
        bytes->slice = grpc_byte_buffer_reader_readall(&reader);
        grpc_byte_buffer_reader_destroy(&reader);
    }
    /* A short slice lies inside the struct: take its address only here. */
    bytes->span.data = (const char *)GRPC_SLICE_START_PTR(bytes->slice);
    bytes->span.n = GRPC_SLICE_LENGTH(bytes->slice);
}

void weft_bytes_deinit(weft_bytes *bytes)
{
    grpc_slice_unref(bytes->slice);
    bytes->slice = grpc_empty_slice();
    bytes->span = (weft_span){0};
}

static void *place(void *arg, size_t n)
{
    grpc_slice *slice = arg;
    *slice = grpc_slice_malloc(n);
    return GRPC_SLICE_START_PTR(*slice);
}

weft_place weft_bytes_place(grpc_slice *slice)
{
    return (weft_place){.fn = place, .arg = slice};
}

grpc_byte_buffer *weft_bytes_buffer(grpc_slice *slice)
{
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(slice, 1);
    grpc_slice_unref(*slice);
    return buffer;
}
