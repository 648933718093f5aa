// remote.h - what a stand-in for a library of communication needs of the one
// for the CUDA runtime. It is a library of its own, since the product opens it
// at run time, so this border is plain C. Threads: any.
#ifndef WEFT_TESTS_SIMT_REMOTE_H
#define WEFT_TESTS_SIMT_REMOTE_H

#include <cstddef>

extern "C" {
#define WEFT_SIMT_SHOWN __attribute__((visibility("default")))

// Queues work that may wait for other processes: the stream runs by itself from
// then on, and queries of it never wait. `work` is called once, on the stream's
// thread, also where the device was lost; unless this gives an error, which is
// a cudaError_t (no such stream, one of no name, a blocking one, a capture).
WEFT_SIMT_SHOWN int weft_simt_push(void *stream, const char *name,
                                   void (*work)(void *), void *arg);

// Between device memory, or of host memory and such, from inside of `work`. A
// cudaError_t, and nothing is copied, where the device was lost.
WEFT_SIMT_SHOWN int weft_simt_copy(void *to, const void *from, size_t bytes);

// Whether these bytes are of one block of device memory.
WEFT_SIMT_SHOWN int weft_simt_on_device(const void *at, size_t bytes);

// runtime.h: fault.
WEFT_SIMT_SHOWN int weft_simt_fault(const char *kind);

// For weft_simt_live.
WEFT_SIMT_SHOWN void weft_simt_count_comm(int by);

// The calling thread's device.
WEFT_SIMT_SHOWN int weft_simt_device(void);
}

#endif
