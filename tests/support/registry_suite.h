/* registry_suite.h - what every registry that is written to must do; the same
 * tests for the one in memory and the one in etcd.
 */
#ifndef WEFT_TESTS_SUPPORT_REGISTRY_SUITE_H
#define WEFT_TESTS_SUPPORT_REGISTRY_SUITE_H

#include <check.h>

#include "node/cluster/registry.h"
#include "tests/support/registry_seen.h"

/* One store, made for one test, with handles on it. */
typedef struct registry_world {
    void (*begin)(void);
    void (*end)(void); /* the handles have ended */
    weft_registry *(*open)(uint64_t lease_ns, uint64_t relist_ns);
    /* A moment passes; until when a poll may wait. */
    uint64_t (*moment)(void);
    /* Nobody is answered; as it was before. */
    void (*away)(void);
    void (*back)(void);
    /* Back from away, empty, with revisions that start again. */
    void (*back_empty)(void);
    /* Nothing of before is known any more but the keys as they are. */
    void (*compact)(void);
} registry_world;

/* Adds the tests to the case. */
void registry_suite_add(TCase *tests, const registry_world *world);

/* Until `condition`, which may use the handles; 20 s at most. */
#define SEEN_UNTIL(world, handles, n_handles, condition)                       \
    do {                                                                       \
        const uint64_t seen_stop_ = seen_stop();                               \
        while (!(condition)) {                                                 \
            seen_poll_all((world), (handles), (n_handles));                    \
            ck_assert_msg(!seen_is_over(seen_stop_), "never: %s", #condition); \
        }                                                                      \
    } while (0)
uint64_t seen_stop(void);
bool seen_is_over(uint64_t stop_ns);
void seen_poll_all(const registry_world *world, seen *handles, int32_t n);

#endif
