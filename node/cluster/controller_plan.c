/* Plans: who takes part, when one is due, what has come of it, what is over. */
#include <stdio.h>
#include <string.h>

#include "node/base/hash.h"
#include "node/base/mem.h"
#include "node/cluster/controller_internal.h"

#define MS UINT64_C(1000000)
enum {
    GATHER_MS = 200,        /* members that come together are placed so, */
    GATHERED_MS = 2000,     /* if it does not take longer than this */
    FORGIVE_MS = 60 * 1000, /* how long a failure is remembered */
    FAILURES_MAX = WEFT_EXPERT_SHARDS_MAX,
};

/* -- failures -------------------------------------------------------------- */

static weft_failure *failure_of(const weft_controller *c, const char *id,
                                uint64_t incarnation)
{
    for (int32_t i = 0; i < c->n_failures; i++)
        if (c->failures[i].incarnation == incarnation &&
            strcmp(c->failures[i].id, id) == 0)
            return &c->failures[i];
    return NULL;
}

static void forget_failures(weft_controller *c, uint64_t now_ns,
                            uint64_t *next_ns)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < c->n_failures; i++) {
        if (c->failures[i].until_ns <= now_ns) continue;
        weft_controller_by(next_ns, c->failures[i].until_ns);
        c->failures[kept++] = c->failures[i];
    }
    c->n_failures = kept;
}

void weft_controller_fail(weft_controller *c, const char *id,
                          uint64_t incarnation, const char *text,
                          uint64_t now_ns)
{
    weft_failure *f = failure_of(c, id, incarnation);
    if (f == NULL) {
        const size_t n = (size_t)c->n_failures + 1;
        if (n > FAILURES_MAX) return;
        weft_failure *grown =
            weft_mem_resize(c->failures, n, sizeof *c->failures);
        if (grown == NULL) return; /* it is only tried again sooner */
        c->failures = grown;
        f = &c->failures[c->n_failures++];
        *f = (weft_failure){.incarnation = incarnation};
        (void)snprintf(f->id, sizeof f->id, "%s", id);
    }
    (void)snprintf(f->text, sizeof f->text, "%.90s", text);
    f->times++;
    f->until_ns = now_ns + FORGIVE_MS * MS;
}

/* -- who takes part -------------------------------------------------------- */

/* What shards must have in common: that of the first layer shard, else of the
 * first expert shard that has a place. */
static const weft_member *model_of(const weft_roster *roster,
                                   const weft_placement *placement)
{
    const weft_member *members, *found = NULL;
    const int32_t n = weft_roster_members(roster, &members);
    for (int32_t i = 0; i < n; i++) {
        const weft_member *m = &members[i];
        if (m->role == WEFT_ROLE_LAYERS) return m;
        if (found == NULL && m->role == WEFT_ROLE_EXPERTS &&
            placement != NULL &&
            weft_placement_find(placement, m->id, m->incarnation) >= 0)
            found = m;
    }
    return found;
}

static bool is_of_model(weft_controller *c, const weft_member *m,
                        const weft_member *model)
{
    if (model == NULL) return true;
    if (m->config_hash != model->config_hash ||
        (m->weights_hash != model->weights_hash && m->weights_hash != 0 &&
         model->weights_hash != 0)) {
        weft_controller_waits(c, "%s serves another model than %s", m->id,
                              model->id);
        return false;
    }
    if (!weft_identity_is_same_pool(m->identity, model->identity) &&
        m->identity[0] != '\0' && model->identity[0] != '\0') {
        weft_controller_waits(c, "%s computes as %.24s, %s as %.24s", m->id,
                              m->identity, model->id, model->identity);
        return false;
    }
    return true;
}

static int64_t bytes_held(const weft_controller *c,
                          const weft_placement *placement, int32_t member)
{
    int64_t bytes = 0;
    for (int32_t l = 0; member >= 0 && l < placement->n_layer; l++)
        for (int32_t e = 0; c->shape.moe[l] && e < placement->n_expert; e++)
            if (weft_placement_owns(placement, member, l, e))
                bytes += c->shape.expert_bytes != NULL
                             ? c->shape.expert_bytes[l]
                             : 1;
    return bytes;
}

/* Who has failed keeps what it has, and after another failure nothing. */
static bool limit_failed(const weft_controller *c,
                         const weft_placement *placement,
                         weft_placement_member *member)
{
    const weft_failure *f = failure_of(c, member->id, member->incarnation);
    if (f == NULL) return true;
    if (placement == NULL || f->times > 1) return false;
    const int64_t held = bytes_held(
        c, placement,
        weft_placement_find(placement, member->id, member->incarnation));
    if (held > 0) member->capacity_bytes = held;
    return held > 0;
}

static bool takes_part(weft_controller *c, const weft_roster *roster,
                       const weft_member *m, const weft_member *model)
{
    return m->role == WEFT_ROLE_EXPERTS && m->state != WEFT_MEMBER_DRAINING &&
           !weft_roster_is_suspect(roster, m) && is_of_model(c, m, model);
}

/* Who plans may know the config alone; those who hold experts know what one
 * takes. All layers count as the largest. */
static void learn_bytes(weft_controller *c, int64_t told)
{
    const size_t n = (size_t)c->shape.n_layer;
    const bool given = c->shape.expert_bytes != NULL && c->expert_bytes == NULL;
    if (given || told == 0 || told == c->told_bytes) return;
    if (c->expert_bytes == NULL)
        c->expert_bytes = weft_mem_new(n, sizeof *c->expert_bytes);
    if (c->expert_bytes == NULL) return;
    for (size_t l = 0; l < n; l++) c->expert_bytes[l] = told;
    c->shape.expert_bytes = c->expert_bytes;
    c->told_bytes = told;
}

bool weft_controller_eligible(weft_controller *c, const weft_roster *roster,
                              const weft_placement *placement,
                              weft_placement_member **members_out,
                              int32_t *n_out, bool *lost_out,
                              const char **missing_out)
{
    const weft_member *members;
    const int32_t n = weft_roster_members(roster, &members);
    const weft_member *const model = model_of(roster, placement);
    weft_placement_member *out = weft_mem_new((size_t)n + 1, sizeof *out);
    if (out == NULL) return false;
    int32_t kept = 0;
    int64_t told_bytes = 0;
    for (int32_t i = 0; i < n && kept < WEFT_EXPERT_SHARDS_MAX; i++) {
        const weft_member *m = &members[i];
        if (!takes_part(c, roster, m, model)) continue;
        if (m->expert_bytes > told_bytes) told_bytes = m->expert_bytes;
        weft_placement_member p = {.incarnation = m->incarnation,
                                   .capacity_bytes = m->capacity_bytes};
        memcpy(p.id, m->id, sizeof p.id);
        memcpy(p.address, m->address, sizeof p.address);
        if (limit_failed(c, placement, &p)) out[kept++] = p;
    }
    learn_bytes(c, told_bytes);
    *lost_out = false;
    *missing_out = NULL;
    for (int32_t i = 0; placement != NULL && i < placement->n_members; i++) {
        const weft_placement_member *p = &placement->members[i];
        bool is_in = false;
        for (int32_t k = 0; k < kept; k++)
            if (out[k].incarnation == p->incarnation &&
                strcmp(out[k].id, p->id) == 0)
                is_in = true;
        if (!is_in) *lost_out = true;
        if (weft_roster_find(roster, WEFT_ROLE_EXPERTS, p->id) == NULL)
            *missing_out = p->id;
    }
    *members_out = out;
    *n_out = kept;
    return true;
}

/* -- leads ----------------------------------------------------------------- */

/* The latest epoch that the lead says its steps are of; 0: none. */
static uint64_t epoch_of_lead(const weft_roster *roster,
                              const weft_member *lead)
{
    const weft_switched *switched;
    uint64_t latest = 0;
    const int32_t n = weft_roster_switched(roster, &switched);
    for (int32_t i = 0; i < n; i++)
        if (switched[i].group == (uint32_t)lead->group &&
            switched[i].incarnation == lead->incarnation &&
            switched[i].epoch > latest)
            latest = switched[i].epoch;
    return latest;
}

bool weft_controller_leads(const weft_roster *roster, uint64_t epoch,
                           uint64_t *least_out)
{
    const weft_member *members;
    const int32_t n = weft_roster_members(roster, &members);
    *least_out = epoch;
    for (int32_t i = 0; i < n; i++) {
        const weft_member *m = &members[i];
        if (m->role != WEFT_ROLE_LAYERS || m->stage != 0 ||
            m->state == WEFT_MEMBER_JOINING)
            continue;
        const uint64_t at = epoch_of_lead(roster, m);
        if (at < *least_out) *least_out = at;
    }
    return *least_out >= epoch;
}

/* -- planning -------------------------------------------------------------- */

static uint64_t hash_inputs(const weft_controller *c,
                            const weft_placement_member *members, int32_t n,
                            uint64_t epoch, uint64_t most)
{
    const uint64_t numbers[] = {epoch, most > epoch, c->n_loads, (uint64_t)n,
                                (uint64_t)c->told_bytes};
    uint64_t h = weft_hash_fnv(WEFT_FNV_START, numbers, sizeof numbers);
    for (int32_t i = 0; i < n; i++) {
        h = weft_hash_fnv(h, members[i].id, strlen(members[i].id) + 1);
        h = weft_hash_fnv(h, members[i].address,
                          strlen(members[i].address) + 1);
        h = weft_hash_fnv(h, &members[i].incarnation,
                          sizeof members[i].incarnation);
        h = weft_hash_fnv(h, &members[i].capacity_bytes,
                          sizeof members[i].capacity_bytes);
    }
    return h;
}

static bool write_plan(weft_controller *c, weft_placement *placement,
                       uint64_t now_ns, weft_txn *txn)
{
    char key[WEFT_KEY_BYTES];
    weft_err err = {0};
    placement->epoch = c->epoch_max + 1;
    if (placement->epoch >= WEFT_EPOCH_MAX) {
        weft_controller_waits(c, "there is no epoch number above %llu",
                              (unsigned long long)c->epoch_max);
        return false;
    }
    if (weft_placement_encode(placement, &c->value, &err) != WEFT_OK) {
        weft_controller_waits(c, "%.150s", err.text);
        return false;
    }
    c->epoch_max = placement->epoch;
    c->planned = placement->epoch;
    c->progress_ns = now_ns;
    c->n_acks = 0;
    (void)weft_key_of_placement(placement->epoch, key);
    weft_controller_begin(c, WEFT_WRITE_PLAN, txn);
    weft_txn_add_compare(txn, key, 0);
    weft_txn_add_put(txn, key, &c->value, false);
    return true;
}

/* Makes the placement; nothing is written where it is the committed one. */
static bool make(weft_controller *c, const weft_roster *roster,
                 const weft_placement_member *members, int32_t n,
                 uint64_t now_ns, weft_txn *txn)
{
    weft_err err = {0};
    weft_placement *placement = NULL;
    const weft_status st = weft_placement_make(
        &c->shape, members, n, c->replicas, c->last, c->load, &placement, &err);
    c->decided = c->inputs;
    c->refused[0] = '\0';
    if (st != WEFT_OK) {
        if (st == WEFT_RESOURCE_EXHAUSTED) c->decided = 0;
        (void)snprintf(c->refused, sizeof c->refused, "%.150s", err.text);
        return false;
    }
    const bool behind =
        c->last != NULL && weft_roster_epoch_max(roster) > c->last->epoch;
    bool writes = false;
    if (c->last == NULL || behind || !weft_placement_equal(placement, c->last))
        writes = write_plan(c, placement, now_ns, txn);
    weft_placement_destroy(placement);
    return writes;
}

/* Steps stand still while experts are of nobody. Who holds others reads them
 * soonest: it has no more to read, and it is known to answer. Who comes is
 * given its share after that. */
static bool make_best(weft_controller *c, const weft_roster *roster,
                      weft_placement_member *members, int32_t n,
                      uint64_t now_ns, weft_txn *txn)
{
    if (!weft_controller_uncovered(c, members, n))
        return make(c, roster, members, n, now_ns, txn);
    const int32_t known = weft_controller_known_first(c, members, n);
    if (known > 0 && known < n && make(c, roster, members, known, now_ns, txn))
        return true;
    if (!make(c, roster, members, n, now_ns, txn)) return false;
    c->with_all = c->planned;
    return true;
}

/* Whether the inputs have been the same for long enough; else *next_ns. */
static bool is_due(weft_controller *c, const weft_roster *roster, bool lost,
                   const char *missing, uint64_t now_ns, uint64_t *next_ns)
{
    uint64_t least, at = c->changed_ns + GATHER_MS * MS;
    if (at > c->gather_ns + GATHERED_MS * MS)
        at = c->gather_ns + GATHERED_MS * MS;
    if (missing != NULL && now_ns < c->settle_until_ns) {
        weft_controller_waits(c, "%s is missing; it may come back", missing);
        weft_controller_by(next_ns, c->settle_until_ns);
        return false;
    }
    if (lost) return true;
    if (c->last != NULL &&
        !weft_controller_leads(roster, c->last->epoch, &least)) {
        weft_controller_waits(c, "leads have not switched to epoch %llu",
                              (unsigned long long)c->last->epoch);
        if (c->committed_ns + c->switch_ns > at)
            at = c->committed_ns + c->switch_ns;
    }
    weft_controller_by(next_ns, at > now_ns ? at : UINT64_MAX);
    return now_ns >= at;
}

bool weft_controller_plan(weft_controller *c, const weft_roster *roster,
                          uint64_t now_ns, weft_txn *txn, uint64_t *next_ns)
{
    weft_placement_member *members = NULL;
    int32_t n = 0;
    bool lost = false, writes = false;
    const char *missing = NULL;
    forget_failures(c, now_ns, next_ns);
    if (!weft_controller_eligible(c, roster, c->last, &members, &n, &lost,
                                  &missing))
        return false;
    const uint64_t epoch = c->last != NULL ? c->last->epoch : 0;
    const uint64_t inputs =
        hash_inputs(c, members, n, epoch, weft_roster_epoch_max(roster));
    if (inputs != c->inputs) {
        if (c->decided == c->inputs) c->gather_ns = now_ns;
        c->inputs = inputs;
        c->changed_ns = now_ns;
        c->refused[0] = '\0';
    }
    if (n == 0)
        weft_controller_waits(c,
                              "no expert shard is there to be given experts");
    else if (c->decided != c->inputs &&
             is_due(c, roster, lost, missing, now_ns, next_ns))
        writes = make_best(c, roster, members, n, now_ns, txn);
    weft_mem_free(members);
    if (c->refused[0] != '\0')
        weft_controller_waits(c, "%s", c->refused);
    else if (c->state.waiting[0] == '\0' && c->n_failures > 0)
        weft_controller_waits(c, "%s could not load: %s", c->failures[0].id,
                              c->failures[0].text);
    return writes;
}

/* -- a plan under way ------------------------------------------------------ */

static const weft_ack *ack_of(const weft_roster *roster, uint64_t epoch,
                              const weft_placement_member *member,
                              uint64_t hash)
{
    const weft_ack *acks;
    const int32_t n = weft_roster_acks(roster, &acks);
    for (int32_t i = 0; i < n; i++)
        if (acks[i].epoch == epoch && acks[i].placement_hash == hash &&
            acks[i].incarnation == member->incarnation &&
            strcmp(acks[i].id, member->id) == 0)
            return &acks[i];
    return NULL;
}

/* Not what was committed since the roster heard: a commit whose answer was lost
 * may have happened. */
static bool roll_back(weft_controller *c, const weft_roster *roster,
                      uint64_t epoch, weft_txn *txn)
{
    char key[WEFT_KEY_BYTES];
    int64_t revision;
    (void)weft_roster_epoch(roster, &revision);
    (void)snprintf(key, sizeof key, "epoch/%llu/", (unsigned long long)epoch);
    weft_controller_begin(c, WEFT_WRITE_ROLLBACK, txn);
    weft_txn_add_compare(txn, WEFT_KEY_TEXT_CURRENT, revision);
    weft_txn_add_remove(txn, key, true);
    if (c->planned == epoch) c->planned = 0;
    c->decided = 0;
    return true;
}

static bool is_there(const weft_roster *roster,
                     const weft_placement_member *member)
{
    const weft_member *m =
        weft_roster_find(roster, WEFT_ROLE_EXPERTS, member->id);
    return m != NULL && m->incarnation == member->incarnation &&
           m->state != WEFT_MEMBER_DRAINING &&
           !weft_roster_is_suspect(roster, m);
}

static bool commit(weft_controller *c, const weft_roster *roster, weft_txn *txn)
{
    char key[WEFT_KEY_BYTES];
    int64_t revision;
    (void)weft_roster_epoch(roster, &revision);
    if (weft_number_encode(c->planned, &c->number, NULL) != WEFT_OK)
        return false;
    (void)weft_key_of_placement(c->planned, key);
    weft_controller_begin(c, WEFT_WRITE_COMMIT, txn);
    weft_txn_add_compare(txn, WEFT_KEY_TEXT_CURRENT, revision);
    weft_txn_add_compare(txn, key, weft_roster_revision(roster, key));
    weft_txn_add_put(txn, WEFT_KEY_TEXT_CURRENT, &c->number, false);
    return true;
}

/* Whether the plan waits for somebody who comes, while experts that others
 * could take are of nobody. */
static bool holds_up(weft_controller *c, const weft_roster *roster,
                     const weft_placement *plan,
                     const weft_placement_member *waiting)
{
    weft_placement_member *members = NULL;
    const char *missing;
    int32_t n;
    bool lost;
    if (c->last == NULL || plan->epoch == c->with_all ||
        weft_placement_find(c->last, waiting->id, waiting->incarnation) >= 0 ||
        !weft_controller_eligible(c, roster, c->last, &members, &n, &lost,
                                  &missing))
        return false;
    const bool holds = lost && weft_controller_uncovered(c, members, n);
    weft_mem_free(members);
    return holds;
}

/* What has come of the plan: everybody's ack, or a reason to end it. */
static bool look_at_plan(weft_controller *c, const weft_roster *roster,
                         const weft_placement *plan, uint64_t now_ns,
                         weft_txn *txn, uint64_t *next_ns)
{
    const uint64_t hash = weft_placement_hash(plan);
    const uint64_t deadline = c->progress_ns + c->plan_ns;
    const weft_placement_member *waiting = NULL;
    bool failed = false;
    int32_t n_acks = 0;
    for (int32_t i = 0; i < plan->n_members; i++) {
        const weft_placement_member *m = &plan->members[i];
        const weft_ack *ack = ack_of(roster, plan->epoch, m, hash);
        if (!is_there(roster, m)) return roll_back(c, roster, plan->epoch, txn);
        if (ack == NULL) {
            waiting = m;
            if (now_ns < deadline) continue;
        }
        if (ack == NULL || ack->failed) {
            weft_controller_fail(c, m->id, m->incarnation,
                                 ack != NULL ? ack->text : "no answer in time",
                                 now_ns);
            failed = true;
        }
        n_acks++;
    }
    if (failed) return roll_back(c, roster, plan->epoch, txn);
    if (n_acks > c->n_acks) {
        c->n_acks = n_acks;
        c->progress_ns = now_ns;
    }
    if (waiting == NULL) return commit(c, roster, txn);
    if (holds_up(c, roster, plan, waiting))
        return roll_back(c, roster, plan->epoch, txn);
    weft_controller_by(next_ns, c->progress_ns + c->plan_ns);
    weft_controller_waits(c,
                          "epoch %llu: %d of %d expert shards are ready, "
                          "%s is not",
                          (unsigned long long)plan->epoch, n_acks,
                          plan->n_members, waiting->id);
    return false;
}

/* The highest of the plans that the store has; others are of nobody. */
static uint64_t find_plan(const weft_roster *roster, uint64_t committed,
                          uint64_t *stale_out)
{
    uint64_t epochs[WEFT_EPOCHS_SHOWN_MAX], plan = 0;
    const int32_t n = weft_roster_epochs(roster, epochs, WEFT_EPOCHS_SHOWN_MAX);
    *stale_out = 0;
    for (int32_t i = 0; i < n; i++)
        if (epochs[i] > plan && epochs[i] > committed &&
            weft_roster_placement(roster, epochs[i]) != NULL)
            plan = epochs[i];
    for (int32_t i = 0; i < n; i++)
        if (epochs[i] > committed && epochs[i] != plan) *stale_out = epochs[i];
    return plan;
}

/* A member has seen this number or one above it committed, in a store that is
 * lost since: it would not take the plan for news. */
static bool is_outdated(const weft_roster *roster, uint64_t plan)
{
    const weft_member *members;
    const int32_t n = weft_roster_members(roster, &members);
    for (int32_t i = 0; i < n; i++)
        if (members[i].epoch >= plan) return true;
    return false;
}

bool weft_controller_check_plan(weft_controller *c, const weft_roster *roster,
                                uint64_t now_ns, weft_txn *txn,
                                uint64_t *next_ns)
{
    int64_t revision;
    uint64_t stale;
    const uint64_t committed = weft_roster_epoch(roster, &revision);
    const uint64_t plan = find_plan(roster, committed, &stale);
    if (stale != 0) return roll_back(c, roster, stale, txn);
    if (plan != c->planned) { /* taken over, or it has not come to be */
        c->planned = plan;
        c->progress_ns = now_ns;
        c->n_acks = 0;
        c->decided = 0;
    }
    if (plan == 0) return false;
    if (is_outdated(roster, plan)) return roll_back(c, roster, plan, txn);
    return look_at_plan(c, roster, weft_roster_placement(roster, plan), now_ns,
                        txn, next_ns);
}

/* -- retiring -------------------------------------------------------------- */

bool weft_controller_retire(weft_controller *c, const weft_roster *roster,
                            weft_txn *txn)
{
    uint64_t epochs[WEFT_EPOCHS_SHOWN_MAX], least;
    int64_t revision;
    int32_t n_over = 0;
    const uint64_t committed = weft_roster_epoch(roster, &revision);
    const uint64_t retired = weft_roster_retired(roster);
    (void)weft_controller_leads(roster, committed, &least);
    if (c->in_use != 0 && c->in_use < least) least = c->in_use;
    const uint64_t to = least > 0 && least - 1 > retired ? least - 1 : retired;
    const int32_t n = weft_roster_epochs(roster, epochs, WEFT_EPOCHS_SHOWN_MAX);
    for (int32_t i = 0; i < n; i++)
        n_over += epochs[i] <= to && epochs[i] < committed;
    if (to == retired && n_over == 0) return false;
    if (weft_number_encode(to, &c->number, NULL) != WEFT_OK) return false;
    weft_controller_begin(c, WEFT_WRITE_RETIRE, txn);
    if (to != retired) {
        weft_txn_add_compare(
            txn, WEFT_KEY_TEXT_RETIRED,
            weft_roster_revision(roster, WEFT_KEY_TEXT_RETIRED));
        weft_txn_add_put(txn, WEFT_KEY_TEXT_RETIRED, &c->number, false);
    }
    for (int32_t i = 0; i < n && txn->n_writes <= WEFT_DELETES_PER_TURN; i++) {
        char key[WEFT_KEY_BYTES];
        if (epochs[i] > to || epochs[i] >= committed) continue;
        (void)snprintf(key, sizeof key, "epoch/%llu/",
                       (unsigned long long)epochs[i]);
        weft_txn_add_remove(txn, key, true);
    }
    return true;
}
