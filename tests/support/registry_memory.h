/* registry_memory.h - a registry of one process: many handles on one store,
 * with the faults that a real one has.
 *
 * It behaves as the etcd registry does (tests/support/registry_suite.h holds
 * both to the same), and time is what the test says: poll never waits, unless
 * the store was made for threads.
 *
 * Threads: any, one for each handle.
 */
#ifndef WEFT_TESTS_SUPPORT_REGISTRY_MEMORY_H
#define WEFT_TESTS_SUPPORT_REGISTRY_MEMORY_H

#include "node/cluster/registry.h"

typedef struct memory_store memory_store;

/* threaded: time is the clock's, and poll waits. Else time begins at 1 s and
 * poll returns at once. */
memory_store *memory_store_create(bool threaded);
/* After its handles. */
void memory_store_destroy(memory_store *store);

uint64_t memory_store_now(const memory_store *store);
void memory_store_advance(memory_store *store, uint64_t ns);

/* Like weft_etcd_options; 0: the same defaults. */
typedef struct memory_options {
    uint64_t lease_ns, relist_ns, call_ns;
} memory_options;

weft_registry *memory_store_open(memory_store *store,
                                 const memory_options *options);

/* Empty again, with revisions that start anew, as after a restart in an empty
 * folder. */
void memory_store_wipe(memory_store *store);
/* Changes of before are forgotten: who has not seen them must list. */
void memory_store_compact(memory_store *store);
/* The store answers nobody. */
void memory_store_set_away(memory_store *store, bool away);
int64_t memory_store_revision(const memory_store *store);
/* The value, borrowed until the next write; NULL: no such key. */
const weft_span *memory_store_get(const memory_store *store, const char *key);
int32_t memory_store_count(const memory_store *store);

/* What may happen to one handle, from now on. */
typedef struct memory_faults {
    bool partitioned;      /* nothing comes through */
    int32_t lose_events;   /* the next n changes are not told, until the next
                              listing */
    int32_t repeat_events; /* the next n are told twice */
    uint64_t delay_ns;     /* how old a change is when it is told */
    int32_t lose_results;  /* of the next n transactions: they happen, and are
                              said to be UNAVAILABLE */
    int32_t refuse_txns;   /* the next n do not happen and are UNAVAILABLE */
    int32_t full;          /* the next n submits find too many under way */
} memory_faults;

void memory_registry_set_faults(weft_registry *registry,
                                const memory_faults *faults);
/* It lists again at its next poll. */
void memory_registry_relist(weft_registry *registry);
/* As the owner's death: no lease is given back. */
void memory_registry_kill(weft_registry *registry);

#endif
