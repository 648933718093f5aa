#include "node/base/ring.h"

#include <stdatomic.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/futex.h"
#include "node/base/mem.h"

/* A slot carries the turn it is in: 2 * lap while it is free for lap `lap`
 * (the positions lap * n_items ...), 2 * lap + 1 while it holds an item of that
 * lap. A pusher claims a position by raising `tail`, copies, and publishes by
 * raising the turn; the popper frees by raising it once more. After Vyukov's
 * bounded queue, with laps instead of positions so that one slot is enough.
 *
 * Sleeping: the popper sets `waiting` and looks once more before it sleeps; a
 * pusher publishes and then looks at `waiting`. All sequentially consistent:
 * one of them sees the other.
 */
enum { LINE_BYTES = 64 };

struct weft_ring {
    _Alignas(LINE_BYTES) _Atomic uint64_t tail; /* next position to claim */
    _Alignas(LINE_BYTES) uint64_t head;         /* the popper's alone */
    _Alignas(LINE_BYTES) _Atomic uint32_t waiting;
    _Atomic uint32_t signal; /* the futex; rises */
    _Atomic uint32_t woken;  /* weft_ring_wake was called */

    size_t item_bytes, n_items;
    _Atomic uint64_t *turns; /* [n_items] */
    unsigned char *items;    /* [n_items, item_bytes] */
};

weft_status weft_ring_create(size_t item_bytes, size_t n_items,
                             weft_ring **ring_out, weft_err *err)
{
    if (item_bytes == 0 || n_items == 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a ring of %zu items of %zu bytes", n_items,
                         item_bytes);
    weft_ring *const ring = weft_mem_new_aligned(LINE_BYTES, sizeof *ring);
    if (ring != NULL) {
        memset(ring, 0, sizeof *ring);
        ring->item_bytes = item_bytes;
        ring->n_items = n_items;
        ring->turns = weft_mem_new(n_items, sizeof *ring->turns);
        ring->items = weft_mem_new(n_items, item_bytes);
    }
    if (ring == NULL || ring->turns == NULL || ring->items == NULL) {
        weft_ring_destroy(ring);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a ring of %zu items of %zu bytes",
                         n_items, item_bytes);
    }
    *ring_out = ring;
    return WEFT_OK;
}

void weft_ring_destroy(weft_ring *ring)
{
    if (ring == NULL) return;
    weft_mem_free(ring->turns);
    weft_mem_free(ring->items);
    weft_mem_free(ring);
}

/* The item is stored before `waiting` is read, and the popper stores `waiting`
 * before it looks for items: one of them sees the other. The fences say so once
 * more, for machines (an emulator of aarch64 is one) that let a load pass an
 * earlier store though both are sequentially consistent. */
static void notify(weft_ring *ring)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load(&ring->waiting) == 0) return;
    if (atomic_exchange(&ring->waiting, 0) == 0) return; /* another did */
    atomic_fetch_add(&ring->signal, 1);
    weft_futex_wake(&ring->signal, 1);
}

bool weft_ring_push(weft_ring *ring, const void *item)
{
    uint64_t at = atomic_load(&ring->tail);
    for (;;) {
        const uint64_t free_turn = 2 * (at / ring->n_items);
        const uint64_t turn = atomic_load(&ring->turns[at % ring->n_items]);
        if (turn < free_turn) return false; /* an item of the lap before */
        if (turn > free_turn) {             /* another pusher was faster */
            at = atomic_load(&ring->tail);
            continue;
        }
        if (atomic_compare_exchange_weak(&ring->tail, &at, at + 1)) break;
    }
    const size_t slot = (size_t)(at % ring->n_items);
    memcpy(ring->items + slot * ring->item_bytes, item, ring->item_bytes);
    atomic_store(&ring->turns[slot], 2 * (at / ring->n_items) + 1);
    notify(ring);
    return true;
}

static bool has_item(weft_ring *ring)
{
    const uint64_t at = ring->head;
    return atomic_load(&ring->turns[at % ring->n_items]) ==
           2 * (at / ring->n_items) + 1;
}

bool weft_ring_pop(weft_ring *ring, void *item_out)
{
    if (!has_item(ring)) return false;
    const uint64_t at = ring->head;
    const size_t slot = (size_t)(at % ring->n_items);
    memcpy(item_out, ring->items + slot * ring->item_bytes, ring->item_bytes);
    atomic_store(&ring->turns[slot], 2 * (at / ring->n_items) + 2);
    ring->head = at + 1;
    return true;
}

void weft_ring_wait(weft_ring *ring, uint64_t deadline_ns)
{
    for (;;) {
        const uint32_t signal = atomic_load(&ring->signal);
        atomic_store(&ring->waiting, 1);
        atomic_thread_fence(memory_order_seq_cst);
        if (has_item(ring) || atomic_exchange(&ring->woken, 0) != 0) break;
        if (deadline_ns != UINT64_MAX && weft_clock_now_ns() >= deadline_ns)
            break;
        weft_futex_wait(&ring->signal, signal, deadline_ns);
    }
    atomic_store(&ring->waiting, 0);
}

void weft_ring_wake(weft_ring *ring)
{
    atomic_store(&ring->woken, 1);
    notify(ring);
}
