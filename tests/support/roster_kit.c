#include "tests/support/roster_kit.h"

#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/base/rng.h"
#include "tests/support/expect.h"

static const bool moe[KIT_LAYERS] = {false, true, true};

static weft_span span_of(const weft_buf *buf)
{
    return (weft_span){.data = buf->data, .n = buf->n};
}

static void tell(kit *k, weft_registry_event event)
{
    if (!k->is_deaf) (void)weft_roster_apply(k->roster, &event);
}

kit *kit_create(void)
{
    kit *k = weft_mem_new(1, sizeof *k);
    ck_assert_ptr_nonnull(k);
    k->shape = (weft_placement_shape){
        .n_layer = KIT_LAYERS, .n_expert = KIT_EXPERTS, .moe = moe};
    OK(weft_roster_create(&k->shape, &k->roster, &err));
    return k;
}

void kit_destroy(kit *k)
{
    for (int32_t i = 0; i < k->n; i++) weft_buf_deinit(&k->keys[i].value);
    weft_roster_destroy(k->roster);
    weft_mem_free(k);
}

/* -1: no such key. */
static int32_t find(const kit *k, const char *key)
{
    for (int32_t i = 0; i < k->n; i++)
        if (strcmp(k->keys[i].key, key) == 0) return i;
    return -1;
}

static void write_key(kit *k, const char *key, const void *value, size_t n,
                      const char *owner)
{
    const int32_t had = find(k, key);
    kit_key *at = had >= 0 ? &k->keys[had] : NULL;
    if (at == NULL) {
        ck_assert_int_lt(k->n, KIT_KEYS_MAX);
        at = &k->keys[k->n++];
        *at = (kit_key){.revision = 0};
        (void)snprintf(at->key, sizeof at->key, "%s", key);
    }
    (void)snprintf(at->owner, sizeof at->owner, "%s", owner);
    weft_buf_clear(&at->value);
    OK(weft_buf_add(&at->value, value, n, &err));
    at->revision = k->revision;
    tell(k, (weft_registry_event){.kind = WEFT_REGISTRY_PUT,
                                  .key = key,
                                  .value = span_of(&at->value),
                                  .revision = k->revision});
}

static void remove_at(kit *k, int32_t at)
{
    char key[WEFT_KEY_BYTES];
    memcpy(key, k->keys[at].key, sizeof key);
    weft_buf_deinit(&k->keys[at].value);
    k->keys[at] = k->keys[--k->n];
    tell(k, (weft_registry_event){.kind = WEFT_REGISTRY_DELETE,
                                  .key = key,
                                  .revision = k->revision});
}

void kit_put(kit *k, const char *key, const void *value, size_t n)
{
    k->revision++;
    write_key(k, key, value, n, "");
}

void kit_put_buf(kit *k, const char *key, weft_buf *value)
{
    kit_put(k, key, value->data, value->n);
    weft_buf_deinit(value);
}

void kit_remove(kit *k, const char *key)
{
    const int32_t at = find(k, key);
    if (at < 0) return;
    k->revision++;
    remove_at(k, at);
}

bool kit_has(const kit *k, const char *key)
{
    return find(k, key) >= 0;
}

int32_t kit_count(const kit *k, const char *prefix)
{
    int32_t n = 0;
    for (int32_t i = 0; i < k->n; i++)
        n += strncmp(k->keys[i].key, prefix, strlen(prefix)) == 0;
    return n;
}

void kit_list(kit *k, uint64_t seed)
{
    int32_t order[KIT_KEYS_MAX];
    for (int32_t i = 0; i < k->n; i++) order[i] = i;
    for (int32_t i = k->n - 1; i > 0; i--) {
        const int32_t other =
            (int32_t)(weft_rng_u64(seed, (uint64_t)i) % ((uint64_t)i + 1));
        const int32_t had = order[i];
        order[i] = order[other];
        order[other] = had;
    }
    tell(k, (weft_registry_event){.kind = WEFT_REGISTRY_RELIST_BEGIN});
    for (int32_t i = 0; i < k->n; i++)
        tell(k,
             (weft_registry_event){.kind = WEFT_REGISTRY_PUT,
                                   .key = k->keys[order[i]].key,
                                   .value = span_of(&k->keys[order[i]].value),
                                   .revision = k->keys[order[i]].revision});
    tell(k, (weft_registry_event){.kind = WEFT_REGISTRY_RELIST_END,
                                  .revision = k->revision});
}

void kit_wipe(kit *k)
{
    for (int32_t i = 0; i < k->n; i++) weft_buf_deinit(&k->keys[i].value);
    k->n = 0;
    k->revision = 1;
    kit_list(k, 0);
}

static bool holds(const kit *k, const weft_txn *txn)
{
    for (int32_t i = 0; i < txn->n_compares; i++) {
        const int32_t at = find(k, txn->compares[i].key);
        if ((at >= 0 ? k->keys[at].revision : 0) !=
            txn->compares[i].mod_revision)
            return false;
    }
    return true;
}

void kit_submit(kit *k, const weft_txn *txn, const char *owner,
                weft_registry_event *event_out)
{
    *event_out = (weft_registry_event){.kind = WEFT_REGISTRY_TXN,
                                       .tag = txn->tag,
                                       .status = WEFT_FAILED_PRECONDITION};
    ck_assert_int_gt(txn->n_writes, 0);
    ck_assert_int_le(txn->n_writes, WEFT_TXN_WRITES_MAX);
    ck_assert_int_le(txn->n_compares, WEFT_TXN_COMPARES_MAX);
    if (!holds(k, txn)) return;
    k->revision++;
    for (int32_t i = 0; i < txn->n_writes; i++) {
        const weft_txn_write *w = &txn->writes[i];
        if (!w->remove)
            write_key(k, w->key, w->value.data, w->value.n,
                      w->leased ? owner : "");
        for (int32_t at = k->n - 1; w->remove && at >= 0; at--)
            if (w->prefix
                    ? strncmp(k->keys[at].key, w->key, strlen(w->key)) == 0
                    : strcmp(k->keys[at].key, w->key) == 0)
                remove_at(k, at);
    }
    event_out->status = WEFT_OK;
    event_out->revision = k->revision;
}

void kit_end_lease(kit *k, const char *owner)
{
    k->revision++;
    for (int32_t at = k->n - 1; at >= 0; at--)
        if (strcmp(k->keys[at].owner, owner) == 0) remove_at(k, at);
}

/* -- values ---------------------------------------------------------------- */

weft_member kit_member(weft_role role, const char *id, uint64_t incarnation,
                       weft_member_state state)
{
    weft_member m = {.role = role,
                     .state = state,
                     .incarnation = incarnation,
                     .config_hash = 7,
                     .weights_hash = 8,
                     .n_stages = role == WEFT_ROLE_LAYERS ? 1 : 0};
    (void)snprintf(m.id, sizeof m.id, "%s", id);
    (void)snprintf(m.address, sizeof m.address, "127.0.0.1:1%s", id + 1);
    (void)snprintf(m.identity, sizeof m.identity, "cpu");
    return m;
}

void kit_put_member(kit *k, const weft_member *member)
{
    char key[WEFT_KEY_BYTES];
    weft_buf value = {0};
    OK(weft_member_encode(member, &value, &err));
    kit_put_buf(k, weft_key_of_member(member->role, member->id, key), &value);
}

void kit_put_experts(kit *k, const char *id, uint64_t incarnation,
                     weft_member_state state)
{
    const weft_member m = kit_member(WEFT_ROLE_EXPERTS, id, incarnation, state);
    kit_put_member(k, &m);
}

void kit_put_lead(kit *k, const char *id, int32_t group)
{
    weft_member m = kit_member(WEFT_ROLE_LAYERS, id, 1, WEFT_MEMBER_SERVING);
    m.group = group;
    kit_put_member(k, &m);
}

void kit_put_number(kit *k, const char *key, uint64_t number)
{
    weft_buf value = {0};
    OK(weft_number_encode(number, &value, &err));
    kit_put_buf(k, key, &value);
}

void kit_put_placement(kit *k, const weft_placement *placement)
{
    char key[WEFT_KEY_BYTES];
    weft_buf value = {0};
    OK(weft_placement_encode(placement, &value, &err));
    kit_put_buf(k, weft_key_of_placement(placement->epoch, key), &value);
}

void kit_put_ack(kit *k, uint64_t epoch, const char *id, uint64_t incarnation,
                 uint64_t hash, const char *failure)
{
    char key[WEFT_KEY_BYTES];
    weft_buf value = {0};
    weft_ack ack = {.epoch = epoch,
                    .incarnation = incarnation,
                    .placement_hash = hash,
                    .failed = failure != NULL};
    (void)snprintf(ack.id, sizeof ack.id, "%s", id);
    (void)snprintf(ack.text, sizeof ack.text, "%s",
                   failure != NULL ? failure : "");
    OK(weft_ack_encode(&ack, &value, &err));
    kit_put_buf(k, weft_key_of_ack(epoch, id, key), &value);
}

void kit_put_switched(kit *k, uint64_t epoch, uint32_t group,
                      uint64_t incarnation)
{
    char key[WEFT_KEY_BYTES];
    weft_buf value = {0};
    const weft_switched s = {
        .epoch = epoch, .group = group, .incarnation = incarnation};
    OK(weft_switched_encode(&s, &value, &err));
    kit_put_buf(k, weft_key_of_switched(epoch, group, incarnation, key),
                &value);
}

void kit_put_suspicion(kit *k, const char *id, uint64_t incarnation,
                       const char *reporter)
{
    char key[WEFT_KEY_BYTES];
    weft_buf value = {0};
    weft_suspicion s = {.incarnation = incarnation};
    (void)snprintf(s.id, sizeof s.id, "%s", id);
    (void)snprintf(s.reporter, sizeof s.reporter, "%s", reporter);
    OK(weft_suspicion_encode(&s, &value, &err));
    kit_put_buf(k, weft_key_of_suspect(id, reporter, key), &value);
}

weft_placement *kit_placement(const kit *k, uint64_t epoch, int32_t n)
{
    weft_placement_member members[16];
    weft_placement *p = NULL;
    ck_assert_int_le(n, 16);
    for (int32_t i = 0; i < n; i++) {
        char id[WEFT_ID_BYTES];
        (void)snprintf(id, sizeof id, "e%d", i);
        const weft_member m =
            kit_member(WEFT_ROLE_EXPERTS, id, 1, WEFT_MEMBER_SERVING);
        members[i] = (weft_placement_member){.incarnation = 1};
        memcpy(members[i].id, m.id, sizeof m.id);
        memcpy(members[i].address, m.address, sizeof m.address);
    }
    OK(weft_placement_make(&k->shape, members, n, 1, NULL, NULL, &p, &err));
    p->epoch = epoch;
    return p;
}
