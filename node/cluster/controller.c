#include "node/cluster/controller.h"

#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/cluster/controller_internal.h"

#define MS UINT64_C(1000000)
enum {
    AGAIN_MS = 100, /* after a transaction that did not happen */
    SEEN_MS = 1000, /* for the roster to show one that did */
};

/* -- transactions ---------------------------------------------------------- */

void weft_txn_add_compare(weft_txn *txn, const char *key, int64_t revision)
{
    weft_txn_compare *c = &txn->compares[txn->n_compares++];
    (void)snprintf(c->key, sizeof c->key, "%s", key);
    c->mod_revision = revision;
}

void weft_txn_add_put(weft_txn *txn, const char *key, const weft_buf *value,
                      bool leased)
{
    weft_txn_write *w = &txn->writes[txn->n_writes++];
    *w = (weft_txn_write){.leased = leased,
                          .value = {.data = value->data, .n = value->n}};
    (void)snprintf(w->key, sizeof w->key, "%s", key);
}

void weft_txn_add_remove(weft_txn *txn, const char *key, bool prefix)
{
    weft_txn_write *w = &txn->writes[txn->n_writes++];
    *w = (weft_txn_write){.remove = true, .prefix = prefix};
    (void)snprintf(w->key, sizeof w->key, "%s", key);
}

void weft_controller_begin(weft_controller *c, weft_write_kind kind,
                           weft_txn *txn)
{
    *txn = (weft_txn){.tag = ++c->tag};
    c->writing = kind;
    if (kind != WEFT_WRITE_ELECT)
        weft_txn_add_compare(txn, WEFT_KEY_TEXT_CONTROLLER, c->elected);
}

/* -- create ---------------------------------------------------------------- */

weft_status weft_controller_create(const weft_controller_options *options,
                                   weft_controller **controller_out,
                                   weft_err *err)
{
    if (!weft_id_is_valid(options->id))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "the id %.80s (allowed: A-Z a-z 0-9 . _ -, 1 to %d)",
                         options->id, WEFT_ID_BYTES - 1);
    if (options->replicas < 1 || options->replicas > WEFT_REPLICAS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%d replicas of an expert (allowed: 1 to %d)",
                         options->replicas, WEFT_REPLICAS_MAX);
    weft_controller *c = weft_mem_new(1, sizeof *c);
    if (c == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a controller");
    c->shape = *options->shape;
    (void)snprintf(c->id, sizeof c->id, "%s", options->id);
    c->replicas = options->replicas;
    c->settle_ns = options->settle_ns > 0 ? options->settle_ns : 3000 * MS;
    c->plan_ns = options->plan_ns > 0 ? options->plan_ns : 600000 * MS;
    c->switch_ns = options->switch_ns > 0 ? options->switch_ns : 10000 * MS;
    *controller_out = c;
    return WEFT_OK;
}

void weft_controller_destroy(weft_controller *controller)
{
    if (controller == NULL) return;
    weft_placement_destroy(controller->last);
    weft_mem_free(controller->load);
    weft_mem_free(controller->expert_bytes);
    weft_mem_free(controller->failures);
    weft_buf_deinit(&controller->value);
    weft_buf_deinit(&controller->number);
    weft_mem_free(controller);
}

void weft_controller_set_load(weft_controller *controller, const float *load)
{
    const size_t n =
        (size_t)controller->shape.n_layer * (size_t)controller->shape.n_expert;
    controller->n_loads++;
    if (load == NULL) {
        weft_mem_free(controller->load);
        controller->load = NULL;
        return;
    }
    if (controller->load == NULL)
        controller->load = weft_mem_new(n, sizeof *controller->load);
    if (controller->load != NULL) /* else: placed as if all were alike */
        memcpy(controller->load, load, n * sizeof *load);
}

void weft_controller_set_in_use(weft_controller *controller, uint64_t epoch)
{
    controller->in_use = epoch;
}

void weft_controller_get_state(const weft_controller *controller,
                               weft_controller_state *state_out)
{
    *state_out = controller->state;
}

void weft_controller_waits(weft_controller *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(c->state.waiting, sizeof c->state.waiting, format, args);
    va_end(args);
}

/* -- answers --------------------------------------------------------------- */

static void take_result(weft_controller *c, const weft_registry_event *event,
                        uint64_t now_ns)
{
    const weft_write_kind kind = c->writing;
    c->writing = WEFT_WRITE_NONE;
    if (event->status != WEFT_OK) {
        c->wait_until_ns = now_ns + AGAIN_MS * MS;
        c->wait_seen = INT64_MAX;
        return;
    }
    c->wait_seen = event->revision;
    c->wait_until_ns = now_ns + SEEN_MS * MS;
    if (kind == WEFT_WRITE_ELECT) c->elected = event->revision;
    if (kind == WEFT_WRITE_PLAN) c->state.n_plans++;
    if (kind == WEFT_WRITE_ROLLBACK) c->state.n_rollbacks++;
}

void weft_controller_take(weft_controller *controller,
                          const weft_registry_event *event, uint64_t now_ns)
{
    weft_controller *const c = controller;
    const bool is_ok = event->status == WEFT_OK;
    switch (event->kind) {
    case WEFT_REGISTRY_TXN:
        if (c->writing != WEFT_WRITE_NONE && event->tag == c->tag)
            take_result(c, event, now_ns);
        break;
    case WEFT_REGISTRY_LEASE:
        c->has_lease = is_ok;
        c->elected = 0;
        c->wait_until_ns = 0;
        if (is_ok) c->settle_until_ns = now_ns + c->settle_ns;
        break;
    case WEFT_REGISTRY_LINK:
        if (is_ok && !c->is_linked) c->settle_until_ns = now_ns + c->settle_ns;
        c->is_linked = is_ok;
        break;
    default: break;
    }
}

/* -- what is known --------------------------------------------------------- */

/* Keeps the last committed placement, and the highest number. */
static void learn(weft_controller *c, const weft_roster *roster,
                  uint64_t now_ns)
{
    int64_t revision;
    const uint64_t epoch = weft_roster_epoch(roster, &revision);
    const uint64_t most = weft_roster_epoch_max(roster);
    const weft_placement *now = weft_roster_placement(roster, epoch);
    const uint64_t had = c->last != NULL ? c->last->epoch : 0;
    if (most > c->epoch_max) c->epoch_max = most;
    if (epoch < had && !c->is_behind)
        c->settle_until_ns = now_ns + c->settle_ns;
    c->is_behind = epoch < had;
    if (now == NULL || epoch <= had) return;
    weft_placement *copy = NULL;
    if (weft_placement_copy(now, &copy, NULL) != WEFT_OK) return;
    weft_placement_moves moves;
    weft_placement_compare(&c->shape, c->last, copy, NULL, &moves);
    if (had > 0 && c->planned == epoch) {
        c->state.moved_bytes += moves.gained_bytes;
        c->state.moved_least += moves.gained_least;
    }
    if (c->planned == epoch) c->state.n_commits++;
    weft_placement_destroy(c->last);
    c->last = copy;
    c->committed_ns = now_ns;
}

static bool elect(weft_controller *c, int64_t revision, weft_txn *txn)
{
    if (weft_holder_encode(c->id, &c->value, NULL) != WEFT_OK) return false;
    weft_controller_begin(c, WEFT_WRITE_ELECT, txn);
    weft_txn_add_compare(txn, WEFT_KEY_TEXT_CONTROLLER, revision);
    weft_txn_add_put(txn, WEFT_KEY_TEXT_CONTROLLER, &c->value, true);
    return true;
}

/* The store has no committed epoch, or an older one than was committed here,
 * and nobody has seen a later one than we have: the same again. */
static bool restore(weft_controller *c, const weft_roster *roster,
                    weft_txn *txn)
{
    int64_t revision;
    char key[WEFT_KEY_BYTES];
    const uint64_t epoch = weft_roster_epoch(roster, &revision);
    if (c->last == NULL || epoch >= c->last->epoch ||
        weft_roster_epoch_max(roster) > c->last->epoch)
        return false;
    if (weft_placement_encode(c->last, &c->value, NULL) != WEFT_OK ||
        weft_number_encode(c->last->epoch, &c->number, NULL) != WEFT_OK)
        return false;
    (void)weft_key_of_placement(c->last->epoch, key);
    weft_controller_begin(c, WEFT_WRITE_RESTORE, txn);
    weft_txn_add_compare(txn, WEFT_KEY_TEXT_CURRENT, revision);
    weft_txn_add_put(txn, key, &c->value, false);
    weft_txn_add_put(txn, WEFT_KEY_TEXT_CURRENT, &c->number, false);
    return true;
}

/* The placement of the committed epoch is not in the store any more, or cannot
 * be read there: the same again, since who comes now knows no other. */
static bool mend(weft_controller *c, const weft_roster *roster, weft_txn *txn)
{
    int64_t revision;
    char key[WEFT_KEY_BYTES];
    const uint64_t epoch = weft_roster_epoch(roster, &revision);
    if (c->last == NULL || epoch != c->last->epoch ||
        weft_roster_placement(roster, epoch) != NULL ||
        weft_placement_encode(c->last, &c->value, NULL) != WEFT_OK)
        return false;
    (void)weft_key_of_placement(epoch, key);
    weft_controller_begin(c, WEFT_WRITE_RESTORE, txn);
    weft_txn_add_compare(txn, WEFT_KEY_TEXT_CURRENT, revision);
    weft_txn_add_compare(txn, key, weft_roster_revision(roster, key));
    weft_txn_add_put(txn, key, &c->value, false);
    return true;
}

/* -- turn ------------------------------------------------------------------ */

static bool is_elected(const weft_controller *c, const weft_roster *roster,
                       int64_t *revision_out)
{
    const char *holder = weft_roster_controller(roster, revision_out);
    return c->elected != 0 && *revision_out == c->elected &&
           strcmp(holder, c->id) == 0;
}

static bool act(weft_controller *c, const weft_roster *roster, uint64_t now_ns,
                weft_txn *txn, uint64_t *next_ns)
{
    int64_t revision;
    const char *holder = weft_roster_controller(roster, &revision);
    if (!is_elected(c, roster, &revision)) {
        c->planned = 0;
        c->decided = 0; /* what was decided may have been undone */
        /* Our own name under another revision is what an earlier process, or a
         * transaction of unknown end, has left. */
        if (revision != 0 && holder[0] != '\0' && strcmp(holder, c->id) != 0)
            return false;
        return elect(c, revision, txn);
    }
    if (restore(c, roster, txn) || mend(c, roster, txn)) return true;
    if (weft_controller_retire(c, roster, txn)) return true;
    if (weft_controller_check_plan(c, roster, now_ns, txn, next_ns))
        return true;
    return c->planned == 0 &&
           weft_controller_plan(c, roster, now_ns, txn, next_ns);
}

bool weft_controller_turn(weft_controller *controller,
                          const weft_roster *roster, uint64_t now_ns,
                          weft_txn *txn_out, uint64_t *next_ns_out)
{
    weft_controller *const c = controller;
    int64_t revision;
    bool writes = false;
    *next_ns_out = UINT64_MAX;
    learn(c, roster, now_ns);
    c->state.elected = c->has_lease && is_elected(c, roster, &revision);
    if (!c->has_lease || c->writing != WEFT_WRITE_NONE) return false;
    if (now_ns < c->wait_until_ns && weft_roster_seen(roster) < c->wait_seen) {
        *next_ns_out = c->wait_until_ns;
        return false;
    }
    c->state.waiting[0] = '\0';
    writes = act(c, roster, now_ns, txn_out, next_ns_out);
    c->state.planned = c->planned;
    return writes;
}
