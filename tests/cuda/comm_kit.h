/* comm_kit.h - ranks of a comm for tests: each a device of this process, or of
 * a child, bound by the thread that calls. What fails is a failed test; waits
 * have a deadline. */
#ifndef WEFT_TESTS_CUDA_COMM_KIT_H
#define WEFT_TESTS_CUDA_COMM_KIT_H

#include <stdint.h>

#include "kernels/device.h"

typedef struct comm_end {
    weft_device *device;
    weft_comm *comm;
} comm_end;

/* In main, before anything else, in place of device_kit_need: the emulator with
 * so many devices. Ends the process with 77 and a line elsewhere, where that
 * many, or one for each process, are not to be counted on. */
void comm_kit_need(int32_t n_devices);

/* The comms of the library that is under test. */
const weft_comm_api *comm_kit_api(void);

/* Opens the device of that index and binds the thread. */
void comm_kit_open(int32_t index, comm_end *end);
/* Comm, binding and device. */
void comm_kit_close(comm_end *end);

/* Device memory, freed with the device. */
void *comm_kit_alloc(const comm_end *end, int64_t bytes);

/* PENDING; comm_kit_wait then. */
weft_comm *comm_kit_begin(const comm_end *end, const unsigned char *id,
                          int32_t n_ranks, int32_t rank);
/* Until it is READY or BROKEN. */
weft_comm_state comm_kit_wait(weft_comm *comm, weft_err *err);
/* Until both are READY; the other ranks may ask of them in another order. */
void comm_kit_wait_both(weft_comm *a, weft_comm *b);
void comm_kit_join(comm_end *end, const unsigned char *id, int32_t n_ranks,
                   int32_t rank);

/* A moment for other threads and processes. */
void comm_kit_let_others(void);

/* Until it is BROKEN, for a reason with this word; begun by comm_kit_begin. */
void comm_kit_expect_broken(weft_comm *comm, const char *word);

/* Asks until the mark is done. */
void comm_kit_wait_done(weft_comm *comm, uint64_t mark);

/* Runs fn(rank, arg) on a thread for each rank and waits for all. */
void comm_kit_ranks(int32_t n_ranks, void (*fn)(int32_t rank, void *arg),
                    void *arg);

#endif
