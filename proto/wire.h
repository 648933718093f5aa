/* wire.h - the protobuf wire format, read strictly.
 *
 * protobuf-c accepts more than it should: what decides is this reader. It is
 * run over every message before protobuf-c sees it.
 *
 * Threads: any; nothing here is shared. Guarantees: reads only the bytes given;
 * time linear in them; nothing allocates.
 *
 * Source: protobuf.dev, "Encoding".
 */
#ifndef WEFT_PROTO_WIRE_H
#define WEFT_PROTO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "node/base/err.h"

typedef enum weft_wire_type {
    WEFT_WIRE_VARINT = 0,
    WEFT_WIRE_FIXED64 = 1,
    WEFT_WIRE_BYTES = 2, /* text, sub-message, packed numbers */
    WEFT_WIRE_FIXED32 = 5,
} weft_wire_type;

typedef struct weft_wire {
    const uint8_t *at, *end;
} weft_wire;

typedef struct weft_wire_field {
    uint32_t number; /* 1 ... 2^29 - 1 */
    weft_wire_type type;
    uint64_t value;      /* of a number */
    const uint8_t *data; /* of BYTES: [n] inside the message */
    size_t n;
} weft_wire_field;

/* The next field into *field_out. *more_out is false, and nothing else written,
 * at the end of the message.
 * INVALID_ARGUMENT: a number cut short or of more than 10 bytes, a field number
 * out of range, a group or an unknown wire type, a length beyond the end. */
WEFT_MUST_CHECK weft_status weft_wire_next(weft_wire *wire, bool *more_out,
                                           weft_wire_field *field_out,
                                           weft_err *err);

/* One varint of at most bytes_max bytes (10 or fewer) and 64 bits; false: cut
 * short, or too long. */
bool weft_wire_varint(weft_wire *wire, int bytes_max, uint64_t *value_out);

#endif
