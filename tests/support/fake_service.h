/* fake_service.h - a node without a model, behind the RPC server, for tests.
 *
 * One thread makes tokens for all calls in turn. What a Generate request asks
 * for is read from its fields: max_tokens tokens (16 if not set), token i being
 * i, with the text "i "; priority milliseconds between two tokens; logprobs top
 * entries. Texts have effects of their own: "fail" is UNAVAILABLE with a retry
 * hint of 1500 ms, "internal" is INTERNAL, "hold" makes no token until it is
 * let go, "stay" makes its tokens and then does not end until it is cancelled.
 *
 * Threads: any, for what is below.
 */
#ifndef WEFT_TESTS_SUPPORT_FAKE_SERVICE_H
#define WEFT_TESTS_SUPPORT_FAKE_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "node/rpc/service.h"

typedef struct weft_fake_service weft_fake_service;

typedef struct weft_fake_counts {
    int started;   /* Generate calls that arrived */
    int live;      /* and that are not ended */
    int cancelled; /* cancel was called for */
    int completed;
    int ended;              /* told by generate_ended */
    weft_status last_ended; /* the status told */
    long blocks_at_start;   /* weft_mem_live at the end of the last generate */
    weft_status last_why;   /* of the last cancel */
    int64_t tokens;         /* made */
    uint64_t last_deadline_ns; /* of the last Generate call */
} weft_fake_counts;

extern const weft_service_ops weft_fake_ops; /* arg: a weft_fake_service */

weft_fake_service *weft_fake_create(void); /* aborts if it cannot */
/* Ends what is live; only after the server has stopped. */
void weft_fake_destroy(weft_fake_service *fake);

weft_fake_counts weft_fake_read(weft_fake_service *fake);
/* Wait until `good` says so of the counts; false: 60 seconds have passed. */
bool weft_fake_wait(weft_fake_service *fake,
                    bool (*good)(const weft_fake_counts *counts, int value),
                    int value);

/* Refuse Generate calls with UNAVAILABLE. */
void weft_fake_drain(weft_fake_service *fake);
/* "hold" requests end with one token each. */
void weft_fake_let_go(weft_fake_service *fake);

#endif
