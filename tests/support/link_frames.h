/* link_frames.h - frames whose every byte tells where it belongs, for the tests
 * of links.
 *
 * Test support: whatever fails ends the test with a message.
 */
#ifndef WEFT_TESTS_SUPPORT_LINK_FRAMES_H
#define WEFT_TESTS_SUPPORT_LINK_FRAMES_H

#include <stdbool.h>

#include "shard/link/frame.h"

typedef struct kit_frame {
    weft_frame frame;
    unsigned char *body, *memory;
    const void **rows;
} kit_frame;

/* A frame named `step`, with rows that lie apart in memory if `apart`; to end
 * with kit_drop. */
kit_frame kit_build(uint64_t step, size_t body_bytes, int32_t n_rows,
                    uint32_t row_bytes, bool apart);
void kit_drop(kit_frame *it);
/* That `got` is what was sent: header, body, and rows, which are aligned. */
void kit_check(const weft_frame *got, const weft_frame *sent);
/* Bytes as `name` has them. */
void kit_fill(unsigned char *bytes, size_t n, uint64_t name);

#endif
