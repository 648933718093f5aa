#include "proto/validate.h"

#include <stdio.h>

#include "node/base/str.h"
#include "proto/wire.h"

enum { PATH_BYTES = 128 };

/* The messages that enclose the place being read, the outermost first. */
struct frame {
    weft_wire in;
    const ProtobufCMessageDescriptor *type;
    const char *name; /* of the field that holds it; NULL: outermost */
    uint64_t seen;    /* bit i: sub-message fields[i] of the type has come */
};

enum { FIELDS_MAX = 64 }; /* bits of `seen` */

struct walk {
    struct frame frames[WEFT_MESSAGE_DEPTH_MAX];
    int depth; /* frames in use */
};

/* "sampling_params.stop" */
static void path_of(const struct walk *walk, const char *last,
                    char out[PATH_BYTES])
{
    size_t n = 0;
    out[0] = '\0';
    for (int i = 1; i < walk->depth && n < PATH_BYTES; i++)
        n += (size_t)snprintf(out + n, PATH_BYTES - n, "%s.",
                              walk->frames[i].name);
    if (n < PATH_BYTES) (void)snprintf(out + n, PATH_BYTES - n, "%s", last);
}

static weft_status refuse(const struct walk *walk, const char *field,
                          const char *why, weft_err *err)
{
    char path[PATH_BYTES];
    path_of(walk, field, path);
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "%s %s", path, why);
}

static weft_wire_type wire_type_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FLOAT: return WEFT_WIRE_FIXED32;
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_DOUBLE: return WEFT_WIRE_FIXED64;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE: return WEFT_WIRE_BYTES;
    default: return WEFT_WIRE_VARINT;
    }
}

/* A decoder would cut a number to its field's width, so that 2^32 becomes 0. */
static bool fits(ProtobufCType type, uint64_t value)
{
    switch (type) {
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_SINT32: return value <= UINT32_MAX;
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_ENUM: /* sign-extended to 64 bits, or plain 32 */
        return value <= UINT32_MAX || value >= (uint64_t)INT32_MIN;
    default: return true;
    }
}

static const char *const TOO_BIG = "is a number out of the range of its type";

static weft_status check_packed(const struct walk *walk,
                                const ProtobufCFieldDescriptor *field,
                                const weft_wire_field *seen, weft_err *err)
{
    const weft_wire_type type = wire_type_of(field->type);
    if (type == WEFT_WIRE_FIXED32 || type == WEFT_WIRE_FIXED64) {
        const size_t width = type == WEFT_WIRE_FIXED32 ? 4 : 8;
        return seen->n % width == 0
                   ? WEFT_OK
                   : refuse(walk, field->name, "is cut short", err);
    }
    weft_wire in = {seen->data, seen->data + seen->n};
    while (in.at < in.end) {
        uint64_t value;
        if (!weft_wire_varint(&in, 10, &value))
            return refuse(walk, field->name,
                          "has a number cut short or too long", err);
        if (!fits(field->type, value))
            return refuse(walk, field->name, TOO_BIG, err);
    }
    return WEFT_OK;
}

static weft_status enter(struct walk *walk, const weft_wire_field *seen,
                         const ProtobufCFieldDescriptor *field, weft_err *err)
{
    struct frame *top = &walk->frames[walk->depth - 1];
    const size_t i = (size_t)(field - top->type->fields);
    const uint64_t bit = i < FIELDS_MAX ? UINT64_C(1) << i : 0;
    if (field->label != PROTOBUF_C_LABEL_REPEATED && (top->seen & bit) != 0)
        return refuse(walk, field->name, "is given twice", err);
    top->seen |= bit;
    if (walk->depth == WEFT_MESSAGE_DEPTH_MAX)
        return refuse(walk, field->name, "is nested too deep", err);
    walk->frames[walk->depth++] = (struct frame){
        .in = {seen->data, seen->data + seen->n},
        .type = field->descriptor,
        .name = field->name,
    };
    return WEFT_OK;
}

static weft_status check_field(struct walk *walk, const weft_wire_field *seen,
                               const ProtobufCFieldDescriptor *field,
                               weft_err *err)
{
    const weft_wire_type wanted = wire_type_of(field->type);
    if (seen->type == WEFT_WIRE_BYTES && wanted != WEFT_WIRE_BYTES &&
        field->label == PROTOBUF_C_LABEL_REPEATED)
        return check_packed(walk, field, seen, err);
    if (seen->type != wanted)
        return refuse(walk, field->name, "has the wire type of another type",
                      err);
    if (wanted == WEFT_WIRE_VARINT && !fits(field->type, seen->value))
        return refuse(walk, field->name, TOO_BIG, err);
    if ((field->type == PROTOBUF_C_TYPE_BYTES ||
         field->type == PROTOBUF_C_TYPE_STRING) &&
        !weft_utf8_valid((const char *)seen->data, seen->n))
        return refuse(walk, field->name,
                      "is not UTF-8 (allowed: well-formed UTF-8)", err);
    return field->type == PROTOBUF_C_TYPE_MESSAGE
               ? enter(walk, seen, field, err)
               : WEFT_OK;
}

weft_status weft_message_validate(const ProtobufCMessageDescriptor *type,
                                  const uint8_t *bytes, size_t n, weft_err *err)
{
    struct walk walk = {.depth = 0};
    if (n == 0) return WEFT_OK;
    walk.frames[walk.depth++] =
        (struct frame){.in = {bytes, bytes + n}, .type = type};
    while (walk.depth > 0) {
        struct frame *top = &walk.frames[walk.depth - 1];
        weft_wire_field seen = {0};
        bool more;
        const weft_status st = weft_wire_next(&top->in, &more, &seen, err);
        if (st != WEFT_OK)
            return WEFT_WRAP(err, st, "%s",
                             top->name != NULL ? top->name : "message");
        if (!more) {
            walk.depth--;
            continue;
        }
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field(top->type, seen.number);
        if (field != NULL) WEFT_TRY(check_field(&walk, &seen, field, err));
    }
    return WEFT_OK;
}
