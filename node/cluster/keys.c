#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "node/base/check.h"
#include "node/cluster/values.h"

bool weft_id_is_valid(const char *id)
{
    size_t n = 0;
    for (; id[n] != '\0'; n++) {
        const char c = id[n];
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                           (c >= '0' && c <= '9') || c == '.' || c == '_' ||
                           c == '-';
        if (!plain || n + 1 >= WEFT_ID_BYTES) return false;
    }
    return n > 0;
}

/* The piece of *at up to the next '/' or the end into out [bytes]; *at is moved
 * behind it, and to NULL at the end. */
static bool piece(const char **at, char *out, size_t bytes)
{
    if (*at == NULL) return false;
    const size_t n = strcspn(*at, "/");
    if (n == 0 || n >= bytes) return false;
    memcpy(out, *at, n);
    out[n] = '\0';
    *at = (*at)[n] == '/' ? *at + n + 1 : NULL;
    return true;
}

static bool piece_id(const char **at, char out[WEFT_ID_BYTES])
{
    return piece(at, out, WEFT_ID_BYTES) && weft_id_is_valid(out);
}

/* A number as it is written, without leading zeros. */
static bool piece_number(const char **at, uint64_t max, uint64_t *out)
{
    char text[24];
    if (!piece(at, text, sizeof text) || !isdigit((unsigned char)text[0]) ||
        (text[0] == '0' && text[1] != '\0'))
        return false;
    return weft_parse_u64(text, out) && *out < max;
}

static bool parse_epoch(const char *at, weft_key *key)
{
    char word[16];
    uint64_t group = 0;
    if (!piece_number(&at, WEFT_EPOCH_MAX, &key->epoch) || key->epoch == 0 ||
        !piece(&at, word, sizeof word))
        return false;
    if (strcmp(word, "placement") == 0) {
        key->kind = WEFT_KEY_PLACEMENT;
    } else if (strcmp(word, "ack") == 0) {
        key->kind = WEFT_KEY_ACK;
        if (!piece_id(&at, key->id)) return false;
    } else if (strcmp(word, "switched") == 0) {
        key->kind = WEFT_KEY_SWITCHED;
        if (!piece_number(&at, WEFT_GROUP_MAX, &group) ||
            !piece_number(&at, UINT64_MAX, &key->incarnation))
            return false;
        key->group = (uint32_t)group;
    } else {
        return false;
    }
    return at == NULL;
}

static bool parse(const char *at, weft_key *key)
{
    char word[16];
    if (!piece(&at, word, sizeof word)) return false;
    if (strcmp(word, "epoch") == 0) return at != NULL && parse_epoch(at, key);
    if (strcmp(word, "suspects") == 0) {
        key->kind = WEFT_KEY_SUSPECT;
        return piece_id(&at, key->id) && piece_id(&at, key->reporter) &&
               at == NULL;
    }
    if (strcmp(word, "members") != 0 || !piece(&at, word, sizeof word))
        return false;
    key->kind = WEFT_KEY_MEMBER;
    for (key->role = WEFT_ROLE_ROUTER; key->role <= WEFT_ROLE_EXPERTS;
         key->role++)
        if (strcmp(word, weft_role_name(key->role)) == 0)
            return piece_id(&at, key->id) && at == NULL;
    return false;
}

weft_key_kind weft_key_parse(const char *text, weft_key *key_out)
{
    weft_key key = {.kind = WEFT_KEY_UNKNOWN};
    if (strcmp(text, WEFT_KEY_TEXT_CONTROLLER) == 0)
        key.kind = WEFT_KEY_CONTROLLER;
    else if (strcmp(text, WEFT_KEY_TEXT_CURRENT) == 0)
        key.kind = WEFT_KEY_CURRENT;
    else if (strcmp(text, WEFT_KEY_TEXT_RETIRED) == 0)
        key.kind = WEFT_KEY_RETIRED;
    else if (!parse(text, &key))
        key = (weft_key){.kind = WEFT_KEY_UNKNOWN};
    *key_out = key;
    return key.kind;
}

const char *weft_key_format(const weft_key *key, char text_out[WEFT_KEY_BYTES])
{
    const unsigned long long epoch = key->epoch;
    int n = 0;
    switch (key->kind) {
    case WEFT_KEY_MEMBER:
        n = snprintf(text_out, WEFT_KEY_BYTES, "members/%s/%s",
                     weft_role_name(key->role), key->id);
        break;
    case WEFT_KEY_CONTROLLER:
        n = snprintf(text_out, WEFT_KEY_BYTES, WEFT_KEY_TEXT_CONTROLLER);
        break;
    case WEFT_KEY_CURRENT:
        n = snprintf(text_out, WEFT_KEY_BYTES, WEFT_KEY_TEXT_CURRENT);
        break;
    case WEFT_KEY_RETIRED:
        n = snprintf(text_out, WEFT_KEY_BYTES, WEFT_KEY_TEXT_RETIRED);
        break;
    case WEFT_KEY_PLACEMENT:
        n = snprintf(text_out, WEFT_KEY_BYTES, "epoch/%llu/placement", epoch);
        break;
    case WEFT_KEY_ACK:
        n = snprintf(text_out, WEFT_KEY_BYTES, "epoch/%llu/ack/%s", epoch,
                     key->id);
        break;
    case WEFT_KEY_SWITCHED:
        n = snprintf(text_out, WEFT_KEY_BYTES, "epoch/%llu/switched/%u/%llu",
                     epoch, key->group, (unsigned long long)key->incarnation);
        break;
    case WEFT_KEY_SUSPECT:
        n = snprintf(text_out, WEFT_KEY_BYTES, "suspects/%s/%s", key->id,
                     key->reporter);
        break;
    case WEFT_KEY_UNKNOWN: break;
    }
    WEFT_ASSERT(n > 0 && n < WEFT_KEY_BYTES);
    return text_out;
}

static weft_key with_id(weft_key_kind kind, const char *id)
{
    weft_key key = {.kind = kind};
    (void)snprintf(key.id, sizeof key.id, "%s", id);
    return key;
}

const char *weft_key_of_member(weft_role role, const char *id,
                               char text_out[WEFT_KEY_BYTES])
{
    weft_key key = with_id(WEFT_KEY_MEMBER, id);
    key.role = role;
    return weft_key_format(&key, text_out);
}

const char *weft_key_of_ack(uint64_t epoch, const char *id,
                            char text_out[WEFT_KEY_BYTES])
{
    weft_key key = with_id(WEFT_KEY_ACK, id);
    key.epoch = epoch;
    return weft_key_format(&key, text_out);
}

const char *weft_key_of_switched(uint64_t epoch, uint32_t group,
                                 uint64_t incarnation,
                                 char text_out[WEFT_KEY_BYTES])
{
    const weft_key key = {.kind = WEFT_KEY_SWITCHED,
                          .epoch = epoch,
                          .incarnation = incarnation,
                          .group = group};
    return weft_key_format(&key, text_out);
}

const char *weft_key_of_suspect(const char *id, const char *reporter,
                                char text_out[WEFT_KEY_BYTES])
{
    weft_key key = with_id(WEFT_KEY_SUSPECT, id);
    (void)snprintf(key.reporter, sizeof key.reporter, "%s", reporter);
    return weft_key_format(&key, text_out);
}

const char *weft_key_of_placement(uint64_t epoch, char text_out[WEFT_KEY_BYTES])
{
    const weft_key key = {.kind = WEFT_KEY_PLACEMENT, .epoch = epoch};
    return weft_key_format(&key, text_out);
}
