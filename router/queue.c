#include "router/queue.h"

#include <stddef.h>

#include "node/base/check.h"
#include "router/journal.h"

void weft_entry_queue_push(weft_entry_queue *queue, weft_entry *entry)
{
    WEFT_ASSERT(entry->queue == NULL);
    entry->queue = queue;
    entry->before = queue->last;
    entry->after = NULL;
    if (queue->last != NULL)
        queue->last->after = entry;
    else
        queue->first = entry;
    queue->last = entry;
}

void weft_entry_queue_remove(weft_entry *entry)
{
    weft_entry_queue *const queue = entry->queue;
    if (queue == NULL) return;
    if (entry->before != NULL)
        entry->before->after = entry->after;
    else
        queue->first = entry->after;
    if (entry->after != NULL)
        entry->after->before = entry->before;
    else
        queue->last = entry->before;
    entry->queue = NULL;
    entry->before = entry->after = NULL;
}

weft_entry *weft_entry_queue_pop(weft_entry_queue *queue)
{
    weft_entry *const first = queue->first;
    if (first != NULL) weft_entry_queue_remove(first);
    return first;
}
