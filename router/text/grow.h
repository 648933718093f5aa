/* grow.h - arrays that double. Threads: any; an array has one owner.
 *
 * The caller keeps pointer and capacity; what it counts is its own affair.
 */
#ifndef WEFT_ROUTER_TEXT_GROW_H
#define WEFT_ROUTER_TEXT_GROW_H

#include <stddef.h>

/* `old`, or a larger block with its content, that holds at least `need` items;
 * *capacity follows. NULL if out of memory: `old` is then still valid and still
 * the caller's, to end with weft_mem_free. */
void *weft_grow(void *old, size_t *capacity, size_t need, size_t item_bytes);

#endif
