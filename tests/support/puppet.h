/* puppet.h - an expert shard that does as it is told: answers rightly, a few
 * rows a frame, up to the moment at which it misbehaves.
 *
 * It stands for a shard of a pool that holds everything and is not running. */
#ifndef WEFT_TESTS_SUPPORT_PUPPET_H
#define WEFT_TESTS_SUPPORT_PUPPET_H

#include <pthread.h>
#include <stdatomic.h>

#include "tests/support/pool.h"

typedef enum puppet_act {
    PUPPET_GOOD,
    PUPPET_CLOSES,  /* ends its link */
    PUPPET_FREEZES, /* neither reads nor pulses until told to end */
    PUPPET_DAWDLES, /* pulses, and does not answer */
    PUPPET_STALE,   /* before each answer, wrong rows under names that differ in
                       one field each */
    PUPPET_REJECTS, /* n_rejects times; then answers */
    /* Once, with the right name: */
    PUPPET_FEW_PAIRS,    /* fewer pairs than rows */
    PUPPET_HUGE_COUNT,   /* a count beyond its body */
    PUPPET_LONG_BODY,    /* bytes are left over */
    PUPPET_PAIR_BEYOND,  /* a pair that no call has */
    PUPPET_PAIR_TWICE,   /* in one frame */
    PUPPET_PAIR_AGAIN,   /* one that it has answered */
    PUPPET_FOREIGN_PAIR, /* one that somebody else is asked */
    PUPPET_SHORT_ROWS,
    PUPPET_NO_ROWS,
    PUPPET_ODD_TYPE,
    PUPPET_ODD_REJECT,
    PUPPET_ACTS,
} puppet_act;

/* Names that a stale answer has. */
enum { PUPPET_STALE_NAMES = 9 };

typedef struct puppet {
    pool *pool;
    int32_t shard;
    puppet_act act;
    int32_t at;   /* the frame, from 0, at which it acts */
    int32_t rows; /* of a frame */
    int32_t n_rejects;
    weft_link *link; /* its own end */
    pthread_t thread;
    atomic_bool ends;
    atomic_int n_frames; /* right answers sent */
    atomic_int n_stale;
    _Atomic uint64_t acted_ns; /* 0: not yet */
} puppet;

/* Connects it to the exchange in place of the pool's shard, which must not be
 * running. `p` is set but for what this fills. */
void puppet_start(puppet *p, weft_exchange *exchange);
void puppet_stop(puppet *p);

#endif
