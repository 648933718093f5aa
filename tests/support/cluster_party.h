/* cluster_party.h - members of one cluster in one process: each a weft_cluster
 * with callbacks that keep what they were told and do what a process of its
 * role does at once (load, switch), unless told not to.
 *
 * Threads: the test's; what callbacks write is read under one lock.
 */
#ifndef WEFT_TESTS_SUPPORT_CLUSTER_PARTY_H
#define WEFT_TESTS_SUPPORT_CLUSTER_PARTY_H

#include "node/cluster/cluster.h"

enum { PARTY_MAX = 12, PARTY_LAYERS = 4, PARTY_EXPERTS = 12 };

typedef struct party_member {
    weft_cluster *cluster; /* NULL: not there */
    weft_member self;
    uint64_t incarnation;
    bool loads, switches; /* at once; may be changed before begin */
    bool cannot_load;
    weft_member_state wants; /* set after a load [SERVING] */
    /* As told. */
    char members[512];                /* "id:state id:state ..." */
    int32_t n_members, n_members_min; /* min: since party_watch */
    uint64_t epoch, epoch_lowered;    /* lowered: times that it went down */
    weft_placement *placement;
    uint64_t prepared, retired, first, last;
    int32_t n_prepared, n_epochs;
    bool fenced;
    char fenced_text[200];
} party_member;

typedef struct party_world {
    void (*begin)(void);
    void (*end)(void);
    weft_registry *(*open)(void);
    bool is_static;
    void (*away)(void);
    void (*back)(void);
    void (*back_empty)(void);
} party_world;

/* All zero but the world. */
void party_begin(const party_world *world);
void party_end(void); /* whoever is left stops */
extern party_member party[PARTY_MAX];

/* Starts member i; a router controls. Does not wait. */
void party_start(int i, weft_role role, const char *id, int32_t group);
void party_register(int i); /* waits for it; 20 s at most */
void party_stop(int i);

/* Until something may have changed, at most a moment; under no lock. */
void party_moment(void);
bool party_is_over(uint64_t stop_ns);
uint64_t party_stop_time(void);

/* Under the lock, so that the condition may look at `party`. */
void party_lock(void);
void party_unlock(void);

#define PARTY_UNTIL(condition)                                                 \
    do {                                                                       \
        const uint64_t party_stop_ = party_stop_time();                        \
        for (;;) {                                                             \
            party_lock();                                                      \
            const bool party_met_ = (condition);                               \
            party_unlock();                                                    \
            if (party_met_) break;                                             \
            ck_assert_msg(!party_is_over(party_stop_), "never: %s",            \
                          #condition);                                         \
            party_moment();                                                    \
        }                                                                      \
    } while (0)

/* What a member has, of the placement that `who` was told last; -1: none. */
int32_t party_owned(int who, const char *id);
/* Every expert of it has `replicas` owners. */
bool party_is_complete(int who, int32_t replicas);
/* Whether `who` was told of a member, and as what. */
bool party_shows(int who, const char *id, weft_member_state state);
bool party_knows(int who, const char *id);

#endif
