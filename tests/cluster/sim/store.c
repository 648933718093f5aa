/* The store: keys with revisions, leases, compares, changes told in order. */
#include <stdlib.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/mem.h"
#include "tests/cluster/sim/world.h"

void call_destroy(struct call *call)
{
    for (int32_t i = 0; i < WEFT_TXN_WRITES_MAX; i++)
        blob_drop(call->values[i]);
    for (int32_t i = 0; i < call->n_list; i++) blob_drop(call->list[i].value);
    weft_mem_free(call->list);
    weft_mem_free(call);
}

static int32_t find(const struct store *s, const char *key)
{
    for (int32_t i = 0; i < s->n; i++)
        if (strcmp(s->keys[i].is.key, key) == 0) return i;
    return -1;
}

const struct store_key *store_find(const struct world *w, const char *key)
{
    const int32_t at = find(&w->store, key);
    return at >= 0 ? &w->store.keys[at] : NULL;
}

/* To everybody who watches; in order, some twice, some (as some releases do)
 * not at all until the next listing. */
static void tell(struct world *w, const struct change *change)
{
    for (int32_t i = 0; i < NODES; i++) {
        struct store *s = &w->store;
        const uint32_t lost = w->mutation == SIM_LOST_EVENT ? 40 : 4;
        if (!s->watches[i]) continue;
        if (w->cut[STORE][i]) {
            s->watches[i] = false;
            client_break(w, &w->nodes[i]);
            continue;
        }
        if ((!w->calm || w->mutation == SIM_LOST_EVENT) && chance(w, lost))
            continue;
        for (int32_t times = chance(w, 20) ? 2 : 1; times > 0; times--) {
            struct change *copy = weft_mem_new(1, sizeof *copy);
            WEFT_ASSERT(copy != NULL);
            *copy = *change;
            copy->value = blob_ref(change->value);
            uint64_t at = w->now + delay(w);
            if (at < s->last_told[i]) at = s->last_told[i];
            s->last_told[i] = at;
            post(w, at, EV_WATCH, i, 0, s->stream[i], copy);
        }
    }
}

static void remove_at(struct world *w, int32_t at)
{
    struct store *s = &w->store;
    struct change gone = s->keys[at].is;
    gone.removed = true;
    gone.revision = s->revision;
    blob_drop(gone.value);
    gone.value = NULL;
    s->keys[at] = s->keys[--s->n];
    tell(w, &gone);
}

static void put(struct world *w, const weft_txn_write *write,
                struct blob *value, int32_t by, int64_t lease)
{
    struct store *s = &w->store;
    int32_t at = find(s, write->key);
    if (at < 0) {
        WEFT_ASSERT(s->n < KEYS_MAX);
        at = s->n++;
        s->keys[at] = (struct store_key){.since_ns = w->now};
        memcpy(s->keys[at].is.key, write->key, sizeof write->key);
    }
    blob_drop(s->keys[at].is.value);
    s->keys[at].is.value = blob_ref(value);
    s->keys[at].is.revision = s->revision;
    s->keys[at].lease = write->leased ? lease : 0;
    s->keys[at].by = by;
    tell(w, &s->keys[at].is);
}

static bool compares_hold(const struct world *w, const weft_txn *txn)
{
    if (w->mutation == SIM_DOUBLE_EPOCH) return true;
    for (int32_t i = 0; i < txn->n_compares; i++) {
        const int32_t at = find(&w->store, txn->compares[i].key);
        const int64_t is = at >= 0 ? w->store.keys[at].is.revision : 0;
        if (is != txn->compares[i].mod_revision) return false;
    }
    return true;
}

static bool matches(const weft_txn_write *write, const char *key)
{
    return write->prefix ? strncmp(key, write->key, strlen(write->key)) == 0
                         : strcmp(key, write->key) == 0;
}

/* Whether a bug on purpose keeps this from happening. */
static bool is_swallowed(const struct world *w, const weft_txn_write *write)
{
    if (!write->remove) return false;
    if (w->mutation == SIM_STUCK_PLAN && write->prefix) {
        const struct store_key *now = store_find(w, WEFT_KEY_TEXT_CURRENT);
        uint64_t epoch = 0, named = 0;
        if (now != NULL && weft_number_decode((weft_span){now->is.value->data,
                                                          now->is.value->n},
                                              &epoch, NULL) != WEFT_OK)
            return false;
        if (strncmp(write->key, "epoch/", 6) == 0)
            named = strtoull(write->key + 6, NULL, 10);
        return named > epoch;
    }
    return w->mutation == SIM_SUSPECT_FOR_EVER &&
           strncmp(write->key, "suspects/", 9) == 0;
}

static void check_write(struct world *w, const weft_txn *txn, int32_t i,
                        const struct blob *value, int32_t by)
{
    uint64_t number = 0;
    char key[WEFT_KEY_BYTES];
    const char *const name = txn->writes[i].key;
    const bool current = strcmp(name, WEFT_KEY_TEXT_CURRENT) == 0;
    if (value == NULL || (!current && strcmp(name, WEFT_KEY_TEXT_RETIRED) != 0))
        return;
    if (weft_number_decode((weft_span){value->data, value->n}, &number, NULL) !=
        WEFT_OK)
        return;
    if (!current) {
        check_retired(w, by, number);
        return;
    }
    const int32_t at = find(&w->store, weft_key_of_placement(number, key));
    check_commit(w, by, number, at >= 0 ? &w->store.keys[at].is : NULL);
}

static struct lease *lease_of(struct store *s, int64_t id)
{
    for (int32_t i = 0; i < LEASES_MAX; i++)
        if (s->leases[i].id == id) return &s->leases[i];
    return NULL;
}

static void end_lease(struct world *w, int64_t id)
{
    struct store *s = &w->store;
    struct lease *lease = id != 0 ? lease_of(s, id) : NULL;
    bool any = false;
    if (lease == NULL) return;
    *lease = (struct lease){.id = 0};
    for (int32_t i = 0; i < s->n; i++) any = any || s->keys[i].lease == id;
    if (!any) return;
    s->revision++;
    for (int32_t i = s->n - 1; i >= 0; i--)
        if (s->keys[i].lease == id) remove_at(w, i);
}

void store_expire(struct world *w)
{
    struct store *s = &w->store;
    for (int32_t i = 0; i < LEASES_MAX && !s->is_away; i++)
        if (s->leases[i].id != 0 && s->leases[i].until_ns < w->now)
            end_lease(w, s->leases[i].id);
}

/* A lease for a client, who gives its last one back. */
static void grant(struct world *w, struct call *call)
{
    end_lease(w, call->lease);
    struct lease *lease = lease_of(&w->store, 0);
    WEFT_ASSERT(lease != NULL);
    *lease = (struct lease){.id = ++w->store.last_lease,
                            .until_ns = w->now + LEASE_S * S};
    call->lease = lease->id;
}

static void keep_alive(struct world *w, struct call *call)
{
    struct lease *lease =
        call->lease != 0 ? lease_of(&w->store, call->lease) : NULL;
    call->status = lease != NULL ? WEFT_OK : WEFT_UNAVAILABLE;
    if (lease != NULL) lease->until_ns = w->now + LEASE_S * S;
}

static void apply(struct world *w, int32_t node, struct call *call)
{
    struct store *s = &w->store;
    const weft_txn *txn = &call->txn;
    const bool has_lease = call->lease != 0 && lease_of(s, call->lease) != NULL;
    call->status = WEFT_FAILED_PRECONDITION;
    for (int32_t i = 0; i < txn->n_writes; i++)
        if (txn->writes[i].leased && !has_lease) return;
    if (!compares_hold(w, txn)) return;
    s->revision++;
    for (int32_t i = 0; i < txn->n_writes; i++) {
        const weft_txn_write *write = &txn->writes[i];
        if (is_swallowed(w, write)) continue;
        if (!write->remove) put(w, write, call->values[i], node, call->lease);
        for (int32_t k = s->n - 1; write->remove && k >= 0; k--)
            if (matches(write, s->keys[k].is.key)) remove_at(w, k);
        check_write(w, txn, i, call->values[i], node);
    }
    call->status = WEFT_OK;
    call->revision = s->revision;
}

static void list(struct world *w, int32_t node, struct call *call)
{
    struct store *s = &w->store;
    call->list = weft_mem_new((size_t)s->n + 1, sizeof *call->list);
    WEFT_ASSERT(call->list != NULL);
    call->n_list = s->n;
    for (int32_t i = 0; i < s->n; i++) {
        call->list[i] = s->keys[i].is;
        (void)blob_ref(call->list[i].value);
    }
    call->revision = s->revision;
    s->watches[node] = true;
    s->stream[node] = call->number;
    /* Changes follow the listing. */
    s->last_told[node] = w->now + 3 * MS;
}

void store_call(struct world *w, int32_t node, struct call *call)
{
    struct store *s = &w->store;
    if (s->is_away) {
        call_destroy(call);
        return;
    }
    call->status = WEFT_OK;
    switch (call->kind) {
    case CALL_LEASE: grant(w, call); break;
    case CALL_KEEP: keep_alive(w, call); break;
    case CALL_LIST: list(w, node, call); break;
    case CALL_TXN: apply(w, node, call); break;
    }
    if (w->cut[STORE][node] || (!w->calm && chance(w, 5))) {
        if (call->kind == CALL_LIST) s->watches[node] = false;
        call_destroy(call);
        return;
    }
    uint64_t at = w->now + delay(w);
    if (call->kind == CALL_LIST) {
        if (at > s->last_told[node]) s->last_told[node] = at;
    }
    post(w, at, EV_FROM_STORE, node, 0, 0, call);
}

void store_wipe(struct world *w)
{
    struct store *s = &w->store;
    for (int32_t i = 0; i < s->n; i++) blob_drop(s->keys[i].is.value);
    s->n = 0;
    s->revision = 1;
    memset(s->leases, 0, sizeof s->leases);
    for (int32_t i = 0; i < NODES; i++) {
        s->watches[i] = false;
        client_break(w, &w->nodes[i]);
    }
}

void store_set_away(struct world *w, bool away)
{
    struct store *s = &w->store;
    s->is_away = away;
    /* Leases live on for a while after a restart. */
    for (int32_t i = 0; i < LEASES_MAX && !away; i++)
        s->leases[i].until_ns = w->now + LEASE_S * S;
    for (int32_t i = 0; i < NODES; i++) {
        s->watches[i] = false;
        client_break(w, &w->nodes[i]);
    }
}
