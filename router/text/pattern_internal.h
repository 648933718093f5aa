/* pattern_internal.h - from Oniguruma's spelling to PCRE2's; see pattern.h.
 * Threads: any. */
#ifndef WEFT_ROUTER_TEXT_PATTERN_INTERNAL_H
#define WEFT_ROUTER_TEXT_PATTERN_INTERNAL_H

#include "node/base/str.h"

/* Append the PCRE2 form of [text, text + n) to *out. INVALID_ARGUMENT: a
 * construct that is not supported, named. */
WEFT_MUST_CHECK weft_status weft_pattern_translate(const char *text, size_t n,
                                                   weft_buf *out,
                                                   weft_err *err);

#endif
