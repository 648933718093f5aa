#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "tests/support/registry_memory_internal.h"

void *memory_grown(void *items, int32_t n, int32_t *room, size_t bytes)
{
    if (n < *room) return items;
    *room = *room > 0 ? 2 * *room : 64;
    items = realloc(items, (size_t)*room * bytes);
    WEFT_ASSERT(items != NULL);
    return items;
}

weft_span memory_copy(weft_span from)
{
    char *data = malloc(from.n + 1);
    WEFT_ASSERT(data != NULL);
    if (from.n > 0) memcpy(data, from.data, from.n);
    return (weft_span){data, from.n};
}

void memory_end_span(weft_span span)
{
    union {
        const char *from;
        void *to;
    } at = {.from = span.data};
    free(at.to);
}

uint64_t memory_now(const memory_store *s)
{
    return s->threaded ? weft_clock_now_ns() : s->now_ns;
}

struct memory_entry *memory_find(const memory_store *s, const char *key)
{
    for (int32_t i = 0; i < s->n_entries; i++)
        if (strcmp(s->entries[i].key, key) == 0) return &s->entries[i];
    return NULL;
}

static void note(memory_store *s, const char *key, bool put, weft_span value)
{
    s->changes = memory_grown(s->changes, s->n_changes, &s->room_changes,
                              sizeof *s->changes);
    struct memory_change *c = &s->changes[s->n_changes++];
    *c = (struct memory_change){.put = put,
                                .value = memory_copy(value),
                                .revision = s->revision,
                                .at_ns = memory_now(s)};
    memcpy(c->key, key, sizeof c->key);
}

void memory_put(memory_store *s, const char *key, weft_span value,
                uint64_t lease)
{
    struct memory_entry *e = memory_find(s, key);
    if (e == NULL) {
        s->entries = memory_grown(s->entries, s->n_entries, &s->room_entries,
                                  sizeof *s->entries);
        e = &s->entries[s->n_entries++];
        memset(e, 0, sizeof *e);
        memcpy(e->key, key, strlen(key) + 1);
    }
    memory_end_span(e->value);
    e->value = memory_copy(value);
    e->revision = s->revision;
    e->lease = lease;
    note(s, e->key, true, value);
}

void memory_drop(memory_store *s, struct memory_entry *e)
{
    note(s, e->key, false, (weft_span){0});
    memory_end_span(e->value);
    *e = s->entries[--s->n_entries];
}

void memory_end_lease(memory_store *s, uint64_t id)
{
    bool first = true;
    for (int32_t i = 0; i < s->n_entries;) {
        if (s->entries[i].lease != id) {
            i++;
            continue;
        }
        s->revision += first;
        first = false;
        memory_drop(s, &s->entries[i]);
    }
    for (int32_t i = 0; i < s->n_leases; i++)
        if (s->leases[i].id == id) s->leases[i--] = s->leases[--s->n_leases];
    if (!first) pthread_cond_broadcast(&s->changed);
}

struct memory_lease *memory_find_lease(memory_store *s, uint64_t id)
{
    for (int32_t i = 0; i < s->n_leases; i++)
        if (s->leases[i].id == id) return &s->leases[i];
    return NULL;
}

void memory_end_leases(memory_store *s)
{
    const uint64_t now = memory_now(s);
    for (int32_t i = 0; !s->away && i < s->n_leases;) {
        if (s->leases[i].ends_ns > now) {
            i++;
            continue;
        }
        memory_end_lease(s, s->leases[i].id);
        i = 0;
    }
}

uint64_t memory_grant(memory_store *s, uint64_t ns)
{
    s->leases = memory_grown(s->leases, s->n_leases, &s->room_leases,
                             sizeof *s->leases);
    s->leases[s->n_leases++] =
        (struct memory_lease){++s->lease_ids, memory_now(s) + ns};
    return s->lease_ids;
}

memory_store *memory_store_create(bool threaded)
{
    memory_store *s = calloc(1, sizeof *s);
    WEFT_ASSERT(s != NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, &attr);
    pthread_condattr_destroy(&attr);
    s->threaded = threaded;
    s->now_ns = 1000 * MS;
    s->revision = 1;
    return s;
}

static void forget_changes(memory_store *s)
{
    for (int32_t i = 0; i < s->n_changes; i++)
        memory_end_span(s->changes[i].value);
    s->n_forgotten += s->n_changes;
    s->n_changes = 0;
}

static void empty(memory_store *s)
{
    forget_changes(s);
    for (int32_t i = 0; i < s->n_entries; i++)
        memory_end_span(s->entries[i].value);
    s->n_entries = s->n_leases = 0;
}

void memory_store_destroy(memory_store *s)
{
    WEFT_ASSERT(s->n_handles == 0);
    empty(s);
    free(s->entries);
    free(s->changes);
    free(s->leases);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

uint64_t memory_store_now(const memory_store *s)
{
    return memory_now(s);
}

void memory_store_advance(memory_store *s, uint64_t ns)
{
    WEFT_ASSERT(!s->threaded);
    s->now_ns += ns;
}

void memory_store_wipe(memory_store *s)
{
    pthread_mutex_lock(&s->lock);
    empty(s);
    s->revision = 1;
    s->generation++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void memory_store_compact(memory_store *s)
{
    pthread_mutex_lock(&s->lock);
    forget_changes(s);
    pthread_mutex_unlock(&s->lock);
}

void memory_store_set_away(memory_store *s, bool away)
{
    pthread_mutex_lock(&s->lock);
    s->away = away;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

int64_t memory_store_revision(const memory_store *s)
{
    return s->revision;
}

const weft_span *memory_store_get(const memory_store *s, const char *key)
{
    const struct memory_entry *e = memory_find(s, key);
    return e != NULL ? &e->value : NULL;
}

int32_t memory_store_count(const memory_store *s)
{
    return s->n_entries;
}
