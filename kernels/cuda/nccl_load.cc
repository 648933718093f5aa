// nccl_load.cc - finds NCCL and what it has: see nccl_load.h.
#include "kernels/cuda/nccl_load.h"

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <pthread.h>

namespace weft
{

namespace
{

#if defined(WEFT_SIMT)
constexpr char NAME[] = "libweft_simt_nccl.so";
#else
constexpr char NAME[] = "libnccl.so.2";
#endif

pthread_once_t once = PTHREAD_ONCE_INIT;
nccl_library found;

struct symbol {
    const char *name;
    size_t at; // in nccl_symbols
    bool needed;
};

#define SYMBOL(name, member, needed)                                           \
    {                                                                          \
#name, offsetof(nccl_symbols, member), needed                          \
    }
const symbol symbols[] = {
    SYMBOL(ncclGetVersion, get_version, true),
    SYMBOL(ncclGetUniqueId, get_unique_id, true),
    SYMBOL(ncclCommInitRankConfig, comm_init, true),
    SYMBOL(ncclCommGetAsyncError, comm_error, true),
    SYMBOL(ncclCommAbort, comm_abort, true),
    SYMBOL(ncclSend, send, true),
    SYMBOL(ncclRecv, recv, true),
    SYMBOL(ncclGroupStart, group_start, true),
    SYMBOL(ncclGroupEnd, group_end, true),
    SYMBOL(ncclGetErrorString, error_string, false),
    SYMBOL(ncclGetLastError, last_error, false),
};
#undef SYMBOL

// A release archive has it beside this library; a machine, where its loader
// looks.
void *open_beside()
{
    Dl_info self;
    char path[PATH_MAX];
    if (dladdr(&once, &self) == 0 || self.dli_fname == nullptr) return nullptr;
    const char *const slash = strrchr(self.dli_fname, '/');
    if (slash == nullptr) return nullptr;
    const int n = static_cast<int>(slash + 1 - self.dli_fname);
    if (snprintf(path, sizeof path, "%.*s%s", n, self.dli_fname, NAME) >=
        static_cast<int>(sizeof path))
        return nullptr;
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

const char *name_of_choice()
{
    const char *const chosen = getenv("WEFT_NCCL_LIBRARY");
    return chosen != nullptr && *chosen != 0 ? chosen : NAME;
}

void *open_library()
{
    const char *const name = name_of_choice();
    void *const beside = name == NAME ? open_beside() : nullptr;
    return beside != nullptr ? beside : dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

// The first that is needed and not there; nullptr: none.
const char *look_up(void *library)
{
    const char *missing = nullptr;
    for (const symbol &s : symbols) {
        void *const at = dlsym(library, s.name);
        memcpy(reinterpret_cast<unsigned char *>(&found.call) + s.at, &at,
               sizeof at);
        if (at == nullptr && s.needed && missing == nullptr) missing = s.name;
    }
    return missing;
}

void load()
{
    void *const library = open_library();
    if (library == nullptr) {
        const char *const why = dlerror();
        (void)snprintf(found.why, sizeof found.why, "NCCL: %s",
                       why == nullptr ? "cannot be opened" : why);
        return;
    }
    const char *const missing = look_up(library);
    int version = 0;
    if (found.call.get_version != nullptr)
        (void)found.call.get_version(&version);
    // 2.8.3 is 2803, 2.10.3 is 21003.
    const int unit = version >= 10000 ? 10000 : 1000;
    const int major = version / unit, minor = version % unit / 100;
    if (version == 0)
        (void)snprintf(found.why, sizeof found.why,
                       "NCCL: %s does not say its version of NCCL",
                       name_of_choice());
    else if (version < static_cast<int>(WEFT_NCCL_CONFIG_VERSION))
        (void)snprintf(found.why, sizeof found.why,
                       "NCCL is %d.%d, and 2.17 or later is needed", major,
                       minor);
    else if (missing != nullptr)
        (void)snprintf(found.why, sizeof found.why,
                       "NCCL %d.%d has no %s, which is needed", major, minor,
                       missing);
    else
        found.version = version;
}

} // namespace

const nccl_library *nccl_load()
{
    (void)pthread_once(&once, load);
    return &found;
}

} // namespace weft
