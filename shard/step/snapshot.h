/* snapshot.h - a small record that one thread publishes and any may read.
 *
 * A sequence lock over atomic words: the writer never waits, a reader retries
 * while a write is under way. Threads: one writer, any readers.
 */
#ifndef WEFT_SHARD_STEP_SNAPSHOT_H
#define WEFT_SHARD_STEP_SNAPSHOT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { WEFT_SNAPSHOT_WORDS = 32 };

typedef struct weft_snapshot {
    atomic_uint version; /* odd while a write is under way */
    _Atomic uint64_t words[WEFT_SNAPSHOT_WORDS];
} weft_snapshot;

/* bytes <= 8 * WEFT_SNAPSHOT_WORDS, the same at every call. */
void weft_snapshot_write(weft_snapshot *snapshot, const void *record,
                         size_t bytes);
void weft_snapshot_read(weft_snapshot *snapshot, void *record_out,
                        size_t bytes);

#endif
