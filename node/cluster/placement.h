/* placement.h - which expert shard serves which (layer, expert): pure policy.
 *
 * A pure function of (members with capacity, previous placement, load), so that
 * two who know the same compute the same, to the byte.
 *
 * Guarantees, each with a test of its name: complete (every routed expert has
 * min(replicas, members) owners, all different; fewer only where capacities do
 * not hold them, never none), balanced (floor(E * R / N) to ceil(E * R / N) of
 * a layer on a member, where capacities allow; a member that comes gets at
 * least the mean over all layers, rounded down), minimal (a member that comes
 * gains only what balance asks for, one that goes gives up only what it had;
 * everything else stays), stable (nothing changed: the same placement),
 * deterministic (independent of the order of members).
 *
 * `load` moves hot experts to emptier members, within the balance of counts,
 * and only where the gain is worth the bytes (each exchange takes at least
 * WEFT_PLACEMENT_GAIN_MIN off the busiest member's load; less where nothing was
 * placed before); the order of an expert's owners says who is asked first, and
 * a member's load is that of the experts it is asked first for.
 *
 * Pure. Threads: any.
 */
#ifndef WEFT_NODE_CLUSTER_PLACEMENT_H
#define WEFT_NODE_CLUSTER_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/expert/map.h"

#define WEFT_PLACEMENT_GAIN_MIN 0.05

typedef struct weft_placement_shape {
    int32_t n_layer, n_expert;
    const bool *moe;             /* [n_layer]: has routed experts; borrowed */
    const int64_t *expert_bytes; /* [n_layer]: of one; borrowed; NULL: 1 */
} weft_placement_shape;

typedef struct weft_placement_member {
    char id[WEFT_ID_BYTES];
    uint64_t incarnation;
    char address[WEFT_ADDRESS_BYTES];
    int64_t capacity_bytes; /* 0: no limit */
} weft_placement_member;

typedef struct weft_placement {
    uint64_t epoch;
    int32_t n_layer, n_expert, n_replicas; /* owners of each, at most */
    int32_t n_members;
    weft_placement_member *members; /* [n_members], in order of id */
    uint16_t *owners; /* [n_layer][n_expert][n_replicas]; as in map.h */
} weft_placement;

/* members [n], any order, ids distinct; previous NULL: none. load NULL: equal;
 * else [n_layer][n_expert], any unit. A member of the same id and another
 * incarnation holds nothing of before. The epoch is left 0.
 * FAILED_PRECONDITION: no members, or their capacities do not hold every expert
 * once: needed and available bytes in the text. INVALID_ARGUMENT: sizes, an id
 * twice. RESOURCE_EXHAUSTED: memory. */
WEFT_MUST_CHECK weft_status weft_placement_make(
    const weft_placement_shape *shape, const weft_placement_member *members,
    int32_t n_members, int32_t replicas, const weft_placement *previous,
    const float *load, weft_placement **placement_out, weft_err *err);
void weft_placement_destroy(weft_placement *placement); /* NULL is fine */
WEFT_MUST_CHECK weft_status weft_placement_copy(const weft_placement *placement,
                                                weft_placement **copy_out,
                                                weft_err *err);

/* The index of a member in it, -1: none. incarnation 0: any. */
int32_t weft_placement_find(const weft_placement *placement, const char *id,
                            uint64_t incarnation);
bool weft_placement_owns(const weft_placement *placement, int32_t member,
                         int32_t layer, int32_t expert);
int32_t weft_placement_count(const weft_placement *placement, int32_t member);
/* Same members and owners; the epoch is not looked at. */
bool weft_placement_equal(const weft_placement *a, const weft_placement *b);
/* Of members and owners. */
uint64_t weft_placement_hash(const weft_placement *placement);

typedef struct weft_placement_moves {
    int64_t n_gained, n_dropped; /* (member, expert) pairs */
    int64_t gained_bytes;
    /* Bytes: the least that any placement of these guarantees (load left
     * aside) could have gained. */
    int64_t gained_least;
    double imbalance; /* load of the busiest member over the mean */
} weft_placement_moves;
void weft_placement_compare(const weft_placement_shape *shape,
                            const weft_placement *from, /* NULL: nothing */
                            const weft_placement *to, const float *load,
                            weft_placement_moves *moves_out);

/* The form of the data path. */
WEFT_MUST_CHECK weft_status weft_placement_to_map(
    const weft_placement *placement, weft_expert_map **map_out, weft_err *err);

#endif
