#include "router/deadlines.h"

#include "node/base/check.h"
#include "node/base/mem.h"

weft_status weft_deadlines_init(weft_deadlines *deadlines, int32_t capacity,
                                weft_err *err)
{
    weft_entry **const heap =
        weft_mem_new((size_t)capacity, sizeof(weft_entry *));
    if (heap == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the deadlines of %d requests",
                         capacity);
    *deadlines = (weft_deadlines){.heap = heap, .capacity = capacity};
    return WEFT_OK;
}

void weft_deadlines_deinit(weft_deadlines *deadlines)
{
    weft_mem_free(deadlines->heap);
    *deadlines = (weft_deadlines){0};
}

static uint64_t deadline_of(const weft_entry *entry)
{
    return entry->ask.job.deadline_ns;
}

/* Entries know their place, counted from 1: 0 is none. */
static void put(weft_deadlines *deadlines, int32_t at, weft_entry *entry)
{
    deadlines->heap[at] = entry;
    entry->deadline_place = at + 1;
}

static void rise(weft_deadlines *deadlines, int32_t at, weft_entry *entry)
{
    while (at > 0) {
        weft_entry *const parent = deadlines->heap[(at - 1) / 2];
        if (deadline_of(parent) <= deadline_of(entry)) break;
        put(deadlines, at, parent);
        at = (at - 1) / 2;
    }
    put(deadlines, at, entry);
}

static void sink(weft_deadlines *deadlines, int32_t at, weft_entry *entry)
{
    for (;;) {
        int64_t child = 2 * (int64_t)at + 1;
        if (child >= deadlines->n) break;
        weft_entry *const *const pair = &deadlines->heap[child];
        if (child + 1 < deadlines->n &&
            deadline_of(pair[1]) < deadline_of(pair[0]))
            child++;
        weft_entry *const least = deadlines->heap[child];
        if (deadline_of(entry) <= deadline_of(least)) break;
        put(deadlines, at, least);
        at = (int32_t)child;
    }
    put(deadlines, at, entry);
}

void weft_deadlines_add(weft_deadlines *deadlines, weft_entry *entry)
{
    if (deadline_of(entry) == UINT64_MAX) return;
    WEFT_ASSERT(deadlines->n < deadlines->capacity);
    rise(deadlines, deadlines->n++, entry);
}

void weft_deadlines_remove(weft_deadlines *deadlines, weft_entry *entry)
{
    const int32_t at = entry->deadline_place - 1;
    if (at < 0) return;
    entry->deadline_place = 0;
    weft_entry *const last = deadlines->heap[--deadlines->n];
    if (last == entry) return;
    /* The last one takes the hole; it may belong above or below. */
    if (deadline_of(last) < deadline_of(entry))
        rise(deadlines, at, last);
    else
        sink(deadlines, at, last);
}

weft_entry *weft_deadlines_first(const weft_deadlines *deadlines)
{
    return deadlines->n > 0 ? deadlines->heap[0] : NULL;
}

uint64_t weft_deadlines_next_ns(const weft_deadlines *deadlines)
{
    const weft_entry *const first = weft_deadlines_first(deadlines);
    return first != NULL ? deadline_of(first) : UINT64_MAX;
}
