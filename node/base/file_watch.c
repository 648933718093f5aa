#include "node/base/file_watch.h"

#include <sys/stat.h>

static const uint64_t LOOK_NS = 1000000000U;

static weft_file_stamp stamp_of(const char *path)
{
    weft_file_stamp stamp = {.bytes = 0};
    struct stat is;
    if (path == NULL || stat(path, &is) != 0) return stamp;
    stamp.changed = is.st_mtim;
    stamp.inode = is.st_ino;
    stamp.bytes = is.st_size;
    return stamp;
}

static bool is_same(const weft_file_stamp *a, const weft_file_stamp *b)
{
    return a->changed.tv_sec == b->changed.tv_sec &&
           a->changed.tv_nsec == b->changed.tv_nsec && a->inode == b->inode &&
           a->bytes == b->bytes;
}

void weft_file_watch_begin(weft_file_watch *w, uint64_t now_ns)
{
    for (int i = 0; i < WEFT_FILE_WATCH_MAX; i++)
        w->stamps[i] = stamp_of(w->paths[i]);
    w->looked_ns = now_ns;
}

bool weft_file_watch_look(weft_file_watch *w, uint64_t now_ns)
{
    if (now_ns - w->looked_ns < LOOK_NS) return false;
    weft_file_watch now = *w;
    bool changed = false;
    weft_file_watch_begin(&now, now_ns);
    for (int i = 0; i < WEFT_FILE_WATCH_MAX; i++)
        changed |= !is_same(&w->stamps[i], &now.stamps[i]);
    *w = now;
    return changed;
}
