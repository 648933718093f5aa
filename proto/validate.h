/* validate.h - whether bytes are a message of a given type, strictly.
 *
 * Beyond the wire format (wire.h): known fields have the wire type of their
 * declaration, numbers fit their type instead of being cut, text is UTF-8.
 * Unknown fields are passed over. A sub-message that is not repeated comes
 * once: protobuf would merge two, but protobuf-c cannot merge those that have a
 * oneof of which neither sets a member.
 *
 * Threads: any. Guarantees: as wire.h; nothing recurses.
 */
#ifndef WEFT_PROTO_VALIDATE_H
#define WEFT_PROTO_VALIDATE_H

#include <protobuf-c/protobuf-c.h>

#include "node/base/err.h"

enum { WEFT_MESSAGE_DEPTH_MAX = 8 };

/* `type` is generated code, in which every text is a bytes field.
 * INVALID_ARGUMENT: the text names the field by its path, such as
 * "sampling_params.stop". */
WEFT_MUST_CHECK weft_status
weft_message_validate(const ProtobufCMessageDescriptor *type,
                      const uint8_t *bytes, size_t n, weft_err *err);

#endif
