/* near_kit.h - two devices that are the host's memory, whose comms stay within
 * this process and do what a test says: for the near side of links without a
 * device and without NCCL.
 *
 * Sends and receives of a comm meet as NCCL's do: bytes move when both are
 * there, the oldest first, and only when somebody asks. Sizes that differ, work
 * given to a comm that is not READY, and memory that is written after destroy
 * end the test. Ops are done at once. Threads: any.
 */
#ifndef WEFT_TESTS_SUPPORT_NEAR_KIT_H
#define WEFT_TESTS_SUPPORT_NEAR_KIT_H

#include "kernels/memory.h"
#include "shard/link/near_internal.h"
#include "tests/support/link_kit.h"

enum { NEAR_KIT_DEVICES = 2, NEAR_KIT_ROWS_MAX = 64, NEAR_KIT_WIDTH_MAX = 100 };

/* What goes wrong on a device; all 0: nothing. */
typedef struct near_kit_script {
    bool no_id, no_begin, no_send, no_recv, no_memory;
    bool pends;     /* its comms do not get READY */
    bool out_pends; /* those that it sends on do not */
    bool breaks;    /* its comms are broken */
    bool holds;     /* what they are given stays undone */
} near_kit_script;

/* Forgets all scripts and counts; comms of both devices are of version 23203.
 */
void near_kit_reset(void);
near_kit_script *near_kit_script_of(int32_t device);
void near_kit_set_version(int32_t device, int32_t version);
/* static */
const weft_memory *near_kit_memory(int32_t device);
/* Comms that were begun and not destroyed, and those that were aborted. */
int32_t near_kit_n_comms(void);
int32_t near_kit_n_aborted(void);
/* Device memory that was not freed. */
int32_t near_kit_n_blocks(void);

/* What a link of device i is made with: near_kit_limits both ways. */
weft_frame_limits near_kit_limits(void);
weft_near *near_kit_create(int32_t device, int32_t links_max);
/* Two ends over TCP or TLS, the first of device 0 that dialled, the other of
 * device 1; near NULL: of none. Both have to receive to become near. */
void near_kit_open(kit_transport transport, weft_near *a_near,
                   weft_near *b_near, weft_link **a_out, weft_link **b_out);
/* Receives on both until neither is on its way any more; neither gets a frame.
 */
void near_kit_settle(weft_link *a, weft_link *b);

/* -- a pair that is tried ------------------------------------------------- */

typedef struct near_kit_scene {
    weft_near *a_near, *b_near;
    weft_link *a, *b;
} near_kit_scene;

/* Over TCP, of one link each; open_near: both have become near. */
void near_kit_scene_open(near_kit_scene *s);
void near_kit_scene_open_near(near_kit_scene *s);
/* Nothing is left over. */
void near_kit_scene_close(near_kit_scene *s);
weft_link_stats near_kit_stats(const weft_link *link);

/* A DISPATCH that is named `step`, with a body of four bytes. */
weft_frame near_kit_frame(uint64_t step, int32_t n_rows, int32_t width);
/* With near rows whose every value tells where it belongs; `back`: a list of
 * rows turns them round. They are gone when it returns. */
weft_status near_kit_send(weft_link *link, uint64_t step, int32_t n_rows,
                          int32_t width, bool back, weft_err *err);
void near_kit_check(const weft_frame *got, uint64_t step, int32_t n_rows,
                    int32_t width);

#endif
