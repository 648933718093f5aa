/* device.h - a backend whose memory is not the host's.
 *
 * The library libweft_cuda.so (or libweft_simt.so, the same sources over an
 * emulator, for tests) is opened at run time and hands out one plain table; no
 * CUDA type crosses this border. So one binary serves machines with and without
 * a driver.
 *
 * What holds of its `ops` (kernels/ops.h), beside what is said there:
 *   - The pointers inside an op's struct are device memory: activations, rows,
 *     page tables, keys, caches. Host memory are the structs themselves, the
 *     list of gemm, and the weft_matrix that a gemm's w points to (its data and
 *     scales are device memory).
 *   - Matrices are row-major [n_out, n_in], as checkpoints store them, and not
 *     packed in panels; rows of 16-byte aligned bytes where n_in allows it,
 * data aligned to 256 bytes.
 *   - Ops only begin: they run in the order of their calls, of one thread, and
 *     are done after sync. What fails is told by the next sync, by name.
 *   - `threads` is not used and may be NULL.
 *   - Sums have their own fixed order: same bits for a row whatever its
 * company, but not those of the CPU paths. So a backend is an identity of its
 * own.
 *
 * Threads: open, close and get_info: one. A thread that calls ops or copies has
 * called bind before; each such thread has its own order of work.
 */
#ifndef WEFT_KERNELS_DEVICE_H
#define WEFT_KERNELS_DEVICE_H

#include "kernels/comm.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    WEFT_DEVICE_ABI = 3,
    WEFT_DEVICE_NAME_BYTES = 64,
    /* Kept for a thread: some ten sizes of step of a model of 61 layers, each
     * of which asks experts elsewhere and has two sums over ranks. */
    WEFT_DEVICE_GRAPHS_MAX = 2048,
};

typedef struct weft_device weft_device;

typedef struct weft_device_info {
    char name[WEFT_DEVICE_NAME_BYTES];
    int32_t index, n_devices;
    int32_t sm;           /* 80, 90, 100 ... : compute capability times ten */
    int32_t n_processors; /* streaming multiprocessors */
    int64_t total_bytes, free_bytes;
    int32_t driver, runtime; /* versions, 13050 is 13.5 */
} weft_device_info;

typedef struct weft_device_options {
    int32_t index;
    /* Scratch of the ops of one bound thread (split attention, indexer scores,
     * conversions); ops cut their work to fit. At least 1 MiB. */
    int64_t scratch_bytes;
    int32_t threads_max; /* that will bind */
} weft_device_options;

typedef struct weft_device_api {
    uint32_t abi;         /* WEFT_DEVICE_ABI, else use nothing below */
    const char *name;     /* "cuda", "simt" */
    const char *identity; /* of its numbers, for the handshake of shards */

    /* UNAVAILABLE: no driver, no device, too old, or an architecture that this
     * build has no kernels for; one line that says which. INVALID_ARGUMENT: no
     * such index. RESOURCE_EXHAUSTED: scratch. */
    weft_status (*open)(const weft_device_options *options,
                        weft_device **device_out, weft_err *err);
    void (*close)(weft_device *device); /* everything is freed; NULL is fine */
    void (*get_info)(weft_device *device, weft_device_info *out);

    /* Device memory, 256-byte aligned; RESOURCE_EXHAUSTED names bytes wanted
     * and free. Any thread. Not in a step. */
    weft_status (*alloc)(weft_device *device, int64_t bytes, void **at_out,
                         weft_err *err);
    void (*free)(weft_device *device, void *at); /* NULL is fine */
    /* Host memory that copies at full speed. */
    weft_status (*alloc_host)(weft_device *device, int64_t bytes, void **at_out,
                              weft_err *err);
    void (*free_host)(weft_device *device, void *at);

    /* Of the calling thread, from here on: its ops, copies and fills are of
     * this device and in one order. NULL: of none. RESOURCE_EXHAUSTED: more
     * than threads_max. */
    weft_status (*bind)(weft_device *device, weft_err *err);
    /* In the order of ops. Host memory must stay as it is until sync. */
    void (*upload)(void *device_to, const void *host_from, int64_t bytes);
    void (*download)(void *host_to, const void *device_from, int64_t bytes);
    void (*copy)(void *device_to, const void *device_from, int64_t bytes);
    void (*fill)(void *device_to, int byte, int64_t bytes);
    /* Everything of this thread is done, and was well. INTERNAL: the first
     * thing that was not, by name; the device is of no use any more. */
    weft_status (*sync)(weft_err *err);

    /* The ops of a step as one launch, kept under a key:
     *
     *     do {
     *         if (graph_begin(key)) break;
     *         ... ops, copy and fill ...
     *     } while (!graph_end());
     *
     * graph_begin true: what was kept under the key has begun. Else the ops are
     * to be called, and graph_end says whether they have begun; if not (this
     * device does not keep them), once more. Uploads, downloads, sync and alloc
     * come before or after, never between.
     *
     * Whatever the structs of the ops say, pointers and numbers, is kept as it
     * was: a key stands for all of it (the bucket of n_row; n_keys_max and
     * n_positions_max as the largest of the bucket), only what lies in device
     * memory may differ. A thread keeps WEFT_DEVICE_GRAPHS_MAX keys, the ones
     * used last. graph_drop forgets all of them, as when buffers move. */
    bool (*graph_begin)(uint64_t key);
    bool (*graph_end)(void);
    void (*graph_drop)(void);

    /* How devices talk (kernels/comm.h). Never NULL; its `version` says whether
     * there is anything behind it. Looked for on the first call. */
    const weft_comm_api *(*comm)(void);

    const weft_ops *ops;
} weft_device_api;

/* The one symbol of the library. NULL: it does not speak that ABI. */
#define WEFT_DEVICE_SYMBOL "weft_device_get"
typedef const weft_device_api *(*weft_device_get_fn)(uint32_t abi);

#ifdef __cplusplus
}
#endif

#endif
