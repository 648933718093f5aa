#include "node/base/arena.h"

#include <stdint.h>
#include <string.h>

#include "node/base/mem.h"

/* Pieces come from chunks; a piece larger than a chunk gets one of its own. */
enum { ALIGN_BYTES = 16, CHUNK_BYTES = 4096 };

typedef struct chunk {
    struct chunk *next;
    size_t bytes;
    _Alignas(ALIGN_BYTES) unsigned char data[];
} chunk;

struct weft_arena {
    chunk *chunks; /* the one in use first */
    size_t left;   /* bytes free at the end of chunks[0] */
    size_t used, bytes_max;
    bool limit_hit;
};

weft_status weft_arena_create(size_t bytes_max, weft_arena **arena_out,
                              weft_err *err)
{
    weft_arena *const arena = weft_mem_new(1, sizeof *arena);
    if (arena == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for an arena");
    arena->bytes_max = bytes_max;
    *arena_out = arena;
    return WEFT_OK;
}

void weft_arena_destroy(weft_arena *arena)
{
    if (arena == NULL) return;
    for (chunk *at = arena->chunks; at != NULL;) {
        chunk *const next = at->next;
        weft_mem_free(at);
        at = next;
    }
    weft_mem_free(arena);
}

/* A chunk for a piece of `bytes`; it goes behind the first one if that still
 * has more room than the chunk of its own will have. */
static void *alloc_from_chunk_of_its_own(weft_arena *arena, size_t bytes)
{
    const size_t whole = bytes > CHUNK_BYTES / 4 ? bytes : CHUNK_BYTES;
    chunk *const added = weft_mem_new(1, sizeof *added + whole);
    if (added == NULL) return NULL;
    added->bytes = whole;
    if (arena->chunks != NULL && arena->left > whole - bytes) {
        added->next = arena->chunks->next;
        arena->chunks->next = added;
    } else {
        added->next = arena->chunks;
        arena->chunks = added;
        arena->left = whole - bytes;
    }
    return added->data;
}

void *weft_arena_alloc(void *arg, size_t n)
{
    weft_arena *const arena = arg;
    if (n > SIZE_MAX - 2 * (size_t)CHUNK_BYTES ||
        n > arena->bytes_max - arena->used) {
        arena->limit_hit = true;
        return NULL;
    }
    const size_t bytes =
        n == 0 ? ALIGN_BYTES
               : (n + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    if (bytes > arena->bytes_max - arena->used) {
        arena->limit_hit = true;
        return NULL;
    }
    void *mem = NULL;
    if (arena->chunks != NULL && arena->left >= bytes) {
        mem = arena->chunks->data + (arena->chunks->bytes - arena->left);
        arena->left -= bytes;
    } else {
        mem = alloc_from_chunk_of_its_own(arena, bytes);
    }
    if (mem != NULL) arena->used += bytes;
    return mem;
}

void weft_arena_ignore_free(void *arg, void *mem)
{
    (void)arg;
    (void)mem;
}

void *weft_arena_new(weft_arena *arena, size_t n, size_t item_bytes)
{
    size_t bytes = 0;
    if (__builtin_mul_overflow(n, item_bytes, &bytes)) return NULL;
    return weft_arena_alloc(arena, bytes);
}

char *weft_arena_copy_text(weft_arena *arena, const char *text, size_t n)
{
    if (n == SIZE_MAX) return NULL;
    char *const copy = weft_arena_alloc(arena, n + 1);
    if (copy != NULL && n > 0) memcpy(copy, text, n);
    return copy;
}

size_t weft_arena_used(const weft_arena *arena)
{
    return arena->used;
}

bool weft_arena_limit_hit(const weft_arena *arena)
{
    return arena->limit_hit;
}
