#include "proto/reflect.h"

#include <stdio.h>
#include <string.h>

#include "proto/wire.h"

/* Numbers of the fields that are read. */
enum {
    SET_FILE = 1,
    ANY_NAME = 1, /* of a file, message, field, enum, value, service, method */
    FILE_PACKAGE = 2,
    FILE_SERVICE = 6,
};

static weft_wire wire_of(weft_span bytes)
{
    const uint8_t *start = (const uint8_t *)bytes.data;
    return (weft_wire){start, start + bytes.n};
}

/* The next field of that number which holds bytes; 0: any number. */
static bool next(weft_wire *wire, uint32_t number, weft_wire_field *field)
{
    bool more;
    while (weft_wire_next(wire, &more, field, NULL) == WEFT_OK && more)
        if (field->type == WEFT_WIRE_BYTES &&
            (number == 0 || field->number == number))
            return true;
    return false;
}

static weft_span span_of(const weft_wire_field *field)
{
    return (weft_span){(const char *)field->data, field->n};
}

static weft_span child(weft_span in, uint32_t number)
{
    weft_wire wire = wire_of(in);
    weft_wire_field field;
    return next(&wire, number, &field) ? span_of(&field) : (weft_span){"", 0};
}

static bool equal(weft_span a, weft_span b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.data, b.data, a.n) == 0);
}

bool weft_reflect_file(weft_span set, weft_span name, weft_span *file_out)
{
    weft_wire wire = wire_of(set);
    weft_wire_field file;
    while (next(&wire, SET_FILE, &file))
        if (equal(child(span_of(&file), ANY_NAME), name)) {
            *file_out = span_of(&file);
            return true;
        }
    return false;
}

/* What has names in it, and which of its fields hold what. */
enum scope { NONE, IN_FILE, IN_MESSAGE, IN_ENUM, IN_SERVICE, LEAF };

static enum scope scope_of(enum scope in, uint32_t number)
{
    static const enum scope table[][9] = {
        [IN_FILE] =
            {[4] = IN_MESSAGE, [5] = IN_ENUM, [6] = IN_SERVICE, [7] = LEAF},
        [IN_MESSAGE] = {[2] = LEAF,
                        [3] = IN_MESSAGE,
                        [4] = IN_ENUM,
                        [6] = LEAF,
                        [8] = LEAF},
        [IN_ENUM] = {[2] = LEAF},
        [IN_SERVICE] = {[2] = LEAF},
        [LEAF] = {NONE},
    };
    return number < 9 ? table[in][number] : NONE;
}

/* Whether `name`, "Message.Inner.field", is declared in a file. */
static bool declares(weft_span file, weft_span name)
{
    enum scope scope = IN_FILE;
    weft_span in = file;
    for (;;) {
        const char *dot = memchr(name.data, '.', name.n);
        const size_t n = dot != NULL ? (size_t)(dot - name.data) : name.n;
        const weft_span first = {name.data, n};
        weft_wire wire = wire_of(in);
        weft_wire_field field;
        enum scope found = NONE;
        while (found == NONE && next(&wire, 0, &field))
            if (scope_of(scope, field.number) != NONE &&
                equal(child(span_of(&field), ANY_NAME), first))
                found = scope_of(scope, field.number);
        if (found == NONE) return false;
        if (dot == NULL) return true;
        scope = found;
        in = span_of(&field);
        name = (weft_span){dot + 1, name.n - n - 1};
    }
}

bool weft_reflect_symbol(weft_span set, weft_span symbol, weft_span *file_out)
{
    weft_wire wire = wire_of(set);
    weft_wire_field field;
    while (next(&wire, SET_FILE, &field)) {
        const weft_span file = span_of(&field);
        const weft_span package = child(file, FILE_PACKAGE);
        if (symbol.n <= package.n + 1 || symbol.data[package.n] != '.' ||
            !equal((weft_span){symbol.data, package.n}, package))
            continue;
        const size_t skip = package.n + 1;
        if (declares(file, (weft_span){symbol.data + skip, symbol.n - skip})) {
            *file_out = file;
            return true;
        }
    }
    return false;
}

bool weft_reflect_service(weft_span set, size_t i,
                          char name_out[WEFT_SYMBOL_BYTES_MAX])
{
    weft_wire files = wire_of(set);
    weft_wire_field file, service;
    while (next(&files, SET_FILE, &file)) {
        const weft_span package = child(span_of(&file), FILE_PACKAGE);
        weft_wire in = wire_of(span_of(&file));
        while (next(&in, FILE_SERVICE, &service)) {
            if (i-- > 0) continue;
            const weft_span name = child(span_of(&service), ANY_NAME);
            (void)snprintf(name_out, WEFT_SYMBOL_BYTES_MAX, "%.*s.%.*s",
                           (int)package.n, package.data, (int)name.n,
                           name.data);
            return true;
        }
    }
    return false;
}
