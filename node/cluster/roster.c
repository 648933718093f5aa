#include "node/cluster/roster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/hash.h"
#include "node/base/mem.h"
#include "node/cluster/values.h"

/* One key. */
struct entry {
    weft_key key;
    int64_t revision;
    uint64_t hash; /* of the value's bytes */
    bool readable;
    union {
        weft_member member;
        weft_ack ack;
        weft_switched switched;
        weft_suspicion suspicion;
        weft_placement *placement; /* owned */
        uint64_t number;
        char id[WEFT_ID_BYTES];
    } as;
};

/* In order of key. */
struct table {
    struct entry **entries; /* [n], owned */
    int32_t n, capacity;
};

/* The readable entries of a kind, one after another. */
struct view {
    void *items;
    int32_t n;
};

struct weft_roster {
    weft_placement_shape shape; /* arrays owned */
    struct table now, listing;
    bool is_listing;
    int64_t seen; /* changes below this revision have been told before */
    struct view members, acks, switched, suspicions;
    uint64_t n_unreadable;
    weft_err reason;
};

const char *weft_member_state_name(weft_member_state state)
{
    switch (state) {
    case WEFT_MEMBER_JOINING: return "joining";
    case WEFT_MEMBER_SERVING: return "serving";
    case WEFT_MEMBER_DRAINING: return "draining";
    case WEFT_MEMBER_LOST: return "lost";
    }
    return "unknown";
}

/* -- the table ------------------------------------------------------------- */

static void entry_destroy(struct entry *entry)
{
    if (entry == NULL) return;
    if (entry->key.kind == WEFT_KEY_PLACEMENT && entry->readable)
        weft_placement_destroy(entry->as.placement);
    weft_mem_free(entry);
}

static void table_clear(struct table *table)
{
    for (int32_t i = 0; i < table->n; i++) entry_destroy(table->entries[i]);
    weft_mem_free(table->entries);
    *table = (struct table){.n = 0};
}

static int number_order(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int key_order(const weft_key *a, const weft_key *b)
{
    int order = number_order(a->kind, b->kind);
    if (order == 0) order = number_order(a->role, b->role);
    if (order == 0) order = number_order(a->epoch, b->epoch);
    if (order == 0) order = strcmp(a->id, b->id);
    if (order == 0) order = strcmp(a->reporter, b->reporter);
    if (order == 0) order = number_order(a->group, b->group);
    if (order == 0) order = number_order(a->incarnation, b->incarnation);
    return order;
}

/* Where the key is (*found_out), or belongs. */
static int32_t table_search(const struct table *table, const weft_key *key,
                            bool *found_out)
{
    int32_t low = 0, high = table->n;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        const int order = key_order(&table->entries[middle]->key, key);
        if (order == 0) {
            *found_out = true;
            return middle;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *found_out = false;
    return low;
}

static const struct entry *table_find(const struct table *table,
                                      const weft_key *key)
{
    bool found;
    const int32_t at = table_search(table, key, &found);
    return found ? table->entries[at] : NULL;
}

/* Takes the entry, in place of one with its key. false: no memory, not taken.*/
static bool table_put(struct table *table, struct entry *entry)
{
    bool found;
    const int32_t at = table_search(table, &entry->key, &found);
    if (found) {
        entry_destroy(table->entries[at]);
        table->entries[at] = entry;
        return true;
    }
    if (table->n == table->capacity) {
        const int32_t capacity = table->capacity > 0 ? 2 * table->capacity : 64;
        struct entry **grown = weft_mem_resize(table->entries, (size_t)capacity,
                                               sizeof(struct entry *));
        if (grown == NULL) return false;
        table->entries = grown;
        table->capacity = capacity;
    }
    memmove(table->entries + at + 1, table->entries + at,
            (size_t)(table->n - at) * sizeof(struct entry *));
    table->entries[at] = entry;
    table->n++;
    return true;
}

static void table_remove(struct table *table, int32_t at)
{
    entry_destroy(table->entries[at]);
    table->n--;
    memmove(table->entries + at, table->entries + at + 1,
            (size_t)(table->n - at) * sizeof(struct entry *));
}

static bool table_equal(const struct table *a, const struct table *b)
{
    if (a->n != b->n) return false;
    for (int32_t i = 0; i < a->n; i++) {
        const struct entry *x = a->entries[i], *y = b->entries[i];
        if (key_order(&x->key, &y->key) != 0 || x->revision != y->revision ||
            x->hash != y->hash)
            return false;
    }
    return true;
}

/* -- values ---------------------------------------------------------------- */

static weft_status differs(const char *what, weft_err *err)
{
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "the value's %s is not that of its key", what);
}

static weft_status read_member(struct entry *e, weft_span value, weft_err *err)
{
    WEFT_TRY(weft_member_decode(value, &e->as.member, err));
    if (e->as.member.role != e->key.role) return differs("role", err);
    if (strcmp(e->as.member.id, e->key.id) != 0) return differs("id", err);
    e->as.member.mod_revision = e->revision;
    return WEFT_OK;
}

static weft_status read_placement(const weft_roster *roster, struct entry *e,
                                  weft_span value, weft_err *err)
{
    weft_placement *placement = NULL;
    WEFT_TRY(weft_placement_decode(&roster->shape, value, &placement, err));
    if (placement->epoch != e->key.epoch) {
        weft_placement_destroy(placement);
        return differs("epoch", err);
    }
    e->as.placement = placement;
    return WEFT_OK;
}

static weft_status read_ack(struct entry *e, weft_span value, weft_err *err)
{
    WEFT_TRY(weft_ack_decode(value, &e->as.ack, err));
    if (e->as.ack.epoch != e->key.epoch) return differs("epoch", err);
    if (strcmp(e->as.ack.id, e->key.id) != 0) return differs("id", err);
    return WEFT_OK;
}

static weft_status read_switched(struct entry *e, weft_span value,
                                 weft_err *err)
{
    WEFT_TRY(weft_switched_decode(value, &e->as.switched, err));
    if (e->as.switched.epoch != e->key.epoch) return differs("epoch", err);
    if (e->as.switched.group != e->key.group) return differs("group", err);
    if (e->as.switched.incarnation != e->key.incarnation)
        return differs("incarnation", err);
    return WEFT_OK;
}

static weft_status read_suspicion(struct entry *e, weft_span value,
                                  weft_err *err)
{
    WEFT_TRY(weft_suspicion_decode(value, &e->as.suspicion, err));
    if (strcmp(e->as.suspicion.id, e->key.id) != 0) return differs("id", err);
    if (strcmp(e->as.suspicion.reporter, e->key.reporter) != 0)
        return differs("reporter", err);
    return WEFT_OK;
}

static weft_status read_value(const weft_roster *roster, struct entry *e,
                              weft_span value, weft_err *err)
{
    switch (e->key.kind) {
    case WEFT_KEY_MEMBER: return read_member(e, value, err);
    case WEFT_KEY_CONTROLLER: return weft_holder_decode(value, e->as.id, err);
    case WEFT_KEY_CURRENT:
    case WEFT_KEY_RETIRED: return weft_number_decode(value, &e->as.number, err);
    case WEFT_KEY_PLACEMENT: return read_placement(roster, e, value, err);
    case WEFT_KEY_ACK: return read_ack(e, value, err);
    case WEFT_KEY_SWITCHED: return read_switched(e, value, err);
    case WEFT_KEY_SUSPECT: return read_suspicion(e, value, err);
    case WEFT_KEY_UNKNOWN: break;
    }
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "no such key is known");
}

/* -- views ----------------------------------------------------------------- */

static const void *item_of(const struct entry *e)
{
    switch (e->key.kind) {
    case WEFT_KEY_MEMBER: return &e->as.member;
    case WEFT_KEY_ACK: return &e->as.ack;
    case WEFT_KEY_SWITCHED: return &e->as.switched;
    default: return &e->as.suspicion;
    }
}

static bool view_build(const struct table *table, weft_key_kind kind,
                       size_t item_bytes, struct view *view)
{
    size_t n = 0;
    for (int32_t i = 0; i < table->n; i++)
        n += table->entries[i]->key.kind == kind;
    char *items = weft_mem_resize(view->items, n > 0 ? n : 1, item_bytes);
    if (items == NULL) return false;
    view->items = items;
    view->n = 0;
    for (int32_t i = 0; i < table->n; i++) {
        const struct entry *e = table->entries[i];
        if (e->key.kind != kind || !e->readable) continue;
        memcpy(items + (size_t)view->n * item_bytes, item_of(e), item_bytes);
        view->n++;
    }
    return true;
}

static void note_memory(weft_roster *roster)
{
    roster->n_unreadable++;
    (void)WEFT_FAIL(&roster->reason, WEFT_RESOURCE_EXHAUSTED,
                    "no memory for what the registry says");
}

static void views_build(weft_roster *roster)
{
    const struct table *t = &roster->now;
    if (!view_build(t, WEFT_KEY_MEMBER, sizeof(weft_member),
                    &roster->members) ||
        !view_build(t, WEFT_KEY_ACK, sizeof(weft_ack), &roster->acks) ||
        !view_build(t, WEFT_KEY_SWITCHED, sizeof(weft_switched),
                    &roster->switched) ||
        !view_build(t, WEFT_KEY_SUSPECT, sizeof(weft_suspicion),
                    &roster->suspicions))
        note_memory(roster);
}

/* -- create, apply --------------------------------------------------------- */

weft_status weft_roster_create(const weft_placement_shape *shape,
                               weft_roster **roster_out, weft_err *err)
{
    const size_t n = (size_t)shape->n_layer;
    weft_roster *roster = weft_mem_new(1, sizeof *roster);
    bool *moe = weft_mem_new(n, sizeof *moe);
    if (roster == NULL || moe == NULL) {
        weft_mem_free(roster);
        weft_mem_free(moe);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a roster");
    }
    memcpy(moe, shape->moe, n * sizeof *moe);
    roster->shape = (weft_placement_shape){
        .n_layer = shape->n_layer, .n_expert = shape->n_expert, .moe = moe};
    *roster_out = roster;
    return WEFT_OK;
}

void weft_roster_destroy(weft_roster *roster)
{
    if (roster == NULL) return;
    union {
        const bool *from;
        void *to;
    } moe = {.from = roster->shape.moe};
    weft_mem_free(moe.to);
    table_clear(&roster->now);
    table_clear(&roster->listing);
    weft_mem_free(roster->members.items);
    weft_mem_free(roster->acks.items);
    weft_mem_free(roster->switched.items);
    weft_mem_free(roster->suspicions.items);
    weft_mem_free(roster);
}

/* A value that cannot be read keeps its place, so that its revision is known
 * to whoever wants to write over it. */
static struct entry *entry_make(weft_roster *roster,
                                const weft_registry_event *event)
{
    weft_err err = {0};
    char shown[84];
    struct entry *e = weft_mem_new(1, sizeof *e);
    if (e == NULL) {
        note_memory(roster);
        return NULL;
    }
    if (weft_key_parse(event->key, &e->key) == WEFT_KEY_UNKNOWN) {
        roster->n_unreadable++;
        (void)WEFT_FAIL(&roster->reason, WEFT_INVALID_ARGUMENT,
                        "no such key is known: %s",
                        weft_text_line(event->key, shown, sizeof shown));
        weft_mem_free(e);
        return NULL;
    }
    e->revision = event->revision;
    e->hash = weft_hash_fnv(WEFT_FNV_START, event->value.data, event->value.n);
    e->readable = read_value(roster, e, event->value, &err) == WEFT_OK;
    if (!e->readable) {
        roster->n_unreadable++;
        (void)WEFT_WRAP(&err, err.status, "%s",
                        weft_text_line(event->key, shown, sizeof shown));
        roster->reason = err;
    }
    return e;
}

static bool put(weft_roster *roster, const weft_registry_event *event)
{
    struct table *table = roster->is_listing ? &roster->listing : &roster->now;
    weft_key key;
    if (!roster->is_listing) {
        if (event->revision < roster->seen) return false;
        if (weft_key_parse(event->key, &key) != WEFT_KEY_UNKNOWN) {
            const struct entry *old = table_find(table, &key);
            if (old != NULL && old->revision >= event->revision) return false;
        }
        roster->seen = event->revision;
    }
    struct entry *e = entry_make(roster, event);
    if (e == NULL) return false;
    if (!table_put(table, e)) {
        entry_destroy(e);
        note_memory(roster);
        return false;
    }
    return !roster->is_listing;
}

static bool delete (weft_roster *roster, const weft_registry_event *event)
{
    struct table *table = roster->is_listing ? &roster->listing : &roster->now;
    weft_key key;
    bool found;
    if (!roster->is_listing) {
        if (event->revision < roster->seen) return false;
        roster->seen = event->revision;
    }
    if (weft_key_parse(event->key, &key) == WEFT_KEY_UNKNOWN) return false;
    const int32_t at = table_search(table, &key, &found);
    if (!found || table->entries[at]->revision > event->revision) return false;
    table_remove(table, at);
    return !roster->is_listing;
}

static bool end_listing(weft_roster *roster, int64_t revision)
{
    if (!roster->is_listing) return false;
    const bool changed = !table_equal(&roster->now, &roster->listing);
    roster->is_listing = false;
    roster->seen = revision;
    for (int32_t i = 0; i < roster->listing.n; i++)
        if (roster->listing.entries[i]->revision > roster->seen)
            roster->seen = roster->listing.entries[i]->revision;
    table_clear(&roster->now);
    roster->now = roster->listing;
    roster->listing = (struct table){.n = 0};
    return changed;
}

bool weft_roster_apply(weft_roster *roster, const weft_registry_event *event)
{
    bool changed = false;
    switch (event->kind) {
    case WEFT_REGISTRY_RELIST_BEGIN:
        table_clear(&roster->listing);
        roster->is_listing = true;
        return false;
    case WEFT_REGISTRY_RELIST_END:
        changed = end_listing(roster, event->revision);
        break;
    case WEFT_REGISTRY_PUT: changed = put(roster, event); break;
    case WEFT_REGISTRY_DELETE: changed = delete (roster, event); break;
    default: return false;
    }
    if (changed) views_build(roster);
    return changed;
}

/* -- questions ------------------------------------------------------------- */

int32_t weft_roster_members(const weft_roster *roster,
                            const weft_member **members_out)
{
    *members_out = roster->members.items;
    return roster->members.n;
}

const weft_member *weft_roster_find(const weft_roster *roster, weft_role role,
                                    const char *id)
{
    const weft_member *members;
    const int32_t n = weft_roster_members(roster, &members);
    for (int32_t i = 0; i < n; i++)
        if (members[i].role == role && strcmp(members[i].id, id) == 0)
            return &members[i];
    return NULL;
}

bool weft_roster_is_suspect(const weft_roster *roster,
                            const weft_member *member)
{
    const weft_suspicion *suspicions;
    const int32_t n = weft_roster_suspicions(roster, &suspicions);
    for (int32_t i = 0; i < n; i++)
        if (suspicions[i].incarnation == member->incarnation &&
            strcmp(suspicions[i].id, member->id) == 0)
            return true;
    return false;
}

static const struct entry *find(const weft_roster *roster, weft_key key)
{
    return table_find(&roster->now, &key);
}

static uint64_t number_of(const weft_roster *roster, weft_key_kind kind)
{
    const struct entry *e = find(roster, (weft_key){.kind = kind});
    return e != NULL && e->readable ? e->as.number : 0;
}

int64_t weft_roster_seen(const weft_roster *roster)
{
    return roster->seen;
}

int64_t weft_roster_revision(const weft_roster *roster, const char *key)
{
    weft_key parsed;
    if (weft_key_parse(key, &parsed) == WEFT_KEY_UNKNOWN) return 0;
    const struct entry *e = find(roster, parsed);
    return e != NULL ? e->revision : 0;
}

uint64_t weft_roster_epoch(const weft_roster *roster, int64_t *revision_out)
{
    *revision_out = weft_roster_revision(roster, WEFT_KEY_TEXT_CURRENT);
    return number_of(roster, WEFT_KEY_CURRENT);
}

uint64_t weft_roster_retired(const weft_roster *roster)
{
    return number_of(roster, WEFT_KEY_RETIRED);
}

const weft_placement *weft_roster_placement(const weft_roster *roster,
                                            uint64_t epoch)
{
    const struct entry *e =
        find(roster, (weft_key){.kind = WEFT_KEY_PLACEMENT, .epoch = epoch});
    return e != NULL && e->readable ? e->as.placement : NULL;
}

int32_t weft_roster_epochs(const weft_roster *roster, uint64_t *epochs_out,
                           int32_t max)
{
    int32_t n = 0;
    uint64_t last = 0;
    for (weft_key_kind kind = WEFT_KEY_PLACEMENT; kind <= WEFT_KEY_SWITCHED;
         kind++) {
        last = 0;
        for (int32_t i = 0; i < roster->now.n; i++) {
            const weft_key *key = &roster->now.entries[i]->key;
            if (key->kind != kind || key->epoch == last) continue;
            last = key->epoch;
            int32_t at = 0;
            while (at < n && epochs_out[at] != last) at++;
            if (at == n && n < max) epochs_out[n++] = last;
        }
    }
    return n;
}

uint64_t weft_roster_epoch_max(const weft_roster *roster)
{
    uint64_t most = 0;
    for (int32_t i = 0; i < roster->now.n; i++) {
        const struct entry *e = roster->now.entries[i];
        uint64_t names = e->key.epoch;
        if (e->readable && e->key.kind == WEFT_KEY_MEMBER)
            names = e->as.member.epoch;
        if (e->readable && (e->key.kind == WEFT_KEY_CURRENT ||
                            e->key.kind == WEFT_KEY_RETIRED))
            names = e->as.number;
        if (names > most) most = names;
    }
    return most;
}

int32_t weft_roster_acks(const weft_roster *roster, const weft_ack **acks_out)
{
    *acks_out = roster->acks.items;
    return roster->acks.n;
}

int32_t weft_roster_switched(const weft_roster *roster,
                             const weft_switched **switched_out)
{
    *switched_out = roster->switched.items;
    return roster->switched.n;
}

int32_t weft_roster_suspicions(const weft_roster *roster,
                               const weft_suspicion **suspicions_out)
{
    *suspicions_out = roster->suspicions.items;
    return roster->suspicions.n;
}

const char *weft_roster_controller(const weft_roster *roster,
                                   int64_t *revision_out)
{
    const struct entry *e =
        find(roster, (weft_key){.kind = WEFT_KEY_CONTROLLER});
    *revision_out = e != NULL ? e->revision : 0;
    return e != NULL && e->readable ? e->as.id : "";
}

uint64_t weft_roster_n_unreadable(const weft_roster *roster,
                                  const char **last_reason_out)
{
    *last_reason_out = roster->reason.text;
    return roster->n_unreadable;
}
