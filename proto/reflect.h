/* reflect.h - finds files and names in a FileDescriptorSet.
 *
 * What server reflection asks for. The set is our own (descriptors.h), but is
 * read with care: a broken one has no names. Nothing allocates; each question
 * walks the set, which is a few kilobytes.
 *
 * Threads: any. Source of the field numbers: google/protobuf/descriptor.proto.
 */
#ifndef WEFT_PROTO_REFLECT_H
#define WEFT_PROTO_REFLECT_H

#include <stdbool.h>

#include "proto/messages.h"

enum { WEFT_SYMBOL_BYTES_MAX = 256 };

/* The serialized FileDescriptorProto of that name, such as "weft.proto"; false:
 * there is none. It lies in `set`. */
bool weft_reflect_file(weft_span set, weft_span name, weft_span *file_out);

/* The file that declares the message, field, enum, value, service or method of
 * that full name, such as "weft.v1.Generation.Generate". */
bool weft_reflect_symbol(weft_span set, weft_span symbol, weft_span *file_out);

/* The full name of service i, counted over all files; false: no such. */
bool weft_reflect_service(weft_span set, size_t i,
                          char name_out[WEFT_SYMBOL_BYTES_MAX]);

#endif
