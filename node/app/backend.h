/* backend.h - what computes: the CPU, or a device through a library that is
 * opened at run time (kernels/device.h). With --tensor-parallel N it is N of
 * either, rank by rank: devices 0 to N - 1 of those that the driver shows
 * (CUDA_VISIBLE_DEVICES chooses and orders them), all of one architecture.
 *
 * A library lies beside the program, or in ../lib/weft from there:
 * libweft_cuda.so, and in test builds libweft_simt.so. `auto` takes cuda where
 * there is the library, a driver and a device, and says why not where there is
 * the library alone; else the CPU. What is named must be there.
 *
 * Threads: one opens and closes; it is bound to rank 0's device in between.
 */
#ifndef WEFT_NODE_APP_BACKEND_H
#define WEFT_NODE_APP_BACKEND_H

#include "node/app/memory.h"
#include "node/app/options.h"
#include "shard/link/hello.h"
#include "shard/model/partition.h"

typedef struct weft_backend {
    void *opened;       /* its library; NULL: the CPU */
    weft_memory memory; /* of its ops; rank 0's */
    weft_device_info info;
    int32_t n_ranks;
    weft_memory
        others[WEFT_RANKS_MAX - 1]; /* of ranks 1 ...; {0}: the host's */
} weft_backend;

/* Of --backend and --tensor-parallel. UNAVAILABLE: no such library, driver or
 * device, or fewer than ranks, one line that says which; FAILED_PRECONDITION:
 * devices of two architectures. UNIMPLEMENTED: not in this build, or not with
 * these flags. End with weft_backend_close. */
WEFT_MUST_CHECK weft_status weft_backend_open(const weft_options *options,
                                              weft_backend *backend_out,
                                              weft_err *err);
void weft_backend_close(weft_backend *backend); /* {0} is fine */

/* Of that rank; with the CPU the host's. Borrowed. */
const weft_memory *weft_backend_memory(const weft_backend *backend,
                                       int32_t rank);

/* What decides bits, for the handshake of shards: "cpu", or of a device backend
 * and version of its sums, kind of device and profile, as experts on a device
 * round what they read: "cuda-1.sm90.bf16". Of more than one rank ".tpN"
 * follows. */
void weft_backend_identity(const weft_backend *backend, weft_profile profile,
                           char text_out[WEFT_IDENTITY_BYTES]);
/* For people: "cpu", "cuda:0 NVIDIA H100 80GB HBM3" or, of more than one rank,
 * "cuda:0-3 NVIDIA H100 80GB HBM3". */
void weft_backend_device(const weft_backend *backend, char *text_out,
                         size_t bytes);
/* Of rank 0's device: what may still be taken of its memory; a 64th stays free.
 */
int64_t weft_backend_free_bytes(const weft_backend *backend);

/* The engine's ops and memory are the backend's, which is borrowed. Without a
 * device nothing changes. */
void weft_backend_apply(const weft_backend *backend,
                        weft_engine_options *engine);

/* Of devices: sets what of the free memory of each is for KV pages: all ranks
 * hold the same rows, so the one with the least room decides. weights_bytes
 * [n_ranks]. kv_bytes 0: what is left beside weights and step buffers
 * (parts_bytes: of parts of this process beside the engine), never more than
 * sequences could use. RESOURCE_EXHAUSTED: names the device, needed and free
 * bytes. */
WEFT_MUST_CHECK weft_status
weft_backend_plan(const weft_backend *backend, const weft_model_config *config,
                  const weft_engine_options *engine, int64_t kv_bytes,
                  const int64_t *weights_bytes, int64_t parts_bytes,
                  int64_t *kv_bytes_out, weft_err *err);

/* Names of backends that this machine could try, for `weft version`. */
int32_t weft_backend_names(const char *names_out[3]);

#endif
