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
 * stage and expert shard of the process; of a shard its loader or builder. */
static int32_t threads_of(const weft_options *o)
{
    if (o->command == WEFT_COMMAND_SHARD) return 3;
    return 1 + o->stages + (o->expert_shards > 1 ? o->expert_shards : 0);
}

static weft_status open_named(const char *name, const weft_options *o,
                              weft_backend *b, weft_err *err)
{
    const weft_device_options options = {.scratch_bytes = SCRATCH_MIB * MIB,
                                         .threads_max = threads_of(o)};
    if (options.threads_max > THREADS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "--backend %s: --stages %d and --expert-shards %d are "
                         "%d threads on one device, and it takes %d",
                         name, o->stages, o->expert_shards, options.threads_max,
                         THREADS_MAX);
    WEFT_TRY(open_library(name, b, err));
    WEFT_ASSERT(b->memory.api != NULL);
    const weft_status st =
        b->memory.api->open(&options, &b->memory.device, err);
    if (st != WEFT_OK) return WEFT_WRAP(err, st, "--backend %s", name);
    b->memory.api->get_info(b->memory.device, &b->info);
    WEFT_TRY(weft_memory_bind(&b->memory, err));
    weft_log(WEFT_LOG_INFO, "backend", "opened",
             "name %s device %d of %d \"%s\" sm %d free_mib %lld of %lld", name,
             b->info.index, b->info.n_devices, b->info.name, b->info.sm,
             (long long)(b->info.free_bytes / MIB),
             (long long)(b->info.total_bytes / MIB));
    return WEFT_OK;
}

weft_status weft_backend_open(const weft_options *options,
                              weft_backend *backend_out, weft_err *err)
{
    weft_backend b = {0};
    weft_err why = {0};
    const bool choose = strcmp(options->backend, "auto") == 0;
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
    const weft_status st =
        open_named(choose ? "cuda" : options->backend, options, &b, &why);
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
    if (backend->memory.api != NULL)
        backend->memory.api->close(backend->memory.device);
    if (backend->opened != NULL) (void)dlclose(backend->opened);
    *backend = (weft_backend){0};
}

void weft_backend_identity(const weft_backend *backend, weft_profile profile,
                           char text_out[WEFT_IDENTITY_BYTES])
{
    if (backend->opened == NULL)
        (void)snprintf(text_out, WEFT_IDENTITY_BYTES, "cpu");
    else
        (void)snprintf(text_out, WEFT_IDENTITY_BYTES, "%.40s.sm%d.%s",
                       backend->memory.api->identity, backend->info.sm,
                       profile == WEFT_EXACT ? "exact" : "bf16");
}

void weft_backend_device(const weft_backend *backend, char *text_out,
                         size_t bytes)
{
    if (backend->opened == NULL)
        (void)snprintf(text_out, bytes, "cpu");
    else
        (void)snprintf(text_out, bytes, "%s:%d %.40s",
                       backend->memory.api->name, backend->info.index,
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

weft_status weft_backend_plan(const weft_backend *backend,
                              const weft_model_config *config,
                              const weft_engine_options *engine,
                              int64_t kv_bytes, int64_t weights_bytes,
                              int64_t parts_bytes, int64_t *kv_bytes_out,
                              weft_err *err)
{
    weft_device_info info;
    int64_t useful = 0;
    backend->memory.api->get_info(backend->memory.device, &info);
    const int64_t buffers =
        weft_engine_device_bytes(config, engine) + parts_bytes;
    const int64_t left = usable(info.free_bytes) - weights_bytes - buffers;
    WEFT_TRY(weft_memory_useful_kv(config, engine, &useful, err));
    const int64_t wanted = kv_bytes > 0 ? kv_bytes : 1;
    if (left < wanted)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "device %d: weights %lld, step buffers %lld and "
                         "kv-bytes %lld are needed, %lld bytes are free",
                         info.index, (long long)weights_bytes,
                         (long long)buffers, (long long)kv_bytes,
                         (long long)info.free_bytes);
    *kv_bytes_out = kv_bytes > 0 ? kv_bytes : left < useful ? left : useful;
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
