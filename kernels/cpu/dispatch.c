#include <string.h>

#include "kernels/cpu/paths.h"

enum { N_PATH = 4 };

static const char *const path_names[N_PATH] = {"avx512", "avx2", "neon",
                                               "scalar"};

static bool cpu_runs(int32_t path)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (path == 0)
        return __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("fma");
    /* Every CPU with AVX2 and FMA has F16C, which cannot be asked by name in
     * all compilers. */
    if (path == 1)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return path >= 2;
}

/* NULL where the build or this CPU lacks it. */
static const weft_ops *path_ops(int32_t path)
{
    if (!cpu_runs(path)) return NULL;
    switch (path) {
    case 0: return weft_path_avx512();
    case 1: return weft_path_avx2();
    case 2: return weft_path_neon();
    default: return weft_path_scalar();
    }
}

const weft_ops *weft_ops_cpu_nth(int32_t i)
{
    for (int32_t path = 0; path < N_PATH; path++) {
        const weft_ops *const ops = path_ops(path);
        if (ops != NULL && i-- == 0) return ops;
    }
    return NULL;
}

weft_status weft_ops_cpu(const char *name, const weft_ops **ops_out,
                         weft_err *err)
{
    if (strcmp(name, "auto") == 0) {
        *ops_out = weft_ops_cpu_nth(0);
        return WEFT_OK;
    }
    for (int32_t path = 0; path < N_PATH; path++) {
        if (strcmp(name, path_names[path]) != 0) continue;
        const weft_ops *const ops = path_ops(path);
        if (ops != NULL) {
            *ops_out = ops;
            return WEFT_OK;
        }
        char there[64] = "";
        size_t used = 0;
        for (int32_t i = 0; weft_ops_cpu_nth(i) != NULL; i++) {
            const char *const other = weft_ops_cpu_nth(i)->name;
            if (used + strlen(other) + 3 > sizeof there) break;
            if (used > 0) {
                memcpy(there + used, ", ", 3);
                used += 2;
            }
            memcpy(there + used, other, strlen(other) + 1);
            used += strlen(other);
        }
        return WEFT_FAIL(
            err, WEFT_UNAVAILABLE,
            "cpu path %s: this CPU or build lacks it; there are %s", name,
            there);
    }
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "cpu path \"%s\": not one of auto, avx512, avx2, neon, "
                     "scalar",
                     name);
}
