/* lead.h - how the router reaches a lead (stage 0 of a group): the two calls
 * it makes. What comes back are weft_events (node/base/gen.h).
 *
 * In one process the lead is the engine; behind a network it will be a link.
 */
#ifndef WEFT_ROUTER_LEAD_H
#define WEFT_ROUTER_LEAD_H

#include "node/base/gen.h"

/* Both are called on the router's thread and must not block.
 * RESOURCE_EXHAUSTED: no room now, nothing happened, the router tries again.
 * Any other failure of submit ends the request with that status. */
typedef struct weft_lead {
    /* The job and its arrays are borrowed until the job's last event. */
    weft_status (*submit)(void *arg, const weft_job *job);
    /* The job's last event comes all the same: END with CANCELLED, or what was
     * sent just before. A handle that has ended is not an error. */
    weft_status (*cancel)(void *arg, uint64_t handle);
    void *arg;
} weft_lead;

#endif
