/* device_kit.h - the library of a device (kernels/device.h) for tests: opened,
 * bound, and memory put there and got back.
 *
 * The library is the one that WEFT_DEVICE_LIBRARY names, else libweft_simt.so
 * or libweft_cuda.so beside the test program. Blocks have exactly the bytes
 * asked for, so that the address sanitizer sees what goes beyond
 * (libweft_simt.so). What fails is printed, and aborts. Threads: one, but for
 * device_kit_sync.
 *
 * A device does not survive fork: main calls device_kit_need, each test
 * device_kit_open.
 */
#ifndef WEFT_TESTS_SUPPORT_DEVICE_KIT_H
#define WEFT_TESTS_SUPPORT_DEVICE_KIT_H

#include "kernels/device.h"
#include "tests/support/kernel_kit.h"

/* In main, before anything else: ends the process with 77 and a line if the
 * library or its device is not there. */
void device_kit_need(void);

/* The library's table, loaded on first use; nothing is opened. */
const weft_device_api *device_kit_api(void);
/* Something else that the library shows; NULL: it has no such symbol. */
void *device_kit_symbol(const char *name);

/* Device 0, one MiB of scratch, four threads at most; the calling thread is
 * bound. Another call gives the same. */
const weft_device_api *device_kit_open(void);
/* The same with so much scratch. What was open is closed. */
const weft_device_api *device_kit_open_scratch(int64_t scratch_bytes);
weft_device *device_kit_device(void);
/* Frees all device memory. */
void device_kit_close(void);

/* Device memory, all 0xff on libweft_simt.so. Of no bytes: NULL. */
void *device_kit_new(size_t bytes);
/* A copy of the host's there, and back again; both wait. */
void *device_kit_put(const void *host, size_t bytes);
void device_kit_get(void *host_to, const void *device_from, size_t bytes);
/* Over what device_kit_new or _put gave. */
void device_kit_set(void *device_to, const void *host_from, size_t bytes);
void device_kit_free(const void *at);
/* Of the calling thread. */
void device_kit_sync(void);

/* A random matrix: packed on the host for weft_ops_reference, row-major on the
 * host and on the device. */
typedef struct device_kit_matrix {
    weft_matrix packed; /* weft_kit_matrix */
    weft_matrix device;
    void *rows; /* [n_out, n_in] on the host */
} device_kit_matrix;

void device_kit_matrix_make(weft_kernel_check *check, weft_dtype dtype,
                            int32_t n_out, int32_t n_in,
                            device_kit_matrix *out);
void device_kit_matrix_free(device_kit_matrix *matrix);

#endif
