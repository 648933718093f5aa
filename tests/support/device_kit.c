#include "tests/support/device_kit.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node/base/mem.h"

enum { SKIPPED = 77, SCRATCH_BYTES = 1 << 20, THREADS = 4 };

static void *library;
static const weft_device_api *api;
static weft_device *device;
static int64_t device_scratch;

static void need(weft_status st, const char *what, const weft_err *err)
{
    if (st == WEFT_OK) return;
    (void)fprintf(stderr, "device kit: %s: %s\n", what, err->text);
    abort();
}

static void library_path(char path[PATH_MAX])
{
    static const char *const names[] = {"libweft_simt.so", "libweft_cuda.so"};
    const char *const chosen = getenv("WEFT_DEVICE_LIBRARY");
    char self[PATH_MAX - 32];
    if (chosen != NULL && *chosen != 0) {
        (void)snprintf(path, PATH_MAX, "%s", chosen);
        return;
    }
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n < 0 ? 0 : n] = 0;
    char *const slash = strrchr(self, '/');
    if (slash != NULL) slash[1] = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(path, PATH_MAX, "%s%s", self, names[i]);
        if (access(path, R_OK) == 0) return;
    }
}

/* NULL: the reason is printed. */
static const weft_device_api *load(void)
{
    char path[PATH_MAX];
    library_path(path);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        printf("SKIP %s\n", dlerror());
        return NULL;
    }
    weft_device_get_fn get = NULL;
    void *const symbol = dlsym(library, WEFT_DEVICE_SYMBOL);
    memcpy(&get, &symbol, sizeof get);
    const weft_device_api *const loaded =
        get == NULL ? NULL : get(WEFT_DEVICE_ABI);
    if (loaded == NULL || loaded->abi != WEFT_DEVICE_ABI) {
        (void)fprintf(stderr, "device kit: %s does not speak ABI %d\n", path,
                      (int)WEFT_DEVICE_ABI);
        abort();
    }
    return loaded;
}

const weft_device_api *device_kit_api(void)
{
    if (api == NULL) api = load();
    if (api == NULL) exit(SKIPPED);
    return api;
}

void *device_kit_symbol(const char *name)
{
    (void)device_kit_api();
    return dlsym(library, name);
}

static int probe(void)
{
    const weft_device_api *const loaded = load();
    if (loaded == NULL) return SKIPPED;
    const weft_device_options options = {0, SCRATCH_BYTES, 1};
    weft_device *opened = NULL;
    weft_err err = {0};
    const weft_status st = loaded->open(&options, &opened, &err);
    if (st == WEFT_OK) {
        loaded->close(opened);
        return 0;
    }
    printf("%s %s\n", st == WEFT_UNAVAILABLE ? "SKIP" : "FAIL", err.text);
    return st == WEFT_UNAVAILABLE ? SKIPPED : EXIT_FAILURE;
}

void device_kit_need(void)
{
    (void)fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const int code = probe();
        (void)fflush(stdout);
        _exit(code);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) abort();
    if (!WIFEXITED(status)) exit(EXIT_FAILURE);
    if (WEXITSTATUS(status) != 0) exit(WEXITSTATUS(status));
}

const weft_device_api *device_kit_open_scratch(int64_t scratch_bytes)
{
    (void)device_kit_api();
    if (device != NULL && device_scratch == scratch_bytes) return api;
    device_kit_close();
    const weft_device_options options = {0, scratch_bytes, THREADS};
    weft_err err = {0};
    need(api->open(&options, &device, &err), "open", &err);
    device_scratch = scratch_bytes;
    need(api->bind(device, &err), "bind", &err);
    return api;
}

const weft_device_api *device_kit_open(void)
{
    return device != NULL ? api : device_kit_open_scratch(SCRATCH_BYTES);
}

weft_device *device_kit_device(void)
{
    return device;
}

void device_kit_close(void)
{
    if (device != NULL) api->close(device);
    device = NULL;
}

void *device_kit_new(size_t bytes)
{
    void *at = NULL;
    weft_err err = {0};
    need(api->alloc(device, (int64_t)bytes, &at, &err), "alloc", &err);
    return at;
}

void *device_kit_put(const void *host, size_t bytes)
{
    void *const at = device_kit_new(bytes);
    device_kit_set(at, host, bytes);
    return at;
}

void device_kit_set(void *device_to, const void *host_from, size_t bytes)
{
    api->upload(device_to, host_from, (int64_t)bytes);
    device_kit_sync();
}

void device_kit_get(void *host_to, const void *device_from, size_t bytes)
{
    api->download(host_to, device_from, (int64_t)bytes);
    device_kit_sync();
}

void device_kit_free(const void *at)
{
    /* Ops' structs have it as const, whoever put it there. */
    union {
        const void *given;
        void *block;
    } to = {.given = at};
    api->free(device, to.block);
}

void device_kit_sync(void)
{
    weft_err err = {0};
    need(api->sync(&err), "sync", &err);
}

/* kernels/matrix.h: the last panel is as wide as is left, in lanes. */
static void unpack(const weft_matrix *packed, unsigned char *rows)
{
    const size_t bytes = weft_dtype_bytes(packed->dtype);
    const unsigned char *const data = packed->data;
    const size_t n_in = (size_t)packed->n_in, n_out = (size_t)packed->n_out;
    for (size_t out = 0; out < n_out; out++) {
        const size_t panel = out / WEFT_PANEL_OUTS,
                     lane = out % WEFT_PANEL_OUTS;
        const size_t left = n_out - panel * WEFT_PANEL_OUTS;
        const size_t width =
            left >= WEFT_PANEL_OUTS
                ? WEFT_PANEL_OUTS
                : (left + WEFT_LANES - 1) / WEFT_LANES * WEFT_LANES;
        for (size_t in = 0; in < n_in; in++) {
            const size_t from =
                WEFT_PANEL_OUTS * panel * n_in + in * width + lane;
            memcpy(rows + (out * n_in + in) * bytes, data + from * bytes,
                   bytes);
        }
    }
}

void device_kit_matrix_make(weft_kernel_check *check, weft_dtype dtype,
                            int32_t n_out, int32_t n_in, device_kit_matrix *out)
{
    weft_kit_matrix(check, dtype, n_out, n_in, &out->packed);
    const size_t bytes = (size_t)n_out * (size_t)n_in * weft_dtype_bytes(dtype);
    out->rows = weft_kit_new(bytes, 1);
    unpack(&out->packed, out->rows);
    out->device = out->packed;
    out->device.data = device_kit_put(out->rows, bytes);
    if (out->packed.scales != NULL) {
        const size_t n =
            (size_t)((n_out + WEFT_SCALE_BLOCK - 1) / WEFT_SCALE_BLOCK) *
            (size_t)((n_in + WEFT_SCALE_BLOCK - 1) / WEFT_SCALE_BLOCK);
        out->device.scales =
            device_kit_put(out->packed.scales, n * sizeof(float));
    }
}

void device_kit_matrix_free(device_kit_matrix *matrix)
{
    void *mem;
    memcpy(&mem, &matrix->device.data, sizeof mem);
    device_kit_free(mem);
    memcpy(&mem, &matrix->device.scales, sizeof mem);
    device_kit_free(mem);
    weft_mem_free(matrix->rows);
    weft_kit_matrix_free(&matrix->packed);
}
