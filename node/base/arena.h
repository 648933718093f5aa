/* arena.h - memory of one request: taken in pieces, limited, freed whole.
 *
 * The limit is on bytes asked for (each rounded up to 16), so a request that
 * would take more than its share is refused and the node stays up. A single
 * piece cannot be freed.
 *
 * weft_arena_alloc and weft_arena_ignore_free have the form that decoders with
 * an allocator hook want: void *(*)(void *arg, size_t) and
 * void (*)(void *arg, void *).
 *
 * Threads: one owner at a time.
 */
#ifndef WEFT_NODE_BASE_ARENA_H
#define WEFT_NODE_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include "node/base/err.h"

typedef struct weft_arena weft_arena;

/* Holds nothing but its own head at first. RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status weft_arena_create(size_t bytes_max,
                                              weft_arena **arena_out,
                                              weft_err *err);
void weft_arena_destroy(weft_arena *arena); /* NULL is fine; frees all */

/* n bytes, zeroed, aligned to 16; NULL if that would pass the limit or if
 * there is no memory. Valid until destroy. n == 0 gives a pointer that may not
 * be used. `arg` is a weft_arena. */
void *weft_arena_alloc(void *arg, size_t n);
void weft_arena_ignore_free(void *arg, void *mem); /* does nothing */

/* n items of item_bytes each; NULL also if the product overflows. */
void *weft_arena_new(weft_arena *arena, size_t n, size_t item_bytes);

/* A NUL-terminated copy of bytes [0, n) of `text`, or NULL. */
char *weft_arena_copy_text(weft_arena *arena, const char *text, size_t n);

/* Bytes taken so far, and whether a request was refused for the limit (rather
 * than for want of memory). */
size_t weft_arena_used(const weft_arena *arena);
bool weft_arena_limit_hit(const weft_arena *arena);

#endif
