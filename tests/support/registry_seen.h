/* registry_seen.h - one handle of a registry and all that it has told, kept as
 * an owner would: a mirror of the store, results, states.
 *
 * What the contract of registry.h rules out ends the test: a key told outside
 * a listing with a revision below an earlier one, a listing inside a listing, a
 * result that nobody waits for.
 */
#ifndef WEFT_TESTS_SUPPORT_REGISTRY_SEEN_H
#define WEFT_TESTS_SUPPORT_REGISTRY_SEEN_H

#include "node/cluster/registry.h"

enum { SEEN_RESULTS_MAX = 64 };

typedef struct seen_key {
    char key[WEFT_KEY_BYTES];
    char *value; /* NUL behind it */
    size_t n;
    int64_t revision;
    bool listed;
} seen_key;

typedef struct seen {
    weft_registry *registry;
    seen_key *keys;
    int32_t n_keys, room;
    bool in_listing;
    int32_t n_listings, n_puts, n_deletes;
    int64_t revision;
    weft_status link, lease; /* CANCELLED: not told */
    int32_t n_lease_ok, n_lease_lost;
    char link_text[256];
    uint64_t tags[SEEN_RESULTS_MAX]; /* under way: 0 is none */
    weft_status results[SEEN_RESULTS_MAX];
    bool done[SEEN_RESULTS_MAX];
    int32_t n_submitted;
} seen;

void seen_begin(seen *s, weft_registry *registry); /* takes it */
void seen_end(seen *s);    /* destroys the registry, 2 s at most */
void seen_forget(seen *s); /* the registry has ended otherwise */

void seen_poll(seen *s, uint64_t deadline_ns);

const seen_key *seen_find(const seen *s, const char *key);
bool seen_has(const seen *s, const char *key, const char *value);

/* One write. compare -1: none. Its number, for done and results. */
int32_t seen_put(seen *s, const char *key, const char *value, bool leased,
                 int64_t compare);
int32_t seen_remove(seen *s, const char *key, bool prefix);
int32_t seen_submit(seen *s, weft_txn *txn);

#endif
