/* Who can be asked: maps, the peers they name, and their links. */
#include <stdio.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/clock.h"
#include "node/base/log.h"
#include "shard/expert/exchange_internal.h"

/* A suspect that no map names is dialled for so long, and is cleared so long
 * after it came under suspicion at the soonest: one change after another costs
 * more than a moment without it. */
#define PROBATION_NS UINT64_C(120000000000)
#define CLEAR_NS     UINT64_C(1000000000)
/* A needed peer that is not connected for so long is suspected. */
#define UNREACHABLE_NS UINT64_C(1000000000)

/* -- slots ---------------------------------------------------------------- */

int32_t weft_exchange_slot_of(weft_exchange *ex, const weft_peer *peer)
{
    int32_t unused = WEFT_NO_SLOT;
    for (int32_t s = 0; s < ex->n_slots; s++) {
        const weft_exchange_slot *const slot = &ex->slots[s];
        if (!slot->used) {
            if (unused == WEFT_NO_SLOT) unused = s;
        } else if (slot->peer.incarnation == peer->incarnation &&
                   strcmp(slot->peer.id, peer->id) == 0) {
            return s;
        }
    }
    if (unused == WEFT_NO_SLOT && ex->n_slots < WEFT_EXPERT_SHARDS_MAX)
        unused = ex->n_slots++;
    if (unused == WEFT_NO_SLOT) return unused;
    ex->slots[unused] = (weft_exchange_slot){
        .used = true, .peer = *peer, .unlinked_ns = weft_clock_now_ns()};
    return unused;
}

static void clear(weft_exchange *ex, weft_exchange_slot *slot)
{
    slot->suspected = false;
    if (ex->options.watch.cleared == NULL) return;
    ex->options.watch.cleared(ex->options.watch.arg, slot->peer.id,
                              slot->peer.incarnation);
}

weft_status weft_exchange_connect(weft_exchange *ex, int32_t s, weft_link *link,
                                  weft_err *err)
{
    weft_exchange_slot *const slot = &ex->slots[s];
    WEFT_TRY(weft_poller_add(ex->poller, link, err));
    if (ex->options.pulse != NULL) {
        const weft_status st = weft_pulse_add(ex->options.pulse, link, err);
        if (st != WEFT_OK) {
            weft_poller_remove(ex->poller, link);
            return st;
        }
    }
    slot->link = link;
    slot->broken = slot->slow = false;
    slot->reject_epoch = 0;
    slot->n_rejects = 0;
    ex->n_links++;
    ex->topology++;
    /* Who was left out of the placement waits a moment (weft_exchange_age). */
    if (slot->suspected && slot->named) clear(ex, slot);
    return WEFT_OK;
}

void weft_exchange_close_link(weft_exchange *ex, int32_t s)
{
    weft_exchange_slot *const slot = &ex->slots[s];
    if (slot->link == NULL) return;
    weft_poller_remove(ex->poller, slot->link);
    if (ex->options.pulse != NULL)
        weft_pulse_remove(ex->options.pulse, slot->link);
    weft_link_close(slot->link);
    slot->link = NULL;
    slot->broken = false;
    slot->unlinked_ns = weft_clock_now_ns();
    ex->n_links--;
    ex->topology++;
    if (ex->options.peers != NULL)
        weft_peers_lost(ex->options.peers, slot->peer.id,
                        slot->peer.incarnation);
}

void weft_exchange_break(weft_exchange *ex, int32_t s, bool slow,
                         const char *why)
{
    weft_exchange_slot *const slot = &ex->slots[s];
    if (slot->link == NULL || slot->broken) return;
    slot->broken = true;
    slot->slow = slow;
    (void)snprintf(slot->why, sizeof slot->why, "%s", why);
    ex->dirty = true;
}

static void suspect(weft_exchange *ex, weft_exchange_slot *slot)
{
    if (!slot->suspected) slot->suspected_ns = weft_clock_now_ns();
    slot->suspected = true;
    if (atomic_load(&ex->stopped) || ex->options.watch.suspect == NULL) return;
    ex->options.watch.suspect(ex->options.watch.arg, slot->peer.id,
                              slot->peer.incarnation, slot->why);
}

/* The slot of owner r, or WEFT_NO_SLOT. */
static int32_t owner_slot(const weft_exchange_held *held, int32_t layer,
                          int32_t expert, int32_t r)
{
    const uint16_t owner = weft_expert_map_owners(held->map, layer, expert)[r];
    return owner == WEFT_NO_OWNER ? WEFT_NO_SLOT : held->slots[owner];
}

/* Whether slot s owns the expert and nobody who is connected does as well. */
static bool is_sole_owner(const weft_exchange *ex,
                          const weft_exchange_held *held, int32_t layer,
                          int32_t expert, int32_t s)
{
    bool owns = false;
    for (int32_t r = 0; r < held->map->n_replicas; r++) {
        const int32_t other = owner_slot(held, layer, expert, r);
        if (other == WEFT_NO_SLOT) continue;
        if (other == s)
            owns = true;
        else if (ex->slots[other].link != NULL && !ex->slots[other].broken)
            return false;
    }
    return owns;
}

/* Whether some expert of the map that is used next has only slot s. */
static bool is_needed(const weft_exchange *ex, int32_t s)
{
    if (ex->n_held == 0) return false;
    const weft_exchange_held *const held = &ex->held[ex->n_held - 1];
    for (int32_t l = 0; l < held->map->n_layer; l++) {
        if (!ex->config->moe[l]) continue;
        for (int32_t e = 0; e < held->map->n_expert; e++)
            if (is_sole_owner(ex, held, l, e, s)) return true;
    }
    return false;
}

void weft_exchange_end_link(weft_exchange *ex, int32_t s)
{
    weft_exchange_slot *const slot = &ex->slots[s];
    const bool owed = slot->n_owed > 0;
    weft_log(WEFT_LOG_WARN, "exchange", "peer_lost", "id %s owed %d why \"%s\"",
             slot->peer.id, slot->n_owed, slot->why);
    if (slot->slow)
        slot->second_until_ns = weft_clock_now_ns() + ex->options.answer_ns;
    /* Closed before anybody else is asked: nothing of it can arrive. */
    weft_exchange_close_link(ex, s);
    if (owed) ex->n_fenced++;
    if (owed || is_needed(ex, s)) suspect(ex, slot);
}

/* -- maps ----------------------------------------------------------------- */

static void forget_oldest(weft_exchange *ex)
{
    const int32_t at = ex->current == &ex->held[0] ? 1 : 0;
    weft_expert_map_release(ex->held[at].map);
    for (int32_t i = at; i + 1 < ex->n_held; i++) ex->held[i] = ex->held[i + 1];
    ex->n_held--;
    /* What was beyond has moved; `current` is before it or moved along. */
    if (ex->current != NULL && ex->current > &ex->held[at]) ex->current--;
}

static void hold(weft_exchange *ex, weft_expert_map *map)
{
    if (ex->n_held == WEFT_EXCHANGE_MAPS) forget_oldest(ex);
    weft_exchange_held *const held = &ex->held[ex->n_held++];
    *held = (weft_exchange_held){.map = map};
    for (int32_t i = 0; i < map->n_peers; i++) {
        const int32_t s = weft_exchange_slot_of(ex, &map->peers[i]);
        held->slots[i] = (int16_t)s;
        if (s == WEFT_NO_SLOT)
            weft_log(WEFT_LOG_ERROR, "exchange", "too_many_peers", "id %s",
                     map->peers[i].id);
        else /* the same peer may have moved */
            ex->slots[s].peer = map->peers[i];
    }
}

/* Maps before the current one serve no step. */
static void forget_past(weft_exchange *ex)
{
    while (ex->current != NULL && ex->current != &ex->held[0]) {
        weft_expert_map_release(ex->held[0].map);
        for (int32_t i = 0; i + 1 < ex->n_held; i++)
            ex->held[i] = ex->held[i + 1];
        ex->n_held--;
        ex->current--;
    }
}

/* Whether a map names another process of that id, which has taken it over. */
static bool is_replaced(const weft_exchange *ex, int32_t s)
{
    for (int32_t i = 0; i < ex->n_slots; i++)
        if (i != s && ex->slots[i].used && ex->slots[i].named &&
            strcmp(ex->slots[i].peer.id, ex->slots[s].peer.id) == 0)
            return true;
    return false;
}

/* wanted[0, n): who cannot be dialled is asked for again. */
static void dial_wanted(weft_exchange *ex, int32_t n, uint64_t now_ns)
{
    weft_err err = {0};
    const weft_status st =
        weft_peers_want(ex->options.peers, ex->wanted, n, &err);
    ex->want_ns =
        st == WEFT_RESOURCE_EXHAUSTED ? now_ns + WEFT_PEERS_AGAIN_NS : 0;
    if (st != WEFT_OK)
        weft_log(WEFT_LOG_ERROR, "exchange", "peers_refused", "why \"%s\"",
                 err.text);
}

/* Says whom the maps name, and lets go of everybody else; but who is suspected
 * is dialled for a while, so that the suspicion ends when it can be reached. */
static void want(weft_exchange *ex)
{
    const uint64_t now = weft_clock_now_ns();
    for (int32_t s = 0; s < ex->n_slots; s++) ex->slots[s].named = false;
    for (int32_t m = 0; m < ex->n_held; m++)
        for (int32_t i = 0; i < ex->held[m].map->n_peers; i++)
            if (ex->held[m].slots[i] != WEFT_NO_SLOT)
                ex->slots[ex->held[m].slots[i]].named = true;
    int32_t n = 0;
    for (int32_t s = 0; s < ex->n_slots; s++) {
        weft_exchange_slot *const slot = &ex->slots[s];
        slot->wanted =
            slot->named ||
            (slot->used && slot->suspected &&
             now < slot->suspected_ns + PROBATION_NS && !is_replaced(ex, s));
        if (slot->used && slot->wanted) ex->wanted[n++] = slot->peer;
    }
    if (ex->options.peers != NULL) dial_wanted(ex, n, now);
    for (int32_t s = 0; s < ex->n_slots; s++) {
        weft_exchange_slot *const slot = &ex->slots[s];
        if (!slot->used || slot->wanted || slot->fixed) continue;
        weft_exchange_close_link(ex, s);
        slot->used = false;
    }
}

bool weft_exchange_take_maps(weft_exchange *ex)
{
    weft_expert_map *maps[WEFT_EXCHANGE_MAPS];
    (void)pthread_mutex_lock(&ex->lock);
    const int32_t n = ex->n_inbox;
    memcpy(maps, ex->inbox, (size_t)n * sizeof(weft_expert_map *));
    ex->n_inbox = 0;
    (void)pthread_mutex_unlock(&ex->lock);
    const bool past = ex->current != NULL && ex->current != &ex->held[0];
    if (n == 0 && !past) return false;
    forget_past(ex);
    for (int32_t i = 0; i < n; i++) hold(ex, maps[i]);
    want(ex);
    ex->topology++;
    return n > 0;
}

bool weft_exchange_take_links(weft_exchange *ex)
{
    bool any = false;
    weft_peer peer;
    weft_link *link = NULL;
    while (ex->options.peers != NULL &&
           weft_peers_take(ex->options.peers, &peer, &link)) {
        int32_t s = WEFT_NO_SLOT;
        for (int32_t i = 0; i < ex->n_slots && s == WEFT_NO_SLOT; i++) {
            const weft_exchange_slot *const slot = &ex->slots[i];
            if (slot->used && slot->link == NULL &&
                strcmp(slot->peer.id, peer.id) == 0 &&
                (slot->peer.incarnation == peer.incarnation ||
                 slot->peer.incarnation == 0))
                s = i;
        }
        weft_err err = {0};
        if (s != WEFT_NO_SLOT &&
            weft_exchange_connect(ex, s, link, &err) == WEFT_OK) {
            any = true;
            continue;
        }
        if (err.status != WEFT_OK)
            weft_log(WEFT_LOG_ERROR, "exchange", "link_refused",
                     "id %s why \"%s\"", peer.id, err.text);
        weft_link_close(link);
        weft_peers_lost(ex->options.peers, peer.id, peer.incarnation);
    }
    return any;
}

/* -- choosing ------------------------------------------------------------- */

int32_t weft_exchange_owner(const weft_exchange *ex, int32_t layer,
                            int32_t expert, uint64_t now_ns)
{
    const weft_exchange_held *const held = ex->current;
    int32_t second = WEFT_NO_SLOT;
    for (int32_t r = 0; r < held->map->n_replicas; r++) {
        const int32_t s = owner_slot(held, layer, expert, r);
        if (s == WEFT_NO_SLOT) continue;
        const weft_exchange_slot *const slot = &ex->slots[s];
        if (!weft_exchange_usable(slot, held->map->epoch)) continue;
        if (slot->second_until_ns <= now_ns) return s;
        if (second == WEFT_NO_SLOT) second = s;
    }
    return second;
}

/* Who owns the expert, and what is known about why they cannot be asked. */
static void say_missing(const weft_exchange *ex, weft_exchange_held *held,
                        int32_t layer, int32_t expert)
{
    char *const text = held->missing;
    size_t at = 0;
    int n =
        snprintf(text, sizeof held->missing, "epoch %llu layer %d expert %d: ",
                 (unsigned long long)held->map->epoch, layer, expert);
    at += (size_t)n;
    for (int32_t r = 0; r < held->map->n_replicas; r++) {
        const int32_t s = owner_slot(held, layer, expert, r);
        if (s == WEFT_NO_SLOT || at >= sizeof held->missing) continue;
        char why[80] = "rejects it";
        if (ex->slots[s].link == NULL) {
            (void)snprintf(why, sizeof why, "not connected");
            if (ex->options.peers != NULL)
                weft_peers_reason(ex->options.peers, ex->slots[s].peer.id, why,
                                  sizeof why);
        }
        n = snprintf(text + at, sizeof held->missing - at, "%s%s %s",
                     r > 0 ? "; " : "", ex->slots[s].peer.id,
                     why[0] != '\0' ? why : "not connected");
        at += (size_t)n;
        if (at > sizeof held->missing) at = sizeof held->missing;
    }
    if (held->missing[0] != '\0' && at < sizeof held->missing &&
        text[at - 1] == ' ')
        (void)snprintf(text + at, sizeof held->missing - at, "no owner");
}

static bool has_owner(const weft_exchange *ex, const weft_exchange_held *held,
                      int32_t layer, int32_t expert)
{
    for (int32_t r = 0; r < held->map->n_replicas; r++) {
        const int32_t s = owner_slot(held, layer, expert, r);
        if (s != WEFT_NO_SLOT &&
            weft_exchange_usable(&ex->slots[s], held->map->epoch))
            return true;
    }
    return false;
}

bool weft_exchange_is_whole(weft_exchange *ex, weft_exchange_held *held)
{
    if (held->checked == ex->topology) return held->whole;
    held->checked = ex->topology;
    held->whole = true;
    held->missing[0] = '\0';
    for (int32_t l = 0; l < ex->config->n_layer && held->whole; l++) {
        if (!ex->config->moe[l]) continue;
        for (int32_t e = 0; e < ex->config->n_expert && held->whole; e++)
            held->whole = has_owner(ex, held, l, e);
        if (held->whole) continue;
        for (int32_t e = 0; e < ex->config->n_expert; e++)
            if (!has_owner(ex, held, l, e)) {
                say_missing(ex, held, l, e);
                break;
            }
    }
    return held->whole;
}

/* Those who are suspected and in no placement any more. */
static void age_suspects(weft_exchange *ex, uint64_t now_ns)
{
    bool over = false;
    for (int32_t s = 0; s < ex->n_slots; s++) {
        weft_exchange_slot *const slot = &ex->slots[s];
        if (!slot->used || !slot->suspected || slot->named) continue;
        if (slot->link != NULL && now_ns >= slot->suspected_ns + CLEAR_NS)
            clear(ex, slot);
        over |= slot->suspected && slot->wanted &&
                now_ns >= slot->suspected_ns + PROBATION_NS;
    }
    if (over) want(ex);
}

bool weft_exchange_age(weft_exchange *ex, uint64_t now_ns)
{
    bool any = false;
    age_suspects(ex, now_ns);
    if (ex->want_ns != 0 && now_ns >= ex->want_ns) want(ex);
    if (now_ns >= ex->expiry_ns) {
        ex->expiry_ns = UINT64_MAX;
        for (int32_t s = 0; s < ex->n_slots; s++) {
            weft_exchange_slot *const slot = &ex->slots[s];
            if (!slot->used || slot->reject_epoch == 0) continue;
            if (slot->reject_until_ns <= now_ns) {
                slot->reject_epoch = 0;
                any = true;
            } else if (slot->reject_until_ns < ex->expiry_ns) {
                ex->expiry_ns = slot->reject_until_ns;
            }
        }
        if (any) ex->topology++;
    }
    if (ex->options.peers == NULL) return any;
    for (int32_t s = 0; s < ex->n_slots; s++) {
        weft_exchange_slot *const slot = &ex->slots[s];
        if (!slot->used || !slot->wanted || slot->link != NULL ||
            slot->suspected || now_ns < slot->unlinked_ns + UNREACHABLE_NS)
            continue;
        slot->unlinked_ns = now_ns; /* looked at again after as long */
        if (!is_needed(ex, s)) continue;
        (void)snprintf(slot->why, sizeof slot->why, "cannot be reached");
        suspect(ex, slot);
    }
    return any;
}
