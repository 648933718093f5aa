#include "tests/support/cluster_party.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "node/base/clock.h"
#include "tests/support/expect.h"

#define MS UINT64_C(1000000)

party_member party[PARTY_MAX];

static const party_world *world;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told;

static const bool moe[PARTY_LAYERS] = {false, true, true, true};
static const int64_t expert_bytes[PARTY_LAYERS] = {0, 100, 100, 100};
static const weft_placement_shape shape = {.n_layer = PARTY_LAYERS,
                                           .n_expert = PARTY_EXPERTS,
                                           .moe = moe,
                                           .expert_bytes = expert_bytes};

void party_lock(void)
{
    (void)pthread_mutex_lock(&lock);
}

void party_unlock(void)
{
    (void)pthread_mutex_unlock(&lock);
}

uint64_t party_stop_time(void)
{
    return weft_clock_now_ns() + 30000 * MS;
}

bool party_is_over(uint64_t stop_ns)
{
    return weft_clock_now_ns() > stop_ns;
}

void party_moment(void)
{
    const uint64_t until = weft_clock_now_ns() + 20 * MS;
    const struct timespec at = {(time_t)(until / (1000 * MS)),
                                (long)(until % (1000 * MS))};
    party_lock();
    (void)pthread_cond_timedwait(&told, &lock, &at);
    party_unlock();
}

/* --- callbacks ----------------------------------------------------------- */

static void note(void)
{
    (void)pthread_cond_broadcast(&told);
    party_unlock();
}

static void on_members(void *arg, const weft_member *members, int32_t n)
{
    party_member *p = arg;
    size_t at = 0;
    party_lock();
    p->n_members = n;
    if (n < p->n_members_min) p->n_members_min = n;
    p->members[0] = '\0';
    for (int32_t i = 0; i < n && at < sizeof p->members; i++)
        at += (size_t)snprintf(p->members + at, sizeof p->members - at,
                               "%s:%s ", members[i].id,
                               weft_member_state_name(members[i].state));
    note();
}

static void on_epoch(void *arg, const weft_placement *placement)
{
    party_member *p = arg;
    party_lock();
    if (placement->epoch <= p->epoch) p->epoch_lowered++;
    p->epoch = placement->epoch;
    weft_placement_destroy(p->placement);
    p->placement = NULL;
    OK(weft_placement_copy(placement, &p->placement, &err));
    weft_cluster *const cluster = p->cluster;
    const bool switches = p->switches && p->self.role == WEFT_ROLE_LAYERS;
    note();
    if (switches && cluster != NULL)
        weft_cluster_switched(cluster, placement->epoch);
}

static void on_prepare(void *arg, const weft_placement *placement)
{
    party_member *p = arg;
    party_lock();
    p->prepared = placement->epoch;
    p->n_prepared++;
    weft_cluster *const cluster = p->cluster;
    const bool loads = p->loads, cannot = p->cannot_load;
    note();
    if (cluster == NULL) return;
    if (cannot) {
        weft_cluster_loaded(cluster, placement->epoch, 0, "no such file");
    } else if (loads) {
        weft_cluster_loaded(cluster, placement->epoch, 1, NULL);
        weft_cluster_set_state(cluster, p->wants);
    }
}

static void on_retire(void *arg, uint64_t retired)
{
    party_member *p = arg;
    party_lock();
    p->retired = retired;
    note();
}

static void on_epochs(void *arg, uint64_t first, uint64_t last)
{
    party_member *p = arg;
    party_lock();
    p->first = first;
    p->last = last;
    p->n_epochs++;
    note();
}

static void on_fenced(void *arg, const char *text)
{
    party_member *p = arg;
    party_lock();
    p->fenced = true;
    (void)snprintf(p->fenced_text, sizeof p->fenced_text, "%s", text);
    note();
}

/* --- members ------------------------------------------------------------- */

void party_begin(const party_world *w)
{
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&told, &attr);
    (void)pthread_condattr_destroy(&attr);
    memset(party, 0, sizeof party);
    for (int i = 0; i < PARTY_MAX; i++) {
        party[i].loads = party[i].switches = true;
        party[i].n_members_min = INT32_MAX;
        party[i].wants = WEFT_MEMBER_SERVING;
    }
    world = w;
    w->begin();
}

void party_end(void)
{
    for (int i = 0; i < PARTY_MAX; i++) party_stop(i);
    world->end();
}

void party_start(int i, weft_role role, const char *id, int32_t group)
{
    party_member *p = &party[i];
    weft_member *self = &p->self;
    *self =
        (weft_member){.role = role,
                      .group = group,
                      .n_stages = role == WEFT_ROLE_LAYERS,
                      .config_hash = 11,
                      .state = role == WEFT_ROLE_EXPERTS ? WEFT_MEMBER_JOINING
                                                         : WEFT_MEMBER_SERVING,
                      .weights_hash = role == WEFT_ROLE_ROUTER ? 0 : 22};
    (void)snprintf(self->id, sizeof self->id, "%s", id);
    (void)snprintf(self->address, sizeof self->address, "127.0.0.1:%d",
                   7000 + i);
    (void)snprintf(self->identity, sizeof self->identity, "%s",
                   role == WEFT_ROLE_ROUTER ? "" : "cpu");
    const weft_cluster_options options = {
        .registry = world->open(),
        .is_static = world->is_static,
        .self = *self,
        .shape = shape,
        .replicas = 1,
        .controls = role == WEFT_ROLE_ROUTER,
        .ops = {on_members, on_epoch, on_prepare, on_retire, on_epochs,
                on_fenced, NULL, p},
    };
    /* Callbacks wait until it is known whose they are. */
    party_lock();
    OK(weft_cluster_start(&options, &p->cluster, &err));
    party_unlock();
}

void party_register(int i)
{
    OK(weft_cluster_wait_registered(party[i].cluster, party_stop_time(),
                                    &party[i].incarnation, &err));
}

void party_stop(int i)
{
    party_lock();
    weft_cluster *const cluster = party[i].cluster;
    party_unlock();
    weft_cluster_stop(cluster);
    party_lock();
    party[i].cluster = NULL;
    weft_placement_destroy(party[i].placement);
    party[i].placement = NULL;
    party_unlock();
}

/* --- what they know ------------------------------------------------------ */

int32_t party_owned(int who, const char *id)
{
    const weft_placement *p = party[who].placement;
    const int32_t at = p != NULL ? weft_placement_find(p, id, 0) : -1;
    return at < 0 ? -1 : weft_placement_count(p, at);
}

bool party_is_complete(int who, int32_t replicas)
{
    const weft_placement *p = party[who].placement;
    int32_t n = 0;
    for (int32_t i = 0; p != NULL && i < p->n_members; i++)
        n += weft_placement_count(p, i);
    return n == 3 * PARTY_EXPERTS * replicas;
}

bool party_knows(int who, const char *id)
{
    char wanted[WEFT_ID_BYTES + 2];
    (void)snprintf(wanted, sizeof wanted, "%s:", id);
    return strstr(party[who].members, wanted) != NULL;
}

bool party_shows(int who, const char *id, weft_member_state state)
{
    char wanted[WEFT_ID_BYTES + 32];
    (void)snprintf(wanted, sizeof wanted, "%s:%s ", id,
                   weft_member_state_name(state));
    return strstr(party[who].members, wanted) != NULL;
}
