/* mem.h - the only place that calls malloc.
 *
 * Every heap block of the tree goes through here, so that tests can count live
 * blocks and make the n-th allocation fail. A failed allocation is an ordinary
 * NULL; the caller reports RESOURCE_EXHAUSTED.
 *
 * Threads: any. The counters are atomic; fail_after is for tests only.
 */
#ifndef WEFT_NODE_BASE_MEM_H
#define WEFT_NODE_BASE_MEM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* n items of item_bytes, zeroed; NULL if out of memory or if the product
 * overflows. n == 0 gives a block that may be freed but not used. End with
 * weft_mem_free. */
void *weft_mem_new(size_t n, size_t item_bytes);

/* Grow or shrink to n items; new bytes are not zeroed. NULL leaves `mem` as it
 * was. `mem` may be NULL. */
void *weft_mem_resize(void *mem, size_t n, size_t item_bytes);

/* Aligned to `align` bytes (a power of two), not zeroed. Large blocks ask the
 * kernel for huge pages. End with weft_mem_free. */
void *weft_mem_new_aligned(size_t align, size_t bytes);

/* What such a block takes: large ones are whole huge pages. */
size_t weft_mem_aligned_bytes(size_t align, size_t bytes);

/* A NUL-terminated copy of bytes [0, n) of `text`; NULL if out of memory. */
char *weft_mem_copy_text(const char *text, size_t n);

/* NULL is fine. */
void weft_mem_free(void *mem);

/* Blocks that are allocated and not freed. */
long weft_mem_live(void);

/* Let n more allocations succeed and all later ones fail; -1 ends that. */
void weft_mem_fail_after(long n);

#ifdef __cplusplus
}
#endif

#endif
