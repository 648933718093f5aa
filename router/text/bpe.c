#include "router/text/bpe.h"

#include <stdbool.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/hash.h"
#include "node/base/mem.h"
#include "router/text/grow.h"

typedef struct weft_bpe_symbol {
    int32_t id;         /* -1: joined to the one before it */
    int32_t prev, next; /* -1: none */
} symbol;

typedef struct weft_bpe_candidate {
    uint64_t order; /* rank << 32 | place: leftmost of equal ranks first */
    int32_t id;     /* what the pair joins to */
} candidate;

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static weft_merge *slot_of(const weft_bpe *bpe, uint64_t pair)
{
    size_t i = (size_t)weft_hash_mix(pair) & (bpe->n_slots - 1);
    while (bpe->merges[i].id >= 0 && bpe->merges[i].pair != pair)
        i = (i + 1) & (bpe->n_slots - 1);
    return &bpe->merges[i];
}

weft_status weft_bpe_reserve(weft_bpe *bpe, size_t n, weft_err *err)
{
    size_t n_slots = 2;
    while (n_slots < 2 * n) n_slots *= 2;
    bpe->merges = weft_mem_new(n_slots, sizeof *bpe->merges);
    if (bpe->merges == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %zu merges", n);
    bpe->n_slots = n_slots;
    for (size_t i = 0; i < n_slots; i++) bpe->merges[i].id = -1;
    return WEFT_OK;
}

void weft_bpe_deinit(weft_bpe *bpe)
{
    weft_mem_free(bpe->merges);
    bpe->merges = NULL;
    bpe->n_slots = 0;
}

void weft_bpe_add(weft_bpe *bpe, int32_t left, int32_t right, uint32_t rank,
                  int32_t id)
{
    WEFT_ASSERT(bpe->n_slots > 0 && id >= 0);
    *slot_of(bpe, pair_of(left, right)) =
        (weft_merge){.pair = pair_of(left, right), .rank = rank, .id = id};
}

const weft_merge *weft_bpe_find(const weft_bpe *bpe, int32_t left,
                                int32_t right)
{
    if (bpe->n_slots == 0) return NULL;
    const weft_merge *const slot = slot_of(bpe, pair_of(left, right));
    return slot->id < 0 ? NULL : slot;
}

weft_status weft_ids_add(weft_ids *ids, const int32_t *more, size_t n,
                         weft_err *err)
{
    if (n == 0) return WEFT_OK;
    void *const grown =
        weft_grow(ids->data, &ids->capacity, ids->n + n, sizeof *ids->data);
    if (grown == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %zu token ids", ids->n + n);
    ids->data = grown;
    memcpy(ids->data + ids->n, more, n * sizeof *more);
    ids->n += n;
    return WEFT_OK;
}

void weft_ids_deinit(weft_ids *ids)
{
    weft_mem_free(ids->data);
    *ids = (weft_ids){0};
}

void weft_bpe_scratch_deinit(weft_bpe_scratch *scratch)
{
    weft_mem_free(scratch->symbols);
    weft_mem_free(scratch->heap);
    *scratch = (weft_bpe_scratch){0};
}

/* A candidate for symbol `at` and the one after it, if they join. */
static weft_status offer(const weft_bpe *bpe, weft_bpe_scratch *s, int32_t at,
                         weft_err *err)
{
    const int32_t next = s->symbols[at].next;
    if (next < 0) return WEFT_OK;
    const weft_merge *const merge =
        weft_bpe_find(bpe, s->symbols[at].id, s->symbols[next].id);
    if (merge == NULL) return WEFT_OK;
    void *const grown =
        weft_grow(s->heap, &s->heap_capacity, s->heap_n + 1, sizeof *s->heap);
    if (grown == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for %zu merge candidates", s->heap_n + 1);
    s->heap = grown;
    const candidate c = {.order = (uint64_t)merge->rank << 32 | (uint32_t)at,
                         .id = merge->id};
    size_t i = s->heap_n++;
    while (i > 0 && s->heap[(i - 1) / 2].order > c.order) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = c;
    return WEFT_OK;
}

static candidate pop(weft_bpe_scratch *s)
{
    const candidate top = s->heap[0];
    const candidate last = s->heap[--s->heap_n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->heap_n) break;
        if (child + 1 < s->heap_n &&
            s->heap[child + 1].order < s->heap[child].order)
            child++;
        if (s->heap[child].order >= last.order) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

/* A candidate is stale once either of its symbols has joined another. */
static bool stale(const weft_bpe *bpe, const weft_bpe_scratch *s, int32_t at,
                  int32_t id)
{
    if (s->symbols[at].id < 0) return true;
    const int32_t next = s->symbols[at].next;
    if (next < 0) return true;
    const weft_merge *const merge =
        weft_bpe_find(bpe, s->symbols[at].id, s->symbols[next].id);
    return merge == NULL || merge->id != id;
}

static weft_status join(const weft_bpe *bpe, weft_bpe_scratch *s, int32_t at,
                        int32_t id, weft_err *err)
{
    symbol *const left = &s->symbols[at];
    symbol *const right = &s->symbols[left->next];
    left->id = id;
    left->next = right->next;
    right->id = -1;
    if (left->next >= 0) s->symbols[left->next].prev = at;
    if (left->prev >= 0) WEFT_TRY(offer(bpe, s, left->prev, err));
    return offer(bpe, s, at, err);
}

weft_status weft_bpe_encode(const weft_bpe *bpe, weft_bpe_scratch *scratch,
                            const char *bytes, size_t n, weft_ids *ids,
                            weft_err *err)
{
    if (n == 0) return WEFT_OK;
    void *const grown = weft_grow(scratch->symbols, &scratch->symbols_capacity,
                                  n, sizeof *scratch->symbols);
    if (grown == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a word of %zu bytes", n);
    scratch->symbols = grown;
    scratch->heap_n = 0;
    for (size_t i = 0; i < n; i++)
        scratch->symbols[i] = (symbol){
            .id = bpe->byte_ids[(uint8_t)bytes[i]],
            .prev = (int32_t)i - 1,
            .next = i + 1 < n ? (int32_t)i + 1 : -1,
        };
    for (size_t i = 0; i + 1 < n; i++)
        WEFT_TRY(offer(bpe, scratch, (int32_t)i, err));
    while (scratch->heap_n > 0) {
        const candidate top = pop(scratch);
        const int32_t at = (int32_t)(top.order & 0xFFFFFFFF);
        if (!stale(bpe, scratch, at, top.id))
            WEFT_TRY(join(bpe, scratch, at, top.id, err));
    }
    for (int32_t i = 0; i >= 0; i = scratch->symbols[i].next)
        WEFT_TRY(weft_ids_add(ids, &scratch->symbols[i].id, 1, err));
    return WEFT_OK;
}
