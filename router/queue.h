/* queue.h - a list of journal entries in order of arrival.
 *
 * An entry is in at most one queue at a time. All calls are O(1).
 * Threads: the router's.
 */
#ifndef WEFT_ROUTER_QUEUE_H
#define WEFT_ROUTER_QUEUE_H

#include <stdbool.h>

typedef struct weft_entry weft_entry;

/* {0} is an empty one. Embedded in an entry it is its place. */
typedef struct weft_entry_queue {
    weft_entry *first, *last;
} weft_entry_queue;

void weft_entry_queue_push(weft_entry_queue *queue, weft_entry *entry);
weft_entry *weft_entry_queue_pop(weft_entry_queue *queue); /* NULL: empty */
/* Takes it out of the queue it is in; nothing if it is in none. */
void weft_entry_queue_remove(weft_entry *entry);

#endif
