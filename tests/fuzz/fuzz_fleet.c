/* Any bytes as the body of a SUBMIT, EVENTS or STATE frame (the first byte says
 * which): what is believed is in range, and is written back as it was. */
#include <stdint.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/mem.h"
#include "node/fleet/codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCAB = 97 };

static void check_same(const weft_pack *pack, const uint8_t *data, size_t n)
{
    WEFT_ASSERT(!pack->full && pack->n == n &&
                memcmp(pack->data, data, n) == 0);
}

static void try_job(const uint8_t *data, size_t n)
{
    weft_arena *arena = NULL;
    weft_job *job = NULL;
    WEFT_ASSERT(weft_arena_create(n + 1024, &arena, NULL) == WEFT_OK);
    if (weft_job_decode(data, n, VOCAB, 0, arena, &job, NULL) == WEFT_OK) {
        WEFT_ASSERT(job->n_prompt >= 1 && job->n_tokens >= job->n_prompt);
        for (int32_t i = 0; i < job->n_tokens; i++)
            WEFT_ASSERT(job->tokens[i] >= 0 && job->tokens[i] < VOCAB);
        const size_t bytes = weft_job_bytes(job);
        unsigned char *const body = weft_mem_new(bytes, 1);
        WEFT_ASSERT(body != NULL);
        weft_pack pack = weft_pack_into(body, bytes);
        WEFT_ASSERT(weft_job_encode(job, 0, &pack, NULL) == WEFT_OK);
        check_same(&pack, data, n);
        weft_mem_free(body);
    }
    weft_arena_destroy(arena);
}

static void try_events(const uint8_t *data, size_t n)
{
    weft_unpack unpack = weft_unpack_from(data, n);
    weft_event event;
    while (unpack.at != unpack.end &&
           weft_event_decode(&unpack, VOCAB, &event, NULL) == WEFT_OK) {
        WEFT_ASSERT(event.n_top >= 0 && event.n_top <= WEFT_LOGPROBS_MAX);
        WEFT_ASSERT(strchr(event.text, '\n') == NULL);
        unsigned char body[WEFT_EVENT_BYTES_MAX];
        weft_pack pack = weft_pack_into(body, sizeof body);
        weft_event_encode(&event, &pack);
        WEFT_ASSERT(!pack.full);
        weft_mem_free(event.top);
    }
}

static void try_state(const uint8_t *data, size_t n)
{
    weft_group_state state;
    if (weft_state_decode(data, n, &state, NULL) != WEFT_OK) return;
    WEFT_ASSERT(state.exchange.n_top <= WEFT_TOP_EXPERTS);
    unsigned char body[WEFT_STATE_BYTES_MAX];
    weft_pack pack = weft_pack_into(body, sizeof body);
    weft_state_encode(&state, &pack);
    WEFT_ASSERT(!pack.full);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    if (data[0] % 3 == 0) try_job(data + 1, size - 1);
    if (data[0] % 3 == 1) try_events(data + 1, size - 1);
    if (data[0] % 3 == 2) try_state(data + 1, size - 1);
    return 0;
}
