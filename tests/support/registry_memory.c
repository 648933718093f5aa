#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "node/base/check.h"
#include "tests/support/registry_memory_internal.h"

enum { RESULTS_MAX = 8 };

struct result {
    uint64_t tag;
    weft_status status;
    int64_t revision;
};

struct handle {
    weft_registry base; /* first */
    memory_store *store;
    memory_options options;
    memory_faults faults;
    struct result results[RESULTS_MAX];
    int32_t n_results;
    bool listing, awake;
    uint64_t generation;
    int64_t next_change;        /* counted from the store's beginning */
    uint64_t relist_ns, cut_ns; /* cut_ns: since when nothing came; 0 */
    enum { UNKNOWN, REACHED, UNREACHED } reached;
    bool held;
    uint64_t lease, good_until_ns, renew_ns;
};

/* What one poll tells, gathered under the lock and told without it. */
struct telling {
    weft_registry_event *events;
    int32_t n, room;
};

/* --- transactions -------------------------------------------------------- */

static bool is_below(const char *key, const weft_txn_write *w)
{
    return w->prefix ? strncmp(key, w->key, strlen(w->key)) == 0
                     : strcmp(key, w->key) == 0;
}

/* etcd takes no transaction that writes a key twice, deletions included. */
static bool writes_twice(const weft_txn *txn)
{
    for (int32_t i = 0; i < txn->n_writes; i++)
        for (int32_t j = 0; j < txn->n_writes; j++)
            if (i != j && !txn->writes[i].remove &&
                is_below(txn->writes[i].key, &txn->writes[j]))
                return true;
    return false;
}

static bool holds(const memory_store *s, const weft_txn *txn)
{
    for (int32_t i = 0; i < txn->n_compares; i++) {
        const struct memory_entry *e = memory_find(s, txn->compares[i].key);
        if ((e != NULL ? e->revision : 0) != txn->compares[i].mod_revision)
            return false;
    }
    return true;
}

static bool changes_any(const memory_store *s, const weft_txn *txn)
{
    for (int32_t i = 0; i < txn->n_writes; i++) {
        if (!txn->writes[i].remove) return true;
        for (int32_t k = 0; k < s->n_entries; k++)
            if (is_below(s->entries[k].key, &txn->writes[i])) return true;
    }
    return false;
}

static void apply(memory_store *s, const weft_txn *txn, uint64_t lease)
{
    if (!changes_any(s, txn)) return;
    s->revision++;
    for (int32_t i = 0; i < txn->n_writes; i++) {
        const weft_txn_write *w = &txn->writes[i];
        if (!w->remove) memory_put(s, w->key, w->value, w->leased ? lease : 0);
        for (int32_t k = 0; w->remove && k < s->n_entries;) {
            if (is_below(s->entries[k].key, w))
                memory_drop(s, &s->entries[k]);
            else
                k++;
        }
    }
    pthread_cond_broadcast(&s->changed);
}

static bool is_cut(const struct handle *h)
{
    return h->faults.partitioned || h->store->away;
}

static bool is_leased(const weft_txn *txn)
{
    for (int32_t i = 0; i < txn->n_writes; i++)
        if (txn->writes[i].leased && !txn->writes[i].remove) return true;
    return false;
}

static bool take_fault(int32_t *count)
{
    if (*count <= 0) return false;
    --*count;
    return true;
}

static weft_status execute(struct handle *h, const weft_txn *txn)
{
    memory_store *s = h->store;
    if (is_leased(txn) && !h->held) return WEFT_FAILED_PRECONDITION;
    if (is_cut(h) || take_fault(&h->faults.refuse_txns))
        return WEFT_UNAVAILABLE;
    if (is_leased(txn) && memory_find_lease(s, h->lease) == NULL)
        return WEFT_FAILED_PRECONDITION;
    if (writes_twice(txn) || !holds(s, txn)) return WEFT_FAILED_PRECONDITION;
    apply(s, txn, h->lease);
    return take_fault(&h->faults.lose_results) ? WEFT_UNAVAILABLE : WEFT_OK;
}

static weft_status submit(weft_registry *registry, const weft_txn *txn,
                          weft_err *err)
{
    struct handle *h = (struct handle *)registry;
    WEFT_TRY(weft_txn_check(txn, err));
    pthread_mutex_lock(&h->store->lock);
    const bool full =
        h->n_results == RESULTS_MAX || take_fault(&h->faults.full);
    if (!full) {
        memory_end_leases(h->store);
        const weft_status st = execute(h, txn);
        h->results[h->n_results++] =
            (struct result){txn->tag, st, h->store->revision};
    }
    pthread_mutex_unlock(&h->store->lock);
    return full ? WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                            "too many transactions under way")
                : WEFT_OK;
}

/* --- polling ------------------------------------------------------------- */

static void add(struct telling *t, const weft_registry_event *event)
{
    t->events = memory_grown(t->events, t->n, &t->room, sizeof *t->events);
    t->events[t->n] = *event;
    t->events[t->n].value = memory_copy(event->value);
    if (event->key != NULL)
        t->events[t->n].key =
            memory_copy((weft_span){event->key, strlen(event->key) + 1}).data;
    if (event->text == NULL) t->events[t->n].text = "";
    t->n++;
}

static void add_status(struct telling *t, weft_registry_event_kind kind,
                       weft_status status, const char *text)
{
    add(t,
        &(weft_registry_event){.kind = kind, .status = status, .text = text});
}

static void add_results(struct handle *h, struct telling *t)
{
    static const char *const unknown = "the store did not answer";
    for (int32_t i = 0; i < h->n_results; i++) {
        const struct result *r = &h->results[i];
        add(t, &(weft_registry_event){
                   .kind = WEFT_REGISTRY_TXN,
                   .tag = r->tag,
                   .status = r->status,
                   .revision = r->status == WEFT_UNAVAILABLE ? 0 : r->revision,
                   .text = r->status == WEFT_UNAVAILABLE ? unknown : NULL});
    }
    h->n_results = 0;
}

static void add_link(struct handle *h, struct telling *t, uint64_t now)
{
    if (!is_cut(h)) {
        /* A stream that was cut off is begun anew. */
        if (h->cut_ns != 0) h->listing = true;
        h->cut_ns = 0;
        if (h->reached == REACHED) return;
        h->reached = REACHED;
        add_status(t, WEFT_REGISTRY_LINK, WEFT_OK, NULL);
        return;
    }
    if (h->cut_ns == 0) h->cut_ns = now;
    if (h->reached == UNREACHED || now < h->cut_ns + 2 * h->options.call_ns)
        return;
    h->reached = UNREACHED;
    add_status(t, WEFT_REGISTRY_LINK, WEFT_UNAVAILABLE,
               "the store does not answer");
}

static void lose_lease(struct handle *h, struct telling *t, const char *why)
{
    h->held = false;
    add_status(t, WEFT_REGISTRY_LEASE, WEFT_UNAVAILABLE, why);
}

static void add_lease(struct handle *h, struct telling *t, uint64_t now)
{
    memory_store *s = h->store;
    if (h->held && now >= h->good_until_ns)
        lose_lease(h, t, "the lease has run out");
    if (is_cut(h)) return;
    if (h->held && now >= h->renew_ns) {
        struct memory_lease *lease = memory_find_lease(s, h->lease);
        if (lease == NULL) {
            lose_lease(h, t, "the store does not know the lease");
            h->listing = true;
        } else {
            lease->ends_ns = now + h->options.lease_ns;
        }
    }
    if (!h->held) {
        if (h->lease != 0) memory_end_lease(s, h->lease);
        h->lease = memory_grant(s, h->options.lease_ns);
        h->held = true;
        add_status(t, WEFT_REGISTRY_LEASE, WEFT_OK, NULL);
    } else if (now < h->renew_ns) {
        return;
    }
    h->good_until_ns = now + h->options.lease_ns;
    h->renew_ns = now + h->options.lease_ns / 3;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct memory_entry *)a)->key,
                  ((const struct memory_entry *)b)->key);
}

static void add_listing(struct handle *h, struct telling *t, uint64_t now)
{
    memory_store *s = h->store;
    weft_registry_event mark = {.kind = WEFT_REGISTRY_RELIST_BEGIN,
                                .revision = s->revision};
    if (s->n_entries > 1)
        qsort(s->entries, (size_t)s->n_entries, sizeof *s->entries, by_key);
    add(t, &mark);
    for (int32_t i = 0; i < s->n_entries; i++)
        add(t, &(weft_registry_event){.kind = WEFT_REGISTRY_PUT,
                                      .key = s->entries[i].key,
                                      .value = s->entries[i].value,
                                      .revision = s->entries[i].revision});
    mark.kind = WEFT_REGISTRY_RELIST_END;
    add(t, &mark);
    h->listing = false;
    h->generation = s->generation;
    h->next_change = s->n_forgotten + s->n_changes;
    h->relist_ns = now + h->options.relist_ns;
}

static void add_change(struct telling *t, const struct memory_change *c)
{
    add(t, &(weft_registry_event){.kind = c->put ? WEFT_REGISTRY_PUT
                                                 : WEFT_REGISTRY_DELETE,
                                  .key = c->key,
                                  .value = c->value,
                                  .revision = c->revision});
}

static void add_changes(struct handle *h, struct telling *t, uint64_t now)
{
    const memory_store *s = h->store;
    while (h->next_change < s->n_forgotten + s->n_changes) {
        const struct memory_change *c =
            &s->changes[h->next_change - s->n_forgotten];
        if (now < c->at_ns + h->faults.delay_ns) return;
        h->next_change++;
        if (take_fault(&h->faults.lose_events)) continue;
        add_change(t, c);
        if (take_fault(&h->faults.repeat_events)) add_change(t, c);
    }
}

static void gather(struct handle *h, struct telling *t)
{
    memory_store *s = h->store;
    const uint64_t now = memory_now(s);
    memory_end_leases(s);
    add_link(h, t, now);
    add_results(h, t);
    add_lease(h, t, now);
    if (is_cut(h)) return;
    if (h->generation != s->generation || h->next_change < s->n_forgotten ||
        now >= h->relist_ns)
        h->listing = true;
    if (h->listing)
        add_listing(h, t, now);
    else
        add_changes(h, t, now);
}

static void tell(struct telling *t, weft_registry_fn take, void *arg)
{
    for (int32_t i = 0; i < t->n; i++) {
        take(arg, &t->events[i]);
        memory_end_span(t->events[i].value);
        memory_end_span((weft_span){t->events[i].key, 0});
    }
    free(t->events);
}

/* At most a little: time alone may bring something to tell. */
static void wait_a_little(memory_store *s, uint64_t now, uint64_t deadline_ns)
{
    const uint64_t most = now + 20 * MS;
    const uint64_t until = deadline_ns < most ? deadline_ns : most;
    const struct timespec at = {(time_t)(until / (1000 * MS)),
                                (long)(until % (1000 * MS))};
    pthread_cond_timedwait(&s->changed, &s->lock, &at);
}

static void poll(weft_registry *registry, uint64_t deadline_ns,
                 weft_registry_fn take, void *arg)
{
    struct handle *h = (struct handle *)registry;
    memory_store *s = h->store;
    struct telling t = {0};
    pthread_mutex_lock(&s->lock);
    for (;;) {
        gather(h, &t);
        const uint64_t now = memory_now(s);
        if (t.n > 0 || h->awake || !s->threaded || now >= deadline_ns) break;
        wait_a_little(s, now, deadline_ns);
    }
    h->awake = false;
    pthread_mutex_unlock(&s->lock);
    tell(&t, take, arg);
}

static void wake(weft_registry *registry)
{
    struct handle *h = (struct handle *)registry;
    pthread_mutex_lock(&h->store->lock);
    h->awake = true;
    pthread_cond_broadcast(&h->store->changed);
    pthread_mutex_unlock(&h->store->lock);
}

static void end(struct handle *h, bool give_back)
{
    memory_store *s = h->store;
    pthread_mutex_lock(&s->lock);
    if (give_back && h->lease != 0 && !is_cut(h)) memory_end_lease(s, h->lease);
    s->n_handles--;
    pthread_mutex_unlock(&s->lock);
    free(h);
}

static void destroy(weft_registry *registry, uint64_t deadline_ns)
{
    (void)deadline_ns;
    end((struct handle *)registry, true);
}

void memory_registry_kill(weft_registry *registry)
{
    end((struct handle *)registry, false);
}

weft_registry *memory_store_open(memory_store *store,
                                 const memory_options *options)
{
    static const weft_registry_ops ops = {submit, poll, wake, destroy};
    struct handle *h = calloc(1, sizeof *h);
    WEFT_ASSERT(h != NULL);
    h->base.ops = &ops;
    h->store = store;
    if (options != NULL) h->options = *options;
    if (h->options.lease_ns == 0) h->options.lease_ns = 5000 * MS;
    if (h->options.relist_ns == 0) h->options.relist_ns = 30000 * MS;
    if (h->options.call_ns == 0) h->options.call_ns = 700 * MS;
    h->listing = true;
    pthread_mutex_lock(&store->lock);
    h->generation = store->generation;
    h->next_change = store->n_forgotten + store->n_changes;
    h->relist_ns = UINT64_MAX;
    store->n_handles++;
    pthread_mutex_unlock(&store->lock);
    return &h->base;
}

void memory_registry_set_faults(weft_registry *registry,
                                const memory_faults *faults)
{
    struct handle *h = (struct handle *)registry;
    pthread_mutex_lock(&h->store->lock);
    h->faults = *faults;
    pthread_cond_broadcast(&h->store->changed);
    pthread_mutex_unlock(&h->store->lock);
}

void memory_registry_relist(weft_registry *registry)
{
    struct handle *h = (struct handle *)registry;
    pthread_mutex_lock(&h->store->lock);
    h->listing = true;
    pthread_mutex_unlock(&h->store->lock);
}
