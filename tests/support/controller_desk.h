/* controller_desk.h - a controller over a roster made by hand, in virtual time.
 */
#ifndef WEFT_TESTS_SUPPORT_CONTROLLER_DESK_H
#define WEFT_TESTS_SUPPORT_CONTROLLER_DESK_H

#include "tests/support/roster_kit.h"

#define MS UINT64_C(1000000)
#define S  (1000 * MS)

struct desk {
    kit *k;
    weft_controller *c;
    uint64_t now, next;
    int32_t n_txns; /* submitted */
};

/* With a lease, after settling. */
struct desk desk_of(const char *id, kit *k);
/* Experts e0 ... e(n-1) and one lead that has switched, at epoch 1. */
struct desk desk_settled(int32_t n);
void desk_end(struct desk *d);
void desk_finish(struct desk *d); /* and its kit */

/* One transaction, if one is due. */
bool desk_step(struct desk *d, const char *owner);
void desk_run(struct desk *d); /* all that are, as r0 */
void desk_wait(struct desk *d, uint64_t ns);

/* The lease, as the registry tells of it. */
void desk_take_lease(struct desk *d, weft_status st);
/* An expert shard joins, and is waited for others with. */
void desk_join(struct desk *d, const char *id);

weft_controller_state desk_state(const struct desk *d);
uint64_t desk_epoch(const struct desk *d);
uint64_t desk_hash(const struct desk *d, uint64_t n); /* of that placement */
/* Every member of the plan says that it has loaded; nothing is run. */
void desk_put_acks(struct desk *d, uint64_t n);
void desk_ack_all(struct desk *d, uint64_t n);

#endif
