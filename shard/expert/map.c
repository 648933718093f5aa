#include "shard/expert/map.h"

#include <stdatomic.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/mem.h"
#include "node/base/pack.h"

enum { EXPERTS_MAX = 1 << 16, LAYERS_MAX = 1 << 12 };

/* The map as it is kept; what is shared comes first. */
typedef struct counted {
    weft_expert_map map;
    atomic_int references;
} counted;

static size_t n_owners(const weft_expert_map *map)
{
    return (size_t)map->n_layer * (size_t)map->n_expert *
           (size_t)map->n_replicas;
}

weft_status weft_expert_map_create(uint64_t epoch, int32_t n_layer,
                                   int32_t n_expert, int32_t n_replicas,
                                   int32_t n_peers, weft_expert_map **map_out,
                                   weft_err *err)
{
    WEFT_ASSERT(n_layer >= 1 && n_layer <= LAYERS_MAX);
    WEFT_ASSERT(n_expert >= 1 && n_expert <= EXPERTS_MAX);
    WEFT_ASSERT(n_replicas >= 1 && n_replicas <= WEFT_REPLICAS_MAX);
    WEFT_ASSERT(n_peers >= 0 && n_peers <= WEFT_EXPERT_SHARDS_MAX);
    counted *const c = weft_mem_new(1, sizeof *c);
    if (c == NULL) goto no_memory;
    weft_expert_map *const map = &c->map;
    *map = (weft_expert_map){.epoch = epoch,
                             .n_layer = n_layer,
                             .n_expert = n_expert,
                             .n_replicas = n_replicas,
                             .n_peers = n_peers};
    atomic_init(&c->references, 1);
    map->peers = weft_mem_new((size_t)n_peers, sizeof *map->peers);
    map->owners = weft_mem_new(n_owners(map), sizeof *map->owners);
    if (map->peers == NULL || map->owners == NULL) {
        weft_expert_map_release(map);
        goto no_memory;
    }
    memset(map->owners, 0xff, n_owners(map) * sizeof *map->owners);
    *map_out = map;
    return WEFT_OK;
no_memory:
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "map of epoch %llu: out of memory",
                     (unsigned long long)epoch);
}

weft_expert_map *weft_expert_map_retain(weft_expert_map *map)
{
    counted *const c = (counted *)map;
    (void)atomic_fetch_add_explicit(&c->references, 1, memory_order_relaxed);
    return map;
}

void weft_expert_map_release(weft_expert_map *map)
{
    if (map == NULL) return;
    counted *const c = (counted *)map;
    const int before =
        atomic_fetch_sub_explicit(&c->references, 1, memory_order_acq_rel);
    WEFT_ASSERT(before >= 1);
    if (before > 1) return;
    weft_mem_free(map->peers);
    weft_mem_free(map->owners);
    weft_mem_free(c);
}

/* -- bytes ---------------------------------------------------------------- */

size_t weft_expert_map_bytes(const weft_expert_map *map)
{
    size_t n = 8 + 4 * 4 + n_owners(map) * sizeof *map->owners;
    for (int32_t i = 0; i < map->n_peers; i++)
        n += 4 + strlen(map->peers[i].id) + 4 + strlen(map->peers[i].address) +
             8;
    return n;
}

size_t weft_expert_map_encode(const weft_expert_map *map, void *bytes_out,
                              size_t capacity)
{
    weft_pack p = weft_pack_into(bytes_out, capacity);
    weft_pack_u64(&p, map->epoch);
    weft_pack_i32(&p, map->n_layer);
    weft_pack_i32(&p, map->n_expert);
    weft_pack_i32(&p, map->n_replicas);
    weft_pack_i32(&p, map->n_peers);
    for (int32_t i = 0; i < map->n_peers; i++) {
        weft_pack_text(&p, map->peers[i].id);
        weft_pack_text(&p, map->peers[i].address);
        weft_pack_u64(&p, map->peers[i].incarnation);
    }
    for (size_t i = 0; i < n_owners(map); i++)
        weft_pack_u16(&p, map->owners[i]);
    WEFT_ASSERT(!p.full);
    return p.n;
}

static weft_status decode_peers(weft_unpack *u, weft_expert_map *map,
                                weft_err *err)
{
    for (int32_t i = 0; i < map->n_peers; i++) {
        weft_peer *const peer = &map->peers[i];
        weft_unpack_text(u, peer->id, sizeof peer->id);
        weft_unpack_text(u, peer->address, sizeof peer->address);
        peer->incarnation = weft_unpack_u64(u);
        if (u->bad || peer->id[0] == '\0')
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "map: peer %d is malformed", i);
        for (int32_t j = 0; j < i; j++)
            if (strcmp(map->peers[j].id, peer->id) == 0)
                return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                                 "map: peer %s is there twice", peer->id);
    }
    return WEFT_OK;
}

/* Owners of one expert: indices in range, each once, what fills up last. */
static bool owners_are_sane(const uint16_t *owners, int32_t n, int32_t n_peers)
{
    for (int32_t i = 0; i < n; i++) {
        if (owners[i] == WEFT_NO_OWNER) continue;
        if (owners[i] >= n_peers) return false;
        for (int32_t j = 0; j < i; j++)
            if (owners[j] == owners[i] || owners[j] == WEFT_NO_OWNER)
                return false;
    }
    return true;
}

static weft_status decode_owners(weft_unpack *u, weft_expert_map *map,
                                 weft_err *err)
{
    for (size_t i = 0; i < n_owners(map); i++)
        map->owners[i] = weft_unpack_u16(u);
    if (!weft_unpack_done(u))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "map of epoch %llu: cut, or bytes are left over",
                         (unsigned long long)map->epoch);
    for (int32_t l = 0; l < map->n_layer; l++)
        for (int32_t e = 0; e < map->n_expert; e++)
            if (!owners_are_sane(weft_expert_map_owners(map, l, e),
                                 map->n_replicas, map->n_peers))
                return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                                 "map: owners of layer %d expert %d are "
                                 "malformed",
                                 l, e);
    return WEFT_OK;
}

weft_status weft_expert_map_decode(const void *bytes, size_t n, int32_t n_layer,
                                   int32_t n_expert, weft_expert_map **map_out,
                                   weft_err *err)
{
    weft_unpack u = weft_unpack_from(bytes, n);
    const uint64_t epoch = weft_unpack_u64(&u);
    const int32_t layers = weft_unpack_i32(&u);
    const int32_t experts = weft_unpack_i32(&u);
    const int32_t replicas = weft_unpack_i32(&u);
    const int32_t peers = weft_unpack_i32(&u);
    if (u.bad || epoch == 0 || replicas < 1 || replicas > WEFT_REPLICAS_MAX ||
        peers < 0 || peers > WEFT_EXPERT_SHARDS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "map: its head is malformed (%zu bytes)", n);
    if (layers != n_layer || experts != n_expert)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "map: of %d layers and %d experts; the model has %d "
                         "and %d",
                         layers, experts, n_layer, n_expert);
    const size_t owners_bytes =
        (size_t)layers * (size_t)experts * (size_t)replicas * sizeof(uint16_t);
    if (n < owners_bytes)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "map of epoch %llu: %zu bytes, its owners alone take "
                         "%zu",
                         (unsigned long long)epoch, n, owners_bytes);
    weft_expert_map *map = NULL;
    WEFT_TRY(weft_expert_map_create(epoch, layers, experts, replicas, peers,
                                    &map, err));
    WEFT_ASSERT(map != NULL);
    weft_status st = decode_peers(&u, map, err);
    if (st == WEFT_OK) st = decode_owners(&u, map, err);
    if (st != WEFT_OK) {
        weft_expert_map_release(map);
        return st;
    }
    *map_out = map;
    return WEFT_OK;
}
