#include "shard/link/hello.h"

#include <stdbool.h>
#include <string.h>

#include "node/base/pack.h"

enum { ROLE_GROUP_MAX = 1 << 20 }; /* groups and stages; a sanity bound */

const char *weft_role_name(weft_role role)
{
    switch (role) {
    case WEFT_ROLE_ROUTER: return "router";
    case WEFT_ROLE_LAYERS: return "layers";
    case WEFT_ROLE_EXPERTS: return "experts";
    }
    return "unknown";
}

size_t weft_hello_encode(const weft_hello *hello, void *bytes_out)
{
    weft_pack pack = weft_pack_into(bytes_out, WEFT_HELLO_BYTES_MAX);
    weft_pack_u32(&pack, hello->protocol_min);
    weft_pack_u32(&pack, hello->protocol_max);
    weft_pack_text(&pack, hello->release);
    weft_pack_text(&pack, hello->cluster);
    weft_pack_text(&pack, hello->id);
    weft_pack_u32(&pack, (uint32_t)hello->role);
    weft_pack_u64(&pack, hello->incarnation);
    weft_pack_i32(&pack, hello->group);
    weft_pack_i32(&pack, hello->stage);
    weft_pack_i32(&pack, hello->n_stages);
    weft_pack_u64(&pack, hello->config_hash);
    weft_pack_u64(&pack, hello->weights_hash);
    weft_pack_text(&pack, hello->identity);
    weft_pack_text(&pack, hello->profile);
    return pack.n;
}

/* Texts of a hello stand in messages and log lines. */
static bool is_plain(const char *text)
{
    for (; *text != '\0'; text++)
        if (*text < ' ' || *text > '~') return false;
    return true;
}

static bool in_range(int32_t value)
{
    return value >= 0 && value <= ROLE_GROUP_MAX;
}

/* What is wrong with it; NULL if nothing is. */
static const char *flaw_of(const weft_hello *hello, uint32_t role)
{
    if (hello->protocol_min < 1 || hello->protocol_min > hello->protocol_max)
        return "its protocol versions are no range";
    if (hello->id[0] == '\0') return "its id is empty";
    if (!is_plain(hello->release) || !is_plain(hello->cluster) ||
        !is_plain(hello->id) || !is_plain(hello->identity) ||
        !is_plain(hello->profile))
        return "a text in it is not printable ASCII";
    if (role < WEFT_ROLE_ROUTER || role > WEFT_ROLE_EXPERTS)
        return "its role is unknown";
    if (!in_range(hello->group) || !in_range(hello->stage) ||
        !in_range(hello->n_stages))
        return "its group or stage is out of range";
    if (hello->stage > 0 && hello->stage >= hello->n_stages)
        return "its stage is not below its number of stages";
    return NULL;
}

weft_status weft_hello_decode(const void *bytes, size_t n,
                              weft_hello *hello_out, weft_err *err)
{
    weft_hello hello = {0};
    if (n > WEFT_HELLO_BYTES_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a hello of %zu bytes, and the limit is %d", n,
                         WEFT_HELLO_BYTES_MAX);
    weft_unpack unpack = weft_unpack_from(bytes, n);
    hello.protocol_min = weft_unpack_u32(&unpack);
    hello.protocol_max = weft_unpack_u32(&unpack);
    weft_unpack_text(&unpack, hello.release, sizeof hello.release);
    weft_unpack_text(&unpack, hello.cluster, sizeof hello.cluster);
    weft_unpack_text(&unpack, hello.id, sizeof hello.id);
    const uint32_t role = weft_unpack_u32(&unpack);
    hello.role = (weft_role)role;
    hello.incarnation = weft_unpack_u64(&unpack);
    hello.group = weft_unpack_i32(&unpack);
    hello.stage = weft_unpack_i32(&unpack);
    hello.n_stages = weft_unpack_i32(&unpack);
    hello.config_hash = weft_unpack_u64(&unpack);
    hello.weights_hash = weft_unpack_u64(&unpack);
    weft_unpack_text(&unpack, hello.identity, sizeof hello.identity);
    weft_unpack_text(&unpack, hello.profile, sizeof hello.profile);
    /* A later protocol may say more of itself; what is read here stays where
     * it is. */
    const bool later = hello.protocol_max > WEFT_PROTOCOL_MAX;
    if (unpack.bad || (!later && !weft_unpack_done(&unpack)))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%zu bytes that are no hello", n);
    const char *const flaw = flaw_of(&hello, role);
    if (flaw != NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "no hello: %s", flaw);
    *hello_out = hello;
    return WEFT_OK;
}

/* Two sides and the values of one field. */
static weft_status check_text(const weft_hello *own, const weft_hello *peer,
                              const char *field, const char *own_value,
                              const char *peer_value, weft_err *err)
{
    if (strcmp(own_value, peer_value) == 0) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                     "%s differs: %s has \"%s\", %s has \"%s\"", field, own->id,
                     own_value, peer->id, peer_value);
}

static weft_status check_hash(const weft_hello *own, const weft_hello *peer,
                              const char *field, uint64_t own_value,
                              uint64_t peer_value, weft_err *err)
{
    if (own_value == peer_value) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                     "%s differs: %s has %016llx, %s has %016llx", field,
                     own->id, (unsigned long long)own_value, peer->id,
                     (unsigned long long)peer_value);
}

static weft_status check_protocol(const weft_hello *own, const weft_hello *peer,
                                  weft_err *err)
{
    if (own->protocol_min <= peer->protocol_max &&
        peer->protocol_min <= own->protocol_max)
        return WEFT_OK;
    return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                     "no common protocol: %s speaks %u to %u (release %s), %s "
                     "speaks %u to %u (release %s)",
                     own->id, (unsigned)own->protocol_min,
                     (unsigned)own->protocol_max, own->release, peer->id,
                     (unsigned)peer->protocol_min, (unsigned)peer->protocol_max,
                     peer->release);
}

/* Bytes before a ".tpN" at the end. */
static size_t bytes_of_pool(const char *identity)
{
    const size_t n = strlen(identity);
    size_t at = n;
    while (at > 0 && identity[at - 1] >= '0' && identity[at - 1] <= '9') at--;
    const bool has =
        at < n && at >= 3 && memcmp(identity + at - 3, ".tp", 3) == 0;
    return has ? at - 3 : n;
}

bool weft_identity_is_same_pool(const char *identity, const char *other)
{
    const size_t n = bytes_of_pool(identity);
    return n == bytes_of_pool(other) && memcmp(identity, other, n) == 0;
}

static weft_status check_identity(const weft_hello *own, const weft_hello *peer,
                                  weft_err *err)
{
    const bool stages =
        own->role == WEFT_ROLE_LAYERS && peer->role == WEFT_ROLE_LAYERS;
    if (own->identity[0] == '\0' || peer->identity[0] == '\0') return WEFT_OK;
    if (!stages && weft_identity_is_same_pool(own->identity, peer->identity))
        return WEFT_OK;
    return check_text(own, peer, "numeric identity", own->identity,
                      peer->identity, err);
}

weft_status weft_hello_check(const weft_hello *own, const weft_hello *peer,
                             weft_err *err)
{
    WEFT_TRY(
        check_text(own, peer, "cluster", own->cluster, peer->cluster, err));
    WEFT_TRY(check_protocol(own, peer, err));
    WEFT_TRY(check_hash(own, peer, "hash of config.json", own->config_hash,
                        peer->config_hash, err));
    if (own->weights_hash != 0 && peer->weights_hash != 0)
        WEFT_TRY(check_hash(own, peer, "hash of the weights", own->weights_hash,
                            peer->weights_hash, err));
    WEFT_TRY(check_identity(own, peer, err));
    if (own->profile[0] != '\0' && peer->profile[0] != '\0')
        WEFT_TRY(check_text(own, peer, "numeric profile", own->profile,
                            peer->profile, err));
    return WEFT_OK;
}

uint32_t weft_hello_protocol(const weft_hello *own, const weft_hello *peer)
{
    return own->protocol_max < peer->protocol_max ? own->protocol_max
                                                  : peer->protocol_max;
}
