#include "router/journal.h"

#include <string.h>

#include "node/base/check.h"
#include "node/base/mem.h"

weft_status weft_entry_create(weft_arena *arena, const weft_admitted *ask,
                              weft_span text, weft_entry **entry_out,
                              weft_err *err)
{
    weft_entry *const entry = weft_mem_new(1, sizeof *entry);
    if (entry == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a request's record");
    if (ask->tokens == NULL) {
        entry->prompt_text = weft_mem_copy_text(text.data, text.n);
        if (entry->prompt_text == NULL) {
            weft_mem_free(entry);
            return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                             "no memory for a prompt of %zu bytes", text.n);
        }
        entry->prompt_text_bytes = text.n;
    }
    entry->arena = arena;
    entry->ask = *ask;
    *entry_out = entry;
    return WEFT_OK;
}

void weft_entry_destroy(weft_entry *entry)
{
    if (entry == NULL) return;
    weft_told_deinit(&entry->told);
    weft_mem_free(entry->prompt_text);
    weft_arena_destroy(entry->arena);
    weft_mem_free(entry);
}

weft_status weft_journal_init(weft_journal *journal, int32_t n_slots,
                              weft_err *err)
{
    if (n_slots < 1 || n_slots > WEFT_SLOTS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%d live requests: allowed are 1 to %d", n_slots,
                         WEFT_SLOTS_MAX);
    weft_entry **const slots =
        weft_mem_new((size_t)n_slots, sizeof(weft_entry *));
    if (slots == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a journal of %d requests", n_slots);
    *journal = (weft_journal){.slots = slots, .n_slots = n_slots};
    return WEFT_OK;
}

void weft_journal_deinit(weft_journal *journal)
{
    while (journal->first != NULL) weft_journal_remove(journal, journal->first);
    weft_mem_free(journal->slots);
    *journal = (weft_journal){0};
}

void weft_journal_add(weft_journal *journal, weft_entry *entry)
{
    const int32_t slot = weft_handle_slot(entry->handle);
    WEFT_ASSERT(slot < journal->n_slots && journal->slots[slot] == NULL);
    journal->slots[slot] = entry;
    entry->live_before = journal->last;
    if (journal->last != NULL)
        journal->last->live_after = entry;
    else
        journal->first = entry;
    journal->last = entry;
    journal->n_state[entry->state]++;
}

weft_entry *weft_journal_find(const weft_journal *journal, uint64_t handle)
{
    const int32_t slot = weft_handle_slot(handle);
    if (slot >= journal->n_slots) return NULL;
    weft_entry *const entry = journal->slots[slot];
    return entry != NULL && entry->handle == handle ? entry : NULL;
}

void weft_journal_set_state(weft_journal *journal, weft_entry *entry,
                            weft_entry_state state)
{
    journal->n_state[entry->state]--;
    journal->n_state[state]++;
    entry->state = state;
}

void weft_journal_remove(weft_journal *journal, weft_entry *entry)
{
    weft_entry_queue_remove(entry);
    journal->slots[weft_handle_slot(entry->handle)] = NULL;
    journal->n_state[entry->state]--;
    if (entry->live_before != NULL)
        entry->live_before->live_after = entry->live_after;
    else
        journal->first = entry->live_after;
    if (entry->live_after != NULL)
        entry->live_after->live_before = entry->live_before;
    else
        journal->last = entry->live_before;
    weft_entry_destroy(entry);
}
