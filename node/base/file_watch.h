/* file_watch.h - whether files have changed since they were read, for those
 * that are read again while the process runs.
 *
 * A file is another when its inode, its size or the time of its last change is;
 * one that is not there, or is there again, is another as well. Each change is
 * told once, whatever is made of it. Threads: one at a time.
 */
#ifndef WEFT_NODE_BASE_FILE_WATCH_H
#define WEFT_NODE_BASE_FILE_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

enum { WEFT_FILE_WATCH_MAX = 3 };

typedef struct weft_file_stamp {
    struct timespec changed;
    ino_t inode;
    off_t bytes;
} weft_file_stamp;

typedef struct weft_file_watch {
    const char *paths[WEFT_FILE_WATCH_MAX]; /* borrowed; NULL: none */
    weft_file_stamp stamps[WEFT_FILE_WATCH_MAX];
    uint64_t looked_ns;
} weft_file_watch;

/* From here on; before the files are read, so that a change in between is seen.
 */
void weft_file_watch_begin(weft_file_watch *watch, uint64_t now_ns);
/* Whether any has changed. Looks at most once a second; false in between. */
bool weft_file_watch_look(weft_file_watch *watch, uint64_t now_ns);

#endif
