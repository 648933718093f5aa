/* cgroup.h - what the control groups of this process leave to it: memory and
 * CPU time, in version 2 and 1. Limits of a container are told nowhere else.
 *
 * Threads: any; called at start.
 */
#ifndef WEFT_NODE_APP_CGROUP_H
#define WEFT_NODE_APP_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

/* The process's groups that have the controller ("memory", "cpu"), and their
 * parents, since a limit may be set at any of them. */
void weft_cgroup_each(const char *controller,
                      void (*each)(void *arg, const char *folder, bool v2),
                      void *arg);

/* What one group leaves: its limit less what it uses, not counting the page
 * cache of files, which is charged to it and given back before anything is
 * refused (a checkpoint that was copied or read lies there). `folder` is the
 * group's in the file system. False: no limit is told. */
bool weft_cgroup_memory_room(const char *folder, bool v2, int64_t *room_out);

/* How many cores' time the group may use, rounded up. More threads than that
 * are stopped in the middle of a step, again and again. False: no limit. */
bool weft_cgroup_cpus(const char *folder, bool v2, int32_t *cpus_out);

#endif
