#include "proto/wire.h"

enum {
    VARINT_BYTES = 10, /* 64 bits in sevens */
    SHORT_BYTES = 5,   /* 32 bits in sevens: tags and lengths */
};

bool weft_wire_varint(weft_wire *wire, int bytes_max, uint64_t *value_out)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes_max && wire->at < wire->end; i++) {
        const uint8_t byte = *wire->at++;
        if (i == VARINT_BYTES - 1 && byte > 1) return false; /* over 64 bits */
        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            *value_out = value;
            return true;
        }
    }
    return false;
}

static uint64_t fixed(const uint8_t *bytes, int n)
{
    uint64_t value = 0;
    for (int i = 0; i < n; i++) value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

static bool read_fixed(weft_wire *wire, int n, uint64_t *value_out)
{
    if (wire->end - wire->at < n) return false;
    *value_out = fixed(wire->at, n);
    wire->at += n;
    return true;
}

static bool read_bytes(weft_wire *wire, weft_wire_field *field)
{
    uint64_t n;
    if (!weft_wire_varint(wire, SHORT_BYTES, &n)) return false;
    if (n > (uint64_t)(wire->end - wire->at)) return false;
    field->data = wire->at;
    field->n = (size_t)n;
    wire->at += n;
    return true;
}

weft_status weft_wire_next(weft_wire *wire, bool *more_out,
                           weft_wire_field *field_out, weft_err *err)
{
    uint64_t tag;
    *more_out = wire->at < wire->end;
    if (!*more_out) return WEFT_OK;
    if (!weft_wire_varint(wire, SHORT_BYTES, &tag) || tag > UINT32_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a field's tag is cut short or too long");

    weft_wire_field field = {.number = (uint32_t)(tag >> 3)};
    const int type = (int)(tag & 7);
    if (field.number == 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "field number 0 (allowed: 1 and above)");

    bool good = false;
    switch (type) {
    case WEFT_WIRE_VARINT:
        good = weft_wire_varint(wire, VARINT_BYTES, &field.value);
        break;
    case WEFT_WIRE_FIXED64: good = read_fixed(wire, 8, &field.value); break;
    case WEFT_WIRE_FIXED32: good = read_fixed(wire, 4, &field.value); break;
    case WEFT_WIRE_BYTES: good = read_bytes(wire, &field); break;
    default:
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "field %u has wire type %d (allowed: 0, 1, 2, 5)",
                         field.number, type);
    }
    if (!good)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "field %u is cut short or too long", field.number);
    field.type = (weft_wire_type)type;
    *field_out = field;
    return WEFT_OK;
}
