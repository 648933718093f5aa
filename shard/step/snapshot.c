#include "shard/step/snapshot.h"

#include <string.h>

#include "node/base/check.h"

static size_t words_of(size_t bytes)
{
    const size_t n = (bytes + 7) / 8;
    WEFT_ASSERT(n <= WEFT_SNAPSHOT_WORDS);
    return n;
}

void weft_snapshot_write(weft_snapshot *s, const void *record, size_t bytes)
{
    uint64_t words[WEFT_SNAPSHOT_WORDS] = {0};
    memcpy(words, record, bytes);
    const unsigned v = atomic_load_explicit(&s->version, memory_order_relaxed);
    atomic_store_explicit(&s->version, v + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (size_t i = 0; i < words_of(bytes); i++)
        atomic_store_explicit(&s->words[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&s->version, v + 2, memory_order_release);
}

void weft_snapshot_read(weft_snapshot *s, void *record_out, size_t bytes)
{
    uint64_t words[WEFT_SNAPSHOT_WORDS];
    for (;;) {
        const unsigned before =
            atomic_load_explicit(&s->version, memory_order_acquire);
        for (size_t i = 0; i < words_of(bytes); i++)
            words[i] = atomic_load_explicit(&s->words[i], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        const unsigned after =
            atomic_load_explicit(&s->version, memory_order_relaxed);
        if (before == after && before % 2 == 0) break;
    }
    memcpy(record_out, words, bytes);
}
