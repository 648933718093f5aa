/* Any bytes as keys and values of the registry: told, listed, told again, they
 * give a roster in which whatever is told is whole, or are left out with a
 * reason in one line. The bytes are records of: kind, length of the key, key,
 * length of the value (two bytes), value. */
#include <stdint.h>
#include <string.h>

#include "node/base/check.h"
#include "node/cluster/values.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LAYERS = 3, EXPERTS = 8 };

static const bool moe[LAYERS] = {false, true, true};
static const weft_placement_shape shape = {
    .n_layer = LAYERS, .n_expert = EXPERTS, .moe = moe};

static void check_placement(const weft_placement *p)
{
    WEFT_ASSERT(p->n_layer == LAYERS && p->n_expert == EXPERTS);
    WEFT_ASSERT(p->n_members >= 1 && p->n_members <= WEFT_EXPERT_SHARDS_MAX);
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t e = 0; e < EXPERTS; e++) {
            const uint16_t first = p->owners[(l * EXPERTS + e) * p->n_replicas];
            WEFT_ASSERT((first != WEFT_NO_OWNER) == moe[l]);
            WEFT_ASSERT(first == WEFT_NO_OWNER || first < p->n_members);
        }
}

static void check(const weft_roster *roster)
{
    const weft_member *members;
    const char *reason;
    uint64_t epochs[64];
    const int32_t n = weft_roster_members(roster, &members);
    for (int32_t i = 0; i < n; i++) {
        WEFT_ASSERT(weft_id_is_valid(members[i].id));
        WEFT_ASSERT(members[i].incarnation > 0);
        WEFT_ASSERT(weft_roster_find(roster, members[i].role, members[i].id) ==
                    &members[i]);
        (void)weft_roster_is_suspect(roster, &members[i]);
    }
    const int32_t n_epochs = weft_roster_epochs(roster, epochs, 64);
    for (int32_t i = 0; i < n_epochs; i++) {
        const weft_placement *p = weft_roster_placement(roster, epochs[i]);
        WEFT_ASSERT(epochs[i] > 0 && epochs[i] < WEFT_EPOCH_MAX);
        WEFT_ASSERT(epochs[i] <= weft_roster_epoch_max(roster));
        if (p != NULL) check_placement(p);
    }
    if (weft_roster_n_unreadable(roster, &reason) > 0)
        WEFT_ASSERT(reason[0] != '\0' && strchr(reason, '\n') == NULL);
}

static size_t take(const uint8_t **at, const uint8_t *end, size_t n,
                   const uint8_t **out)
{
    const size_t left = (size_t)(end - *at);
    *out = *at;
    *at += n < left ? n : left;
    return n < left ? n : left;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *at = data, *const end = data + size;
    weft_roster *roster = NULL;
    int64_t revision = 0;
    if (weft_roster_create(&shape, &roster, NULL) != WEFT_OK) return 0;
    while (end - at >= 4) {
        const uint8_t *text, *value;
        char key[WEFT_KEY_BYTES] = "";
        const uint8_t kind = *at++;
        const size_t n_key = take(&at, end, *at % (WEFT_KEY_BYTES - 1), &text);
        for (size_t i = 1; i < n_key; i++)
            if (text[i] != 0) key[strlen(key)] = (char)text[i];
        size_t n = 0;
        if (end - at >= 2) {
            n = (size_t)at[0] | (size_t)at[1] << 8;
            at += 2;
        }
        n = take(&at, end, n, &value);
        const weft_registry_event event = {
            .kind = (weft_registry_event_kind)(kind % 4),
            .key = key,
            .value = {(const char *)value, n},
            .revision = revision += kind >> 7,
        };
        (void)weft_roster_apply(roster, &event);
        check(roster);
    }
    weft_roster_destroy(roster);
    return 0;
}
