#include "node/app/backend.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "node/base/check.h"
#include "node/base/log.h"

enum {
    PATH_BYTES = 4096,
    THREADS_MAX = 64, /* that a device's library takes */
    SCRATCH_MIB = 64,
};

static const int64_t MIB = INT64_C(1) << 20;

/* `name` is "cuda" or "simt". The path of its library, or why there is none. */
static weft_status find_library(const char *name, char path[PATH_BYTES],
                                weft_err *err)
{
    static const char *const folders[] = {"", "../lib/weft/"};
    char self[PATH_BYTES - 64];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "/proc/self/exe: unreadable");
    self[n] = '\0';
    char *const slash = strrchr(self, '/');
    if (slash != NULL) slash[1] = '\0';
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        (void)snprintf(path, PATH_BYTES, "%s%slibweft_%s.so", self, folders[i],
                       name);
        if (access(path, R_OK) == 0) return WEFT_OK;
    }
    return WEFT_FAIL(err, WEFT_UNAVAILABLE,
                     "--backend %s: no libweft_%s.so in %s or %s../lib/weft",
                     name, name, self, self);
}

static weft_status open_library(const char *name, weft_backend *b,
                                weft_err *err)
{
    char path[PATH_BYTES];
    WEFT_TRY(find_library(name, path, err));
    b->opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (b->opened == NULL)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "--backend %s: %s", name,
                         dlerror());
    union {
        void *symbol;
        weft_device_get_fn get;
    } at = {.symbol = dlsym(b->opened, WEFT_DEVICE_SYMBOL)};
    const weft_device_api *const api =
        at.symbol == NULL ? NULL : at.get(WEFT_DEVICE_ABI);
    if (api == NULL || api->abi != WEFT_DEVICE_ABI)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE,
                         "--backend %s: %s is of another version of weft", name,
                         path);
    b->memory.api = api;
    return WEFT_OK;
}

/* Who begins work on the device: the main thread while it starts, then every
 * stage and expert shard of the process; of a shard its loader or builder. Of
 * ranks beside the first: the main thread while it loads, and the rank's. */
static int32_t threads_of(const weft_options *o, int32_t rank)
{
    if (rank > 0) return 2;
    if (o->command == WEFT_COMMAND_SHARD) return 3;
    return 1 + o->stages + (o->expert_shards > 1 ? o->expert_shards : 0);
}

static weft_status check_threads(const char *name, const weft_options *o,
                                 weft_err *err)
{
    const int32_t n = threads_of(o, 0);
    if (n <= THREADS_MAX) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "--backend %s: --stages %d and --expert-shards %d are "
                     "%d threads on one device, and it takes %d",
                     name, o->stages, o->expert_shards, n, THREADS_MAX);
}

/* memory_out has the api. */
static weft_status open_device(const char *name, const weft_options *o,
                               int32_t rank, weft_memory *memory_out,
                               weft_device_info *info_out, weft_err *err)
{
    const weft_device_options options = {.index = rank,
                                         .scratch_bytes = SCRATCH_MIB * MIB,
                                         .threads_max = threads_of(o, rank)};
    WEFT_ASSERT(memory_out->api != NULL);
    const weft_status st =
        memory_out->api->open(&options, &memory_out->device, err);
    if (st != WEFT_OK) return WEFT_WRAP(err, st, "--backend %s", name);
    memory_out->api->get_info(memory_out->device, info_out);
    weft_log(WEFT_LOG_INFO, "backend", "opened",
             "name %s device %d of %d \"%s\" sm %d free_mib %lld of %lld", name,
             info_out->index, info_out->n_devices, info_out->name, info_out->sm,
             (long long)(info_out->free_bytes / MIB),
             (long long)(info_out->total_bytes / MIB));
    return WEFT_OK;
}

static weft_status open_others(const char *name, const weft_options *o,
                               weft_backend *b, weft_err *err)
{
    if (b->n_ranks > b->info.n_devices)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE,
                         "--tensor-parallel %d: --backend %s has %d device%s",
                         b->n_ranks, name, b->info.n_devices,
                         b->info.n_devices == 1 ? "" : "s");
    for (int32_t r = 1; r < b->n_ranks; r++) {
        weft_device_info info = {0};
        weft_memory *const memory = &b->others[r - 1];
        memory->api = b->memory.api;
        WEFT_TRY(open_device(name, o, r, memory, &info, err));
        if (info.sm != b->info.sm)
            return WEFT_FAIL(err, WEFT_FAILED_PRECONDITION,
                             "--tensor-parallel %d: device %d \"%s\" is sm %d, "
                             "device 0 \"%s\" is sm %d",
                             b->n_ranks, info.index, info.name, info.sm,
                             b->info.name, b->info.sm);
    }
    return WEFT_OK;
}

static weft_status open_named(const char *name, const weft_options *o,
                              weft_backend *b, weft_err *err)
{
    WEFT_TRY(check_threads(name, o, err));
    WEFT_TRY(open_library(name, b, err));
    return open_device(name, o, 0, &b->memory, &b->info, err);
}

weft_status weft_backend_open(const weft_options *options,
                              weft_backend *backend_out, weft_err *err)
{
    weft_backend b = {
        .n_ranks = options->tensor_parallel > 1 ? options->tensor_parallel : 1};
    weft_err why = {0};
    bool choose = strcmp(options->backend, "auto") == 0;
    const char *const name = choose ? "cuda" : options->backend;
    char path[PATH_BYTES];
    *backend_out = b;
    if (strcmp(options->backend, "cpu") == 0) return WEFT_OK;
#ifndef WEFT_SIMT_BACKEND
    if (strcmp(options->backend, "simt") == 0)
        return WEFT_FAIL(err, WEFT_UNIMPLEMENTED,
                         "--backend simt is for test builds, and this is none; "
                         "accepted are auto, cpu and cuda");
#endif
    /* Without the library there is nothing to say: most machines have none. */
    if (choose && find_library("cuda", path, NULL) != WEFT_OK) return WEFT_OK;
    weft_status st = open_named(name, options, &b, &why);
    /* Where there is a device, fewer than were asked for are not made up by
     * the CPU. */
    if (st == WEFT_OK) {
        choose = false;
        st = open_others(name, options, &b, &why);
    }
    if (st == WEFT_OK) st = weft_memory_bind(&b.memory, &why);
    if (st == WEFT_OK) {
        *backend_out = b;
        return WEFT_OK;
    }
    weft_backend_close(&b);
    if (choose) {
        weft_log(WEFT_LOG_INFO, "backend", "cpu", "reason \"%s\"", why.text);
        return WEFT_OK;
    }
    if (err != NULL) *err = why;
    return st;
}

void weft_backend_close(weft_backend *backend)
{
    for (int32_t r = 1; r < backend->n_ranks; r++) {
        const weft_memory *const other = &backend->others[r - 1];
        if (other->api != NULL) other->api->close(other->device);
    }
    if (backend->memory.api != NULL)
        backend->memory.api->close(backend->memory.device);
    if (backend->opened != NULL) (void)dlclose(backend->opened);
    *backend = (weft_backend){0};
}

const weft_memory *weft_backend_memory(const weft_backend *backend,
                                       int32_t rank)
{
    return rank == 0 ? &backend->memory : &backend->others[rank - 1];
}

void weft_backend_identity(const weft_backend *backend, weft_profile profile,
                           char text_out[WEFT_IDENTITY_BYTES])
{
    char degree[16] = "";
    if (backend->n_ranks > 1)
        (void)snprintf(degree, sizeof degree, ".tp%d", backend->n_ranks);
    if (backend->opened == NULL)
        (void)snprintf(text_out, WEFT_IDENTITY_BYTES, "cpu%s", degree);
    else
        (void)snprintf(text_out, WEFT_IDENTITY_BYTES, "%.36s.sm%d.%s%.4s",
                       backend->memory.api->identity, backend->info.sm,
                       profile == WEFT_EXACT ? "exact" : "bf16", degree);
}

void weft_backend_device(const weft_backend *backend, char *text_out,
                         size_t bytes)
{
    char last[16] = "";
    if (backend->n_ranks > 1)
        (void)snprintf(last, sizeof last, "-%d", backend->n_ranks - 1);
    if (backend->opened == NULL)
        (void)snprintf(text_out, bytes, "cpu");
    else
        (void)snprintf(text_out, bytes, "%s:%d%s %.40s",
                       backend->memory.api->name, backend->info.index, last,
                       backend->info.name);
}

/* A 64th stays free. */
static int64_t usable(int64_t free_bytes)
{
    return free_bytes - free_bytes / 64;
}

int64_t weft_backend_free_bytes(const weft_backend *backend)
{
    weft_device_info info;
    backend->memory.api->get_info(backend->memory.device, &info);
    return usable(info.free_bytes);
}

void weft_backend_apply(const weft_backend *backend,
                        weft_engine_options *engine)
{
    if (backend->opened == NULL) return;
    engine->ops = backend->memory.api->ops;
    engine->memory = &backend->memory;
    engine->threads = 1; /* that start work and wait for it */
}

/* What a rank's device has for KV pages. */
static weft_status find_room(const weft_memory *memory, int64_t weights_bytes,
                             int64_t buffers_bytes, int64_t kv_bytes,
                             int64_t *room_out, weft_err *err)
{
    weft_device_info info;
    memory->api->get_info(memory->device, &info);
    *room_out = usable(info.free_bytes) - weights_bytes - buffers_bytes;
    if (*room_out >= (kv_bytes > 0 ? kv_bytes : 1)) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "device %d: weights %lld, step buffers %lld and "
                     "kv-bytes %lld are needed, %lld bytes are free",
                     info.index, (long long)weights_bytes,
                     (long long)buffers_bytes, (long long)kv_bytes,
                     (long long)info.free_bytes);
}

weft_status weft_backend_plan(const weft_backend *backend,
                              const weft_model_config *config,
                              const weft_engine_options *engine,
                              int64_t kv_bytes, const int64_t *weights_bytes,
                              int64_t parts_bytes, int64_t *kv_bytes_out,
                              weft_err *err)
{
    int64_t least = INT64_MAX, useful = 0;
    /* Of ranks beside the first a little less: they give no logits. */
    const int64_t buffers =
        weft_engine_device_bytes(config, engine) + parts_bytes;
    for (int32_t r = 0; r < backend->n_ranks; r++) {
        int64_t room = 0;
        WEFT_TRY(find_room(weft_backend_memory(backend, r), weights_bytes[r],
                           buffers, kv_bytes, &room, err));
        if (room < least) least = room;
    }
    WEFT_TRY(weft_memory_useful_kv(config, engine, &useful, err));
    *kv_bytes_out = kv_bytes > 0 ? kv_bytes : least < useful ? least : useful;
    return weft_memory_check_pool(config, engine, *kv_bytes_out, err);
}

int32_t weft_backend_names(const char *names_out[3])
{
    static const char *const names[] = {"cuda", "simt"};
    char path[PATH_BYTES];
    int32_t n = 0;
    names_out[n++] = "cpu";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (find_library(names[i], path, NULL) == WEFT_OK)
            names_out[n++] = names[i];
    return n;
}
