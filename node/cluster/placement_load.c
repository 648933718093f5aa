/* Load: who is asked first, and exchanges of hot experts for cold ones. */
#include <string.h>

#include "node/cluster/placement_internal.h"

void weft_placing_order(weft_placing *w)
{
    const weft_placement *p = w->p;
    const size_t bytes = (size_t)p->n_replicas * sizeof *p->owners;
    for (int32_t l = 0; l < p->n_layer; l++)
        for (int32_t e = 0; w->shape->moe[l] && e < p->n_expert; e++) {
            uint16_t *owners = weft_placement_owners(p, l, e);
            const uint16_t *kept = w->kept + (owners - p->owners);
            const double load = weft_placing_load(w, l, e);
            const int32_t n = weft_placing_n_owners(w, l, e);
            int32_t best = 0;
            if (n < 2 || memcmp(owners, kept, bytes) == 0) continue;
            w->busy[owners[0]] -= load;
            for (int32_t r = 1; r < n; r++)
                if (w->busy[owners[r]] < w->busy[owners[best]]) best = r;
            const uint16_t first = owners[best];
            owners[best] = owners[0];
            owners[0] = first;
            w->busy[first] += load;
        }
}

/* What one change does to the busier of its two members. */
struct change {
    double gain;
    int32_t layer, expert, slot; /* the expert's first owner <-> its owner
                                    there; or, slot 0: with `other` */
    int32_t other;
};

static double gain_of(const weft_placing *w, int32_t busy, int32_t idle,
                      double moved)
{
    const double a = w->busy[busy] - moved, b = w->busy[idle] + moved;
    return w->busy[busy] - (a > b ? a : b);
}

/* Another owner is asked first: costs no bytes. */
static void try_turns(const weft_placing *w, int32_t busy, int32_t l, int32_t e,
                      struct change *best)
{
    const uint16_t *owners = weft_placement_owners(w->p, l, e);
    for (int32_t r = 1; r < weft_placing_n_owners(w, l, e); r++) {
        const double gain =
            gain_of(w, busy, owners[r], weft_placing_load(w, l, e));
        if (gain > best->gain)
            *best = (struct change){
                .gain = gain, .layer = l, .expert = e, .slot = r};
    }
}

/* The two swap an expert each, of one layer, so that counts stay. */
static void try_swaps(const weft_placing *w, int32_t busy, int32_t idle,
                      int32_t l, int32_t e, struct change *best)
{
    if (weft_placing_slot(w, l, e, idle) >= 0) return;
    const double load = weft_placing_load(w, l, e);
    if (load <= best->gain) return; /* moves no more than it has */
    for (int32_t f = 0; f < w->p->n_expert; f++) {
        if (weft_placement_owners(w->p, l, f)[0] != idle ||
            weft_placing_slot(w, l, f, busy) >= 0)
            continue;
        const double gain =
            gain_of(w, busy, idle, load - weft_placing_load(w, l, f));
        if (gain > best->gain)
            *best = (struct change){
                .gain = gain, .layer = l, .expert = e, .other = f};
    }
}

static void apply(weft_placing *w, const struct change *c, int32_t busy,
                  int32_t idle)
{
    uint16_t *owners = weft_placement_owners(w->p, c->layer, c->expert);
    if (c->slot == 0) {
        weft_placing_put(w, c->layer, c->expert, 0, idle);
        weft_placing_put(w, c->layer, c->other, 0, busy);
        return;
    }
    const double load = weft_placing_load(w, c->layer, c->expert);
    w->busy[owners[0]] -= load;
    w->busy[owners[c->slot]] += load;
    owners[0] = owners[c->slot];
    owners[c->slot] = (uint16_t)busy;
}

/* The best change for the busiest member; turns before swaps. */
static bool improve(weft_placing *w, double gain_min)
{
    int32_t busy = 0, idle = 0;
    for (int32_t i = 1; i < w->n; i++) {
        if (w->busy[i] > w->busy[busy]) busy = i;
        if (w->busy[i] < w->busy[idle]) idle = i;
    }
    const double least = gain_min * w->busy[busy];
    for (int32_t kind = 0; kind < 2; kind++) {
        struct change best = {.gain = 0};
        for (int32_t l = 0; l < w->p->n_layer; l++)
            for (int32_t e = 0; w->shape->moe[l] && e < w->p->n_expert; e++) {
                if (weft_placement_owners(w->p, l, e)[0] != busy) continue;
                if (kind == 0)
                    try_turns(w, busy, l, e, &best);
                else
                    try_swaps(w, busy, idle, l, e, &best);
            }
        if (best.gain > 0 && best.gain >= least) {
            apply(w, &best, busy, idle);
            return true;
        }
    }
    return false;
}

void weft_placing_even_load(weft_placing *w, double gain_min)
{
    /* Each improvement lowers the sum of squares, so this ends by itself; the
     * bound is for the time it may take. */
    for (int32_t i = 0; i < 4 * w->n + 256; i++)
        if (!improve(w, gain_min)) return;
}
