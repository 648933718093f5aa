#include "tests/support/registry_seen.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/clock.h"
#include "tests/support/expect.h"

static seen_key *find(const seen *s, const char *key)
{
    for (int32_t i = 0; i < s->n_keys; i++)
        if (strcmp(s->keys[i].key, key) == 0) return &s->keys[i];
    return NULL;
}

static void drop(seen *s, seen_key *k)
{
    free(k->value);
    *k = s->keys[--s->n_keys];
}

static void take_put(seen *s, const weft_registry_event *event)
{
    seen_key *k = find(s, event->key);
    if (k == NULL) {
        if (s->n_keys == s->room) {
            s->room = s->room > 0 ? 2 * s->room : 32;
            s->keys = realloc(s->keys, (size_t)s->room * sizeof *s->keys);
            ck_assert_ptr_nonnull(s->keys);
        }
        k = &s->keys[s->n_keys++];
        memset(k, 0, sizeof *k);
        ck_assert_uint_lt(strlen(event->key), WEFT_KEY_BYTES);
        memcpy(k->key, event->key, strlen(event->key) + 1);
    }
    free(k->value);
    k->value = calloc(1, event->value.n + 1);
    ck_assert_ptr_nonnull(k->value);
    if (event->value.n > 0) memcpy(k->value, event->value.data, event->value.n);
    k->n = event->value.n;
    k->revision = event->revision;
    k->listed = true;
}

static void in_order(seen *s, const weft_registry_event *event)
{
    if (s->in_listing) return;
    ck_assert_msg(event->revision >= s->revision, "%s told at %lld after %lld",
                  event->key, (long long)event->revision,
                  (long long)s->revision);
    s->revision = event->revision;
}

static void begin_listing(seen *s)
{
    ck_assert_msg(!s->in_listing, "a listing inside a listing");
    s->in_listing = true;
    for (int32_t i = 0; i < s->n_keys; i++) s->keys[i].listed = false;
}

static void end_listing(seen *s, const weft_registry_event *event)
{
    ck_assert(s->in_listing);
    s->in_listing = false;
    s->n_listings++;
    s->revision = event->revision;
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_keys; i++) {
        if (s->keys[i].listed)
            s->keys[n++] = s->keys[i];
        else
            free(s->keys[i].value);
    }
    s->n_keys = n;
}

static void take_result(seen *s, const weft_registry_event *event)
{
    for (int32_t i = 0; i < s->n_submitted; i++) {
        if (s->tags[i] != event->tag) continue;
        ck_assert_msg(!s->done[i], "a result came twice");
        s->done[i] = true;
        s->results[i] = event->status;
        return;
    }
    ck_abort_msg("a result for nobody: %llu", (unsigned long long)event->tag);
}

static void take(void *arg, const weft_registry_event *event)
{
    seen *s = arg;
    seen_key *k;
    switch (event->kind) {
    case WEFT_REGISTRY_RELIST_BEGIN: begin_listing(s); return;
    case WEFT_REGISTRY_RELIST_END: end_listing(s, event); return;
    case WEFT_REGISTRY_PUT:
        in_order(s, event);
        s->n_puts++;
        take_put(s, event);
        return;
    case WEFT_REGISTRY_DELETE:
        in_order(s, event);
        s->n_deletes++;
        k = find(s, event->key);
        if (k != NULL) drop(s, k);
        return;
    case WEFT_REGISTRY_TXN: take_result(s, event); return;
    case WEFT_REGISTRY_LEASE:
        s->lease = event->status;
        s->n_lease_ok += event->status == WEFT_OK;
        s->n_lease_lost += event->status != WEFT_OK;
        return;
    case WEFT_REGISTRY_LINK:
        ck_assert_msg(s->link != event->status, "a link state told twice");
        s->link = event->status;
        (void)snprintf(s->link_text, sizeof s->link_text, "%s", event->text);
        return;
    }
}

void seen_begin(seen *s, weft_registry *registry)
{
    memset(s, 0, sizeof *s);
    s->registry = registry;
    s->link = s->lease = WEFT_CANCELLED;
}

void seen_forget(seen *s)
{
    for (int32_t i = 0; i < s->n_keys; i++) free(s->keys[i].value);
    free(s->keys);
    memset(s, 0, sizeof *s);
}

void seen_end(seen *s)
{
    s->registry->ops->destroy(s->registry,
                              weft_clock_now_ns() + UINT64_C(2000000000));
    seen_forget(s);
}

void seen_poll(seen *s, uint64_t deadline_ns)
{
    s->registry->ops->poll(s->registry, deadline_ns, take, s);
}

const seen_key *seen_find(const seen *s, const char *key)
{
    return find(s, key);
}

bool seen_has(const seen *s, const char *key, const char *value)
{
    const seen_key *k = find(s, key);
    return k != NULL && k->n == strlen(value) &&
           memcmp(k->value, value, k->n) == 0;
}

int32_t seen_submit(seen *s, weft_txn *txn)
{
    ck_assert_int_lt(s->n_submitted, SEEN_RESULTS_MAX);
    const int32_t i = s->n_submitted;
    txn->tag = s->tags[i] = 1000 + (uint64_t)i;
    OK(s->registry->ops->submit(s->registry, txn, &err));
    return s->n_submitted++;
}

static void name(char out[WEFT_KEY_BYTES], const char *key)
{
    (void)snprintf(out, WEFT_KEY_BYTES, "%s", key);
}

int32_t seen_put(seen *s, const char *key, const char *value, bool leased,
                 int64_t compare)
{
    weft_txn txn = {.n_compares = compare >= 0 ? 1 : 0, .n_writes = 1};
    name(txn.compares[0].key, key);
    txn.compares[0].mod_revision = compare;
    name(txn.writes[0].key, key);
    txn.writes[0].leased = leased;
    txn.writes[0].value = (weft_span){value, strlen(value)};
    return seen_submit(s, &txn);
}

int32_t seen_remove(seen *s, const char *key, bool prefix)
{
    weft_txn txn = {.n_writes = 1};
    name(txn.writes[0].key, key);
    txn.writes[0].remove = true;
    txn.writes[0].prefix = prefix;
    return seen_submit(s, &txn);
}
