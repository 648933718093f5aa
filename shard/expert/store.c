/* store.c - a table of experts, and the agreement of one loader and one server
 * on when an expert may go.
 *
 * The server counts its quiet moments in `passes`: odd while it serves, even
 * while it is away. Whoever drops an expert first takes it out of the table and
 * then reads the count: even, the server will not find it any more; odd, it may
 * hold it until the count changes. Table and count are sequentially consistent,
 * so of "the server finds the expert" and "the dropper sees it serving" at
 * least one is never missed. */
#include "shard/expert/store.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "node/base/check.h"
#include "node/base/futex.h"
#include "node/base/mem.h"

enum { BLOCK_ALIGN = 64, PLACE_ALIGN = 256 };

typedef struct held {
    atomic_bool there; /* the rest may be read */
    uint64_t hash;
    void *block;
    weft_mlp_weights weights; /* into block */
} held;

/* Of a device: equal places in one block. */
typedef struct places {
    unsigned char *block;
    int64_t bytes; /* of a place */
    int32_t *free; /* [n]: numbers of those that are */
    int32_t n, n_free;
} places;

struct weft_expert_store {
    int32_t n_layer, n_expert;
    weft_checkpoint *checkpoint;
    weft_memory memory; /* the checkpoint's */
    places places;
    int64_t *matrix_bytes; /* [n_layer]: of an expert's matrices */
    held *table;           /* [n_layer][n_expert] */

    _Atomic uint32_t passes;
    atomic_bool drop_waits;

    int64_t budget_bytes;
    _Atomic int64_t n_experts, used_bytes, loaded_bytes, n_loaded, n_dropped;
};

static bool is_on_host(const weft_expert_store *store)
{
    return weft_memory_is_host(&store->memory);
}

static int64_t block_bytes(const weft_expert_store *store, int32_t layer)
{
    if (!is_on_host(store)) return store->places.bytes;
    return (int64_t)weft_mem_aligned_bytes(BLOCK_ALIGN,
                                           (size_t)store->matrix_bytes[layer]);
}

/* NULL: there is no such expert. Layer and expert may come from a peer. */
static held *find(const weft_expert_store *store, int32_t layer, int32_t expert)
{
    if (layer < 0 || layer >= store->n_layer || expert < 0 ||
        expert >= store->n_expert)
        return NULL;
    return &store->table[(int64_t)layer * store->n_expert + expert];
}

static weft_status fill_sizes(weft_expert_store *store,
                              const weft_model_config *config, weft_err *err)
{
    for (int32_t l = 0; l < config->n_layer; l++)
        if (config->moe[l])
            WEFT_TRY(weft_checkpoint_expert_bytes(
                store->checkpoint, l, &store->matrix_bytes[l], err));
    return WEFT_OK;
}

weft_status weft_expert_store_budget(const weft_model_config *config,
                                     weft_checkpoint *checkpoint, int64_t n,
                                     int64_t *bytes_out, weft_err *err)
{
    int64_t most = 0, bytes = 0;
    for (int32_t l = 0; l < config->n_layer; l++) {
        if (!config->moe[l]) continue;
        WEFT_TRY(weft_checkpoint_expert_bytes(checkpoint, l, &bytes, err));
        if (bytes > most) most = bytes;
    }
    *bytes_out = n * ((most + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN);
    return WEFT_OK;
}

static weft_status take_places(weft_expert_store *store,
                               const weft_model_config *config, weft_err *err)
{
    places *const p = &store->places;
    int64_t n_layer = 0, most = 0;
    void *block = NULL;
    if (is_on_host(store)) return WEFT_OK;
    for (int32_t l = 0; l < config->n_layer; l++) {
        n_layer += config->moe[l];
        if (store->matrix_bytes[l] > most) most = store->matrix_bytes[l];
    }
    if (most == 0) { /* no layer has any */
        store->budget_bytes = 0;
        return WEFT_OK;
    }
    p->bytes = (most + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
    int64_t n = n_layer * store->n_expert;
    if (store->budget_bytes > 0 && store->budget_bytes / p->bytes < n)
        n = store->budget_bytes / p->bytes;
    store->budget_bytes = n * p->bytes;
    if (n == 0) return WEFT_OK;
    p->free = weft_mem_new((size_t)n, sizeof *p->free);
    if (p->free == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %lld places of experts", (long long)n);
    WEFT_TRY(weft_memory_alloc(&store->memory, store->budget_bytes, "experts",
                               &block, err));
    p->block = block;
    for (; p->n < n; p->n++) p->free[p->n] = (int32_t)(n - 1 - p->n);
    p->n_free = p->n;
    return WEFT_OK;
}

weft_status weft_expert_store_create(const weft_model_config *config,
                                     weft_checkpoint *checkpoint,
                                     int64_t budget_bytes,
                                     weft_expert_store **store_out,
                                     weft_err *err)
{
    if (config->n_expert == 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "the model has no routed experts to serve");
    const size_t n_layer = (size_t)config->n_layer;
    weft_expert_store *const store = weft_mem_new(1, sizeof *store);
    if (store == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a store of experts");
    store->n_layer = config->n_layer;
    store->n_expert = config->n_expert;
    store->checkpoint = checkpoint;
    store->memory = weft_checkpoint_memory(checkpoint);
    store->budget_bytes = budget_bytes;
    store->matrix_bytes = weft_mem_new(n_layer, sizeof *store->matrix_bytes);
    store->table =
        weft_mem_new(n_layer * (size_t)config->n_expert, sizeof *store->table);
    if (store->matrix_bytes == NULL || store->table == NULL) {
        weft_expert_store_destroy(store);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a table of %d experts in %d layers",
                         config->n_expert, config->n_layer);
    }
    weft_status st = fill_sizes(store, config, err);
    if (st == WEFT_OK) st = take_places(store, config, err);
    if (st != WEFT_OK) {
        weft_expert_store_destroy(store);
        return st;
    }
    *store_out = store;
    return WEFT_OK;
}

void weft_expert_store_destroy(weft_expert_store *store)
{
    if (store == NULL) return;
    const int64_t n = (int64_t)store->n_layer * store->n_expert;
    if (is_on_host(store))
        for (int64_t i = 0; store->table != NULL && i < n; i++)
            weft_mem_free(store->table[i].block);
    weft_memory_free(&store->memory, store->places.block);
    weft_mem_free(store->places.free);
    weft_mem_free(store->table);
    weft_mem_free(store->matrix_bytes);
    weft_mem_free(store);
}

int64_t weft_expert_store_bytes_of(const weft_expert_store *store,
                                   int32_t layer)
{
    return find(store, layer, 0) == NULL || store->matrix_bytes[layer] == 0
               ? 0
               : block_bytes(store, layer);
}

/* Room in the budget, and of the machine. */
static weft_status make_room(weft_expert_store *store, int32_t layer,
                             int32_t expert, void **block_out, weft_err *err)
{
    const int64_t need = block_bytes(store, layer);
    const int64_t used = atomic_load(&store->used_bytes);
    const int64_t total = store->budget_bytes;
    if ((total > 0 || !is_on_host(store)) && need > total - used)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "layer %d expert %d: the budget of experts has no "
                         "room: needed %lld bytes, free %lld, total %lld",
                         layer, expert, (long long)need,
                         (long long)(total - used), (long long)total);
    if (!is_on_host(store)) {
        places *const p = &store->places;
        *block_out = p->block + p->free[--p->n_free] * p->bytes;
        return WEFT_OK;
    }
    *block_out =
        weft_mem_new_aligned(BLOCK_ALIGN, (size_t)store->matrix_bytes[layer]);
    if (*block_out != NULL) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "layer %d expert %d: the machine has no memory: needed "
                     "%lld bytes, %lld hold experts already",
                     layer, expert, (long long)need, (long long)used);
}

/* Of a device the place is free, of the host the pages go back to the system
 * even where the heap keeps the block. */
static void give_back(weft_expert_store *store, void *block, int64_t bytes)
{
    places *const p = &store->places;
    if (!is_on_host(store)) {
        const int64_t at = (unsigned char *)block - p->block;
        p->free[p->n_free++] = (int32_t)(at / p->bytes);
        return;
    }
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    unsigned char *const at = block;
    const uintptr_t skip = (page - (uintptr_t)at % page) % page;
    const uintptr_t whole =
        (uintptr_t)bytes > skip ? ((uintptr_t)bytes - skip) / page * page : 0;
    if (whole > 0) (void)madvise(at + skip, whole, MADV_DONTNEED);
    weft_mem_free(block);
}

static weft_status fill(weft_expert_store *store, int32_t layer, int32_t expert,
                        held *h, weft_err *err)
{
    void *block = NULL;
    WEFT_TRY(make_room(store, layer, expert, &block, err));
    const int64_t before = weft_checkpoint_read_bytes(store->checkpoint);
    const weft_status st = weft_checkpoint_load_expert(
        store->checkpoint, layer, expert, block, store->matrix_bytes[layer],
        &h->weights, &h->hash, err);
    atomic_fetch_add(&store->loaded_bytes,
                     weft_checkpoint_read_bytes(store->checkpoint) - before);
    if (st != WEFT_OK) {
        give_back(store, block, store->matrix_bytes[layer]);
        return WEFT_WRAP(err, st, "layer %d expert %d", layer, expert);
    }
    h->block = block;
    return WEFT_OK;
}

weft_status weft_expert_store_load(weft_expert_store *store, int32_t layer,
                                   int32_t expert, uint64_t *hash_out,
                                   weft_err *err)
{
    held *const h = find(store, layer, expert);
    if (h == NULL || store->matrix_bytes[layer] == 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "layer %d expert %d: the model has no such expert",
                         layer, expert);
    if (!atomic_load(&h->there)) {
        WEFT_TRY(fill(store, layer, expert, h, err));
        atomic_fetch_add(&store->n_experts, 1);
        atomic_fetch_add(&store->n_loaded, 1);
        atomic_fetch_add(&store->used_bytes, block_bytes(store, layer));
        atomic_store(&h->there, true);
    }
    *hash_out = h->hash;
    return WEFT_OK;
}

static void wait_until_quiet(weft_expert_store *store)
{
    const uint32_t seen = atomic_load(&store->passes);
    if (seen % 2 == 0) return;
    atomic_store(&store->drop_waits, true);
    while (atomic_load(&store->passes) == seen)
        weft_futex_wait(&store->passes, seen, UINT64_MAX);
    atomic_store(&store->drop_waits, false);
}

void weft_expert_store_drop(weft_expert_store *store, int32_t layer,
                            int32_t expert)
{
    held *const h = find(store, layer, expert);
    if (h == NULL || !atomic_load(&h->there)) return;
    atomic_store(&h->there, false);
    wait_until_quiet(store);
    give_back(store, h->block, store->matrix_bytes[layer]);
    h->block = NULL;
    atomic_fetch_sub(&store->n_experts, 1);
    atomic_fetch_sub(&store->used_bytes, block_bytes(store, layer));
    atomic_fetch_add(&store->n_dropped, 1);
}

bool weft_expert_store_holds(const weft_expert_store *store, int32_t layer,
                             int32_t expert)
{
    const held *const h = find(store, layer, expert);
    return h != NULL && atomic_load(&h->there);
}

const weft_mlp_weights *weft_expert_store_get(const weft_expert_store *store,
                                              int32_t layer, int32_t expert)
{
    const held *const h = find(store, layer, expert);
    WEFT_ASSERT(atomic_load(&store->passes) % 2 == 1);
    return h != NULL && atomic_load(&h->there) ? &h->weights : NULL;
}

void weft_expert_store_quiesce(weft_expert_store *store, bool is_away)
{
    const uint32_t now = atomic_load(&store->passes);
    const bool was_away = now % 2 == 0;
    if (was_away && is_away) return;
    atomic_store(&store->passes, now + (was_away == is_away ? 2 : 1));
    if (!was_away && atomic_load(&store->drop_waits))
        weft_futex_wake(&store->passes, 1);
}

void weft_expert_store_get_stats(const weft_expert_store *store,
                                 weft_expert_store_stats *stats_out)
{
    *stats_out = (weft_expert_store_stats){
        .n_experts = atomic_load(&store->n_experts),
        .used_bytes = atomic_load(&store->used_bytes),
        .budget_bytes = store->budget_bytes,
        .loaded_bytes = atomic_load(&store->loaded_bytes),
        .n_loaded = atomic_load(&store->n_loaded),
        .n_dropped = atomic_load(&store->n_dropped),
    };
}
