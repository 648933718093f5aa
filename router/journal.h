/* journal.h - the record of every live request: what was asked, and what its
 * stream has been told.
 *
 * A lead that loses a request (preemption; later the loss of a group) loses
 * nothing that is not here: the prompt, the tokens told, the sampling. So the
 * request is submitted again as prompt + told tokens, and since a token is a
 * function of (tokens before it, seed, position), the stream goes on with the
 * very tokens that it would have had.
 *
 *   TEXT ----> QUEUED ----> SUBMITTED ----> RUNNING
 *     |          ^  |           |              |
 *     |          |  +-----------|-- preempted -+
 *     |          +--------------+              |
 *     +-------> end told to the client <-------+
 *                         |
 *                      CLOSING ----> gone, as soon as nobody holds it
 *
 * The journal is a table from handle to entry. A handle is a serial number and
 * a slot, so it is found without a search, and a handle of a request that has
 * ended is never found again.
 *
 * Not here: what happens when (flow.h), threads (router.h).
 *
 * Threads: the router's, but for weft_entry_create, which whoever accepts the
 * request calls before the router has it.
 * Memory: all of a request's own is in its arena and its answer, and bounded
 * by admission; an entry is freed only when the lead has sent its last event,
 * since the lead borrows the job.
 */
#ifndef WEFT_ROUTER_JOURNAL_H
#define WEFT_ROUTER_JOURNAL_H

#include "router/admit.h"
#include "router/client.h"
#include "router/queue.h"
#include "router/told.h"

enum {
    WEFT_SLOT_BITS = 20,
    WEFT_SLOTS_MAX = 1 << WEFT_SLOT_BITS, /* live requests at once */
};

/* serial > 0, so that no handle is 0. */
static inline uint64_t weft_handle_make(uint64_t serial, int32_t slot)
{
    return serial << WEFT_SLOT_BITS | (uint64_t)slot;
}
static inline int32_t weft_handle_slot(uint64_t handle)
{
    return (int32_t)(handle & (WEFT_SLOTS_MAX - 1));
}

typedef enum weft_entry_state {
    WEFT_ENTRY_TEXT,      /* its prompt is being made into ids */
    WEFT_ENTRY_QUEUED,    /* to be submitted, for the first time or again */
    WEFT_ENTRY_SUBMITTED, /* the lead has it and has not begun */
    WEFT_ENTRY_RUNNING,   /* the lead computes it */
    WEFT_ENTRY_CLOSING,   /* the client has its end; somebody still holds it */
} weft_entry_state;

struct weft_entry {
    uint64_t handle;
    uint64_t accepted_ns;
    weft_arena *arena;
    weft_admitted ask;
    const weft_client_ops *client;
    void *client_arg;
    int64_t charged_bytes;  /* counted against the router's memory limit */
    int32_t deadline_place; /* see deadlines.h */

    /* A text prompt, until it is ids; then the outcome. The text worker's
     * while held_by_text. */
    char *prompt_text;
    size_t prompt_text_bytes;
    weft_err text_err;

    weft_entry_state state;
    bool held_by_lead, held_by_text;
    bool prompt_counted; /* its prompt tokens are in the metrics */
    uint64_t last_token_ns;
    bool started; /* ever */
    weft_told told;

    weft_entry_queue *queue; /* the one it is in; see queue.h */
    weft_entry *before, *after;
    weft_entry *live_before, *live_after;
};

/* An entry for an admitted request. Takes `arena` on success. `ask` is copied;
 * text [n] too, if its prompt is not ids yet. RESOURCE_EXHAUSTED: no memory. */
WEFT_MUST_CHECK weft_status weft_entry_create(weft_arena *arena,
                                              const weft_admitted *ask,
                                              weft_span text,
                                              weft_entry **entry_out,
                                              weft_err *err);
void weft_entry_destroy(weft_entry *entry); /* NULL is fine */

typedef struct weft_journal {
    weft_entry **slots; /* [n_slots], NULL: free */
    int32_t n_slots;
    weft_entry *first, *last; /* live entries, oldest first */
    int32_t n_state[WEFT_ENTRY_CLOSING + 1];
} weft_journal;

WEFT_MUST_CHECK weft_status weft_journal_init(weft_journal *journal,
                                              int32_t n_slots, weft_err *err);
void weft_journal_deinit(weft_journal *journal); /* destroys what is left */

void weft_journal_add(weft_journal *journal, weft_entry *entry);
/* NULL: ended, or never was. */
weft_entry *weft_journal_find(const weft_journal *journal, uint64_t handle);
void weft_journal_set_state(weft_journal *journal, weft_entry *entry,
                            weft_entry_state state);
/* Out of the table and destroyed. */
void weft_journal_remove(weft_journal *journal, weft_entry *entry);

#endif
