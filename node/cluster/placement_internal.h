/* placement_internal.h - what the files of placement.h share. */
#ifndef WEFT_NODE_CLUSTER_PLACEMENT_INTERNAL_H
#define WEFT_NODE_CLUSTER_PLACEMENT_INTERNAL_H

#include "node/cluster/placement.h"

/* Nobody owns anything; members are zero. */
weft_status weft_placement_new(int32_t n_layer, int32_t n_expert,
                               int32_t n_replicas, int32_t n_members,
                               weft_placement **placement_out, weft_err *err);

static inline uint16_t *weft_placement_owners(const weft_placement *p,
                                              int32_t layer, int32_t expert)
{
    return p->owners + ((int64_t)layer * p->n_expert + expert) * p->n_replicas;
}

static inline int64_t weft_shape_bytes(const weft_placement_shape *shape,
                                       int32_t layer)
{
    return shape->expert_bytes != NULL ? shape->expert_bytes[layer] : 1;
}

/* What one make works on. */
typedef struct weft_placing {
    const weft_placement_shape *shape;
    weft_placement *p;
    const float *load; /* as given */
    int32_t n;         /* members */
    int32_t wanted;    /* owners of each expert: min(replicas, n) */
    int32_t *counts;   /* [n_layer][n]: owned pairs */
    int32_t *totals;   /* [n] */
    int64_t *used;     /* [n]: bytes */
    double *busy;      /* [n]: load of the experts it is asked first for */
    bool *fresh;       /* [n]: had nothing before */
    bool *passed;      /* [n]: see pass_on */
    uint16_t *kept;    /* as p->owners: what stayed of before */
    double mean;       /* of busy */
    int64_t share;     /* of totals, rounded down */
} weft_placing;

static inline double weft_placing_load(const weft_placing *w, int32_t layer,
                                       int32_t expert)
{
    return w->load != NULL
               ? (double)w->load[(int64_t)layer * w->p->n_expert + expert]
               : 1.0;
}

static inline bool weft_placing_has_room(const weft_placing *w, int32_t member,
                                         int32_t layer)
{
    const int64_t capacity = w->p->members[member].capacity_bytes;
    return capacity == 0 ||
           capacity - w->used[member] >= weft_shape_bytes(w->shape, layer);
}

/* The place of the member among the owners, -1: it is none. */
int32_t weft_placing_slot(const weft_placing *w, int32_t layer, int32_t expert,
                          int32_t member);
/* Put `member` into a place; whoever has it loses it. */
void weft_placing_put(weft_placing *w, int32_t layer, int32_t expert,
                      int32_t slot, int32_t member);
/* Take the owner of a place away; those behind it move up. */
void weft_placing_drop(weft_placing *w, int32_t layer, int32_t expert,
                       int32_t slot);
int32_t weft_placing_n_owners(const weft_placing *w, int32_t layer,
                              int32_t expert);

/* Exchanges experts between the busiest and others while that is worth it. */
void weft_placing_even_load(weft_placing *w, double gain_min);
/* Who is asked first of the experts whose owners have changed. */
void weft_placing_order(weft_placing *w);

#endif
