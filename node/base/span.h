/* span.h - plain values that cross a boundary: bytes with a length, and
 * scalars that may not be set.
 *
 * What is not set has no default here; whoever reads it gives one.
 */
#ifndef WEFT_NODE_BASE_SPAN_H
#define WEFT_NODE_BASE_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct weft_span {
    const char *data; /* not NUL-terminated; may be NULL if n is 0 */
    size_t n;
} weft_span;

/* value counts only if set. */
typedef struct weft_opt_bool {
    bool set, value;
} weft_opt_bool;
typedef struct weft_opt_u32 {
    bool set;
    uint32_t value;
} weft_opt_u32;
typedef struct weft_opt_u64 {
    bool set;
    uint64_t value;
} weft_opt_u64;
typedef struct weft_opt_f32 {
    bool set;
    float value;
} weft_opt_f32;

#endif
