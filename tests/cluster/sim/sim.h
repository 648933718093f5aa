/* sim.h - a whole cluster in one process, in virtual time.
 *
 * The parts that decide are those of node/cluster: controller, agent, roster,
 * placement. Around them are models: a store with etcd's semantics, leads and
 * expert shards as abstract machines that follow exchange.h and server.h, and a
 * network that delays, reorders, repeats and loses. A seed decides everything.
 *
 * The computation is a toy: a token is a hash of the tokens before it, through
 * each expert that a step asks, so that a wrong or missing answer shows in the
 * tokens, which must be those of a run without faults.
 *
 * Mutations are bugs on purpose, chosen by number: the simulation must find
 * each.
 */
#ifndef WEFT_TESTS_CLUSTER_SIM_SIM_H
#define WEFT_TESTS_CLUSTER_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum sim_mutation {
    SIM_NONE = 0,
    SIM_LATE_ANSWER,      /* a lead believes whatever answers come */
    SIM_DOUBLE_EPOCH,     /* the store does not look at compares */
    SIM_RETIRE_EARLY,     /* the controller does not wait for leads */
    SIM_STUCK_PLAN,       /* a plan is never rolled back */
    SIM_LOST_EVENT,       /* changes get lost, and nobody lists again */
    SIM_ACK_UNCHECKED,    /* loaded bytes are not checked */
    SIM_SUSPECT_FOR_EVER, /* suspicions are not withdrawn */
    SIM_EPOCH_REUSED,     /* numbers that members have seen are not looked at */
    SIM_NO_INCARNATION,   /* a process that comes again is taken for the last */
    SIM_SWITCH_IN_STEP,   /* a lead takes the newest map for each layer */
    SIM_MUTATIONS,
};

const char *sim_mutation_name(enum sim_mutation mutation);

typedef struct sim_report {
    char failure[256]; /* "" : none */
    uint64_t at_ns;
    uint64_t n_events, n_steps, n_restarted, n_faults, n_commits, n_rollbacks;
    uint64_t n_stale; /* answers dropped */
    int32_t n_requests;
} sim_report;

/* trace NULL: quiet. */
void sim_run(uint64_t seed, enum sim_mutation mutation, FILE *trace,
             sim_report *report_out);

#endif
