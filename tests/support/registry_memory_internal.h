/* registry_memory_internal.h - the store of registry_memory.h, for the handles
 * on it. The lock is held in every call but the first three.
 */
#ifndef WEFT_TESTS_SUPPORT_REGISTRY_MEMORY_INTERNAL_H
#define WEFT_TESTS_SUPPORT_REGISTRY_MEMORY_INTERNAL_H

#include <pthread.h>

#include "tests/support/registry_memory.h"

#define MS UINT64_C(1000000)

struct memory_entry {
    char key[WEFT_KEY_BYTES];
    weft_span value;
    int64_t revision;
    uint64_t lease; /* 0: none */
};

/* What has happened, in order. */
struct memory_change {
    char key[WEFT_KEY_BYTES];
    bool put;
    weft_span value; /* own copy */
    int64_t revision;
    uint64_t at_ns;
};

struct memory_lease {
    uint64_t id, ends_ns;
};

struct memory_store {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool threaded, away;
    uint64_t now_ns, lease_ids;
    int64_t revision;
    uint64_t generation; /* of the store: wiped so many times */
    struct memory_entry *entries;
    struct memory_change *changes;
    struct memory_lease *leases;
    int32_t n_entries, n_changes, n_leases;
    int32_t room_entries, room_changes, room_leases;
    int64_t n_forgotten; /* changes before changes[0] */
    int32_t n_handles;
};

/* Room for one more of n items; another place, perhaps. */
void *memory_grown(void *items, int32_t n, int32_t *room, size_t bytes);
weft_span memory_copy(weft_span from);
void memory_end_span(weft_span span);

uint64_t memory_now(const memory_store *s);
struct memory_entry *memory_find(const memory_store *s, const char *key);
/* Of the store's present revision. */
void memory_put(memory_store *s, const char *key, weft_span value,
                uint64_t lease);
void memory_drop(memory_store *s, struct memory_entry *e);

uint64_t memory_grant(memory_store *s, uint64_t ns);
struct memory_lease *memory_find_lease(memory_store *s, uint64_t id);
void memory_end_lease(memory_store *s, uint64_t id); /* with its keys */
void memory_end_leases(memory_store *s);             /* that have run out */

#endif
