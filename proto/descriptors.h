/* descriptors.h - the descriptors of everything that the node serves.
 *
 * A serialized google.protobuf.FileDescriptorSet, made by protoc when the node
 * is built, of weft.proto, health.proto and both reflection.proto. Reflection
 * hands its files out; nothing else reads it.
 */
#ifndef WEFT_PROTO_DESCRIPTORS_H
#define WEFT_PROTO_DESCRIPTORS_H

#include <stddef.h>

extern const unsigned char weft_descriptors[];
extern const size_t weft_descriptors_bytes;

#endif
