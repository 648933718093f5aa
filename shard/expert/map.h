/* map.h - who serves which expert, in one epoch: what the exchange looks up.
 *
 * The placement (node/cluster) decides it; this is its form on the data path,
 * sent from the lead to the other stages of its group as the body of a MAP
 * frame, so that a group is always of one mind about an epoch.
 *
 * Threads: read-only once made; shared by counting references.
 */
#ifndef WEFT_SHARD_EXPERT_MAP_H
#define WEFT_SHARD_EXPERT_MAP_H

#include "shard/link/dial.h"

enum {
    WEFT_REPLICAS_MAX = 4,
    WEFT_EXPERT_SHARDS_MAX = 1024,
};
#define WEFT_NO_OWNER UINT16_MAX

typedef struct weft_expert_map {
    uint64_t epoch;
    int32_t n_layer, n_expert; /* of the model; dense layers have no owners */
    int32_t n_replicas;        /* owners of each expert at most */
    int32_t n_peers;
    weft_peer *peers; /* [n_peers] */
    /* [n_layer][n_expert][n_replicas] indices into peers; WEFT_NO_OWNER fills
     * up. The order of owners says who is asked first. */
    uint16_t *owners;
} weft_expert_map;

/* A map without owners; peers and owners are to be filled before it is shared.
 * One reference is the caller's. */
WEFT_MUST_CHECK weft_status weft_expert_map_create(
    uint64_t epoch, int32_t n_layer, int32_t n_expert, int32_t n_replicas,
    int32_t n_peers, weft_expert_map **map_out, weft_err *err);
weft_expert_map *weft_expert_map_retain(weft_expert_map *map);
void weft_expert_map_release(weft_expert_map *map); /* NULL is fine */

static inline uint16_t *weft_expert_map_owners(const weft_expert_map *map,
                                               int32_t layer, int32_t expert)
{
    return map->owners +
           ((int64_t)layer * map->n_expert + expert) * map->n_replicas;
}

/* The body of a MAP frame. */
size_t weft_expert_map_bytes(const weft_expert_map *map);
size_t weft_expert_map_encode(const weft_expert_map *map, void *bytes_out,
                              size_t capacity);
/* INVALID_ARGUMENT: malformed, or not of this model. */
WEFT_MUST_CHECK weft_status weft_expert_map_decode(const void *bytes, size_t n,
                                                   int32_t n_layer,
                                                   int32_t n_expert,
                                                   weft_expert_map **map_out,
                                                   weft_err *err);

#endif
