/* controller.h - who changes the epoch, and when: pure policy of the elected
 * router.
 *
 *   plan     members or load have changed: write epoch/N/placement, N above any
 *            number ever seen
 *   ack      whoever gains experts has loaded them and said so, with the hash
 *            of this placement
 *   commit   compare-and-swap of epoch/current, if we are still the controller
 *   switch   every lead says that its steps are of N
 *   retire   epoch/retired = N - 1: old owners may let go; old keys go
 *
 * A plan of which a member has gone, drains or is suspected before it is
 * committed, whose acks do not come within plan_ns, or that somebody cannot
 * load, is rolled back (its keys go) and made again; whoever failed is given
 * nothing more than it has, and after another failure nothing, for a while. The
 * committed epoch serves on. Members that come while a plan is under way are
 * for the next. A lead that does not switch within switch_ns does not stop the
 * next change (nor does any while a member is lost), but nothing is retired
 * that it may still use while it is a member, or while it is known otherwise
 * that it does (weft_controller_set_in_use).
 *
 * Everybody whom a plan gives anything acknowledges it, so that all answer for
 * the epoch before anybody asks. Draining members are given nothing; once no
 * epoch above the retired one has them they are free to go. Suspected members
 * are treated as gone, at once; they come back when nobody suspects them.
 * Members of another model than the layer shards', or of another numeric
 * identity, are given nothing, and `waiting` says so.
 *
 * A store that has lost everything is filled again from what is known here:
 * the last committed epoch as it was; members that are missing are waited for
 * (settle_ns after the store answers again) before anything is planned without
 * them. Whenever a member has seen an epoch above the committed one, another
 * above both is made.
 *
 * The controller acts on the whole roster at every turn, never on the event, so
 * a lost or repeated event changes nothing. All its writes are transactions
 * that hold only while the controller key is its own.
 *
 * Pure: time is an argument, writes are answers. Threads: one owner.
 */
#ifndef WEFT_NODE_CLUSTER_CONTROLLER_H
#define WEFT_NODE_CLUSTER_CONTROLLER_H

#include "node/cluster/roster.h"

typedef struct weft_controller weft_controller;

typedef struct weft_controller_options {
    const weft_placement_shape *shape; /* borrowed */
    const char *id;                    /* of this router; copied */
    int32_t replicas;
    uint64_t settle_ns; /* 0: 3 s */
    /* Without any new ack, while everybody is there: long enough to load the
     * weights of a shard over a network. 0: 600 s. */
    uint64_t plan_ns;
    uint64_t switch_ns; /* 0: 10 s */
} weft_controller_options;

WEFT_MUST_CHECK weft_status
weft_controller_create(const weft_controller_options *options,
                       weft_controller **controller_out, weft_err *err);
void weft_controller_destroy(weft_controller *controller); /* NULL is fine */

/* Load of experts as leads count it, [n_layer][n_expert]; NULL: forget. */
void weft_controller_set_load(weft_controller *controller, const float *load);

/* The lowest epoch that leads are known to use, members or not: it is not
 * retired, nor are later ones. 0: none is known. */
void weft_controller_set_in_use(weft_controller *controller, uint64_t epoch);

/* Answers of the registry: transactions, lease, link; others are ignored. */
void weft_controller_take(weft_controller *controller,
                          const weft_registry_event *event, uint64_t now_ns);

/* What to write next, if anything: false: nothing now. At most one transaction
 * is under way; what it points to lives until the next call. *next_ns_out: when
 * to ask again at the latest. */
bool weft_controller_turn(weft_controller *controller,
                          const weft_roster *roster, uint64_t now_ns,
                          weft_txn *txn_out, uint64_t *next_ns_out);

typedef struct weft_controller_state {
    bool elected;
    uint64_t planned; /* epoch that is being prepared; 0: none */
    uint64_t n_plans, n_commits, n_rollbacks;
    int64_t moved_bytes, moved_least; /* over all commits */
    char waiting[160];                /* what a change waits for; "" */
} weft_controller_state;
void weft_controller_get_state(const weft_controller *controller,
                               weft_controller_state *state_out);

#endif
