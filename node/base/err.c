#include "node/base/err.h"

#include <stdio.h>
#include <string.h>

weft_status weft_err_set(weft_err *err, weft_status st, const char *file,
                         int line, const char *format, ...)
{
    if (err == NULL) return st;
    err->status = st;
    err->file = file;
    err->line = line;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    return st;
}

/* Copy `more` to text[at ...), as far as it fits. */
static size_t append(char *text, size_t at, const char *more)
{
    const size_t n = strnlen(more, WEFT_ERR_TEXT_BYTES - 1 - at);
    memcpy(text + at, more, n);
    text[at + n] = '\0';
    return at + n;
}

weft_status weft_err_wrap(weft_err *err, weft_status st, const char *format,
                          ...)
{
    if (err == NULL) return st;
    char before[WEFT_ERR_TEXT_BYTES];
    memcpy(before, err->text, sizeof before);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    size_t used = strnlen(err->text, sizeof err->text - 1);
    used = append(err->text, used, ": ");
    (void)append(err->text, used, before);
    err->status = st;
    return st;
}

const char *weft_status_name(weft_status st)
{
    switch (st) {
    case WEFT_OK: return "OK";
    case WEFT_CANCELLED: return "CANCELLED";
    case WEFT_INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case WEFT_DEADLINE_EXCEEDED: return "DEADLINE_EXCEEDED";
    case WEFT_NOT_FOUND: return "NOT_FOUND";
    case WEFT_RESOURCE_EXHAUSTED: return "RESOURCE_EXHAUSTED";
    case WEFT_FAILED_PRECONDITION: return "FAILED_PRECONDITION";
    case WEFT_UNIMPLEMENTED: return "UNIMPLEMENTED";
    case WEFT_INTERNAL: return "INTERNAL";
    case WEFT_UNAVAILABLE: return "UNAVAILABLE";
    case WEFT_DATA_LOSS: return "DATA_LOSS";
    case WEFT_UNAUTHENTICATED: return "UNAUTHENTICATED";
    }
    return "UNKNOWN";
}
