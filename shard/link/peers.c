/* Keeping peers connected: a slot and a thread for each.
 *
 *            take                lost
 *   READY ---------> TAKEN ---------------.
 *     ^                                   |
 *     | dialled                           v
 *   DIALLING <-- after a while -- (wanted? yes: DIALLING; no: gone)
 *
 * A slot that is not wanted is gone, unless its link is with the owner: then it
 * stays until `lost`, so that a peer that is wanted again meanwhile is not
 * dialled twice. A slot that is gone ends its thread, which is joined when the
 * set is next told. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "node/base/clock.h"
#include "node/base/mem.h"
#include "shard/link/dial_internal.h"

#define DIAL_NS        UINT64_C(1000000000)
#define BACKOFF_NS     UINT64_C(50000000)
#define BACKOFF_MAX_NS UINT64_C(1000000000)
/* A link that has lived this long is dialled again without waiting first. */
#define LIVED_NS BACKOFF_MAX_NS

enum { STACK_BYTES = 512 << 10 };

typedef enum state { DIALLING, READY, TAKEN } state;

typedef struct peer_slot {
    weft_peers *peers;
    struct peer_slot *next;
    pthread_t thread;
    pthread_cond_t changed;
    int abort_fd;

    /* With the lock. */
    weft_peer peer; /* as wanted */
    state state;
    bool wanted, gone, done;
    weft_link *link;      /* READY */
    bool pulsed;          /* it is among the pulses */
    uint64_t incarnation; /* of who answered */
    uint64_t ready_no;    /* the order of `take` */
    uint64_t ready_ns;
    uint64_t backoff_ns, dial_at_ns;
    char reason[WEFT_ERR_TEXT_BYTES];
} peer_slot;

struct weft_peers {
    weft_peers_options options;
    pthread_mutex_t lock; /* of what follows, and of the slots */
    weft_hello own;
    bool own_known;
    bool stopped;
    peer_slot *slots;
    int32_t n_slots;
    uint64_t ready_count;
};

/* -- a slot's thread ------------------------------------------------------ */

static weft_status check_is(void *arg, const weft_hello *peer, weft_err *err)
{
    const weft_peer *const wanted = arg;
    if (strcmp(wanted->id, peer->id) != 0)
        return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                         "%s was expected, and %s is there", wanted->id,
                         peer->id);
    if (wanted->incarnation != 0 && wanted->incarnation != peer->incarnation)
        return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                         "incarnation %llu of %s was expected, and %llu is "
                         "there",
                         (unsigned long long)wanted->incarnation, wanted->id,
                         (unsigned long long)peer->incarnation);
    return WEFT_OK;
}

static void back_off(peer_slot *slot, uint64_t now)
{
    slot->dial_at_ns = now + slot->backoff_ns;
    slot->backoff_ns = slot->backoff_ns < BACKOFF_MAX_NS / 2
                           ? 2 * slot->backoff_ns
                           : BACKOFF_MAX_NS;
}

/* With the lock: a link that somebody may take, or nobody. A link that finds no
 * place among the pulses is one that its peer gives up if it is taken late. */
static void keep(peer_slot *slot, weft_link *link)
{
    weft_pulse *const pulse = slot->peers->options.pulse;
    slot->link = link;
    slot->pulsed =
        pulse != NULL && weft_pulse_add(pulse, link, NULL) == WEFT_OK;
}

static weft_link *hand_over(peer_slot *slot)
{
    weft_link *const link = slot->link;
    if (slot->pulsed) weft_pulse_remove(slot->peers->options.pulse, link);
    slot->pulsed = false;
    slot->link = NULL;
    return link;
}

/* With the lock, which is let go meanwhile. */
static void dial(peer_slot *slot)
{
    weft_peers *const peers = slot->peers;
    weft_peer wanted = slot->peer;
    const weft_hello own = peers->own;
    weft_link *link = NULL;
    weft_hello answer = {0};
    weft_err err = {0};
    (void)pthread_mutex_unlock(&peers->lock);
    const weft_dialling dialling = {.address = wanted.address,
                                    .own = &own,
                                    .tls = peers->options.tls,
                                    .link = &peers->options.link,
                                    .deadline_ns = weft_clock_now_ns() +
                                                   peers->options.dial_ns,
                                    .abort_fd = slot->abort_fd,
                                    .check = check_is,
                                    .arg = &wanted};
    const weft_status st = weft_dial_run(&dialling, &link, &answer, &err);
    (void)pthread_mutex_lock(&peers->lock);
    const uint64_t now = weft_clock_now_ns();
    if (st != WEFT_OK) {
        (void)snprintf(slot->reason, sizeof slot->reason, "%s", err.text);
        back_off(slot, now);
        return;
    }
    keep(slot, link);
    slot->incarnation = answer.incarnation;
    slot->reason[0] = '\0';
    slot->ready_ns = now;
    if (slot->gone) return;
    slot->state = READY;
    slot->ready_no = ++peers->ready_count;
    (void)pthread_mutex_unlock(&peers->lock);
    if (peers->options.ready != NULL) peers->options.ready(peers->options.arg);
    (void)pthread_mutex_lock(&peers->lock);
}

static void *run(void *arg)
{
    peer_slot *const slot = arg;
    weft_peers *const peers = slot->peers;
    (void)pthread_mutex_lock(&peers->lock);
    while (!slot->gone) {
        if (slot->state != DIALLING || !peers->own_known) {
            (void)pthread_cond_wait(&slot->changed, &peers->lock);
        } else if (slot->dial_at_ns > weft_clock_now_ns()) {
            const struct timespec until = {
                .tv_sec = (time_t)(slot->dial_at_ns / 1000000000U),
                .tv_nsec = (long)(slot->dial_at_ns % 1000000000U)};
            (void)pthread_cond_timedwait(&slot->changed, &peers->lock, &until);
        } else {
            dial(slot);
        }
    }
    weft_link *const link = hand_over(slot);
    (void)pthread_mutex_unlock(&peers->lock);
    weft_link_close(link);
    (void)pthread_mutex_lock(&peers->lock);
    slot->done = true;
    (void)pthread_mutex_unlock(&peers->lock);
    return NULL;
}

/* -- slots ---------------------------------------------------------------- */

static int start_thread(peer_slot *slot)
{
    pthread_attr_t attributes;
    int why = pthread_attr_init(&attributes);
    if (why != 0) return why;
    (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
    why = pthread_create(&slot->thread, &attributes, run, slot);
    (void)pthread_attr_destroy(&attributes);
    return why;
}

static void init_changed(pthread_cond_t *changed)
{
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
}

static void free_slot(peer_slot *slot)
{
    (void)pthread_cond_destroy(&slot->changed);
    (void)close(slot->abort_fd);
    weft_mem_free(slot);
}

/* With the lock. */
static weft_status add_slot(weft_peers *peers, const weft_peer *peer,
                            weft_err *err)
{
    peer_slot *const slot = weft_mem_new(1, sizeof *slot);
    if (slot == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory to dial %s",
                         peer->id);
    slot->abort_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (slot->abort_fd < 0) {
        weft_mem_free(slot);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no descriptor to dial %s: %s", peer->id,
                         strerror(errno));
    }
    init_changed(&slot->changed);
    slot->peers = peers;
    slot->peer = *peer;
    slot->wanted = true;
    slot->backoff_ns = BACKOFF_NS;
    const int why = start_thread(slot);
    if (why != 0) {
        free_slot(slot);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no thread to dial %s: %s", peer->id, strerror(why));
    }
    slot->next = peers->slots;
    peers->slots = slot;
    peers->n_slots++;
    return WEFT_OK;
}

/* With the lock: its thread ends. */
static void end_slot(peer_slot *slot)
{
    const uint64_t one = 1;
    slot->gone = true;
    const ssize_t n = write(slot->abort_fd, &one, sizeof one);
    (void)n;
    (void)pthread_cond_signal(&slot->changed);
}

/* With the lock: those whose thread is at its end. */
static void reap(weft_peers *peers)
{
    for (peer_slot **at = &peers->slots; *at != NULL;) {
        peer_slot *const one = *at;
        if (!one->done) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        peers->n_slots--;
        (void)pthread_join(one->thread, NULL); /* takes no lock any more */
        free_slot(one);
    }
}

static peer_slot *find(weft_peers *peers, const weft_peer *peer)
{
    for (peer_slot *one = peers->slots; one != NULL; one = one->next)
        if (!one->gone && one->peer.incarnation == peer->incarnation &&
            strcmp(one->peer.id, peer->id) == 0)
            return one;
    return NULL;
}

/* -- outside -------------------------------------------------------------- */

weft_status weft_peers_create(const weft_peers_options *options,
                              weft_peers **peers_out, weft_err *err)
{
    if (options->peers_max < 1)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "peers_max is %d, and at least 1 is needed",
                         (int)options->peers_max);
    weft_peers *const peers = weft_mem_new(1, sizeof *peers);
    if (peers == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory for peers");
    peers->options = *options;
    peers->options.link.name = NULL; /* links are named after who answers */
    peers->own = *options->own;
    peers->own_known = !options->own_later;
    if (options->dial_ns == 0) peers->options.dial_ns = DIAL_NS;
    (void)pthread_mutex_init(&peers->lock, NULL);
    *peers_out = peers;
    return WEFT_OK;
}

void weft_peers_stop(weft_peers *peers)
{
    if (peers == NULL) return;
    (void)pthread_mutex_lock(&peers->lock);
    peer_slot *slots = peers->slots;
    peers->stopped = true;
    peers->slots = NULL;
    peers->n_slots = 0;
    for (peer_slot *one = slots; one != NULL; one = one->next) end_slot(one);
    (void)pthread_mutex_unlock(&peers->lock);
    while (slots != NULL) {
        peer_slot *const one = slots;
        slots = one->next;
        (void)pthread_join(one->thread, NULL);
        free_slot(one);
    }
}

void weft_peers_destroy(weft_peers *peers)
{
    if (peers == NULL) return;
    weft_peers_stop(peers);
    (void)pthread_mutex_destroy(&peers->lock);
    weft_mem_free(peers);
}

void weft_peers_set_own(weft_peers *peers, const weft_hello *own)
{
    (void)pthread_mutex_lock(&peers->lock);
    peers->own = *own;
    peers->own_known = true;
    for (peer_slot *one = peers->slots; one != NULL; one = one->next)
        (void)pthread_cond_signal(&one->changed);
    (void)pthread_mutex_unlock(&peers->lock);
}

/* With the lock; n: how many are wanted. */
static weft_status add_wanted(weft_peers *peers, const weft_peer *peer,
                              int32_t n, weft_err *err)
{
    if (peers->n_slots >= 4 * peers->options.peers_max)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "%d peers that are not wanted any more have not "
                         "ended",
                         (int)peers->n_slots - (int)n);
    return add_slot(peers, peer, err);
}

/* With the lock. */
static weft_status want(weft_peers *peers, const weft_peer *wanted, int32_t n,
                        weft_err *err)
{
    weft_status st = WEFT_OK;
    if (peers->stopped) return WEFT_OK;
    reap(peers);
    for (peer_slot *one = peers->slots; one != NULL; one = one->next)
        one->wanted = false;
    for (int32_t i = 0; i < n; i++) {
        peer_slot *const one = find(peers, &wanted[i]);
        if (one != NULL) {
            one->wanted = true;
            one->peer = wanted[i]; /* the address may be another */
        }
    }
    for (peer_slot *one = peers->slots; one != NULL; one = one->next)
        if (!one->wanted && !one->gone && one->state != TAKEN) end_slot(one);
    /* One that cannot be dialled takes nobody else's place. */
    for (int32_t i = 0; i < n; i++) {
        if (find(peers, &wanted[i]) != NULL) continue;
        const weft_status added =
            add_wanted(peers, &wanted[i], n, st == WEFT_OK ? err : NULL);
        if (st == WEFT_OK) st = added;
    }
    return st;
}

weft_status weft_peers_want(weft_peers *peers, const weft_peer *wanted,
                            int32_t n, weft_err *err)
{
    if (n < 0 || n > peers->options.peers_max)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%d peers, and the limit is %d", (int)n,
                         (int)peers->options.peers_max);
    (void)pthread_mutex_lock(&peers->lock);
    const weft_status st = want(peers, wanted, n, err);
    (void)pthread_mutex_unlock(&peers->lock);
    return st;
}

bool weft_peers_take(weft_peers *peers, weft_peer *peer_out,
                     weft_link **link_out)
{
    peer_slot *first = NULL;
    (void)pthread_mutex_lock(&peers->lock);
    for (peer_slot *one = peers->slots; one != NULL; one = one->next)
        if (one->state == READY && !one->gone &&
            (first == NULL || one->ready_no < first->ready_no))
            first = one;
    if (first != NULL) {
        *peer_out = first->peer;
        peer_out->incarnation = first->incarnation;
        *link_out = hand_over(first);
        first->state = TAKEN;
    }
    (void)pthread_mutex_unlock(&peers->lock);
    return first != NULL;
}

/* With the lock. */
static void lose(peer_slot *slot)
{
    const uint64_t now = weft_clock_now_ns();
    if (!slot->wanted) {
        end_slot(slot);
        return;
    }
    slot->state = DIALLING;
    if (now - slot->ready_ns >= LIVED_NS) {
        slot->backoff_ns = BACKOFF_NS;
        slot->dial_at_ns = now;
    } else {
        back_off(slot, now);
    }
    (void)pthread_cond_signal(&slot->changed);
}

void weft_peers_lost(weft_peers *peers, const char *id, uint64_t incarnation)
{
    (void)pthread_mutex_lock(&peers->lock);
    for (peer_slot *one = peers->slots; one != NULL; one = one->next) {
        if (one->state != TAKEN || one->gone || strcmp(one->peer.id, id) != 0 ||
            (one->incarnation != incarnation &&
             one->peer.incarnation != incarnation))
            continue;
        lose(one);
        break;
    }
    (void)pthread_mutex_unlock(&peers->lock);
}

void weft_peers_reason(weft_peers *peers, const char *id, char *text_out,
                       size_t text_bytes)
{
    text_out[0] = '\0';
    (void)pthread_mutex_lock(&peers->lock);
    for (const peer_slot *one = peers->slots; one != NULL; one = one->next)
        if (!one->gone && strcmp(one->peer.id, id) == 0) {
            (void)snprintf(text_out, text_bytes, "%s", one->reason);
            break;
        }
    (void)pthread_mutex_unlock(&peers->lock);
}
